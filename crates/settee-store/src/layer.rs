//! The memory layer: an ordered map from keys to the places of their records in the log.
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
//! 3. The totals kept for a child are those of the entries under it.
//! 4. No node that a snapshot can reach ever changes.
//! 5. A leaf is empty only in an empty layer; an inner node has two children at least.
//! 6. A page holds at most `RECORD_COUNT_MAX` records, and two of any legal size.

use std::fmt;
use std::ops::Bound;

use settee_log::{KEY_SIZE_MAX, META_SIZE_MAX};

mod cursor;
mod entry;
mod node;
mod page;
#[cfg(test)]
mod tests;

pub use cursor::Cursor;
pub use entry::{Found, Location, Previous, Sums};

use node::Subtree;

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

    /// Inserts an entry, or replaces the one at `key`, and returns what it replaced.
    ///
    /// # Panics
    /// Where the key exceeds [`KEY_SIZE_MAX`], or the meta [`META_SIZE_MAX`].
    pub fn insert(&mut self, key: &[u8], meta: &[u8], location: Location, sums: Sums) -> Option<Previous> {
        assert!(key.len() <= KEY_SIZE_MAX, "key of {} bytes", key.len());
        assert!(meta.len() <= META_SIZE_MAX, "meta of {} bytes", meta.len());
        self.root.insert_at_root(key, &entry::encode(meta, location, sums), sums)
    }

    /// Removes the entry at `key`, and returns what it was. Where there is none, nothing is
    /// copied or changed.
    pub fn remove(&mut self, key: &[u8]) -> Option<Previous> {
        self.get(key)?;
        Some(self.root.remove_at_root(key))
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
        std::array::from_fn(|index| end[index] - start[index])
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
