//! Range queries that don't visit entries: summaries, counts, and the position where a sum is reached.
//!
//! They descend along at most the two edges of the range; inner nodes on the way have the summaries of
//! everything between.

use std::ops::{Bound, Range};
use std::sync::Arc;

use crate::error::TreeError;
use crate::node::{ChildRecord, Node};
use crate::reduction::Reduction;
use crate::root::Root;

/// An inner node at an edge of the range.
struct Edge {
    node: Arc<Node>,
    /// The children not visited yet.
    remaining: Range<usize>,
    /// Whether all keys under it lie before the range's end.
    ends_within: bool,
}

/// Summary and count of a run of entries.
struct RangeSummary<S> {
    summary: S,
    count: u64,
}

impl<S> RangeSummary<S> {
    fn add<R: Reduction<Summary = S>>(&mut self, reduction: &R, summary: &S, count: u64) {
        self.summary = reduction.join(&self.summary, summary);
        self.count = self.count.saturating_add(count);
    }
}

/// # Reductions
impl<R: Reduction> Root<R> {
    /// The summary of the entries in the range. Reads at most two nodes per level.
    ///
    /// # Errors
    /// [`TreeError::Damaged`], or the system's error.
    pub async fn summary_in(&self, range: (Bound<&[u8]>, Bound<&[u8]>)) -> Result<R::Summary, TreeError> {
        Ok(self.summarize(range).await?.summary)
    }

    /// The number of entries in the range. Reads at most two nodes per level.
    ///
    /// # Errors
    /// [`TreeError::Damaged`], or the system's error.
    pub async fn count_in(&self, range: (Bound<&[u8]>, Bound<&[u8]>)) -> Result<u64, TreeError> {
        Ok(self.summarize(range).await?.count)
    }

    async fn summarize(
        &self,
        (start, end): (Bound<&[u8]>, Bound<&[u8]>),
    ) -> Result<RangeSummary<R::Summary>, TreeError> {
        let reduction = &self.shared.reduction;
        let mut total = RangeSummary { summary: reduction.zero(), count: 0 };
        let Some(top) = &self.state.top else { return Ok(total) };
        if matches!((start, end), (Bound::Unbounded, Bound::Unbounded)) {
            return Ok(RangeSummary { summary: self.summary(), count: self.len() });
        }
        let mut edges = Vec::new();
        let mut next = Some((top.node.clone(), matches!(end, Bound::Unbounded)));
        loop {
            if let Some((node, ends_within)) = next.take() {
                if node.is_leaf() {
                    self.add_entries(&node, node.entries_in(start, end), &mut total);
                } else {
                    edges.push(Edge { remaining: node.children_in(start, end), node, ends_within });
                }
            }
            let Some(edge) = edges.last_mut() else { return Ok(total) };
            let Some(index) = edge.remaining.next() else {
                edges.pop();
                continue;
            };
            let ends_within = match end {
                Bound::Unbounded => true,
                Bound::Included(key) | Bound::Excluded(key) if index + 1 < edge.node.len() => {
                    edge.node.compare(index + 1, key).is_le()
                }
                _ => edge.ends_within,
            };
            if ends_within && starts_within(&edge.node, index, start) {
                let record = self.record(&edge.node, index)?;
                total.add(reduction, &record.summary, record.count);
            } else {
                let pointer = self.shared.child_pointer(&edge.node, index)?;
                next = Some((self.shared.load(pointer, edge.node.level() - 1, true).await?, ends_within));
            }
        }
    }

