//! The log: appending, waiting and reading.
//!
//! `append` takes one mutex to give a batch its place and to copy it behind the others, and
//! returns at once. What has to be written and synced, and when, `state.rs` decides; whoever
//! changes the state carries it out (`drive.rs`). Readers see accepted bytes and files through a
//! view that is replaced whole (`view.rs`). Room on the disk is reserved before bytes are
//! accepted (`room.rs`).
//!
//! Invariants:
//! 1. Recovery yields a prefix of the accepted batches, each whole, and never less than what
//!    was persisted.
//! 2. After a failed write or sync no append succeeds, and no mark moves.
//! 3. No lock is held across an await, but for `room`, which readers don't take.

use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use bytes::Bytes;
use futures_util::future::{Either, select};
use settee_io::folder::DirectorySyncs;
use settee_io::{BufferPool, Env, File};
use tokio::sync::{Notify, oneshot, watch};

use crate::directory::{Directory, DirectoryError, EntryRef};
use crate::error::{AppendError, InvalidLimit, OpenError, ReadError, Stopped};
use crate::format::{
    BATCH_SIZE_MAX, Batch, EXTENT_SIZE_MAX, FRAME_HEADER_SIZE, FrameKind, RECORD_HEADER_SIZE, Record,
    RecordRef, SEGMENT_HEADER_SIZE, SegmentHeader,
};
use crate::mark::{Mark, Position};
use crate::planted::Planted;
use crate::recovery::{self, Locked, Recovery, Replay, Start, Tail};
use crate::room::Room;
use crate::state::{Claim, Lack, Placed, State};
use crate::view::{Files, View};

/// A record's place in the order of the log: 1, 2, … 0 stands before the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Seq(pub u64);

/// How far a record has got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// It is in our memory.
    Accepted,
    /// It is in the system's hands, and so is all before it: it survives the end of the process.
    Written,
    /// It is on stable storage, and so is all before it: it survives a power loss.
    Persisted,
}

/// Where a record lies: it never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Location {
    /// The segment's number.
    pub segment: u32,
    /// The record's first byte in the segment.
    pub offset: u32,
    /// Its length in bytes.
    pub length: u32,
}

/// A batch's place, told at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Appended {
    /// The `Seq` of its first record; the others follow.
    pub first_seq: Seq,
    /// The `Seq` of its last record.
    pub last_seq: Seq,
    /// Where each record lies.
    pub locations: Vec<Location>,
    /// Batches with the same number become persisted by the same sync.
    pub group: u64,
}

/// The most that [`LogOptions::segment_bytes_max`] may be: offsets have 32 bits.
pub const SEGMENT_BYTES_LIMIT: u32 = 1 << 30;

/// The limits of a log.
#[derive(Debug, Clone, Copy)]
pub struct LogOptions {
    /// Largest batch in bytes; at most [`BATCH_SIZE_MAX`].
    pub batch_bytes_max: usize,
    /// A segment takes about a sixteenth of the log's live bytes: at least this many bytes (but no
    /// more than the maximum), and room for eight batches like its first, where the log has half of that,
    pub segment_bytes_min: u32,
    /// and at most this many; at least a header, two of the largest batches and a reserve, at
    /// most [`SEGMENT_BYTES_LIMIT`].
    pub segment_bytes_max: u32,
    /// The first buffer after a pause, in bytes. Buffers come from the environment's pool.
    pub buffer_bytes_min: usize,
    /// The largest buffer in bytes, but for batches that are larger. It is what one write takes.
    pub buffer_bytes_max: usize,
    /// Writes in flight at once.
    pub writes_in_flight_max: usize,
    /// A value of at least this many bytes is written from where it is, without a copy. Not in
    /// direct mode, where memory must be aligned.
    pub bypass_bytes_min: usize,
    /// Whether writes are aligned for direct I/O, and the segments' files opened for it.
    pub direct: bool,
    /// The longest that a group waits, in microseconds, for those who have just committed and
    /// may come again; it is half of a measured sync at most. A lone committer never waits.
    pub group_delay_us_max: u64,
    /// A group of this many bytes waits no longer.
    pub group_bytes_max: usize,
    /// A group of this many batches waits no longer.
    pub group_writes_max: usize,
    /// What is accepted is written within this time, though nobody waits for it.
    pub accepted_age_ms_max: u64,
    /// What is written is synced within this time, though nobody waits for it.
    pub written_age_ms_max: u64,
    /// A segment that was forgotten is kept for the next one where it takes at most this many
    /// hundredths of the log.
    pub spare_percent_max: u64,
    /// What is to go wrong, for tests of the tests.
    #[cfg(feature = "planted-faults")]
    pub planted: Option<Planted>,
}

