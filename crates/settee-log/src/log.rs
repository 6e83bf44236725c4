//! The log: appending, waiting and reading.
//!
//! `append` takes one mutex, assigns the batch its position, copies it after the previous ones, and returns.
//! `state.rs` decides what is written and synced, and when; threads that change the state execute these
//! actions (`submit_loop.rs`). Readers find accepted bytes and files in an immutable view that is replaced as
//! a whole (`read_view.rs`). Disk space is reserved before bytes are accepted (`reservation.rs`).
//!
//! Invariants:
//! 1. Recovery yields a prefix of the accepted batches, each whole, and never less than what was persisted.
//! 2. After a failed write or sync no append succeeds, and no watermark moves.
//! 3. No lock is held across an await, except `reservation` and `sealing`, which readers don't take.

use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use bytes::Bytes;
use futures_util::future::{Either, select};
use settee_io::directory::DirectorySyncs;
use settee_io::{BufferPool, Env, File};
use tokio::sync::{Notify, oneshot, watch};

use crate::error::{AppendError, InvalidLimit, OpenError, ReadError, Stopped};
use crate::failpoints::Failpoint;
use crate::format::{
    BATCH_SIZE_MAX, Batch, EXTENT_SIZE_MAX, FRAME_HEADER_SIZE, FrameKind, RECORD_HEADER_SIZE, Record,
    RecordRef, SEGMENT_HEADER_SIZE, SegmentHeader,
};
use crate::read_view::{Files, ReadView};
use crate::recovery::{self, LogLock, Recovery, Replay, Start, Tail};
use crate::reservation::DiskReservation;
use crate::segment_index::{EntryRef, SegmentIndex, SegmentIndexError};
use crate::state::{AppendBlocked, LogState, Placement, SpaceRequest};
use crate::watermark::{Position, Watermark};

/// A record's update number: 1, 2, … in the order of the log. 0 is before the first record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Seq(pub u64);

/// How durable a record is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// It is in this process's memory.
    Accepted,
    /// The operating system has accepted it and all records before it: they survive the end of the process.
    Written,
    /// It and all records before it are on stable storage: they survive a power loss.
    Persisted,
}

/// Where a record is stored. It never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Location {
    /// The segment's number.
    pub segment: u32,
    /// Offset of the record in the segment, in bytes.
    pub offset: u32,
    /// The record's length in bytes.
    pub length: u32,
}

/// The result of an append: the batch's position in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Appended {
    /// The `Seq` of its first record; the others follow consecutively.
    pub first_seq: Seq,
    /// The `Seq` of its last record.
    pub last_seq: Seq,
    /// The location of each record.
    pub locations: Vec<Location>,
    /// Group number: batches with the same number are persisted by the same sync.
    pub group: u64,
}

/// Upper bound of [`LogOptions::segment_bytes_max`], since offsets have 32 bits.
pub const SEGMENT_BYTES_LIMIT: u32 = 1 << 30;

/// Options of a log.
#[derive(Debug, Clone, Copy)]
pub struct LogOptions {
    /// Largest batch in bytes; at most [`BATCH_SIZE_MAX`]. Default: that.
    pub batch_bytes_max: usize,
    /// Smallest capacity of a segment in bytes, limited by `segment_bytes_max`. The log sizes a new segment
    /// at about a sixteenth of its live bytes, and so that it holds eight batches like its first one if the
    /// log is at least half as large as those. Default: 120 KiB.
    pub segment_bytes_min: u32,
    /// Largest capacity of a segment in bytes: at least a header and two batches of `batch_bytes_max`, at
    /// most [`SEGMENT_BYTES_LIMIT`]. Default: 64 MiB.
    pub segment_bytes_max: u32,
    /// Size in bytes of the first buffer after an idle period. Buffers come from the environment's pool.
    /// Default: 64 KiB.
    pub buffer_bytes_min: usize,
    /// Largest buffer in bytes, except for batches that are larger. One write writes at most one buffer.
    /// Default: 1 MiB.
    pub buffer_bytes_max: usize,
    /// Largest number of writes in flight at once. Default: 4.
    pub writes_in_flight_max: usize,
    /// Values of at least this many bytes are written without being copied; not in direct mode, where memory
    /// must be aligned. Default: 256 KiB.
    pub bypass_bytes_min: usize,
    /// Whether segments are written with direct I/O. Default: false.
    pub direct: bool,
    /// Longest time in microseconds that a group waits for callers that have just committed and may commit
    /// again; at most half of the measured sync time. A single committer never waits. Default: 500.
    pub group_delay_us_max: u64,
    /// A group of this many bytes waits no longer. Default: 4 MiB.
    pub group_bytes_max: usize,
    /// A group of this many batches waits no longer. Default: 4096.
    pub group_writes_max: usize,
    /// Accepted bytes are written within this many milliseconds, even if no caller waits for them. Default:
    /// 50.
    pub accepted_age_ms_max: u64,
    /// Written bytes are synced within this many milliseconds, even if no caller waits for them. Default:
    /// 1000.
    pub written_age_ms_max: u64,
    /// A truncated segment's file is recycled for the next segment if it is at most this percentage of the
    /// log's size. Default: 5.
    pub spare_percent_max: u64,
    /// The fault to inject, for tests of the tests.
    #[cfg(feature = "failpoints")]
    pub failpoint: Option<Failpoint>,
}

