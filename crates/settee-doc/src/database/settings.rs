//! A database's settings: how many revisions and purge infos are kept, and the shard count that is reported.

use settee_store::{Batch, Seq, Stage};

use super::counters::{Counter, remove_purge_infos};
use super::state::Database;
use crate::{Error, Result};

impl Database {
    /// Number of revisions of each leaf's path that are kept and shown.
    pub fn revs_limit(&self) -> u64 {
        self.counter(Counter::RevsLimit)
    }

    /// Sets [`Database::revs_limit`] for all later reads; stored paths are pruned by later updates of each
    /// document. Returns once the setting is persisted.
    ///
    /// # Errors
    /// `BadRequest` for 0; `NoSpace`; `Stopped`.
    pub async fn set_revs_limit(&self, limit: u64) -> Result<()> {
        if limit == 0 {
            return Err(Error::bad_request("`revs_limit` must be positive integer"));
        }
        let _setting_lock = self.counters.setting_lock.lock().await;
        self.put_counter(Counter::RevsLimit, limit).await
    }

    /// The shard count that the database reports; it always has one shard.
    pub fn shard_count(&self) -> u64 {
        self.counter(Counter::ShardCount)
    }

    /// Sets [`Database::shard_count`]. Returns once it is persisted.
    ///
    /// # Errors
    /// `NoSpace`; `Stopped`.
    pub async fn set_shard_count(&self, count: u64) -> Result<()> {
        let _setting_lock = self.counters.setting_lock.lock().await;
        self.put_counter(Counter::ShardCount, count).await
    }

    /// Number of purge infos that are kept.
    pub fn purged_infos_limit(&self) -> u64 {
        self.counter(Counter::PurgedInfosLimit)
    }

    /// Sets [`Database::purged_infos_limit`], and removes excess purge infos. Returns once both are
    /// persisted.
    ///
    /// # Errors
    /// `BadRequest` for 0; `NoSpace`; `Stopped`.
    pub async fn set_purged_infos_limit(&self, limit: u64) -> Result<()> {
        if limit == 0 {
            return Err(Error::bad_request("`purged_infos_limit` must be positive integer"));
        }
        let _setting_lock = self.counters.setting_lock.lock().await;
        self.put_counter(Counter::PurgedInfosLimit, limit).await?;
        let up_to = self.counter(Counter::PurgeSeq).saturating_sub(limit);
        let mut has_more = true;
        while has_more {
            let mut batch = Batch::new();
            has_more = remove_purge_infos(&self.store.snapshot(), up_to, &mut batch).await?;
            batch.use_reserve();
            self.commit_whole(batch).await?;
        }
        Ok(())
    }

    /// Records that all garbage as of now counts as removed: bodies of replaced revisions that a compaction
    /// could not remove, since their segment is still written to, aren't read any more. Writes nothing if nothing
    /// was written since the last call.
    pub(super) async fn end_compaction_at_now(&self) -> Result<()> {
        let _setting_lock = self.counters.setting_lock.lock().await;
        let snapshot = self.store.snapshot();
        let last = snapshot.get(&Counter::CompactedTo.key()).await?.map_or(Seq(0), |entry| entry.seq());
        match snapshot.seq() == last {
            true => Ok(()),
            false => self.put_counter(Counter::CompactedTo, snapshot.seq().0).await,
        }
    }

    async fn put_counter(&self, counter: Counter, value: u64) -> Result<()> {
        let mut batch = Batch::new();
        counter.put(value, &mut batch);
        if counter == Counter::CompactedTo {
            // A compaction is requested when the disk is full.
            batch.use_reserve();
        }
        let seq = self.commit(&batch, Stage::Persisted).await?;
        self.accept_counter(seq, counter, value);
        self.barrier().await
    }

    /// Commits and persists records that don't belong to a document.
    async fn commit_whole(&self, batch: Batch) -> Result<()> {
        if !batch.is_empty() {
            self.commit(&batch, Stage::Persisted).await?;
            self.barrier().await?;
        }
        Ok(())
    }
}
