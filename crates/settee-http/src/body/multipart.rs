//! Parses multipart bodies (RFC 2046) as they arrive.
//!
//! [`Splitter`] takes a body's frames, split anywhere, and returns its elements: heads of parts, pieces of
//! content, ends of parts.
//!
//! Invariants:
//! 1. At most a frame, a delimiter and a part's head are in memory.
//! 2. The content of a part doesn't depend on how the body was split into frames.
//! 3. Every complete body ends in [`Event::End`] or a 400.

use std::fmt::Write as _;

use bytes::{Buf, Bytes, BytesMut};
use memchr::memmem;

use crate::error::ApiError;

/// Longest boundary in bytes. RFC 2046 allows 70; some clients use more.
const BOUNDARY_SIZE_MAX: usize = 256;

/// Largest head of a part in bytes.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// Maximum bytes before the first part. No client needs any.
const PREAMBLE_BYTES_MAX: usize = 64 << 10;
const PADDING_BYTES_MAX: usize = 1 << 10;

/// An element of a body, in this order: for each part its head, any number of pieces, its end; at last the
/// end of the body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Head(Head),
    Piece(Bytes),
    PartEnd,
    End,
}

/// A part's headers, with names in lower case.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Head(Vec<(String, String)>);

impl Head {
    /// The first header with this name.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// Parses a head without the empty line after it. A line that begins with white space continues the one
    /// before.
    fn parse(text: &[u8]) -> Result<Head, ApiError> {
        let bad = || ApiError::bad_request("bad part header");
        let text = std::str::from_utf8(text).map_err(|_| bad())?;
        let mut headers: Vec<(String, String)> = Vec::new();
        for line in text.split("\r\n").filter(|line| !line.is_empty()) {
            if line.starts_with([' ', '\t']) {
                let (_, value) = headers.last_mut().ok_or_else(bad)?;
                value.push(' ');
                value.push_str(line.trim());
                continue;
            }
            let (name, value) = line.split_once(':').ok_or_else(bad)?;
            headers.push((name.trim().to_ascii_lowercase(), value.trim().to_owned()));
        }
        Ok(Head(headers))
    }
}

/// Splits a body into its elements.
pub(crate) struct Splitter {
    /// Finds a line end, two dashes and the boundary.
    delimiter: memmem::Finder<'static>,
    buffer: BytesMut,
    state: SplitterState,
    /// Bytes that were skipped before the first part.
    skipped: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SplitterState {
    Preamble,
    /// After a delimiter.
    Delimiter,
    Head,
    Body,
    End,
}

impl Splitter {
    /// A splitter for a body of this content type.
    ///
    /// # Errors
    /// 400 if there is no boundary.
    pub(crate) fn of(content_type: &str) -> Result<Splitter, ApiError> {
        let (_, parameters) = parameters(content_type);
        let boundary = parameters.into_iter().find(|(name, _)| name == "boundary");
        let boundary = boundary.map(|(_, value)| value).unwrap_or_default();
        if boundary.is_empty() || boundary.len() > BOUNDARY_SIZE_MAX {
            return Err(ApiError::bad_request("Content-Type must have a boundary"));
        }
        Ok(Splitter::new(&boundary))
    }

    pub(crate) fn new(boundary: &str) -> Splitter {
        let delimiter = format!("\r\n--{boundary}");
        let delimiter = memmem::Finder::new(delimiter.as_bytes()).into_owned();
        // The first delimiter may be at the very beginning, with no line end before it.
        let buffer = BytesMut::from(&b"\r\n"[..]);
        Splitter { delimiter, buffer, state: SplitterState::Preamble, skipped: 0 }
    }

    /// Appends the next frame. Bytes after the end are dropped.
    pub(crate) fn push(&mut self, frame: &[u8]) {
        if self.state != SplitterState::End {
            self.buffer.extend_from_slice(frame);
        }
    }

    /// The next element; None if more bytes are needed.
    ///
    /// # Errors
    /// 400 for a malformed body.
    pub(crate) fn next(&mut self) -> Result<Option<Event>, ApiError> {
        loop {
            match self.state {
                SplitterState::Preamble => {
                    let at = self.delimiter.find(&self.buffer);
                    let skip = at.unwrap_or_else(|| self.surely_no_delimiter());
                    self.skipped += skip;
                    self.buffer.advance(skip);
                    if self.skipped > PREAMBLE_BYTES_MAX {
                        return Err(ApiError::bad_request("the body doesn't begin with its boundary"));
                    }
                    if at.is_none() {
                        return Ok(None);
                    }
                    self.pass_delimiter();
                }
                SplitterState::Delimiter => match self.behind_delimiter()? {
                    Some(SplitterState::End) => {
                        self.state = SplitterState::End;
                        self.buffer = BytesMut::new();
                    }
                    Some(state) => self.state = state,
                    None => return Ok(None),
                },
                SplitterState::Head => return Ok(self.head()?.map(Event::Head)),
                SplitterState::Body => return Ok(self.piece()),
                SplitterState::End => return Ok(Some(Event::End)),
            }
        }
    }

    /// Number of bytes at the front of the buffer that can't belong to a delimiter.
    fn surely_no_delimiter(&self) -> usize {
        (self.buffer.len() + 1).saturating_sub(self.delimiter.needle().len())
    }

    fn pass_delimiter(&mut self) {
        self.buffer.advance(self.delimiter.needle().len());
        self.state = SplitterState::Delimiter;
    }

