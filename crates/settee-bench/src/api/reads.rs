//! Rows that read: single documents, listings and bulk gets, alternating with the bare server.

use std::time::Duration;

use settee_client::Couch;

use super::bench::{Bench, Limit, directory, is_target_turn, row};
use super::clients::{BulkGetter, Getter, IdPath, generators, sequential_id};
use super::plan::{DOCUMENT_BYTES, Plan};
use crate::documents::{Generator, is_numbered_document};
use crate::drive::{Client, Target, scan_stream};
use crate::error::{Error, Result};
use crate::limits::{BareClient, bare_target};
use crate::report::Row;
use crate::rounds::Window;
use crate::stats::{Samples, Stopwatch};

/// Number of ids of a bulk get.
const BULK_GET_IDS: u64 = 100;

/// Clients that get documents of a database, `count` of them.
pub(super) fn getters(database: &str, clients: u64, count: u64) -> Vec<Getter> {
    let getter = |generator| Getter {
        target: IdPath::new(&directory(database), ""),
        count,
        generator,
        number: 0,
        is_right: |body, id, number| is_numbered_document(body, id, number, DOCUMENT_BYTES),
    };
    generators(clients).map(getter).collect()
}

impl Bench<'_> {
    pub(super) async fn get(&mut self, plan: &Plan, clients: u64, one: bool) -> Result<Row> {
        let database = self.main().await?;
        let count = if one { 1 } else { self.main_count() };
        let id = sequential_id(0);
        let sample = self.couch.call("GET", &format!("{}/{id}", directory(&database)), None).await?.body;
        if !is_numbered_document(&sample, &id, 0, DOCUMENT_BYTES) {
            return Err(Error::wrong(plan.name, "the first document isn't what was loaded"));
        }
        let (getters, bytes) = (getters(&database, clients, count), sample.len() as u64);
        self.row_beside_bare(plan, "requests/s", getters, BareClient::get(bytes), bytes).await
    }

    pub(super) async fn bulk_get(&mut self, plan: &Plan, clients: u64) -> Result<Row> {
        let target = format!("{}/_bulk_get", directory(&self.main().await?));
        let count = self.main_count();
        let getter = |generator| BulkGetter {
            target: target.clone(),
            count,
            ids: BULK_GET_IDS,
            generator,
            body: Vec::new(),
        };
        // All ids have the same length, so all responses have too.
        let mut sample = getter(Generator::new(0));
        let request = sample.next().expect("it is endless");
        let bytes = self.couch.send(request).await?.body.len() as u64;
        let bare_client = BareClient::new("POST", sample.body, bytes, BULK_GET_IDS);
        let getters = generators(clients).map(getter).collect();
        self.row_beside_bare(plan, "docs/s", getters, bare_client, bytes).await
    }

    pub(super) async fn list(&mut self, plan: &Plan, target: &str, documents: bool) -> Result<Row> {
        let target = format!("{}/{target}", directory(&self.main().await?));
        let expected = self.main_count();
        let (mut sum, mut bare_sum) = (Window::default(), Window::default());
        let mut bytes = 0;
        let mut spent = Duration::ZERO;
        for turn in 1.. {
            if is_target_turn(turn) {
                let listing = list_once(&self.setup.target, &target).await?;
                let (rows, with) = (listing.rows, listing.documents);
                if rows != expected || with != if documents { expected } else { 0 } {
                    let reason = format!("{rows} rows, {with} with documents, of {expected}");
                    return Err(Error::wrong(plan.name, reason));
                }
                bytes = listing.bytes;
                spent += listing.window.elapsed.wall;
                sum.append(listing.window);
            } else if let Some(bare) = &self.setup.bare {
                let listing = list_once(bare, &bare_target(bytes)).await?;
                if listing.bytes != bytes {
                    return Err(Error::wrong(plan.name, "the bare server sent another length"));
                }
                bare_sum.append(Window::new(expected, Samples::default(), listing.window.elapsed));
            }
            // After a multiple of four, both servers have had equally many turns.
            if turn % 4 == 0 && spent >= self.config.row_time() {
                break;
            }
        }
        let limit = self.setup.bare.as_ref().map(|_| Limit::bare(&bare_sum, bytes));
        Ok(row(plan, "rows/s", sum, limit))
    }
}

/// The result of reading one listing to its end.
pub(crate) struct Listing {
    pub(crate) rows: u64,
    pub(crate) documents: u64,
    pub(crate) bytes: u64,
    pub(crate) window: Window,
}

/// Reads a listing to its end, on a connection of its own.
pub(crate) async fn list_once(Target { server, pid }: &Target, target: &str) -> Result<Listing> {
    let stopwatch = Stopwatch::start(*pid);
    let connection = Couch::new(server.clone()).stream(target).await?;
    let needles: [&[u8]; 2] = [b"\"id\":\"", b"\"rest\":\""];
    let ([rows, documents], bytes) = scan_stream(connection, needles).await?;
    let window = Window::new(rows, Samples::default(), stopwatch.read());
    Ok(Listing { rows, documents, bytes, window })
}
