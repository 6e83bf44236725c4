//! The functions that writes need: the compilation of views, and `validate_doc_update`.

use std::sync::Arc;

use settee_doc::{
    DesignFunctions, Error, ErrorKind, FunctionFuture, ProposedWrite, ValidatingDesign, Validator,
    ViewFunction,
};
use settee_js::{CompileError, DesignContext, Kind, Refusal, Stop, check};

use super::contexts::{Contexts, DesignSource};
use super::user::{DEFAULT_SECURITY, UserContext};
use crate::auth::Admin;
use crate::json;

/// Compiles and runs the functions that writes need.
pub(crate) struct WriteFunctions {
    contexts: Arc<Contexts>,
    user: UserContext,
}

impl WriteFunctions {
    pub(crate) fn new(contexts: Arc<Contexts>, admin: Option<&Admin>) -> WriteFunctions {
        WriteFunctions { contexts, user: UserContext::new(admin.map(Admin::name)) }
    }
}

impl DesignFunctions for WriteFunctions {
    fn compile(&self, functions: Vec<ViewFunction>) -> FunctionFuture<()> {
        let contexts = self.contexts.clone();
        Box::pin(run(contexts, move || functions.iter().try_for_each(compile)))
    }

    fn validator(
        &self,
        database: &str,
        incarnation: [u8; 16],
        designs: Vec<ValidatingDesign>,
    ) -> Arc<dyn Validator> {
        let source = |design: ValidatingDesign| {
            let ValidatingDesign { id, revision, json } = design;
            Arc::new(DesignSource::new(incarnation, id, revision, json))
        };
        Arc::new(DesignValidator {
            contexts: self.contexts.clone(),
            designs: designs.into_iter().map(source).collect(),
            user: self.user.json(database).into(),
        })
    }
}

/// The validation functions of a database.
struct DesignValidator {
    contexts: Arc<Contexts>,
    designs: Arc<[Arc<DesignSource>]>,
    user: Arc<str>,
}

impl Validator for DesignValidator {
    fn validate(&self, writes: Vec<ProposedWrite>) -> FunctionFuture<Vec<Result<(), Error>>> {
        let (contexts, designs, user) = (self.contexts.clone(), self.designs.clone(), self.user.clone());
        let validate = move || {
            let mut outcomes = Vec::with_capacity(writes.len());
            for write in &writes {
                let outcome =
                    designs.iter().try_for_each(|design| run_validation(&contexts, design, write, &user));
                let outcome = outcome.map_err(refused);
                let is_stopped = outcome.as_ref().is_err_and(Error::is_of_stopped_function);
                outcomes.push(outcome);
                if is_stopped {
                    // The next one may take as long.
                    break;
                }
            }
            Ok(outcomes)
        };
        Box::pin(run(self.contexts.clone(), validate))
    }
}

fn run_validation(
    contexts: &Contexts,
    design: &Arc<DesignSource>,
    write: &ProposedWrite,
    user: &str,
) -> Result<(), Refusal> {
    let previous = write.previous.as_deref().unwrap_or("null");
    let call =
        |context: &mut DesignContext| context.validate(&write.document, previous, user, DEFAULT_SECURITY);
    contexts.with(design, call)
}

/// Runs a call on a blocking thread.
async fn run<T: Send + 'static>(
    contexts: Arc<Contexts>,
    call: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let permit = contexts.call_permit().await;
    let call = move || {
        let _permit = permit;
        call()
    };
    let ended = tokio::task::spawn_blocking(call).await;
    ended.unwrap_or_else(|panicked| Err(Error::new(ErrorKind::Internal, panicked.to_string())))
}

fn compile(function: &ViewFunction) -> Result<(), Error> {
    let ViewFunction { view, is_reduce, source } = function;
    let (kind, name) = if *is_reduce { (Kind::Reduce, "reduce") } else { (Kind::Map, "map") };
    check(kind, source).map_err(|error| match error {
        CompileError::Empty => Error::new(ErrorKind::NotFound, error.to_string()),
        error => {
            let reason = format!("Compilation of the {name} function in the '{view}' view failed: {error}");
            Error::new(ErrorKind::Uncompilable, reason)
        }
    })
}

/// The error of a write that a function refuses.
fn refused(refusal: Refusal) -> Error {
    let name = refusal.error().to_owned();
    match refusal {
        Refusal::Forbidden { reason } => Error::of_function(ErrorKind::Forbidden, name, &reason),
        Refusal::Unauthorized { reason } => Error::of_function(ErrorKind::Unauthorized, name, &reason),
        Refusal::Unknown { reason } => Error::of_function(ErrorKind::FunctionFailed, name, &reason),
        Refusal::Failed(error @ settee_js::Error::Stopped(Stop::Ticks { .. } | Stop::Memory { .. })) => {
            Error::of_stopped_function(name, &json::quoted(&error.reason()))
        }
        Refusal::Failed(error) => {
            let kind = match name.as_str() {
                "not_found" => ErrorKind::NotFound,
                _ => ErrorKind::FunctionFailed,
            };
            Error::of_function(kind, name, &json::quoted(&error.reason()))
        }
    }
}
