//! Why a store could not be opened, read, or brought forward.

use std::path::{Path, PathBuf};

use settee_io::OperationKind;
use settee_log::{AppendError, DirectoryError, InvalidLimit, Stopped};
use settee_tree::TreeError;

use crate::state::INDEX;

/// Why something could not be read. The store stays usable.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ReadError {
    /// A record could not be read.
    #[error(transparent)]
    Record(#[from] settee_log::ReadError),

    /// The index on disk could not be read.
    #[error(transparent)]
    Tree(#[from] TreeError),

    /// What is stored is not what was written.
    #[error("damaged: {} at offset {offset}: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where what is damaged begins, in bytes.
        offset: u64,
        /// What is wrong.
        what: &'static str,
    },

    /// The system failed to read.
    #[error(transparent)]
    Io(#[from] settee_io::Error),
}

impl ReadError {
    /// Whether there was no file descriptor: then the same may succeed later.
    pub fn is_no_descriptor(&self) -> bool {
        match self {
            ReadError::Record(settee_log::ReadError::Io(error))
            | ReadError::Tree(TreeError::Io(error))
            | ReadError::Io(error) => error.is_no_descriptor(),
            _ => false,
        }
    }

    /// Whether what the tree holds is not what was written there.
    pub(crate) fn is_of_damaged_index(&self) -> bool {
        match self {
            ReadError::Tree(error) => matches!(error, TreeError::Damaged { .. }),
            ReadError::Damaged { path, .. } => path == Path::new(INDEX),
            ReadError::Record(_) | ReadError::Io(_) => false,
        }
    }
}

/// Why a store could not be opened, checkpointed or compacted. What was there is still there.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// It can't be opened with this limit. Nothing was looked at.
    #[error(transparent)]
    Limit(#[from] InvalidLimit),

    /// The log could not be opened.
    #[error(transparent)]
    Log(#[from] settee_log::OpenError),

    /// The log has stopped.
    #[error(transparent)]
    Stopped(#[from] Stopped),

    /// The index on disk could not be read or written.
    #[error(transparent)]
    Tree(#[from] TreeError),

    /// A segment's directory could not be read.
    #[error(transparent)]
    Directory(#[from] DirectoryError),

    /// A record could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),

    /// What is stored is not what was written.
    #[error("damaged: {} at offset {offset}: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where what is damaged begins, in bytes.
        offset: u64,
        /// What is wrong.
        what: &'static str,
    },

    /// A file that the manifest names is not there, or the manifest itself.
    #[error("{} is missing: the store's files show that there was one", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },

    /// There are so many segments that the manifest could not be read again. Nothing was changed.
    #[error("{} would take {size} bytes, and no more than {size_max} are read", path.display())]
    ManifestTooLong {
        /// The manifest.
        path: PathBuf,
        /// What it would take.
        size: u64,
        /// What it may.
        size_max: u64,
    },

    /// The task panicked that worked on the store's files. Where the store has not stopped, what it did
    /// counts for nothing, and is tried again.
    #[error("what worked on {} panicked", path.display())]
    Panicked {
        /// The store's folder.
        path: PathBuf,
    },

    /// What was salvaged could not be stored.
    #[error(transparent)]
    Commit(Box<CommitError>),

    /// The system failed.
    #[error(transparent)]
    Io(#[from] settee_io::Error),
}

impl From<CommitError> for StoreError {
    fn from(error: CommitError) -> StoreError {
        StoreError::Commit(Box::new(error))
    }
}

impl StoreError {
    /// Whether what the tree holds is not what was written there.
    pub(crate) fn is_of_damaged_index(&self) -> bool {
        match self {
            StoreError::Tree(error) => matches!(error, TreeError::Damaged { .. }),
            StoreError::Read(error) => error.is_of_damaged_index(),
            _ => false,
        }
    }

    /// Whether what is stored in a segment could not be read.
    pub(crate) fn is_of_reading(&self) -> bool {
        let is_read = |error: &settee_io::Error| error.operation() == Some(OperationKind::Read);
        match self {
            StoreError::Read(ReadError::Tree(_)) => false,
            StoreError::Damaged { .. } | StoreError::Directory(_) | StoreError::Read(_) => true,
            StoreError::Io(error) => is_read(error),
            _ => false,
        }
    }

    /// Whether there was no file descriptor: then the same may succeed later.
    pub fn is_no_descriptor(&self) -> bool {
        match self {
            StoreError::Log(settee_log::OpenError::Io(error))
            | StoreError::Tree(TreeError::Io(error))
            | StoreError::Directory(DirectoryError::Io(error))
            | StoreError::Io(error) => error.is_no_descriptor(),
            StoreError::Read(error) => error.is_no_descriptor(),
            StoreError::Commit(error) => {
                matches!(**error, CommitError::Append(AppendError::NoDescriptor { .. }))
            }
            _ => false,
        }
    }

    /// Whether the disk is full: then the same may succeed once there is room.
    pub fn is_no_space(&self) -> bool {
        match self {
            StoreError::Tree(TreeError::NoSpace { .. }) => true,
            StoreError::Io(error) => error.is_no_space(),
            StoreError::Commit(error) => matches!(**error, CommitError::Append(AppendError::NoSpace { .. })),
            _ => false,
        }
    }
}

/// Why a batch was not committed: nothing of it was accepted.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CommitError {
    /// The log refused it.
    #[error(transparent)]
    Append(#[from] AppendError),

    /// A delta would make the value one of more than [`CHAIN_COUNT_MAX`](crate::CHAIN_COUNT_MAX)
    /// records, and the store has no function that folds them; or they all are in one batch.
    #[error("a value of too many records")]
    ChainTooLong,

    /// Memory is full, and the checkpoint that was to empty it failed. It is tried again.
    #[error("memory is full, and a checkpoint failed: {source}")]
    Full {
        /// Why.
        source: StoreError,
    },

    /// This writer has committed so much that memory is past its limit by more than half, and no
    /// checkpoint can make room while the writer is there. Once it is dropped, [`Store::writer`] waits
    /// for one, and the batch can be committed.
    ///
    /// [`Store::writer`]: crate::Store::writer
    #[error(
        "one writer took memory to {bytes} bytes, and {bytes_max} may be taken: let go of it, and take another"
    )]
    WriterFull {
        /// What is taken.
        bytes: usize,
        /// [`StoreOptions::memory_bytes_max`](crate::StoreOptions::memory_bytes_max).
        bytes_max: usize,
    },

    /// What it replaces could not be read. Where the index is damaged, it is being built anew from now
    /// on: later the same may succeed.
    #[error(transparent)]
    Read(#[from] ReadError),
}
