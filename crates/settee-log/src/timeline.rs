//! Timelines: the histories that led to a log's present content.
//!
//! A log begins on a timeline with a random id. A copy of the log that is restored from a backup starts another
//! one, which says after which record of its parent it begins: from then on the copy and its origin differ, and
//! so do the ids in the headers of their segments. Older files keep the id that they were written under. The
//! manifest names the log's timelines; a log without a manifest has one, that of its headers.
//!
//! Invariants:
//! 1. Each timeline but the first continues the one before it in the list; the last one is the current one, to
//!    which records are appended.
//! 2. A segment of the log is of one timeline, and has no record of another.

use std::sync::Arc;

use crate::types::{Seq, TimelineId};

/// A timeline of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeline {
    /// Its id.
    pub id: TimelineId,
    /// The last record of its parent that belongs to its history; 0 for a log's first timeline.
    pub after: Seq,
}

/// The timelines of a log, each the parent of the next one. Empty only for a log without segments and
/// manifest. Cheap to clone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Timelines(Arc<[Timeline]>);

impl Timelines {
    /// Those of a log that has only this one.
    pub fn first(id: TimelineId) -> Timelines {
        Timelines::new(vec![Timeline { id, after: Seq(0) }])
    }

    /// Those in a list, in its order.
    pub(crate) fn new(list: Vec<Timeline>) -> Timelines {
        Timelines(list.into())
    }

    /// In order, the first one first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Timeline> {
        self.0.iter()
    }

    /// Their number.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The one to which records are appended.
    pub fn current(&self) -> Option<Timeline> {
        self.0.last().copied()
    }

    /// The index of the current one.
    pub fn current_index(&self) -> u32 {
        (self.0.len() as u32).saturating_sub(1)
    }

    /// The index of the one with this id.
    pub fn index_of(&self, id: TimelineId) -> Option<u32> {
        self.0.iter().position(|timeline| timeline.id == id).map(|index| index as u32)
    }

    /// The last record before the timeline with this index.
    pub(crate) fn after(&self, index: u32) -> u64 {
        self.0.get(index as usize).map_or(0, |timeline| timeline.after.0)
    }

    /// The last record that a segment of the timeline with this index may have.
    pub fn last_seq(&self, index: u32) -> Seq {
        self.0.get(index as usize + 1).map_or(Seq(u64::MAX), |next| next.after)
    }

    /// These and another one, which continues the current one after this record.
    #[must_use]
    pub(crate) fn branch(&self, id: TimelineId, after: Seq) -> Timelines {
        Timelines::new(self.0.iter().copied().chain([Timeline { id, after }]).collect())
    }

    /// The first invariant that a list violates; `None` if it is valid.
    pub(crate) fn violated_invariant(&self) -> Option<&'static str> {
        let has_repeated =
            (1..self.0.len()).any(|index| self.0[..index].iter().any(|one| one.id == self.0[index].id));
        let violated = [
            (self.0.is_empty(), "it names no timeline"),
            (self.0.first().is_some_and(|first| first.after.0 > 0), "its first timeline has no beginning"),
            (!self.0.is_sorted_by_key(|timeline| timeline.after), "its timelines are out of order"),
            (has_repeated, "it names a timeline twice"),
        ];
        violated.into_iter().find_map(|(is_violated, what)| is_violated.then_some(what))
    }
}
