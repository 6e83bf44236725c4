//! Merges several memtables into one scan: of entries with the same key it shows the newest memtable's.

use std::cmp::Ordering;
use std::ops::Bound;

use super::cursor::Cursor;
use super::entry::Found;
use super::map::MemtableMap;

/// A scan over memtables, newest first, tombstones included.
pub(crate) struct Merged {
    cursors: Vec<Cursor>,
    /// Whether each cursor has a current entry.
    valid: Vec<bool>,
    /// Index of the cursor with the current entry.
    at: usize,
    descending: bool,
    begun: bool,
}

impl Merged {
    pub(crate) fn new<'a>(
        maps: impl Iterator<Item = &'a MemtableMap>,
        start: Bound<&[u8]>,
        end: Bound<&[u8]>,
        descending: bool,
    ) -> Merged {
        let maps = maps.filter(|map| !map.is_empty());
        let cursors: Vec<_> = maps.map(|map| Cursor::range(map, start, end, descending)).collect();
        Merged { valid: vec![false; cursors.len()], cursors, at: 0, descending, begun: false }
    }

    /// Advances to the next entry, for [`Merged::current`]; false at the end.
    pub(crate) fn advance(&mut self) -> bool {
        if let [cursor] = &mut self.cursors[..] {
            self.valid[0] = cursor.advance();
            return self.valid[0];
        }
        if !std::mem::replace(&mut self.begun, true) {
            self.valid
                .iter_mut()
                .zip(&mut self.cursors)
                .for_each(|(is_valid, cursor)| *is_valid = cursor.advance());
        } else if self.valid.get(self.at) == Some(&true) {
            // Older entries of the same key are skipped with it.
            for other in 0..self.cursors.len() {
                let is_same_key = other != self.at
                    && self.valid[other]
                    && self.cursors[other].current().key == self.cursors[self.at].current().key;
                if is_same_key {
                    self.valid[other] = self.cursors[other].advance();
                }
            }
            self.valid[self.at] = self.cursors[self.at].advance();
        }
        let candidates = (0..self.cursors.len()).filter(|index| self.valid[*index]);
        // Of equal keys the first cursor's, which is the newest.
        let next = candidates.reduce(|best, other| {
            let order = self.cursors[other].current().key.cmp(self.cursors[best].current().key);
            let is_before =
                if self.descending { order == Ordering::Greater } else { order == Ordering::Less };
            if is_before { other } else { best }
        });
        self.at = next.unwrap_or(0);
        next.is_some()
    }

    /// The entry that the last [`Merged::advance`] went to.
    pub(crate) fn current(&self) -> Found<'_> {
        self.cursors[self.at].current()
    }

    /// The entries of older memtables under the current key, newest first.
    pub(crate) fn older(&self) -> impl Iterator<Item = Found<'_>> {
        let key = self.current().key;
        let others = self.cursors.iter().zip(&self.valid).skip(self.at + 1);
        others
            .filter(|(_, is_valid)| **is_valid)
            .map(|(cursor, _)| cursor.current())
            .filter(move |found| found.key == key)
    }

    /// As [`Cursor::skip_sum`], if there is only one memtable.
    pub(crate) fn skip_sum(&mut self, component: usize, amount: u64) -> u64 {
        assert!(self.cursors.len() <= 1, "only a single memtable's aggregates are never negative");
        self.cursors.first_mut().map_or(0, |cursor| cursor.skip_sum(component, amount))
    }
}
