//! The write pipeline: which write or sync is next, when a group is closed, and what has completed.
//!
//! The steps of a write: `accept` adds bytes to a chunk; `next_write` submits a part of a chunk, up to the
//! end of the closed group, of the previous segment (the *barrier*), or of what is accepted; `complete_write`
//! marks it done, and advances `written` over all done writes before the first that isn't. Once `written`
//! reaches the end of the closed group, a sync persists the group, and `complete_sync` advances `persisted`.
//! The last write of a group includes the sync if no other write is incomplete.
//!
//! Closing a group pads the log to a multiple of [`SYNC_ALIGNMENT`](crate::format::SYNC_ALIGNMENT) (`pad`).
//! The next bytes begin after the padding (`resume`), so that no byte that a sync covers is written again.

use std::sync::Arc;
use std::time::Duration;

use settee_io::Stall;
use tokio::sync::oneshot;

use super::LogState;
use super::group::ClosedGroup;
use super::segments::PreallocatedSegment;
use super::writes::Action;
use crate::failpoints::Failpoint;
use crate::types::Stage;
use crate::watermark::{Position, Watermark};

/// A stream (appends that no caller waits for) is synced each time this many bytes have been accepted. The
/// next segment waits for the sync at the end of the current one; this limit keeps that sync short.
const STREAM_SYNC_BYTES: usize = 8 << 20;

impl LogState {
    /// Returns the next action, which counts as begun. The caller repeats this until it returns `None`.
    pub(crate) fn next_action(&mut self, now: Duration) -> Option<Action> {
        let action = if self.stopped.is_some() { None } else { self.begin_next_action(now) };
        self.engine_operation_count += usize::from(action.is_some());
        action
    }

    fn begin_next_action(&mut self, now: Duration) -> Option<Action> {
        self.watermarks.apply_age_limits(&self.options, now);
        if self.groups.closed().is_none() {
            if self.groups.forming_bytes() >= STREAM_SYNC_BYTES {
                self.watermarks.want_persisted();
            }
            let is_wanted = self.watermarks.wants_sync();
            if self.groups.barrier().is_some() || is_wanted && self.groups.is_due(&self.options, now) {
                self.close_group();
            }
        }
        match self.groups.begin_sync(self.watermarks.written(), now) {
            Some(file) => Some(Action::Sync { file }),
            None => self.next_write(now),
        }
    }

    /// When to call [`LogState::next_action`] again if no other event comes first.
    pub(super) fn deadline(&self) -> Option<Duration> {
        if self.stopped.is_some() {
            return None;
        }
        let is_idle = self.writes.is_idle() && self.groups.barrier().is_none();
        let is_forming = self.groups.closed().is_none() && self.watermarks.wants_sync();
        let group = is_forming.then(|| self.groups.deadline(&self.options));
        [self.watermarks.age_deadline(&self.options, is_idle), group].into_iter().flatten().min()
    }

    /// Closes the current group.
    fn close_group(&mut self) {
        let group = match self.groups.barrier() {
            Some(barrier) => barrier.clone(),
            None => {
                let accepted = self.watermarks.accepted();
                self.buffers.pad();
                let end = Watermark { at: self.data_end(), ..accepted };
                let file = self.segments.open().expect("something was accepted").file.clone();
                ClosedGroup { end, frames_end: accepted.at, resume: self.buffers.next(), file }
            }
        };
        // The padding after the data lies in a block that this sync covers.
        self.writes.skip_padding(group.end.at, group.resume);
        self.groups.close(group);
    }

    /// Where the last write of the accepted bytes ends: after the last frame, or in direct mode after the
    /// padding behind it if that isn't submitted yet.
    fn data_end(&self) -> Position {
        let submitted = self.writes.submitted();
        let resume = self.groups.closed().map_or(submitted, |group| group.resume.max(submitted));
        let accepted = self.watermarks.accepted().at;
        match self.buffers.end() {
            Some(end) if self.options.direct && end > resume => end.max(accepted),
            _ => accepted,
        }
    }

    fn next_write(&mut self, now: Duration) -> Option<Action> {
        if !self.writes.may_begin(&self.options) {
            return None;
        }
        let submitted = self.writes.submitted();
        let (chunk, is_open) = self.buffers.chunk_after(submitted)?;
        let start = chunk.start.max(submitted);
        if self.groups.barrier().is_some_and(|barrier| start >= barrier.end.at) {
            return None;
        }
        let chunk_end = Watermark { seq: chunk.seq, at: chunk.end };
        let (end, resume) = match self.groups.closed().filter(|group| group.end.at > start) {
            Some(group) if group.end.at <= chunk_end.at => (group.end, group.resume),
            None if is_open && !self.open_chunk_is_due() => return None,
            None if is_open => self.end_open_chunk()?,
            _ => (chunk_end, chunk_end.at),
        };
        let (chunk, _) = self.buffers.chunk_after(submitted)?;
        let bytes = chunk.memory.share(start.since(chunk.start), end.at.since(chunk.start));
        let file = chunk.file.clone();
        // The last write of a group includes the sync if no other write is incomplete.
        let sync = self.writes.is_idle() && self.groups.begin_sync_with_write(end, now);
        let id = self.writes.begin(end, resume);
        if self.buffers.is_submitted(resume) {
            self.watermarks.end_age();
        }
        Some(Action::Write { id, file, offset: u64::from(start.offset()), bytes, sync })
    }

