//! Reading many records at once, with few reads per segment, all of them in flight together.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::join_all;

use super::Log;
use super::read::RecordSource;
use crate::error::ReadError;
use crate::format::Record;
use crate::segment_set::{Segment, SegmentSet, WantedRecord};
use crate::types::{Location, Seq};

impl Log {
    /// Reads many records as [`Log::read_in`] does, in any order and from any segments. Adjacent records are
    /// read together, and all reads are submitted before the first is awaited. The results are in the order
    /// of `wanted`. Records of one read share its memory; copy a record to keep it for long. With `keep`, the
    /// chunks of listed segments that were read are inserted into the cache.
    ///
    /// Needs as much memory as the records together: split a long list.
    ///
    /// # Errors
    /// For each record separately: see [`ReadError`].
    pub async fn read_many_in(
        &self,
        set: &SegmentSet,
        wanted: &[(Seq, Location)],
        keep: bool,
    ) -> Vec<Result<Record, ReadError>> {
        let mut results = vec![None; wanted.len()];
        let mut by_segment: BTreeMap<u32, (Arc<Segment>, Vec<WantedRecord>)> = BTreeMap::new();
        for (index, (seq, location)) in wanted.iter().copied().enumerate() {
            match self.find(set, location).await {
                Ok(RecordSource::Memory(bytes)) => results[index] = Some(self.expect(seq, location, bytes)),
                Ok(RecordSource::Segment(segment)) => {
                    let last = segment.name.last;
                    let (_, records) = by_segment.entry(last).or_insert_with(|| (segment, Vec::new()));
                    records.push(WantedRecord { index, seq, location });
                }
                Err(error) => results[index] = Some(Err(error)),
            }
        }
        let reads = by_segment.values().map(|(segment, records)| segment.read_many(records, keep));
        for (index, record) in join_all(reads).await.into_iter().flatten() {
            results[index] = Some(record);
        }
        results.into_iter().map(|result| result.expect("each was found or not")).collect()
    }
}
