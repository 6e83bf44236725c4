//! The log's state: accepted records, the location of their bytes, and the watermarks.
//!
//! One mutex protects all of it. Nothing here waits or does I/O: [`LogState::accept`] copies a frame into the
//! open buffer, [`LogState::next_action`] returns the next write or sync to submit, and
//! [`LogState::complete_write`] and [`LogState::complete_sync`] record its result. The rules of group commit
//! are therefore in this one file, independent of the threads that execute the actions.
//!
//! Accepted bytes are kept in a queue of chunks: parts of buffers, and large values that were not copied. A
//! chunk is dropped once it is written, so memory use is bounded by the bytes in flight.
//!
//! A *group* is the set of batches that one sync makes durable. A group is closed when a caller waits for it;
//! then all its bytes are written (several writes in flight at once), and then the file is synced. Batches
//! accepted in the meantime form the next group. Full buffers are written as they fill up, also during a
//! sync.
//!
//! Invariants:
//! 1. `persisted <= written <= accepted`; none moves backwards; each is the end of an unbroken prefix.
//! 2. The sync of a group begins when all of the group is written, so it depends on no write in flight.
//! 3. Bytes covered by a sync are never written again: after a closed group, the next frame begins at a
//!    multiple of [`SYNC_ALIGNMENT`].
//! 4. No byte of a segment is written before all of the previous segment is persisted.
//! 5. After a failure no action begins and no watermark moves. A write that fails for lack of disk space is
//!    not a failure: it stays in flight and is retried with the same bytes at the same offset. Until it
//!    succeeds, no batch is accepted and no other write begins.
//! 6. A chunk is dropped only when every frame that it holds a part of is written: a reader finds a frame
//!    whole in memory, or whole in the file.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use settee_io::{BufferPool, File, Reservation, Stall, TailBuffer};
use tokio::sync::oneshot;

use crate::chunk::{Chunk, ChunkMemory};
use crate::closed::{ClosedSegments, SegmentMeta};
use crate::error::Stopped;
use crate::failpoints::Failpoint;
use crate::format::{Batch, FrameHeader, FrameKind, FrameSink, SEGMENT_HEADER_SIZE, SYNC_ALIGNMENT};
use crate::log::{LogOptions, LogStats};
use crate::reservation::{OpenSegment, fitting_bytes_max, reserve_bytes};
use crate::waiters::Waiters;
use crate::watermark::{Position, Watermark};

/// A stream without waiters is synced each time this many bytes have been accepted. The next segment waits
/// for the sync at the end of the current one; this limit keeps that sync short.
const STREAM_SYNC_BYTES: usize = 8 << 20;

/// Weight of the running average of the sync time: a new measurement counts one part in this many.
const SYNC_TIME_WEIGHT: u32 = 8;

/// A write that was submitted.
struct InFlightWrite {
    id: u64,
    end: Watermark,
    done: bool,
}

/// A group that was closed and is being written and synced.
struct SyncingGroup {
    end: Watermark,
    /// End of its last frame. In direct mode `end` includes padding and can be greater.
    frames_end: Position,
    /// Where the bytes after this group begin.
    resume: Position,
    file: Arc<File>,
    committer_count: usize,
    /// When its sync was submitted; `None` before.
    syncing_since: Option<Duration>,
}

/// The group that accepts batches now, and the committer counts that decide when it is closed.
#[derive(Default)]
struct FormingGroup {
    number: u64,
    /// Number of callers that wait for this group.
    committer_count: usize,
    batch_count: usize,
    bytes: usize,
    /// Number of committers expected in this group: those of the previous group, assumed to commit again,
    /// plus those that were already waiting when its sync completed.
    expected_count: usize,
    /// When the previous sync completed.
    synced_at: Duration,
}

/// The previous segment, until all of it is persisted.
struct Barrier {
    end: Watermark,
    frames_end: Position,
    file: Arc<File>,
}

/// Writes that failed for lack of disk space, until they have succeeded.
struct SuspendedWrites {
    /// Holds the I/O error. Marks the pool as stalled, so that other logs fail instead of waiting for this
    /// log's buffers.
    stall: Stall,
    ids: Vec<u64>,
    /// Those of them that wait for a retry.
    waiting: Vec<Action>,
}

