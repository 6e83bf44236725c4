//! The store: one writer at a time, snapshots for all others.
//!
//! A commit appends a batch to the log and then enters its records into the writer's index. A
//! copy of that index, which costs nothing until the next write touches it, waits until the log
//! has persisted the batch; then it is what new snapshots show.
//!
//! Invariants:
//! 1. A snapshot shows a prefix of the log, and all of it is persisted.
//! 2. Between a batch's append and its entry in the index nothing awaits: a commit whose future
//!    is dropped has happened wholly or not at all.
//! 3. Who has waited for a record to be persisted finds it in the next snapshot.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use bytes::Bytes;
use settee_io::Env;
use settee_log::{
    AppendError, Appended, BATCH_SIZE_MAX, Flags, Log, LogOptions, LogStats, OpenError, Recovery, Seq, Stage,
    Stopped,
};
use tokio::sync::watch;

use crate::layer::{Location, Sums};
use crate::snapshot::{Entry, Indexes, Snapshot, seq_key};

/// Longest key in bytes.
pub const KEY_SIZE_MAX: usize = 8 << 10;

/// Largest value in bytes: a batch that holds it, with its key and meta, fits the log.
pub const VALUE_SIZE_MAX: usize = BATCH_SIZE_MAX - 2 * KEY_SIZE_MAX;

/// How a store is opened.
#[derive(Debug, Clone, Copy)]
pub struct StoreOptions {
    /// The limits of its log.
    pub log: LogOptions,
    /// What an entry adds to the sums, from its key, its meta and its record's length.
    pub measure: fn(&[u8], &[u8], u32) -> Sums,
}

/// Records to commit together.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    records: settee_log::Batch,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// Puts a value under a key. A large value is shared until it is copied into the log's buffer.
    /// A listed one shows in [`Snapshot::scan_listed`].
    ///
    /// # Panics
    /// Where the key, the meta or the value is over its limit: that is the caller's to check.
    pub fn put(&mut self, key: &[u8], meta: &[u8], value: Bytes, listed: bool) {
        assert!(key.len() <= KEY_SIZE_MAX, "key of {} bytes", key.len());
        assert!(value.len() <= VALUE_SIZE_MAX, "value of {} bytes", value.len());
        self.records.push_bytes(if listed { Flags::LISTED } else { Flags::none() }, key, meta, value);
    }

    /// Removes a key and its value.
    pub fn delete(&mut self, key: &[u8]) {
        assert!(key.len() <= KEY_SIZE_MAX, "key of {} bytes", key.len());
        self.records.push(Flags::TOMBSTONE, key, &[], &[]);
    }

    /// Adds another batch's records behind these.
    pub fn extend(&mut self, other: &Batch) {
        self.records.extend(&other.records);
    }

    /// Lets the batch into the room that is kept back for what frees space: so deletions work
    /// on a full disk.
    pub fn use_reserve(&mut self) {
        self.records.use_reserve();
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Bytes that it takes in the log.
    pub fn size(&self) -> usize {
        self.records.size()
    }
}

/// An ordered, durable key-value store in a folder of its own. Used from many tasks at once.
pub struct Store {
    log: Arc<Log>,
    measure: fn(&[u8], &[u8], u32) -> Sums,
    /// The newest accepted state.
    accepted: tokio::sync::Mutex<Indexes>,
    /// Accepted states that aren't persisted yet, oldest first, with their groups.
    pending: Mutex<VecDeque<(u64, Indexes)>>,
    /// The newest persisted state.
    published: ArcSwap<Indexes>,
    /// Its last `Seq`, for those who wait for a later one.
    visible: watch::Sender<u64>,
}

impl Store {
    /// Opens the store in `folder`, which is created with the first commit, and rebuilds its
    /// index from the log.
    ///
    /// # Errors
    /// As [`Log::open`]; nothing was changed.
    pub async fn open(
        env: &Env,
        folder: &Path,
        options: StoreOptions,
    ) -> Result<(Store, Recovery), OpenError> {
        let mut indexes = Indexes::default();
        let (log, recovery) = Log::open(env, folder, options.log, |at, record| {
            let location =
                Location { seq: record.seq.0, segment: at.segment, offset: at.offset, length: at.length };
            indexes.enter(record.flags, record.key, record.meta, location, options.measure);
        })
        .await?;
        let store = Store {
            log: Arc::new(log),
            measure: options.measure,
            visible: watch::Sender::new(indexes.last_seq),
            published: ArcSwap::from_pointee(indexes.clone()),
            accepted: tokio::sync::Mutex::new(indexes),
            pending: Mutex::default(),
        };
        Ok((store, recovery))
    }

    /// The newest persisted state. Never waits.
    pub fn snapshot(&self) -> Snapshot {
        self.publish();
        Snapshot { log: self.log.clone(), indexes: self.published.load_full() }
    }

