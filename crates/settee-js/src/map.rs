//! Map functions over batches of documents.
//!
//! A batch crosses into the engine a few times, whatever its number of documents. A *segment* is one function
//! applied to one document. If a segment exceeds the ticks of its call, those before it are kept, and it is run
//! again alone with all ticks. If memory runs out, the engine is replaced and the segment is run alone there.
//! Only a segment that fails alone stops its function.
//!
//! Invariants:
//! 1. Whether a function is stopped depends on the function, the document and the values of its free
//!    variables, never on the batch's other documents.
//! 2. A stopped function is not run again in its context.

use std::ops::Range;

use crate::elements::Elements;
use crate::engine::{Engine, Failure, Role, Value0};
use crate::error::{Error, Stop};
use crate::limits::{FUNCTION_COUNT_MAX, Limits};

/// Document bytes that cross into the engine at once. A larger document crosses alone.
const CHUNK_BYTES_MAX: usize = 512 << 10;

/// Documents that cross into the engine at once.
const CHUNK_DOCUMENTS_MAX: usize = 1000;

/// Segments that one call into the engine may run.
const SEGMENTS_MAX: u32 = u32::MAX >> 2;

/// What `run` of `loop.js` returns if null was thrown.
const RAN_INTO_NULL: u32 = 2;

/// Codes of `loop.js` for segments without rows of primitive values.
const SERIALISED: i64 = -1;
const DROPPED: i64 = -2;
const STOPPED: i64 = -3;

/// The map functions of one design document, compiled. Not for other design documents or databases.
pub struct MapContext {
    library: Option<String>,
    functions: Vec<String>,
    stopped: Vec<bool>,
    limits: Limits,
    engine: Option<Engine>,
}

/// What the functions did with a batch.
#[derive(Debug, Default)]
pub struct MapBatch {
    function_count: usize,
    text: String,
    rows: Vec<RowRange>,
    segments: Vec<Segment>,
    logs: Vec<String>,
}

/// What one function did with one document.
#[derive(Debug, Clone)]
pub enum Outcome<'a> {
    /// The rows that it emitted, in order.
    Rows(Rows<'a>),
    /// It raised an exception: the document has no rows.
    Dropped {
        /// The exception's text.
        message: &'a str,
    },
    /// It is not run any more: this document is why.
    Stopped(&'a Stop),
    /// It had been stopped before.
    Skipped,
}

/// Iterates over (key, value), each as JSON text.
#[derive(Debug, Clone)]
pub struct Rows<'a> {
    text: &'a str,
    ranges: std::slice::Iter<'a, RowRange>,
}

#[derive(Debug, Clone)]
struct RowRange {
    key: Range<usize>,
    value: Range<usize>,
}

#[derive(Debug)]
enum Segment {
    Rows(Range<usize>),
    Dropped(String),
    Stopped(Stop),
    Skipped,
}

impl MapContext {
    /// Compiles `functions`. `library` is the JSON of `views.lib`, the only thing that `require` reaches.
    ///
    /// # Errors
    /// The first function that does not compile. There is no context then.
    pub fn new(library: Option<&str>, functions: &[&str], limits: Limits) -> Result<MapContext, Error> {
        if functions.len() > FUNCTION_COUNT_MAX {
            return Err(Error::FunctionCount { count: functions.len() });
        }
        let mut context = MapContext {
            library: library.map(str::to_owned),
            functions: functions.iter().map(|&f| f.to_owned()).collect(),
            stopped: vec![false; functions.len()],
            limits,
            engine: None,
        };
        context.engine = Some(context.build()?);
        Ok(context)
    }

    /// Number of functions.
    pub fn function_count(&self) -> usize {
        self.functions.len()
    }