impl Default for LogOptions {
    fn default() -> LogOptions {
        LogOptions::DEFAULT
    }
}

impl LogOptions {
    /// The default options.
    pub const DEFAULT: LogOptions = LogOptions {
        batch_bytes_max: BATCH_SIZE_MAX,
        segment_bytes_min: 120 << 10,
        segment_bytes_max: 64 << 20,
        buffer_bytes_min: 64 << 10,
        buffer_bytes_max: 1 << 20,
        writes_in_flight_max: 4,
        bypass_bytes_min: 256 << 10,
        direct: false,
        group_delay_us_max: 500,
        group_bytes_max: 4 << 20,
        group_writes_max: 4096,
        accepted_age_ms_max: 50,
        written_age_ms_max: 1_000,
        spare_percent_max: 5,
        #[cfg(feature = "failpoints")]
        failpoint: None,
    };

    /// Checks that a log can be opened with these options and a buffer pool of `buffer_pool_bytes_max` bytes.
    ///
    /// # Errors
    /// The first option found that contradicts another one or exceeds a limit of the format.
    pub fn check(&self, buffer_pool_bytes_max: usize) -> Result<(), InvalidLimit> {
        let require = |holds: bool, name, value: usize, rule: &dyn Fn() -> String| match holds {
            true => Ok(()),
            false => Err(InvalidLimit { name, value: value as u64, rule: rule() }),
        };
        let at_least = |least: usize, of: &str| format!("it must be at least {least}, {of}");
        let at_most = |most: usize, of: &str| format!("it must be at most {most}, {of}");
        let batch = self.batch_bytes_max;
        require(batch <= BATCH_SIZE_MAX, "batch_bytes_max", batch, &|| {
            at_most(BATCH_SIZE_MAX, "the largest batch of the format")
        })?;
        let (segment, least) = (self.segment_bytes_max as usize, SEGMENT_HEADER_SIZE + 2 * batch);
        let frame = FRAME_HEADER_SIZE + RECORD_HEADER_SIZE;
        require(batch >= frame, "batch_bytes_max", batch, &|| at_least(frame, "an empty record"))?;
        require(segment >= least, "segment_bytes_max", segment, &|| {
            at_least(least, "a header and two of the largest batches")
        })?;
        require(self.segment_bytes_max <= SEGMENT_BYTES_LIMIT, "segment_bytes_max", segment, &|| {
            at_most(SEGMENT_BYTES_LIMIT as usize, "the largest segment of the format")
        })?;
        let (first, largest) = (self.buffer_bytes_min, self.buffer_bytes_max);
        require(first <= largest, "buffer_bytes_min", first, &|| at_most(largest, "`buffer_bytes_max`"))?;
        let in_flight = self.writes_in_flight_max;
        require(in_flight >= 1, "writes_in_flight_max", in_flight, &|| at_least(1, "or nothing is written"))?;
        let percent = usize::try_from(self.spare_percent_max).unwrap_or(usize::MAX);
        require(percent <= 100, "spare_percent_max", percent, &|| at_most(100, "the whole log"))?;
        let buffer = BufferPool::buffer_size(largest.max(batch + SEGMENT_HEADER_SIZE)).unwrap_or(usize::MAX);
        require(buffer <= buffer_pool_bytes_max, "buffer_pool_bytes_max", buffer_pool_bytes_max, &|| {
            at_least(buffer, "the largest buffer: `buffer_bytes_max`, or what the largest batch takes")
        })
    }
}

/// Counters of a log since it was opened, and current sizes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Accepted batches.
    pub batch_count: u64,
    /// Accepted extents.
    pub extent_count: u64,
    /// Completed writes.
    pub write_count: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Syncs of segments that persisted a group.
    pub sync_count: u64,
    /// Running average of the time of a sync in microseconds.
    pub sync_us: u64,
    /// Total size in bytes of the frames in all segments.
    pub file_bytes: u64,
    /// Bytes of `file_bytes` that are padding, so that no synced block is written again.
    pub padding_bytes: u64,
    /// Bytes that are accepted and not yet written: the log's current use of memory.
    pub memory_bytes: u64,
    /// Bytes of the open segment that are written and not yet persisted.
    pub unsynced_bytes: u64,
}

