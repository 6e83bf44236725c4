//! The index: what is in memory over what is on disk.
//!
//! A state is the memory layer that takes writes, the frozen ones behind it, and the base: the tree
//! of the last checkpoint and the segments that it refers to. A state never changes; the writer
//! makes the next one by copying it, which costs a few reference counts, and changing the copy.
//!
//! An entry in a layer adds to the sums what it changes against all that lies beneath the layer; so
//! the sums over a range are those of the tree and of each layer, added up. A tombstone hides what
//! lies beneath and takes its sums away.
//!
//! Invariants:
//! 1. In `by_seq` stand the listed records that are the newest of their keys, and tombstones of
//!    those beneath that no longer are.
//! 2. A layer's sums are right once what lies beneath each of its keys was known: always, but
//!    while a log is replayed.
//! 3. Frozen layers don't change; a newer layer has later records alone.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use settee_log::{Files, Flags};
use settee_tree::{Reduction, Root, Tree};

use crate::checkpoint::Facts;
use crate::entry::{self, CHAIN_COUNT_MAX, EntryView, Location, Pointer};
use crate::error::ReadError;
use crate::layer::{Found, Layer, Sums, add, subtract};
use crate::planted::Planted;
use crate::segments::Segments;
use crate::snapshot::Entry;

/// How many keys are looked up at once when a log was replayed.
const SETTLE_COUNT: usize = 4096;

/// What an entry adds to the sums, from its key, its meta and the length of its newest record.
pub type Measure = fn(&[u8], &[u8], u32) -> Sums;

/// In the tree, keys of `by_key` begin with this,
pub(crate) const BY_KEY: u8 = b'K';
/// and those of `by_seq` with this: a tree holds both.
pub(crate) const BY_SEQ: u8 = b'S';

/// What stands for the tree's file where an entry in it makes no sense.
pub(crate) const INDEX: &str = "the index";

/// Bytes of a `Seq` in front of the keys in `by_seq`.
pub(crate) const SEQ_SIZE: usize = 8;

/// The sums of the tree's entries.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IndexSums(pub Option<Measure>);

impl Reduction for IndexSums {
    type Summary = Sums;

    fn zero(&self) -> Sums {
        Sums::default()
    }

    fn of(&self, key: &[u8], value: &[u8]) -> Sums {
        let key_at = if key.first() == Some(&BY_SEQ) { 1 + SEQ_SIZE } else { 1 };
        match (key.get(key_at..), EntryView::decode(value)) {
            (Some(key), Some(entry)) => own_sums(self.0, key, &entry),
            // Left for who reads it.
            _ => Sums::default(),
        }
    }

    fn join(&self, left: &Sums, right: &Sums) -> Sums {
        add(*left, *right)
    }

    fn encode(&self, sums: &Sums, out: &mut Vec<u8>) {
        sums.iter().for_each(|sum| entry::push_number(*sum, out));
    }

    fn decode(&self, bytes: &[u8]) -> Option<Sums> {
        let mut reader = entry::Reader(bytes);
        let sums = [reader.number()?, reader.number()?, reader.number()?];
        reader.0.is_empty().then_some(sums)
    }
}

/// What a visible entry adds to the sums.
pub(crate) fn own_sums(measure: Option<Measure>, key: &[u8], entry: &EntryView<'_>) -> Sums {
    match measure {
        // Of the newest record alone: an entry need not know of those in the layers beneath.
        Some(measure) if !entry.is_tombstone() => measure(key, entry.meta, entry.location.length),
        _ => Sums::default(),
    }
}

/// A memory layer: recent records by key and by `Seq`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Memory {
    /// Counts the layers, from 1 on; the newest has the highest.
    pub generation: u64,
    pub by_key: Layer,
    /// By the `Seq` of their record: its 8 bytes, big-endian, then the key.
    pub by_seq: Layer,
    /// Its last record.
    pub last_seq: u64,
    /// Of a frozen one: the last listed record up to there.
    pub last_listed: u64,
    /// What its records take in the log, also those that were replaced.
    pub record_bytes: u64,
    /// What takes room in the log and died since the layer began, as far as is known.
    pub dead_bytes: u64,
}

