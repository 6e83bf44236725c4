//! Cursors: scans in both directions over a snapshot of a layer.
//!
//! A cursor is a range of ranks (a rank is the number of entries before an entry) and the leaf
//! it was last in. Its bounds are turned into ranks once, so that a step compares no keys, and
//! skipping changes a number.

use std::ops::{Bound, Range};
use std::sync::Arc;

use super::Layer;
use super::entry::Found;
use super::node::{Node, Subtree};

/// A scan over the entries of a [`Layer`] within bounds. It owns a snapshot: later changes to the
/// layer don't show.
#[derive(Clone)]
pub struct Cursor {
    root: Subtree,
    /// The ranks of the entries yet to come.
    ranks: Range<u64>,
    descending: bool,
    leaf: Arc<Node>,
    /// The ranks of the leaf's entries.
    leaf_ranks: Range<u64>,
    /// Where it stands in the leaf, for [`Cursor::current`].
    at: Option<usize>,
}

impl Cursor {
    /// A cursor over the entries within the bounds, from the first one, or from the last where
    /// descending. Costs O(log n), as do skips.
    pub fn range(layer: &Layer, start: Bound<&[u8]>, end: Bound<&[u8]>, descending: bool) -> Cursor {
        let (start, end) = layer.root.range(start, end);
        let ranks = start.rank()..end.rank();
        let root = layer.root.clone();
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

    /// The next entry that is wanted; those before it are passed over, one by one.
    pub fn next_where(&mut self, wanted: impl Fn(Found<'_>) -> bool) -> Option<Found<'_>> {
        let index = loop {
            let index = self.step()?;
            if wanted(self.leaf.entry(index)) {
                break index;
            }
        };
        Some(self.leaf.entry(index))
    }

    /// Goes to the next entry; returns its place in the leaf.
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

    /// Goes to the next entry, for [`Cursor::current`]; false at the end.
    pub fn advance(&mut self) -> bool {
        self.at = self.step();
        self.at.is_some()
    }

    /// The entry that the last [`Cursor::advance`] went to.
    ///
    /// # Panics
    /// Where that returned false, or there was none.
    pub fn current(&self) -> Found<'_> {
        self.leaf.entry(self.at.expect("a cursor stands at an entry"))
    }

    /// How many entries are yet to come.
    pub fn remaining(&self) -> u64 {
        self.ranks.end.saturating_sub(self.ranks.start)
    }

    /// Skips entries; all that are yet to come where `count` exceeds them.
    pub fn skip(&mut self, count: u64) {
        let count = count.min(self.remaining());
        if self.descending {
            self.ranks.end -= count;
        } else {
            self.ranks.start += count;
        }
    }

    /// Skips as few entries as have sums of at least `amount` together in the component; all that
    /// are yet to come where their sum is less. Returns the sum of what was skipped. No entry may
    /// take away from the component.
    pub fn skip_sum(&mut self, component: usize, amount: u64) -> u64 {
        if amount == 0 || self.ranks.is_empty() {
            return 0;
        }
        let sum_before = |rank| self.root.longest_prefix(|prefix| prefix.count <= rank).sums[component];
        let count_while = |holds: &dyn Fn(u64) -> bool| {
            self.root.longest_prefix(|prefix| holds(prefix.sums[component])).count
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
