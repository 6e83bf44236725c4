//! Snapshots: what readers read from.
//!
//! A snapshot is a reference to a state of the index, and through it to the files that this state
//! refers to: taking one costs nothing, and no writer, checkpoint or compaction touches it. What
//! was replaced meanwhile goes when the last snapshot that refers to it does.

use std::ops::Bound;
use std::sync::Arc;

use crate::entry::{EntryView, Location, Pointer, until_init};
use crate::error::ReadError;
use crate::layer::{Layer, Sums, add};
use crate::merge::Merged;
use crate::state::{BY_KEY, BY_SEQ, IndexSums, Measure, Memory, SEQ_SIZE, State, TreeBase, decode, own_sums};
use settee_log::{Log, Record, Seq};

/// A state of the store, unchanged by later writes. Cheap to clone.
#[derive(Clone)]
pub struct Snapshot {
    pub(crate) log: Arc<Log>,
    pub(crate) state: Arc<State>,
    pub(crate) measure: Option<Measure>,
}

/// What the index says of a key: its value has not been read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The meta of the newest record.
    pub meta: Vec<u8>,
    /// Where that lies.
    pub location: Location,
    /// Whether it shows in [`Snapshot::scan_listed`].
    pub listed: bool,
    /// Whether it needs no older one.
    pub(crate) init: bool,
    /// The older ones that the value is made from, newest first.
    pub(crate) older: Vec<Pointer>,
}

impl Entry {
    pub(crate) fn new(view: &EntryView<'_>) -> Entry {
        Entry {
            meta: view.meta.to_vec(),
            location: view.location,
            listed: view.is_listed(),
            init: view.is_init(),
            older: view.versions().skip(1).collect(),
        }
    }

    /// Adds what an older layer says of the same key.
    pub(crate) fn gather(found: &mut Option<Entry>, view: &EntryView<'_>) {
        match found {
            None if view.is_tombstone() => {}
            None => *found = Some(Entry::new(view)),
            Some(entry) => entry.older.extend(view.versions()),
        }
    }

    /// The record's place in the order of updates.
    pub fn seq(&self) -> Seq {
        Seq(self.location.seq)
    }

    /// The records that the value is made from, newest first: up to the first that needs no older
    /// one, or all there are.
    pub fn pointers(&self) -> impl Iterator<Item = Pointer> {
        until_init(self.versions())
    }

    /// The records that the value was made from at `seq`, newest first. `None` where the index doesn't
    /// remember that far back.
    pub fn pointers_at(&self, seq: Seq) -> Option<Vec<Pointer>> {
        let versions = self.versions().skip_while(|pointer| pointer.location.seq > seq.0);
        let pointers: Vec<_> = until_init(versions).collect();
        pointers.last().is_some_and(|oldest| oldest.init).then_some(pointers)
    }

    fn versions(&self) -> impl Iterator<Item = Pointer> {
        let newest = Pointer { location: self.location, init: self.init };
        std::iter::once(newest).chain(self.older.iter().copied())
    }
}

/// As [`Entry`], with its key; borrowed from the scan that found it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryRef<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The meta that was put with the value.
    pub meta: &'a [u8],
    /// Where the value is.
    pub location: Location,
    view: EntryView<'a>,
    /// What older layers know of, behind what the view does.
    older: &'a [Pointer],
}

impl<'a> EntryRef<'a> {
    fn new(key: &'a [u8], view: EntryView<'a>) -> EntryRef<'a> {
        EntryRef { key, meta: view.meta, location: view.location, view, older: &[] }
    }

    /// The entry by itself.
    pub fn to_entry(&self) -> Entry {
        let mut entry = Entry::new(&self.view);
        entry.older.extend_from_slice(self.older);
        entry
    }

    /// The record's place in the order of updates.
    pub fn seq(&self) -> Seq {
        Seq(self.location.seq)
    }

    /// As [`Entry::pointers`].
    pub fn pointers(&self) -> impl Iterator<Item = Pointer> + use<'a> {
        until_init(self.view.versions().chain(self.older.iter().copied()))
    }
}

/// Which of the two indexes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Key,
    Seq,
}

impl Order {
    fn layer(self, memory: &Memory) -> &Layer {
        match self {
            Order::Key => &memory.by_key,
            Order::Seq => &memory.by_seq,
        }
    }

