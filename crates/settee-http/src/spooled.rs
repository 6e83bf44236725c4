//! A body of `_bulk_docs` in a file: its documents, group by group.
//!
//! A scanner looks for the list `docs` and for the commas between its elements, and checks nothing. What it
//! cuts is parsed as any other text: each group of documents as an array, and what surrounds the list as a body
//! whose list is empty.
//!
//! Invariants:
//! 1. The pieces are JSON if and only if the body is.
//! 2. All passes cut the same groups, so a pass with the share of an earlier one waits for no memory.

use std::sync::Arc;

use bytes::{Buf, Bytes};
use settee_doc::Spool;

use crate::body::{Growing, Held, Room, Share};
use crate::error::Failure;
use crate::json;

/// Bytes that are read from the file at once, at most those of a group.
const WINDOW_BYTES: usize = 64 << 10;

/// Bytes of a group, unless one document is larger; where a body may take less than `GROUP_SHARE` times as much
/// memory, that part of it.
const GROUP_BYTES: usize = 1 << 20;
const GROUP_SHARE: usize = 8;

/// A group has at most one document for so many of its bytes: small ones take more beside their text.
const BYTES_PER_DOCUMENT: usize = 256;

/// Bytes of everything in the body but the elements of `docs`.
const AROUND_BYTES_MAX: usize = 64 << 10;

/// Bytes of a member's name that may mean `docs`, whose letters may all be escaped.
const NAME_BYTES_MAX: usize = 32;

/// Documents in a JSON array.
pub(crate) struct Group {
    pub(crate) array: Held,
    /// Whether there may be none: it is the only group.
    pub(crate) may_be_empty: bool,
}

/// One reading of the file from its beginning to its end.
pub(crate) struct Pass<'a> {
    spool: &'a Spool,
    room: Arc<Room>,
    group_bytes: usize,
    offset: u64,
    /// What was read and not scanned.
    window: Bytes,
    scanner: Scanner,
    has_groups: bool,
    /// The body without the elements of `docs`; whole after the last group.
    pub(crate) around: Vec<u8>,
}

impl<'a> Pass<'a> {
    pub(crate) fn new(spool: &'a Spool, room: &Arc<Room>) -> Pass<'a> {
        let share = usize::try_from(room.body_bytes_max()).unwrap_or(usize::MAX) / GROUP_SHARE;
        Pass {
            spool,
            room: room.clone(),
            group_bytes: share.clamp(1, GROUP_BYTES),
            offset: 0,
            window: Bytes::new(),
            scanner: Scanner::default(),
            has_groups: false,
            around: Vec::new(),
        }
    }

    /// The next group, which takes `share`; None behind the last.
    ///
    /// # Errors
    /// 400 where the list has no end; 413 for a document that exceeds the memory for bodies, and for too much
    /// around the documents; 503 where there is no memory in time; those of reading.
    pub(crate) async fn next_group(&mut self, share: &mut Share) -> Result<Option<Group>, Failure> {
        let mut group = Growing::with_share(std::mem::take(share));
        let mut count = 0;
        while self.fill().await? {
            if self.scanner.in_list && group.len() == 0 {
                group.extend(b"[", &self.room).await?;
            }
            let was_in_list = self.scanner.in_list;
            let (size, mark) = self.scanner.scan(&self.window);
            let part = self.window.split_to(size);
            match was_in_list {
                true => group.extend(&part, &self.room).await?,
                false => self.push_around(&part)?,
            }
            let Some(mark) = mark else { continue };
            self.window.advance(1);
            count += 1;
            let is_full = group.len() >= self.group_bytes || count * BYTES_PER_DOCUMENT >= self.group_bytes;
            match mark {
                Mark::ListBegins => self.push_around(b"[")?,
                Mark::Separator if !is_full => group.extend(b",", &self.room).await?,
                Mark::Separator => {
                    self.has_groups = true;
                    group.extend(b"]", &self.room).await?;
                    return Ok(Some(Group { array: group.finish(), may_be_empty: false }));
                }
                Mark::ListEnds => {
                    self.push_around(b"]")?;
                    group.extend(b"]", &self.room).await?;
                    return Ok(Some(Group { array: group.finish(), may_be_empty: !self.has_groups }));
                }
            }
        }
        *share = group.finish().share;
        if self.scanner.in_list { Err(Failure::bad_json()) } else { Ok(None) }
    }

    /// Reads on where all was scanned; false at the end.
    async fn fill(&mut self) -> Result<bool, Failure> {
        if self.window.is_empty() {
            // What the system has in memory is read without waiting.
            tokio::task::yield_now().await;
            self.window = self.spool.read_at(self.offset, self.group_bytes.min(WINDOW_BYTES)).await?;
            self.offset += self.window.len() as u64;
        }
        Ok(!self.window.is_empty())
    }

    fn push_around(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        if self.around.len() + bytes.len() > AROUND_BYTES_MAX {
            return Err(Failure::body_too_large());
        }
        self.around.extend_from_slice(bytes);
        Ok(())
    }
}

/// A byte at which the text is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    /// The `[` of `docs`.
    ListBegins,
    /// A comma between its elements.
    Separator,
    /// Its `]`.
    ListEnds,
}

