//! Failpoints: faults that tests enable to see that they are caught.
//!
//! Each failpoint does something a store must never do, at the place where it would happen. The switch is a
//! field of `StoreOptions` that exists only with the feature `failpoints`, which only this crate's own tests
//! may enable. Without the feature `StoreOptions::is_enabled` is false at compile time, and the program
//! contains none of the faults. The code of the longer ones is in `tests/failpoints`.
//!
//! The simulated disk has one more: a root that is written before its nodes are synced.

/// A fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "failpoints"),
    expect(unreachable_pub, reason = "public with the feature `failpoints`")
)]
pub enum Failpoint {
    /// Rewritten segments are removed before the manifest says so.
    FileRemovedEarly,
    /// A rewritten segment's blocks are indexed by the new offsets of their records.
    RemapLost,
    /// Compaction drops records that were replaced after the checkpoint.
    UpdateLost,
    /// Compaction drops tombstones that older segments still need.
    TombstoneTooSoon,
    /// The bytes of a rewritten segment are overwritten at once.
    #[cfg(feature = "failpoints")]
    SnapshotFileRecycled,
    /// A replaced record stays in the seq index.
    SupersededShown,
    /// Replay begins before the checkpoint, and hides records that the checkpoint contains.
    LiveSkipped,
    /// A memtable's aggregates omit an entry's previous difference.
    WrongReduction,
    /// The cache returns the chunks of the segment that a new one replaced.
    #[cfg(feature = "failpoints")]
    StaleCache,
}
