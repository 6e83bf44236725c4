//! Reading an index: rows in a range of keys, counts, and reduced values.

use std::ops::Bound;
use std::vec;

use settee_doc::Seq;
use settee_io::yield_now;
use settee_tree::{Reduction as _, Root, Scan};

use crate::error::{Result, ViewError};
use crate::merge::read_overflow;
use crate::reduce::{IndexReduction, ReduceError, Reducer, Summary};
use crate::row::{self, EntryRows, ROW, ViewRow};

/// Rows that a reduction of rows takes at once, and bytes of them; the last row may exceed these.
const ROWS_REDUCED_MAX: usize = 1_000;
const BYTES_REDUCED_MAX: usize = 1 << 20;

/// Rows that are skipped one by one between two yields.
const SKIPPED_PER_YIELD: u64 = 256;

/// A state of an index: immutable, and cheap to clone.
#[derive(Clone)]
pub struct IndexSnapshot {
    pub(crate) root: Root<IndexReduction>,
    pub(crate) reduction: IndexReduction,
    /// Sources of the reduce functions.
    pub(crate) reduces: std::sync::Arc<[String]>,
    /// The last change of the database that it has.
    pub seq: Seq,
    pub(crate) purge_seq: u64,
    /// Whether `reduction` isn't the tree's: see [`IndexSnapshot::for_reduce`].
    pub(crate) is_reduced_from_rows: bool,
}

/// A range of an index's rows: bounds of sort keys, each perhaps with a document's id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowRange {
    pub(crate) start: Bound<Vec<u8>>,
    pub(crate) end: Bound<Vec<u8>>,
}

impl RowRange {
    /// All rows.
    pub fn all() -> RowRange {
        RowRange { start: Bound::Included(vec![ROW]), end: Bound::Excluded(vec![ROW + 1]) }
    }

    /// The rows whose sort keys begin with `prefix`.
    pub(crate) fn prefix(prefix: &[u8]) -> RowRange {
        let start = [&[ROW], prefix].concat();
        let mut end = start.clone();
        settee_collate::raise(&mut end);
        RowRange { start: Bound::Included(start), end: Bound::Excluded(end) }
    }

    /// Whether no key is in it.
    pub(crate) fn is_empty(&self) -> bool {
        match (&self.start, &self.end) {
            (Bound::Included(start), Bound::Included(end)) => start > end,
            (
                Bound::Included(start) | Bound::Excluded(start),
                Bound::Excluded(end) | Bound::Included(end),
            ) => start >= end,
            _ => false,
        }
    }

    pub(crate) fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        (as_slice(&self.start), as_slice(&self.end))
    }

    /// The part of this range that is in another one.
    pub(crate) fn within(&self, other: &RowRange) -> RowRange {
        let start = later_start(&self.start, &other.start);
        let end = earlier_end(&self.end, &other.end);
        RowRange { start: start.clone(), end: end.clone() }
    }
}

fn as_slice(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

fn later_start<'a>(one: &'a Bound<Vec<u8>>, other: &'a Bound<Vec<u8>>) -> &'a Bound<Vec<u8>> {
    let rank = |bound: &'a Bound<Vec<u8>>| match bound {
        Bound::Unbounded => (None, false),
        Bound::Included(key) => (Some(key), false),
        Bound::Excluded(key) => (Some(key), true),
    };
    if rank(one) >= rank(other) { one } else { other }
}

fn earlier_end<'a>(one: &'a Bound<Vec<u8>>, other: &'a Bound<Vec<u8>>) -> &'a Bound<Vec<u8>> {
    let rank = |bound: &'a Bound<Vec<u8>>| match bound {
        Bound::Unbounded => (true, None, false),
        Bound::Included(key) => (false, Some(key), true),
        Bound::Excluded(key) => (false, Some(key), false),
    };
    if rank(one) <= rank(other) { one } else { other }
}

impl IndexSnapshot {
    /// Number of rows in a range.
    ///
    /// # Errors
    /// If the index can't be read.
    pub async fn count(&self, range: &RowRange) -> Result<u64> {
        if range.is_empty() {
            return Ok(0);
        }
        Ok(self.root.summary_in(range.bounds()).await?.row_count)
    }

    /// The rows in a range, in ascending or descending order, after the first `skip` of them.
    ///
    /// # Errors
    /// If the index can't be read.
    pub async fn rows(&self, range: &RowRange, descending: bool, skip: u64) -> Result<RowScan> {
        let mut range = range.clone();
        let mut skip = skip;
        if range.is_empty() {
            range = RowRange { start: Bound::Included(vec![ROW]), end: Bound::Excluded(vec![ROW]) };
        } else if skip > 0 {
            skip = self.skip(&mut range, descending, skip).await?;
        }
        let scan = self.root.scan(range.bounds(), descending);
        Ok(RowScan { root: self.root.clone(), scan, skip, rest: Vec::new().into_iter() })
    }