impl Default for LogOptions {
    fn default() -> LogOptions {
        LogOptions::DEFAULT
    }
}

impl LogOptions {
    /// The defaults.
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
        #[cfg(feature = "planted-faults")]
        planted: None,
    };

    /// Whether a log can be opened with these limits where the environment's pool of buffers holds
    /// `buffer_pool_bytes_max` bytes.
    ///
    /// # Errors
    /// The first limit found that contradicts another, or what the format allows.
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
        let spare = usize::try_from(self.spare_percent_max).unwrap_or(usize::MAX);
        require(spare <= 100, "spare_percent_max", spare, &|| at_most(100, "the whole log"))?;
        let buffer = BufferPool::buffer_size(largest.max(batch + SEGMENT_HEADER_SIZE)).unwrap_or(usize::MAX);
        require(buffer <= buffer_pool_bytes_max, "buffer_pool_bytes_max", buffer_pool_bytes_max, &|| {
            at_least(buffer, "the largest buffer: `buffer_bytes_max`, or what the largest batch takes")
        })
    }
}

/// What a log has done since it was opened, and where it stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Batches accepted.
    pub batch_count: u64,
    /// Extents accepted.
    pub extent_count: u64,
    /// Writes handed to the system.
    pub write_count: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Syncs of segments that carried a group.
    pub sync_count: u64,
    /// What a sync takes, in microseconds: a running average.
    pub sync_us: u64,
    /// Bytes that the segments' frames take, the oldest included.
    pub file_bytes: u64,
    /// Of these, what was left empty so that no synced block is written again.
    pub padding_bytes: u64,
    /// Bytes accepted and not yet written: what is in memory now.
    pub memory_bytes: u64,
    /// Bytes written and not yet persisted, of the open segment.
    pub unsynced_bytes: u64,
}

/// What a log knows of one of its segments, without looking into the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentInfo {
    /// Its number.
    pub number: u32,
    /// Its epoch, by which its directory is opened: see [`Directory::open`].
    pub epoch: u32,
    /// The `Seq` of the first commit that was, or will be, put there.
    pub first_seq: Seq,
    /// The `Seq` of the last commit so far; smaller than the first where there is none.
    pub last_seq: Seq,
    /// Where its frames end, in bytes from the file's first.
    pub frame_bytes: u64,
    /// It was sealed: it has a directory.
    pub is_sealed: bool,
}

/// A segmented append-only log in a folder of its own. Used from many tasks at once.
///
/// Dropping it without [`Log::close`] is like a crash of the process: what was accepted and
/// not yet written may be lost. But the process goes on, and so do writes in flight: until they have
/// ended, the folder can't be opened again ([`OpenError::InUse`]).
pub struct Log {
    pub(crate) shared: Arc<Shared>,
}

/// Where a record's bytes are.
pub(crate) enum Found {
    Memory(Bytes),
    File(Arc<File>),
}

