//! One process of a trial's subject: from its opening to its end or the event.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use settee_io::{Env, OperationKind};

use super::event::{Event, EventKind, Tolerance};
use super::tally::Tally;
use crate::disk::SimDisk;

/// Simulated time after which a process that hasn't ended has failed.
pub const PROCESS_TIME_MAX: Duration = Duration::from_secs(120);

/// How a process begins and ends.
#[derive(Debug, Clone, Copy)]
pub struct ProcessPlan {
    /// 0 for the first process, 1 for all openings under a fault or with a power loss, 2 for the one after
    /// these, 3 for the last.
    pub number: u64,
    /// Number of steps of the workload; the subject decides what a step is.
    pub step_count: u64,
    /// The previous process was killed, and its written bytes are still in the page cache.
    pub after_kill: bool,
    /// The errors that are allowed.
    pub tolerance: Tolerance,
    /// When the process is killed, if it is.
    pub kill_at: Option<Duration>,
}

/// A process's plan, its machine, and the counts.
pub struct Process<'a> {
    pub(super) plan: ProcessPlan,
    /// The environment of the process.
    pub env: &'a Env,
    /// The disk.
    pub disk: &'a SimDisk,
    /// The trial's event.
    pub event: Event,
    pub(super) tally: &'a RefCell<Tally>,
    pub(super) is_opened: Cell<bool>,
}

impl Deref for Process<'_> {
    type Target = ProcessPlan;

    fn deref(&self) -> &ProcessPlan {
        &self.plan
    }
}

impl Process<'_> {
    /// Records that the subject was opened: a later power loss doesn't count as one during recovery.
    pub fn set_opened(&self) {
        self.is_opened.set(true);
    }

    /// Adds to a count of the tally.
    pub fn count(&self, what: &'static str, count: u64) {
        self.tally.borrow_mut().count(what, count);
    }

    /// Whether the subject may stop, and reads may fail.
    pub fn may_stop(&self) -> bool {
        self.tolerance == Tolerance::Stops
    }

    /// The value; `None` for an error in a process in which the subject may stop.
    ///
    /// # Errors
    /// The error in any other process.
    pub fn unless_failed<T, E: fmt::Display>(&self, result: Result<T, E>) -> Result<Option<T>, String> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(_) if self.may_stop() => {
                self.count("error", 1);
                Ok(None)
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// Whether the operation that the event makes fail has been executed.
    pub fn has_failed(&self) -> bool {
        let Event { kind, at } = self.event;
        match kind {
            EventKind::IoError | EventKind::NoSpace | EventKind::NoDescriptor => {
                self.disk.operation_count() > at
            }
            EventKind::SyncError => self.disk.count_of(OperationKind::Sync) > at,
            _ => false,
        }
    }
}
