//! The records of an update: what turns a document's stored tree into its new one.
//!
//! A leaf is rewritten if it is new, or if its key changes because it wins or loses. The chunks of a new path
//! are added, those that no leaf needs any more are removed, and so are unused attachments.

use std::collections::HashSet;
use std::sync::Arc;

use settee_store::{Batch, Snapshot as StoreSnapshot, Value};

use crate::Result;
use crate::attachments::{Attachment, UnreferencedUpload, UploadGuard, remove_unused};
use crate::database::counters::Counter;
use crate::documents::design::DESIGN_PREFIX;
use crate::documents::keys::{LeafState, conflict_key, document_key, encode_leaf_meta, path_key};
use crate::documents::leaf_value::encode_leaf;
use crate::documents::path::{LONG_CHUNK_COUNT, PATH_CHUNK_COUNT, decode_chunk_count, encode_chunk, tail};
use crate::documents::rev_tree::{LeafBody, TreeLeaf, needs_chunk, unused_chunks};
use crate::documents::{Revision, RevisionId};

/// Records that are committed together, and the effects of their commit.
#[derive(Default)]
pub(super) struct Records {
    pub(super) batch: Batch,
    /// Guards of the uploads that these documents refer to.
    pub(super) guards: Vec<Arc<UploadGuard>>,
    /// Uploads for which these records contain an intent.
    pub(super) unreferenced: Vec<UnreferencedUpload>,
    /// The setting or counter among them.
    pub(super) number: Option<(Counter, u64)>,
    /// Whether they change or purge a document, of which `_db_updates` subscribers are notified.
    pub(super) notifies_db_updates: bool,
    /// Whether a design document is among them.
    pub(super) has_design: bool,
}

impl Records {
    /// Appends another edit's records.
    pub(super) fn extend(&mut self, other: Records) {
        if self.batch.is_empty() {
            self.batch = other.batch;
        } else {
            self.batch.extend(&other.batch);
        }
        self.guards.extend(other.guards);
        self.unreferenced.extend(other.unreferenced);
        self.number = other.number.or(self.number);
        self.notifies_db_updates |= other.notifies_db_updates;
        self.has_design |= other.has_design;
    }
}

/// The records that turn a document's tree from `old` into `new`, with `revs_limit` revisions kept of each
/// path.
pub(super) async fn rewrite(
    latest: &StoreSnapshot,
    id: &str,
    old: &[TreeLeaf],
    new: &[TreeLeaf],
    revs_limit: u32,
) -> Result<Records> {
    let has_design = id.starts_with(DESIGN_PREFIX);
    let mut records = Records { notifies_db_updates: true, has_design, ..Records::default() };
    let batch = &mut records.batch;
    let mut is_pruning_due = false;
    let winner = new.iter().map(TreeLeaf::rank).max().expect("a tree has a leaf");
    let has_conflicts = new.len() > 1;
    for leaf in new {
        let wins = leaf.rank() == winner;
        // Its key doesn't change.
        if matches!(leaf.body, LeafBody::Stored(_)) && !wins && !leaf.stored_as_winner {
            continue;
        }
        let (meta, value) = encode(latest, leaf, wins && has_conflicts).await?;
        match wins {
            true => batch.put_value(&document_key(id), &meta, value, true),
            false => batch.put_value(&conflict_key(id, &leaf.revision), &meta, value, false),
        }
        if matches!(leaf.body, LeafBody::New(..)) {
            let ends_path_chunk = leaf.revision.generation.is_multiple_of(PATH_CHUNK_COUNT);
            let has_put = put_chunks(batch, latest, id, leaf, !has_conflicts, revs_limit).await?;
            is_pruning_due |= has_put || ends_path_chunk;
        } else if wins && !leaf.stored_as_winner {
            batch.delete(&conflict_key(id, &leaf.revision));
        }
    }
    let kept = revisions(new);
    for leaf in old.iter().filter(|leaf| !leaf.stored_as_winner) {
        if !kept.contains(&leaf.revision) {
            batch.delete(&conflict_key(id, &leaf.revision));
        }
    }
    if is_pruning_due {
        prune(batch, latest, id, new, revs_limit).await?;
    }
    remove_unused_attachments(&mut records, latest, id, old, new).await?;
    Ok(records)
}

/// A leaf's meta and value. The value of a stored leaf, which has its tail, is read.
async fn encode(latest: &StoreSnapshot, leaf: &TreeLeaf, has_conflicts: bool) -> Result<(Vec<u8>, Value)> {
    let TreeLeaf { deleted, has_attachments, has_tail_in_value, out_of_line_bytes, .. } = *leaf;
    let state = LeafState { deleted, has_conflicts, has_attachments, has_tail_in_value, out_of_line_bytes };
    let generation = leaf.revision.generation;
    match &leaf.body {
        LeafBody::New(content, _) => Ok(encode_leaf(generation, &leaf.path, state, content)),
        LeafBody::Stored(location) => {
            let in_meta = if has_tail_in_value { 0 } else { tail(generation, &leaf.path).len() };
            let meta = encode_leaf_meta(generation, &leaf.path[..1 + in_meta], state);
            Ok((meta, Value::new(latest.read(*location).await?.value())))
        }
    }
}

