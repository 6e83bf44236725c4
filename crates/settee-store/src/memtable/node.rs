//! Nodes of the B+tree: search, insertion, removal, splitting and merging.
//!
//! A leaf's page holds the entries. An inner node's page holds the separators (with empty tails) between its
//! children, so that it has one child more than records.

use std::ops::{Add, Bound, Sub};
use std::sync::Arc;

use super::entry::{self, Aggregates, Found, VALUE_SIZE_MAX, add, subtract};
use super::page::{self, Page, PageRecord, RECORD_COUNT_MAX};

/// A full node is split at the end of a run of adjacent insertions instead of in the middle if the run
/// inserted at least the node's records divided by this. Ascending keys then leave full nodes behind, and no
/// order of insertions leaves many sparse ones.
const RUN_DIVISOR: usize = 4;

/// Totals of the entries under a node, or of a prefix of all entries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) count: u64,
    pub(super) aggregates: Aggregates,
    /// Size of the nodes in bytes.
    pub(super) bytes: u64,
}

impl Add for Totals {
    type Output = Totals;

    fn add(self, other: Totals) -> Totals {
        let aggregates = add(self.aggregates, other.aggregates);
        Totals { count: self.count + other.count, aggregates, bytes: self.bytes + other.bytes }
    }
}

impl Sub for Totals {
    type Output = Totals;

    fn sub(self, other: Totals) -> Totals {
        let aggregates = subtract(self.aggregates, other.aggregates);
        Totals { count: self.count - other.count, aggregates, bytes: self.bytes - other.bytes }
    }
}

#[derive(Clone)]
pub(super) struct Node {
    page: Page,
    /// Empty in a leaf.
    children: Vec<Subtree>,
}

/// A node with the totals of the entries under it.
#[derive(Clone)]
pub(super) struct Subtree {
    node: Arc<Node>,
    totals: Totals,
}

/// A position between two entries.
pub(super) struct Position<'a> {
    before: Totals,
    /// The leaf, and the number of its entries before the position.
    leaf: Option<(&'a Node, usize)>,
}

impl Position<'_> {
    /// The number of entries before the position.
    pub(super) fn rank(&self) -> u64 {
        self.before.count + self.leaf.map_or(0, |(_, index)| index as u64)
    }

    /// The aggregate of the entries before the position.
    pub(super) fn aggregates(&self) -> Aggregates {
        let Some((leaf, count)) = self.leaf else { return self.before.aggregates };
        (0..count).fold(self.before, |sum, index| sum + leaf.entry_totals(index)).aggregates
    }
}

/// A node that was split off to the right of another.
struct Split {
    separator: Vec<u8>,
    right: Subtree,
}

impl Default for Subtree {
    fn default() -> Subtree {
        Subtree::new(Node { page: Page::new(&[]), children: Vec::new() })
    }
}

impl Subtree {
    fn new(node: Node) -> Subtree {
        Subtree { totals: node.totals(), node: Arc::new(node) }
    }

    pub(super) fn totals(&self) -> Totals {
        self.totals
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<Found<'_>> {
        let mut node = &self.node;
        while !node.is_leaf() {
            node = &node.children[node.child_index(key)].node;
        }
        let index = node.page.search(key).ok()?;
        Some(node.entry(index))
    }

