//! The log: appending, waiting and reading.
//!
//! Owns the accepted bytes that are not yet in the system's hands, and the marks that say how
//! far everything has got. `append` copies a batch behind the others under one mutex; the
//! writer task (`writer.rs`) takes what has come, writes and syncs it, and moves the marks;
//! room on the disk is reserved before bytes are accepted (`room.rs`).
//!
//! Invariants:
//! 1. `persisted <= written <= accepted`; none moves backwards.
//! 2. Recovery yields a prefix of the accepted batches, each whole, and never less than what
//!    was persisted.
//! 3. After a failed write or sync no append succeeds, and no mark moves.
//! 4. No lock is held across an await, but for `room`, which readers don't take.
//! 5. A segment's first byte is accepted only when all of the segment before is persisted.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use settee_io::{Env, File};
use tokio::sync::{Notify, oneshot};

use crate::error::{AppendError, OpenError, ReadError, Stopped};
use crate::format::{
    BATCH_SIZE_MAX, Batch, FrameHeader, Record, RecordRef, SEGMENT_HEADER_SIZE, SYNC_ALIGNMENT,
};
use crate::recovery::{self, Recovery, Tail};
use crate::room::RESERVE_BYTES;
use crate::writer;

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
    /// Batches with the same number are handed to the system in one write, and so become
    /// persisted together.
    pub group: u64,
}

/// The most that [`LogOptions::segment_bytes_max`] may be: offsets have 32 bits.
pub const SEGMENT_BYTES_LIMIT: u32 = 1 << 30;

/// The limits of a log.
#[derive(Debug, Clone, Copy)]
pub struct LogOptions {
    /// Largest batch in bytes; at most [`BATCH_SIZE_MAX`].
    pub batch_bytes_max: usize,
    /// Where a segment ends, in bytes: at least a header and two of the largest batches, at
    /// most [`SEGMENT_BYTES_LIMIT`].
    pub segment_bytes_max: u32,
    /// Accepted bytes that wait for the writer; an append beyond waits as well.
    pub buffer_bytes_max: usize,
    /// What is written is synced within this time, though nobody waits for it.
    pub written_age_ms_max: u64,
}

impl Default for LogOptions {
    fn default() -> LogOptions {
        LogOptions {
            batch_bytes_max: BATCH_SIZE_MAX,
            segment_bytes_max: 64 << 20,
            buffer_bytes_max: 32 << 20,
            written_age_ms_max: 1_000,
        }
    }
}

/// What a log has done since it was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Batches accepted.
    pub batch_count: u64,
    /// Writes handed to the system.
    pub write_count: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Syncs of segments.
    pub sync_count: u64,
    /// Bytes that the segments' frames take, the oldest included.
    pub file_bytes: u64,
}

/// A segmented append-only log in a folder of its own. Used from many tasks at once.
///
/// Dropping it without [`Log::close`] is like a crash of the process: what was accepted and
/// not yet written may be lost.
pub struct Log {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub env: Env,
    pub folder: PathBuf,
    pub options: LogOptions,
    pub log_id: [u8; 16],
    /// Grows with every opening; segments made now carry it.
    pub epoch: u32,
    /// Where the log ended when it was opened.
    pub recovered: Tail,
    pub state: Mutex<State>,
    /// Wakes the writer task.
    pub work: Notify,
    /// Taken by who makes room: one at a time.
    pub room: tokio::sync::Mutex<()>,
    /// The segments' files.
    pub files: ArcSwap<BTreeMap<u32, Arc<File>>>,
    /// The end of what is written, as [`position`] puts it: readers of anything below need no
    /// lock. Mirrors `State::written`.
    pub written_position: AtomicU64,
    /// Mirrors the `Seq` of `State::persisted`.
    pub persisted_seq: AtomicU64,
}

/// A segment and an offset in one number that grows along the log.
pub(crate) fn position(segment: u32, offset: u32) -> u64 {
    u64::from(segment) << 32 | u64::from(offset)
}

/// How far the log has got in one respect.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Mark {
    pub seq: u64,
    /// In the segment that is open.
    pub offset: u32,
}

