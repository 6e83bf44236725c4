//! Updates: edits are decided against the newest accepted state, by one updater at a time.
//!
//! Edits are checked against the index; a body is read only if its leaf moves to another key because the
//! winner has changed. The records of many edits are committed as one batch; those of one document are in one
//! batch, so that a document's update is atomic.
//!
//! Invariants:
//! 1. An edit sees all edits accepted before it, including those of its own request.
//! 2. The state that an edit's outcome depends on is accepted when the outcome is returned, and persisted
//!    when everything accepted so far is persisted.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use settee_store::{
    BATCH_SIZE_MAX, Batch, KEY_SIZE_MAX, Seq, Snapshot as StoreSnapshot, Stage, Value, Writer,
};

use crate::attachment::{
    Attachment, BODY_NAME, Content, NewAttachment, UnreferencedUpload, UploadGuard, encode_table,
    remove_unused,
};
use crate::counters::Counter;
use crate::database::Database;
use crate::databases::UpdateNotifier;
use crate::design::DESIGN_PREFIX;
use crate::edit::{Edit, check_document_id};
use crate::keys::{
    PATH_CHUNK_COUNT, chunk_boundary, conflict_key, decode_chunk_meta, document_key, encode_chunk_meta,
    encode_leaf_meta, encode_number, local_key, path_key,
};
use crate::partition::{partition_of, partition_prefix};
use crate::rev_tree::{LeafBody, TreeLeaf, leaves, merge, needs_chunk, unused_chunks};
use crate::revision::Revision;
use crate::snapshot::Snapshot;
use crate::{Error, ErrorKind, Result};

mod purge;
mod stubs;
mod validation;

use stubs::Stubs;

/// Edits of a request are committed together up to this many bytes.
const BATCH_BYTES: usize = 1 << 20;

/// Bytes of deletions of unreferenced uploads that one sweep commits; the next sweep continues.
const SWEPT_BYTES_MAX: usize = 16 << 20;

/// Upper limit of [`crate::Options::document_bytes_max`]: a batch must hold two documents of that size, when
/// a leaf loses to another.
pub const DOCUMENT_BYTES_LIMIT: usize = BATCH_SIZE_MAX / 2 - 4 * KEY_SIZE_MAX;

/// Encoding byte of a stored body: the body follows.
pub(crate) const ENCODING_PLAIN: u8 = 0;

/// Encoding byte of a stored body: a table of attachments precedes the body.
pub(crate) const ENCODING_ATTACHMENTS: u8 = 1;

/// Encoding byte of a table of attachments whose last entry is the out-of-line body.
pub(crate) const ENCODING_OUT_OF_LINE: u8 = 2;

/// The only updater of a database, for the edits of one request.
pub(crate) struct Updater<'a> {
    database: &'a Database,
    writer: Writer<'a>,
    stage: Stage,
    /// Number of revisions kept per path.
    revs_limit: u32,
    records: Records,
    /// Ids whose edits are among the records, and therefore not in the index yet.
    touched: HashSet<String>,
    /// Whether all of the records are deletions.
    deletes_alone: bool,
    /// Whether an edit left unreferenced uploads to be removed.
    is_sweep_due: bool,
    notification: NotifyOnDrop<'a>,
}

/// Records that are committed together, and the effects of their commit.
#[derive(Default)]
struct Records {
    batch: Batch,
    /// Guards of the uploads that these documents refer to.
    guards: Vec<Arc<UploadGuard>>,
    /// Uploads for which these records contain an intent.
    unreferenced: Vec<UnreferencedUpload>,
    /// The setting or counter among them.
    number: Option<(Counter, u64)>,
    /// Whether a document is among them.
    is_change: bool,
    /// Whether a design document is among them.
    has_design: bool,
}

/// Notifies `_db_updates` subscribers of an accepted change on drop, so also when the writer is cancelled.
pub(crate) struct NotifyOnDrop<'a> {
    changed: &'a UpdateNotifier,
    is_due: bool,
}

impl Drop for NotifyOnDrop<'_> {
    fn drop(&mut self) {
        if self.is_due {
            self.changed.register();
        }
    }
}

/// The decision on an edit.
struct Decided<T> {
    outcome: T,
    records: Records,
}

/// The inner error refuses one edit; the outer error ends the whole request, since nothing more can be
/// accepted.
type Outcome<T> = Result<Result<T>>;

