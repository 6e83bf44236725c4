//! What ends a measurement.

use std::io;
use std::path::PathBuf;

use crate::couch::CouchError;
use crate::http::HttpError;

/// The result of measuring.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why nothing was measured. Databases that the measurement made are deleted where the server
/// still answers.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server refused or broke off.
    #[error(transparent)]
    Couch(#[from] CouchError),

    /// The engine in this process refused.
    #[error(transparent)]
    Engine(#[from] settee_doc::Error),

    /// The answer came but isn't what the workload must give.
    #[error("{workload}: {reason}")]
    Wrong {
        /// What was being done.
        workload: String,
        /// What was found instead.
        reason: String,
    },

    /// The disk hasn't the room; nothing was written.
    #[error("{} needs {needed_mb} MB free and has {free_mb} MB", directory.display())]
    Space {
        /// Where the data would go.
        directory: PathBuf,
        /// What the workload may write, with room to spare.
        needed_mb: u64,
        /// What an ordinary user may still write there.
        free_mb: u64,
    },

    /// The server that was to be measured didn't start.
    #[error("the server did not start: {0}")]
    Server(String),

    /// A file or directory of the measurement's own.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
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