    /// A bound as the tree has it, where both indexes are one behind the other.
    fn tree_bounds(self, start: Bound<&[u8]>, end: Bound<&[u8]>) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        let prefix = if self == Order::Key { BY_KEY } else { BY_SEQ };
        let of = |key: &[u8]| [&[prefix], key].concat();
        let start = match start.map(of) {
            Bound::Unbounded => Bound::Included(vec![prefix]),
            bound => bound,
        };
        let end = match end.map(of) {
            Bound::Unbounded => Bound::Excluded(vec![prefix + 1]),
            bound => bound,
        };
        (start, end)
    }

    /// Where a record's key begins in this index.
    fn key_at(self) -> usize {
        if self == Order::Key { 0 } else { SEQ_SIZE }
    }
}

fn as_slice(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

impl State {
    async fn sums_between(
        &self,
        order: Order,
        start: Bound<&[u8]>,
        end: Bound<&[u8]>,
    ) -> Result<Sums, ReadError> {
        let in_memory = self.memory_sums_between(order, start, end);
        let Some(TreeBase { root, .. }) = &self.base.tree else { return Ok(in_memory) };
        let (start, end) = order.tree_bounds(start, end);
        Ok(add(in_memory, root.summary_in((as_slice(&start), as_slice(&end))).await?))
    }

    fn memory_sums_between(&self, order: Order, start: Bound<&[u8]>, end: Bound<&[u8]>) -> Sums {
        let layers = self.layers().map(|memory| order.layer(memory).sums_in((start, end)));
        layers.fold(Sums::default(), add)
    }
}

impl Snapshot {
    /// The last record that it shows.
    pub fn seq(&self) -> Seq {
        Seq(self.state.last_seq)
    }

    /// The last listed record that there was, though it may have been superseded since; 0 where
    /// there was none.
    pub fn last_listed(&self) -> Seq {
        Seq(self.state.last_listed)
    }

    /// What stands under `key`.
    ///
    /// # Errors
    /// See [`ReadError`]; the store stays usable.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Entry>, ReadError> {
        self.state.get(key).await
    }

    /// The entries between two keys, in their order or backwards. The bounds are those of the
    /// keys' order, whatever the direction.
    pub fn scan(&self, start: Bound<&[u8]>, end: Bound<&[u8]>, descending: bool) -> Scan {
        Scan::new(self, Order::Key, start, end, descending)
    }

    /// The listed entries after `after`, in the order of their updates or backwards.
    pub fn scan_listed(&self, after: Seq, descending: bool) -> Scan {
        let start = after.0.saturating_add(1).to_be_bytes();
        Scan::new(self, Order::Seq, Bound::Included(&start), Bound::Unbounded, descending)
    }

    /// The sums over the entries between two keys, without visiting them.
    ///
    /// # Errors
    /// See [`ReadError`]; the store stays usable.
    pub async fn sums(&self, start: Bound<&[u8]>, end: Bound<&[u8]>) -> Result<Sums, ReadError> {
        self.state.sums_between(Order::Key, start, end).await
    }

    /// The sums over all entries. Known without a read.
    pub fn sums_of_all(&self) -> Sums {
        self.state.sums()
    }

    /// The sums over the listed entries after `after`, without visiting them.
    ///
    /// # Errors
    /// See [`ReadError`]; the store stays usable.
    pub async fn sums_listed(&self, after: Seq) -> Result<Sums, ReadError> {
        let start = after.0.saturating_add(1).to_be_bytes();
        self.state.sums_between(Order::Seq, Bound::Included(&start), Bound::Unbounded).await
    }

    /// Reads an entry's record: one positional read.
    ///
    /// # Errors
    /// See [`ReadError`]; the store stays usable.
    pub async fn read(&self, location: Location) -> Result<Record, ReadError> {
        let Location { segment, offset, length, .. } = location;
        if let Some(segment) = self.state.base.segments.get(segment) {
            return segment.read(location).await;
        }
        let in_log = settee_log::Location { segment, offset, length };
        Snapshot::expect(self.log.read_in(&self.state.files, in_log).await?, location)
    }

    /// A record that was read from the log, where it is the one that was meant.
    pub(crate) fn expect(record: Record, location: Location) -> Result<Record, ReadError> {
        if record.seq() == location.seq() {
            return Ok(record);
        }
        let path = format!("segment {}", location.segment).into();
        let what = "another record stands there";
        Err(ReadError::Damaged { path, offset: location.offset.into(), what })
    }

    /// Reads the records that a value is made from, as [`Entry::pointers`] gives them: each where it
    /// lies, and no more than these.
    ///
    /// # Errors
    /// See [`ReadError`]; the store stays usable.
    pub async fn read_parts(
        &self,
        pointers: impl IntoIterator<Item = Pointer>,
    ) -> Result<Vec<Record>, ReadError> {
        let reads = pointers.into_iter().map(|pointer| self.read(pointer.location));
        futures_util::future::try_join_all(reads).await
    }

    /// Bytes that the index takes in memory, about, but for the cache of what is on disk.
    pub fn index_bytes(&self) -> usize {
        self.state.memory_bytes()
    }
}

