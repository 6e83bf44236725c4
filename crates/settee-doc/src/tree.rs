//! Revision trees: a document's leaves and the paths that lead to them.
//!
//! A tree is kept as its leaves; each knows its path back to the first revision, or as far as
//! it is known. The winner among them is CouchDB's: not deleted before deleted, then the longer
//! history, then the greater hash.
//!
//! Invariants:
//! 1. No leaf is an ancestor of another.
//! 2. A path begins with its leaf's hash and has no gaps.

use std::borrow::Cow;
use std::ops::Bound;

use settee_store::{Entry, Snapshot, Value};

use crate::attachment::{Attachment, decode_table};
use crate::keys::{
    LeafMeta, PATH_CHUNK_COUNT, chunk_boundary, conflict_prefix, decode_path_key, document_key, hashes,
    path_key, path_prefix,
};
use crate::revision::{Hash, Revision};
use crate::{Error, Result};

/// Where a leaf's body is.
#[derive(Debug, Clone)]
pub(crate) enum Body {
    /// In the log: the leaf's entry in the index.
    Stored(Entry),
    /// On its way in, as it is stored; and what its table names.
    New(Value, Vec<Attachment>),
}

/// A leaf of a tree.
#[derive(Debug, Clone)]
pub(crate) struct Leaf {
    pub revision: Revision,
    pub deleted: bool,
    /// Its path, newest first, itself included: in full, or as far as its meta holds it.
    pub path: Vec<Hash>,
    pub body: Body,
    /// Whether its value begins with a table.
    pub has_attachments: bool,
    /// Bytes of its body where that stands apart; else 0.
    pub apart_bytes: u32,
    /// Whether it is stored as the winner.
    pub stored_as_winner: bool,
}

impl Leaf {
    fn from_entry(entry: Entry, stored_as_winner: bool) -> Result<Leaf> {
        let meta = LeafMeta::decode(&entry.meta)?;
        let (revision, deleted, path) = (meta.revision, meta.deleted(), meta.tail());
        let (has_attachments, apart_bytes) = (meta.has_attachments(), meta.apart_bytes);
        let body = Body::Stored(entry);
        Ok(Leaf { revision, deleted, path, body, has_attachments, apart_bytes, stored_as_winner })
    }

    /// One without content whose path leads back from `generation`.
    #[cfg(test)]
    pub(crate) fn bare(generation: u32, path: Vec<Hash>) -> Leaf {
        Leaf {
            revision: Revision { generation, hash: path[0] },
            deleted: false,
            path,
            body: Body::New(Value::new(bytes::Bytes::new()), Vec::new()),
            has_attachments: false,
            apart_bytes: 0,
            stored_as_winner: false,
        }
    }

    /// Its attachments, read where they are stored; and last its body, where that stands apart.
    pub(crate) async fn attachments(&self, snapshot: &Snapshot) -> Result<Cow<'_, [Attachment]>> {
        match &self.body {
            Body::New(_, attachments) => Ok(Cow::Borrowed(attachments)),
            Body::Stored(_) if !self.has_attachments => Ok(Cow::Borrowed(&[])),
            Body::Stored(entry) => {
                let value = snapshot.read(entry.location).await?.value();
                Ok(Cow::Owned(decode_table(&value.slice(1..))?.0))
            }
        }
    }

    /// Bytes that its body and its attachments take.
    pub(crate) async fn stored_bytes(&self, snapshot: &Snapshot) -> Result<u64> {
        let body = match &self.body {
            Body::New(value, _) => value.bytes().len() as u64,
            Body::Stored(entry) => snapshot.read(entry.location).await?.value().len() as u64,
        };
        let attachments = self.attachments(snapshot).await?;
        Ok(body + attachments.iter().map(Attachment::stored_length).sum::<u64>())
    }

    /// Greater wins.
    pub(crate) fn rank(&self) -> (bool, Revision) {
        (!self.deleted, self.revision)
    }

    /// The hash of its ancestor of a generation, itself included, where the path holds it.
    pub(crate) fn ancestor(&self, generation: u32) -> Option<Hash> {
        let back = self.revision.generation.checked_sub(generation)?;
        self.path.get(back as usize).copied()
    }

    /// Whether the path holds `revision`.
    pub(crate) fn descends_from(&self, revision: Revision) -> bool {
        self.ancestor(revision.generation) == Some(revision.hash)
    }

    /// The oldest revision that the path holds.
    fn oldest(&self) -> Revision {
        let generation = self.revision.generation - (self.path.len() as u32 - 1);
        Revision { generation, hash: *self.path.last().expect("a path has its leaf") }
    }

    /// Completes the path from the chunks, back to `generation` or as far as it is known.
    pub(crate) async fn complete_path(
        &mut self,
        snapshot: &Snapshot,
        id: &str,
        generation: u32,
    ) -> Result<()> {
        loop {
            let oldest = self.oldest();
            if oldest.generation <= generation || !oldest.generation.is_multiple_of(PATH_CHUNK_COUNT) {
                return Ok(());
            }
            let Some(chunk) = snapshot.get(&path_key(id, oldest)).await? else {
                return Ok(());
            };
            let record = snapshot.read(chunk.location).await?;
            let ancestors = hashes(&record.value());
            if ancestors.is_empty() || ancestors.len() > PATH_CHUNK_COUNT as usize {
                return Err(Error::damaged("a chunk of a revision path has a wrong size"));
            }
            self.path.extend(ancestors);
        }
    }

    /// Makes the path the last `limit` revisions, or as many as are known.
    pub(crate) async fn limit_path(&mut self, snapshot: &Snapshot, id: &str, limit: u32) -> Result<()> {
        let oldest = self.revision.generation.saturating_sub(limit) + 1;
        self.complete_path(snapshot, id, oldest).await?;
        self.path.truncate(limit as usize);
        Ok(())
    }

    /// The chunks that the path needs behind what the leaf's meta holds, newest first: the
    /// revision that each leads to, and its ancestors.
    pub(crate) fn chunks(&self) -> impl Iterator<Item = (Revision, &[Hash])> {
        let mut boundary = chunk_boundary(self.revision.generation);
        std::iter::from_fn(move || {
            let back = (self.revision.generation - boundary) as usize;
            let hash = *self.path.get(back).filter(|_| boundary > 0)?;
            let ancestors = &self.path[back + 1..self.path.len().min(back + 1 + PATH_CHUNK_COUNT as usize)];
            let leads_to = Revision { generation: boundary, hash };
            boundary -= PATH_CHUNK_COUNT;
            (!ancestors.is_empty()).then_some((leads_to, ancestors))
        })
    }
}

