//! Queries: ranges of keys, and the rows or the groups in them.

use std::collections::VecDeque;
use std::ops::Bound;

use settee_collate::{Collation, array_prefix, raise, write_sort_key};
use settee_io::yield_now;

use crate::error::{Result, ViewError};
use crate::mapper::write_partition;
use crate::read::{IndexSnapshot, RowRange, RowScan};
use crate::reduce::ReduceError;
use crate::row::{ROW, ViewRow, WHOLE_SIZE_MAX, key_part, row_key, whole_part};

/// How a reduction groups rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grouping {
    /// All rows are one group, whose key is null.
    All,
    /// By the first elements of keys that are arrays, and by whole keys otherwise.
    Level(usize),
    /// By whole keys.
    Exact,
}

/// Which rows a query is of. Keys are JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRange {
    /// The key of the first row, and with it the least id (with `descending` the greatest).
    pub start: Option<String>,
    /// See `start`; it has no effect without one.
    pub start_id: Option<String>,
    /// The key of the last row.
    pub end: Option<String>,
    /// See `end`.
    pub end_id: Option<String>,
    /// Whether rows with the key `end` are included.
    pub inclusive_end: bool,
    /// Whether rows come in descending order; `start` is then the greatest key.
    pub descending: bool,
}

impl Default for KeyRange {
    fn default() -> KeyRange {
        KeyRange {
            start: None,
            start_id: None,
            end: None,
            end_id: None,
            inclusive_end: true,
            descending: false,
        }
    }
}

impl KeyRange {
    /// The rows with one key.
    pub fn of_key(key: &str, descending: bool) -> KeyRange {
        KeyRange { start: Some(key.to_owned()), end: Some(key.to_owned()), descending, ..KeyRange::default() }
    }
}

/// A view's rows in one partition, or in all, ordered by a collation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeySpace {
    collation: Collation,
    /// What all sort keys begin with.
    prefix: Vec<u8>,
}

impl KeySpace {
    pub(crate) fn new(collation: Collation, partition: Option<&str>) -> KeySpace {
        let mut prefix = Vec::new();
        if let Some(partition) = partition {
            write_partition(partition, &mut prefix);
        }
        KeySpace { collation, prefix }
    }

    /// All rows.
    pub fn all(&self) -> RowRange {
        match self.prefix.is_empty() {
            true => RowRange::all(),
            false => RowRange::prefix(&self.prefix),
        }
    }

    /// Whether the first of two keys sorts after the second.
    ///
    /// # Errors
    /// If one isn't JSON.
    pub fn is_after(&self, one: &str, other: &str) -> Result<bool> {
        Ok(self.sort_key(one)? > self.sort_key(other)?)
    }

    /// The rows that a query is of.
    ///
    /// # Errors
    /// If a key isn't JSON.
    pub fn range(&self, keys: &KeyRange) -> Result<RowRange> {
        let (low, high) = match keys.descending {
            false => ((&keys.start, &keys.start_id), (&keys.end, &keys.end_id)),
            true => ((&keys.end, &keys.end_id), (&keys.start, &keys.start_id)),
        };
        // Only the end can be exclusive.
        let (low_included, high_included) = match keys.descending {
            false => (true, keys.inclusive_end),
            true => (keys.inclusive_end, true),
        };
        let all = self.all();
        let start = match low {
            (None, _) => all.start.clone(),
            (Some(key), Some(id)) => {
                let key = row_key(&self.sort_key(key)?, id);
                if low_included { Bound::Included(key) } else { Bound::Excluded(key) }
            }
            (Some(key), None) => {
                let mut key = self.row_prefix(key)?;
                if !low_included {
                    raise(&mut key);
                }
                Bound::Included(key)
            }
        };
        let end = match high {
            (None, _) => all.end.clone(),
            (Some(key), Some(id)) => {
                let key = row_key(&self.sort_key(key)?, id);
                if high_included { Bound::Included(key) } else { Bound::Excluded(key) }
            }
            (Some(key), None) => {
                let mut key = self.row_prefix(key)?;
                if high_included {
                    raise(&mut key);
                }
                Bound::Excluded(key)
            }
        };
        Ok(RowRange { start, end }.within(&all))
    }

