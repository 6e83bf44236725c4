//! Large bodies in memory: documents that are matched, or edited, as a whole.
//!
//! A document that is only sent needs no more than a chunk of its body at a time (`inline`). Where the whole body
//! is needed, it is charged to the memory for request bodies.

use settee_doc::{Document, Edit, Snapshot};

use crate::blocking;
use crate::body::{BodyMemory, MemoryPermit, PARSE_INLINE_BYTES};
use crate::error::ApiError;

/// Largest number of copies of a body that its user has in memory at a time: the body, and the edit or the text
/// that is made of it.
const COPIES: u64 = 2;

/// Reads a document's body if it wasn't read because it is large. Returns the document with the permit for that
/// memory. Never waits for memory, since the request may have another permit.
///
/// # Errors
/// 503 if the memory is exhausted; 500 if the body can't be read.
pub(crate) async fn read_whole(
    snapshot: &Snapshot,
    document: Document,
    body_memory: &BodyMemory,
) -> Result<(Document, MemoryPermit), ApiError> {
    let mut permit = MemoryPermit::default();
    if document.large_body.is_some() {
        // Alone it is read even if the memory is smaller.
        let bytes = document.body_size().saturating_mul(COPIES).min(body_memory.bytes());
        body_memory.add(&mut permit, bytes)?;
    }
    Ok((snapshot.read_whole(document).await?, permit))
}

/// An edit with the members of a document: see [`Edit::again`]. The body is copied and hashed, a large one on a
/// blocking thread. Returns the edit with the document's permit.
///
/// # Errors
/// 500 if that panics.
pub(crate) async fn edit_again(
    document: Document,
    permit: MemoryPermit,
) -> Result<(Edit, MemoryPermit), ApiError> {
    let is_small = document.body.len() <= PARSE_INLINE_BYTES;
    let copy = move || (Edit::again(&document), permit);
    if is_small { Ok(copy()) } else { blocking::run(copy).await }
}
