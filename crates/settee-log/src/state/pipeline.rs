//! The write pipeline: which write or sync is next, when a group is closed, and what has completed.
//!
//! The life of a write: `accept` adds bytes to a chunk; `next_write` submits a part of a chunk, up to the end
//! of the closed group, of the previous segment (the *barrier*), or of what is accepted; `complete_write`
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
use super::chunk::Chunk;
use super::group::{Barrier, ClosedGroup};
use super::segments::OpenSegment;
use super::write::{Action, IncompleteWrite, SuspendedWrites};
use crate::failpoints::Failpoint;
use crate::watermark::{Position, Watermark};

/// A stream (appends that no caller waits for) is synced each time this many bytes have been accepted. The
/// next segment waits for the sync at the end of the current one; this limit keeps that sync short.
const STREAM_SYNC_BYTES: usize = 8 << 20;

/// Weight of the running average of the sync time: a new measurement counts one part in this many.
const SYNC_TIME_WEIGHT: u32 = 8;

impl LogState {
    /// Requests that all accepted bytes be written.
    pub(crate) fn want_written(&mut self) {
        self.write_wanted = self.accepted;
    }

    /// Registers a committer: requests that all accepted bytes be persisted. The next group expects this
    /// caller again.
    pub(crate) fn add_committer(&mut self) {
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
        let action = self.begin_next_action(now);
        self.engine_operation_count += usize::from(action.is_some());
        action
    }

    fn begin_next_action(&mut self, now: Duration) -> Option<Action> {
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
        if self.closed_group.is_none() && self.group.bytes >= STREAM_SYNC_BYTES {
            self.persist_wanted = self.accepted;
        }
        if self.closed_group.is_none() && self.group_is_due(now) {
            self.close_group();
        }
        if let Some(group) = &mut self.closed_group
            && group.sync_started_at.is_none()
            && self.written.reaches(group.end)
        {
            group.sync_started_at = Some(now);
            return Some(Action::Sync { file: group.file.clone() });
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
        let is_idle = self.incomplete_writes.is_empty() && self.barrier.is_none();
        let accepted = age(self.accepted_since.filter(|_| is_idle), self.options.accepted_age_ms_max);
        let written = age(self.written_since, self.options.written_age_ms_max);
        let group = (self.closed_group.is_none() && self.group_is_wanted()).then(|| self.group_deadline());
        [accepted, written, group].into_iter().flatten().min()
    }

    fn is_old(&self, since: Option<Duration>, max_ms: u64, now: Duration) -> bool {
        since.is_some_and(|since| now >= since + Duration::from_millis(max_ms))
    }

    fn group_is_wanted(&self) -> bool {
        !self.persisted.reaches(self.persist_wanted)
    }

    /// Until when a wanted group waits for more batches: those of committers whose previous commit has just
    /// completed and who are likely to commit again.
    fn group_deadline(&self) -> Duration {
        let max = Duration::from_micros(self.options.group_delay_us_max);
        self.group.synced_at + (self.sync_time / 2).min(max)
    }

    /// Whether to close the group now. Only a group of two or more committers can gain from waiting, so one
    /// that expects a single committer is due as soon as that one commits.
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
                let file = self.open_segment.as_ref().expect("something was accepted").file.clone();
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
        self.closed_group =
            Some(ClosedGroup { end, frames_end, resume, file, committer_count, sync_started_at: None });
    }

    /// End of the last write of the accepted bytes: in direct mode, this includes padding that is not yet
    /// written.
    fn data_end(&self) -> Position {
        let resume =
            self.closed_group.as_ref().map_or(self.submitted, |group| group.resume.max(self.submitted));
        match self.chunks.back() {
            Some(last) if self.options.direct && last.end > resume => last.end.max(self.accepted.at),
            _ => self.accepted.at,
        }
    }