    /// Applies all functions to all documents, each the JSON text of an object. Free variables keep their
    /// values until memory runs out in a batch.
    ///
    /// # Errors
    /// Only if the engine itself fails. The batch has no result; the context stays usable.
    pub fn map(&mut self, documents: &[&[u8]]) -> Result<MapBatch, Error> {
        let mut batch = MapBatch { function_count: self.functions.len(), ..MapBatch::default() };
        if self.functions.is_empty() {
            return Ok(batch);
        }
        let mut rest = documents;
        while !rest.is_empty() {
            let mut bytes = 0;
            let fits = |document: &&&[u8]| {
                bytes += document.len();
                bytes <= CHUNK_BYTES_MAX
            };
            let count = rest.iter().take(CHUNK_DOCUMENTS_MAX).take_while(fits).count().max(1);
            let (chunk, others) = rest.split_at(count);
            let result = self.map_chunk(chunk, &mut batch);
            if result.is_err() {
                self.engine = None;
                return Err(result.expect_err("just checked"));
            }
            rest = others;
        }
        Ok(batch)
    }

    fn build(&self) -> Result<Engine, Error> {
        let mut engine = Engine::new(&self.limits)?;
        let mut freezing = false;
        for (source, &stopped) in self.functions.iter().zip(&self.stopped) {
            let index = engine.add_function(Role::Map, self.library.as_deref(), source)?;
            freezing |= !crate::purity::keeps_documents(source);
            if stopped {
                retire(&engine, index)?;
            }
        }
        internal(&engine, engine.call_internal::<_, Value0>("setFreezing", (freezing,)))?;
        Ok(engine)
    }

    fn engine(&mut self) -> Result<&Engine, Error> {
        if self.engine.is_none() {
            self.engine = Some(self.build()?);
        }
        Ok(self.engine.as_ref().expect("just built"))
    }

