//! Options and statistics of a store.

use std::sync::Arc;

use bytes::Bytes;
use settee_log::{ChunkCache, InvalidLimit, LogOptions};
use settee_tree::NodeCache;

use crate::budget::{MemoryBudget, ReadAheadBudget};
use crate::failpoints::Failpoint;
use crate::index::{Aggregate, OPERAND_COUNT_MAX};

/// Combines the values of several records of a key, newest first, into one value.
pub type MergeOperator = fn(&[Bytes]) -> Bytes;

/// How a store is opened. When checkpoints begin is no setting of the server, except through
/// `memory_bytes_max`; tests change it to make checkpoints sooner.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// Options of the store's log. Default: [`LogOptions::DEFAULT`].
    pub log: LogOptions,
    /// Computes what an entry adds to the aggregates from its key, its meta and the length of its newest
    /// record. Default `None`: commits do not look up the entries they replace, and no record can be in the
    /// seq index.
    pub aggregate: Option<Aggregate>,
    /// Combines a key's records, newest first: the merge operands, then the base value if there is one.
    /// Called where [`Batch::merge`](crate::Batch::merge) would give the key more than [`OPERAND_COUNT_MAX`]
    /// records. Default `None`: such a commit fails.
    pub merge_operator: Option<MergeOperator>,
    /// Number of replaced versions kept per key until the next checkpoint, for
    /// [`Entry::pointers_at`](crate::Entry::pointers_at); at most [`OPERAND_COUNT_MAX`] − 1. Default 0.
    pub versions_max: usize,
    /// Size of the memtables in bytes at which writers wait for a checkpoint; at least 1. A checkpoint begins
    /// once the mutable memtable has half of it. A writer that already holds the [`Writer`](crate::Writer) is
    /// refused at one and a half times the size. Default 256 MiB.
    pub memory_bytes_max: usize,
    /// Number of immutable memtables; writers wait while there are more. Default 8.
    pub immutable_memtables_max: usize,
    /// Divisor of the tree's entry count and of its live bytes; at least 1. A checkpoint begins when the
    /// memtables hold more than the quotient of the entries, or when more than the quotient of the live bytes
    /// has become garbage since the last one. Default 8.
    pub checkpoint_divisor: u64,
    /// Number of memtable entries below which their count does not begin a checkpoint. Default 65,536.
    pub checkpoint_entries_min: u64,
    /// Number of memtable entries at which a checkpoint begins however large the tree is; it bounds how many
    /// records are replayed at open. Default 2,097,152.
    pub checkpoint_entries_max: u64,
    /// Bytes of new garbage below which garbage does not begin a checkpoint; a checkpoint makes garbage
    /// available to compaction. Default 4 MiB.
    pub checkpoint_garbage_min: u64,
    /// Bytes of records committed since the last checkpoint at which the next one begins. Default 512 MiB.
    pub checkpoint_bytes_max: u64,
    /// Percentage of the bytes of log and tree that may be garbage before compaction begins. Default 30.
    pub garbage_percent_max: u64,
    /// Percentage to which garbage is freed when no batch was committed for `idle_delay_ms`; 100 for no such work.
    /// Default 10.
    pub garbage_idle_percent_max: u64,
    /// Percentage of garbage at which commits are slowed to the least rate while background work frees space;
    /// from `garbage_percent_max` on they are slowed in proportion. 100 for none. Default 40.
    pub garbage_hard_percent_max: u64,
    /// Bytes of garbage beyond a limit below which no segment is ended early, no tree rewritten and nothing done at
    /// a pause. Default 1 MiB.
    pub reclaim_bytes_min: u64,
    /// Time without a commit in milliseconds that counts as a pause. Default 1000.
    pub idle_delay_ms: u64,
    /// Rate in bytes per second at which compaction and backups write or read; 0 counts as 1. Default
    /// 256 MiB/s.
    pub compaction_bytes_per_second: u64,
    /// Memory budget shared with other stores, in addition to [`StoreOptions::memory_bytes_max`]. Default
    /// `None`.
    pub memory: Option<Arc<MemoryBudget>>,
    /// Cache of tree nodes, shared by all stores that are given it. Default `None`: a cache of 8 MiB of the
    /// store's own.
    pub cache: Option<Arc<NodeCache>>,
    /// Cache of segment chunks, shared by all stores that are given it; a hit costs no system call. Default
    /// `None`: values are read through the page cache, or in direct mode through a cache of 8 MiB of the
    /// store's own.
    pub chunks: Option<Arc<ChunkCache>>,
    /// Bounds the bytes that scans read ahead, over all stores that are given it. Default `None`: 16 MiB of the
    /// store's own.
    pub read_ahead: Option<Arc<ReadAheadBudget>>,
    /// Number of segments that one [`ReplacedRecords`](crate::ReplacedRecords) searches. Default 16.
    pub replaced_segments_max: usize,
    /// The enabled failpoint: see `failpoints.rs`. Default `None`.
    #[cfg(feature = "failpoints")]
    pub failpoint: Option<Failpoint>,
}

