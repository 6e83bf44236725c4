//! Updates: deciding edits against the newest accepted state, one updater at a time.
//!
//! Edits are checked against the index alone; a body is read only where a leaf changes its
//! place because another has won. The records of many edits go to the log as one batch; each
//! document's are in one, so that a document is atomic.
//!
//! Invariants:
//! 1. An edit sees all that were accepted before it, those of its own request included.
//! 2. What an edit's outcome rests on is accepted when it is told, and persisted when
//!    everything accepted so far is.

use std::collections::HashSet;

use bytes::Bytes;
use settee_store::{BATCH_SIZE_MAX, Batch, KEY_SIZE_MAX, Seq, Snapshot, Stage, Writer};

use crate::edit::{Edit, check_document_id};
use crate::keys::{
    PATH_CHUNK_COUNT, chunk_boundary, conflict_key, decode_chunk_meta, document_key, encode_chunk_meta,
    encode_leaf_meta, encode_local_meta, local_key, path_key,
};
use crate::revision::Revision;
use crate::tree::{Body, Leaf, leaves, merge};
use crate::{Error, Result};

/// Edits that come together are committed together up to this many bytes.
const BATCH_BYTES: usize = 1 << 20;

/// The most that [`crate::Options::document_bytes_max`] may be: a batch holds two documents of
/// that size, which is what it takes when a leaf loses to another.
pub const DOCUMENT_BYTES_LIMIT: usize = BATCH_SIZE_MAX / 2 - 4 * KEY_SIZE_MAX;

/// In front of a stored body: its bytes follow as they are.
pub(crate) const ENCODING_PLAIN: u8 = 0;

/// The one updater of a database, for the edits of one request.
pub(crate) struct Updater<'a> {
    writer: Writer<'a>,
    stage: Stage,
    batch: Batch,
    /// Ids whose edits are in the batch, and so not in the index yet.
    touched: HashSet<String>,
    /// Whether all that is in the batch deletes.
    deletes_alone: bool,
}

/// What of an edit's failure ends the whole request: nothing more can be accepted.
type Outcome<T> = Result<Result<T>>;

