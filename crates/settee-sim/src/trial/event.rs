//! What happens to the machine in a trial, and the errors that it allows.

use std::fmt;
use std::str::FromStr;

use settee_io::OperationKind;

use crate::disk::SimDisk;
use crate::plan::Fault;

/// What happens. Each variant's comment says what [`Event::at`] means: an index, a time or a size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    /// A power loss while the operation with this index is in flight.
    PowerLoss,
    /// A power loss when the sync with this index has taken effect.
    PowerLossAfterSync,
    /// The process is killed after this many microseconds; the system continues.
    Kill,
    /// The operation with this index fails with EIO.
    IoError,
    /// The operation with this index fails with ENOSPC.
    NoSpace,
    /// The operation with this index gets no file descriptor, if it needs one.
    NoDescriptor,
    /// The sync with this index fails with EIO.
    SyncError,
    /// The read with this index fails during the second opening.
    ReadError,
    /// The disk's capacity is this many bytes, also during the second opening.
    FullDisk,
}

const NAMES: [(&str, EventKind); 9] = [
    ("power-loss-at", EventKind::PowerLoss),
    ("power-loss-after-sync", EventKind::PowerLossAfterSync),
    ("kill-at", EventKind::Kill),
    ("io-error-at", EventKind::IoError),
    ("no-space-at", EventKind::NoSpace),
    ("no-descriptor-at", EventKind::NoDescriptor),
    ("sync-error-at", EventKind::SyncError),
    ("read-error-at", EventKind::ReadError),
    ("full-disk-at", EventKind::FullDisk),
];

/// The event of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// What happens.
    pub kind: EventKind,
    /// When it happens, or the capacity of the disk: see [`EventKind`]. Indices begin with 0.
    pub at: u64,
}

/// The errors that the subject may return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tolerance {
    /// None: nothing fails.
    None,
    /// Refusals for lack of disk space.
    Refusals,
    /// Any: the subject may also stop, and reads may fail.
    Stops,
}

impl Event {
    /// An event.
    pub const fn new(kind: EventKind, at: u64) -> Event {
        Event { kind, at }
    }

    /// Plans the event on the disk of the first process.
    pub(super) fn plan(self, disk: SimDisk) -> SimDisk {
        let at = self.at;
        match self.kind {
            EventKind::PowerLoss => disk.crash_at_operation(at),
            EventKind::PowerLossAfterSync => disk.crash_after_sync(at),
            EventKind::IoError => disk.fail_operation(at, Fault::Io),
            EventKind::NoSpace => disk.fail_operation(at, Fault::NoSpace),
            EventKind::NoDescriptor => disk.fail_operation(at, Fault::NoDescriptor),
            EventKind::SyncError => disk.fail(OperationKind::Sync, at, Fault::Io),
            EventKind::FullDisk => disk.capacity(Some(at)),
            EventKind::Kill | EventKind::ReadError => disk,
        }
    }

    /// The errors that are allowed in the first process.
    pub(super) fn tolerance(self) -> Tolerance {
        match self.kind {
            EventKind::IoError | EventKind::NoSpace | EventKind::NoDescriptor | EventKind::SyncError => {
                Tolerance::Stops
            }
            EventKind::FullDisk => Tolerance::Refusals,
            EventKind::PowerLoss | EventKind::PowerLossAfterSync | EventKind::Kill | EventKind::ReadError => {
                Tolerance::None
            }
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, _) = NAMES.iter().find(|(_, kind)| *kind == self.kind).expect("every kind has a name");
        write!(f, "{name}-{}", self.at)
    }
}

impl FromStr for Event {
    type Err = String;

    fn from_str(text: &str) -> Result<Event, String> {
        let event = text.rsplit_once('-').and_then(|(name, at)| {
            let (_, kind) = NAMES.iter().find(|(known, _)| *known == name)?;
            Some(Event::new(*kind, at.parse().ok()?))
        });
        event.ok_or_else(|| format!("{text:?} is not an event"))
    }
}
