//! Counters and sizes of a store.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use settee_log::LogStats;

use super::state::Shared;
use crate::options::StoreStats;

impl Shared {
    /// Counts background work.
    pub(crate) fn count(&self, change: impl FnOnce(&mut StoreStats)) {
        change(&mut self.counters.jobs.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Sizes, and counts of background work since the store was opened.
    pub(crate) fn store_stats(&self) -> StoreStats {
        let version = self.versions.published.load();
        let checkpoint = &version.checkpoint;
        let now = self.context.env.clock.now();
        let mut replaced = self.counters.replaced.lock().unwrap_or_else(PoisonError::into_inner);
        replaced.retain(|(part, _)| part.strong_count() > 0);
        let oldest = replaced.first().map(|(_, at)| now.saturating_sub(*at));
        drop(replaced);
        let counts = *self.counters.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let space = self.space.of(&version);
        StoreStats {
            delayed_us: self.pacing.delayed_us(),
            paced_bytes_per_second: if self.is_reclaiming() { self.pacing.bytes_per_second() } else { 0 },
            garbage_bytes: space.garbage,
            live_bytes: space.live,
            rebuild_count: self.context.rebuild_count.load(Ordering::Relaxed),
            write_lookup_count: self.context.write_lookup_count.load(Ordering::Relaxed),
            memory_bytes: self.memory.bytes.load(Ordering::Relaxed) as u64,
            tree_bytes: checkpoint.tree.as_ref().map_or(0, |tree| tree.tree.file_bytes()),
            segment_bytes: version.set.listed_bytes(),
            segment_live_bytes: checkpoint
                .live
                .iter()
                .filter(|(number, _)| **number <= version.set.listed_to())
                .map(|(_, live)| live.bytes)
                .sum(),
            oldest_snapshot_ms: oldest.map_or(0, |age| age.as_millis() as u64),
            ..counts
        }
    }

    /// The log's counters, with the store's files added to `file_bytes`.
    pub(crate) fn log_stats(&self) -> LogStats {
        let version = self.versions.published.load();
        let mut stats = self.log.stats();
        stats.file_bytes += version.set.listed_bytes();
        stats.file_bytes += version.checkpoint.tree.as_ref().map_or(0, |tree| tree.tree.file_bytes());
        stats
    }
}
