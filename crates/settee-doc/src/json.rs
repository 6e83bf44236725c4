//! JSON text of documents that are written and read.
//!
//! A body is kept as text: its members as received, without white space between tokens. One pass of
//! `serde_json` checks the syntax and finds the top-level members; a second pass over the bytes of each value
//! drops the white space and checks what `serde_json` doesn't.
//!
//! Members and elements are passed on one by one and never collected: a text of many small ones takes no more
//! memory than a text of one.

use std::borrow::Cow;
use std::fmt;

use serde::de::{self, Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::de::StrRead;
use serde_json::value::RawValue;

use crate::{Error, ErrorKind, Result};

/// How deep arrays and objects may nest in a document.
pub const NESTING_MAX: usize = 1_000;

/// Why a text was rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JsonError<E> {
    /// It isn't exactly one JSON value in UTF-8.
    Syntax,
    /// It begins as JSON of another type.
    OtherKind,
    /// The callback refused a member or an element; the rest of the text is JSON.
    Refused(E),
}

/// Calls `take` with each member of an object in order: its name, unescaped, and its value's text. A name may
/// occur more than once. Allocates no memory that grows with the number of members.
///
/// # Errors
/// [`JsonError`]. After `take` has failed it isn't called again, but the rest is still parsed: invalid JSON
/// is a [`JsonError::Syntax`] even after a refusal.
pub fn each_json_member<'a, E>(
    json: &'a [u8],
    mut take: impl FnMut(Cow<'a, str>, &'a RawValue) -> Result<(), E>,
) -> Result<(), JsonError<E>> {
    read(json, |deserializer, refused| {
        deserializer.deserialize_map(EachMember(|name, value| admit(take(name, value), refused)))
    })
}

/// As [`each_json_member`], for an array's elements.
///
/// # Errors
/// As [`each_json_member`].
pub fn each_json_element<'a, E>(
    json: &'a [u8],
    mut take: impl FnMut(&'a RawValue) -> Result<(), E>,
) -> Result<(), JsonError<E>> {
    read(json, |deserializer, refused| {
        deserializer.deserialize_seq(EachElement(|value| admit(take(value), refused)))
    })
}

/// Whether to continue; stores an error.
fn admit<E>(taken: Result<(), E>, refused: &mut Option<E>) -> bool {
    taken.map_err(|error| *refused = Some(error)).is_ok()
}

fn read<'a, E>(
    json: &'a [u8],
    visit: impl FnOnce(&mut serde_json::Deserializer<StrRead<'a>>, &mut Option<E>) -> serde_json::Result<()>,
) -> Result<(), JsonError<E>> {
    let text = std::str::from_utf8(json).map_err(|_| JsonError::Syntax)?;
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let mut refused = None;
    match visit(&mut deserializer, &mut refused).and_then(|()| deserializer.end()) {
        Err(error) if error.is_data() => Err(JsonError::OtherKind),
        Err(_) => Err(JsonError::Syntax),
        Ok(()) => refused.map_or(Ok(()), |error| Err(JsonError::Refused(error))),
    }
}

struct EachMember<F>(F);

impl<'de, F: FnMut(Cow<'de, str>, &'de RawValue) -> bool> Visitor<'de> for EachMember<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some((Name(name), value)) = map.next_entry()? {
            if !(self.0)(name, value) {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            }
        }
        Ok(())
    }
}

struct EachElement<F>(F);

impl<'de, F: FnMut(&'de RawValue) -> bool> Visitor<'de> for EachElement<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut elements: A) -> Result<(), A::Error> {
        while let Some(element) = elements.next_element()? {
            if !(self.0)(element) {
                while elements.next_element::<IgnoredAny>()?.is_some() {}
            }
        }
        Ok(())
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

/// Calls `take` with each member of a document.
///
/// # Errors
/// `BadRequest` if the text isn't exactly one JSON object in UTF-8; or the first error of `take`.
pub(crate) fn members<'a, E: From<Error>>(
    json: &'a [u8],
    take: impl FnMut(Cow<'a, str>, &'a RawValue) -> Result<(), E>,
) -> Result<(), E> {
    each_json_member(json, take).map_err(|error| match error {
        JsonError::Refused(error) => error,
        JsonError::OtherKind => Error::bad_request("Document must be a JSON object").into(),
        JsonError::Syntax => invalid().into(),
    })
}

fn invalid() -> Error {
    Error::bad_request("invalid UTF-8 JSON")
}

/// Appends a value's text without the white space between its tokens, as long as `out` has at most
/// `bytes_max` bytes. Returns whether all of it was appended.
///
/// # Errors
/// `BadRequest` if a string has an unpaired surrogate, which UTF-8 can't represent, if values nest deeper
/// than [`NESTING_MAX`], or if a number exceeds the range of a double.
pub(crate) fn write_compact(value: &RawValue, out: &mut Vec<u8>, bytes_max: usize) -> Result<bool> {
    let text = value.get().as_bytes();
    let mut copied = 0;
    let mut depth = 0_usize;
    let mut at = 0;
    while at < text.len() {
        match text[at] {
            b'"' => at = string_end(text, at)?,
            b' ' | b'\t' | b'\n' | b'\r' => {
                if !append(&text[copied..at], out, bytes_max) {
                    return Ok(false);
                }
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
    Ok(append(&text[copied..], out, bytes_max))
}

/// Appends bytes if they fit.
fn append(bytes: &[u8], out: &mut Vec<u8>, bytes_max: usize) -> bool {
    let fits = out.len() + bytes.len() <= bytes_max;
    if fits {
        out.extend_from_slice(bytes);
    }
    fits
}

/// Checks the numbers and strings of a valid JSON text, or of a part of one that splits no token: the checks
/// of `write_compact`, for texts that aren't stored.
///
/// # Errors
/// `BadRequest` if a number exceeds the range of a double, or a string has an unpaired surrogate.
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

/// A number without an exponent of up to this many bytes is in the range of a double, whatever its digits:
/// the range ends at 1.8e308, a number of 309 digits.
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

/// The size of the `\u` escape, or of the surrogate pair, at the front of `text`.
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

/// A value's text, if it is a string.
pub(crate) fn string(value: &RawValue) -> Option<Cow<'_, str>> {
    serde_json::from_str::<Name<'_>>(value.get()).ok().map(|Name(text)| text)
}

/// The error for a reserved member that is unknown or malformed.
pub(crate) fn bad_member(name: &str) -> Error {
    Error::new(ErrorKind::DocValidation, format!("Bad special document member: {name}"))
}
