//! The store: one writer at a time, and snapshots for readers.
//!
//! A commit appends a batch to the log and then inserts its records into the writer's version. A copy of that
//! version is queued until the log has persisted the batch, and is then published to new snapshots. The copy
//! shares all nodes until the next write changes them. When the memtables are large, a checkpoint merges them
//! into the tree (`checkpoint.rs`).
//!
//! Invariants:
//! 1. A snapshot shows a prefix of the log, and all of that prefix is persisted.
//! 2. There is no await between a batch's append and its insertion into the index: a commit whose future is
//!    dropped has happened wholly or not at all.
//! 3. A snapshot taken after a wait for `Stage::Persisted` has returned shows the record that was waited for.
//! 4. A task that waits for a checkpoint holds nothing that the checkpoint needs. A writer that has filled
//!    memory by itself is therefore refused and does not wait.
//! 5. Work that changes files runs in a task of its own, to its end: a dropped future never leaves the files
//!    and the versions inconsistent.
//! 6. A panic that would make them inconsistent stops the store ([`Shared::stop_on_panic`]): between a
//!    batch's append and its insertion into the index, while a version is changed, and between the
//!    replacement of the manifest and the installation of the versions that match it. Any other panic ends
//!    only its task, which is retried.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use futures_util::FutureExt;
use settee_io::directory::DirectorySyncs;
use settee_io::{Env, OnPanic};
use settee_log::{Appended, Files, Flags, Log, LogStats, Recovery, Seq, Stage, Start, Stopped};
use settee_tree::{NodeCache, TreeOptions};
use tokio::sync::{Notify, oneshot, watch};

use crate::backup::{Backup, BackupFiles, EarlierBackup};
use crate::batch::Batch;
use crate::checkpoint::Checkpoint;
use crate::checkpoint_state::CheckpointState;
use crate::chunks::{ChunkCache, ChunkStats};
use crate::compact::Compaction;
use crate::entry::{Location, OPERAND_COUNT_MAX};
use crate::error::{CommitError, ReadError, StoreError};
use crate::failpoints::Failpoint;
use crate::manifest::Manifest;
use crate::memtable::Memtable;
use crate::options::{StoreOptions, StoreStats};
use crate::replay::Replay;
use crate::snapshot::{Entry, Snapshot};
use crate::version::{Incoming, PreviousEntry, Version};

/// A writer is refused once memory exceeds its limit by the limit divided by this.
const WRITER_EXCESS_SHARE: usize = 2;

/// Pause after a failed checkpoint before the next attempt.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Size of the node cache of a store that was given none, in bytes.
const OWN_CACHE_BYTES: usize = 8 << 20;

/// Size of the chunk cache of a store in direct mode that was given none, in bytes.
const OWN_CHUNKS_BYTES: usize = 8 << 20;

/// An ordered, durable key-value store in a directory of its own. May be used from many tasks at once.
pub struct Store {
    shared: Arc<Shared>,
}

/// A store's directory, environment, options and caches.
pub(crate) struct StoreContext {
    pub env: Env,
    pub directory: PathBuf,
    pub options: StoreOptions,
    pub cache: Arc<NodeCache>,
    pub chunks: Option<Arc<ChunkCache>>,
    /// See [`StoreStats::rebuild_count`].
    pub rebuild_count: AtomicU64,
    /// Syncs of the store's directory, shared with the log once the log is locked.
    pub syncs: OnceLock<Arc<DirectorySyncs>>,
}

