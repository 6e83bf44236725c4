//! Bodies of several parts (RFC 2046), read as they come.
//!
//! [`Splitter`] takes a body's frames, however they were cut, and gives what the body is made of: heads
//! of parts, pieces of what they hold, their ends. [`Parts`] feeds it from a request.
//!
//! Invariants:
//! 1. Of a body no more is held than a frame, a delimiter and a part's head.
//! 2. What a part holds doesn't depend on where frames were cut.
//! 3. Whatever comes ends in [`Event::End`] or in a 400.

use std::fmt::Write as _;

use bytes::{Buf, Bytes, BytesMut};
use memchr::memmem;

use crate::body::{Growing, Held};
use crate::error::Failure;
use crate::server::Call;

/// Bytes of a boundary. RFC 2046 allows 70; some clients take more.
const BOUNDARY_SIZE_MAX: usize = 256;

/// Bytes of a part's head.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// Bytes before the first part, and of white space behind a delimiter: nobody needs any.
const PREAMBLE_BYTES_MAX: usize = 64 << 10;
const PADDING_BYTES_MAX: usize = 1 << 10;

/// What a body is made of, in this order: for each part its head, any number of pieces, its end; and
/// the end of all.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Head(Head),
    Piece(Bytes),
    PartEnd,
    End,
}

/// A part's headers, their names in lower case.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Head(Vec<(String, String)>);

