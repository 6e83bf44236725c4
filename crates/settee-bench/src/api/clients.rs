//! The kinds of clients: the requests that each sends and the checks of its responses.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memchr::memmem;
use settee_client::{Answer, Request};

use crate::documents::{DocumentSize, Generator};
use crate::drive::Client;
use crate::mail::{self, Message};

/// Maximum characters of an unexpected response that an error shows.
const SHOWN_CHARACTERS_MAX: usize = 300;

/// Number of digits of a sequential id.
pub(super) const ID_DIGITS: usize = 16;

/// The id of the document with a number.
pub(super) fn sequential_id(number: u64) -> String {
    format!("{number:0ID_DIGITS$}")
}

/// A path with an id, rewritten for each request without an allocation.
#[derive(Debug, Clone)]
pub(super) struct IdPath {
    text: String,
    directory_bytes: usize,
    /// The path's end after the id.
    rest: &'static str,
}

impl IdPath {
    pub(super) fn new(directory: &str, rest: &'static str) -> IdPath {
        IdPath { text: format!("{directory}/"), directory_bytes: directory.len() + 1, rest }
    }

    /// Rewrites the path for the document with a number.
    fn set(&mut self, number: u64) {
        self.text.truncate(self.directory_bytes);
        write!(self.text, "{number:0ID_DIGITS$}{}", self.rest).expect("writing to memory");
    }

    fn id(&self) -> &str {
        &self.text[self.directory_bytes..self.directory_bytes + ID_DIGITS]
    }
}

/// A range of document numbers that clients share; each number is taken once.
#[derive(Debug, Clone)]
pub(crate) struct NumberRange {
    next: Arc<AtomicU64>,
    end: u64,
}

impl NumberRange {
    pub(crate) fn new(numbers: std::ops::Range<u64>) -> NumberRange {
        NumberRange { next: Arc::new(AtomicU64::new(numbers.start)), end: numbers.end }
    }

    /// All numbers from `first` on.
    pub(crate) fn from(first: u64) -> NumberRange {
        NumberRange::new(first..u64::MAX / 2)
    }

    pub(crate) fn take(&self, count: u64) -> Option<std::ops::Range<u64>> {
        let first = self.next.fetch_add(count, Ordering::Relaxed);
        (first < self.end).then(|| first..(first + count).min(self.end))
    }

    /// The end of the numbers taken so far; for a range from 0, their count.
    pub(crate) fn taken(&self) -> u64 {
        self.next.load(Ordering::Relaxed).min(self.end)
    }
}

/// The documents that are loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Documents {
    /// Of this size, under sequential ids.
    Numbered(usize),
    /// Of this size, under random ids of 32 hexadecimal digits.
    RandomIds(usize),
    /// Of this size; their ids, given by the number, are in another order than the numbers.
    Scattered(usize),
    /// Of ten bytes besides the sequential id.
    Tiny,
    /// Messages of an archive of `count`.
    Mail { count: u64 },
    /// Those of `fabric_bench`, whose ids are their numbers.
    Fabric(DocumentSize),
}

impl Documents {
    /// Size of a document.
    pub(super) fn bytes(self) -> usize {
        match self {
            Documents::Numbered(bytes) | Documents::RandomIds(bytes) | Documents::Scattered(bytes) => bytes,
            Documents::Tiny => 10,
            Documents::Mail { .. } => mail::MESSAGE_BYTES,
            Documents::Fabric(size) => size.bytes(),
        }
    }

    /// Appends the document with a number.
    fn write(self, generator: &mut Generator, number: u64, out: &mut Vec<u8>) {
        match self {
            Documents::Numbered(bytes) => {
                Generator::numbered_document(&sequential_id(number), number, bytes, out);
            }
            Documents::RandomIds(bytes) => {
                let id = generator.random_id();
                generator.document(&id, bytes, out);
            }
            Documents::Scattered(bytes) => generator.document(&scattered_id(number), bytes, out),
            Documents::Tiny => generator.tiny_document(&sequential_id(number), out),
            Documents::Mail { count } => Message::new(number, count).write(None, out),
            Documents::Fabric(size) => generator.fabric_document(size, &number.to_string(), out),
        }
    }
}

