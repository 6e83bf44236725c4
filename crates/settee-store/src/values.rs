//! Reading many values: in bulk, and along a scan.
//!
//! [`Snapshot::read_many`] takes records in any order from any files, sorts them by file, and reads
//! each file by as few reads as the planner makes, all of them under way together.
//!
//! A [`ValueScan`] reads windows of rows: the entries from the index, then their records in bulk. A
//! window is twice as large as the one before it, from one row on, so that who wants few rows has few
//! read; and from the second on the next one is under way while this one is handed out. No task is
//! spawned for that: a window is a future that the scan polls now and then. Its reads are the
//! system's business once they have been submitted, so all that a task of its own would add is
//! decoding on another core, for the price of something that outlives the scan.
//!
//! Invariants:
//! 1. A record that can't be read fails alone.
//! 2. A scan holds two windows at the most, each of at most [`AHEAD_ROWS_MAX`] rows and as many records
//!    as make [`AHEAD_BYTES_MAX`] bytes.
//! 3. Dropping the future of [`ValueScan::next`] loses no row.
//! 4. Scans find chunks in the cache, but put none there: one scan would push out all that is used.

use std::future::{Future, poll_fn};
use std::ops::{Bound, Range};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::join_all;
use settee_log::{Record, Seq};

use crate::entry::Location;
use crate::error::ReadError;
use crate::segments::Segment;
use crate::snapshot::{Scan, Snapshot};

/// Most rows of a window.
pub const AHEAD_ROWS_MAX: usize = 256;

/// A window ends with the row whose records make it at least so many bytes.
pub const AHEAD_BYTES_MAX: u64 = 2 << 20;

/// The window that is under way is looked after each time so many rows were handed out.
const ROWS_PER_POLL: usize = 32;

/// Records of one file, each with its place in the list.
struct Group {
    /// None: the log's.
    segment: Option<Arc<Segment>>,
    records: Vec<(usize, Location)>,
}

impl Snapshot {
    /// Reads many records, in any order and from any segments: what touches is read together, and
    /// all reads are submitted before one is waited for. The results are in the order of
    /// `locations`. Takes as much memory as the records together: a caller with a long list cuts it.
    /// Records that were read together share their memory: who keeps one for long should copy it.
    ///
    /// # Errors
    /// For each record by itself: see [`ReadError`]; the store stays usable.
    pub async fn read_many(&self, locations: &[Location]) -> Vec<Result<Record, ReadError>> {
        self.read_bulk(locations, true).await
    }

    /// With `keep`, chunks that were read are kept in the cache.
    async fn read_bulk(&self, locations: &[Location], keep: bool) -> Vec<Result<Record, ReadError>> {
        if let [location] = locations {
            return vec![self.read(*location).await];
        }
        let mut order: Vec<usize> = (0..locations.len()).collect();
        order.sort_unstable_by_key(|index| (locations[*index].segment, locations[*index].offset));
        let mut groups: Vec<Group> = Vec::new();
        for index in order {
            let location = locations[index];
            // Neighbours are of one file, mostly: it is looked for once.
            let is_next = groups.last().is_some_and(|group| match &group.segment {
                Some(segment) => segment.name.last >= location.segment,
                None => self.state.base.segments.get(location.segment).is_none(),
            });
            if !is_next {
                let segment = self.state.base.segments.get(location.segment).cloned();
                groups.push(Group { segment, records: Vec::new() });
            }
            groups.last_mut().expect("there is one").records.push((index, location));
        }
        let mut results: Vec<Option<Result<Record, ReadError>>> = vec![None; locations.len()];
        for found in join_all(groups.iter().map(|group| self.read_group(group, keep))).await {
            found.into_iter().for_each(|(index, record)| results[index] = Some(record));
        }
        results.into_iter().map(|result| result.expect("each is in a group")).collect()
    }

    async fn read_group(&self, group: &Group, keep: bool) -> Vec<(usize, Result<Record, ReadError>)> {
        if let Some(segment) = &group.segment {
            return segment.read_many(&group.records, keep).await;
        }
        let in_log = |(_, location): &(usize, Location)| {
            let Location { segment, offset, length, .. } = *location;
            settee_log::Location { segment, offset, length }
        };
        let locations: Vec<_> = group.records.iter().map(in_log).collect();
        let records = self.log.read_many_in(&self.state.files, &locations).await;
        let checked = records.into_iter().zip(&group.records).map(|(record, (index, location))| {
            (*index, record.map_err(ReadError::from).and_then(|record| Snapshot::expect(record, *location)))
        });
        checked.collect()
    }

    /// As [`Snapshot::scan`], with the records that the values are made from.
    pub fn scan_values(&self, start: Bound<&[u8]>, end: Bound<&[u8]>, descending: bool) -> ValueScan {
        self.scan(start, end, descending).with_values()
    }