/// Metadata of a segment, known without reading its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentInfo {
    /// The segment's number.
    pub number: u32,
    /// Its epoch, with which its segment index is opened: see [`SegmentIndex::open`].
    pub epoch: u32,
    /// The `Seq` of its first record, or of the next record if it has none yet.
    pub first_seq: Seq,
    /// The `Seq` of its last record so far; less than `first_seq` if it has none.
    pub last_seq: Seq,
    /// Offset in bytes where its frames end.
    pub frame_bytes: u64,
    /// Whether it has been sealed, and so has a segment index.
    pub is_sealed: bool,
}

/// A segmented append-only log in a directory of its own. It can be used from many tasks at once.
///
/// Dropping it without [`Log::close`] acts like a crash of the process: bytes that were accepted and not yet
/// written may be lost. Writes in flight still complete; until then, the directory can't be opened again
/// ([`OpenError::InUse`]).
pub struct Log {
    pub(crate) shared: Arc<Shared>,
}

/// The source of a record's bytes.
pub(crate) enum RecordSource {
    Memory(Bytes),
    File(Arc<File>),
}

pub(crate) struct Shared {
    pub env: Env,
    pub directory: PathBuf,
    pub directory_syncs: Arc<DirectorySyncs>,
    pub options: LogOptions,
    /// Whether segments are opened for direct I/O.
    pub direct: AtomicBool,
    pub log_id: [u8; 16],
    /// Grows with each opening; new segments carry it.
    pub epoch: u32,
    /// Where the log ended when it was opened.
    pub recovered: Tail,
    state: Mutex<LogState>,
    /// Held while disk space is reserved, so by one task at a time.
    pub reservation: tokio::sync::Mutex<DiskReservation>,
    /// Held while a segment is sealed.
    pub sealing: tokio::sync::Mutex<()>,
    /// Mirrors `ClosedSegments::seal_next`.
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

impl Log {
    /// Opens the log in `directory`, which the first append creates, and passes each record of each whole
    /// batch to `replay`, in order. The replayed records are persisted once this returns. If no torn tail was
    /// cut, the log continues in the last segment.
    ///
    /// Not for a log that has transferred segments ([`Log::transfer`]): it would treat their files as
    /// truncated and remove them. Use [`Log::open_after`] for that.
    ///
    /// # Errors
    /// Damage below what had been persisted, a missing segment, another format, or an I/O error. Files are
    /// changed only after all of them were found sound; then a torn tail is cut.
    ///
    /// # Panics
    /// If [`LogOptions::check`] rejects the options.
    pub async fn open(
        env: &Env,
        directory: &Path,
        options: LogOptions,
        mut replay: impl FnMut(Location, RecordRef<'_>) + Send,
    ) -> Result<(Log, Recovery), OpenError> {
        let (start, locked) = (Start::default(), recovery::lock(env, directory, 0).await?);
        Log::open_from(env, directory, options, start, locked, Replay::Records(&mut replay)).await
    }

    /// As [`Log::open`], for a caller that has the records up to `start.after` elsewhere: the later ones are
    /// passed to `replay`, in order. Sealed segments are replayed from their segment index; frames are read
    /// only of the last segment, and of segments whose index is missing, damaged, or inconsistent with the
    /// headers.
    ///
    /// Segments below `start.first_segment` don't belong to the log: they aren't read, locked or changed, and
    /// need not exist. Segments between `start.first_segment` and the oldest one that the last header names
    /// were truncated, and are removed. A caller that takes over segments therefore stores a new
    /// `first_segment` durably before it calls [`Log::transfer`].
    ///
    /// # Errors
    /// As [`Log::open`]. [`OpenError::Behind`] if the log ends before `start.after`; [`OpenError::Missing`]
    /// if there is no segment although `start` implies one.
    ///
    /// # Panics
    /// As [`Log::open`].
    pub async fn open_after(
        env: &Env,
        directory: &Path,
        options: LogOptions,
        start: Start,
        replay: impl FnMut(EntryRef<'_>) + Send,
    ) -> Result<(Log, Recovery), OpenError> {
        let locked = Log::lock(env, directory, start.first_segment).await?;
        Log::open_locked(env, directory, options, start, locked, replay).await
    }

    /// Prevents other logs from opening the directory until the result is dropped or passed to
    /// [`Log::open_locked`]. Changes nothing. For a caller that, before opening the log, reads related files
    /// that the log's current owner might still change. Segments below `first_segment` are ignored. A log
    /// without segments can't be locked, but has nothing to lose.
    ///
    /// # Errors
    /// [`OpenError::InUse`], or an I/O error.
    pub async fn lock(env: &Env, directory: &Path, first_segment: u32) -> Result<LogLock, OpenError> {
        recovery::lock(env, directory, first_segment).await
    }

    /// As [`Log::open_after`], for a log that was locked.
    ///
    /// # Errors
    /// As [`Log::open_after`].
    ///
    /// # Panics
    /// As [`Log::open`], and if the lock's first segment isn't `start.first_segment`.
    pub async fn open_locked(
        env: &Env,
        directory: &Path,
        options: LogOptions,
        start: Start,
        locked: LogLock,
        mut replay: impl FnMut(EntryRef<'_>) + Send,
    ) -> Result<(Log, Recovery), OpenError> {
        let replay = Replay::Entries(&mut replay);
        let opened = Log::open_from(env, directory, options, start, locked, replay).await?;
        // A caller that takes over segments waits until they are sealed.
        let shared = &opened.0.shared;
        shared.start_sealing(&mut shared.lock());
        Ok(opened)
    }

    async fn open_from(
        env: &Env,
        directory: &Path,
        options: LogOptions,
        start: Start,
        locked: LogLock,
        replay: Replay<'_>,
    ) -> Result<(Log, Recovery), OpenError> {
        let checked = options.check(env.buffers.stats().bytes_max);
        assert!(checked.is_ok(), "{checked:?}");
        let directory_syncs = locked.directory_syncs().clone();
        let found = recovery::recover(env, directory, &options, start, locked, replay).await?;
        if options.direct {
            for file in found.files.values().filter_map(|slot| slot.get()) {
                file.set_direct(true).await?;
            }
        }
        let end =
            Watermark { seq: found.last_seq, at: Position::new(found.tail.segment, found.tail.end as u32) };
        let mut open = found.open;
        if let Some(segment) = &mut open {
            segment.bytes_max = segment.bytes_max.max(options.segment_bytes(found.file_bytes, 0));
        }
        let state = LogState::new(options, env.buffers.clone(), end, open, found.segments);
        let shared = Arc::new(Shared {
            env: env.clone(),
            directory: directory.to_path_buf(),
            directory_syncs,
            options,
            direct: AtomicBool::new(options.direct),
            log_id: found.log_id.unwrap_or_else(|| env.random_bytes()),
            epoch: found.epoch + 1,
            recovered: found.tail,
            read_view: ArcSwap::from_pointee(ReadView::new(Arc::new(found.files), &state)),
            written_position: AtomicU64::new(end.at.bits()),
            persisted_seq: AtomicU64::new(end.seq),
            closed: AtomicBool::new(false),
            status_changed: Notify::new(),
            timer_moved: Arc::default(),
            retry_now: Arc::default(),
            sealed_below: watch::Sender::new(state.closed.seal_next),
            state: Mutex::new(state),
            reservation: tokio::sync::Mutex::default(),
            sealing: tokio::sync::Mutex::default(),
        });
        Ok((Log { shared }, found.summary))
    }

    /// Accepts a batch: assigns its position, which never changes, and starts bringing it to `stage`, for
    /// which [`Log::wait`] waits. Returns immediately, unless it has to wait for a new segment, more reserved
    /// disk space, or a buffer when the pool is empty.
    ///
    /// Dropping the future before it returns leaves the batch out as a whole.
    ///
    /// # Errors
    /// [`AppendError::TooLarge`], [`AppendError::NoSpace`] and [`AppendError::NoDescriptor`] leave the log
    /// unchanged; [`AppendError::Stopped`] is permanent.
    ///
    /// # Panics
    /// If the batch has no records.
    pub async fn append(&self, batch: &Batch, stage: Stage) -> Result<Appended, AppendError> {
        let placed = self.place(batch, FrameKind::Batch, stage).await?;
        Ok(appended(batch, &placed))
    }

    /// Accepts an extent: up to [`EXTENT_SIZE_MAX`] bytes without a `Seq`, to which a later batch refers
    /// ([`Batch::push_extents`]). It is persisted with that batch at the latest; until then recovery may lose
    /// it.
    ///
    /// # Errors
    /// As [`Log::append`].
    pub async fn append_extent(&self, value: Bytes) -> Result<Location, AppendError> {
        if value.len() > EXTENT_SIZE_MAX {
            return Err(AppendError::TooLarge { size: value.len(), max: EXTENT_SIZE_MAX });
        }
        let extent = Batch::extent(value);
        let placed = self.place(&extent, FrameKind::Extent, Stage::Accepted).await?;
        Ok(locations(&extent, &placed)[0])
    }

    /// Appends a batch and returns once it is persisted, in the caller's thread: if no other thread is
    /// writing, this one writes and syncs, without a thread switch. For callers without an executor;
    /// preparatory work (a new segment, disk space, a buffer) still runs in tasks.
    ///
    /// # Errors
    /// As [`Log::append`]. After [`AppendError::Stopped`] it is unknown whether the batch survives.
    ///
    /// # Panics
    /// In a task of an executor, which it would block, and if the batch has no records.
    pub fn append_blocking(&self, batch: &Batch) -> Result<Appended, AppendError> {
        self.check(batch)?;
        let mut buffer = None;
        let placed = loop {
            let placed = self.shared.try_place(batch, FrameKind::Batch, Stage::Persisted, &mut buffer)?;
            match placed {
                Ok(placed) => break placed,
                Err(blocked) => {
                    self.shared.submit_ready();
                    let (done, made) = oneshot::channel();
                    let (shared, request) = (self.shared.clone(), SpaceRequest::of(batch));
                    self.shared.env.spawn("log reservation", async move {
                        let _ = done.send(shared.provide(blocked, request).await);
                    });
                    let made = made.blocking_recv();
                    buffer = made.unwrap_or_else(|_| Err(self.shared.stop_reason().into()))?;
                }
            }
        };
        let appended = appended(batch, &placed);
        self.shared.wait_blocking(Watermark { seq: appended.last_seq.0, at: Position::default() })?;
        Ok(appended)
    }

    fn check(&self, batch: &Batch) -> Result<(), AppendError> {
        assert!(!batch.is_empty(), "a batch has records");
        let max = self.shared.options.batch_bytes_max;
        match batch.size() > max {
            true => Err(AppendError::TooLarge { size: batch.size(), max }),
            false => Ok(()),
        }
    }

    async fn place(&self, batch: &Batch, kind: FrameKind, stage: Stage) -> Result<Placement, AppendError> {
        self.check(batch)?;
        let mut buffer = None;
        loop {
            match self.shared.try_place(batch, kind, stage, &mut buffer)? {
                Ok(placed) => {
                    self.shared.submit_ready();
                    return Ok(placed);
                }
                Err(blocked) => {
                    self.shared.submit_ready();
                    buffer = self.shared.provide(blocked, SpaceRequest::of(batch)).await?;
                }
            }
        }
    }

    /// Returns once `seq`, which need not exist yet, has reached `stage`.
    ///
    /// # Errors
    /// The log stopped before that.
    pub async fn wait(&self, seq: Seq, stage: Stage) -> Result<(), Stopped> {
        self.shared.wait(Watermark { seq: seq.0, at: Position::default() }, stage).await
    }

    /// Returns once everything accepted before the call is persisted.
    ///
    /// # Errors
    /// The log stopped before that.
    pub async fn flush(&self) -> Result<(), Stopped> {
        self.shared.flush().await
    }

    /// Declares that records before `seq`, among those appended so far, are no longer needed, because the
    /// caller has their content elsewhere. Segments that hold only such records are removed some time after
    /// the next segment has begun, and are then not replayed; until their removal they may still be read and
    /// replayed.
    ///
    /// Extents are removed with the records before them: a caller that needs a record with extents must not
    /// truncate the last record appended before those extents, nor any later one.
    pub fn truncate_before(&self, seq: Seq) {
        let mut state = self.shared.lock();
        let seq = seq.0.min(state.accepted.seq + 1);
        state.closed.truncate_before = state.closed.truncate_before.max(seq);
    }

    /// The segments' numbers, oldest first. All but the last are closed, and are sealed in the background.
    pub fn segments(&self) -> Vec<u32> {
        self.shared.read_view.load().files.keys().copied().collect()
    }

    /// Metadata of the log's segments, oldest first.
    pub fn segment_infos(&self) -> Vec<SegmentInfo> {
        self.shared.lock().segment_infos()
    }

    /// All segments below this one are sealed, or can't be (see [`SegmentInfo::is_sealed`]), and are fully
    /// persisted: they can be transferred. A closed segment is sealed in a pause of the appends, or when too
    /// many wait for it.
    pub fn sealed_below(&self) -> u32 {
        *self.shared.sealed_below.borrow()
    }

    /// Returns [`Log::sealed_below`] as soon as it differs from `seen`. Dropping the future has no effect.
    ///
    /// # Errors
    /// The log stopped before that.
    pub async fn sealed_changed(&self, seen: u32) -> Result<u32, Stopped> {
        let mut sealed = self.shared.sealed_below.subscribe();
        let changed = pin!(sealed.wait_for(|below| *below != seen));
        match select(changed, pin!(self.shared.wait_until_stopped())).await {
            Either::Left((Ok(below), _)) => Ok(*below),
            _ => Err(self.shared.stop_reason()),
        }
    }

    /// Requests that the segments closed so far be sealed without waiting for a pause in the appends;
    /// [`Log::sealed_changed`] reports when they are. Returns the first segment that isn't among them: the
    /// open one, or the one before it if nothing has been appended since that was closed.
    pub fn seal_soon(&self) -> u32 {
        let mut state = self.shared.lock();
        let end = state.seal_end();
        state.closed.seal_soon = end;
        self.shared.start_sealing(&mut state);
        end
    }

    /// Transfers the segments below this one to the caller: they are no longer part of the log, which never
    /// removes or changes their files. The next segment's header records this.
    ///
    /// When it is opened again, the log treats them as truncated and removes them, unless
    /// [`Start::first_segment`] excludes them. So the caller first stores durably that `first_segment` will
    /// be at least `below`.
    ///
    /// Their bytes count as live when the log sizes its next segments, until [`Log::set_transferred_bytes`]
    /// corrects that.
    ///
    /// # Panics
    /// If `below` is greater than [`Log::sealed_below`].
    pub fn transfer(&self, below: u32) {
        self.shared.transfer(below);
    }

    /// Sets how many live bytes of this log are in transferred segments; the log includes them when it sizes
    /// its next segments. 0 after opening.
    pub fn set_transferred_bytes(&self, bytes: u64) {
        self.shared.lock().transferred_bytes = bytes;
    }

    /// The files of the log's current segments, for [`Log::read_in`]. Cheap.
    ///
    /// Segments that are transferred or truncated later can still be read through it, even after their files
    /// were removed. The files of other segments are released when the log is closed or dropped.
    pub fn files(&self) -> Files {
        Files(self.shared.read_view.load().files.clone())
    }

    /// The file of one of the log's segments.
    pub fn segment_file(&self, segment: u32) -> Option<Arc<File>> {
        self.shared.read_view.load().files.get(&segment)?.get()
    }

    /// The segment index of a sealed segment.
    ///
    /// # Errors
    /// [`SegmentIndexError::Absent`] if it isn't sealed (yet); otherwise as [`SegmentIndex::open`].
    pub async fn segment_index(&self, segment: u32) -> Result<SegmentIndex, SegmentIndexError> {
        let path = || recovery::segment_path(&self.shared.directory, segment);
        let file = self.segment_file(segment);
        let file = file.ok_or_else(|| SegmentIndexError::Absent { path: path() })?;
        let epoch = match SegmentHeader::decode(&file.read_at(0, SEGMENT_HEADER_SIZE).await?) {
            Ok((header, _)) => header.epoch,
            Err(_) => return Err(SegmentIndexError::Absent { path: path() }),
        };
        SegmentIndex::open(file, segment, epoch).await
    }

    /// Switches direct I/O for reads and writes on or off; possible at any time, also with operations in
    /// flight. Segments on a file system that refuses direct I/O stay as they are.
    ///
    /// # Errors
    /// An I/O error; some segments may have changed. `Closed` after [`Log::close`].
    pub async fn set_direct(&self, direct: bool) -> Result<(), settee_io::Error> {
        // While this is held, no segment is added or removed.
        let reservation = self.shared.reservation.lock().await;
        if self.shared.is_closed() {
            return Err((*self.shared.stop_reason().source).clone());
        }
        let files = self.shared.read_view.load().files.clone();
        let preallocated = reservation.next.as_ref().map(|preallocated| preallocated.file.clone());
        for file in files.values().filter_map(|slot| slot.get()).chain(preallocated) {
            file.set_direct(direct).await?;
        }
        self.shared.direct.store(direct, Ordering::Relaxed);
        self.shared.lock().set_direct(direct);
        Ok(())
    }

    /// The last `Seq` that is persisted.
    pub fn persisted(&self) -> Seq {
        Seq(self.shared.persisted_seq.load(Ordering::Acquire))
    }

    /// Reads the record at `location`: from memory if it isn't written yet, otherwise with one positional
    /// read. Takes no lock, and waits for no write, sync or buffer. Verifies the record's checksum.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn read(&self, location: Location) -> Result<Record, ReadError> {
        self.read_commit(location, None).await
    }

    /// As [`Log::read`], but a record that isn't in memory is read from `files` if they include the segment.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn read_in(&self, files: &Files, location: Location) -> Result<Record, ReadError> {
        self.read_commit(location, Some(files)).await
    }

    async fn read_commit(&self, location: Location, files: Option<&Files>) -> Result<Record, ReadError> {
        let record = self.read_record(location, files).await?;
        match record.is_extent() {
            true => Err(self.damaged(location, "it is an extent and no record")),
            false => Ok(record),
        }
    }

    /// Reads the extent at `location`, as [`Log::read`] does a record.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn read_extent(&self, location: Location) -> Result<Bytes, ReadError> {
        self.read_extent_record(location, None).await
    }

