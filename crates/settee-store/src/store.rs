//! The store: one writer at a time, snapshots for all others.
//!
//! A commit appends a batch to the log and then enters its records into the writer's state. A
//! copy of that state, which costs nothing until the next write touches it, waits until the log
//! has persisted the batch; then it is what new snapshots show. Where memory holds much, a
//! checkpoint takes it to the tree (`checkpoint.rs`).
//!
//! Invariants:
//! 1. A snapshot shows a prefix of the log, and all of it is persisted.
//! 2. Between a batch's append and its entry in the index nothing awaits: a commit whose future
//!    is dropped has happened wholly or not at all.
//! 3. Who has waited for a record to be persisted finds it in the next snapshot.
//! 4. Whoever waits for a checkpoint holds nothing that it needs: so a writer that alone has filled
//!    memory is refused, and doesn't wait.
//! 5. What changes files runs in a task of its own, to its end: nobody's dropped future leaves the
//!    files and the states at odds.
//! 6. A panic that does so stops the store: between a batch's append and its entry in the index, while a
//!    state is changed, and between the replacement of the manifest and the states' new base
//!    ([`Shared::stop_on_panic`]). Elsewhere it ends the task alone, which is tried again.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use futures_util::FutureExt;
use settee_io::folder::DirectorySyncs;
use settee_io::{Env, OnPanic};
use settee_log::{
    Appended, Files, Flags, InvalidLimit, Log, LogOptions, LogStats, Recovery, Seq, Stage, Start, Stopped,
};
use settee_tree::{NodeCache, TreeOptions};
use tokio::sync::{Notify, oneshot, watch};

use crate::backup::{Backup, BackupFiles, EarlierBackup};
use crate::batch::Batch;
use crate::budget::MemoryBudget;
use crate::checkpoint::Checkpoint;
use crate::chunks::{ChunkCache, ChunkStats};
use crate::compact::Compaction;
use crate::entry::{CHAIN_COUNT_MAX, Location};
use crate::error::{CommitError, ReadError, StoreError};
use crate::manifest::Manifest;
use crate::planted::Planted;
use crate::replay::Replay;
use crate::snapshot::{Entry, Snapshot};
use crate::state::{Base, Beneath, Incoming, Measure, Memory, Rules, State};

/// One writer commits until memory is past its limit by one part in so many.
const WRITER_EXCESS_SHARE: usize = 2;

/// How long a checkpoint that failed is not tried again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Makes one value of several records' values, newest first.
pub type Fold = fn(&[Bytes]) -> Bytes;

/// How a store is opened.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// The limits of its log.
    pub log: LogOptions,
    /// What an entry adds to the sums, from its key, its meta and the length of its newest record.
    /// Where there are no sums, a commit needs no look at what it replaces, and nothing can be listed.
    pub measure: Option<Measure>,
    /// Makes one value of a key's records, newest first: the deltas, and last the one that needs no
    /// older one, where there is one. Called where [`Batch::merge`] would make it more than
    /// [`CHAIN_COUNT_MAX`] records.
    pub fold: Option<Fold>,
    /// So many replaced versions of a key are remembered until the next checkpoint, for
    /// [`Entry::pointers_at`]; at most [`CHAIN_COUNT_MAX`] less one.
    pub versions_max: usize,
    /// Memory for recent records' index entries, in bytes: from half of it on a checkpoint takes
    /// them to the tree, and with all of it taken writers wait for that. One that has been writing may
    /// go on until it is half more. At least 1.
    pub memory_bytes_max: usize,
    /// Memory layers behind the one that takes writes; with so many writers wait.
    pub frozen_layers_max: usize,
    /// A checkpoint begins when memory holds this part of the tree's entries (8: an eighth; at least 1),
    pub checkpoint_share: u64,
    /// but no fewer than so many,
    pub checkpoint_entries_min: u64,
    /// and with so many at the latest: they may have to be replayed at open;
    /// or when this part of the live bytes has died since the last one,
    pub checkpoint_entries_max: u64,
    /// but no fewer bytes than these: what died can then be given back;
    pub checkpoint_garbage_min: u64,
    /// or when so many bytes were committed.
    pub checkpoint_bytes_max: u64,
    /// Compaction begins when more than so many hundredths of the segments are garbage,
    pub garbage_percent_max: u64,
    /// and copies so many bytes a second.
    pub compaction_bytes_per_second: u64,
    /// The memory that this store shares with others, beside its own limit.
    pub memory: Option<Arc<MemoryBudget>>,
    /// Nodes of trees, shared by all who have it. `None`: a small one of its own.
    pub cache: Option<Arc<NodeCache>>,
    /// Chunks of segments, shared by all who have it: what is found there costs no system call.
    /// `None`: values come out of the page cache; in direct mode, where there is none, a small one
    /// of its own.
    pub chunks: Option<Arc<ChunkCache>>,
    /// What goes wrong on purpose: see `planted.rs`.
    #[cfg(feature = "planted-faults")]
    pub planted: Option<crate::planted::Planted>,
}

