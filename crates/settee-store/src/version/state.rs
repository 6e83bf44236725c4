//! A version of the index: looking up entries, and inserting records.
//!
//! A memtable entry's aggregate is the difference that it makes against the previous entry of its key, in
//! older memtables or the tree. The aggregate over a range is therefore the sum of the tree's and of each
//! memtable's. A tombstone hides the previous entry and subtracts its aggregate.
//!
//! Invariants:
//! 1. `by_seq` holds one row per indexed record that is the newest of its key, and one hiding entry per row
//!    of an older memtable or the tree that a newer record replaced.
//! 2. A memtable's aggregates are exact, except between replay and [`Version::backfill_all`]: replay does not
//!    look up previous entries.
//! 3. Immutable memtables don't change; a newer memtable holds only later records.

use std::sync::Arc;

use settee_log::{Flags, SegmentSet};

use super::checkpoint_state::{CheckpointState, CheckpointTree};
use super::lookup::{Lookup, tree_key};
use crate::error::ReadError;
use crate::failpoints::Failpoint;
use crate::index::{
    self, Aggregate, BY_KEY, Entry, EntryView, Location, OPERAND_COUNT_MAX, Pointer, SEQ_SIZE, decode,
    own_aggregates,
};
use crate::memtable::{Aggregates, Found, Memtable, add, subtract};
use crate::options::Rules;

/// Number of keys looked up in the tree at once by [`Version::backfill_all`].
const BACKFILL_COUNT: usize = 4096;

/// A state of the index.
#[derive(Clone)]
pub(crate) struct Version {
    pub memtable: Memtable,
    /// Immutable memtables, newest first.
    pub immutable: Arc<Vec<Memtable>>,
    pub checkpoint: Arc<CheckpointState>,
    /// The segments that hold its records.
    pub set: Arc<SegmentSet>,
    /// The last record in the index.
    pub last_seq: u64,
    /// Highest `Seq` ever in the seq index. It stays when that record is replaced: it is the `last_seq` of
    /// `_changes`.
    pub last_in_seq_index: u64,
}

/// A record that is to be inserted into the index.
pub(crate) struct NewRecord<'a> {
    pub flags: Flags,
    pub key: &'a [u8],
    pub meta: &'a [u8],
    pub location: Location,
}

/// The changes to the seq index that follow from inserting a record by key.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SeqIndexChange {
    /// `Seq` of the replaced record, if it is in the mutable memtable's seq index.
    pub replaced_in_memtable: Option<u64>,
    /// `Seq` of the replaced record, if it is in the seq index of an older memtable or the tree.
    pub replaced_in_older: Option<u64>,
    /// The aggregate of the record, if it is itself in the seq index.
    pub inserted: Option<Aggregates>,
}

/// A key's entry in the immutable memtables or the tree, which an entry of the mutable memtable replaces.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PreviousEntry {
    pub aggregates: Aggregates,
    /// `Seq` of the record, if it is in the seq index.
    pub indexed_seq: Option<u64>,
    /// Size of the record in the log, in bytes.
    pub bytes: u64,
}

impl PreviousEntry {
    pub(crate) fn of(aggregate: Option<Aggregate>, key: &[u8], entry: &EntryView<'_>) -> PreviousEntry {
        PreviousEntry {
            aggregates: own_aggregates(aggregate, key, entry),
            indexed_seq: entry.indexed_seq(),
            bytes: entry.location.length.into(),
        }
    }
}

impl Version {
    /// Whether there are entries older than the mutable memtable.
    pub(crate) fn has_older_entries(&self) -> bool {
        self.checkpoint.tree.is_some() || !self.immutable.is_empty()
    }

    /// All memtables, newest first.
    pub(crate) fn memtables(&self) -> impl Iterator<Item = &Memtable> {
        std::iter::once(&self.memtable).chain(self.immutable.iter())
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.memtables().map(Memtable::bytes).sum()
    }

