//! Benchmark of the HTTP API of any server compatible with CouchDB: rate, latency, and the server's processor
//! time per operation.
//!
//! Each row is compared with the figures recorded of CouchDB 3.5.0 ([`RECORDED_SOURCE`]). Reads, durable
//! writes of one client and attachments are also compared with the limits of the machine ([`crate::limits`]),
//! which are measured alternately with the row, so that other load on the machine affects both. Loads run
//! until all documents are stored; all other rows run for a given time. All clients share one thread of this
//! process, since server and client share the machine.
//!
//! Invariants:
//! 1. Every response is checked. An error or an unexpected content makes the row a failed one, without
//!    figures. The rows after it are measured all the same.
//! 2. A row and its limit are measured the same way: the same clients, the same number of bytes, a process
//!    each.
//! 3. The databases that are created are deleted, also after an error.

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use serde::Deserialize;
use settee_doc::Stage;

use crate::couch::{self, Couch};
use crate::documents::Generator;
use crate::drive::{Client, Outcome, Until, add_outcome, drive};
use crate::error::{Error, Result};
use crate::http::{Server, encode_segment};
use crate::limits::BareClient;
use crate::report::{Failed, Reported, Row};
use crate::stats::Stopwatch;

mod attachments;
mod clients;
pub(crate) mod followers;
mod plan;
mod reads;
mod writes;

use clients::{Content, Ids, Loader, NumberRange};
pub use plan::{ATTACHMENT_BYTES, DOCUMENT_BYTES, DOCUMENT_COUNT, FOLLOWER_COUNT, RECORDED_SOURCE};
use plan::{Kind, PLANS, Plan};

/// Number of slices into which a row is divided, alternating with slices of its limit.
const ROUND_COUNT: u32 = 4;

/// Upper bound of the bytes of JSON that a row of documents writes per second.
const WRITTEN_BYTES_PER_SECOND: f64 = 200e6;

/// Minimum number of documents of a scaled-down load.
const SCALED_COUNT_MIN: u64 = 200;

/// Share of a core below which a server counts as idle.
const IDLE_SHARE: f64 = 0.05;

/// Longest wait before a row for an idle server.
const IDLE_WAIT_MAX: Duration = Duration::from_secs(10);

/// Interval over which the processor time of a server that should become idle is measured.
const IDLE_INTERVAL: Duration = Duration::from_millis(100);

/// A server and its process.
#[derive(Debug, Clone)]
pub struct Target {
    /// The server's address.
    pub server: Server,
    /// The process whose processor time is counted. None: not counted.
    pub pid: Option<u32>,
}

/// Parameters of a run.
#[derive(Debug, Clone)]
pub struct Config {
    /// The server.
    pub target: Target,
    /// The bare server. None: rows aren't compared with it.
    pub bare: Option<Target>,
    /// A directory on the disk that the server writes to. None: syncs aren't measured.
    pub directory: Option<PathBuf>,
    /// Factor for the counts of documents, updates, attachments and followers.
    pub scale: f64,
    /// Duration of a row that isn't a load, without that of its limit.
    pub row_time: Duration,
    /// Stage that writes have reached when they are acknowledged.
    pub durability: Stage,
    /// Parts of names that select rows. Empty: all rows.
    pub rows: Vec<String>,
}

/// The names of the rows, for `--rows`.
pub fn row_names() -> impl Iterator<Item = &'static str> {
    PLANS.iter().map(|plan| plan.name)
}

/// Number of followers of the changes feed at a scale.
pub fn follower_count(scale: f64) -> u64 {
    scaled(scale, FOLLOWER_COUNT, followers::COUNT_MIN)
}

/// Upper bound of the bytes of JSON and attachments that the rows store at the same time. A row that writes
/// for a time counts with the throughput of a fast disk.
pub fn written_bytes(rows: &[String], scale: f64, row_time: Duration) -> u64 {
    let sizes = PLANS.iter().filter(|plan| wanted(rows, plan)).map(|plan| match plan.kind {
        Kind::Load { content: Content::Random(bytes), documents, .. } => {
            scaled(scale, documents, SCALED_COUNT_MIN) * bytes as u64
        }
        Kind::Put { .. } | Kind::Update { .. } | Kind::History | Kind::Beside => {
            (row_time.as_secs_f64() * WRITTEN_BYTES_PER_SECOND) as u64
        }
        Kind::AttachmentPut { .. } => attachments::put_count(scale) * ATTACHMENT_BYTES as u64,
        _ => scaled(scale, DOCUMENT_COUNT, SCALED_COUNT_MIN) * DOCUMENT_BYTES as u64,
    });
    // Each row's database is deleted after it, except for the main one: the largest counts twice.
    2 * sizes.max().unwrap_or(0)
}

/// Runs the selected rows and calls `on_row` with each result or failure. Returns the number of failed rows.
///
/// # Errors
/// Any [`Error`] from deleting databases; `on_row` has been called for all rows by then.
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

fn scaled(scale: f64, count: u64, count_min: u64) -> u64 {
    ((count as f64 * scale) as u64).max(count_min)
}

