//! Views: everything that is read from a database comes from one.
//!
//! A view is a persisted state of the database, unchanged by later writes. What the index holds
//! (revisions, deletion, conflicts, counts) costs no read; a body costs one positional read.

use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use settee_store::{EntryRef, Location, Scan, Seq, Snapshot};

use crate::document::Document;
use crate::keys::{
    DOCUMENT, LeafMeta, SUM_BYTES, SUM_DELETED, SUM_DOCUMENTS, decode_local_meta, document_id, document_key,
    local_key,
};
use crate::revision::{Hash, Revision};
use crate::tree::{self, Body};
use crate::update::ENCODING_PLAIN;
use crate::{Error, Result};

/// A document's entry in the index: its winning leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// The winning revision.
    pub revision: Revision,
    /// Whether that deletes the document.
    pub deleted: bool,
    /// Whether the document has other leaves, deleted ones included.
    pub has_conflicts: bool,
    /// When it changed last.
    pub seq: Seq,
}

/// A leaf of a document's revision tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leaf {
    /// Its revision.
    pub revision: Revision,
    /// Whether it deletes the document.
    pub deleted: bool,
}

/// Where a body lies that has not been read yet.
#[derive(Debug, Clone, Copy)]
pub struct BodyRef(Location);

/// A range of ids, in the order of their bytes. The default is all of them.
#[derive(Debug, Clone, Default)]
pub struct Range {
    /// Where the scan begins, this id included.
    pub start: Option<String>,
    /// Where it ends.
    pub end: Option<String>,
    /// Whether `end` itself is left out.
    pub exclusive_end: bool,
    /// Whether it goes backwards: `start` is then the greatest id.
    pub descending: bool,
    /// How many documents it passes over first.
    pub skip: u64,
}

/// A persisted state of a database. Cheap to clone.
#[derive(Clone)]
pub struct View {
    snapshot: Snapshot,
    /// Keeps the database from being closed for being idle.
    user: Arc<()>,
}

impl View {
    pub(crate) fn new(snapshot: Snapshot, user: Arc<()>) -> View {
        View { snapshot, user }
    }

    /// The last change that it shows.
    pub fn update_seq(&self) -> Seq {
        self.snapshot.last_listed()
    }

    /// Documents that aren't deleted.
    pub fn doc_count(&self) -> u64 {
        self.snapshot.sums_of_all()[SUM_DOCUMENTS]
    }

    /// Deleted documents.
    pub fn doc_del_count(&self) -> u64 {
        self.snapshot.sums_of_all()[SUM_DELETED]
    }

    pub(crate) fn live_bytes(&self) -> u64 {
        self.snapshot.sums_of_all()[SUM_BYTES]
    }

    /// A document's entry, deleted or not; `None` where there never was one.
    ///
    /// # Errors
    /// `Internal` for damage, or where the index can't be read.
    pub async fn find(&self, id: &str) -> Result<Option<Summary>> {
        let entry = self.snapshot.get(&document_key(id)).await?;
        entry.map(|entry| summary(&entry.meta, entry.seq())).transpose()
    }

    /// The winning revision with its body.
    ///
    /// # Errors
    /// `NotFound`: "missing" or "deleted"; `Internal` where it can't be read.
    pub async fn document(&self, id: &str) -> Result<Document> {
        let document = self.document_or_deleted(id).await?.ok_or_else(Error::missing)?;
        if document.deleted { Err(Error::deleted()) } else { Ok(document) }
    }

    /// The winning revision with its body, also where that deletes the document; `None` where
    /// there never was one.
    ///
    /// # Errors
    /// `Internal` where it can't be read.
    pub async fn document_or_deleted(&self, id: &str) -> Result<Option<Document>> {
        let Some(entry) = self.snapshot.get(&document_key(id)).await? else {
            return Ok(None);
        };
        let summary = summary(&entry.meta, entry.seq())?;
        let body = BodyRef(entry.location);
        self.read(id, summary, body).await.map(Some)
    }

    /// Reads the body that a row of a scan refers to.
    ///
    /// # Errors
    /// `Internal` where it can't be read.
    pub async fn read(&self, id: &str, summary: Summary, body: BodyRef) -> Result<Document> {
        let Summary { revision, deleted, .. } = summary;
        Ok(Document { id: id.into(), revision, deleted, body: self.read_body(body.0).await? })
    }