/// The id of the document with a number, for ids in another order than the numbers.
pub(super) fn scattered_id(number: u64) -> String {
    // Odd, so that different numbers have different ids.
    format!("{:016x}", number.wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

/// Loads documents in batches.
#[derive(Debug)]
pub(crate) struct Loader {
    target: String,
    numbers: NumberRange,
    batch: u64,
    documents: Documents,
    generator: Generator,
    body: Vec<u8>,
    sent: u64,
}

impl Loader {
    /// Returns `count` loaders of the documents with `numbers`. `target` is the database's `_bulk_docs`.
    pub(crate) fn group(
        target: &str,
        count: u64,
        numbers: &NumberRange,
        batch: u64,
        documents: Documents,
    ) -> Vec<Loader> {
        let loader = |generator| Loader {
            target: target.to_owned(),
            numbers: numbers.clone(),
            batch,
            documents,
            generator,
            body: Vec::new(),
            sent: 0,
        };
        generators(count).map(loader).collect()
    }
}

/// One generator per client, each with a different seed.
pub(crate) fn generators(clients: u64) -> impl Iterator<Item = Generator> {
    (1..=clients).map(Generator::new)
}

impl Client for Loader {
    fn next(&mut self) -> Option<Request<'_>> {
        let numbers = self.numbers.take(self.batch)?;
        self.sent = numbers.end - numbers.start;
        self.body.clear();
        for number in numbers {
            self.body.extend_from_slice(if self.body.is_empty() { b"{\"docs\":[" } else { b"," });
            self.documents.write(&mut self.generator, number, &mut self.body);
        }
        self.body.extend_from_slice(b"]}");
        Some(Request::json("POST", &self.target, &self.body))
    }

    fn check(&mut self, answer: Answer<'_>) -> Result<u64, String> {
        let stored = memmem::find_iter(answer.body, b"\"rev\":\"").count() as u64;
        match answer.status {
            200..300 if stored == self.sent => Ok(stored),
            _ => Err(unexpected(answer)),
        }
    }
}

/// The content with a number, of a document with this id; it may be written to the buffer.
pub(super) type Content = fn(id: &str, number: u64, buffer: Vec<u8>) -> Cow<'static, [u8]>;

/// Puts new documents, or attachments of documents that don't exist yet, one at a time.
#[derive(Debug)]
pub(super) struct Putter {
    pub(super) target: IdPath,
    pub(super) kind: &'static str,
    pub(super) numbers: NumberRange,
    pub(super) content: Content,
    pub(super) body: Cow<'static, [u8]>,
}

impl Client for Putter {
    fn next(&mut self) -> Option<Request<'_>> {
        let number = self.numbers.take(1)?.start;
        self.target.set(number);
        let buffer = match std::mem::take(&mut self.body) {
            Cow::Owned(buffer) => buffer,
            Cow::Borrowed(_) => Vec::new(),
        };
        self.body = (self.content)(self.target.id(), number, buffer);
        Some(Request { method: "PUT", target: &self.target.text, content: Some((self.kind, &self.body)) })
    }

    fn check(&mut self, answer: Answer<'_>) -> Result<u64, String> {
        match answer.status {
            201 | 202 if revision(answer.body).is_some_and(|revision| revision.starts_with("1-")) => Ok(1),
            _ => Err(unexpected(answer)),
        }
    }
}

/// Updates its own documents in turn. Each update must increase the revision's number by one.
#[derive(Debug)]
pub(super) struct Updater {
    pub(super) directory: String,
    /// `&durability=…`, or empty.
    pub(super) query: String,
    /// Ids and current revisions.
    pub(super) documents: Vec<(String, String)>,
    /// Index of the next document.
    pub(super) next: usize,
    pub(super) bytes: usize,
    pub(super) generator: Generator,
    /// Number of remaining updates. None: no limit.
    pub(super) left: Option<u64>,
    pub(super) target: String,
    pub(super) document: Vec<u8>,
}

impl Client for Updater {
    fn next(&mut self) -> Option<Request<'_>> {
        if let Some(left) = &mut self.left {
            *left = left.checked_sub(1)?;
        }
        let (id, revision) = &self.documents[self.next];
        self.document.clear();
        self.generator.document(id, self.bytes, &mut self.document);
        self.target = format!("{}/{id}?rev={revision}{}", self.directory, self.query);
        Some(Request::json("PUT", &self.target, &self.document))
    }

    fn check(&mut self, answer: Answer<'_>) -> Result<u64, String> {
        let current = &mut self.documents[self.next].1;
        let new = matches!(answer.status, 201 | 202).then(|| revision(answer.body)).flatten();
        let new = new.filter(|new| generation(new) == generation(current).map(|number| number + 1));
        *current = new.ok_or_else(|| unexpected(answer))?.to_owned();
        self.next = (self.next + 1) % self.documents.len();
        Ok(1)
    }
}

/// The revision in the response to a PUT.
fn revision(body: &[u8]) -> Option<&str> {
    let start = memmem::find(body, b"\"rev\":\"")? + b"\"rev\":\"".len();
    let length = memchr::memchr(b'"', &body[start..])?;
    std::str::from_utf8(&body[start..start + length]).ok()
}

