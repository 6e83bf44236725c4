//! The state that the parts share: the archive with its indexes, and the ways of measuring a row.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Deserialize;
use settee_client::{Couch, Server, encode_segment, parse};

use super::archive::{Archive, View};
use super::asker::{Ask, Asker};
use super::config::Config;
use crate::api::bench::{directory, new_database_name};
use crate::api::clients::{Documents, Loader, NumberRange};
use crate::api::reads::{Listing, list_once};
use crate::drive::{Durability, Target, drive, settle};
use crate::error::{Error, Result};
use crate::report::{Bound, Row, figure};
use crate::rounds::{Series, Window};
use crate::stats::{Samples, Stopwatch};

/// Documents of a request, and number of clients, that load the archive.
const LOADED_AT_ONCE: u64 = 500;
const LOADER_COUNT: u64 = 10;

/// Aims of a range of 10 rows and one client, in milliseconds: the median, and the 99th percentile while an
/// index is built.
pub(super) const RANGE_P50_MS_MAX: f64 = 0.2;
pub(super) const RANGE_BESIDE_P99_MS_MAX: f64 = 2.0;

/// The state that the parts share.
pub(super) struct Bench<'a> {
    pub(super) config: &'a Config,
    pub(super) target: &'a Target,
    durability: Durability,
    pub(super) couch: Couch,
    /// Databases that were created and not deleted yet.
    databases: Vec<String>,
    archive: Option<Arc<Archive>>,
    /// The views of the archive that are built.
    built: BTreeSet<String>,
}

impl<'a> Bench<'a> {
    pub(super) fn new(config: &'a Config, target: &'a Target, durability: Durability) -> Bench<'a> {
        let couch = Couch::new(target.server.clone());
        let (databases, built) = (Vec::new(), BTreeSet::new());
        Bench { config, target, durability, couch, databases, archive: None, built }
    }

    pub(super) async fn create(&mut self) -> Result<String> {
        let name = new_database_name();
        self.couch.create_database(&name).await?;
        self.databases.push(name.clone());
        Ok(name)
    }

    pub(super) async fn delete(&mut self, database: &str) -> Result<()> {
        self.couch.delete_database(database).await?;
        self.databases.retain(|name| name != database);
        Ok(())
    }

    /// Deletes all databases.
    pub(super) async fn clean(&mut self) -> Result<()> {
        let mut result = Ok(());
        for database in std::mem::take(&mut self.databases) {
            result = result.and(self.couch.delete_database(&database).await);
        }
        Ok(result?)
    }

    pub(super) async fn settle(&self) {
        settle(self.target, 2 * self.config.row_time()).await;
    }

    /// The `_bulk_docs` of a database's path.
    pub(super) fn bulk_target(&self, path: &str) -> String {
        format!("{path}/_bulk_docs{}", self.durability.query())
    }

    /// Returns the archive, which is loaded first if necessary.
    pub(super) async fn archive(&mut self) -> Result<Arc<Archive>> {
        if let Some(archive) = &self.archive {
            return Ok(archive.clone());
        }
        let (database, count) = (self.create().await?, self.config.documents);
        let bulk = self.bulk_target(&directory(&database));
        let numbers = NumberRange::new(0..count);
        let loaders = Loader::group(&bulk, LOADER_COUNT, &numbers, LOADED_AT_ONCE, Documents::Mail { count });
        drive("preparation", self.target, loaders, None).await?;
        self.couch.barrier(&database).await?;
        self.settle().await;
        let archive = Arc::new(Archive::new(&database, count));
        self.archive = Some(archive.clone());
        Ok(archive)
    }

    /// Notes that one message in a hundred was edited.
    pub(super) fn archive_was_edited(&mut self) {
        self.archive = self.archive.as_ref().map(|archive| Arc::new(archive.edited()));
    }

    /// Stores a view's design document, and measures the build that its first query causes.
    pub(super) async fn build(&mut self, view: &View) -> Result<Window> {
        let archive = self.archive().await?;
        self.settle().await;
        put_design(&mut self.couch, &archive, view).await?;
        let stopwatch = Stopwatch::start(self.target.pid);
        first_query(&mut self.couch, &archive, view).await?;
        self.built.insert(view.name.clone());
        Ok(Window::new(archive.count, Samples::default(), stopwatch.read()))
    }

    /// The row of a view's build. Its note is what `_info` says about how the map function runs, if it does.
    pub(super) async fn build_of(&mut self, workload: &str, view: &View) -> Result<Row> {
        #[derive(Deserialize)]
        struct Info {
            view_index: Index,
        }
        #[derive(Deserialize)]
        struct Index {
            #[serde(default)]
            runs: BTreeMap<String, String>,
        }
        let row = build_row(workload, self.build(view).await?);
        let target = format!("{}/_design/{}/_info", self.archive().await?.path, encode_segment(&view.name));
        let reply = self.couch.call("GET", &target, None).await?;
        let runs = parse::<Info>(&target, &reply.body)?.view_index.runs.remove(&view.name);
        Ok(match runs {
            Some(how) => row.note(format!("the map function runs as: {how}")),
            None => row,
        })
    }

    /// Builds a view unless it is built.
    pub(super) async fn ensure(&mut self, view: &View) -> Result<()> {
        if !self.built.contains(&view.name) {
            self.build(view).await?;
        }
        Ok(())
    }

    /// Reads all rows of a listing again and again, for the time of a row.
    pub(super) async fn full_read(&mut self, workload: &str, target: &str, expected: u64) -> Result<Row> {
        // The first reading warms the page cache.
        list_once(self.target, target).await?;
        self.settle().await;
        let (mut sum, mut bytes) = (Window::default(), 0);
        while sum.elapsed.wall < self.config.row_time() {
            let Listing { rows, bytes: read, window, .. } = list_once(self.target, target).await?;
            if rows != expected {
                return Err(Error::wrong(workload, format!("{rows} rows of {expected}")));
            }
            bytes += read;
            sum.append(window);
        }
        let (megabytes, rows) = (bytes as f64 / 1e6, sum.operations as f64);
        let rate = megabytes / sum.elapsed.wall.as_secs_f64().max(1e-9);
        let row = self::row(workload, "rows/s", sum).compare("MB/s", Some(rate), None);
        Ok(row.compare("bytes a row", Some(megabytes * 1e6 / rows), None))
    }

    /// Asks questions by `clients` for the time of a row.
    pub(super) async fn ask(
        &self,
        workload: &str,
        unit: &'static str,
        clients: u64,
        ask: &Ask,
    ) -> Result<Row> {
        self.settle().await;
        let askers = Asker::group(clients, ask, None);
        let (window, _) = drive(workload, self.target, askers, Some(self.config.row_time())).await?;
        Ok(row(workload, unit, window))
    }

    /// Asks questions by `clients` while a view is built for the first time.
    pub(super) async fn ask_beside_build(
        &mut self,
        workload: &str,
        clients: u64,
        ask: &Ask,
        view: &View,
    ) -> Result<Row> {
        let archive = self.archive().await?;
        self.settle().await;
        put_design(&mut self.couch, &archive, view).await?;
        let stop = Arc::new(AtomicBool::new(false));
        let askers = Asker::group(clients, ask, Some(&stop));
        let stopwatch = Stopwatch::start(None);
        let building =
            tokio::spawn(build_beside(self.target.server.clone(), archive.clone(), view.clone(), stop));
        // The server's processor time is mostly that of the build.
        let target = Target { pid: None, ..self.target.clone() };
        let driven = drive(workload, &target, askers, None).await;
        building.await.map_err(|_| Error::wrong(workload, "the build panicked"))??;
        let rate = archive.count as f64 / stopwatch.read().wall.as_secs_f64();
        self.built.insert(view.name.clone());
        Ok(row(workload, "requests/s", driven?.0).compare("docs/s of the build meanwhile", Some(rate), None))
    }
}

