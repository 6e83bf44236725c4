//! Reading many records in bulk, in any order and from any files.
//!
//! The records are sorted by file, and each file is read with as few reads as the planner makes. All reads are
//! in flight together. A record that can't be read fails alone.

use std::sync::Arc;

use futures_util::future::join_all;
use settee_log::Record;

use super::snapshot::Snapshot;
use crate::error::ReadError;
use crate::index::Location;
use crate::segments::Segment;

/// Records of one file, each with its index in the caller's list.
struct FileRecords {
    /// `None`: the log's.
    segment: Option<Arc<Segment>>,
    records: Vec<(usize, Location)>,
}

impl Snapshot {
    /// Reads many records, in any order and from any segments. Adjacent records are read together, and all
    /// reads are submitted before the first is awaited. The results are in the order of `locations`.
    ///
    /// Needs as much memory as the records together: split a long list. Records that were read together share
    /// their memory: copy one that is kept for long.
    ///
    /// # Errors
    /// For each record on its own: see [`ReadError`]; the store stays usable.
    pub async fn read_many(&self, locations: &[Location]) -> Vec<Result<Record, ReadError>> {
        self.read_bulk(locations, true).await
    }

    /// With `keep`, the chunks that were read are inserted into the cache.
    pub(super) async fn read_bulk(
        &self,
        locations: &[Location],
        keep: bool,
    ) -> Vec<Result<Record, ReadError>> {
        if let [location] = locations {
            return vec![self.read(*location).await];
        }
        let mut order: Vec<usize> = (0..locations.len()).collect();
        order.sort_unstable_by_key(|index| (locations[*index].segment, locations[*index].offset));
        let mut groups: Vec<FileRecords> = Vec::new();
        for index in order {
            let location = locations[index];
            // Neighbours are mostly of one file, which is then looked up once.
            let is_next = groups.last().is_some_and(|group| match &group.segment {
                Some(segment) => segment.name.last >= location.segment,
                None => self.version.checkpoint.segments.get(location.segment).is_none(),
            });
            if !is_next {
                let segment = self.version.checkpoint.segments.get(location.segment).cloned();
                groups.push(FileRecords { segment, records: Vec::new() });
            }
            groups.last_mut().expect("a group was just added").records.push((index, location));
        }
        let mut results: Vec<Option<Result<Record, ReadError>>> = vec![None; locations.len()];
        for found in join_all(groups.iter().map(|group| self.read_group(group, keep))).await {
            found.into_iter().for_each(|(index, record)| results[index] = Some(record));
        }
        results.into_iter().map(|result| result.expect("each location is in a group")).collect()
    }

    async fn read_group(&self, group: &FileRecords, keep: bool) -> Vec<(usize, Result<Record, ReadError>)> {
        if let Some(segment) = &group.segment {
            return segment.read_many(&group.records, keep).await;
        }
        let in_log = |(_, location): &(usize, Location)| {
            let Location { segment, offset, length, .. } = *location;
            settee_log::Location { segment, offset, length }
        };
        let locations: Vec<_> = group.records.iter().map(in_log).collect();
        let records = self.log.read_many_in(&self.version.files, &locations).await;
        let checked = records.into_iter().zip(&group.records).map(|(record, (index, location))| {
            (*index, record.map_err(ReadError::from).and_then(|record| Snapshot::expect(record, *location)))
        });
        checked.collect()
    }
}
