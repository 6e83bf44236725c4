//! The state of an open store: its parts and their locks, its closing, and what a panic does.

use std::any::Any;
use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use settee_io::OnPanic;
use settee_log::{Log, Stopped};
use tokio::sync::{Notify, watch};

use super::context::StoreContext;
use crate::error::StoreError;
use crate::manifest::StoreSection;
use crate::options::StoreStats;
use crate::pacing::Pacing;
use crate::space::SpaceAccount;
use crate::version::Version;

/// The state of an open store.
///
/// Lock order: a task that holds one of these locks takes only later ones. They are `files.compacting`,
/// `files.section`, `versions.accepted`, `versions.unpersisted`; then one of the mutexes of `counters` and
/// `memory`, or the log's. A writer that is slowed holds `pacing.turn`, before all of them. Only the first three are held across an await. A task may wait for a background
/// permit while it holds `files.section`, so no task locks that while it holds such a permit.
pub(crate) struct Shared {
    pub context: StoreContext,
    pub log: Arc<Log>,
    /// Incarnation of the tree.
    pub incarnation: [u8; 16],
    pub versions: Versions,
    pub files: StoreFiles,
    pub jobs: Jobs,
    pub space: SpaceAccount,
    pub pacing: Pacing,
    pub(super) memory: Memory,
    pub(super) counters: Counters,
    /// Notified when memory has been freed, when a checkpoint has failed or a compaction has ended, on close, and
    /// after a panic.
    pub status_changed: Notify,
    closed: AtomicBool,
    /// A panic may have left the versions inconsistent with the log or the files.
    is_broken: AtomicBool,
}

/// The versions of the index from the newest accepted one back to the newest persisted one.
pub(crate) struct Versions {
    /// The newest accepted version. Its lock is that of the store's writer: held from reading what a batch
    /// depends on until the batch is in the index, and while a memtable is made immutable or a checkpoint is
    /// installed.
    pub accepted: tokio::sync::Mutex<Version>,
    /// Accepted versions that are not persisted yet, oldest first, with their groups. The lock guards the
    /// publication too, so that no older version replaces a newer one.
    pub(super) unpersisted: Mutex<VecDeque<(u64, Version)>>,
    /// The newest persisted version, replaced under the lock of `unpersisted`.
    pub(super) published: ArcSwap<Version>,
    /// The last `Seq` of the published version, for tasks that wait for a later one.
    pub(super) published_seq: watch::Sender<u64>,
}

/// The set of files, and what may change it.
pub(crate) struct StoreFiles {
    /// Locked during compaction: no other task removes a segment. Contains the segments that could not be
    /// read, each by the last number in its name.
    pub compacting: tokio::sync::Mutex<BTreeSet<u32>>,
    /// The store's section of the manifest, as far as checkpoints change it. Locked while a checkpoint is made.
    pub section: tokio::sync::Mutex<StoreSection>,
}

/// The background jobs. A flag of a job is set while one of that kind runs, or waits.
#[derive(Default)]
pub(crate) struct Jobs {
    pub is_checkpointing: AtomicBool,
    pub is_compacting: AtomicBool,
    /// A task waits for the log to seal segments that are to be listed.
    pub is_listing: AtomicBool,
    /// A task waits for a pause in the commits, to free garbage.
    pub is_watching: AtomicBool,
    /// A pause came while a compaction was in progress, which frees less than is freed at a pause.
    pub has_missed_pause: AtomicBool,
    /// Batches committed since the store was opened.
    pub commit_count: AtomicU64,
    /// A commit read a damaged node of the tree: the next checkpoint rebuilds the tree.
    pub is_index_damaged: AtomicBool,
}

/// What decides whether writers wait for a checkpoint.
#[derive(Default)]
pub(super) struct Memory {
    /// Size of the memtables in bytes after the last commit or checkpoint.
    pub bytes: AtomicUsize,
    /// Number of immutable memtables after the last commit or checkpoint.
    pub immutable_count: AtomicU64,
    /// Why the last background checkpoint failed.
    pub checkpoint_error: Mutex<Option<StoreError>>,
}

/// What [`Shared::store_stats`] reports, besides sizes.
#[derive(Default)]
pub(super) struct Counters {
    /// Counters of background work.
    pub jobs: Mutex<StoreStats>,
    /// Replaced checkpoint states and sets that may still be in use, with the time of their replacement.
    pub replaced: Mutex<Vec<(Weak<dyn Any + Send + Sync>, Duration)>>,
}

impl Shared {
    /// The state of a store that was just opened, with its only version.
    pub(crate) fn new(
        context: StoreContext,
        log: Log,
        section: StoreSection,
        version: Version,
    ) -> Arc<Shared> {
        assert!(version.immutable.is_empty(), "replay fills one memtable");
        let shared = Shared {
            context,
            log: Arc::new(log),
            incarnation: section.incarnation,
            versions: Versions {
                published_seq: watch::Sender::new(version.last_seq),
                published: ArcSwap::from_pointee(version.clone()),
                accepted: tokio::sync::Mutex::new(version),
                unpersisted: Mutex::default(),
            },
            files: StoreFiles { compacting: Default::default(), section: tokio::sync::Mutex::new(section) },
            jobs: Jobs::default(),
            space: SpaceAccount::default(),
            pacing: Pacing::default(),
            memory: Memory::default(),
            counters: Counters::default(),
            status_changed: Notify::new(),
            closed: AtomicBool::new(false),
            is_broken: AtomicBool::new(false),
        };
        if let Some(budget) = &shared.context.options.memory {
            budget.add_store();
        }
        shared.record_memory(&shared.versions.published.load());
        shared.record_space(&shared.versions.published.load());
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
            self.log.stop(settee_io::Error::Panicked { path: self.context.directory.as_path().into() });
            self.status_changed.notify_waiters();
            self.versions.published_seq.send_modify(|_| {});
        })
    }

    /// Ends background work, and the waits for later records.
    pub(crate) fn begin_close(&self) {
        self.closed.store(true, Ordering::Release);
        // A task may wait for a write that is retried until the disk has space.
        self.log.begin_close();
        self.status_changed.notify_waiters();
        self.versions.published_seq.send_modify(|_| {});
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
            budget.remove_store(*self.memory.bytes.get_mut());
        }
    }
}
