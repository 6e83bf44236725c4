//! Reduce functions, as the reduction of an index's tree: each inner node has the reduced values of what is under it.
//!
//! Built-in functions are Rust. The JavaScript ones take many values at once, so their summaries collect parts,
//! which are reduced together once per node, and once more at the end of a query.
//!
//! A summary too large for a node, or one that can't be made, is [`Reduced::Unknown`], and so is that of every node
//! above it: a query then reduces the rows themselves.

mod distinct;
mod number;
mod stats;
mod sum;

use std::sync::{Arc, OnceLock};

use settee_collate::{Collation, write_sort_key};
use settee_tree::{Reduction, SUMMARY_SIZE_MAX};
use tokio::sync::oneshot;

use crate::row::{self, EntryRows, Row, ViewRow};
use distinct::Distinct;
use stats::Stats;
use sum::Sum;

/// Bytes of the encoded values of all reduce functions of an index, at most: the row count and lengths excluded.
const VALUES_BYTES_MAX: usize = SUMMARY_SIZE_MAX - 64;

/// Number of reduce functions of an index, at most.
pub(crate) const REDUCERS_MAX: usize = 16;

/// A reduce function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reducer {
    Count,
    Sum,
    Stats,
    Distinct,
    Top(usize),
    Bottom(usize),
    First,
    Last,
    /// JavaScript source.
    Function(String),
}

impl Reducer {
    /// A function as a design document names it. A built-in name may have a suffix, as in CouchDB.
    pub(crate) fn parse(source: &str) -> Reducer {
        let counted = |prefix: &str| source.strip_prefix(prefix).and_then(|count| count.parse().ok());
        if let Some(count) = counted("_top_") {
            return Reducer::Top(count);
        }
        if let Some(count) = counted("_bottom_") {
            return Reducer::Bottom(count);
        }
        let built_in = [
            ("_sum", Reducer::Sum),
            ("_count", Reducer::Count),
            ("_stats", Reducer::Stats),
            ("_approx_count_distinct", Reducer::Distinct),
            ("_first", Reducer::First),
            ("_last", Reducer::Last),
        ];
        let found = built_in.into_iter().find(|(name, _)| source.starts_with(name));
        found.map_or_else(|| Reducer::Function(source.to_owned()), |(_, reducer)| reducer)
    }

    fn zero(&self) -> Reduced {
        match self {
            Reducer::Count => Reduced::Count,
            Reducer::Sum => Reduced::Sum(Sum::ZERO),
            Reducer::Stats => Reduced::Stats(Stats::None),
            Reducer::Distinct => Reduced::Distinct(Distinct::default()),
            Reducer::Top(_) | Reducer::Bottom(_) => Reduced::Values(Vec::new()),
            Reducer::First | Reducer::Last => Reduced::Value(None),
            Reducer::Function(_) => Reduced::Parts(Vec::new()),
        }
    }

    fn of(&self, row: &Row<'_>) -> Reduced {
        match self {
            Reducer::Count => Reduced::Count,
            Reducer::Sum => Reduced::Sum(Sum::of(row.value)),
            Reducer::Stats => Reduced::Stats(Stats::of(row.value)),
            Reducer::Distinct => Reduced::Distinct(Distinct::of(row.sort_key)),
            Reducer::Top(_) | Reducer::Bottom(_) => Reduced::Values(vec![OrderedValue::new(row.value)]),
            Reducer::First | Reducer::Last => Reduced::Value(Some(row.value.to_owned())),
            Reducer::Function(_) => {
                let (key, id, value) = (row.key.to_owned(), row.id.to_owned(), row.value.to_owned());
                Reduced::Parts(vec![Arc::new(Part::Row { key, id, value })])
            }
        }
    }

    /// Adds a row to what was reduced.
    fn add(&self, reduced: &mut Reduced, row: &Row<'_>) {
        match (self.of(row), &mut *reduced) {
            (Reduced::Parts(own), Reduced::Parts(all)) => all.extend(own),
            (own, all) => *all = self.join(all, &own),
        }
    }

