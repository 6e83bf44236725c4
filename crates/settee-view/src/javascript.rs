//! Functions in JavaScript, for indexes.

use std::sync::{Mutex, MutexGuard, PoisonError};

use settee_io::Env;
use settee_js::{FUNCTION_COUNT_MAX, Kind, Limits, MapContext, Outcome, ReduceContext, check};

use crate::error::{Result, ViewError};
use crate::mapper::{Mapped, Mapper};
use crate::reduce::{Functions, ReduceError};

/// Map functions of a design document.
pub(crate) struct JavascriptMapper {
    /// The database and the design document, for the log.
    origin: String,
    /// Each with at most [`FUNCTION_COUNT_MAX`] functions, in their order.
    contexts: Vec<MapContext>,
    /// Why a function is in no context; `None` if it is in one.
    refused: Vec<Option<ViewError>>,
}

impl JavascriptMapper {
    /// Compiles functions. One that can't be compiled stops its view only.
    pub(crate) fn new(
        origin: String,
        lib: Option<&str>,
        sources: &[&str],
        limits: Limits,
    ) -> Result<JavascriptMapper> {
        let refusal = |source: &&str| {
            let error = check(Kind::Map, source).err()?;
            Some(ViewError::function(error.error(), error.to_string()))
        };
        let refused: Vec<Option<ViewError>> = sources.iter().map(refusal).collect();
        let sound = sources.iter().zip(&refused).filter(|(_, refusal)| refusal.is_none());
        let sound: Vec<&str> = sound.map(|(source, _)| *source).collect();
        let context = |sources| MapContext::new(lib, sources, limits).map_err(|error| error_of(&error));
        let contexts = sound.chunks(FUNCTION_COUNT_MAX).map(context).collect::<Result<_>>()?;
        Ok(JavascriptMapper { origin, contexts, refused })
    }
}

impl Mapper for JavascriptMapper {
    fn map(&mut self, documents: &[&[u8]]) -> Vec<Vec<Mapped>> {
        let mut sound: Vec<Vec<Mapped>> = documents.iter().map(|_| Vec::new()).collect();
        for context in &mut self.contexts {
            map_with(context, documents, &self.origin, &mut sound);
        }
        let with_refused = |sound: Vec<Mapped>| {
            let mut sound = sound.into_iter();
            let outcome = |refusal: &Option<ViewError>| match refusal {
                Some(error) => Mapped::Stopped(error.clone()),
                None => sound.next().expect("each sound function is in a context"),
            };
            self.refused.iter().map(outcome).collect()
        };
        sound.into_iter().map(with_refused).collect()
    }
}

/// Appends to the outcomes of each document those of a context's functions.
fn map_with(context: &mut MapContext, documents: &[&[u8]], origin: &str, all: &mut [Vec<Mapped>]) {
    let count = context.function_count();
    let batch = match context.map(documents) {
        Ok(batch) => batch,
        Err(error) => {
            let error = error_of(&error);
            let stopped = || (0..count).map(|_| Mapped::Stopped(error.clone()));
            all.iter_mut().for_each(|outcomes| outcomes.extend(stopped()));
            return;
        }
    };
    for message in batch.logs() {
        tracing::info!(design = origin, "a map function logs: {message}");
    }
    let outcome = |document: usize, function: usize| match batch.outcome(document, function) {
        Outcome::Rows(rows) => {
            Mapped::Rows(rows.map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
        }
        Outcome::Dropped { message } => Mapped::Dropped(message.to_owned()),
        Outcome::Stopped(stop) => {
            let error = settee_js::Error::Stopped(stop.clone());
            Mapped::Stopped(error_of(&error))
        }
        Outcome::Skipped => Mapped::Rows(Vec::new()),
    };
    for (document, outcomes) in all.iter_mut().enumerate() {
        outcomes.extend((0..count).map(|function| outcome(document, function)));
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

#[cfg(test)]
mod tests {
    //! Goal: a design document may have more functions than a context. Method: many of them, one that doesn't compile.

    use super::*;

    #[test]
    fn functions_beyond_those_of_a_context_are_in_further_ones() {
        let mut sources: Vec<String> = (0..FUNCTION_COUNT_MAX + 20)
            .map(|n| format!("function (doc) {{ if (/a/.test(doc.s)) emit({n}); }}"))
            .collect();
        sources[100] = "function (".to_owned();
        let sources: Vec<&str> = sources.iter().map(String::as_str).collect();
        let mut mapper = JavascriptMapper::new("db/d".to_owned(), None, &sources, Limits::default()).unwrap();
        let documents: [&[u8]; 2] = [br#"{"s":"a"}"#, br#"{"s":"b"}"#];
        let mapped = mapper.map(&documents);
        for (document, outcomes) in mapped.iter().enumerate() {
            assert_eq!(outcomes.len(), sources.len());
            for (n, outcome) in outcomes.iter().enumerate() {
                match outcome {
                    Mapped::Stopped(_) => assert_eq!(n, 100),
                    Mapped::Rows(rows) if document == 0 => assert_eq!(rows[0].0, n.to_string()),
                    Mapped::Rows(rows) => assert!(rows.is_empty()),
                    Mapped::Dropped(message) => panic!("{message}"),
                }
            }
        }
    }
}
