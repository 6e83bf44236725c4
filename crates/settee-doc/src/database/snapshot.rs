//! Snapshots: every read of a database goes through one.
//!
//! A client's snapshot is a persisted state of the database, unaffected by later writes; the updater's own
//! snapshots show accepted state. Revisions, deletion, conflicts and counts are in the index and cost no read;
//! a body costs one positional read, and so does a path within its leaf's chunk.

use std::collections::HashSet;
use std::ops::Bound;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use settee_io::yield_now;
use settee_store::{Location, Seq, Snapshot as StoreSnapshot};

use super::counters::Counter;
use super::range::{Range, as_slice, bounds, local_bounds, opposite, prefix_bounds};
use super::rows::{LocalRows, Purges, Rows};
use super::summary::{BodyRef, Leaf, Summary, row};
use crate::attachments::{Attachment, AttachmentReader, CHUNK_BYTES};
use crate::documents::keys::{
    AGGREGATE_BYTES, AGGREGATE_DELETED, AGGREGATE_DOCUMENTS, PURGE, decode_number, document_key, local_key,
    purge_key,
};
use crate::documents::leaf_value::{ENCODING_OUT_OF_LINE, ENCODING_PLAIN, LeafValue, decode_table};
use crate::documents::rev_tree;
use crate::documents::{Document, LargeBody, Revision, RevisionId};
use crate::{Error, Result};

/// Statistics of the documents whose ids have a common prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Documents that aren't deleted.
    pub doc_count: u64,
    /// Deleted documents.
    pub doc_del_count: u64,
    /// Bytes of their winning leaves' records.
    pub bytes: u64,
}

/// A leaf's content: see the fields of [`Document`].
pub(crate) struct LeafContent {
    pub(super) attachments: Vec<Attachment>,
    pub(super) body: Bytes,
    pub(super) large_body: Option<LargeBody>,
}

/// A persisted state of a database, or an accepted one for the updater. Cheap to clone.
#[derive(Clone)]
pub struct Snapshot {
    store: StoreSnapshot,
    /// Number of revisions of a path that are shown.
    revs_limit: u32,
    /// Keeps the database from being closed as idle.
    user: Arc<()>,
}

impl Snapshot {
    pub(crate) fn new(store: StoreSnapshot, revs_limit: u32, user: Arc<()>) -> Snapshot {
        Snapshot { store, revs_limit, user }
    }

    pub(crate) fn store(&self) -> &StoreSnapshot {
        &self.store
    }

    pub(crate) fn revs_limit(&self) -> u32 {
        self.revs_limit
    }

    /// The last change in the snapshot.
    pub fn update_seq(&self) -> Seq {
        self.store.last_in_seq_index()
    }

    /// Documents that aren't deleted.
    pub fn doc_count(&self) -> u64 {
        self.store.total_aggregates()[AGGREGATE_DOCUMENTS]
    }

    /// Deleted documents.
    pub fn doc_del_count(&self) -> u64 {
        self.store.total_aggregates()[AGGREGATE_DELETED]
    }

    pub(crate) fn live_bytes(&self) -> u64 {
        self.store.total_aggregates()[AGGREGATE_BYTES]
    }

    /// A document's entry, deleted or not; `None` if the document never existed.
    ///
    /// # Errors
    /// `Internal` for damage, or if the index can't be read.
    pub async fn find(&self, id: &str) -> Result<Option<Summary>> {
        let entry = self.store.get(&document_key(id)).await?;
        entry.map(|entry| Ok(row(&entry.meta, entry.location)?.0)).transpose()
    }

    /// The winning revision with its body.
    ///
    /// # Errors
    /// `NotFound`: "missing" or "deleted"; `Internal` if it can't be read.
    pub async fn document(&self, id: &str) -> Result<Document> {
        let document = self.document_or_deleted(id).await?.ok_or_else(Error::missing)?;
        if document.deleted { Err(Error::deleted()) } else { Ok(document) }
    }

    /// The winning revision with its body, even if it deletes the document; `None` if the document never
    /// existed.
    ///
    /// # Errors
    /// `Internal` if it can't be read.
    pub async fn document_or_deleted(&self, id: &str) -> Result<Option<Document>> {
        let Some(entry) = self.store.get(&document_key(id)).await? else {
            return Ok(None);
        };
        let (summary, body) = row(&entry.meta, entry.location)?;
        self.read(id, summary, body).await.map(Some)
    }

