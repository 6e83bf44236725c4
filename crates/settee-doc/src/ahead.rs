//! Bodies that are written ahead of their updates.
//!
//! A body is hashed and handed to the log in its request's own task, in pieces, before the update waits
//! for its turn; what the updater commits then names it. It lies as an attachment does: under keys of
//! its own, with a mark as long as no leaf names it, and its update's sync covers it too. A body whose
//! update is refused is removed by the next one, and compaction gives its space back.
//!
//! A body that stands apart costs a look-up and a read more, whenever it is read, and records of its own;
//! so smaller ones go with their updates whatever was asked for.

use crate::Result;
use crate::database::Database;
use crate::edit::Edit;

/// Smaller bodies aren't written ahead.
pub const AHEAD_BYTES_MIN: usize = 64 << 10;

impl Database {
    /// Writes bodies of at least [`AHEAD_BYTES_MIN`] to the log, ahead of the updates that the edits
    /// are made with next; their ids must not be changed in between. Not those of edits that are bound
    /// to be refused, as far as what is persisted tells, or whose revision is known already where they
    /// are `replicated`. What isn't made an update goes again.
    ///
    /// # Errors
    /// `NoSpace`; `Stopped`.
    pub async fn write_ahead(&self, edits: &mut [Edit], replicated: bool) -> Result<()> {
        for edit in edits {
            let is_large = edit.body().len() >= AHEAD_BYTES_MIN && edit.ahead.is_none();
            if is_large && self.check_id(&edit.id).is_ok() && self.expects(edit, replicated).await? {
                edit.ahead = Some(self.upload_body(&edit.id, &edit.body()).await?);
            }
        }
        Ok(())
    }

    /// Whether an edit is to be made, as things stand; whoever makes it decides by what was accepted.
    async fn expects(&self, edit: &Edit, replicated: bool) -> Result<bool> {
        if edit.foreign_revision.is_some() {
            return Ok(false);
        }
        let (view, id) = (self.view(), edit.id.as_str());
        let expects = match edit.revision {
            Some(revision) if replicated => !view.missing(id, &[revision], 0).await?.0.is_empty(),
            Some(revision) => view.leaves(id).await?.iter().any(|leaf| leaf.revision == revision),
            None => view.find(id).await?.is_none_or(|summary| summary.deleted),
        };
        Ok(expects)
    }
}
