//! All leaves of a document, for requests that read several of them.
//!
//! The index is read once. After that, a leaf costs one read of its body, and a path costs a read of the leaf's
//! record and reads of its chunks; paths aren't cached.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;

use super::read_ahead::Winner;
use super::snapshot::{LeafContent, Snapshot};
use super::summary::{FoundLeaf, Leaf};
use crate::documents::leaf_value::LeafValue;
use crate::documents::rev_tree;
use crate::documents::{Document, Revision, RevisionId};
use crate::{Error, Result};

/// A document's leaves in a snapshot, counted from 0: the winner first, then in CouchDB's order.
pub struct Leaves {
    snapshot: Snapshot,
    id: String,
    leaves: Vec<rev_tree::TreeLeaf>,
    /// The value of the winner's record, if it was read ahead.
    winner: Option<Result<Bytes>>,
}

/// The match of a requested revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Matched {
    /// The leaf with this index.
    Leaf(usize),
    /// The tree doesn't have it, or has it only as an ancestor.
    Missing(Revision),
}

impl Snapshot {
    /// A document's leaves; empty if the document never existed.
    ///
    /// # Errors
    /// `Internal` for damage, or if the index can't be read.
    pub async fn open_leaves(&self, id: &str) -> Result<Leaves> {
        let leaves = rev_tree::leaves(self.store(), id).await?;
        Ok(Leaves { snapshot: self.clone(), id: id.to_owned(), leaves, winner: None })
    }

    /// The leaves of a row's document, of which the winner was read.
    ///
    /// # Errors
    /// As [`Snapshot::open_leaves`].
    pub async fn leaves_of(&self, id: &str, winner: Option<Winner>) -> Result<Leaves> {
        let id = id.to_owned();
        let (leaves, winner) = match winner {
            Some(Winner { found: FoundLeaf { location, meta }, value, .. }) => {
                (rev_tree::leaves_with(self.store(), &id, &meta, location).await?, value)
            }
            None => (Vec::new(), None),
        };
        Ok(Leaves { snapshot: self.clone(), id, leaves, winner })
    }
}

impl Leaves {
    /// The document's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Number of leaves.
    pub fn count(&self) -> usize {
        self.leaves.len()
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = Leaf> {
        self.leaves.iter().map(|leaf| Leaf { revision: leaf.revision.clone(), deleted: leaf.deleted })
    }

    /// The matches of the wanted revisions, in their order: the leaf with that revision; with `latest` also
    /// the leaves that descend from it. A leaf is returned once, and so is a missing revision.
    ///
    /// # Errors
    /// `Internal` if a path can't be read.
    pub async fn find(&self, wanted: &[Revision], latest: bool) -> Result<Vec<Matched>> {
        let mut seen = HashSet::with_capacity(wanted.len());
        let wanted: Vec<&Revision> = wanted.iter().filter(|revision| seen.insert(*revision)).collect();
        let places = self.leaves.iter().zip(0..).map(|(leaf, index)| (&leaf.revision, index));
        let by_revision: HashMap<&Revision, usize> = places.collect();
        // For each wanted revision the leaves that no earlier one matches, and whether it is known.
        let mut found: Vec<Vec<usize>> = vec![Vec::new(); wanted.len()];
        let mut known = vec![false; wanted.len()];
        let mut first = vec![usize::MAX; self.leaves.len()];
        // By generation and id.
        let mut inner: HashMap<(u32, &RevisionId), usize> = HashMap::new();
        for (place, revision) in wanted.iter().enumerate() {
            if let Some(&leaf) = by_revision.get(revision) {
                (first[leaf], known[place]) = (place, true);
            } else if latest {
                inner.insert((revision.generation, &revision.id), place);
            }
        }
        let mut generations: Vec<u32> = inner.keys().map(|(generation, _)| *generation).collect();
        generations.sort_unstable();
        generations.dedup();
        if let Some(&oldest) = generations.first() {
            for (index, first) in first.iter_mut().enumerate() {
                let mut leaf = self.leaf_to_complete(index)?;
                leaf.complete_path(self.snapshot.store(), &self.id, oldest).await?;
                for &generation in generations.iter().take_while(|one| **one < leaf.revision.generation) {
                    let place = leaf.ancestor(generation).and_then(|id| inner.get(&(generation, id)));
                    if let Some(&place) = place {
                        *first = place.min(*first);
                        known[place] = true;
                    }
                }
            }
        }
        for (leaf, place) in first.into_iter().enumerate().filter(|(_, place)| *place != usize::MAX) {
            found[place].push(leaf);
        }
        let mut matched = Vec::with_capacity(wanted.len());
        for ((revision, leaves), known) in wanted.into_iter().zip(found).zip(known) {
            match known {
                true => matched.extend(leaves.into_iter().map(Matched::Leaf)),
                false => matched.push(Matched::Missing(revision.clone())),
            }
        }
        Ok(matched)
    }

    /// A leaf's document with its body, unless that is large: see [`Document::large_body`].
    ///
    /// # Errors
    /// `Internal` if it can't be read.
    pub async fn document(&self, index: usize) -> Result<Document> {
        let leaf = self.leaf(index)?;
        let LeafContent { attachments, body, large_body } = match &self.winner {
            Some(value) if index == 0 => self.snapshot.content_of(&self.id, &value.clone()?).await?,
            _ => self.snapshot.read_body(&self.id, leaf.location()).await?,
        };
        let (id, revision, deleted) = (self.id.clone(), leaf.revision.clone(), leaf.deleted);
        Ok(Document { id, revision, deleted, body, attachments, large_body })
    }

    /// The ids from a leaf back to its oldest known ancestor, up to the database's limit.
    ///
    /// # Errors
    /// `Internal`.
    pub async fn history(&self, index: usize) -> Result<Vec<RevisionId>> {
        let mut leaf = self.leaf_to_complete(index)?;
        leaf.limit_path(self.snapshot.store(), &self.id, self.snapshot.revs_limit()).await?;
        Ok(leaf.path)
    }

    /// A copy of a leaf, whose tail needs no read if its value was read ahead.
    fn leaf_to_complete(&self, index: usize) -> Result<rev_tree::TreeLeaf> {
        let mut leaf = self.leaf(index)?.clone();
        if let Some(Ok(value)) = self.winner.as_ref().filter(|_| index == 0) {
            leaf.use_value(LeafValue::decode(value)?)?;
        }
        Ok(leaf)
    }

    fn leaf(&self, index: usize) -> Result<&rev_tree::TreeLeaf> {
        self.leaves.get(index).ok_or_else(Error::missing)
    }
}