    fn join(&self, left: &Reduced, right: &Reduced) -> Reduced {
        match (left, right) {
            (Reduced::Count, Reduced::Count) => Reduced::Count,
            (Reduced::Sum(left), Reduced::Sum(right)) => Reduced::Sum(left.add(right)),
            (Reduced::Stats(left), Reduced::Stats(right)) => Reduced::Stats(left.add(right)),
            (Reduced::Distinct(left), Reduced::Distinct(right)) => Reduced::Distinct(left.union(right)),
            (Reduced::Values(left), Reduced::Values(right)) => Reduced::Values(self.merge(left, right)),
            (Reduced::Value(left), Reduced::Value(right)) => {
                let (first, second) = if *self == Reducer::First { (left, right) } else { (right, left) };
                Reduced::Value(first.clone().or_else(|| second.clone()))
            }
            (Reduced::Parts(left), Reduced::Parts(right)) => {
                Reduced::Parts(left.iter().chain(right).cloned().collect())
            }
            _ => Reduced::Unknown,
        }
    }

    /// The greatest or least values of two lists, without duplicates.
    fn merge(&self, left: &[OrderedValue], right: &[OrderedValue]) -> Vec<OrderedValue> {
        let mut all: Vec<OrderedValue> = left.iter().chain(right).cloned().collect();
        all.sort_by(|one, other| one.sort_key.cmp(&other.sort_key));
        all.dedup_by(|one, other| one.sort_key == other.sort_key);
        match self {
            Reducer::Top(count) => {
                all.reverse();
                all.truncate(*count);
            }
            Reducer::Bottom(count) => all.truncate(*count),
            _ => {}
        }
        all
    }

    fn decode(&self, bytes: &[u8]) -> Option<Reduced> {
        let text = || std::str::from_utf8(bytes).ok().map(str::to_owned);
        Some(match self {
            Reducer::Count => Reduced::Count,
            Reducer::Sum => Reduced::Sum(Sum::decode(bytes)?),
            Reducer::Stats => Reduced::Stats(Stats::decode(bytes)?),
            Reducer::Distinct => Reduced::Distinct(Distinct::decode(bytes)?),
            Reducer::Top(_) | Reducer::Bottom(_) => {
                let mut values = Vec::new();
                if !bytes.is_empty() {
                    values.extend(text()?.split('\n').map(OrderedValue::new));
                }
                Reduced::Values(values)
            }
            Reducer::First | Reducer::Last if bytes.is_empty() => Reduced::Value(None),
            Reducer::First | Reducer::Last => Reduced::Value(Some(text()?)),
            Reducer::Function(_) if bytes.is_empty() => Reduced::Parts(Vec::new()),
            Reducer::Function(_) => Reduced::Parts(vec![Arc::new(Part::Reduced(text()?))]),
        })
    }
}

/// A reduced value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Reduced {
    /// See the module's description.
    Unknown,
    /// The number of rows, which every summary has.
    Count,
    Sum(Sum),
    Stats(Stats),
    Distinct(Distinct),
    Values(Vec<OrderedValue>),
    Value(Option<String>),
    /// What a JavaScript function has still to reduce. Shared, since a list is copied at each entry of a node.
    Parts(Vec<Arc<Part>>),
}

/// A value with its place in Erlang's order of terms, by which CouchDB compares values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OrderedValue {
    sort_key: Vec<u8>,
    json: String,
}

impl OrderedValue {
    fn new(json: &str) -> OrderedValue {
        let mut sort_key = Vec::new();
        if write_sort_key(json, Collation::Raw, &mut sort_key).is_err() {
            // Rows are JSON; a damaged one comes last.
            sort_key = vec![u8::MAX];
        }
        OrderedValue { sort_key, json: json.to_owned() }
    }
}

/// A part of a JavaScript reduction.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Part {
    Row {
        key: String,
        id: String,
        value: String,
    },
    /// The JSON text that the function returned.
    Reduced(String),
}

