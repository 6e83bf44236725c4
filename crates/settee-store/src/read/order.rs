//! The two orders in which entries are read, by key and by `Seq`, and aggregates over ranges of either.

use std::ops::Bound;

use crate::error::ReadError;
use crate::index::{BY_KEY, BY_SEQ, SEQ_SIZE};
use crate::memtable::{Aggregates, Memtable, MemtableMap, add};
use crate::version::{CheckpointTree, Version};

/// One of the two indexes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    Key,
    Seq,
}

impl Order {
    pub(super) fn map(self, memtable: &Memtable) -> &MemtableMap {
        match self {
            Order::Key => &memtable.by_key,
            Order::Seq => &memtable.by_seq,
        }
    }

    /// Bounds of the tree's keys, where the two indexes follow one another.
    pub(super) fn tree_bounds(
        self,
        start: Bound<&[u8]>,
        end: Bound<&[u8]>,
    ) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
        let prefix = if self == Order::Key { BY_KEY } else { BY_SEQ };
        let of = |key: &[u8]| [&[prefix], key].concat();
        let start = match start.map(of) {
            Bound::Unbounded => Bound::Included(vec![prefix]),
            bound => bound,
        };
        let end = match end.map(of) {
            Bound::Unbounded => Bound::Excluded(vec![prefix + 1]),
            bound => bound,
        };
        (start, end)
    }

    /// Offset of the record's key in this index's keys.
    pub(super) fn key_at(self) -> usize {
        if self == Order::Key { 0 } else { SEQ_SIZE }
    }
}

pub(super) fn as_slice(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

impl Version {
    pub(super) async fn aggregates_between(
        &self,
        order: Order,
        start: Bound<&[u8]>,
        end: Bound<&[u8]>,
    ) -> Result<Aggregates, ReadError> {
        let in_memory = self.memtable_aggregates_between(order, start, end);
        let Some(CheckpointTree { root, .. }) = &self.checkpoint.tree else { return Ok(in_memory) };
        let (start, end) = order.tree_bounds(start, end);
        Ok(add(in_memory, root.summary_in((as_slice(&start), as_slice(&end))).await?))
    }

    pub(super) fn memtable_aggregates_between(
        &self,
        order: Order,
        start: Bound<&[u8]>,
        end: Bound<&[u8]>,
    ) -> Aggregates {
        let memtables = self.memtables().map(|memtable| order.map(memtable).aggregates_in((start, end)));
        memtables.fold(Aggregates::default(), add)
    }
}
