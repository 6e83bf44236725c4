//! A memtable: recent records, indexed by key and by `Seq`.

use super::map::MemtableMap;

/// A memtable: recent records, indexed by key and by `Seq`.
#[derive(Debug, Clone, Default)]
pub(crate) struct Memtable {
    /// Number of the memtable, counted from 1; a newer one has a greater number.
    pub generation: u64,
    pub by_key: MemtableMap,
    /// The seq index: keys are the record's `Seq` (8 bytes, big-endian), then its key.
    pub by_seq: MemtableMap,
    /// Its last record; 0 if it is empty.
    pub last_seq: u64,
    /// In an immutable memtable, the last record up to `last_seq` that was ever in the seq index.
    pub last_in_seq_index: u64,
    /// Bytes in the log of all its records, replaced ones included.
    pub record_bytes: u64,
    /// Estimate of the bytes in the log that have become garbage since the memtable began. The record of an
    /// older memtable or the tree that a new one follows is counted even if it remains needed: if the new one
    /// is a merge operand, or the old one is a tombstone. Replay, and a store without
    /// an aggregate, don't look up these records, and count none.
    pub dead_bytes: u64,
}

impl Memtable {
    pub(crate) fn new(generation: u64) -> Memtable {
        Memtable { generation, ..Memtable::default() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.last_seq == 0
    }

    /// Bytes that a checkpoint would free: 0 for an empty memtable.
    pub(crate) fn bytes(&self) -> usize {
        match self.is_empty() {
            true => 0,
            false => self.by_key.memory_bytes() + self.by_seq.memory_bytes(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.by_key.len()
    }
}