/// Builds a view, and then sets `stop`, also after an error.
async fn build_beside(
    server: Server,
    archive: Arc<Archive>,
    view: View,
    stop: Arc<AtomicBool>,
) -> Result<()> {
    let built = first_query(&mut Couch::new(server), &archive, &view).await;
    stop.store(true, Ordering::Relaxed);
    built
}

async fn put_design(couch: &mut Couch, archive: &Archive, view: &View) -> Result<()> {
    let target = format!("{}/_design/{}", archive.path, encode_segment(&view.name));
    couch.call("PUT", &target, Some(view.design().as_bytes())).await?;
    Ok(())
}

/// Queries a view, whose rows must be as many as the archive's messages.
async fn first_query(couch: &mut Couch, archive: &Archive, view: &View) -> Result<()> {
    let target = format!("{}?limit=1&reduce=false", archive.view(view));
    let rows = total_rows(couch, &target).await?;
    if rows != archive.count {
        return Err(Error::wrong(&view.name, format!("{rows} rows of {}", archive.count)));
    }
    Ok(())
}

/// The number of rows of a view that a query reports.
pub(super) async fn total_rows(couch: &mut Couch, target: &str) -> Result<u64> {
    #[derive(Deserialize)]
    struct Rows {
        total_rows: u64,
    }
    let reply = couch.call("GET", target, None).await?;
    Ok(parse::<Rows>(target, &reply.body)?.total_rows)
}

/// The row of one window.
pub(super) fn row(workload: &str, unit: &'static str, window: Window) -> Row {
    Row::new(workload, unit, &Series(vec![window]))
}

/// The row of a build, with the time of the query that caused it.
pub(super) fn build_row(workload: &str, window: Window) -> Row {
    let seconds = window.elapsed.wall.as_secs_f64();
    row(workload, "docs/s", window).compare("s until the first query is answered", Some(seconds), None)
}

/// Compares the rate with one recorded of CouchDB.
pub(super) fn against_recorded(row: Row, recorded: f64, aim: impl Into<Option<Bound>>) -> Row {
    let ratio = row.rate.map(|rate| rate / recorded);
    row.compare(format!("× CouchDB's recorded {}", figure(recorded)), ratio, aim)
}

/// Judges the median latency and the 99th percentile by their largest values in milliseconds.
pub(super) fn judge_latency(mut row: Row, p50_ms_max: Option<f64>, p99_ms_max: Option<f64>) -> Row {
    for (what, us, max) in [("ms p50", row.p50_us, p50_ms_max), ("ms p99", row.p99_us, p99_ms_max)] {
        if let Some(max) = max {
            row = row.compare(what, us.map(|us| us / 1e3), Bound::AtMost(max));
        }
    }
    row
}