/// Where a range ends of which nothing is yet to come: no key lies before this.
const NOTHING_LEFT: Bound<Vec<u8>> = Bound::Excluded(Vec::new());

/// A scan over a snapshot's index, which it holds.
pub struct Scan {
    snapshot: Snapshot,
    order: Order,
    /// The range that is yet to come when it is begun again.
    start: Bound<Vec<u8>>,
    end: Bound<Vec<u8>>,
    descending: bool,
    /// `None` until the first entry is asked for.
    rows: Option<Rows>,
    /// What the layers beneath know of the key that it stands at.
    older: Vec<Pointer>,
}

/// What a scan reads from.
struct Rows {
    layers: Merged,
    layers_stand: bool,
    /// The layers' entry was given, or hidden, or there was none yet.
    layers_passed: bool,
    tree: Option<TreeRows>,
    descending: bool,
    /// The entry that it stands at is the tree's.
    at_tree: bool,
    begun: bool,
}

/// The tree's part of a scan.
struct TreeRows {
    scan: settee_tree::Scan<IndexSums>,
    /// The row that it stands at, its key without the index's prefix.
    key: Vec<u8>,
    value: Vec<u8>,
    stands: bool,
    passed: bool,
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
            None => self.stands = false,
        }
        self.passed = false;
        Ok(())
    }
}

impl Rows {
    fn new(scan: &Scan) -> Rows {
        let state = &scan.snapshot.state;
        let (start, end, descending) = (as_slice(&scan.start), as_slice(&scan.end), scan.descending);
        let layers = state.layers().map(|memory| scan.order.layer(memory));
        let tree = state.base.tree.as_ref().map(|TreeBase { root, .. }| {
            let (start, end) = scan.order.tree_bounds(start, end);
            let scan = root.scan((as_slice(&start), as_slice(&end)), descending);
            TreeRows { scan, key: Vec::new(), value: Vec::new(), stands: true, passed: true }
        });
        let layers = Merged::new(layers, start, end, descending);
        Rows {
            layers,
            layers_stand: true,
            layers_passed: true,
            tree,
            descending,
            at_tree: false,
            begun: false,
        }
    }

    /// Goes to the next entry, tombstones included; false at the end.
    async fn advance(&mut self) -> Result<bool, ReadError> {
        // First what may fail, or be dropped while it waits.
        if let Some(tree) = self.tree.as_mut().filter(|tree| tree.passed && tree.stands) {
            tree.advance().await?;
        }
        self.begun = true;
        if self.layers_passed && self.layers_stand {
            self.layers_stand = self.layers.advance();
            self.layers_passed = false;
        }
        let Some(tree) = self.tree.as_mut().filter(|tree| tree.stands) else {
            (self.at_tree, self.layers_passed) = (false, true);
            return Ok(self.layers_stand);
        };
        if !self.layers_stand {
            (self.at_tree, tree.passed) = (true, true);
            return Ok(true);
        }
        let order = tree.key[..].cmp(self.layers.current().key);
        let order = if self.descending { order.reverse() } else { order };
        self.at_tree = order.is_lt();
        // Of two with the same key the layers' is the newer one.
        tree.passed = order.is_le();
        self.layers_passed = order.is_ge();
        Ok(true)
    }

    /// Whether it stands at an entry.
    fn stands(&self) -> bool {
        self.begun && (self.layers_stand || self.tree.as_ref().is_some_and(|tree| tree.stands))
    }

    /// Gathers what lies beneath the entry that it stands at, where that needs it.
    fn gather(&self, older: &mut Vec<Pointer>) -> Result<(), ReadError> {
        older.clear();
        if self.at_tree || EntryView::trusted(self.layers.current().value).is_whole() {
            return Ok(());
        }
        for found in self.layers.older() {
            let view = EntryView::trusted(found.value);
            older.extend(view.versions());
            if view.is_whole() {
                return Ok(());
            }
        }
        let key = self.layers.current().key;
        if let Some(tree) = self.tree.as_ref().filter(|tree| tree.stands && tree.key == key) {
            older.extend(decode(&tree.value)?.versions());
        }
        Ok(())
    }

