//! Repair: copies what can be read of a damaged store to a new one.
//!
//! All segments are read in the order of the log, as by a check (`check.rs`), and each undamaged record that
//! still counts is stored again in that order. Each key ends with its newest readable version. If the index
//! can be read, it determines which records count: those that it points to; older ones of a key whose newest
//! is lost; none of a removed key. If it can't, all records count, and newer ones replace older ones.
//!
//! If the result of a merge operator is lost, the operands before and after it may exceed the number of
//! records a key may have. They are merged again; in a store without a merge operator, those past the limit
//! are left out and reported as lost.
//!
//! Invariants:
//! 1. The old store is only read.
//! 2. A record that an undamaged index does not have at its checkpoint does not reappear.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use settee_io::Env;
use settee_log::{Flags, ReadFormat, Stage};
use settee_tree::TreeError;

use crate::batch::Batch;
use crate::check::{CheckEvent, Salvaged, Survey};
use crate::error::{ReadError, StoreError};
use crate::index::{BY_KEY, OPERAND_COUNT_MAX, decode};
use crate::options::StoreOptions;
use crate::store::Store;

/// Approximate number of bytes per commit.
const BATCH_BYTES: usize = 256 << 10;

/// A key whose newest version can't be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    /// The key.
    pub key: Vec<u8>,
    /// The lost update.
    pub seq: u64,
    /// Whether an older version was kept.
    pub has_older: bool,
}

/// Counts of a repair.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RepairSummary {
    /// Records stored again.
    pub record_count: u64,
    /// Keys that may have lost their newest version; without an index that is uncertain.
    pub lost_count: u64,
    /// Problems that the preceding check found.
    pub problem_count: u64,
}

/// A damaged store that is read record by record, and not changed.
pub struct Salvage<'a> {
    survey: Survey<'a>,
    next: usize,
}

impl<'a> Salvage<'a> {
    /// Checks the store in `directory`, which no process may have open, and reports problems to `on_event`.
    ///
    /// # Errors
    /// The system's error. Damage is reported and is no error.
    pub async fn begin(
        env: &Env,
        directory: &Path,
        options: &StoreOptions,
        on_event: &'a mut (dyn FnMut(CheckEvent) + Send),
    ) -> Result<Salvage<'a>, StoreError> {
        Salvage::of(Survey::new(env, directory, options, on_event)).await
    }

    /// As [`Salvage::begin`], for a store in the format of the version before, which nothing else reads.
    ///
    /// # Errors
    /// As there.
    pub async fn begin_previous(
        env: &Env,
        directory: &Path,
        options: &StoreOptions,
        on_event: &'a mut (dyn FnMut(CheckEvent) + Send),
    ) -> Result<Salvage<'a>, StoreError> {
        let mut survey = Survey::new(env, directory, options, on_event);
        survey.format = ReadFormat::Previous;
        Salvage::of(survey).await
    }

    async fn of(mut survey: Survey<'a>) -> Result<Salvage<'a>, StoreError> {
        survey.read_manifest().await?;
        survey.find_sources().await?;
        survey.open_tree().await?;
        survey.check_all().await?;
        Ok(Salvage { survey, next: 0 })
    }

    /// Number of segments, each of which [`Salvage::next`] returns once.
    pub fn segment_count(&self) -> usize {
        self.survey.source_count()
    }

    /// The last update of the log; 0 if it holds none.
    pub fn last_seq(&self) -> u64 {
        self.survey.summary.last_seq
    }

    /// Lets [`Salvage::next`] continue with the segment of this index; 0 is the first.
    pub fn seek(&mut self, index: usize) {
        self.next = index;
    }

    /// The records of the next segment that count, in the order of their updates; `None` after the last
    /// segment. Applying them in this order leaves each key with its newest readable version.
    ///
    /// # Errors
    /// The system's error.
    pub async fn next(&mut self) -> Result<Option<Vec<Salvaged>>, StoreError> {
        if self.next >= self.survey.source_count() {
            return Ok(None);
        }
        let found = self.survey.salvage_source(self.next).await?;
        self.next += 1;
        let mut counting = Vec::with_capacity(found.len());
        for record in found {
            if self.counts(&record).await? {
                counting.push(record);
            }
        }
        Ok(Some(counting))
    }

    async fn counts(&mut self, record: &Salvaged) -> Result<bool, StoreError> {
        let Some(tree) = self.survey.tree.as_ref().filter(|_| record.seq <= self.survey.checkpoint_seq())
        else {
            return Ok(true);
        };
        let key = [&[BY_KEY], &record.key[..]].concat();
        let value = match tree.root().get(&key).await {
            Ok(value) => value,
            Err(TreeError::Io(error)) => return Err(error.into()),
            Err(_) => return Ok(true),
        };
        let Some(value) = value else { return Ok(false) };
        let Ok(entry) = decode(&value) else { return Ok(true) };
        let is_lost = |seq| self.survey.lost.contains_key(&seq);
        let mut pointers = entry.pointers().map(|pointer| pointer.location.seq);
        Ok(pointers.any(|seq| seq == record.seq || is_lost(seq)))
    }

    /// Keys with an unreadable version that may be, or be part of, their newest, each with the last such
    /// update.
    pub fn lost(&self) -> BTreeMap<Vec<u8>, u64> {
        self.survey.lost.iter().map(|(seq, key)| (key.clone(), *seq)).collect()
    }

    /// Number of problems reported.
    pub fn problem_count(&self) -> u64 {
        self.survey.summary.problem_count
    }
}

