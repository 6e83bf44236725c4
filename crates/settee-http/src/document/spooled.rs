//! Reads a spooled `_bulk_docs` body, one group of documents at a time.
//!
//! A scanner finds the list `docs` and the commas between its elements, and validates nothing. Its pieces are
//! parsed like any other text: each group of documents as an array, and the text around the list as a body
//! whose list is empty.
//!
//! Invariants:
//! 1. The pieces are JSON if and only if the body is.
//! 2. All passes form the same groups, so a pass that holds the permit of an earlier one never waits for
//!    memory.

use std::sync::Arc;

use bytes::{Buf, Bytes};
use settee_doc::Spool;

use crate::body::{BodyBuffer, BodyMemory, BufferedBody, MemoryPermit};
use crate::error::ApiError;
use crate::json;

/// Bytes read from the file at once, at most those of a group.
const WINDOW_BYTES: usize = 64 << 10;

/// Bytes of a group, unless one document is larger. If one body is guaranteed less than `GROUP_DIVISOR` times
/// as much memory, a group has that part of it.
const GROUP_BYTES: usize = 1 << 20;
const GROUP_DIVISOR: usize = 8;

/// A group has at most one document per this many of its bytes, because small documents take more memory
/// besides their text.
const BYTES_PER_DOCUMENT: usize = 256;

/// Largest size in bytes of the body without the elements of `docs`.
const AROUND_BYTES_MAX: usize = 64 << 10;

/// Longest escaped member name in bytes that can mean `docs`.
const NAME_BYTES_MAX: usize = 32;

/// A JSON array of documents.
pub(crate) struct Group {
    pub(crate) array: BufferedBody,
    /// Whether the array may be empty, because it is the only group.
    pub(crate) may_be_empty: bool,
}

/// One pass over the file from its beginning to its end.
pub(crate) struct Pass<'a> {
    spool: &'a Spool,
    body_memory: Arc<BodyMemory>,
    group_bytes: usize,
    offset: u64,
    /// Bytes that were read and not yet scanned.
    window: Bytes,
    scanner: Scanner,
    has_groups: bool,
    /// The body without the elements of `docs`; complete after the last group.
    pub(crate) around: Vec<u8>,
}

impl<'a> Pass<'a> {
    pub(crate) fn new(spool: &'a Spool, body_memory: &Arc<BodyMemory>) -> Pass<'a> {
        let group_bytes = usize::try_from(body_memory.body_bytes_max()).unwrap_or(usize::MAX) / GROUP_DIVISOR;
        Pass {
            spool,
            body_memory: body_memory.clone(),
            group_bytes: group_bytes.clamp(1, GROUP_BYTES),
            offset: 0,
            window: Bytes::new(),
            scanner: Scanner::default(),
            has_groups: false,
            around: Vec::new(),
        }
    }

    /// Returns the next group, held under `permit`, or None after the last.
    ///
    /// # Errors
    /// 400 if the list has no end; 413 for a document that exceeds the memory for bodies and for too much
    /// text around the documents; 503 if no memory becomes free in time; errors of reading the file.
    pub(crate) async fn next_group(&mut self, permit: &mut MemoryPermit) -> Result<Option<Group>, ApiError> {
        let mut group = BodyBuffer::with_permit(std::mem::take(permit));
        let mut count = 0;
        while self.fill().await? {
            if self.scanner.in_list && group.len() == 0 {
                group.extend(b"[", &self.body_memory).await?;
            }
            let was_in_list = self.scanner.in_list;
            let (size, boundary) = self.scanner.scan(&self.window);
            let part = self.window.split_to(size);
            match was_in_list {
                true => group.extend(&part, &self.body_memory).await?,
                false => self.push_around(&part)?,
            }
            let Some(boundary) = boundary else { continue };
            self.window.advance(1);
            count += 1;
            let is_full = group.len() >= self.group_bytes || count * BYTES_PER_DOCUMENT >= self.group_bytes;
            match boundary {
                Boundary::ListBegins => self.push_around(b"[")?,
                Boundary::Separator if !is_full => group.extend(b",", &self.body_memory).await?,
                Boundary::Separator => {
                    self.has_groups = true;
                    group.extend(b"]", &self.body_memory).await?;
                    return Ok(Some(Group { array: group.finish(), may_be_empty: false }));
                }
                Boundary::ListEnds => {
                    self.push_around(b"]")?;
                    group.extend(b"]", &self.body_memory).await?;
                    return Ok(Some(Group { array: group.finish(), may_be_empty: !self.has_groups }));
                }
            }
        }
        *permit = group.finish().permit;
        if self.scanner.in_list { Err(ApiError::bad_json()) } else { Ok(None) }
    }

    /// Reads the next window if the last one was scanned; returns false at the end of the file.
    async fn fill(&mut self) -> Result<bool, ApiError> {
        if self.window.is_empty() {
            // Reads from the page cache complete at once, so this task must yield by itself.
            tokio::task::yield_now().await;
            self.window = self.spool.read_at(self.offset, self.group_bytes.min(WINDOW_BYTES)).await?;
            self.offset += self.window.len() as u64;
        }
        Ok(!self.window.is_empty())
    }

    fn push_around(&mut self, bytes: &[u8]) -> Result<(), ApiError> {
        if self.around.len() + bytes.len() > AROUND_BYTES_MAX {
            return Err(ApiError::body_too_large());
        }
        self.around.extend_from_slice(bytes);
        Ok(())
    }
}

/// A byte at which the text is split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Boundary {
    /// The `[` of `docs`.
    ListBegins,
    /// A comma between the elements of `docs`.
    Separator,
    /// The `]` of `docs`.
    ListEnds,
}