impl Memory {
    pub(crate) fn new(generation: u64) -> Memory {
        Memory { generation, ..Memory::default() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.last_seq == 0
    }

    /// What a checkpoint would free: nothing of one that is empty.
    pub(crate) fn bytes(&self) -> usize {
        match self.is_empty() {
            true => 0,
            false => self.by_key.memory_bytes() + self.by_seq.memory_bytes(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }
}

/// What lives of a segment, as of a checkpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Live {
    pub bytes: u64,
    pub count: u64,
}

/// What was checkpointed: no record up to `seq` is in the layers.
#[derive(Clone)]
pub(crate) struct Base {
    pub tree: Option<TreeBase>,
    /// The checkpoint's last record.
    pub seq: u64,
    /// The last listed one up to there.
    pub last_listed: u64,
    /// Over all keys.
    pub sums: Sums,
    /// What the log handed over.
    pub segments: Arc<Segments>,
    /// By the segments' numbers, as the log gave them.
    pub live: Arc<BTreeMap<u32, Live>>,
    /// The bytes of all of them.
    pub live_bytes: u64,
}

impl Base {
    pub(crate) async fn new(
        tree: Option<TreeBase>,
        facts: &Facts,
        segments: Arc<Segments>,
    ) -> Result<Base, ReadError> {
        let live = Arc::new(facts.live.clone());
        let (seq, sums) = match &tree {
            None => (0, Sums::default()),
            Some(TreeBase { root, .. }) => {
                let all = (Bound::Included(&[BY_KEY][..]), Bound::Excluded(&[BY_KEY + 1][..]));
                (root.seq(), root.summary_in(all).await?)
            }
        };
        let last_listed = facts.last_listed;
        let live_bytes = live.values().map(|live| live.bytes).sum();
        Ok(Base { tree, seq, last_listed, sums, segments, live, live_bytes })
    }

    /// What lives of all segments.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.live_bytes
    }
}

/// The tree's file, and its root as of a checkpoint.
#[derive(Clone)]
pub(crate) struct TreeBase {
    pub number: u64,
    pub tree: Arc<Tree<IndexSums>>,
    pub root: Root<IndexSums>,
}

/// A state of the index.
#[derive(Clone)]
pub(crate) struct State {
    pub memory: Memory,
    /// Newest first.
    pub frozen: Arc<Vec<Memory>>,
    pub base: Arc<Base>,
    /// The log's segments, which this state refers to.
    pub files: Files,
    /// The last record that is in the index.
    pub last_seq: u64,
    /// The last listed one that ever was.
    pub last_listed: u64,
}

/// What of a store's options its states follow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    pub measure: Option<Measure>,
    /// How many replaced versions a memory layer remembers of a key.
    pub versions_max: usize,
    #[cfg(feature = "planted-faults")]
    pub planted: Option<Planted>,
}

/// One record on its way into the index.
pub(crate) struct Incoming<'a> {
    pub flags: Flags,
    pub key: &'a [u8],
    pub meta: &'a [u8],
    pub location: Location,
}

/// What a record that was entered by key changes in the index by `Seq`.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Listing {
    /// The memory layer's listed record that it replaced,
    pub replaced_here: Option<u64>,
    /// or the one beneath.
    pub replaced_beneath: Option<u64>,
    /// It is listed itself, and adds this to the sums.
    pub listed: Option<Sums>,
}

/// What lies beneath the memory layer under a key.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Beneath {
    pub sums: Sums,
    /// The record's `Seq`, where it is listed.
    pub listed: Option<u64>,
    /// What it takes in the log.
    pub bytes: u64,
}

impl Beneath {
    pub(crate) fn of(measure: Option<Measure>, key: &[u8], entry: &EntryView<'_>) -> Beneath {
        Beneath {
            sums: own_sums(measure, key, entry),
            listed: entry.listed_seq(),
            bytes: entry.location.length.into(),
        }
    }
}

impl State {
    /// Whether anything lies beneath the memory layer.
    pub(crate) fn has_beneath(&self) -> bool {
        self.base.tree.is_some() || !self.frozen.is_empty()
    }

    /// All layers, newest first.
    pub(crate) fn layers(&self) -> impl Iterator<Item = &Memory> {
        std::iter::once(&self.memory).chain(self.frozen.iter())
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.layers().map(Memory::bytes).sum()
    }

    /// The sums over all keys.
    pub(crate) fn sums(&self) -> Sums {
        self.layers().fold(self.base.sums, |sums, layer| add(sums, layer.by_key.sums()))
    }

