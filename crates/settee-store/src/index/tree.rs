//! The index on disk: keys, entries and aggregates of the tree.
//!
//! One tree holds both indexes, by key and by `Seq`; the first byte of a key tells which.

use settee_tree::Reduction;

use super::format::{EntryView, Reader, push_number};
use crate::error::ReadError;
use crate::memtable::{Aggregates, add};

/// Computes what an entry adds to the aggregates from its key, its meta and the length of its newest record.
pub type Aggregate = fn(&[u8], &[u8], u32) -> Aggregates;

/// First byte of the tree's keys in the index by key.
pub(crate) const BY_KEY: u8 = b'K';

/// First byte of the tree's keys in the seq index.
pub(crate) const BY_SEQ: u8 = b'S';

/// Size in bytes of the `Seq` that precedes the key in the seq index.
pub(crate) const SEQ_SIZE: usize = 8;

/// Computes the aggregates of the tree's nodes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IndexAggregates(pub Option<Aggregate>);

impl Reduction for IndexAggregates {
    type Summary = Aggregates;

    fn zero(&self) -> Aggregates {
        Aggregates::default()
    }

    fn of(&self, key: &[u8], value: &[u8]) -> Aggregates {
        let key_at = if key.first() == Some(&BY_SEQ) { 1 + SEQ_SIZE } else { 1 };
        match (key.get(key_at..), EntryView::decode(value)) {
            (Some(key), Some(entry)) => own_aggregates(self.0, key, &entry),
            // The reader of the entry reports it.
            _ => Aggregates::default(),
        }
    }

    fn join(&self, left: &Aggregates, right: &Aggregates) -> Aggregates {
        add(*left, *right)
    }

    fn encode(&self, aggregates: &Aggregates, out: &mut Vec<u8>) {
        aggregates.iter().for_each(|sum| push_number(*sum, out));
    }

    fn decode(&self, bytes: &[u8]) -> Option<Aggregates> {
        let mut reader = Reader(bytes);
        let aggregates = [reader.number()?, reader.number()?, reader.number()?];
        reader.0.is_empty().then_some(aggregates)
    }
}

/// What an entry adds to the aggregates; zero for a tombstone.
pub(crate) fn own_aggregates(aggregate: Option<Aggregate>, key: &[u8], entry: &EntryView<'_>) -> Aggregates {
    match aggregate {
        // Only the newest record counts: an entry need not hold the older ones.
        Some(aggregate) if !entry.is_tombstone() => aggregate(key, entry.meta, entry.location.length),
        _ => Aggregates::default(),
    }
}

/// Decodes an entry from the tree, whose checksums were verified.
pub(crate) fn decode(value: &[u8]) -> Result<EntryView<'_>, ReadError> {
    EntryView::decode(value).ok_or(ReadError::InvalidEntry)
}
