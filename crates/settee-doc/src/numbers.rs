//! A database's own numbers: its settings, and how often it has purged.
//!
//! Each lies under a key of its own and is held in memory, where reads and updates find it. One that was
//! accepted waits until it is persisted, whether or not whoever wrote it does.
//!
//! Invariants:
//! 1. What memory shows is persisted.
//! 2. What is persisted shows from the next look on.

use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use settee_store::{Batch, Seq, Snapshot};

use crate::keys::{NUMBER, PURGE, decode_number, encode_number, number_key, purge_key};
use crate::{Error, Result};

/// How many revisions of a leaf's path are kept unless the database says otherwise.
const REVS_LIMIT: u64 = 1000;

/// How many notes of purges are kept unless the database says otherwise.
const PURGED_INFOS_LIMIT: u64 = 1000;

/// The shards that a database reports unless it was created with another number.
const SHARD_COUNT: u64 = 1;

/// Notes that one batch removes.
pub(crate) const NOTES_REMOVED_MAX: usize = 1000;

/// One of a database's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Number {
    RevsLimit,
    PurgedInfosLimit,
    /// Of the last purge: the first is 1.
    PurgeSeq,
    /// CouchDB's `q`, which is reported and changes nothing.
    ShardCount,
}

const ALL: [Number; 4] = [Number::RevsLimit, Number::PurgedInfosLimit, Number::PurgeSeq, Number::ShardCount];

impl Number {
    fn name(self) -> &'static str {
        match self {
            Number::RevsLimit => "revs_limit",
            Number::PurgedInfosLimit => "purged_infos_limit",
            Number::PurgeSeq => "purge_seq",
            Number::ShardCount => "q",
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
    /// What was accepted and isn't in force yet, in order, with the `Seq` of its batch.
    accepted: Mutex<Vec<(Seq, Number, u64)>>,
    /// The first of these `Seq`s; `u64::MAX` where there is none.
    first_accepted: AtomicU64,
}

impl Numbers {
    pub(crate) async fn read(snapshot: &Snapshot) -> Result<Numbers> {
        let values = [REVS_LIMIT, PURGED_INFOS_LIMIT, 0, SHARD_COUNT].map(AtomicU64::new);
        let (changing, accepted, first_accepted) = Default::default();
        let numbers = Numbers { changing, values, accepted, first_accepted };
        numbers.first_accepted.store(u64::MAX, Ordering::Relaxed);
        let (start, end) = ([NUMBER], [NUMBER + 1]);
        let mut scan = snapshot.scan(Bound::Included(&start), Bound::Excluded(&end), false);
        while let Some(entry) = scan.next().await? {
            let number = ALL.into_iter().find(|number| number.name().as_bytes() == &entry.key[1..]);
            let number = number.ok_or_else(|| Error::damaged("a database has a number that isn't known"))?;
            numbers.set(number, decode_number(entry.meta)?);
        }
        Ok(numbers)
    }

    /// A number in force; `persisted` tells how far the store is.
    pub(crate) fn get(&self, number: Number, persisted: impl FnOnce() -> Seq) -> u64 {
        if self.first_accepted.load(Ordering::Acquire) != u64::MAX {
            self.settle(persisted());
        }
        self.values[number as usize].load(Ordering::Acquire)
    }

    /// A number was accepted with the batch that ends with `seq`: it is in force once that is persisted.
    /// `persisted` is how far the store is now.
    pub(crate) fn accept(&self, seq: Seq, number: Number, value: u64, persisted: Seq) {
        let mut accepted = self.accepted.lock().unwrap_or_else(PoisonError::into_inner);
        accepted.push((seq, number, value));
        self.first_accepted.fetch_min(seq.0, Ordering::AcqRel);
        drop(accepted);
        self.settle(persisted);
    }

    /// Brings into force what is persisted.
    fn settle(&self, persisted: Seq) {
        if self.first_accepted.load(Ordering::Acquire) > persisted.0 {
            return;
        }
        let mut accepted = self.accepted.lock().unwrap_or_else(PoisonError::into_inner);
        accepted.retain(|(seq, number, value)| {
            if *seq <= persisted {
                self.set(*number, *value);
            }
            *seq > persisted
        });
        let first = accepted.iter().map(|(seq, ..)| seq.0).min().unwrap_or(u64::MAX);
        self.first_accepted.store(first, Ordering::Release);
    }

    fn set(&self, number: Number, value: u64) {
        self.values[number as usize].store(value, Ordering::Release);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_in_force_once_it_is_persisted_whoever_looks() {
        let (changing, accepted, values) = Default::default();
        let numbers = Numbers { changing, accepted, values, first_accepted: AtomicU64::new(u64::MAX) };
        let get = |number, persisted| numbers.get(number, || Seq(persisted));
        numbers.accept(Seq(7), Number::PurgeSeq, 1, Seq(3));
        numbers.accept(Seq(9), Number::PurgeSeq, 2, Seq(3));
        numbers.accept(Seq(8), Number::RevsLimit, 40, Seq(3));
        assert_eq!((get(Number::PurgeSeq, 6), get(Number::RevsLimit, 6)), (0, 0));
        assert_eq!((get(Number::PurgeSeq, 8), get(Number::RevsLimit, 8)), (1, 40));
        assert_eq!(get(Number::PurgeSeq, 9), 2);
        assert_eq!(numbers.first_accepted.load(Ordering::Relaxed), u64::MAX);
        assert!(numbers.accepted.lock().unwrap().is_empty());
    }
}