    /// The rows from one position of sort keys up to another, exclusive, for each of these pairs, which ascend and are
    /// disjoint. So are the ranges. Of a position beyond what is stored of sort keys as it is, the range has all
    /// sort keys that begin alike, so that rows outside of the pair may be in it.
    pub fn between(&self, positions: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>) -> Vec<RowRange> {
        let all = self.all();
        let mut last_end = Vec::new();
        let mut range = |(low, high): (Vec<u8>, Vec<u8>)| {
            let start = self.bound(&low, false).max(last_end.clone());
            last_end = self.bound(&high, true).max(start.clone());
            RowRange { start: Bound::Included(start), end: Bound::Excluded(last_end.clone()) }.within(&all)
        };
        positions.into_iter().map(&mut range).collect()
    }

    /// A bound of row keys at, or with `is_high` behind, what is stored of the sort keys at a position.
    fn bound(&self, position: &[u8], is_high: bool) -> Vec<u8> {
        let mut bound = [&[ROW], &*self.prefix, position].concat();
        if bound.len() > 1 + WHOLE_SIZE_MAX {
            bound.truncate(1 + WHOLE_SIZE_MAX);
            if is_high {
                raise(&mut bound);
            }
        }
        bound
    }

    /// The part of a range that comes after a row, in the order of the keys or, with `descending`, in the reverse.
    ///
    /// # Errors
    /// If the key isn't JSON.
    pub fn after(&self, range: &RowRange, key: &str, id: &str, descending: bool) -> Result<RowRange> {
        let row = Bound::Excluded(row_key(&self.sort_key(key)?, id));
        let all = self.all();
        let rest = match descending {
            false => RowRange { start: row, end: all.end },
            true => RowRange { start: all.start, end: row },
        };
        Ok(range.within(&rest))
    }

    fn sort_key(&self, json: &str) -> Result<Vec<u8>> {
        let mut key = self.prefix.clone();
        write_sort_key(json, self.collation, &mut key)
            .map_err(|error| ViewError::query(error.to_string()))?;
        Ok(key)
    }

    fn row_prefix(&self, json: &str) -> Result<Vec<u8>> {
        let sort_key = self.sort_key(json)?;
        Ok([&[ROW], &*key_part(&sort_key)].concat())
    }

    /// The part of a row's sort key that its group shares, and the group's key.
    fn group<'a>(&self, row: &'a ViewRow, grouping: Grouping) -> (&'a [u8], String) {
        let Grouping::Level(level) = grouping else { return (&row.sort_key, row.key.clone()) };
        let own = whole_part(&row.sort_key).get(self.prefix.len()..);
        match own.and_then(|own| array_prefix(own, level, self.collation)) {
            Some(shared) => {
                let length = self.prefix.len() + shared.len();
                (&row.sort_key[..length], first_elements(&row.key, level))
            }
            None => (&row.sort_key, row.key.clone()),
        }
    }
}

/// An array's JSON text with its first elements only.
fn first_elements(json: &str, count: usize) -> String {
    let mut out = String::from("[");
    let mut index = 0;
    // It ends early once it has all that it needs.
    let _ = settee_doc::each_json_element(json.as_bytes(), |element| {
        if index == count {
            return Err(());
        }
        if index > 0 {
            out.push(',');
        }
        out.push_str(element.get());
        index += 1;
        Ok(())
    });
    out.push(']');
    out
}

impl IndexSnapshot {
    /// Number of rows of a space before a range; with `descending`, after it.
    ///
    /// # Errors
    /// If the index can't be read.
    pub async fn count_before(&self, range: &RowRange, space: &KeySpace, descending: bool) -> Result<u64> {
        let all = space.all();
        let before = match descending {
            false => RowRange { start: all.start, end: inverse(&range.start) },
            true => RowRange { start: inverse(&range.end), end: all.end },
        };
        self.count(&before).await
    }
}

/// The rows of a query, one range after another.
pub struct MapRows {
    snapshot: IndexSnapshot,
    ranges: VecDeque<RowRange>,
    descending: bool,
    scan: Option<RowScan>,
    skip: u64,
    limit: u64,
}

