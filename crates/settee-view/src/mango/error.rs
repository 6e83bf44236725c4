//! Why a request is refused, with CouchDB's error names and reasons.

use settee_doc::SelectorError;

use super::limits::SHOWN_BYTES_MAX;

/// What a caller can do about an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MangoErrorKind {
    /// The request is wrong.
    Invalid,
    /// It needs a service that isn't there.
    Unavailable,
    /// The database's own design documents are the reason.
    Internal,
}

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct MangoError {
    /// What a caller can do about it.
    pub kind: MangoErrorKind,
    /// CouchDB's name of the error.
    pub error: &'static str,
    /// The reason.
    pub reason: String,
}

impl MangoError {
    pub(super) fn new(error: &'static str, reason: impl Into<String>) -> MangoError {
        MangoError { kind: MangoErrorKind::Invalid, error, reason: reason.into() }
    }

    pub(super) fn bad_json() -> MangoError {
        MangoError::new("bad_request", "invalid UTF-8 JSON")
    }

    pub(super) fn no_object() -> MangoError {
        MangoError::new("bad_request", "Request body must be a JSON object")
    }

    /// A bookmark that isn't one, or belongs to another query.
    pub(super) fn invalid_bookmark(value: &str) -> MangoError {
        MangoError::new("invalid_bookmark", format!("Invalid bookmark value: {}", shown(value)))
    }
}

impl From<SelectorError> for MangoError {
    fn from(error: SelectorError) -> MangoError {
        MangoError::new(error.error, error.reason)
    }
}

/// The beginning of a JSON text, for a reason.
pub(super) fn shown(json: &str) -> &str {
    let json = json.trim();
    &json[..json.floor_char_boundary(SHOWN_BYTES_MAX)]
}