    /// Inserts an entry at the root. If the root is split, the tree grows by a level.
    pub(super) fn upsert_at_root(
        &mut self,
        key: &[u8],
        mut make: impl FnMut(Option<Found<'_>>, &mut Vec<u8>) -> Aggregates,
    ) {
        if let Some(Split { separator, right }) = self.upsert(key, &mut make) {
            let left = std::mem::take(self);
            *self = Subtree::new(Node { page: Page::new(&[(&separator, &[])]), children: vec![left, right] });
        }
    }

    /// Removes an existing entry at the root. If the root has only one child left, the tree shrinks by a
    /// level.
    pub(super) fn remove_at_root(&mut self, key: &[u8]) {
        self.remove(key);
        if let [child] = &self.node.children[..] {
            *self = child.clone();
        }
    }

    fn upsert(
        &mut self,
        key: &[u8],
        make: &mut impl FnMut(Option<Found<'_>>, &mut Vec<u8>) -> Aggregates,
    ) -> Option<Split> {
        let node = Arc::make_mut(&mut self.node);
        if node.is_leaf() {
            let (change, split) = node.upsert_entry(key, make);
            if split.is_some() {
                self.totals = node.totals();
            } else {
                self.totals = self.totals + change;
                self.totals.bytes = node.size();
            }
            return split;
        }
        let index = node.child_index(key);
        let child = &mut node.children[index];
        let before = child.totals;
        let Some(split) = child.upsert(key, make) else {
            self.totals = self.totals - before + child.totals;
            return None;
        };
        let split = node.adopt(index, split);
        self.totals = node.totals();
        split
    }

    fn remove(&mut self, key: &[u8]) {
        let node = Arc::make_mut(&mut self.node);
        if node.is_leaf() {
            let index = node.page.search(key).expect("only an entry that exists is removed");
            self.totals = self.totals - node.entry_totals(index);
            node.page.remove(index);
            self.totals.bytes = node.size();
            return;
        }
        let index = node.child_index(key);
        let child = &mut node.children[index];
        let before = child.totals;
        child.remove(key);
        if child.node.page.is_underfull() {
            node.merge(index);
            self.totals = node.totals();
        } else {
            self.totals = self.totals - before + child.totals;
        }
    }

    /// The positions of a range's two ends.
    pub(super) fn range(&self, start: Bound<&[u8]>, end: Bound<&[u8]>) -> (Position<'_>, Position<'_>) {
        let start = match start {
            Bound::Unbounded => Position { before: Totals::default(), leaf: None },
            Bound::Included(key) => self.position(key, false),
            Bound::Excluded(key) => self.position(key, true),
        };
        let end = match end {
            Bound::Unbounded => Position { before: self.totals, leaf: None },
            Bound::Included(key) => self.position(key, true),
            Bound::Excluded(key) => self.position(key, false),
        };
        (start, end)
    }

    /// The position after the entries with keys less than `key`, or with `or_equal` not greater.
    fn position(&self, key: &[u8], or_equal: bool) -> Position<'_> {
        let mut before = Totals::default();
        let mut node = &self.node;
        while !node.is_leaf() {
            let index = node.child_index(key);
            before = node.children[..index].iter().fold(before, |sum, child| sum + child.totals);
            node = &node.children[index].node;
        }
        let index = match node.page.search(key) {
            Ok(index) => index + usize::from(or_equal),
            Err(index) => index,
        };
        Position { before, leaf: Some((node, index)) }
    }

    /// The totals of the longest prefix of the entries for which `holds` is true. `holds` must be true of the
    /// empty prefix, and false of every prefix longer than one of which it is false.
    pub(super) fn longest_prefix(&self, holds: impl Fn(&Totals) -> bool) -> Totals {
        let mut prefix = Totals::default();
        let mut extend = |totals: Totals| {
            let longer = prefix + totals;
            let extended = holds(&longer);
            if extended {
                prefix = longer;
            }
            extended
        };
        let mut node = &self.node;
        while !node.is_leaf() {
            let Some(child) = node.children.iter().find(|child| !extend(child.totals)) else {
                return prefix;
            };
            node = &child.node;
        }
        for index in 0..node.count() {
            if !extend(node.entry_totals(index)) {
                break;
            }
        }
        prefix
    }

    /// The leaf of the entry with this rank (the last leaf if there is none), and the rank of its first
    /// entry.
    pub(super) fn leaf_at(&self, rank: u64) -> (&Arc<Node>, u64) {
        let mut first = 0;
        let mut node = &self.node;
        while let Some((last, others)) = node.children.split_last() {
            let mut child = last;
            for other in others {
                if rank < first + other.totals.count {
                    child = other;
                    break;
                }
                first += other.totals.count;
            }
            node = &child.node;
        }
        (node, first)
    }
}

impl Node {
    #[inline]
    fn is_leaf(&self) -> bool {
        self.children.is_empty()
    }

    /// The number of a leaf's entries.
    pub(super) fn count(&self) -> usize {
        self.page.count()
    }

    #[inline]
    pub(super) fn entry(&self, index: usize) -> Found<'_> {
        entry::decode(self.page.record(index))
    }

    /// Prefetches the leaf's entries for a scan.
    pub(super) fn prefetch(&self) {
        self.page.prefetch();
    }

    fn entry_totals(&self, index: usize) -> Totals {
        Totals { count: 1, aggregates: entry::decode_aggregates(self.page.record(index).1).0, bytes: 0 }
    }

