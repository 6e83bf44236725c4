//! Splits a stream into documents: JSON lines, the elements of JSON arrays, the documents in a CouchDB
//! response, or those of a couchbackup file.
//!
//! The first bytes determine the format ([`format`](super::format)). Lines are split at line ends, so an
//! invalid line doesn't affect others. Elements are split by tracking strings and nesting depth. The splitter
//! doesn't parse documents. Memory holds one document, or one line of a couchbackup file.

use std::io::{self, BufRead, BufReader, Chain, Cursor, Read};

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::format::{Format, HEAD_BYTES, detect};

/// Size of the read buffer, in bytes.
const READ_BYTES: usize = 256 << 10;

/// The UTF-8 byte order mark, which some editors write.
const BYTE_ORDER_MARK: [u8; 3] = [0xef, 0xbb, 0xbf];

/// Largest text after the array of a wrapped input, in bytes.
const TAIL_BYTES_MAX: u64 = 64 << 10;

/// Text that couchbackup appends to a truncated line when it resumes a backup.
const RESUME_MARKER: &[u8] = b"{\"marker\":\"@cloudant/couchbackup:resume\"}";

/// Why the splitter returned no document.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SplitError {
    /// A document exceeds the limit and is skipped; the next document can be read.
    #[error("line {line}: the document exceeds {max} bytes")]
    TooLarge {
        /// Line where the document begins.
        line: u64,
        /// The limit in bytes.
        max: usize,
    },

    /// An element or line contains no document; the next document can be read.
    #[error("line {line}: {reason}")]
    NoDocument {
        /// Line where the element begins.
        line: u64,
        /// Description of the problem.
        reason: &'static str,
    },

    /// The array is malformed; the rest of the input can't be split.
    #[error("line {line}: {reason}")]
    Syntax {
        /// Line of the error.
        line: u64,
        /// Description of the problem.
        reason: &'static str,
    },

    /// Reading the input failed; the rest can't be read.
    #[error("line {line}: {source}")]
    Read {
        /// Line reached before the error.
        line: u64,
        /// The system's error.
        source: io::Error,
    },
}

/// Iterates over the documents of an input.
#[derive(Debug)]
pub(crate) struct Splitter<R> {
    reader: BufReader<Chain<Cursor<Vec<u8>>, R>>,
    /// None once the input is complete, or can't be split further.
    layout: Option<Layout>,
    size_max: usize,
    line: u64,
    bytes_read: u64,
}

/// The state of splitting each format.
#[derive(Debug)]
enum Layout {
    Lines,
    /// One or more arrays.
    Arrays(ArrayScanner),
    /// An array in an object. With `has_rows` the elements are rows that contain the documents.
    Wrapped {
        scanner: ArrayScanner,
        has_rows: bool,
    },
    /// The current line of a couchbackup file.
    Couchbackup(CouchbackupLine),
}

/// A line that contains an array of documents.
#[derive(Debug)]
struct CouchbackupLine {
    text: Vec<u8>,
    /// Offset of the next byte to scan.
    at: usize,
    line: u64,
    scanner: ArrayScanner,
}

impl CouchbackupLine {
    fn new() -> CouchbackupLine {
        CouchbackupLine { text: Vec::new(), at: 0, line: 0, scanner: ArrayScanner::new() }
    }
}

impl<R: Read> Splitter<R> {
    /// Detects the format of the input. A document may have at most `size_max` bytes.
    ///
    /// # Errors
    /// The first bytes can't be read.
    pub(crate) fn new(mut reader: R, size_max: usize) -> io::Result<Splitter<R>> {
        let mut head = Vec::new();
        reader.by_ref().take(HEAD_BYTES as u64).read_to_end(&mut head)?;
        let mut bytes_read = 0;
        if head.starts_with(&BYTE_ORDER_MARK) {
            bytes_read = BYTE_ORDER_MARK.len() as u64;
            head.drain(..BYTE_ORDER_MARK.len());
        }
        let (layout, begin) = match detect(&head) {
            Format::Lines => (Layout::Lines, 0),
            Format::Arrays => (Layout::Arrays(ArrayScanner::new()), 0),
            Format::Wrapped { array_at, has_rows } => {
                (Layout::Wrapped { scanner: ArrayScanner::new(), has_rows }, array_at)
            }
            Format::Couchbackup { header_bytes } => {
                (Layout::Couchbackup(CouchbackupLine::new()), header_bytes)
            }
        };
        let line = 1 + count_lines(&head[..begin]);
        head.drain(..begin);
        bytes_read += begin as u64;
        let reader = BufReader::with_capacity(READ_BYTES, Cursor::new(head).chain(reader));
        Ok(Splitter { reader, layout: Some(layout), size_max, line, bytes_read })
    }