pub(crate) struct State {
    /// The segment that takes appends; none between opening and the first append.
    pub segment: Option<OpenSegment>,
    /// Accepted, and not yet taken by the writer.
    pub buffer: Vec<u8>,
    /// Where `buffer` begins in the segment.
    pub buffer_offset: u32,
    /// Being written: its offset and bytes.
    pub writing: Option<(u32, Bytes)>,
    /// Its offset is where the next frame begins; the other marks' are where frames end.
    pub accepted: Mark,
    pub written: Mark,
    pub persisted: Mark,
    /// Someone wants all up to this `Seq` persisted.
    pub persist_wanted: u64,
    /// Since when something written has waited for a sync (the environment's clock).
    pub unsynced_since: Option<Duration>,
    /// The number of the group that the next batch joins.
    pub group: u64,
    pub written_waiters: Waiters,
    pub persisted_waiters: Waiters,
    pub stopped: Option<Stopped>,
    pub closing: bool,
    /// The next segment is being made: nothing more goes into this one.
    pub rolling: bool,
    pub stats: LogStats,
}

pub(crate) struct OpenSegment {
    pub number: u32,
    pub epoch: u32,
    pub file: Arc<File>,
    /// Room is reserved up to here.
    pub allocated: u32,
    /// The checksum that the next frame carries on.
    pub checksum: u64,
}

/// Those who wait for a `Seq` to reach a stage.
#[derive(Default)]
pub(crate) struct Waiters {
    waiting: Vec<(u64, oneshot::Sender<()>)>,
    prune_at: usize,
}

impl Waiters {
    fn add(&mut self, seq: u64) -> oneshot::Receiver<()> {
        // Those who gave up are dropped now and then, at a cost shared by those who come.
        if self.waiting.len() >= self.prune_at {
            self.waiting.retain(|(_, waiter)| !waiter.is_closed());
            self.prune_at = self.waiting.len() * 2 + 64;
        }
        let (sender, receiver) = oneshot::channel();
        self.waiting.push((seq, sender));
        receiver
    }

    /// Takes out those who wait for `seq` or less, to be woken without the lock.
    pub(crate) fn take_up_to(&mut self, seq: u64) -> Vec<oneshot::Sender<()>> {
        self.waiting.extract_if(.., |(wanted, _)| *wanted <= seq).map(|(_, waiter)| waiter).collect()
    }

    /// Lets all go: their receivers learn that nothing will come.
    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
    }
}

/// What a batch needs of the disk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claim {
    /// Its bytes.
    pub size: usize,
    /// Bytes that must stay free behind it.
    pub reserve: u32,
}

impl Claim {
    fn of(batch: &Batch) -> Claim {
        Claim { size: batch.size(), reserve: if batch.may_use_reserve { 0 } else { RESERVE_BYTES } }
    }
}

/// Whether a batch may be accepted now.
pub(crate) enum Admission {
    Ready,
    /// A new segment is needed, since there is none or this one is full.
    NeedsSegment,
    /// Room must be reserved up to this offset.
    NeedsRoom(u32),
    /// Too much waits for the writer.
    NeedsBuffer,
}

