//! The log's state: accepted records, the location of their bytes, and the watermarks.
//!
//! One mutex protects all of it. Nothing here waits or does I/O: [`LogState::accept`] copies a frame into the
//! open buffer, [`LogState::next_action`] returns the next write or sync to submit, and
//! [`LogState::complete_write`] and [`LogState::complete_sync`] record its result. The rules of group commit
//! are therefore in one place, independent of the threads that execute the actions: `accept` places frames,
//! `pipeline` decides what is written and synced, and when. Both are made of transitions of parts with private
//! fields: the watermarks, their waiters, the buffers, the groups, the writes, the segments.
//!
//! Accepted bytes are kept in a queue of chunks: parts of buffers, and large values that were not copied. A
//! chunk is dropped once its bytes and the frames that reach into it are written. The pool bounds the memory.
//!
//! A *group* is the set of batches that one sync makes durable. A group is closed when a caller waits for it,
//! when written bytes reach their age limit, after 8 MiB of a stream (appends that no caller waits for), and
//! at the end of a segment. It may first wait a moment for callers that have just committed and may commit
//! again. Then all its bytes are written (several writes in flight at once), and then the file is synced.
//! Batches accepted in the meantime form the next group. Full buffers are written as they fill up, also
//! during a sync.
//!
//! Invariants ([`LogState::check`] verifies those that cost only a few comparisons):
//! 1. `persisted <= written <= accepted`; none moves backwards; each is the end of an unbroken prefix.
//! 2. The sync of a group begins when all of the group is written, or together with the group's last write
//!    if no other write is incomplete. So it depends on no other write.
//! 3. Bytes covered by a sync are never written again: after a closed group, the next frame begins at a
//!    multiple of [`SYNC_ALIGNMENT`]. Exempt is the close mark that was found at opening, which shares its block
//!    with no frame: the first frame is written over it.
//! 4. No byte of a segment is written before all of the previous segment is persisted.
//! 5. After a failure no action begins and no watermark moves. A write that fails for lack of disk space is
//!    not a failure: it stays incomplete and is retried with the same bytes at the same offset. Until it
//!    succeeds, no batch is accepted and no other write begins.
//! 6. A chunk is dropped only when every frame that it holds a part of is written: a reader finds a frame
//!    whole in memory, or whole in the file.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use settee_io::BufferPool;
use tokio::sync::oneshot;

use crate::error::Stopped;
use crate::format::{FRAME_HEADER_SIZE, SYNC_ALIGNMENT};
use crate::options::LogOptions;
use crate::types::{LogStats, SegmentInfo, Stage};
use crate::watermark::{Position, Watermark};
use background::{Background, FILL_GROUP_BYTES_MAX};
use buffers::Buffers;
use group::Groups;
use segments::Segments;
use waiters::Waiters;
use watermarks::Watermarks;
use writes::Writes;

mod accept;
mod background;
mod buffers;
mod capacity;
mod chunk;
mod group;
mod pipeline;
mod placement;
mod segments;
mod waiters;
mod watermarks;
mod writes;

pub(crate) use background::{BackgroundJob, FILL_BYTES_MAX};
pub(crate) use capacity::{FIRST_RESERVATION_BYTES, fitting_bytes_max, reserve_ahead_bytes, reserve_bytes};
pub(crate) use chunk::{Chunk, ChunkMemory};
pub(crate) use placement::{AppendBlocked, Placement, SpaceRequest};
pub(crate) use segments::{Continuation, OpenSegment, PreallocatedSegment, SegmentMeta};
pub(crate) use writes::Action;

