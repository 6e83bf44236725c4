//! Limits of the databases' indexes, and of what goes on in the background.

use std::sync::Arc;

use settee_store::{ChunkCache, LogOptions, Measure, MemoryBudget, NodeCache, StoreOptions};

/// The limits of all databases' stores. What is in bytes of memory is shared by all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreLimits {
    /// Memory for index entries of recent changes, in bytes: from half of it on they are taken to
    /// disk, and with all of it taken writers wait for that.
    pub index_memory_bytes_max: usize,
    /// The cache of index nodes that are on disk, in bytes.
    pub index_cache_bytes_max: usize,
    /// The cache of bodies, in bytes, in direct mode: otherwise the page cache has them.
    pub value_cache_bytes_max: usize,
    /// How many parts of that memory may wait for a checkpoint of one database.
    pub frozen_layers_max: usize,
    /// A checkpoint begins when memory holds one in so many of a database's index entries, or when
    /// one in so many of its bytes has died since the last one;
    pub checkpoint_share: u64,
    /// but not with fewer new entries than so many;
    pub checkpoint_entries_min: u64,
    /// with so many at the latest;
    pub checkpoint_entries_max: u64,
    /// not with fewer bytes that died than so many;
    pub checkpoint_garbage_min: u64,
    /// and with so many new bytes at the latest.
    pub checkpoint_bytes_max: u64,
    /// More than so many hundredths of a database's files are not left as garbage.
    pub garbage_percent_max: u64,
    /// Compaction copies so many bytes a second.
    pub compaction_bytes_per_second: u64,
    /// A snapshot that has kept replaced files for so many seconds counts as old in the figures.
    pub snapshot_age_s_max: u64,
}

impl Default for StoreLimits {
    fn default() -> StoreLimits {
        let store = StoreOptions::DEFAULT;
        StoreLimits {
            index_memory_bytes_max: 256 << 20,
            index_cache_bytes_max: 128 << 20,
            value_cache_bytes_max: 64 << 20,
            frozen_layers_max: store.frozen_layers_max,
            checkpoint_share: store.checkpoint_share,
            checkpoint_entries_min: store.checkpoint_entries_min,
            checkpoint_entries_max: store.checkpoint_entries_max,
            checkpoint_garbage_min: store.checkpoint_garbage_min,
            checkpoint_bytes_max: store.checkpoint_bytes_max,
            garbage_percent_max: store.garbage_percent_max,
            compaction_bytes_per_second: store.compaction_bytes_per_second,
            snapshot_age_s_max: 600,
        }
    }
}

/// What all stores of a server have together.
pub(crate) struct StoreResources {
    limits: StoreLimits,
    memory: Arc<MemoryBudget>,
    cache: Arc<NodeCache>,
    chunks: Arc<ChunkCache>,
}

impl StoreResources {
    pub(crate) fn new(limits: StoreLimits) -> StoreResources {
        StoreResources {
            limits,
            memory: Arc::new(MemoryBudget::new(limits.index_memory_bytes_max)),
            cache: Arc::new(NodeCache::new(limits.index_cache_bytes_max)),
            chunks: Arc::new(ChunkCache::new(limits.value_cache_bytes_max)),
        }
    }

    /// How a store is opened.
    pub(crate) fn options(&self, log: LogOptions, measure: Option<Measure>) -> StoreOptions {
        let limits = &self.limits;
        StoreOptions {
            log,
            measure,
            memory_bytes_max: limits.index_memory_bytes_max,
            frozen_layers_max: limits.frozen_layers_max,
            checkpoint_share: limits.checkpoint_share,
            checkpoint_entries_min: limits.checkpoint_entries_min,
            checkpoint_entries_max: limits.checkpoint_entries_max,
            checkpoint_garbage_min: limits.checkpoint_garbage_min,
            checkpoint_bytes_max: limits.checkpoint_bytes_max,
            garbage_percent_max: limits.garbage_percent_max,
            compaction_bytes_per_second: limits.compaction_bytes_per_second,
            memory: Some(self.memory.clone()),
            cache: Some(self.cache.clone()),
            chunks: log.direct.then(|| self.chunks.clone()),
            ..StoreOptions::DEFAULT
        }
    }
}
