//! A database's settings and counters: revision and purge limits, shard count, purge sequence, last requested
//! compaction.
//!
//! Each is stored under its own key and cached in memory for reads and updates. An accepted value takes
//! effect when it is persisted, whether or not its writer waits for that.
//!
//! Invariants:
//! 1. A cached value is persisted.
//! 2. A persisted value is visible from the next read on.

use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use settee_store::{Batch, Seq, Snapshot as StoreSnapshot};

use crate::documents::keys::{COUNTER, PURGE, counter_key, decode_number, encode_number, purge_key};
use crate::{Error, Result};

/// Default number of revisions kept per leaf's path.
const REVS_LIMIT: u64 = 1000;

/// Default number of purge infos kept.
const PURGED_INFOS_LIMIT: u64 = 1000;

/// Default shard count reported.
const SHARD_COUNT: u64 = 1;

/// Largest number of purge infos that one batch removes.
pub(crate) const PURGE_INFOS_REMOVED_MAX: usize = 1000;

/// One of a database's settings and counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counter {
    RevsLimit,
    PurgedInfosLimit,
    /// Number of the last purge; the first is 1.
    PurgeSeq,
    /// CouchDB's `q`, which is reported and has no effect.
    ShardCount,
    /// The `Seq` at the end of the last requested compaction: what was replaced as of it isn't read any more.
    CompactedTo,
}

const ALL: [Counter; 5] = [
    Counter::RevsLimit,
    Counter::PurgedInfosLimit,
    Counter::PurgeSeq,
    Counter::ShardCount,
    Counter::CompactedTo,
];

impl Counter {
    fn name(self) -> &'static str {
        match self {
            Counter::RevsLimit => "revs_limit",
            Counter::PurgedInfosLimit => "purged_infos_limit",
            Counter::PurgeSeq => "purge_seq",
            Counter::ShardCount => "q",
            Counter::CompactedTo => "compacted_to",
        }
    }

    pub(crate) fn key(self) -> Vec<u8> {
        counter_key(self.name())
    }

    pub(crate) fn put(self, value: u64, batch: &mut Batch) {
        batch.put(&self.key(), &encode_number(value), Bytes::new(), false);
    }
}

/// The stored number of revisions kept per leaf's path, of a database that isn't open.
pub(crate) async fn stored_revs_limit(snapshot: &StoreSnapshot) -> Result<u32> {
    let entry = snapshot.get(&Counter::RevsLimit.key()).await?;
    let limit = entry.map_or(Ok(REVS_LIMIT), |entry| decode_number(&entry.meta))?;
    Ok(u32::try_from(limit).unwrap_or(u32::MAX))
}

/// A database's settings and counters, as they are persisted.
pub(crate) struct DatabaseCounters {
    /// Held while a setting is changed, until the change is persisted.
    pub(crate) setting_lock: tokio::sync::Mutex<()>,
    values: [AtomicU64; ALL.len()],
    /// Accepted values that aren't in effect yet, in order, with the `Seq` of their batch.
    accepted: Mutex<Vec<(Seq, Counter, u64)>>,
    /// The smallest of these `Seq`s; `u64::MAX` if there is none.
    first_accepted: AtomicU64,
}

impl DatabaseCounters {
    pub(crate) async fn read(snapshot: &StoreSnapshot) -> Result<DatabaseCounters> {
        let values = [REVS_LIMIT, PURGED_INFOS_LIMIT, 0, SHARD_COUNT, 0].map(AtomicU64::new);
        let (setting_lock, accepted, first_accepted) = Default::default();
        let counters = DatabaseCounters { setting_lock, values, accepted, first_accepted };
        counters.first_accepted.store(u64::MAX, Ordering::Relaxed);
        let (start, end) = ([COUNTER], [COUNTER + 1]);
        let mut scan = snapshot.scan(Bound::Included(&start), Bound::Excluded(&end), false);
        while let Some(entry) = scan.next().await? {
            let counter = ALL.into_iter().find(|counter| counter.name().as_bytes() == &entry.key[1..]);
            let counter =
                counter.ok_or_else(|| Error::damaged("a database has a counter that isn't known"))?;
            counters.set(counter, decode_number(entry.meta)?);
        }
        Ok(counters)
    }

    /// The value in effect; `persisted` returns the last persisted `Seq`.
    pub(crate) fn get(&self, counter: Counter, persisted: impl FnOnce() -> Seq) -> u64 {
        if self.first_accepted.load(Ordering::Acquire) != u64::MAX {
            self.apply_persisted(persisted());
        }
        self.values[counter as usize].load(Ordering::Acquire)
    }

    /// Registers a value that was accepted with the batch that ends with `seq`: it takes effect once that is
    /// persisted. `persisted` is the last persisted `Seq`.
    pub(crate) fn accept(&self, seq: Seq, counter: Counter, value: u64, persisted: Seq) {
        let mut accepted = self.accepted.lock().unwrap_or_else(PoisonError::into_inner);
        accepted.push((seq, counter, value));
        self.first_accepted.fetch_min(seq.0, Ordering::AcqRel);
        drop(accepted);
        self.apply_persisted(persisted);
    }

    /// Puts persisted values into effect.
    fn apply_persisted(&self, persisted: Seq) {
        if self.first_accepted.load(Ordering::Acquire) > persisted.0 {
            return;
        }
        let mut accepted = self.accepted.lock().unwrap_or_else(PoisonError::into_inner);
        accepted.retain(|(seq, counter, value)| {
            if *seq <= persisted {
                self.set(*counter, *value);
            }
            *seq > persisted
        });
        let first = accepted.iter().map(|(seq, ..)| seq.0).min().unwrap_or(u64::MAX);
        self.first_accepted.store(first, Ordering::Release);
    }

    fn set(&self, counter: Counter, value: u64) {
        self.values[counter as usize].store(value, Ordering::Release);
    }
}

/// Adds the removal of the purge infos up to a number to `batch`, at most [`PURGE_INFOS_REMOVED_MAX`] of
/// them. Returns whether there may be more.
pub(crate) async fn remove_purge_infos(
    snapshot: &StoreSnapshot,
    up_to: u64,
    batch: &mut Batch,
) -> Result<bool> {
    let (start, end) = ([PURGE], purge_key(up_to));
    let mut scan = snapshot.scan(Bound::Included(&start), Bound::Included(&end), false);
    for _ in 0..PURGE_INFOS_REMOVED_MAX {
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
    fn a_counter_takes_effect_once_it_is_persisted() {
        let (setting_lock, accepted, values) = Default::default();
        let counters =
            DatabaseCounters { setting_lock, accepted, values, first_accepted: AtomicU64::new(u64::MAX) };
        let get = |counter, persisted| counters.get(counter, || Seq(persisted));
        counters.accept(Seq(7), Counter::PurgeSeq, 1, Seq(3));
        counters.accept(Seq(9), Counter::PurgeSeq, 2, Seq(3));
        counters.accept(Seq(8), Counter::RevsLimit, 40, Seq(3));
        assert_eq!((get(Counter::PurgeSeq, 6), get(Counter::RevsLimit, 6)), (0, 0));
        assert_eq!((get(Counter::PurgeSeq, 8), get(Counter::RevsLimit, 8)), (1, 40));
        assert_eq!(get(Counter::PurgeSeq, 9), 2);
        assert_eq!(counters.first_accepted.load(Ordering::Relaxed), u64::MAX);
        assert!(counters.accepted.lock().unwrap().is_empty());
    }
}
