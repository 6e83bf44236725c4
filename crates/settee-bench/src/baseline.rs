//! What was recorded of CouchDB 3.5.0, repeated over HTTP with the same sizes, clients, batches
//! and durability, beside what the machine allows in the same run.
//!
//! Loads run until all documents are in; everything else for a given time. All clients share
//! one thread, since server and client share the machine. A row's ratios are to the recorded
//! figures ([`RECORDED_SOURCE`]), by rate and by the server's processor time, and for reads and
//! lone durable writes to the limits as well ([`crate::limits`]).

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use settee_doc::Stage;

use crate::couch::{BulkRow, Couch};
use crate::documents::Generator;
use crate::drive::{Client, Outcome, Until, count_in_stream, drive};
use crate::error::{Error, Result};
use crate::http::{Server, encode_segment};
use crate::limits::{self, FRAME_OVERHEAD_BYTES, FloorClient};
use crate::report::Row;
use crate::stats::{Elapsed, Samples, Stopwatch};

mod clients;
mod plan;

use clients::{BulkGetter, Content, Getter, Ids, Loader, Numbers, Putter, Updater, sequential_id};
pub use plan::{DOCUMENT_BYTES, DOCUMENT_COUNT, RECORDED_SOURCE};
use plan::{Kind, PLANS, Plan, READERS_BESIDE};

/// Documents that each updating client has to itself.
const UPDATED_COUNT_EACH: u64 = 500;

/// Documents in a batch of tiny ones.
const TINY_BATCH: u64 = 1_000;

/// Readers of one document beside the writer of tiny ones.
const TINY_READERS: u64 = 15;

/// Ids in a bulk get.
const BULK_GET_IDS: u64 = 100;

/// More than a row writes in a second, in bytes of JSON.
const WRITTEN_BYTES_EACH_SECOND: f64 = 200e6;

/// Fewest documents that a scaled-down load keeps.
const SCALED_COUNT_MIN: u64 = 200;

/// A server and the process whose processor time is counted.
#[derive(Debug, Clone)]
pub struct Target {
    /// Where it listens.
    pub server: Server,
    /// Its process, where it is known.
    pub pid: Option<u32>,
}

/// What is measured.
#[derive(Debug, Clone)]
pub struct Config {
    /// The server.
    pub target: Target,
    /// The bare server; without one nothing is compared with it.
    pub floor: Option<Target>,
    /// A folder on the disk that the server writes to; without one no sync is measured.
    pub folder: Option<PathBuf>,
    /// Multiplies the counts of documents.
    pub scale: f64,
    /// How long a row lasts that isn't a load.
    pub row_time: Duration,
    /// How far writes have got when they are answered.
    pub durability: Stage,
    /// Rows whose names contain one of these; all when empty.
    pub rows: Vec<String>,
}

/// The names of the rows, for `--rows`.
pub fn row_names() -> impl Iterator<Item = &'static str> {
    PLANS.iter().map(|plan| plan.name)
}

/// What the rows may write, in bytes of JSON: of those that write for a time, as much as a
/// fast disk takes.
pub fn document_bytes(rows: &[String], scale: f64, row_time: Duration) -> u64 {
    let sizes = PLANS.iter().filter(|plan| wanted(rows, plan)).map(|plan| match plan.kind {
        Kind::Load { content: Content::Random(bytes), documents, .. } => {
            scaled(scale, documents) * bytes as u64
        }
        Kind::Put { .. } | Kind::Update { .. } | Kind::Tiny { writer: true, .. } => {
            (row_time.as_secs_f64() * WRITTEN_BYTES_EACH_SECOND) as u64
        }
        _ => scaled(scale, DOCUMENT_COUNT) * DOCUMENT_BYTES as u64,
    });
    // Each database goes with its row but the one that is read: the largest counts twice.
    2 * sizes.max().unwrap_or(0)
}

/// Runs the rows and gives each to `on_row` as it is measured. The databases it makes are
/// deleted, also after an error.
///
/// # Errors
/// Any [`Error`].
pub async fn run(config: &Config, mut on_row: impl FnMut(Row)) -> Result<()> {
    let mut bench = Bench::new(config);
    let mut result = Ok(());
    for plan in PLANS.iter().filter(|plan| wanted(&config.rows, plan)) {
        result = bench.row(plan, &mut on_row).await;
        if result.is_err() {
            break;
        }
    }
    let cleaned = bench.clean().await;
    result.and(cleaned)
}

