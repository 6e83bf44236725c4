//! Rows that read: single documents, listings, bulk gets, each in turn with the bare server.

use std::time::Duration;

use super::clients::{BulkGetter, Getter, IdPath, sequential_id};
use super::plan::{DOCUMENT_BYTES, DOCUMENT_COUNT, Plan};
use super::{Bench, SCALED_COUNT_MIN, Target, beside_floor, directory, generators, is_ours, row};
use crate::couch::Couch;
use crate::documents::{Generator, is_numbered_document};
use crate::drive::{Client, Outcome, scan_stream, tally};
use crate::error::{Error, Result};
use crate::limits::{FloorClient, floor_target};
use crate::report::Row;
use crate::stats::{Samples, Stopwatch};

/// Ids in a bulk get.
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
        let floor = vec![FloorClient::get(sample.len() as u64); clients as usize];
        let getters = self.getters(&database, clients, count);
        let (outcome, floor) = self.in_turn(plan.name, getters, floor).await?;
        let what = format!("bare server, {} bytes", sample.len());
        Ok(beside_floor(row(plan, "requests", &outcome), floor.as_ref(), what).judged(plan.goals))
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
        // All ids are equally long, and so are all answers.
        let mut sample = getter(Generator::new(0));
        sample.render(&self.config.target.server, &mut Vec::new());
        let answer_bytes = self.couch.call("POST", &target, Some(&sample.body)).await?.body.len() as u64;
        let floor = vec![FloorClient::post(sample.body, answer_bytes, BULK_GET_IDS); clients as usize];
        let getters = generators(clients).map(getter).collect();
        let (outcome, floor) = self.in_turn(plan.name, getters, floor).await?;
        let what = format!("bare server, {answer_bytes} bytes a request");
        Ok(beside_floor(row(plan, "docs", &outcome), floor.as_ref(), what).judged(plan.goals))
    }

    pub(super) async fn list(&mut self, plan: &Plan, target: &str, documents: bool) -> Result<Row> {
        let target = format!("{}/{target}", directory(&self.main().await?));
        let expected = self.scaled(DOCUMENT_COUNT, SCALED_COUNT_MIN);
        let (mut sum, mut floor_sum) = (None, None);
        let mut answer_bytes = 0;
        let mut spent = Duration::ZERO;
        for turn in 1.. {
            if is_ours(turn) {
                let stretch = list_once(&self.config.target, &target).await?;
                let found = (stretch.rows, stretch.documents);
                if found != (expected, if documents { expected } else { 0 }) {
                    let (rows, with) = found;
                    let said = format!("{rows} rows, {with} with documents, of {expected}");
                    return Err(Error::wrong(plan.name, said));
                }
                answer_bytes = stretch.bytes;
                spent += stretch.outcome.elapsed.wall;
                tally(&mut sum, stretch.outcome);
            } else if let Some(floor) = &self.config.floor {
                let mut stretch = list_once(floor, &floor_target(answer_bytes)).await?;
                if stretch.bytes != answer_bytes {
                    return Err(Error::wrong(plan.name, "the bare server sent another length"));
                }
                stretch.outcome.operations = expected;
                tally(&mut floor_sum, stretch.outcome);
            }
            // Even turns end a pair: both have had as many.
            if turn % 4 == 0 && spent >= self.config.row_time {
                break;
            }
        }
        let what = format!("bare server, {answer_bytes} bytes");
        let outcome = sum.expect("there was a turn");
        Ok(beside_floor(row(plan, "rows", &outcome), floor_sum.as_ref(), what).judged(plan.goals))
    }
}

/// One listing read to its end.
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