/// The scanner's position in the JSON structure.
#[derive(Debug, Default)]
struct Scanner {
    /// Number of open arrays and objects; within the list, those of the current element.
    depth: u64,
    in_string: bool,
    is_escaped: bool,
    in_list: bool,
    /// Whether the first member `docs` was found. Later ones are ignored.
    is_found: bool,
    /// Whether the value of `docs` comes next.
    expects_value: bool,
    /// The last string in the outermost object, with its escapes.
    name: Vec<u8>,
}

impl Scanner {
    /// Scans up to the next boundary. Returns the number of bytes before it, or all of the window.
    fn scan(&mut self, window: &[u8]) -> (usize, Option<Boundary>) {
        let mut at = 0;
        while at < window.len() {
            if self.in_string {
                at += self.string(&window[at..]);
            } else if let Some(boundary) = self.token(window[at]) {
                return (at, Some(boundary));
            } else {
                at += 1;
            }
        }
        (at, None)
    }

    /// Scans a string up to its end or an escape, and returns the number of bytes scanned.
    fn string(&mut self, text: &[u8]) -> usize {
        if std::mem::take(&mut self.is_escaped) {
            self.push_name(&text[..1]);
            return 1;
        }
        let Some(size) = memchr::memchr2(b'"', b'\\', text) else {
            self.push_name(text);
            return text.len();
        };
        self.is_escaped = text[size] == b'\\';
        self.in_string = self.is_escaped;
        self.push_name(&text[..size + usize::from(self.is_escaped)]);
        size + 1
    }

    /// Scans a byte outside strings.
    fn token(&mut self, byte: u8) -> Option<Boundary> {
        if byte.is_ascii_whitespace() {
            return None;
        }
        if std::mem::take(&mut self.expects_value) && byte == b'[' {
            (self.in_list, self.depth) = (true, 0);
            return Some(Boundary::ListBegins);
        }
        let is_between = self.in_list && self.depth == 0;
        match byte {
            b'"' => {
                self.in_string = true;
                self.name.clear();
            }
            b'{' | b'[' => self.depth += 1,
            b',' if is_between => return Some(Boundary::Separator),
            b']' if is_between => {
                (self.in_list, self.depth) = (false, 1);
                return Some(Boundary::ListEnds);
            }
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            b':' if !self.in_list && !self.is_found && self.depth == 1 => {
                self.is_found = self.names_docs();
                self.expects_value = self.is_found;
            }
            _ => {}
        }
        None
    }

    fn push_name(&mut self, bytes: &[u8]) {
        let left = NAME_BYTES_MAX - self.name.len();
        self.name.extend_from_slice(&bytes[..bytes.len().min(left)]);
    }

    fn names_docs(&self) -> bool {
        let quoted = [b"\"", self.name.as_slice(), b"\""].concat();
        let name = std::str::from_utf8(&quoted).ok().and_then(json::string);
        name.is_some_and(|name| name == "docs")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text around the list, and the list's elements, of a text that is scanned in pieces.
    fn scanned(text: &str, piece_bytes: usize) -> (String, Vec<String>) {
        let (mut scanner, mut around, mut elements) = (Scanner::default(), String::new(), Vec::new());
        for mut piece in text.as_bytes().chunks(piece_bytes) {
            while !piece.is_empty() {
                let was_in_list = scanner.in_list;
                let (size, boundary) = scanner.scan(piece);
                let part = std::str::from_utf8(&piece[..size]).unwrap();
                match (was_in_list, elements.last_mut()) {
                    (true, Some(element)) => *element += part,
                    _ => around += part,
                }
                if matches!(boundary, Some(Boundary::ListBegins | Boundary::Separator)) {
                    elements.push(String::new());
                }
                piece = &piece[size + usize::from(boundary.is_some())..];
            }
        }
        (around, elements)
    }

    #[test]
    fn elements_are_split_at_their_commas_for_any_window_size() {
        let elements = [r#"{"a":[1,{"b":"],}\"[{,"}]}"#, r#" "x\\" "#, "[[],[,]]", "1"];
        let front = r#"{"x":[{"docs":[1]}],"y":"docs", "d\u006fcs" : "#;
        let back = r#", "docs":[2],"new_edits":false}"#;
        let text = format!("{front}[{}]{back}", elements.join(","));
        for piece_bytes in 1..text.len() {
            let (around, found) = scanned(&text, piece_bytes);
            assert_eq!((around, found), (format!("{front}{back}"), elements.map(str::to_owned).to_vec()));
        }
    }

    #[test]
    fn text_without_a_docs_list_is_not_split() {
        for text in [r#"{"docs":{"docs":[1]}}"#, r#"{"docs":1,"docs":[2]}"#, r#"{"a":{"docs":[1]}}"#, "[1]"] {
            assert_eq!(scanned(text, 3), (text.to_owned(), Vec::new()));
        }
    }
}
