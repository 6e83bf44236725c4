//! The parameters of a run.

use std::path::PathBuf;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::data::{KEY_BYTES, Key, Order, Source};

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
    /// Writes all records like `Ingest`, sends [`super::Message::Loaded`] and waits to be killed.
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

impl Spec {
    /// Bytes of the keys and values of `count` records.
    pub(super) fn bytes_of(&self, count: u64) -> u64 {
        count * (KEY_BYTES + self.value_bytes) as u64
    }

    /// Replaces `into` by the pairs of the writes `from..to`, in `version`.
    pub(super) fn pairs(
        &self,
        source: &Source,
        (from, to): (u64, u64),
        version: u64,
        into: &mut Vec<(Key, Bytes)>,
    ) {
        into.clear();
        into.extend((from..to).map(|index| {
            let record = self.order.record(index);
            (self.order.key(record), source.value(record, version, self.value_bytes))
        }));
    }
}