    /// Becomes the one writer, who sees the newest accepted state.
    pub async fn writer(&self) -> Writer<'_> {
        Writer { indexes: self.accepted.lock().await, store: self }
    }

    /// Returns once `seq`, which was committed, has got as far as `stage`; where that is
    /// persisted, snapshots taken from then on show it.
    ///
    /// # Errors
    /// The log stopped before.
    pub async fn wait(&self, seq: Seq, stage: Stage) -> Result<(), Stopped> {
        self.log.wait(seq, stage).await?;
        if stage == Stage::Persisted {
            self.shown(seq).await;
        }
        Ok(())
    }

    /// Returns once snapshots show `seq`, which is persisted. It is shown already, or another
    /// commit of its group is entering the index and shows both in a moment.
    async fn shown(&self, seq: Seq) {
        self.publish();
        let mut visible = self.visible.subscribe();
        visible.wait_for(|shown| *shown >= seq.0).await.expect("the store outlives its borrower");
    }

    /// A barrier: returns once everything accepted before the call is persisted.
    ///
    /// # Errors
    /// The log stopped before.
    pub async fn flush(&self) -> Result<(), Stopped> {
        // Whoever is committing now is waited for: what it appended counts as accepted before.
        let accepted = self.accepted.lock().await.last_seq;
        self.wait(Seq(accepted), Stage::Persisted).await
    }

    /// Returns once a snapshot shows a record later than `seq`.
    ///
    /// # Errors
    /// The log stopped, or was closed.
    pub async fn changed_after(&self, seq: Seq) -> Result<(), Stopped> {
        let mut visible = self.visible.subscribe();
        loop {
            // In this order: what is persisted later is left to the wait below.
            let persisted = self.log.persisted();
            self.publish();
            if *visible.borrow_and_update() > seq.0 {
                return Ok(());
            }
            if persisted > seq {
                // Its writer is about to enter it into the index, and publishes it then.
                let changed = visible.changed().await;
                changed.expect("the store outlives its borrower");
            } else {
                self.log.wait(Seq(seq.0.saturating_add(1)), Stage::Persisted).await?;
            }
        }
    }

    /// Whether it still takes commits; otherwise why not.
    ///
    /// # Errors
    /// Why the log stopped.
    pub fn health(&self) -> Result<(), Stopped> {
        self.log.health()
    }

    /// The log's counters.
    pub fn stats(&self) -> LogStats {
        self.log.stats()
    }

    /// Persists everything accepted, and refuses later commits.
    ///
    /// # Errors
    /// The log stopped before.
    pub async fn close(&self) -> Result<(), Stopped> {
        let closed = self.log.close().await;
        self.publish();
        closed
    }

    /// Shows the newest state that has been persisted, where it isn't shown yet.
    fn publish(&self) {
        let persisted = self.log.persisted().0;
        if persisted == self.published.load().last_seq {
            return;
        }
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let count = pending.partition_point(|(_, indexes)| indexes.last_seq <= persisted);
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
        // Large indexes take a while to drop: without the lock.
        drop((shown, previous));
    }

    /// Enters a batch that was appended into the writer's index, and queues the result.
    fn enter(&self, indexes: &mut Indexes, batch: &Batch, appended: &Appended) {
        {
            // The last state queued goes public together with this one: without it, this one
            // need not copy again what that one had copied.
            let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
            pending.pop_back_if(|(group, _)| *group == appended.group);
        }
        let first = appended.first_seq.0;
        for ((seq, (flags, key, meta)), at) in (first..).zip(batch.records.records()).zip(&appended.locations)
        {
            let location = Location { seq, segment: at.segment, offset: at.offset, length: at.length };
            indexes.enter(flags, key, meta, location, self.measure);
        }
        let queued = (appended.group, indexes.clone());
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).push_back(queued);
        self.publish();
    }
}

impl Indexes {
    /// Enters one record, the newest so far.
    fn enter(
        &mut self,
        flags: Flags,
        key: &[u8],
        meta: &[u8],
        location: Location,
        measure: fn(&[u8], &[u8], u32) -> Sums,
    ) {
        self.last_seq = location.seq;
        let previous = if flags.has(Flags::TOMBSTONE) {
            self.by_key.remove(key)
        } else {
            self.by_key.insert(key, meta, location, measure(key, meta, location.length))
        };
        if let Some(previous) = previous {
            self.by_seq.remove(&seq_key(previous.location.seq, key));
        }
        if flags.has(Flags::LISTED) {
            let sums = measure(key, meta, location.length);
            self.by_seq.insert(&seq_key(location.seq, key), meta, location, sums);
        }
    }
}

/// The one who writes. Others wait until it is dropped; readers don't.
pub struct Writer<'a> {
    store: &'a Store,
    indexes: tokio::sync::MutexGuard<'a, Indexes>,
}

impl Writer<'_> {
    /// What stands under `key` in the newest accepted state.
    pub fn get(&self, key: &[u8]) -> Option<Entry<'_>> {
        Some(Entry::new(self.indexes.by_key.get(key)?, 0))
    }

    /// The last record that was accepted.
    pub fn last_seq(&self) -> Seq {
        Seq(self.indexes.last_seq)
    }

    /// The newest accepted state, to read from as from a snapshot. Unlike one it may show what
    /// a crash can undo: it is for deciding what to write.
    pub fn latest(&self) -> Snapshot {
        Snapshot { log: self.store.log.clone(), indexes: Arc::new(self.indexes.clone()) }
    }

    /// Commits a batch; the log is told to bring it as far as `stage`, which
    /// [`Store::wait`] waits for. Returns the batch's last `Seq`.
    ///
    /// # Errors
    /// See [`AppendError`]: then nothing of it was accepted.
    pub async fn commit(&mut self, batch: &Batch, stage: Stage) -> Result<Seq, AppendError> {
        let appended = self.store.log.append(&batch.records, stage).await?;
        self.store.enter(&mut self.indexes, batch, &appended);
        Ok(appended.last_seq)
    }
}
