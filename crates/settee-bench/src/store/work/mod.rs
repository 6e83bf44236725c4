//! What is done to a store, the same for every engine: ours and the peers' program compile this
//! directory both (so it uses nothing of either crate), and differ in how they implement [`Subject`].
//!
//! A run is one [`Spec`] on one directory in a process of its own, and ends with one [`Report`].
//! Engines that block answer at once: their futures are never pending.
//!
//! Invariants:
//! 1. Keys and values depend on the number of the record and its version alone ([`data`]).
//! 2. What is read is held against what was written; a run that finds other bytes fails.
//! 3. Data is made before the clock starts, but for slices of it and the hashing of keys, which
//!    every engine pays alike.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

pub(crate) mod data;
mod loads;
pub(crate) mod meter;
mod reads;
mod rewrites;

pub(crate) use data::{Key, Order};

/// Anything that ends a run.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Operation {
    /// Writes all records in batches, without waiting for a sync.
    Ingest,
    /// The same with a reader of the newest keys beside.
    IngestBesideReader,
    /// Reads `count` records at random, by `lanes` at once.
    Read,
    /// Walks over all keys.
    ScanKeys,
    /// Walks over `count` keys with their values.
    ScanValues,
    /// Reads the values of `count` neighbouring keys one by one.
    ReadInOrder,
    /// Writes `count` records more, each on stable storage before the next, by `lanes` at once.
    Durable,
    /// Writes all records `count` times over, while a reader reads; tells each second.
    Overwrite,
    /// Opens, and reads one record.
    Open,
    /// As `Ingest`, then says so and waits to be killed.
    LoadAndHold,
}

/// One run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub operation: Operation,
    pub order: Order,
    /// Records that are written, or were.
    pub records: u64,
    pub value_bytes: usize,
    /// Records of a batch.
    pub batch: usize,
    /// Operations, where they aren't told by the records.
    pub count: u64,
    /// Reads before the clock starts, so that caches are full.
    pub warm: u64,
    /// Durable writes end after this time though there be more; 0 for no end.
    pub seconds_max: u64,
    /// Operations at once.
    pub lanes: usize,
    /// The engine's memory: caches and what is not yet in its files.
    pub memory_bytes: u64,
    /// Whether an engine that can read past the page cache does. It may have twice the memory
    /// then, as the page cache has nothing.
    pub direct: bool,
    /// Whether a load ends when all is in the engine's index on disk, and synced. Otherwise
    /// it ends when all is in the system's hands.
    pub write_out: bool,
    /// Whether the engine may give up space by itself.
    pub compaction: bool,
    /// A control group to join first.
    pub group: Option<PathBuf>,
}

/// What a run printed, one a line.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Told {
    /// One second of a longer run.
    Second(Second),
    /// It is to be killed now.
    Held,
    /// The end.
    Report(Box<Report>),
}

/// One second of an overwriting.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Second {
    pub second: u64,
    pub writes: u64,
    pub reads: u64,
    pub read_p50_us: f64,
    pub read_p99_us: f64,
    /// Bytes of the directory, and of keys and values that live in it.
    pub disk_bytes: u64,
    pub live_bytes: u64,
    /// What the engine says of itself.
    pub engine: String,
}

/// What a run did.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Report {
    pub operations: u64,
    /// Bytes of keys and values.
    pub bytes: u64,
    pub seconds: f64,
    /// What opening took; not in `seconds`.
    pub open_seconds: f64,
    pub p50_us: Option<f64>,
    pub p99_us: Option<f64>,
    /// Processor time of the process, while the clock ran.
    pub cpu_seconds: f64,
    /// Bytes this process gave to files, and had fetched from devices (`/proc/self/io`), while
    /// the clock ran.
    pub written_bytes: u64,
    pub fetched_bytes: u64,
    /// Reads that the device completed while the clock ran, where reading is measured.
    pub device_reads: u64,
    /// Bytes given to files from the opening to the end of the process's work.
    pub written_bytes_in_all: u64,
    /// Most memory of the process above what it had before the engine was opened: resident, and
    /// of these pages of its own (no files mapped), by what the system tells at the end.
    pub peak_bytes: u64,
    pub anonymous_bytes: u64,
    /// Bytes of the directory at the end.
    pub disk_bytes: u64,
    /// Reads beside a load, those that found a value, and how far what they saw lay behind the
    /// writer, in records, on average.
    pub beside_reads: u64,
    pub beside_found: u64,
    pub beside_lag: f64,
    /// How the engine is set up, in words.
    pub setup: String,
    /// What the engine says of itself at the end.
    pub engine: String,
}