    fn map_chunk(&mut self, documents: &[&[u8]], batch: &mut MapBatch) -> Result<(), Error> {
        let functions = self.functions.len();
        let first = batch.segments.len();
        let end = first + documents.len() * functions;
        let (mut parsed, mut alone) = (false, false);
        while batch.segments.len() < end {
            let done = batch.segments.len() - first;
            let (document, function) = (done / functions, done % functions);
            alone = alone || (!parsed && !self.begin(&documents[document..], function)?);
            if alone {
                // Some document is not readable.
                self.map_alone(documents[document], function, batch)?;
                continue;
            }
            parsed = true;
            let ticks = self.limits.ticks;
            let ran = self.engine()?.call::<_, u32>(ticks, "run", (SEGMENTS_MAX,));
            let taken = self.try_take(batch).is_ok();
            match ran {
                Ok(0) if taken => (),
                // What was committed is in `batch`, so there is a segment left.
                Ok(RAN_INTO_NULL) | Err(Failure::Ticks) if taken => {
                    let document = documents[(batch.segments.len() - first) / functions];
                    parsed = self.run_again(document, false, batch)?;
                }
                // If what was committed is lost, it runs again too.
                Ok(_) | Err(_) => {
                    self.engine = None;
                    parsed = false;
                    let done = batch.segments.len() - first;
                    if batch.segments.len() < end {
                        self.map_alone(documents[done / functions], done % functions, batch)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Parses `documents` in the engine. Returns false if that failed.
    fn begin(&mut self, documents: &[&[u8]], function: usize) -> Result<bool, Error> {
        let bytes = documents.iter().map(|document| document.len() + 1).sum::<usize>();
        let mut array = Vec::with_capacity(bytes + 2);
        array.push(b'[');
        for (i, document) in documents.iter().enumerate() {
            if i > 0 {
                array.push(b',');
            }
            array.extend_from_slice(document);
        }
        array.push(b']');
        if std::str::from_utf8(&array).is_err() {
            return Ok(false);
        }
        let engine = self.engine()?;
        engine.delay_collection();
        let count = documents.len();
        let result = engine.parse_internal(array).and_then(|array| {
            engine.with(|ctx, entry_points| {
                let array = array.restore(ctx)?;
                if array.as_array().is_none_or(|array| array.len() != count) {
                    return Ok(false);
                }
                entry_points
                    .get::<_, rquickjs::Function>("begin")?
                    .call::<_, Value0>((array, function as u32))?;
                Ok(true)
            })
        });
        match result {
            Ok(parsed) => Ok(parsed),
            Err(Failure::Memory) => {
                self.engine = None;
                Ok(false)
            }
            Err(_) => Ok(false),
        }
    }

    /// Runs the segment of one document and one function, in a new engine if the present one failed.
    fn map_alone(&mut self, document: &[u8], function: usize, batch: &mut MapBatch) -> Result<(), Error> {
        if self.stopped[function] {
            batch.segments.push(Segment::Skipped);
            return Ok(());
        }
        let fresh = self.engine.is_none();
        if !self.begin(&[document], function)? {
            if self.engine.is_some() {
                batch.segments.push(Segment::Dropped("the document is not readable".to_owned()));
            } else if fresh {
                self.stop(function, Stop::Memory { limit: self.limits.memory_bytes }, batch);
            }
            // Else once more, in a new engine.
            return Ok(());
        }
        self.run_again(document, fresh, batch).map(|_| ())
    }

    /// Runs the segment at hand, of `document`, with all ticks. What it fails with is the function's own
    /// fault, but for memory in an engine that is not `fresh`: then it runs once more, in a new one. Returns
    /// whether the engine is at the next segment.
    fn run_again(&mut self, document: &[u8], fresh: bool, batch: &mut MapBatch) -> Result<bool, Error> {
        let function = batch.segments.len() % self.functions.len();
        let limits = self.limits;
        let engine = self.engine()?;
        let mut null_count = 0;
        let ran = engine.settle_null(function, |engine| {
            let code = engine.call::<_, u32>(limits.ticks, "run", (1u32,))?;
            null_count += u32::from(code == RAN_INTO_NULL);
            Ok((code != RAN_INTO_NULL).then_some(code))
        });
        if matches!(ran, Err(Failure::Ticks)) {
            internal(engine, engine.call_internal::<_, Value0>("skip", ()))?;
        }
        let before = batch.segments.len();
        let taken = self.try_take(batch).is_ok();
        match ran {
            Ok(Some(0)) if taken && (null_count == 0 || batch.ends_with_null()) => Ok(true),
            Err(Failure::Ticks) if taken => {
                let stop = Stop::Ticks { limit: limits.ticks };
                self.stopped[function] = true;
                *batch.segments.last_mut().expect("skip commits a segment") = Segment::Stopped(stop);
                Ok(true)
            }
            Ok(_) | Err(_) => {
                self.engine = None;
                batch.segments.truncate(before);
                if fresh {
                    self.stop(function, Stop::Memory { limit: limits.memory_bytes }, batch);
                } else {
                    self.map_alone(document, function, batch)?;
                }
                Ok(false)
            }
        }
    }

    fn stop(&mut self, function: usize, stop: Stop, batch: &mut MapBatch) {
        self.stopped[function] = true;
        batch.segments.push(Segment::Stopped(stop));
    }

    /// Moves the committed segments to `batch`.
    fn try_take(&mut self, batch: &mut MapBatch) -> Result<(), Failure> {
        let Some(engine) = self.engine.as_ref() else { return Ok(()) };
        let report: Vec<String> = engine.call_internal("report", ())?;
        let before = batch.segments.len();
        if batch.append(&report).is_none() {
            batch.segments.truncate(before);
            return Err(Failure::Other("report is malformed".to_owned()));
        }
        for at in before..batch.segments.len() {
            if matches!(batch.segments[at], Segment::Stopped(_)) {
                self.stopped[at % self.functions.len()] = true;
            }
        }
        Ok(())
    }
}

impl MapBatch {
    /// What function `function` did with document `document`.
    ///
    /// # Panics
    /// If there is no such document or function.
    pub fn outcome(&self, document: usize, function: usize) -> Outcome<'_> {
        assert!(function < self.function_count);
        match &self.segments[document * self.function_count + function] {
            Segment::Rows(range) => {
                Outcome::Rows(Rows { text: &self.text, ranges: self.rows[range.clone()].iter() })
            }
            Segment::Dropped(message) => Outcome::Dropped { message },
            Segment::Stopped(stop) => Outcome::Stopped(stop),
            Segment::Skipped => Outcome::Skipped,
        }
    }

    /// The number of rows of all functions.
    pub fn row_count(&self) -> usize {
        self.rows.len()
    }

    /// What the functions passed to `log`; after 100 messages of a crossing the others are discarded.
    pub fn logs(&self) -> &[String] {
        &self.logs
    }

    /// Whether the last segment was dropped because null was thrown.
    fn ends_with_null(&self) -> bool {
        matches!(self.segments.last(), Some(Segment::Dropped(message)) if message == "null")
    }

    /// Adds what `loop.js` reports. None if it is malformed.
    fn append(&mut self, report: &[String]) -> Option<()> {
        let [counts, rows, texts, messages, logs] = report else { return None };
        let base = self.text.len();
        self.text.push_str(rows);
        let mut values = Elements::of(rows).map(|e| range_in(rows, e, base));
        let (mut texts, mut messages) = (texts.split('\n'), messages.split('\n'));
        for count in counts.split(',').filter(|count| !count.is_empty()) {
            let first = self.rows.len();
            let segment = match count.parse::<i64>().ok()? {
                SERIALISED => {
                    self.append_pairs(texts.next()?)?;
                    Segment::Rows(first..self.rows.len())
                }
                DROPPED => {
                    let message: [String; 1] = serde_json::from_str(messages.next()?).ok()?;
                    let [message] = message;
                    Segment::Dropped(message)
                }
                STOPPED => {
                    let (error, reason) = serde_json::from_str(messages.next()?).ok()?;
                    Segment::Stopped(Stop::Raised { error, reason })
                }
                count if count >= 0 => {
                    for _ in 0..count / 2 {
                        self.rows.push(RowRange { key: values.next()?, value: values.next()? });
                    }
                    Segment::Rows(first..self.rows.len())
                }
                _ => Segment::Skipped,
            };
            self.segments.push(segment);
        }
        self.logs.extend(serde_json::from_str::<Vec<String>>(logs).ok()?);
        Some(())
    }

    /// Adds the rows of an array of `[key, value]`.
    fn append_pairs(&mut self, pairs: &str) -> Option<()> {
        let base = self.text.len();
        self.text.push_str(pairs);
        for pair in Elements::of(pairs) {
            let mut elements = Elements::of(pair).map(|e| range_in(pairs, e, base));
            self.rows.push(RowRange { key: elements.next()?, value: elements.next()? });
        }
        Some(())
    }
}

impl<'a> Iterator for Rows<'a> {
    type Item = (&'a str, &'a str);

    fn next(&mut self) -> Option<Self::Item> {
        let row = self.ranges.next()?;
        Some((&self.text[row.key.clone()], &self.text[row.value.clone()]))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.ranges.size_hint()
    }
}

impl ExactSizeIterator for Rows<'_> {}

/// The range of `part`, a slice of `whole`, if `whole` begins at `base`.
fn range_in(whole: &str, part: &str, base: usize) -> Range<usize> {
    let start = base + (part.as_ptr().addr() - whole.as_ptr().addr());
    start..start + part.len()
}

fn retire(engine: &Engine, index: usize) -> Result<(), Error> {
    internal(engine, engine.call_internal::<_, Value0>("retire", (index as u32,))).map(|_| ())
}

fn internal<T>(engine: &Engine, result: Result<T, Failure>) -> Result<T, Error> {
    result.map_err(|failure| failure.into_error(engine.limits()))
}
