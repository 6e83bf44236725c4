//! What can go wrong with a file, and where.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;

use crate::OperationKind;

/// The result of an operation on files.
pub type Result<T> = std::result::Result<T, Error>;

/// Why an operation on a file failed. Cheap to clone, since one failure may end many waiters.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The system refused or failed the operation. What a failed write or sync left on the
    /// medium is unknown.
    #[error("{operation} failed on {}: {source}", path.display())]
    Io {
        /// What was tried.
        operation: OperationKind,
        /// On which file or folder.
        path: Arc<Path>,
        /// What the system said.
        source: Arc<io::Error>,
    },

    /// The handle was closed before the operation began; nothing was done.
    #[error("{} is closed", path.display())]
    Closed {
        /// The file that the handle named.
        path: Arc<Path>,
    },

    /// The task panicked that was changing what is kept in this file or folder: what it left is unknown.
    #[error("a task panicked: what it changed of {} is unknown", path.display())]
    Panicked {
        /// The file or folder.
        path: Arc<Path>,
    },

    /// The file ends before the bytes that were asked for.
    #[error("{} ends before offset {offset} + {length}", path.display())]
    PastEnd {
        /// The file.
        path: Arc<Path>,
        /// Where the read began.
        offset: u64,
        /// How many bytes it wanted.
        length: usize,
    },
}

impl Error {
    pub(crate) fn io(operation: OperationKind, path: &Path, source: io::Error) -> Error {
        Error::Io { operation, path: path.into(), source: Arc::new(source) }
    }

    /// The system's kind of error, where the system spoke.
    pub fn io_kind(&self) -> Option<io::ErrorKind> {
        self.source().map(io::Error::kind)
    }

    fn source(&self) -> Option<&io::Error> {
        match self {
            Error::Io { source, .. } => Some(source),
            Error::Closed { .. } | Error::Panicked { .. } | Error::PastEnd { .. } => None,
        }
    }

    /// What was tried, where the system failed it.
    pub fn operation(&self) -> Option<OperationKind> {
        match self {
            Error::Io { operation, .. } => Some(*operation),
            Error::Closed { .. } | Error::Panicked { .. } | Error::PastEnd { .. } => None,
        }
    }

    /// The process, or the system, has no file descriptor left: nothing was opened, so nothing was
    /// done. A sync of a folder that fails so has not begun.
    pub fn is_no_descriptor(&self) -> bool {
        let error = self.source().and_then(Errno::from_io_error);
        matches!(error, Some(Errno::MFILE | Errno::NFILE))
    }

    /// The disk, or what the user may have of it, is full.
    pub fn is_no_space(&self) -> bool {
        matches!(self.io_kind(), Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded))
    }

    /// The file or folder doesn't exist.
    pub fn is_not_found(&self) -> bool {
        self.io_kind() == Some(io::ErrorKind::NotFound)
    }
}
