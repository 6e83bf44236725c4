//! What each kind of client sends and how it knows that the answer is right.

use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memchr::memmem;

use crate::documents::{Generator, attachment, is_numbered_document};
use crate::drive::Client;
use crate::http::{Answer, Server};

/// Most of an unexpected answer that is shown, in characters.
const SHOWN_CHARACTERS_MAX: usize = 300;

/// Ids of the documents that are loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ids {
    /// In rising order.
    Sequential,
    /// 32 hexadecimal digits.
    Random,
}

/// What a loaded document holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    /// So many bytes of JSON with one random text.
    Random(usize),
    /// Ten bytes beside the id.
    Tiny,
}

/// Digits of a sequential id.
pub(super) const ID_DIGITS: usize = 16;

/// The id of the document with this number.
pub(super) fn sequential_id(number: u64) -> String {
    format!("{number:0ID_DIGITS$}")
}

/// A path that ends with an id, made anew for each request without allocating.
#[derive(Debug, Clone)]
pub(super) struct IdPath {
    text: String,
    directory_bytes: usize,
}

impl IdPath {
    pub(super) fn new(directory: &str) -> IdPath {
        IdPath { text: format!("{directory}/"), directory_bytes: directory.len() + 1 }
    }

    /// The path of the document with this number, and what follows it.
    fn of(&mut self, number: u64, rest: &str) -> &str {
        self.text.truncate(self.directory_bytes);
        write!(self.text, "{number:0ID_DIGITS$}{rest}").expect("writing to memory");
        &self.text
    }

    /// The id in the path made last.
    fn id(&self) -> &str {
        &self.text[self.directory_bytes..self.directory_bytes + ID_DIGITS]
    }
}

/// Where clients take their numbers from.
#[derive(Debug, Clone)]
pub(super) struct Numbers {
    next: Arc<AtomicU64>,
    end: u64,
}

impl Numbers {
    pub(super) fn up_to(end: u64) -> Numbers {
        Numbers { next: Arc::new(AtomicU64::new(0)), end }
    }

    /// From `first` on, without end.
    pub(super) fn from(first: u64) -> Numbers {
        Numbers { next: Arc::new(AtomicU64::new(first)), end: u64::MAX / 2 }
    }

    pub(super) fn take(&self, count: u64) -> Option<std::ops::Range<u64>> {
        let first = self.next.fetch_add(count, Ordering::Relaxed);
        (first < self.end).then(|| first..(first + count).min(self.end))
    }

    /// How many were taken, where they began at 0.
    pub(super) fn taken(&self) -> u64 {
        self.next.load(Ordering::Relaxed).min(self.end)
    }
}

/// Loads documents in batches.
#[derive(Debug)]
pub(super) struct Loader {
    pub(super) target: String,
    pub(super) numbers: Numbers,
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
    pub(super) numbers: Numbers,
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

/// Updates its own documents in turn, each so that its revision's number rises by one.
#[derive(Debug)]
pub(super) struct Updater {
    pub(super) directory: String,
    /// `&durability=…`, or nothing.
    pub(super) query: String,
    /// Ids and current revisions.
    pub(super) documents: Vec<(String, String)>,
    pub(super) turn: usize,
    pub(super) bytes: usize,
    pub(super) generator: Generator,
    /// How many updates are left; none where time ends them.
    pub(super) left: Option<u64>,
}

impl Client for Updater {
    fn render(&mut self, server: &Server, request: &mut Vec<u8>) -> bool {
        match &mut self.left {
            Some(0) => return false,
            Some(left) => *left -= 1,
            None => {}
        }
        let (id, revision) = &self.documents[self.turn];
        let mut document = Vec::with_capacity(self.bytes);
        self.generator.document(id, self.bytes, &mut document);
        let target = format!("{}/{id}?rev={revision}{}", self.directory, self.query);
        server.render("PUT", &target, Some(&document), request);
        true
    }

    fn check(&mut self, answer: Answer<'_>) -> Result<u64, String> {
        let current = &mut self.documents[self.turn].1;
        let next = matches!(answer.status, 201 | 202).then(|| revision(answer.body)).flatten();
        let next = next.filter(|next| generation(next) == generation(current).map(|number| number + 1));
        *current = next.ok_or_else(|| unexpected(answer))?.to_owned();
        self.turn = (self.turn + 1) % self.documents.len();
        Ok(1)
    }
}

/// The revision that the answer to a PUT names.
fn revision(body: &[u8]) -> Option<&str> {
    let start = memmem::find(body, b"\"rev\":\"")? + b"\"rev\":\"".len();
    let length = memchr::memchr(b'"', &body[start..])?;
    std::str::from_utf8(&body[start..start + length]).ok()
}

/// The number in front of a revision.
pub(super) fn generation(revision: &str) -> Option<u64> {
    revision.split_once('-')?.0.parse().ok()
}

/// Gets numbered documents.
#[derive(Debug)]
pub(super) struct Getter {
    pub(super) target: IdPath,
    /// Ids are chosen among so many; with one it is always the same document.
    pub(super) count: u64,
    pub(super) bytes: usize,
    pub(super) generator: Generator,
    /// The number asked for.
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

/// The name of every attachment.
const ATTACHMENT_PATH: &str = "/a";

/// Puts attachments of documents that don't exist yet.
#[derive(Debug)]
pub(super) struct AttachmentPutter {
    pub(super) target: IdPath,
    pub(super) numbers: Numbers,
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

/// Gets attachments that an [`AttachmentPutter`] put.
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
    let said: String = String::from_utf8_lossy(answer.body).chars().take(SHOWN_CHARACTERS_MAX).collect();
    format!("unexpected answer, status {}: {said}", answer.status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_given_once_and_end() {
        let numbers = Numbers::up_to(5);
        assert_eq!(numbers.take(3), Some(0..3));
        assert_eq!(numbers.clone().take(3), Some(3..5));
        assert_eq!(numbers.take(3), None);
        assert_eq!(numbers.taken(), 5);
    }

    #[test]
    fn a_target_is_made_anew_for_each_number() {
        let mut target = IdPath::new("/db");
        assert_eq!(target.of(7, "?q"), "/db/0000000000000007?q");
        assert_eq!(target.of(12, ""), "/db/0000000000000012");
        assert_eq!(target.id(), sequential_id(12));
    }

    #[test]
    fn an_update_counts_only_where_the_revision_follows_the_last() {
        let updater = || Updater {
            directory: String::new(),
            query: String::new(),
            documents: vec![("x".to_owned(), "9-a".to_owned())],
            turn: 0,
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
    fn an_error_or_a_hole_in_a_bulk_get_is_no_answer() {
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
        let hole = format!("{row},{{\"docs\":[{{\"error\":{{}}}}]}}");
        assert!(getter.check(Answer { status: 200, body: hole.as_bytes() }).is_err());
    }
}
