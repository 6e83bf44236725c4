//! JavaScript's strings as WTF-8: UTF-8 in which a surrogate without its partner has a code of three bytes.
//!
//! A high surrogate is never followed by a low one (they are joined), so two strings are equal if their bytes are.

use std::cmp::Ordering;

/// Unescapes the text between a JSON string's quotes.
pub(crate) fn unescape(raw: &[u8], out: &mut Vec<u8>) {
    let from = out.len();
    let mut rest = raw;
    while let Some(escape) = memchr::memchr(b'\\', rest) {
        out.extend_from_slice(&rest[..escape]);
        let code = rest.get(escape + 1).copied().unwrap_or(b'\\');
        let mut size = 2;
        match code {
            b'b' => out.push(8),
            b'f' => out.push(12),
            b'n' => out.push(b'\n'),
            b'r' => out.push(b'\r'),
            b't' => out.push(b'\t'),
            b'u' => {
                push_unit(out, from, hex(rest.get(escape + 2..escape + 6).unwrap_or_default()));
                size = 6;
            }
            other => out.push(other),
        }
        rest = rest.get(escape + size..).unwrap_or_default();
    }
    out.extend_from_slice(rest);
}

fn hex(digits: &[u8]) -> u16 {
    digits.iter().fold(0, |sum, digit| sum << 4 | (*digit as char).to_digit(16).unwrap_or(0) as u16)
}

/// Appends a UTF-16 unit to the string that begins at `from`.
pub(crate) fn push_unit(out: &mut Vec<u8>, from: usize, unit: u16) {
    if (0xdc00..0xe000).contains(&unit)
        && let Some(high) = high_surrogate_at_end(&out[from..])
    {
        out.truncate(out.len() - 3);
        let code = 0x10000 + (u32::from(high - 0xd800) << 10) + u32::from(unit - 0xdc00);
        push_char(out, char::from_u32(code).expect("a surrogate pair is a character"));
    } else if let Some(char) = char::from_u32(u32::from(unit)) {
        push_char(out, char);
    } else {
        out.extend([0xed, 0x80 | (unit >> 6 & 0x3f) as u8, 0x80 | (unit & 0x3f) as u8]);
    }
}

fn push_char(out: &mut Vec<u8>, char: char) {
    out.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes());
}

fn high_surrogate_at_end(text: &[u8]) -> Option<u16> {
    match text {
        [.., 0xed, second @ 0xa0..0xb0, third] => Some(surrogate(*second, *third)),
        _ => None,
    }
}

fn surrogate(second: u8, third: u8) -> u16 {
    0xd000 | u16::from(second & 0x3f) << 6 | u16::from(third & 0x3f)
}

/// Whether appending the string may join surrogates.
pub(crate) fn begins_with_low_surrogate(text: &[u8]) -> bool {
    matches!(text, [0xed, 0xb0..0xc0, ..])
}

/// Appends `text` to the string that begins at `from`; joins surrogates that meet.
pub(crate) fn append(out: &mut Vec<u8>, from: usize, text: &[u8]) {
    if let [0xed, second @ 0xb0..0xc0, third, rest @ ..] = text
        && high_surrogate_at_end(&out[from..]).is_some()
    {
        push_unit(out, from, surrogate(*second, *third));
        out.extend_from_slice(rest);
    } else {
        out.extend_from_slice(text);
    }
}

/// Number of UTF-16 units.
pub(crate) fn length(text: &[u8]) -> usize {
    if text.is_ascii() {
        return text.len();
    }
    let units = |byte: &u8| match byte {
        0x80..0xc0 => 0,
        0xf0.. => 2,
        _ => 1,
    };
    text.iter().map(units).sum()
}