impl Reduced {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Reduced::Unknown | Reduced::Count | Reduced::Value(None) => {}
            Reduced::Sum(sum) => sum.encode(out),
            Reduced::Stats(stats) => stats.encode(out),
            Reduced::Distinct(distinct) => distinct.encode(out),
            Reduced::Values(values) => {
                for (index, value) in values.iter().enumerate() {
                    if index > 0 {
                        out.push(b'\n');
                    }
                    out.extend_from_slice(value.json.as_bytes());
                }
            }
            Reduced::Value(Some(value)) => out.extend_from_slice(value.as_bytes()),
            // `collapse` left one at most.
            Reduced::Parts(parts) => match parts.first().map(|part| &**part) {
                Some(Part::Reduced(value)) => out.extend_from_slice(value.as_bytes()),
                Some(Part::Row { .. }) | None => {}
            },
        }
    }
}

/// Why a reduce function gave no value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReduceError {
    /// CouchDB's error name, as `reduce_overflow_error`.
    pub(crate) error: String,
    pub(crate) reason: String,
    /// Whether only this row has the error, with status 200, as in CouchDB.
    pub(crate) is_of_row: bool,
}

/// What calls JavaScript reduce functions. An exception of a function is the value `null`, as in CouchDB.
pub(crate) trait Functions: Send + Sync {
    /// Calls a function, given by its source, with rows.
    fn reduce(&self, function: &str, keys: &str, values: &str) -> Result<String, ReduceError>;
    /// Calls a function with values that it returned.
    fn rereduce(&self, function: &str, values: &str) -> Result<String, ReduceError>;
    /// Does work that calls functions where it doesn't hold up requests.
    fn spawn(&self, work: Box<dyn FnOnce() + Send>);
}

/// The reduction of an index's tree.
#[derive(Clone)]
pub(crate) struct IndexReduction {
    reducers: Arc<[Reducer]>,
    functions: Arc<dyn Functions>,
    /// For each function the error that stopped it: it isn't called any more.
    stopped: Arc<[OnceLock<ReduceError>]>,
}

/// The summary of a run of rows.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Summary {
    pub(crate) row_count: u64,
    /// One for each reducer.
    pub(crate) reduced: Vec<Reduced>,
}

impl IndexReduction {
    pub(crate) fn new(reducers: Vec<Reducer>, functions: Arc<dyn Functions>) -> IndexReduction {
        let stopped = reducers.iter().map(|_| OnceLock::new()).collect();
        IndexReduction { reducers: reducers.into(), functions, stopped }
    }

    /// The reduction with another function alone.
    pub(crate) fn with(&self, reducer: Reducer) -> IndexReduction {
        IndexReduction::new(vec![reducer], self.functions.clone())
    }