    /// The revision with its body, which only leaves have; with `latest` every leaf that
    /// descends from it.
    ///
    /// # Errors
    /// `NotFound`, "missing", where there is none; `Internal`.
    pub async fn revision(&self, id: &str, revision: Revision, latest: bool) -> Result<Vec<Document>> {
        let mut found = Vec::new();
        for mut leaf in tree::leaves(&self.snapshot, id).await? {
            if leaf.revision != revision {
                if !latest {
                    continue;
                }
                leaf.complete_path(&self.snapshot, id, revision.generation).await?;
                if !leaf.descends_from(revision) {
                    continue;
                }
            }
            let Body::Stored(entry) = &leaf.body else {
                unreachable!("a leaf in the index has its body in the log");
            };
            let body = self.read_body(entry.location).await?;
            found.push(Document { id: id.into(), revision: leaf.revision, deleted: leaf.deleted, body });
        }
        if found.is_empty() { Err(Error::missing()) } else { Ok(found) }
    }

    /// A document's leaves, the winner first; none where there never was one.
    ///
    /// # Errors
    /// `Internal` for damage, or where the index can't be read.
    pub async fn leaves(&self, id: &str) -> Result<Vec<Leaf>> {
        let leaves = tree::leaves(&self.snapshot, id).await?;
        Ok(leaves.into_iter().map(|leaf| Leaf { revision: leaf.revision, deleted: leaf.deleted }).collect())
    }

    /// The hashes from `revision` back to its oldest known ancestor.
    ///
    /// # Errors
    /// `NotFound` where the tree doesn't have it; `Internal`.
    pub async fn history(&self, id: &str, revision: Revision) -> Result<Vec<Hash>> {
        for mut leaf in tree::leaves(&self.snapshot, id).await? {
            leaf.complete_path(&self.snapshot, id, 0).await?;
            if leaf.descends_from(revision) {
                return Ok(leaf.path.split_off((leaf.revision.generation - revision.generation) as usize));
            }
        }
        Err(Error::missing())
    }

    /// Of `revisions` those that the tree doesn't have, and the leaves that may be ancestors of
    /// them (`_revs_diff`).
    ///
    /// # Errors
    /// `Internal`.
    pub async fn missing(&self, id: &str, revisions: &[Revision]) -> Result<(Vec<Revision>, Vec<Revision>)> {
        let mut leaves = tree::leaves(&self.snapshot, id).await?;
        let mut missing = revisions.to_vec();
        missing.retain(|revision| !leaves.iter().any(|leaf| leaf.descends_from(*revision)));
        if let Some(oldest) = missing.iter().map(|revision| revision.generation).min() {
            for leaf in &mut leaves {
                leaf.complete_path(&self.snapshot, id, oldest).await?;
            }
            missing.retain(|revision| !leaves.iter().any(|leaf| leaf.descends_from(*revision)));
        }
        let newest = missing.iter().map(|revision| revision.generation).max().unwrap_or(0);
        let ancestors =
            leaves.iter().map(|leaf| leaf.revision).filter(|leaf| leaf.generation < newest).collect();
        Ok((missing, ancestors))
    }

    /// A local document, its id without `_local/`: its revision, `0-N`, and its body.
    ///
    /// # Errors
    /// `NotFound`, "missing"; `Internal`.
    pub async fn local(&self, id: &str) -> Result<(String, Bytes)> {
        let entry = self.snapshot.get(&local_key(id)).await?.ok_or_else(Error::missing)?;
        let revision = format!("0-{}", decode_local_meta(&entry.meta)?);
        Ok((revision, self.read_body(entry.location).await?))
    }

    /// The documents in a range that aren't deleted, in the order of their ids.
    ///
    /// # Errors
    /// `Internal` where the index can't be read.
    pub async fn all_docs(&self, range: &Range) -> Result<Rows> {
        let (start, end) = bounds(range);
        let mut scan = self.snapshot.scan(as_slice(&start), as_slice(&end), range.descending);
        scan.skip_sum(SUM_DOCUMENTS, range.skip).await?;
        Ok(Rows { scan, skip_deleted: true, _user: self.user.clone() })
    }