impl Default for StoreOptions {
    fn default() -> StoreOptions {
        StoreOptions::DEFAULT
    }
}

impl StoreOptions {
    /// The defaults.
    pub const DEFAULT: StoreOptions = StoreOptions {
        log: LogOptions::DEFAULT,
        measure: None,
        fold: None,
        versions_max: 0,
        memory_bytes_max: 256 << 20,
        frozen_layers_max: 8,
        checkpoint_share: 8,
        checkpoint_entries_min: 64 << 10,
        checkpoint_entries_max: 2 << 20,
        checkpoint_garbage_min: 4 << 20,
        checkpoint_bytes_max: 512 << 20,
        garbage_percent_max: 30,
        compaction_bytes_per_second: 256 << 20,
        memory: None,
        cache: None,
        chunks: None,
        #[cfg(feature = "planted-faults")]
        planted: None,
    };
}

impl StoreOptions {
    /// Whether a store can be opened with these limits where the environment's pool of buffers holds
    /// `buffer_pool_bytes_max` bytes.
    ///
    /// # Errors
    /// The first limit found that makes no sense, of the log's or its own.
    pub fn check(&self, buffer_pool_bytes_max: usize) -> Result<(), InvalidLimit> {
        self.log.check(buffer_pool_bytes_max)?;
        let own =
            [("checkpoint_share", self.checkpoint_share), ("memory_bytes_max", self.memory_bytes_max as u64)];
        match own.into_iter().find(|(_, value)| *value == 0) {
            Some((name, value)) => Err(InvalidLimit { name, value, rule: "it must be at least 1".into() }),
            None => Ok(()),
        }
    }

    pub(crate) fn rules(&self) -> Rules {
        Rules {
            measure: self.measure,
            versions_max: self.versions_max.min(CHAIN_COUNT_MAX - 1),
            #[cfg(feature = "planted-faults")]
            planted: self.planted,
        }
    }
}

/// The cache of a store that was given none, in bytes.
const OWN_CACHE_BYTES: usize = 8 << 20;

/// The cache of chunks of a store in direct mode that was given none, in bytes.
const OWN_CHUNKS_BYTES: usize = 8 << 20;

/// A store's figures.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Checkpoints made.
    pub checkpoint_count: u64,
    /// Of these, how many wrote the tree anew.
    pub whole_count: u64,
    /// How often the tree was found missing or damaged, since the store was opened or then, and was built
    /// anew from the segments and the log.
    pub rebuild_count: u64,
    /// Segments that were rewritten,
    pub compacted_count: u64,
    /// what they took in bytes,
    pub compacted_bytes: u64,
    /// and what was copied of it.
    pub copied_bytes: u64,
    /// Memory layers, in bytes.
    pub memory_bytes: u64,
    /// The tree's file, in bytes.
    pub tree_bytes: u64,
    /// The segments that the log handed over, in bytes,
    pub segment_bytes: u64,
    /// and what lives of them.
    pub segment_live_bytes: u64,
    /// For how long something has been kept that a checkpoint or compaction replaced, because of a
    /// snapshot, in milliseconds.
    pub oldest_snapshot_ms: u64,
}

/// An ordered, durable key-value store in a folder of its own. Used from many tasks at once.
pub struct Store {
    shared: Arc<Shared>,
}

/// Where a store lies, and how it is to be.
pub(crate) struct Place {
    pub env: Env,
    pub folder: PathBuf,
    pub options: StoreOptions,
    pub cache: Arc<NodeCache>,
    pub chunks: Option<Arc<ChunkCache>>,
    /// See [`StoreStats::rebuild_count`].
    pub rebuild_count: AtomicU64,
    /// The syncs of the store's directory, shared with its log once that is locked.
    pub syncs: OnceLock<Arc<DirectorySyncs>>,
}