impl Log {
    /// Opens the log in `folder`, creating it with the first append, and hands every record of
    /// every whole batch to `replay`, in order. What it hands over is persisted once this
    /// returns. Where nothing had to be cut it goes on in the last segment.
    ///
    /// # Errors
    /// Damage below what had been persisted, a missing segment, a later format, or what the
    /// system says. Files are changed only after everything was found sound: a torn tail is cut.
    pub async fn open(
        env: &Env,
        folder: &Path,
        options: LogOptions,
        replay: impl FnMut(Location, RecordRef<'_>) + Send,
    ) -> Result<(Log, Recovery), OpenError> {
        let least = SEGMENT_HEADER_SIZE + 2 * options.batch_bytes_max;
        assert!(options.batch_bytes_max <= BATCH_SIZE_MAX, "{options:?}");
        assert!(
            (least..=SEGMENT_BYTES_LIMIT as usize).contains(&(options.segment_bytes_max as usize)),
            "{options:?}"
        );
        let found = recovery::recover(env, folder, replay).await?;
        let mark = Mark { seq: found.last_seq, offset: found.tail.end as u32 };
        let begin = mark.offset.next_multiple_of(SYNC_ALIGNMENT);
        let state = State {
            segment: found.open,
            buffer: Vec::new(),
            buffer_offset: begin,
            writing: None,
            accepted: Mark { offset: begin, ..mark },
            written: mark,
            persisted: mark,
            persist_wanted: 0,
            unsynced_since: None,
            group: 0,
            written_waiters: Waiters::default(),
            persisted_waiters: Waiters::default(),
            stopped: None,
            closing: false,
            rolling: false,
            stats: LogStats { file_bytes: found.file_bytes, ..LogStats::default() },
        };
        let shared = Arc::new(Shared {
            env: env.clone(),
            folder: folder.to_path_buf(),
            options,
            log_id: found.log_id.unwrap_or_else(|| env.random_bytes()),
            epoch: found.epoch + 1,
            recovered: found.tail,
            state: Mutex::new(state),
            work: Notify::new(),
            room: tokio::sync::Mutex::new(()),
            files: ArcSwap::from_pointee(found.files),
            written_position: AtomicU64::new(position(found.tail.segment, mark.offset)),
            persisted_seq: AtomicU64::new(found.last_seq),
        });
        env.spawn("log writer", writer::run(shared.clone()));
        Ok((Log { shared }, found.summary))
    }

    /// Accepts a batch: it gets its place in the order, which never changes, and the writer is
    /// told to bring it as far as `stage`. Returns at once, unless room must be made first: a
    /// new segment, more of this one reserved, or the writer has fallen behind.
    ///
    /// Dropping the future before it returns leaves the batch out, whole.
    ///
    /// # Errors
    /// [`AppendError::TooLarge`] and [`AppendError::NoSpace`] leave the log as it was;
    /// [`AppendError::Stopped`] is for good.
    pub async fn append(&self, batch: &Batch, stage: Stage) -> Result<Appended, AppendError> {
        assert!(!batch.is_empty(), "a batch has records");
        let max = self.shared.options.batch_bytes_max;
        if batch.size() > max {
            return Err(AppendError::TooLarge { size: batch.size(), max });
        }
        loop {
            if let Some(appended) = self.shared.try_append(batch, stage)? {
                return Ok(appended);
            }
            self.make_room(Claim::of(batch)).await?;
        }
    }

    /// Makes room in a task of its own: a segment half made would be in the way for good, were
    /// the caller's future dropped there.
    async fn make_room(&self, claim: Claim) -> Result<(), AppendError> {
        let (done, made) = oneshot::channel();
        let shared = self.shared.clone();
        self.shared.env.spawn("log room", async move {
            let _ = done.send(shared.make_room(claim).await);
        });
        made.await.unwrap_or_else(|_| Err(self.shared.closed().into()))
    }

    /// Returns once `seq`, which need not exist yet, has got as far as `stage`.
    ///
    /// # Errors
    /// The log stopped before.
    pub async fn wait(&self, seq: Seq, stage: Stage) -> Result<(), Stopped> {
        self.shared.wait(seq.0, stage).await
    }

    /// A barrier: returns once everything accepted before the call is persisted.
    ///
    /// # Errors
    /// The log stopped before.
    pub async fn flush(&self) -> Result<(), Stopped> {
        self.shared.flush().await
    }

    /// The last `Seq` that is persisted.
    pub fn persisted(&self) -> Seq {
        Seq(self.shared.persisted_seq.load(Ordering::Acquire))
    }

    /// Reads the record at `location`: from memory where it isn't written yet, otherwise by one
    /// positional read, with no lock taken. Its checksum is verified.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn read(&self, location: Location) -> Result<Record, ReadError> {
        let Location { segment, offset, length } = location;
        let damaged = |what| ReadError::Damaged {
            path: recovery::segment_path(&self.shared.folder, segment),
            offset,
            what,
        };
        let end = offset.checked_add(length).ok_or_else(|| damaged("it ends past the largest segment"))?;
        let mut bytes = None;
        if position(segment, end) > self.shared.written_position.load(Ordering::Acquire) {
            bytes = self.shared.read_memory(segment, offset..end);
        }
        let bytes = match bytes {
            Some(bytes) => bytes,
            None => {
                let file = self.shared.files.load().get(&segment).cloned();
                let file = file.ok_or(ReadError::NoSegment { segment })?;
                file.read_exact_at(u64::from(offset), length as usize).await?.into()
            }
        };
        Record::decode(bytes).map_err(damaged)
    }

    /// Whether it still takes appends; otherwise why not.
    pub fn health(&self) -> Result<(), Stopped> {
        self.shared.lock().stopped.clone().map_or(Ok(()), Err)
    }

    /// Counters since it was opened.
    pub fn stats(&self) -> LogStats {
        self.shared.lock().stats
    }