/// A write or sync to submit.
#[derive(Clone)]
pub(crate) enum Action {
    /// Write the bytes at the offset; also sync the file if `sync` is set.
    Write { id: u64, file: Arc<File>, offset: u64, bytes: Bytes, sync: bool },
    /// Sync the file.
    Sync { file: Arc<File> },
}

/// Why a batch can't be accepted yet.
#[derive(Debug)]
pub(crate) enum AppendBlocked {
    /// It needs a new segment: there is no open segment, or the open one is full.
    Segment,
    /// The open segment's disk reservation must extend to this offset.
    DiskReservation(u32),
    /// It needs a buffer of this many bytes.
    Buffer(usize),
    /// Earlier writes failed for lack of disk space and wait for a retry.
    Writes(Arc<settee_io::Error>),
}

/// Disk space that a batch needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SpaceRequest {
    /// Size of its frame in bytes.
    pub size: usize,
    /// Whether it may use the reserve for batches that free space.
    pub may_use_reserve: bool,
}

impl SpaceRequest {
    pub(crate) fn of(batch: &Batch) -> SpaceRequest {
        SpaceRequest { size: batch.size(), may_use_reserve: batch.may_use_reserve }
    }
}

/// Position, first `Seq` and group number of an accepted frame.
pub(crate) struct Placement {
    pub at: Position,
    pub first_seq: u64,
    pub group: u64,
}

/// Writes a frame into the open buffer, which has enough capacity.
struct BufferSink<'a> {
    state: &'a mut LogState,
    /// Pool reservation for the large values that are not copied; `None` if all values are copied.
    reservation: Option<Arc<Reservation>>,
}

impl FrameSink for BufferSink<'_> {
    fn copy(&mut self, bytes: &[u8]) -> &mut [u8] {
        self.state.next = self.state.next.plus(bytes.len());
        self.state.open.as_mut().expect("a buffer was provided").extend(bytes)
    }

    fn share(&mut self, value: &Bytes) {
        match &self.reservation {
            Some(reservation) if value.len() >= self.state.options.bypass_bytes_min => {
                self.state.share(value, reservation)
            }
            _ => drop(self.copy(value)),
        }
    }
}

pub(crate) struct LogState {
    pub options: LogOptions,
    pub pool: Arc<BufferPool>,
    /// The segment that takes appends; `None` between opening and the first append if there is none to
    /// continue in.
    pub segment: Option<OpenSegment>,
    /// End of the last accepted frame.
    pub accepted: Watermark,
    pub written: Watermark,
    pub persisted: Watermark,
    /// End of the last persisted frame.
    persisted_frames_end: Position,
    /// Where the next frame begins.
    pub next: Position,
    /// Accepted bytes that are not yet written. The last chunk grows while there is an open buffer.
    pub chunks: VecDeque<Chunk>,
    open: Option<TailBuffer>,
    /// Size of the next buffer in bytes: doubled when a buffer fills up, reset to the minimum when the log
    /// becomes idle.
    buffer_bytes: usize,
    /// Whether `chunks` has changed since the read view was published.
    pub read_view_is_stale: bool,
    /// End of the bytes whose writes have been submitted.
    submitted: Position,
    in_flight: VecDeque<InFlightWrite>,
    write_count: u64,
    suspended: Option<SuspendedWrites>,
    /// Whether the log is being closed: a write that fails for lack of disk space then stops the log.
    pub closing: bool,
    group: FormingGroup,
    syncing: Option<SyncingGroup>,
    barrier: Option<Barrier>,
    /// Highest position that a caller has asked to be written.
    pub write_wanted: Watermark,
    /// Highest position that a caller has asked to be persisted.
    pub persist_wanted: Watermark,
    /// When the oldest unwritten bytes were accepted.
    accepted_since: Option<Duration>,
    /// When the oldest unsynced bytes were written.
    written_since: Option<Duration>,
    /// Running average of the time of a sync.
    sync_time: Duration,
    /// Running average of the size of a group in bytes.
    pub group_bytes: usize,
    pub written_waiters: Waiters,
    pub persisted_waiters: Waiters,
    pub stopped: Option<Stopped>,
    /// Whether the next segment is being created: the open one takes no more batches.
    pub rolling: bool,
    /// Whether a background job is running.
    pub has_background_job: bool,
    /// Whether the last background job was refused disk space.
    pub background_job_refused: bool,
    /// Number of the preallocated segment; 0 for none.
    pub preallocated_number: u32,
    /// All segments, by number.
    pub segments: BTreeMap<u32, SegmentMeta>,
    pub closed: ClosedSegments,
    /// Live bytes in segments that were transferred to the caller.
    pub transferred_bytes: u64,
    /// Whether a thread is in [`crate::log::Shared::submit_ready`].
    pub is_submitting: bool,
    /// Number of writes and syncs in flight.
    pub operation_count: usize,
    /// When the timer fires; `None` if none is set.
    pub timer: Option<Duration>,
    pub stats: LogStats,
}

