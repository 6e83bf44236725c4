//! Input of a checkpoint: immutable memtables, and their changes in the order of the tree's keys.

use std::ops::Bound;
use std::sync::Arc;

use crate::index::{BY_KEY, BY_SEQ, EntryView};
use crate::memtable::{Memtable, MemtableMap, Merged};
use crate::version::{CheckpointState, Version};

/// Input of a checkpoint: all records up to `seq`, in the memtables up to `generation`.
pub(super) struct CheckpointInput {
    pub memtables: Arc<Vec<Memtable>>,
    pub checkpoint: Arc<CheckpointState>,
    pub generation: u64,
    pub seq: u64,
    pub last_in_seq_index: u64,
}

impl CheckpointInput {
    /// Makes a version's memtable immutable, unless a failed checkpoint left immutable memtables: then the
    /// input is these.
    pub(super) fn of(version: &mut Version) -> CheckpointInput {
        if version.immutable.is_empty() {
            version.switch_memtable();
        }
        let (generation, seq, last_in_seq_index) = match version.immutable.first() {
            Some(newest) => (newest.generation, newest.last_seq, newest.last_in_seq_index),
            None => (0, version.last_seq, version.last_in_seq_index),
        };
        CheckpointInput {
            memtables: version.immutable.clone(),
            checkpoint: version.checkpoint.clone(),
            generation,
            seq,
            last_in_seq_index,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.memtables.is_empty()
    }

    pub(super) fn key_count(&self) -> u64 {
        self.memtables.iter().map(|memtable| memtable.len() as u64).sum()
    }
}

/// The changes in the memtables, in the order of the tree's keys.
pub(super) struct Changes {
    by_key: Merged,
    by_seq: Merged,
}

impl Changes {
    pub(super) fn new(memtables: &[Memtable]) -> Changes {
        let all = |index: fn(&Memtable) -> &MemtableMap| {
            Merged::new(memtables.iter().map(index), Bound::Unbounded, Bound::Unbounded, false)
        };
        Changes { by_key: all(|memtable| &memtable.by_key), by_seq: all(|memtable| &memtable.by_seq) }
    }
}

impl Iterator for Changes {
    type Item = (Vec<u8>, Vec<u8>);

    fn next(&mut self) -> Option<(Vec<u8>, Vec<u8>)> {
        let row = |prefix, merged: &Merged| {
            let found = merged.current();
            let view = EntryView::trusted(found.value);
            let value = if view.is_whole() {
                found.value.to_vec()
            } else {
                let mut value = Vec::new();
                view.encode_over(merged.older().map(|older| EntryView::trusted(older.value)), &mut value);
                value
            };
            ([&[prefix], found.key].concat(), value)
        };
        if self.by_key.advance() {
            return Some(row(BY_KEY, &self.by_key));
        }
        self.by_seq.advance().then(|| row(BY_SEQ, &self.by_seq))
    }
}