    /// As [`Snapshot::scan_listed`], with the records.
    pub fn scan_listed_values(&self, after: Seq, descending: bool) -> ValueScan {
        self.scan_listed(after, descending).with_values()
    }
}

impl Scan {
    /// The same scan from where it stands, with the records that the values are made from.
    pub fn with_values(self) -> ValueScan {
        let window = Window { end: End::More, ..Window::default() };
        ValueScan { ahead: Ahead::Idle(self), window, at: 0, row_count: 1 }
    }
}

/// An entry and its records, borrowed from the scan that read them.
#[derive(Debug, Clone, Copy)]
pub struct ValueRef<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The meta that was put with the value.
    pub meta: &'a [u8],
    /// Where the newest record is.
    pub location: Location,
    /// The records that the value is made from, newest first: one, but where there are deltas. Or why
    /// one of them couldn't be read.
    pub records: Result<&'a [Record], &'a ReadError>,
}

impl<'a> ValueRef<'a> {
    /// The newest record.
    ///
    /// # Errors
    /// Why it, or one that the value needs beside it, couldn't be read.
    pub fn record(&self) -> Result<&'a Record, &'a ReadError> {
        self.records.map(|records| &records[0])
    }
}

/// A scan over a snapshot's index with values, which are read ahead.
pub struct ValueScan {
    ahead: Ahead,
    /// What is being handed out,
    window: Window,
    /// and from which row on.
    at: usize,
    /// How many rows the next window is to have.
    row_count: usize,
}

type Filling = Pin<Box<dyn Future<Output = (Scan, Window)> + Send>>;

/// The next window.
enum Ahead {
    Idle(Scan),
    Filling(Filling),
    Filled(Scan, Window),
    /// In a change from one to another.
    Changing,
}

#[derive(Default)]
struct Window {
    rows: Vec<Row>,
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

struct Row {
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
    /// Where the index can't be read, as [`Scan::next`]: a later call tries again. A record that
    /// can't be read is told by its [`ValueRef`], and the scan goes on behind it.
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
        // Whoever wants one row has no other read.
        if self.row_count > 2 && self.at.is_multiple_of(ROWS_PER_POLL) && matches!(self.window.end, End::More)
        {
            poll_fn(|context| {
                self.poll_ahead(context);
                Poll::Ready(())
            })
            .await;
        }
        let row = &self.window.rows[self.at];
        self.at += 1;
        Ok(Some(self.window.value(row)))
    }

    /// Brings the next window forward, and begins it where it isn't.
    fn poll_ahead(&mut self, context: &mut Context<'_>) {
        if matches!(self.ahead, Ahead::Filled(..)) {
            return;
        }
        let mut filling = match std::mem::replace(&mut self.ahead, Ahead::Changing) {
            Ahead::Filling(filling) => filling,
            Ahead::Idle(scan) => {
                let row_count = self.row_count;
                self.row_count = (row_count * 2).min(AHEAD_ROWS_MAX);
                Box::pin(Window::fill(scan, row_count))
            }
            Ahead::Filled(..) | Ahead::Changing => unreachable!("it was looked at"),
        };
        self.ahead = match filling.as_mut().poll(context) {
            Poll::Ready((scan, window)) => Ahead::Filled(scan, window),
            Poll::Pending => Ahead::Filling(filling),
        };
    }

    fn poll_window(&mut self, context: &mut Context<'_>) -> Poll<Window> {
        self.poll_ahead(context);
        match std::mem::replace(&mut self.ahead, Ahead::Changing) {
            Ahead::Filled(scan, window) => {
                self.ahead = Ahead::Idle(scan);
                Poll::Ready(window)
            }
            ahead => {
                self.ahead = ahead;
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
        while window.rows.len() < row_count && size < AHEAD_BYTES_MAX {
            match scan.next().await {
                Ok(Some(entry)) => {
                    let first = locations.len();
                    locations.extend(entry.pointers().map(|pointer| pointer.location));
                    size += locations[first..].iter().map(|location| u64::from(location.length)).sum::<u64>();
                    let (key, meta) = (window.push(entry.key), window.push(entry.meta));
                    let (location, records) = (entry.location, first..locations.len());
                    window.rows.push(Row { key, meta, location, records, error: None });
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

    fn value<'a>(&'a self, row: &'a Row) -> ValueRef<'a> {
        let records = match &row.error {
            Some(error) => Err(error),
            None => Ok(&self.records[row.records.clone()]),
        };
        let (key, meta) = (&self.bytes[row.key.clone()], &self.bytes[row.meta.clone()]);
        ValueRef { key, meta, location: row.location, records }
    }
}