impl LogState {
    /// The state of a log that ends at `end` and is fully persisted.
    pub(crate) fn new(
        options: LogOptions,
        pool: Arc<BufferPool>,
        end: Watermark,
        segment: Option<OpenSegment>,
        segments: BTreeMap<u32, SegmentMeta>,
    ) -> LogState {
        let oldest = segments.first_key_value().map_or(1, |(number, _)| *number);
        let file_bytes = segments.values().map(|meta| meta.bytes).sum();
        let next = Position::new(end.at.segment(), end.at.offset().next_multiple_of(SYNC_ALIGNMENT));
        LogState {
            options,
            pool,
            segment,
            accepted: end,
            written: end,
            persisted: end,
            persisted_frames_end: end.at,
            next,
            chunks: VecDeque::new(),
            open: None,
            buffer_bytes: options.buffer_bytes_min,
            read_view_is_stale: false,
            submitted: next,
            in_flight: VecDeque::new(),
            write_count: 0,
            suspended: None,
            closing: false,
            group: FormingGroup::default(),
            syncing: None,
            barrier: None,
            write_wanted: end,
            persist_wanted: end,
            accepted_since: None,
            written_since: None,
            sync_time: Duration::ZERO,
            group_bytes: 0,
            written_waiters: Waiters::default(),
            persisted_waiters: Waiters::default(),
            stopped: None,
            rolling: false,
            has_background_job: false,
            background_job_refused: false,
            preallocated_number: 0,
            closed: ClosedSegments {
                seal_next: oldest,
                unsealed: BTreeSet::new(),
                without_space: BTreeSet::new(),
                is_sealing: false,
                seal_soon: 0,
                oldest,
                needed: oldest,
                truncate_before: 0,
            },
            transferred_bytes: 0,
            segments,
            is_submitting: false,
            operation_count: 0,
            timer: None,
            stats: LogStats { file_bytes, ..LogStats::default() },
        }
    }

    /// Accepts a frame, or returns what blocks it. If blocked, nothing has changed, except that an open
    /// buffer without enough capacity is closed and will be written. `buffer` is a buffer that the caller has
    /// obtained from the pool.
    pub(crate) fn accept(
        &mut self,
        batch: &Batch,
        kind: FrameKind,
        buffer: &mut Option<TailBuffer>,
    ) -> Result<Placement, AppendBlocked> {
        self.check_space(SpaceRequest::of(batch))?;
        let header = self.segment.as_ref().expect("check_space found a segment").header;
        let header_size = header.map_or(0, |header| header.len());
        let shared_bytes = self.bytes_to_share(batch);
        let reservation =
            (shared_bytes > 0).then(|| self.pool.try_reserve(shared_bytes)).flatten().map(Arc::new);
        let copied = header_size + batch.size() - if reservation.is_some() { shared_bytes } else { 0 };
        self.provide_buffer(copied, buffer)?;
        if self.options.direct {
            // Closing the previous buffer may have added padding.
            self.check_space(SpaceRequest::of(batch))?;
        }
        if let Some(header) = header {
            BufferSink { state: self, reservation: None }.copy(&header);
            self.segment.as_mut().expect("check_space found a segment").header = None;
            self.stats.file_bytes += header.len() as u64;
        }
        let (at, first_seq) = (self.next, self.accepted.seq + 1);
        let segment = self.segment.as_ref().expect("check_space found a segment");
        let persisted = self.persisted_frames_end;
        let persisted = if persisted.segment() == segment.number { persisted.offset() } else { 0 };
        let frame = FrameHeader {
            seed: segment.seed,
            kind,
            length: 0,
            segment: segment.number,
            epoch: segment.epoch,
            first_seq,
            record_count: 0,
            persisted,
            previous: segment.checksum,
        };
        let checksum = batch.write_frame(frame, &mut BufferSink { state: self, reservation });
        self.segment.as_mut().expect("check_space found a segment").checksum = checksum;
        let seq = match kind {
            FrameKind::Batch => self.accepted.seq + batch.len() as u64,
            FrameKind::Extent => self.accepted.seq,
        };
        self.accepted = Watermark { seq, at: self.next };
        self.open.as_mut().expect("provide_buffer opened one").publish();
        self.chunks.back_mut().expect("provide_buffer opened one").end = self.next;
        // If the frame ends with a shared value, the last chunk is empty.
        for chunk in self.chunks.iter_mut().rev().take_while(|chunk| chunk.end == self.next) {
            chunk.seq = seq;
        }
        for chunk in self.chunks.iter_mut().rev().take_while(|chunk| chunk.end > at) {
            chunk.frame_end = self.next;
        }
        self.stats.batch_count += u64::from(kind == FrameKind::Batch);
        self.stats.extent_count += u64::from(kind == FrameKind::Extent);
        self.stats.file_bytes += batch.size() as u64;
        self.group.batch_count += 1;
        self.group.bytes += batch.size();
        Ok(Placement { at, first_seq, group: self.group.number })
    }

