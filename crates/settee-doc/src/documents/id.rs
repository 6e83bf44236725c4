//! Documents' ids: CouchDB's rules for them, and Settee's limit.

use crate::{Error, ErrorKind, Result};

/// Longest document id in bytes.
pub const ID_SIZE_MAX: usize = 8_000;

/// Checks a document's id against CouchDB's rules: not empty, and `_` first only in `_design/…` and
/// `_local/…`.
///
/// # Errors
/// `IllegalDocId`.
pub fn check_document_id(id: &str) -> Result<()> {
    let illegal = |reason: String| Err(Error::new(ErrorKind::IllegalDocId, reason));
    if id.is_empty() {
        return illegal("Document id must not be empty".into());
    }
    if id.len() > ID_SIZE_MAX {
        return illegal("Document id is too long".into());
    }
    if id == "_design/" || id == "_local/" {
        return illegal(format!("Illegal document id `{id}`"));
    }
    if id.starts_with('_') && !id.starts_with("_design/") && !id.starts_with("_local/") {
        return illegal("Only reserved document ids may start with underscore.".into());
    }
    Ok(())
}