impl<'a> Updater<'a> {
    pub(crate) fn new(database: &'a Database, writer: Writer<'a>, stage: Stage) -> Updater<'a> {
        Updater {
            database,
            writer,
            stage,
            revs_limit: database.path_limit(),
            records: Records::default(),
            touched: HashSet::new(),
            deletes_alone: true,
            is_sweep_due: false,
            notification: NotifyOnDrop { changed: &database.update_notifier, is_due: false },
        }
    }

    /// Removes unreferenced uploads, before any edit. A failure doesn't affect the edits; the next updater
    /// tries again.
    pub(crate) async fn sweep(&mut self) {
        if let Err(error) = self.try_sweep().await {
            // Only at debug level, since each update would repeat it; the failure's cause is logged by its
            // origin.
            tracing::debug!(
                database = self.database.name(),
                %error,
                "uploads that no document refers to could not be removed yet"
            );
        }
    }

    async fn try_sweep(&mut self) -> Result<()> {
        let mut swept_bytes = 0;
        while swept_bytes < SWEPT_BYTES_MAX {
            let mut taken = self.database.unreferenced.take();
            let (mut batch, mut rest) = (Batch::new(), None);
            while batch.size() < BATCH_BYTES
                && let Some(unreferenced) = taken.next()
            {
                match self.writer.get(&unreferenced.intent_key()).await? {
                    Some(_) => rest = unreferenced.clone().remove(BATCH_BYTES, &mut batch),
                    // A document refers to it now, or the update that wrote the intent wasn't accepted.
                    None => taken.discard_last(),
                }
            }
            if batch.is_empty() {
                return Ok(());
            }
            batch.use_reserve();
            self.writer.commit(&batch, self.stage).await?;
            taken.removed(rest);
            swept_bytes += batch.size();
        }
        Ok(())
    }

    /// Makes an interactive edit: it replaces a leaf, or creates a document.
    pub(crate) async fn update(&mut self, edit: &Edit) -> Outcome<Revision> {
        self.prepare(edit).await?;
        let checked = self.is_checked(edit).await?;
        let decided = self.decide_update(edit, checked).await;
        self.add(edit, decided).await
    }

    /// Makes a replicated edit: its path is merged into the tree.
    pub(crate) async fn replicate(&mut self, edit: &Edit) -> Outcome<Revision> {
        self.prepare(edit).await?;
        let checked = self.is_checked(edit).await?;
        let decided = self.decide_replicated(edit, checked).await;
        self.add(edit, decided).await
    }

    /// Writes or deletes a local document, without its attachments; its number is the edit's plus 1. Returns
    /// the new number; 0 after a deletion.
    pub(crate) async fn update_local(&mut self, id: &str, edit: &Edit) -> Outcome<u64> {
        self.prepare(edit).await?;
        let key = local_key(id);
        if edit.revision.is_some() || edit.foreign_revision.is_some() {
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
            batch.put_value(&key, &encode_number(number), edit.stored().clone(), false);
        }
        let records = Records { batch, ..Records::default() };
        self.add(edit, Ok(Decided { outcome: number, records })).await
    }

    /// Commits the remaining records. Returns the last `Seq` accepted by any updater, which the caller must
    /// wait for, and the notification, which the caller drops then.
    pub(crate) async fn finish(mut self) -> Result<(Seq, NotifyOnDrop<'a>)> {
        self.commit().await?;
        if self.is_sweep_due {
            self.sweep().await;
        }
        Ok((self.writer.last_seq(), self.notification))
    }

    /// Commits earlier edits of the same request to this document, so that this edit sees them.
    async fn prepare(&mut self, edit: &Edit) -> Result<()> {
        if self.touched.contains(&edit.id) { self.commit().await } else { Ok(()) }
    }

    /// Adds an edit's records to those that will be committed.
    async fn add<T>(&mut self, edit: &Edit, decided: Result<Decided<T>>) -> Outcome<T> {
        let Decided { outcome, records } = match decided {
            Ok(decided) => decided,
            Err(error) => return Ok(Err(error)),
        };
        if records.batch.size() > BATCH_SIZE_MAX {
            // The log would refuse it together with the rest of the request.
            return Ok(Err(Error::new(ErrorKind::TooLarge, edit.id.clone())));
        }
        if self.records.batch.size() + records.batch.size() > BATCH_BYTES {
            self.commit().await?;
        }
        self.deletes_alone &= edit.deleted && edit.body().is_empty();
        self.touched.insert(edit.id.clone());
        self.records.extend(records);
        Ok(Ok(outcome))
    }

    async fn commit(&mut self) -> Result<()> {
        let mut records = std::mem::take(&mut self.records);
        self.touched.clear();
        let deletes_alone = std::mem::replace(&mut self.deletes_alone, true);
        if records.batch.is_empty() {
            return Ok(());
        }
        if deletes_alone {
            records.batch.use_reserve();
        }
        // Before the commit, whose future may be dropped: without their intents they are removed from the
        // queue again.
        self.is_sweep_due |= !records.unreferenced.is_empty();
        records.unreferenced.drain(..).for_each(|unreferenced| self.database.unreferenced.push(unreferenced));
        if records.has_design {
            self.invalidate_validation();
        }
        let seq = self.writer.commit(&records.batch, self.stage).await?;
        records.guards.iter().for_each(|guard| guard.confirm());
        self.notification.is_due |= records.is_change;
        if let Some((number, value)) = records.number {
            self.database.accept_counter(seq, number, value);
        }
        Ok(())
    }

    async fn decide_update(&self, edit: &Edit, checked: Result<()>) -> Result<Decided<Revision>> {
        check_edit(edit)?;
        let latest = self.writer.latest();
        let old = leaves(&latest, &edit.id).await?;
        let parent = match (edit.revision, old.first()) {
            (None, _) if edit.foreign_revision.is_some() => return Err(Error::conflict()),
            (None, None) => None,
            (None, Some(winner)) if winner.deleted && !edit.deleted => Some(winner),
            (Some(revision), Some(_)) => {
                Some(old.iter().find(|leaf| leaf.revision == revision).ok_or_else(Error::conflict)?)
            }
            _ => return Err(Error::conflict()),
        };
        checked?;
        let generation = parent.map_or(1, |leaf| leaf.revision.generation.saturating_add(1));
        let stubs = Stubs::of_update(&latest, edit, parent).await?;
        // New attachments of an interactive edit get its generation, whatever the client states.
        let attachments = attachments_of(edit, &stubs, |_| generation)?;
        let digest = digest(edit, &attachments);
        let revision = Revision::next(parent.map(|leaf| leaf.revision), edit.deleted, &digest);
        let revision = revision.ok_or_else(|| Error::bad_request("the document has too many revisions"))?;
        let mut path = vec![revision.hash];
        path.extend(parent.iter().flat_map(|leaf| &leaf.path));
        let replaced = parent.map(|leaf| leaf.revision);
        let mut new: Vec<TreeLeaf> =
            old.iter().filter(|leaf| Some(leaf.revision) != replaced).cloned().collect();
        let leaf = new_leaf(edit, revision, path, attachments)?;
        self.check_partition(&latest, &edit.id, parent, &leaf).await?;
        new.push(leaf);
        let mut records = rewrite(&latest, &edit.id, &old, &new, self.revs_limit).await?;
        reference_uploads(edit, &mut records);
        Ok(Decided { outcome: revision, records })
    }

    /// Refuses an edit that enlarges a full partition. The edit that fills it is accepted.
    async fn check_partition(
        &self,
        latest: &StoreSnapshot,
        id: &str,
        parent: Option<&TreeLeaf>,
        leaf: &TreeLeaf,
    ) -> Result<()> {
        let Some(partition) = partition_of(id).filter(|_| self.database.is_partitioned()) else {
            return Ok(());
        };
        let bytes_max = self.database.rules.partition_bytes_max();
        let snapshot = Snapshot::new(self.writer.latest(), self.revs_limit, Arc::default());
        if snapshot.counts(&partition_prefix(partition)).await?.bytes < bytes_max {
            return Ok(());
        }
        let before = match parent {
            Some(parent) => parent.stored_bytes(latest).await?,
            None => 0,
        };
        if leaf.deleted || leaf.stored_bytes(latest).await? <= before {
            return Ok(());
        }
        let reason = format!("Partition limit exceeded due to update on '{id}'");
        Err(Error::new(ErrorKind::PartitionOverflow, reason))
    }

    async fn decide_replicated(&self, edit: &Edit, checked: Result<()>) -> Result<Decided<Revision>> {
        check_edit(edit)?;
        if edit.foreign_revision.is_some() {
            return Err(Error::bad_request("Revisions have 32 hexadecimal digits here."));
        }
        let revision = edit.revision.ok_or_else(|| {
            Error::bad_request("When `new_edits: false`, the document needs `_rev` or `_revisions` specified")
        })?;
        let path = if edit.history.is_empty() { vec![revision.hash] } else { edit.history.clone() };
        let latest = self.writer.latest();
        let old = leaves(&latest, &edit.id).await?;
        let mut new = old.clone();
        if old.iter().any(|leaf| leaf.descends_from(revision)) {
            // Already known: the uploads that came with it are removed.
            return Ok(Decided { outcome: revision, records: Records::default() });
        }
        checked?;
        let stubs = Stubs::of_replica(&latest, edit, revision, &path, &old).await?;
        let revpos = |new: &NewAttachment| new.revpos.unwrap_or(revision.generation);
        let attachments = attachments_of(edit, &stubs, revpos)?;
        let leaf = new_leaf(edit, revision, path, attachments)?;
        let back_to = merge_depth(&latest, &edit.id, &leaf).await?;
        for known in &mut new {
            known.complete_path(&latest, &edit.id, back_to.min(revision.generation)).await?;
        }
        if !merge(&mut new, leaf) {
            return Ok(Decided { outcome: revision, records: Records::default() });
        }
        let mut records = rewrite(&latest, &edit.id, &old, &new, self.revs_limit).await?;
        reference_uploads(edit, &mut records);
        Ok(Decided { outcome: revision, records })
    }
}

