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

/// A function of `validator` exceeded a limit; why the request's other edits are refused.
#[derive(Clone)]
pub(crate) struct StoppedFunction {
    validator: Arc<dyn Validator>,
    error: Error,
}

impl StoppedFunction {
    /// What `outcome` of the functions says.
    pub(super) fn of(validator: &Arc<dyn Validator>, outcome: &Result<()>) -> Option<StoppedFunction> {
        let error = outcome.as_ref().err().filter(|error| error.is_of_stopped_function())?;
        Some(StoppedFunction { validator: validator.clone(), error: error.clone() })
    }

    /// The error of further edits, unless the functions have changed.
    pub(super) fn refusal(&self, validator: &Arc<dyn Validator>) -> Option<Error> {
        Arc::ptr_eq(&self.validator, validator).then(|| self.error.clone())
    }
}

impl Validated {
    /// The function that exceeded a limit, if one did.
    pub(super) fn stopped_function(&self) -> Option<StoppedFunction> {
        StoppedFunction::of(&self.validator, &self.outcome)
    }
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
