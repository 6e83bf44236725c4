//! Salvage: what can be read of a damaged store goes into a new one.
//!
//! All segments are read in the order of the log, as a check does (`check.rs`), and each record that is
//! sound and still counts is stored again, in that order: so of each key the newest version that can be
//! read is what stands in the end. Where the index can be read it tells what counts: the records that it
//! points to; older ones of a key whose newest is lost; nothing of a key that was removed. Where it can't,
//! all records count, and the newer ones replace the older.
//!
//! Invariants:
//! 1. The old store is read and never changed.
//! 2. Whatever a sound index doesn't have at its checkpoint doesn't come back.

use std::collections::BTreeMap;
use std::path::Path;

use settee_io::Env;
use settee_log::{Flags, Stage};
use settee_tree::TreeError;

use crate::check::{CheckEvent, Salvaged, Survey};
use crate::error::StoreError;
use crate::state::{BY_KEY, decode};
use crate::store::{Batch, Store, StoreOptions};

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
    /// Keys that lost their newest version.
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

    /// Keys whose newest version, or a part of it, can't be read, each with the last such update.
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
    let batch_bytes = BATCH_BYTES.min(options.log.batch_bytes_max);
    let mut batch = Batch::new();
    while let Some(records) = salvage.next().await? {
        for record in records {
            let Salvaged { flags, key, meta, value, .. } = record;
            if !batch.is_empty() && batch.size() + key.len() + meta.len() + value.len() + 128 > batch_bytes {
                store.writer().await.commit(&std::mem::take(&mut batch), Stage::Accepted).await?;
            }
            if flags.has(Flags::TOMBSTONE) {
                batch.delete(&key);
            } else if flags.has(Flags::DELTA) {
                batch.merge(&key, &meta, value);
            } else {
                batch.put(&key, &meta, value, flags.has(Flags::LISTED));
            }
            summary.record_count += 1;
        }
    }
    if !batch.is_empty() {
        store.writer().await.commit(&batch, Stage::Accepted).await?;
    }
    store.flush().await?;
    for (key, seq) in salvage.lost() {
        let has_older = store.snapshot().get(&key).await?.is_some();
        summary.lost_count += 1;
        lost(Loss { key, seq, has_older });
    }
    store.close().await?;
    Ok(summary)
}
