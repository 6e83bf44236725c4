//! The store: one writer at a time (`writer.rs`), and snapshots for readers.
//!
//! Opening one reads the manifest and the tree (`open.rs`), and replays the log. What its methods work on is
//! in `shared.rs`, with the invariants.

use std::path::Path;
use std::sync::Arc;

use settee_io::{CacheStats, Env};
use settee_log::{ChunkCache, Edit, Log, LogStats, Recovery, Seq, Stage, Stopped};
use settee_tree::NodeCache;
use tokio::sync::oneshot;

use crate::backup::{Backup, BackupFiles, EarlierBackup};
use crate::checkpoint::Checkpoint;
use crate::compact::Compaction;
use crate::error::{ReadError, StoreError};
use crate::failpoints::Failpoint;
use crate::index::Location;
use crate::memtable::Memtable;
use crate::options::{StoreOptions, StoreStats};
use crate::read::Snapshot;
use crate::shared::{Shared, StoreContext};
use crate::version::{Lookup, NewRecord, Replay, Version};

mod open;
mod writer;

pub use open::start_timeline;

pub use writer::Writer;

/// Size of the node cache of a store that was given none, in bytes.
const OWN_CACHE_BYTES: usize = 8 << 20;

/// Size of the chunk cache of a store in direct mode that was given none, in bytes.
const OWN_CHUNKS_BYTES: usize = 8 << 20;

/// An ordered, durable key-value store in a directory of its own. May be used from many tasks at once.
pub struct Store {
    pub(crate) shared: Arc<Shared>,
}

impl Store {
    /// Opens the store in `directory`, which the first commit creates. Returns once the records after the
    /// last checkpoint are replayed.
    ///
    /// # Errors
    /// See [`StoreError`]. On an error nothing is changed except that files left by a crash may be removed
    /// and a damaged tree replaced.
    pub async fn open(
        env: &Env,
        directory: &Path,
        options: StoreOptions,
    ) -> Result<(Store, Recovery), StoreError> {
        options.check(env.buffers.stats().bytes_max)?;
        let cache = options.cache.clone().unwrap_or_else(|| Arc::new(NodeCache::new(OWN_CACHE_BYTES)));
        let own_chunks = || options.log.direct.then(|| Arc::new(ChunkCache::new(OWN_CHUNKS_BYTES)));
        let chunks = options.chunks.clone().or_else(own_chunks);
        let context = StoreContext::new(env, directory, options, cache, chunks);
        let (rules, options_log) = (context.options.rules(), context.options.log);
        let (locked, manifest) = context.lock().await?;
        let set = locked.segment_set(env, directory, options_log.direct, context.chunks.as_ref());
        let (mut section, checkpoint, facts) = context.open(manifest.as_ref(), &set).await?;
        let mut version = Version {
            memtable: Memtable::new(1),
            immutable: Arc::default(),
            last_seq: checkpoint.seq,
            last_in_seq_index: facts.last_in_seq_index,
            checkpoint: Arc::new(checkpoint),
            set: Arc::default(),
        };
        let mut after = Seq(version.checkpoint.seq);
        if context.options.is_enabled(Failpoint::LiveSkipped) {
            after.0 = after.0.saturating_sub(3);
        }
        let mut replay = Replay::default();
        let (locked, chunks) = ((locked, set), context.chunks.clone());
        let (log, recovery) = Log::open_locked(env, directory, options_log, after, locked, chunks, |entry| {
            let location = Location::in_log(entry.seq, entry.location);
            let record = NewRecord { flags: entry.flags, key: entry.key, meta: entry.meta, location };
            replay.push(&mut version, &record, &rules);
        })
        .await?;
        replay.insert_all(&mut version, &rules);
        // The last records may have been compacted away, and a rebuilt tree then ends before them.
        version.last_seq = version.last_seq.max(log.persisted().0);
        log.set_listed_live_bytes(version.checkpoint.live_bytes());
        version.set = log.segment_set();
        match version.backfill_all(rules.aggregate).await.map_err(StoreError::from) {
            Err(error) if error.is_of_damaged_index() => {
                version = context.rebuild_after_replay(&mut section, &log, &version, &error).await?;
            }
            backfilled => backfilled?,
        }
        if manifest.is_some_and(|manifest| section != manifest.section) {
            let new = section.encode();
            log.edit(Edit { user: Some(Box::new(|_| new)), ..Edit::default() }, |_| false).await?;
        }
        context.remove_other_trees(section.tree).await?;
        let shared = Shared::new(context, log, section, version);
        shared.start_listing(0);
        shared.watch_for_pause_if_due();
        Ok((Store { shared }, recovery))
    }

