//! Failpoints: faults that tests enable to see that they are caught; and access for tests.
//!
//! Each failpoint does something a store must never do, at the place where it would happen. The switch is a
//! field of [`StoreOptions`] that exists only with the feature `failpoints`, which only this crate's own
//! tests may enable. Without the feature [`StoreOptions::is_enabled`] is false at compile time, and the
//! program contains none of the faults.
//!
//! The simulated disk has one more: a root that is written before its nodes are synced.

use crate::options::StoreOptions;
use crate::version::Rules;

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

impl StoreOptions {
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

#[cfg(feature = "failpoints")]
mod files {
    use std::sync::Arc;

    use bytes::Bytes;
    use settee_io::{File, OpenMode};

    use super::Failpoint;
    use crate::error::StoreError;
    use crate::segments::Segment;
    use crate::store::Shared;

    impl Shared {
        /// [`Failpoint::SnapshotFileRecycled`]: overwrites the file with arbitrary bytes.
        pub(crate) async fn recycle(&self, segment: &Segment) -> Result<(), StoreError> {
            if self.context.options.is_enabled(Failpoint::SnapshotFileRecycled) {
                let file = File::open(&self.context.env.engine, segment.path(), OpenMode::Write).await?;
                file.write_at(0, Bytes::from(vec![0xDB; segment.name.bytes as usize])).await?;
            }
            Ok(())
        }

        /// [`Failpoint::StaleCache`].
        pub(crate) fn with_stale_chunks(
            &self,
            new: Option<Arc<Segment>>,
            old: &Segment,
        ) -> Option<Arc<Segment>> {
            match self.context.options.is_enabled(Failpoint::StaleCache) {
                true => new.and_then(Arc::into_inner).map(|new| Arc::new(new.with_stale_chunks(old))),
                false => new,
            }
        }
    }
}

#[cfg(feature = "failpoints")]
mod live {
    use std::collections::BTreeMap;
    use std::ops::Bound;

    use crate::checkpoint_state::{CheckpointTree, Live};
    use crate::error::ReadError;
    use crate::store::Store;
    use crate::tree_index::{BY_KEY, decode};

    /// Live bytes and records by segment number.
    pub type LiveTable = BTreeMap<u32, (u64, u64)>;

    impl Store {
        /// The live bytes of each segment as the last checkpoint recorded them, and as its tree yields them.
        ///
        /// # Errors
        /// See [`ReadError`].
        #[doc(hidden)]
        pub async fn live_tables(&self) -> Result<(LiveTable, LiveTable), ReadError> {
            let checkpoint = self.checkpoint_state().await;
            let table = |live: &BTreeMap<u32, Live>| {
                live.iter().map(|(number, live)| (*number, (live.bytes, live.count))).collect()
            };
            let mut found: BTreeMap<u32, Live> = BTreeMap::new();
            if let Some(CheckpointTree { root, .. }) = &checkpoint.tree {
                let range = (Bound::Included(&[BY_KEY][..]), Bound::Excluded(&[BY_KEY + 1][..]));
                let mut scan = root.scan(range, false);
                while let Some((_, value)) = scan.next().await? {
                    for pointer in decode(value)?.pointers() {
                        let live = found.entry(pointer.location.segment).or_default();
                        live.bytes += u64::from(pointer.location.length);
                        live.count += 1;
                    }
                }
            }
            Ok((table(&checkpoint.live), table(&found)))
        }
    }
}

#[cfg(feature = "failpoints")]
pub use live::LiveTable;