    /// Reads an extent as [`Log::read_in`] does a record.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn read_extent_in(&self, files: &Files, location: Location) -> Result<Bytes, ReadError> {
        self.read_extent_record(location, Some(files)).await
    }

    async fn read_extent_record(
        &self,
        location: Location,
        files: Option<&Files>,
    ) -> Result<Bytes, ReadError> {
        let record = self.read_record(location, files).await?;
        match record.is_extent() {
            true => Ok(record.value()),
            false => Err(self.damaged(location, "it is a record and no extent")),
        }
    }

    async fn read_record(&self, location: Location, files: Option<&Files>) -> Result<Record, ReadError> {
        if self.shared.options.is_enabled(Failpoint::ReaderWaits) {
            drop(self.shared.env.buffers.take(1).await);
        }
        let bytes = match self.find(location, files)? {
            RecordSource::Memory(bytes) => bytes,
            RecordSource::File(file) => {
                file.read_exact_at(u64::from(location.offset), location.length as usize).await?
            }
        };
        Record::decode(bytes).map_err(|what| self.damaged(location, what))
    }

    /// The record's bytes if they are in memory, otherwise the file that contains them.
    pub(crate) fn find(&self, location: Location, files: Option<&Files>) -> Result<RecordSource, ReadError> {
        let Location { segment, offset, length } = location;
        let end = offset.checked_add(length);
        let end = end.ok_or_else(|| self.damaged(location, "it ends past the largest segment"))?;
        let (start, end) = (Position::new(segment, offset), Position::new(segment, end));
        if end > self.shared.written()
            && let Some(bytes) = self.shared.read_view.load().copy(start, end)
        {
            return Ok(RecordSource::Memory(bytes));
        }
        let file = match files.and_then(|files| files.0.get(&segment)) {
            Some(slot) => slot.get(),
            None => self.segment_file(segment),
        };
        let Some(file) = file else {
            return Err(match self.shared.is_closed() {
                true => ReadError::Stopped(self.shared.stop_reason()),
                false => ReadError::NoSegment { segment },
            });
        };
        // Loaded again: the record may have been written meanwhile.
        if end > self.shared.written() {
            return Err(self.not_written(location));
        }
        Ok(RecordSource::File(file))
    }

