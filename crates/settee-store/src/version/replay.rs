//! Replays a log into a memtable.
//!
//! Inserting a record is cheap if its neighbours by key were inserted just before, since the nodes it needs
//! are then in the processor's caches. Records are therefore collected and inserted in the order of keys; the
//! seq index is changed afterwards in the order of `Seq`. With a million records in the memtable this takes
//! less than half the time of inserting in the log's order.

use std::ops::Range;

use settee_log::Flags;

use super::state::{NewRecord, PreviousEntry, Version};
use crate::index::Location;
use crate::memtable::Aggregates;
use crate::options::Rules;

/// Number of records collected before they are inserted.
const RECORD_COUNT_MAX: usize = 256 << 10;

/// Bytes of keys and metas collected before they are inserted.
const BYTES_MAX: usize = 32 << 20;

/// Records collected for insertion into a version, in the order of `Seq`.
#[derive(Default)]
pub(crate) struct Replay {
    /// Keys and metas.
    bytes: Vec<u8>,
    records: Vec<Collected>,
}

struct Collected {
    /// The key's first bytes as a number, for a fast comparison.
    head: u64,
    flags: Flags,
    key: Range<u32>,
    meta_end: u32,
    location: Location,
}

/// A change to the seq index, by the index of the record that causes it.
enum SeqIndexEdit {
    Insert(usize, Aggregates),
    Remove(usize),
}

impl Replay {
    /// Adds a record, the newest so far.
    pub(crate) fn push(&mut self, version: &mut Version, record: &NewRecord<'_>, rules: &Rules) {
        let NewRecord { flags, key, meta, location } = *record;
        if self.records.len() >= RECORD_COUNT_MAX || self.bytes.len() + key.len() + meta.len() > BYTES_MAX {
            self.insert_all(version, rules);
        }
        let start = self.bytes.len() as u32;
        self.bytes.extend_from_slice(key);
        let end = self.bytes.len() as u32;
        self.bytes.extend_from_slice(meta);
        let mut head = [0; 8];
        let size = key.len().min(8);
        head[..size].copy_from_slice(&key[..size]);
        let (head, meta_end) = (u64::from_be_bytes(head), self.bytes.len() as u32);
        self.records.push(Collected { head, flags, key: start..end, meta_end, location });
    }

    /// Inserts the collected records. Their aggregates are exact only after [`Version::backfill_all`].
    pub(crate) fn insert_all(&mut self, version: &mut Version, rules: &Rules) {
        let Replay { bytes, records } = std::mem::take(self);
        let record = |index: usize| {
            let Collected { flags, key, meta_end, location, .. } = &records[index];
            let (key, meta) = (key.start as usize..key.end as usize, key.end as usize..*meta_end as usize);
            NewRecord { flags: *flags, key: &bytes[key], meta: &bytes[meta], location: *location }
        };
        let mut order: Vec<usize> = (0..records.len()).collect();
        // Stable: records of one key stay in the order of `Seq`.
        order.sort_by(|a, b| {
            let heads = records[*a].head.cmp(&records[*b].head);
            heads.then_with(|| record(*a).key.cmp(record(*b).key))
        });
        let mut edits: Vec<(u64, SeqIndexEdit)> = Vec::new();
        for index in order {
            let new_record = record(index);
            let seq_change = version.insert_by_key(&new_record, PreviousEntry::default(), rules);
            edits.extend(
                seq_change.inserted.map(|own| (new_record.location.seq, SeqIndexEdit::Insert(index, own))),
            );
            edits.extend(seq_change.replaced_in_memtable.map(|seq| (seq, SeqIndexEdit::Remove(index))));
        }
        // Stable: a record is inserted before it is replaced.
        edits.sort_by_key(|(seq, _)| *seq);
        for (seq, change) in edits {
            match change {
                SeqIndexEdit::Insert(index, own) => version.insert_in_seq_index(&record(index), own),
                SeqIndexEdit::Remove(index) => version.remove_from_seq_index(seq, record(index).key),
            }
        }
    }
}