impl<'a> Updater<'a> {
    pub(crate) fn new(writer: Writer<'a>, stage: Stage) -> Updater<'a> {
        Updater { writer, stage, batch: Batch::new(), touched: HashSet::new(), deletes_alone: true }
    }

    /// An interactive edit: it replaces a leaf, or makes a new document.
    pub(crate) async fn update(&mut self, edit: &Edit) -> Outcome<Revision> {
        self.prepare(edit).await?;
        let decided = self.decide_update(edit).await;
        self.add(edit, decided).await
    }

    /// A replicated edit: its path is merged into the tree.
    pub(crate) async fn replicate(&mut self, edit: &Edit) -> Outcome<Revision> {
        self.prepare(edit).await?;
        let decided = self.decide_replicated(edit).await;
        self.add(edit, decided).await
    }

    /// A local document: written as it comes, with the number after the one it names. Returns
    /// the new number; 0 where it is deleted.
    pub(crate) async fn update_local(&mut self, id: &str, edit: &Edit) -> Outcome<u64> {
        self.prepare(edit).await?;
        let key = local_key(id);
        if edit.revision.is_some() {
            return Ok(Err(Error::bad_request("Invalid rev format")));
        }
        let mut batch = Batch::new();
        let mut number = 0;
        if edit.deleted {
            match self.writer.get(&key).await {
                Ok(Some(_)) => {}
                Ok(None) => return Ok(Err(Error::missing())),
                Err(error) => return Ok(Err(error.into())),
            }
            batch.delete(&key);
        } else {
            number = edit.local_revision.unwrap_or(0).saturating_add(1);
            batch.put(&key, &encode_local_meta(number), edit.stored().clone(), false);
        }
        self.add(edit, Ok((number, batch))).await
    }

    /// Commits what is left. Returns the last `Seq` accepted so far, by whomever: whoever is
    /// told of an outcome waits for it.
    pub(crate) async fn finish(mut self) -> Result<Seq> {
        self.commit().await?;
        Ok(self.writer.last_seq())
    }

    /// Lets an edit see those of its own request.
    async fn prepare(&mut self, edit: &Edit) -> Result<()> {
        if self.touched.contains(&edit.id) { self.commit().await } else { Ok(()) }
    }

    /// Adds an edit's records to those that wait to be committed.
    async fn add<T>(&mut self, edit: &Edit, decided: Result<(T, Batch)>) -> Outcome<T> {
        let (outcome, records) = match decided {
            Ok(decided) => decided,
            Err(error) => return Ok(Err(error)),
        };
        if self.batch.size() + records.size() > BATCH_BYTES {
            self.commit().await?;
        }
        self.deletes_alone &= edit.deleted && edit.body().is_empty();
        self.touched.insert(edit.id.clone());
        if self.batch.is_empty() {
            self.batch = records;
        } else {
            self.batch.extend(&records);
        }
        Ok(Ok(outcome))
    }

    async fn commit(&mut self) -> Result<()> {
        if !self.batch.is_empty() {
            let mut batch = std::mem::take(&mut self.batch);
            if self.deletes_alone {
                batch.use_reserve();
            }
            self.writer.commit(&batch, self.stage).await?;
        }
        self.touched.clear();
        self.deletes_alone = true;
        Ok(())
    }

    async fn decide_update(&self, edit: &Edit) -> Result<(Revision, Batch)> {
        check_edit(edit)?;
        let latest = self.writer.latest();
        let old = leaves(&latest, &edit.id).await?;
        let parent = match (edit.revision, old.first()) {
            (None, None) => None,
            (None, Some(winner)) if winner.deleted && !edit.deleted => Some(winner),
            (Some(revision), Some(_)) => {
                Some(old.iter().find(|leaf| leaf.revision == revision).ok_or_else(Error::conflict)?)
            }
            _ => return Err(Error::conflict()),
        };
        let revision = Revision::next(parent.map(|leaf| leaf.revision), edit.deleted, edit.digest());
        let revision = revision.ok_or_else(|| Error::bad_request("the document has too many revisions"))?;
        let mut path = vec![revision.hash];
        path.extend(parent.iter().flat_map(|leaf| &leaf.path));
        let replaced = parent.map(|leaf| leaf.revision);
        let mut new: Vec<Leaf> = old.iter().filter(|leaf| Some(leaf.revision) != replaced).cloned().collect();
        new.push(new_leaf(edit, revision, path));
        Ok((revision, rewrite(&latest, &edit.id, &old, &new).await?))
    }

    async fn decide_replicated(&self, edit: &Edit) -> Result<(Revision, Batch)> {
        check_edit(edit)?;
        let revision = edit.revision.ok_or_else(|| {
            Error::bad_request("When `new_edits: false`, the document needs `_rev` or `_revisions` specified")
        })?;
        let path = if edit.history.is_empty() { vec![revision.hash] } else { edit.history.clone() };
        let latest = self.writer.latest();
        let old = leaves(&latest, &edit.id).await?;
        let mut new = old.clone();
        let leaf = new_leaf(edit, revision, path);
        let back_to = merge_depth(&latest, &edit.id, &leaf).await?;
        for known in &mut new {
            known.complete_path(&latest, &edit.id, back_to.min(revision.generation)).await?;
        }
        let records = match merge(&mut new, leaf) {
            true => rewrite(&latest, &edit.id, &old, &new).await?,
            false => Batch::new(),
        };
        Ok((revision, records))
    }
}

/// The records that turn a document's tree from `old` into `new`.
async fn rewrite(latest: &Snapshot, id: &str, old: &[Leaf], new: &[Leaf]) -> Result<Batch> {
    let mut batch = Batch::new();
    let winner = new.iter().map(Leaf::rank).max().expect("a tree has a leaf");
    let has_conflicts = new.len() > 1;
    for leaf in new {
        let wins = leaf.rank() == winner;
        let body = match &leaf.body {
            Body::New(body) => body.clone(),
            // It stays where it is.
            Body::Stored(_) if !wins && !leaf.stored_as_winner => continue,
            Body::Stored(entry) => latest.read(entry.location).await?.value(),
        };
        let generation = leaf.revision.generation;
        let meta = encode_leaf_meta(generation, &leaf.path, leaf.deleted, wins && has_conflicts);
        match wins {
            true => batch.put(&document_key(id), &meta, body, true),
            false => batch.put(&conflict_key(id, leaf.revision), &meta, body, false),
        }
        if matches!(leaf.body, Body::New(_)) {
            put_chunks(&mut batch, latest, id, leaf).await?;
        } else if wins && !leaf.stored_as_winner {
            batch.delete(&conflict_key(id, leaf.revision));
        }
    }
    for leaf in old.iter().filter(|leaf| !leaf.stored_as_winner) {
        if new.iter().all(|kept| kept.revision != leaf.revision) {
            batch.delete(&conflict_key(id, leaf.revision));
        }
    }
    Ok(batch)
}

/// The chunks of a new leaf's path that aren't stored, or reach less far back there: a replica
/// may know more of the path than the one before it.
async fn put_chunks(batch: &mut Batch, latest: &Snapshot, id: &str, leaf: &Leaf) -> Result<()> {
    for (leads_to, ancestors) in leaf.chunks() {
        let key = path_key(id, leads_to);
        let stored = latest.get(&key).await?;
        let stored_count = stored.map_or(0, |chunk| decode_chunk_meta(&chunk.meta));
        if stored_count < ancestors.len() {
            let hashes = Bytes::copy_from_slice(ancestors.as_flattened());
            batch.put(&key, &encode_chunk_meta(ancestors.len()), hashes, false);
        }
    }
    Ok(())
}

/// What both kinds of edits of ordinary documents must be.
fn check_edit(edit: &Edit) -> Result<()> {
    check_document_id(&edit.id)?;
    match edit.local_revision {
        Some(_) => Err(Error::bad_request("Invalid rev format")),
        None => Ok(()),
    }
}

fn new_leaf(edit: &Edit, revision: Revision, path: Vec<crate::Hash>) -> Leaf {
    Leaf {
        revision,
        deleted: edit.deleted,
        path,
        body: Body::New(edit.stored().clone()),
        stored_as_winner: false,
    }
}

/// How far back the known paths matter for merging this leaf: to its own generation, to see
/// whether it is there; and where its path is cut off before any chunk that is stored, to the
/// place where it was cut.
async fn merge_depth(latest: &Snapshot, id: &str, leaf: &Leaf) -> Result<u32> {
    let generation = leaf.revision.generation;
    let oldest = generation - (leaf.path.len() as u32 - 1);
    let mut boundary = chunk_boundary(generation);
    while boundary > 0 {
        let Some(hash) = leaf.ancestor(boundary) else {
            return Ok(oldest);
        };
        let chunk = latest.get(&path_key(id, Revision { generation: boundary, hash })).await?;
        if chunk.is_some_and(|chunk| decode_chunk_meta(&chunk.meta) == PATH_CHUNK_COUNT as usize) {
            return Ok(generation);
        }
        boundary = chunk_boundary(boundary);
    }
    // It goes back to the first revision, or to the first chunk.
    Ok(if oldest == 1 { generation } else { oldest })
}