    /// The error for a location that is beyond the written bytes and not in memory.
    fn not_written(&self, location: Location) -> ReadError {
        match self.health() {
            Err(stopped) => ReadError::Stopped(stopped),
            Ok(()) => self.damaged(location, "nothing was appended there"),
        }
    }

    pub(crate) fn damaged(&self, location: Location, what: &'static str) -> ReadError {
        let path = recovery::segment_path(&self.shared.directory, location.segment);
        ReadError::Damaged { path, offset: location.offset.into(), what }
    }

    /// Stops the log because of a failure elsewhere. A caller whose sync of the log's directory failed must
    /// call it, since no later sync covers the segment names that this one was to persist.
    pub fn stop(&self, error: settee_io::Error) {
        self.shared.stop(error);
    }

    /// Whether the log still accepts appends.
    ///
    /// # Errors
    /// Why it stopped.
    pub fn health(&self) -> Result<(), Stopped> {
        self.shared.lock().stopped.clone().map_or(Ok(()), Err)
    }

    /// Counters since it was opened, and current sizes.
    pub fn stats(&self) -> LogStats {
        let state = self.shared.lock();
        let is_open = state.written.at.segment() == state.persisted.at.segment();
        let unsynced = if is_open { state.written.at.since(state.persisted.at) } else { 0 };
        LogStats { memory_bytes: state.memory_bytes() as u64, unsynced_bytes: unsynced as u64, ..state.stats }
    }

