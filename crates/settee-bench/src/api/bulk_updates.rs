//! Rows that update documents in bulk: how much an update costs in a large database and in a small one.
//!
//! The documents of both databases have the same sizes, are loaded in the same way and keep one revision, and
//! slices of one alternate with slices of the other. A server whose index cache is smaller than the large database's index
//! also shows the cost of reading the index: set `index_cache_bytes_max` for a database of the full size.

use std::collections::{HashMap, HashSet};
use std::io::Write as _;
use std::time::Duration;

use memchr::memmem;
use settee_client::{Answer, Request};

use super::bench::{Bench, ROUND_COUNT, directory, is_target_turn, row};
use super::clients::{NumberRange, generation, generators, scattered_id, unexpected};
use super::config::SCALED_COUNT_MIN;
use super::plan::{BULK_UPDATES, DOCUMENT_COUNT, LARGE_COUNT, UPDATED_BYTES};
use crate::documents::Generator;
use crate::drive::{Client, drive};
use crate::error::Result;
use crate::report::{Bound, Row};
use crate::rounds::Window;

/// Number of clients.
const CLIENTS: u64 = 10;

/// Number of documents of a request.
const BATCH: u64 = 500;

/// Goal: minimum rate in the large database, as a share of that in the small one.
const SHARE_KEPT: f64 = 0.7;

impl Bench<'_> {
    pub(super) async fn bulk_updates(&mut self) -> Result<Vec<Row>> {
        let mut sums: [Window; 2] = Default::default();
        let mut updaters = Vec::new();
        for (plan, count) in BULK_UPDATES.iter().zip([DOCUMENT_COUNT, LARGE_COUNT]) {
            let count = self.config.scaled(count, SCALED_COUNT_MIN);
            let database = self.create().await?;
            // Otherwise the documents of the small database would have longer histories.
            self.couch.call("PUT", &format!("{}/_revs_limit", directory(&database)), Some(b"1")).await?;
            let target = self.bulk_target(&database);
            let numbers = NumberRange::new(0..count);
            let loader = |generator| Batches::new(&target, Source::First(numbers.clone()), generator);
            drive(plan.name, &self.setup.target, generators(CLIENTS).map(loader).collect(), None).await?;
            self.check_count(plan.name, &database, count).await?;
            let updater = |(client, generator)| {
                let own = Own { client, count, revisions: HashMap::new(), sent: Vec::new() };
                Batches::new(&target, Source::Own(own), generator)
            };
            updaters.push((0..CLIENTS).zip(generators(CLIENTS)).map(updater).collect::<Vec<_>>());
        }
        self.settle().await;
        let slice: Duration = self.config.row_time() / ROUND_COUNT;
        for turn in 0..2 * ROUND_COUNT {
            let index = usize::from(is_target_turn(turn));
            let clients = std::mem::take(&mut updaters[index]);
            let (window, clients) =
                drive(BULK_UPDATES[index].name, &self.setup.target, clients, Some(slice)).await?;
            updaters[index] = clients;
            sums[index].append(window);
        }
        let [small_rate, large_rate] = sums.each_ref().map(Window::rate);
        let [small, large] = sums;
        let small = row(&BULK_UPDATES[0], "docs/s", small, None);
        let large = row(&BULK_UPDATES[1], "docs/s", large, None);
        let kept = Some(large_rate / small_rate);
        Ok(vec![small, large.compare("× the rate over the small one", kept, Bound::AtLeast(SHARE_KEPT))])
    }
}

/// Sends batches of documents, all new or all updated.
struct Batches {
    target: String,
    source: Source,
    generator: Generator,
    document: Vec<u8>,
    body: Vec<u8>,
}

/// Where the next documents of a client come from.
enum Source {
    /// New documents, with the first revision that their number gives.
    First(NumberRange),
    /// Random ones of the client's own documents.
    Own(Own),
}

/// The documents that only one client updates: every tenth one.
struct Own {
    client: u64,
    /// Number of documents of the database.
    count: u64,
    /// The revisions of those that it has updated.
    revisions: HashMap<u64, String>,
    /// Numbers of the documents of the request.
    sent: Vec<u64>,
}

impl Batches {
    fn new(target: &str, source: Source, generator: Generator) -> Batches {
        Batches { target: target.to_owned(), source, generator, document: Vec::new(), body: Vec::new() }
    }

    fn push(&mut self, number: u64, revision: &str) {
        self.document.clear();
        self.generator.document(&scattered_id(number), UPDATED_BYTES, &mut self.document);
        let comma = if self.body.ends_with(b"[") { "" } else { "," };
        write!(self.body, "{comma}{{\"_rev\":\"{revision}\",").expect("writing to memory");
        self.body.extend_from_slice(&self.document[1..]);
    }
}

/// The revision under which a document is loaded.
fn first_revision(number: u64) -> String {
    format!("1-{number:032x}")
}

