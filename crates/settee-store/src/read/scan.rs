//! Scans: the entries of a snapshot within a range, in the order of keys or of `Seq`.
//!
//! A scan merges the memtables with the tree. Of entries with the same key the newest is returned, with the
//! older records that its value needs; tombstones are left out. Skipping by a sum narrows the range with one
//! descent of the tree, and begins again there.

use std::ops::Bound;

use settee_log::Seq;

use super::ahead::{ReadAhead, RowSource};
use super::order::{Order, as_slice};
use super::snapshot::Snapshot;
use crate::error::ReadError;
use crate::index::{Entry, EntryRef, EntryView, IndexAggregates, Location, Pointer, decode, own_aggregates};
use crate::memtable::{Aggregates, Merged, add};
use crate::version::CheckpointTree;

impl Snapshot {
    /// Scans the entries between two keys, in ascending or descending order. `start` is the lower bound in
    /// either direction.
    pub fn scan(&self, start: Bound<&[u8]>, end: Bound<&[u8]>, descending: bool) -> Scan {
        Scan::new(self, Order::Key, start, end, descending)
    }

    /// Scans the entries in the seq index whose `Seq` is greater than `after`, in ascending or descending
    /// order of `Seq`.
    pub fn scan_by_seq(&self, after: Seq, descending: bool) -> Scan {
        let start = after.0.saturating_add(1).to_be_bytes();
        Scan::new(self, Order::Seq, Bound::Included(&start), Bound::Unbounded, descending)
    }
}

impl RowSource for Scan {
    /// The key and its entry.
    type Row = (Vec<u8>, Entry);
    type Error = ReadError;

    async fn next(&mut self, locations: &mut Vec<Location>) -> Result<Option<(Vec<u8>, Entry)>, ReadError> {
        let Some(entry) = Scan::next(self).await? else { return Ok(None) };
        locations.extend(entry.pointers().map(|pointer| pointer.location));
        Ok(Some((entry.key.to_vec(), entry.to_entry())))
    }
}

/// End of a range that is exhausted: no key is less.
const NOTHING_LEFT: Bound<Vec<u8>> = Bound::Excluded(Vec::new());

/// A scan over a snapshot's index. It owns a clone of the snapshot.
pub struct Scan {
    snapshot: Snapshot,
    order: Order,
    /// The rest of the range, where the scan starts again once `rows` is `None`.
    start: Bound<Vec<u8>>,
    end: Bound<Vec<u8>>,
    descending: bool,
    /// `None` until the first entry is requested.
    rows: Option<Rows>,
    /// Records of the current key in older memtables and the tree.
    older: Vec<Pointer>,
}

/// The memtables and the tree, merged.
struct Rows {
    memtables: Merged,
    memtables_valid: bool,
    /// The memtables' current entry was returned or hidden, or the scan has not begun.
    memtables_consumed: bool,
    tree: Option<TreeRows>,
    descending: bool,
    /// The current entry is the tree's.
    at_tree: bool,
    begun: bool,
}

/// The tree's side of a merge.
struct TreeRows {
    scan: settee_tree::Scan<IndexAggregates>,
    /// The current key, without the index's prefix.
    key: Vec<u8>,
    value: Vec<u8>,
    is_valid: bool,
    is_consumed: bool,
}

impl TreeRows {
    async fn advance(&mut self) -> Result<(), ReadError> {
        match self.scan.next().await? {
            Some((key, value)) => {
                self.key.clear();
                self.key.extend_from_slice(&key[1..]);
                self.value.clear();
                self.value.extend_from_slice(value);
            }
            None => self.is_valid = false,
        }
        self.is_consumed = false;
        Ok(())
    }
}

impl Rows {
    fn new(scan: &Scan) -> Rows {
        let version = &scan.snapshot.version;
        let (start, end, descending) = (as_slice(&scan.start), as_slice(&scan.end), scan.descending);
        let memtables = version.memtables().map(|memtable| scan.order.map(memtable));
        let tree = version.checkpoint.tree.as_ref().map(|CheckpointTree { root, .. }| {
            let (start, end) = scan.order.tree_bounds(start, end);
            let scan = root.scan((as_slice(&start), as_slice(&end)), descending);
            TreeRows { scan, key: Vec::new(), value: Vec::new(), is_valid: true, is_consumed: true }
        });
        let memtables = Merged::new(memtables, start, end, descending);
        Rows {
            memtables,
            memtables_valid: true,
            memtables_consumed: true,
            tree,
            descending,
            at_tree: false,
            begun: false,
        }
    }

