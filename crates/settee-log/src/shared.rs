//! What the log's public interface, its tasks and its completed operations share.
//!
//! The state is locked for short steps that do no I/O; a panic in one of them stops the log. Readers take no
//! lock: they load the read view and the written and persisted positions.

use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use arc_swap::ArcSwap;
use settee_io::directory::DirectorySyncs;
use settee_io::{Env, File};
use tokio::sync::{Notify, watch};

use crate::error::EditError;
use crate::manifest::{FileNumbers, ManifestState};
use crate::options::LogOptions;
use crate::read_view::ReadView;
use crate::recovery::LogLock;
use crate::segment_set::{ChunkCache, SegmentSet};
use crate::state::{LogState, PreallocatedSegment};
use crate::timeline::Timelines;
use crate::watermark::Position;

mod ending;

/// What all users of a log share: its environment, its state under one mutex, and what readers load.
pub(crate) struct Shared {
    pub env: Env,
    pub directory: PathBuf,
    pub directory_syncs: Arc<DirectorySyncs>,
    pub options: LogOptions,
    /// Whether segments are opened for direct I/O.
    pub direct: AtomicBool,
    state: Mutex<LogState>,
    /// Held while disk space is reserved, so by one task at a time.
    pub reservation: tokio::sync::Mutex<DiskReservation>,
    /// Held while the list of files is edited: while a manifest is written.
    pub manifest: tokio::sync::Mutex<ManifestState>,
    /// Those of the log; they change only while it isn't open.
    pub timelines: Timelines,
    /// Numbers of new files.
    pub file_numbers: Arc<FileNumbers>,
    /// Why it is unknown which manifest is durable: the list of files can't change any more.
    pub edit_error: OnceLock<EditError>,
    /// Keeps chunks of listed segments in memory.
    pub chunks: Option<Arc<ChunkCache>>,
    /// Held while a segment is sealed.
    pub sealing: tokio::sync::Mutex<()>,
    /// Mirrors `Segments::sealed_below`.
    pub sealed_below: watch::Sender<u32>,
    /// Replaced only while the state's lock is held.
    pub read_view: ArcSwap<ReadView>,
    /// End of the written bytes, as bits. A reader of anything below it need not look into memory.
    pub written_position: AtomicU64,
    /// Mirrors the `Seq` of `LogState::persisted`.
    pub persisted_seq: AtomicU64,
    /// Whether the file handles were released, so that reads fail.
    pub closed: AtomicBool,
    /// Notified when the log stops, when its last operation completes after that, and when an operation
    /// fails.
    pub status_changed: Notify,
    /// Notified when the timer must fire earlier.
    pub timer_moved: Arc<Notify>,
    /// Notified to retry suspended writes immediately.
    pub retry_now: Arc<Notify>,
}

/// What the log holds in its directory beyond its segments.
pub(crate) struct DiskReservation {
    /// The preallocated next segment, if there is one.
    pub next: Option<PreallocatedSegment>,
    /// The locked lock file; `None` before the directory exists, and once the log is closed.
    pub lock: Option<File>,
}

impl Shared {
    /// The shared part of a log in the state `state`, with the files `set`, of `timelines`.
    pub(crate) fn new(
        env: &Env,
        directory: &Path,
        locked: LogLock,
        options: LogOptions,
        chunks: Option<Arc<ChunkCache>>,
        (set, timelines): (SegmentSet, Timelines),
        state: LogState,
    ) -> Arc<Shared> {
        let directory_syncs = locked.directory_syncs().clone();
        let file_numbers = locked.file_numbers.clone();
        Arc::new(Shared {
            env: env.clone(),
            directory: directory.to_path_buf(),
            directory_syncs,
            options,
            direct: AtomicBool::new(options.direct),
            read_view: ArcSwap::from_pointee(ReadView::new(Arc::new(set), state.chunks())),
            written_position: AtomicU64::new(state.watermarks.written().at.bits()),
            persisted_seq: AtomicU64::new(state.watermarks.persisted().seq),
            closed: AtomicBool::new(false),
            status_changed: Notify::new(),
            timer_moved: Arc::default(),
            retry_now: Arc::default(),
            sealed_below: watch::Sender::new(state.segments.sealed_below()),
            state: Mutex::new(state),
            reservation: tokio::sync::Mutex::new(DiskReservation { next: None, lock: locked.file }),
            manifest: tokio::sync::Mutex::new(ManifestState::new(locked.manifest)),
            timelines,
            file_numbers,
            edit_error: OnceLock::new(),
            chunks,
            sealing: tokio::sync::Mutex::default(),
        })
    }

    /// End of the bytes that the operating system has accepted.
    pub(crate) fn written(&self) -> Position {
        Position::from_bits(self.written_position.load(Ordering::Acquire))
    }

    /// Locks the state.
    pub(crate) fn lock(&self) -> StateGuard<'_> {
        let was_panicking = std::thread::panicking();
        // A panic under the lock has stopped the log: see the guard.
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        StateGuard { shared: self, state: Some(state), was_panicking }
    }

    /// Publishes the current chunks to readers if they have changed.
    pub(crate) fn publish(&self, state: &mut LogState) {
        if state.take_stale() {
            let set = self.read_view.load().set.clone();
            self.read_view.store(Arc::new(ReadView::new(set, state.chunks())));
        }
    }
}

/// The state's lock. A panic while it is held leaves the state unknown, and stops the log.
pub(crate) struct StateGuard<'a> {
    shared: &'a Shared,
    /// `None` while it is being dropped.
    state: Option<MutexGuard<'a, LogState>>,
    was_panicking: bool,
}

impl Deref for StateGuard<'_> {
    type Target = LogState;

    fn deref(&self) -> &LogState {
        self.state.as_ref().expect("it is not being dropped")
    }
}

impl DerefMut for StateGuard<'_> {
    fn deref_mut(&mut self) -> &mut LogState {
        self.state.as_mut().expect("it is not being dropped")
    }
}

impl Drop for StateGuard<'_> {
    fn drop(&mut self) {
        if !self.was_panicking && std::thread::panicking() {
            let shared = self.shared;
            let released = shared.stop_locked(self, shared.panic_error());
            // Unlocks before waking the waiters.
            self.state = None;
            drop(released);
        }
    }
}