/// The number at the start of a revision.
pub(super) fn generation(revision: &str) -> Option<u64> {
    revision.split_once('-')?.0.parse().ok()
}

/// Gets numbered documents, or their attachments.
#[derive(Debug)]
pub(super) struct Getter {
    pub(super) target: IdPath,
    /// Number of documents to choose from. 1: always the same document.
    pub(super) count: u64,
    pub(super) generator: Generator,
    /// The requested document's number.
    pub(super) number: u64,
    /// Whether a body is that of the document with an id and a number.
    pub(super) is_right: fn(body: &[u8], id: &str, number: u64) -> bool,
}

impl Client for Getter {
    fn next(&mut self) -> Option<Request<'_>> {
        self.number = self.generator.below(self.count);
        self.target.set(self.number);
        Some(Request::get(&self.target.text))
    }

    fn check(&mut self, answer: Answer<'_>) -> Result<u64, String> {
        let is_right = (self.is_right)(answer.body, self.target.id(), self.number);
        if answer.status == 200 && is_right { Ok(1) } else { Err(unexpected(answer)) }
    }
}

/// Gets many documents with each request.
#[derive(Debug)]
pub(super) struct BulkGetter {
    pub(super) target: String,
    pub(super) count: u64,
    pub(super) ids: u64,
    pub(super) generator: Generator,
    pub(super) body: Vec<u8>,
}

impl Client for BulkGetter {
    fn next(&mut self) -> Option<Request<'_>> {
        self.body.clear();
        for _ in 0..self.ids {
            let comma = if self.body.is_empty() { "{\"docs\":[" } else { "," };
            let number = self.generator.below(self.count);
            write!(self.body, "{comma}{{\"id\":\"{number:0ID_DIGITS$}\"}}").expect("writing to memory");
        }
        self.body.extend_from_slice(b"]}");
        Some(Request::json("POST", &self.target, &self.body))
    }

    fn check(&mut self, answer: Answer<'_>) -> Result<u64, String> {
        let count = |needle: &[u8]| memmem::find_iter(answer.body, needle).count() as u64;
        let is_whole = count(b"\"ok\":") == self.ids && count(b"\"rest\":\"") == self.ids;
        if answer.status == 200 && is_whole { Ok(self.ids) } else { Err(unexpected(answer)) }
    }
}

pub(crate) fn unexpected(answer: Answer<'_>) -> String {
    let text: String = String::from_utf8_lossy(answer.body).chars().take(SHOWN_CHARACTERS_MAX).collect();
    format!("unexpected response, status {}: {text}", answer.status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_of_a_range_is_taken_once() {
        let numbers = NumberRange::new(0..5);
        assert_eq!(numbers.take(3), Some(0..3));
        assert_eq!(numbers.clone().take(3), Some(3..5));
        assert_eq!(numbers.take(3), None);
        assert_eq!(numbers.taken(), 5);
    }

    #[test]
    fn a_path_is_rewritten_for_each_number() {
        let mut target = IdPath::new("/db", "?q");
        target.set(7);
        assert_eq!(target.text, "/db/0000000000000007?q");
        target.set(12);
        assert_eq!(target.id(), sequential_id(12));
    }

    #[test]
    fn an_update_counts_only_if_the_revision_follows_the_last() {
        let updater = || Updater {
            directory: String::new(),
            query: String::new(),
            documents: vec![("x".to_owned(), "9-a".to_owned())],
            next: 0,
            bytes: 100,
            generator: Generator::new(1),
            left: None,
            target: String::new(),
            document: Vec::new(),
        };
        let check = |status, body: &[u8]| updater().check(Answer { status, body });
        assert_eq!(check(201, b"{\"ok\":true,\"id\":\"x\",\"rev\":\"10-b\"}"), Ok(1));
        assert!(check(201, b"{\"ok\":true,\"id\":\"x\",\"rev\":\"9-b\"}").is_err());
        assert!(check(409, b"{\"error\":\"conflict\"}").is_err());
        assert!(check(201, b"{}").is_err());
    }

    #[test]
    fn a_bulk_get_with_an_error_or_a_missing_document_fails() {
        let mut getter = BulkGetter {
            target: String::new(),
            count: 9,
            ids: 2,
            generator: Generator::new(1),
            body: Vec::new(),
        };
        let row = "{\"docs\":[{\"ok\":{\"rest\":\"\"}}]}";
        let both = format!("{row},{row}");
        assert_eq!(getter.check(Answer { status: 200, body: both.as_bytes() }), Ok(2));
        assert!(getter.check(Answer { status: 500, body: both.as_bytes() }).is_err());
        let missing = format!("{row},{{\"docs\":[{{\"error\":{{}}}}]}}");
        assert!(getter.check(Answer { status: 200, body: missing.as_bytes() }).is_err());
    }
}