    /// What stands under a key.
    pub(crate) async fn get(&self, key: &[u8]) -> Result<Option<Entry>, ReadError> {
        let mut found: Option<Entry> = None;
        for layer in self.layers() {
            let Some(Found { value, .. }) = layer.by_key.get(key) else { continue };
            let view = EntryView::trusted(value);
            Entry::gather(&mut found, &view);
            if view.is_whole() {
                return Ok(found);
            }
        }
        let Some(TreeBase { root, .. }) = &self.base.tree else { return Ok(found) };
        let mut tree_key = Vec::with_capacity(1 + key.len());
        tree_key.push(BY_KEY);
        tree_key.extend_from_slice(key);
        if let Some(value) = root.get(&tree_key).await? {
            Entry::gather(&mut found, &decode(&value)?);
        }
        Ok(found)
    }

    /// What lies beneath the memory layer under a key that this layer doesn't have.
    pub(crate) async fn beneath(&self, measure: Option<Measure>, key: &[u8]) -> Result<Beneath, ReadError> {
        for layer in self.frozen.iter() {
            if let Some(Found { value, .. }) = layer.by_key.get(key) {
                return Ok(Beneath::of(measure, key, &EntryView::trusted(value)));
            }
        }
        let Some(TreeBase { root, .. }) = &self.base.tree else { return Ok(Beneath::default()) };
        let mut tree_key = Vec::with_capacity(1 + key.len());
        tree_key.push(BY_KEY);
        tree_key.extend_from_slice(key);
        match root.get(&tree_key).await? {
            Some(value) => Ok(Beneath::of(measure, key, &decode(&value)?)),
            None => Ok(Beneath::default()),
        }
    }

    /// Enters one record, the newest so far. `beneath` counts where the memory layer doesn't have
    /// the key.
    pub(crate) fn enter(&mut self, record: &Incoming<'_>, beneath: Beneath, rules: &Rules) {
        let listing = self.enter_by_key(record, beneath, rules);
        if let Some(seq) = listing.replaced_here {
            self.unlist(seq, record.key);
        }
        if let Some(seq) = listing.replaced_beneath {
            self.hide_listed(seq, record.key, beneath.sums);
        }
        if let Some(own) = listing.listed {
            self.list(record, own);
        }
    }

    /// Enters a record, the newest of its key so far, into the index by key. Says what is to be done
    /// in the other.
    pub(crate) fn enter_by_key(&mut self, record: &Incoming<'_>, beneath: Beneath, rules: &Rules) -> Listing {
        let Rules { measure, versions_max, .. } = *rules;
        let Incoming { mut flags, key, meta, location } = *record;
        self.last_seq = self.last_seq.max(location.seq);
        self.memory.last_seq = self.memory.last_seq.max(location.seq);
        self.memory.record_bytes += u64::from(location.length);
        let mut listing = Listing::default();
        if flags.has(Flags::TOMBSTONE) && !self.has_beneath() {
            let found = self.memory.by_key.get(key).map(|found| EntryView::trusted(found.value));
            listing.replaced_here = found.and_then(|entry| entry.listed_seq());
            self.memory.by_key.remove(key);
            return listing;
        }
        let mut own = Sums::default();
        listing.replaced_beneath = beneath.listed;
        let mut dead_bytes = 0;
        self.memory.by_key.upsert(key, |old, out| {
            let mut chain: Vec<Pointer> = Vec::new();
            dead_bytes = beneath.bytes;
            let mut before = beneath.sums;
            let mut change = Sums::default();
            if let Some(old) = old {
                let entry = EntryView::trusted(old.value);
                listing = Listing { replaced_here: entry.listed_seq(), ..Listing::default() };
                before = own_sums(measure, key, &entry);
                change = if rules.is_planted(Planted::WrongReduction) { Sums::default() } else { old.sums };
                let is_delta = flags.has(Flags::DELTA);
                let most = if is_delta { CHAIN_COUNT_MAX - 1 } else { versions_max };
                if entry.is_tombstone() {
                    // A delta on nothing needs no older one, whatever lies beneath.
                    flags = if is_delta { Flags::none() } else { flags };
                } else if !flags.has(Flags::TOMBSTONE) {
                    chain.extend(entry.versions().take(most));
                }
                let keeps = is_delta || entry.is_tombstone();
                dead_bytes = if keeps { 0 } else { entry.location.length.into() };
            }
            let at = out.len();
            entry::encode(flags, location, &chain, meta, out);
            own = own_sums(measure, key, &EntryView::trusted(&out[at..]));
            add(change, subtract(own, before))
        });
        self.memory.dead_bytes += dead_bytes;
        listing.listed = flags.has(Flags::LISTED).then_some(own);
        if rules.is_planted(Planted::SupersededShown) {
            listing.replaced_here = None;
        }
        listing
    }

