//! Writes: to submit, incomplete, and suspended for lack of disk space.
//!
//! Invariants:
//! 1. Incomplete writes are in the order of their positions, at most `writes_in_flight_max`.
//! 2. A write counts as complete only when all writes before it are.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use settee_io::{File, Stall};

use crate::options::LogOptions;
use crate::watermark::{Position, Watermark};

/// A write or sync to submit.
#[derive(Clone)]
pub(crate) enum Action {
    /// Write the bytes at the offset; also sync the file if `sync` is set.
    Write { id: u64, file: Arc<File>, offset: u64, bytes: Bytes, sync: bool },
    /// Sync the file.
    Sync { file: Arc<File> },
}

/// A write that was submitted and that the written watermark doesn't cover yet.
struct IncompleteWrite {
    id: u64,
    end: Watermark,
    /// Whether it has succeeded; it then waits for the writes before it.
    done: bool,
}

/// Writes that failed for lack of disk space, until they have succeeded.
struct SuspendedWrites {
    /// Holds the I/O error. Marks the pool as stalled, so that other logs fail instead of waiting for this
    /// log's buffers.
    stall: Stall,
    ids: Vec<u64>,
    /// The writes among them that wait for a retry.
    waiting: Vec<Action>,
}

/// The writes of a log.
pub(super) struct Writes {
    /// End of the bytes whose writes have been submitted.
    submitted: Position,
    /// Writes that were submitted, suspended ones included, in the order of their positions.
    incomplete: VecDeque<IncompleteWrite>,
    last_id: u64,
    suspended: Option<SuspendedWrites>,
}

impl Writes {
    /// The writes of a log whose first write begins at `start`.
    pub(super) fn new(start: Position) -> Writes {
        Writes { submitted: start, incomplete: VecDeque::new(), last_id: 0, suspended: None }
    }

    pub(super) fn submitted(&self) -> Position {
        self.submitted
    }

    /// Whether no write is incomplete.
    pub(super) fn is_idle(&self) -> bool {
        self.incomplete.is_empty()
    }

    /// Whether another write may begin.
    pub(super) fn may_begin(&self, options: &LogOptions) -> bool {
        self.incomplete.len() < options.writes_in_flight_max && self.suspended.is_none()
    }

    /// Begins a write that ends at `end`; the next one begins at `resume` or later. Returns its id.
    pub(super) fn begin(&mut self, end: Watermark, resume: Position) -> u64 {
        self.submitted = resume;
        self.last_id += 1;
        self.incomplete.push_back(IncompleteWrite { id: self.last_id, end, done: false });
        self.last_id
    }

    /// If everything up to `data_end` is submitted, skips the padding after it: the next write begins at
    /// `resume`.
    pub(super) fn skip_padding(&mut self, data_end: Position, resume: Position) {
        if self.submitted == data_end {
            self.submitted = resume;
        }
    }

    /// Records the success of a write. Returns the end of the complete writes if it has moved. With
    /// `passes_gap`, a failpoint, that end covers the write even if an earlier one is incomplete.
    pub(super) fn complete(&mut self, id: u64, passes_gap: bool) -> Option<Watermark> {
        if let Some(suspended) = &mut self.suspended {
            suspended.ids.retain(|suspended_id| *suspended_id != id);
            self.suspended.take_if(|suspended| suspended.ids.is_empty());
        }
        let write = self.incomplete.iter_mut().find(|write| write.id == id);
        write.expect("it was submitted").done = true;
        let mut end = passes_gap.then(|| self.pass_gap(id));
        while let Some(write) = self.incomplete.pop_front_if(|write| write.done) {
            end = Some(write.end);
        }
        end
    }

    /// [`Failpoint::WatermarkPastGap`](crate::failpoints::Failpoint::WatermarkPastGap).
    fn pass_gap(&mut self, id: u64) -> Watermark {
        let ended = self.incomplete.iter().find(|write| write.id == id).expect("it was submitted").end;
        self.incomplete.retain(|write| write.id != id);
        for write in self.incomplete.iter_mut().filter(|write| ended.reaches(write.end)) {
            write.end = ended;
        }
        ended
    }

    /// Registers a write that failed for lack of disk space, for a retry. Returns whether it is the only one
    /// waiting.
    pub(super) fn suspend(&mut self, id: u64, write: Action, stall: Stall) -> bool {
        let none = || SuspendedWrites { stall, ids: Vec::new(), waiting: Vec::new() };
        let suspended = self.suspended.get_or_insert_with(none);
        if !suspended.ids.contains(&id) {
            suspended.ids.push(id);
        }
        suspended.waiting.push(write);
        suspended.waiting.len() == 1
    }

    /// Takes the suspended writes to retry.
    pub(super) fn take_suspended(&mut self) -> Vec<Action> {
        self.suspended.as_mut().map_or_else(Vec::new, |suspended| std::mem::take(&mut suspended.waiting))
    }

    /// The I/O error of the suspended writes.
    pub(super) fn no_space_error(&self) -> Option<Arc<settee_io::Error>> {
        self.suspended.as_ref().map(|suspended| suspended.stall.error().clone())
    }

    /// Whether a suspended write waits for a retry.
    pub(super) fn has_waiting(&self) -> bool {
        self.suspended.as_ref().is_some_and(|suspended| !suspended.waiting.is_empty())
    }

    /// Whether a write has succeeded that waits for one before it.
    pub(super) fn has_done(&self) -> bool {
        self.incomplete.iter().any(|write| write.done)
    }

    /// Releases the suspended writes, for the caller to drop after unlocking.
    pub(super) fn release(&mut self) -> impl Sized + use<> {
        self.suspended.take()
    }

    /// Whether the oldest incomplete write ends at `end`.
    pub(super) fn is_oldest(&self, end: Watermark) -> bool {
        self.incomplete.front().is_some_and(|write| write.end == end)
    }

    /// The first invariant that doesn't hold.
    pub(super) fn violated(&self, options: &LogOptions) -> Option<&'static str> {
        if self.incomplete.len() > options.writes_in_flight_max {
            return Some("too many writes are incomplete");
        }
        let is_ordered = self.incomplete.iter().is_sorted_by(|a, b| a.id < b.id);
        (!is_ordered).then_some("the incomplete writes are out of order")
    }
}
