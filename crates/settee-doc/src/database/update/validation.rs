//! Validation functions: `validate_doc_update` of design documents.
//!
//! They aren't run yet. A write that one of them would have to check is refused, and so is a design document
//! that has one, unless the server is configured to ignore them. Design documents are scanned at the first
//! write of a document after one of them was written.

use std::sync::PoisonError;

use super::updater::Updater;
use crate::database::range::Range;
use crate::database::snapshot::Snapshot;
use crate::database::state::Validation;
use crate::documents::Edit;
use crate::documents::design::{self, DESIGN_PREFIX};
use crate::{Error, ErrorKind, Result};

impl Updater<'_> {
    /// Checks whether an edit may be stored. A design document must be well-formed; other documents can't be
    /// written while a function would have to check them.
    ///
    /// # Errors
    /// Inner: why the edit is refused, or why the design documents couldn't be scanned. Outer: the commit of
    /// earlier edits failed.
    pub(super) async fn check_validation(&mut self, edit: &Edit) -> Result<Result<()>> {
        let ignores = self.database.rules.ignore_validation;
        if edit.id.starts_with(DESIGN_PREFIX) {
            return Ok(check_design(edit, ignores));
        }
        if ignores {
            return Ok(Ok(()));
        }
        if self.records.has_design {
            // This request's design documents count.
            self.commit().await?;
        }
        Ok(match self.validation().await {
            Err(error) => Err(error),
            Ok(Validation::By(id)) => Err(Error::new(
                ErrorKind::NotImplemented,
                format!(
                    "{id} has a validate_doc_update function, which is not run yet: no document can be \
                     written. Remove it, or start the server with ignore_validation"
                ),
            )),
            Ok(Validation::None | Validation::Unknown) => Ok(()),
        })
    }

    /// Forgets the scan's result, since a design document is being written.
    pub(super) fn invalidate_validation(&self) {
        *self.cached_validation() = Validation::Unknown;
    }

    /// The scan's result, from the cache or a new scan.
    async fn validation(&mut self) -> Result<Validation> {
        let cached = self.cached_validation().clone();
        if !matches!(cached, Validation::Unknown) {
            return Ok(cached);
        }
        let found = self.find_validation().await?;
        self.cached_validation().clone_from(&found);
        Ok(found)
    }

    async fn find_validation(&mut self) -> Result<Validation> {
        let snapshot = Snapshot::new(self.writer.latest(), self.revs_limit, Default::default());
        let range = Range { prefix: DESIGN_PREFIX.to_owned(), ..Range::default() };
        let mut rows = snapshot.all_docs(&range).await?;
        while let Some(row) = rows.next().await? {
            let document = snapshot.read(row.id, row.summary, row.body).await?;
            let document = snapshot.read_whole(document).await?;
            if design::has_validation(&document.body)? {
                return Ok(Validation::By(document.id));
            }
        }
        Ok(Validation::None)
    }

    fn cached_validation(&self) -> std::sync::MutexGuard<'_, Validation> {
        self.database.validation.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn check_design(edit: &Edit, ignores: bool) -> Result<()> {
    let body = edit.body();
    design::check(&body)?;
    if ignores || edit.deleted || !design::has_validation(&body)? {
        return Ok(());
    }
    let reason = "validate_doc_update is not run yet: a design document that has it is stored only where the \
                  server is started with ignore_validation";
    Err(Error::new(ErrorKind::NotImplemented, reason))
}
