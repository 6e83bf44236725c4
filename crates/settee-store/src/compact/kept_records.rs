//! The records of a segment that compaction keeps: live records, and tombstones.

use std::sync::Arc;

use settee_io::yield_now;
use settee_log::{Flags, Segment, SegmentIndex};

use crate::error::{ReadError, StoreError};
use crate::index::{BY_KEY, decode};
use crate::version::{CheckpointState, CheckpointTree, Version};

/// Number of keys looked up in the tree at once.
const LOOKUP_COUNT: usize = 4096;

/// The records of a segment that are copied.
pub(super) struct Plan {
    pub(super) segment: Arc<Segment>,
    /// `None` if nothing is copied.
    pub(super) segment_index: Option<SegmentIndex>,
    pub(super) kept_records: KeptRecords,
}

/// The records of a segment that are kept, by ascending `Seq`.
#[derive(Default)]
pub(super) struct KeptRecords {
    live: Vec<u64>,
    /// Size of the live records in bytes.
    live_bytes: u64,
    /// Each with its size in bytes.
    tombstones: Vec<(u64, u32)>,
}

impl KeptRecords {
    /// Bytes and number of the records kept if tombstones up to `tombstones_to` are dropped.
    pub(super) fn size(&self, tombstones_to: u64) -> (u64, usize) {
        let first = self.tombstones.partition_point(|(seq, _)| *seq <= tombstones_to);
        let kept = &self.tombstones[first..];
        let bytes = kept.iter().map(|(_, bytes)| u64::from(*bytes)).sum::<u64>();
        (self.live_bytes + bytes, self.live.len() + kept.len())
    }

    pub(super) fn has(&self, seq: u64, tombstones_to: u64) -> bool {
        let is_tombstone = || self.tombstones.binary_search_by_key(&seq, |(seq, _)| *seq).is_ok();
        self.live.binary_search(&seq).is_ok() || (seq > tombstones_to && is_tombstone())
    }
}

/// A segment's live records, and its tombstones.
pub(super) async fn find_kept_records(
    segment_index: &SegmentIndex,
    checkpoint: &CheckpointState,
    failpoint: Option<&Version>,
) -> Result<KeptRecords, StoreError> {
    let mut found = KeptRecords::default();
    let Some(CheckpointTree { root, .. }) = &checkpoint.tree else { return Ok(found) };
    let mut scan = segment_index.scan_keys(..);
    let mut keys: Vec<Vec<u8>> = Vec::new();
    let mut rows: Vec<(usize, u64, u32)> = Vec::new();
    loop {
        let entry = scan.next().await?;
        let is_end = entry.is_none();
        if let Some(entry) = entry {
            if entry.flags.has(Flags::TOMBSTONE) {
                found.tombstones.push((entry.seq.0, entry.location.length));
                continue;
            }
            if failpoint.is_some_and(|version| {
                version.memtables().any(|memtable| memtable.by_key.get(entry.key).is_some())
            }) {
                continue;
            }
            if keys.last().is_none_or(|last| last[1..] != *entry.key) {
                keys.push([&[BY_KEY], entry.key].concat());
            }
            rows.push((keys.len() - 1, entry.seq.0, entry.location.length));
        }
        if is_end || keys.len() >= LOOKUP_COUNT {
            // The last key may have more records.
            let mut pointers: Vec<Vec<u64>> = vec![Vec::new(); keys.len()];
            let mut damaged: Result<(), ReadError> = Ok(());
            root.get_many(&keys, |index, value| match value.map(decode).transpose() {
                Ok(Some(entry)) => {
                    pointers[index] = entry.pointers().map(|pointer| pointer.location.seq).collect();
                }
                Ok(None) => {}
                Err(error) => damaged = Err(error),
            })
            .await?;
            damaged?;
            yield_now().await;
            for (_, seq, length) in rows.drain(..).filter(|(key, seq, _)| pointers[*key].contains(seq)) {
                found.live.push(seq);
                found.live_bytes += u64::from(length);
            }
            keys.clear();
        }
        if is_end {
            found.live.sort_unstable();
            found.tombstones.sort_unstable();
            return Ok(found);
        }
    }
}
