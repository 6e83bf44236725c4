//! The HTTP API against any server that speaks CouchDB's: by rate, by latency, and by the
//! server's processor time for each operation.
//!
//! Each row is held against what was recorded of CouchDB 3.5.0 ([`RECORDED_SOURCE`]); reads, lone
//! durable writes and attachments also against what the machine allows ([`crate::limits`]),
//! measured in turn with the row, so that a noisy moment meets both. Loads run until all documents
//! are in; everything else for a given time. All clients share one thread of this process, since
//! server and client share the machine.
//!
//! Invariants:
//! 1. Every answer is checked: one that is an error, or holds anything else than it must, makes
//!    its row a failed one, without figures. The rows after it are measured all the same.
//! 2. What is compared with a limit is counted the same way on both sides: the same clients, the
//!    same number of bytes, a process each.
//! 3. The databases that are made are deleted, also after an error.

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use serde::Deserialize;
use settee_doc::Stage;

use crate::couch::{self, Couch};
use crate::documents::Generator;
use crate::drive::{Client, Outcome, Until, drive, tally};
use crate::error::{Error, Result};
use crate::http::{Server, encode_segment};
use crate::limits::FloorClient;
use crate::report::{Failed, Reported, Row};
use crate::stats::Stopwatch;

mod attachments;
mod clients;
pub(crate) mod followers;
mod plan;
mod reads;
mod writes;

use clients::{Content, Ids, Loader, Numbers};
pub use plan::{ATTACHMENT_BYTES, DOCUMENT_BYTES, DOCUMENT_COUNT, FOLLOWER_COUNT, RECORDED_SOURCE};
use plan::{Kind, PLANS, Plan};

/// Times that a row and its limit take turns.
const ROUND_COUNT: u32 = 4;

/// More than a row of documents writes in a second, in bytes of JSON.
const WRITTEN_BYTES_EACH_SECOND: f64 = 200e6;

/// Fewest documents that a scaled-down load keeps.
const SCALED_COUNT_MIN: u64 = 200;

/// A server counts as idle where it uses less than this share of a core.
const IDLE_SHARE: f64 = 0.05;

/// Longest wait for that before a row, and the time between two looks.
const IDLE_WAIT_MAX: Duration = Duration::from_secs(10);
const IDLE_LOOK: Duration = Duration::from_millis(100);

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
    /// A directory on the disk that the server writes to; without one no sync is measured.
    pub directory: Option<PathBuf>,
    /// Multiplies the counts of documents, updates, attachments and followers.
    pub scale: f64,
    /// How long a row lasts that isn't a load, its limit not included.
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

/// How many follow the changes at this scale.
pub fn follower_count(scale: f64) -> u64 {
    scaled(scale, FOLLOWER_COUNT, followers::COUNT_MIN)
}

/// What the rows may write, in bytes of JSON or attachments: of those that write for a time, as
/// much as a fast disk takes.
pub fn written_bytes(rows: &[String], scale: f64, row_time: Duration) -> u64 {
    let sizes = PLANS.iter().filter(|plan| wanted(rows, plan)).map(|plan| match plan.kind {
        Kind::Load { content: Content::Random(bytes), documents, .. } => {
            scaled(scale, documents, SCALED_COUNT_MIN) * bytes as u64
        }
        Kind::Put { .. } | Kind::Update { .. } | Kind::History | Kind::Beside => {
            (row_time.as_secs_f64() * WRITTEN_BYTES_EACH_SECOND) as u64
        }
        Kind::AttachmentPut { .. } => attachments::put_count(scale) * ATTACHMENT_BYTES as u64,
        _ => scaled(scale, DOCUMENT_COUNT, SCALED_COUNT_MIN) * DOCUMENT_BYTES as u64,
    });
    // Each database goes with its row but the one that is read: the largest counts twice.
    2 * sizes.max().unwrap_or(0)
}

/// Runs the rows and gives each to `on_row` as it is measured, or as it failed. Returns how many
/// failed.
///
/// # Errors
/// Any [`Error`] from deleting what was made; all rows have been given by then.
pub async fn run(config: &Config, mut on_row: impl FnMut(Reported)) -> Result<u64> {
    let mut bench = Bench::new(config);
    let mut failed_count = 0;
    let mut cleaned = Ok(());
    for plan in PLANS.iter().filter(|plan| wanted(&config.rows, plan)) {
        bench.settle().await;
        match bench.rows(plan).await {
            Ok(rows) => rows.into_iter().for_each(|row| on_row(Reported::Measured(Box::new(row)))),
            Err(error) => {
                failed_count += 1;
                let (name, workload) = (plan.name, plan.workload.to_owned());
                on_row(Reported::Failed(Failed { name, workload, failed: error.to_string() }));
            }
        }
        cleaned = cleaned.and(bench.clean(true).await);
    }
    cleaned.and(bench.clean(false).await)?;
    Ok(failed_count)
}

