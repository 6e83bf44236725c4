//! Reading ahead: the records of a sequence of rows, many reads at a time.
//!
//! A [`ReadAhead`] takes rows from a [`RowSource`] (a scan, a list of keys, …) in windows, and reads a window's
//! records in bulk: sorted by file and offset, merged where they are near, all in flight together. The first
//! window has as many rows as the caller expects, and each later one twice as many as the one before it, so
//! that a scan that ends early reads little. While the rows of one window are returned, the next is read. That
//! needs no task: a window is a future that is polled at intervals while rows are returned. The system carries
//! out its reads once they are submitted; a task would only decode on another core, and could outlive its
//! caller.
//!
//! Invariants:
//! 1. Rows are returned in the order of their source. A record that can't be read fails its row alone.
//! 2. A window has at most [`READ_AHEAD_ROWS_MAX`] rows, and ends with the row that brings its memory to
//!    [`READ_AHEAD_BYTES_MAX`]. There are at most two windows.
//! 3. All windows of the stores that share a [`ReadAheadBudget`](crate::ReadAheadBudget) hold no more bytes
//!    than it allows. A row for which it has too few left ends its window, and is read when it is returned.
//! 4. Dropping the future of [`ReadAhead::next`] loses no row.
//! 5. Chunks are inserted into the chunk cache only if [`RowSource::keeps_chunks`] says so: a long scan would
//!    evict everything in use.

use std::future::{Future, poll_fn};
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};

use settee_log::{CHUNK_BYTES, Record};

use super::snapshot::Snapshot;
use crate::budget::TakenBytes;
use crate::error::ReadError;
use crate::index::Location;

/// Largest number of rows in a window.
pub const READ_AHEAD_ROWS_MAX: usize = 256;

/// Memory of a window's records in bytes at which the window ends.
pub const READ_AHEAD_BYTES_MAX: u64 = 2 << 20;

/// Bytes that a record keeps in memory besides its own: it is a slice of what was read with it, a chunk or its
/// neighbours.
const BYTES_PER_RECORD: u64 = CHUNK_BYTES as u64;

/// The next window is begun at every row whose index in its window is a multiple of this.
const ROWS_PER_POLL: usize = 32;

/// A sequence of rows with the records that belong to each.
pub trait RowSource: Send + 'static {
    /// What is returned with the records.
    type Row: Send;
    /// Why the next row couldn't be read.
    type Error: Send + From<ReadError>;

    /// The next row; `None` at the end. Appends the locations of its records.
    ///
    /// # Errors
    /// A later call tries again.
    fn next(
        &mut self,
        locations: &mut Vec<Location>,
    ) -> impl Future<Output = Result<Option<Self::Row>, Self::Error>> + Send;

    /// Whether the chunks that hold the records are inserted into the chunk cache. Default: no.
    fn keeps_chunks(&self) -> bool {
        false
    }
}

/// A row with its records.
#[derive(Debug)]
pub struct ReadRow<'a, R> {
    /// The row, as its source returned it.
    pub row: R,
    /// Its records in the order of its locations, or why one of them could not be read.
    pub records: Result<&'a [Record], &'a ReadError>,
}

/// The rows of a source with their records, which are read ahead.
pub struct ReadAhead<S: RowSource> {
    next_window: NextWindow<S>,
    /// The window whose rows are returned.
    window: Window<S>,
    /// Index of the next row to return.
    at: usize,
    /// Number of rows of the next window.
    row_count: usize,
    snapshot: Snapshot,
}

type Filling<S> = Pin<Box<dyn Future<Output = (S, Window<S>)> + Send>>;

/// State of the next window.
enum NextWindow<S: RowSource> {
    Idle(S),
    Filling(Filling<S>),
    Filled(S, Window<S>),
    /// Moved out while it changes to another state.
    Taken,
}

struct Window<S: RowSource> {
    rows: Vec<WindowRow<S::Row>>,
    records: Vec<Record>,
    /// The records of the last row, if the budget had too few bytes left: not read yet.
    deferred: Vec<Location>,
    keeps_chunks: bool,
    end: WindowEnd<S::Error>,
    taken: TakenBytes,
}

/// What follows a window.
enum WindowEnd<E> {
    More,
    Nothing,
    /// The source failed.
    Failed(E),
}

struct WindowRow<R> {
    /// `None` once it is returned.
    row: Option<R>,
    records: Range<usize>,
    error: Option<ReadError>,
}

impl<S: RowSource> ReadAhead<S> {
    /// Reads the rows of `source` from the snapshot. The first window has `expected` rows; 1 if the caller
    /// doesn't know how many it will take.
    pub fn new(snapshot: &Snapshot, source: S, expected: usize) -> ReadAhead<S> {
        ReadAhead {
            next_window: NextWindow::Idle(source),
            window: Window::empty(snapshot),
            at: 0,
            row_count: expected.clamp(1, READ_AHEAD_ROWS_MAX),
            snapshot: snapshot.clone(),
        }
    }

