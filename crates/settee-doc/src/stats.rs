//! Statistics of all databases of a server.
//!
//! Counters never decrease while the server runs: they include databases that were closed or deleted.

use settee_io::PoolStats;
use settee_store::{LogStats, StoreStats};

/// Age in seconds from which a snapshot that pins replaced files counts as old: a reader that takes longer
/// has probably stalled.
const SNAPSHOT_AGE_S_MAX: u64 = 600;

/// Statistics of a server's databases, its catalogue included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stats {
    /// The I/O engine's name.
    pub engine: &'static str,
    /// Memory of accepted data that isn't written yet.
    pub buffers: PoolStats,
    /// Number of databases.
    pub database_count: usize,
    /// Number of open databases: those in use, or used recently.
    pub open_count: usize,
    /// Number of logs stopped by a failed write or sync.
    pub stopped_count: usize,
    /// Sums over all logs, except `sync_us`: the mean over the logs that have synced.
    pub log: LogStats,
    /// The largest running average of a log's sync time, in microseconds.
    pub sync_us_max: u64,
    /// Sums over all stores, except `oldest_snapshot_ms`: the maximum.
    pub store: StoreStats,
    /// Number of open databases with a snapshot that has pinned replaced files for longer than
    /// ten minutes.
    pub old_snapshot_count: usize,
    /// Number of references of readers to snapshots.
    pub snapshot_count: usize,
    /// The limit of `store.memory_bytes`.
    pub index_memory_bytes_max: u64,
}

/// The statistics of one database, or their sums.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DatabaseStats {
    pub log: LogStats,
    pub store: StoreStats,
    pub snapshot_count: usize,
}

impl Stats {
    /// Sums up the statistics of all logs.
    pub(crate) fn new(
        engine: &'static str,
        buffers: PoolStats,
        ended: DatabaseStats,
        open: impl Iterator<Item = (DatabaseStats, bool)>,
    ) -> Stats {
        let mut stats = Stats {
            engine,
            buffers,
            database_count: 0,
            open_count: 0,
            stopped_count: 0,
            log: ended.log,
            sync_us_max: 0,
            store: ended.store,
            old_snapshot_count: 0,
            snapshot_count: 0,
            index_memory_bytes_max: 0,
        };
        let (mut sync_us_sum, mut synced_count) = (0, 0);
        for (database, is_stopped) in open {
            let mut sum = DatabaseStats { log: stats.log, store: stats.store, snapshot_count: 0 };
            add_counters(&mut sum, &database);
            let DatabaseStats { log, store, snapshot_count } = database;
            (stats.log, stats.store) = (sum.log, sum.store);
            stats.store.memory_bytes += store.memory_bytes;
            stats.store.tree_bytes += store.tree_bytes;
            stats.store.segment_bytes += store.segment_bytes;
            stats.store.segment_live_bytes += store.segment_live_bytes;
            stats.store.live_bytes += store.live_bytes;
            stats.store.garbage_bytes += store.garbage_bytes;
            let paced = [stats.store.paced_bytes_per_second, store.paced_bytes_per_second];
            stats.store.paced_bytes_per_second =
                paced.into_iter().filter(|rate| *rate > 0).min().unwrap_or(0);
            let oldest = &mut stats.store.oldest_snapshot_ms;
            *oldest = store.oldest_snapshot_ms.max(*oldest);
            let is_old = store.oldest_snapshot_ms / 1000 >= SNAPSHOT_AGE_S_MAX;
            stats.old_snapshot_count += usize::from(is_old);
            stats.snapshot_count += snapshot_count;
            stats.log.file_bytes += log.file_bytes;
            stats.log.padding_bytes += log.padding_bytes;
            stats.log.reserved_bytes += log.reserved_bytes;
            stats.log.memory_bytes += log.memory_bytes;
            stats.log.unsynced_bytes += log.unsynced_bytes;
            stats.stopped_count += usize::from(is_stopped);
            if log.sync_count > 0 {
                sync_us_sum += log.sync_us;
                synced_count += 1;
                stats.sync_us_max = stats.sync_us_max.max(log.sync_us);
            }
        }
        stats.log.sync_us = sync_us_sum.checked_div(synced_count).unwrap_or(0);
        stats
    }
}

/// Adds the counters; gauges end with their log.
pub(crate) fn add_counters(sum: &mut DatabaseStats, of: &DatabaseStats) {
    sum.log.batch_count += of.log.batch_count;
    sum.log.write_count += of.log.write_count;
    sum.log.written_bytes += of.log.written_bytes;
    sum.log.sync_count += of.log.sync_count;
    sum.store.checkpoint_count += of.store.checkpoint_count;
    sum.store.whole_count += of.store.whole_count;
    sum.store.rebuild_count += of.store.rebuild_count;
    sum.store.compacted_count += of.store.compacted_count;
    sum.store.compacted_bytes += of.store.compacted_bytes;
    sum.store.copied_bytes += of.store.copied_bytes;
    sum.store.delayed_us += of.store.delayed_us;
    sum.store.write_lookup_count += of.store.write_lookup_count;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(sync_count: u64, sync_us: u64) -> DatabaseStats {
        let log = LogStats { batch_count: 3, sync_count, sync_us, file_bytes: 100, ..LogStats::default() };
        let store = StoreStats {
            checkpoint_count: sync_count,
            memory_bytes: 10,
            oldest_snapshot_ms: sync_us,
            ..StoreStats::default()
        };
        DatabaseStats { log, store, snapshot_count: 0 }
    }

    #[test]
    fn counters_of_closed_logs_stay_and_their_gauges_end() {
        let mut ended = DatabaseStats::default();
        add_counters(&mut ended, &log(5, 900));
        let logs = [(log(2, 300), false), (log(4, 100), true), (log(0, 0), false)];
        let stats = Stats::new("threads", PoolStats::default(), ended, logs.into_iter());
        assert_eq!((stats.log.batch_count, stats.log.sync_count), (12, 11));
        assert_eq!((stats.log.file_bytes, stats.stopped_count), (300, 1));
        assert_eq!((stats.log.sync_us, stats.sync_us_max), (200, 300));
        let StoreStats { checkpoint_count, memory_bytes, oldest_snapshot_ms, .. } = stats.store;
        assert_eq!((checkpoint_count, memory_bytes, oldest_snapshot_ms), (11, 30, 300));
    }

    #[test]
    fn the_mean_is_zero_without_a_sync() {
        let stats = Stats::new("threads", PoolStats::default(), DatabaseStats::default(), std::iter::empty());
        assert_eq!((stats.log.sync_us, stats.sync_us_max), (0, 0));
    }
}