    /// Persists everything accepted and ends the writer; later appends are refused.
    ///
    /// # Errors
    /// The log stopped before.
    pub async fn close(&self) -> Result<(), Stopped> {
        let flushed = self.flush().await;
        self.shared.end();
        flushed
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.shared.end();
    }
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log").field("folder", &self.shared.folder).finish_non_exhaustive()
    }
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a caller learns once the log, or the executor under it, has ended.
    fn closed(&self) -> Stopped {
        let source = settee_io::Error::Closed { path: self.folder.as_path().into() };
        Stopped { source: Arc::new(source) }
    }

    /// Ends the log: the writer stops, whoever waits is told.
    fn end(&self) {
        let mut state = self.lock();
        state.closing = true;
        state.stopped.get_or_insert_with(|| self.closed());
        state.written_waiters.clear();
        state.persisted_waiters.clear();
        drop(state);
        self.work.notify_one();
    }

    /// Whether a batch may be accepted now, and if not, what it needs.
    pub(crate) fn admit(&self, state: &State, claim: Claim) -> Result<Admission, Stopped> {
        if let Some(stopped) = &state.stopped {
            return Err(stopped.clone());
        }
        let Some(segment) = state.segment.as_ref().filter(|_| !state.rolling) else {
            return Ok(Admission::NeedsSegment);
        };
        let end = state.accepted.offset + claim.size as u32;
        let room = (end + claim.reserve).min(self.options.segment_bytes_max);
        Ok(if end > self.options.segment_bytes_max {
            Admission::NeedsSegment
        } else if room > segment.allocated {
            Admission::NeedsRoom(room)
        } else if !state.buffer.is_empty() && state.buffer.len() + claim.size > self.options.buffer_bytes_max
        {
            Admission::NeedsBuffer
        } else {
            Admission::Ready
        })
    }

    /// Accepts the batch where nothing has to be made first.
    fn try_append(&self, batch: &Batch, stage: Stage) -> Result<Option<Appended>, Stopped> {
        let mut guard = self.lock();
        let Admission::Ready = self.admit(&guard, Claim::of(batch))? else {
            return Ok(None);
        };
        let state = &mut *guard;
        let segment = state.segment.as_mut().expect("admitted into a segment");
        let (number, offset, first_seq) = (segment.number, state.accepted.offset, state.accepted.seq + 1);
        let header = FrameHeader {
            length: 0,
            segment: number,
            epoch: segment.epoch,
            first_seq,
            record_count: 0,
            persisted: state.persisted.offset,
            previous: segment.checksum,
        };
        segment.checksum = batch.write_frame(header, &mut state.buffer);
        let last_seq = state.accepted.seq + batch.len() as u64;
        state.accepted = Mark { seq: last_seq, offset: offset + batch.size() as u32 };
        state.stats.batch_count += 1;
        state.stats.file_bytes += batch.size() as u64;
        if stage == Stage::Persisted {
            state.persist_wanted = last_seq;
        }
        let group = state.group;
        drop(guard);
        self.work.notify_one();
        let locate = |range: std::ops::Range<u32>| Location {
            segment: number,
            offset: offset + range.start,
            length: range.end - range.start,
        };
        let locations = batch.ranges().map(locate).collect();
        Ok(Some(Appended { first_seq: Seq(first_seq), last_seq: Seq(last_seq), locations, group }))
    }

    pub(crate) async fn wait(&self, seq: u64, stage: Stage) -> Result<(), Stopped> {
        let arrived = {
            let mut guard = self.lock();
            let state = &mut *guard;
            let (mark, waiters) = match stage {
                Stage::Accepted => return state.stopped.clone().map_or(Ok(()), Err),
                Stage::Written => (state.written, &mut state.written_waiters),
                Stage::Persisted => (state.persisted, &mut state.persisted_waiters),
            };
            if mark.seq >= seq {
                return Ok(());
            }
            if let Some(stopped) = &state.stopped {
                return Err(stopped.clone());
            }
            let arrived = waiters.add(seq);
            let wanted = seq.min(state.accepted.seq);
            if stage == Stage::Persisted && wanted > state.persist_wanted.max(state.persisted.seq) {
                state.persist_wanted = wanted;
                self.work.notify_one();
            }
            arrived
        };
        match arrived.await {
            Ok(()) => Ok(()),
            Err(_) => Err(self.lock().stopped.clone().expect("waiters are let go only when the log stops")),
        }
    }

    pub(crate) async fn flush(&self) -> Result<(), Stopped> {
        let seq = self.lock().accepted.seq;
        self.wait(seq, Stage::Persisted).await
    }

    /// The bytes of a range that is accepted and not yet written.
    fn read_memory(&self, segment: u32, range: std::ops::Range<u32>) -> Option<Bytes> {
        let state = self.lock();
        if state.segment.as_ref()?.number != segment {
            return None;
        }
        let within = |start: u32| {
            Some(range.start.checked_sub(start)? as usize..range.end.checked_sub(start)? as usize)
        };
        if range.start >= state.buffer_offset {
            return state.buffer.get(within(state.buffer_offset)?).map(Bytes::copy_from_slice);
        }
        let (start, bytes) = state.writing.as_ref()?;
        let range = within(*start)?;
        (range.end <= bytes.len()).then(|| bytes.slice(range))
    }
}