    /// The next row with its records; `None` at the end. Dropping the future loses no row.
    ///
    /// # Errors
    /// The source's; a later call tries again. A record that can't be read is reported with its row, and the
    /// rows after it follow.
    pub async fn next(&mut self) -> Result<Option<ReadRow<'_, S::Row>>, S::Error> {
        let is_first = self.window.rows.is_empty();
        while self.at >= self.window.rows.len() {
            match std::mem::replace(&mut self.window.end, WindowEnd::More) {
                WindowEnd::More => {}
                WindowEnd::Nothing => {
                    self.window.end = WindowEnd::Nothing;
                    return Ok(None);
                }
                WindowEnd::Failed(error) => return Err(error),
            }
            let window = poll_fn(|context| self.poll_window(context)).await;
            (self.window, self.at) = (window, 0);
        }
        // The first row causes no read of others.
        if !is_first && self.is_next_due() {
            poll_fn(|context| {
                self.poll_next_window(context);
                Poll::Ready(())
            })
            .await;
        }
        if self.at + 1 == self.window.rows.len() && !self.window.deferred.is_empty() {
            let Window { deferred, keeps_chunks, .. } = &self.window;
            let records = self.snapshot.read_bulk(deferred, *keeps_chunks).await;
            self.window.deferred.clear();
            self.window.add_records(self.at, records.into_iter());
        }
        let WindowRow { row, records, error } = &mut self.window.rows[self.at];
        self.at += 1;
        let row = row.take().expect("a row is returned once");
        let records = match error {
            Some(error) => Err(&*error),
            None => Ok(&self.window.records[records.clone()]),
        };
        Ok(Some(ReadRow { row, records }))
    }

    /// Whether to poll the next window: always once it has begun; it is begun at intervals, and not while the
    /// budget has too few bytes left for another window.
    fn is_next_due(&self) -> bool {
        match self.next_window {
            NextWindow::Filling(_) => true,
            NextWindow::Idle(_) => {
                matches!(self.window.end, WindowEnd::More)
                    && self.at.is_multiple_of(ROWS_PER_POLL)
                    && self.snapshot.read_ahead.bytes_left() >= READ_AHEAD_BYTES_MAX
            }
            NextWindow::Filled(..) | NextWindow::Taken => false,
        }
    }

    /// Polls the next window, and begins it if necessary.
    fn poll_next_window(&mut self, context: &mut Context<'_>) {
        if matches!(self.next_window, NextWindow::Filled(..)) {
            return;
        }
        let mut filling = match std::mem::replace(&mut self.next_window, NextWindow::Taken) {
            NextWindow::Filling(filling) => filling,
            NextWindow::Idle(source) => {
                let row_count = self.row_count;
                self.row_count = (row_count * 2).min(READ_AHEAD_ROWS_MAX);
                let snapshot = self.snapshot.clone();
                Box::pin(async move { Window::fill(&snapshot, source, row_count).await })
            }
            NextWindow::Filled(..) | NextWindow::Taken => unreachable!("checked above"),
        };
        self.next_window = match filling.as_mut().poll(context) {
            Poll::Ready((source, window)) => NextWindow::Filled(source, window),
            Poll::Pending => NextWindow::Filling(filling),
        };
    }

    fn poll_window(&mut self, context: &mut Context<'_>) -> Poll<Window<S>> {
        self.poll_next_window(context);
        match std::mem::replace(&mut self.next_window, NextWindow::Taken) {
            NextWindow::Filled(source, window) => {
                self.next_window = NextWindow::Idle(source);
                Poll::Ready(window)
            }
            next_window => {
                self.next_window = next_window;
                Poll::Pending
            }
        }
    }
}

impl<S: RowSource> Window<S> {
    fn empty(snapshot: &Snapshot) -> Window<S> {
        let taken = TakenBytes::new(&snapshot.read_ahead);
        Window {
            rows: Vec::new(),
            records: Vec::new(),
            deferred: Vec::new(),
            keeps_chunks: false,
            end: WindowEnd::More,
            taken,
        }
    }

    /// Takes the next rows of a source, and reads their records.
    async fn fill(snapshot: &Snapshot, mut source: S, row_count: usize) -> (S, Window<S>) {
        let mut window = Window::empty(snapshot);
        window.rows.reserve_exact(row_count);
        let mut locations: Vec<Location> = Vec::with_capacity(row_count);
        let mut size = 0;
        while window.rows.len() < row_count && size < READ_AHEAD_BYTES_MAX && window.deferred.is_empty() {
            let first = locations.len();
            match source.next(&mut locations).await {
                Ok(Some(row)) => {
                    let cost = |location: &Location| u64::from(location.length) + BYTES_PER_RECORD;
                    let bytes = locations[first..].iter().map(cost).sum::<u64>();
                    if window.taken.take(bytes) {
                        size += bytes;
                    } else {
                        window.deferred = locations.split_off(first);
                    }
                    window.rows.push(WindowRow {
                        row: Some(row),
                        records: first..locations.len(),
                        error: None,
                    });
                }
                Ok(None) => window.end = WindowEnd::Nothing,
                Err(error) => window.end = WindowEnd::Failed(error),
            }
            if !matches!(window.end, WindowEnd::More) {
                break;
            }
        }
        window.keeps_chunks = source.keeps_chunks();
        let mut records = snapshot.read_bulk(&locations, window.keeps_chunks).await.into_iter();
        window.records.reserve_exact(locations.len());
        for index in 0..window.rows.len() {
            let count = window.rows[index].records.len();
            window.add_records(index, records.by_ref().take(count));
        }
        (source, window)
    }

    /// Adds a row's records, which follow those of the row before it.
    fn add_records(&mut self, index: usize, records: impl Iterator<Item = Result<Record, ReadError>>) {
        let first = self.records.len();
        let row = &mut self.rows[index];
        for record in records {
            match record {
                Ok(record) => self.records.push(record),
                Err(error) => row.error = row.error.take().or(Some(error)),
            }
        }
        row.records = first..self.records.len();
    }
}
