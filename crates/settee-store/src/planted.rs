//! Faults that tests plant, to see that they are caught; and what tests alone look at.
//!
//! Each is something a store must never do, at the very place where it would be done. The switch is
//! a field of [`StoreOptions`] that is there only with the feature `planted-faults`, which this
//! crate's own tests set and nobody else may. Without it [`StoreOptions::is_planted`] is false when
//! the program is built, and nothing of the faults gets into it.
//!
//! One more, a root that is written before its nodes are synced, is the simulated disk's.

use crate::state::Rules;
use crate::store::StoreOptions;

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    not(feature = "planted-faults"),
    expect(unreachable_pub, reason = "public where it can be planted")
)]
pub enum Planted {
    /// Segments that were rewritten go before the manifest says so.
    FileRemovedEarly,
    /// A rewritten segment's pieces are filed by where the records lie now.
    RemapLost,
    /// Compaction takes for dead what was replaced since the checkpoint.
    UpdateLost,
    /// Compaction leaves out tombstones that older segments still need.
    TombstoneTooSoon,
    /// The bytes of a segment that was rewritten are used again at once.
    #[cfg(feature = "planted-faults")]
    SnapshotFileRecycled,
    /// A listed record that was replaced stays listed.
    SupersededShown,
    /// Replay begins before the checkpoint, and hides what it meets again there.
    LiveSkipped,
    /// A layer's sums forget what an entry changed before.
    WrongReduction,
    /// The cache takes a segment's chunks for those of the one that it took the place of.
    #[cfg(feature = "planted-faults")]
    StaleCache,
}

impl StoreOptions {
    /// Whether the fault was planted.
    #[cfg(feature = "planted-faults")]
    pub(crate) fn is_planted(&self, fault: Planted) -> bool {
        self.planted == Some(fault)
    }

    #[cfg(not(feature = "planted-faults"))]
    pub(crate) const fn is_planted(&self, _: Planted) -> bool {
        false
    }
}

impl Rules {
    /// As [`StoreOptions::is_planted`].
    #[cfg(feature = "planted-faults")]
    pub(crate) fn is_planted(&self, fault: Planted) -> bool {
        self.planted == Some(fault)
    }

    #[cfg(not(feature = "planted-faults"))]
    pub(crate) const fn is_planted(&self, _: Planted) -> bool {
        false
    }
}

#[cfg(feature = "planted-faults")]
mod files {
    use std::sync::Arc;

    use bytes::Bytes;
    use settee_io::{File, OpenMode};

    use super::Planted;
    use crate::error::StoreError;
    use crate::segments::Segment;
    use crate::store::Shared;

    impl Shared {
        /// [`Planted::SnapshotFileRecycled`]: what another file would have there is made up.
        pub(crate) async fn recycle(&self, segment: &Segment) -> Result<(), StoreError> {
            if self.place.options.is_planted(Planted::SnapshotFileRecycled) {
                let file = File::open(&self.place.env.engine, segment.path(), OpenMode::Write).await?;
                file.write_at(0, Bytes::from(vec![0xDB; segment.name.bytes as usize])).await?;
            }
            Ok(())
        }

        /// [`Planted::StaleCache`].
        pub(crate) fn with_stale_chunks(
            &self,
            new: Option<Arc<Segment>>,
            old: &Segment,
        ) -> Option<Arc<Segment>> {
            match self.place.options.is_planted(Planted::StaleCache) {
                true => new.and_then(Arc::into_inner).map(|new| Arc::new(new.with_stale_chunks(old))),
                false => new,
            }
        }
    }
}

#[cfg(feature = "planted-faults")]
mod live {
    use std::collections::BTreeMap;
    use std::ops::Bound;

    use crate::error::ReadError;
    use crate::state::{BY_KEY, Live, TreeBase, decode};
    use crate::store::Store;

    /// Bytes and records that live, by the segments' numbers.
    pub type LiveTable = BTreeMap<u32, (u64, u64)>;

    impl Store {
        /// What the last checkpoint says lives of each segment, and what its tree does.
        ///
        /// # Errors
        /// See [`ReadError`].
        #[doc(hidden)]
        pub async fn live_tables(&self) -> Result<(LiveTable, LiveTable), ReadError> {
            let base = self.base().await;
            let table = |live: &BTreeMap<u32, Live>| {
                live.iter().map(|(number, live)| (*number, (live.bytes, live.count))).collect()
            };
            let mut found: BTreeMap<u32, Live> = BTreeMap::new();
            if let Some(TreeBase { root, .. }) = &base.tree {
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
            Ok((table(&base.live), table(&found)))
        }
    }
}

#[cfg(feature = "planted-faults")]
pub use live::LiveTable;