fn wanted(rows: &[String], plan: &Plan) -> bool {
    rows.is_empty() || rows.iter().any(|part| plan.name.contains(part.as_str()))
}

fn scaled(scale: f64, count: u64, least: u64) -> u64 {
    ((count as f64 * scale) as u64).max(least)
}

struct Bench<'a> {
    config: &'a Config,
    couch: Couch,
    /// Databases made so far and not deleted yet.
    databases: Vec<String>,
    /// The one that is read.
    main: Option<String>,
}

impl<'a> Bench<'a> {
    fn new(config: &'a Config) -> Bench<'a> {
        let couch = Couch::new(config.target.server.clone());
        Bench { config, couch, databases: Vec::new(), main: None }
    }

    async fn rows(&mut self, plan: &Plan) -> Result<Vec<Row>> {
        let row = match plan.kind {
            Kind::Load { .. } => self.load_row(plan).await?,
            Kind::Put { clients } => self.put(plan, clients).await?,
            Kind::Update { clients } => self.update(plan, clients).await?,
            Kind::History => self.history(plan).await?,
            Kind::Get { clients, one } => self.get(plan, clients, one).await?,
            Kind::Beside => return self.beside(plan).await,
            Kind::List { target, documents } => self.list(plan, target, documents).await?,
            Kind::BulkGet { clients } => self.bulk_get(plan, clients).await?,
            Kind::AttachmentPut { clients } => self.attachment_put(plan, clients).await?,
            Kind::AttachmentGet { clients } => self.attachment_get(plan, clients).await?,
            Kind::Followers => return self.followers(plan).await,
        };
        Ok(vec![row])
    }

    fn scaled(&self, count: u64, least: u64) -> u64 {
        scaled(self.config.scale, count, least)
    }

    /// Waits until the server has done what earlier rows left it to do.
    async fn settle(&self) {
        let wait_max = IDLE_WAIT_MAX.min(2 * self.config.row_time);
        let look = IDLE_LOOK.min(wait_max / 4);
        let started = Instant::now();
        while self.config.target.pid.is_some() && started.elapsed() < wait_max {
            let stopwatch = Stopwatch::start(self.config.target.pid);
            tokio::time::sleep(look).await;
            let elapsed = stopwatch.read();
            if elapsed.server_cpu.unwrap_or_default() < elapsed.wall.mul_f64(IDLE_SHARE) {
                return;
            }
        }
    }

    async fn create(&mut self) -> Result<String> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let name = format!("settee-bench-{}", now.as_micros());
        self.couch.create_database(&name).await?;
        self.databases.push(name.clone());
        Ok(name)
    }

    /// Deletes what was made; `but_main` leaves the database that is read.
    async fn clean(&mut self, but_main: bool) -> Result<()> {
        let mut result = Ok(());
        for database in std::mem::take(&mut self.databases) {
            if but_main && self.main.as_ref() == Some(&database) {
                self.databases.push(database);
            } else {
                result = result.and(self.couch.delete_database(&database).await);
            }
        }
        Ok(result?)
    }

    /// The database that is read, loaded now where it isn't yet.
    async fn main(&mut self) -> Result<String> {
        if let Some(name) = &self.main {
            return Ok(name.clone());
        }
        let database = self.create().await?;
        let content = (Ids::Sequential, Content::Random(DOCUMENT_BYTES));
        self.load("preparation", &database, content, (500, 10), DOCUMENT_COUNT).await?;
        self.settle().await;
        self.main = Some(database.clone());
        Ok(database)
    }

    /// Loads until all documents are in, in batches of a size by so many writers.
    async fn load(
        &mut self,
        name: &str,
        database: &str,
        (ids, content): (Ids, Content),
        (batch, writers): (u64, u64),
        documents: u64,
    ) -> Result<Outcome> {
        let documents = self.scaled(documents, SCALED_COUNT_MIN);
        let loader = self.loader(database, Numbers::up_to(documents), batch, (ids, content));
        let loaders = generators(writers).map(loader).collect();
        let (outcome, _) = self.ours(name, loaders, Until::Done).await?;
        self.check_count(name, database, documents).await?;
        Ok(outcome)
    }

