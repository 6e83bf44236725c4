//! Errors of views: CouchDB's name for the error, and a reason.

use std::borrow::Cow;

use settee_tree::TreeError;

/// What a caller can do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ViewErrorKind {
    /// The request is wrong.
    BadRequest,
    /// What was asked for doesn't exist.
    NotFound,
    /// A design function failed, or can't be run.
    Function,
    /// The database or the index can't be read or written; the cause has its own kind.
    Storage(settee_doc::ErrorKind),
}

/// Why a view can't be queried or built. The index stays as it was.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{error}: {reason}")]
pub struct ViewError {
    /// What can be done about it.
    pub kind: ViewErrorKind,
    /// CouchDB's name for it.
    pub error: Cow<'static, str>,
    /// The reason.
    pub reason: String,
}

impl ViewError {
    /// A request that can't be answered: CouchDB's `query_parse_error`.
    pub fn query(reason: impl Into<String>) -> ViewError {
        ViewError {
            kind: ViewErrorKind::BadRequest,
            error: "query_parse_error".into(),
            reason: reason.into(),
        }
    }

    /// Something that doesn't exist.
    pub fn not_found(reason: impl Into<String>) -> ViewError {
        ViewError { kind: ViewErrorKind::NotFound, error: "not_found".into(), reason: reason.into() }
    }

    /// A design function that failed.
    pub fn function(error: impl Into<Cow<'static, str>>, reason: impl Into<String>) -> ViewError {
        ViewError { kind: ViewErrorKind::Function, error: error.into(), reason: reason.into() }
    }

    pub(crate) fn storage(kind: settee_doc::ErrorKind, reason: String) -> ViewError {
        ViewError { kind: ViewErrorKind::Storage(kind), error: "internal_server_error".into(), reason }
    }

    pub(crate) fn damaged(what: &str) -> ViewError {
        ViewError::storage(settee_doc::ErrorKind::Internal, format!("an index is damaged: {what}"))
    }
}

impl From<settee_doc::Error> for ViewError {
    fn from(error: settee_doc::Error) -> ViewError {
        ViewError::storage(error.kind(), error.to_string())
    }
}

impl From<TreeError> for ViewError {
    fn from(error: TreeError) -> ViewError {
        match error {
            TreeError::Io(error) => error.into(),
            TreeError::NoSpace { .. } => {
                ViewError::storage(settee_doc::ErrorKind::NoSpace, error.to_string())
            }
            _ => ViewError::storage(settee_doc::ErrorKind::Internal, error.to_string()),
        }
    }
}

impl From<settee_io::Error> for ViewError {
    fn from(error: settee_io::Error) -> ViewError {
        let kind = match error.is_no_space() {
            true => settee_doc::ErrorKind::NoSpace,
            false if error.is_no_descriptor() => settee_doc::ErrorKind::NoDescriptor,
            false => settee_doc::ErrorKind::Internal,
        };
        ViewError::storage(kind, error.to_string())
    }
}

/// The result of an operation on views.
pub type Result<T> = std::result::Result<T, ViewError>;
