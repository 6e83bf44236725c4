//! A memory layer: an ordered map from keys to small values, with sums over ranges of keys.
//!
//! It is a copy-on-write B+tree. A [`Layer`] is a reference to a root, so that cloning one takes
//! a snapshot in constant time, and readers of a snapshot never wait. The writer changes the
//! nodes that are its alone in place, and copies a node that a snapshot shares at the first
//! touch: however many entries are inserted between two snapshots, each node is copied at most
//! once. Records are packed (`page.rs`), so that copying a leaf copies two blocks of memory.
//! Inner nodes keep, for each child, its number of entries and their sums (`node.rs`), so that
//! counting, summing and skipping cost one descent (`cursor.rs`).
//!
//! Invariants:
//! 1. Keys ascend strictly from left to right; all leaves are at the same depth.
//! 2. A separator is above every key to its left, and not above any key to its right.
//! 3. The totals kept for a child are those of the entries under it. Sums wrap around.
//! 4. No node that a snapshot can reach ever changes.
//! 5. A leaf is empty only in an empty layer; an inner node has two children at least.
//! 6. A page holds at most `RECORD_COUNT_MAX` records, and two of any legal size.

use std::fmt;
use std::ops::Bound;

mod cursor;
mod entry;
mod node;
mod page;
#[cfg(test)]
mod tests;

pub use cursor::Cursor;
pub use entry::{Found, Sums};
pub(crate) use entry::{add, subtract};

use node::Subtree;

/// Longest key in bytes.
pub(crate) const KEY_SIZE_MAX: usize = (8 << 10) + 16;

/// Longest value in bytes.
pub(crate) const VALUE_SIZE_MAX: usize = 4 << 10;

/// An ordered map in memory, and a snapshot of itself.
///
/// Cloning takes a snapshot in constant time; later changes to either don't show in the other.
/// Every operation on one entry costs O(log n).
#[derive(Clone, Default)]
pub struct Layer {
    root: Subtree,
}

impl Layer {
    /// A layer without entries.
    pub fn new() -> Layer {
        Layer::default()
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.root.totals().count as usize
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The entry at `key`.
    pub fn get(&self, key: &[u8]) -> Option<Found<'_>> {
        self.root.get(key)
    }

    /// Inserts an entry, or replaces the one at `key`. `make` is given what it replaces, appends
    /// the new value to the buffer and returns the new sums. One descent.
    ///
    /// # Panics
    /// Where the key exceeds the limit, or the value does.
    pub fn upsert(&mut self, key: &[u8], make: impl FnMut(Option<Found<'_>>, &mut Vec<u8>) -> Sums) {
        assert!(key.len() <= KEY_SIZE_MAX, "key of {} bytes", key.len());
        self.root.upsert_at_root(key, make);
    }

    /// Inserts an entry, or replaces the one at `key`.
    ///
    /// # Panics
    /// As [`Layer::upsert`].
    pub fn insert(&mut self, key: &[u8], value: &[u8], sums: Sums) {
        self.upsert(key, |_, buffer| {
            buffer.extend_from_slice(value);
            sums
        });
    }

    /// Removes the entry at `key`; false where there is none: then nothing is copied or changed.
    pub fn remove(&mut self, key: &[u8]) -> bool {
        let is_there = self.get(key).is_some();
        if is_there {
            self.root.remove_at_root(key);
        }
        is_there
    }

    /// The sums over all entries.
    pub fn sums(&self) -> Sums {
        self.root.totals().sums
    }

    /// The sums over the entries within the bounds; zero where the bounds hold nothing.
    pub fn sums_in(&self, range: (Bound<&[u8]>, Bound<&[u8]>)) -> Sums {
        let (start, end) = self.root.range(range.0, range.1);
        if start.rank() >= end.rank() {
            return Sums::default();
        }
        let (start, end) = (start.sums(), end.sums());
        subtract(end, start)
    }

    /// A cursor over all entries, in ascending order.
    pub fn cursor(&self) -> Cursor {
        Cursor::range(self, Bound::Unbounded, Bound::Unbounded, false)
    }

    /// The memory that the layer's nodes take, in bytes, but for the allocator's overhead. What
    /// a snapshot shares with other layers is counted in each.
    pub fn memory_bytes(&self) -> usize {
        self.root.totals().bytes as usize
    }
}

impl fmt::Debug for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Layer").field("len", &self.len()).field("sums", &self.sums()).finish_non_exhaustive()
    }
}
