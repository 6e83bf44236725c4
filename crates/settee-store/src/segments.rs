//! The store's segments: those transferred from the log, and those that replaced them.
//!
//! A segment as the log wrote it holds records at the offsets that pointers give. A rewritten segment holds
//! the live records of a run of segments, unchanged, back to back, in their order. Pointers keep naming the
//! record's first location. A sparse block index gives the offset of each block of about `BLOCK_BYTES`
//! bytes, and the record is found in its block by its `Seq`. Moving a record therefore changes no pointer,
//! and the index takes a thousandth of the segment.
//! `segment.rs` reads records, `block_index.rs` is the sparse block index, and `chunks.rs` caches parts of
//! segments in memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::manifest::SegmentName;

mod block_index;
mod chunks;
mod segment;

pub(crate) use block_index::{SparseBlockIndex, address};
pub use chunks::{CHUNK_BYTES, ChunkCache};
pub(crate) use segment::{Contents, Segment};

/// The store's segments, by the numbers that they cover.
#[derive(Clone, Default)]
pub(crate) struct Segments {
    by_last: BTreeMap<u32, Arc<Segment>>,
}

impl Segments {
    /// The segment that holds the records of the log's segment with this number.
    pub(crate) fn get(&self, number: u32) -> Option<&Arc<Segment>> {
        let (_, segment) = self.by_last.range(number..).next()?;
        (segment.name.first <= number).then_some(segment)
    }

    pub(crate) fn insert(&mut self, segment: Arc<Segment>) {
        self.by_last.insert(segment.name.last, segment);
    }

    /// Removes the segment whose last number is `last`.
    pub(crate) fn remove(&mut self, last: u32) -> Option<Arc<Segment>> {
        self.by_last.remove(&last)
    }

    /// In ascending order.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &Arc<Segment>> {
        self.by_last.values()
    }

    pub(crate) fn names(&self) -> Vec<SegmentName> {
        self.iter().map(|segment| SegmentName { clean_to: segment.clean_to(), ..segment.name }).collect()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.iter().map(|segment| segment.name.bytes).sum()
    }
}
