//! Revisions that aren't leaves any more: their bodies can be read until a compaction.
//!
//! A replaced leaf's record stays in its segment until that is rewritten. It is found through the segments: see
//! [`ReplacedRecords`]. A document's leaves were stored under its own key as long as they won, and otherwise under
//! a key with their revision, so these keys are searched. Their metas tell the revisions, so that only the bodies
//! that are wanted are read.
//!
//! Each update of a document writes its winner again, so the search begins in the segment of the winner's
//! record: no newer one has a record of the document's leaves.
//!
//! Invariants:
//! 1. A body is returned only for a revision on the path of a leaf.
//! 2. It is never returned after a purge of its document, or a requested compaction, as of which it was replaced
//!    already: of each key's records up to that `Seq`, only the newest one counts.
//! 3. What is found is available: its record, its attachments and an out-of-line body can be read through the
//!    same snapshot.
//! 4. Whether a revision is found doesn't depend on which others are wanted.

use std::collections::HashMap;

use settee_store::{Location, ReplacedRecord, ReplacedRecords};

use super::counters::Counter;
use super::snapshot::Snapshot;
use crate::documents::Revision;
use crate::documents::keys::{LeafMeta, conflict_key, decode_number, document_key, purge_mark_key};
use crate::documents::leaf_value::{LeafValue, decode_table};
use crate::{Error, Result};

/// Searches the segments for replaced revisions on behalf of one request, whose documents share its limits: see
/// [`StoreLimits::replaced_segments_max`](crate::StoreLimits::replaced_segments_max).
pub struct ReplacedRevisions {
    snapshot: Snapshot,
    records: ReplacedRecords,
    /// See [`Counter::CompactedTo`]; `None` until it is needed.
    compacted_to: Option<u64>,
}

/// A replaced revision whose body can be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplacedRevision {
    /// The revision.
    pub revision: Revision,
    /// Whether it deleted the document.
    pub deleted: bool,
    pub(super) location: Location,
}

/// The records found so far for the wanted revisions.
struct Found<'a> {
    wanted: HashMap<&'a Revision, Option<FoundRecord>>,
    missing_count: usize,
    /// As of this `Seq` replaced records no longer count.
    horizon: u64,
    damage: Option<Error>,
}

#[derive(Debug, Clone, Copy)]
struct FoundRecord {
    location: Location,
    deleted: bool,
    has_attachments: bool,
}

/// Indexes of the keys that are searched for every document; the others are keys of single leaves.
const MARK: usize = 0;
const WINNER: usize = 1;

impl Snapshot {
    /// For the searches of one request. Reads nothing yet.
    pub fn replaced_revisions(&self) -> ReplacedRevisions {
        let records = ReplacedRecords::new(self.store());
        ReplacedRevisions { snapshot: self.clone(), records, compacted_to: None }
    }

    /// Whether all chunks of a replaced leaf's attachments and of its out-of-line body are stored. Of an upload
    /// the last chunk is removed first.
    async fn has_uploads(&self, id: &str, location: Location) -> Result<bool> {
        let value = self.store().read(location).await?.value();
        let (uploads, _) = decode_table(&LeafValue::decode(&value)?.rest)?;
        for upload in uploads {
            if let Some(last) = upload.last_chunk_key(id)
                && self.store().get(&last).await?.is_none()
            {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl ReplacedRevisions {
    /// Finds those of the ancestors of a document's leaves that can still be read. `winner` is the location of
    /// the winner's record.
    ///
    /// # Errors
    /// `Internal` for damage, or if the segments can't be read.
    pub(super) async fn find(
        &mut self,
        id: &str,
        winner: Location,
        ancestors: &[Revision],
    ) -> Result<HashMap<Revision, ReplacedRevision>> {
        if ancestors.is_empty() {
            return Ok(HashMap::new());
        }
        let horizon = self.compacted_to().await?;
        let mut keys = vec![purge_mark_key(id), document_key(id)];
        keys.extend(ancestors.iter().map(|revision| conflict_key(id, revision)));
        let wanted: HashMap<&Revision, _> = ancestors.iter().map(|revision| (revision, None)).collect();
        let mut found = Found { missing_count: wanted.len(), wanted, horizon, damage: None };
        let mut search = self.records.search(winner, keys);
        while search.next_segment(|key, record| found.visit(key, record)).await? {
            if let Some(damage) = found.damage {
                return Err(damage);
            }
            if found.missing_count == 0 {
                break;
            }
        }
        let mut available = HashMap::new();
        for (revision, record) in found.wanted {
            let Some(FoundRecord { location, deleted, has_attachments }) = record else { continue };
            if !has_attachments || self.snapshot.has_uploads(id, location).await? {
                let revision = revision.clone();
                available.insert(revision.clone(), ReplacedRevision { revision, deleted, location });
            }
        }
        Ok(available)
    }

    async fn compacted_to(&mut self) -> Result<u64> {
        if let Some(seq) = self.compacted_to {
            return Ok(seq);
        }
        let entry = self.snapshot.store().get(&Counter::CompactedTo.key()).await?;
        let seq = entry.map_or(Ok(0), |entry| decode_number(&entry.meta))?;
        self.compacted_to = Some(seq);
        Ok(seq)
    }
}

impl Found<'_> {
    /// Takes a record of a key; returns whether older records of the key count.
    fn visit(&mut self, key: usize, record: ReplacedRecord<'_>) -> bool {
        let ReplacedRecord { location, is_tombstone, meta, left_out_to } = record;
        if key == MARK {
            self.horizon = self.horizon.max(location.seq);
            return false;
        }
        // The newest one up to the horizon was live as of it, and all older ones were replaced. A newer one that
        // was live may be gone.
        let is_last = location.seq <= self.horizon;
        if is_last && left_out_to.0 > self.horizon {
            return false;
        }
        if is_tombstone {
            // Only a purge removes the winner.
            return !is_last && key != WINNER;
        }
        match LeafMeta::decode(meta) {
            Ok(meta) => self.take(&meta, location),
            Err(error) => self.damage = Some(error),
        }
        !is_last
    }

    fn take(&mut self, meta: &LeafMeta<'_>, location: Location) {
        let Some(found) = self.wanted.get_mut(&meta.revision) else { return };
        match found {
            // A leaf is stored again when it wins or loses.
            Some(known) if known.location.seq >= location.seq => return,
            Some(_) => {}
            None => self.missing_count -= 1,
        }
        let (deleted, has_attachments) = (meta.state.deleted, meta.state.has_attachments);
        *found = Some(FoundRecord { location, deleted, has_attachments });
    }
}
