//! Splits a stream into documents: one a line (JSON lines), the elements of JSON arrays, the documents in an
//! answer of CouchDB's, or those of couchbackup's lines.
//!
//! Which of these it is shows at the beginning ([`format`](super::format)). Lines are cut at
//! line ends, so that a bad line costs that line alone; elements by following strings and depth.
//! Neither parses a document, and memory holds no more than one, of couchbackup's lines one line.

use std::io::{self, BufRead, BufReader, Chain, Cursor, Read};

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::format::{Format, HEAD_BYTES, detect};

/// Bytes read at once.
const READ_BYTES: usize = 256 << 10;

/// A mark that some editors put in front of UTF-8.
const BYTE_ORDER_MARK: [u8; 3] = [0xef, 0xbb, 0xbf];

/// Most bytes behind the array of an object that holds documents.
const TAIL_BYTES_MAX: u64 = 64 << 10;

/// How couchbackup ends a line that it broke off, when it goes on with a backup.
const RESUME_MARKER: &[u8] = b"{\"marker\":\"@cloudant/couchbackup:resume\"}";

/// Why there is no document.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SplitError {
    /// The document is passed over; the next one can be read.
    #[error("line {line}: the document exceeds {max} bytes")]
    TooLarge {
        /// Where it begins.
        line: u64,
        /// The limit.
        max: usize,
    },

    /// What was found is no document; the next one can be read.
    #[error("line {line}: {reason}")]
    NoDocument {
        /// Where it begins.
        line: u64,
        /// What it is.
        reason: &'static str,
    },

    /// The array is broken: what follows can't be told apart.
    #[error("line {line}: {reason}")]
    Syntax {
        /// Where.
        line: u64,
        /// What is wrong.
        reason: &'static str,
    },

    /// Reading failed.
    #[error("line {line}: {source}")]
    Read {
        /// How far it had got.
        line: u64,
        /// What the system said.
        source: io::Error,
    },
}

/// Gives one document after the other.
#[derive(Debug)]
pub(crate) struct Splitter<R> {
    reader: BufReader<Chain<Cursor<Vec<u8>>, R>>,
    /// None once the input's end was found to be its proper end.
    shape: Option<Shape>,
    size_max: usize,
    line: u64,
    bytes_read: u64,
}

#[derive(Debug)]
enum Shape {
    Lines,
    /// One array or several.
    Arrays(ArrayScanner),
    /// An array in an object; of rows, whose documents are members.
    Wrapped {
        scanner: ArrayScanner,
        has_rows: bool,
    },
    /// A line with an array, and how far it was taken apart.
    Backup(BackupLine),
}

#[derive(Debug)]
struct BackupLine {
    text: Vec<u8>,
    at: usize,
    line: u64,
    scanner: ArrayScanner,
}

impl BackupLine {
    fn new() -> BackupLine {
        BackupLine { text: Vec::new(), at: 0, line: 0, scanner: ArrayScanner::new() }
    }
}

impl<R: Read> Splitter<R> {
    /// Splits what `reader` gives. A document has at most `size_max` bytes.
    ///
    /// # Errors
    /// What the system says where the first bytes can't be read.
    pub(crate) fn new(mut reader: R, size_max: usize) -> io::Result<Splitter<R>> {
        let mut head = Vec::new();
        reader.by_ref().take(HEAD_BYTES as u64).read_to_end(&mut head)?;
        let mut bytes_read = 0;
        if head.starts_with(&BYTE_ORDER_MARK) {
            bytes_read = BYTE_ORDER_MARK.len() as u64;
            head.drain(..BYTE_ORDER_MARK.len());
        }
        let (shape, begin) = match detect(&head) {
            Format::Lines => (Shape::Lines, 0),
            Format::Arrays => (Shape::Arrays(ArrayScanner::new()), 0),
            Format::Wrapped { array_at, has_rows } => {
                (Shape::Wrapped { scanner: ArrayScanner::new(), has_rows }, array_at)
            }
            Format::Backup { header_bytes } => (Shape::Backup(BackupLine::new()), header_bytes),
        };
        let line = 1 + count_lines(&head[..begin]);
        head.drain(..begin);
        bytes_read += begin as u64;
        let reader = BufReader::with_capacity(READ_BYTES, Cursor::new(head).chain(reader));
        Ok(Splitter { reader, shape: Some(shape), size_max, line, bytes_read })
    }