    /// As [`Log::flush`], but returns false if a write fails for lack of disk space meanwhile; the log keeps
    /// retrying that write.
    ///
    /// # Errors
    /// The log stopped before that.
    pub async fn try_flush(&self) -> Result<bool, Stopped> {
        self.shared.try_flush().await
    }

    /// Returns once a write has failed for lack of disk space, with the I/O error; the log keeps retrying
    /// that write. Never returns while there is space.
    pub async fn wait_for_no_space(&self) -> settee_io::Error {
        (*self.shared.wait_for_no_space().await).clone()
    }

    /// Announces that the log is about to be closed: from now on a write that fails for lack of disk space
    /// isn't retried, but stops the log and fails its waiters.
    pub fn begin_close(&self) {
        self.shared.begin_closing();
    }

    /// Persists everything accepted and ends the log; later appends and reads fail. Returns when no operation
    /// is in flight; then the directory can be opened again.
    ///
    /// # Errors
    /// The log stopped before all of it was persisted, or the disk had no space for it; the log has ended
    /// nevertheless.
    pub async fn close(&self) -> Result<(), Stopped> {
        self.begin_close();
        let flushed = self.flush().await;
        self.shared.end();
        self.shared.wait_for_operations().await;
        let mut reservation = self.shared.reservation.lock().await;
        let _sealing = self.shared.sealing.lock().await;
        if let Err(error) = self.shared.remove_preallocated(&mut reservation).await {
            tracing::warn!(
                %error, directory = %self.shared.directory.display(),
                "the preallocated segment could not be removed"
            );
        }
        self.shared.release_files();
        flushed
    }
}

