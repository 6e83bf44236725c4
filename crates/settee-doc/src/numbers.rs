//! A database's own numbers: its settings, and how often it has purged.
//!
//! Each lies under a key of its own and is held in memory, where reads and updates find it.
//!
//! Invariant: what memory holds is persisted.

use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use settee_store::{Batch, Snapshot};

use crate::keys::{NUMBER, PURGE, decode_number, encode_number, number_key, purge_key};
use crate::{Error, Result};

/// How many revisions of a leaf's path are kept unless the database says otherwise.
const REVS_LIMIT: u64 = 1000;

/// How many notes of purges are kept unless the database says otherwise.
const PURGED_INFOS_LIMIT: u64 = 1000;

/// Notes that one batch removes.
pub(crate) const NOTES_REMOVED_MAX: usize = 1000;

/// One of a database's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Number {
    RevsLimit,
    PurgedInfosLimit,
    /// Of the last purge: the first is 1.
    PurgeSeq,
}

const ALL: [Number; 3] = [Number::RevsLimit, Number::PurgedInfosLimit, Number::PurgeSeq];

impl Number {
    fn name(self) -> &'static str {
        match self {
            Number::RevsLimit => "revs_limit",
            Number::PurgedInfosLimit => "purged_infos_limit",
            Number::PurgeSeq => "purge_seq",
        }
    }

    pub(crate) fn key(self) -> Vec<u8> {
        number_key(self.name())
    }

    pub(crate) fn put(self, value: u64, batch: &mut Batch) {
        batch.put(&self.key(), &encode_number(value), Bytes::new(), false);
    }
}

/// A database's numbers, as they are persisted.
pub(crate) struct Numbers {
    /// Held by who changes a setting, until that is persisted.
    pub(crate) changing: tokio::sync::Mutex<()>,
    values: [AtomicU64; ALL.len()],
}

impl Numbers {
    pub(crate) async fn read(snapshot: &Snapshot) -> Result<Numbers> {
        let values = [REVS_LIMIT, PURGED_INFOS_LIMIT, 0].map(AtomicU64::new);
        let numbers = Numbers { changing: Default::default(), values };
        let (start, end) = ([NUMBER], [NUMBER + 1]);
        let mut scan = snapshot.scan(Bound::Included(&start), Bound::Excluded(&end), false);
        while let Some(entry) = scan.next().await? {
            let number = ALL.into_iter().find(|number| number.name().as_bytes() == &entry.key[1..]);
            let number = number.ok_or_else(|| Error::damaged("a database has a number that isn't known"))?;
            numbers.set(number, decode_number(entry.meta)?);
        }
        Ok(numbers)
    }

    pub(crate) fn get(&self, number: Number) -> u64 {
        self.values[number as usize].load(Ordering::Acquire)
    }

    pub(crate) fn set(&self, number: Number, value: u64) {
        self.values[number as usize].store(value, Ordering::Release);
    }

    /// As [`Numbers::set`], but never to less than it was.
    pub(crate) fn raise_to(&self, number: Number, value: u64) {
        self.values[number as usize].fetch_max(value, Ordering::AcqRel);
    }

    /// How many revisions of a leaf's path are kept and shown.
    pub(crate) fn revs_limit(&self) -> u32 {
        u32::try_from(self.get(Number::RevsLimit)).unwrap_or(u32::MAX)
    }
}

/// Adds the removal of the notes of purges up to a number, of [`NOTES_REMOVED_MAX`] at once. Returns
/// whether there may be more.
pub(crate) async fn remove_notes(snapshot: &Snapshot, up_to: u64, batch: &mut Batch) -> Result<bool> {
    let (start, end) = ([PURGE], purge_key(up_to));
    let mut scan = snapshot.scan(Bound::Included(&start), Bound::Included(&end), false);
    for _ in 0..NOTES_REMOVED_MAX {
        match scan.next().await? {
            Some(entry) => batch.delete(entry.key),
            None => return Ok(false),
        }
    }
    Ok(true)
}