pub(crate) struct Shared {
    pub place: Place,
    pub log: Arc<Log>,
    /// Held by who compacts: the last numbers of those that couldn't be read.
    pub compacting: tokio::sync::Mutex<BTreeSet<u32>>,
    /// Its files are changed by who has this.
    pub manifest: tokio::sync::Mutex<Manifest>,
    /// The newest accepted state.
    pub accepted: tokio::sync::Mutex<State>,
    /// Accepted states that aren't persisted yet, oldest first, with their groups.
    pending: Mutex<VecDeque<(u64, State)>>,
    /// The newest persisted state.
    published: ArcSwap<State>,
    /// Its last `Seq`, for those who wait for a later one.
    visible: watch::Sender<u64>,
    /// Told when memory has been freed.
    pub checkpointed: Notify,
    is_checkpointing: AtomicBool,
    pub is_compacting: AtomicBool,
    /// Somebody waits for the log to seal what is to be taken over.
    pub is_taking_over: AtomicBool,
    /// A commit met damage in the tree: the next checkpoint builds another.
    pub is_index_damaged: AtomicBool,
    /// What memory holds, in bytes and layers, as the last commit or checkpoint left it.
    memory_bytes: AtomicUsize,
    frozen_count: AtomicU64,
    /// Bases that were replaced and may still be in use, and when.
    replaced: Mutex<Vec<(Weak<Base>, Duration)>>,
    /// What was done; the rest of the figures is told when asked for.
    pub counts: Mutex<StoreStats>,
    /// Why no checkpoint can be made any more.
    pub failed: OnceLock<StoreError>,
    /// Why the last one in the background failed.
    checkpoint_error: Mutex<Option<StoreError>>,
    closed: AtomicBool,
    /// A panic left the states at odds with the log, or the files.
    is_broken: AtomicBool,
}

impl Store {
    /// Opens the store in `folder`, which is created with the first commit. Only what came after
    /// the last checkpoint is replayed.
    ///
    /// # Errors
    /// See [`StoreError`]; nothing was changed but for files that a crash left over, and a tree that was
    /// damaged.
    pub async fn open(
        env: &Env,
        folder: &Path,
        options: StoreOptions,
    ) -> Result<(Store, Recovery), StoreError> {
        options.check(env.buffers.stats().bytes_max)?;
        let cache = options.cache.clone().unwrap_or_else(|| Arc::new(NodeCache::new(OWN_CACHE_BYTES)));
        let own_chunks = || options.log.direct.then(|| Arc::new(ChunkCache::new(OWN_CHUNKS_BYTES)));
        let chunks = options.chunks.clone().or_else(own_chunks);
        let place = Place::new(env, folder, options, cache, chunks);
        let rules = place.options.rules();
        let (manifest, locked) = place.lock().await?;
        let (mut manifest, base, facts) = place.open(manifest).await?;
        let mut state = State {
            memory: Memory::new(1),
            frozen: Arc::default(),
            last_seq: base.seq,
            last_listed: facts.last_listed,
            base: Arc::new(base),
            files: Default::default(),
        };
        let mut start = Start { first_segment: manifest.first_log_segment, after: Seq(state.base.seq) };
        if place.options.is_planted(Planted::LiveSkipped) {
            start.after.0 = start.after.0.saturating_sub(3);
        }
        let mut replay = Replay::default();
        let (log, recovery) = Log::open_locked(env, folder, place.options.log, start, locked, |entry| {
            let location = location(entry.seq.0, entry.location);
            let record = Incoming { flags: entry.flags, key: entry.key, meta: entry.meta, location };
            replay.push(&mut state, &record, &rules);
        })
        .await?;
        replay.enter(&mut state, &rules);
        if manifest.number > 0 {
            manifest.remove_others(env, folder).await?;
        }
        log.set_bytes_elsewhere(state.base.live_bytes());
        state.files = log.files();
        match state.settle_all(rules.measure).await.map_err(StoreError::from) {
            Err(error) if error.is_of_damaged_index() => {
                state = place.rebuild_replayed(&mut manifest, &log, &state, &error).await?;
            }
            settled => settled?,
        }
        let shared = Shared {
            place,
            log: Arc::new(log),
            compacting: Default::default(),
            manifest: tokio::sync::Mutex::new(manifest),
            visible: watch::Sender::new(state.last_seq),
            published: ArcSwap::from_pointee(state.clone()),
            accepted: tokio::sync::Mutex::new(state),
            pending: Mutex::default(),
            checkpointed: Notify::new(),
            is_checkpointing: AtomicBool::new(false),
            is_compacting: AtomicBool::new(false),
            is_taking_over: AtomicBool::new(false),
            is_index_damaged: AtomicBool::new(false),
            memory_bytes: AtomicUsize::new(0),
            frozen_count: AtomicU64::new(0),
            replaced: Mutex::default(),
            counts: Mutex::default(),
            failed: OnceLock::new(),
            checkpoint_error: Mutex::default(),
            closed: AtomicBool::new(false),
            is_broken: AtomicBool::new(false),
        };
        if let Some(budget) = &shared.place.options.memory {
            budget.enter();
        }
        shared.note_memory(&shared.published.load());
        let shared = Arc::new(shared);
        shared.start_taking_over(0);
        Ok((Store { shared }, recovery))
    }

    /// The newest persisted state. Never waits.
    pub fn snapshot(&self) -> Snapshot {
        self.shared.publish();
        self.shared.snapshot_of(self.shared.published.load_full())
    }