pub(crate) struct Shared {
    pub env: Env,
    pub folder: PathBuf,
    pub directory_syncs: Arc<DirectorySyncs>,
    pub options: LogOptions,
    /// Whether segments' files are opened for direct I/O.
    pub direct: AtomicBool,
    pub log_id: [u8; 16],
    /// Grows with every opening; segments made now carry it.
    pub epoch: u32,
    /// Where the log ended when it was opened.
    pub recovered: Tail,
    state: Mutex<State>,
    /// Taken by who makes room: one at a time.
    pub room: tokio::sync::Mutex<Room>,
    /// Taken by who seals a segment.
    pub sealing: tokio::sync::Mutex<()>,
    /// Mirrors `Left::seal_next`.
    pub sealed_below: watch::Sender<u32>,
    /// Replaced only under the state's lock.
    pub view: ArcSwap<View>,
    /// The end of what is written, in bits: readers of anything below need not look into memory.
    pub written_position: AtomicU64,
    /// Mirrors the `Seq` of `State::persisted`.
    pub persisted_seq: AtomicU64,
    /// Its files were given up: reads have none.
    pub closed: AtomicBool,
    /// Told when the log ends, and when its last operation does after that.
    pub ended: Notify,
    /// Told when the timer is to look earlier than it meant to.
    pub timer_moved: Arc<Notify>,
    /// Told when what waits to be written again is to be tried at once.
    pub again: Arc<Notify>,
}

