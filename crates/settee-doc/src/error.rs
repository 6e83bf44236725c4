//! The errors of documents and databases, and the caller's options to handle them.

use settee_store::{AppendError, CommitError, ReadError, Stopped, StoreError};

/// The result of an operation on documents or databases.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error, with a reason for the client. Unless a function says otherwise, nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Error {
    kind: ErrorKind,
    reason: String,
    function: Option<Box<FunctionError>>,
}

/// What an error of a design function has besides.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FunctionError {
    name: String,
    /// The reason as JSON text, if it isn't a string.
    reason_json: Option<String>,
    /// Whether it exceeded a limit.
    is_stopped: bool,
}

impl Error {
    /// An error of this kind with this reason.
    pub fn new(kind: ErrorKind, reason: impl Into<String>) -> Error {
        Error { kind, reason: reason.into(), function: None }
    }

    /// An error of a design function. `name` is CouchDB's name for it, `reason_json` any JSON text.
    pub fn of_function(kind: ErrorKind, name: impl Into<String>, reason_json: &str) -> Error {
        let text: Option<String> = serde_json::from_str(reason_json).ok();
        let reason_json_only = text.is_none().then(|| reason_json.to_owned());
        let function = FunctionError { name: name.into(), reason_json: reason_json_only, is_stopped: false };
        let reason = text.unwrap_or_else(|| reason_json.to_owned());
        Error { kind, reason, function: Some(Box::new(function)) }
    }

    /// As [`Error::of_function`], of a function that was stopped because it exceeded a limit of time or memory. The
    /// other edits of the request get the same error, instead of running it again.
    pub fn of_stopped_function(name: impl Into<String>, reason_json: &str) -> Error {
        let mut error = Error::of_function(ErrorKind::FunctionFailed, name, reason_json);
        if let Some(function) = &mut error.function {
            function.is_stopped = true;
        }
        error
    }

    /// Whether it is of a function that exceeded a limit of time or memory.
    pub fn is_of_stopped_function(&self) -> bool {
        self.function.as_ref().is_some_and(|function| function.is_stopped)
    }

    /// CouchDB's name for an error of a design function.
    pub fn function_error(&self) -> Option<&str> {
        self.function.as_ref().map(|function| function.name.as_str())
    }

    /// The reason as JSON text, if a design function gave one that isn't a string.
    pub fn reason_json(&self) -> Option<&str> {
        self.function.as_ref().and_then(|function| function.reason_json.as_deref())
    }

    /// The kind, which determines how the caller can proceed.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    pub(crate) fn missing() -> Error {
        Error::new(ErrorKind::NotFound, "missing")
    }

    pub(crate) fn deleted() -> Error {
        Error::new(ErrorKind::NotFound, "deleted")
    }

    pub(crate) fn no_database() -> Error {
        Error::new(ErrorKind::NotFound, "Database does not exist.")
    }

    pub(crate) fn conflict() -> Error {
        Error::new(ErrorKind::Conflict, "Document update conflict.")
    }

    pub(crate) fn bad_request(reason: impl Into<String>) -> Error {
        Error::new(ErrorKind::BadRequest, reason)
    }

    fn no_descriptor() -> Error {
        Error::new(ErrorKind::NoDescriptor, "No file descriptors are left; try again later.")
    }

    pub(crate) fn damaged(what: &str) -> Error {
        Error::new(ErrorKind::Internal, format!("damaged data: {what}"))
    }
}