    /// Becomes the one writer, who sees the newest accepted state. Waits while another is it, and
    /// while memory is full, until a checkpoint has made room. Keeps checkpoints from beginning.
    pub async fn writer(&self) -> Writer<'_> {
        let shared = &self.shared;
        loop {
            shared.wait_for_memory().await;
            let state = shared.accepted.lock().await;
            // Whoever was the writer meanwhile may have filled it.
            if !shared.is_waiting_for_memory() {
                return Writer { state, shared };
            }
        }
    }

    /// Returns once `seq`, which was committed, has got as far as `stage`; where that is
    /// persisted, snapshots taken from then on show it.
    ///
    /// # Errors
    /// The log stopped before.
    pub async fn wait(&self, seq: Seq, stage: Stage) -> Result<(), Stopped> {
        self.shared.log.wait(seq, stage).await?;
        if stage == Stage::Persisted {
            self.shared.shown(seq).await?;
        }
        Ok(())
    }

    /// A barrier: returns once everything accepted before the call is persisted.
    ///
    /// # Errors
    /// The log stopped before.
    pub async fn flush(&self) -> Result<(), Stopped> {
        // Whoever is committing now is waited for: what it appended counts as accepted before.
        let accepted = self.shared.accepted.lock().await.last_seq;
        self.wait(Seq(accepted), Stage::Persisted).await
    }

    /// As [`Store::flush`], but returns false where a write finds no room on the disk meanwhile: it is
    /// tried again, however long that takes.
    ///
    /// # Errors
    /// The log stopped before.
    pub async fn try_flush(&self) -> Result<bool, Stopped> {
        let accepted = self.shared.accepted.lock().await.last_seq;
        let is_flushed = self.shared.log.try_flush().await?;
        if is_flushed {
            self.shared.shown(Seq(accepted)).await?;
        }
        Ok(is_flushed)
    }

    /// Returns once a snapshot shows a record later than `seq`.
    ///
    /// # Errors
    /// The log stopped, or was closed.
    pub async fn changed_after(&self, seq: Seq) -> Result<(), Stopped> {
        let shared = &self.shared;
        let mut visible = shared.visible.subscribe();
        loop {
            let is_closed = shared.is_closed() || shared.is_broken();
            // In this order: what is persisted later is left to the wait below.
            let persisted = shared.log.persisted();
            shared.publish();
            if *visible.borrow_and_update() > seq.0 {
                return Ok(());
            }
            if is_closed {
                return Err(shared.why_closed());
            }
            if persisted > seq {
                // Its writer is about to enter it into the index, and publishes it then.
                let changed = visible.changed().await;
                changed.expect("the store outlives its borrower");
            } else {
                shared.log.wait(Seq(seq.0.saturating_add(1)), Stage::Persisted).await?;
            }
        }
    }

    /// Brings the index on disk up to what is accepted now, and returns once it is there. `None`
    /// where nothing was to be done. Dropping the future doesn't end it; closing or dropping the store
    /// does.
    ///
    /// # Errors
    /// See [`StoreError`]. The checkpoint before is still there, and so is all that came since.
    pub async fn checkpoint(&self) -> Result<Option<Checkpoint>, StoreError> {
        let shared = self.shared.clone();
        self.run("store checkpoint", async move { shared.checkpoint().await }).await
    }

    /// Gives back the space of what was replaced and removed: after a checkpoint, segments with
    /// garbage are rewritten. Nobody waits for it. Only what the log has handed over: not the last
    /// segment, nor those that aren't sealed yet. Dropping the future doesn't end it; closing or
    /// dropping the store does.
    ///
    /// # Errors
    /// See [`StoreError`]. What was not rewritten is as it was; a segment that can't be read doesn't
    /// keep the others from it.
    pub async fn compact(&self) -> Result<Compaction, StoreError> {
        let shared = self.shared.clone();
        let compact = async move {
            shared.checkpoint().await?;
            shared.take_over_soon().await?;
            shared.compact(0, true).await
        };
        self.run("store compaction", compact).await
    }

    /// Runs work on the files to its end, whether or not anybody waits for it.
    async fn run<T: Send + 'static>(
        &self,
        name: &'static str,
        work: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (sender, done) = oneshot::channel();
        self.shared.place.env.spawn(name, async move { drop(sender.send(work.await)) });
        done.await.unwrap_or_else(|_| {
            // It is dropped with the executor, or panicked.
            self.shared.check_files()?;
            Err(match self.shared.is_closed() {
                true => self.shared.why_closed().into(),
                false => self.shared.panicked(),
            })
        })
    }

    /// What the last checkpoint left.
    #[cfg(feature = "planted-faults")]
    pub(crate) async fn base(&self) -> Arc<Base> {
        self.shared.accepted.lock().await.base.clone()
    }

    /// Makes a copy of the store in the new folder `to` while it goes on, with all that was accepted
    /// before the call: a store by itself, which must not be opened in place where it shares files
    /// with another backup (`earlier`). Segments that are never changed any more are linked, where
    /// `to` is in the same file system; of the rest what `earlier` has by the same name with the same
    /// checksum is linked, and the others are copied. Returns what was taken, with the checksums.
    ///
    /// # Errors
    /// See [`StoreError`]; then `to` holds a part. The store is as it was.
    pub async fn backup(
        &self,
        to: &Path,
        earlier: Option<EarlierBackup<'_>>,
    ) -> Result<(Backup, BackupFiles), StoreError> {
        self.shared.backup(to, earlier).await
    }

    /// What the store holds, and what was done in the background since it was opened.
    pub fn store_stats(&self) -> StoreStats {
        let state = self.shared.published.load();
        let base = &state.base;
        let now = self.shared.place.env.clock.now();
        let mut replaced = self.shared.replaced.lock().unwrap_or_else(PoisonError::into_inner);
        replaced.retain(|(base, _)| base.strong_count() > 0);
        let oldest = replaced.first().map(|(_, at)| now.saturating_sub(*at));
        let counts = *self.shared.counts.lock().unwrap_or_else(PoisonError::into_inner);
        StoreStats {
            rebuild_count: self.shared.place.rebuild_count.load(Ordering::Relaxed),
            memory_bytes: self.shared.memory_bytes.load(Ordering::Relaxed) as u64,
            tree_bytes: base.tree.as_ref().map_or(0, |tree| tree.tree.file_bytes()),
            segment_bytes: base.segments.bytes(),
            segment_live_bytes: base
                .live
                .iter()
                .filter(|(number, _)| base.segments.get(**number).is_some())
                .map(|(_, live)| live.bytes)
                .sum(),
            oldest_snapshot_ms: oldest.map_or(0, |age| age.as_millis() as u64),
            ..counts
        }
    }

    /// Whether it still takes commits; otherwise why not.
    ///
    /// # Errors
    /// Why the log stopped.
    pub fn health(&self) -> Result<(), Stopped> {
        self.shared.log.health()
    }

    /// Why the last checkpoint failed, or none can be made any more: where that is for want of room or of
    /// a file descriptor, or since the log stopped, which [`Store::health`] tells, it is none.
    pub fn checkpoint_error(&self) -> Option<StoreError> {
        let passes = |error: &StoreError| error.is_no_space() || error.is_no_descriptor();
        let last = self.shared.last_checkpoint_error().filter(|error| !passes(error));
        // What latched does not pass, whatever it was.
        let error = self.shared.failed.get().cloned().or(last);
        error.filter(|error| !matches!(error, StoreError::Stopped(_)))
    }

    /// The log's counters.
    pub fn stats(&self) -> LogStats {
        let state = self.shared.published.load();
        let mut stats = self.shared.log.stats();
        stats.file_bytes += state.base.segments.bytes();
        stats.file_bytes += state.base.tree.as_ref().map_or(0, |tree| tree.tree.file_bytes());
        stats
    }

    /// What its cache of chunks holds and has done, for all who share it. `None` where it has none.
    pub fn chunk_stats(&self) -> Option<ChunkStats> {
        self.shared.place.chunks.as_ref().map(|chunks| chunks.stats())
    }

    /// Persists everything accepted, and refuses later commits. Waits for what is under way in the
    /// background.
    ///
    /// # Errors
    /// The log stopped before, or there was no room on the disk for what was accepted.
    pub async fn close(&self) -> Result<(), Stopped> {
        self.shared.tell_closed();
        // Whatever is under way ends; what waits for its turn finds the store to be closed.
        let _compacting = self.shared.compacting.lock().await;
        let _manifest = self.shared.manifest.lock().await;
        let closed = self.shared.log.close().await;
        self.shared.publish();
        closed
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.shared.tell_closed();
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(budget) = &self.place.options.memory {
            budget.leave(*self.memory_bytes.get_mut());
        }
    }
}

