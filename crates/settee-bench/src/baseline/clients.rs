//! What each kind of client sends and how it knows that the answer is right.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memchr::memmem;

use crate::documents::Generator;
use crate::drive::Client;
use crate::http::{Answer, Server};

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

/// The id of the document with this number.
pub(super) fn sequential_id(number: u64) -> String {
    format!("{number:016}")
}

/// Where loaders take their numbers from.
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

    fn take(&self, count: u64) -> Option<std::ops::Range<u64>> {
        let first = self.next.fetch_add(count, Ordering::Relaxed);
        (first < self.end).then(|| first..(first + count).min(self.end))
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
            let id = match self.ids {
                Ids::Sequential => sequential_id(number),
                Ids::Random => self.generator.random_id(),
            };
            match self.content {
                Content::Random(bytes) => self.generator.document(&id, bytes, &mut self.body),
                Content::Tiny => self.generator.tiny_document(&id, &mut self.body),
            }
        }
        self.body.extend_from_slice(b"]}");
        server.render("POST", &self.target, Some(&self.body), request);
        true
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
    pub(super) folder: String,
    pub(super) query: &'static str,
    pub(super) numbers: Numbers,
    pub(super) bytes: usize,
    pub(super) generator: Generator,
}

impl Client for Putter {
    fn render(&mut self, server: &Server, request: &mut Vec<u8>) -> bool {
        let Some(numbers) = self.numbers.take(1) else {
            return false;
        };
        let id = sequential_id(numbers.start);
        let mut document = Vec::with_capacity(self.bytes);
        self.generator.document(&id, self.bytes, &mut document);
        server.render("PUT", &format!("{}/{id}{}", self.folder, self.query), Some(&document), request);
        true
    }

    fn check(&mut self, answer: Answer<'_>) -> Result<u64, String> {
        if matches!(answer.status, 201 | 202) { Ok(1) } else { Err(unexpected(answer)) }
    }
}

/// Updates its own documents in turn.
#[derive(Debug)]
pub(super) struct Updater {
    pub(super) folder: String,
    /// `&durability=…`, or nothing.
    pub(super) query: String,
    /// Ids and current revisions.
    pub(super) documents: Vec<(String, String)>,
    pub(super) turn: usize,
    pub(super) bytes: usize,
    pub(super) generator: Generator,
}

impl Client for Updater {
    fn render(&mut self, server: &Server, request: &mut Vec<u8>) -> bool {
        let (id, revision) = &self.documents[self.turn];
        let mut document = Vec::with_capacity(self.bytes);
        self.generator.document(id, self.bytes, &mut document);
        let target = format!("{}/{id}?rev={revision}{}", self.folder, self.query);
        server.render("PUT", &target, Some(&document), request);
        true
    }

    fn check(&mut self, answer: Answer<'_>) -> Result<u64, String> {
        let revision = matches!(answer.status, 201 | 202).then(|| revision(answer.body)).flatten();
        let revision = revision.ok_or_else(|| unexpected(answer))?;
        self.documents[self.turn].1 = revision;
        self.turn = (self.turn + 1) % self.documents.len();
        Ok(1)
    }
}

/// The revision that the answer to a PUT names.
fn revision(body: &[u8]) -> Option<String> {
    let start = memmem::find(body, b"\"rev\":\"")? + b"\"rev\":\"".len();
    let length = memchr::memchr(b'"', &body[start..])?;
    String::from_utf8(body[start..start + length].to_vec()).ok()
}

/// Gets documents.
#[derive(Debug)]
pub(super) struct Getter {
    pub(super) folder: String,
    /// Ids are chosen among so many; with one it is always the same document.
    pub(super) count: u64,
    pub(super) bytes: usize,
    pub(super) generator: Generator,
}

impl Client for Getter {
    fn render(&mut self, server: &Server, request: &mut Vec<u8>) -> bool {
        let id = sequential_id(self.generator.below(self.count));
        server.render("GET", &format!("{}/{id}", self.folder), None, request);
        true
    }

    fn check(&mut self, answer: Answer<'_>) -> Result<u64, String> {
        // The revision comes on top of what was stored.
        if answer.status == 200 && answer.body.len() > self.bytes { Ok(1) } else { Err(unexpected(answer)) }
    }
}

/// Gets many documents with each request.
#[derive(Debug)]
pub(super) struct BulkGetter {
    pub(super) folder: String,
    pub(super) count: u64,
    pub(super) ids: u64,
    pub(super) generator: Generator,
}

impl Client for BulkGetter {
    fn render(&mut self, server: &Server, request: &mut Vec<u8>) -> bool {
        let ids: Vec<String> = (0..self.ids)
            .map(|_| format!("{{\"id\":\"{}\"}}", sequential_id(self.generator.below(self.count))))
            .collect();
        let body = format!("{{\"docs\":[{}]}}", ids.join(","));
        server.render("POST", &format!("{}/_bulk_get", self.folder), Some(body.as_bytes()), request);
        true
    }

    fn check(&mut self, answer: Answer<'_>) -> Result<u64, String> {
        let found = memmem::find_iter(answer.body, b"\"ok\":").count() as u64;
        if answer.status == 200 && found == self.ids { Ok(found) } else { Err(unexpected(answer)) }
    }
}

fn unexpected(answer: Answer<'_>) -> String {
    let said: String = String::from_utf8_lossy(answer.body).chars().take(300).collect();
    format!("unexpected answer, status {}: {said}", answer.status)
}
