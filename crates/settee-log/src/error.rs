//! Why the log refused, stopped, or could not be read.

use std::path::PathBuf;
use std::sync::Arc;

use crate::log::Seq;

/// A limit that contradicts another one, or the format: see [`crate::LogOptions::check`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is {value}: {rule}")]
pub struct InvalidLimit {
    /// The limit's name, as its options have it.
    pub name: &'static str,
    /// What it was set to.
    pub value: u64,
    /// What it must be, in words.
    pub rule: String,
}

/// A write or sync failed, now or earlier: nothing is accepted any more, reads go on. Reopen
/// to learn what survived.
#[derive(Debug, Clone, thiserror::Error)]
#[error("log stopped: {source}")]
pub struct Stopped {
    /// What failed first; or that the log was closed.
    pub source: Arc<settee_io::Error>,
}

/// Why a batch was not accepted. No room is `NoSpace`, and no file descriptor `NoDescriptor`: refused,
/// nothing latched.
#[derive(Debug, Clone, thiserror::Error)]
pub enum AppendError {
    /// Refused before writing; the log stays usable.
    #[error("batch of {size} bytes exceeds {max}")]
    TooLarge {
        /// The batch's size in bytes.
        size: usize,
        /// The largest, in bytes.
        max: usize,
    },

    /// The next segment could not be created, for want of a file descriptor; the log stays usable, and
    /// the same succeeds once there is one.
    #[error("no file descriptor for {size} bytes: {source}")]
    NoDescriptor {
        /// The batch's size in bytes.
        size: usize,
        /// What the system said.
        source: Arc<settee_io::Error>,
    },

    /// No room could be reserved on the disk, or none was there for a write that was accepted before
    /// (which is tried again); the log stays usable.
    #[error("no space for {size} bytes: {source}")]
    NoSpace {
        /// The batch's size in bytes.
        size: usize,
        /// What the system said.
        source: Arc<settee_io::Error>,
    },

    /// The log has stopped.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// Why a record could not be read. The log stays usable.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ReadError {
    /// The bytes at this position are not the record that was written there.
    #[error("damaged record in {} at offset {offset}: {what}", path.display())]
    Damaged {
        /// The segment's file.
        path: PathBuf,
        /// Where the record begins, in bytes.
        offset: u64,
        /// What is wrong with it.
        what: &'static str,
    },

    /// No such segment.
    #[error("no segment {segment}")]
    NoSegment {
        /// The segment that was asked for.
        segment: u32,
    },

    /// It was accepted, and the log stopped before it was written; or the log was closed.
    #[error(transparent)]
    Stopped(Stopped),

    /// The system failed to read.
    #[error(transparent)]
    Io(#[from] settee_io::Error),
}

/// Why a log could not be opened. Nothing was changed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum OpenError {
    /// Bytes below what had been persisted are not what was written.
    #[error("damaged log: {} at offset {offset}: {what}", path.display())]
    Damaged {
        /// The segment's file.
        path: PathBuf,
        /// Where the damage begins, in bytes.
        offset: u64,
        /// What is wrong.
        what: &'static str,
    },

    /// A segment between others is not there.
    #[error("damaged log: {} is missing", path.display())]
    Missing {
        /// The file that should be there.
        path: PathBuf,
    },

    /// The log ends before what somebody has seen of it: a part of it was lost, or it is an older
    /// copy.
    #[error("the log ends at {}, before {}", found.0, expected.0)]
    Behind {
        /// Its last record.
        found: Seq,
        /// A record that it had: see [`crate::Start::after`].
        expected: Seq,
    },

    /// The file was written by another version.
    #[error("{} has format {found}; this version reads {known}", path.display())]
    OtherFormat {
        /// The segment's file.
        path: PathBuf,
        /// The version it was written in.
        found: u32,
        /// The version that can be read.
        known: u32,
    },

    /// Another log has the folder, in this process or another one: it was not closed, or something
    /// of it is still under way.
    #[error("{} is in use", path.display())]
    InUse {
        /// The segment's file.
        path: PathBuf,
    },

    /// The system failed.
    #[error(transparent)]
    Io(#[from] settee_io::Error),
}
