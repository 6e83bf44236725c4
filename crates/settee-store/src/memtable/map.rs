//! The map: ordered, from keys to small values, with aggregates over ranges of keys.
//!
//! The map is a copy-on-write B+tree. A [`MemtableMap`] is a reference to a root: cloning one takes a
//! snapshot in constant time, and readers of a snapshot never wait. The writer changes nodes that it alone
//! refers to in place, and copies a shared node when it first changes it. However many entries are inserted
//! between two snapshots, each node is copied at most once. Records are packed (`page.rs`), so that copying a
//! leaf copies two blocks of memory. Inner nodes keep the number of entries and the aggregate of each child
//! (`node.rs`), so that counting, aggregating and skipping cost one descent (`cursor.rs`).
//!
//! Invariants:
//! 1. Keys ascend strictly from left to right; all leaves are at the same depth.
//! 2. A separator is greater than every key to its left, and not greater than any key to its right.
//! 3. The totals kept for a child are those of the entries under it. Aggregates wrap around.
//! 4. No node that a snapshot can reach ever changes.
//! 5. A leaf is empty only in an empty map; an inner node has at least two children.
//! 6. A page holds at most `RECORD_COUNT_MAX` records, and can hold two of any legal size.

use std::fmt;
use std::ops::Bound;

use super::entry::{Aggregates, Found, KEY_SIZE_MAX, subtract};
use super::node::Subtree;

/// An ordered map in memory, and a snapshot of itself.
///
/// Cloning takes a snapshot in constant time; later changes to either don't show in the other. Every
/// operation on one entry costs O(log n).
#[derive(Clone, Default)]
pub struct MemtableMap {
    pub(super) root: Subtree,
}

impl MemtableMap {
    /// Creates an empty map.
    pub fn new() -> MemtableMap {
        MemtableMap::default()
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.root.totals().count as usize
    }

    /// Whether the map has no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The entry at `key`.
    pub fn get(&self, key: &[u8]) -> Option<Found<'_>> {
        self.root.get(key)
    }

    /// Inserts an entry, or replaces the one at `key`, in one descent. `make` is given the entry that it
    /// replaces, appends the new value to the buffer, and returns the new aggregate.
    ///
    /// # Panics
    /// If the key or the value exceeds its limit.
    pub fn upsert(&mut self, key: &[u8], make: impl FnMut(Option<Found<'_>>, &mut Vec<u8>) -> Aggregates) {
        assert!(key.len() <= KEY_SIZE_MAX, "key of {} bytes", key.len());
        self.root.upsert_at_root(key, make);
    }

    /// Inserts an entry, or replaces the one at `key`.
    ///
    /// # Panics
    /// As [`MemtableMap::upsert`].
    pub fn insert(&mut self, key: &[u8], value: &[u8], aggregates: Aggregates) {
        self.upsert(key, |_, buffer| {
            buffer.extend_from_slice(value);
            aggregates
        });
    }

    /// Removes the entry at `key`. Returns false if there is none; then nothing is copied.
    pub fn remove(&mut self, key: &[u8]) -> bool {
        let is_there = self.get(key).is_some();
        if is_there {
            self.root.remove_at_root(key);
        }
        is_there
    }

    /// The aggregate over all entries.
    pub fn aggregates(&self) -> Aggregates {
        self.root.totals().aggregates
    }

    /// The aggregate over the entries within the bounds; zero if there are none.
    pub fn aggregates_in(&self, range: (Bound<&[u8]>, Bound<&[u8]>)) -> Aggregates {
        let (start, end) = self.root.range(range.0, range.1);
        if start.rank() >= end.rank() {
            return Aggregates::default();
        }
        let (start, end) = (start.aggregates(), end.aggregates());
        subtract(end, start)
    }

    /// Size of the map's nodes in bytes, without the allocator's overhead. Nodes shared with other maps count
    /// in each.
    pub fn memory_bytes(&self) -> usize {
        self.root.totals().bytes as usize
    }
}

impl fmt::Debug for MemtableMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemtableMap")
            .field("len", &self.len())
            .field("aggregates", &self.aggregates())
            .finish_non_exhaustive()
    }
}