/// An engine with an open database.
pub(crate) trait Subject: Send + Sync + Sized + 'static {
    type Reader: Reader;

    /// Writes the pairs as one atomic batch: in the engine's memory, where it can be, or
    /// durably, on stable storage.
    fn write(
        &self,
        pairs: &[(Key, Bytes)],
        durable: bool,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Hands all that was written to the system, without a sync where the engine knows how.
    fn hand_over(&self) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Brings all that was written into the index on disk, and all of it on stable storage.
    fn write_out(&self) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Waits until the engine has done what it does in the background, as far as it tells.
    fn settle(&self) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Reads what is newest; later writes need not show.
    fn reader(&self) -> Result<Self::Reader, Failure>;

    /// Runs `lane` so many times at once: tasks, or threads where calls block.
    fn lanes<T, F, L>(
        self: &std::sync::Arc<Self>,
        count: usize,
        lane: L,
    ) -> impl Future<Output = Result<Vec<T>, Failure>> + Send
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Failure>> + Send + 'static,
        L: Fn(std::sync::Arc<Self>, usize) -> F + Clone + Send + Sync + 'static;

    /// Lets other tasks run, where lanes are tasks.
    fn breathe(&self) -> impl Future<Output = ()> + Send;

    fn pause(&self, time: Duration) -> impl Future<Output = ()> + Send;

    /// How it is set up, in words.
    fn setup(&self) -> String;

    /// What it counts of itself, in words.
    fn counters(&self) -> String;
}

/// A view of a database to read from.
pub(crate) trait Reader: Send + 'static {
    /// Records of the order of writing that it shows, where that isn't all.
    fn visible(&self) -> Option<u64>;

    /// Gives the value to `check`; false where there is none.
    fn get(
        &mut self,
        key: &Key,
        check: impl FnOnce(&[u8]) + Send,
    ) -> impl Future<Output = Result<bool, Failure>> + Send;

    /// Gives the pairs from `start` on, in the order of keys, until there were `count`; without
    /// `values` an empty one. Returns how many there were.
    fn scan(
        &mut self,
        start: &Key,
        count: u64,
        values: bool,
        each: impl FnMut(&[u8], &[u8]) + Send,
    ) -> impl Future<Output = Result<u64, Failure>> + Send;
}

/// Runs a spec on an open engine. `opened` is what opening took.
pub(crate) async fn run<S: Subject>(
    subject: std::sync::Arc<S>,
    spec: &Spec,
    directory: &std::path::Path,
    base: meter::Base,
    mut tell: impl FnMut(Told) + Send,
) -> Result<(), Failure> {
    let mut report = match spec.operation {
        Operation::Ingest | Operation::IngestBesideReader => loads::ingest(&subject, spec).await?,
        Operation::LoadAndHold => {
            loads::ingest(&subject, spec).await?;
            tell(Told::Held);
            // Whoever started this kills it, or is gone itself, which ends the input.
            std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink())?;
            return Ok(());
        }
        Operation::Durable => loads::durable(&subject, spec).await?,
        Operation::Read => reads::random(&subject, spec, directory).await?,
        Operation::ScanKeys | Operation::ScanValues => reads::scan(&subject, spec, directory).await?,
        Operation::ReadInOrder => reads::in_order(&subject, spec, directory).await?,
        Operation::Overwrite => rewrites::overwrite(&subject, spec, directory, &mut tell).await?,
        Operation::Open => reads::first(&subject, spec).await?,
    };
    report.setup = subject.setup();
    report.engine = subject.counters();
    base.finish(&mut report, directory)?;
    tell(Told::Report(Box::new(report)));
    Ok(())
}

/// The pairs `from..to` of the order of writing, in `version`.
fn pairs(source: &data::Source, spec: &Spec, from: u64, to: u64, version: u64, into: &mut Vec<(Key, Bytes)>) {
    into.clear();
    into.extend((from..to).map(|index| {
        let record = spec.order.record(index);
        (spec.order.key(record), source.value(record, version, spec.value_bytes))
    }));
}
