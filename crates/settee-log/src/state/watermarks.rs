//! Watermarks: how far the log has got at each stage, and how far callers and age limits want it to get.
//!
//! Invariants:
//! 1. `persisted <= written <= accepted`; none moves backwards; each is the end of an unbroken prefix.
//! 2. `write_wanted` and `persist_wanted` never pass `accepted`.

use std::time::Duration;

use super::group::ClosedGroup;
use crate::options::LogOptions;
use crate::types::Stage;
use crate::watermark::{Position, Watermark};

/// See the module documentation.
pub(crate) struct Watermarks {
    /// End of the last accepted frame.
    accepted: Watermark,
    written: Watermark,
    persisted: Watermark,
    /// End of the last persisted frame.
    persisted_frames_end: Position,
    /// Everything up to here is to be written: requested by a caller, or by the age limit.
    write_wanted: Watermark,
    /// Everything up to here is to be persisted: requested by a caller, the age limit, or the limit of a
    /// stream.
    persist_wanted: Watermark,
    /// Since when there are accepted bytes that no caller waits for; `None` once the age limit has requested
    /// their write, or all accepted bytes are submitted.
    accepted_since: Option<Duration>,
    /// When the age limit of written bytes began: with the first write since the last sync, or with that
    /// sync's completion; `None` once the age limit has requested a sync, or if no written byte is unsynced.
    written_since: Option<Duration>,
}

impl Watermarks {
    /// The watermarks of a log that ends at `end` and is fully persisted.
    pub(super) fn new(end: Watermark) -> Watermarks {
        Watermarks {
            accepted: end,
            written: end,
            persisted: end,
            persisted_frames_end: end.at,
            write_wanted: end,
            persist_wanted: end,
            accepted_since: None,
            written_since: None,
        }
    }

    pub(crate) fn accepted(&self) -> Watermark {
        self.accepted
    }

    pub(crate) fn written(&self) -> Watermark {
        self.written
    }

    pub(crate) fn persisted(&self) -> Watermark {
        self.persisted
    }

    /// Whether the stage's watermark covers `wanted`.
    pub(super) fn has_reached(&self, wanted: Watermark, stage: Stage) -> bool {
        match stage {
            Stage::Accepted => self.accepted,
            Stage::Written => self.written,
            Stage::Persisted => self.persisted,
        }
        .reaches(wanted)
    }

    /// Whether it was requested that `wanted` reach the stage.
    pub(super) fn is_wanted(&self, wanted: Watermark, stage: Stage) -> bool {
        match stage {
            Stage::Persisted => self.persist_wanted,
            _ => self.write_wanted,
        }
        .reaches(wanted)
    }

    /// Whether it was requested that bytes after `submitted` be written.
    pub(super) fn wants_write_after(&self, submitted: Position) -> bool {
        self.write_wanted.at > submitted
    }

    /// Whether it was requested that something be persisted that isn't yet.
    pub(super) fn wants_sync(&self) -> bool {
        !self.persisted.reaches(self.persist_wanted)
    }

    /// Offset up to which the frames of a segment are persisted.
    pub(super) fn persisted_frames_end(&self, segment: u32) -> u32 {
        let end = self.persisted_frames_end;
        if end.segment() == segment { end.offset() } else { 0 }
    }

    /// A frame of `count` records was accepted, which ends at `end`.
    pub(super) fn accept(&mut self, count: usize, end: Position) {
        self.accepted = Watermark { seq: self.accepted.seq + count as u64, at: end };
    }

    /// A write has completed; if no earlier one is incomplete, everything up to `end` is written.
    pub(super) fn complete_write(&mut self, end: Option<Watermark>, now: Duration) {
        self.written = end.unwrap_or(self.written);
        self.written_since.get_or_insert(now);
    }

    /// The group's sync has completed.
    pub(super) fn complete_sync(&mut self, group: &ClosedGroup, now: Duration) {
        (self.persisted, self.persisted_frames_end) = (group.end, group.frames_end);
        self.written_since = (self.written.at != self.persisted.at).then_some(now);
    }

    /// Requests that all accepted bytes be written.
    pub(super) fn want_written(&mut self) {
        self.write_wanted = self.accepted;
    }

    /// Requests that all accepted bytes be persisted.
    pub(super) fn want_persisted(&mut self) {
        self.persist_wanted = self.accepted;
    }

    /// Starts the age limit of accepted bytes that no caller waits for.
    pub(super) fn start_age(&mut self, now: impl FnOnce() -> Duration) {
        self.accepted_since.get_or_insert_with(now);
    }

    /// The write of all accepted bytes was submitted.
    pub(super) fn end_age(&mut self) {
        self.accepted_since = None;
    }

    /// Requests a sync or a write if its age limit has passed.
    pub(super) fn apply_age_limits(&mut self, options: &LogOptions, now: Duration) {
        let is_over = |start: &mut Duration, max_ms| now >= *start + Duration::from_millis(max_ms);
        if self.written_since.take_if(|start| is_over(start, options.written_age_ms_max)).is_some() {
            self.want_persisted();
        }
        if self.accepted_since.take_if(|start| is_over(start, options.accepted_age_ms_max)).is_some() {
            self.want_written();
        }
    }

    /// When the next age limit passes. That of accepted bytes counts only while the log writes nothing: bytes
    /// that wait for another write or sync are handled when that completes.
    pub(super) fn age_deadline(&self, options: &LogOptions, is_idle: bool) -> Option<Duration> {
        let end = |start: Option<Duration>, max_ms| Some(start? + Duration::from_millis(max_ms));
        let accepted = end(self.accepted_since.filter(|_| is_idle), options.accepted_age_ms_max);
        [accepted, end(self.written_since, options.written_age_ms_max)].into_iter().flatten().min()
    }

    /// Bytes of the segment being written that are written and not yet persisted; 0 after a violated invariant.
    pub(super) fn unsynced_bytes(&self) -> u64 {
        let (written, persisted) = (self.written.at, self.persisted.at);
        let from = if written.segment() == persisted.segment() { persisted.offset() } else { 0 };
        written.offset().saturating_sub(from).into()
    }

    /// The first invariant that doesn't hold. `next` is where the next frame begins.
    pub(super) fn violated(&self, next: Position) -> Option<&'static str> {
        let Watermarks { accepted, written, persisted, .. } = self;
        let violations = [
            (written.seq > accepted.seq, "the written Seq is past the accepted one"),
            (persisted.seq > written.seq, "the persisted Seq is past the written one"),
            (persisted.at > written.at, "the persisted bytes end past the written ones"),
            (accepted.at > next, "the accepted frames end past the next frame's position"),
            (written.at > next, "the written bytes end past the next frame's position"),
        ];
        violations.into_iter().find_map(|(is_violated, what)| is_violated.then_some(what))
    }
}

#[cfg(test)]
pub(crate) mod tests;