    /// Checks that the open segment has disk space for the batch.
    pub(crate) fn check_space(&mut self, request: SpaceRequest) -> Result<(), AppendBlocked> {
        if let Some(suspended) = &self.suspended {
            return Err(AppendBlocked::Writes(suspended.stall.error().clone()));
        }
        let rolling = self.rolling;
        let next = self.next.offset();
        let Some(segment) = self.segment.as_mut().filter(|_| !rolling) else {
            return Err(AppendBlocked::Segment);
        };
        let is_fresh = segment.header.is_some();
        let end = next + if is_fresh { SEGMENT_HEADER_SIZE as u32 } else { 0 } + request.size as u32;
        if is_fresh {
            segment.bytes_max = fitting_bytes_max(segment.bytes_max, end);
        }
        let reserve = if request.may_use_reserve { 0 } else { reserve_bytes(segment.bytes_max) };
        if end + reserve > segment.bytes_max {
            return Err(AppendBlocked::Segment);
        }
        if end + reserve > segment.allocated {
            return Err(AppendBlocked::DiskReservation(end + reserve));
        }
        Ok(())
    }

    /// Bytes of values that are large enough to be written without a copy. None in direct mode, since they
    /// aren't aligned.
    fn bytes_to_share(&self, batch: &Batch) -> usize {
        match self.options.direct {
            true => 0,
            false => batch.shared_bytes(self.options.bypass_bytes_min),
        }
    }

    /// Ensures that the open buffer has `count` bytes of capacity.
    fn provide_buffer(
        &mut self,
        count: usize,
        provided: &mut Option<TailBuffer>,
    ) -> Result<(), AppendBlocked> {
        if self.open.as_ref().is_some_and(|open| open.capacity() - open.len() >= count) {
            return Ok(());
        }
        if self.open.is_some() {
            self.buffer_bytes = (self.buffer_bytes * 2).min(self.options.buffer_bytes_max);
            self.close_buffer();
        }
        let capacity = count.max(self.buffer_bytes);
        let provided = provided.take().filter(|buffer| buffer.capacity() >= count);
        let buffer =
            provided.or_else(|| self.pool.try_take(capacity)).ok_or(AppendBlocked::Buffer(capacity))?;
        let memory = ChunkMemory::Buffer(buffer.reader(), 0);
        self.push_chunk(memory, 0);
        self.open = Some(buffer);
        Ok(())
    }

    /// Adds a chunk at the current end of the log.
    fn push_chunk(&mut self, memory: ChunkMemory, length: usize) {
        let file = self.segment.as_ref().expect("an open segment").file.clone();
        let (start, end) = (self.next, self.next.plus(length));
        let (seq, frame_end) = (self.accepted.seq, end);
        self.chunks.push_back(Chunk { start, end, seq, frame_end, file, memory });
        self.next = end;
        self.read_view_is_stale = true;
    }