pub(crate) struct Shared {
    pub context: StoreContext,
    pub log: Arc<Log>,
    /// LogLock during compaction. Holds the last numbers of segments that could not be read.
    pub compacting: tokio::sync::Mutex<BTreeSet<u32>>,
    /// LogLock while the set of files is changed.
    pub manifest: tokio::sync::Mutex<Manifest>,
    /// The newest accepted version.
    pub accepted: tokio::sync::Mutex<Version>,
    /// Accepted versions that are not persisted yet, oldest first, with their groups.
    pending: Mutex<VecDeque<(u64, Version)>>,
    /// The newest persisted version.
    published: ArcSwap<Version>,
    /// The last `Seq` of the published version, for tasks that wait for a later one.
    visible: watch::Sender<u64>,
    /// Notified when memory has been freed, when a checkpoint has failed, and on close.
    pub checkpointed: Notify,
    is_checkpointing: AtomicBool,
    pub is_compacting: AtomicBool,
    /// A task waits for the log to seal segments that are to be transferred.
    pub is_transferring: AtomicBool,
    /// A commit read a damaged node of the tree: the next checkpoint rebuilds the tree.
    pub is_index_damaged: AtomicBool,
    /// Size of the memtables in bytes after the last commit or checkpoint.
    memory_bytes: AtomicUsize,
    immutable_count: AtomicU64,
    /// Replaced checkpoint states that may still be in use, with the time of their replacement.
    replaced: Mutex<Vec<(Weak<CheckpointState>, Duration)>>,
    /// Counters of background work; [`Store::store_stats`] fills in the other fields.
    pub counts: Mutex<StoreStats>,
    /// Why no checkpoint can be made any more.
    pub failed: OnceLock<StoreError>,
    /// Why the last background checkpoint failed.
    checkpoint_error: Mutex<Option<StoreError>>,
    closed: AtomicBool,
    /// A panic left the versions inconsistent with the log or the files.
    is_broken: AtomicBool,
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
        let rules = context.options.rules();
        let (manifest, locked) = context.lock().await?;
        let (mut manifest, checkpoint, facts) = context.open(manifest).await?;
        let mut version = Version {
            memtable: Memtable::new(1),
            immutable: Arc::default(),
            last_seq: checkpoint.seq,
            last_in_seq_index: facts.last_in_seq_index,
            checkpoint: Arc::new(checkpoint),
            files: Default::default(),
        };
        let mut start =
            Start { first_segment: manifest.first_log_segment, after: Seq(version.checkpoint.seq) };
        if context.options.is_enabled(Failpoint::LiveSkipped) {
            start.after.0 = start.after.0.saturating_sub(3);
        }
        let mut replay = Replay::default();
        let (log, recovery) = Log::open_locked(env, directory, context.options.log, start, locked, |entry| {
            let location = location(entry.seq.0, entry.location);
            let record = Incoming { flags: entry.flags, key: entry.key, meta: entry.meta, location };
            replay.push(&mut version, &record, &rules);
        })
        .await?;
        replay.enter(&mut version, &rules);
        if manifest.number > 0 {
            manifest.remove_others(env, directory).await?;
        }
        log.set_transferred_bytes(version.checkpoint.live_bytes());
        version.files = log.files();
        match version.backfill_all(rules.aggregate).await.map_err(StoreError::from) {
            Err(error) if error.is_of_damaged_index() => {
                version = context.rebuild_after_replay(&mut manifest, &log, &version, &error).await?;
            }
            backfilled => backfilled?,
        }
        let shared = Shared {
            context,
            log: Arc::new(log),
            compacting: Default::default(),
            manifest: tokio::sync::Mutex::new(manifest),
            visible: watch::Sender::new(version.last_seq),
            published: ArcSwap::from_pointee(version.clone()),
            accepted: tokio::sync::Mutex::new(version),
            pending: Mutex::default(),
            checkpointed: Notify::new(),
            is_checkpointing: AtomicBool::new(false),
            is_compacting: AtomicBool::new(false),
            is_transferring: AtomicBool::new(false),
            is_index_damaged: AtomicBool::new(false),
            memory_bytes: AtomicUsize::new(0),
            immutable_count: AtomicU64::new(0),
            replaced: Mutex::default(),
            counts: Mutex::default(),
            failed: OnceLock::new(),
            checkpoint_error: Mutex::default(),
            closed: AtomicBool::new(false),
            is_broken: AtomicBool::new(false),
        };
        if let Some(budget) = &shared.context.options.memory {
            budget.add_store();
        }
        shared.note_memory(&shared.published.load());
        let shared = Arc::new(shared);
        shared.start_transfer(0);
        Ok((Store { shared }, recovery))
    }

    /// Returns a snapshot of the newest persisted version. Never waits.
    pub fn snapshot(&self) -> Snapshot {
        self.shared.publish();
        self.shared.snapshot_of(self.shared.published.load_full())
    }

    /// Becomes the only writer, which sees the newest accepted version. Waits while another writer exists,
    /// and while memory is full, until a checkpoint has freed memory. A checkpoint cannot begin while the
    /// writer exists.
    pub async fn writer(&self) -> Writer<'_> {
        let shared = &self.shared;
        loop {
            shared.wait_for_memory().await;
            let version = shared.accepted.lock().await;
            // Another writer may have filled memory meanwhile.
            if !shared.is_waiting_for_memory() {
                return Writer { version, shared };
            }
        }
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
        let accepted = self.shared.accepted.lock().await.last_seq;
        self.wait(Seq(accepted), Stage::Persisted).await
    }

    /// As [`Store::flush`], but returns false if a write finds the disk full meanwhile; the log retries that
    /// write however long it takes.
    ///
    /// # Errors
    /// The log stopped first.
    pub async fn try_flush(&self) -> Result<bool, Stopped> {
        let accepted = self.shared.accepted.lock().await.last_seq;
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
        let shared = &self.shared;
        let mut visible = shared.visible.subscribe();
        loop {
            let is_closed = shared.is_closed() || shared.is_broken();
            // Before publishing: the wait below covers what is persisted later.
            let persisted = shared.log.persisted();
            shared.publish();
            if *visible.borrow_and_update() > seq.0 {
                return Ok(());
            }
            if is_closed {
                return Err(shared.why_closed());
            }
            if persisted > seq {
                // Its writer is about to insert it into the index, and then publishes it.
                let changed = visible.changed().await;
                changed.expect("the store outlives its borrower");
            } else {
                shared.log.wait(Seq(seq.0.saturating_add(1)), Stage::Persisted).await?;
            }
        }
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
            shared.transfer_soon().await?;
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
                true => self.shared.why_closed().into(),
                false => self.shared.panicked(),
            })
        })
    }

    /// The newest checkpoint state.
    #[cfg(feature = "failpoints")]
    pub(crate) async fn checkpoint_state(&self) -> Arc<CheckpointState> {
        self.shared.accepted.lock().await.checkpoint.clone()
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
        let version = self.shared.published.load();
        let checkpoint = &version.checkpoint;
        let now = self.shared.context.env.clock.now();
        let mut replaced = self.shared.replaced.lock().unwrap_or_else(PoisonError::into_inner);
        replaced.retain(|(checkpoint, _)| checkpoint.strong_count() > 0);
        let oldest = replaced.first().map(|(_, at)| now.saturating_sub(*at));
        let counts = *self.shared.counts.lock().unwrap_or_else(PoisonError::into_inner);
        StoreStats {
            rebuild_count: self.shared.context.rebuild_count.load(Ordering::Relaxed),
            memory_bytes: self.shared.memory_bytes.load(Ordering::Relaxed) as u64,
            tree_bytes: checkpoint.tree.as_ref().map_or(0, |tree| tree.tree.file_bytes()),
            segment_bytes: checkpoint.segments.bytes(),
            segment_live_bytes: checkpoint
                .live
                .iter()
                .filter(|(number, _)| checkpoint.segments.get(**number).is_some())
                .map(|(_, live)| live.bytes)
                .sum(),
            oldest_snapshot_ms: oldest.map_or(0, |age| age.as_millis() as u64),
            ..counts
        }
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
        let error = self.shared.failed.get().cloned().or(last);
        error.filter(|error| !matches!(error, StoreError::Stopped(_)))
    }

    /// The log's counters, with the store's files added to `file_bytes`.
    pub fn stats(&self) -> LogStats {
        let version = self.shared.published.load();
        let mut stats = self.shared.log.stats();
        stats.file_bytes += version.checkpoint.segments.bytes();
        stats.file_bytes += version.checkpoint.tree.as_ref().map_or(0, |tree| tree.tree.file_bytes());
        stats
    }

    /// Counters of the chunk cache, over all stores that share it. `None` if the store has none.
    pub fn chunk_stats(&self) -> Option<ChunkStats> {
        self.shared.context.chunks.as_ref().map(|chunks| chunks.stats())
    }

    /// Persists everything accepted, and refuses later commits. Returns once background work has ended.
    ///
    /// # Errors
    /// The log stopped first, or the disk was too full to persist what was accepted.
    pub async fn close(&self) -> Result<(), Stopped> {
        self.shared.begin_close();
        // Work in progress ends; work that waits for a lock or a permit finds the store closed.
        let _compacting = self.shared.compacting.lock().await;
        let _manifest = self.shared.manifest.lock().await;
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

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(budget) = &self.context.options.memory {
            budget.remove_store(*self.memory_bytes.get_mut());
        }
    }
}