    fn next_write(&mut self, now: Duration) -> Option<Action> {
        if self.incomplete_writes.len() >= self.options.writes_in_flight_max || self.suspended.is_some() {
            return None;
        }
        let index = self.chunks.iter().position(|chunk| chunk.end > self.submitted)?;
        let start = self.chunks[index].start.max(self.submitted);
        if self.barrier.as_ref().is_some_and(|barrier| start >= barrier.end.at) {
            return None;
        }
        let is_open = self.open_buffer.is_some() && index + 1 == self.chunks.len();
        let group = self
            .closed_group
            .as_ref()
            .filter(|group| group.end.at > start)
            .map(|group| (group.end, group.resume));
        let chunk_end = Watermark { seq: self.chunks[index].seq, at: self.chunks[index].end };
        let (end, resume) = match group {
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
        let sync = match &mut self.closed_group {
            Some(group) if group.end == end && self.incomplete_writes.is_empty() => {
                group.sync_started_at = Some(now);
                true
            }
            _ => false,
        };
        self.submitted = resume;
        if self.all_is_submitted() {
            self.accepted_since = None;
        }
        self.write_count += 1;
        self.incomplete_writes.push_back(IncompleteWrite { id: self.write_count, end, done: false });
        Some(Action::Write { id: self.write_count, file, offset: u64::from(start.offset()), bytes, sync })
    }

    /// Whether the open buffer should be written although it isn't full. Only one such write is in flight at
    /// a time; bytes accepted in the meantime go into the next.
    fn open_chunk_is_due(&self) -> bool {
        self.write_wanted.at > self.submitted && self.incomplete_writes.is_empty()
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
        let write = self.incomplete_writes.iter_mut().find(|write| write.id == id);
        write.expect("it was submitted").done = true;
        if self.options.is_enabled(Failpoint::WatermarkPastGap) {
            self.advance_past_gap(id);
        }
        while let Some(write) = self.incomplete_writes.pop_front_if(|write| write.done) {
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

    /// Registers a write that failed for lack of disk space, for a retry. Returns whether it is the only one
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

    /// Takes the writes to retry; the engine executes them again.
    pub(crate) fn take_suspended_writes(&mut self) -> Vec<Action> {
        let writes = self.suspended.as_mut().map_or_else(Vec::new, |all| std::mem::take(&mut all.waiting));
        self.engine_operation_count += writes.len();
        writes
    }

    /// The I/O error of the writes that failed for lack of disk space.
    pub(crate) fn no_space_error(&self) -> Option<Arc<settee_io::Error>> {
        self.suspended.as_ref().map(|suspended| suspended.stall.error().clone())
    }

    /// Whether a write has completed that no completed sync covers.
    pub(crate) fn has_unsynced(&self) -> bool {
        self.written.at != self.persisted.at || self.incomplete_writes.iter().any(|write| write.done)
    }

    /// If a write is suspended and another completed write is unsynced, returns the error: it may be that
    /// write's, so the log must stop.
    pub(crate) fn no_space_with_unsynced_writes(&self) -> Option<Arc<settee_io::Error>> {
        let suspended = self.suspended.as_ref().filter(|suspended| !suspended.waiting.is_empty())?;
        self.has_unsynced().then(|| suspended.stall.error().clone())
    }

    /// [`Failpoint::WatermarkPastGap`].
    fn advance_past_gap(&mut self, id: u64) {
        let index = self.incomplete_writes.iter().position(|write| write.id == id).expect("it was submitted");
        let ended = self.incomplete_writes.remove(index).expect("the index is valid");
        self.written = ended.end;
        for write in self.incomplete_writes.iter_mut().filter(|write| ended.end.reaches(write.end)) {
            write.end = ended.end;
        }
    }

    fn all_is_submitted(&self) -> bool {
        self.chunks.back().is_none_or(|last| last.end <= self.submitted)
    }

    /// Drops the chunks that are written.
    fn release_written_chunks(&mut self) {
        if self.incomplete_writes.is_empty() && self.all_is_submitted() {
            // The log is idle: the next append takes a small buffer.
            self.read_view_is_stale |= !self.chunks.is_empty();
            self.chunks.clear();
            self.open_buffer = None;
            self.buffer_bytes = self.options.buffer_bytes_min;
        }
        let open_count = usize::from(self.open_buffer.is_some());
        let is_written = |chunk: &Chunk| chunk.end <= self.written.at && chunk.frame_end <= self.written.at;
        while self.chunks.len() > open_count && is_written(&self.chunks[0]) {
            self.chunks.pop_front();
            self.read_view_is_stale = true;
        }
    }

    /// Records the success of the closed group's sync. Returns the waiters to notify.
    pub(crate) fn complete_sync(&mut self, now: Duration) -> Vec<oneshot::Sender<()>> {
        if self.stopped.is_some() {
            return Vec::new();
        }
        let synced = self.closed_group.take().expect("a group is closed");
        let taken = now.saturating_sub(synced.sync_started_at.expect("its sync has begun"));
        self.sync_time = match self.sync_time {
            Duration::ZERO => taken,
            average => (average * (SYNC_TIME_WEIGHT - 1) + taken) / SYNC_TIME_WEIGHT,
        };
        self.persisted = synced.end;
        self.persisted_frames_end = synced.frames_end;
        if self.written.at == self.persisted.at {
            self.written_since = None;
        } else {
            self.written_since = Some(now);
        }
        self.barrier.take_if(|barrier| synced.end.reaches(barrier.end));
        self.group.synced_at = now;
        self.group.expected_count = synced.committer_count + self.group.committer_count;
        self.stats.sync_count += 1;
        self.stats.sync_us = self.sync_time.as_micros() as u64;
        self.persisted_waiters.take_reached(self.persisted)
    }

    /// [`Failpoint::SyncRetried`].
    pub(crate) fn retry_sync(&mut self) {
        self.engine_operation_count -= 1;
        self.closed_group.as_mut().expect("a group is closed").sync_started_at = None;
    }

    /// Makes `segment` the open one, which takes all later appends. No byte of it is written until all of the
    /// previous segment is persisted.
    pub(crate) fn begin_segment(&mut self, segment: OpenSegment) {
        assert!(!self.has_barrier(), "the previous segment is persisted");
        if let Some(previous) = &self.open_segment {
            let file = previous.file.clone();
            if self.open_buffer.is_some() {
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
        self.open_segment = Some(segment);
    }

    /// Whether the previous segment is not yet persisted.
    fn has_barrier(&self) -> bool {
        self.barrier.is_some()
    }

    /// Returns a receiver that is notified when the previous segment is persisted; `None` if it is.
    pub(crate) fn barrier_waiter(&mut self) -> Option<oneshot::Receiver<()>> {
        let end = self.barrier.as_ref()?.end;
        Some(self.persisted_waiters.add(end))
    }
}
