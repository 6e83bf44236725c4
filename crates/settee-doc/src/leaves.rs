//! All leaves of a document at once, for who reads several of them.
//!
//! The index is read once. After that a leaf costs the read of its body, and a path that is asked for
//! the reads of its chunks; no path is kept.

use std::collections::{HashMap, HashSet};

use crate::document::Document;
use crate::revision::{Hash, Revision};
use crate::tree::{self, Body};
use crate::view::{Leaf, View};
use crate::{Error, Result};

/// A document's leaves in a view, counted from 0: the winner first, then by CouchDB's order.
pub struct Leaves {
    view: View,
    id: String,
    leaves: Vec<tree::Leaf>,
}

/// What a revision that was asked for stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Matched {
    /// That leaf.
    Leaf(usize),
    /// The tree doesn't have it, or as an ancestor alone.
    Missing(Revision),
}

impl View {
    /// A document's leaves; none where there never was one.
    ///
    /// # Errors
    /// `Internal` for damage, or where the index can't be read.
    pub async fn open_leaves(&self, id: &str) -> Result<Leaves> {
        let leaves = tree::leaves(self.snapshot(), id).await?;
        Ok(Leaves { view: self.clone(), id: id.to_owned(), leaves })
    }
}

impl Leaves {
    /// The document's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.leaves.len()
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = Leaf> {
        self.leaves.iter().map(|leaf| Leaf { revision: leaf.revision, deleted: leaf.deleted })
    }

    /// What each of the wanted revisions stands for, in their order: the leaf that it is; with `latest`
    /// the leaves that descend from it. A leaf is given once, and so is a revision that is missing.
    ///
    /// # Errors
    /// `Internal` where a path can't be read.
    pub async fn find(&self, wanted: &[Revision], latest: bool) -> Result<Vec<Matched>> {
        let mut seen = HashSet::with_capacity(wanted.len());
        let wanted: Vec<Revision> =
            wanted.iter().copied().filter(|revision| seen.insert(*revision)).collect();
        let places = self.leaves.iter().zip(0..).map(|(leaf, index)| (leaf.revision, index));
        let by_revision: HashMap<Revision, usize> = places.collect();
        // For each wanted revision the leaves that no earlier one stands for, and whether it is known.
        let mut found: Vec<Vec<usize>> = vec![Vec::new(); wanted.len()];
        let mut known = vec![false; wanted.len()];
        let mut first = vec![usize::MAX; self.leaves.len()];
        let mut inner: HashMap<Revision, usize> = HashMap::new();
        for (place, revision) in wanted.iter().enumerate() {
            if let Some(&leaf) = by_revision.get(revision) {
                (first[leaf], known[place]) = (place, true);
            } else if latest {
                inner.insert(*revision, place);
            }
        }
        let mut generations: Vec<u32> = inner.keys().map(|revision| revision.generation).collect();
        generations.sort_unstable();
        generations.dedup();
        if let Some(&oldest) = generations.first() {
            for (leaf, first) in self.leaves.iter().zip(&mut first) {
                let mut leaf = leaf.clone();
                leaf.complete_path(self.view.snapshot(), &self.id, oldest).await?;
                for &generation in generations.iter().take_while(|one| **one < leaf.revision.generation) {
                    let hash = leaf.ancestor(generation);
                    let place = hash.and_then(|hash| inner.get(&Revision { generation, hash }));
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
                false => matched.push(Matched::Missing(revision)),
            }
        }
        Ok(matched)
    }

    /// A leaf with its body.
    ///
    /// # Errors
    /// `Internal` where it can't be read.
    pub async fn document(&self, index: usize) -> Result<Document> {
        let leaf = self.leaf(index)?;
        let Body::Stored(entry) = &leaf.body else {
            unreachable!("a leaf in the index has its body in the log");
        };
        let (attachments, body) = self.view.read_body(&self.id, entry.location).await?;
        let (id, revision, deleted) = (self.id.clone(), leaf.revision, leaf.deleted);
        Ok(Document { id, revision, deleted, body, attachments })
    }

    /// The hashes from a leaf back to its oldest known ancestor, as many as the database's limit says.
    ///
    /// # Errors
    /// `Internal`.
    pub async fn history(&self, index: usize) -> Result<Vec<Hash>> {
        let mut leaf = self.leaf(index)?.clone();
        leaf.limit_path(self.view.snapshot(), &self.id, self.view.revs_limit()).await?;
        Ok(leaf.path)
    }

    fn leaf(&self, index: usize) -> Result<&tree::Leaf> {
        self.leaves.get(index).ok_or_else(Error::missing)
    }
}