    /// Returns a snapshot of the newest persisted version. Never waits.
    pub fn snapshot(&self) -> Snapshot {
        self.shared.snapshot()
    }

    /// Becomes the only writer, which sees the newest accepted version. Waits while another writer exists,
    /// while memory is full, until a checkpoint has freed memory, and for a bounded time after the last batch while
    /// garbage is made faster than it is freed. A checkpoint cannot begin while the
    /// writer exists.
    pub async fn writer(&self) -> Writer<'_> {
        let shared = &self.shared;
        loop {
            shared.wait_for_pace().await;
            shared.wait_for_memory().await;
            let version = shared.versions.accepted.lock().await;
            // Another writer may have filled memory meanwhile.
            if !shared.is_waiting_for_memory() {
                return Writer::new(shared, version);
            }
        }
    }

    /// Looks up keys in the tree, in one pass, for [`Writer::set_lookup`]; keys whose whole entries are in
    /// memory are left out. Call it before waiting for the writer, so that other writers don't wait for the
    /// reads.
    ///
    /// # Errors
    /// See [`ReadError`]; the store stays usable.
    pub async fn look_up(&self, keys: Vec<Vec<u8>>) -> Result<Lookup, ReadError> {
        self.look_up_in(&self.snapshot(), keys).await
    }

    /// As [`Store::look_up`], in a snapshot of this store, from which [`Snapshot::get_looked_up`] then returns the
    /// entries.
    ///
    /// # Errors
    /// See [`ReadError`]; the store stays usable.
    pub async fn look_up_in(&self, snapshot: &Snapshot, mut keys: Vec<Vec<u8>>) -> Result<Lookup, ReadError> {
        let version = &snapshot.version;
        keys.sort_unstable();
        let (in_memory, keys): (Vec<_>, Vec<_>) =
            keys.into_iter().partition(|key| version.is_in_memtables(key));
        let mut lookup = Lookup::new(&version.checkpoint, &self.shared.context.write_lookup_count);
        lookup.set_in_memory(in_memory);
        lookup.add(&keys).await.map(|()| lookup)
    }

    /// Returns once the committed `seq` has reached `stage`. If that is [`Stage::Persisted`], snapshots taken
    /// from then on show it.
    ///
    /// # Errors
    /// The log stopped first.
    pub async fn wait(&self, seq: Seq, stage: Stage) -> Result<(), Stopped> {
        self.shared.log.wait(seq, stage).await?;
        if stage == Stage::Persisted {
            self.shared.wait_visible(seq).await?;
        }
        Ok(())
    }

    /// Returns once everything accepted before the call is persisted.
    ///
    /// # Errors
    /// The log stopped first.
    pub async fn flush(&self) -> Result<(), Stopped> {
        // Waits for a commit in progress: what it has appended counts as accepted before.
        let accepted = self.shared.versions.accepted.lock().await.last_seq;
        self.wait(Seq(accepted), Stage::Persisted).await
    }

    /// As [`Store::flush`], but returns false if a write finds the disk full meanwhile; the log retries that
    /// write however long it takes.
    ///
    /// # Errors
    /// The log stopped first.
    pub async fn try_flush(&self) -> Result<bool, Stopped> {
        let accepted = self.shared.versions.accepted.lock().await.last_seq;
        let is_flushed = self.shared.log.try_flush().await?;
        if is_flushed {
            self.shared.wait_visible(Seq(accepted)).await?;
        }
        Ok(is_flushed)
    }

    /// Returns once a snapshot shows a record later than `seq`.
    ///
    /// # Errors
    /// The log stopped, or the store was closed.
    pub async fn changed_after(&self, seq: Seq) -> Result<(), Stopped> {
        self.shared.changed_after(seq).await
    }

    /// Merges everything accepted by now into the tree, and returns once that is durable; `None` if there was
    /// nothing to do. Dropping the future does not stop the checkpoint; closing or dropping the store does.
    ///
    /// # Errors
    /// See [`StoreError`]. The previous checkpoint and everything since are kept.
    pub async fn checkpoint(&self) -> Result<Option<Checkpoint>, StoreError> {
        let shared = self.shared.clone();
        self.run("store checkpoint", async move { shared.checkpoint().await }).await
    }

    /// Frees the space of replaced and removed records: makes a checkpoint, then rewrites segments with
    /// garbage, and returns once that is done. Readers and writers do not wait for it. Segments that the log
    /// has not sealed, and the one it writes to, are left alone. Dropping the future does not stop the
    /// compaction; closing or dropping the store does.
    ///
    /// # Errors
    /// See [`StoreError`]. Segments that were not rewritten are unchanged; a segment that cannot be read does
    /// not stop the others from being rewritten.
    pub async fn compact(&self) -> Result<Compaction, StoreError> {
        let shared = self.shared.clone();
        let compact = async move {
            shared.checkpoint().await?;
            shared.list_soon().await?;
            shared.compact(0, true).await
        };
        self.run("store compaction", compact).await
    }

    /// Runs work on the files to its end, even if the caller drops its future.
    async fn run<T: Send + 'static>(
        &self,
        name: &'static str,
        work: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (sender, done) = oneshot::channel();
        self.shared.context.env.spawn(name, async move { drop(sender.send(work.await)) });
        done.await.unwrap_or_else(|_| {
            // The work panicked, or its executor was dropped.
            self.shared.check_files()?;
            Err(match self.shared.is_closed() {
                true => self.shared.stop_reason().into(),
                false => self.shared.panicked(),
            })
        })
    }

    /// Copies the store into the new directory `to`, with everything accepted before the call, and returns
    /// the counts and the checksums of the files. Commits go on meanwhile.
    ///
    /// The copy is a store by itself; it must not be opened in place where it shares files with another
    /// backup (`earlier`). Segments that never change again are hard-linked if `to` is in the same file
    /// system. Of the other files, those that `earlier` has under the same name with the same checksum are
    /// linked, and the rest are copied.
    ///
    /// # Errors
    /// See [`StoreError`]; then `to` holds a part of the copy. The store is unchanged.
    pub async fn backup(
        &self,
        to: &Path,
        earlier: Option<EarlierBackup<'_>>,
    ) -> Result<(Backup, BackupFiles), StoreError> {
        self.shared.backup(to, earlier).await
    }

    /// Sizes, and counts of background work since the store was opened.
    pub fn store_stats(&self) -> StoreStats {
        self.shared.store_stats()
    }

    /// Checks that the store still takes commits.
    ///
    /// # Errors
    /// Why the log stopped.
    pub fn health(&self) -> Result<(), Stopped> {
        self.shared.log.health()
    }

    /// Why the last checkpoint failed, or why none can be made any more. `None` if the cause passes (disk
    /// full, no file descriptor) or is that the log stopped, which [`Store::health`] reports.
    pub fn checkpoint_error(&self) -> Option<StoreError> {
        let passes = |error: &StoreError| error.is_no_space() || error.is_no_descriptor();
        let last = self.shared.last_checkpoint_error().filter(|error| !passes(error));
        // A latched error does not pass, whatever its cause.
        let error = self.shared.log.edit_error().map(StoreError::from).or(last);
        error.filter(|error| !matches!(error, StoreError::Stopped(_)))
    }

    /// The log's counters, with the store's files added to `file_bytes`.
    pub fn stats(&self) -> LogStats {
        self.shared.log_stats()
    }

    /// Counters of the chunk cache, over all stores that share it. `None` if the store has none.
    pub fn chunk_stats(&self) -> Option<CacheStats> {
        self.shared.context.chunks.as_ref().map(|chunks| chunks.stats())
    }

    /// Persists everything accepted, and refuses later commits. Returns once background work has ended.
    ///
    /// # Errors
    /// The log stopped first, or the disk was too full to persist what was accepted.
    pub async fn close(&self) -> Result<(), Stopped> {
        self.shared.begin_close();
        // Work in progress ends; work that waits for a lock or a permit finds the store closed.
        let _compacting = self.shared.files.compacting.lock().await;
        let _section = self.shared.files.section.lock().await;
        let closed = self.shared.log.close().await;
        self.shared.publish();
        closed
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.shared.begin_close();
    }
}
