//! The kinds of clients: the requests that each sends and the checks of its responses.

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memchr::memmem;

use crate::documents::{Generator, attachment, is_numbered_document};
use crate::drive::Client;
use crate::http::{Answer, Server};

/// Maximum characters of an unexpected response that an error shows.
const SHOWN_CHARACTERS_MAX: usize = 300;

/// Ids of loaded documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ids {
    /// Numbers in ascending order.
    Sequential,
    /// 32 hexadecimal digits.
    Random,
}

/// Content of a loaded document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    /// This many bytes of JSON with one random text.
    Random(usize),
    /// Ten bytes besides the id.
    Tiny,
}

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
}

impl IdPath {
    pub(super) fn new(directory: &str) -> IdPath {
        IdPath { text: format!("{directory}/"), directory_bytes: directory.len() + 1 }
    }

    /// Returns the path of the document with a number, followed by `rest`.
    fn of(&mut self, number: u64, rest: &str) -> &str {
        self.text.truncate(self.directory_bytes);
        write!(self.text, "{number:0ID_DIGITS$}{rest}").expect("writing to memory");
        &self.text
    }

    /// The id in the last path.
    fn id(&self) -> &str {
        &self.text[self.directory_bytes..self.directory_bytes + ID_DIGITS]
    }
}

/// A range of document numbers that clients share; each number is taken once.
#[derive(Debug, Clone)]
pub(super) struct NumberRange {
    next: Arc<AtomicU64>,
    end: u64,
}

impl NumberRange {
    /// The numbers from 0 to `end`, exclusive.
    pub(super) fn up_to(end: u64) -> NumberRange {
        NumberRange { next: Arc::new(AtomicU64::new(0)), end }
    }

    /// All numbers from `first` on.
    pub(super) fn from(first: u64) -> NumberRange {
        NumberRange { next: Arc::new(AtomicU64::new(first)), end: u64::MAX / 2 }
    }

    pub(super) fn take(&self, count: u64) -> Option<std::ops::Range<u64>> {
        let first = self.next.fetch_add(count, Ordering::Relaxed);
        (first < self.end).then(|| first..(first + count).min(self.end))
    }

    /// The end of the numbers taken so far; for a range from 0, their count.
    pub(super) fn taken(&self) -> u64 {
        self.next.load(Ordering::Relaxed).min(self.end)
    }
}

/// Loads documents in batches.
#[derive(Debug)]
pub(super) struct Loader {
    pub(super) target: String,
    pub(super) numbers: NumberRange,
    pub(super) batch: u64,
    pub(super) ids: Ids,
    pub(super) content: Content,
    pub(super) generator: Generator,
    pub(super) body: Vec<u8>,
    pub(super) sent: u64,
}

impl Client for Loader {
    fn render(&mut self, server: &Server, request: &mut Vec<u8>) -> bool {
        let Some(numbers) = self.numbers.take(self.batch) else {
            return false;
        };
        self.sent = numbers.end - numbers.start;
        self.body.clear();
        for number in numbers {
            self.body.extend_from_slice(if self.body.is_empty() { b"{\"docs\":[" } else { b"," });
            match (self.ids, self.content) {
                (Ids::Sequential, Content::Random(bytes)) => {
                    Generator::numbered_document(&sequential_id(number), number, bytes, &mut self.body);
                }
                (Ids::Random, Content::Random(bytes)) => {
                    let id = self.generator.random_id();
                    self.generator.document(&id, bytes, &mut self.body);
                }
                (_, Content::Tiny) => self.generator.tiny_document(&sequential_id(number), &mut self.body),
            }
        }
        self.body.extend_from_slice(b"]}");
        server.render_head("POST", &self.target, Some(("application/json", self.body.len())), request);
        true
    }

    fn body(&self) -> &[u8] {
        &self.body
    }

    fn check(&mut self, answer: Answer<'_>) -> Result<u64, String> {
        let stored = memmem::find_iter(answer.body, b"\"rev\":\"").count() as u64;
        match answer.status {
            200..300 if stored == self.sent => Ok(stored),
            _ => Err(unexpected(answer)),
        }
    }
}

/// Puts new documents, one at a time.
#[derive(Debug)]
pub(super) struct Putter {
    pub(super) target: IdPath,
    pub(super) query: &'static str,
    pub(super) numbers: NumberRange,
    pub(super) bytes: usize,
    pub(super) document: Vec<u8>,
}

