//! What plans are compared with: QuickJS in CouchDB's loop.
//!
//! The document is parsed and frozen, the function called with it, and the rows printed after it returned. Globals
//! live as long as the reference, so from one document to the next.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rquickjs::context::EvalOptions;
use rquickjs::{CatchResultExt, Context, Ctx, Function, Runtime};
use settee_map::{Document, Outcome, Plan, Scratch};

/// What became of a document, however it was mapped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Mapped {
    Rows(Vec<(String, String)>),
    Dropped(String),
    /// A plan left the document to the engine, or the engine was stopped.
    Undecided(String),
}

/// An engine with one map function.
pub(crate) trait Reference: Sized {
    /// Compiles the function; the message if that fails.
    fn compile(source: &str) -> Result<Self, String>;
    fn map(&self, document: &str) -> Mapped;
}

const LOOP: &str = r#"
var rows = [];
function emit(key, value) { rows.push([key, value]); }
function isArray(value) { return Array.isArray(value); }
var $freeze = function (value) {
    if (value === null || typeof value !== "object") return;
    Object.freeze(value);
    Object.keys(value).forEach(function (name) { $freeze(value[name]); });
};
var $map = (function (stringify, parse) {
    return function (map, text) {
        var document = parse(text);
        $freeze(document);
        rows = [];
        try {
            map(document);
            return "+" + rows.map(function (row) {
                return row.map(function (part) {
                    var printed = stringify(part);
                    return printed === undefined ? "null" : printed;
                }).join("\n");
            }).join("\n");
        } catch (error) {
            return "-" + String(error).toWellFormed();
        }
    };
})(JSON.stringify, JSON.parse);
"#;

/// Calls of the interrupt handler after which a document's run is stopped.
const INTERRUPTS_MAX: u32 = 200;

pub(crate) struct QuickJs {
    context: Context,
    interrupts: Arc<AtomicU32>,
}

fn message(ctx: &Ctx<'_>, error: rquickjs::Error) -> String {
    Err::<(), _>(error).catch(ctx).map_or_else(|caught| caught.to_string(), |()| String::new())
}

impl Reference for QuickJs {
    fn compile(source: &str) -> Result<Self, String> {
        let runtime = Runtime::new().expect("a runtime");
        let interrupts = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&interrupts);
        runtime.set_interrupt_handler(Some(Box::new(move || {
            counted.fetch_add(1, Ordering::Relaxed) >= INTERRUPTS_MAX
        })));
        let context = Context::full(&runtime).expect("a context");
        let source = source.trim_end_matches(|char: char| char == ';' || char.is_ascii_whitespace());
        context.with(|ctx| {
            evaluate(&ctx, LOOP)?;
            evaluate(&ctx, &format!("var $function = ({source}\n);"))
        })?;
        Ok(Self { context, interrupts })
    }

    fn map(&self, document: &str) -> Mapped {
        self.interrupts.store(0, Ordering::Relaxed);
        self.context.with(|ctx| {
            let globals = ctx.globals();
            let map: Function<'_> = globals.get("$map").expect("the loop's function");
            let function: rquickjs::Value<'_> = globals.get("$function").expect("the function");
            match map.call::<_, String>((function, document)) {
                Ok(printed) => decode(&printed),
                Err(error) => Mapped::Undecided(message(&ctx, error)),
            }
        })
    }
}

/// Evaluates a script in sloppy mode, as CouchDB does.
fn evaluate(ctx: &Ctx<'_>, source: &str) -> Result<(), String> {
    let mut options = EvalOptions::default();
    options.strict = false;
    ctx.eval_with_options::<(), _>(source, options).map_err(|error| message(ctx, error))
}

fn decode(printed: &str) -> Mapped {
    let (kind, rest) = printed.split_at(1);
    if kind == "-" {
        return Mapped::Dropped(rest.to_owned());
    }
    if rest.is_empty() {
        return Mapped::Rows(Vec::new());
    }
    let parts: Vec<&str> = rest.split('\n').collect();
    Mapped::Rows(parts.chunks(2).map(|row| (row[0].to_owned(), row[1].to_owned())).collect())
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
    let engine = QuickJs::compile(source).unwrap_or_else(|error| panic!("{source}: {error}"));
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
    let engine = QuickJs::compile(source).expect("compiled above");
    let rows = rows.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    assert_eq!(engine.map(document), Mapped::Rows(rows), "{source} over {document}");
}

/// Asserts that the function throws in both.
#[track_caller]
pub(crate) fn assert_dropped(source: &str, document: &str) {
    assert_mapped_alike(source, &[document]);
    let engine = QuickJs::compile(source).expect("compiled above");
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