impl Log {
    /// Opens the log in `folder`, creating it with the first append, and hands every record of
    /// every whole batch to `replay`, in order. What it hands over is persisted once this
    /// returns. Where nothing had to be cut it goes on in the last segment.
    ///
    /// Not for a log that has handed over segments ([`Log::hand_over`]): their files would count as
    /// forgotten, and be removed. It is opened by [`Log::open_after`].
    ///
    /// # Errors
    /// Damage below what had been persisted, a missing segment, another format, or what the
    /// system says. Files are changed only after everything was found sound: a torn tail is cut.
    ///
    /// # Panics
    /// Where [`LogOptions::check`] refuses the options.
    pub async fn open(
        env: &Env,
        folder: &Path,
        options: LogOptions,
        mut replay: impl FnMut(Location, RecordRef<'_>) + Send,
    ) -> Result<(Log, Recovery), OpenError> {
        let (start, locked) = (Start::default(), recovery::lock(env, folder, 0).await?);
        Log::open_from(env, folder, options, start, locked, Replay::Records(&mut replay)).await
    }

    /// As [`Log::open`], for who has the log's records up to `start.after` elsewhere: those that
    /// follow are handed to `replay`, in order. What was sealed is told by its directory: the frames
    /// are read of the last segment alone, and of those whose directory is missing, damaged, or not
    /// what the headers say.
    ///
    /// Segments below `start.first_segment` are not the log's: they aren't looked at, locked or
    /// changed, and needn't be there. Those between it and the oldest that the last header names
    /// were forgotten, and are removed: whoever takes segments over writes down a new
    /// `first_segment`, for good, before it calls [`Log::hand_over`].
    ///
    /// # Errors
    /// As [`Log::open`]. [`OpenError::Behind`] where the log ends before `start.after`, and
    /// [`OpenError::Missing`] where there is no segment though `start` says that there was one.
    ///
    /// # Panics
    /// As [`Log::open`].
    pub async fn open_after(
        env: &Env,
        folder: &Path,
        options: LogOptions,
        start: Start,
        replay: impl FnMut(EntryRef<'_>) + Send,
    ) -> Result<(Log, Recovery), OpenError> {
        let locked = Log::lock(env, folder, start.first_segment).await?;
        Log::open_locked(env, folder, options, start, locked, replay).await
    }

    /// Keeps every other log out of the folder until what is returned is dropped, or given to
    /// [`Log::open_locked`]; changes nothing. For who reads what belongs to the log, before it is
    /// opened, and may be changed by whoever has the log now. Segments below `first_segment` are not
    /// looked at. A log without segments can't be locked: it has none to lose.
    ///
    /// # Errors
    /// [`OpenError::InUse`], or what the system says.
    pub async fn lock(env: &Env, folder: &Path, first_segment: u32) -> Result<Locked, OpenError> {
        recovery::lock(env, folder, first_segment).await
    }

    /// As [`Log::open_after`], of a log that was locked.
    ///
    /// # Errors
    /// As [`Log::open_after`].
    ///
    /// # Panics
    /// As [`Log::open`]; and where it was locked from another segment on than `start.first_segment`.
    pub async fn open_locked(
        env: &Env,
        folder: &Path,
        options: LogOptions,
        start: Start,
        locked: Locked,
        mut replay: impl FnMut(EntryRef<'_>) + Send,
    ) -> Result<(Log, Recovery), OpenError> {
        let replay = Replay::Entries(&mut replay);
        let opened = Log::open_from(env, folder, options, start, locked, replay).await?;
        // Whoever takes segments over waits for their directories.
        let shared = &opened.0.shared;
        shared.start_sealing(&mut shared.lock());
        Ok(opened)
    }

    async fn open_from(
        env: &Env,
        folder: &Path,
        options: LogOptions,
        start: Start,
        locked: Locked,
        replay: Replay<'_>,
    ) -> Result<(Log, Recovery), OpenError> {
        let checked = options.check(env.buffers.stats().bytes_max);
        assert!(checked.is_ok(), "{checked:?}");
        let directory_syncs = locked.directory_syncs().clone();
        let found = recovery::recover(env, folder, &options, start, locked, replay).await?;
        if options.direct {
            for file in found.files.values().filter_map(|slot| slot.get()) {
                file.set_direct(true).await?;
            }
        }
        let end = Mark { seq: found.last_seq, at: Position::new(found.tail.segment, found.tail.end as u32) };
        let mut open = found.open;
        if let Some(segment) = &mut open {
            segment.bytes_max = segment.bytes_max.max(options.segment_bytes(found.file_bytes, 0));
        }
        let state = State::new(options, env.buffers.clone(), end, open, found.segments);
        let shared = Arc::new(Shared {
            env: env.clone(),
            folder: folder.to_path_buf(),
            directory_syncs,
            options,
            direct: AtomicBool::new(options.direct),
            log_id: found.log_id.unwrap_or_else(|| env.random_bytes()),
            epoch: found.epoch + 1,
            recovered: found.tail,
            view: ArcSwap::from_pointee(View::new(Arc::new(found.files), &state)),
            written_position: AtomicU64::new(end.at.bits()),
            persisted_seq: AtomicU64::new(end.seq),
            closed: AtomicBool::new(false),
            ended: Notify::new(),
            timer_moved: Arc::default(),
            again: Arc::default(),
            sealed_below: watch::Sender::new(state.left.seal_next),
            state: Mutex::new(state),
            room: tokio::sync::Mutex::default(),
            sealing: tokio::sync::Mutex::default(),
        });
        Ok((Log { shared }, found.summary))
    }

    /// Accepts a batch: it gets its place in the order, which never changes, and is brought as
    /// far as `stage`, which [`Log::wait`] waits for. Returns at once, unless room must be made
    /// first: a new segment, more of this one reserved, or a buffer, where the pool has none.
    ///
    /// Dropping the future before it returns leaves the batch out, whole.
    ///
    /// # Errors
    /// [`AppendError::TooLarge`] and [`AppendError::NoSpace`] leave the log as it was;
    /// [`AppendError::Stopped`] is for good.
    ///
    /// # Panics
    /// Where the batch has no records.
    pub async fn append(&self, batch: &Batch, stage: Stage) -> Result<Appended, AppendError> {
        let placed = self.place(batch, FrameKind::Batch, stage).await?;
        Ok(appended(batch, &placed))
    }

    /// Accepts an extent: bytes without a `Seq`, up to [`EXTENT_SIZE_MAX`] of them, to which a
    /// batch that is appended later refers ([`Batch::push_extents`]). It is persisted with that
    /// batch at the latest; until then recovery may lose it.
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

    /// Appends a batch and returns once it is persisted, in the caller's thread: where nobody
    /// else is at work, it writes and syncs by itself, without a hand-over. For users without an
    /// executor; what must be made first (a segment, room, a buffer) is still left to tasks.
    ///
    /// # Errors
    /// As [`Log::append`]. After [`AppendError::Stopped`] it is unknown whether the batch
    /// survives.
    ///
    /// # Panics
    /// In a task of an executor, which it would hold up, and where the batch has no records.
    pub fn append_blocking(&self, batch: &Batch) -> Result<Appended, AppendError> {
        self.check(batch)?;
        let mut buffer = None;
        let placed = loop {
            let placed = self.shared.try_place(batch, FrameKind::Batch, Stage::Persisted, &mut buffer)?;
            match placed {
                Ok(placed) => break placed,
                Err(lack) => {
                    self.shared.drive();
                    let (done, made) = oneshot::channel();
                    let (shared, claim) = (self.shared.clone(), Claim::of(batch));
                    self.shared.env.spawn("log room", async move {
                        let _ = done.send(shared.make(lack, claim).await);
                    });
                    let made = made.blocking_recv();
                    buffer = made.unwrap_or_else(|_| Err(self.shared.why_stopped().into()))?;
                }
            }
        };
        let appended = appended(batch, &placed);
        self.shared.wait_blocking(Mark { seq: appended.last_seq.0, at: Position::default() })?;
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

    async fn place(&self, batch: &Batch, kind: FrameKind, stage: Stage) -> Result<Placed, AppendError> {
        self.check(batch)?;
        let mut buffer = None;
        loop {
            match self.shared.try_place(batch, kind, stage, &mut buffer)? {
                Ok(placed) => {
                    self.shared.drive();
                    return Ok(placed);
                }
                Err(lack) => {
                    self.shared.drive();
                    buffer = self.shared.make(lack, Claim::of(batch)).await?;
                }
            }
        }
    }

    /// Returns once `seq`, which need not exist yet, has got as far as `stage`.
    ///
    /// # Errors
    /// The log stopped before.
    pub async fn wait(&self, seq: Seq, stage: Stage) -> Result<(), Stopped> {
        self.shared.wait(Mark { seq: seq.0, at: Position::default() }, stage).await
    }

    /// A barrier: returns once everything accepted before the call is persisted.
    ///
    /// # Errors
    /// The log stopped before all of it was.
    pub async fn flush(&self) -> Result<(), Stopped> {
        self.shared.flush().await
    }

    /// Says that no record before `seq`, of those appended so far, is needed any more, since what it
    /// said stands elsewhere.
    /// Segments that hold such records alone go some time after the next one has begun, and are
    /// not replayed then; until that they may still be read, and replayed.
    ///
    /// Extents go with the records that stand before them: who needs a record that refers to
    /// extents forgets nothing from the last record on that was appended before these.
    pub fn forget_before(&self, seq: Seq) {
        let mut state = self.shared.lock();
        let seq = seq.0.min(state.accepted.seq + 1);
        state.left.forget_before = state.left.forget_before.max(seq);
    }

    /// The segments' numbers, oldest first. All but the last were left; they are sealed, one after
    /// another, while the log goes on.
    pub fn segments(&self) -> Vec<u32> {
        self.shared.view.load().files.keys().copied().collect()
    }

    /// What is known of the log's segments, oldest first.
    pub fn known_segments(&self) -> Vec<SegmentInfo> {
        self.shared.lock().segment_infos()
    }

    /// All segments below this one have been sealed, or can't be ([`SegmentInfo::is_sealed`] tells),
    /// and all that they hold is persisted: they may be handed over. A segment that was left is
    /// sealed in a pause of the appends, or once some others wait for it.
    pub fn sealed_below(&self) -> u32 {
        *self.shared.sealed_below.borrow()
    }

    /// Returns [`Log::sealed_below`] as soon as it isn't `seen` any more. Dropping the future
    /// changes nothing.
    ///
    /// # Errors
    /// The log stopped before.
    pub async fn sealed_changed(&self, seen: u32) -> Result<u32, Stopped> {
        let mut sealed = self.shared.sealed_below.subscribe();
        let changed = pin!(sealed.wait_for(|below| *below != seen));
        match select(changed, pin!(self.shared.ends())).await {
            Either::Left((Ok(below), _)) => Ok(*below),
            _ => Err(self.shared.why_stopped()),
        }
    }

    /// Asks for the segments that were left so far to be sealed without waiting for a pause in the
    /// appends; [`Log::sealed_changed`] tells when they are. Returns the first that isn't among them:
    /// the open one, or the one before where nothing has been appended since that was left.
    pub fn seal_soon(&self) -> u32 {
        let mut state = self.shared.lock();
        let end = state.seal_end();
        state.left.seal_soon = end;
        self.shared.start_sealing(&mut state);
        end
    }

    /// Gives the segments below this one to the caller: the log doesn't know of them any more, and
    /// never removes or changes their files. The next segment's header says so.
    ///
    /// At the next opening the log finds them to be forgotten, and removes them, unless
    /// [`Start::first_segment`] is past them: so the caller first sees to it, for good, that it will
    /// be `below`, at least.
    ///
    /// Their bytes count as live when the log sizes its next segments, until
    /// [`Log::set_bytes_elsewhere`] tells better.
    ///
    /// # Panics
    /// Where `below` is past [`Log::sealed_below`].
    pub fn hand_over(&self, below: u32) {
        self.shared.hand_over(below);
    }

    /// Says how many live bytes of this log lie in segments that were handed over: the next
    /// segments' sizes follow from these as well. 0 after opening.
    pub fn set_bytes_elsewhere(&self, bytes: u64) {
        self.shared.lock().bytes_elsewhere = bytes;
    }

    /// The files of the segments that the log has now, for [`Log::read_in`]. Cheap.
    ///
    /// What was handed over or forgotten since can still be read there, also when its file was
    /// removed. Of the other segments' files the log lets go when it is closed or dropped.
    pub fn files(&self) -> Files {
        Files(self.shared.view.load().files.clone())
    }

    /// The file of one of the log's segments.
    pub fn segment_file(&self, segment: u32) -> Option<Arc<File>> {
        self.shared.view.load().files.get(&segment)?.get()
    }

    /// The directory of a segment that was sealed.
    ///
    /// # Errors
    /// [`DirectoryError::Absent`] where it isn't sealed, or not yet; else as [`Directory::open`].
    pub async fn directory(&self, segment: u32) -> Result<Directory, DirectoryError> {
        let path = || recovery::segment_path(&self.shared.folder, segment);
        let file = self.segment_file(segment);
        let file = file.ok_or_else(|| DirectoryError::Absent { path: path() })?;
        let epoch = match SegmentHeader::decode(&file.read_at(0, SEGMENT_HEADER_SIZE).await?) {
            Ok((header, _)) => header.epoch,
            Err(_) => return Err(DirectoryError::Absent { path: path() }),
        };
        Directory::open(file, segment, epoch).await
    }

    /// Reads and writes with direct I/O from here on, or no longer; at any time, whatever is under
    /// way. Segments on a file system that refuses stay as they are.
    ///
    /// # Errors
    /// What the system says; some segments may have changed. `Closed` after [`Log::close`].
    pub async fn set_direct(&self, direct: bool) -> Result<(), settee_io::Error> {
        // No segment comes or goes meanwhile.
        let room = self.shared.room.lock().await;
        if self.shared.is_closed() {
            return Err((*self.shared.why_stopped().source).clone());
        }
        let files = self.shared.view.load().files.clone();
        let spare = room.next.as_ref().map(|spare| spare.file.clone());
        for file in files.values().filter_map(|slot| slot.get()).chain(spare) {
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

    /// Reads the record at `location`: from memory where it isn't written yet, otherwise by one
    /// positional read. Takes no lock, and waits for no write, no sync and no buffer. The
    /// record's checksum is verified.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn read(&self, location: Location) -> Result<Record, ReadError> {
        self.read_commit(location, None).await
    }

    /// As [`Log::read`], but what isn't in memory is read from `files`, where the segment is among
    /// them.
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

    /// As [`Log::read_in`], an extent.
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
        if self.shared.options.is_planted(Planted::ReaderWaits) {
            drop(self.shared.env.buffers.take(1).await);
        }
        let bytes = match self.find(location, files)? {
            Found::Memory(bytes) => bytes,
            Found::File(file) => {
                file.read_exact_at(u64::from(location.offset), location.length as usize).await?
            }
        };
        Record::decode(bytes).map_err(|what| self.damaged(location, what))
    }

    /// The record's bytes, where they are in memory; else the file that has them.
    pub(crate) fn find(&self, location: Location, files: Option<&Files>) -> Result<Found, ReadError> {
        let Location { segment, offset, length } = location;
        let end = offset.checked_add(length);
        let end = end.ok_or_else(|| self.damaged(location, "it ends past the largest segment"))?;
        let (start, end) = (Position::new(segment, offset), Position::new(segment, end));
        if end > self.shared.written()
            && let Some(bytes) = self.shared.view.load().copy(start, end)
        {
            return Ok(Found::Memory(bytes));
        }
        let file = match files.and_then(|files| files.0.get(&segment)) {
            Some(slot) => slot.get(),
            None => self.segment_file(segment),
        };
        let Some(file) = file else {
            return Err(match self.shared.is_closed() {
                true => ReadError::Stopped(self.shared.why_stopped()),
                false => ReadError::NoSegment { segment },
            });
        };
        // Looked up again: it may have been written meanwhile.
        if end > self.shared.written() {
            return Err(self.not_written(location));
        }
        Ok(Found::File(file))
    }

    /// Why there is nothing at a place behind all that is written, nor in memory.
    fn not_written(&self, location: Location) -> ReadError {
        match self.health() {
            Err(stopped) => ReadError::Stopped(stopped),
            Ok(()) => self.damaged(location, "nothing was appended there"),
        }
    }

    pub(crate) fn damaged(&self, location: Location, what: &'static str) -> ReadError {
        let path = recovery::segment_path(&self.shared.folder, location.segment);
        ReadError::Damaged { path, offset: location.offset.into(), what }
    }

    /// Stops the log for what failed elsewhere: who syncs its folder and is refused tells it, since
    /// no later sync covers the segments' names that this one was to.
    pub fn stop(&self, error: settee_io::Error) {
        self.shared.stop(error);
    }

    /// Whether it still takes appends; otherwise why not.
    ///
    /// # Errors
    /// Why it stopped.
    pub fn health(&self) -> Result<(), Stopped> {
        self.shared.lock().stopped.clone().map_or(Ok(()), Err)
    }

    /// Counters since it was opened, and where it stands.
    pub fn stats(&self) -> LogStats {
        let state = self.shared.lock();
        let is_open = state.written.at.segment() == state.persisted.at.segment();
        let unsynced = if is_open { state.written.at.since(state.persisted.at) } else { 0 };
        LogStats { memory_bytes: state.memory_bytes() as u64, unsynced_bytes: unsynced as u64, ..state.stats }
    }

    /// As [`Log::flush`], but returns false where a write finds no room on the disk meanwhile: it is
    /// tried again, however long that takes.
    ///
    /// # Errors
    /// The log stopped before.
    pub async fn try_flush(&self) -> Result<bool, Stopped> {
        self.shared.try_flush().await
    }

    /// Returns once a write has found no room on the disk, with what the system said of it: it is tried
    /// again, however long that takes. Never returns while there is room.
    pub async fn finds_no_room(&self) -> settee_io::Error {
        (*self.shared.finds_no_room().await).clone()
    }

    /// Says that the log is about to be closed: a write that finds no room on the disk is not tried again
    /// any more, but stops the log, and whoever waits for it is told.
    pub fn begin_close(&self) {
        self.shared.begin_closing();
    }

    /// Persists everything accepted and ends the log; later appends and reads are refused. Returns
    /// when nothing is under way any more: then the folder may be opened again.
    ///
    /// # Errors
    /// The log stopped before all of it was persisted, or there was no room on the disk for it; it has
    /// ended all the same.
    pub async fn close(&self) -> Result<(), Stopped> {
        self.begin_close();
        let flushed = self.flush().await;
        self.shared.end();
        self.shared.wait_for_operations().await;
        let mut room = self.shared.room.lock().await;
        let _sealing = self.shared.sealing.lock().await;
        if let Err(error) = self.shared.give_up_spare(&mut room).await {
            tracing::warn!(%error, folder = %self.shared.folder.display(), "a segment made ahead stays");
        }
        self.shared.let_go_of_files();
        flushed
    }
}

/// Reads the record, or the extent, that lies at `offset` and takes `length` bytes of any file, by one
/// positional read, and checks it. For files that hold records as a log's segment does: one that was
/// handed over, or one into which records were copied ([`Record::bytes`]).
///
/// # Errors
/// [`ReadError::Damaged`] where no whole record of that length lies there; or what the system says.
pub async fn read_record(file: &File, offset: u64, length: u32) -> Result<Record, ReadError> {
    let bytes = file.read_exact_at(offset, length as usize).await?;
    let damaged = |what| ReadError::Damaged { path: file.path().to_path_buf(), offset, what };
    Record::decode(bytes).map_err(damaged)
}

/// The state's lock. A panic under it leaves a state that nobody can tell, and stops the log.
pub(crate) struct StateGuard<'a> {
    shared: &'a Shared,
    /// None once it is being dropped.
    state: Option<MutexGuard<'a, State>>,
    was_panicking: bool,
}

impl Deref for StateGuard<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        self.state.as_ref().expect("it is not being dropped")
    }
}

impl DerefMut for StateGuard<'_> {
    fn deref_mut(&mut self) -> &mut State {
        self.state.as_mut().expect("it is not being dropped")
    }
}