    /// Appends a value without copying it, between the bytes already in the open buffer and those to come.
    fn share(&mut self, value: &Bytes, reservation: &Arc<Reservation>) {
        let open = self.open.as_mut().expect("a buffer was provided");
        open.publish();
        let (reader, length) = (open.reader(), open.len());
        self.chunks.back_mut().expect("the open buffer's").end = self.next;
        self.push_chunk(ChunkMemory::Value(value.clone(), reservation.clone()), value.len());
        self.push_chunk(ChunkMemory::Buffer(reader, length), 0);
    }

    /// Closes the open buffer, so that it is written as soon as possible.
    fn close_buffer(&mut self) {
        if self.options.direct {
            self.pad();
        }
        self.open = None;
    }

    /// Advances to the next multiple of [`SYNC_ALIGNMENT`].
    fn pad(&mut self) {
        let begin = self.next.offset().next_multiple_of(SYNC_ALIGNMENT);
        let count = (begin - self.next.offset()) as usize;
        self.next = self.next.plus(count);
        self.stats.padding_bytes += count as u64;
        self.stats.file_bytes += count as u64;
        match &mut self.open {
            Some(open) if open.capacity() - open.len() >= count => {
                open.pad(count);
                open.publish();
                self.chunks.back_mut().expect("the open buffer's").end = self.next;
            }
            _ => self.open = None,
        }
    }

    /// End of the last write of the accepted bytes: in direct mode, this includes padding that is not yet
    /// written.
    fn data_end(&self) -> Position {
        let resume =
            self.syncing.as_ref().map_or(self.submitted, |syncing| syncing.resume.max(self.submitted));
        match self.chunks.back() {
            Some(last) if self.options.direct && last.end > resume => last.end.max(self.accepted.at),
            _ => self.accepted.at,
        }
    }

    /// Makes buffers begin and end at multiples of [`SYNC_ALIGNMENT`] from now on, or stops that.
    pub(crate) fn set_direct(&mut self, direct: bool) {
        if direct && !self.options.direct {
            // An unaligned buffer is written as it is; the file does such a write buffered.
            self.open = None;
            self.pad();
        }
        self.options.direct = direct;
    }

    /// Requests that all accepted bytes be written.
    pub(crate) fn want_written(&mut self) {
        self.write_wanted = self.accepted;
    }

    /// Requests that all accepted bytes be persisted.
    pub(crate) fn want_persisted(&mut self) {
        self.persist_wanted = self.accepted;
        self.group.committer_count += 1;
    }

    /// Starts the age limit of accepted bytes that no caller waits for.
    pub(crate) fn start_age(&mut self, now: impl FnOnce() -> Duration) {
        if self.accepted_since.is_none() {
            self.accepted_since = Some(now());
        }
    }

    /// Returns the next action, which counts as begun. The caller repeats this until it returns `None`.
    pub(crate) fn next_action(&mut self, now: Duration) -> Option<Action> {
        let action = self.find_action(now);
        self.operation_count += usize::from(action.is_some());
        action
    }

    fn find_action(&mut self, now: Duration) -> Option<Action> {
        if self.stopped.is_some() {
            return None;
        }
        if self.is_old(self.written_since, self.options.written_age_ms_max, now) {
            self.persist_wanted = self.accepted;
            self.written_since = None;
        }
        if self.is_old(self.accepted_since, self.options.accepted_age_ms_max, now) {
            self.want_written();
            self.accepted_since = None;
        }
        if self.syncing.is_none() && self.group.bytes >= STREAM_SYNC_BYTES {
            self.persist_wanted = self.accepted;
        }
        if self.syncing.is_none() && self.group_is_due(now) {
            self.close_group();
        }
        if let Some(syncing) = &mut self.syncing
            && syncing.syncing_since.is_none()
            && self.written.reaches(syncing.end)
        {
            syncing.syncing_since = Some(now);
            return Some(Action::Sync { file: syncing.file.clone() });
        }
        self.next_write(now)
    }