    /// The index of the child whose range contains the key.
    #[inline]
    fn child_index(&self, key: &[u8]) -> usize {
        self.page.search(key).map_or_else(|index| index, |index| index + 1)
    }

    /// Size of the node in bytes. Inner nodes, which are few, count only what they hold: their spare capacity
    /// differs between a node and its copy.
    fn size(&self) -> u64 {
        let buffers = if self.is_leaf() {
            self.page.capacity()
        } else {
            self.page.live_size() + self.children.len() * size_of::<Subtree>()
        };
        (size_of::<Node>() + 2 * size_of::<usize>() + buffers) as u64
    }

    fn totals(&self) -> Totals {
        let own = Totals { bytes: self.size(), ..Totals::default() };
        if self.is_leaf() {
            (0..self.count()).fold(own, |sum, index| sum + self.entry_totals(index))
        } else {
            self.children.iter().fold(own, |sum, child| sum + child.totals)
        }
    }

    /// Inserts into a leaf, and splits it if it is full. Returns the change of the totals, without their
    /// bytes.
    fn upsert_entry(
        &mut self,
        key: &[u8],
        make: &mut impl FnMut(Option<Found<'_>>, &mut Vec<u8>) -> Aggregates,
    ) -> (Totals, Option<Split>) {
        let found = self.page.search(key);
        let old = found.ok().map(|index| self.entry(index));
        let old_aggregates = old.map_or(Aggregates::default(), |old| old.aggregates);
        let mut value = Vec::with_capacity(128);
        let aggregates = make(old, &mut value);
        assert!(value.len() <= VALUE_SIZE_MAX, "value of {} bytes", value.len());
        let mut tail = Vec::with_capacity(32 + value.len());
        entry::encode_aggregates(aggregates, &mut tail);
        tail.extend_from_slice(&value);
        let change = Totals {
            count: u64::from(found.is_err()),
            aggregates: subtract(aggregates, old_aggregates),
            bytes: 0,
        };
        let index = match found {
            Err(index) => index,
            Ok(index) if self.page.overwrite(index, &tail) => return (change, None),
            Ok(index) => {
                self.page.remove(index);
                index
            }
        };
        (change, self.insert_record(index, (key, &tail)))
    }

    /// Inserts the node that was split off from the child at `index`, and splits this node if it is full.
    fn adopt(&mut self, index: usize, Split { separator, right }: Split) -> Option<Split> {
        self.children.insert(index + 1, right);
        self.insert_record(index, (&separator, &[]))
    }

    /// Inserts a record at `index`. An inner node must have the child to the record's right already.
    fn insert_record(&mut self, index: usize, record: PageRecord<'_>) -> Option<Split> {
        let (key, tail) = record;
        if self.page.can_insert(key.len() + tail.len()) {
            self.page.insert(index, key, tail);
            return None;
        }
        let is_at_end = index == self.page.count();
        let is_run = self.page.run_before(index) * RUN_DIVISOR >= self.page.count();
        let mut records: Vec<_> = self.page.records().collect();
        records.insert(index, record);
        let children = std::mem::take(&mut self.children);
        let last = last_cut(&records, &children);
        let cut_at = if is_run { index + usize::from(!is_at_end) } else { middle(&records) };
        let (left, separator, right) = cut(&records, children, cut_at.min(last));
        *self = left;
        Some(Split { separator, right: Subtree::new(right) })
    }

    /// Merges an underfull child with a neighbour, or evens them out if both don't fit one node. A longer
    /// separator may then take this node above `PAGE_SIZE_MAX` until the next insertion splits it.
    fn merge(&mut self, index: usize) {
        let index = index.min(self.children.len() - 2);
        let [left, right] = &self.children[index..index + 2] else {
            unreachable!("an inner node has two children")
        };
        let (left, right) = (&left.node, &right.node);
        let separator = (!left.is_leaf()).then(|| (self.page.key(index), &[][..]));
        let records: Vec<_> = left.page.records().chain(separator).chain(right.page.records()).collect();
        let children = [&left.children[..], &right.children[..]].concat();
        if page::fits(&records) {
            self.children[index] = Subtree::new(Node { page: Page::new(&records), children });
            self.children.remove(index + 1);
            self.page.remove(index);
        } else {
            let cut_at = middle(&records).min(last_cut(&records, &children));
            let (left, separator, right) = cut(&records, children, cut_at);
            self.children[index] = Subtree::new(left);
            self.children[index + 1] = Subtree::new(right);
            self.page.remove(index);
            self.page.insert(index, &separator, &[]);
        }
    }
}

/// Splits records, with the children between them, into two nodes and their separator. A leaf is split before
/// the record at `cut_at`; in an inner node that record becomes the separator.
fn cut(records: &[PageRecord<'_>], mut children: Vec<Subtree>, cut_at: usize) -> (Node, Vec<u8>, Node) {
    let left = Page::new(&records[..cut_at]);
    let (separator, right) = if children.is_empty() {
        let (before, after) = (records[cut_at - 1].0, records[cut_at].0);
        (&after[..page::common_size(before, after) + 1], &records[cut_at..])
    } else {
        (records[cut_at].0, &records[cut_at + 1..])
    };
    let right_children = if children.is_empty() { Vec::new() } else { children.split_off(cut_at + 1) };
    let right = Node { page: Page::new(right), children: right_children };
    (Node { page: left, children }, separator.to_vec(), right)
}

/// The last index at which the records can be split so that at least one is to the right.
fn last_cut(records: &[PageRecord<'_>], children: &[Subtree]) -> usize {
    records.len() - if children.is_empty() { 1 } else { 2 }
}

/// The index at which both sides have about the same size and neither has too many records.
fn middle(records: &[PageRecord<'_>]) -> usize {
    let total = page::size_of_records(records);
    let mut left = 0;
    let even = records.iter().take_while(|record| {
        let size = page::size_of_records(&[**record]);
        // Half of the record: the split nearest to the middle.
        let is_left = 2 * left + size <= total;
        left += size;
        is_left
    });
    even.count().clamp(records.len().saturating_sub(RECORD_COUNT_MAX).max(1), RECORD_COUNT_MAX)
}

/// Approximate size of the largest record in bytes. Halves of an oversized leaf may exceed a page by two
/// records.
#[cfg(test)]
const RECORD_SIZE_MAX: usize = entry::KEY_SIZE_MAX + VALUE_SIZE_MAX + 64;

#[cfg(test)]
impl Subtree {
    /// Panics if an invariant of the tree does not hold.
    pub(super) fn check(&self) {
        self.check_between(None, None);
        assert!(self.node.is_leaf() || self.node.children.len() >= 2);
    }

    fn check_between(&self, low: Option<&[u8]>, high: Option<&[u8]>) {
        let Node { page, children } = &*self.node;
        page.check();
        assert_eq!(self.totals, self.node.totals());
        assert!(page.records().all(|(key, _)| low.is_none_or(|low| low <= key)));
        assert!(page.records().all(|(key, _)| high.is_none_or(|high| key < high)));
        if children.is_empty() {
            assert!(page.count() <= 2 || page.live_size() <= page::PAGE_SIZE_MAX + 2 * RECORD_SIZE_MAX);
            return;
        }
        assert_eq!(children.len(), page.count() + 1);
        assert!(page.count() > 0);
        for (index, child) in children.iter().enumerate() {
            let low = if index == 0 { low } else { Some(page.key(index - 1)) };
            let high = if index == page.count() { high } else { Some(page.key(index)) };
            child.check_between(low, high);
            assert!(child.node.count() > 0);
            assert_eq!(child.height(), children[0].height());
        }
    }

    pub(super) fn height(&self) -> usize {
        1 + self.node.children.first().map_or(0, Subtree::height)
    }

    pub(super) fn leaf_count(&self) -> usize {
        if self.node.is_leaf() { 1 } else { self.node.children.iter().map(Subtree::leaf_count).sum() }
    }

    /// Number of nodes that are not also in the other tree.
    pub(super) fn unshared_count(&self, other: &Subtree) -> usize {
        let mut nodes = std::collections::HashSet::new();
        other.collect(&mut nodes);
        let mut own = std::collections::HashSet::new();
        self.collect(&mut own);
        own.difference(&nodes).count()
    }

    fn collect(&self, nodes: &mut std::collections::HashSet<*const Node>) {
        nodes.insert(Arc::as_ptr(&self.node));
        self.node.children.iter().for_each(|child| child.collect(nodes));
    }
}
