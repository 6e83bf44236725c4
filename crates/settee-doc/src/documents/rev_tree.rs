//! Revision trees: a document's leaves and the paths that lead to them.
//!
//! A tree is represented by its leaves; each has its path back to the first revision, or as far as it is
//! known. Of a stored leaf the index has only its own revision, and beside a large body its tail: the rest is
//! read when it is needed. The winner is CouchDB's: not deleted before deleted, then the longer history, then the greater
//! id.
//!
//! Invariants:
//! 1. No leaf is an ancestor of another.
//! 2. A path begins with its leaf's id and has no gaps.

use std::borrow::Cow;
use std::ops::Bound;

use settee_store::{Location, Snapshot as StoreSnapshot, Value};

use super::keys::{
    LeafMeta, LeafState, conflict_prefix, decode_path_key, document_key, path_key, path_prefix,
};
use super::leaf_value::{LeafValue, decode_table};
use super::path::{PATH_CHUNK_COUNT, chunk_boundary, chunk_length, decode_chunk};
use super::revision::{HASH_SIZE, Revision, RevisionId};
use crate::attachments::Attachment;
use crate::{Error, Result};

/// Location of a leaf's body.
#[derive(Debug, Clone)]
pub(crate) enum LeafBody {
    /// In the log.
    Stored(Location),
    /// Not yet stored: the content to store, without a tail, and its table's attachments.
    New(Value, Vec<Attachment>),
}

/// A leaf of a tree.
#[derive(Debug, Clone)]
pub(crate) struct TreeLeaf {
    pub revision: Revision,
    pub deleted: bool,
    /// Its path, newest first, itself included: at least its tail, unless that is unread.
    pub path: Vec<RevisionId>,
    /// Of a stored leaf: whether its tail is in its value.
    pub has_tail_in_value: bool,
    /// Whether the path has only the leaf itself, since the tail in its value wasn't read.
    pub has_unread_tail: bool,
    pub body: LeafBody,
    /// Its value, if it was read for the tail and has a table of uploads.
    value: Option<LeafValue>,
    /// Whether its value has a table of uploads.
    pub has_attachments: bool,
    /// Bytes of its out-of-line body; 0 if the body is inline.
    pub out_of_line_bytes: u32,
    /// Whether it is stored under the winner's key.
    pub stored_as_winner: bool,
}

impl TreeLeaf {
    /// A leaf that isn't stored; `body` is its content without a tail.
    pub(crate) fn new(
        revision: Revision,
        path: Vec<RevisionId>,
        state: LeafState,
        content: Value,
        attachments: Vec<Attachment>,
    ) -> TreeLeaf {
        TreeLeaf {
            revision,
            deleted: state.deleted,
            path,
            has_tail_in_value: false,
            has_unread_tail: false,
            body: LeafBody::New(content, attachments),
            value: None,
            has_attachments: state.has_attachments,
            out_of_line_bytes: state.out_of_line_bytes,
            stored_as_winner: false,
        }
    }

    /// The leaf that a key's entry in the index describes.
    pub(crate) fn stored(meta: &[u8], location: Location, stored_as_winner: bool) -> Result<TreeLeaf> {
        let meta = LeafMeta::decode(meta)?;
        let LeafState { deleted, has_attachments, has_tail_in_value, out_of_line_bytes, .. } = meta.state;
        Ok(TreeLeaf {
            path: meta.path(),
            revision: meta.revision,
            deleted,
            has_tail_in_value,
            has_unread_tail: has_tail_in_value,
            body: LeafBody::Stored(location),
            value: None,
            has_attachments,
            out_of_line_bytes,
            stored_as_winner,
        })
    }

    /// The location of its body.
    ///
    /// # Panics
    /// If the leaf isn't stored.
    pub(crate) fn location(&self) -> Location {
        match &self.body {
            LeafBody::Stored(location) => *location,
            LeafBody::New(..) => panic!("the body of a new leaf has no location"),
        }
    }

    /// A leaf without content whose path leads back from `generation`.
    #[cfg(test)]
    pub(crate) fn bare(generation: u32, path: Vec<RevisionId>) -> TreeLeaf {
        let (revision, content) =
            (Revision { generation, id: path[0].clone() }, Value::new(bytes::Bytes::new()));
        TreeLeaf::new(revision, path, LeafState::default(), content, Vec::new())
    }

    /// Reads the tail from the leaf's record unless it was read.
    ///
    /// # Errors
    /// `Internal` if the record can't be read; then the tail is still unread.
    pub(crate) async fn read_tail(&mut self, snapshot: &StoreSnapshot) -> Result<()> {
        if self.has_unread_tail {
            let value = snapshot.read(self.location()).await?.value();
            self.use_value(LeafValue::decode(&value)?)?;
        }
        Ok(())
    }