impl Records {
    /// Appends another edit's records.
    fn extend(&mut self, other: Records) {
        if self.batch.is_empty() {
            self.batch = other.batch;
        } else {
            self.batch.extend(&other.batch);
        }
        self.guards.extend(other.guards);
        self.unreferenced.extend(other.unreferenced);
        self.number = other.number.or(self.number);
        self.is_change |= other.is_change;
        self.has_design |= other.has_design;
    }
}

/// The attachments of an edit's revision; `revpos` computes the generation of new ones.
fn attachments_of(
    edit: &Edit,
    stubs: &Stubs,
    revpos: impl Fn(&NewAttachment) -> u32,
) -> Result<Vec<Attachment>> {
    let resolve = |new: &NewAttachment| match &new.content {
        Content::Stored(upload) => Ok(upload.to_attachment(&new.name, &new.content_type, revpos(new))),
        Content::Stub(_) => stubs.find(new).cloned().ok_or_else(|| {
            let reason = format!("Invalid attachment stub in {} for {}", edit.id, new.name);
            Error::new(ErrorKind::MissingStub, reason)
        }),
        Content::Inline(..) | Content::Follows(..) => {
            Err(Error::bad_request(format!("the content of attachment {} is missing", new.name)))
        }
    };
    edit.attachments.iter().map(resolve).collect()
}