    /// The key that it stands at, as the index has it, and the entry.
    fn current(&self) -> Result<(&[u8], EntryView<'_>), ReadError> {
        match self.tree.as_ref().filter(|_| self.at_tree) {
            Some(tree) => Ok((&tree.key, decode(&tree.value)?)),
            None => {
                let found = self.layers.current();
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

    pub(crate) fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// The next entry; `None` at the end. Values are not read. Dropping the future loses no entry.
    ///
    /// # Errors
    /// See [`ReadError`]; a later call tries again.
    pub async fn next(&mut self) -> Result<Option<EntryRef<'_>>, ReadError> {
        self.next_where(|_| true).await
    }

    /// The next entry for which `wanted` is true; those before it are passed over.
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
        let rows = self.rows.as_mut().expect("it was begun");
        loop {
            if !rows.advance().await? {
                return Ok(None);
            }
            let (key, view) = rows.current()?;
            if !view.is_tombstone() && wanted(&EntryRef::new(&key[key_at..], view)) {
                break;
            }
        }
        rows.gather(&mut self.older)?;
        let (key, view) = rows.current()?;
        Ok(Some(EntryRef { older: &self.older, ..EntryRef::new(&key[key_at..], view) }))
    }

    /// Passes over as few entries as have sums of at least `amount` together in the component; over
    /// all that are yet to come where their sum is less. Returns how much was passed. No entry may
    /// have less than nothing of it. Costs O(log n), and the entries that are in memory beside one
    /// leaf of the tree.
    ///
    /// # Errors
    /// See [`Scan::next`].
    pub async fn skip_sum(&mut self, component: usize, amount: u64) -> Result<u64, ReadError> {
        if amount == 0 {
            return Ok(0);
        }
        if !self.snapshot.state.has_beneath() {
            let mut rows = self.rows.take().unwrap_or_else(|| Rows::new(self));
            let passed = rows.layers.skip_sum(component, amount);
            self.rows = Some(rows);
            return Ok(passed);
        }
        self.narrow()?;
        if self.has_ended() {
            return Ok(0);
        }
        let (start, end) = (as_slice(&self.start), as_slice(&self.end));
        let all = self.snapshot.state.sums_between(self.order, start, end).await?[component];
        if all < amount {
            self.end = NOTHING_LEFT;
            return Ok(all);
        }
        // The entries from the range's start on that sum up to this are passed, or are all that is
        // left.
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

    /// Makes the range what is yet to come, and begins again.
    fn narrow(&mut self) -> Result<(), ReadError> {
        let Some(rows) = self.rows.take().filter(|rows| rows.begun) else { return Ok(()) };
        if !rows.stands() {
            self.end = NOTHING_LEFT;
            return Ok(());
        }
        let key = Bound::Excluded(rows.current()?.0.to_vec());
        *(if self.descending { &mut self.end } else { &mut self.start }) = key;
        Ok(())
    }

    /// Whether nothing is yet to come, where it is to begin again.
    fn has_ended(&self) -> bool {
        self.end == NOTHING_LEFT
    }

    /// A place in the range, near the last before which the sum is below `target` (descending: not
    /// above it), and that sum.
    async fn seek(&self, component: usize, target: u64) -> Result<(Bound<Vec<u8>>, u64), ReadError> {
        let state = &self.snapshot.state;
        let Some(TreeBase { root, .. }) = &state.base.tree else { return Ok((self.start.clone(), 0)) };
        let start = as_slice(&self.start);
        let sum_before = |in_tree: &Sums, key: &[u8]| {
            let in_memory = state.memory_sums_between(self.order, start, Bound::Excluded(&key[1..]));
            add(*in_tree, in_memory)[component]
        };
        let passes = |in_tree: &Sums, _count: u64, key: &[u8]| {
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

    /// The next key, as the index has it, and what its entry adds to a sum.
    async fn next_own(&mut self, component: usize) -> Result<Option<(Vec<u8>, u64)>, ReadError> {
        let key_at = self.order.key_at();
        if self.next().await?.is_none() {
            return Ok(None);
        }
        let (key, view) = self.rows.as_ref().expect("it was begun").current()?;
        let own = own_sums(self.snapshot.measure, &key[key_at..], &view);
        Ok(Some((key.to_vec(), own[component])))
    }
}
