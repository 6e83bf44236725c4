//! Why a selector or a list of fields is refused.

use super::limits::NESTING_MAX;
use super::raw::Raw;

/// Largest number of bytes of an argument shown in an error.
const SHOWN_BYTES_MAX: usize = 200;

/// Why a selector is refused: CouchDB's error name, and a reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct SelectorError {
    /// `bad_arg`, `invalid_operator`, `invalid_selector`, ….
    pub error: &'static str,
    /// The reason.
    pub reason: String,
}

impl SelectorError {
    pub(super) fn new(error: &'static str, reason: impl Into<String>) -> SelectorError {
        SelectorError { error, reason: reason.into() }
    }

    pub(super) fn bad_json() -> SelectorError {
        SelectorError::new("bad_request", "invalid UTF-8 JSON")
    }

    pub(super) fn too_deep() -> SelectorError {
        SelectorError::new("invalid_selector", format!("A selector nests at most {NESTING_MAX} deep."))
    }

    pub(super) fn bad_argument(operator: &str, argument: Raw<'_>) -> SelectorError {
        let mut shown = argument.0;
        if shown.len() > SHOWN_BYTES_MAX {
            shown = &shown[..shown.floor_char_boundary(SHOWN_BYTES_MAX)];
        }
        SelectorError::new("bad_arg", format!("Bad argument for operator {operator}: {shown}"))
    }
}