/// The edit's contribution to its revision's hash, besides the parent: the digest of the body and of the
/// attachments.
fn digest(edit: &Edit, attachments: &[Attachment]) -> [u8; 32] {
    if attachments.is_empty() {
        return *edit.digest();
    }
    let mut sorted: Vec<&Attachment> = attachments.iter().collect();
    sorted.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    let mut hasher = blake3::Hasher::new();
    hasher.update(edit.digest());
    for attachment in sorted {
        for text in [&attachment.name, &attachment.content_type] {
            hasher.update(&(text.len() as u64).to_le_bytes()).update(text.as_bytes());
        }
        hasher.update(&attachment.digest);
    }
    *hasher.finalize().as_bytes()
}

/// Makes an edit's uploads, including an out-of-line body, part of its document.
fn reference_uploads(edit: &Edit, records: &mut Records) {
    let uploads = edit.attachments.iter().filter_map(|new| match &new.content {
        Content::Stored(upload) => Some(upload),
        _ => None,
    });
    for upload in uploads.chain(&edit.uploaded_body) {
        records.guards.push(upload.reference(&mut records.batch));
    }
}

/// The records that turn a document's tree from `old` into `new`, with `revs_limit` revisions kept of each
/// path.
async fn rewrite(
    latest: &StoreSnapshot,
    id: &str,
    old: &[TreeLeaf],
    new: &[TreeLeaf],
    revs_limit: u32,
) -> Result<Records> {
    let has_design = id.starts_with(DESIGN_PREFIX);
    let mut records = Records { is_change: true, has_design, ..Records::default() };
    let batch = &mut records.batch;
    let mut is_pruning_due = false;
    let winner = new.iter().map(TreeLeaf::rank).max().expect("a tree has a leaf");
    let has_conflicts = new.len() > 1;
    for leaf in new {
        let wins = leaf.rank() == winner;
        let body = match &leaf.body {
            LeafBody::New(body, _) => body.clone(),
            // Its key doesn't change.
            LeafBody::Stored(_) if !wins && !leaf.stored_as_winner => continue,
            LeafBody::Stored(entry) => Value::new(latest.read(entry.location).await?.value()),
        };
        let generation = leaf.revision.generation;
        let meta = encode_leaf_meta(
            generation,
            &leaf.path,
            leaf.deleted,
            wins && has_conflicts,
            leaf.has_attachments,
            leaf.out_of_line_bytes,
        );
        match wins {
            true => batch.put_value(&document_key(id), &meta, body, true),
            false => batch.put_value(&conflict_key(id, leaf.revision), &meta, body, false),
        }
        if matches!(leaf.body, LeafBody::New(..)) {
            let begins_tail = generation % PATH_CHUNK_COUNT == 1;
            is_pruning_due |= put_chunks(batch, latest, id, leaf, revs_limit).await? || begins_tail;
        } else if wins && !leaf.stored_as_winner {
            batch.delete(&conflict_key(id, leaf.revision));
        }
    }
    let kept = revisions(new);
    for leaf in old.iter().filter(|leaf| !leaf.stored_as_winner) {
        if !kept.contains(&leaf.revision) {
            batch.delete(&conflict_key(id, leaf.revision));
        }
    }
    if is_pruning_due {
        prune(batch, latest, id, new, revs_limit).await?;
    }
    remove_unused_attachments(&mut records, latest, id, old, new).await?;
    Ok(records)
}