/// How the caller can proceed after an error. The HTTP status, CouchDB's name for the error and the exit code
/// derive from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The document, revision or database doesn't exist: "missing", "deleted", or "Database does not exist.".
    NotFound,
    /// The document has changed since it was read: read it again.
    Conflict,
    /// The request is malformed.
    BadRequest,
    /// The document's id is not allowed.
    IllegalDocId,
    /// The partition's name is not allowed.
    IllegalPartition,
    /// The database's name is not allowed.
    IllegalDatabaseName,
    /// A database of this name exists.
    DatabaseExists,
    /// The document has an unknown member that begins with `_`.
    DocValidation,
    /// A member of the design document has an invalid type.
    InvalidDesignDoc,
    /// The document is too large.
    TooLarge,
    /// An attachment is larger than the limit.
    AttachmentTooLarge,
    /// The content doesn't match its digest.
    DigestMismatch,
    /// A stub names an attachment that doesn't exist.
    MissingStub,
    /// The document's partition is full.
    PartitionOverflow,
    /// The disk is full. Of several edits, those before the refused one may have been stored; writes succeed
    /// again once there is space.
    NoSpace,
    /// No file descriptor is available to open a file. Nothing was changed; the operation succeeds once there
    /// is one.
    NoDescriptor,
    /// A write or sync failed: the database takes no writes until it is opened again.
    Stopped,
    /// A validation function refuses the write.
    Forbidden,
    /// A validation function refuses the write of this user.
    Unauthorized,
    /// A function of the design document can't be compiled.
    Uncompilable,
    /// A design function raised an exception or exceeded a limit: [`Error::function_error`] names it.
    FunctionFailed,
    /// Another process uses the data directory.
    InUse,
    /// Damaged data, or the system failed to read.
    Internal,
}

impl From<Stopped> for Error {
    fn from(stopped: Stopped) -> Error {
        // The reason goes to clients; the log has the path and offset.
        let reason = match stopped.source.operation() {
            Some(operation) => {
                format!("{operation} failed: the database takes no writes until it is opened again")
            }
            None if matches!(*stopped.source, settee_io::Error::Panicked { .. }) => {
                "an internal error: the database takes no writes until it is opened again".into()
            }
            None => "the database is closed".into(),
        };
        Error::new(ErrorKind::Stopped, reason)
    }
}

impl From<AppendError> for Error {
    fn from(error: AppendError) -> Error {
        match error {
            AppendError::TooLarge { .. } => Error::new(ErrorKind::TooLarge, error.to_string()),
            AppendError::NoSpace { .. } => Error::new(ErrorKind::NoSpace, "No space left on the disk."),
            AppendError::NoDescriptor { .. } => Error::no_descriptor(),
            AppendError::Stopped(stopped) => stopped.into(),
        }
    }
}

impl From<ReadError> for Error {
    fn from(error: ReadError) -> Error {
        if error.is_no_descriptor() {
            return Error::no_descriptor();
        }
        Error::new(ErrorKind::Internal, error.to_string())
    }
}

impl From<CommitError> for Error {
    fn from(error: CommitError) -> Error {
        match error {
            CommitError::Append(error) => error.into(),
            CommitError::Full { source } if source.is_no_space() => {
                Error::new(ErrorKind::NoSpace, "No space left on the disk.")
            }
            CommitError::Full { source } if source.is_no_descriptor() => Error::no_descriptor(),
            CommitError::Full { .. } => Error::new(ErrorKind::Stopped, error.to_string()),
            CommitError::Read(error) => error.into(),
            error => Error::new(ErrorKind::Internal, error.to_string()),
        }
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Error {
        if error.is_no_descriptor() {
            return Error::no_descriptor();
        }
        if let StoreError::Panicked { .. } = error {
            return Error::new(ErrorKind::Internal, "an internal error: see the log");
        }
        let kind = if error.is_no_space() { ErrorKind::NoSpace } else { ErrorKind::Internal };
        Error::new(kind, error.to_string())
    }
}

impl From<settee_io::Error> for Error {
    fn from(error: settee_io::Error) -> Error {
        if error.is_no_descriptor() {
            return Error::no_descriptor();
        }
        let kind = if error.is_no_space() { ErrorKind::NoSpace } else { ErrorKind::Internal };
        Error::new(kind, error.to_string())
    }
}
