//! The errors that end a measurement.

use std::io;
use std::path::PathBuf;

use settee_client::{CouchError, HttpError};

/// The result of a measurement.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a measurement failed. The databases that it created are deleted if the server still responds.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server refused a request or broke the connection.
    #[error(transparent)]
    Couch(#[from] CouchError),

    /// The response arrived but isn't the one that the workload requires.
    #[error("{workload}: {reason}")]
    Wrong {
        /// The workload, or the operation within it.
        workload: String,
        /// The difference from the expected response.
        reason: String,
    },

    /// The disk has too little free space; nothing was written.
    #[error("{} needs {needed_mb} MB free and has {free_mb} MB", directory.display())]
    Space {
        /// The directory for the data.
        directory: PathBuf,
        /// MiB that the workload may write, with a reserve.
        needed_mb: u64,
        /// MiB that an unprivileged user may still write there.
        free_mb: u64,
    },

    /// The server to be measured didn't start.
    #[error("the server did not start: {0}")]
    Server(String),

    /// An operation on one of the measurement's own files or directories failed.
    #[error("{}: {source}", path.display())]
    File {
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl From<HttpError> for Error {
    fn from(error: HttpError) -> Error {
        Error::Couch(error.into())
    }
}

impl Error {
    pub(crate) fn wrong(workload: &str, reason: impl Into<String>) -> Error {
        Error::Wrong { workload: workload.to_owned(), reason: reason.into() }
    }

    pub(crate) fn file(path: &std::path::Path, source: io::Error) -> Error {
        Error::File { path: path.to_owned(), source }
    }
}
