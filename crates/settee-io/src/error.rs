//! Errors of operations on files and directories.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;

use crate::engine::operation::OperationKind;

/// The result of an operation on files.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an operation on a file or directory failed. Cheap to clone, since one failure may end several waiting
/// operations.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The operating system refused or failed the operation. After a failed write or sync the contents of the
    /// medium are unknown.
    #[error("{operation} failed on {}: {source}", path.display())]
    Io {
        /// The operation that failed.
        operation: OperationKind,
        /// The file or directory.
        path: Arc<Path>,
        /// The operating system's error.
        source: Arc<io::Error>,
    },

    /// The handle was closed before the operation began; nothing was done.
    #[error("{} is closed", path.display())]
    Closed {
        /// The path by which the handle was opened.
        path: Arc<Path>,
    },

    /// A task panicked while it changed data in this file or directory; the state that it left is unknown.
    #[error("a task panicked while changing {}: the state it left is unknown", path.display())]
    Panicked {
        /// The file or directory.
        path: Arc<Path>,
    },

    /// The file ends before the requested range does.
    #[error("{} ends before offset {offset} + {length}", path.display())]
    PastEnd {
        /// The file.
        path: Arc<Path>,
        /// Start of the range, in bytes.
        offset: u64,
        /// Length of the range, in bytes.
        length: usize,
    },
}

/// Bytes of a file that are not those that were written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} at offset {offset}: {what}", path.display())]
pub struct Damage {
    /// The file.
    pub path: PathBuf,
    /// Offset in bytes at which the damaged part begins.
    pub offset: u64,
    /// What is wrong.
    pub what: &'static str,
}

impl Error {
    pub(crate) fn io(operation: OperationKind, path: &Path, source: io::Error) -> Error {
        Error::Io { operation, path: path.into(), source: Arc::new(source) }
    }

    /// The kind of the operating system's error; `None` for the other variants.
    pub fn io_kind(&self) -> Option<io::ErrorKind> {
        self.source().map(io::Error::kind)
    }

    fn source(&self) -> Option<&io::Error> {
        match self {
            Error::Io { source, .. } => Some(source),
            Error::Closed { .. } | Error::Panicked { .. } | Error::PastEnd { .. } => None,
        }
    }

    /// The operation that the operating system failed; `None` for the other variants.
    pub fn operation(&self) -> Option<OperationKind> {
        match self {
            Error::Io { operation, .. } => Some(*operation),
            Error::Closed { .. } | Error::Panicked { .. } | Error::PastEnd { .. } => None,
        }
    }

    /// Whether the operation failed because the process or the system has no file descriptor left (EMFILE,
    /// ENFILE). Nothing was opened and nothing was done; a directory sync that fails in this way has not
    /// begun.
    pub fn is_no_descriptor(&self) -> bool {
        let error = self.source().and_then(Errno::from_io_error);
        matches!(error, Some(Errno::MFILE | Errno::NFILE))
    }

    /// Whether the disk, or the user's quota on it, is full.
    pub fn is_no_space(&self) -> bool {
        matches!(self.io_kind(), Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded))
    }

    /// Whether the file or directory doesn't exist.
    pub fn is_not_found(&self) -> bool {
        self.io_kind() == Some(io::ErrorKind::NotFound)
    }
}
