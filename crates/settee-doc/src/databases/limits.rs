//! Limits of the databases' indexes and background jobs.

use std::sync::Arc;

use settee_store::{
    Aggregate, ChunkCache, LogOptions, MemoryBudget, NodeCache, ReadAheadBudget, StoreOptions,
};

/// The limits of all databases' stores. Limits on memory are shared by all databases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreLimits {
    /// Memory for index entries of recent changes, in bytes; default 256 MiB. At half of it a checkpoint
    /// begins; writers wait while it is exhausted.
    pub index_memory_bytes_max: usize,
    /// Size of the cache of index nodes, in bytes; default 128 MiB.
    pub index_cache_bytes_max: usize,
    /// Size of the cache of bodies in direct mode, in bytes; default 64 MiB. Otherwise the page cache holds
    /// them.
    pub value_cache_bytes_max: usize,
    /// Bytes of documents that responses and feeds read ahead, over all databases; default 128 MiB. Past it each
    /// reads one document at a time.
    pub read_ahead_bytes_max: u64,
    /// Largest share of garbage in a database's files, in percent; compaction starts above it. Default 30.
    pub garbage_percent_max: u64,
    /// Share in percent to which garbage is freed when writes pause; 100 for no such work. Default 10.
    pub garbage_idle_percent_max: u64,
    /// Share of garbage in percent at which writes are slowed to the least rate; above `garbage_percent_max` they
    /// are slowed in proportion. 100 for none. Default 40.
    pub garbage_hard_percent_max: u64,
    /// Rate of compaction and backups in bytes per second; default 256 MiB/s.
    pub compaction_bytes_per_second: u64,
    /// Number of segments that a request searches for the bodies of replaced revisions; default 16. Beyond them a
    /// body is missing.
    pub replaced_segments_max: usize,
}

impl Default for StoreLimits {
    fn default() -> StoreLimits {
        let store = StoreOptions::DEFAULT;
        StoreLimits {
            index_memory_bytes_max: 256 << 20,
            index_cache_bytes_max: 128 << 20,
            value_cache_bytes_max: 64 << 20,
            read_ahead_bytes_max: 128 << 20,
            garbage_percent_max: store.garbage_percent_max,
            garbage_idle_percent_max: store.garbage_idle_percent_max,
            garbage_hard_percent_max: store.garbage_hard_percent_max,
            compaction_bytes_per_second: store.compaction_bytes_per_second,
            replaced_segments_max: store.replaced_segments_max,
        }
    }
}

/// The resources shared by all stores of a server.
pub(crate) struct StoreResources {
    limits: StoreLimits,
    memory: Arc<MemoryBudget>,
    cache: Arc<NodeCache>,
    chunks: Arc<ChunkCache>,
    read_ahead: Arc<ReadAheadBudget>,
}

impl StoreResources {
    pub(crate) fn new(limits: StoreLimits) -> StoreResources {
        StoreResources {
            limits,
            memory: Arc::new(MemoryBudget::new(limits.index_memory_bytes_max)),
            cache: Arc::new(NodeCache::new(limits.index_cache_bytes_max)),
            chunks: Arc::new(ChunkCache::new(limits.value_cache_bytes_max)),
            read_ahead: Arc::new(ReadAheadBudget::new(limits.read_ahead_bytes_max)),
        }
    }

    /// The options of a store.
    pub(crate) fn options(&self, log: LogOptions, aggregate: Option<Aggregate>) -> StoreOptions {
        let limits = &self.limits;
        StoreOptions {
            log,
            aggregate,
            memory_bytes_max: limits.index_memory_bytes_max,
            garbage_percent_max: limits.garbage_percent_max,
            garbage_idle_percent_max: limits.garbage_idle_percent_max,
            garbage_hard_percent_max: limits.garbage_hard_percent_max,
            compaction_bytes_per_second: limits.compaction_bytes_per_second,
            replaced_segments_max: limits.replaced_segments_max,
            memory: Some(self.memory.clone()),
            cache: Some(self.cache.clone()),
            chunks: log.direct.then(|| self.chunks.clone()),
            read_ahead: Some(self.read_ahead.clone()),
            ..StoreOptions::DEFAULT
        }
    }
}