    /// Number of input bytes consumed so far.
    pub(crate) fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    /// Stores the text of the next document in `document`, without surrounding white space, and returns the
    /// line where it begins. Returns None at the end.
    ///
    /// # Errors
    /// After [`SplitError::TooLarge`] and [`SplitError::NoDocument`] the next call continues with the next
    /// document. After other errors further calls return None.
    pub(crate) fn next(&mut self, document: &mut Vec<u8>) -> Result<Option<u64>, SplitError> {
        document.clear();
        // Restored below unless the input is complete or can't be split further.
        let Some(mut layout) = self.layout.take() else { return Ok(None) };
        let found = match &mut layout {
            Layout::Lines => self.next_line(document),
            Layout::Arrays(scanner) => self.next_of_arrays(scanner, document),
            Layout::Wrapped { scanner, has_rows } => self.next_wrapped(scanner, *has_rows, document),
            Layout::Couchbackup(line) => self.next_of_couchbackup(line, document),
        };
        if !matches!(found, Ok(None) | Err(SplitError::Syntax { .. } | SplitError::Read { .. })) {
            self.layout = Some(layout);
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
                match self.peek_byte()? {
                    None => return Ok(None),
                    Some(b'[') => *scanner = ArrayScanner::new(),
                    Some(_) => return Err(self.syntax(None, "unexpected text after the array")),
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
                    let reason = "the row has no document: request _all_docs with include_docs=true";
                    return Err(SplitError::NoDocument { line, reason });
                }
            }
        }
        Ok(Some(line))
    }

    /// Reads the text after the array and checks that it completes the object.
    fn check_tail(&mut self) -> Result<(), SplitError> {
        let (line, mut object) = (self.line, b"{\"\":[]".to_vec());
        let read = self.reader.by_ref().take(TAIL_BYTES_MAX).read_to_end(&mut object);
        let size = read.map_err(|source| SplitError::Read { line, source })?;
        self.bytes_read += size as u64;
        match serde_json::from_slice::<IgnoredAny>(&object) {
            Ok(_) => Ok(()),
            Err(error) if error.is_eof() => Err(self.syntax(None, "the input ends inside the object")),
            Err(_) => {
                Err(self.syntax(None, "unexpected text after the array of documents or after its object"))
            }
        }
    }

    fn next_of_couchbackup(
        &mut self,
        current: &mut CouchbackupLine,
        document: &mut Vec<u8>,
    ) -> Result<Option<u64>, SplitError> {
        loop {
            if current.at == current.text.len() {
                *current = CouchbackupLine::new();
                let Some(line) = self.next_line(&mut current.text)? else { return Ok(None) };
                current.line = line;
            }
            let step = current.scanner.scan(&current.text[current.at..]);
            match step.event {
                ArrayEvent::Element => {
                    document.extend_from_slice(&current.text[current.at..][step.element]);
                    trim(document);
                    current.at += step.consumed;
                    return Ok(Some(current.line));
                }
                ArrayEvent::NeedsInput if current.scanner.is_done() => current.at += step.consumed,
                ArrayEvent::NeedsInput | ArrayEvent::Malformed(_) => {
                    // The rest of this line can't be split.
                    current.at = current.text.len();
                    if !current.text.ends_with(RESUME_MARKER) {
                        let reason = "the line is not an array of documents";
                        return Err(SplitError::NoDocument { line: current.line, reason });
                    }
                }
            }
        }
    }

    /// Skips white space and returns the next byte without consuming it. None at the end of the input.
    fn peek_byte(&mut self) -> Result<Option<u8>, SplitError> {
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
                // The carriage return of a CRLF line end isn't part of the document.
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

    /// Reads the next element. Returns its line, or None at the end of the array.
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
            let lines = count_lines(&filled[..step.consumed]);
            self.consume(step.consumed, lines);
            match (step.event, begin) {
                (ArrayEvent::NeedsInput, _) if scanner.is_done() => return Ok(None),
                (ArrayEvent::NeedsInput, _) => {}
                (ArrayEvent::Malformed(reason), _) => return Err(self.syntax(None, reason)),
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
                // Returning the result of `fill_buf` would extend its borrow over the whole loop.
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

/// Returns the document in a row of `_all_docs`.
fn document_of_row(row: &[u8]) -> Option<Vec<u8>> {
    #[derive(Deserialize)]
    struct Row<'a> {
        #[serde(borrow, default)]
        doc: Option<&'a RawValue>,
    }
    let row: Row<'_> = serde_json::from_slice(row).ok()?;
    row.doc.filter(|doc| doc.get().starts_with('{')).map(|doc| doc.get().as_bytes().to_vec())
}

/// Finds the elements of a JSON array in text that arrives in chunks. It tracks strings and nesting depth,
/// and doesn't check that an element is valid JSON.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ArrayScanner {
    state: ArrayState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ArrayState {
    /// Before `[`.
    Outside,
    /// After `[`: expects an element or `]`.
    Opened,
    /// After a comma: expects an element.
    Comma,
    /// In an element. `depth` is the number of its open brackets.
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

/// Result of scanning a chunk of text.
#[derive(Debug)]
pub(crate) struct ArrayStep {
    /// Number of bytes consumed.
    pub(crate) consumed: usize,
    /// The part of the chunk that belongs to the current element.
    pub(crate) element: std::ops::Range<usize>,
    /// Why the scan stopped.
    pub(crate) event: ArrayEvent,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ArrayEvent {
    /// The text is consumed, or the array ended without another element.
    NeedsInput,
    /// The current element is complete.
    Element,
    /// The text is not an array, for the given reason.
    Malformed(&'static str),
}

impl ArrayScanner {
    /// Creates a scanner that expects `[`.
    pub(crate) fn new() -> ArrayScanner {
        ArrayScanner { state: ArrayState::Outside }
    }

    /// Whether the closing `]` was read.
    pub(crate) fn is_done(&self) -> bool {
        self.state == ArrayState::Done
    }

    /// Scans to the end of an element, of the array or of the text.
    pub(crate) fn scan(&mut self, text: &[u8]) -> ArrayStep {
        let mut start = match self.state {
            ArrayState::Element { .. } => 0,
            _ => text.len(),
        };
        for (at, &byte) in text.iter().enumerate() {
            let before = self.state;
            match self.step(byte) {
                Err(reason) => {
                    return ArrayStep {
                        consumed: at + 1,
                        element: at..at,
                        event: ArrayEvent::Malformed(reason),
                    };
                }
                Ok(()) => match (before, self.state) {
                    (ArrayState::Element { .. }, ArrayState::Comma | ArrayState::Done) => {
                        return ArrayStep {
                            consumed: at + 1,
                            element: start..at,
                            event: ArrayEvent::Element,
                        };
                    }
                    (ArrayState::Opened | ArrayState::Comma, ArrayState::Element { .. }) => start = at,
                    (ArrayState::Opened, ArrayState::Done) => {
                        return ArrayStep {
                            consumed: at + 1,
                            element: at..at,
                            event: ArrayEvent::NeedsInput,
                        };
                    }
                    _ => {}
                },
            }
        }
        ArrayStep { consumed: text.len(), element: start..text.len(), event: ArrayEvent::NeedsInput }
    }

    fn step(&mut self, byte: u8) -> Result<(), &'static str> {
        use ArrayState::{Comma, Done, Element, Opened, Outside};
        self.state = match (self.state, byte) {
            (state @ (Outside | Opened | Comma | Done), b' ' | b'\t' | b'\n' | b'\r') => state,
            (Outside, b'[') => Opened,
            (Outside, _) => return Err("expected an array"),
            (Opened, b']') => Done,
            (Opened | Comma, b',' | b']') => return Err("an element of the array is missing"),
            (Done, _) => return Err("unexpected text after the array"),
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
                (depth.checked_sub(1).ok_or("a closing bracket has no opening bracket")?, Quoting::Outside)
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