    /// When to call [`LogState::next_action`] again if no other event comes first.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        if self.stopped.is_some() {
            return None;
        }
        let age = |since: Option<Duration>, max_ms| Some(since? + Duration::from_millis(max_ms));
        // Bytes that wait for another write or sync are handled when that completes.
        let is_idle = self.in_flight.is_empty() && self.barrier.is_none();
        let accepted = age(self.accepted_since.filter(|_| is_idle), self.options.accepted_age_ms_max);
        let written = age(self.written_since, self.options.written_age_ms_max);
        let group = (self.syncing.is_none() && self.group_is_wanted()).then(|| self.group_deadline());
        [accepted, written, group].into_iter().flatten().min()
    }

    fn is_old(&self, since: Option<Duration>, max_ms: u64, now: Duration) -> bool {
        since.is_some_and(|since| now >= since + Duration::from_millis(max_ms))
    }

    fn group_is_wanted(&self) -> bool {
        !self.persisted.reaches(self.persist_wanted)
    }

    /// Until when a group that is due waits for more batches: those of committers whose previous commit has
    /// just completed and who are likely to commit again. Only a group of two or more committers can gain
    /// from this.
    fn group_deadline(&self) -> Duration {
        let max = Duration::from_micros(self.options.group_delay_us_max);
        self.group.synced_at + (self.sync_time / 2).min(max)
    }

    fn group_is_due(&self, now: Duration) -> bool {
        let group = &self.group;
        self.barrier.is_some()
            || self.group_is_wanted()
                && (group.committer_count >= group.expected_count
                    || group.bytes >= self.options.group_bytes_max
                    || group.batch_count >= self.options.group_writes_max
                    || now >= self.group_deadline())
    }

    /// Closes the current group.
    fn close_group(&mut self) {
        let (end, frames_end, resume, file) = match &self.barrier {
            Some(barrier) => (barrier.end, barrier.frames_end, barrier.end.at, barrier.file.clone()),
            None => {
                let end = self.accepted;
                self.pad();
                let at = self.data_end();
                let file = self.segment.as_ref().expect("something was accepted").file.clone();
                (Watermark { at, ..end }, end.at, self.next, file)
            }
        };
        if self.submitted == end.at {
            // All data bytes are submitted; the padding after them isn't, and is skipped, since it lies in a
            // block that this sync covers.
            self.submitted = resume;
        }
        let group = &mut self.group;
        self.group_bytes = (self.group_bytes * 3 + group.bytes) / 4;
        let committer_count = std::mem::take(&mut group.committer_count);
        (group.batch_count, group.bytes) = (0, 0);
        group.number += 1;
        self.syncing =
            Some(SyncingGroup { end, frames_end, resume, file, committer_count, syncing_since: None });
    }

    fn next_write(&mut self, now: Duration) -> Option<Action> {
        if self.in_flight.len() >= self.options.writes_in_flight_max || self.suspended.is_some() {
            return None;
        }
        let index = self.chunks.iter().position(|chunk| chunk.end > self.submitted)?;
        let start = self.chunks[index].start.max(self.submitted);
        if self.barrier.as_ref().is_some_and(|barrier| start >= barrier.end.at) {
            return None;
        }
        let is_open = self.open.is_some() && index + 1 == self.chunks.len();
        let syncing = self
            .syncing
            .as_ref()
            .filter(|syncing| syncing.end.at > start)
            .map(|syncing| (syncing.end, syncing.resume));
        let chunk_end = Watermark { seq: self.chunks[index].seq, at: self.chunks[index].end };
        let (end, resume) = match syncing {
            Some((end, resume)) if end.at <= chunk_end.at => (end, resume),
            Some(_) => (chunk_end, chunk_end.at),
            None if !is_open => (chunk_end, chunk_end.at),
            None if self.open_chunk_is_due() => {
                if self.options.direct {
                    self.pad();
                }
                (Watermark { at: self.chunks[index].end, ..self.accepted }, self.next)
            }
            None => return None,
        };
        let chunk = &self.chunks[index];
        let bytes = chunk.memory.share(start.since(chunk.start), end.at.since(chunk.start));
        let file = chunk.file.clone();
        // It is the only write in flight and the last of its group, so it includes the sync.
        let sync = match &mut self.syncing {
            Some(syncing) if syncing.end == end && self.in_flight.is_empty() => {
                syncing.syncing_since = Some(now);
                true
            }
            _ => false,
        };
        self.submitted = resume;
        if self.all_is_submitted() {
            self.accepted_since = None;
        }
        self.write_count += 1;
        self.in_flight.push_back(InFlightWrite { id: self.write_count, end, done: false });
        Some(Action::Write { id: self.write_count, file, offset: u64::from(start.offset()), bytes, sync })
    }

    /// Whether the open buffer should be written although it isn't full. Only one such write is in flight at
    /// a time; bytes accepted in the meantime go into the next.
    fn open_chunk_is_due(&self) -> bool {
        self.write_wanted.at > self.submitted && self.in_flight.is_empty()
    }

    /// Records the success of a write. Returns the waiters to notify.
    pub(crate) fn complete_write(&mut self, id: u64, size: usize, now: Duration) -> Vec<oneshot::Sender<()>> {
        if self.stopped.is_some() {
            return Vec::new();
        }
        self.stats.write_count += 1;
        self.stats.written_bytes += size as u64;
        if let Some(suspended) = &mut self.suspended {
            suspended.ids.retain(|suspended_id| *suspended_id != id);
            self.suspended.take_if(|suspended| suspended.ids.is_empty());
        }
        let write = self.in_flight.iter_mut().find(|write| write.id == id);
        write.expect("it was in flight").done = true;
        if self.options.is_enabled(Failpoint::WatermarkPastGap) {
            self.advance_past_gap(id);
        }
        while let Some(write) = self.in_flight.pop_front_if(|write| write.done) {
            self.written = write.end;
        }
        if self.written_since.is_none() {
            self.written_since = Some(now);
        }
        self.release_written_chunks();
        let mut woken = self.written_waiters.take_reached(self.written);
        if self.options.is_enabled(Failpoint::EarlyAcknowledgement) {
            woken.append(&mut self.persisted_waiters.take_reached(self.written));
        }
        woken
    }

    /// Registers a write that failed for lack of disk space, for a retry. Returns whether it is the first one
    /// waiting.
    pub(crate) fn suspend_write(&mut self, id: u64, write: Action, stall: Stall) -> bool {
        let none = || SuspendedWrites { stall, ids: Vec::new(), waiting: Vec::new() };
        let suspended = self.suspended.get_or_insert_with(none);
        if !suspended.ids.contains(&id) {
            suspended.ids.push(id);
        }
        suspended.waiting.push(write);
        suspended.waiting.len() == 1
    }

    /// Takes the writes to retry; they count as in flight again.
    pub(crate) fn take_suspended_writes(&mut self) -> Vec<Action> {
        let writes = self.suspended.as_mut().map_or_else(Vec::new, |all| std::mem::take(&mut all.waiting));
        self.operation_count += writes.len();
        writes
    }

    /// The I/O error of the writes that failed for lack of disk space.
    pub(crate) fn no_space_error(&self) -> Option<Arc<settee_io::Error>> {
        self.suspended.as_ref().map(|suspended| suspended.stall.error().clone())
    }

    /// Whether a write has completed that no completed sync covers.
    pub(crate) fn has_unsynced(&self) -> bool {
        self.written.at != self.persisted.at || self.in_flight.iter().any(|write| write.done)
    }

    /// The error of a write that waits for disk space, if another completed write isn't covered by a sync:
    /// the error may then concern that one. `None` in all other cases.
    pub(crate) fn no_space_with_unsynced_writes(&self) -> Option<Arc<settee_io::Error>> {
        let suspended = self.suspended.as_ref().filter(|suspended| !suspended.waiting.is_empty())?;
        self.has_unsynced().then(|| suspended.stall.error().clone())
    }

    /// [`Failpoint::WatermarkPastGap`].
    fn advance_past_gap(&mut self, id: u64) {
        let index = self.in_flight.iter().position(|write| write.id == id).expect("it was in flight");
        let ended = self.in_flight.remove(index).expect("the index is valid");
        self.written = ended.end;
        for write in self.in_flight.iter_mut().filter(|write| ended.end.reaches(write.end)) {
            write.end = ended.end;
        }
    }

    fn all_is_submitted(&self) -> bool {
        self.chunks.back().is_none_or(|last| last.end <= self.submitted)
    }

    /// Drops the chunks that are written.
    fn release_written_chunks(&mut self) {
        if self.in_flight.is_empty() && self.all_is_submitted() {
            // The log is idle: the next append takes a small buffer.
            self.read_view_is_stale |= !self.chunks.is_empty();
            self.chunks.clear();
            self.open = None;
            self.buffer_bytes = self.options.buffer_bytes_min;
        }
        let open_count = usize::from(self.open.is_some());
        let is_written = |chunk: &Chunk| chunk.end <= self.written.at && chunk.frame_end <= self.written.at;
        while self.chunks.len() > open_count && is_written(&self.chunks[0]) {
            self.chunks.pop_front();
            self.read_view_is_stale = true;
        }
    }

    /// Records the success of the group's sync. Returns the waiters to notify.
    pub(crate) fn complete_sync(&mut self, now: Duration) -> Vec<oneshot::Sender<()>> {
        if self.stopped.is_some() {
            return Vec::new();
        }
        let syncing = self.syncing.take().expect("it was being synced");
        let taken = now.saturating_sub(syncing.syncing_since.expect("it was being synced"));
        self.sync_time = match self.sync_time {
            Duration::ZERO => taken,
            average => (average * (SYNC_TIME_WEIGHT - 1) + taken) / SYNC_TIME_WEIGHT,
        };
        self.persisted = syncing.end;
        self.persisted_frames_end = syncing.frames_end;
        if self.written.at == self.persisted.at {
            self.written_since = None;
        } else {
            self.written_since = Some(now);
        }
        self.barrier.take_if(|barrier| syncing.end.reaches(barrier.end));
        self.group.synced_at = now;
        self.group.expected_count = syncing.committer_count + self.group.committer_count;
        self.stats.sync_count += 1;
        self.stats.sync_us = self.sync_time.as_micros() as u64;
        self.persisted_waiters.take_reached(self.persisted)
    }

    /// [`Failpoint::SyncRetried`].
    pub(crate) fn retry_sync(&mut self) {
        self.operation_count -= 1;
        self.syncing.as_mut().expect("it was being synced").syncing_since = None;
    }

    /// Makes `segment` the open one, which takes all later appends. No byte of it is written until all of the
    /// previous segment is persisted.
    pub(crate) fn begin_segment(&mut self, segment: OpenSegment) {
        assert!(!self.has_barrier(), "the previous segment is persisted");
        if let Some(previous) = &self.segment {
            let file = previous.file.clone();
            if self.open.is_some() {
                self.close_buffer();
            }
            let end = Watermark { at: self.data_end().max(self.persisted.at), ..self.accepted };
            // Padding alone needs no sync: after reopening a log, none has been written.
            self.barrier = (!self.persisted.reaches(self.accepted)).then_some(Barrier {
                end,
                frames_end: self.accepted.at,
                file,
            });
        }
        self.group.number += 1;
        self.background_job_refused = false;
        self.next = Position::new(segment.number, 0);
        self.segment = Some(segment);
    }

    /// Whether the previous segment is not yet persisted.
    fn has_barrier(&self) -> bool {
        self.barrier.is_some()
    }

    /// A receiver that is notified when the previous segment is persisted; `None` if it is.
    pub(crate) fn wait_for_barrier(&mut self) -> Option<oneshot::Receiver<()>> {
        let end = self.barrier.as_ref()?.end;
        Some(self.persisted_waiters.add(end))
    }

    /// Bytes in the current group.
    pub(crate) fn forming_bytes(&self) -> usize {
        self.group.bytes
    }

    /// Bytes of the open segment that are accepted and not yet persisted.
    pub(crate) fn unpersisted_bytes(&self) -> u64 {
        let segment = self.next.segment();
        let from = if self.persisted.at.segment() == segment { self.persisted.at.offset() } else { 0 };
        u64::from(self.next.offset().saturating_sub(from))
    }

    /// Bytes that are accepted and not yet written.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.end.since(chunk.start)).sum()
    }

    /// Takes out the file handles, for the caller to drop after unlocking.
    pub(crate) fn release_files(&mut self) -> impl Sized + use<> {
        (self.segment.take(), self.syncing.take(), self.barrier.take())
    }

    /// Takes out all unwritten bytes and all waiters, for the caller to drop after unlocking.
    pub(crate) fn clear(&mut self) -> impl Sized + use<> {
        self.read_view_is_stale = true;
        self.timer = None;
        let waiters = [&mut self.written_waiters, &mut self.persisted_waiters].map(std::mem::take);
        (waiters, std::mem::take(&mut self.chunks), self.open.take(), self.suspended.take())
    }
}
