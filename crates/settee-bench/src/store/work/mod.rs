//! The workloads of `bench store`, the same for every engine. `settee-bench` and the peers' program both
//! compile this directory and differ in their implementations of [`TestEngine`].
//!
//! A run is one [`Spec`] on one directory in a separate process and ends with one [`Report`]. The futures of
//! engines with blocking calls are never pending.
//!
//! Invariants:
//! 1. Keys and values depend only on the number of the record and its version ([`data`]).
//! 2. Values that are read are compared with the written ones; a run that finds other bytes fails.
//! 3. Random data is generated before the measured time; within it, data is sliced and keys are hashed, at
//!    the same cost for every engine.

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

/// An error that ends a run.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The operation of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Operation {
    /// Writes all records in batches, without waiting for a sync.
    Ingest,
    /// Writes all records like `Ingest`, beside a reader of the newest keys.
    IngestBesideReader,
    /// Reads `count` records at random, by `lanes` concurrent lanes.
    Read,
    /// Scans all keys.
    ScanKeys,
    /// Scans `count` keys with their values.
    ScanValues,
    /// Reads the values of `count` neighbouring keys one by one.
    ReadInOrder,
    /// Writes `count` further records, each on stable storage before the next, by `lanes` concurrent lanes.
    Durable,
    /// Overwrites all records `count` times beside a reader, and reports each second.
    Overwrite,
    /// Opens, and reads one record.
    Open,
    /// Writes all records like `Ingest`, sends [`Message::Loaded`] and waits to be killed.
    LoadAndHold,
}

/// The parameters of one run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Spec {
    pub operation: Operation,
    pub order: Order,
    /// Number of records that are written, or were written by an earlier run.
    pub records: u64,
    pub value_bytes: usize,
    /// Number of records of a batch.
    pub batch: usize,
    /// Number of operations, for operations that don't concern all records.
    pub count: u64,
    /// Number of reads before the measured time, which fill caches.
    pub warm: u64,
    /// Longest duration of durable writes in seconds. 0: no limit.
    pub seconds_max: u64,
    /// Number of concurrent lanes, which are tasks or threads.
    pub lanes: usize,
    /// The engine's memory: caches, and data that isn't in its files yet.
    pub memory_bytes: u64,
    /// Whether an engine reads past the page cache if it can. It may have twice the memory then, since the
    /// page cache needs none.
    pub direct: bool,
    /// Whether a load ends when all is in the engine's index on disk, and synced. Otherwise it ends when all
    /// is written to the kernel.
    pub write_out: bool,
    /// Whether the engine may reclaim disk space by itself.
    pub compaction: bool,
    /// A control group that the process joins first.
    pub group: Option<PathBuf>,
}

/// A message of a run, printed as a line of JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Message {
    /// One second of [`Operation::Overwrite`].
    Second(Second),
    /// All records are loaded; the process waits to be killed.
    #[serde(rename = "Held")]
    Loaded,
    /// The last message of a run.
    Report(Box<Report>),
}

/// One second of [`Operation::Overwrite`].
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Second {
    pub second: u64,
    pub writes: u64,
    pub reads: u64,
    pub read_p50_us: f64,
    pub read_p99_us: f64,
    /// Bytes that the directory takes on disk.
    pub disk_bytes: u64,
    /// Bytes of live keys and values.
    pub live_bytes: u64,
    /// The engine's own counters, as text.
    pub engine: String,
}

/// The result of a run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Report {
    pub operations: u64,
    /// Bytes of keys and values.
    pub bytes: u64,
    pub seconds: f64,
    /// Duration of the opening, which isn't part of `seconds`.
    pub open_seconds: f64,
    pub p50_us: Option<f64>,
    pub p99_us: Option<f64>,
    /// Processor time of the process in the measured time.
    pub cpu_seconds: f64,
    /// Bytes that this process wrote to files in the measured time (`/proc/self/io`).
    pub written_bytes: u64,
    /// Bytes that this process read from devices in the measured time (`/proc/self/io`).
    pub fetched_bytes: u64,
    /// Reads that the device completed in the measured time, for operations that read.
    pub device_reads: u64,
    /// Bytes written to files from the opening to the end of the run.
    pub written_bytes_in_all: u64,
    /// Peak resident memory of the process, minus that before the opening.
    pub peak_bytes: u64,
    /// Anonymous resident memory at the end of the run, minus that before the opening.
    pub anonymous_bytes: u64,
    /// Bytes that the directory takes on disk at the end.
    pub disk_bytes: u64,
    /// Number of reads beside the writer.
    pub beside_reads: u64,
    /// Number of reads beside the writer that found a value.
    pub beside_found: u64,
    /// Average number of records by which the reader's snapshots lag behind the writer.
    pub beside_lag: f64,
    /// A description of the engine's configuration.
    pub setup: String,
    /// The engine's own counters at the end, as text.
    pub engine: String,
}

