//! Reading many records at once, with few reads per segment, all of them in flight together.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::join_all;
use settee_io::{Alignment, File, ReadAt, ReadPolicy};

use super::Log;
use super::read::RecordSource;
use crate::error::ReadError;
use crate::format::Record;
use crate::read_view::Files;
use crate::types::Location;

/// Reads with a gap of less than this many bytes are joined: the gap is read too.
const NEAR_BYTES: usize = 4 << 10;

const BY_PAGES: ReadPolicy = match Alignment::new(NEAR_BYTES) {
    Ok(page) => ReadPolicy::chunked(page),
    Err(_) => panic!("a page is a power of two"),
};

/// The read policy for records of one segment, sorted by offset. If most of them begin at or shortly after
/// the end of the previous one, as in neighbouring frames, the gaps between them are read too; otherwise only
/// the requested bytes are read.
pub fn read_policy(reads: &[ReadAt]) -> ReadPolicy {
    let near = |pair: &&[ReadAt]| pair[1].offset < pair[0].offset + (pair[0].length + NEAR_BYTES) as u64;
    let is_dense = 2 * reads.windows(2).filter(near).count() >= reads.len();
    if is_dense { BY_PAGES } else { ReadPolicy::ADJACENT_ONLY }
}

impl Log {
    /// Reads many records as [`Log::read_in`] does, in any order and from any segments. Adjacent records are
    /// read together, and all reads are submitted before the first is awaited. The results are in the order
    /// of `locations`. Records of one read share its memory; copy a record to keep it for long.
    ///
    /// # Errors
    /// For each record separately: see [`ReadError`].
    pub async fn read_many_in(
        &self,
        files: &Files,
        locations: &[Location],
    ) -> Vec<Result<Record, ReadError>> {
        let mut results = vec![None; locations.len()];
        let mut by_segment: BTreeMap<u32, (Arc<File>, Vec<usize>)> = BTreeMap::new();
        for (index, location) in locations.iter().enumerate() {
            match self.find(*location, Some(files)) {
                Ok(RecordSource::Memory(bytes)) => {
                    results[index] = Some(self.decode_record(*location, Ok(bytes)))
                }
                Ok(RecordSource::File(file)) => {
                    let (_, indexes) =
                        by_segment.entry(location.segment).or_insert_with(|| (file, Vec::new()));
                    indexes.push(index);
                }
                Err(error) => results[index] = Some(Err(error)),
            }
        }
        let reads = by_segment.values_mut().map(async |(file, indexes)| {
            let read = |index: &usize| {
                let Location { offset, length, .. } = locations[*index];
                ReadAt::new(offset.into(), length as usize)
            };
            indexes.sort_unstable_by_key(|index| locations[*index].offset);
            let reads: Vec<_> = indexes.iter().map(read).collect();
            file.read_many(&reads, read_policy(&reads)).await
        });
        let values = join_all(reads).await;
        for ((_, indexes), values) in by_segment.values().zip(values) {
            for (index, value) in indexes.iter().zip(values) {
                results[*index] = Some(self.decode_record(locations[*index], value));
            }
        }
        results.into_iter().map(|result| result.expect("each was found or not")).collect()
    }

    fn decode_record(
        &self,
        location: Location,
        bytes: Result<bytes::Bytes, settee_io::Error>,
    ) -> Result<Record, ReadError> {
        Record::decode(bytes?).map_err(|what| self.damaged(location, what))
    }
}
