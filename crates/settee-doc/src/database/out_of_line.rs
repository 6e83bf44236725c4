//! Out-of-line bodies: large bodies that are written before their updates.
//!
//! A body is hashed and appended to the log in its request's own task, in chunks, before the update waits for
//! its turn; the update then commits a reference to it. It is stored as an attachment is: under keys of its
//! own, with an upload intent as long as no leaf refers to it; its update's sync covers it too. If its update
//! is refused, the next update removes the body, and compaction reclaims its space.
//!
//! A body that doesn't fit its leaf's record is always stored in this way, a smaller one on request. It costs
//! an additional lookup and read for each chunk whenever it is read, and additional records; so small bodies
//! are always stored inline.

use super::state::Database;
use crate::Result;
use crate::documents::Edit;

/// Smallest body in bytes that is stored out of line on request.
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

    /// Whether an edit's body doesn't fit its leaf's record, so that the update writes it beforehand. Its caller
    /// may check first that the edit won't be refused.
    pub fn is_written_ahead(&self, edit: &Edit) -> bool {
        // Half of the record is for the table of attachments, whose size depends on the stored leaves.
        let divisor = if edit.attachments.is_empty() { 1 } else { 2 };
        edit.body().len() > self.leaf_bytes_max / divisor
    }

    /// Writes the bodies that don't fit their leaves' records.
    ///
    /// # Errors
    /// `NoSpace`; `Stopped`.
    pub(super) async fn write_oversize_bodies(&self, edits: &mut [Edit]) -> Result<()> {
        for edit in edits {
            // An edit with an invalid id is refused by its update.
            let is_due = edit.uploaded_body.is_none() && self.is_written_ahead(edit);
            if is_due && self.check_id(&edit.id).is_ok() {
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
