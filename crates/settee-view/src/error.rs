//! Errors of views: CouchDB's name for the error, and a reason.

use std::borrow::Cow;

use settee_doc::ErrorKind;
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
    Storage(ErrorKind),
}

/// Why a view can't be queried or built. The index stays as it was.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{error}: {}", detail.as_ref().unwrap_or(reason))]
pub struct ViewError {
    /// What can be done about it.
    pub kind: ViewErrorKind,
    /// CouchDB's name for it.
    pub error: Cow<'static, str>,
    /// The reason, for clients.
    pub reason: String,
    /// The whole reason, for the log, if it says more than clients may know: paths of files.
    pub detail: Option<String>,
}

impl ViewError {
    /// A request that can't be answered: CouchDB's `query_parse_error`.
    pub fn query(reason: impl Into<String>) -> ViewError {
        ViewError {
            kind: ViewErrorKind::BadRequest,
            error: "query_parse_error".into(),
            reason: reason.into(),
            detail: None,
        }
    }

    /// Something that doesn't exist.
    pub fn not_found(reason: impl Into<String>) -> ViewError {
        let reason = reason.into();
        ViewError { kind: ViewErrorKind::NotFound, error: "not_found".into(), reason, detail: None }
    }

    /// A design function that failed.
    pub fn function(error: impl Into<Cow<'static, str>>, reason: impl Into<String>) -> ViewError {
        let (error, reason) = (error.into(), reason.into());
        ViewError { kind: ViewErrorKind::Function, error, reason, detail: None }
    }

    pub(crate) fn storage(kind: ErrorKind, reason: String) -> ViewError {
        let error = "internal_server_error".into();
        ViewError { kind: ViewErrorKind::Storage(kind), error, reason, detail: None }
    }

    /// An error of a file, whose path clients don't get.
    fn of_file(kind: ErrorKind, detail: String) -> ViewError {
        let reason = match kind {
            // As for writes.
            ErrorKind::NoSpace => "No space left on the disk.",
            ErrorKind::NoDescriptor => "No file descriptors are left; try again later.",
            _ => "A file of an index can't be read or written: see the log.",
        };
        ViewError { detail: Some(detail), ..ViewError::storage(kind, reason.to_owned()) }
    }

    pub(crate) fn damaged(what: &str) -> ViewError {
        ViewError::storage(ErrorKind::Internal, format!("an index is damaged: {what}"))
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
            TreeError::NoSpace { .. } => ViewError::of_file(ErrorKind::NoSpace, error.to_string()),
            _ => ViewError::of_file(ErrorKind::Internal, error.to_string()),
        }
    }
}

impl From<settee_io::Error> for ViewError {
    fn from(error: settee_io::Error) -> ViewError {
        let kind = match error.is_no_space() {
            true => ErrorKind::NoSpace,
            false if error.is_no_descriptor() => ErrorKind::NoDescriptor,
            false => ErrorKind::Internal,
        };
        ViewError::of_file(kind, error.to_string())
    }
}

/// The result of an operation on views.
pub type Result<T> = std::result::Result<T, ViewError>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_get_no_paths_and_a_full_disk_is_one_whatever_failed() {
        let full = settee_io::Error::Io {
            operation: settee_io::OperationKind::Open,
            path: std::path::Path::new("/secret/views/index").into(),
            source: std::sync::Arc::new(std::io::Error::from_raw_os_error(28)),
        };
        let source = std::sync::Arc::new(full.clone());
        let full = [full.clone().into(), TreeError::Io(full).into(), TreeError::NoSpace { source }.into()];
        for error in full {
            let ViewError { kind, reason, .. } = &error;
            assert_eq!(*kind, ViewErrorKind::Storage(ErrorKind::NoSpace), "{error}");
            assert_eq!(reason, "No space left on the disk.");
            assert!(error.to_string().contains("/secret"), "the log has the whole: {error}");
        }
        let error = ViewError::from(TreeError::NoRoot { path: "/secret/views/index".into() });
        assert_eq!(error.kind, ViewErrorKind::Storage(ErrorKind::Internal));
        assert!(!error.reason.contains("secret") && error.to_string().contains("/secret"), "{error}");
    }
}