    /// How many documents stand before the first that [`View::all_docs`] gives: its offset.
    ///
    /// # Errors
    /// `Internal` where the index can't be read.
    pub async fn offset(&self, range: &Range) -> Result<u64> {
        let (start, end) = bounds(range);
        let before = if range.descending {
            self.snapshot.sums(opposite(&end), Bound::Unbounded).await?
        } else {
            self.snapshot.sums(Bound::Unbounded, opposite(&start)).await?
        };
        Ok(before[SUM_DOCUMENTS].saturating_add(range.skip).min(self.doc_count()))
    }

    /// The documents that changed after `since`, deleted ones too, each at its last change:
    /// oldest first, or newest first.
    pub fn changes(&self, since: Seq, descending: bool) -> Rows {
        let scan = self.snapshot.scan_listed(since, descending);
        Rows { scan, skip_deleted: false, _user: self.user.clone() }
    }

    /// How many documents changed after `seq`.
    ///
    /// # Errors
    /// `Internal` where the index can't be read.
    pub async fn pending(&self, seq: Seq) -> Result<u64> {
        let sums = self.snapshot.sums_listed(seq).await?;
        Ok(sums[SUM_DOCUMENTS] + sums[SUM_DELETED])
    }

    async fn read_body(&self, location: Location) -> Result<Bytes> {
        let value = self.snapshot.read(location).await?.value();
        match value.first() {
            Some(&ENCODING_PLAIN) => Ok(value.slice(1..)),
            _ => Err(Error::damaged("a body has an unknown encoding")),
        }
    }
}

fn summary(meta: &[u8], seq: Seq) -> Result<Summary> {
    let meta = LeafMeta::decode(meta)?;
    Ok(Summary { revision: meta.revision, deleted: meta.deleted(), has_conflicts: meta.has_conflicts(), seq })
}

/// The range's lower and upper bounds among the keys.
fn bounds(range: &Range) -> (Bound<Vec<u8>>, Bound<Vec<u8>>) {
    let start = range.start.as_deref().map(|id| Bound::Included(document_key(id)));
    let end = range.end.as_deref().map(document_key);
    let end = end.map(|key| if range.exclusive_end { Bound::Excluded(key) } else { Bound::Included(key) });
    let (lower, upper) = if range.descending { (end, start) } else { (start, end) };
    (lower.unwrap_or(Bound::Included(vec![DOCUMENT])), upper.unwrap_or(Bound::Excluded(vec![DOCUMENT + 1])))
}

fn as_slice(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

/// The bound of what lies on the other side of this one.
fn opposite(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    match as_slice(bound) {
        Bound::Included(key) => Bound::Excluded(key),
        Bound::Excluded(key) => Bound::Included(key),
        Bound::Unbounded => unreachable!("ranges of documents are bounded"),
    }
}

/// A scan over documents, which holds its view.
pub struct Rows {
    scan: Scan,
    skip_deleted: bool,
    _user: Arc<()>,
}

/// A document in a scan, as the index has it.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    /// The document's id.
    pub id: &'a str,
    /// Its winning leaf.
    pub summary: Summary,
    /// Its body, for [`View::read`].
    pub body: BodyRef,
}

impl Rows {
    /// The next row, or `None` at the end. Reads the index alone; dropping the future loses no row.
    ///
    /// # Errors
    /// `Internal` for damage, or where the index can't be read.
    pub async fn next(&mut self) -> Result<Option<Row<'_>>> {
        let skip_deleted = self.skip_deleted;
        let Some(entry) = self.scan.next_where(|entry| !skip_deleted || !is_deleted(entry)).await? else {
            return Ok(None);
        };
        let id = document_id(entry.key)?;
        Ok(Some(Row { id, summary: summary(entry.meta, entry.seq())?, body: BodyRef(entry.location) }))
    }
}

/// Whether an entry is a deleted document; damage is left for who reads it.
fn is_deleted(entry: &EntryRef<'_>) -> bool {
    LeafMeta::decode(entry.meta).is_ok_and(|meta| meta.deleted())
}