impl Shared {
    pub(crate) fn snapshot_of(&self, state: Arc<State>) -> Snapshot {
        Snapshot { log: self.log.clone(), state, measure: self.place.options.measure }
    }

    /// Returns once snapshots show `seq`, which is persisted. It is shown already, or another
    /// commit of its group is entering the index and shows both in a moment.
    pub(crate) async fn shown(&self, seq: Seq) -> Result<(), Stopped> {
        self.publish();
        let mut visible = self.visible.subscribe();
        let is_over = visible.wait_for(|shown| *shown >= seq.0 || self.is_broken()).await;
        match *is_over.expect("the store outlives its borrower") >= seq.0 {
            true => Ok(()),
            false => Err(self.why_closed()),
        }
    }

    /// Shows the newest state that has been persisted, where it isn't shown yet.
    fn publish(&self) {
        let persisted = self.log.persisted().0;
        if persisted == self.published.load().last_seq {
            return;
        }
        let _stop = self.stop_on_panic();
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let count = pending.partition_point(|(_, state)| state.last_seq <= persisted);
        let shown: Vec<_> = pending.drain(..count).collect();
        let Some((_, newest)) = shown.last() else {
            return;
        };
        // Under the lock, so that an older state never replaces a newer one.
        let seq = newest.last_seq;
        let previous = self.published.swap(Arc::new(newest.clone()));
        drop(pending);
        self.visible.send_if_modified(|visible| {
            let later = seq > *visible;
            *visible = seq.max(*visible);
            later
        });
        // Large layers take a while to drop: without the lock.
        drop((shown, previous));
    }

