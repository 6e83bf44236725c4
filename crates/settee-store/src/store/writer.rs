//! The writer: reads the newest accepted version, and commits batches.
//!
//! Invariant: what the writer read of a key's entry is what a commit replaces. Both use the same lookup, and no
//! checkpoint state is installed while the writer exists.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use settee_log::{Flags, Seq, Stage};

use crate::batch::Batch;
use crate::error::{CommitError, ReadError};
use crate::index::{Entry, OPERAND_COUNT_MAX};
use crate::read::Snapshot;
use crate::shared::Shared;
use crate::version::{Lookup, PreviousEntry, Version};

/// The store's only writer. Other writers wait until it is dropped; readers don't.
pub struct Writer<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) version: tokio::sync::MutexGuard<'a, Version>,
    /// What the tree has of the keys that were looked up.
    lookup: Arc<Lookup>,
    /// The version as a snapshot, until the next commit.
    latest: Option<Snapshot>,
}

impl<'a> Writer<'a> {
    pub(super) fn new(shared: &'a Arc<Shared>, version: tokio::sync::MutexGuard<'a, Version>) -> Writer<'a> {
        let lookup = Lookup::new(&version.checkpoint, &shared.context.write_lookup_count);
        Writer { shared, version, lookup: Arc::new(lookup), latest: None }
    }

    /// Uses what [`Store::look_up`] found, in place of an earlier lookup. If there has been a checkpoint
    /// since, the keys are looked up again.
    ///
    /// # Errors
    /// See [`ReadError`]; then the writer has no lookup, and reads the tree for each key.
    ///
    /// [`Store::look_up`]: crate::Store::look_up
    pub async fn set_lookup(&mut self, lookup: Lookup) -> Result<(), ReadError> {
        self.latest = None;
        let checkpoint = &self.version.checkpoint;
        self.lookup = Arc::new(Lookup::new(checkpoint, &self.shared.context.write_lookup_count));
        let lookup = match lookup.matches(checkpoint) {
            true => lookup,
            false => lookup.repeat_in(checkpoint).await?,
        };
        self.lookup = Arc::new(lookup);
        Ok(())
    }

    /// The entry of `key` in the newest accepted version.
    ///
    /// # Errors
    /// See [`ReadError`]; the store stays usable.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Entry>, ReadError> {
        self.version.get(key, Some(&self.lookup)).await
    }

    /// The last accepted record.
    pub fn last_seq(&self) -> Seq {
        Seq(self.version.last_seq)
    }

    /// The newest accepted version as a snapshot, for deciding what to write. Unlike [`Store::snapshot`] it
    /// may show records that a crash can undo.
    ///
    /// [`Store::snapshot`]: crate::Store::snapshot
    pub fn latest(&mut self) -> Snapshot {
        let take = || {
            let snapshot = self.shared.snapshot_of(Arc::new(self.version.clone()));
            Snapshot { lookup: Some(self.lookup.clone()), ..snapshot }
        };
        self.latest.get_or_insert_with(take).clone()
    }

    /// Commits a batch, and asks the log to bring it to `stage`, which [`Store::wait`] waits for. Returns the
    /// batch's last `Seq`.
    ///
    /// # Errors
    /// See [`CommitError`]; then nothing of the batch was accepted.
    ///
    /// # Panics
    /// If a record is to be in the seq index and the store has no [`StoreOptions::aggregate`].
    ///
    /// [`Store::wait`]: crate::Store::wait
    /// [`StoreOptions::aggregate`]: crate::StoreOptions::aggregate
    pub async fn commit(&mut self, batch: &Batch, stage: Stage) -> Result<Seq, CommitError> {
        self.shared.check_memory()?;
        let merged;
        let batch = match batch.has_operands {
            true => {
                merged = self.merge_excess_operands(batch).await?;
                &merged
            }
            false => batch,
        };
        let previous =
            self.previous_entries(batch).await.inspect_err(|error| self.shared.note_damage(error))?;
        // It shares memtable nodes, which the insert then couldn't change in place.
        self.latest = None;
        let _stop = self.shared.stop_on_panic();
        let appended = self.shared.log.append(&batch.records, stage).await?;
        self.shared.insert_batch(&mut self.version, batch, &appended, &previous);
        self.lookup.remove(batch.records.records().map(|(_, key, _)| key));
        Ok(appended.last_seq)
    }

    /// Returns the batch with those merge operands replaced by base values that would exceed
    /// [`OPERAND_COUNT_MAX`].
    async fn merge_excess_operands(&mut self, batch: &Batch) -> Result<Batch, CommitError> {
        let mut merged = Batch::new();
        let mut seen: HashMap<Vec<u8>, usize> = HashMap::new();
        for (flags, key, meta, value) in batch.records.values() {
            let known = seen.get(key).copied();
            if !flags.has(Flags::OPERAND) {
                seen.insert(key.to_vec(), usize::from(!flags.has(Flags::TOMBSTONE)));
                merged.records.push_bytes(flags, key, meta, value);
                continue;
            }
            let entry = self.version.get(key, Some(&self.lookup)).await?;
            let count = match (known, &entry) {
                (Some(count), _) => count,
                (None, Some(entry)) => entry.pointers().count(),
                (None, None) => 0,
            };
            if count < OPERAND_COUNT_MAX {
                seen.insert(key.to_vec(), count + 1);
                merged.records.push_bytes(flags, key, meta, value);
                continue;
            }
            let merge_operator =
                self.shared.context.options.merge_operator.ok_or(CommitError::TooManyOperands)?;
            // Records of this batch cannot be read yet.
            let entry = entry.filter(|_| known.is_none()).ok_or(CommitError::TooManyOperands)?;
            let latest = self.latest();
            let parts = latest.read_parts(entry.pointers()).await?;
            let values: Vec<Bytes> =
                std::iter::once(value).chain(parts.into_iter().map(|record| record.value())).collect();
            seen.insert(key.to_vec(), 1);
            merged.records.push_bytes(Flags::none(), key, meta, merge_operator(&values));
        }
        merged.has_seq_indexed = batch.has_seq_indexed;
        Ok(merged)
    }

    /// The previous entry, older than the mutable memtable, of each of a batch's records; empty if the store
    /// does not need them.
    async fn previous_entries(&self, batch: &Batch) -> Result<Vec<PreviousEntry>, ReadError> {
        let aggregate = self.shared.context.options.aggregate;
        if aggregate.is_none() {
            assert!(!batch.has_seq_indexed, "a store with a seq index needs StoreOptions::aggregate");
            return Ok(Vec::new());
        }
        if !self.version.has_older_entries() {
            return Ok(Vec::new());
        }
        let mut all = Vec::new();
        for (_, key, _) in batch.records.records() {
            all.push(match self.version.memtable.by_key.get(key) {
                Some(_) => PreviousEntry::default(),
                None => self.version.previous_entry(aggregate, key, &self.lookup).await?,
            });
        }
        Ok(all)
    }
}
