//! What plans are compared with: the engine that the server uses, `settee-js`.
//!
//! Its free variables live as long as the context, so from one document to the next.

use std::cell::RefCell;

use settee_js::{Limits, MapContext};
use settee_map::{Document, Outcome, Plan, Scratch};

/// What became of a document, however it was mapped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Mapped {
    Rows(Vec<(String, String)>),
    Dropped(String),
    /// A plan left the document to the engine, or the engine was stopped.
    Undecided(String),
}

/// Ticks after which a document's run is stopped.
const TICKS: u64 = 2_000;

/// An engine with one map function.
pub(crate) struct Engine(RefCell<MapContext>);

impl Engine {
    /// Compiles the function; the message if that fails.
    pub(crate) fn compile(source: &str) -> Result<Engine, String> {
        let limits = Limits { ticks: TICKS, ..Limits::default() };
        let context = MapContext::new(None, &[source], limits).map_err(|error| error.to_string())?;
        Ok(Engine(RefCell::new(context)))
    }

    pub(crate) fn map(&self, document: &str) -> Mapped {
        let batch = self.0.borrow_mut().map(&[document.as_bytes()]).expect("the engine works");
        match batch.outcome(0, 0) {
            settee_js::Outcome::Rows(rows) => {
                Mapped::Rows(rows.map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
            }
            settee_js::Outcome::Dropped { message } => Mapped::Dropped(message.to_owned()),
            settee_js::Outcome::Stopped(stop) => Mapped::Undecided(stop.to_string()),
            settee_js::Outcome::Skipped => Mapped::Undecided("stopped before".to_owned()),
        }
    }
}

/// Maps a document by a plan.
pub(crate) fn map_by_plan(plan: &Plan, document: &str, scratch: &mut Scratch) -> Mapped {
    let document = match Document::new(document.as_bytes()) {
        Ok(document) => document,
        Err(error) => return Mapped::Undecided(error.to_string()),
    };
    let mut rows: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    match plan.run(&document, scratch, &mut rows) {
        Outcome::Rows => {
            let text = |bytes| String::from_utf8(bytes).expect("rows are UTF-8");
            Mapped::Rows(rows.into_iter().map(|(key, value)| (text(key), text(value))).collect())
        }
        Outcome::Dropped(message) => {
            assert!(rows.is_empty(), "rows of a function that threw");
            Mapped::Dropped(message)
        }
        Outcome::NeedsEngine(reason) => {
            assert!(rows.is_empty(), "rows of a document that needs the engine");
            Mapped::Undecided(reason.to_owned())
        }
    }
}

/// Asserts that the function has a plan, and that it maps the documents as the engine does, without needing it.
#[track_caller]
pub(crate) fn assert_mapped_alike(source: &str, documents: &[&str]) {
    let plan = Plan::compile(source).unwrap_or_else(|outside| panic!("{source}: {outside}"));
    let engine = Engine::compile(source).unwrap_or_else(|error| panic!("{source}: {error}"));
    let mut scratch = Scratch::new();
    for document in documents {
        let planned = map_by_plan(&plan, document, &mut scratch);
        assert!(!matches!(planned, Mapped::Undecided(_)), "{planned:?}: {source} over {document}");
        assert_eq!(planned, engine.map(document), "{source} over {document}");
    }
}

/// Asserts that both give these rows, as `key value` each.
#[track_caller]
pub(crate) fn assert_rows(source: &str, document: &str, rows: &[(&str, &str)]) {
    assert_mapped_alike(source, &[document]);
    let engine = Engine::compile(source).expect("compiled above");
    let rows = rows.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    assert_eq!(engine.map(document), Mapped::Rows(rows), "{source} over {document}");
}

/// Asserts that the function throws in both.
#[track_caller]
pub(crate) fn assert_dropped(source: &str, document: &str) {
    assert_mapped_alike(source, &[document]);
    let engine = Engine::compile(source).expect("compiled above");
    assert!(matches!(engine.map(document), Mapped::Dropped(_)), "{source} over {document}");
}

/// Asserts that the plan leaves the document to the engine.
#[track_caller]
pub(crate) fn assert_needs_engine(source: &str, document: &str) {
    let plan = Plan::compile(source).unwrap_or_else(|outside| panic!("{source}: {outside}"));
    let planned = map_by_plan(&plan, document, &mut Scratch::new());
    assert!(matches!(planned, Mapped::Undecided(_)), "{planned:?}: {source} over {document}");
}

/// Asserts that the function has no plan, for a reason that contains `reason`.
#[track_caller]
pub(crate) fn assert_outside(source: &str, reason: &str) {
    match Plan::compile(source) {
        Ok(plan) => panic!("{source}: {plan:?}"),
        Err(outside) => assert!(outside.reason.contains(reason), "{source}: {outside}"),
    }
}
