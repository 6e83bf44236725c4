//! All leaves of a document, for requests that read several of them.
//!
//! The index is read once. After that, a leaf costs one read of its body, and a path costs a read of the leaf's
//! record and reads of its chunks; paths aren't cached.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;

use super::read_ahead::Winner;
use super::replaced::{ReplacedRevision, ReplacedRevisions};
use super::snapshot::{LeafContent, Snapshot};
use super::summary::{FoundLeaf, Leaf};
use crate::documents::leaf_value::LeafValue;
use crate::documents::rev_tree;
use crate::documents::{Document, Revision, RevisionId};
use crate::{Error, ErrorKind, Result};

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
    /// The tree doesn't have it, or has it only as an ancestor whose body isn't found.
    Missing(Revision),
    /// A revision that isn't a leaf any more.
    Replaced(Box<ReplacedRevision>),
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

    /// The revision with its body: a leaf, or a replaced revision whose body can still be read.
    ///
    /// # Errors
    /// `NotFound`, "missing", if the document never had it or its body is gone; `Internal`.
    pub async fn available_revision(&self, id: &str, revision: &Revision) -> Result<Document> {
        match self.revision(id, revision, false).await {
            Ok(found) => found.into_iter().next().ok_or_else(Error::missing),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let leaves = self.open_leaves(id).await?;
                let wanted = std::slice::from_ref(revision);
                let found = leaves.find_replaced(wanted, &mut self.replaced_revisions()).await?;
                let found = found.into_iter().flatten().next().ok_or_else(Error::missing)?;
                leaves.replaced_document(&found).await
            }
            Err(error) => Err(error),
        }
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

    /// The matches of the wanted revisions, in their order: the leaf with that revision, or otherwise the
    /// replaced revision; with `latest` instead of the latter the leaves that descend from it. A leaf is returned
    /// once, and so is another revision.
    ///
    /// # Errors
    /// `Internal` if a path or the segments can't be read.
    pub async fn find(
        &self,
        wanted: &[Revision],
        latest: bool,
        replaced: &mut ReplacedRevisions,
    ) -> Result<Vec<Matched>> {
        let mut matched = self.find_leaves(wanted, latest).await?;
        if latest {
            return Ok(matched);
        }
        let is_missing = |matched: &Matched| matches!(matched, Matched::Missing(_));
        let missing: Vec<Revision> = matched
            .iter()
            .filter_map(|matched| match matched {
                Matched::Missing(revision) => Some(revision.clone()),
                _ => None,
            })
            .collect();
        if !missing.is_empty() {
            let found = self.find_replaced(&missing, replaced).await?;
            for (matched, found) in matched.iter_mut().filter(|matched| is_missing(matched)).zip(found) {
                if let Some(found) = found {
                    *matched = Matched::Replaced(Box::new(found));
                }
            }
        }
        Ok(matched)
    }

    async fn find_leaves(&self, wanted: &[Revision], latest: bool) -> Result<Vec<Matched>> {
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

    /// Those of the wanted revisions that were replaced and can still be read, each at the place of the
    /// revision. A leaf isn't found.
    ///
    /// # Errors
    /// `Internal` for damage, or if the segments can't be read.
    pub async fn find_replaced(
        &self,
        wanted: &[Revision],
        replaced: &mut ReplacedRevisions,
    ) -> Result<Vec<Option<ReplacedRevision>>> {
        let ancestors = self.ancestors(wanted).await?;
        let found = self.find_ancestors(&ancestors, replaced).await?;
        Ok(wanted.iter().map(|revision| found.get(revision).cloned()).collect())
    }

    /// The state of each ancestor in a history, given newest first: those of them that can still be read. The
    /// history must be one that [`Leaves::history`] or [`Leaves::history_of`] returned for `revision`.
    ///
    /// # Errors
    /// As [`Leaves::find_replaced`].
    pub async fn replaced_ancestors(
        &self,
        revision: &Revision,
        history: &[RevisionId],
        replaced: &mut ReplacedRevisions,
    ) -> Result<Vec<Option<ReplacedRevision>>> {
        let generations = (0..revision.generation).rev();
        let older = history.iter().skip(1).zip(generations);
        let ancestors: Vec<Revision> =
            older.map(|(id, generation)| Revision { generation, id: id.clone() }).collect();
        let found = self.find_ancestors(&ancestors, replaced).await?;
        Ok(ancestors.iter().map(|revision| found.get(revision).cloned()).collect())
    }

    /// A replaced revision's document with its body, unless that is large: see [`Document::large_body`].
    ///
    /// # Errors
    /// `Internal` if it can't be read.
    pub async fn replaced_document(&self, replaced: &ReplacedRevision) -> Result<Document> {
        let ReplacedRevision { revision, deleted, location } = replaced.clone();
        let LeafContent { attachments, body, large_body } =
            self.snapshot.read_body(&self.id, location).await?;
        Ok(Document { id: self.id.clone(), revision, deleted, body, attachments, large_body })
    }

    async fn find_ancestors(
        &self,
        ancestors: &[Revision],
        replaced: &mut ReplacedRevisions,
    ) -> Result<HashMap<Revision, ReplacedRevision>> {
        match self.leaves.first() {
            Some(winner) => replaced.find(&self.id, winner.location(), ancestors).await,
            None => Ok(HashMap::new()),
        }
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

    /// As [`Leaves::history`], from any revision on a leaf's path back; empty for another revision.
    ///
    /// # Errors
    /// `Internal`.
    pub async fn history_of(&self, revision: &Revision) -> Result<Vec<RevisionId>> {
        for leaf in self.leaves.iter().filter(|leaf| leaf.revision.generation >= revision.generation) {
            let mut leaf = leaf.clone();
            leaf.limit_path(self.snapshot.store(), &self.id, self.snapshot.revs_limit()).await?;
            if leaf.descends_from(revision) {
                return Ok(leaf.path.split_off((leaf.revision.generation - revision.generation) as usize));
            }
        }
        Ok(Vec::new())
    }

    /// Those of the revisions that are ancestors of a leaf, within the database's limit.
    async fn ancestors(&self, revisions: &[Revision]) -> Result<Vec<Revision>> {
        let mut unknown: HashSet<&Revision> = revisions.iter().collect();
        let mut generations: Vec<u32> = revisions.iter().map(|revision| revision.generation).collect();
        generations.sort_unstable();
        generations.dedup();
        let mut ancestors = Vec::new();
        for leaf in &self.leaves {
            let newest = leaf.revision.generation;
            let oldest = newest.saturating_sub(self.snapshot.revs_limit().saturating_sub(1));
            let shown =
                generations.iter().copied().filter(|generation| (oldest..newest).contains(generation));
            let mut shown = shown.peekable();
            let Some(&first) = shown.peek() else { continue };
            let mut leaf = leaf.clone();
            leaf.complete_path(self.snapshot.store(), &self.id, first).await?;
            for generation in shown {
                let Some(id) = leaf.ancestor(generation) else { continue };
                ancestors.extend(unknown.take(&Revision { generation, id: id.clone() }).cloned());
            }
        }
        Ok(ancestors)
    }

    fn leaf(&self, index: usize) -> Result<&rev_tree::TreeLeaf> {
        self.leaves.get(index).ok_or_else(Error::missing)
    }
}