    /// Reads the body that a row of a scan refers to, unless it is large: see [`Document::large_body`].
    ///
    /// # Errors
    /// `Internal` if it can't be read.
    pub async fn read(&self, id: &str, summary: Summary, body: BodyRef) -> Result<Document> {
        let Summary { revision, deleted, .. } = summary;
        let LeafContent { attachments, body, large_body } = self.read_body(id, body.location).await?;
        Ok(Document { id: id.into(), revision, deleted, body, attachments, large_body })
    }

    /// The revision with its body, if it is a leaf; with `latest` every leaf that descends from it.
    ///
    /// # Errors
    /// `NotFound`, "missing", if there is none; `Internal`.
    pub async fn revision(&self, id: &str, revision: &Revision, latest: bool) -> Result<Vec<Document>> {
        let mut found = Vec::new();
        for mut leaf in rev_tree::leaves(&self.store, id).await? {
            if leaf.revision != *revision {
                if !latest {
                    continue;
                }
                leaf.complete_path(&self.store, id, revision.generation).await?;
                if !leaf.descends_from(revision) {
                    continue;
                }
            }
            let LeafContent { attachments, body, large_body } = self.read_body(id, leaf.location()).await?;
            let (id, revision, deleted) = (id.into(), leaf.revision, leaf.deleted);
            found.push(Document { id, revision, deleted, body, attachments, large_body });
        }
        if found.is_empty() { Err(Error::missing()) } else { Ok(found) }
    }

    /// A document's leaves, the winner first; empty if the document never existed.
    ///
    /// # Errors
    /// `Internal` for damage, or if the index can't be read.
    pub async fn leaves(&self, id: &str) -> Result<Vec<Leaf>> {
        let leaves = rev_tree::leaves(&self.store, id).await?;
        Ok(leaves.into_iter().map(|leaf| Leaf { revision: leaf.revision, deleted: leaf.deleted }).collect())
    }

    /// The ids from `revision` back to its oldest known ancestor; the path from the leaf is limited to the
    /// database's limit.
    ///
    /// # Errors
    /// `NotFound` if the tree doesn't have it; `Internal`.
    pub async fn history(&self, id: &str, revision: &Revision) -> Result<Vec<RevisionId>> {
        let mut leaves = rev_tree::leaves(&self.store, id).await?;
        // Mostly it is a leaf, and the paths of others aren't needed.
        leaves.sort_by_key(|leaf| leaf.revision != *revision);
        for mut leaf in leaves {
            leaf.limit_path(&self.store, id, self.revs_limit).await?;
            if leaf.descends_from(revision) {
                return Ok(leaf.path.split_off((leaf.revision.generation - revision.generation) as usize));
            }
        }
        Err(Error::missing())
    }

    /// Those of `revisions` that the tree doesn't have, and the leaves that may be ancestors of them
    /// (`_revs_diff`).
    ///
    /// # Errors
    /// `Internal`.
    pub async fn missing(&self, id: &str, revisions: &[Revision]) -> Result<(Vec<Revision>, Vec<Revision>)> {
        let mut leaves = rev_tree::leaves(&self.store, id).await?;
        let mut missing = revisions.to_vec();
        remove_known(&mut missing, &leaves);
        if let Some(oldest) = missing.iter().map(|revision| revision.generation).min() {
            for leaf in &mut leaves {
                leaf.complete_path(&self.store, id, oldest).await?;
            }
            remove_known(&mut missing, &leaves);
        }
        let newest = missing.iter().map(|revision| revision.generation).max().unwrap_or(0);
        let ancestors =
            leaves.into_iter().map(|leaf| leaf.revision).filter(|leaf| leaf.generation < newest).collect();
        Ok((missing, ancestors))
    }

    /// The revision, `0-N`, and body of a local document; `id` is given without `_local/`.
    ///
    /// # Errors
    /// `NotFound`, "missing"; `Internal`.
    pub async fn local(&self, id: &str) -> Result<(String, Bytes)> {
        let entry = self.store.get(&local_key(id)).await?.ok_or_else(Error::missing)?;
        let revision = format!("0-{}", decode_number(&entry.meta)?);
        Ok((revision, self.read_plain(entry.location).await?))
    }

    /// The local documents in a range of ids with `_local/`, in the order of their ids.
    pub fn local_docs(&self, range: &Range) -> LocalRows {
        let (start, end) = local_bounds(range);
        let scan = self.store.scan(as_slice(&start), as_slice(&end), range.descending);
        LocalRows { scan, skip: range.skip, _user: self.user.clone() }
    }

