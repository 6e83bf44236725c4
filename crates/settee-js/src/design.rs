//! Filters, validation, updates, shows, lists and rewrites: the functions of a design document that get the
//! document as `this` and may `require` any part of it.
//!
//! Functions are compiled at their first use. Documents are not frozen.
//!
//! Invariant: after a call that exceeded ticks or memory, the next call begins with a new engine.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use rquickjs::Function;
use rquickjs::function::Func;

use crate::answer::Answer;
use crate::engine::{Engine, Failure, Role, Value0};
use crate::error::{Error, Stop};
use crate::limits::Limits;

/// Gives a list function its rows, each the JSON text of an object; None after the last. It may block.
pub type RowSource = Box<dyn FnMut() -> Option<String> + Send>;

/// Takes what a list function sends. False if the receiver is gone: the function then gets no more rows.
pub type ListOutput = Box<dyn FnMut(ListChunk) -> bool + Send>;

/// A part of a list function's output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListChunk {
    /// The first part: the JSON text of the response object (`headers`, `code`), and body chunks.
    Start {
        /// What the function passed to `start`, with the content type that `provides` chose.
        response: String,
        /// Body chunks so far.
        chunks: Vec<String>,
    },
    /// Further body chunks, possibly none.
    Chunks(Vec<String>),
}

/// Why a validation function refused a write.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// `throw {forbidden: reason}`: 403.
    #[error("forbidden: {reason}")]
    Forbidden {
        /// JSON text.
        reason: String,
    },
    /// `throw {unauthorized: reason}`: 401.
    #[error("unauthorized: {reason}")]
    Unauthorized {
        /// JSON text.
        reason: String,
    },
    /// Any other value was thrown: 500 `unknown_error`.
    #[error("unknown_error: {reason}")]
    Unknown {
        /// JSON text: of an object's only member, else of the value.
        reason: String,
    },
    /// The function raised an exception, exceeded a limit or does not compile.
    #[error(transparent)]
    Failed(#[from] Error),
}

impl Refusal {
    /// The `error` member of CouchDB's answer.
    pub fn error(&self) -> &str {
        match self {
            Refusal::Forbidden { .. } => "forbidden",
            Refusal::Unauthorized { .. } => "unauthorized",
            Refusal::Unknown { .. } => "unknown_error",
            Refusal::Failed(error) => error.error(),
        }
    }
}

/// What an update function returned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Updated {
    /// The document to store, JSON text; None if nothing is to be stored.
    pub document: Option<String>,
    /// The response object, JSON text: `{"body":…}` if the function returned a string.
    pub response: String,
}

/// How an answer of `loop.js` ends if null was thrown: by the function, or by the engine without memory.
const AMBIGUOUS: &str = r#","ambiguous"]"#;

/// The functions of one design document. Not for other design documents or databases.
pub struct DesignContext {
    design: String,
    limits: Limits,
    engine: Option<Engine>,
    /// Indexes of compiled functions, by the JSON of their path.
    functions: HashMap<String, usize>,
}

impl DesignContext {
    /// `design` is the JSON text of the design document, `_id` included. No function is compiled yet.
    ///
    /// # Errors
    /// [`Error::NotJson`] if it is not an object.
    pub fn new(design: &str, limits: Limits) -> Result<DesignContext, Error> {
        let parsed: serde_json::Result<serde_json::Map<String, serde_json::Value>> =
            serde_json::from_str(design);
        parsed.map_err(|e| Error::NotJson(e.to_string()))?;
        Ok(DesignContext { design: design.to_owned(), limits, engine: None, functions: HashMap::new() })
    }

    /// Which of `documents` the function at `path`, such as `["filters","f"]`, lets pass. `request` is the
    /// request object. Each document has all ticks.
    ///
    /// # Errors
    /// [`Error::Raised`] with `not_found` if there is no such function or with the exception of the first
    /// document that raises one; [`Error::Compile`]; [`Error::Stopped`].
    pub fn filter(&mut self, path: &[&str], documents: &[&str], request: &str) -> Result<Vec<bool>, Error> {
        let documents = format!("[{}]", documents.join(","));
        booleans(self.run(path, "filter", &[&documents, request])?)
    }

    /// For which of `documents` the map function of `view` emits.
    ///
    /// # Errors
    /// As [`DesignContext::filter`].
    pub fn filter_view(&mut self, view: &str, documents: &[&str]) -> Result<Vec<bool>, Error> {
        let documents = format!("[{}]", documents.join(","));
        booleans(self.run(&["views", view, "map"], "filterView", &[&documents])?)
    }

