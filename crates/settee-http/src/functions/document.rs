//! The documents that design functions get.

use settee_doc::{Document, ErrorKind, Snapshot};

use crate::body::{BodyMemory, MemoryPermit};
use crate::document::options::DocumentOptions;
use crate::document::whole::read_whole;
use crate::error::ApiError;

/// The JSON text of a document with its history and its conflicts, and the permit for its memory; `null` without a
/// document.
///
/// # Errors
/// If it can't be read, or there is no memory for it.
pub(super) async fn text_or_null(
    snapshot: &Snapshot,
    document: Option<Document>,
    body_memory: &BodyMemory,
) -> Result<(String, Option<MemoryPermit>), ApiError> {
    let Some(document) = document else { return Ok(("null".to_owned(), None)) };
    let mut options = DocumentOptions::default();
    (options.revs, options.conflicts) = (true, true);
    let extras = options.extras(snapshot, &document).await?;
    let (document, permit) = read_whole(snapshot, document, body_memory).await?;
    let mut json = Vec::new();
    document.write_json(&extras, &mut json);
    Ok((String::from_utf8(json).map_err(|_| ApiError::bad_json())?, Some(permit)))
}

/// A document that a request names; `None` if there is none, or it is deleted.
///
/// # Errors
/// If it can't be read.
pub(super) async fn find(snapshot: &Snapshot, id: &str) -> Result<Option<Document>, ApiError> {
    match snapshot.document(id).await {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        document => Ok(Some(document?)),
    }
}
