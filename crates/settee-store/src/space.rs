//! The account of a store's disk space: what its files hold, and how much of that is garbage.
//!
//! The log's records and the tree's nodes count alike, against one limit. Segment indexes grow with the records
//! and count with them; disk space that the log reserves ahead is neither live nor garbage.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::version::Version;

/// Sizes in bytes of a version's files, and of what is live in them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Space {
    /// Live bytes.
    pub live: u64,
    /// Bytes of everything else.
    pub garbage: u64,
}

impl Space {
    /// Whether more than `percent` percent of the bytes are garbage.
    pub(crate) fn exceeds(self, percent: u64) -> bool {
        self.garbage > garbage_max(self.live, percent)
    }

    /// As [`Space::exceeds`], by at least `bytes_min` bytes.
    pub(crate) fn exceeds_by(self, percent: u64, bytes_min: u64) -> bool {
        self.garbage > garbage_max(self.live, percent).saturating_add(bytes_min)
    }
}

/// The most garbage beside `live` bytes that is at most `percent` percent of both.
pub(crate) fn garbage_max(live: u64, percent: u64) -> u64 {
    match 100_u64.checked_sub(percent) {
        None | Some(0) => u64::MAX,
        Some(rest) => (u128::from(live) * u128::from(percent) / u128::from(rest)) as u64,
    }
}

/// The space of a store as of its last checkpoint or change of files. What was committed since is added from the
/// memtables, so that a commit costs no sum over the files.
#[derive(Debug, Default)]
pub(crate) struct SpaceAccount {
    live: AtomicU64,
    garbage: AtomicU64,
    /// Garbage that the last compaction could not free.
    unreclaimable: AtomicU64,
}

impl SpaceAccount {
    /// Records the files of a version whose unlisted segments have `log_bytes` bytes.
    pub(crate) fn set(&self, version: &Version, log_bytes: u64) {
        let (tree_bytes, tree_live) = tree_bytes(version);
        let (committed, _) = committed(version);
        let bytes = log_bytes + version.set.listed_bytes() + tree_bytes;
        let live = version.checkpoint.live_bytes() + tree_live;
        self.live.store(live, Ordering::Relaxed);
        self.garbage.store(bytes.saturating_sub(live + committed), Ordering::Relaxed);
    }

    /// The space as of the checkpoint: only that garbage can be freed without another one.
    pub(crate) fn checkpointed(&self) -> Space {
        Space { live: self.live.load(Ordering::Relaxed), garbage: self.garbage.load(Ordering::Relaxed) }
    }

    /// The space of a version.
    pub(crate) fn of(&self, version: &Version) -> Space {
        let Space { live, garbage } = self.checkpointed();
        let (committed, dead) = committed(version);
        Space { live: (live + committed).saturating_sub(dead), garbage: garbage + dead }
    }

    /// Records that a compaction has ended, and could not free this garbage.
    pub(crate) fn set_unreclaimable(&self, bytes: u64) {
        self.unreclaimable.store(bytes, Ordering::Relaxed);
    }

    /// Garbage that the last compaction could not free.
    pub(crate) fn unreclaimable(&self) -> u64 {
        self.unreclaimable.load(Ordering::Relaxed)
    }
}

/// Size of the tree's file, and of its live nodes.
fn tree_bytes(version: &Version) -> (u64, u64) {
    version.checkpoint.tree.as_ref().map_or((0, 0), |tree| (tree.tree.file_bytes(), tree.root.live_bytes()))
}

/// Bytes of the records in the memtables, and of the records that they have replaced.
fn committed(version: &Version) -> (u64, u64) {
    version
        .memtables()
        .fold((0, 0), |sum, memtable| (sum.0 + memtable.record_bytes, sum.1 + memtable.dead_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_a_share_of_live_and_garbage_together() {
        for (percent, most) in [(0, 0), (10, 111), (30, 428), (50, 1000), (90, 9000)] {
            assert_eq!(garbage_max(1000, percent), most, "{percent} %");
            let at = Space { live: 1000, garbage: most };
            assert!(
                !at.exceeds(percent) && Space { garbage: most + 1, ..at }.exceeds(percent),
                "{percent} %"
            );
        }
        assert_eq!((garbage_max(1000, 100), garbage_max(0, 99)), (u64::MAX, 0));
        assert!(!Space { live: 0, garbage: u64::MAX }.exceeds_by(100, 1));
    }
}