fn wanted(rows: &[String], plan: &Plan) -> bool {
    rows.is_empty() || rows.iter().any(|part| plan.name.contains(part.as_str()))
}

fn scaled(scale: f64, count: u64) -> u64 {
    ((count as f64 * scale) as u64).max(SCALED_COUNT_MIN)
}

struct Bench<'a> {
    config: &'a Config,
    couch: Couch,
    /// Databases made so far and not deleted yet.
    databases: Vec<String>,
    /// The one that is read.
    main: Option<String>,
    /// The bare server's rate of gets, by clients.
    floors: HashMap<u64, f64>,
}

impl<'a> Bench<'a> {
    fn new(config: &'a Config) -> Bench<'a> {
        let couch = Couch::new(config.target.server.clone());
        Bench { config, couch, databases: Vec::new(), main: None, floors: HashMap::new() }
    }

    async fn row(&mut self, plan: &Plan, on_row: &mut impl FnMut(Row)) -> Result<()> {
        match plan.kind {
            Kind::Floor { clients } => self.floor(plan, clients, on_row).await,
            Kind::Load { ids, content, batch, writers, documents } => {
                let database = self.create().await?;
                let outcome =
                    self.load(plan.name, &database, (ids, content), batch, writers, documents).await?;
                on_row(row(plan, "docs", &outcome));
                if self.main.is_none() && (ids, content) == MAIN {
                    self.couch.barrier(&database).await?;
                    self.main = Some(database);
                    return Ok(());
                }
                self.delete(&database).await
            }
            Kind::Put { clients } => self.put(plan, clients, on_row).await,
            Kind::Update { clients } => self.update(plan, clients, on_row).await,
            Kind::Get { clients, one } => {
                let database = self.main().await?;
                let count = if one { 1 } else { scaled(self.config.scale, DOCUMENT_COUNT) };
                let outcome = self.drive(plan.name, self.getters(&database, clients, count)).await?;
                on_row(self.beside_floor(row(plan, "requests", &outcome), clients));
                Ok(())
            }
            Kind::Tiny { writer, readers } => self.tiny(plan, writer, readers, on_row).await,
            Kind::List { target } => self.list(plan, target, on_row).await,
            Kind::BulkGet { clients } => {
                let folder = folder(&self.main().await?);
                let count = scaled(self.config.scale, DOCUMENT_COUNT);
                let getters = generators(clients).map(|generator| BulkGetter {
                    folder: folder.clone(),
                    count,
                    ids: BULK_GET_IDS,
                    generator,
                });
                let outcome = self.drive(plan.name, getters.collect()).await?;
                on_row(row(plan, "docs", &outcome));
                Ok(())
            }
        }
    }

    async fn drive<C: Client>(&self, name: &str, clients: Vec<C>) -> Result<Outcome> {
        let Target { server, pid } = &self.config.target;
        drive(name, server, *pid, clients, Until::Passed(self.config.row_time)).await
    }

    async fn create(&mut self) -> Result<String> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let name = format!("settee-bench-{}", now.as_micros());
        self.couch.create_database(&name).await?;
        self.databases.push(name.clone());
        Ok(name)
    }

    async fn delete(&mut self, database: &str) -> Result<()> {
        self.databases.retain(|name| name != database);
        Ok(self.couch.delete_database(database).await?)
    }

    async fn clean(&mut self) -> Result<()> {
        let mut result = Ok(());
        for database in std::mem::take(&mut self.databases) {
            result = result.and(self.couch.delete_database(&database).await);
        }
        Ok(result?)
    }

    /// The database that is read, loaded now where no row did.
    async fn main(&mut self) -> Result<String> {
        if let Some(name) = &self.main {
            return Ok(name.clone());
        }
        let database = self.create().await?;
        self.load("preparation", &database, MAIN, 500, 10, DOCUMENT_COUNT).await?;
        self.couch.barrier(&database).await?;
        self.main = Some(database.clone());
        Ok(database)
    }