    /// Runs `validate_doc_update`. `previous` is `null` for a new document. All arguments are JSON text.
    ///
    /// # Errors
    /// The write is refused.
    pub fn validate(
        &mut self,
        document: &str,
        previous: &str,
        user: &str,
        security: &str,
    ) -> Result<(), Refusal> {
        let arguments = [document, previous, user, security];
        let mut answer = self.run(&["validate_doc_update"], "validate", &arguments)?;
        match answer.status.as_str() {
            "ok" => Ok(()),
            _ => refusal(&answer.take(0)),
        }
    }

    /// Runs the update function at `path`, such as `["updates","u"]`. `document` may be `null`.
    ///
    /// # Errors
    /// As [`DesignContext::filter`]; `render_error` if it raised or returned no response;
    /// `method_not_allowed` if the request's method is GET.
    pub fn update(&mut self, path: &[&str], document: &str, request: &str) -> Result<Updated, Error> {
        let mut answer = self.run(path, "update", &[document, request])?;
        let document = Some(answer.take(0)).filter(|document| document != "null");
        Ok(Updated { document, response: answer.take(1) })
    }

    /// Runs the show function at `path`. `document` may be `null`. Returns the response object as JSON text.
    ///
    /// # Errors
    /// As [`DesignContext::update`]; `not_found` if it raised and the requested document does not exist;
    /// `not_acceptable` if no `provides` fits.
    pub fn show(&mut self, path: &[&str], document: &str, request: &str) -> Result<String, Error> {
        Ok(self.run(path, "show", &[document, request])?.take(0))
    }

    /// Runs the list function at `path` over `rows`. It reads a row at a time and each row has all ticks.
    /// Everything that it sends goes to `output` before the next row is read; nothing is buffered.
    ///
    /// # Errors
    /// As [`DesignContext::show`]. If `output` had a start before, the response is cut.
    pub fn list(
        &mut self,
        path: &[&str],
        head: &str,
        request: &str,
        rows: RowSource,
        output: ListOutput,
    ) -> Result<(), Error> {
        let index = self.function(path)?;
        let engine = self.engine.as_ref().expect("function built it");
        let channel = Arc::new(Mutex::new(Some(Channel { rows, output, open: true })));
        let (reader, writer) = (Arc::clone(&channel), Arc::clone(&channel));
        let answer = engine.with_ticks(self.limits.ticks, |ctx, entry_points| {
            let next_row = Func::from(move || lock(&reader).as_mut().and_then(Channel::next_row));
            let write = Func::from(move |chunks: String, response: Option<String>| {
                if let Some(channel) = lock(&writer).as_mut() {
                    channel.write(&chunks, response);
                }
            });
            let (head, request) = (ctx.json_parse(head)?, ctx.json_parse(request)?);
            let list: Function = entry_points.get("list")?;
            list.call::<_, String>((index as u32, head, request, next_row, write))
        });
        // The engine may keep the functions; it does not keep the caller's.
        lock(&channel).take();
        self.finish(answer).map(|_| ())
    }

    /// Runs the function `rewrites`. Returns the JSON text of the rewritten request, a path alone as
    /// `{"path":…,"method":…}`, or None if the function found no rule.
    ///
    /// # Errors
    /// As [`DesignContext::update`].
    pub fn rewrite(&mut self, request: &str) -> Result<Option<String>, Error> {
        let mut answer = self.run(&["rewrites"], "rewrite", &[request])?;
        Ok((answer.status == "ok").then(|| answer.take(0)))
    }

    /// What the functions passed to `log` since the last call.
    pub fn take_logs(&mut self) -> Vec<String> {
        let logs = self.engine.as_ref().map(|engine| engine.call_internal::<_, String>("takeLogs", ()));
        logs.and_then(Result::ok).and_then(|logs| serde_json::from_str(&logs).ok()).unwrap_or_default()
    }

    /// Calls an entry point with the function at `path` and JSON arguments.
    fn run(&mut self, path: &[&str], entry_point: &str, arguments: &[&str]) -> Result<Answer, Error> {
        let index = self.function(path)?;
        let engine = self.engine.as_ref().expect("function built it");
        let answer = engine.call_counted(entry_point, index, arguments);
        self.finish(answer)
    }