/// See the module documentation.
pub(crate) struct LogState {
    options: LogOptions,
    pool: Arc<BufferPool>,
    pub watermarks: Watermarks,
    waiters: Waiters,
    buffers: Buffers,
    groups: Groups,
    writes: Writes,
    pub segments: Segments,
    pub background: Background,
    /// Whether a thread is in [`crate::shared::Shared::submit_ready`].
    is_submitting: bool,
    /// Number of writes and syncs that the engine executes; suspended writes excluded.
    engine_operation_count: usize,
    /// When the timer fires; `None` if none is set.
    timer: Option<Duration>,
    /// Whether the log is being closed: a write that fails for lack of disk space then stops the log.
    is_closing: bool,
    stopped: Option<Stopped>,
    counters: LogStats,
}

/// What [`LogState::set_timer`] has changed.
pub(crate) enum TimerChange {
    /// Nothing: no timer is needed, or the one that is set fires early enough.
    None,
    /// The timer was set already, and now fires earlier.
    Moved,
    /// No timer was set; now one is.
    Started,
}

impl LogState {
    /// The state of a log that ends at `end` and is fully persisted.
    pub(crate) fn new(
        options: LogOptions,
        pool: Arc<BufferPool>,
        end: Watermark,
        continuation: Continuation,
        open_segment: Option<OpenSegment>,
        segments: BTreeMap<u32, SegmentMeta>,
        oldest: u32,
    ) -> LogState {
        let next = Position::new(end.at.segment(), end.at.offset().next_multiple_of(SYNC_ALIGNMENT));
        LogState {
            pool,
            watermarks: Watermarks::new(end),
            waiters: Waiters::default(),
            buffers: Buffers::new(&options, next),
            groups: Groups::default(),
            writes: Writes::new(next),
            segments: Segments::new(continuation, open_segment, segments, oldest),
            background: Background::default(),
            options,
            is_submitting: false,
            engine_operation_count: 0,
            timer: None,
            is_closing: false,
            stopped: None,
            counters: LogStats::default(),
        }
    }

    /// Verifies the invariants that cost only a few comparisons, in release builds too, unless the log has
    /// stopped. Called before the next action is taken, so that a panic loses no action, and after each
    /// completion, before readers and waiters see the new watermarks.
    ///
    /// # Panics
    /// If one is violated; under the lock, which stops the log.
    pub(crate) fn check(&self) {
        let next = self.buffers.next();
        let violated = || {
            let submitted = self.writes.submitted() > next;
            // The write that ends the group may include the sync if it is the oldest incomplete one.
            let is_too_early = |end| !self.watermarks.written().reaches(end) && !self.writes.is_oldest(end);
            let synced = self.groups.syncing().is_some_and(is_too_early);
            self.watermarks
                .violated(next)
                .or(submitted.then_some("submitted bytes end past the next frame's position"))
                .or(synced.then_some("a sync began before its group was written"))
                .or(self.writes.violated(&self.options))
        };
        if self.stopped.is_none()
            && let Some(what) = violated()
        {
            panic!("the log's state is invalid: {what}");
        }
    }

    // Submission.

    /// Whether a thread submits actions.
    pub(crate) fn is_submitting(&self) -> bool {
        self.is_submitting
    }

    /// As [`LogState::next_action`], for the thread in [`crate::shared::Shared::submit_ready`], which calls
    /// this until it returns `None`.
    pub(crate) fn submit_next(&mut self, now: Duration) -> Option<Action> {
        self.check();
        let action = self.next_action(now);
        self.is_submitting = action.is_some();
        action
    }

    /// Whether a write or sync is in flight.
    pub(crate) fn has_operations(&self) -> bool {
        self.engine_operation_count > 0
    }

    /// When the timer fires.
    pub(crate) fn timer(&self) -> Option<Duration> {
        self.timer
    }

    /// Sets the timer to the next deadline, unless it already fires by then.
    pub(crate) fn set_timer(&mut self) -> TimerChange {
        let is_earlier = |deadline: &Duration| self.timer.is_none_or(|timer| timer > *deadline);
        match self.deadline().filter(is_earlier).map(|deadline| self.timer.replace(deadline)) {
            None => TimerChange::None,
            Some(None) => TimerChange::Started,
            Some(Some(_)) => TimerChange::Moved,
        }
    }