    /// The body of a local document's row.
    ///
    /// # Errors
    /// `Internal` if it can't be read.
    pub async fn read_local(&self, body: BodyRef) -> Result<Bytes> {
        self.read_plain(body.location).await
    }

    /// Number of the last purge in the snapshot; 0 if there was none.
    ///
    /// # Errors
    /// `Internal` if it can't be read.
    pub async fn purge_seq(&self) -> Result<u64> {
        let entry = self.store.get(&Counter::PurgeSeq.key()).await?;
        entry.map_or(Ok(0), |entry| decode_number(&entry.meta))
    }

    /// The purge infos after the one with this number, oldest first. Older ones may have been removed.
    pub fn purges(&self, after: u64) -> Purges {
        let (start, end) = (purge_key(after), [PURGE + 1]);
        let scan = self.store.scan(Bound::Excluded(&start), Bound::Excluded(&end), false);
        Purges { scan, store: self.store.clone(), _user: self.user.clone() }
    }

    /// Statistics of the documents whose ids begin with `prefix`.
    ///
    /// # Errors
    /// `Internal` if the index can't be read.
    pub async fn counts(&self, prefix: &str) -> Result<Counts> {
        let (start, end) = prefix_bounds(prefix);
        let aggregates = self.store.aggregates(Bound::Included(&start), Bound::Excluded(&end)).await?;
        let (doc_count, doc_del_count) = (aggregates[AGGREGATE_DOCUMENTS], aggregates[AGGREGATE_DELETED]);
        Ok(Counts { doc_count, doc_del_count, bytes: aggregates[AGGREGATE_BYTES] })
    }

    /// The documents in a range that aren't deleted, in the order of their ids.
    ///
    /// # Errors
    /// `Internal` if the index can't be read.
    pub async fn all_docs(&self, range: &Range) -> Result<Rows> {
        let (start, end) = bounds(range);
        let mut scan = self.store.scan(as_slice(&start), as_slice(&end), range.descending);
        scan.skip_sum(AGGREGATE_DOCUMENTS, range.skip).await?;
        Ok(Rows { scan, skip_deleted: true, _user: self.user.clone() })
    }

    /// The offset of [`Snapshot::all_docs`]: the number of documents with the range's prefix before the first
    /// row.
    ///
    /// # Errors
    /// `Internal` if the index can't be read.
    pub async fn offset(&self, range: &Range) -> Result<u64> {
        let (start, end) = bounds(range);
        let (first, last) = prefix_bounds(&range.prefix);
        let before = if range.descending {
            self.store.aggregates(opposite(&end), Bound::Excluded(&last)).await?
        } else {
            self.store.aggregates(Bound::Included(&first), opposite(&start)).await?
        };
        let count = match range.prefix.is_empty() {
            true => self.doc_count(),
            false => self.counts(&range.prefix).await?.doc_count,
        };
        Ok(before[AGGREGATE_DOCUMENTS].saturating_add(range.skip).min(count))
    }

    /// The documents that changed after `since`, including deleted ones, each at its last change: oldest
    /// first, or newest first.
    pub fn changes(&self, since: Seq, descending: bool) -> Rows {
        let scan = self.store.scan_by_seq(since, descending);
        Rows { scan, skip_deleted: false, _user: self.user.clone() }
    }

    /// Number of documents that changed after `seq`.
    ///
    /// # Errors
    /// `Internal` if the index can't be read.
    pub async fn pending(&self, seq: Seq) -> Result<u64> {
        let aggregates = self.store.aggregates_after(seq).await?;
        Ok(aggregates[AGGREGATE_DOCUMENTS] + aggregates[AGGREGATE_DELETED])
    }

    /// A reader of an attachment's content, or of a range of its stored bytes. With `decode`, compressed
    /// content is decompressed; the range must then be complete.
    pub fn attachment(
        &self,
        id: &str,
        attachment: &Attachment,
        range: Option<std::ops::Range<u64>>,
        decode: bool,
    ) -> AttachmentReader {
        let range = range.unwrap_or(0..u64::MAX);
        AttachmentReader::new(self.store.clone(), self.user.clone(), id, attachment, range, decode)
    }

    /// A reader of a large body's text.
    pub fn large_body(&self, id: &str, body: &LargeBody) -> AttachmentReader {
        self.attachment(id, &body.0, None, false)
    }