    /// Parses the answer; drops the engine if it cannot be trusted any more.
    fn finish(&mut self, answer: Result<String, Failure>) -> Result<Answer, Error> {
        let ambiguous = matches!(&answer, Ok(answer) if answer.ends_with(AMBIGUOUS));
        let result = match answer {
            Ok(answer) => Answer::parse(&answer, &self.limits),
            // Only the arguments are parsed outside of the entry points, which raise nothing.
            Err(Failure::Other(message)) => Err(Error::NotJson(message)),
            Err(failure) => Err(failure.into_error(&self.limits)),
        };
        let unusable = matches!(
            result,
            Err(Error::Engine(_) | Error::Stopped(Stop::Ticks { .. } | Stop::Memory { .. }))
        );
        if unusable || ambiguous {
            self.engine = None;
            self.functions.clear();
        }
        result
    }

    /// The index of the function at `path`, compiled at its first use.
    fn function(&mut self, path: &[&str]) -> Result<usize, Error> {
        let key = serde_json::to_string(path).expect("strings are JSON");
        if let (true, Some(&index)) = (self.engine.is_some(), self.functions.get(&key)) {
            return Ok(index);
        }
        let limits = self.limits;
        if self.engine.is_none() {
            self.functions.clear();
            self.engine = Some(build(&self.design, &limits)?);
        }
        let engine = self.engine.as_mut().expect("just built");
        let answer: Result<String, Failure> = engine.with_internal(|ctx, entry_points| {
            let path = ctx.json_parse(key.as_str())?;
            entry_points.get::<_, Function>("source")?.call((path,))
        });
        let mut answer = Answer::parse(&answer.map_err(|f| f.into_error(&limits))?, &limits)?;
        let source: String =
            serde_json::from_str(&answer.take(0)).map_err(|e| Error::Engine(e.to_string()))?;
        let compiled = engine.add_function(Role::Design, None, &source);
        if let Err(Error::FunctionCount { .. }) = compiled {
            // Functions that are asked for in turn: begin anew.
            self.engine = None;
        }
        let index = compiled?;
        self.functions.insert(key, index);
        Ok(index)
    }
}

/// The callbacks of one list call.
struct Channel {
    rows: RowSource,
    output: ListOutput,
    open: bool,
}

impl Channel {
    fn next_row(&mut self) -> Option<String> {
        if self.open { (self.rows)() } else { None }
    }

    fn write(&mut self, chunks: &str, response: Option<String>) {
        let chunks: Vec<String> = serde_json::from_str(chunks).unwrap_or_default();
        if self.open {
            self.open = (self.output)(match response {
                Some(response) => ListChunk::Start { response, chunks },
                None => ListChunk::Chunks(chunks),
            });
        }
    }
}

fn lock(channel: &Mutex<Option<Channel>>) -> std::sync::MutexGuard<'_, Option<Channel>> {
    channel.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn build(design: &str, limits: &Limits) -> Result<Engine, Error> {
    let engine = Engine::new(limits)?;
    let set: Result<Value0, Failure> = engine.with_internal(|ctx, entry_points| {
        let design = ctx.json_parse(design)?;
        entry_points.get::<_, Function>("setDesign")?.call((design,))
    });
    set.map_err(|f| f.into_error(limits))?;
    Ok(engine)
}

fn booleans(mut answer: Answer) -> Result<Vec<bool>, Error> {
    serde_json::from_str(&answer.take(0)).map_err(|e| Error::Engine(e.to_string()))
}

/// What a value thrown by a validation function means. CouchDB takes a thrown 1 for success.
fn refusal(thrown: &str) -> Result<(), Refusal> {
    if thrown == "1" {
        return Ok(());
    }
    if let Ok((kind, error, reason)) = serde_json::from_str::<(String, String, String)>(thrown)
        && (kind == "error" || kind == "fatal")
    {
        return Err(Error::Raised { error, reason }.into());
    }
    let members = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(thrown);
    Err(match members {
        Ok(members) if members.contains_key("forbidden") => {
            Refusal::Forbidden { reason: members["forbidden"].to_string() }
        }
        Ok(members) if members.contains_key("unauthorized") => {
            Refusal::Unauthorized { reason: members["unauthorized"].to_string() }
        }
        Ok(members) if members.len() == 1 => {
            let reason = members.values().next().expect("one member").to_string();
            Refusal::Unknown { reason }
        }
        _ => Refusal::Unknown { reason: thrown.to_owned() },
    })
}