    async fn load(
        &self,
        name: &str,
        database: &str,
        (ids, content): (Ids, Content),
        batch: u64,
        writers: u64,
        documents: u64,
    ) -> Result<Outcome> {
        let target = format!("{}/_bulk_docs{}", folder(database), self.durability_query());
        let numbers = Numbers::up_to(scaled(self.config.scale, documents));
        let clients = generators(writers).map(|generator| Loader {
            target: target.clone(),
            numbers: numbers.clone(),
            batch,
            ids,
            content,
            generator,
            body: Vec::new(),
            sent: 0,
        });
        let Target { server, pid } = &self.config.target;
        drive(name, server, *pid, clients.collect(), Until::Done).await
    }

    fn getters(&self, database: &str, clients: u64, count: u64) -> Vec<Getter> {
        let getter = |generator| Getter { folder: folder(database), count, bytes: DOCUMENT_BYTES, generator };
        generators(clients).map(getter).collect()
    }

    async fn floor(&mut self, plan: &Plan, clients: u64, on_row: &mut impl FnMut(Row)) -> Result<()> {
        let Some(Target { server, pid }) = &self.config.floor else {
            return Ok(());
        };
        let getters = (0..clients).map(|_| FloorClient::Get).collect();
        let outcome = drive(plan.name, server, *pid, getters, Until::Passed(self.config.row_time)).await?;
        let row = row(plan, "requests", &outcome);
        self.floors.insert(clients, row.rate);
        on_row(row);
        Ok(())
    }

    fn beside_floor(&self, row: Row, clients: u64) -> Row {
        match self.floors.get(&clients) {
            None => row,
            Some(&floor) => {
                let share = row.rate / floor;
                row.with_limit(share, format!("{share:.2} of the bare server's rate"))
            }
        }
    }

    async fn put(&mut self, plan: &Plan, clients: u64, on_row: &mut impl FnMut(Row)) -> Result<()> {
        let limits = if clients == 1 { self.lone_write_limit().await? } else { None };
        let database = self.create().await?;
        let numbers = Numbers::from(0);
        let putters = generators(clients).map(|generator| Putter {
            folder: folder(&database),
            query: self.durability_query(),
            numbers: numbers.clone(),
            bytes: DOCUMENT_BYTES,
            generator,
        });
        let outcome = self.drive(plan.name, putters.collect()).await?;
        let mut row = row(plan, "docs", &outcome);
        if let Some((mut syncs, trips)) = limits {
            // The disk's mood changes from one second to the next: half before, half after.
            syncs.append(self.sync_floor()?);
            row = beside_lone_limit(row, &outcome.latencies, &syncs, &trips);
        }
        on_row(row);
        self.delete(&database).await
    }

    /// What one sync and one bare round trip take.
    async fn lone_write_limit(&self) -> Result<Option<(Samples, Samples)>> {
        let (Some(Target { server, pid }), Some(_)) = (&self.config.floor, &self.config.folder) else {
            return Ok(None);
        };
        let clients = vec![FloorClient::put(DOCUMENT_BYTES)];
        let until = Until::Passed(self.config.row_time / 2);
        let trips = drive("bare round trip", server, *pid, clients, until).await?.latencies;
        Ok(Some((self.sync_floor()?, trips)))
    }

    fn sync_floor(&self) -> Result<Samples> {
        let folder = self.config.folder.as_deref().expect("asked for with a folder alone");
        limits::sync_floor(folder, DOCUMENT_BYTES + FRAME_OVERHEAD_BYTES, self.config.row_time / 2)
    }

    async fn update(&mut self, plan: &Plan, clients: u64, on_row: &mut impl FnMut(Row)) -> Result<()> {
        let database = self.create().await?;
        let mut updaters = Vec::new();
        for (client, mut generator) in (0..clients).zip(generators(clients)) {
            let mut body = b"{\"docs\":[".to_vec();
            for number in 0..UPDATED_COUNT_EACH {
                body.extend_from_slice(if number == 0 { b"" } else { b"," });
                generator.document(&format!("{client}-{number}"), DOCUMENT_BYTES, &mut body);
            }
            body.extend_from_slice(b"]}");
            let rows = self.couch.bulk(&database, &body).await?;
            let revision = |row: BulkRow| row.rev.map(|rev| (row.id, rev));
            let documents: Option<Vec<_>> = rows.into_iter().map(revision).collect();
            let documents = documents.ok_or_else(|| Error::wrong(plan.name, "a document was refused"))?;
            updaters.push(Updater {
                folder: folder(&database),
                query: self.durability_query().replace('?', "&"),
                documents,
                turn: 0,
                bytes: DOCUMENT_BYTES,
                generator,
            });
        }
        let outcome = self.drive(plan.name, updaters).await?;
        on_row(row(plan, "docs", &outcome));
        self.delete(&database).await
    }