    /// The summary of rows of one entry.
    fn of_rows<'a>(&self, rows: impl IntoIterator<Item = Row<'a>>) -> Summary {
        let mut summary = self.zero();
        for row in rows {
            summary.row_count += 1;
            for (reducer, reduced) in self.reducers.iter().zip(&mut summary.reduced) {
                reducer.add(reduced, &row);
            }
        }
        summary
    }

    /// Adds rows to what one of the functions has in a summary.
    pub(crate) async fn add_rows(
        &self,
        reducer: usize,
        mut total: Summary,
        rows: Vec<ViewRow>,
    ) -> Result<Summary, ReduceError> {
        let own = self.clone();
        let add = move || {
            for row in &rows {
                total.row_count += 1;
                own.reducers[reducer].add(&mut total.reduced[reducer], &row.as_row());
            }
            if let Reduced::Parts(parts) = &mut total.reduced[reducer] {
                *parts = own.reduce_parts(reducer, parts)?;
            }
            Ok(total)
        };
        self.run(reducer, add).await?
    }

    /// The JSON text of a query's value.
    ///
    /// # Errors
    /// `None` if the summary doesn't have it, and the rows must be reduced.
    pub(crate) async fn value(
        &self,
        reducer: usize,
        summary: Summary,
    ) -> Result<Vec<u8>, Option<ReduceError>> {
        let own = self.clone();
        let write = move || {
            let mut out = Vec::new();
            own.write_value(reducer, &summary, &mut out).map(|()| out)
        };
        self.run(reducer, write).await.map_err(Some)?
    }

    /// Does work that may call a function. Work that calls JavaScript, which may take long, runs in a background task.
    ///
    /// # Errors
    /// The task was aborted.
    async fn run<T: Send + 'static>(
        &self,
        reducer: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ReduceError> {
        if !matches!(self.reducers[reducer], Reducer::Function(_)) {
            return Ok(work());
        }
        let (sender, done) = oneshot::channel();
        self.functions.spawn(Box::new(move || drop(sender.send(work()))));
        // The server is stopping, or the work panicked.
        done.await.map_err(|_| ReduceError {
            error: "internal_server_error".to_owned(),
            reason: "A reduction was aborted.".to_owned(),
            is_of_row: false,
        })
    }

    /// Reduces the parts of a summary, so that one is left; a part that can't be reduced makes an error.
    fn reduce_parts(&self, function: usize, parts: &[Arc<Part>]) -> Result<Vec<Arc<Part>>, ReduceError> {
        let (mut keys, mut values, mut reduced) = (String::from("["), String::from("["), Vec::new());
        for part in parts {
            match &**part {
                Part::Reduced(value) => reduced.push(value.clone()),
                Part::Row { key, id, value } => {
                    if keys.len() > 1 {
                        keys.push(',');
                        values.push(',');
                    }
                    push_key(key, id, &mut keys);
                    values.push_str(value);
                }
            }
        }
        if keys.len() > 1 {
            keys.push(']');
            values.push(']');
            reduced.push(self.call(function, |source| self.functions.reduce(source, &keys, &values))?);
        }
        if reduced.len() > 1 {
            let values = format!("[{}]", reduced.join(","));
            reduced = vec![self.call(function, |source| self.functions.rereduce(source, &values))?];
        }
        Ok(reduced.into_iter().map(|value| Arc::new(Part::Reduced(value))).collect())
    }

    /// Calls a JavaScript function, unless it was stopped. An error of more than this value stops it: a function
    /// that loops would take its ticks at every node.
    fn call(
        &self,
        function: usize,
        call: impl FnOnce(&str) -> Result<String, ReduceError>,
    ) -> Result<String, ReduceError> {
        if let Some(error) = self.stopped[function].get() {
            return Err(error.clone());
        }
        let Reducer::Function(source) = &self.reducers[function] else { return Ok("null".to_owned()) };
        call(source).inspect_err(|error| {
            if !error.is_of_row {
                tracing::error!(error.error, error.reason, "a reduce function stopped its view");
                // Another call may have been first.
                let _ = self.stopped[function].set(error.clone());
            }
        })
    }

    /// Appends the JSON text of a query's value.
    ///
    /// # Errors
    /// `None` if the summary doesn't have it, and the rows must be reduced.
    fn write_value(
        &self,
        reducer: usize,
        summary: &Summary,
        out: &mut Vec<u8>,
    ) -> Result<(), Option<ReduceError>> {
        match &summary.reduced[reducer] {
            Reduced::Unknown => return Err(None),
            Reduced::Count => out.extend_from_slice(itoa::Buffer::new().format(summary.row_count).as_bytes()),
            Reduced::Sum(sum) => sum.write_json(out),
            Reduced::Stats(stats) => stats.write_json(out).map_err(|reason| {
                Some(ReduceError { error: "invalid_value".to_owned(), reason, is_of_row: false })
            })?,
            Reduced::Distinct(distinct) => {
                out.extend_from_slice(itoa::Buffer::new().format(distinct.count()).as_bytes());
            }
            Reduced::Values(values) => {
                out.push(b'[');
                for (index, value) in values.iter().enumerate() {
                    if index > 0 {
                        out.push(b',');
                    }
                    out.extend_from_slice(value.json.as_bytes());
                }
                out.push(b']');
            }
            Reduced::Value(value) => out.extend_from_slice(value.as_deref().unwrap_or("null").as_bytes()),
            Reduced::Parts(parts) => {
                let parts = self.reduce_parts(reducer, parts).map_err(Some)?;
                let value = match parts.first().map(|part| &**part) {
                    Some(Part::Reduced(value)) => {
                        // As in CouchDB, the last call is always one of `rereduce`.
                        let values = format!("[{value}]");
                        self.call(reducer, |source| self.functions.rereduce(source, &values)).map_err(Some)?
                    }
                    _ => "null".to_owned(),
                };
                out.extend_from_slice(value.as_bytes());
            }
        }
        Ok(())
    }
}