    /// Makes loaders that share numbers.
    fn loader(
        &self,
        database: &str,
        numbers: Numbers,
        batch: u64,
        (ids, content): (Ids, Content),
    ) -> impl FnMut(Generator) -> Loader {
        let target = format!("{}/_bulk_docs{}", directory(database), self.durability_query());
        move |generator| Loader {
            target: target.clone(),
            numbers: numbers.clone(),
            batch,
            ids,
            content,
            generator,
            body: Vec::new(),
            sent: 0,
        }
    }

    /// Whether the server says that it holds what was acknowledged.
    async fn check_count(&mut self, name: &str, database: &str, expected: u64) -> Result<()> {
        #[derive(Deserialize)]
        struct Info {
            doc_count: u64,
        }
        self.couch.barrier(database).await?;
        let target = directory(database);
        let reply = self.couch.call("GET", &target, None).await?;
        let Info { doc_count } = couch::parse(&target, &reply.body)?;
        if doc_count != expected {
            return Err(Error::wrong(name, format!("{doc_count} documents are there of {expected}")));
        }
        Ok(())
    }

    /// Drives clients of the server that is measured.
    async fn ours<C: Client>(&self, name: &str, clients: Vec<C>, until: Until) -> Result<(Outcome, Vec<C>)> {
        let Target { server, pid } = &self.config.target;
        drive(name, server, *pid, clients, until).await
    }

    /// Drives clients of the server and of the bare one in turn, each for the row's time in all:
    /// what the one did, and the other, where there is one.
    async fn in_turn<C: Client>(
        &self,
        name: &str,
        mut ours: Vec<C>,
        mut floor: Vec<FloorClient>,
    ) -> Result<(Outcome, Option<Outcome>)> {
        let until = Until::Passed(self.config.row_time / ROUND_COUNT);
        let (mut sum, mut floor_sum) = (None, None);
        for turn in 0..2 * ROUND_COUNT {
            if is_ours(turn) {
                let (outcome, clients) = self.ours(name, ours, until).await?;
                ours = clients;
                tally(&mut sum, outcome);
            } else if let Some(Target { server, pid }) = &self.config.floor {
                let (outcome, clients) = drive(name, server, *pid, floor, until).await?;
                floor = clients;
                tally(&mut floor_sum, outcome);
            }
        }
        Ok((sum.expect("there is a round"), floor_sum))
    }

    fn durability_query(&self) -> &'static str {
        crate::fabric::durability_query(self.config.durability)
    }
}

/// Whose turn it is, the server's or the bare one's: each comes first as often as second.
fn is_ours(turn: u32) -> bool {
    turn.div_ceil(2) % 2 == 1
}

/// A row by what was recorded.
fn row(plan: &Plan, unit: &'static str, outcome: &Outcome) -> Row {
    Row::new(plan.workload, unit, outcome.operations, &outcome.elapsed, &outcome.latencies)
        .named(plan.name)
        .against(plan.recorded)
}

/// A row held against the bare server.
fn beside_floor(row: Row, floor: Option<&Outcome>, what: String) -> Row {
    match floor {
        None => row,
        Some(floor) => row.with_limit(what, floor.rate(), floor.server_cpu_us()),
    }
}

fn directory(database: &str) -> String {
    format!("/{}", encode_segment(database))
}

/// One generator a client, each with a seed of its own.
fn generators(clients: u64) -> impl Iterator<Item = Generator> {
    (1..=clients).map(Generator::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_shared_evenly_and_neither_always_begins() {
        let turns: Vec<bool> = (0..2 * ROUND_COUNT).map(is_ours).collect();
        assert_eq!(turns, [false, true, true, false, false, true, true, false]);
    }

    #[test]
    fn names_are_unique_and_select_what_contains_them() {
        let mut names: Vec<&str> = row_names().collect();
        let parts = ["attachment".to_owned()];
        assert_eq!(PLANS.iter().filter(|plan| wanted(&parts, plan)).count(), 4);
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn counts_scale_down_to_their_least() {
        assert_eq!(follower_count(1.0), 10_000);
        assert_eq!(scaled(0.001, DOCUMENT_COUNT, SCALED_COUNT_MIN), SCALED_COUNT_MIN);
        let all = written_bytes(&[], 1.0, Duration::from_secs(5));
        assert!(all >= 2 * 1_000_000_000, "attachments or puts decide: {all}");
        assert!(written_bytes(&["get-1".to_owned()], 1.0, Duration::from_secs(5)) < all);
    }
}