impl MapRows {
    /// The rows in these ranges, in their order, after the first `skip` of all.
    pub fn new(
        snapshot: IndexSnapshot,
        ranges: Vec<RowRange>,
        descending: bool,
        skip: u64,
        limit: u64,
    ) -> MapRows {
        MapRows { snapshot, ranges: ranges.into(), descending, scan: None, skip, limit }
    }

    /// The next row, or `None` at the end.
    ///
    /// # Errors
    /// If the index can't be read.
    pub async fn next(&mut self) -> Result<Option<ViewRow>> {
        if self.limit == 0 {
            return Ok(None);
        }
        loop {
            if let Some(scan) = &mut self.scan {
                if let Some(row) = scan.next().await? {
                    self.limit -= 1;
                    return Ok(Some(row));
                }
                self.scan = None;
            }
            let Some(range) = self.ranges.pop_front() else { return Ok(None) };
            // Reads from memory never yield.
            yield_now().await;
            let skip = match self.skip {
                0 => 0,
                skip => skip.min(self.snapshot.count(&range).await?),
            };
            self.skip -= skip;
            self.scan = Some(self.snapshot.rows(&range, self.descending, skip).await?);
        }
    }
}

/// A group of rows, reduced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Its key as JSON.
    pub key: String,
    /// Its value as JSON; or the name and the reason of an error that only this group has.
    pub value: std::result::Result<Vec<u8>, (String, String)>,
}

/// The groups of a query, one range after another.
pub struct Groups {
    snapshot: IndexSnapshot,
    space: KeySpace,
    reducer: usize,
    grouping: Grouping,
    ranges: VecDeque<RowRange>,
    descending: bool,
    skip: u64,
    limit: u64,
}

impl Groups {
    /// The groups in these ranges, in their order, after the first `skip` of all.
    #[expect(clippy::too_many_arguments, reason = "they are the query's options")]
    pub fn new(
        snapshot: IndexSnapshot,
        space: KeySpace,
        reduce: &str,
        grouping: Grouping,
        ranges: Vec<RowRange>,
        descending: bool,
        skip: u64,
        limit: u64,
    ) -> Groups {
        let (snapshot, reducer) = snapshot.for_reduce(reduce);
        let ranges = ranges.into();
        Groups { snapshot, space, reducer, grouping, ranges, descending, skip, limit }
    }

    /// The next group, or `None` at the end.
    ///
    /// # Errors
    /// If the index can't be read, or the reduce function fails for the whole query.
    pub async fn next(&mut self) -> Result<Option<Group>> {
        while self.limit > 0 {
            let Some(range) = self.ranges.front().cloned() else { return Ok(None) };
            let (key, group) = match self.grouping {
                Grouping::All => {
                    self.ranges.pop_front();
                    ("null".to_owned(), range)
                }
                grouping => {
                    let first = self.snapshot.rows(&range, self.descending, 0).await?.next().await?;
                    let Some(row) = first else {
                        self.ranges.pop_front();
                        continue;
                    };
                    let (shared, key) = self.space.group(&row, grouping);
                    let of_group = RowRange::prefix(shared);
                    let rest = match self.descending {
                        false => RowRange { start: inverse(&of_group.end), end: range.end.clone() },
                        true => RowRange { start: range.start.clone(), end: inverse(&of_group.start) },
                    };
                    self.ranges[0] = rest;
                    (key, of_group.within(&range))
                }
            };
            if self.skip > 0 {
                yield_now().await;
                if self.grouping != Grouping::All || self.snapshot.count(&group).await? > 0 {
                    self.skip -= 1;
                }
                continue;
            }
            match self.snapshot.reduce(self.reducer, &group).await? {
                None => {}
                Some(Err(ReduceError { error, reason, is_of_row: false })) => {
                    return Err(ViewError::function(error, reason));
                }
                Some(value) => {
                    self.limit -= 1;
                    return Ok(Some(Group {
                        key,
                        value: value.map_err(|error| (error.error, error.reason)),
                    }));
                }
            }
        }
        Ok(None)
    }
}

/// The bound of what lies beyond a bound.
fn inverse(bound: &Bound<Vec<u8>>) -> Bound<Vec<u8>> {
    match bound {
        Bound::Included(key) => Bound::Excluded(key.clone()),
        Bound::Excluded(key) => Bound::Included(key.clone()),
        Bound::Unbounded => Bound::Unbounded,
    }
}
