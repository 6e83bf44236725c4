//! The state that the rows of a run share: the databases, and clients of both servers.
//!
//! A row runs its clients until they are done, or for its time in slices that alternate with slices of the
//! bare server.

use std::time::SystemTime;

use serde::Deserialize;
use settee_client::{Couch, encode_segment, parse};

use super::clients::{Documents, Loader, NumberRange};
use super::config::{Config, SCALED_COUNT_MIN, Setup};
use super::plan::{DOCUMENT_BYTES, DOCUMENT_COUNT, Figure, Load, Plan};
use crate::drive::{Client, drive, settle};
use crate::error::{Error, Result};
use crate::limits::BareClient;
use crate::report::{Row, figure};
use crate::rounds::{Series, Window};

/// Number of slices into which a row is divided, alternating with slices of its limit.
pub(super) const ROUND_COUNT: u32 = 4;

/// The state that the rows of a run share.
pub(super) struct Bench<'a> {
    pub(super) config: &'a Config,
    pub(super) setup: &'a Setup,
    pub(super) couch: Couch,
    /// Databases created and not deleted yet.
    databases: Vec<String>,
    /// The database of the rows that read, once it is loaded.
    main: Option<String>,
    /// The database of the cold rows, once it is loaded.
    pub(super) cold: Option<String>,
}

/// The machine's limit of a row: what was measured, and its operations per second and processor time per
/// operation in microseconds.
pub(super) struct Limit {
    pub(super) name: String,
    pub(super) rate: f64,
    pub(super) cpu_us: Option<f64>,
}

impl Limit {
    /// The limit that a bare server was measured to be.
    pub(super) fn bare(window: &Window, bytes: u64) -> Limit {
        let name = format!("the bare server with {bytes} bytes");
        Limit { name, rate: window.rate(), cpu_us: window.server_cpu_us() }
    }
}

impl<'a> Bench<'a> {
    pub(super) fn new(config: &'a Config, setup: &'a Setup) -> Bench<'a> {
        let couch = Couch::new(setup.target.server.clone());
        Bench { config, setup, couch, databases: Vec::new(), main: None, cold: None }
    }

    /// Waits until the server has finished the background work of earlier rows.
    pub(super) async fn settle(&self) {
        settle(&self.setup.target, 2 * self.config.row_time()).await;
    }

    pub(super) async fn create(&mut self) -> Result<String> {
        let name = new_database_name();
        self.couch.create_database(&name).await?;
        self.databases.push(name.clone());
        Ok(name)
    }

    /// Deletes the databases, except for those that several rows read if `keep_main` is set.
    pub(super) async fn clean(&mut self, keep_main: bool) -> Result<()> {
        let mut result = Ok(());
        for database in std::mem::take(&mut self.databases) {
            let is_kept = [&self.main, &self.cold].into_iter().any(|kept| kept.as_ref() == Some(&database));
            if keep_main && is_kept {
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
        let documents = Documents::Numbered(DOCUMENT_BYTES);
        let load = Load { documents, batch: 500, writers: 10, count: DOCUMENT_COUNT };
        self.load("preparation", &database, load).await?;
        self.settle().await;
        self.main = Some(database.clone());
        Ok(database)
    }

    /// Number of documents of the main database.
    pub(super) fn main_count(&self) -> u64 {
        self.config.scaled(DOCUMENT_COUNT, SCALED_COUNT_MIN)
    }

    /// Loads documents, whose number is scaled, and checks their number.
    pub(super) async fn load(&mut self, name: &str, database: &str, load: Load) -> Result<Window> {
        let count = self.config.scaled(load.count, SCALED_COUNT_MIN);
        let numbers = NumberRange::new(0..count);
        let target = self.bulk_target(database);
        let loaders = Loader::group(&target, load.writers, &numbers, load.batch, load.documents);
        let (window, _) = drive(name, &self.setup.target, loaders, None).await?;
        self.check_count(name, database, count).await?;
        Ok(window)
    }

    pub(super) fn bulk_target(&self, database: &str) -> String {
        format!("{}/_bulk_docs{}", directory(database), self.setup.durability.query())
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
        let Info { doc_count } = parse(&target, &reply.body)?;
        if doc_count != expected {
            return Err(Error::wrong(name, format!("{doc_count} documents are there of {expected}")));
        }
        Ok(())
    }

    /// Runs clients of the measured server and of the bare one alternately, each for the row's time in all, and
    /// returns the row. `bytes` is the size of a request's body or response.
    pub(super) async fn row_beside_bare<C: Client>(
        &self,
        plan: &Plan,
        unit: &'static str,
        mut clients: Vec<C>,
        bare_client: BareClient,
        bytes: u64,
    ) -> Result<Row> {
        let time = Some(self.config.row_time() / ROUND_COUNT);
        let mut bare_clients = vec![bare_client; clients.len()];
        let (mut sum, mut bare_sum) = (Window::default(), Window::default());
        for turn in 0..2 * ROUND_COUNT {
            if is_target_turn(turn) {
                let window;
                (window, clients) = drive(plan.name, &self.setup.target, clients, time).await?;
                sum.append(window);
            } else if let Some(bare) = &self.setup.bare {
                let window;
                (window, bare_clients) = drive(plan.name, bare, bare_clients, time).await?;
                bare_sum.append(window);
            }
        }
        let limit = self.setup.bare.as_ref().map(|_| Limit::bare(&bare_sum, bytes));
        Ok(row(plan, unit, sum, limit))
    }
}

/// A name that no other run uses.
pub(crate) fn new_database_name() -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("settee-bench-{}", now.as_micros())
}