impl Shared {
    pub(crate) fn snapshot_of(&self, version: Arc<Version>) -> Snapshot {
        Snapshot { log: self.log.clone(), version, aggregate: self.context.options.aggregate }
    }

    /// Returns once snapshots show the persisted `seq`. Either they show it already, or another commit of its
    /// group is inserting into the index and publishes both.
    pub(crate) async fn wait_visible(&self, seq: Seq) -> Result<(), Stopped> {
        self.publish();
        let mut visible = self.visible.subscribe();
        let is_over = visible.wait_for(|shown| *shown >= seq.0 || self.is_broken()).await;
        match *is_over.expect("the store outlives its borrower") >= seq.0 {
            true => Ok(()),
            false => Err(self.why_closed()),
        }
    }

    /// Publishes the newest persisted version if it is not published yet.
    fn publish(&self) {
        let persisted = self.log.persisted().0;
        if persisted == self.published.load().last_seq {
            return;
        }
        let _stop = self.stop_on_panic();
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let count = pending.partition_point(|(_, version)| version.last_seq <= persisted);
        let shown: Vec<_> = pending.drain(..count).collect();
        let Some((_, newest)) = shown.last() else {
            return;
        };
        // Under the lock, so that an older version never replaces a newer one.
        let seq = newest.last_seq;
        let previous = self.published.swap(Arc::new(newest.clone()));
        drop(pending);
        self.visible.send_if_modified(|visible| {
            let later = seq > *visible;
            *visible = seq.max(*visible);
            later
        });
        // Dropping large memtables takes a while: without the lock.
        drop((shown, previous));
    }