impl Client for Putter {
    fn render(&mut self, server: &Server, request: &mut Vec<u8>) -> bool {
        let Some(numbers) = self.numbers.take(1) else {
            return false;
        };
        self.target.of(numbers.start, self.query);
        self.document.clear();
        Generator::numbered_document(self.target.id(), numbers.start, self.bytes, &mut self.document);
        server.render("PUT", &self.target.text, Some(&self.document), request);
        true
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
}

impl Client for Updater {
    fn render(&mut self, server: &Server, request: &mut Vec<u8>) -> bool {
        match &mut self.left {
            Some(0) => return false,
            Some(left) => *left -= 1,
            None => {}
        }
        let (id, revision) = &self.documents[self.next];
        let mut document = Vec::with_capacity(self.bytes);
        self.generator.document(id, self.bytes, &mut document);
        let target = format!("{}/{id}?rev={revision}{}", self.directory, self.query);
        server.render("PUT", &target, Some(&document), request);
        true
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

/// Gets numbered documents.
#[derive(Debug)]
pub(super) struct Getter {
    pub(super) target: IdPath,
    /// Number of documents to choose from. 1: always the same document.
    pub(super) count: u64,
    pub(super) bytes: usize,
    pub(super) generator: Generator,
    /// The requested document's number.
    pub(super) number: u64,
}

impl Client for Getter {
    fn render(&mut self, server: &Server, request: &mut Vec<u8>) -> bool {
        self.number = self.generator.below(self.count);
        server.render("GET", self.target.of(self.number, ""), None, request);
        true
    }

    fn check(&mut self, answer: Answer<'_>) -> Result<u64, String> {
        let is_right = is_numbered_document(answer.body, self.target.id(), self.number, self.bytes);
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
    fn render(&mut self, server: &Server, request: &mut Vec<u8>) -> bool {
        self.body.clear();
        for _ in 0..self.ids {
            let comma = if self.body.is_empty() { "{\"docs\":[" } else { "," };
            let number = self.generator.below(self.count);
            write!(self.body, "{comma}{{\"id\":\"{number:0ID_DIGITS$}\"}}").expect("writing to memory");
        }
        self.body.extend_from_slice(b"]}");
        server.render("POST", &self.target, Some(&self.body), request);
        true
    }

    fn check(&mut self, answer: Answer<'_>) -> Result<u64, String> {
        let count = |needle: &[u8]| memmem::find_iter(answer.body, needle).count() as u64;
        let is_whole = count(b"\"ok\":") == self.ids && count(b"\"rest\":\"") == self.ids;
        if answer.status == 200 && is_whole { Ok(self.ids) } else { Err(unexpected(answer)) }
    }
}

/// The path of every attachment within its document.
const ATTACHMENT_PATH: &str = "/a";

/// Puts attachments of documents that don't exist yet.
#[derive(Debug)]
pub(super) struct AttachmentPutter {
    pub(super) target: IdPath,
    pub(super) numbers: NumberRange,
    pub(super) body: &'static [u8],
    pub(super) bytes: usize,
}

impl Client for AttachmentPutter {
    fn render(&mut self, server: &Server, request: &mut Vec<u8>) -> bool {
        let Some(numbers) = self.numbers.take(1) else {
            return false;
        };
        self.body = attachment(numbers.start, self.bytes);
        let content = ("application/octet-stream", self.bytes);
        server.render_head("PUT", self.target.of(numbers.start, ATTACHMENT_PATH), Some(content), request);
        true
    }

    fn body(&self) -> &[u8] {
        self.body
    }

    fn check(&mut self, answer: Answer<'_>) -> Result<u64, String> {
        if matches!(answer.status, 201 | 202) { Ok(1) } else { Err(unexpected(answer)) }
    }
}

/// Gets attachments written by an [`AttachmentPutter`].
#[derive(Debug)]
pub(super) struct AttachmentGetter {
    pub(super) target: IdPath,
    pub(super) count: u64,
    pub(super) bytes: usize,
    pub(super) generator: Generator,
    pub(super) number: u64,
}

impl Client for AttachmentGetter {
    fn render(&mut self, server: &Server, request: &mut Vec<u8>) -> bool {
        self.number = self.generator.below(self.count);
        server.render("GET", self.target.of(self.number, ATTACHMENT_PATH), None, request);
        true
    }

    fn check(&mut self, answer: Answer<'_>) -> Result<u64, String> {
        if answer.status != 200 {
            return Err(unexpected(answer));
        }
        let is_right = answer.body == attachment(self.number, self.bytes);
        if is_right { Ok(1) } else { Err(format!("attachment {} isn't what was put", self.number)) }
    }
}

fn unexpected(answer: Answer<'_>) -> String {
    let text: String = String::from_utf8_lossy(answer.body).chars().take(SHOWN_CHARACTERS_MAX).collect();
    format!("unexpected response, status {}: {text}", answer.status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_of_a_range_is_taken_once() {
        let numbers = NumberRange::up_to(5);
        assert_eq!(numbers.take(3), Some(0..3));
        assert_eq!(numbers.clone().take(3), Some(3..5));
        assert_eq!(numbers.take(3), None);
        assert_eq!(numbers.taken(), 5);
    }

    #[test]
    fn a_path_is_rewritten_for_each_number() {
        let mut target = IdPath::new("/db");
        assert_eq!(target.of(7, "?q"), "/db/0000000000000007?q");
        assert_eq!(target.of(12, ""), "/db/0000000000000012");
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
