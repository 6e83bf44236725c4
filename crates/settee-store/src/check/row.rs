//! Rows: what is kept of each record in memory, to compare segments, their indexes and the tree.

use settee_log::{EntryRef, Flags, Location, RecordRef};

/// What the index must say of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RecordRow {
    pub seq: u64,
    pub key_hash: u64,
    /// The checksum in the record.
    pub checksum: u64,
    pub segment: u32,
    pub offset: u32,
    pub length: u32,
    pub meta_hash: u32,
    pub flags: Flags,
    /// Whether the record's bytes are damaged.
    pub is_damaged: bool,
    /// Whether the index points to it.
    pub is_referenced: bool,
}

impl RecordRow {
    pub(super) fn of(location: Location, record: &RecordRef<'_>) -> RecordRow {
        RecordRow {
            seq: record.seq.0,
            key_hash: key_hash(record.key),
            checksum: record.checksum(),
            segment: location.segment,
            offset: location.offset,
            length: location.length,
            meta_hash: meta_hash(record.meta),
            flags: record.flags,
            is_damaged: false,
            is_referenced: false,
        }
    }

    pub(super) fn of_entry(entry: &EntryRef<'_>, checksum: u64) -> RecordRow {
        RecordRow {
            seq: entry.seq.0,
            key_hash: key_hash(entry.key),
            checksum,
            segment: entry.location.segment,
            offset: entry.location.offset,
            length: entry.location.length,
            meta_hash: meta_hash(entry.meta),
            flags: entry.flags,
            is_damaged: false,
            is_referenced: false,
        }
    }
}

/// Hash of a key, by which rows and entries are matched.
pub(super) fn key_hash(key: &[u8]) -> u64 {
    twox_hash::XxHash3_64::oneshot(key)
}

pub(super) fn meta_hash(meta: &[u8]) -> u32 {
    twox_hash::XxHash3_64::oneshot(meta) as u32
}
