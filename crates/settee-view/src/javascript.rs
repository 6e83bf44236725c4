//! Functions in JavaScript, for indexes.

use std::sync::{Mutex, MutexGuard, PoisonError};

use settee_io::Env;
use settee_js::{Kind, Limits, MapContext, Outcome, ReduceContext, check};

use crate::error::{Result, ViewError};
use crate::mapper::{Mapped, Mapper};
use crate::reduce::{Functions, ReduceError};

/// Map functions of a design document.
pub(crate) struct JavascriptMapper {
    context: MapContext,
    /// For each function its index in the context, or why it has none.
    functions: Vec<std::result::Result<usize, ViewError>>,
}

impl JavascriptMapper {
    /// Compiles functions. One that can't be compiled stops its view only.
    pub(crate) fn new(lib: Option<&str>, sources: &[&str], limits: Limits) -> Result<JavascriptMapper> {
        let mut sound = Vec::new();
        let mut functions = Vec::with_capacity(sources.len());
        for source in sources {
            match check(Kind::Map, source) {
                Ok(()) => {
                    functions.push(Ok(sound.len()));
                    sound.push(*source);
                }
                Err(error) => functions.push(Err(ViewError::function(error.error(), error.to_string()))),
            }
        }
        let context = MapContext::new(lib, &sound, limits).map_err(|error| error_of(&error))?;
        Ok(JavascriptMapper { context, functions })
    }
}

impl Mapper for JavascriptMapper {
    fn map(&mut self, documents: &[&[u8]]) -> Vec<Vec<Mapped>> {
        let batch = match self.context.map(documents) {
            Ok(batch) => batch,
            Err(error) => {
                let error = error_of(&error);
                let stopped = || self.functions.iter().map(|_| Mapped::Stopped(error.clone())).collect();
                return documents.iter().map(|_| stopped()).collect();
            }
        };
        for message in batch.logs() {
            tracing::info!("a map function logs: {message}");
        }
        let outcome = |document: usize, function: &std::result::Result<usize, ViewError>| match function {
            Err(error) => Mapped::Stopped(error.clone()),
            Ok(function) => match batch.outcome(document, *function) {
                Outcome::Rows(rows) => {
                    Mapped::Rows(rows.map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
                }
                Outcome::Dropped { message } => Mapped::Dropped(message.to_owned()),
                Outcome::Stopped(stop) => {
                    let error = settee_js::Error::Stopped(stop.clone());
                    Mapped::Stopped(error_of(&error))
                }
                Outcome::Skipped => Mapped::Rows(Vec::new()),
            },
        };
        let of_document =
            |document| self.functions.iter().map(|function| outcome(document, function)).collect();
        (0..documents.len()).map(of_document).collect()
    }
}

/// CouchDB's name and reason for an error of a function.
pub(crate) fn error_of(error: &settee_js::Error) -> ViewError {
    ViewError::function(error.error().to_owned(), error.reason())
}

/// Contexts of reduce functions that are kept for the next call.
const REDUCE_CONTEXTS_MAX: usize = 16;

/// Calls reduce functions in JavaScript. A call has a context for itself; those of the last calls are kept.
pub(crate) struct JavascriptReduces {
    env: Env,
    limits: Limits,
    /// Each with its function's source, the most recently used last.
    idle: Mutex<Vec<(String, ReduceContext)>>,
}

impl JavascriptReduces {
    pub(crate) fn new(env: Env, limits: Limits) -> JavascriptReduces {
        JavascriptReduces { env, limits, idle: Mutex::default() }
    }

    fn call(
        &self,
        source: &str,
        call: impl FnOnce(&mut ReduceContext) -> std::result::Result<String, settee_js::Error>,
    ) -> std::result::Result<String, ReduceError> {
        let mut context = match self.take(source) {
            Some(context) => context,
            None => ReduceContext::new(&[source], self.limits).map_err(|error| reduce_error(&error))?,
        };
        let value = call(&mut context).map_err(|error| reduce_error(&error));
        for message in context.take_logs() {
            tracing::info!("a reduce function logs: {message}");
        }
        let mut idle = self.idle();
        if idle.len() == REDUCE_CONTEXTS_MAX {
            idle.remove(0);
        }
        idle.push((source.to_owned(), context));
        value
    }

    fn take(&self, source: &str) -> Option<ReduceContext> {
        let mut idle = self.idle();
        let place = idle.iter().rposition(|(own, _)| own == source)?;
        Some(idle.remove(place).1)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<(String, ReduceContext)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Functions for JavascriptReduces {
    fn reduce(&self, function: &str, keys: &str, values: &str) -> std::result::Result<String, ReduceError> {
        self.call(function, |context| context.reduce(0, keys, values))
    }

    fn rereduce(&self, function: &str, values: &str) -> std::result::Result<String, ReduceError> {
        self.call(function, |context| context.rereduce(0, values))
    }

    fn spawn(&self, work: Box<dyn FnOnce() + Send>) {
        self.env.spawn_background("view reduce", async move { work() });
    }
}

fn reduce_error(error: &settee_js::Error) -> ReduceError {
    let is_of_row = matches!(error, settee_js::Error::ReduceOverflow { .. });
    ReduceError { error: error.error().to_owned(), reason: error.reason(), is_of_row }
}