    /// The timer has fired.
    pub(crate) fn end_timer(&mut self) {
        self.timer = None;
    }

    /// Registers a caller that waits until `wanted` reaches the stage. Returns `None` if it already has.
    pub(crate) fn begin_wait(
        &mut self,
        wanted: Watermark,
        stage: Stage,
    ) -> Result<Option<oneshot::Receiver<()>>, Stopped> {
        let has_reached = stage == Stage::Accepted || self.watermarks.has_reached(wanted, stage);
        if let Some(stopped) = &self.stopped
            && (stopped.is_panic() || stage == Stage::Accepted || !has_reached)
        {
            // After a panic the watermarks can't be trusted either.
            return Err(stopped.clone());
        }
        if has_reached {
            return Ok(None);
        }
        // A waiter triggers the write or sync of what is accepted already; later appends trigger their own.
        if self.watermarks.has_reached(wanted, Stage::Accepted) && !self.watermarks.is_wanted(wanted, stage) {
            self.want(stage);
        }
        Ok(Some(self.waiters.add(wanted, stage)))
    }

    // Segments.

    /// Returns what blocks a batch, for the caller to reserve. If the batch needs a new segment, the open one
    /// takes no batches until [`Segments::set_rolling`] ends that, since the new segment's header contains
    /// the end of the open one.
    pub(crate) fn begin_reservation(&mut self, request: SpaceRequest) -> Option<AppendBlocked> {
        let blocked = self.check_space(request).err();
        self.segments.set_rolling(matches!(blocked, Some(AppendBlocked::Segment)));
        blocked
    }

    /// See [`Segments::end_early`].
    pub(crate) fn end_segment(&mut self) {
        self.segments.end_early(self.watermarks.accepted());
    }

    /// Whether the open segment has records and can be followed by another now. Then it takes no batches until
    /// [`Segments::set_rolling`] ends that.
    pub(crate) fn begin_rolling(&mut self) -> bool {
        let may_roll = self.segments.open_has_records(self.watermarks.accepted())
            && !self.segments.is_rolling()
            && self.no_space_error().is_none();
        if may_roll {
            self.segments.set_rolling(true);
        }
        may_roll
    }

    /// See [`Background::begin`].
    pub(crate) fn begin_background_job(&mut self) -> Option<BackgroundJob> {
        let (persisted, used) = (self.watermarks.persisted().at, self.buffers.next().offset());
        let log_bytes = self.log_bytes();
        self.background.begin(&self.segments, persisted, used, log_bytes)
    }

    /// Whether filling reserved space with zeros pays: while groups are small. The forming group counts too,
    /// because that of a stream grows large before it is closed.
    pub(crate) fn zero_fill_pays(&self) -> bool {
        self.counters.sync_count > 0 && self.groups.usual_bytes() < FILL_GROUP_BYTES_MAX
    }

    /// Records that disk space of the open segment is reserved up to `end`.
    pub(crate) fn set_reserved(&mut self, end: u32) {
        self.segments.set_reserved(end);
        self.background.forget_refusal();
    }

    /// See [`Segments::begin_sealing`].
    pub(crate) fn begin_sealing(&mut self) -> Option<u32> {
        self.segments.begin_sealing(self.watermarks.persisted().at)
    }

    /// See [`Segments::request_sealing`].
    pub(crate) fn request_sealing(&mut self) -> u32 {
        self.segments.request_sealing(self.watermarks.persisted().at)
    }

    /// See [`Segments::truncated_below`].
    pub(crate) fn truncated_below(&self) -> Option<u32> {
        self.segments.truncated_below(self.watermarks.persisted().at)
    }

    /// Declares that records before `seq` aren't needed any more.
    pub(crate) fn truncate_before(&mut self, seq: u64) {
        self.segments.truncate_before(seq, self.watermarks.accepted());
    }