    async fn tiny(
        &mut self,
        plan: &Plan,
        writer: bool,
        readers: bool,
        on_row: &mut impl FnMut(Row),
    ) -> Result<()> {
        let database = self.create().await?;
        // The document that is read has the first number; the tiny ones begin behind it.
        let mut document = Vec::new();
        Generator::new(0).document(&sequential_id(0), DOCUMENT_BYTES, &mut document);
        let target = format!("{}/{}", folder(&database), sequential_id(0));
        self.couch.call("PUT", &target, Some(&document)).await?;
        let loaders = generators(u64::from(writer)).map(|generator| Loader {
            target: format!("{}/_bulk_docs{}", folder(&database), self.durability_query()),
            numbers: Numbers::from(1),
            batch: TINY_BATCH,
            ids: Ids::Sequential,
            content: Content::Tiny,
            generator,
            body: Vec::new(),
            sent: 0,
        });
        let getters = self.getters(&database, if readers { TINY_READERS } else { 0 }, 1);
        let (written, read) =
            tokio::join!(self.drive(plan.name, loaders.collect::<Vec<_>>()), self.drive(plan.name, getters));
        let (written, read) = (written?, read?);
        if writer {
            on_row(row(plan, "docs", &written));
        }
        if readers {
            on_row(row(if writer { &READERS_BESIDE } else { plan }, "requests", &read));
        }
        self.delete(&database).await
    }

    async fn list(&mut self, plan: &Plan, target: &str, on_row: &mut impl FnMut(Row)) -> Result<()> {
        let target = format!("{}/{target}", folder(&self.main().await?));
        let expected = scaled(self.config.scale, DOCUMENT_COUNT);
        let stopwatch = Stopwatch::start(self.config.target.pid);
        let mut operations = 0;
        let elapsed: Elapsed = loop {
            let connection = self.couch.stream("GET", &target).await?;
            let rows = count_in_stream(connection, b"\"id\":\"").await?;
            if rows != expected {
                return Err(Error::wrong(plan.name, format!("{rows} rows of {expected}")));
            }
            operations += rows;
            let elapsed = stopwatch.read();
            if elapsed.wall >= self.config.row_time {
                break elapsed;
            }
        };
        on_row(row(plan, "rows", &Outcome { operations, latencies: Samples::default(), elapsed }));
        Ok(())
    }

    fn durability_query(&self) -> &'static str {
        crate::fabric::durability_query(self.config.durability)
    }
}

/// What the database that is read holds.
const MAIN: (Ids, Content) = (Ids::Sequential, Content::Random(DOCUMENT_BYTES));

fn row(plan: &Plan, unit: &'static str, outcome: &Outcome) -> Row {
    Row::new(plan.workload, unit, outcome.operations, &outcome.elapsed, &outcome.latencies)
        .against(plan.recorded)
}

/// A lone client waits for one sync and one round trip: what is reached of what they allow.
fn beside_lone_limit(row: Row, puts: &Samples, syncs: &Samples, trips: &Samples) -> Row {
    let means = (syncs.mean_seconds(), trips.mean_seconds(), puts.mean_seconds());
    let (Some(sync), Some(trip), Some(put)) = means else {
        return row;
    };
    let median = |samples: &Samples| samples.percentiles([0.5]).map_or(0.0, |[half]| half.as_secs_f64());
    let (median_sync, median_trip) = (median(syncs), median(trips));
    let share = (sync + trip) / put;
    let note = format!(
        "{share:.2} of what one sync ({:.3} ms) and one round trip ({:.3} ms) allow: {:.0}/s; \
         by medians ({:.3} + {:.3} ms) {:.2}",
        sync * 1e3,
        trip * 1e3,
        1.0 / (sync + trip),
        median_sync * 1e3,
        median_trip * 1e3,
        (median_sync + median_trip) / median(puts),
    );
    row.with_limit(share, note)
}

fn folder(database: &str) -> String {
    format!("/{}", encode_segment(database))
}

/// One generator a client, each with a seed of its own.
fn generators(clients: u64) -> impl Iterator<Item = Generator> {
    (1..=clients).map(Generator::new)
}
