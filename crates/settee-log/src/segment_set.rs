//! The set of a log's files: an immutable map from ranges of segment numbers to segments.
//!
//! A segment as the log wrote it holds records at the offsets that locations give. A rewritten segment holds
//! some of the records of a run of segments, unchanged, back to back, in their order. Locations keep naming
//! the record's first place. A sparse block index gives the offset of each block of about `BLOCK_BYTES`
//! bytes, and the record is found in its block by its `Seq`. Moving a record therefore changes no location,
//! and the index takes a thousandth of the segment.
//!
//! `segment` reads records, `block_index` is the sparse block index, `chunks` caches parts of segments in
//! memory, and `stored_file` is a file by its name, which goes with its last user.
//!
//! Invariants:
//! 1. A set never changes: an edit makes a new one. All files of a set can be read as long as it exists, also after
//!    they were replaced or removed, and after the log was closed.
//! 2. Segments don't overlap.

use std::collections::BTreeMap;
use std::sync::Arc;

mod block_index;
mod chunks;
mod segment;
mod stored_file;

pub use block_index::SparseBlockIndex;
pub use chunks::{CHUNK_BYTES, ChunkCache};
pub use segment::{Segment, SegmentContents, SegmentName, WantedRecord};
pub use stored_file::StoredFile;

/// The files of a log at one point in time, by the segment numbers that they cover. Cheap to pin, by its
/// `Arc`; can be used from many tasks at once.
#[derive(Debug, Clone, Default)]
pub struct SegmentSet {
    by_last: BTreeMap<u32, Arc<Segment>>,
    /// All segments up to this one are in the manifest, or were removed.
    listed_to: u32,
}

impl SegmentSet {
    /// The segment that holds the records of the log's segment with this number.
    pub fn get(&self, number: u32) -> Option<&Arc<Segment>> {
        let (_, segment) = self.by_last.range(number..).next()?;
        (segment.name.first <= number).then_some(segment)
    }

    /// All segments, in ascending order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Arc<Segment>> {
        self.by_last.values()
    }

    /// The segments in the manifest, in ascending order: nothing is appended to them any more.
    pub fn listed(&self) -> impl DoubleEndedIterator<Item = &Arc<Segment>> {
        self.by_last.range(..=self.listed_to).map(|(_, segment)| segment)
    }

    /// The last number that the manifest covers: higher ones aren't in it (yet).
    pub fn listed_to(&self) -> u32 {
        self.listed_to
    }

    /// Size of the listed segments in bytes, without their segment indexes.
    pub fn listed_bytes(&self) -> u64 {
        self.listed().map(|segment| segment.name.bytes).sum()
    }

    /// The listed segments as the manifest names them.
    pub(crate) fn names(&self) -> Vec<SegmentName> {
        self.listed().map(|segment| segment.present_name()).collect()
    }

    /// Whether it has a segment with one of these numbers.
    pub fn overlaps(&self, name: &SegmentName) -> bool {
        self.by_last.range(name.first..).next().is_some_and(|(_, next)| next.name.first <= name.last)
    }

    /// Adds a segment.
    ///
    /// # Panics
    /// If it overlaps another.
    pub fn insert(&mut self, segment: Arc<Segment>) {
        assert!(!self.overlaps(&segment.name), "{:?} overlaps another segment", segment.name);
        self.by_last.insert(segment.name.last, segment);
    }

    /// Removes the segment whose last number is `last`.
    pub(crate) fn remove(&mut self, last: u32) -> Option<Arc<Segment>> {
        self.by_last.remove(&last)
    }

    /// Sets the last number that the manifest covers.
    pub fn set_listed_to(&mut self, listed_to: u32) {
        self.listed_to = listed_to;
    }

    /// The first invariant of a list of segments that the names violate; `None` if they are valid.
    pub(crate) fn violated_invariant(names: &[SegmentName], listed_to: u32) -> Option<&'static str> {
        let violated = [
            (
                names.iter().any(|name| name.first == 0 || name.first > name.last),
                "a segment's numbers are invalid",
            ),
            (!names.is_sorted_by(|a, b| a.last < b.first), "its segments overlap, or are out of order"),
            (
                names.last().is_some_and(|last| last.last > listed_to),
                "a listed segment is beyond the last listed one",
            ),
        ];
        violated.into_iter().find_map(|(is_violated, what)| is_violated.then_some(what))
    }
}