    /// Installs a checkpoint state in the published version and in the queued ones. Returns the version it
    /// replaced.
    pub(crate) fn install_published(
        &self,
        checkpoint: &Arc<CheckpointState>,
        files: &Files,
        generation: u64,
    ) -> Arc<Version> {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        pending.iter_mut().for_each(|(_, version)| version.install(checkpoint, files, generation));
        let mut newest = (**self.published.load()).clone();
        let mut replaced = self.replaced.lock().unwrap_or_else(PoisonError::into_inner);
        replaced.retain(|(checkpoint, _)| checkpoint.strong_count() > 0);
        replaced.push((Arc::downgrade(&newest.checkpoint), self.context.env.clock.now()));
        drop(replaced);
        newest.install(checkpoint, files, generation);
        self.note_memory(&newest);
        self.published.swap(Arc::new(newest))
    }

    /// The newest checkpoint state. It does not change while the manifest is locked.
    pub(crate) fn checkpoint_state(&self) -> Arc<CheckpointState> {
        self.published.load().checkpoint.clone()
    }

    /// Counts background work.
    pub(crate) fn count(&self, change: impl FnOnce(&mut StoreStats)) {
        change(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn is_broken(&self) -> bool {
        self.is_broken.load(Ordering::Acquire)
    }

    pub(crate) fn panicked(&self) -> StoreError {
        StoreError::Panicked { path: self.context.directory.clone() }
    }

    /// Returns a guard that stops the store if it is dropped by a panic.
    pub(crate) fn stop_on_panic(&self) -> OnPanic<impl FnMut()> {
        OnPanic(|| {
            self.is_broken.store(true, Ordering::Release);
            let _ = self.failed.set(self.panicked());
            self.log.stop(settee_io::Error::Panicked { path: self.context.directory.as_path().into() });
            self.checkpointed.notify_waiters();
            self.visible.send_modify(|_| {});
        })
    }

    /// Ends background work, and the waits for later records.
    fn begin_close(&self) {
        self.closed.store(true, Ordering::Release);
        // A task may be waiting for a write that finds the disk full.
        self.log.begin_close();
        self.checkpointed.notify_waiters();
        self.visible.send_modify(|_| {});
    }

    fn why_closed(&self) -> Stopped {
        let closed = settee_io::Error::Closed { path: self.context.directory.as_path().into() };
        self.log.health().err().unwrap_or_else(|| Stopped { source: Arc::new(closed) })
    }

    /// Sleeps as long as `bytes` of background work take at the configured rate.
    pub(crate) async fn pace(&self, bytes: u64) {
        let per_second = self.context.options.compaction_bytes_per_second.max(1);
        let pause = Duration::from_secs_f64(bytes as f64 / per_second as f64);
        self.context.env.clock.sleep(pause).await;
    }

    fn note_memory(&self, version: &Version) {
        let now = version.memory_bytes();
        let before = self.memory_bytes.swap(now, Ordering::Relaxed);
        self.immutable_count.store(version.immutable.len() as u64, Ordering::Relaxed);
        if let Some(budget) = &self.context.options.memory {
            budget.change(before, now);
        }
    }

    fn is_memory_full(&self) -> bool {
        let own = self.memory_bytes.load(Ordering::Relaxed);
        own >= self.context.options.memory_bytes_max
            || self.context.options.memory.as_ref().is_some_and(|budget| budget.is_full(own))
            || self.immutable_count.load(Ordering::Relaxed) > self.context.options.frozen_layers_max as u64
    }

    /// Whether writers have to wait for a checkpoint: memory is full, and the last checkpoint did not fail.
    /// If it failed, the commit reports that.
    fn is_waiting_for_memory(&self) -> bool {
        self.is_memory_full() && !self.is_closed() && self.last_checkpoint_error().is_none()
    }

    async fn wait_for_memory(self: &Arc<Self>) {
        while self.is_memory_full() && !self.is_closed() {
            let checkpointed = self.checkpointed.notified();
            self.start_checkpoint();
            if !self.is_waiting_for_memory() {
                return;
            }
            checkpointed.await;
        }
    }

    /// Refuses a batch if memory is full and waiting cannot help: a checkpoint failed, or this writer, which
    /// keeps a checkpoint from beginning, has exceeded the limit too far.
    fn check_memory(&self) -> Result<(), CommitError> {
        if !self.is_memory_full() {
            return Ok(());
        }
        if let Some(source) = self.last_checkpoint_error() {
            return Err(CommitError::Full { source });
        }
        let bytes_max = self.context.options.memory_bytes_max;
        let bytes = self.memory_bytes.load(Ordering::Relaxed);
        match bytes.saturating_sub(bytes_max) >= bytes_max.div_ceil(WRITER_EXCESS_SHARE) {
            true => Err(CommitError::WriterFull { bytes, bytes_max }),
            false => Ok(()),
        }
    }

    /// Reports the result of a checkpoint, or an error it is retrying, to writers that wait for memory.
    pub(crate) fn note_checkpoint_error(&self, error: Option<StoreError>) {
        *self.checkpoint_error.lock().unwrap_or_else(PoisonError::into_inner) = error;
        self.checkpointed.notify_waiters();
    }

    fn last_checkpoint_error(&self) -> Option<StoreError> {
        self.checkpoint_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Checks that the store's files may be changed. They may not once the log has stopped: if a sync of the
    /// directory failed, names may be lost that the next manifest would rely on.
    pub(crate) fn check_files(&self) -> Result<(), StoreError> {
        self.log.health()?;
        self.failed.get().cloned().map_or(Ok(()), Err)
    }

    /// Whether the memtables are large enough for a checkpoint.
    fn is_checkpoint_due(&self, version: &Version) -> bool {
        let options = &self.context.options;
        let entries = |memtable: &Memtable| (memtable.by_key.len() + memtable.by_seq.len()) as u64;
        let entry_count: u64 = version.memtables().map(entries).sum();
        let tree_count = version.checkpoint.tree.as_ref().map_or(0, |tree| tree.root.len());
        let share = (tree_count / options.checkpoint_share).max(options.checkpoint_entries_min);
        let record_bytes = version.memtables().map(|memtable| memtable.record_bytes).sum::<u64>();
        let dead_bytes = version.memtables().map(|memtable| memtable.dead_bytes).sum::<u64>();
        let garbage_due =
            (version.checkpoint.live_bytes() / options.checkpoint_share).max(options.checkpoint_garbage_min);
        entry_count >= share.min(options.checkpoint_entries_max)
            || version.memtable.bytes() >= options.memory_bytes_max / 2
            || options.memory.as_ref().is_some_and(|budget| budget.needs_checkpoint(version.memtable.bytes()))
            || dead_bytes >= garbage_due
            || record_bytes >= options.checkpoint_bytes_max
    }

    /// Starts a checkpoint in the background unless one is running.
    fn start_checkpoint(self: &Arc<Self>) {
        if self.closed.load(Ordering::Acquire) || self.is_checkpointing.swap(true, Ordering::AcqRel) {
            return;
        }
        let shared = self.clone();
        self.context.env.spawn("store checkpoint", async move {
            let _end = OnPanic(|| {
                shared.is_checkpointing.store(false, Ordering::Release);
                shared.checkpointed.notify_waiters();
            });
            let done = AssertUnwindSafe(shared.checkpoint()).catch_unwind().await;
            let error = done.unwrap_or_else(|_| Err(shared.panicked())).err();
            if let Some(error) = &error {
                tracing::warn!(%error, directory = %shared.context.directory.display(), "a checkpoint failed");
            }
            let failed = error.is_some();
            shared.note_checkpoint_error(error);
            if failed {
                shared.context.env.clock.sleep(RETRY_PAUSE).await;
            }
            shared.is_checkpointing.store(false, Ordering::Release);
            shared.start_compaction(&shared.published.load().checkpoint);
            shared.checkpointed.notify_waiters();
        });
    }

    /// Starts a rebuild of the tree if the error shows that it is damaged.
    fn note_damage(self: &Arc<Self>, error: &ReadError) {
        if error.is_of_damaged_index() {
            self.is_index_damaged.store(true, Ordering::Release);
            self.start_checkpoint();
        }
    }

    /// Inserts an appended batch into the writer's version, and queues a copy.
    fn enter(
        self: &Arc<Self>,
        version: &mut Version,
        batch: &Batch,
        appended: &Appended,
        previous: &[PreviousEntry],
    ) {
        {
            // The last queued version of the same group is published together with this one. Dropping it
            // means its nodes need not be copied again.
            let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
            pending.pop_back_if(|(group, _)| *group == appended.group);
        }
        let first = appended.first_seq.0;
        let records = (first..).zip(batch.records.records()).zip(&appended.locations);
        for (index, ((seq, (flags, key, meta)), at)) in records.enumerate() {
            let record = Incoming { flags, key, meta, location: location(seq, *at) };
            let previous = previous.get(index).copied().unwrap_or_default();
            version.enter(&record, previous, &self.context.options.rules());
        }
        version.files = self.log.files();
        let queued = (appended.group, version.clone());
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).push_back(queued);
        self.publish();
        self.note_memory(version);
        if self.is_checkpoint_due(version) {
            self.start_checkpoint();
        }
    }
}

impl StoreContext {
    pub(crate) fn new(
        env: &Env,
        directory: &Path,
        options: StoreOptions,
        cache: Arc<NodeCache>,
        chunks: Option<Arc<ChunkCache>>,
    ) -> StoreContext {
        let (env, directory) = (env.clone(), directory.to_path_buf());
        let (rebuild_count, syncs) = (AtomicU64::new(0), OnceLock::new());
        StoreContext { env, directory, options, cache, chunks, rebuild_count, syncs }
    }

    pub(crate) fn syncs(&self) -> Arc<DirectorySyncs> {
        self.syncs.get_or_init(|| Arc::new(DirectorySyncs::new(&self.directory))).clone()
    }

    /// Puts the directory's entries on stable storage.
    pub(crate) async fn sync_directory(&self) -> settee_io::Result<()> {
        self.syncs().sync(&*self.env.engine).await
    }

    pub(crate) fn tree_options(&self, incarnation: &[u8; 16]) -> TreeOptions {
        TreeOptions {
            incarnation: Some(*incarnation),
            direct: self.options.log.direct,
            ..TreeOptions::new(self.cache.clone())
        }
    }
}

fn location(seq: u64, at: settee_log::Location) -> Location {
    Location { seq, segment: at.segment, offset: at.offset, length: at.length }
}

/// The store's only writer. Other writers wait until it is dropped; readers don't.
pub struct Writer<'a> {
    shared: &'a Arc<Shared>,
    version: tokio::sync::MutexGuard<'a, Version>,
}

impl Writer<'_> {
    /// The entry of `key` in the newest accepted version.
    ///
    /// # Errors
    /// See [`ReadError`]; the store stays usable.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Entry>, ReadError> {
        self.version.get(key).await
    }

    /// The last accepted record.
    pub fn last_seq(&self) -> Seq {
        Seq(self.version.last_seq)
    }

    /// The newest accepted version as a snapshot, for deciding what to write. Unlike [`Store::snapshot`] it
    /// may show records that a crash can undo.
    pub fn latest(&self) -> Snapshot {
        self.shared.snapshot_of(Arc::new(self.version.clone()))
    }

    /// Commits a batch, and asks the log to bring it to `stage`, which [`Store::wait`] waits for. Returns the
    /// batch's last `Seq`.
    ///
    /// # Errors
    /// See [`CommitError`]; then nothing of the batch was accepted.
    ///
    /// # Panics
    /// If a record is to be in the seq index and the store has no [`StoreOptions::aggregate`].
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
        let _stop = self.shared.stop_on_panic();
        let appended = self.shared.log.append(&batch.records, stage).await?;
        self.shared.enter(&mut self.version, batch, &appended, &previous);
        Ok(appended.last_seq)
    }

    /// Returns the batch with those merge operands replaced by base values that would exceed
    /// [`OPERAND_COUNT_MAX`].
    async fn merge_excess_operands(&self, batch: &Batch) -> Result<Batch, CommitError> {
        let mut merged = Batch::new();
        let mut seen: HashMap<Vec<u8>, usize> = HashMap::new();
        for (flags, key, meta, value) in batch.records.values() {
            let known = seen.get(key).copied();
            if !flags.has(Flags::OPERAND) {
                seen.insert(key.to_vec(), usize::from(!flags.has(Flags::TOMBSTONE)));
                merged.records.push_bytes(flags, key, meta, value);
                continue;
            }
            let entry = self.version.get(key).await?;
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
                None => self.version.previous_entry(aggregate, key).await?,
            });
        }
        Ok(all)
    }
}