/// Whether a leaf of a generation, of whose path `limit` revisions are kept, needs any of those in
/// the chunk under a revision of generation `boundary`.
pub(crate) fn needs_chunk(generation: u32, boundary: u32, limit: u32) -> bool {
    boundary < generation && u64::from(boundary) + u64::from(limit) > u64::from(generation) + 1
}

/// The keys of the stored chunks, up to a generation, that no leaf needs where `limit` revisions of
/// each path are kept. Reads of the paths what it takes to tell.
pub(crate) async fn unused_chunks(
    snapshot: &Snapshot,
    id: &str,
    leaves: &mut [Leaf],
    up_to: u32,
    limit: u32,
) -> Result<Vec<Vec<u8>>> {
    let prefix = path_prefix(id);
    let mut end = prefix.clone();
    end.extend_from_slice(&up_to.to_be_bytes());
    end.extend_from_slice(&[0xFF; 17]);
    let mut unused = Vec::new();
    let mut scan = snapshot.scan(Bound::Included(&prefix), Bound::Included(&end), false);
    while let Some(entry) = scan.next().await? {
        let revision = decode_path_key(entry.key, &prefix)?;
        let mut is_needed = false;
        for leaf in leaves.iter_mut() {
            if needs_chunk(leaf.revision.generation, revision.generation, limit) {
                leaf.complete_path(snapshot, id, revision.generation).await?;
                is_needed |= leaf.descends_from(revision);
            }
        }
        if !is_needed {
            unused.push(entry.key.to_vec());
        }
    }
    Ok(unused)
}

/// A document's leaves, the winner first and then by CouchDB's order; none where there never
/// was such a document. Reads the index alone.
pub(crate) async fn leaves(snapshot: &Snapshot, id: &str) -> Result<Vec<Leaf>> {
    let Some(entry) = snapshot.get(&document_key(id)).await? else {
        return Ok(Vec::new());
    };
    let has_conflicts = LeafMeta::decode(&entry.meta)?.has_conflicts();
    let mut leaves = vec![Leaf::from_entry(entry, true)?];
    if has_conflicts {
        let prefix = conflict_prefix(id);
        let mut end = prefix.clone();
        // Longer than any generation and hash: behind all keys of this prefix.
        end.extend_from_slice(&[0xFF; 21]);
        let mut scan = snapshot.scan(Bound::Excluded(&prefix), Bound::Excluded(&end), false);
        while let Some(entry) = scan.next().await? {
            leaves.push(Leaf::from_entry(entry.to_entry(), false)?);
        }
        leaves[1..].sort_by_key(|leaf| std::cmp::Reverse(leaf.rank()));
    }
    Ok(leaves)
}

/// Merges a path that was replicated into a tree. Returns false, and changes nothing, where the
/// tree has its newest revision already. The leaves' paths are in full.
pub(crate) fn merge(leaves: &mut Vec<Leaf>, mut new: Leaf) -> bool {
    if leaves.iter().any(|leaf| leaf.descends_from(new.revision)) {
        return false;
    }
    // Where the new path is known less far back than what it joins, it goes on as that does.
    let oldest = new.oldest();
    if let Some(joined) = leaves.iter().find(|leaf| leaf.descends_from(oldest)) {
        let back = (joined.revision.generation - oldest.generation) as usize;
        new.path.extend_from_slice(&joined.path[back + 1..]);
    }
    leaves.retain(|leaf| !new.descends_from(leaf.revision));
    leaves.push(new);
    true
}

#[cfg(test)]
mod tests;
