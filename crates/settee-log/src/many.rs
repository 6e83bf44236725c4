//! Reading many records at once: by few reads of each segment, all of them under way together.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::join_all;
use settee_io::{Alignment, File, ReadAt, ReadPolicy};

use crate::error::ReadError;
use crate::format::Record;
use crate::log::{Found, Location, Log};
use crate::view::Files;

/// Reads that lie closer together than this, in bytes, are near: what lies between is read with them.
const NEAR_BYTES: usize = 4 << 10;

const BY_PAGES: ReadPolicy = match Alignment::new(NEAR_BYTES) {
    Ok(page) => ReadPolicy::chunked(page),
    Err(_) => panic!("a page is a power of two"),
};

/// How to read records that lie in one segment, sorted by their offsets. Where most begin at the end of
/// the one before or a little behind, as those of neighbouring frames do, what lies between is read
/// with them; otherwise nothing is read that isn't asked for.
pub fn read_policy(reads: &[ReadAt]) -> ReadPolicy {
    let near = |pair: &&[ReadAt]| pair[1].offset < pair[0].offset + (pair[0].length + NEAR_BYTES) as u64;
    let is_dense = 2 * reads.windows(2).filter(near).count() >= reads.len();
    if is_dense { BY_PAGES } else { ReadPolicy::ADJACENT_ONLY }
}

impl Log {
    /// Reads many records as [`Log::read_in`] does each of them, in any order and from any segments:
    /// what touches is read together, and all reads are submitted before one is waited for. The
    /// results are in the order of `locations`. The records of a read share its memory: who keeps one
    /// for long should copy it.
    ///
    /// # Errors
    /// For each record by itself: see [`ReadError`].
    pub async fn read_many_in(
        &self,
        files: &Files,
        locations: &[Location],
    ) -> Vec<Result<Record, ReadError>> {
        let mut results = vec![None; locations.len()];
        let mut by_segment: BTreeMap<u32, (Arc<File>, Vec<usize>)> = BTreeMap::new();
        for (index, location) in locations.iter().enumerate() {
            match self.find(*location, Some(files)) {
                Ok(Found::Memory(bytes)) => results[index] = Some(self.commit_in(*location, Ok(bytes))),
                Ok(Found::File(file)) => {
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
                results[*index] = Some(self.commit_in(locations[*index], value));
            }
        }
        results.into_iter().map(|result| result.expect("each was found or not")).collect()
    }

    fn commit_in(
        &self,
        location: Location,
        bytes: Result<bytes::Bytes, settee_io::Error>,
    ) -> Result<Record, ReadError> {
        let record = Record::decode(bytes?).map_err(|what| self.damaged(location, what))?;
        match record.is_extent() {
            true => Err(self.damaged(location, "it is an extent and no record")),
            false => Ok(record),
        }
    }
}
