//! What a server's databases have done together.
//!
//! Counters never go down while the databases are open: what a deleted database did stays in.

use settee_io::PoolStats;
use settee_store::LogStats;

/// Figures of a server's databases, its catalogue included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stats {
    /// The engine that runs the operations on files.
    pub engine: &'static str,
    /// Memory for what is accepted and not yet written.
    pub buffers: PoolStats,
    /// Databases that exist.
    pub database_count: usize,
    /// Databases that are open: those that were asked for since the start.
    pub open_count: usize,
    /// Logs that a failed write or sync has stopped.
    pub stopped_count: usize,
    /// The sums over all logs. `sync_us` is the mean over the logs that have synced.
    pub log: LogStats,
    /// The longest of the logs' running averages of what a sync takes, in microseconds.
    pub sync_us_max: u64,
}

impl Stats {
    /// The figures of many logs, which come one after another.
    pub(crate) fn new(
        engine: &'static str,
        buffers: PoolStats,
        ended: LogStats,
        logs: impl Iterator<Item = (LogStats, bool)>,
    ) -> Stats {
        let mut stats = Stats {
            engine,
            buffers,
            database_count: 0,
            open_count: 0,
            stopped_count: 0,
            log: ended,
            sync_us_max: 0,
        };
        let (mut sync_us_sum, mut synced_count) = (0, 0);
        for (log, is_stopped) in logs {
            add_counters(&mut stats.log, &log);
            stats.log.file_bytes += log.file_bytes;
            stats.log.padding_bytes += log.padding_bytes;
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

/// Adds what only grows; the rest goes with its log.
pub(crate) fn add_counters(sum: &mut LogStats, log: &LogStats) {
    sum.batch_count += log.batch_count;
    sum.extent_count += log.extent_count;
    sum.write_count += log.write_count;
    sum.written_bytes += log.written_bytes;
    sum.sync_count += log.sync_count;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(sync_count: u64, sync_us: u64) -> LogStats {
        LogStats { batch_count: 3, sync_count, sync_us, file_bytes: 100, ..LogStats::default() }
    }

    #[test]
    fn counters_of_ended_logs_stay_and_their_files_go() {
        let mut ended = LogStats::default();
        add_counters(&mut ended, &log(5, 900));
        let logs = [(log(2, 300), false), (log(4, 100), true), (log(0, 0), false)];
        let stats = Stats::new("threads", PoolStats::default(), ended, logs.into_iter());
        assert_eq!((stats.log.batch_count, stats.log.sync_count), (12, 11));
        assert_eq!((stats.log.file_bytes, stats.stopped_count), (300, 1));
        assert_eq!((stats.log.sync_us, stats.sync_us_max), (200, 300));
    }

    #[test]
    fn without_a_sync_there_is_no_mean() {
        let stats = Stats::new("threads", PoolStats::default(), LogStats::default(), std::iter::empty());
        assert_eq!((stats.log.sync_us, stats.sync_us_max), (0, 0));
    }
}
