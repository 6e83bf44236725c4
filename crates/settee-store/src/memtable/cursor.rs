//! Cursors: scans in both directions over a snapshot of a map.
//!
//! A cursor is a range of ranks and the leaf it was last in; an entry's rank is the number of entries before
//! it. The bounds are converted to ranks once, so that a step compares no keys, and a skip changes one
//! number.

use std::ops::{Bound, Range};
use std::sync::Arc;

use super::entry::Found;
use super::map::MemtableMap;
use super::node::{Node, Subtree};

/// A scan over the entries of a [`MemtableMap`] within bounds. It owns a snapshot: later changes to the map
/// don't show.
#[derive(Clone)]
pub struct Cursor {
    root: Subtree,
    /// Ranks of the remaining entries.
    ranks: Range<u64>,
    descending: bool,
    leaf: Arc<Node>,
    /// Ranks of the leaf's entries.
    leaf_ranks: Range<u64>,
    /// Index in the leaf of the entry that [`Cursor::current`] returns.
    at: Option<usize>,
}

impl MemtableMap {
    /// A cursor over all entries, in ascending order.
    pub fn cursor(&self) -> Cursor {
        Cursor::range(self, Bound::Unbounded, Bound::Unbounded, false)
    }
}

impl Cursor {
    /// Creates a cursor over the entries within the bounds, which starts at the first one, or at the last if
    /// descending. Costs O(log n), as do skips.
    pub fn range(map: &MemtableMap, start: Bound<&[u8]>, end: Bound<&[u8]>, descending: bool) -> Cursor {
        let (start, end) = map.root.range(start, end);
        let ranks = start.rank()..end.rank();
        let root = map.root.clone();
        let (leaf, first) = root.leaf_at(if descending { ranks.end.saturating_sub(1) } else { ranks.start });
        let leaf = leaf.clone();
        let leaf_ranks = first..first + leaf.count() as u64;
        Cursor { root, ranks, descending, leaf, leaf_ranks, at: None }
    }

    /// The next entry.
    #[expect(clippy::should_implement_trait, reason = "what it returns borrows from the cursor")]
    pub fn next(&mut self) -> Option<Found<'_>> {
        self.next_where(|_| true)
    }

    /// The next entry for which `wanted` is true; entries before it are skipped one by one.
    pub fn next_where(&mut self, wanted: impl Fn(Found<'_>) -> bool) -> Option<Found<'_>> {
        let index = loop {
            let index = self.step()?;
            if wanted(self.leaf.entry(index)) {
                break index;
            }
        };
        Some(self.leaf.entry(index))
    }

    /// Advances to the next entry, and returns its index in the leaf.
    fn step(&mut self) -> Option<usize> {
        if self.ranks.is_empty() {
            return None;
        }
        let rank = if self.descending {
            self.ranks.end -= 1;
            self.ranks.end
        } else {
            self.ranks.start += 1;
            self.ranks.start - 1
        };
        if !self.leaf_ranks.contains(&rank) {
            let (leaf, first) = self.root.leaf_at(rank);
            leaf.prefetch();
            self.leaf = leaf.clone();
            self.leaf_ranks = first..first + self.leaf.count() as u64;
        }
        Some((rank - self.leaf_ranks.start) as usize)
    }

    /// Advances to the next entry, for [`Cursor::current`]; false at the end.
    pub fn advance(&mut self) -> bool {
        self.at = self.step();
        self.at.is_some()
    }

    /// The entry that the last [`Cursor::advance`] went to.
    ///
    /// # Panics
    /// If that returned false, or was never called.
    pub fn current(&self) -> Found<'_> {
        self.leaf.entry(self.at.expect("the cursor is at an entry"))
    }

    /// The number of remaining entries.
    pub fn remaining(&self) -> u64 {
        self.ranks.end.saturating_sub(self.ranks.start)
    }

    /// Skips `count` entries, or all remaining ones if there are fewer.
    pub fn skip(&mut self, count: u64) {
        let count = count.min(self.remaining());
        if self.descending {
            self.ranks.end -= count;
        } else {
            self.ranks.start += count;
        }
    }

    /// Skips the fewest entries whose aggregates add up to at least `amount` in `component`, or all remaining
    /// entries if they add up to less. Returns the sum skipped. No entry's aggregate may be negative in that
    /// component.
    pub fn skip_sum(&mut self, component: usize, amount: u64) -> u64 {
        if amount == 0 || self.ranks.is_empty() {
            return 0;
        }
        let sum_before = |rank| self.root.longest_prefix(|prefix| prefix.count <= rank).aggregates[component];
        let count_while = |holds: &dyn Fn(u64) -> bool| {
            self.root.longest_prefix(|prefix| holds(prefix.aggregates[component])).count
        };
        let (low, high) = (sum_before(self.ranks.start), sum_before(self.ranks.end));
        if high - low < amount {
            self.skip(u64::MAX);
            return high - low;
        }
        if self.descending {
            self.ranks.end = count_while(&|sum| sum <= high - amount);
            high - sum_before(self.ranks.end)
        } else {
            self.ranks.start = count_while(&|sum| sum < low + amount) + 1;
            sum_before(self.ranks.start) - low
        }
    }
}
