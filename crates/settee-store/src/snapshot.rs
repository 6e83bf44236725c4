//! Snapshots: what readers read from.

use std::ops::Bound;
use std::sync::Arc;

use settee_log::{Log, ReadError, Record, Seq};

use crate::layer::{Cursor, Found, Layer, Location, Sums};

/// The index over the log, by key and by `Seq`.
#[derive(Clone, Default)]
pub(crate) struct Indexes {
    /// Every key that has a value.
    pub by_key: Layer,
    /// The listed ones of them, by the `Seq` of their record: its 8 bytes, big-endian, then
    /// the key.
    pub by_seq: Layer,
    /// The last record that is in the index.
    pub last_seq: u64,
}

/// Bytes of a `Seq` in front of the keys in `by_seq`.
const SEQ_SIZE: usize = 8;

pub(crate) fn seq_key(seq: u64, key: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(SEQ_SIZE + key.len());
    bytes.extend_from_slice(&seq.to_be_bytes());
    bytes.extend_from_slice(key);
    bytes
}

/// A persisted state of the store, unchanged by later writes. Cheap to clone.
#[derive(Clone)]
pub struct Snapshot {
    pub(crate) log: Arc<Log>,
    pub(crate) indexes: Arc<Indexes>,
}

/// What the index says of a record: its value has not been read.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The meta that was put with the value.
    pub meta: &'a [u8],
    /// Where the value is.
    pub location: Location,
}

impl<'a> Entry<'a> {
    /// What an index says; keys begin at `key_at` there.
    pub(crate) fn new(found: Found<'a>, key_at: usize) -> Entry<'a> {
        Entry { key: &found.key[key_at..], meta: found.meta, location: found.location }
    }

    /// The record's place in the order of updates.
    pub fn seq(&self) -> Seq {
        Seq(self.location.seq)
    }
}

impl Snapshot {
    /// The last record that it shows.
    pub fn seq(&self) -> Seq {
        Seq(self.indexes.last_seq)
    }

    /// The last listed record that it shows; 0 where there is none.
    pub fn last_listed(&self) -> Seq {
        self.scan_listed(Seq(0), true).next().map_or(Seq(0), |entry| entry.seq())
    }

    /// What stands under `key`.
    pub fn get(&self, key: &[u8]) -> Option<Entry<'_>> {
        Some(Entry::new(self.indexes.by_key.get(key)?, 0))
    }

    /// The entries between two keys, in their order or backwards. The bounds are those of the
    /// keys' order, whatever the direction.
    pub fn scan(&self, start: Bound<&[u8]>, end: Bound<&[u8]>, descending: bool) -> Scan {
        Scan { cursor: Cursor::range(&self.indexes.by_key, start, end, descending), key_at: 0 }
    }

    /// The listed entries after `after`, in the order of their updates or backwards.
    pub fn scan_listed(&self, after: Seq, descending: bool) -> Scan {
        let start = after.0.saturating_add(1).to_be_bytes();
        let cursor =
            Cursor::range(&self.indexes.by_seq, Bound::Included(&start), Bound::Unbounded, descending);
        Scan { cursor, key_at: SEQ_SIZE }
    }

    /// The sums over the entries between two keys, without visiting them.
    pub fn sums(&self, start: Bound<&[u8]>, end: Bound<&[u8]>) -> Sums {
        self.indexes.by_key.sums_in((start, end))
    }

    /// The sums over the listed entries after `after`, without visiting them.
    pub fn sums_listed(&self, after: Seq) -> Sums {
        let start = after.0.saturating_add(1).to_be_bytes();
        self.indexes.by_seq.sums_in((Bound::Included(&start), Bound::Unbounded))
    }

    /// Reads an entry's record: one positional read.
    ///
    /// # Errors
    /// See [`ReadError`]; the store stays usable.
    pub async fn read(&self, location: Location) -> Result<Record, ReadError> {
        let Location { seq, segment, offset, length } = location;
        let record = self.log.read(settee_log::Location { segment, offset, length }).await?;
        if record.seq() != Seq(seq) {
            let path = format!("segment {segment}").into();
            return Err(ReadError::Damaged { path, offset, what: "another record stands there" });
        }
        Ok(record)
    }

    /// Bytes that the index takes in memory, about.
    pub fn index_bytes(&self) -> usize {
        self.indexes.by_key.memory_bytes() + self.indexes.by_seq.memory_bytes()
    }
}

/// A scan over a snapshot's index, which it holds.
pub struct Scan {
    cursor: Cursor,
    /// Where the keys begin in the keys of the scanned index.
    key_at: usize,
}

impl Scan {
    /// The next entry. Values are not read.
    #[expect(clippy::should_implement_trait, reason = "an entry borrows from the scan")]
    pub fn next(&mut self) -> Option<Entry<'_>> {
        self.next_where(|_| true)
    }

    /// The next entry for which `wanted` is true; those before it are passed over.
    pub fn next_where(&mut self, wanted: impl Fn(&Entry<'_>) -> bool) -> Option<Entry<'_>> {
        let key_at = self.key_at;
        let found = self.cursor.next_where(|found| wanted(&Entry::new(found, key_at)))?;
        Some(Entry::new(found, key_at))
    }

    /// Passes over entries until `amount` of the sum `component` has been passed; returns how
    /// much was.
    pub fn skip_sum(&mut self, component: usize, amount: u64) -> u64 {
        self.cursor.skip_sum(component, amount)
    }
}