    /// Finds a position in the range without visiting the entries before it. A boundary is a key: that of any
    /// entry, or the separator of a node. `passes` receives the summary and the count of all entries in the
    /// range before a boundary, and the boundary; it must be true up to some boundary and false from there
    /// on. Returns the greatest boundary for which it is true, and the summary and count of the entries
    /// before it; if none passes, or the range has no entry, it returns the range's start with nothing before
    /// it.
    ///
    /// To skip up to `n` entries, use `|_, count, _| count <= n` and scan from the boundary, where `n -
    /// count` entries remain to be skipped. Reads at most two nodes per level; those at the range's start are
    /// looked up in the cache more than once.
    ///
    /// # Errors
    /// [`TreeError::Damaged`], or the system's error.
    pub async fn seek(
        &self,
        (start, end): (Bound<&[u8]>, Bound<&[u8]>),
        mut passes: impl FnMut(&R::Summary, u64, &[u8]) -> bool,
    ) -> Result<(Vec<u8>, R::Summary, u64), TreeError> {
        let reduction = &self.shared.reduction;
        let mut boundary = match start {
            Bound::Included(key) | Bound::Excluded(key) => key.to_vec(),
            Bound::Unbounded => Vec::new(),
        };
        let mut before = RangeSummary { summary: reduction.zero(), count: 0 };
        let Some(top) = &self.state.top else { return Ok((boundary, before.summary, before.count)) };
        let mut node = top.node.clone();
        while !node.is_leaf() {
            let children = node.children_in(start, end);
            if children.is_empty() {
                return Ok((boundary, before.summary, before.count));
            }
            // Summaries of the entries before each child. The first child's boundary has passed already.
            let mut preceding = vec![before];
            for index in children.start..children.end - 1 {
                let last = preceding.last().expect("it has one");
                let mut next = RangeSummary { summary: last.summary.clone(), count: last.count };
                if starts_within(&node, index, start) {
                    let record = self.record(&node, index)?;
                    next.add(reduction, &record.summary, record.count);
                } else {
                    let below = self.summarize_under(&node, index, (start, end)).await?;
                    next.add(reduction, &below.summary, below.count);
                }
                preceding.push(next);
            }
            let mut key = Vec::new();
            let chosen = last_passing(preceding.len(), |index| {
                node.copy_key(children.start + index, &mut key);
                passes(&preceding[index].summary, preceding[index].count, &key)
            });
            if chosen > 0 {
                boundary = node.key(children.start + chosen);
            }
            before = preceding.swap_remove(chosen);
            let pointer = self.shared.child_pointer(&node, children.start + chosen)?;
            node = self.shared.load(pointer, node.level() - 1, true).await?;
        }
        let entries = node.entries_in(start, end);
        let mut preceding = vec![before];
        for index in entries.clone() {
            let last = preceding.last().expect("it has one");
            let mut next = RangeSummary { summary: last.summary.clone(), count: last.count };
            self.add_entries(&node, index..index + 1, &mut next);
            preceding.push(next);
        }
        let mut key = Vec::new();
        // Index 0 is the boundary that has passed already, the others are entries.
        let chosen = last_passing(entries.len() + 1, |index| {
            node.copy_key(entries.start + index - 1, &mut key);
            passes(&preceding[index - 1].summary, preceding[index - 1].count, &key)
        });
        if chosen > 0 {
            boundary = node.key(entries.start + chosen - 1);
        }
        let before = preceding.swap_remove(chosen.saturating_sub(1));
        Ok((boundary, before.summary, before.count))
    }

    /// Summary and count of the part of the range that lies under a child.
    async fn summarize_under(
        &self,
        node: &Node,
        index: usize,
        range: (Bound<&[u8]>, Bound<&[u8]>),
    ) -> Result<RangeSummary<R::Summary>, TreeError> {
        let end = if index + 1 < node.len() { Some(node.key(index + 1)) } else { None };
        self.summarize((range.0, end.as_deref().map_or(range.1, Bound::Excluded))).await
    }

    fn add_entries(&self, leaf: &Node, entries: Range<usize>, total: &mut RangeSummary<R::Summary>) {
        let reduction = &self.shared.reduction;
        let mut key = Vec::new();
        for index in entries {
            leaf.copy_key(index, &mut key);
            total.add(reduction, &reduction.of(&key, leaf.payload(index)), 1);
        }
    }

    fn record(&self, node: &Node, index: usize) -> Result<ChildRecord<R::Summary>, TreeError> {
        let record = node.child_record(&self.shared.reduction, index);
        record.ok_or_else(|| self.shared.malformed_item(node.offset()))
    }
}

/// Whether all keys under a child lie behind the range's start.
fn starts_within(node: &Node, index: usize, start: Bound<&[u8]>) -> bool {
    match start {
        Bound::Unbounded => true,
        Bound::Included(key) => node.compare(index, key).is_ge(),
        Bound::Excluded(key) => node.compare(index, key).is_gt(),
    }
}

/// The last index below `count` that passes. Index 0 passes without a call.
fn last_passing(count: usize, mut passes: impl FnMut(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, count);
    while high - low > 1 {
        let middle = (low + high) / 2;
        if passes(middle) { low = middle } else { high = middle }
    }
    low
}
