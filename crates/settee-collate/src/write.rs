//! Makes sort keys from JSON text.

use std::sync::LazyLock;

use icu_collator::options::CollatorOptions;
use icu_collator::{Collator, CollatorBorrowed, CollatorPreferences};

use crate::order::{Collation, END, Tags};
use crate::text::unescape;

/// How deep arrays and objects may nest in a key.
pub const NESTING_MAX: usize = 1_100;

/// Unicode's root collation.
static COLLATOR: LazyLock<CollatorBorrowed<'static>> = LazyLock::new(|| {
    Collator::try_new(CollatorPreferences::default(), CollatorOptions::default())
        .expect("the root collation is compiled in")
});

/// The text isn't a JSON value, or nests more than [`NESTING_MAX`] deep. What was appended so far is useless.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidJson;

impl std::fmt::Display for InvalidJson {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a key isn't JSON, or nests too deep")
    }
}

impl std::error::Error for InvalidJson {}

/// Appends the sort key of a JSON value. The text must be JSON without bytes after it, except for white space;
/// of invalid JSON only that is detected which would make a key that isn't self-delimiting.
///
/// # Errors
/// [`InvalidJson`].
pub fn write_sort_key(json: &str, collation: Collation, out: &mut Vec<u8>) -> Result<(), InvalidJson> {
    let mut writer = Writer { rest: json, tags: collation.tags(), collation, out };
    writer.write()?;
    if writer.peek().is_some() { Err(InvalidJson) } else { Ok(()) }
}

/// Appends the sort key of a string, given as its contents.
pub fn write_string_key(text: &str, collation: Collation, out: &mut Vec<u8>) {
    out.push(collation.tags().string);
    write_text(text, collation, out);
}

/// Appends the beginning of an array's sort key: its elements' sort keys follow, then [`END`].
pub fn write_array_start(collation: Collation, out: &mut Vec<u8>) {
    out.push(collation.tags().array);
}

struct Writer<'a, 'o> {
    rest: &'a str,
    tags: &'static Tags,
    collation: Collation,
    out: &'o mut Vec<u8>,
}

/// Whether an open array or object is an object.
type IsObject = bool;

impl<'a> Writer<'a, '_> {
    /// Writes one value; what it contains is on `open`, not on the stack.
    fn write(&mut self) -> Result<(), InvalidJson> {
        let mut open: Vec<IsObject> = Vec::new();
        loop {
            // A value begins here.
            match self.peek().ok_or(InvalidJson)? {
                first @ (b'[' | b'{') => {
                    let is_object = first == b'{';
                    self.skip(1);
                    self.out.push(if is_object { self.tags.object } else { self.tags.array });
                    if open.len() == NESTING_MAX {
                        return Err(InvalidJson);
                    }
                    open.push(is_object);
                    if !self.closes(is_object) {
                        self.begin_item(is_object)?;
                        continue;
                    }
                    self.close(&mut open);
                }
                _ => self.write_scalar()?,
            }
            // A value ended here.
            loop {
                let Some(&is_object) = open.last() else { return Ok(()) };
                if self.closes(is_object) {
                    self.close(&mut open);
                    continue;
                }
                if self.peek() != Some(b',') {
                    return Err(InvalidJson);
                }
                self.skip(1);
                self.begin_item(is_object)?;
                break;
            }
        }
    }

    /// The next byte that isn't white space.
    fn peek(&mut self) -> Option<u8> {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\r', '\n']);
        self.rest.as_bytes().first().copied()
    }

    fn skip(&mut self, count: usize) {
        self.rest = &self.rest[count..];
    }

    fn closes(&mut self, is_object: IsObject) -> bool {
        self.peek() == Some(if is_object { b'}' } else { b']' })
    }

    fn close(&mut self, open: &mut Vec<IsObject>) {
        self.skip(1);
        open.pop();
        self.out.push(END);
    }

    /// Writes a member's name; an element has none.
    fn begin_item(&mut self, is_object: IsObject) -> Result<(), InvalidJson> {
        if !is_object {
            return Ok(());
        }
        if self.peek() != Some(b'"') {
            return Err(InvalidJson);
        }
        self.write_string()?;
        if self.peek() != Some(b':') {
            return Err(InvalidJson);
        }
        self.skip(1);
        Ok(())
    }

    fn write_scalar(&mut self) -> Result<(), InvalidJson> {
        match self.rest.as_bytes()[0] {
            b'"' => self.write_string(),
            b'-' | b'0'..=b'9' => self.write_number(),
            _ => self.write_word(),
        }
    }

    fn write_word(&mut self) -> Result<(), InvalidJson> {
        let words = [("null", self.tags.null), ("false", self.tags.no), ("true", self.tags.yes)];
        let (word, tag) =
            words.into_iter().find(|(word, _)| self.rest.starts_with(word)).ok_or(InvalidJson)?;
        self.skip(word.len());
        self.out.push(tag);
        Ok(())
    }

    fn write_number(&mut self) -> Result<(), InvalidJson> {
        let is_part = |byte: &u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
        let length = self.rest.as_bytes().iter().take_while(|byte| is_part(byte)).count();
        // Adding 0 makes -0 0.
        let number: f64 = self.rest[..length].parse::<f64>().map_err(|_| InvalidJson)? + 0.0;
        self.skip(length);
        let bits = number.to_bits();
        let ordered = if bits >> 63 == 1 { !bits } else { bits | 1 << 63 };
        self.out.push(self.tags.number);
        self.out.extend_from_slice(&ordered.to_be_bytes());
        Ok(())
    }

    fn write_string(&mut self) -> Result<(), InvalidJson> {
        let inner = &self.rest[1..];
        let bytes = inner.as_bytes();
        let mut end = 0;
        loop {
            end += memchr::memchr2(b'"', b'\\', &bytes[end..]).ok_or(InvalidJson)?;
            if bytes[end] == b'"' {
                break;
            }
            end = (end + 2).min(bytes.len());
        }
        self.out.push(self.tags.string);
        write_text(&unescape(&inner[..end]), self.collation, self.out);
        self.rest = &inner[end + 1..];
        Ok(())
    }
}

fn write_text(text: &str, collation: Collation, out: &mut Vec<u8>) {
    match collation {
        Collation::Unicode => {
            let Ok(()) = COLLATOR.write_sort_key_to(text, out);
            out.push(0);
        }
        Collation::Raw => {
            for (index, part) in text.as_bytes().split(|byte| *byte == 0).enumerate() {
                if index > 0 {
                    out.extend_from_slice(&[0, 0xff]);
                }
                out.extend_from_slice(part);
            }
            out.extend_from_slice(&[0, 0]);
        }
    }
}
