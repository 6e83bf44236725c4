//! Reading many values: in bulk, and along a scan.
//!
//! [`Snapshot::read_many`] takes records in any order from any files, sorts them by file, and reads each file
//! with as few reads as the planner makes. All reads are in flight together.
//!
//! A [`ValueScan`] reads windows of rows: the entries from the index, then their records in bulk. The first
//! window has one row, and each is twice as large as the one before it, so that a scan of few rows reads few.
//! From the second on the next window is read while the current one is returned. That needs no task: a window
//! is a future that the scan polls at intervals. The system carries out its reads once they are submitted; a
//! task would only decode on another core, and could outlive the scan.
//!
//! Invariants:
//! 1. A record that can't be read fails alone.
//! 2. A scan holds at most two windows, each of at most [`READ_AHEAD_ROWS_MAX`] rows and as many records as
//!    make [`READ_AHEAD_BYTES_MAX`] bytes.
//! 3. Dropping the future of [`ValueScan::next`] loses no row.
//! 4. Scans look up chunks in the cache but insert none: one scan would evict everything in use.

use std::future::{Future, poll_fn};
use std::ops::{Bound, Range};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::join_all;
use settee_log::{Record, Seq};

use super::scan::Scan;
use super::snapshot::Snapshot;
use crate::error::ReadError;
use crate::index::Location;
use crate::segments::Segment;

/// Largest number of rows in a window.
pub const READ_AHEAD_ROWS_MAX: usize = 256;

/// Size in bytes of a window's records at which the window ends.
pub const READ_AHEAD_BYTES_MAX: u64 = 2 << 20;

/// Number of rows returned between two polls of the next window.
const ROWS_PER_POLL: usize = 32;

/// Records of one file, each with its index in the caller's list.
struct FileRecords {
    /// `None`: the log's.
    segment: Option<Arc<Segment>>,
    records: Vec<(usize, Location)>,
}

impl Snapshot {
    /// Reads many records, in any order and from any segments. Adjacent records are read together, and all
    /// reads are submitted before the first is awaited. The results are in the order of `locations`.
    ///
    /// Needs as much memory as the records together: split a long list. Records that were read together share
    /// their memory: copy one that is kept for long.
    ///
    /// # Errors
    /// For each record on its own: see [`ReadError`]; the store stays usable.
    pub async fn read_many(&self, locations: &[Location]) -> Vec<Result<Record, ReadError>> {
        self.read_bulk(locations, true).await
    }

    /// With `keep`, the chunks that were read are inserted into the cache.
    async fn read_bulk(&self, locations: &[Location], keep: bool) -> Vec<Result<Record, ReadError>> {
        if let [location] = locations {
            return vec![self.read(*location).await];
        }
        let mut order: Vec<usize> = (0..locations.len()).collect();
        order.sort_unstable_by_key(|index| (locations[*index].segment, locations[*index].offset));
        let mut groups: Vec<FileRecords> = Vec::new();
        for index in order {
            let location = locations[index];
            // Neighbours are mostly of one file, which is then looked up once.
            let is_next = groups.last().is_some_and(|group| match &group.segment {
                Some(segment) => segment.name.last >= location.segment,
                None => self.version.checkpoint.segments.get(location.segment).is_none(),
            });
            if !is_next {
                let segment = self.version.checkpoint.segments.get(location.segment).cloned();
                groups.push(FileRecords { segment, records: Vec::new() });
            }
            groups.last_mut().expect("a group was just added").records.push((index, location));
        }
        let mut results: Vec<Option<Result<Record, ReadError>>> = vec![None; locations.len()];
        for found in join_all(groups.iter().map(|group| self.read_group(group, keep))).await {
            found.into_iter().for_each(|(index, record)| results[index] = Some(record));
        }
        results.into_iter().map(|result| result.expect("each location is in a group")).collect()
    }

    async fn read_group(&self, group: &FileRecords, keep: bool) -> Vec<(usize, Result<Record, ReadError>)> {
        if let Some(segment) = &group.segment {
            return segment.read_many(&group.records, keep).await;
        }
        let in_log = |(_, location): &(usize, Location)| {
            let Location { segment, offset, length, .. } = *location;
            settee_log::Location { segment, offset, length }
        };
        let locations: Vec<_> = group.records.iter().map(in_log).collect();
        let records = self.log.read_many_in(&self.version.files, &locations).await;
        let checked = records.into_iter().zip(&group.records).map(|(record, (index, location))| {
            (*index, record.map_err(ReadError::from).and_then(|record| Snapshot::expect(record, *location)))
        });
        checked.collect()
    }

    /// As [`Snapshot::scan`], with the records that make up the values.
    pub fn scan_values(&self, start: Bound<&[u8]>, end: Bound<&[u8]>, descending: bool) -> ValueScan {
        self.scan(start, end, descending).with_values()
    }

    /// As [`Snapshot::scan_by_seq`], with the records that make up the values.
    pub fn scan_values_by_seq(&self, after: Seq, descending: bool) -> ValueScan {
        self.scan_by_seq(after, descending).with_values()
    }
}

impl Scan {
    /// Continues the scan with the records that make up the values.
    pub fn with_values(self) -> ValueScan {
        let window = Window { end: End::More, ..Window::default() };
        ValueScan { next_window: NextWindow::Idle(self), window, at: 0, row_count: 1 }
    }
}

/// An entry and its records, borrowed from the scan that read them.
#[derive(Debug, Clone, Copy)]
pub struct ValueRef<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The meta of the newest record.
    pub meta: &'a [u8],
    /// Location of the newest record.
    pub location: Location,
    /// The records that make up the value, newest first, or why one of them could not be read. There is one,
    /// unless there are merge operands.
    pub records: Result<&'a [Record], &'a ReadError>,
}

