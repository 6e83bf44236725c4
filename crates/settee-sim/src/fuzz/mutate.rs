//! Mutations of an input: some are blind, some use knowledge of the input's syntax.

use super::source::{INPUT_BYTES_MAX, Source};

/// Most mutations of one input.
const MUTATION_COUNT_MAX: usize = 6;

/// Most repetitions of a piece.
const REPEAT_COUNT_MAX: usize = 2_000;

/// Bytes with a meaning in some syntax.
const BYTES: &[u8] = b"\0\t\n\r \"#%&'()*+,-./0:;<=>?@[\\]^_`{|}~\x7f\x80\xc3\xed\xff";

/// Numbers near the limits of common types.
const NUMBERS: [&str; 12] = [
    "0",
    "-1",
    "255",
    "65536",
    "2147483648",
    "4294967295",
    "4294967296",
    "18446744073709551615",
    "18446744073709551616",
    "99999999999999999999999999",
    "1e400",
    "-0",
];

/// Mutates an input in some places. Some mutations join it with an input of `corpus`.
pub(super) fn mutate(input: &mut Vec<u8>, corpus: &[&[u8]], source: &mut Source<'_>) {
    // Few mutations, so that most of the input stays valid.
    let count = 1 + source.below(MUTATION_COUNT_MAX).min(source.below(MUTATION_COUNT_MAX));
    for _ in 0..count {
        mutate_once(input, corpus, source);
        input.truncate(INPUT_BYTES_MAX);
    }
}

fn mutate_once(input: &mut Vec<u8>, corpus: &[&[u8]], source: &mut Source<'_>) {
    if input.is_empty() {
        input.extend_from_slice(source.word().as_bytes());
        return;
    }
    let at = source.below(input.len());
    match source.below(16) {
        0 => input[at] ^= 1 << source.below(8),
        1 => input[at] = BYTES[source.below(BYTES.len())],
        2 => input.insert(at, BYTES[source.below(BYTES.len())]),
        3 => {
            let bytes = source.bytes(8);
            insert(input, at, &bytes);
        }
        4 | 5 => insert(input, at, source.word().as_bytes()),
        6 => {
            let end = end_of_piece(input, at, source);
            input.drain(at..end);
        }
        7 => {
            let piece = input[at..end_of_piece(input, at, source)].to_vec();
            let to = source.below(input.len() + 1);
            insert(input, to, &piece);
        }
        8 => {
            let piece = input[at..end_of_piece(input, at, source).min(at + 8)].to_vec();
            let repeat_max = (INPUT_BYTES_MAX - input.len().min(INPUT_BYTES_MAX)) / piece.len().max(1);
            let times = source.below(REPEAT_COUNT_MAX).min(source.below(REPEAT_COUNT_MAX)).min(repeat_max);
            insert(input, at, &piece.repeat(times));
        }
        9 => input.truncate(at),
        10 | 11 => {
            // Joins the front of this input and the end of another.
            let other = source.pick(corpus);
            input.truncate(at);
            input.extend_from_slice(&other[source.below(other.len() + 1)..]);
        }
        12 => number(input, at, source.pick(&NUMBERS)),
        13 => {
            let escaped = format!("\\u{:04x}", input[at]);
            input.splice(at..=at, escaped.into_bytes());
        }
        14 => {
            let encoded = format!("%{:02X}", input[at]);
            input.splice(at..=at, encoded.into_bytes());
        }
        _ => input[at] ^= 0x20,
    }
}

fn insert(input: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    input.splice(at..at, bytes.iter().copied());
}

fn end_of_piece(input: &[u8], at: usize, source: &mut Source<'_>) -> usize {
    let length_max = if source.coin() { 8 } else { 200 };
    (at + 1 + source.below(length_max)).min(input.len())
}

/// Replaces the first number at or after `at`.
fn number(input: &mut Vec<u8>, at: usize, number: &str) {
    let Some(start) = input[at..].iter().position(u8::is_ascii_digit).map(|found| at + found) else {
        return insert(input, at, number.as_bytes());
    };
    let count = input[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    input.splice(start..start + count, number.bytes());
}
