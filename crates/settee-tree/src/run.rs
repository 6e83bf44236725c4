//! Runs: sorted items of one level, split into nodes.
//!
//! Nodes are filled one after another up to the target size, and the last two share their items evenly. If
//! the items came in ascending order, the first of the two stays full instead.
//!
//! Invariants:
//! 1. A node is no larger than the target, unless it has one item (a leaf), or two or three (an inner node).
//! 2. An inner node has at least two children, unless the run has only one.

use std::ops::Range;

use crate::node::{self, ITEM_OVERHEAD, NODE_HEADER_SIZE, Node};

/// Items of one level, sorted by key.
#[derive(Debug, Default)]
pub(crate) struct Run {
    bytes: Vec<u8>,
    items: Vec<Item>,
}

#[derive(Debug, Clone, Copy)]
struct Item {
    start: usize,
    key_size: u32,
    payload_size: u32,
}

impl Item {
    fn end(self) -> usize {
        self.start + self.key_size as usize + self.payload_size as usize
    }
}

impl Run {
    /// Number of items.
    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Bytes of keys and payloads.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn push(&mut self, key: &[u8], payload: &[u8]) {
        self.push_with(key, |out| out.extend_from_slice(payload));
    }

    /// Adds an item whose payload `encode` appends.
    pub(crate) fn push_with(&mut self, key: &[u8], encode: impl FnOnce(&mut Vec<u8>)) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(key);
        encode(&mut self.bytes);
        let payload_size = (self.bytes.len() - start - key.len()) as u32;
        self.items.push(Item { start, key_size: key.len() as u32, payload_size });
    }

    /// Adds some of a node's items.
    pub(crate) fn push_items(&mut self, node: &Node, indexes: Range<usize>) {
        let prefix = node.prefix();
        for index in indexes {
            let (rest, payload) = node.item(index);
            let start = self.bytes.len();
            self.bytes.extend_from_slice(prefix);
            self.bytes.extend_from_slice(rest);
            self.bytes.extend_from_slice(payload);
            let key_size = (prefix.len() + rest.len()) as u32;
            self.items.push(Item { start, key_size, payload_size: payload.len() as u32 });
        }
    }

    /// Removes the items from index `count` on.
    pub(crate) fn truncate(&mut self, count: usize) {
        if let Some(item) = self.items.get(count) {
            self.bytes.truncate(item.start);
            self.items.truncate(count);
        }
    }

    /// Removes the first items.
    pub(crate) fn remove_front(&mut self, count: usize) {
        let size = self.items.get(count).map_or(self.bytes.len(), |item| item.start);
        self.bytes.drain(..size);
        self.items.drain(..count);
        for item in &mut self.items {
            item.start -= size;
        }
    }

    pub(crate) fn key(&self, index: usize) -> &[u8] {
        let Item { start, key_size, .. } = self.items[index];
        &self.bytes[start..start + key_size as usize]
    }

    pub(crate) fn payload(&self, index: usize) -> &[u8] {
        let item = self.items[index];
        &self.bytes[item.start + item.key_size as usize..item.end()]
    }

    /// Size of the common prefix of these items' keys. The range has at least one item.
    fn prefix_size(&self, range: &Range<usize>) -> usize {
        common_prefix(self.key(range.start), self.key(range.end - 1))
    }

    /// The size of a node of these items. The range has at least one item.
    pub(crate) fn node_size(&self, range: Range<usize>) -> usize {
        let prefix = self.prefix_size(&range);
        let raw = self.items[range.end - 1].end() - self.items[range.start].start;
        NODE_HEADER_SIZE + prefix + raw + range.len() * ITEM_OVERHEAD - range.len() * prefix
    }

    /// Appends a node of these items, unsealed, to `out`.
    pub(crate) fn encode(&self, level: u8, range: Range<usize>, out: &mut Vec<u8>) {
        let prefix = self.prefix_size(&range);
        let items = range.clone().map(|index| (self.key(index), self.payload(index)));
        node::encode(level, range.len(), items, prefix, out);
    }

    /// The shortest key that is greater than the previous item's key and no greater than this item's.
    pub(crate) fn separator(&self, index: usize) -> &[u8] {
        let (before, key) = (self.key(index - 1), self.key(index));
        &key[..(common_prefix(before, key) + 1).min(key.len())]
    }

    /// The end index of a full node that begins at `first`.
    pub(crate) fn fill(&self, level: u8, first: usize, node_bytes: usize) -> usize {
        let mut end = (first + items_min(level)).min(self.len());
        while end < self.len() && self.node_size(first..end + 1) <= node_bytes {
            end += 1;
        }
        end
    }

    /// The end indexes of the nodes that hold all items. `inserted`: the new items, if they are adjacent;
    /// entries appended in order leave full nodes behind.
    pub(crate) fn split_into_nodes(
        &self,
        level: u8,
        node_bytes: usize,
        inserted: Option<Range<usize>>,
    ) -> Vec<usize> {
        let mut ends = Vec::new();
        let mut end = 0;
        while end < self.len() {
            end = self.fill(level, end, node_bytes);
            ends.push(end);
        }
        if ends.len() >= 2 {
            self.share_last(level, node_bytes, inserted, &mut ends);
        }
        ends
    }

    /// Moves the boundary between the last two nodes if the last is small.
    fn share_last(
        &self,
        level: u8,
        node_bytes: usize,
        inserted: Option<Range<usize>>,
        ends: &mut Vec<usize>,
    ) {
        let last = ends.len() - 1;
        let first = if last >= 2 { ends[last - 2] } else { 0 };
        let (split, end, min) = (ends[last - 1], self.len(), items_min(level));
        let is_complete = end - split >= min;
        let run_end = inserted.map(|items| items.end);
        if is_complete && (run_end == Some(end) || self.node_size(split..end) * 2 >= node_bytes) {
            return;
        }
        let fits = |at: usize| {
            (first + min..=end - min).contains(&at)
                && self.node_size(first..at) <= node_bytes
                && self.node_size(at..end) <= node_bytes
        };
        let is_half = |at: usize| self.node_size(first..at) * 2 >= node_bytes;
        if let Some(at) = run_end.filter(|at| fits(*at) && is_half(*at)) {
            ends[last - 1] = at;
        } else if let Some(at) = Some(self.middle(first, end)).filter(|at| fits(*at)) {
            ends[last - 1] = at;
        } else if !is_complete {
            // Large items that can't be shared are joined.
            if split - first > min {
                ends[last - 1] = end - min;
            } else {
                ends.remove(last - 1);
            }
        }
    }

    /// The item that begins the second half of the bytes from `first` up to `end`.
    fn middle(&self, first: usize, end: usize) -> usize {
        let (from, to) = (self.items[first].start, self.items[end - 1].end());
        let half = from + (to - from) / 2;
        first + self.items[first..end].partition_point(|item| item.end() <= half)
    }
}

/// Smallest number of items of a node, if the run has as many.
pub(crate) fn items_min(level: u8) -> usize {
    if level == 0 { 1 } else { 2 }
}

fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests;
