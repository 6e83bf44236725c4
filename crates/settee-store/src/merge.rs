//! Several memory layers read as one: of entries with the same key the newest layer's shows.

use std::cmp::Ordering;
use std::ops::Bound;

use crate::layer::{Cursor, Found, Layer};

/// A scan over layers, newest first, tombstones included.
pub(crate) struct Merged {
    cursors: Vec<Cursor>,
    /// Whether each stands at an entry.
    stands: Vec<bool>,
    /// The one whose entry is the next.
    at: usize,
    descending: bool,
    begun: bool,
}

impl Merged {
    pub(crate) fn new<'a>(
        layers: impl Iterator<Item = &'a Layer>,
        start: Bound<&[u8]>,
        end: Bound<&[u8]>,
        descending: bool,
    ) -> Merged {
        let layers = layers.filter(|layer| !layer.is_empty());
        let cursors: Vec<_> = layers.map(|layer| Cursor::range(layer, start, end, descending)).collect();
        Merged { stands: vec![false; cursors.len()], cursors, at: 0, descending, begun: false }
    }

    /// Goes to the next entry, for [`Merged::current`]; false at the end.
    pub(crate) fn advance(&mut self) -> bool {
        if let [cursor] = &mut self.cursors[..] {
            self.stands[0] = cursor.advance();
            return self.stands[0];
        }
        if !std::mem::replace(&mut self.begun, true) {
            self.stands
                .iter_mut()
                .zip(&mut self.cursors)
                .for_each(|(stands, cursor)| *stands = cursor.advance());
        } else if self.stands.get(self.at) == Some(&true) {
            // Older entries of the same key are passed over with it.
            for other in 0..self.cursors.len() {
                let passed = other != self.at
                    && self.stands[other]
                    && self.cursors[other].current().key == self.cursors[self.at].current().key;
                if passed {
                    self.stands[other] = self.cursors[other].advance();
                }
            }
            self.stands[self.at] = self.cursors[self.at].advance();
        }
        let standing = (0..self.cursors.len()).filter(|index| self.stands[*index]);
        // Of equal ones the first, which is the newest.
        let next = standing.reduce(|best, other| {
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

    /// What older layers have under the key that it went to, newest first.
    pub(crate) fn older(&self) -> impl Iterator<Item = Found<'_>> {
        let key = self.current().key;
        let others = self.cursors.iter().zip(&self.stands).skip(self.at + 1);
        others
            .filter(|(_, stands)| **stands)
            .map(|(cursor, _)| cursor.current())
            .filter(move |found| found.key == key)
    }

    /// As [`Cursor::skip_sum`], where there is but one layer.
    pub(crate) fn skip_sum(&mut self, component: usize, amount: u64) -> u64 {
        assert!(self.cursors.len() <= 1, "only one layer's entries take nothing away");
        self.cursors.first_mut().map_or(0, |cursor| cursor.skip_sum(component, amount))
    }
}
