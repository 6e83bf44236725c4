//! Evaluation of a plan over a document.
//!
//! A run has two parts: the function's statements are executed, which collects the values that were emitted; then
//! the rows are printed. The second part sees what the function did to its own arrays and objects after it emitted
//! them, as in the engine.

mod calls;
mod convert;
mod expressions;
mod limits;
mod members;
mod memory;
mod methods;
mod print;
mod statements;
mod values;

use crate::document::Document;
use crate::plan::Plan;
pub use limits::{MADE_BYTES_MAX, MADE_VALUES_MAX, ROW_BYTES_MAX, ROWS_MAX, STEPS_MAX};
use values::{Heap, Value};

/// Receives a document's rows, in the order in which they were emitted.
pub trait Rows {
    /// A row: key and value as JSON text, as `JSON.stringify` prints them.
    fn row(&mut self, key: &[u8], value: &[u8]);
}

impl Rows for Vec<(Vec<u8>, Vec<u8>)> {
    fn row(&mut self, key: &[u8], value: &[u8]) {
        self.push((key.to_vec(), value.to_vec()));
    }
}

/// What became of a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// All rows were reported, possibly none.
    Rows,
    /// The function throws this exception, so the document has no rows in the view.
    Dropped(String),
    /// The engine has to run the function over this document, for this reason. No row was reported.
    NeedsEngine(&'static str),
}

/// The memory of runs, kept from one to the next.
#[derive(Debug, Default)]
pub struct Scratch {
    heap: Heap,
}

impl Scratch {
    /// Without memory; runs allocate it.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Plan {
    /// Maps a document. Rows are reported only if the outcome is [`Outcome::Rows`]. Doesn't block; allocates
    /// little beyond `scratch`, and is bounded by the limits of this module.
    pub fn run(&self, document: &Document<'_>, scratch: &mut Scratch, out: &mut impl Rows) -> Outcome {
        scratch.heap.clear(self.slot_count, self.name_count);
        let mut run = Run { plan: self, document, heap: &mut scratch.heap };
        match run.map().and_then(|()| run.print_rows()) {
            Ok(()) => {}
            Err(Stop::Throw) => return Outcome::Dropped(std::mem::take(&mut scratch.heap.message)),
            Err(Stop::Engine | Stop::Chain) => return Outcome::NeedsEngine(scratch.heap.reason),
        }
        for row in &scratch.heap.rows {
            let printed = &scratch.heap.printed;
            out.row(&printed[row.start..row.middle], &printed[row.middle..row.end]);
        }
        Outcome::Rows
    }
}

/// Why evaluation stops early. As wide as a value's contents, so that results are copied in whole words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
enum Stop {
    /// An exception; its text is `Heap::message`.
    Throw,
    /// The reason is `Heap::reason`.
    Engine,
    /// An optional chain ends; `Expression::Chain` makes it undefined.
    Chain,
}

type Evaluated<T> = Result<T, Stop>;

/// One run of a plan over a document.
struct Run<'r> {
    plan: &'r Plan,
    document: &'r Document<'r>,
    heap: &'r mut Heap,
}

impl Run<'_> {
    fn map(&mut self) -> Evaluated<()> {
        self.invoke(0, &[Value::Node(0)]).map(|_| ())
    }

    #[cold]
    fn engine<T>(&mut self, reason: &'static str) -> Evaluated<T> {
        self.heap.reason = reason;
        Err(Stop::Engine)
    }

    #[cold]
    fn throw<T>(&mut self, message: impl Into<String>) -> Evaluated<T> {
        self.heap.message = message.into();
        Err(Stop::Throw)
    }

    fn step(&mut self) -> Evaluated<()> {
        self.steps(1)
    }

    fn steps(&mut self, count: usize) -> Evaluated<()> {
        self.heap.step_count = self.heap.step_count.saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
        if self.heap.step_count > STEPS_MAX { self.engine("many steps") } else { Ok(()) }
    }
}