/// Copies the readable records of the store in `from`, which no process may have open, to a new store in
/// `to`, and closes that. Updates are renumbered in their order. Reports problems to `on_event`, and losses
/// to `lost`.
///
/// # Errors
/// See [`StoreError`]; then `to` holds a part of the records.
pub async fn repair(
    env: &Env,
    from: &Path,
    to: &Path,
    options: &StoreOptions,
    on_event: &mut (dyn FnMut(CheckEvent) + Send),
    lost: &mut (dyn FnMut(Loss) + Send),
) -> Result<RepairSummary, StoreError> {
    let mut salvage = Salvage::begin(env, from, options, on_event).await?;
    let (store, _) = Store::open(env, to, options.clone()).await?;
    let mut summary = RepairSummary { problem_count: salvage.problem_count(), ..RepairSummary::default() };
    let mut target = Target::new(&store, options, salvage.lost());
    while let Some(records) = salvage.next().await? {
        for record in records {
            target.take(record, &mut summary).await?;
        }
    }
    target.commit().await?;
    store.flush().await?;
    for (key, seq) in target.lost {
        let has_older = store.snapshot().get(&key).await?.is_some();
        summary.lost_count += 1;
        lost(Loss { key, seq, has_older });
    }
    store.close().await?;
    Ok(summary)
}

/// The new store, and the next batch for it.
struct Target<'a> {
    store: &'a Store,
    batch: Batch,
    batch_bytes: usize,
    /// Number of records that make up the values of the keys in the batch, with those in the store.
    record_counts: HashMap<Vec<u8>, usize>,
    has_merge_operator: bool,
    /// Keys whose last version can't be kept, as far as is known, each with its update: unreadable records,
    /// and operands past the limit.
    lost: BTreeMap<Vec<u8>, u64>,
}

impl<'a> Target<'a> {
    fn new(store: &'a Store, options: &StoreOptions, lost: BTreeMap<Vec<u8>, u64>) -> Target<'a> {
        Target {
            store,
            batch: Batch::new(),
            batch_bytes: BATCH_BYTES.min(options.log.batch_bytes_max),
            record_counts: HashMap::new(),
            has_merge_operator: options.merge_operator.is_some(),
            lost,
        }
    }

    async fn take(&mut self, record: Salvaged, summary: &mut RepairSummary) -> Result<(), StoreError> {
        let Salvaged { seq, flags, key, meta, value } = record;
        let bytes = self.batch.size() + key.len() + meta.len() + value.len() + 128;
        if bytes > self.batch_bytes {
            self.commit().await?;
        }
        if !flags.has(Flags::OPERAND) && self.lost.get(&key).is_some_and(|last| *last < seq) {
            // The lost version was replaced later.
            self.lost.remove(&key);
        }
        if flags.has(Flags::TOMBSTONE) {
            self.batch.delete(&key);
            self.record_counts.insert(key, 0);
        } else if flags.has(Flags::OPERAND) {
            let count = self.operand_count(&key).await?;
            if count >= OPERAND_COUNT_MAX && !self.has_merge_operator {
                let last = self.lost.entry(key).or_default();
                *last = seq.max(*last);
                return Ok(());
            }
            if count >= OPERAND_COUNT_MAX {
                // The merge operator reads the operands: they can't be in the same batch.
                self.commit().await?;
            }
            self.batch.merge(&key, &meta, value);
            self.record_counts.insert(key, if count >= OPERAND_COUNT_MAX { 1 } else { count + 1 });
        } else {
            self.batch.put(&key, &meta, value, flags.has(Flags::IN_SEQ_INDEX));
            self.record_counts.insert(key, 1);
        }
        summary.record_count += 1;
        Ok(())
    }

    /// Number of records that make up the key's value so far.
    async fn operand_count(&self, key: &[u8]) -> Result<usize, ReadError> {
        match self.record_counts.get(key) {
            Some(count) => Ok(*count),
            None => Ok(self.store.writer().await.get(key).await?.map_or(0, |entry| entry.pointers().count())),
        }
    }

    async fn commit(&mut self) -> Result<(), StoreError> {
        self.record_counts.clear();
        if !self.batch.is_empty() {
            let batch = std::mem::take(&mut self.batch);
            self.store.writer().await.commit(&batch, Stage::Accepted).await?;
        }
        Ok(())
    }
}