impl Drop for StateGuard<'_> {
    fn drop(&mut self) {
        if !self.was_panicking && std::thread::panicking() {
            let shared = self.shared;
            let held = shared.stop_locked(self, shared.panicked());
            // Wakes the waiters, without the lock.
            self.state = None;
            drop(held);
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
        // Whoever has them still ([`Files`]) doesn't keep the folder from being opened again.
        self.view.load().files.values().for_each(|slot| slot.let_go());
    }
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log").field("folder", &self.shared.folder).finish_non_exhaustive()
    }
}

fn appended(batch: &Batch, placed: &Placed) -> Appended {
    let last_seq = placed.first_seq + batch.len() as u64 - 1;
    let (first_seq, group) = (Seq(placed.first_seq), placed.group);
    Appended { first_seq, last_seq: Seq(last_seq), locations: locations(batch, placed), group }
}

fn locations(batch: &Batch, placed: &Placed) -> Vec<Location> {
    let locate = |range: std::ops::Range<u32>| Location {
        segment: placed.at.segment(),
        offset: placed.at.offset() + range.start,
        length: range.end - range.start,
    };
    batch.ranges().map(locate).collect()
}

impl Shared {
    /// Up to where all is in the system's hands.
    fn written(&self) -> Position {
        Position::from_bits(self.written_position.load(Ordering::Acquire))
    }

    pub(crate) fn lock(&self) -> StateGuard<'_> {
        let was_panicking = std::thread::panicking();
        // A panic under the lock has stopped the log: see the guard.
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        StateGuard { shared: self, state: Some(state), was_panicking }
    }

    /// Shows readers the chunks that there are, where these have changed.
    pub(crate) fn publish(&self, state: &mut State) {
        if std::mem::take(&mut state.view_is_old) {
            let files = self.view.load().files.clone();
            self.view.store(Arc::new(View::new(files, state)));
        }
    }

    /// Accepts a frame where nothing has to be made first.
    fn try_place(
        self: &Arc<Self>,
        batch: &Batch,
        kind: FrameKind,
        stage: Stage,
        buffer: &mut Option<settee_io::TailBuffer>,
    ) -> Result<Result<Placed, Lack>, Stopped> {
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
        // Also where it found no room: there may be files to remove.
        self.do_chores(&mut state);
        Ok(placed)
    }
}
