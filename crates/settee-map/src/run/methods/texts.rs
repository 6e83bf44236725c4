//! Methods of strings. Positions are in UTF-16 units; in ASCII these are bytes, and parts are ranges of the whole.

use crate::plan::Method;
use crate::run::limits::BYTES_PER_STEP;
use crate::run::values::{Text, Value};
use crate::run::{Evaluated, Run};
use crate::text;

impl Run<'_> {
    pub(super) fn text_method(
        &mut self,
        method: Method,
        text: Text,
        arguments: &[Value],
    ) -> Evaluated<Value> {
        self.steps(text.size() / BYTES_PER_STEP)?;
        let length = text::length(self.bytes(text));
        let first = arguments.first().copied();
        let second = arguments.get(1).copied();
        Ok(match method {
            Method::CharAt => {
                let position = self.integer_of(first, 0.0)?;
                if position < 0.0 || position >= length as f64 {
                    return Ok(Value::Text(Text::EMPTY));
                }
                Value::Text(self.substring(text, position as usize, position as usize + 1)?)
            }
            Method::CharCodeAt => {
                let position = self.integer_of(first, 0.0)?;
                let unit = if position < 0.0 || position >= length as f64 {
                    None
                } else {
                    text::units(self.bytes(text)).nth(position as usize)
                };
                Value::Number(unit.map_or(f64::NAN, f64::from))
            }
            Method::Concat => {
                let mut texts = vec![text];
                for argument in arguments {
                    texts.push(self.text_of(*argument)?);
                }
                Value::Text(self.concatenate(&texts)?)
            }
            Method::Slice => {
                let start = self.relative(first, 0, length)?;
                let end = self.relative(second, length, length)?;
                Value::Text(self.substring(text, start, end)?)
            }
            Method::Substring => {
                let start = self.absolute(first, 0, length)?;
                let end = self.absolute(second, length, length)?;
                Value::Text(self.substring(text, start.min(end), start.max(end))?)
            }
            Method::Substr => {
                let start = self.relative(first, 0, length)?;
                let count = self.absolute(second, length - start, length - start)?;
                Value::Text(self.substring(text, start, start + count)?)
            }
            Method::Split => Value::Array(self.split(text, first, second)?),
            Method::Trim => Value::Text(self.trim(text)?),
            Method::IndexOf
            | Method::LastIndexOf
            | Method::Includes
            | Method::StartsWith
            | Method::EndsWith => {
                let wanted = self.text_of(first.unwrap_or(Value::Undefined))?;
                self.search(method, text, wanted, second)?
            }
            _ => return self.engine("a method of strings"),
        })
    }

    fn search(&mut self, method: Method, text: Text, wanted: Text, start: Option<Value>) -> Evaluated<Value> {
        let length = text::length(self.bytes(text));
        if matches!(method, Method::LastIndexOf | Method::StartsWith | Method::EndsWith) && start.is_some() {
            return self.engine("a search from a position");
        }
        let start = self.absolute(start, 0, length)?;
        let (bytes, wanted) = (self.bytes(text), self.bytes(wanted));
        let position = |found: Option<usize>| Value::Number(found.map_or(-1.0, |found| found as f64));
        Ok(match method {
            Method::IndexOf => position(text::find(bytes, wanted, start)),
            Method::Includes => Value::Bool(text::find(bytes, wanted, start).is_some()),
            Method::LastIndexOf => position(text::find_last(bytes, wanted, length)),
            Method::StartsWith => Value::Bool(text::find(bytes, wanted, 0) == Some(0)),
            _ => {
                let place = length.checked_sub(text::length(wanted));
                Value::Bool(place.is_some_and(|place| text::find_last(bytes, wanted, length) == Some(place)))
            }
        })
    }

    /// The units `start..end` of a string.
    pub(in crate::run) fn substring(&mut self, text: Text, start: usize, end: usize) -> Evaluated<Text> {
        if start >= end {
            return Ok(Text::EMPTY);
        }
        self.steps(text.size() / BYTES_PER_STEP)?;
        if self.bytes(text).is_ascii() {
            return Ok(text.part(start, end));
        }
        let bytes = self.bytes(text).to_vec();
        self.make(|made| text::slice(&bytes, start, end, made))
    }

    fn split(&mut self, text: Text, separator: Option<Value>, limit: Option<Value>) -> Evaluated<u32> {
        if limit.is_some() {
            return self.engine("`split` with a limit");
        }
        let made = self.new_array()?;
        let separator = match separator {
            None | Some(Value::Undefined) => {
                self.push(made, Value::Text(text))?;
                return Ok(made);
            }
            Some(separator) => self.text_of(separator)?,
        };
        let (bytes, wanted) = (self.bytes(text), self.bytes(separator));
        let mut parts = Vec::new();
        if wanted.is_empty() {
            if !bytes.is_ascii() {
                return self.engine("a string split into units");
            }
            parts.extend((0..bytes.len()).map(|at| (at, at + 1)));
        } else {
            // In UTF-8 a match of bytes is one of characters. A lone surrogate may match half of a character.
            if std::str::from_utf8(bytes).is_err() || std::str::from_utf8(wanted).is_err() {
                return self.engine("a string with a lone surrogate");
            }
            let mut start = 0;
            for found in memchr::memmem::find_iter(bytes, wanted) {
                parts.push((start, found));
                start = found + wanted.len();
            }
            parts.push((start, bytes.len()));
        }
        for (start, end) in parts {
            self.push(made, Value::Text(text.part(start, end)))?;
        }
        Ok(made)
    }

    fn trim(&mut self, text: Text) -> Evaluated<Text> {
        let is_space = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\n' | 11 | 12 | b'\r');
        let bytes = self.bytes(text);
        let Some(start) = bytes.iter().position(|byte| !is_space(byte)) else { return Ok(Text::EMPTY) };
        let end = bytes.iter().rposition(|byte| !is_space(byte)).map_or(start, |last| last + 1);
        if !bytes[start].is_ascii() || !bytes[end - 1].is_ascii() {
            return self.engine("white space beyond ASCII");
        }
        Ok(text.part(start, end))
    }
}