/// An engine with an open database.
pub(crate) trait TestEngine: Send + Sync + Sized + 'static {
    type Reader: Reader;

    /// Writes the pairs as one atomic batch: on stable storage if `durable` is set; otherwise only to the
    /// engine's memory, if the engine supports that.
    fn write(
        &self,
        pairs: &[(Key, Bytes)],
        durable: bool,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Writes all accepted batches to the kernel, without a sync if the engine supports that.
    fn flush_to_kernel(&self) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Writes all accepted batches to the index on disk and syncs it.
    fn write_out(&self) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Waits until the engine's background work has finished, as far as the engine reports it.
    fn settle(&self) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Returns a reader of the newest state, which need not show later writes.
    fn reader(&self) -> Result<Self::Reader, Failure>;

    /// Runs `lane` `count` times concurrently: as tasks, or as threads if the engine's calls block.
    fn lanes<T, F, L>(
        self: &std::sync::Arc<Self>,
        count: usize,
        lane: L,
    ) -> impl Future<Output = Result<Vec<T>, Failure>> + Send
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Failure>> + Send + 'static,
        L: Fn(std::sync::Arc<Self>, usize) -> F + Clone + Send + Sync + 'static;

    /// Lets other tasks run, if lanes are tasks.
    fn yield_now(&self) -> impl Future<Output = ()> + Send;

    fn pause(&self, time: Duration) -> impl Future<Output = ()> + Send;

    /// A description of the engine's configuration.
    fn setup(&self) -> String;

    /// The engine's own counters, as text.
    fn counters(&self) -> String;
}

/// A snapshot of a database, or its newest state.
pub(crate) trait Reader: Send + 'static {
    /// Number of writes that are visible. None: all.
    fn visible(&self) -> Option<u64>;

    /// Calls `check` with the value. Returns false if there is none.
    fn get(
        &mut self,
        key: &Key,
        check: impl FnOnce(&[u8]) + Send,
    ) -> impl Future<Output = Result<bool, Failure>> + Send;

    /// Calls `each` with up to `count` pairs from `start` on, in the order of keys; without `values`, values
    /// are empty. Returns the number of pairs.
    fn scan(
        &mut self,
        start: &Key,
        count: u64,
        values: bool,
        each: impl FnMut(&[u8], &[u8]) + Send,
    ) -> impl Future<Output = Result<u64, Failure>> + Send;
}

/// Runs a spec on an open engine and sends its messages. `base` has the counters before the opening.
pub(crate) async fn run<S: TestEngine>(
    subject: std::sync::Arc<S>,
    spec: &Spec,
    directory: &std::path::Path,
    base: meter::Baseline,
    mut send: impl FnMut(Message) + Send,
) -> Result<(), Failure> {
    let mut report = match spec.operation {
        Operation::Ingest | Operation::IngestBesideReader => loads::ingest(&subject, spec).await?,
        Operation::LoadAndHold => {
            loads::ingest(&subject, spec).await?;
            send(Message::Loaded);
            // Waits for the kill, or for the end of the input if the parent has exited.
            std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink())?;
            return Ok(());
        }
        Operation::Durable => loads::durable(&subject, spec).await?,
        Operation::Read => reads::random(&subject, spec, directory).await?,
        Operation::ScanKeys | Operation::ScanValues => reads::scan(&subject, spec, directory).await?,
        Operation::ReadInOrder => reads::in_order(&subject, spec, directory).await?,
        Operation::Overwrite => rewrites::overwrite(&subject, spec, directory, &mut send).await?,
        Operation::Open => reads::first(&subject, spec).await?,
    };
    report.setup = subject.setup();
    report.engine = subject.counters();
    base.finish(&mut report, directory)?;
    send(Message::Report(Box::new(report)));
    Ok(())
}

/// Replaces `into` by the pairs of the writes `from..to`, in `version`.
fn pairs(source: &data::Source, spec: &Spec, from: u64, to: u64, version: u64, into: &mut Vec<(Key, Bytes)>) {
    into.clear();
    into.extend((from..to).map(|index| {
        let record = spec.order.record(index);
        (spec.order.key(record), source.value(record, version, spec.value_bytes))
    }));
}
