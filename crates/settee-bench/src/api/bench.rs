//! The state that the rows of a run share: the databases, and clients of both servers.
//!
//! A row runs its clients until they are done, or for its time in slices that alternate with slices of the
//! bare server.

use std::time::{Duration, Instant, SystemTime};

use serde::Deserialize;

use super::clients::{Content, Ids, Loader, NumberRange};
use super::config::{Config, SCALED_COUNT_MIN, Target, scaled};
use super::plan::{DOCUMENT_BYTES, DOCUMENT_COUNT, Plan};
use crate::couch::{self, Couch};
use crate::documents::Generator;
use crate::drive::{Client, Outcome, Until, add_outcome, drive};
use crate::error::{Error, Result};
use crate::http::encode_segment;
use crate::limits::BareClient;
use crate::report::Row;
use crate::stats::Stopwatch;

/// Number of slices into which a row is divided, alternating with slices of its limit.
pub(super) const ROUND_COUNT: u32 = 4;

/// Share of a core below which a server counts as idle.
const IDLE_SHARE: f64 = 0.05;

/// Longest wait before a row for an idle server.
const IDLE_WAIT_MAX: Duration = Duration::from_secs(10);

/// Interval over which the processor time of a server that should become idle is measured.
const IDLE_INTERVAL: Duration = Duration::from_millis(100);

/// The state that the rows of a run share.
pub(super) struct Bench<'a> {
    pub(super) config: &'a Config,
    pub(super) couch: Couch,
    /// Databases created and not deleted yet.
    databases: Vec<String>,
    /// The database of the rows that read, once it is loaded.
    main: Option<String>,
}

impl<'a> Bench<'a> {
    pub(super) fn new(config: &'a Config) -> Bench<'a> {
        let couch = Couch::new(config.target.server.clone());
        Bench { config, couch, databases: Vec::new(), main: None }
    }

    pub(super) fn scaled(&self, count: u64, count_min: u64) -> u64 {
        scaled(self.config.scale, count, count_min)
    }

    /// Waits until the server has finished the background work of earlier rows, at most [`IDLE_WAIT_MAX`].
    pub(super) async fn settle(&self) {
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

    pub(super) async fn create(&mut self) -> Result<String> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let name = format!("settee-bench-{}", now.as_micros());
        self.couch.create_database(&name).await?;
        self.databases.push(name.clone());
        Ok(name)
    }

    /// Deletes the databases, except for the main one if `keep_main` is set.
    pub(super) async fn clean(&mut self, keep_main: bool) -> Result<()> {
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
    pub(super) async fn main(&mut self) -> Result<String> {
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
    pub(super) async fn load(
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
    pub(super) fn loader(
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
    pub(super) async fn check_count(&mut self, name: &str, database: &str, expected: u64) -> Result<()> {
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
    pub(super) async fn drive_target<C: Client>(
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
    pub(super) async fn drive_both<C: Client>(
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

    pub(super) fn durability_query(&self) -> &'static str {
        crate::fabric::durability_query(self.config.durability)
    }
}

/// Whether a slice is the measured server's or the bare one's. Each comes first as often as second.
pub(super) fn is_target_turn(turn: u32) -> bool {
    turn.div_ceil(2) % 2 == 1
}

/// The row of a plan, compared with its recorded figures.
pub(super) fn row(plan: &Plan, unit: &'static str, outcome: &Outcome) -> Row {
    Row::new(plan.workload, unit, outcome.operations, &outcome.elapsed, &outcome.latencies)
        .named(plan.name)
        .against(plan.recorded)
}

/// A row compared with the bare server.
pub(super) fn against_bare(row: Row, bare: Option<&Outcome>, name: String) -> Row {
    match bare {
        None => row,
        Some(bare) => row.with_limit(name, bare.rate(), bare.server_cpu_us()),
    }
}

/// The path of a database.
pub(super) fn directory(database: &str) -> String {
    format!("/{}", encode_segment(database))
}

/// One generator per client, each with a different seed.
pub(super) fn generators(clients: u64) -> impl Iterator<Item = Generator> {
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
}