    /// Whether the open buffer should be written although it isn't full. Only one such write is in flight at
    /// a time; bytes accepted in the meantime go into the next.
    fn open_chunk_is_due(&self) -> bool {
        self.watermarks.wants_write_after(self.writes.submitted()) && self.writes.is_idle()
    }

    /// Ends a write of the open chunk at the last accepted byte, in direct mode after padding. Returns that
    /// end, and where the next write begins.
    fn end_open_chunk(&mut self) -> Option<(Watermark, Position)> {
        if self.options.direct {
            self.buffers.pad();
        }
        let end = Watermark { at: self.buffers.end()?, ..self.watermarks.accepted() };
        Some((end, self.buffers.next()))
    }

    /// Records the success of a write. Returns the waiters to notify.
    pub(crate) fn complete_write(&mut self, id: u64, size: usize, now: Duration) -> Vec<oneshot::Sender<()>> {
        if self.stopped.is_some() {
            return Vec::new();
        }
        self.counters.write_count += 1;
        self.counters.written_bytes += size as u64;
        let end = self.writes.complete(id, self.options.is_enabled(Failpoint::WatermarkPastGap));
        self.watermarks.complete_write(end, now);
        let written = self.watermarks.written();
        let is_idle = self.writes.is_idle() && self.buffers.is_submitted(self.writes.submitted());
        self.buffers.release_written(&self.options, written, is_idle);
        let mut woken = self.waiters.take_written(written);
        if self.options.is_enabled(Failpoint::EarlyAcknowledgement) {
            woken.append(&mut self.waiters.take_persisted(written));
        }
        woken
    }

    /// Records the success of the closed group's sync. Returns the waiters to notify.
    pub(crate) fn complete_sync(&mut self, now: Duration) -> Vec<oneshot::Sender<()>> {
        if self.stopped.is_some() {
            return Vec::new();
        }
        let group = self.groups.complete_sync(now);
        self.watermarks.complete_sync(&group, now);
        self.counters.sync_count += 1;
        self.waiters.take_persisted(self.watermarks.persisted())
    }

    /// Counts an operation of the engine as ended, with or without success.
    pub(crate) fn end_operation(&mut self) {
        self.engine_operation_count -= 1;
    }

    /// [`Failpoint::SyncRetried`].
    pub(crate) fn retry_sync(&mut self) {
        self.end_operation();
        self.groups.retry_sync();
    }

    /// Registers a write that failed for lack of disk space, for a retry. Returns whether it is the only one
    /// waiting; `None`, without effect, if the log has stopped or is being closed, or if another completed
    /// write is unsynced.
    pub(crate) fn suspend_write(&mut self, id: u64, write: Action, stall: Stall) -> Option<bool> {
        if self.stopped.is_some() || self.is_closing || self.has_unsynced() {
            return None;
        }
        self.end_operation();
        Some(self.writes.suspend(id, write, stall))
    }

    /// Takes the writes to retry; the engine executes them again.
    pub(crate) fn take_suspended_writes(&mut self) -> Vec<Action> {
        let writes = self.writes.take_suspended();
        self.engine_operation_count += writes.len();
        writes
    }

    /// The I/O error of the writes that failed for lack of disk space.
    pub(crate) fn no_space_error(&self) -> Option<Arc<settee_io::Error>> {
        self.writes.no_space_error()
    }

    /// Whether a write has completed that no completed sync covers.
    fn has_unsynced(&self) -> bool {
        self.watermarks.written().at != self.watermarks.persisted().at || self.writes.has_done()
    }

    /// If a suspended write waits for a retry while a completed one is unsynced, returns the error. It may
    /// belong to the completed write, so the log must stop.
    pub(crate) fn no_space_with_unsynced_writes(&self) -> Option<Arc<settee_io::Error>> {
        self.no_space_error().filter(|_| self.writes.has_waiting() && self.has_unsynced())
    }

    /// Makes the new segment the open one, which takes all later appends; its header is accepted with the first
    /// frame. No byte of it is written until all of the previous segment is persisted.
    pub(crate) fn begin_segment(&mut self, new: PreallocatedSegment, bytes_max: u32) {
        let (accepted, persisted) = (self.watermarks.accepted(), self.watermarks.persisted());
        let mut barrier = None;
        if let Some(previous) = self.segments.open() {
            let file = previous.file.clone();
            self.buffers.close(self.options.direct);
            let at = self.data_end().max(persisted.at);
            // Without unpersisted frames no sync is needed: the padding after the tail of a reopened log
            // isn't written.
            barrier = (!persisted.reaches(accepted)).then_some(ClosedGroup {
                end: Watermark { at, ..accepted },
                frames_end: accepted.at,
                resume: at,
                file,
            });
        }
        self.groups.begin_segment(barrier);
        self.buffers.begin_segment(new.number);
        self.background.forget_refusal();
        self.segments.begin(new, bytes_max, accepted);
    }

    /// Returns a receiver that is notified when the previous segment is persisted; `None` if it is.
    pub(crate) fn barrier_waiter(&mut self) -> Option<oneshot::Receiver<()>> {
        let end = self.groups.barrier()?.end;
        Some(self.waiters.add(end, Stage::Persisted))
    }
}