    /// Enters a listed record into the index by `Seq`.
    pub(crate) fn list(&mut self, record: &Incoming<'_>, own: Sums) {
        let Incoming { flags, key, meta, location } = *record;
        self.last_listed = self.last_listed.max(location.seq);
        self.memory.by_seq.upsert(&seq_key(location.seq, key), |_, out| {
            entry::encode(flags, location, &[], meta, out);
            own
        });
    }

    /// Takes a record of the memory layer out of the index by `Seq`.
    pub(crate) fn unlist(&mut self, seq: u64, key: &[u8]) {
        self.memory.by_seq.remove(&seq_key(seq, key));
    }

    /// Hides a listed record that lies beneath.
    fn hide_listed(&mut self, seq: u64, key: &[u8], sums: Sums) {
        let location = Location { seq, segment: 0, offset: 0, length: 0 };
        self.memory.by_seq.upsert(&seq_key(seq, key), |_, out| {
            entry::encode(Flags::TOMBSTONE, location, &[], &[], out);
            subtract(Sums::default(), sums)
        });
    }

    /// Makes the sums of a key right that was entered without knowing what lies beneath.
    pub(crate) fn settle(&mut self, key: &[u8], beneath: Beneath) {
        let found = self.memory.by_key.get(key).expect("it was entered");
        let (value, sums) = (found.value.to_vec(), found.sums);
        self.memory.by_key.insert(key, &value, subtract(sums, beneath.sums));
        if let Some(seq) = beneath.listed {
            self.hide_listed(seq, key, beneath.sums);
        }
    }

    /// Makes the sums right of all that was entered without knowing what lies beneath.
    pub(crate) async fn settle_all(&mut self, measure: Option<Measure>) -> Result<(), ReadError> {
        let Some(TreeBase { root, .. }) = self.base.tree.clone().filter(|_| measure.is_some()) else {
            return Ok(());
        };
        let layer = self.memory.by_key.clone();
        let mut cursor = layer.cursor();
        loop {
            let mut keys = Vec::new();
            while keys.len() < SETTLE_COUNT
                && let Some(found) = cursor.next()
            {
                keys.push([&[BY_KEY], found.key].concat());
            }
            if keys.is_empty() {
                return Ok(());
            }
            let mut damaged = Ok(());
            let mut beneath = Vec::new();
            root.get_many(&keys, |index, value| match value.map(decode).transpose() {
                Ok(Some(entry)) => beneath.push((index, Beneath::of(measure, &keys[index][1..], &entry))),
                Ok(None) => {}
                Err(error) => damaged = Err(error),
            })
            .await?;
            damaged?;
            beneath.into_iter().for_each(|(index, beneath)| self.settle(&keys[index][1..], beneath));
        }
    }

    /// Freezes the memory layer, and begins another.
    pub(crate) fn freeze(&mut self) {
        if self.memory.is_empty() {
            return;
        }
        let generation = self.memory.generation + 1;
        let mut full = std::mem::replace(&mut self.memory, Memory::new(generation));
        full.last_listed = self.last_listed;
        let mut frozen = Vec::with_capacity(self.frozen.len() + 1);
        frozen.push(full);
        frozen.extend(self.frozen.iter().cloned());
        self.frozen = Arc::new(frozen);
    }

    /// The same state over a base that has all layers up to `generation` (0: no more of them than the
    /// one before), and all segments that aren't in `files`.
    pub(crate) fn rebase(&mut self, base: &Arc<Base>, files: &Files, generation: u64) {
        self.files = files.clone();
        if self.memory.generation <= generation {
            assert!(self.last_seq <= base.seq, "a layer that was checkpointed is whole");
            self.memory = Memory::new(generation + 1);
        }
        if self.frozen.iter().any(|layer| layer.generation <= generation) {
            let kept = self.frozen.iter().filter(|layer| layer.generation > generation);
            self.frozen = Arc::new(kept.cloned().collect());
        }
        self.base = base.clone();
    }
}

/// An entry from the tree, whose bytes were checked.
pub(crate) fn decode(value: &[u8]) -> Result<EntryView<'_>, ReadError> {
    EntryView::decode(value).ok_or(ReadError::Damaged {
        path: INDEX.into(),
        offset: 0,
        what: "an entry makes no sense",
    })
}

pub(crate) fn seq_key(seq: u64, key: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(SEQ_SIZE + key.len());
    bytes.extend_from_slice(&seq.to_be_bytes());
    bytes.extend_from_slice(key);
    bytes
}
