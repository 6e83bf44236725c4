//! Errors of opening, reading, committing to and maintaining a store.

use std::path::PathBuf;

use settee_io::{Damage, OperationKind};
use settee_log::{AppendError, EditError, InvalidLimit, SegmentIndexError, StartTimelineError, Stopped};
use settee_tree::TreeError;

/// Why a read failed. The store stays usable.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ReadError {
    /// A record could not be read.
    #[error(transparent)]
    Record(#[from] settee_log::ReadError),

    /// The index on disk could not be read.
    #[error(transparent)]
    Tree(#[from] TreeError),

    /// An entry of the index on disk has sound checksums and no valid content.
    #[error("damaged: the index has an invalid entry")]
    InvalidEntry,

    /// The stored bytes are not those that were written.
    #[error("damaged: {0}")]
    Damaged(Damage),

    /// The system failed to read.
    #[error(transparent)]
    Io(#[from] settee_io::Error),
}

impl ReadError {
    /// Whether the process had no free file descriptor; the read may succeed later.
    pub fn is_no_descriptor(&self) -> bool {
        match self {
            ReadError::Record(settee_log::ReadError::Io(error))
            | ReadError::Tree(TreeError::Io(error))
            | ReadError::Io(error) => error.is_no_descriptor(),
            _ => false,
        }
    }

    /// Whether the tree's bytes are not those that were written.
    pub(crate) fn is_of_damaged_index(&self) -> bool {
        match self {
            ReadError::Tree(error) => matches!(error, TreeError::Damaged(_)),
            ReadError::InvalidEntry => true,
            ReadError::Damaged(_) | ReadError::Record(_) | ReadError::Io(_) => false,
        }
    }
}

/// Why a store could not be opened, checkpointed or compacted. Its files keep what they held.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// An option is invalid. No file was read.
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

    /// A segment's index could not be read.
    #[error(transparent)]
    SegmentIndex(#[from] SegmentIndexError),

    /// A record could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),

    /// The stored bytes are not those that were written.
    #[error("damaged: {0}")]
    Damaged(Damage),

    /// The manifest would exceed the length that can be read again, because of the number of segments. Nothing
    /// was changed.
    #[error("{} would have {size} bytes, and the limit is {size_max}", path.display())]
    ManifestTooLong {
        /// The manifest.
        path: PathBuf,
        /// Its length in bytes.
        size: u64,
        /// The longest length in bytes that is read.
        size_max: u64,
    },

    /// A task that worked on the store's files panicked. Unless the store has stopped, its work is discarded
    /// and retried.
    #[error("a task that worked on {} panicked", path.display())]
    Panicked {
        /// The store's directory.
        path: PathBuf,
    },

    /// A salvaged record could not be stored.
    #[error(transparent)]
    Commit(Box<CommitError>),

    /// A system call failed.
    #[error(transparent)]
    Io(#[from] settee_io::Error),
}

impl From<EditError> for StoreError {
    fn from(error: EditError) -> StoreError {
        match error {
            EditError::TooLong { path, size, size_max } => {
                StoreError::ManifestTooLong { path, size, size_max }
            }
            EditError::Stopped(stopped) => stopped.into(),
            EditError::Io(error) => error.into(),
        }
    }
}

impl From<StartTimelineError> for StoreError {
    fn from(error: StartTimelineError) -> StoreError {
        match error {
            StartTimelineError::Open(error) => error.into(),
            StartTimelineError::Edit(error) => error.into(),
        }
    }
}

impl From<CommitError> for StoreError {
    fn from(error: CommitError) -> StoreError {
        StoreError::Commit(Box::new(error))
    }
}

impl StoreError {
    /// Whether the tree's bytes are not those that were written.
    pub(crate) fn is_of_damaged_index(&self) -> bool {
        match self {
            StoreError::Tree(error) => matches!(error, TreeError::Damaged(_)),
            StoreError::Read(error) => error.is_of_damaged_index(),
            _ => false,
        }
    }

    /// Whether the error is that a segment could not be read.
    pub(crate) fn is_of_reading(&self) -> bool {
        let is_read = |error: &settee_io::Error| error.operation() == Some(OperationKind::Read);
        match self {
            StoreError::Read(ReadError::Tree(_)) => false,
            StoreError::Damaged(_) | StoreError::SegmentIndex(_) | StoreError::Read(_) => true,
            StoreError::Io(error) => is_read(error),
            _ => false,
        }
    }

    /// Whether the process had no free file descriptor; the operation may succeed later.
    pub fn is_no_descriptor(&self) -> bool {
        match self {
            StoreError::Log(settee_log::OpenError::Io(error))
            | StoreError::Tree(TreeError::Io(error))
            | StoreError::SegmentIndex(SegmentIndexError::Io(error))
            | StoreError::Io(error) => error.is_no_descriptor(),
            StoreError::Read(error) => error.is_no_descriptor(),
            StoreError::Commit(error) => {
                matches!(**error, CommitError::Append(AppendError::NoDescriptor { .. }))
            }
            _ => false,
        }
    }

    /// Whether the disk is full; the operation may succeed once space is free.
    pub fn is_no_space(&self) -> bool {
        match self {
            StoreError::Tree(TreeError::NoSpace { .. }) => true,
            StoreError::Io(error) => error.is_no_space(),
            StoreError::Commit(error) => matches!(**error, CommitError::Append(AppendError::NoSpace { .. })),
            _ => false,
        }
    }
}

/// Why a batch was not committed. Nothing of it was accepted.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CommitError {
    /// The log refused it.
    #[error(transparent)]
    Append(#[from] AppendError),

    /// A merge operand would give the key more than [`OPERAND_COUNT_MAX`](crate::OPERAND_COUNT_MAX) records,
    /// and the store has no merge operator, or the operands are all in one batch.
    #[error("a value would have too many merge operands")]
    TooManyOperands,

    /// Memory is full, and the checkpoint that was to free it failed. The store retries it.
    #[error("memory is full, and a checkpoint failed: {source}")]
    Full {
        /// Why the checkpoint failed.
        source: StoreError,
    },

    /// This writer has taken memory past its limit by more than half, and no checkpoint can begin while the
    /// writer exists. Drop it: [`Store::writer`] then waits for a checkpoint, and the batch can be committed.
    ///
    /// [`Store::writer`]: crate::Store::writer
    #[error(
        "one writer filled {bytes} bytes of memory, and the limit is {bytes_max}: drop it, and take another"
    )]
    WriterFull {
        /// Bytes in use.
        bytes: usize,
        /// [`StoreOptions::memory_bytes_max`](crate::StoreOptions::memory_bytes_max).
        bytes_max: usize,
    },

    /// An entry that the batch replaces could not be read. If the index is damaged, its rebuild has been
    /// started, and a later commit may succeed.
    #[error(transparent)]
    Read(#[from] ReadError),
}
