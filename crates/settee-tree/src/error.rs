//! Why a tree refused, stopped, or could not be read.

use std::path::PathBuf;
use std::sync::Arc;

/// Why an operation on a tree failed. Where it says nothing else the tree stays usable.
#[derive(Debug, Clone, thiserror::Error)]
pub enum TreeError {
    /// The bytes at this offset are not what was written there.
    #[error("damaged tree in {} at offset {offset}: {what}", path.display())]
    Damaged {
        /// The tree's file.
        path: PathBuf,
        /// Where what is damaged begins, in bytes.
        offset: u64,
        /// What is wrong with it.
        what: &'static str,
    },

    /// No root was ever committed to the file, or none of it is left.
    #[error("{} holds no committed tree", path.display())]
    NoRoot {
        /// The tree's file.
        path: PathBuf,
    },

    /// The file is another tree than the one that was asked for.
    #[error("{} is another tree than the one expected", path.display())]
    OtherIncarnation {
        /// The tree's file.
        path: PathBuf,
    },

    /// The file was written by another version.
    #[error("{} has format {found}; this version reads {known}", path.display())]
    OtherFormat {
        /// The tree's file.
        path: PathBuf,
        /// The version it was written in.
        found: u32,
        /// The version that can be read.
        known: u32,
    },

    /// A key, value or attachment is too large. Nothing of the update, load or commit counts.
    #[error("{what} of {size} bytes exceeds {max}")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// Its size in bytes.
        size: usize,
        /// The largest, in bytes.
        max: usize,
    },

    /// The keys of an update or a load don't ascend strictly. Nothing of it counts.
    #[error("keys out of order: number {index} is not above the one before it")]
    KeyOrder {
        /// Which key it is, from 0.
        index: u64,
    },

    /// A commit's `seq` is not above that of the last one. Nothing was written.
    #[error("commit {seq} is not above {last}")]
    StaleSeq {
        /// What was given.
        seq: u64,
        /// The last one committed.
        last: u64,
    },

    /// There is no room on the disk for an update's nodes or a commit's attachment. Nothing of it
    /// counts; once there is room it can be done again.
    #[error("no room for the tree's nodes: {source}")]
    NoSpace {
        /// What the system said.
        source: Arc<settee_io::Error>,
    },

    /// A write or sync failed, now or earlier, or the tree was closed: no update and no commit is
    /// accepted any more, reads go on. Reopen to learn which root survived.
    #[error("tree stopped: {source}")]
    Stopped {
        /// What failed first; or that the tree was closed.
        source: Arc<settee_io::Error>,
    },

    /// The system failed to read, open or create.
    #[error(transparent)]
    Io(#[from] settee_io::Error),
}