    /// Bytes used up so far.
    pub(crate) fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    /// Puts the next document's text into `document`, without white space around it, and returns
    /// the line where it begins; None at the end.
    ///
    /// # Errors
    /// After [`SplitError::TooLarge`] and [`SplitError::NoDocument`] the next call goes on; after others there
    /// is nothing more.
    pub(crate) fn next(&mut self, document: &mut Vec<u8>) -> Result<Option<u64>, SplitError> {
        document.clear();
        // Put back where there may be more.
        let Some(mut shape) = self.shape.take() else { return Ok(None) };
        let found = match &mut shape {
            Shape::Lines => self.next_line(document),
            Shape::Arrays(scanner) => self.next_of_arrays(scanner, document),
            Shape::Wrapped { scanner, has_rows } => self.next_wrapped(scanner, *has_rows, document),
            Shape::Backup(line) => self.next_of_backup(line, document),
        };
        if !matches!(found, Ok(None) | Err(SplitError::Syntax { .. } | SplitError::Read { .. })) {
            self.shape = Some(shape);
        }
        found
    }

    fn next_of_arrays(
        &mut self,
        scanner: &mut ArrayScanner,
        document: &mut Vec<u8>,
    ) -> Result<Option<u64>, SplitError> {
        loop {
            if scanner.is_done() {
                match self.first_byte()? {
                    None => return Ok(None),
                    Some(b'[') => *scanner = ArrayScanner::new(),
                    Some(_) => return Err(self.syntax(None, "something follows the array")),
                }
            }
            let found = self.next_element(scanner, document)?;
            if found.is_some() {
                return Ok(found);
            }
        }
    }

    fn next_wrapped(
        &mut self,
        scanner: &mut ArrayScanner,
        has_rows: bool,
        document: &mut Vec<u8>,
    ) -> Result<Option<u64>, SplitError> {
        let found = if scanner.is_done() { None } else { self.next_element(scanner, document)? };
        let Some(line) = found else { return self.check_tail().map(|()| None) };
        if has_rows {
            match document_of_row(document) {
                Some(text) => *document = text,
                None => {
                    let reason = "the row has no document: ask for the listing with include_docs=true";
                    return Err(SplitError::NoDocument { line, reason });
                }
            }
        }
        Ok(Some(line))
    }

    /// Reads what stands behind the array: with it the object must be whole.
    fn check_tail(&mut self) -> Result<(), SplitError> {
        let (line, mut object) = (self.line, b"{\"\":[]".to_vec());
        let read = self.reader.by_ref().take(TAIL_BYTES_MAX).read_to_end(&mut object);
        let size = read.map_err(|source| SplitError::Read { line, source })?;
        self.bytes_read += size as u64;
        match serde_json::from_slice::<IgnoredAny>(&object) {
            Ok(_) => Ok(()),
            Err(error) if error.is_eof() => Err(self.syntax(None, "the input ends inside the object")),
            Err(_) => Err(self
                .syntax(None, "something follows the array of documents, or the object that it stands in")),
        }
    }

    fn next_of_backup(
        &mut self,
        current: &mut BackupLine,
        document: &mut Vec<u8>,
    ) -> Result<Option<u64>, SplitError> {
        loop {
            if current.at == current.text.len() {
                *current = BackupLine::new();
                let Some(line) = self.next_line(&mut current.text)? else { return Ok(None) };
                current.line = line;
            }
            let step = current.scanner.scan(&current.text[current.at..]);
            match step.event {
                ArrayEvent::Element => {
                    document.extend_from_slice(&current.text[current.at..][step.element]);
                    trim(document);
                    current.at += step.used;
                    return Ok(Some(current.line));
                }
                ArrayEvent::More if current.scanner.is_done() => current.at += step.used,
                ArrayEvent::More | ArrayEvent::Broken(_) => {
                    // Nothing more can be told apart in this line.
                    current.at = current.text.len();
                    if !current.text.ends_with(RESUME_MARKER) {
                        let reason = "the line is no array of documents";
                        return Err(SplitError::NoDocument { line: current.line, reason });
                    }
                }
            }
        }
    }