/// The UTF-16 units of a string.
pub(crate) fn units(text: &[u8]) -> impl Iterator<Item = u16> + '_ {
    let mut at = 0;
    let mut low = None;
    std::iter::from_fn(move || {
        if let Some(low) = low.take() {
            return Some(low);
        }
        let bits = |offset: usize| u32::from(text.get(at + offset).copied().unwrap_or(0x80) & 0x3f);
        let first = u32::from(*text.get(at)?);
        let (code, size) = match first {
            0..0x80 => (first, 1),
            0x80..0xe0 => ((first & 0x1f) << 6 | bits(1), 2),
            0xe0..0xf0 => ((first & 0x0f) << 12 | bits(1) << 6 | bits(2), 3),
            _ => ((first & 0x07) << 18 | bits(1) << 12 | bits(2) << 6 | bits(3), 4),
        };
        at += size;
        if code < 0x10000 {
            return Some(code as u16);
        }
        low = Some(0xdc00 | (code & 0x3ff) as u16);
        Some(0xd800 + ((code - 0x10000) >> 10) as u16)
    })
}

/// JavaScript's order of strings: by UTF-16 units.
pub(crate) fn compare(a: &[u8], b: &[u8]) -> Ordering {
    let same = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    match (a.get(same), b.get(same)) {
        // Bytes order as code points do; units order otherwise where a character has two of them.
        (Some(x), Some(y)) if *x >= 0xf0 || *y >= 0xf0 => units(a).cmp(units(b)),
        (x, y) => x.cmp(&y),
    }
}

/// The units `start..end` of a string, appended as a string of its own.
pub(crate) fn slice(text: &[u8], start: usize, end: usize, out: &mut Vec<u8>) {
    let from = out.len();
    for unit in units(text).skip(start).take(end.saturating_sub(start)) {
        push_unit(out, from, unit);
    }
}

/// Where `needle` first occurs at or after unit `start`, in units.
pub(crate) fn find(text: &[u8], needle: &[u8], start: usize) -> Option<usize> {
    if text.is_ascii() {
        let found = memchr::memmem::find(text.get(start..)?, needle)?;
        return Some(start + found);
    }
    let (text, needle): (Vec<u16>, Vec<u16>) = (units(text).collect(), units(needle).collect());
    let rest = text.get(start..)?;
    if needle.is_empty() {
        return Some(start);
    }
    rest.windows(needle.len()).position(|window| window == needle).map(|found| start + found)
}

/// Where `needle` last occurs, beginning at or before unit `start`, in units.
pub(crate) fn find_last(text: &[u8], needle: &[u8], start: usize) -> Option<usize> {
    let (text, needle): (Vec<u16>, Vec<u16>) = (units(text).collect(), units(needle).collect());
    let last = text.len().checked_sub(needle.len())?;
    (0..=last.min(start)).rev().find(|&at| text[at..at + needle.len()] == needle)
}

/// The string with a replacement character for each lone surrogate.
pub(crate) fn lossy(text: &[u8]) -> String {
    let units: Vec<u16> = units(text).collect();
    String::from_utf16_lossy(&units)
}

/// Appends a string as `JSON.stringify` prints it.
pub(crate) fn quote(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    let mut plain = 0;
    let mut at = 0;
    while at < text.len() {
        let byte = text[at];
        let is_surrogate = byte == 0xed && text.get(at + 1).is_some_and(|second| *second >= 0xa0);
        if byte >= 0x20 && byte != b'"' && byte != b'\\' && !is_surrogate {
            at += 1;
            continue;
        }
        out.extend_from_slice(&text[plain..at]);
        if is_surrogate {
            push_escape(out, surrogate(text[at + 1], text.get(at + 2).copied().unwrap_or(0x80)));
            at += 3;
        } else {
            push_short_escape(out, byte);
            at += 1;
        }
        plain = at;
    }
    out.extend_from_slice(&text[plain.min(text.len())..]);
    out.push(b'"');
}

fn push_short_escape(out: &mut Vec<u8>, byte: u8) {
    let short = match byte {
        8 => b'b',
        12 => b'f',
        b'\n' => b'n',
        b'\r' => b'r',
        b'\t' => b't',
        b'"' | b'\\' => byte,
        _ => return push_escape(out, u16::from(byte)),
    };
    out.extend([b'\\', short]);
}

fn push_escape(out: &mut Vec<u8>, unit: u16) {
    let digit = |shift: u16| b"0123456789abcdef"[(unit >> shift & 0xf) as usize];
    out.extend([b'\\', b'u', digit(12), digit(8), digit(4), digit(0)]);
}
