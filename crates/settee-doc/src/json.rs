//! JSON text: a document on its way in and out.
//!
//! A body is kept as text: its members as they came, without white space between tokens. One
//! pass of `serde_json` checks the syntax and finds the top-level members; a second, over the
//! bytes of each value, drops the white space and checks what `serde_json` leaves open.

use std::borrow::Cow;
use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::{Error, ErrorKind, Result};

/// How deep arrays and objects may nest in a document.
pub const NESTING_MAX: usize = 1_000;

/// An object's members in order: the name, unescaped, and the value's text. A name may come
/// more than once.
pub(crate) struct Members<'a>(pub Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Members<'de>, D::Error> {
        struct Collect;

        impl<'de> Visitor<'de> for Collect {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let mut members = Vec::new();
                while let Some((Name(name), value)) = map.next_entry()? {
                    members.push((name, value));
                }
                Ok(Members(members))
            }
        }

        deserializer.deserialize_map(Collect)
    }
}

/// A member's name, borrowed where it has no escapes.
struct Name<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Name<'de>, D::Error> {
        struct Borrow;

        impl<'de> Visitor<'de> for Borrow {
            type Value = Name<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name")
            }

            fn visit_borrowed_str<E: de::Error>(self, name: &'de str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Borrowed(name)))
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<Name<'de>, E> {
                Ok(Name(Cow::Owned(name.to_owned())))
            }
        }

        deserializer.deserialize_str(Borrow)
    }
}

/// Finds a document's members.
///
/// # Errors
/// `BadRequest` where it isn't one whole JSON object in UTF-8.
pub(crate) fn members(json: &[u8]) -> Result<Members<'_>> {
    let text = std::str::from_utf8(json).map_err(|_| invalid())?;
    serde_json::from_str(text).map_err(|error| match error.classify() {
        serde_json::error::Category::Data => Error::bad_request("Document must be a JSON object"),
        _ => invalid(),
    })
}

fn invalid() -> Error {
    Error::bad_request("invalid UTF-8 JSON")
}

/// Appends a value's text without the white space between its tokens.
///
/// # Errors
/// `BadRequest` where a string has half a surrogate pair, which no UTF-8 text can hold, where
/// values nest deeper than [`NESTING_MAX`], or where a number exceeds the range of a double.
pub(crate) fn write_compact(value: &RawValue, out: &mut Vec<u8>) -> Result<()> {
    let text = value.get().as_bytes();
    let mut copied = 0;
    let mut depth = 0_usize;
    let mut at = 0;
    while at < text.len() {
        match text[at] {
            b'"' => at = string_end(text, at)?,
            b' ' | b'\t' | b'\n' | b'\r' => {
                out.extend_from_slice(&text[copied..at]);
                at += 1;
                copied = at;
            }
            b'{' | b'[' => {
                depth += 1;
                if depth >= NESTING_MAX {
                    return Err(Error::bad_request(format!("values nest deeper than {NESTING_MAX}")));
                }
                at += 1;
            }
            b'}' | b']' => {
                depth -= 1;
                at += 1;
            }
            b'-' | b'0'..=b'9' => at = number_end(text, at)?,
            _ => at += 1,
        }
    }
    out.extend_from_slice(&text[copied..]);
    Ok(())
}

/// Checks the numbers and strings of a valid JSON text, or of a part of one that cuts no token: what
/// [`write_compact`] checks of a document's members, for texts that aren't stored.
///
/// # Errors
/// `BadRequest` where a number exceeds the range of a double, or a string has half a surrogate pair.
pub fn check_tokens(json: &[u8]) -> Result<()> {
    let mut at = 0;
    while at < json.len() {
        match json[at] {
            b'"' => at = string_end(json, at)?,
            b'-' | b'0'..=b'9' => at = number_end(json, at)?,
            _ => at += 1,
        }
    }
    Ok(())
}

/// Bytes of a number's text without an exponent that is in the range of a double, whatever its digits:
/// that ends at 1.8e308, a number of 309 digits.
const IN_RANGE_BYTES: usize = 308;

/// The position behind the number that begins at `start`.
fn number_end(text: &[u8], start: usize) -> Result<usize> {
    let is_part = |byte: &u8| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E');
    let size = text[start..].iter().position(|byte| !is_part(byte)).unwrap_or(text.len() - start);
    let number = &text[start..start + size];
    let has_exponent = || number.iter().any(|byte| matches!(byte, b'e' | b'E'));
    if size > IN_RANGE_BYTES || has_exponent() {
        let value = std::str::from_utf8(number).ok().and_then(|number| number.parse::<f64>().ok());
        if !value.is_some_and(f64::is_finite) {
            return Err(Error::bad_request("a number exceeds the range of a double"));
        }
    }
    Ok(start + size)
}

/// The position behind the string that begins at `start`.
fn string_end(text: &[u8], start: usize) -> Result<usize> {
    let mut at = start + 1;
    loop {
        at += memchr::memchr2(b'"', b'\\', &text[at..]).expect("the text is valid JSON");
        if text[at] == b'"' {
            return Ok(at + 1);
        }
        at += if text[at + 1] == b'u' { escape_size(&text[at..])? } else { 2 };
    }
}

/// The size of the `\u` escape, or the pair of them, at the front of `text`.
fn escape_size(text: &[u8]) -> Result<usize> {
    let unit = |at: usize| {
        let digits = text.get(at..at + 6).filter(|digits| digits.starts_with(b"\\u"))?;
        u16::from_str_radix(std::str::from_utf8(&digits[2..]).ok()?, 16).ok()
    };
    match unit(0) {
        Some(0xD800..=0xDBFF) if matches!(unit(6), Some(0xDC00..=0xDFFF)) => Ok(12),
        Some(0xD800..=0xDFFF) | None => Err(invalid()),
        Some(_) => Ok(6),
    }
}

/// Appends `text` as a JSON string with its quotes.
pub fn write_json_string(text: &str, out: &mut Vec<u8>) {
    const NEEDS_ESCAPE: fn(&u8) -> bool = |byte| *byte < 0x20 || *byte == b'"' || *byte == b'\\';
    if text.as_bytes().iter().any(NEEDS_ESCAPE) {
        serde_json::to_writer(out, text).expect("a string is JSON, a vector takes it");
    } else {
        out.reserve(text.len() + 2);
        out.push(b'"');
        out.extend_from_slice(text.as_bytes());
        out.push(b'"');
    }
}

/// The string that a value is.
pub(crate) fn string(value: &RawValue) -> Option<Cow<'_, str>> {
    serde_json::from_str::<Name<'_>>(value.get()).ok().map(|Name(text)| text)
}

/// An error about a reserved member.
pub(crate) fn bad_member(name: &str) -> Error {
    Error::new(ErrorKind::DocValidation, format!("Bad special document member: {name}"))
}
