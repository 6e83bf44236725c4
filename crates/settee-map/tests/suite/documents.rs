//! Random documents, full of what JavaScript treats in its own ways.

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, RngExt};

/// Names of members: few, so that functions find them and some occur twice.
pub(crate) const NAMES: [&str; 14] =
    ["a", "b", "c", "type", "tags", "name", "n", "x", "list", "_id", "value", "kind", "date", "parent"];

/// Names that mean something to JavaScript or to CouchDB, and names that need care as text.
pub(crate) const ODD_NAMES: [&str; 34] = [
    "length",
    "hasOwnProperty",
    "toString",
    "constructor",
    "valueOf",
    "map",
    "forEach",
    "indexOf",
    "toJSON",
    "__proto__",
    "0",
    "1",
    "10",
    "2",
    "01",
    "-1",
    "1.5",
    "4294967294",
    "4294967295",
    "9007199254740993",
    "é",
    "\\u0061",
    "\\u005f_proto__",
    "\\u0031",
    "a\\n",
    "\\ud83d\\ude00",
    "\\ud83d",
    "",
    " ",
    "_conflicts",
    "_deleted_conflicts",
    "_attachments",
    "_local_seq",
    "slice",
];

const NUMBERS: [&str; 30] = [
    "0",
    "-0",
    "1",
    "2",
    "3",
    "-1",
    "1.0",
    "-0.0",
    "10",
    "1e3",
    "1E5",
    "0.1",
    "-1.50",
    "1e21",
    "1e-7",
    "123456.789",
    "9007199254740993",
    "123456789012345680000",
    "999999999999999",
    "1000000000000000",
    "5e-324",
    "1e400",
    "-1e400",
    "1.7976931348623157e308",
    "0.000001",
    "4294967296",
    "2147483648",
    "-2147483649",
    "100000000000000000000000",
    "0.5",
];

const STRINGS: [&str; 38] = [
    "",
    "x",
    "a",
    "b",
    "post",
    "a b",
    "a,b,c",
    "1",
    "2",
    "10",
    "9",
    " 12 ",
    "0x10",
    "1e3",
    "Infinity",
    "-0",
    "true",
    "null",
    "undefined",
    "[object Object]",
    "é",
    "\\u00e9",
    "😀",
    "\\ud83d\\ude00",
    "\\ud83d",
    "\\ude00x",
    "x\\ud83d",
    "\\/",
    "\\u0041",
    "\\n",
    "\\u001f",
    "\\u007f",
    "\\\"q\\\\",
    "ﬀ",
    "\u{ffff}",
    "\\u00a0x",
    "length",
    "a😀b",
];

/// Upper bounds of the numbers of members, by the depth that is left.
const MEMBERS: [u32; 4] = [6, 6, 8, 24];

/// A random object, as a document's text without white space between tokens, or with it.
pub(crate) fn document(random: &mut StdRng) -> String {
    let mut text = String::new();
    object(random, 3, &mut text);
    if random.random_bool(0.05) {
        text = text.replace("\":", "\" :\n").replace("],", "]\t,");
    }
    text
}

pub(crate) fn value(random: &mut StdRng, depth: u32, out: &mut String) {
    match random.random_range(0..if depth == 0 { 9 } else { 14 }) {
        0 => out.push_str("null"),
        1 => out.push_str("true"),
        2 => out.push_str("false"),
        3 => out.push_str(NUMBERS.choose(random).unwrap()),
        4 => out.push_str(&random.random_range(-20..100).to_string()),
        5 if random.random_bool(0.2) => out.push_str(&number(random)),
        5 | 6 => quoted(STRINGS.choose(random).unwrap(), out),
        7 => quoted(STRINGS[..12].choose(random).unwrap(), out),
        8 => quoted(NAMES.choose(random).unwrap(), out),
        9..12 => array(random, depth - 1, out),
        _ => object(random, depth - 1, out),
    }
}

/// A number of random bits.
fn number(random: &mut StdRng) -> String {
    let value = f64::from_bits(random.next_u64());
    if value.is_finite() { format!("{value:e}") } else { "7".to_owned() }
}

fn quoted(text: &str, out: &mut String) {
    out.push('"');
    out.push_str(text);
    out.push('"');
}

fn array(random: &mut StdRng, depth: u32, out: &mut String) {
    out.push('[');
    for index in 0..random.random_range(0..5) {
        if index > 0 {
            out.push(',');
        }
        value(random, depth, out);
    }
    out.push(']');
}

fn object(random: &mut StdRng, depth: u32, out: &mut String) {
    out.push('{');
    let count = if random.random_bool(0.02) { 300 } else { random.random_range(0..MEMBERS[depth as usize]) };
    for index in 0..count {
        if index > 0 {
            out.push(',');
        }
        if count > 100 && random.random_bool(0.98) {
            quoted(&format!("m{index}"), out);
        } else if random.random_bool(0.2) {
            quoted(ODD_NAMES.choose(random).unwrap(), out);
        } else {
            quoted(NAMES.choose(random).unwrap(), out);
        }
        out.push(':');
        value(random, if count > 100 { 0 } else { depth }, out);
    }
    out.push('}');
}