struct Bench<'a> {
    config: &'a Config,
    couch: Couch,
    /// Databases created and not deleted yet.
    databases: Vec<String>,
    /// The database of the rows that read, once it is loaded.
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

    fn scaled(&self, count: u64, count_min: u64) -> u64 {
        scaled(self.config.scale, count, count_min)
    }

    /// Waits until the server has finished the background work of earlier rows, at most [`IDLE_WAIT_MAX`].
    async fn settle(&self) {
        let wait_max = IDLE_WAIT_MAX.min(2 * self.config.row_time);
        let interval = IDLE_INTERVAL.min(wait_max / 4);
        let started = Instant::now();
        while self.config.target.pid.is_some() && started.elapsed() < wait_max {
            let stopwatch = Stopwatch::start(self.config.target.pid);
            tokio::time::sleep(interval).await;
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

    /// Deletes the databases, except for the main one if `keep_main` is set.
    async fn clean(&mut self, keep_main: bool) -> Result<()> {
        let mut result = Ok(());
        for database in std::mem::take(&mut self.databases) {
            if keep_main && self.main.as_ref() == Some(&database) {
                self.databases.push(database);
            } else {
                result = result.and(self.couch.delete_database(&database).await);
            }
        }
        Ok(result?)
    }

    /// Returns the main database and loads it first if necessary.
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

    /// Loads `documents`, scaled, by `writers` clients in batches of `batch`, and checks their number.
    async fn load(
        &mut self,
        name: &str,
        database: &str,
        (ids, content): (Ids, Content),
        (batch, writers): (u64, u64),
        documents: u64,
    ) -> Result<Outcome> {
        let documents = self.scaled(documents, SCALED_COUNT_MIN);
        let loader = self.loader(database, NumberRange::up_to(documents), batch, (ids, content));
        let loaders = generators(writers).map(loader).collect();
        let (outcome, _) = self.drive_target(name, loaders, Until::Done).await?;
        self.check_count(name, database, documents).await?;
        Ok(outcome)
    }

    /// Returns a function that creates loaders, which share `numbers`.
    fn loader(
        &self,
        database: &str,
        numbers: NumberRange,
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

    /// Checks that the database's document count equals the number of acknowledged documents.
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

    /// Runs clients of the measured server.
    async fn drive_target<C: Client>(
        &self,
        name: &str,
        clients: Vec<C>,
        until: Until,
    ) -> Result<(Outcome, Vec<C>)> {
        let Target { server, pid } = &self.config.target;
        drive(name, server, *pid, clients, until).await
    }

    /// Runs clients of the measured server and of the bare one alternately, each for the row's time in all.
    /// Returns both outcomes, the second if there is a bare server.
    async fn drive_both<C: Client>(
        &self,
        name: &str,
        mut clients: Vec<C>,
        mut bare_clients: Vec<BareClient>,
    ) -> Result<(Outcome, Option<Outcome>)> {
        let until = Until::Passed(self.config.row_time / ROUND_COUNT);
        let (mut sum, mut bare_sum) = (None, None);
        for turn in 0..2 * ROUND_COUNT {
            if is_target_turn(turn) {
                let (outcome, returned) = self.drive_target(name, clients, until).await?;
                clients = returned;
                add_outcome(&mut sum, outcome);
            } else if let Some(Target { server, pid }) = &self.config.bare {
                let (outcome, returned) = drive(name, server, *pid, bare_clients, until).await?;
                bare_clients = returned;
                add_outcome(&mut bare_sum, outcome);
            }
        }
        Ok((sum.expect("there is a round"), bare_sum))
    }

    fn durability_query(&self) -> &'static str {
        crate::fabric::durability_query(self.config.durability)
    }
}

/// Whether a slice is the measured server's or the bare one's. Each comes first as often as second.
fn is_target_turn(turn: u32) -> bool {
    turn.div_ceil(2) % 2 == 1
}

/// The row of a plan, compared with its recorded figures.
fn row(plan: &Plan, unit: &'static str, outcome: &Outcome) -> Row {
    Row::new(plan.workload, unit, outcome.operations, &outcome.elapsed, &outcome.latencies)
        .named(plan.name)
        .against(plan.recorded)
}

/// A row compared with the bare server.
fn against_bare(row: Row, bare: Option<&Outcome>, name: String) -> Row {
    match bare {
        None => row,
        Some(bare) => row.with_limit(name, bare.rate(), bare.server_cpu_us()),
    }
}

/// The path of a database.
fn directory(database: &str) -> String {
    format!("/{}", encode_segment(database))
}

/// One generator per client, each with a different seed.
fn generators(clients: u64) -> impl Iterator<Item = Generator> {
    (1..=clients).map(Generator::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_servers_have_equally_many_turns_and_neither_always_begins() {
        let turns: Vec<bool> = (0..2 * ROUND_COUNT).map(is_target_turn).collect();
        assert_eq!(turns, [false, true, true, false, false, true, true, false]);
    }

    #[test]
    fn row_names_are_unique_and_parts_of_names_select_rows() {
        let mut names: Vec<&str> = row_names().collect();
        let parts = ["attachment".to_owned()];
        assert_eq!(PLANS.iter().filter(|plan| wanted(&parts, plan)).count(), 4);
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn counts_scale_down_to_their_minimum() {
        assert_eq!(follower_count(1.0), 10_000);
        assert_eq!(scaled(0.001, DOCUMENT_COUNT, SCALED_COUNT_MIN), SCALED_COUNT_MIN);
        let all = written_bytes(&[], 1.0, Duration::from_secs(5));
        assert!(all >= 2 * 1_000_000_000, "attachments or puts decide: {all}");
        assert!(written_bytes(&["get-1".to_owned()], 1.0, Duration::from_secs(5)) < all);
    }
}