/// Reads the record or extent of `length` bytes at `offset` of any file, with one positional read, and
/// verifies its checksum. For files that contain records in the log's format: a transferred segment, or a
/// file into which records were copied ([`Record::bytes`]).
///
/// # Errors
/// [`ReadError::Damaged`] if there is no whole record of that length; or an I/O error.
pub async fn read_record(file: &File, offset: u64, length: u32) -> Result<Record, ReadError> {
    let bytes = file.read_exact_at(offset, length as usize).await?;
    let damaged = |what| ReadError::Damaged { path: file.path().to_path_buf(), offset, what };
    Record::decode(bytes).map_err(damaged)
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

impl Drop for Log {
    fn drop(&mut self) {
        self.shared.end();
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Handles in [`Files`] that outlive the log don't keep the directory locked.
        self.read_view.load().files.values().for_each(|slot| slot.clear());
    }
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log").field("directory", &self.shared.directory).finish_non_exhaustive()
    }
}

fn appended(batch: &Batch, placed: &Placement) -> Appended {
    let last_seq = placed.first_seq + batch.len() as u64 - 1;
    let (first_seq, group) = (Seq(placed.first_seq), placed.group);
    Appended { first_seq, last_seq: Seq(last_seq), locations: locations(batch, placed), group }
}

