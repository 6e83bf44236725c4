//! Rows that read: single documents, listings and bulk gets, alternating with the bare server.

use std::time::Duration;

use super::bench::{Bench, against_bare, directory, generators, is_target_turn, row};
use super::clients::{BulkGetter, Getter, IdPath, sequential_id};
use super::config::{SCALED_COUNT_MIN, Target};
use super::plan::{DOCUMENT_BYTES, DOCUMENT_COUNT, Plan};
use crate::couch::Couch;
use crate::documents::{Generator, is_numbered_document};
use crate::drive::{Client, Outcome, add_outcome, scan_stream};
use crate::error::{Error, Result};
use crate::limits::{BareClient, bare_target};
use crate::report::Row;
use crate::stats::{Samples, Stopwatch};

/// Number of ids of a bulk get.
const BULK_GET_IDS: u64 = 100;

impl Bench<'_> {
    pub(super) fn getters(&self, database: &str, clients: u64, count: u64) -> Vec<Getter> {
        let getter = |generator| Getter {
            target: IdPath::new(&directory(database)),
            count,
            bytes: DOCUMENT_BYTES,
            generator,
            number: 0,
        };
        generators(clients).map(getter).collect()
    }

    pub(super) async fn get(&mut self, plan: &Plan, clients: u64, one: bool) -> Result<Row> {
        let database = self.main().await?;
        let count = if one { 1 } else { self.scaled(DOCUMENT_COUNT, SCALED_COUNT_MIN) };
        let id = sequential_id(0);
        let sample = self.couch.call("GET", &format!("{}/{id}", directory(&database)), None).await?.body;
        if !is_numbered_document(&sample, &id, 0, DOCUMENT_BYTES) {
            return Err(Error::wrong(plan.name, "the first document isn't what was loaded"));
        }
        let bare_clients = vec![BareClient::get(sample.len() as u64); clients as usize];
        let getters = self.getters(&database, clients, count);
        let (outcome, bare) = self.drive_both(plan.name, getters, bare_clients).await?;
        let limit_name = format!("bare server, {} bytes", sample.len());
        Ok(against_bare(row(plan, "requests", &outcome), bare.as_ref(), limit_name).judged(plan.goals))
    }

    pub(super) async fn bulk_get(&mut self, plan: &Plan, clients: u64) -> Result<Row> {
        let target = format!("{}/_bulk_get", directory(&self.main().await?));
        let count = self.scaled(DOCUMENT_COUNT, SCALED_COUNT_MIN);
        let getter = |generator| BulkGetter {
            target: target.clone(),
            count,
            ids: BULK_GET_IDS,
            generator,
            body: Vec::new(),
        };
        // All ids have the same length, so all responses have too.
        let mut sample = getter(Generator::new(0));
        sample.render(&self.config.target.server, &mut Vec::new());
        let answer_bytes = self.couch.call("POST", &target, Some(&sample.body)).await?.body.len() as u64;
        let bare_clients = vec![BareClient::post(sample.body, answer_bytes, BULK_GET_IDS); clients as usize];
        let getters = generators(clients).map(getter).collect();
        let (outcome, bare) = self.drive_both(plan.name, getters, bare_clients).await?;
        let limit_name = format!("bare server, {answer_bytes} bytes a request");
        Ok(against_bare(row(plan, "docs", &outcome), bare.as_ref(), limit_name).judged(plan.goals))
    }

    pub(super) async fn list(&mut self, plan: &Plan, target: &str, documents: bool) -> Result<Row> {
        let target = format!("{}/{target}", directory(&self.main().await?));
        let expected = self.scaled(DOCUMENT_COUNT, SCALED_COUNT_MIN);
        let (mut sum, mut bare_sum) = (None, None);
        let mut answer_bytes = 0;
        let mut spent = Duration::ZERO;
        for turn in 1.. {
            if is_target_turn(turn) {
                let listing = list_once(&self.config.target, &target).await?;
                let found = (listing.rows, listing.documents);
                if found != (expected, if documents { expected } else { 0 }) {
                    let (rows, with) = found;
                    let reason = format!("{rows} rows, {with} with documents, of {expected}");
                    return Err(Error::wrong(plan.name, reason));
                }
                answer_bytes = listing.bytes;
                spent += listing.outcome.elapsed.wall;
                add_outcome(&mut sum, listing.outcome);
            } else if let Some(bare) = &self.config.bare {
                let mut listing = list_once(bare, &bare_target(answer_bytes)).await?;
                if listing.bytes != answer_bytes {
                    return Err(Error::wrong(plan.name, "the bare server sent another length"));
                }
                listing.outcome.operations = expected;
                add_outcome(&mut bare_sum, listing.outcome);
            }
            // After a multiple of four, both servers have had equally many turns.
            if turn % 4 == 0 && spent >= self.config.row_time {
                break;
            }
        }
        let limit_name = format!("bare server, {answer_bytes} bytes");
        let outcome = sum.expect("there was a turn");
        Ok(against_bare(row(plan, "rows", &outcome), bare_sum.as_ref(), limit_name).judged(plan.goals))
    }
}

/// The result of reading one listing to its end.
struct Listing {
    rows: u64,
    documents: u64,
    bytes: u64,
    outcome: Outcome,
}

async fn list_once(Target { server, pid }: &Target, target: &str) -> Result<Listing> {
    let stopwatch = Stopwatch::start(*pid);
    let connection = Couch::new(server.clone()).stream("GET", target).await?;
    let needles: [&[u8]; 2] = [b"\"id\":\"", b"\"rest\":\""];
    let ([rows, documents], bytes) = scan_stream(connection, needles).await?;
    let outcome = Outcome { operations: rows, latencies: Samples::default(), elapsed: stopwatch.read() };
    Ok(Listing { rows, documents, bytes, outcome })
}