impl Default for StoreOptions {
    fn default() -> StoreOptions {
        StoreOptions::DEFAULT
    }
}

impl StoreOptions {
    /// The default options.
    pub const DEFAULT: StoreOptions = StoreOptions {
        log: LogOptions::DEFAULT,
        aggregate: None,
        merge_operator: None,
        versions_max: 0,
        memory_bytes_max: 256 << 20,
        immutable_memtables_max: 8,
        checkpoint_divisor: 8,
        checkpoint_entries_min: 64 << 10,
        checkpoint_entries_max: 2 << 20,
        checkpoint_garbage_min: 4 << 20,
        checkpoint_bytes_max: 512 << 20,
        garbage_percent_max: 30,
        garbage_idle_percent_max: 10,
        garbage_hard_percent_max: 40,
        reclaim_bytes_min: 1 << 20,
        idle_delay_ms: 1_000,
        compaction_bytes_per_second: 256 << 20,
        memory: None,
        cache: None,
        chunks: None,
        read_ahead: None,
        replaced_segments_max: 16,
        #[cfg(feature = "failpoints")]
        failpoint: None,
    };
}

impl StoreOptions {
    /// Checks the options for an environment whose buffer pool holds at most `buffer_pool_bytes_max` bytes.
    ///
    /// # Errors
    /// The first invalid limit found, of the log's or the store's own.
    pub fn check(&self, buffer_pool_bytes_max: usize) -> Result<(), InvalidLimit> {
        self.log.check(buffer_pool_bytes_max)?;
        let own = [
            ("checkpoint_divisor", self.checkpoint_divisor),
            ("memory_bytes_max", self.memory_bytes_max as u64),
        ];
        match own.into_iter().find(|(_, value)| *value == 0) {
            Some((name, value)) => Err(InvalidLimit { name, value, rule: "it must be at least 1".into() }),
            None => Ok(()),
        }
    }

    /// The options that apply to changing a version.
    pub(crate) fn rules(&self) -> Rules {
        Rules {
            aggregate: self.aggregate,
            replaced_records_max: self.versions_max.min(OPERAND_COUNT_MAX - 1),
            #[cfg(feature = "failpoints")]
            failpoint: self.failpoint,
        }
    }

    /// Whether the failpoint is enabled.
    #[cfg(feature = "failpoints")]
    pub(crate) fn is_enabled(&self, fault: Failpoint) -> bool {
        self.failpoint == Some(fault)
    }

    #[cfg(not(feature = "failpoints"))]
    pub(crate) const fn is_enabled(&self, _: Failpoint) -> bool {
        false
    }
}

/// The options that apply to changing a version.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    pub aggregate: Option<Aggregate>,
    /// Number of replaced records that a memtable keeps per key.
    pub replaced_records_max: usize,
    #[cfg(feature = "failpoints")]
    pub failpoint: Option<Failpoint>,
}

impl Rules {
    /// As [`StoreOptions::is_enabled`].
    #[cfg(feature = "failpoints")]
    pub(crate) fn is_enabled(&self, fault: Failpoint) -> bool {
        self.failpoint == Some(fault)
    }

    #[cfg(not(feature = "failpoints"))]
    pub(crate) const fn is_enabled(&self, _: Failpoint) -> bool {
        false
    }
}

/// Counters and sizes of a store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Checkpoints made.
    pub checkpoint_count: u64,
    /// Checkpoints that wrote a new tree file.
    pub whole_count: u64,
    /// How often the tree was found missing or damaged, at open or later, and was rebuilt from the segments
    /// and the log.
    pub rebuild_count: u64,
    /// Segments rewritten by compaction.
    pub compacted_count: u64,
    /// Bytes of the segments before they were rewritten.
    pub compacted_bytes: u64,
    /// Bytes of the segments that replaced them.
    pub copied_bytes: u64,
    /// Keys that writers looked up in the tree.
    pub write_lookup_count: u64,
    /// Size of the memtables in bytes.
    pub memory_bytes: u64,
    /// Size of the tree's file in bytes.
    pub tree_bytes: u64,
    /// Size of the listed segments in bytes.
    pub segment_bytes: u64,
    /// Live bytes in these segments.
    pub segment_live_bytes: u64,
    /// Microseconds for which batches were delayed because garbage was made faster than it was freed.
    pub delayed_us: u64,
    /// The rate in bytes per second to which commits are slowed now; 0 if they are not.
    pub paced_bytes_per_second: u64,
    /// Garbage in log and tree in bytes, with what was replaced since the last checkpoint.
    pub garbage_bytes: u64,
    /// Live bytes of log and tree.
    pub live_bytes: u64,
    /// Time in milliseconds since the oldest checkpoint state that a snapshot still pins was replaced; 0 for
    /// none. Not the age of the snapshot.
    pub oldest_snapshot_ms: u64,
}