    /// Size of the log in bytes: its segments, and the live bytes of those that are listed.
    pub(crate) fn log_bytes(&self) -> u64 {
        self.segments.file_bytes(self.watermarks.accepted().at) + self.segments.listed_live_bytes()
    }

    /// Metadata of the segments, oldest first.
    pub(crate) fn segment_infos(&self) -> Vec<SegmentInfo> {
        self.segments.infos(self.watermarks.accepted())
    }

    /// Bytes of the open segment that are accepted and not yet persisted.
    pub(crate) fn unpersisted_bytes(&self) -> u64 {
        let (next, persisted) = (self.buffers.next(), self.watermarks.persisted().at);
        let from = if persisted.segment() == next.segment() { persisted.offset() } else { 0 };
        u64::from(next.offset().saturating_sub(from))
    }

    /// Switches direct mode on or off. In direct mode, buffers begin and end at multiples of
    /// [`SYNC_ALIGNMENT`].
    pub(crate) fn set_direct(&mut self, direct: bool) {
        if direct && !self.options.direct {
            self.buffers.align();
        }
        self.options.direct = direct;
    }

    // Reading.

    /// The queue of chunks: all accepted bytes that are not yet written, and those before them in the same
    /// chunk or frame.
    pub(crate) fn chunks(&self) -> &VecDeque<Chunk> {
        self.buffers.chunks()
    }

    /// Whether the chunks have changed since the last call.
    pub(crate) fn take_stale(&mut self) -> bool {
        self.buffers.take_stale()
    }

    /// Counters since the log was opened, and current sizes.
    pub(crate) fn stats(&self) -> LogStats {
        LogStats {
            sync_us: self.groups.sync_time().as_micros() as u64,
            file_bytes: self.segments.file_bytes(self.watermarks.accepted().at),
            reserved_bytes: self.segments.reserved_bytes(self.buffers.next()),
            padding_bytes: self.buffers.padding_bytes(),
            memory_bytes: self.buffers.memory_bytes() as u64,
            unsynced_bytes: self.watermarks.unsynced_bytes(),
            ..self.counters
        }
    }

    // The end.

    /// Why the log has stopped.
    pub(crate) fn stopped(&self) -> Option<&Stopped> {
        self.stopped.as_ref()
    }

    /// Fails if the log has stopped.
    pub(crate) fn health(&self) -> Result<(), Stopped> {
        self.stopped.clone().map_or(Ok(()), Err)
    }

    /// Whether the log has stopped or is being closed.
    pub(crate) fn is_ending(&self) -> bool {
        self.stopped.is_some() || self.is_closing
    }

    /// The close mark and the position after which it is written: that of the last frame's end. `None` if some
    /// of the log isn't persisted, or a mark isn't needed.
    pub(crate) fn close_mark(&self) -> Option<(Position, [u8; FRAME_HEADER_SIZE])> {
        let (accepted, persisted) = (self.watermarks.accepted(), self.watermarks.persisted());
        let mark = self.segments.close_mark(accepted).filter(|_| persisted.reaches(accepted))?;
        Some((accepted.at, mark))
    }

    /// The log is being closed.
    pub(crate) fn begin_closing(&mut self) {
        self.is_closing = true;
    }

    /// Stops the log, unless it has stopped: the first reason latches.
    pub(crate) fn stop(&mut self, stopped: Stopped) {
        self.stopped.get_or_insert(stopped);
    }

    /// Takes out the file handles, for the caller to drop after unlocking.
    pub(crate) fn release_files(&mut self) -> impl Sized + use<> {
        (self.segments.release(), self.groups.release())
    }

    /// Takes out all unwritten bytes and all waiters, for the caller to drop after unlocking.
    pub(crate) fn release(&mut self) -> impl Sized + use<> {
        self.timer = None;
        (std::mem::take(&mut self.waiters), self.buffers.release(), self.writes.release())
    }
}

#[cfg(test)]
pub(crate) mod tests;
