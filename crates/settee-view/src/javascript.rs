//! Functions in JavaScript, for indexes.

use settee_js::{Kind, Limits, MapContext, Outcome, ReduceContext, check};

use crate::error::{Result, ViewError};
use crate::mapper::{Mapped, Mapper};
use crate::reduce::{Functions, ReduceError, Reducer};

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

/// Reduce functions of an index. The context is made with the first call.
pub(crate) struct JavascriptReduces {
    /// By reduce function of the index; `None` for built-in ones.
    sources: Vec<Option<String>>,
    contexts: Vec<Option<ReduceContext>>,
    limits: Limits,
}

impl JavascriptReduces {
    pub(crate) fn new(reduces: &[String], limits: Limits) -> JavascriptReduces {
        let source = |reduce: &String| match Reducer::parse(reduce) {
            Reducer::Function(source) => Some(source),
            _ => None,
        };
        let sources: Vec<_> = reduces.iter().map(source).collect();
        JavascriptReduces { contexts: sources.iter().map(|_| None).collect(), sources, limits }
    }

    fn call(
        &mut self,
        function: usize,
        call: impl FnOnce(&mut ReduceContext) -> std::result::Result<String, settee_js::Error>,
    ) -> std::result::Result<String, ReduceError> {
        if self.contexts[function].is_none() {
            let source = self.sources[function].as_deref().unwrap_or_default();
            let context = ReduceContext::new(&[source], self.limits).map_err(|error| reduce_error(&error))?;
            self.contexts[function] = Some(context);
        }
        let context = self.contexts[function].as_mut().expect("it was made");
        let value = call(context).map_err(|error| reduce_error(&error));
        for message in context.take_logs() {
            tracing::info!("a reduce function logs: {message}");
        }
        value
    }
}

impl Functions for JavascriptReduces {
    fn reduce(
        &mut self,
        function: usize,
        keys: &str,
        values: &str,
    ) -> std::result::Result<String, ReduceError> {
        self.call(function, |context| context.reduce(0, keys, values))
    }

    fn rereduce(&mut self, function: usize, values: &str) -> std::result::Result<String, ReduceError> {
        self.call(function, |context| context.rereduce(0, values))
    }
}

fn reduce_error(error: &settee_js::Error) -> ReduceError {
    let is_of_row = matches!(error, settee_js::Error::ReduceOverflow { .. });
    ReduceError { error: error.error().to_owned(), reason: error.reason(), is_of_row }
}
