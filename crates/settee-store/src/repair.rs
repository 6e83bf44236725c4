//! Salvage: what can be read of a damaged store goes into a new one.
//!
//! All segments are read in the order of the log, as a check does (`check.rs`), and each record that is
//! sound and still counts is stored again, in that order: so of each key the newest version that can be
//! read is what stands in the end. Where the index can be read it tells what counts: the records that it
//! points to; older ones of a key whose newest is lost; nothing of a key that was removed. Where it can't,
//! all records count, and the newer ones replace the older.
//!
//! Where the record is lost that deltas were folded into, those before and behind it may be more than a
//! key may have. They are folded anew; in a store that doesn't fold, those past the limit are left out, and
//! told as lost.
//!
//! Invariants:
//! 1. The old store is read and never changed.
//! 2. Whatever a sound index doesn't have at its checkpoint doesn't come back.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use settee_io::Env;
use settee_log::{Flags, Stage};
use settee_tree::TreeError;

use crate::batch::Batch;
use crate::check::{CheckEvent, Salvaged, Survey};
use crate::entry::CHAIN_COUNT_MAX;
use crate::error::{ReadError, StoreError};
use crate::state::{BY_KEY, decode};
use crate::store::{Store, StoreOptions};

/// So many bytes are stored by one commit, about.
const BATCH_BYTES: usize = 256 << 10;

/// What became of a key whose newest version can't be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    /// The key.
    pub key: Vec<u8>,
    /// The update that is lost.
    pub seq: u64,
    /// Whether an older version could be kept.
    pub has_older: bool,
}

/// What was salvaged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RepairSummary {
    /// Records that were stored again.
    pub record_count: u64,
    /// Keys that may have lost their newest version: without an index nobody can tell.
    pub lost_count: u64,
    /// Problems that the check before found.
    pub problem_count: u64,
}

/// A damaged store, read record by record. Nothing of it is changed.
pub struct Salvage<'a> {
    survey: Survey<'a>,
    next: usize,
}

impl<'a> Salvage<'a> {
    /// Checks the store in `folder`, which nobody may have open; what is wrong is told.
    ///
    /// # Errors
    /// What the system says.
    pub async fn begin(
        env: &Env,
        folder: &Path,
        options: &StoreOptions,
        told: &'a mut (dyn FnMut(CheckEvent) + Send),
    ) -> Result<Salvage<'a>, StoreError> {
        let mut survey = Survey::new(env, folder, options, told);
        survey.read_manifest().await?;
        survey.find_sources().await?;
        survey.open_tree().await?;
        survey.check_all().await?;
        Ok(Salvage { survey, next: 0 })
    }

    /// The records of the next segment that count, in the order of their updates; `None` after the last.
    /// Who puts and removes them in this order has of each key the newest version that can be read.
    ///
    /// # Errors
    /// What the system says.
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

    /// Keys of which a version can't be read that may be their newest, or a part of it, each with the
    /// last such update.
    pub fn lost(&self) -> BTreeMap<Vec<u8>, u64> {
        self.survey.lost.iter().map(|(seq, key)| (key.clone(), *seq)).collect()
    }

    /// Problems that were told.
    pub fn problem_count(&self) -> u64 {
        self.survey.summary.problem_count
    }
}

/// Salvages the store in `from`, which nobody may have open, into a new one in `to`, which is closed
/// again: its updates are numbered anew, in their order. What is wrong is told to `told`, and what was
/// lost to `lost`.
///
/// # Errors
/// See [`StoreError`]; then `to` holds a part.
pub async fn repair(
    env: &Env,
    from: &Path,
    to: &Path,
    options: &StoreOptions,
    told: &mut (dyn FnMut(CheckEvent) + Send),
    lost: &mut (dyn FnMut(Loss) + Send),
) -> Result<RepairSummary, StoreError> {
    let mut salvage = Salvage::begin(env, from, options, told).await?;
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

/// The new store, and what is to be committed to it next.
struct Target<'a> {
    store: &'a Store,
    batch: Batch,
    batch_bytes: usize,
    /// Records of the keys in the batch, with those that the store has: the values are made from so many.
    chains: HashMap<Vec<u8>, usize>,
    folds: bool,
    /// Keys whose last version can't be kept, as far as it looks until now, each with its update: what
    /// can't be read, and deltas that were too many.
    lost: BTreeMap<Vec<u8>, u64>,
}

impl<'a> Target<'a> {
    fn new(store: &'a Store, options: &StoreOptions, lost: BTreeMap<Vec<u8>, u64>) -> Target<'a> {
        Target {
            store,
            batch: Batch::new(),
            batch_bytes: BATCH_BYTES.min(options.log.batch_bytes_max),
            chains: HashMap::new(),
            folds: options.fold.is_some(),
            lost,
        }
    }

    async fn take(&mut self, record: Salvaged, summary: &mut RepairSummary) -> Result<(), StoreError> {
        let Salvaged { seq, flags, key, meta, value } = record;
        let bytes = self.batch.size() + key.len() + meta.len() + value.len() + 128;
        if bytes > self.batch_bytes {
            self.commit().await?;
        }
        if !flags.has(Flags::DELTA) && self.lost.get(&key).is_some_and(|last| *last < seq) {
            // What was lost didn't count any more.
            self.lost.remove(&key);
        }
        if flags.has(Flags::TOMBSTONE) {
            self.batch.delete(&key);
            self.chains.insert(key, 0);
        } else if flags.has(Flags::DELTA) {
            let count = self.chain_count(&key).await?;
            if count >= CHAIN_COUNT_MAX && !self.folds {
                let last = self.lost.entry(key).or_default();
                *last = seq.max(*last);
                return Ok(());
            }
            if count >= CHAIN_COUNT_MAX {
                // What is to be folded has to be read: it can't be in the same batch.
                self.commit().await?;
            }
            self.batch.merge(&key, &meta, value);
            self.chains.insert(key, if count >= CHAIN_COUNT_MAX { 1 } else { count + 1 });
        } else {
            self.batch.put(&key, &meta, value, flags.has(Flags::LISTED));
            self.chains.insert(key, 1);
        }
        summary.record_count += 1;
        Ok(())
    }

    /// How many records the key's value is made from so far.
    async fn chain_count(&self, key: &[u8]) -> Result<usize, ReadError> {
        match self.chains.get(key) {
            Some(count) => Ok(*count),
            None => Ok(self.store.writer().await.get(key).await?.map_or(0, |entry| entry.pointers().count())),
        }
    }

    async fn commit(&mut self) -> Result<(), StoreError> {
        self.chains.clear();
        if !self.batch.is_empty() {
            let batch = std::mem::take(&mut self.batch);
            self.store.writer().await.commit(&batch, Stage::Accepted).await?;
        }
        Ok(())
    }
}