    /// The document with its body in memory, whatever its size. The caller accounts for that memory:
    /// [`Document::body_size`].
    ///
    /// # Errors
    /// `Internal` if it can't be read.
    pub async fn read_whole(&self, mut document: Document) -> Result<Document> {
        if let Some(large_body) = document.large_body.take() {
            let mut reader = self.large_body(&document.id, &large_body);
            let mut body = BytesMut::with_capacity(usize::try_from(large_body.size()).unwrap_or(0));
            while let Some(chunk) = reader.next().await? {
                body.extend_from_slice(&chunk);
                // Reads from the page cache complete at once.
                yield_now().await;
            }
            document.body = body.freeze();
        }
        Ok(document)
    }

    pub(crate) async fn read_body(&self, id: &str, location: Location) -> Result<LeafContent> {
        self.content_of(id, &self.store.read(location).await?.value()).await
    }

    /// The attachments and the body of a leaf with this value. A body of several chunks isn't read.
    pub(super) async fn content_of(&self, id: &str, value: &Bytes) -> Result<LeafContent> {
        let value = LeafValue::decode(value)?;
        let (mut attachments, mut body) = match value.encoding {
            ENCODING_PLAIN => (Vec::new(), value.rest),
            _ => decode_table(&value.rest)?,
        };
        let mut large_body = None;
        if value.encoding == ENCODING_OUT_OF_LINE {
            let upload =
                attachments.pop().ok_or_else(|| Error::damaged("an out-of-line body has no upload"))?;
            if upload.stored_length() > CHUNK_BYTES as u64 {
                large_body = Some(LargeBody(upload));
            } else {
                let chunk = self.attachment(id, &upload, None, false).next().await?;
                let chunk = chunk.filter(|chunk| chunk.len() as u64 == upload.stored_length());
                body = chunk.ok_or_else(|| Error::damaged("an out-of-line body has a wrong size"))?;
            }
        }
        Ok(LeafContent { attachments, body, large_body })
    }

    /// The body of a local document, which is always inline.
    async fn read_plain(&self, location: Location) -> Result<Bytes> {
        let value = self.store.read(location).await?.value();
        match value.first() {
            Some(&ENCODING_PLAIN) => Ok(value.slice(1..)),
            _ => Err(Error::damaged("a local document has an unknown encoding")),
        }
    }
}

/// Removes the revisions that are on the path of a leaf, as far as it was read.
fn remove_known(revisions: &mut Vec<Revision>, leaves: &[rev_tree::TreeLeaf]) {
    let mut unknown: HashSet<Revision> = revisions.iter().cloned().collect();
    let mut generations: Vec<u32> = unknown.iter().map(|revision| revision.generation).collect();
    generations.sort_unstable();
    generations.dedup();
    for leaf in leaves {
        // Generations are looked up by a search, so that many leaves times many revisions don't multiply.
        let newest = leaf.revision.generation;
        let oldest = u64::from(newest) + 1 - leaf.path.len() as u64;
        let start = generations.partition_point(|generation| u64::from(*generation) < oldest);
        for &generation in generations[start..].iter().take_while(|generation| **generation <= newest) {
            if let Some(id) = leaf.ancestor(generation) {
                unknown.remove(&Revision { generation, id: id.clone() });
            }
        }
    }
    revisions.retain(|revision| unknown.contains(revision));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A leaf whose path has `count` revisions; paths share the revisions up to generation `fork`.
    fn leaf(generation: u32, count: u32, digit: u8, fork: u32) -> rev_tree::TreeLeaf {
        let hash = |generation: u32| {
            let mut hash = [if generation > fork { digit } else { 0 }; 16];
            hash[..4].copy_from_slice(&generation.to_le_bytes());
            hash
        };
        let path = (generation + 1 - count..=generation).rev().map(|generation| hash(generation).into());
        rev_tree::TreeLeaf::bare(generation, path.collect())
    }

    #[test]
    fn a_revision_on_no_path_is_missing() {
        let leaves = [leaf(40, 40, 1, 20), leaf(30, 12, 2, 20), leaf(25, 1, 3, 0), leaf(1, 1, 4, 0)];
        let mut revisions = Vec::new();
        for generation in [1, 2, 18, 19, 20, 21, 25, 30, 31, 40, 41, u32::MAX] {
            for digit in 0..6 {
                let mut hash = [digit; 16];
                hash[..4].copy_from_slice(&generation.to_le_bytes());
                revisions.push(Revision { generation, id: hash.into() });
            }
        }
        let expected: Vec<Revision> = revisions
            .iter()
            .filter(|revision| !leaves.iter().any(|leaf| leaf.descends_from(revision)))
            .cloned()
            .collect();
        assert!(expected.len() < revisions.len());
        remove_known(&mut revisions, &leaves);
        assert_eq!(revisions, expected);
    }
}