    /// Takes an unread tail from the leaf's value, which is kept if it has a table of uploads.
    ///
    /// # Errors
    /// `Internal`: the tail is damaged, and still unread.
    pub(crate) fn use_value(&mut self, value: LeafValue) -> Result<()> {
        if self.has_unread_tail {
            self.use_tail(&value.tail()?)?;
        }
        self.value = Some(value).filter(|_| self.has_attachments);
        Ok(())
    }

    /// Adds an unread tail to the path.
    ///
    /// # Errors
    /// `Internal`: it isn't the tail of a leaf of this generation, and still unread.
    pub(crate) fn use_tail(&mut self, tail: &[RevisionId]) -> Result<()> {
        let generation = self.revision.generation;
        let length_max = (generation - chunk_boundary(generation)) as usize;
        if tail.is_empty() || tail.len() > length_max || tail.len() >= generation as usize {
            return Err(Error::damaged("the tail of a leaf has a wrong length"));
        }
        self.path.extend_from_slice(tail);
        self.has_unread_tail = false;
        Ok(())
    }

    /// Its stored value.
    async fn value(&self, snapshot: &StoreSnapshot) -> Result<LeafValue> {
        match &self.value {
            Some(value) => Ok(value.clone()),
            None => LeafValue::decode(&snapshot.read(self.location()).await?.value()),
        }
    }

    /// Its attachments, read from the log if they are stored. An out-of-line body is the last of them.
    pub(crate) async fn attachments(&self, snapshot: &StoreSnapshot) -> Result<Cow<'_, [Attachment]>> {
        match &self.body {
            LeafBody::New(_, attachments) => Ok(Cow::Borrowed(attachments)),
            LeafBody::Stored(_) if !self.has_attachments => Ok(Cow::Borrowed(&[])),
            LeafBody::Stored(_) => Ok(Cow::Owned(decode_table(&self.value(snapshot).await?.rest)?.0)),
        }
    }

    /// Stored bytes of its content and its attachments.
    pub(crate) async fn stored_bytes(&self, snapshot: &StoreSnapshot) -> Result<u64> {
        let content = match &self.body {
            LeafBody::New(content, _) => content.bytes().len() as u64,
            LeafBody::Stored(_) => 1 + self.value(snapshot).await?.rest.len() as u64,
        };
        let attachments = self.attachments(snapshot).await?;
        Ok(content + attachments.iter().map(Attachment::stored_length).sum::<u64>())
    }

    /// The winner is the leaf with the greatest rank.
    pub(crate) fn rank(&self) -> (bool, &Revision) {
        (!self.deleted, &self.revision)
    }

    /// The id of its ancestor of a generation, itself included, if the path holds it as far as it was read.
    pub(crate) fn ancestor(&self, generation: u32) -> Option<&RevisionId> {
        let back = self.revision.generation.checked_sub(generation)?;
        self.path.get(back as usize)
    }

    /// Whether the path holds `revision`, as far as it was read.
    pub(crate) fn descends_from(&self, revision: &Revision) -> bool {
        self.ancestor(revision.generation) == Some(&revision.id)
    }

    /// The oldest revision that the path holds.
    fn oldest(&self) -> Revision {
        let generation = self.revision.generation - (self.path.len() as u32 - 1);
        Revision { generation, id: self.path.last().expect("a path has its leaf").clone() }
    }

    /// Reads more of the path, from the leaf's record and from chunks, back to `generation` or as far as it is
    /// known.
    pub(crate) async fn complete_path(
        &mut self,
        snapshot: &StoreSnapshot,
        id: &str,
        generation: u32,
    ) -> Result<()> {
        if generation < self.revision.generation {
            self.read_tail(snapshot).await?;
        }
        loop {
            let oldest = self.revision.generation - (self.path.len() as u32 - 1);
            if oldest <= generation || !oldest.is_multiple_of(PATH_CHUNK_COUNT) {
                return Ok(());
            }
            if !self.read_chunk(snapshot, id).await? {
                return Ok(());
            }
        }
    }

    /// Extends the path by the chunk of its oldest revision. Returns whether there is one.
    async fn read_chunk(&mut self, snapshot: &StoreSnapshot, id: &str) -> Result<bool> {
        let Some(chunk) = snapshot.get(&path_key(id, &self.oldest())).await? else {
            return Ok(false);
        };
        let record = snapshot.read(chunk.location).await?;
        let ancestors = decode_chunk(&chunk.meta, &record.value())?;
        if ancestors.len() + self.path.len() > self.revision.generation as usize {
            return Err(Error::damaged("a chunk of a revision path goes back before the first revision"));
        }
        self.path.extend(ancestors);
        Ok(true)
    }

    /// Limits the path to the last `limit` revisions, and reads as many of them as are known.
    pub(crate) async fn limit_path(&mut self, snapshot: &StoreSnapshot, id: &str, limit: u32) -> Result<()> {
        let oldest = self.revision.generation.saturating_sub(limit) + 1;
        self.complete_path(snapshot, id, oldest).await?;
        self.path.truncate(limit as usize);
        Ok(())
    }

    /// The chunks of the part of the path that isn't the leaf's tail, newest first: each with the revision whose
    /// ancestors it lists.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = (Revision, &[RevisionId])> {
        let mut boundary = chunk_boundary(self.revision.generation);
        std::iter::from_fn(move || {
            let back = (self.revision.generation - boundary) as usize;
            let id = self.path.get(back).filter(|_| boundary > 0)?.clone();
            let length = chunk_length(boundary);
            let ancestors = &self.path[back + 1..self.path.len().min(back + 1 + length as usize)];
            let chunk_revision = Revision { generation: boundary, id };
            boundary -= length;
            (!ancestors.is_empty()).then_some((chunk_revision, ancestors))
        })
    }
}

