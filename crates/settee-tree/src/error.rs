//! The errors of a tree.

use settee_io::Damage;
use std::path::PathBuf;
use std::sync::Arc;

/// Why an operation on a tree failed. The tree stays usable unless the variant says otherwise.
#[derive(Debug, Clone, thiserror::Error)]
pub enum TreeError {
    /// The bytes at this offset are not those that were written there.
    #[error("damaged tree in {0}")]
    Damaged(Damage),

    /// No root was ever committed to the file, or no root is readable.
    #[error("{} holds no committed tree", path.display())]
    NoRoot {
        /// The tree's file.
        path: PathBuf,
    },

    /// The file holds another tree than expected.
    #[error("{} is another tree than the one expected", path.display())]
    OtherIncarnation {
        /// The tree's file.
        path: PathBuf,
    },

    /// The file was written in another format version.
    #[error("{} has format {found}; this version reads {known}", path.display())]
    OtherFormat {
        /// The tree's file.
        path: PathBuf,
        /// The file's format version.
        found: u32,
        /// The format version that this program reads.
        known: u32,
    },

    /// A key, value or attachment is too large. The update, load or commit has no effect.
    #[error("{what} of {size} bytes exceeds {max}")]
    TooLarge {
        /// The kind of the object.
        what: &'static str,
        /// Its size in bytes.
        size: usize,
        /// The limit in bytes.
        max: usize,
    },

    /// The keys of an update or a load don't ascend strictly. The operation has no effect.
    #[error("keys out of order: number {index} is not above the one before it")]
    KeyOrder {
        /// Index of the key, from 0.
        index: u64,
    },

    /// A commit's `seq` is not above the last one. Nothing was written.
    #[error("commit {seq} is not above {last}")]
    StaleSeq {
        /// The `seq` of this commit.
        seq: u64,
        /// The last committed `seq`.
        last: u64,
    },

    /// The disk has no space for an update's nodes or a commit's attachment. The operation has no effect and
    /// can be retried once there is space.
    #[error("no space for the tree's nodes: {source}")]
    NoSpace {
        /// The system's error.
        source: Arc<settee_io::Error>,
    },

    /// A write or sync failed, now or earlier, or the tree was closed. Updates and commits are refused; reads
    /// continue. Reopen to learn which root survived.
    #[error("tree stopped: {source}")]
    Stopped {
        /// The first failure, or that the tree was closed.
        source: Arc<settee_io::Error>,
    },

    /// The system failed to read, open or create.
    #[error(transparent)]
    Io(#[from] settee_io::Error),
}