fn revisions(leaves: &[TreeLeaf]) -> HashSet<Revision> {
    leaves.iter().map(|leaf| leaf.revision).collect()
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
async fn remove_unused_attachments(
    records: &mut Records,
    latest: &StoreSnapshot,
    id: &str,
    old: &[TreeLeaf],
    new: &[TreeLeaf],
) -> Result<()> {
    let kept = revisions(new);
    let is_gone = |leaf: &&TreeLeaf| !kept.contains(&leaf.revision);
    let mut unused: Vec<Attachment> = Vec::new();
    for leaf in old.iter().filter(is_gone) {
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
/// know more of the path than an earlier one. Chunks that are too old are left out. Returns whether any were
/// added.
async fn put_chunks(
    batch: &mut Batch,
    latest: &StoreSnapshot,
    id: &str,
    leaf: &TreeLeaf,
    revs_limit: u32,
) -> Result<bool> {
    let mut has_put = false;
    for (leads_to, ancestors) in leaf.chunks() {
        if !needs_chunk(leaf.revision.generation, leads_to.generation, revs_limit) {
            break;
        }
        let key = path_key(id, leads_to);
        let stored = latest.get(&key).await?;
        let stored_count = stored.map_or(0, |chunk| decode_chunk_meta(&chunk.meta));
        if stored_count < ancestors.len() {
            let hashes = Bytes::copy_from_slice(ancestors.as_flattened());
            batch.put(&key, &encode_chunk_meta(ancestors.len()), hashes, false);
            has_put = true;
        }
    }
    Ok(has_put)
}

/// The checks common to interactive and replicated edits of ordinary documents.
fn check_edit(edit: &Edit) -> Result<()> {
    check_document_id(&edit.id)?;
    match edit.local_revision {
        Some(_) => Err(Error::bad_request("Invalid rev format")),
        None => Ok(()),
    }
}

fn new_leaf(
    edit: &Edit,
    revision: Revision,
    path: Vec<crate::Hash>,
    mut attachments: Vec<Attachment>,
) -> Result<TreeLeaf> {
    let mut out_of_line_bytes = 0;
    let body = if let Some(upload) = &edit.uploaded_body {
        out_of_line_bytes = edit.body().len() as u32;
        attachments.push(upload.to_attachment(BODY_NAME, "", revision.generation));
        Value::new(encode_table(&attachments, b"", ENCODING_OUT_OF_LINE))
    } else if attachments.is_empty() {
        edit.stored().clone()
    } else {
        Value::new(encode_table(&attachments, &edit.body(), ENCODING_ATTACHMENTS))
    };
    if body.bytes().len() > 1 + DOCUMENT_BYTES_LIMIT {
        return Err(Error::new(ErrorKind::TooLarge, edit.id.clone()));
    }
    let (deleted, has_attachments) = (edit.deleted, !attachments.is_empty());
    let body = LeafBody::New(body, attachments);
    Ok(TreeLeaf {
        revision,
        deleted,
        path,
        body,
        has_attachments,
        out_of_line_bytes,
        stored_as_winner: false,
    })
}

/// The oldest generation that matters for merging this leaf: its own, to see whether it already exists; or,
/// if its path is truncated before any stored chunk, the generation where it was truncated.
async fn merge_depth(latest: &StoreSnapshot, id: &str, leaf: &TreeLeaf) -> Result<u32> {
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
    // It reaches back to the first revision, or to the first chunk.
    Ok(if oldest == 1 { generation } else { oldest })
}
