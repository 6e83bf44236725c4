//! The state of an open store: its fields, its closing, and what a panic does.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use settee_io::OnPanic;
use settee_log::{Log, Stopped};
use tokio::sync::{Notify, watch};

use super::context::StoreContext;
use crate::error::StoreError;
use crate::manifest::Manifest;
use crate::options::StoreStats;
use crate::version::{CheckpointState, Version};

/// The state of an open store.
pub(crate) struct Shared {
    pub context: StoreContext,
    pub log: Arc<Log>,
    /// Locked during compaction. Holds the last numbers of segments that could not be read.
    pub compacting: tokio::sync::Mutex<BTreeSet<u32>>,
    /// Locked while the set of files is changed.
    pub manifest: tokio::sync::Mutex<Manifest>,
    /// The newest accepted version.
    pub accepted: tokio::sync::Mutex<Version>,
    /// Accepted versions that are not persisted yet, oldest first, with their groups.
    pub(super) unpersisted_versions: Mutex<VecDeque<(u64, Version)>>,
    /// The newest persisted version.
    pub(crate) published: ArcSwap<Version>,
    /// The last `Seq` of the published version, for tasks that wait for a later one.
    pub(super) published_seq: watch::Sender<u64>,
    /// Notified when memory has been freed, when a checkpoint has failed, on close, and after a panic.
    pub status_changed: Notify,
    pub is_checkpointing: AtomicBool,
    pub is_compacting: AtomicBool,
    /// A task waits for the log to seal segments that are to be transferred.
    pub is_transferring: AtomicBool,
    /// A commit read a damaged node of the tree: the next checkpoint rebuilds the tree.
    pub is_index_damaged: AtomicBool,
    /// Size of the memtables in bytes after the last commit or checkpoint.
    pub(super) memory_bytes: AtomicUsize,
    pub(super) immutable_count: AtomicU64,
    /// Replaced checkpoint states that may still be in use, with the time of their replacement.
    pub(super) replaced: Mutex<Vec<(Weak<CheckpointState>, Duration)>>,
    /// Counters of background work; [`Shared::store_stats`] fills in the other fields.
    pub(super) counts: Mutex<StoreStats>,
    /// Why files may no longer be changed.
    pub files_error: OnceLock<StoreError>,
    /// Why the last background checkpoint failed.
    pub(super) checkpoint_error: Mutex<Option<StoreError>>,
    closed: AtomicBool,
    /// A panic left the versions inconsistent with the log or the files.
    is_broken: AtomicBool,
}

impl Shared {
    /// The state of a store that was just opened, with its only version.
    pub(crate) fn new(context: StoreContext, log: Log, manifest: Manifest, version: Version) -> Arc<Shared> {
        let shared = Shared {
            context,
            log: Arc::new(log),
            compacting: Default::default(),
            manifest: tokio::sync::Mutex::new(manifest),
            published_seq: watch::Sender::new(version.last_seq),
            published: ArcSwap::from_pointee(version.clone()),
            accepted: tokio::sync::Mutex::new(version),
            unpersisted_versions: Mutex::default(),
            status_changed: Notify::new(),
            is_checkpointing: AtomicBool::new(false),
            is_compacting: AtomicBool::new(false),
            is_transferring: AtomicBool::new(false),
            is_index_damaged: AtomicBool::new(false),
            memory_bytes: AtomicUsize::new(0),
            immutable_count: AtomicU64::new(0),
            replaced: Mutex::default(),
            counts: Mutex::default(),
            files_error: OnceLock::new(),
            checkpoint_error: Mutex::default(),
            closed: AtomicBool::new(false),
            is_broken: AtomicBool::new(false),
        };
        if let Some(budget) = &shared.context.options.memory {
            budget.add_store();
        }
        shared.record_memory(&shared.published.load());
        Arc::new(shared)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    pub(super) fn is_broken(&self) -> bool {
        self.is_broken.load(Ordering::Acquire)
    }

    pub(crate) fn panicked(&self) -> StoreError {
        StoreError::Panicked { path: self.context.directory.clone() }
    }

    /// Returns a guard that stops the store if it is dropped by a panic.
    pub(crate) fn stop_on_panic(&self) -> OnPanic<impl FnMut()> {
        OnPanic(|| {
            self.is_broken.store(true, Ordering::Release);
            let _ = self.files_error.set(self.panicked());
            self.log.stop(settee_io::Error::Panicked { path: self.context.directory.as_path().into() });
            self.status_changed.notify_waiters();
            self.published_seq.send_modify(|_| {});
        })
    }

    /// Ends background work, and the waits for later records.
    pub(crate) fn begin_close(&self) {
        self.closed.store(true, Ordering::Release);
        // A task may be waiting for a write that finds the disk full.
        self.log.begin_close();
        self.status_changed.notify_waiters();
        self.published_seq.send_modify(|_| {});
    }

    pub(crate) fn stop_reason(&self) -> Stopped {
        let closed = settee_io::Error::Closed { path: self.context.directory.as_path().into() };
        self.log.health().err().unwrap_or_else(|| Stopped { source: Arc::new(closed) })
    }

    /// Sleeps as long as `bytes` of background work take at the configured rate.
    pub(crate) async fn pace(&self, bytes: u64) {
        let per_second = self.context.options.compaction_bytes_per_second.max(1);
        let pause = Duration::from_secs_f64(bytes as f64 / per_second as f64);
        self.context.env.clock.sleep(pause).await;
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(budget) = &self.context.options.memory {
            budget.remove_store(*self.memory_bytes.get_mut());
        }
    }
}