/// Whether a slice is the measured server's or the bare one's. Each comes first as often as second.
pub(super) fn is_target_turn(turn: u32) -> bool {
    turn.div_ceil(2) % 2 == 1
}

/// The row of a plan, compared with its recorded figures and with the machine's limit, and judged.
pub(super) fn row(plan: &Plan, unit: &'static str, window: Window, limit: Option<Limit>) -> Row {
    let mut row = Row::new(plan.workload, unit, &Series(vec![window]));
    row.name = plan.name;
    let (rate, cpu) = (row.rate.unwrap_or(0.0), row.server_cpu_us.filter(|cpu| *cpu > 0.0));
    let p99_ms = row.p99_us.map(|us| us / 1e3);
    if let Some(recorded) = plan.recorded {
        row = row.compare(
            format!("× CouchDB's {}", figure(recorded.rate)),
            Some(rate / recorded.rate),
            plan.aim(Figure::Rate),
        );
        row = row.compare(
            format!("× less CPU than its {} µs", figure(recorded.cpu_us)),
            cpu.map(|cpu| recorded.cpu_us / cpu),
            plan.aim(Figure::Cpu),
        );
        if let Some((_, theirs)) = recorded.p50_p99_ms {
            let ratio = p99_ms.map(|ours| ours / theirs);
            row = row.compare(format!("× its p99 of {} ms", figure(theirs)), ratio, None);
        }
    }
    let share = limit.as_ref().map(|limit| rate / limit.rate.max(1e-9));
    let cpu_multiple = limit.as_ref().and_then(|limit| limit.cpu_us.filter(|cpu| *cpu > 0.0));
    let cpu_multiple = cpu.zip(cpu_multiple).map(|(cpu, limit)| cpu / limit);
    let name =
        limit.map_or("the limit".to_owned(), |limit| format!("{}, {}", limit.name, figure(limit.rate)));
    for (what, figure, of) in [
        (format!("× {name}"), share, Figure::Share),
        ("× its CPU".to_owned(), cpu_multiple, Figure::CpuMultiple),
        ("ms p99".to_owned(), p99_ms, Figure::P99),
        (format!("{unit} in all"), Some(rate), Figure::PerSecond),
    ] {
        let is_ratio = matches!(of, Figure::Share | Figure::CpuMultiple);
        if plan.aim(of).is_some() || (is_ratio && figure.is_some()) {
            row = row.compare(what, figure, plan.aim(of));
        }
    }
    row
}

/// The path of a database.
pub(crate) fn directory(database: &str) -> String {
    format!("/{}", encode_segment(database))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::plan::PLANS;
    use super::*;
    use crate::stats::{Elapsed, Samples};

    #[test]
    fn both_servers_have_equally_many_turns_and_neither_always_begins() {
        let turns: Vec<bool> = (0..2 * ROUND_COUNT).map(is_target_turn).collect();
        assert_eq!(turns, [false, true, true, false, false, true, true, false]);
    }

    #[test]
    fn a_row_is_judged_by_the_recorded_figures_and_by_the_limit() {
        let plan = PLANS.iter().find(|plan| plan.name == "get-1").unwrap();
        let (wall, server_cpu) = (Duration::from_secs(1), Some(Duration::from_millis(1190)));
        let elapsed = Elapsed { wall, server_cpu, ..Elapsed::default() };
        let window = Window::new(35_700, Samples::default(), elapsed);
        let limit = Limit { name: "bare".to_owned(), rate: 51_000.0, cpu_us: Some(10.0) };
        let row = row(plan, "requests/s", window.clone(), Some(limit));
        let met: Vec<_> = row.aims().map(|aim| aim.met).collect();
        assert_eq!(met, [Some(true), Some(true), Some(true), Some(false)], "{}", row.text());
        let unlimited = super::row(plan, "requests/s", window, None);
        let met: Vec<_> = unlimited.aims().map(|aim| aim.met).collect();
        assert_eq!(met, [Some(true), Some(true), None, None], "{}", unlimited.text());
    }
}
