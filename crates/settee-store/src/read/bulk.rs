//! Reading many records in bulk, in any order and from any files.
//!
//! The records are sorted by file, and each file is read with as few reads as the planner makes. All reads are
//! in flight together. A record that can't be read fails alone.

use settee_log::Record;

use super::snapshot::Snapshot;
use crate::error::ReadError;
use crate::index::Location;

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
        let wanted: Vec<_> = locations.iter().map(|location| (location.seq(), location.at())).collect();
        let read = self.log.read_many_in(&self.version.set, &wanted, keep).await;
        read.into_iter().map(|record| Ok(record?)).collect()
    }
}