    /// Advances to the next entry, tombstones included; false at the end.
    async fn advance(&mut self) -> Result<bool, ReadError> {
        // First the step that may fail, or whose future may be dropped.
        if let Some(tree) = self.tree.as_mut().filter(|tree| tree.is_consumed && tree.is_valid) {
            tree.advance().await?;
        }
        self.begun = true;
        if self.memtables_consumed && self.memtables_valid {
            self.memtables_valid = self.memtables.advance();
            self.memtables_consumed = false;
        }
        let Some(tree) = self.tree.as_mut().filter(|tree| tree.is_valid) else {
            (self.at_tree, self.memtables_consumed) = (false, true);
            return Ok(self.memtables_valid);
        };
        if !self.memtables_valid {
            (self.at_tree, tree.is_consumed) = (true, true);
            return Ok(true);
        }
        let order = tree.key[..].cmp(self.memtables.current().key);
        let order = if self.descending { order.reverse() } else { order };
        self.at_tree = order.is_lt();
        // If both have the key, the memtables' entry is newer.
        tree.is_consumed = order.is_le();
        self.memtables_consumed = order.is_ge();
        Ok(true)
    }

    /// Whether there is a current entry.
    fn is_valid(&self) -> bool {
        self.begun && (self.memtables_valid || self.tree.as_ref().is_some_and(|tree| tree.is_valid))
    }

    /// Collects the older records of the current entry if it needs them.
    fn gather(&self, older: &mut Vec<Pointer>) -> Result<(), ReadError> {
        older.clear();
        if self.at_tree || EntryView::trusted(self.memtables.current().value).is_whole() {
            return Ok(());
        }
        for found in self.memtables.older() {
            let view = EntryView::trusted(found.value);
            older.extend(view.all_pointers());
            if view.is_whole() {
                return Ok(());
            }
        }
        let key = self.memtables.current().key;
        if let Some(tree) = self.tree.as_ref().filter(|tree| tree.is_valid && tree.key == key) {
            older.extend(decode(&tree.value)?.all_pointers());
        }
        Ok(())
    }

    /// The current key, in the index's form, and its entry.
    fn current(&self) -> Result<(&[u8], EntryView<'_>), ReadError> {
        match self.tree.as_ref().filter(|_| self.at_tree) {
            Some(tree) => Ok((&tree.key, decode(&tree.value)?)),
            None => {
                let found = self.memtables.current();
                Ok((found.key, EntryView::trusted(found.value)))
            }
        }
    }
}

impl Scan {
    fn new(
        snapshot: &Snapshot,
        order: Order,
        start: Bound<&[u8]>,
        end: Bound<&[u8]>,
        descending: bool,
    ) -> Scan {
        let (start, end) = (start.map(<[u8]>::to_vec), end.map(<[u8]>::to_vec));
        Scan { snapshot: snapshot.clone(), order, start, end, descending, rows: None, older: Vec::new() }
    }

    /// Continues the scan with the records that make up the values, which are read ahead.
    pub fn with_values(self) -> ReadAhead<Scan> {
        let snapshot = self.snapshot.clone();
        ReadAhead::new(&snapshot, self, 1)
    }

