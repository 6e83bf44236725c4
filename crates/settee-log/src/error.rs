//! Errors: why the log refused a batch, stopped, or could not be opened or read; and which I/O errors are
//! refusals, after which the log stays usable.

use std::path::PathBuf;
use std::sync::Arc;

use settee_io::{Damage, OperationKind};

use crate::types::Seq;

/// An option that contradicts another one or the format: see [`crate::LogOptions::check`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is {value}: {rule}")]
pub struct InvalidLimit {
    /// The option's name, as in the options struct.
    pub name: &'static str,
    /// Its value.
    pub value: u64,
    /// The rule that it violates, as text.
    pub rule: String,
}

/// A write or sync failed, now or earlier: the log accepts nothing more; reads still work. Reopen it to learn
/// what survived.
#[derive(Debug, Clone, thiserror::Error)]
#[error("log stopped: {source}")]
pub struct Stopped {
    /// The first failure, or that the log was closed.
    pub source: Arc<settee_io::Error>,
}

impl Stopped {
    /// Whether a panic stopped the log, so that its state is unknown.
    pub(crate) fn is_panic(&self) -> bool {
        matches!(*self.source, settee_io::Error::Panicked { .. })
    }
}

/// Why a batch was not accepted. `NoSpace` and `NoDescriptor` are refusals; nothing latches.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AppendError {
    /// Refused before writing; the log stays usable.
    #[error("batch of {size} bytes exceeds {max}")]
    TooLarge {
        /// The batch's size in bytes.
        size: usize,
        /// The limit in bytes.
        max: usize,
    },

    /// The next segment could not be created because the process has no free file descriptor. The log stays
    /// usable; a retry succeeds once a descriptor is free.
    #[error("no file descriptor for {size} bytes: {source}")]
    NoDescriptor {
        /// The batch's size in bytes.
        size: usize,
        /// The I/O error.
        source: Arc<settee_io::Error>,
    },

    /// Disk space could not be reserved, or a write of an earlier batch failed for lack of space (and is
    /// being retried). The log stays usable.
    #[error("no space for {size} bytes: {source}")]
    NoSpace {
        /// The batch's size in bytes.
        size: usize,
        /// The I/O error.
        source: Arc<settee_io::Error>,
    },

    /// The log has stopped.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// Why a record could not be read. The log stays usable.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ReadError {
    /// The bytes at this location are not the record that was written there.
    #[error("damaged record in {0}")]
    Damaged(Damage),

    /// The log has no such segment.
    #[error("no segment {segment}")]
    NoSegment {
        /// The requested segment.
        segment: u32,
    },

    /// The record was accepted, but the log stopped before it was written; or the log was closed.
    #[error(transparent)]
    Stopped(Stopped),

    /// The read failed.
    #[error(transparent)]
    Io(#[from] settee_io::Error),
}

/// Why a log could not be opened. No file was changed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum OpenError {
    /// Bytes that had been persisted are not those that were written.
    #[error("damaged log: {0}")]
    Damaged(Damage),

    /// A segment between others is missing.
    #[error("damaged log: {} is missing", path.display())]
    Missing {
        /// The missing file.
        path: PathBuf,
    },

    /// The log ends before a record that the caller has seen: part of it was lost, or it is an older copy.
    #[error(
        "damaged log: {} at offset {offset}: it ends at update {}, before {}",
        path.display(), found.0, expected.0
    )]
    Behind {
        /// The last segment's file.
        path: PathBuf,
        /// Where its frames end.
        offset: u64,
        /// The log's last record.
        found: Seq,
        /// A record that the log contained: see [`crate::Log::open_after`].
        expected: Seq,
    },

    /// The file was written by another version.
    #[error("{} has format {found}; this version reads {known}", path.display())]
    OtherFormat {
        /// The file: a segment, or the manifest.
        path: PathBuf,
        /// The format version of the file.
        found: u32,
        /// The format version that can be read.
        known: u32,
    },

    /// Another log has the directory open, in this or another process: it was not closed, or has operations
    /// in flight.
    #[error("{} is in use", path.display())]
    InUse {
        /// The lock file.
        path: PathBuf,
    },

    /// An I/O operation failed.
    #[error(transparent)]
    Io(#[from] settee_io::Error),
}

/// Why the list of files was not changed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum EditError {
    /// The manifest would exceed the length that can be read again, because of the number of segments. Nothing
    /// was changed.
    #[error("{} would have {size} bytes, and the limit is {size_max}", path.display())]
    TooLong {
        /// The manifest.
        path: PathBuf,
        /// Its length in bytes.
        size: u64,
        /// The longest length in bytes that is read.
        size_max: u64,
    },

    /// The log has stopped. Nothing was changed.
    #[error(transparent)]
    Stopped(#[from] Stopped),

    /// An I/O operation failed: this one, or an earlier one that left it unknown which manifest is durable.
    /// The set is unchanged, and so are the files.
    #[error(transparent)]
    Io(#[from] settee_io::Error),
}

/// Why no new timeline was started.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StartTimelineError {
    /// The log can't be opened. Nothing was changed.
    #[error(transparent)]
    Open(#[from] OpenError),

    /// The manifest was not replaced, or it is unknown whether it was.
    #[error(transparent)]
    Edit(#[from] EditError),
}

/// Why a reservation failed.
pub(crate) enum ReservationError {
    /// The disk has no space, or the process no file descriptor; nothing has changed.
    Refused(settee_io::Error),
    /// Another failure: the log stops.
    Failed(settee_io::Error),
    /// The log had stopped.
    Stopped(Stopped),
}

impl From<settee_io::Error> for ReservationError {
    fn from(error: settee_io::Error) -> ReservationError {
        match is_refusal(&error) {
            true => ReservationError::Refused(error),
            false => ReservationError::Failed(error),
        }
    }
}

/// Whether the only failure was missing disk space or a missing file descriptor.
pub(crate) fn is_refusal(error: &settee_io::Error) -> bool {
    is_no_space(error) || error.is_no_descriptor()
}

/// Whether the only failure was missing disk space.
pub(crate) fn is_no_space(error: &settee_io::Error) -> bool {
    error.is_no_space() && !is_sync_error(error)
}

/// Whether a sync failed. It may have dropped earlier writes, and so is never treated as just a full disk.
pub(crate) fn is_sync_error(error: &settee_io::Error) -> bool {
    matches!(error.operation(), Some(OperationKind::Sync | OperationKind::SyncDirectory))
}
