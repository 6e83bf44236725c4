//! What is known of ranges without visiting them: summaries, counts, and where a sum is reached.
//!
//! Both go down the two edges of the range at most; what lies whole between is known from the
//! inner nodes on the way.

use std::ops::{Bound, Range};
use std::sync::Arc;

use crate::error::TreeError;
use crate::node::{ChildRecord, Node};
use crate::reduction::Reduction;
use crate::root::Root;

/// An inner node at an edge of the range.
struct Edge {
    node: Arc<Node>,
    /// The children that are left.
    left: Range<usize>,
    /// All under it is before the range's end.
    ends_within: bool,
}

/// What is known of a run of entries.
struct Known<S> {
    summary: S,
    count: u64,
}

impl<S> Known<S> {
    fn add<R: Reduction<Summary = S>>(&mut self, reduction: &R, summary: &S, count: u64) {
        self.summary = reduction.join(&self.summary, summary);
        self.count = self.count.saturating_add(count);
    }
}

/// # Reductions
impl<R: Reduction> Root<R> {
    /// The summary of the entries in the range. Reads at most two nodes a level.
    ///
    /// # Errors
    /// [`TreeError::Damaged`], or what the system says.
    pub async fn summary_in(&self, range: (Bound<&[u8]>, Bound<&[u8]>)) -> Result<R::Summary, TreeError> {
        Ok(self.known_in(range).await?.summary)
    }

    /// How many entries there are in the range. Reads at most two nodes a level.
    ///
    /// # Errors
    /// [`TreeError::Damaged`], or what the system says.
    pub async fn count_in(&self, range: (Bound<&[u8]>, Bound<&[u8]>)) -> Result<u64, TreeError> {
        Ok(self.known_in(range).await?.count)
    }

    async fn known_in(
        &self,
        (start, end): (Bound<&[u8]>, Bound<&[u8]>),
    ) -> Result<Known<R::Summary>, TreeError> {
        let reduction = &self.shared.reduction;
        let mut known = Known { summary: reduction.zero(), count: 0 };
        let Some(top) = &self.state.top else { return Ok(known) };
        if matches!((start, end), (Bound::Unbounded, Bound::Unbounded)) {
            return Ok(Known { summary: self.summary(), count: self.len() });
        }
        let mut edges = Vec::new();
        let mut next = Some((top.node.clone(), matches!(end, Bound::Unbounded)));
        loop {
            if let Some((node, ends_within)) = next.take() {
                if node.is_leaf() {
                    self.add_entries(&node, node.entries_in(start, end), &mut known);
                } else {
                    edges.push(Edge { left: node.children_in(start, end), node, ends_within });
                }
            }
            let Some(edge) = edges.last_mut() else { return Ok(known) };
            let Some(index) = edge.left.next() else {
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
                known.add(reduction, &record.summary, record.count);
            } else {
                let pointer = self.shared.child_pointer(&edge.node, index)?;
                next = Some((self.shared.load(pointer, edge.node.level() - 1, true).await?, ends_within));
            }
        }
    }

    /// Looks for a place in the range, without visiting the entries before it. `passes` is told
    /// the summary and the count of all entries in the range before a boundary, and the boundary,
    /// a key: it must be true up to some boundary, and false from there on. Gives the greatest
    /// boundary for which it is true, with summary and count of what lies before it. Boundaries
    /// are the keys of all entries, and the separators of nodes; where none passes, and where the
    /// range has no entry, what is given is the range's start with nothing before it.
    ///
    /// To skip as many entries as `n` allows: `|_, count, _| count <= n`, and then a scan from
    /// the boundary, of which `n - count` are still to be skipped. Reads at most two nodes a level, of which
    /// those at the range's start are asked of the cache more than once.
    ///
    /// # Errors
    /// [`TreeError::Damaged`], or what the system says.
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
        let mut before = Known { summary: reduction.zero(), count: 0 };
        let Some(top) = &self.state.top else { return Ok((boundary, before.summary, before.count)) };
        let mut node = top.node.clone();
        while !node.is_leaf() {
            let children = node.children_in(start, end);
            if children.is_empty() {
                return Ok((boundary, before.summary, before.count));
            }
            // What lies before each child but the first, whose boundary has passed.
            let mut befores = vec![before];
            for index in children.start..children.end - 1 {
                let last = befores.last().expect("it has one");
                let mut next = Known { summary: last.summary.clone(), count: last.count };
                if starts_within(&node, index, start) {
                    let record = self.record(&node, index)?;
                    next.add(reduction, &record.summary, record.count);
                } else {
                    let below = self.known_under(&node, index, (start, end)).await?;
                    next.add(reduction, &below.summary, below.count);
                }
                befores.push(next);
            }
            let mut key = Vec::new();
            let chosen = last_passing(befores.len(), |index| {
                node.copy_key(children.start + index, &mut key);
                passes(&befores[index].summary, befores[index].count, &key)
            });
            if chosen > 0 {
                boundary = node.key(children.start + chosen);
            }
            before = befores.swap_remove(chosen);
            let pointer = self.shared.child_pointer(&node, children.start + chosen)?;
            node = self.shared.load(pointer, node.level() - 1, true).await?;
        }
        let entries = node.entries_in(start, end);
        let mut befores = vec![before];
        for index in entries.clone() {
            let last = befores.last().expect("it has one");
            let mut next = Known { summary: last.summary.clone(), count: last.count };
            self.add_entries(&node, index..index + 1, &mut next);
            befores.push(next);
        }
        let mut key = Vec::new();
        // The first is the boundary that has passed, the others stand for entries.
        let chosen = last_passing(entries.len() + 1, |index| {
            node.copy_key(entries.start + index - 1, &mut key);
            passes(&befores[index - 1].summary, befores[index - 1].count, &key)
        });
        if chosen > 0 {
            boundary = node.key(entries.start + chosen - 1);
        }
        let before = befores.swap_remove(chosen.saturating_sub(1));
        Ok((boundary, before.summary, before.count))
    }

    /// What is known of the part of the range that lies under a child.
    async fn known_under(
        &self,
        node: &Node,
        index: usize,
        range: (Bound<&[u8]>, Bound<&[u8]>),
    ) -> Result<Known<R::Summary>, TreeError> {
        let end = if index + 1 < node.len() { Some(node.key(index + 1)) } else { None };
        self.known_in((range.0, end.as_deref().map_or(range.1, Bound::Excluded))).await
    }

    fn add_entries(&self, leaf: &Node, entries: Range<usize>, known: &mut Known<R::Summary>) {
        let reduction = &self.shared.reduction;
        let mut key = Vec::new();
        for index in entries {
            leaf.copy_key(index, &mut key);
            known.add(reduction, &reduction.of(&key, leaf.payload(index)), 1);
        }
    }

    fn record(&self, node: &Node, index: usize) -> Result<ChildRecord<R::Summary>, TreeError> {
        let record = node.child_record(&self.shared.reduction, index);
        record.ok_or_else(|| self.shared.senseless(node.offset()))
    }
}

/// Whether all under a child is behind the range's start.
fn starts_within(node: &Node, index: usize, start: Bound<&[u8]>) -> bool {
    match start {
        Bound::Unbounded => true,
        Bound::Included(key) => node.compare(index, key).is_ge(),
        Bound::Excluded(key) => node.compare(index, key).is_gt(),
    }
}

/// The last of `count` that passes, of which the first does without being asked.
fn last_passing(count: usize, mut passes: impl FnMut(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, count);
    while high - low > 1 {
        let middle = (low + high) / 2;
        if passes(middle) { low = middle } else { high = middle }
    }
    low
}