    /// The next entry; `None` at the end. Values are not read. Dropping the future loses no entry.
    ///
    /// # Errors
    /// See [`ReadError`]; a later call tries again.
    pub async fn next(&mut self) -> Result<Option<EntryRef<'_>>, ReadError> {
        self.next_where(|_| true).await
    }

    /// The next entry for which `wanted` is true; entries before it are skipped.
    ///
    /// # Errors
    /// See [`Scan::next`].
    pub async fn next_where(
        &mut self,
        wanted: impl Fn(&EntryRef<'_>) -> bool,
    ) -> Result<Option<EntryRef<'_>>, ReadError> {
        let key_at = self.order.key_at();
        if self.rows.is_none() {
            self.rows = Some(Rows::new(self));
        }
        let rows = self.rows.as_mut().expect("the scan has begun");
        loop {
            if !rows.advance().await? {
                return Ok(None);
            }
            let (key, view) = rows.current()?;
            if !view.is_tombstone() && wanted(&EntryRef::new(&key[key_at..], view, &[])) {
                break;
            }
        }
        rows.gather(&mut self.older)?;
        let (key, view) = rows.current()?;
        Ok(Some(EntryRef::new(&key[key_at..], view, &self.older)))
    }

    /// Skips the fewest entries whose aggregates add up to at least `amount` in `component`, or all remaining
    /// entries if they add up to less. Returns the sum skipped. No entry's aggregate may be negative in that
    /// component. Costs O(log n), plus the memtable entries within one leaf of the tree.
    ///
    /// # Errors
    /// See [`Scan::next`].
    pub async fn skip_sum(&mut self, component: usize, amount: u64) -> Result<u64, ReadError> {
        if amount == 0 {
            return Ok(0);
        }
        if !self.snapshot.version.has_older_entries() {
            let mut rows = self.rows.take().unwrap_or_else(|| Rows::new(self));
            let skipped = rows.memtables.skip_sum(component, amount);
            self.rows = Some(rows);
            return Ok(skipped);
        }
        self.narrow()?;
        if self.has_ended() {
            return Ok(0);
        }
        let (start, end) = (as_slice(&self.start), as_slice(&self.end));
        let all = self.snapshot.version.aggregates_between(self.order, start, end).await?[component];
        if all < amount {
            self.end = NOTHING_LEFT;
            return Ok(all);
        }
        // The prefix of the range that adds up to this is skipped if ascending, and kept if descending.
        let target = if self.descending { all - amount } else { amount };
        let (from, mut sum) = self.seek(component, target).await?;
        let mut rows = Scan { start: from, end: self.end.clone(), descending: false, ..self.again() };
        while let Some((key, own)) = rows.next_own(component).await? {
            if self.descending && sum + own > target {
                self.end = Bound::Excluded(key);
                return Ok(all - sum);
            }
            sum += own;
            if !self.descending && sum >= target {
                self.start = Bound::Excluded(key);
                return Ok(sum);
            }
        }
        Ok(0)
    }

    /// The same scan, not begun.
    fn again(&self) -> Scan {
        let (start, end) = (self.start.clone(), self.end.clone());
        Scan {
            snapshot: self.snapshot.clone(),
            order: self.order,
            start,
            end,
            descending: self.descending,
            rows: None,
            older: Vec::new(),
        }
    }

    /// Reduces the range to what remains, and resets the scan.
    fn narrow(&mut self) -> Result<(), ReadError> {
        let Some(rows) = self.rows.take().filter(|rows| rows.begun) else { return Ok(()) };
        if !rows.is_valid() {
            self.end = NOTHING_LEFT;
            return Ok(());
        }
        let key = Bound::Excluded(rows.current()?.0.to_vec());
        *(if self.descending { &mut self.end } else { &mut self.start }) = key;
        Ok(())
    }

    /// Whether a scan that was reset has no entries left.
    fn has_ended(&self) -> bool {
        self.end == NOTHING_LEFT
    }

    /// A position near the last one before which the sum is below `target` (descending: at most `target`),
    /// and that sum.
    async fn seek(&self, component: usize, target: u64) -> Result<(Bound<Vec<u8>>, u64), ReadError> {
        let version = &self.snapshot.version;
        let Some(CheckpointTree { root, .. }) = &version.checkpoint.tree else {
            return Ok((self.start.clone(), 0));
        };
        let start = as_slice(&self.start);
        let sum_before = |in_tree: &Aggregates, key: &[u8]| {
            let in_memory =
                version.memtable_aggregates_between(self.order, start, Bound::Excluded(&key[1..]));
            add(*in_tree, in_memory)[component]
        };
        let passes = |in_tree: &Aggregates, _count: u64, key: &[u8]| {
            let sum = sum_before(in_tree, key);
            if self.descending { sum <= target } else { sum < target }
        };
        let (from, to) = self.order.tree_bounds(start, as_slice(&self.end));
        let (key, in_tree, _) = root.seek((as_slice(&from), as_slice(&to)), passes).await?;
        if key.len() <= 1 || Bound::Included(&key) == from.as_ref() || Bound::Excluded(&key) == from.as_ref()
        {
            return Ok((self.start.clone(), 0));
        }
        Ok((Bound::Included(key[1..].to_vec()), sum_before(&in_tree, &key)))
    }

    /// The next key, in the index's form, and its entry's aggregate in `component`.
    async fn next_own(&mut self, component: usize) -> Result<Option<(Vec<u8>, u64)>, ReadError> {
        let key_at = self.order.key_at();
        if self.next().await?.is_none() {
            return Ok(None);
        }
        let (key, view) = self.rows.as_ref().expect("the scan has begun").current()?;
        let own = own_aggregates(self.snapshot.aggregate, &key[key_at..], &view);
        Ok(Some((key.to_vec(), own[component])))
    }
}