    /// The first byte that isn't white space; it is left to be read.
    fn first_byte(&mut self) -> Result<Option<u8>, SplitError> {
        loop {
            let (byte, skipped, lines) = {
                let filled = self.fill()?;
                let skipped = filled.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
                (filled.get(skipped).copied(), skipped, count_lines(&filled[..skipped]))
            };
            self.consume(skipped, lines);
            if byte.is_some() || skipped == 0 {
                return Ok(byte);
            }
        }
    }

    fn next_line(&mut self, document: &mut Vec<u8>) -> Result<Option<u64>, SplitError> {
        loop {
            let line = self.line;
            let (mut is_too_large, size_max) = (false, self.size_max);
            let is_end = loop {
                let filled = self.fill()?;
                let end = memchr::memchr(b'\n', filled);
                let piece = &filled[..end.unwrap_or(filled.len())];
                // A line end of two characters is no part of the document.
                is_too_large |= document.len() + piece.len() > size_max + 1;
                if !is_too_large {
                    document.extend_from_slice(piece);
                }
                let (used, is_last) = (piece.len() + usize::from(end.is_some()), filled.is_empty());
                self.consume(used, u64::from(end.is_some()));
                if end.is_some() || is_last {
                    break is_last;
                }
            };
            trim(document);
            if is_too_large || document.len() > size_max {
                return Err(SplitError::TooLarge { line, max: size_max });
            }
            if !document.is_empty() {
                return Ok(Some(line));
            }
            if is_end {
                return Ok(None);
            }
        }
    }

    /// The next element, or None where the array has ended.
    fn next_element(
        &mut self,
        scanner: &mut ArrayScanner,
        document: &mut Vec<u8>,
    ) -> Result<Option<u64>, SplitError> {
        let size_max = self.size_max;
        let (mut begin, mut is_too_large) = (None, false);
        loop {
            let line = self.line;
            let filled = self.fill()?;
            if filled.is_empty() {
                return Err(self.syntax(begin, "the input ends inside the array"));
            }
            let step = scanner.scan(filled);
            let piece = &filled[step.element.clone()];
            if begin.is_none() && !piece.is_empty() {
                begin = Some(line + count_lines(&filled[..step.element.start]));
            }
            is_too_large |= document.len() + piece.len() > size_max;
            if !is_too_large {
                document.extend_from_slice(piece);
            }
            let lines = count_lines(&filled[..step.used]);
            self.consume(step.used, lines);
            match (step.event, begin) {
                (ArrayEvent::More, _) if scanner.is_done() => return Ok(None),
                (ArrayEvent::More, _) => {}
                (ArrayEvent::Broken(reason), _) => return Err(self.syntax(None, reason)),
                (ArrayEvent::Element, Some(line)) if is_too_large => {
                    return Err(SplitError::TooLarge { line, max: size_max });
                }
                (ArrayEvent::Element, begin) => {
                    trim(document);
                    return Ok(Some(begin.expect("an element isn't empty")));
                }
            }
        }
    }

    fn syntax(&self, begin: Option<u64>, reason: &'static str) -> SplitError {
        SplitError::Syntax { line: begin.unwrap_or(self.line), reason }
    }

    fn fill(&mut self) -> Result<&[u8], SplitError> {
        let line = self.line;
        loop {
            match self.reader.fill_buf() {
                // Asked again, since the borrow of a returned buffer would last through the loop.
                Ok(_) => return Ok(self.reader.buffer()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(SplitError::Read { line, source }),
            }
        }
    }

    fn consume(&mut self, count: usize, lines: u64) {
        self.reader.consume(count);
        self.bytes_read += count as u64;
        self.line += lines;
    }
}

fn count_lines(text: &[u8]) -> u64 {
    memchr::memchr_iter(b'\n', text).count() as u64
}

fn trim(text: &mut Vec<u8>) {
    text.truncate(text.trim_ascii_end().len());
    let start = text.len() - text.trim_ascii_start().len();
    text.drain(..start);
}

/// The document in a row of a listing.
fn document_of_row(row: &[u8]) -> Option<Vec<u8>> {
    #[derive(Deserialize)]
    struct Row<'a> {
        #[serde(borrow, default)]
        doc: Option<&'a RawValue>,
    }
    let row: Row<'_> = serde_json::from_slice(row).ok()?;
    row.doc.filter(|doc| doc.get().starts_with('{')).map(|doc| doc.get().as_bytes().to_vec())
}