impl Head {
    /// The first header of that name.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// Parses a head without the empty line behind it. A line that begins with white space goes on with
    /// the one before.
    fn parse(text: &[u8]) -> Result<Head, Failure> {
        let bad = || Failure::bad_request("bad part header");
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

/// Takes a body apart.
pub(crate) struct Splitter {
    /// Finds a line's end, two dashes and the boundary.
    delimiter: memmem::Finder<'static>,
    buffer: BytesMut,
    state: State,
    /// Bytes that were skipped before the first part.
    skipped: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Preamble,
    /// Behind a delimiter.
    Delimiter,
    Head,
    Body,
    End,
}

impl Splitter {
    pub(crate) fn new(boundary: &str) -> Splitter {
        let delimiter = format!("\r\n--{boundary}");
        let delimiter = memmem::Finder::new(delimiter.as_bytes()).into_owned();
        // The first delimiter may stand at the very front: no line ends before it then.
        let buffer = BytesMut::from(&b"\r\n"[..]);
        Splitter { delimiter, buffer, state: State::Preamble, skipped: 0 }
    }

    /// Takes what comes next. What comes behind the end is dropped.
    pub(crate) fn push(&mut self, frame: &[u8]) {
        if self.state != State::End {
            self.buffer.extend_from_slice(frame);
        }
    }

    /// What is next; `None` where more must come first.
    ///
    /// # Errors
    /// 400 for what isn't well-formed.
    pub(crate) fn next(&mut self) -> Result<Option<Event>, Failure> {
        loop {
            match self.state {
                State::Preamble => {
                    let at = self.delimiter.find(&self.buffer);
                    let skip = at.unwrap_or_else(|| self.surely_no_delimiter());
                    self.skipped += skip;
                    self.buffer.advance(skip);
                    if self.skipped > PREAMBLE_BYTES_MAX {
                        return Err(Failure::bad_request("the body doesn't begin with its boundary"));
                    }
                    if at.is_none() {
                        return Ok(None);
                    }
                    self.pass_delimiter();
                }
                State::Delimiter => match self.behind_delimiter()? {
                    Some(State::End) => {
                        self.state = State::End;
                        self.buffer = BytesMut::new();
                    }
                    Some(state) => self.state = state,
                    None => return Ok(None),
                },
                State::Head => return Ok(self.head()?.map(Event::Head)),
                State::Body => return Ok(self.piece()),
                State::End => return Ok(Some(Event::End)),
            }
        }
    }

    /// How many bytes at the front of the buffer, which has no delimiter, are no part of one.
    fn surely_no_delimiter(&self) -> usize {
        (self.buffer.len() + 1).saturating_sub(self.delimiter.needle().len())
    }

    fn pass_delimiter(&mut self) {
        self.buffer.advance(self.delimiter.needle().len());
        self.state = State::Delimiter;
    }

    /// Whether it was the last one, or a part's head follows.
    fn behind_delimiter(&mut self) -> Result<Option<State>, Failure> {
        if self.buffer.starts_with(b"--") {
            return Ok(Some(State::End));
        }
        let bad = || Failure::bad_request("a boundary isn't followed by a line's end");
        let Some(end) = memchr::memchr(b'\n', &self.buffer) else {
            return if self.buffer.len() > PADDING_BYTES_MAX { Err(bad()) } else { Ok(None) };
        };
        let padding = self.buffer[..end].strip_suffix(b"\r").ok_or_else(bad)?;
        if padding.len() > PADDING_BYTES_MAX || !padding.iter().all(|byte| matches!(byte, b' ' | b'\t')) {
            return Err(bad());
        }
        self.buffer.advance(end + 1);
        Ok(Some(State::Head))
    }

    fn head(&mut self) -> Result<Option<Head>, Failure> {
        let scanned = &self.buffer[..self.buffer.len().min(HEAD_BYTES_MAX + 4)];
        let (head, size) = if scanned.starts_with(b"\r\n") {
            (0, 2)
        } else if let Some(at) = memmem::find(scanned, b"\r\n\r\n") {
            (at, at + 4)
        } else if scanned.len() < HEAD_BYTES_MAX + 4 {
            return Ok(None);
        } else {
            return Err(Failure::bad_request("the header of a part is too large"));
        };
        let parsed = Head::parse(&self.buffer[..head])?;
        self.buffer.advance(size);
        self.state = State::Body;
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

/// The parts of a request's body. The body itself stays with its call.
pub(crate) struct Parts(Splitter);

impl Parts {
    /// Of a body of that content type.
    ///
    /// # Errors
    /// 400 where it names no boundary.
    pub(crate) fn new(content_type: &str) -> Result<Parts, Failure> {
        let (_, parameters) = parameters(content_type);
        let boundary = parameters.into_iter().find(|(name, _)| name == "boundary");
        let boundary = boundary.map(|(_, value)| value).unwrap_or_default();
        if boundary.is_empty() || boundary.len() > BOUNDARY_SIZE_MAX {
            return Err(Failure::bad_request("Content-Type must have a boundary"));
        }
        Ok(Parts(Splitter::new(&boundary)))
    }

    /// What is next.
    ///
    /// # Errors
    /// 400 for what isn't well-formed or ends too early, 408 when the client pauses too long.
    pub(crate) async fn next(&mut self, call: &mut Call<'_>) -> Result<Event, Failure> {
        loop {
            if let Some(event) = self.0.next()? {
                return Ok(event);
            }
            match call.body.next_frame(&call.server.limits).await? {
                Some(frame) => self.0.push(&frame),
                None => return Err(Failure::bad_request("expected more data")),
            }
        }
    }

    /// The next part's head; `None` behind the last part.
    ///
    /// # Errors
    /// As [`Parts::next`].
    pub(crate) async fn next_part(&mut self, call: &mut Call<'_>) -> Result<Option<Head>, Failure> {
        match self.next(call).await? {
            Event::Head(head) => Ok(Some(head)),
            Event::End => Ok(None),
            Event::Piece(_) | Event::PartEnd => unreachable!("the part before it was read to its end"),
        }
    }

    /// The next piece of a part; `None` at the part's end.
    ///
    /// # Errors
    /// As [`Parts::next`].
    pub(crate) async fn next_piece(&mut self, call: &mut Call<'_>) -> Result<Option<Bytes>, Failure> {
        match self.next(call).await? {
            Event::Piece(piece) => Ok(Some(piece)),
            Event::PartEnd => Ok(None),
            Event::Head(_) | Event::End => unreachable!("a part has an end"),
        }
    }

    /// All that a part holds, added to `growing`.
    ///
    /// # Errors
    /// As [`Parts::next`]; 413 for more than `growing` takes; 503 without room.
    pub(crate) async fn collect(
        &mut self,
        call: &mut Call<'_>,
        mut growing: Growing,
    ) -> Result<Held, Failure> {
        while let Some(piece) = self.next_piece(call).await? {
            growing.extend(&piece, &call.server.room).await?;
        }
        Ok(growing.finish())
    }
}

/// A header's value and its parameters (RFC 2045, 5.1): the value and the names in lower case.
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

/// A quoted string behind its first quote, and what follows its last. Of what a backslash may escape,
/// quotes and backslashes alone are: file names have others.
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

/// A string in quotes, as a part's header holds it; control characters are percent-encoded.
pub(crate) fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => quoted.extend(['\\', character]),
            control if control.is_ascii_control() => {
                write!(quoted, "%{:02X}", u32::from(control)).expect("a string takes it");
            }
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

/// A boundary that nothing contains: 16 random bytes.
pub(crate) fn new_boundary() -> String {
    let mut random = [0; 16];
    getrandom::fill(&mut random).expect("the system gives randomness");
    let mut boundary = String::with_capacity(32);
    random.iter().for_each(|byte| write!(boundary, "{byte:02x}").expect("a string takes it"));
    boundary
}

/// Whether an `Accept` header allows a media type, by CouchDB's reading: what is missing allows all, and
/// no allowed type is preferred to another.
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

/// 415 for a part, or a body, of another type.
pub(crate) fn check_type(found: Option<&str>, kind: &str) -> Result<(), Failure> {
    match found.is_some_and(|found| parameters(found).0 == kind) {
        true => Ok(()),
        false => Err(Failure::bad_content_type(format!("Content-Type must be {kind}"))),
    }
}

#[cfg(test)]
mod tests;