fn push_key(key: &str, id: &str, out: &mut String) {
    out.push('[');
    out.push_str(key);
    out.push(',');
    let mut quoted = Vec::new();
    settee_doc::write_json_string(id, &mut quoted);
    out.push_str(std::str::from_utf8(&quoted).expect("JSON is UTF-8"));
    out.push(']');
}

impl Reduction for IndexReduction {
    type Summary = Summary;

    fn zero(&self) -> Summary {
        Summary { row_count: 0, reduced: self.reducers.iter().map(Reducer::zero).collect() }
    }

    fn of(&self, key: &[u8], value: &[u8]) -> Summary {
        match row::decode(key, value) {
            Some(EntryRows::Inline(rows)) => self.of_rows(rows),
            Some(EntryRows::Overflow(overflow)) => {
                let reduced = self.reducers.iter().map(|reducer| match reducer {
                    Reducer::Count => Reduced::Count,
                    _ => Reduced::Unknown,
                });
                Summary { row_count: overflow.row_count, reduced: reduced.collect() }
            }
            // Another kind of entry.
            None => self.zero(),
        }
    }

    fn join(&self, left: &Summary, right: &Summary) -> Summary {
        let pairs = left.reduced.iter().zip(&right.reduced);
        Summary {
            row_count: left.row_count.saturating_add(right.row_count),
            reduced: self
                .reducers
                .iter()
                .zip(pairs)
                .map(|(reducer, (left, right))| reducer.join(left, right))
                .collect(),
        }
    }

    fn collapse(&self, mut summary: Summary) -> Summary {
        let mut bytes_left = VALUES_BYTES_MAX;
        let mut encoded = Vec::new();
        for (index, reduced) in summary.reduced.iter_mut().enumerate() {
            if let Reduced::Parts(parts) = reduced {
                *reduced = self.reduce_parts(index, parts).map_or(Reduced::Unknown, Reduced::Parts);
            }
            encoded.clear();
            reduced.encode(&mut encoded);
            match bytes_left.checked_sub(encoded.len()) {
                Some(left) => bytes_left = left,
                None => *reduced = Reduced::Unknown,
            }
        }
        summary
    }

    fn encode(&self, summary: &Summary, out: &mut Vec<u8>) {
        out.extend_from_slice(&summary.row_count.to_le_bytes()[..6]);
        for reduced in &summary.reduced {
            let start = out.len();
            out.extend_from_slice(&[0; 2]);
            reduced.encode(out);
            let size = match reduced {
                Reduced::Unknown => UNKNOWN,
                _ => (out.len() - start - 2) as u16,
            };
            out[start..start + 2].copy_from_slice(&size.to_le_bytes());
        }
    }

    fn decode(&self, bytes: &[u8]) -> Option<Summary> {
        let (count, mut rest) = bytes.split_at_checked(6)?;
        let mut row_count = [0; 8];
        row_count[..6].copy_from_slice(count);
        let mut reduced = Vec::with_capacity(self.reducers.len());
        for reducer in self.reducers.iter() {
            let (size, after) = rest.split_at_checked(2)?;
            let size = u16::from_le_bytes([size[0], size[1]]);
            if size == UNKNOWN {
                reduced.push(Reduced::Unknown);
                rest = after;
                continue;
            }
            let (own, after) = after.split_at_checked(usize::from(size))?;
            reduced.push(reducer.decode(own)?);
            rest = after;
        }
        rest.is_empty().then_some(Summary { row_count: u64::from_le_bytes(row_count), reduced })
    }
}

/// The size that means [`Reduced::Unknown`].
const UNKNOWN: u16 = u16::MAX;

const _: () = assert!(VALUES_BYTES_MAX + 6 + 2 * REDUCERS_MAX <= SUMMARY_SIZE_MAX);
