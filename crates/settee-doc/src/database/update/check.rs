//! What an edit has to pass, and the outcome of a validation before its turn.

use std::sync::Arc;

use crate::design_functions::{ProposedWrite, Validator};
use crate::documents::Revision;
use crate::{Error, Result};

/// What an edit has to pass, or why it is refused whatever it replaces.
pub(super) type Checked = Result<Option<Check>>;

/// The functions that an edit has to pass, and the outcome if they ran already.
pub(super) struct Check {
    pub(super) validator: Arc<dyn Validator>,
    pub(super) ahead: Option<Validated>,
}

/// The outcome of a validation of an edit that was to replace a revision, or to create a document.
pub(crate) struct Validated {
    pub(super) validator: Arc<dyn Validator>,
    pub(super) replaced: Option<Revision>,
    pub(super) outcome: Result<()>,
}

impl Check {
    /// The outcome, if the functions ran for an edit that replaces `replaced`.
    pub(super) fn outcome(&self, replaced: Option<&Revision>) -> Option<Result<()>> {
        let ahead = self.ahead.as_ref()?;
        let is_same = Arc::ptr_eq(&ahead.validator, &self.validator) && ahead.replaced.as_ref() == replaced;
        is_same.then(|| ahead.outcome.clone())
    }

    /// Runs the functions.
    ///
    /// # Errors
    /// Those of [`Validator::validate`].
    pub(super) async fn run(&self, write: ProposedWrite) -> Result<()> {
        let outcomes = self.validator.validate(vec![write]).await?;
        outcomes.into_iter().next().unwrap_or_else(|| Err(Error::damaged("a validation has no outcome")))
    }
}
