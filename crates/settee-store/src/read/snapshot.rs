//! Snapshots: point-in-time reads.
//!
//! A snapshot pins a version of the index, and through it the files that the version refers to. Taking one
//! costs nothing, and no writer, checkpoint or compaction changes it. Replaced files are released when the
//! last snapshot that pins them is dropped.

use std::ops::Bound;
use std::sync::Arc;

use settee_log::{Log, Record, Seq};

use super::order::Order;
use crate::budget::ReadAheadBudget;
use crate::error::ReadError;
use crate::index::{Aggregate, Entry, Location, Pointer};
use crate::memtable::Aggregates;
use crate::version::{Lookup, Version};

/// A point-in-time state of the store, unchanged by later writes. Cheap to clone.
#[derive(Clone)]
pub struct Snapshot {
    pub(crate) log: Arc<Log>,
    pub(crate) version: Arc<Version>,
    pub(crate) aggregate: Option<Aggregate>,
    /// Bounds the windows of what is read ahead.
    pub(crate) read_ahead: Arc<ReadAheadBudget>,
    /// See [`StoreOptions::replaced_segments_max`](crate::StoreOptions::replaced_segments_max).
    pub(crate) replaced_segments_max: usize,
    /// Of a writer's snapshot: what it has looked up in the tree.
    pub(crate) lookup: Option<Arc<Lookup>>,
}

impl Snapshot {
    /// The last record that the snapshot shows.
    pub fn seq(&self) -> Seq {
        Seq(self.version.last_seq)
    }

    /// The last record that was ever in the seq index, though it may have been replaced since; 0 if there was
    /// none.
    pub fn last_in_seq_index(&self) -> Seq {
        Seq(self.version.last_in_seq_index)
    }

    /// The entry of `key`.
    ///
    /// # Errors
    /// See [`ReadError`]; the store stays usable.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Entry>, ReadError> {
        self.version.get(key, self.lookup.as_deref()).await
    }

    /// The entry of `key`; the tree isn't read if `lookup` has the key.
    ///
    /// # Errors
    /// See [`ReadError`]; the store stays usable.
    ///
    /// # Panics
    /// If the lookup isn't one in this snapshot: see [`Store::look_up_in`](crate::Store::look_up_in).
    pub async fn get_looked_up(&self, key: &[u8], lookup: &Lookup) -> Result<Option<Entry>, ReadError> {
        self.version.get(key, Some(lookup)).await
    }

    /// The entries of many keys, in any order. Nodes of the index that several keys need are read once, and
    /// the reads of a level are in flight together.
    ///
    /// # Errors
    /// See [`ReadError`]; the store stays usable.
    pub async fn get_many(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<Entry>>, ReadError> {
        self.version.get_many(keys).await
    }

    /// The aggregate over the entries between two keys. Costs O(log n).
    ///
    /// # Errors
    /// See [`ReadError`]; the store stays usable.
    pub async fn aggregates(&self, start: Bound<&[u8]>, end: Bound<&[u8]>) -> Result<Aggregates, ReadError> {
        self.version.aggregates_between(Order::Key, start, end).await
    }

    /// The aggregate over all entries. Needs no read.
    pub fn total_aggregates(&self) -> Aggregates {
        self.version.aggregates()
    }

    /// The aggregate over the entries in the seq index whose `Seq` is greater than `after`. Costs O(log n).
    ///
    /// # Errors
    /// See [`ReadError`]; the store stays usable.
    pub async fn aggregates_after(&self, after: Seq) -> Result<Aggregates, ReadError> {
        let start = after.0.saturating_add(1).to_be_bytes();
        self.version.aggregates_between(Order::Seq, Bound::Included(&start), Bound::Unbounded).await
    }

    /// Reads the record at a location with one positional read, or from the chunk cache.
    ///
    /// # Errors
    /// See [`ReadError`]; the store stays usable.
    pub async fn read(&self, location: Location) -> Result<Record, ReadError> {
        Ok(self.log.read_in(&self.version.set, location.seq(), location.at()).await?)
    }

    /// Reads the records that make up a value, as [`Entry::pointers`] returns them, each with a read of its
    /// own.
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

    /// Approximate size of the memtables in bytes.
    pub fn index_bytes(&self) -> usize {
        self.version.memory_bytes()
    }
}