fn locations(batch: &Batch, placed: &Placement) -> Vec<Location> {
    let locate = |range: std::ops::Range<u32>| Location {
        segment: placed.at.segment(),
        offset: placed.at.offset() + range.start,
        length: range.end - range.start,
    };
    batch.ranges().map(locate).collect()
}

impl Shared {
    /// End of the bytes that the operating system has accepted.
    fn written(&self) -> Position {
        Position::from_bits(self.written_position.load(Ordering::Acquire))
    }

    pub(crate) fn lock(&self) -> StateGuard<'_> {
        let was_panicking = std::thread::panicking();
        // A panic under the lock has stopped the log: see the guard.
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        StateGuard { shared: self, state: Some(state), was_panicking }
    }

    /// Publishes the current chunks to readers if they have changed.
    pub(crate) fn publish(&self, state: &mut LogState) {
        if std::mem::take(&mut state.read_view_is_stale) {
            let files = self.read_view.load().files.clone();
            self.read_view.store(Arc::new(ReadView::new(files, state)));
        }
    }

    /// Accepts a frame if nothing blocks it.
    fn try_place(
        self: &Arc<Self>,
        batch: &Batch,
        kind: FrameKind,
        stage: Stage,
        buffer: &mut Option<settee_io::TailBuffer>,
    ) -> Result<Result<Placement, AppendBlocked>, Stopped> {
        let mut state = self.lock();
        if let Some(stopped) = &state.stopped {
            return Err(stopped.clone());
        }
        let placed = state.accept(batch, kind, buffer);
        self.publish(&mut state);
        if placed.is_ok() {
            match stage {
                Stage::Accepted => state.start_age(|| self.env.clock.now()),
                Stage::Written => state.want_written(),
                Stage::Persisted => state.want_persisted(),
            }
        }
        // Also when disk space is missing: there may be files to remove.
        self.run_background_jobs(&mut state);
        Ok(placed)
    }
}