impl Client for Batches {
    fn next(&mut self) -> Option<Request<'_>> {
        self.body.clear();
        match &mut self.source {
            Source::First(numbers) => {
                let numbers = numbers.take(BATCH)?;
                self.body.extend_from_slice(b"{\"new_edits\":false,\"docs\":[");
                for number in numbers {
                    self.push(number, &first_revision(number));
                }
            }
            Source::Own(own) => {
                let own_count = own.count / CLIENTS;
                let mut chosen = HashSet::new();
                while (chosen.len() as u64) < BATCH.min(own_count) {
                    chosen.insert(self.generator.below(own_count) * CLIENTS + own.client);
                }
                own.sent = chosen.into_iter().collect();
                own.sent.sort_unstable();
                let revision = |number: &u64| {
                    own.revisions.get(number).cloned().unwrap_or_else(|| first_revision(*number))
                };
                let documents: Vec<(u64, String)> =
                    own.sent.iter().map(|number| (*number, revision(number))).collect();
                self.body.extend_from_slice(b"{\"docs\":[");
                for (number, revision) in documents {
                    self.push(number, &revision);
                }
            }
        }
        self.body.extend_from_slice(b"]}");
        Some(Request::json("POST", &self.target, &self.body))
    }

    fn check(&mut self, answer: Answer<'_>) -> Result<u64, String> {
        if !matches!(answer.status, 201 | 202) {
            return Err(unexpected(answer));
        }
        let Source::Own(own) = &mut self.source else {
            // The response to replicated edits names only those that failed.
            let is_empty = answer.body.trim_ascii() == b"[]";
            return if is_empty { Ok(0) } else { Err(unexpected(answer)) };
        };
        let revisions: Vec<&str> = revisions(answer.body).collect();
        if revisions.len() != own.sent.len() {
            return Err(unexpected(answer));
        }
        for (number, revision) in own.sent.iter().zip(&revisions) {
            let last = own.revisions.get(number).map_or(Some(1), |last| generation(last));
            if generation(revision) != last.map(|last| last + 1) {
                return Err(unexpected(answer));
            }
            own.revisions.insert(*number, (*revision).to_owned());
        }
        Ok(revisions.len() as u64)
    }
}

/// The new revisions in the response to a bulk of edits.
fn revisions(body: &[u8]) -> impl Iterator<Item = &str> {
    const NAME: &[u8] = b"\"rev\":\"";
    memmem::find_iter(body, NAME).filter_map(move |at| {
        let text = &body[at + NAME.len()..];
        std::str::from_utf8(&text[..memchr::memchr(b'"', text)?]).ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn updater(count: u64) -> Batches {
        let own = Own { client: 3, count, revisions: HashMap::new(), sent: Vec::new() };
        Batches::new("/db/_bulk_docs", Source::Own(own), Generator::new(1))
    }

    fn reply(sent: &[u64], generation: u64) -> String {
        let rows = sent.iter().map(|number| {
            format!(
                "{{\"ok\":true,\"id\":\"{}\",\"rev\":\"{generation}-{number:032x}\"}}",
                scattered_id(*number)
            )
        });
        format!("[{}]", rows.collect::<Vec<_>>().join(","))
    }

    #[test]
    fn an_update_names_the_last_revision_of_each_document() {
        let mut updater = updater(40);
        for generation in 1..4 {
            let body = updater.next().unwrap().content.unwrap().1.to_vec();
            let needle = format!("\"_rev\":\"{generation}-");
            assert_eq!(memmem::find_iter(&body, needle.as_bytes()).count(), 4);
            let Source::Own(own) = &updater.source else { unreachable!() };
            let (sent, next) = (own.sent.clone(), generation + 1);
            assert!(sent.iter().all(|number| number % CLIENTS == 3));
            let wrong = reply(&sent, generation);
            assert!(updater.check(Answer { status: 201, body: wrong.as_bytes() }).is_err());
            assert!(updater.check(Answer { status: 201, body: b"[]" }).is_err());
            assert_eq!(updater.check(Answer { status: 201, body: reply(&sent, next).as_bytes() }), Ok(4));
        }
    }

    #[test]
    fn a_load_fails_with_any_refused_document() {
        let mut loader =
            Batches::new("/db/_bulk_docs", Source::First(NumberRange::new(0..3)), Generator::new(1));
        let body = loader.next().unwrap().content.unwrap().1.to_vec();
        assert!(body.starts_with(
            format!("{{\"new_edits\":false,\"docs\":[{{\"_rev\":\"{}\"", first_revision(0)).as_bytes()
        ));
        assert_eq!(loader.check(Answer { status: 201, body: b"[]\n" }), Ok(0));
        assert!(loader.check(Answer { status: 201, body: b"[{\"error\":\"forbidden\"}]" }).is_err());
        assert!(loader.next().is_none());
    }
}