    /// Puts a base under the states that are shown, and those that wait to be. Returns what was
    /// replaced.
    pub(crate) fn rebase_shown(&self, base: &Arc<Base>, files: &Files, generation: u64) -> Arc<State> {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        pending.iter_mut().for_each(|(_, state)| state.rebase(base, files, generation));
        let mut newest = (**self.published.load()).clone();
        let mut replaced = self.replaced.lock().unwrap_or_else(PoisonError::into_inner);
        replaced.retain(|(base, _)| base.strong_count() > 0);
        replaced.push((Arc::downgrade(&newest.base), self.place.env.clock.now()));
        drop(replaced);
        newest.rebase(base, files, generation);
        self.note_memory(&newest);
        self.published.swap(Arc::new(newest))
    }

    /// What the newest states stand on. It doesn't change while the manifest is held.
    pub(crate) fn base(&self) -> Arc<Base> {
        self.published.load().base.clone()
    }

    /// Counts what was done in the background.
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
        StoreError::Panicked { path: self.place.folder.clone() }
    }

    /// Stops the store where whoever has this panics.
    pub(crate) fn stop_on_panic(&self) -> OnPanic<impl FnMut()> {
        OnPanic(|| {
            self.is_broken.store(true, Ordering::Release);
            let _ = self.failed.set(self.panicked());
            self.log.stop(settee_io::Error::Panicked { path: self.place.folder.as_path().into() });
            self.checkpointed.notify_waiters();
            self.visible.send_modify(|_| {});
        })
    }

    /// Ends what goes on in the background, and whoever waits for more.
    fn tell_closed(&self) {
        self.closed.store(true, Ordering::Release);
        // Whoever is under way may be waiting for a write to find room.
        self.log.begin_close();
        self.checkpointed.notify_waiters();
        self.visible.send_modify(|_| {});
    }

    fn why_closed(&self) -> Stopped {
        let closed = settee_io::Error::Closed { path: self.place.folder.as_path().into() };
        self.log.health().err().unwrap_or_else(|| Stopped { source: Arc::new(closed) })
    }

    /// Waits as long as `bytes` of background work may take.
    pub(crate) async fn pace(&self, bytes: u64) {
        let per_second = self.place.options.compaction_bytes_per_second.max(1);
        let pause = Duration::from_secs_f64(bytes as f64 / per_second as f64);
        self.place.env.clock.sleep(pause).await;
    }

    fn note_memory(&self, state: &State) {
        let now = state.memory_bytes();
        let before = self.memory_bytes.swap(now, Ordering::Relaxed);
        self.frozen_count.store(state.frozen.len() as u64, Ordering::Relaxed);
        if let Some(budget) = &self.place.options.memory {
            budget.change(before, now);
        }
    }

    fn memory_is_full(&self) -> bool {
        let own = self.memory_bytes.load(Ordering::Relaxed);
        own >= self.place.options.memory_bytes_max
            || self.place.options.memory.as_ref().is_some_and(|budget| budget.is_full(own))
            || self.frozen_count.load(Ordering::Relaxed) > self.place.options.frozen_layers_max as u64
    }

    /// Whether writers are to wait: memory is full, and a checkpoint is to empty it. Not where one
    /// failed: then the commit says so.
    fn is_waiting_for_memory(&self) -> bool {
        self.memory_is_full() && !self.is_closed() && self.last_checkpoint_error().is_none()
    }

    async fn wait_for_memory(self: &Arc<Self>) {
        while self.memory_is_full() && !self.is_closed() {
            let checkpointed = self.checkpointed.notified();
            self.start_checkpoint();
            if !self.is_waiting_for_memory() {
                return;
            }
            checkpointed.await;
        }
    }

    /// Refuses a batch where memory is full, and can't be waited for: a checkpoint failed, or its own
    /// writer keeps one from beginning and has gone too far.
    fn check_memory(&self) -> Result<(), CommitError> {
        if !self.memory_is_full() {
            return Ok(());
        }
        if let Some(source) = self.last_checkpoint_error() {
            return Err(CommitError::Full { source });
        }
        let bytes_max = self.place.options.memory_bytes_max;
        let bytes = self.memory_bytes.load(Ordering::Relaxed);
        match bytes.saturating_sub(bytes_max) >= bytes_max.div_ceil(WRITER_EXCESS_SHARE) {
            true => Err(CommitError::WriterFull { bytes, bytes_max }),
            false => Ok(()),
        }
    }

    /// Reports how the last checkpoint went, or goes, to the writers that wait for memory.
    pub(crate) fn note_checkpoint_error(&self, error: Option<StoreError>) {
        *self.checkpoint_error.lock().unwrap_or_else(PoisonError::into_inner) = error;
        self.checkpointed.notify_waiters();
    }

    fn last_checkpoint_error(&self) -> Option<StoreError> {
        self.checkpoint_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the store's files may be changed. Not once the log has stopped: where that was for a sync
    /// of the folder, names may be lost that the next manifest would count on.
    pub(crate) fn check_files(&self) -> Result<(), StoreError> {
        self.log.health()?;
        self.failed.get().cloned().map_or(Ok(()), Err)
    }

    /// Whether memory holds so much that a checkpoint is due.
    fn is_checkpoint_due(&self, state: &State) -> bool {
        let options = &self.place.options;
        let entries = |memory: &Memory| (memory.by_key.len() + memory.by_seq.len()) as u64;
        let entry_count: u64 = state.layers().map(entries).sum();
        let tree_count = state.base.tree.as_ref().map_or(0, |tree| tree.root.len());
        let share = (tree_count / options.checkpoint_share).max(options.checkpoint_entries_min);
        let record_bytes = state.layers().map(|memory| memory.record_bytes).sum::<u64>();
        let dead_bytes = state.layers().map(|memory| memory.dead_bytes).sum::<u64>();
        let garbage_due =
            (state.base.live_bytes() / options.checkpoint_share).max(options.checkpoint_garbage_min);
        entry_count >= share.min(options.checkpoint_entries_max)
            || state.memory.bytes() >= options.memory_bytes_max / 2
            || options.memory.as_ref().is_some_and(|budget| budget.wants(state.memory.bytes()))
            || dead_bytes >= garbage_due
            || record_bytes >= options.checkpoint_bytes_max
    }

    /// Starts a checkpoint in the background, unless one is under way.
    fn start_checkpoint(self: &Arc<Self>) {
        if self.closed.load(Ordering::Acquire) || self.is_checkpointing.swap(true, Ordering::AcqRel) {
            return;
        }
        let shared = self.clone();
        self.place.env.spawn("store checkpoint", async move {
            let _end = OnPanic(|| {
                shared.is_checkpointing.store(false, Ordering::Release);
                shared.checkpointed.notify_waiters();
            });
            let done = AssertUnwindSafe(shared.checkpoint()).catch_unwind().await;
            let error = done.unwrap_or_else(|_| Err(shared.panicked())).err();
            if let Some(error) = &error {
                tracing::warn!(%error, folder = %shared.place.folder.display(), "a checkpoint failed");
            }
            let failed = error.is_some();
            shared.note_checkpoint_error(error);
            if failed {
                shared.place.env.clock.sleep(RETRY_PAUSE).await;
            }
            shared.is_checkpointing.store(false, Ordering::Release);
            shared.start_compaction(&shared.published.load().base);
            shared.checkpointed.notify_waiters();
        });
    }

    /// Has the tree built anew where it is damaged.
    fn note_damage(self: &Arc<Self>, error: &ReadError) {
        if error.is_of_damaged_index() {
            self.is_index_damaged.store(true, Ordering::Release);
            self.start_checkpoint();
        }
    }

    /// Enters a batch that was appended into the writer's state, and queues the result.
    fn enter(self: &Arc<Self>, state: &mut State, batch: &Batch, appended: &Appended, beneath: &[Beneath]) {
        {
            // The last state queued goes public together with this one: without it, this one
            // need not copy again what that one had copied.
            let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
            pending.pop_back_if(|(group, _)| *group == appended.group);
        }
        let first = appended.first_seq.0;
        let records = (first..).zip(batch.records.records()).zip(&appended.locations);
        for (index, ((seq, (flags, key, meta)), at)) in records.enumerate() {
            let record = Incoming { flags, key, meta, location: location(seq, *at) };
            let beneath = beneath.get(index).copied().unwrap_or_default();
            state.enter(&record, beneath, &self.place.options.rules());
        }
        state.files = self.log.files();
        let queued = (appended.group, state.clone());
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).push_back(queued);
        self.publish();
        self.note_memory(state);
        if self.is_checkpoint_due(state) {
            self.start_checkpoint();
        }
    }
}