/// Finds the elements of a JSON array in text that comes in pieces. It follows strings and
/// depth; whether an element is JSON is for its parser to say.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ArrayScanner {
    state: ArrayState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ArrayState {
    /// Before `[`.
    Outside,
    /// After `[`: an element or the end may come.
    Opened,
    /// After a comma: an element must come.
    Comma,
    /// In an element. `depth` is 0 outside of its own brackets.
    Element { depth: u32, string: Quoting },
    /// After `]`.
    Done,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Quoting {
    Outside,
    Inside,
    /// After a backslash.
    Escape,
}

/// What a piece of text held.
#[derive(Debug)]
pub(crate) struct ArrayStep {
    /// How much of it is used up.
    pub(crate) used: usize,
    /// Which part of it belongs to the current element.
    pub(crate) element: std::ops::Range<usize>,
    /// Why it stopped there.
    pub(crate) event: ArrayEvent,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ArrayEvent {
    /// The text is used up, or the array ended without an element.
    More,
    /// The current element is whole.
    Element,
    /// This is no array.
    Broken(&'static str),
}

impl ArrayScanner {
    /// One that expects `[`.
    pub(crate) fn new() -> ArrayScanner {
        ArrayScanner { state: ArrayState::Outside }
    }

    /// Whether `]` has come.
    pub(crate) fn is_done(&self) -> bool {
        self.state == ArrayState::Done
    }

    /// Reads up to the end of an element, of the array or of the text.
    pub(crate) fn scan(&mut self, text: &[u8]) -> ArrayStep {
        let mut start = match self.state {
            ArrayState::Element { .. } => 0,
            _ => text.len(),
        };
        for (at, &byte) in text.iter().enumerate() {
            let before = self.state;
            match self.step(byte) {
                Err(reason) => {
                    return ArrayStep { used: at + 1, element: at..at, event: ArrayEvent::Broken(reason) };
                }
                Ok(()) => match (before, self.state) {
                    (ArrayState::Element { .. }, ArrayState::Comma | ArrayState::Done) => {
                        return ArrayStep { used: at + 1, element: start..at, event: ArrayEvent::Element };
                    }
                    (ArrayState::Opened | ArrayState::Comma, ArrayState::Element { .. }) => start = at,
                    (ArrayState::Opened, ArrayState::Done) => {
                        return ArrayStep { used: at + 1, element: at..at, event: ArrayEvent::More };
                    }
                    _ => {}
                },
            }
        }
        ArrayStep { used: text.len(), element: start..text.len(), event: ArrayEvent::More }
    }

    fn step(&mut self, byte: u8) -> Result<(), &'static str> {
        use ArrayState::{Comma, Done, Element, Opened, Outside};
        self.state = match (self.state, byte) {
            (state @ (Outside | Opened | Comma | Done), b' ' | b'\t' | b'\n' | b'\r') => state,
            (Outside, b'[') => Opened,
            (Outside, _) => return Err("expected an array"),
            (Opened, b']') => Done,
            (Opened | Comma, b',' | b']') => return Err("an element of the array is missing"),
            (Done, _) => return Err("something follows the array"),
            (Opened | Comma, byte) => return self.step_inside(0, Quoting::Outside, byte),
            (Element { depth: 0, string: Quoting::Outside }, b',') => Comma,
            (Element { depth: 0, string: Quoting::Outside }, b']') => Done,
            (Element { depth, string }, byte) => return self.step_inside(depth, string, byte),
        };
        Ok(())
    }

    fn step_inside(&mut self, depth: u32, string: Quoting, byte: u8) -> Result<(), &'static str> {
        let (depth, string) = match (string, byte) {
            (Quoting::Outside, b'"') => (depth, Quoting::Inside),
            (Quoting::Outside, b'{' | b'[') => {
                (depth.checked_add(1).ok_or("the array is nested too deeply")?, Quoting::Outside)
            }
            (Quoting::Outside, b'}' | b']') => {
                (depth.checked_sub(1).ok_or("a bracket closes that was not open")?, Quoting::Outside)
            }
            (Quoting::Inside, b'\\') => (depth, Quoting::Escape),
            (Quoting::Inside, b'"') => (depth, Quoting::Outside),
            (Quoting::Escape, _) => (depth, Quoting::Inside),
            (string, _) => (depth, string),
        };
        self.state = ArrayState::Element { depth, string };
        Ok(())
    }
}

#[cfg(test)]
mod tests;