/// Whether a leaf of this generation needs the chunk under a revision of generation `boundary`, if `limit`
/// revisions of its path are kept.
pub(crate) fn needs_chunk(generation: u32, boundary: u32, limit: u32) -> bool {
    boundary <= generation && u64::from(boundary) + u64::from(limit) > u64::from(generation) + 1
}

/// The keys of the stored chunks, up to a generation, that no leaf needs if `limit` revisions of each path
/// are kept. Reads as much of the paths as the decision needs.
pub(crate) async fn unused_chunks(
    snapshot: &StoreSnapshot,
    id: &str,
    leaves: &mut [TreeLeaf],
    up_to: u32,
    limit: u32,
) -> Result<Vec<Vec<u8>>> {
    let prefix = path_prefix(id);
    let mut end = prefix.clone();
    end.extend_from_slice(&up_to.to_be_bytes());
    // Greater than any id: longer than a hash, and no text has such bytes.
    end.extend_from_slice(&[0xFF; HASH_SIZE + 1]);
    let mut unused = Vec::new();
    let mut scan = snapshot.scan(Bound::Included(&prefix), Bound::Included(&end), false);
    while let Some(entry) = scan.next().await? {
        let revision = decode_path_key(entry.key, &prefix)?;
        let mut is_needed = false;
        for leaf in leaves.iter_mut() {
            if needs_chunk(leaf.revision.generation, revision.generation, limit) {
                leaf.complete_path(snapshot, id, revision.generation).await?;
                is_needed |= leaf.descends_from(&revision);
            }
        }
        if !is_needed {
            unused.push(entry.key.to_vec());
        }
    }
    Ok(unused)
}

/// A document's leaves, the winner first and then in CouchDB's order; empty if the document never existed.
/// Reads only the index.
pub(crate) async fn leaves(snapshot: &StoreSnapshot, id: &str) -> Result<Vec<TreeLeaf>> {
    let Some(entry) = snapshot.get(&document_key(id)).await? else {
        return Ok(Vec::new());
    };
    leaves_with(snapshot, id, &entry.meta, entry.location).await
}

/// As [`leaves`], if the winner's entry is known.
pub(crate) async fn leaves_with(
    snapshot: &StoreSnapshot,
    id: &str,
    meta: &[u8],
    location: Location,
) -> Result<Vec<TreeLeaf>> {
    let mut leaves = vec![TreeLeaf::stored(meta, location, true)?];
    if LeafMeta::decode(meta)?.state.has_conflicts {
        let prefix = conflict_prefix(id);
        let mut end = prefix.clone();
        // Greater than any generation and id: longer than a hash, and no text has such bytes.
        end.extend_from_slice(&[0xFF; 4 + HASH_SIZE + 1]);
        let mut scan = snapshot.scan(Bound::Excluded(&prefix), Bound::Excluded(&end), false);
        while let Some(entry) = scan.next().await? {
            leaves.push(TreeLeaf::stored(entry.meta, entry.location, false)?);
        }
        leaves[1..].sort_by(|a, b| b.rank().cmp(&a.rank()));
    }
    Ok(leaves)
}

/// Merges a replicated path into a tree. Returns false, and changes nothing, if the tree already has its
/// newest revision. The leaves' paths must have been read back to that revision and, if the new path may join
/// one of them, to its oldest revision, tails included.
pub(crate) fn merge(leaves: &mut Vec<TreeLeaf>, mut new: TreeLeaf) -> bool {
    if leaves.iter().any(|leaf| leaf.descends_from(&new.revision)) {
        return false;
    }
    // If the new path is known less far back than the path it joins, it continues with that path.
    let oldest = new.oldest();
    if let Some(joined) = leaves.iter().find(|leaf| leaf.descends_from(&oldest)) {
        let back = (joined.revision.generation - oldest.generation) as usize;
        new.path.extend_from_slice(&joined.path[back + 1..]);
    }
    leaves.retain(|leaf| !new.descends_from(&leaf.revision));
    let is_related = |leaf: &TreeLeaf| leaf.descends_from(&new.revision) || new.descends_from(&leaf.revision);
    assert!(!leaves.iter().any(is_related), "a leaf would be an ancestor of another");
    leaves.push(new);
    true
}

#[cfg(test)]
mod tests;
