//! Out-of-line bodies: large bodies that are written before their updates.
//!
//! A body is hashed and appended to the log in its request's own task, in chunks, before the update waits for
//! its turn; the update then commits a reference to it. It is stored as an attachment is: under keys of its
//! own, with an upload intent as long as no leaf refers to it; its update's sync covers it too. If its update
//! is refused, the next update removes the body, and compaction reclaims its space.
//!
//! An out-of-line body costs an additional lookup and read whenever it is read, and additional records; so
//! smaller bodies are always stored inline.

use super::state::Database;
use crate::Result;
use crate::documents::Edit;

/// Smallest out-of-line body in bytes.
pub const OUT_OF_LINE_BYTES_MIN: usize = 64 << 10;

impl Database {
    /// Writes bodies of at least [`OUT_OF_LINE_BYTES_MIN`] to the log, before the updates that the caller
    /// makes with these edits; the edits' ids must not change in between. Skips edits that, judging by the
    /// persisted state, will be refused, or whose revision is already known if they are `replicated`. A body
    /// whose update isn't made is removed.
    ///
    /// # Errors
    /// `NoSpace`; `Stopped`.
    pub async fn write_large_bodies(&self, edits: &mut [Edit], replicated: bool) -> Result<()> {
        for edit in edits {
            let is_large = edit.body().len() >= OUT_OF_LINE_BYTES_MIN && edit.uploaded_body.is_none();
            if is_large && self.check_id(&edit.id).is_ok() && self.expects(edit, replicated).await? {
                edit.uploaded_body = Some(self.upload_body(&edit.id, &edit.body()).await?);
            }
        }
        Ok(())
    }

    /// Whether an edit will probably be stored, judging by the persisted state; the update itself decides by
    /// the accepted state.
    async fn expects(&self, edit: &Edit, replicated: bool) -> Result<bool> {
        let (snapshot, id) = (self.snapshot(), edit.id.as_str());
        let expects = match &edit.revision {
            Some(revision) if replicated => {
                !snapshot.missing(id, std::slice::from_ref(revision)).await?.0.is_empty()
            }
            Some(revision) => snapshot.leaves(id).await?.iter().any(|leaf| leaf.revision == *revision),
            None => snapshot.find(id).await?.is_none_or(|summary| summary.deleted),
        };
        Ok(expects)
    }
}