    /// The aggregate over all keys.
    pub(crate) fn aggregates(&self) -> Aggregates {
        self.memtables().fold(self.checkpoint.aggregates, |aggregates, memtable| {
            add(aggregates, memtable.by_key.aggregates())
        })
    }

    /// The entry of a key. A writer's `lookup` is used for what the tree has.
    pub(crate) async fn get(&self, key: &[u8], lookup: Option<&Lookup>) -> Result<Option<Entry>, ReadError> {
        let (mut found, is_whole) = self.get_in_memtables(key);
        let Some(CheckpointTree { root, .. }) = self.checkpoint.tree.as_ref().filter(|_| !is_whole) else {
            return Ok(found);
        };
        let value = match lookup {
            Some(lookup) => {
                assert!(lookup.matches(&self.checkpoint), "a lookup in another checkpoint's tree");
                lookup.value(key).await?
            }
            None => root.get_with(&tree_key(key), |value| value.map(Arc::from)).await?,
        };
        if let Some(value) = value {
            Entry::gather(&mut found, &decode(&value)?);
        }
        Ok(found)
    }

    /// The entries of many keys, in any order. The tree is read in one pass.
    pub(crate) async fn get_many(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<Entry>>, ReadError> {
        let mut entries = Vec::with_capacity(keys.len());
        let mut in_tree: Vec<(Vec<u8>, usize)> = Vec::new();
        for (index, key) in keys.iter().enumerate() {
            let (found, is_whole) = self.get_in_memtables(key);
            entries.push(found);
            if !is_whole {
                in_tree.push((tree_key(key), index));
            }
        }
        let Some(CheckpointTree { root, .. }) = &self.checkpoint.tree else { return Ok(entries) };
        in_tree.sort_unstable();
        let (in_tree, indexes): (Vec<Vec<u8>>, Vec<usize>) = in_tree.into_iter().unzip();
        let mut damaged = Ok(());
        root.get_many(&in_tree, |at, value| match value.map(decode).transpose() {
            Ok(Some(view)) => Entry::gather(&mut entries[indexes[at]], &view),
            Ok(None) => {}
            Err(error) => damaged = Err(error),
        })
        .await?;
        damaged.map(|()| entries)
    }

    /// What the memtables have of a key's entry, and whether the tree isn't needed for the rest.
    fn get_in_memtables(&self, key: &[u8]) -> (Option<Entry>, bool) {
        let mut found: Option<Entry> = None;
        for memtable in self.memtables() {
            let Some(Found { value, .. }) = memtable.by_key.get(key) else { continue };
            let view = EntryView::trusted(value);
            Entry::gather(&mut found, &view);
            if view.is_whole() {
                return (found, true);
            }
        }
        (found, false)
    }

    /// Whether the memtables have a key's whole entry.
    pub(crate) fn is_in_memtables(&self, key: &[u8]) -> bool {
        let is_whole = |found: Found<'_>| EntryView::trusted(found.value).is_whole();
        self.memtables().any(|memtable| memtable.by_key.get(key).is_some_and(is_whole))
    }

    /// The previous entry of a key that the mutable memtable does not have.
    pub(crate) async fn previous_entry(
        &self,
        aggregate: Option<Aggregate>,
        key: &[u8],
        lookup: &Lookup,
    ) -> Result<PreviousEntry, ReadError> {
        assert!(lookup.matches(&self.checkpoint), "a lookup in another checkpoint's tree");
        for memtable in self.immutable.iter() {
            if let Some(Found { value, .. }) = memtable.by_key.get(key) {
                return Ok(PreviousEntry::of(aggregate, key, &EntryView::trusted(value)));
            }
        }
        match lookup.value(key).await? {
            Some(value) => Ok(PreviousEntry::of(aggregate, key, &decode(&value)?)),
            None => Ok(PreviousEntry::default()),
        }
    }

    /// Inserts a record, the newest so far. `previous` is ignored if the mutable memtable has the key.
    pub(crate) fn insert(&mut self, record: &NewRecord<'_>, previous: PreviousEntry, rules: &Rules) {
        let seq_change = self.insert_by_key(record, previous, rules);
        if let Some(seq) = seq_change.replaced_in_memtable {
            self.remove_from_seq_index(seq, record.key);
        }
        if let Some(seq) = seq_change.replaced_in_older {
            self.hide_in_seq_index(seq, record.key, previous.aggregates);
        }
        if let Some(own) = seq_change.inserted {
            self.insert_in_seq_index(record, own);
        }
    }

    /// Inserts a record, the newest of its key so far, into the index by key, and returns the changes that
    /// the seq index needs.
    pub(crate) fn insert_by_key(
        &mut self,
        record: &NewRecord<'_>,
        previous: PreviousEntry,
        rules: &Rules,
    ) -> SeqIndexChange {
        let Rules { aggregate, replaced_records_max, .. } = *rules;
        let NewRecord { mut flags, key, meta, location } = *record;
        self.last_seq = self.last_seq.max(location.seq);
        self.memtable.last_seq = self.memtable.last_seq.max(location.seq);
        self.memtable.record_bytes += u64::from(location.length);
        let mut seq_change = SeqIndexChange::default();
        if flags.has(Flags::TOMBSTONE) && !self.has_older_entries() {
            let found = self.memtable.by_key.get(key).map(|found| EntryView::trusted(found.value));
            seq_change.replaced_in_memtable = found.and_then(|entry| entry.indexed_seq());
            self.memtable.by_key.remove(key);
            return seq_change;
        }
        let mut own = Aggregates::default();
        seq_change.replaced_in_older = previous.indexed_seq;
        let mut dead_bytes = 0;
        self.memtable.by_key.upsert(key, |old, out| {
            let mut older: Vec<Pointer> = Vec::new();
            dead_bytes = previous.bytes;
            let mut before = previous.aggregates;
            let mut change = Aggregates::default();
            if let Some(old) = old {
                let entry = EntryView::trusted(old.value);
                seq_change =
                    SeqIndexChange { replaced_in_memtable: entry.indexed_seq(), ..SeqIndexChange::default() };
                before = own_aggregates(aggregate, key, &entry);
                change = if rules.is_enabled(Failpoint::WrongReduction) {
                    Aggregates::default()
                } else {
                    old.aggregates
                };
                let is_operand = flags.has(Flags::OPERAND);
                let most = if is_operand { OPERAND_COUNT_MAX - 1 } else { replaced_records_max };
                if entry.is_tombstone() {
                    // An operand on a tombstone needs no older record.
                    flags = if is_operand { Flags::none() } else { flags };
                } else if !flags.has(Flags::TOMBSTONE) {
                    older.extend(entry.all_pointers().take(most));
                }
                let keeps = is_operand || entry.is_tombstone();
                dead_bytes = if keeps { 0 } else { entry.location.length.into() };
            }
            let at = out.len();
            index::encode(flags, location, &older, meta, out);
            own = own_aggregates(aggregate, key, &EntryView::trusted(&out[at..]));
            add(change, subtract(own, before))
        });
        self.memtable.dead_bytes += dead_bytes;
        seq_change.inserted = flags.has(Flags::IN_SEQ_INDEX).then_some(own);
        if rules.is_enabled(Failpoint::SupersededShown) {
            seq_change.replaced_in_memtable = None;
        }
        seq_change
    }

    /// Inserts a record into the seq index.
    pub(crate) fn insert_in_seq_index(&mut self, record: &NewRecord<'_>, own: Aggregates) {
        let NewRecord { flags, key, meta, location } = *record;
        self.last_in_seq_index = self.last_in_seq_index.max(location.seq);
        self.memtable.by_seq.upsert(&seq_key(location.seq, key), |_, out| {
            index::encode(flags, location, &[], meta, out);
            own
        });
    }

    /// Removes a record of the mutable memtable from the seq index.
    pub(crate) fn remove_from_seq_index(&mut self, seq: u64, key: &[u8]) {
        self.memtable.by_seq.remove(&seq_key(seq, key));
    }

    /// Hides a record that is in an older memtable's or the tree's seq index.
    fn hide_in_seq_index(&mut self, seq: u64, key: &[u8], aggregates: Aggregates) {
        let location = Location { seq, segment: 0, offset: 0, length: 0 };
        self.memtable.by_seq.upsert(&seq_key(seq, key), |_, out| {
            index::encode(Flags::TOMBSTONE, location, &[], &[], out);
            subtract(Aggregates::default(), aggregates)
        });
    }

    /// Corrects the aggregate of a key that was inserted before its previous entry was known.
    pub(crate) fn backfill(&mut self, key: &[u8], previous: PreviousEntry) {
        let found = self.memtable.by_key.get(key).expect("the key was inserted");
        let (value, aggregates) = (found.value.to_vec(), found.aggregates);
        self.memtable.by_key.insert(key, &value, subtract(aggregates, previous.aggregates));
        if let Some(seq) = previous.indexed_seq {
            self.hide_in_seq_index(seq, key, previous.aggregates);
        }
    }

    /// Corrects the aggregates of all keys that were inserted before their previous entries were known. Looks
    /// these up in the tree only: there must be no immutable memtables, as is the case at open.
    pub(crate) async fn backfill_all(&mut self, aggregate: Option<Aggregate>) -> Result<(), ReadError> {
        let Some(CheckpointTree { root, .. }) = self.checkpoint.tree.clone().filter(|_| aggregate.is_some())
        else {
            return Ok(());
        };
        let memtable = self.memtable.by_key.clone();
        let mut cursor = memtable.cursor();
        loop {
            let mut keys = Vec::new();
            while keys.len() < BACKFILL_COUNT
                && let Some(found) = cursor.next()
            {
                keys.push([&[BY_KEY], found.key].concat());
            }
            if keys.is_empty() {
                return Ok(());
            }
            let mut damaged = Ok(());
            let mut previous = Vec::new();
            root.get_many(&keys, |index, value| match value.map(decode).transpose() {
                Ok(Some(entry)) => {
                    previous.push((index, PreviousEntry::of(aggregate, &keys[index][1..], &entry)))
                }
                Ok(None) => {}
                Err(error) => damaged = Err(error),
            })
            .await?;
            damaged?;
            previous.into_iter().for_each(|(index, previous)| self.backfill(&keys[index][1..], previous));
        }
    }

    /// Makes the mutable memtable immutable, and begins another.
    pub(crate) fn switch_memtable(&mut self) {
        if self.memtable.is_empty() {
            return;
        }
        let generation = self.memtable.generation + 1;
        let mut full = std::mem::replace(&mut self.memtable, Memtable::new(generation));
        full.last_in_seq_index = self.last_in_seq_index;
        let mut immutable = Vec::with_capacity(self.immutable.len() + 1);
        immutable.push(full);
        immutable.extend(self.immutable.iter().cloned());
        self.immutable = Arc::new(immutable);
        self.check();
    }

    /// Sets the files, and the checkpoint state if one is given: one that contains all memtables up to the
    /// generation given with it. A generation of 0: it contains no more memtables than the one before.
    pub(crate) fn set_files(
        &mut self,
        checkpoint: Option<(&Arc<CheckpointState>, u64)>,
        set: &Arc<SegmentSet>,
    ) {
        self.set = set.clone();
        let Some((checkpoint, generation)) = checkpoint else { return };
        if self.memtable.generation <= generation {
            assert!(self.last_seq <= checkpoint.seq, "a checkpointed memtable takes no more records");
            self.memtable = Memtable::new(generation + 1);
        }
        if self.immutable.iter().any(|memtable| memtable.generation <= generation) {
            let kept = self.immutable.iter().filter(|memtable| memtable.generation > generation);
            self.immutable = Arc::new(kept.cloned().collect());
        }
        self.checkpoint = checkpoint.clone();
        self.check();
    }
}

pub(crate) fn seq_key(seq: u64, key: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(SEQ_SIZE + key.len());
    bytes.extend_from_slice(&seq.to_be_bytes());
    bytes.extend_from_slice(key);
    bytes
}