    /// Whether the delimiter was the last one or a part's head follows.
    fn behind_delimiter(&mut self) -> Result<Option<SplitterState>, ApiError> {
        if self.buffer.starts_with(b"--") {
            return Ok(Some(SplitterState::End));
        }
        let bad = || ApiError::bad_request("a boundary isn't followed by a line's end");
        let Some(end) = memchr::memchr(b'\n', &self.buffer) else {
            return if self.buffer.len() > PADDING_BYTES_MAX { Err(bad()) } else { Ok(None) };
        };
        let padding = self.buffer[..end].strip_suffix(b"\r").ok_or_else(bad)?;
        if padding.len() > PADDING_BYTES_MAX || !padding.iter().all(|byte| matches!(byte, b' ' | b'\t')) {
            return Err(bad());
        }
        self.buffer.advance(end + 1);
        Ok(Some(SplitterState::Head))
    }

    fn head(&mut self) -> Result<Option<Head>, ApiError> {
        let scanned = &self.buffer[..self.buffer.len().min(HEAD_BYTES_MAX + 4)];
        let (head, size) = if scanned.starts_with(b"\r\n") {
            (0, 2)
        } else if let Some(at) = memmem::find(scanned, b"\r\n\r\n") {
            (at, at + 4)
        } else if scanned.len() < HEAD_BYTES_MAX + 4 {
            return Ok(None);
        } else {
            return Err(ApiError::bad_request("the header of a part is too large"));
        };
        let parsed = Head::parse(&self.buffer[..head])?;
        self.buffer.advance(size);
        self.state = SplitterState::Body;
        Ok(Some(parsed))
    }

    fn piece(&mut self) -> Option<Event> {
        let size = match self.delimiter.find(&self.buffer) {
            Some(0) => {
                self.pass_delimiter();
                return Some(Event::PartEnd);
            }
            Some(at) => at,
            None => self.surely_no_delimiter(),
        };
        (size > 0).then(|| Event::Piece(self.buffer.split_to(size).freeze()))
    }
}

/// A header's value and its parameters (RFC 2045, 5.1), with the value and the names in lower case.
pub(crate) fn parameters(text: &str) -> (String, Vec<(String, String)>) {
    let (value, mut rest) = text.split_once(';').unwrap_or((text, ""));
    let mut parameters = Vec::new();
    loop {
        rest = rest.trim_start_matches([' ', '\t', ';']);
        let Some(end) = rest.find(['=', ';']) else { break };
        let name = rest[..end].trim().to_ascii_lowercase();
        let is_bare = rest[end..].starts_with(';');
        rest = &rest[end + 1..];
        if is_bare {
            continue;
        }
        let value = match rest.trim_start().strip_prefix('"') {
            Some(quoted) => {
                let (value, behind) = unquote(quoted);
                rest = behind.split_once(';').map_or("", |(_, rest)| rest);
                value
            }
            None => {
                let (value, behind) = rest.split_once(';').unwrap_or((rest, ""));
                rest = behind;
                value.trim().to_owned()
            }
        };
        parameters.push((name, value));
    }
    (value.trim().to_ascii_lowercase(), parameters)
}

/// A quoted string after its first quote, and the text after its last. A backslash escapes only quotes and
/// backslashes, because file names contain others.
fn unquote(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut characters = text.char_indices().peekable();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return (value, &text[at + 1..]),
            '\\' => match characters.next_if(|(_, next)| matches!(next, '"' | '\\')) {
                Some((_, escaped)) => value.push(escaped),
                None => value.push('\\'),
            },
            character => value.push(character),
        }
    }
    (value, "")
}

/// A quoted string for a part's header; control characters are percent-encoded.
pub(crate) fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            control if control.is_ascii_control() => {
                write!(quoted, "%{:02X}", u32::from(control)).expect("writing to a String succeeds");
            }
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

/// A boundary of 16 random bytes, which occurs in no content.
pub(crate) fn new_boundary() -> String {
    let mut random = [0; 16];
    getrandom::fill(&mut random).expect("the system provides randomness");
    let mut boundary = String::with_capacity(32);
    random.iter().for_each(|byte| write!(boundary, "{byte:02x}").expect("writing to a String succeeds"));
    boundary
}

/// Whether an `Accept` header allows a media type, as CouchDB reads it: a missing header allows all, and no
/// allowed type is preferred.
pub(crate) fn accepts(accept: Option<&str>, kind: &str) -> bool {
    let of_all = kind.split_once('/').map_or_else(String::new, |(main, _)| format!("{main}/*"));
    let (mut allowed, mut refused) = (false, false);
    for range in accept.unwrap_or("*/*").split(',') {
        let (found, parameters) = parameters(range);
        let quality = parameters.iter().find(|(name, _)| name == "q");
        let quality = quality.map_or(Some(1.0), |(_, value)| value.parse::<f32>().ok());
        let is_it = found == kind || found == of_all;
        match quality {
            Some(quality) if quality > 0.0 => allowed |= is_it || found == "*/*",
            Some(_) => refused |= is_it,
            None => {}
        }
    }
    allowed && !refused
}

/// 415 if the type of a part or a body is another one.
pub(crate) fn check_type(found: Option<&str>, kind: &str) -> Result<(), ApiError> {
    match found.is_some_and(|found| parameters(found).0 == kind) {
        true => Ok(()),
        false => Err(ApiError::bad_content_type(format!("Content-Type must be {kind}"))),
    }
}

#[cfg(test)]
mod tests;