impl<'a> ValueRef<'a> {
    /// The newest record.
    ///
    /// # Errors
    /// Why one of the value's records could not be read.
    pub fn record(&self) -> Result<&'a Record, &'a ReadError> {
        self.records.map(|records| &records[0])
    }
}

/// A scan over a snapshot's index with values, which it reads ahead.
pub struct ValueScan {
    next_window: NextWindow,
    /// The window that is being returned.
    window: Window,
    /// Index of the next row to return.
    at: usize,
    /// Number of rows of the next window.
    row_count: usize,
}

type Filling = Pin<Box<dyn Future<Output = (Scan, Window)> + Send>>;

/// State of the next window.
enum NextWindow {
    Idle(Scan),
    Filling(Filling),
    Filled(Scan, Window),
    /// Moved out while it changes to another state.
    Taken,
}

#[derive(Default)]
struct Window {
    rows: Vec<WindowRow>,
    /// The rows' keys and metas.
    bytes: Vec<u8>,
    records: Vec<Record>,
    end: End,
}

#[derive(Default)]
enum End {
    More,
    #[default]
    Last,
    /// The index could not be read any further.
    Failed(ReadError),
}

struct WindowRow {
    key: Range<usize>,
    meta: Range<usize>,
    location: Location,
    records: Range<usize>,
    error: Option<ReadError>,
}

impl ValueScan {
    /// The next entry with its records; `None` at the end. Dropping the future loses no entry.
    ///
    /// # Errors
    /// If the index can't be read, as [`Scan::next`]; a later call tries again. A record that can't be read
    /// is reported by its [`ValueRef`], and the scan goes on after it.
    pub async fn next(&mut self) -> Result<Option<ValueRef<'_>>, ReadError> {
        while self.at >= self.window.rows.len() {
            match std::mem::replace(&mut self.window.end, End::More) {
                End::More => {}
                End::Last => {
                    self.window.end = End::Last;
                    return Ok(None);
                }
                End::Failed(error) => return Err(error),
            }
            let window = poll_fn(|context| self.poll_window(context)).await;
            (self.window, self.at) = (window, 0);
        }
        // A scan of one row causes no other read.
        if self.row_count > 2 && self.at.is_multiple_of(ROWS_PER_POLL) && matches!(self.window.end, End::More)
        {
            poll_fn(|context| {
                self.poll_next_window(context);
                Poll::Ready(())
            })
            .await;
        }
        let row = &self.window.rows[self.at];
        self.at += 1;
        Ok(Some(self.window.value(row)))
    }

    /// Polls the next window, and begins it if necessary.
    fn poll_next_window(&mut self, context: &mut Context<'_>) {
        if matches!(self.next_window, NextWindow::Filled(..)) {
            return;
        }
        let mut filling = match std::mem::replace(&mut self.next_window, NextWindow::Taken) {
            NextWindow::Filling(filling) => filling,
            NextWindow::Idle(scan) => {
                let row_count = self.row_count;
                self.row_count = (row_count * 2).min(READ_AHEAD_ROWS_MAX);
                Box::pin(Window::fill(scan, row_count))
            }
            NextWindow::Filled(..) | NextWindow::Taken => unreachable!("checked above"),
        };
        self.next_window = match filling.as_mut().poll(context) {
            Poll::Ready((scan, window)) => NextWindow::Filled(scan, window),
            Poll::Pending => NextWindow::Filling(filling),
        };
    }

    fn poll_window(&mut self, context: &mut Context<'_>) -> Poll<Window> {
        self.poll_next_window(context);
        match std::mem::replace(&mut self.next_window, NextWindow::Taken) {
            NextWindow::Filled(scan, window) => {
                self.next_window = NextWindow::Idle(scan);
                Poll::Ready(window)
            }
            next_window => {
                self.next_window = next_window;
                Poll::Pending
            }
        }
    }
}

impl Window {
    /// Reads the next rows of a scan, and their records.
    async fn fill(mut scan: Scan, row_count: usize) -> (Scan, Window) {
        let mut window = Window { end: End::More, ..Window::default() };
        let mut locations: Vec<Location> = Vec::with_capacity(row_count);
        let mut size = 0;
        while window.rows.len() < row_count && size < READ_AHEAD_BYTES_MAX {
            match scan.next().await {
                Ok(Some(entry)) => {
                    let first = locations.len();
                    locations.extend(entry.pointers().map(|pointer| pointer.location));
                    size += locations[first..].iter().map(|location| u64::from(location.length)).sum::<u64>();
                    let (key, meta) = (window.push(entry.key), window.push(entry.meta));
                    let (location, records) = (entry.location, first..locations.len());
                    window.rows.push(WindowRow { key, meta, location, records, error: None });
                }
                Ok(None) => window.end = End::Last,
                Err(error) => window.end = End::Failed(error),
            }
            if !matches!(window.end, End::More) {
                break;
            }
        }
        let mut records = scan.snapshot().read_bulk(&locations, false).await.into_iter();
        window.records.reserve_exact(locations.len());
        for row in &mut window.rows {
            let first = window.records.len();
            for record in records.by_ref().take(row.records.len()) {
                match record {
                    Ok(record) => window.records.push(record),
                    Err(error) => row.error = row.error.take().or(Some(error)),
                }
            }
            row.records = first..window.records.len();
        }
        (scan, window)
    }

    fn push(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        start..self.bytes.len()
    }

    fn value<'a>(&'a self, row: &'a WindowRow) -> ValueRef<'a> {
        let records = match &row.error {
            Some(error) => Err(error),
            None => Ok(&self.records[row.records.clone()]),
        };
        let (key, meta) = (&self.bytes[row.key.clone()], &self.bytes[row.meta.clone()]);
        ValueRef { key, meta, location: row.location, records }
    }
}