fn revisions(leaves: &[TreeLeaf]) -> HashSet<&Revision> {
    leaves.iter().map(|leaf| &leaf.revision).collect()
}

/// Removes path chunks that have become too old for every leaf. It looks only at the oldest ones and runs
/// once in [`PATH_CHUNK_COUNT`] generations, so that updates stay cheap; a path exceeds the limit by less
/// than two chunks.
async fn prune(
    batch: &mut Batch,
    latest: &StoreSnapshot,
    id: &str,
    new: &[TreeLeaf],
    revs_limit: u32,
) -> Result<()> {
    let newest = new.iter().map(|leaf| leaf.revision.generation).max().unwrap_or(0);
    let up_to = newest.saturating_add(1).saturating_sub(revs_limit);
    if up_to < PATH_CHUNK_COUNT {
        return Ok(());
    }
    for key in unused_chunks(latest, id, &mut new.to_vec(), up_to, revs_limit).await? {
        batch.delete(&key);
    }
    Ok(())
}

/// Removes the uploads that only removed leaves referred to.
pub(super) async fn remove_unused_attachments(
    records: &mut Records,
    latest: &StoreSnapshot,
    id: &str,
    old: &[TreeLeaf],
    new: &[TreeLeaf],
) -> Result<()> {
    let kept = revisions(new);
    let is_removed = |leaf: &&TreeLeaf| !kept.contains(&leaf.revision);
    let mut unused: Vec<Attachment> = Vec::new();
    for leaf in old.iter().filter(is_removed) {
        unused.extend_from_slice(&leaf.attachments(latest).await?);
    }
    if unused.is_empty() {
        return Ok(());
    }
    let mut kept: Vec<Attachment> = Vec::new();
    for leaf in new {
        kept.extend_from_slice(&leaf.attachments(latest).await?);
    }
    records.unreferenced.extend(remove_unused(id, &unused, &kept, &mut records.batch)?);
    Ok(())
}

/// Adds the chunks of a new leaf's path that aren't stored, or are stored with fewer ancestors: a replica may
/// know more of the path than an earlier one. Chunks that are too old are left out, and so are ancestors. Removes
/// the chunks that a long one replaces if the leaf is the document's only one, since other paths may need them.
/// Returns whether any were added.
async fn put_chunks(
    batch: &mut Batch,
    latest: &StoreSnapshot,
    id: &str,
    leaf: &TreeLeaf,
    is_only_leaf: bool,
    revs_limit: u32,
) -> Result<bool> {
    let mut has_put = false;
    for (chunk_revision, ancestors) in leaf.chunks() {
        if !needs_chunk(leaf.revision.generation, chunk_revision.generation, revs_limit) {
            break;
        }
        let ancestors = &ancestors[..ancestors.len().min(revs_limit as usize - 1)];
        if put_chunk(batch, latest, id, &chunk_revision, ancestors).await? {
            has_put = true;
            if is_only_leaf && chunk_revision.generation.is_multiple_of(LONG_CHUNK_COUNT) {
                remove_replaced_chunks(batch, latest, id, &chunk_revision, ancestors).await?;
            }
        }
    }
    Ok(has_put)
}

/// Removes the chunks whose ancestors are all among those of a long chunk.
async fn remove_replaced_chunks(
    batch: &mut Batch,
    latest: &StoreSnapshot,
    id: &str,
    long: &Revision,
    ancestors: &[RevisionId],
) -> Result<()> {
    for back in (PATH_CHUNK_COUNT..LONG_CHUNK_COUNT).step_by(PATH_CHUNK_COUNT as usize) {
        let Some(ancestor) = ancestors.get(back as usize - 1) else { break };
        let key = path_key(id, &Revision { generation: long.generation - back, id: ancestor.clone() });
        let stored = latest.get(&key).await?;
        if stored.is_some_and(|chunk| back as usize + decode_chunk_count(&chunk.meta) <= ancestors.len()) {
            batch.delete(&key);
        }
    }
    Ok(())
}

/// Adds the chunk of a revision's ancestors unless it is stored with as many.
async fn put_chunk(
    batch: &mut Batch,
    latest: &StoreSnapshot,
    id: &str,
    revision: &Revision,
    ancestors: &[RevisionId],
) -> Result<bool> {
    let key = path_key(id, revision);
    let stored_count = latest.get(&key).await?.map_or(0, |chunk| decode_chunk_count(&chunk.meta));
    if stored_count >= ancestors.len() {
        return Ok(false);
    }
    let (meta, value) = encode_chunk(ancestors);
    batch.put(&key, &meta, value.into(), false);
    Ok(true)
}