    /// Moves a range's beginning past at most `skip` rows; returns how many are left to be skipped.
    async fn skip(&self, range: &mut RowRange, descending: bool, skip: u64) -> Result<u64> {
        let before = match descending {
            false => skip,
            // The rows that remain, from the front.
            true => match self.count(range).await?.checked_sub(skip) {
                Some(left) => left,
                None => {
                    *range = RowRange { start: Bound::Included(vec![ROW]), end: Bound::Excluded(vec![ROW]) };
                    return Ok(0);
                }
            },
        };
        if descending && before == 0 {
            range.end.clone_from(&Bound::Excluded(vec![ROW]));
            return Ok(0);
        }
        let passes = |summary: &Summary, _, _: &[u8]| summary.row_count <= before;
        let (boundary, summary, _) = self.root.seek(range.bounds(), passes).await?;
        if !descending {
            // With nothing before it, the boundary may lie before the range.
            if summary.row_count > 0 {
                range.start = Bound::Included(boundary);
            }
            return Ok(skip - summary.row_count);
        }
        if summary.row_count == before {
            range.end = Bound::Excluded(boundary);
            return Ok(0);
        }
        // The last row lies within an entry of several rows.
        Ok(skip)
    }

    /// The reduced value of a range as JSON; `None` if it has no rows.
    ///
    /// # Errors
    /// The reduce function's error, which may be of this value only, or an error of reading.
    pub(crate) async fn reduce(
        &self,
        reducer: usize,
        range: &RowRange,
    ) -> Result<Option<std::result::Result<Vec<u8>, ReduceError>>> {
        if range.is_empty() {
            return Ok(None);
        }
        let summary = self.root.summary_in(range.bounds()).await?;
        if summary.row_count == 0 {
            return Ok(None);
        }
        if self.is_reduced_from_rows {
            return self.reduce_rows(reducer, range).await.map(Some);
        }
        match self.reduction.value(reducer, summary).await {
            Ok(value) => Ok(Some(Ok(value))),
            Err(Some(error)) => Ok(Some(Err(error))),
            Err(None) => self.reduce_rows(reducer, range).await.map(Some),
        }
    }

    /// As [`IndexSnapshot::reduce`], from the rows themselves.
    async fn reduce_rows(
        &self,
        reducer: usize,
        range: &RowRange,
    ) -> Result<std::result::Result<Vec<u8>, ReduceError>> {
        let mut scan = self.rows(range, false, 0).await?;
        let mut total = self.reduction.zero();
        loop {
            let (mut rows, mut bytes) = (Vec::new(), 0);
            while rows.len() < ROWS_REDUCED_MAX
                && bytes < BYTES_REDUCED_MAX
                && let Some(row) = scan.next().await?
            {
                bytes += row.key.len() + row.value.len();
                rows.push(row);
            }
            // Reads from memory never yield.
            yield_now().await;
            if rows.is_empty() {
                break;
            }
            total = match self.reduction.add_rows(reducer, total, rows).await {
                Ok(total) => total,
                Err(error) => return Ok(Err(error)),
            };
        }
        match self.reduction.value(reducer, total).await {
            Ok(value) => Ok(Ok(value)),
            Err(Some(error)) => Ok(Err(error)),
            Err(None) => Err(ViewError::damaged("rows can't be reduced")),
        }
    }

    /// The state for queries that reduce with one function, and the function's index there. If the index lacks the
    /// function, the rows are reduced by each query.
    pub(crate) fn for_reduce(mut self, source: &str) -> (IndexSnapshot, usize) {
        if let Some(reducer) = self.reduces.iter().position(|own| own == source) {
            return (self, reducer);
        }
        self.reduction = self.reduction.with(Reducer::parse(source));
        self.reduces = [source.to_owned()].into();
        self.is_reduced_from_rows = true;
        (self, 0)
    }

    /// Bytes of the index's file up to this state.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.root.end()
    }

    /// Number of all rows.
    pub fn row_count(&self) -> u64 {
        self.root.summary().row_count
    }
}

/// Rows in a range. Holds the index's state.
pub struct RowScan {
    root: Root<IndexReduction>,
    scan: Scan<IndexReduction>,
    /// Rows still to be skipped.
    skip: u64,
    /// The other rows of an entry. As in CouchDB, they are in ascending order even if the scan is descending.
    rest: vec::IntoIter<ViewRow>,
}

impl RowScan {
    /// The next row, or `None` at the end.
    ///
    /// # Errors
    /// If the index can't be read.
    pub async fn next(&mut self) -> Result<Option<ViewRow>> {
        loop {
            for row in self.rest.by_ref() {
                if self.skip == 0 {
                    return Ok(Some(row));
                }
                self.skip -= 1;
                if self.skip.is_multiple_of(SKIPPED_PER_YIELD) {
                    yield_now().await;
                }
            }
            let Some((key, value)) = self.scan.next().await? else { return Ok(None) };
            let malformed = || {
                self.root.report_damage();
                ViewError::damaged("a row is malformed")
            };
            match row::decode(key, value).ok_or_else(malformed)? {
                EntryRows::Inline(rows) => match &rows[..] {
                    [row] if self.skip == 0 => return Ok(Some(ViewRow::of(row))),
                    rows => self.rest = rows.iter().map(ViewRow::of).collect::<Vec<_>>().into_iter(),
                },
                EntryRows::Overflow(overflow) => {
                    let (key, value) = (key.to_vec(), value.to_vec());
                    let chunks = read_overflow(&self.root, &overflow).await?;
                    let rows = row::decode_chunks(&key, &value, &chunks).ok_or_else(malformed)?;
                    self.rest = rows.iter().map(ViewRow::of).collect::<Vec<_>>().into_iter();
                }
            }
        }
    }
}