impl Place {
    pub(crate) fn new(
        env: &Env,
        folder: &Path,
        options: StoreOptions,
        cache: Arc<NodeCache>,
        chunks: Option<Arc<ChunkCache>>,
    ) -> Place {
        let (env, folder) = (env.clone(), folder.to_path_buf());
        let (rebuild_count, syncs) = (AtomicU64::new(0), OnceLock::new());
        Place { env, folder, options, cache, chunks, rebuild_count, syncs }
    }

    pub(crate) fn syncs(&self) -> Arc<DirectorySyncs> {
        self.syncs.get_or_init(|| Arc::new(DirectorySyncs::new(&self.folder))).clone()
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

/// The one who writes. Others wait until it is dropped; readers don't.
pub struct Writer<'a> {
    shared: &'a Arc<Shared>,
    state: tokio::sync::MutexGuard<'a, State>,
}

impl Writer<'_> {
    /// What stands under `key` in the newest accepted state.
    ///
    /// # Errors
    /// See [`ReadError`]; the store stays usable.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Entry>, ReadError> {
        self.state.get(key).await
    }

    /// The last record that was accepted.
    pub fn last_seq(&self) -> Seq {
        Seq(self.state.last_seq)
    }

    /// The newest accepted state, to read from as from a snapshot. Unlike one it may show what
    /// a crash can undo: it is for deciding what to write.
    pub fn latest(&self) -> Snapshot {
        self.shared.snapshot_of(Arc::new(self.state.clone()))
    }

    /// Commits a batch; the log is told to bring it as far as `stage`, which
    /// [`Store::wait`] waits for. Returns the batch's last `Seq`.
    ///
    /// # Errors
    /// See [`CommitError`]: then nothing of it was accepted.
    ///
    /// # Panics
    /// Where a record is listed and the store has no sums.
    pub async fn commit(&mut self, batch: &Batch, stage: Stage) -> Result<Seq, CommitError> {
        self.shared.check_memory()?;
        let folded;
        let batch = match batch.has_deltas {
            true => {
                folded = self.fold(batch).await?;
                &folded
            }
            false => batch,
        };
        let beneath = self.beneath(batch).await.inspect_err(|error| self.shared.note_damage(error))?;
        let _stop = self.shared.stop_on_panic();
        let appended = self.shared.log.append(&batch.records, stage).await?;
        self.shared.enter(&mut self.state, batch, &appended, &beneath);
        Ok(appended.last_seq)
    }

    /// The same batch, where deltas that would make too long a chain are values instead.
    async fn fold(&self, batch: &Batch) -> Result<Batch, CommitError> {
        let mut folded = Batch::new();
        let mut seen: HashMap<Vec<u8>, usize> = HashMap::new();
        for (flags, key, meta, value) in batch.records.values() {
            let known = seen.get(key).copied();
            if !flags.has(Flags::DELTA) {
                seen.insert(key.to_vec(), usize::from(!flags.has(Flags::TOMBSTONE)));
                folded.records.push_bytes(flags, key, meta, value);
                continue;
            }
            let entry = self.state.get(key).await?;
            let count = match (known, &entry) {
                (Some(count), _) => count,
                (None, Some(entry)) => entry.pointers().count(),
                (None, None) => 0,
            };
            if count < CHAIN_COUNT_MAX {
                seen.insert(key.to_vec(), count + 1);
                folded.records.push_bytes(flags, key, meta, value);
                continue;
            }
            let fold = self.shared.place.options.fold.ok_or(CommitError::ChainTooLong)?;
            // Parts that are in this batch can't be read yet.
            let entry = entry.filter(|_| known.is_none()).ok_or(CommitError::ChainTooLong)?;
            let latest = self.latest();
            let parts = latest.read_parts(entry.pointers()).await?;
            let values: Vec<Bytes> =
                std::iter::once(value).chain(parts.into_iter().map(|record| record.value())).collect();
            seen.insert(key.to_vec(), 1);
            folded.records.push_bytes(Flags::none(), key, meta, fold(&values));
        }
        folded.has_listed = batch.has_listed;
        Ok(folded)
    }

    /// What lies beneath the memory layer for each of a batch's records, where that counts.
    async fn beneath(&self, batch: &Batch) -> Result<Vec<Beneath>, ReadError> {
        let measure = self.shared.place.options.measure;
        if measure.is_none() {
            assert!(!batch.has_listed, "what is listed is found again by what replaces it, which needs sums");
            return Ok(Vec::new());
        }
        if !self.state.has_beneath() {
            return Ok(Vec::new());
        }
        let mut all = Vec::new();
        for (_, key, _) in batch.records.records() {
            all.push(match self.state.memory.by_key.get(key) {
                Some(_) => Beneath::default(),
                None => self.state.beneath(measure, key).await?,
            });
        }
        Ok(all)
    }
}