/// Where a scan is in the text.
#[derive(Debug, Default)]
struct Scanner {
    /// Arrays and objects that are open: within the list, of its element.
    depth: u64,
    in_string: bool,
    is_escaped: bool,
    in_list: bool,
    /// Whether the first `docs` was found: later ones mean nothing.
    is_found: bool,
    /// Whether its value comes next.
    expects_value: bool,
    /// The last string in the outer object, as it is written.
    name: Vec<u8>,
}

impl Scanner {
    /// Scans up to the next mark: the bytes before it, or all of the window.
    fn scan(&mut self, window: &[u8]) -> (usize, Option<Mark>) {
        let mut at = 0;
        while at < window.len() {
            if self.in_string {
                at += self.string(&window[at..]);
            } else if let Some(mark) = self.token(window[at]) {
                return (at, Some(mark));
            } else {
                at += 1;
            }
        }
        (at, None)
    }

    /// Scans a string up to its end, or an escape, and returns how many bytes that took.
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
    fn token(&mut self, byte: u8) -> Option<Mark> {
        if byte.is_ascii_whitespace() {
            return None;
        }
        if std::mem::take(&mut self.expects_value) && byte == b'[' {
            (self.in_list, self.depth) = (true, 0);
            return Some(Mark::ListBegins);
        }
        let is_between = self.in_list && self.depth == 0;
        match byte {
            b'"' => {
                self.in_string = true;
                self.name.clear();
            }
            b'{' | b'[' => self.depth += 1,
            b',' if is_between => return Some(Mark::Separator),
            b']' if is_between => {
                (self.in_list, self.depth) = (false, 1);
                return Some(Mark::ListEnds);
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

    /// What surrounds the list, and its elements, of a text that is scanned in pieces.
    fn scanned(text: &str, piece_bytes: usize) -> (String, Vec<String>) {
        let (mut scanner, mut around, mut elements) = (Scanner::default(), String::new(), Vec::new());
        for mut piece in text.as_bytes().chunks(piece_bytes) {
            while !piece.is_empty() {
                let was_in_list = scanner.in_list;
                let (size, mark) = scanner.scan(piece);
                let part = std::str::from_utf8(&piece[..size]).unwrap();
                match (was_in_list, elements.last_mut()) {
                    (true, Some(element)) => *element += part,
                    _ => around += part,
                }
                if matches!(mark, Some(Mark::ListBegins | Mark::Separator)) {
                    elements.push(String::new());
                }
                piece = &piece[size + usize::from(mark.is_some())..];
            }
        }
        (around, elements)
    }

    #[test]
    fn elements_are_cut_between_them_wherever_the_text_is_read_in_two() {
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
    fn what_is_no_list_is_left_where_it_is() {
        for text in [r#"{"docs":{"docs":[1]}}"#, r#"{"docs":1,"docs":[2]}"#, r#"{"a":{"docs":[1]}}"#, "[1]"] {
            assert_eq!(scanned(text, 3), (text.to_owned(), Vec::new()));
        }
    }
}
