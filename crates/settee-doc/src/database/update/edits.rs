//! Interactive, replicated and local edits: whether an edit is accepted, and its records.
//!
//! Each edit passes `prepare`, `check_validation`, a `decide_…` function and `add` in this order; a local edit
//! is decided in its method and isn't validated. Nothing is accepted before
//! `add` or the updater's `finish` commits.

use std::sync::Arc;

use settee_io::yield_now;
use settee_store::{Batch, Snapshot as StoreSnapshot, Value};

use super::check::{Checked, Validated};
use super::records::{Records, rewrite};
use super::stubs::Stubs;
use super::updater::{Decided, Outcome, ReadBefore, Updater};
use crate::attachments::{Attachment, Content, NewAttachment};
use crate::database::snapshot::Snapshot;
use crate::documents::keys::{LeafState, encode_number, local_key, path_key};
use crate::documents::leaf_value::{BODY_NAME, ENCODING_ATTACHMENTS, ENCODING_OUT_OF_LINE, encode_table};
use crate::documents::path::{chunk_boundary, chunk_length, decode_chunk_count, has_tail};
use crate::documents::rev_tree::{TreeLeaf, leaves, merge};
use crate::documents::{Edit, Revision, RevisionId, check_document_id, partition_of, partition_prefix};
use crate::{Error, ErrorKind, Result};

/// Number of edits between two yields to other tasks.
const EDITS_PER_YIELD: usize = 32;

/// How edits are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EditKind {
    /// An edit replaces a leaf, or creates a document.
    Interactive,
    /// An edit's path is merged into the tree (`new_edits=false`).
    Replicated,
}

impl Updater<'_> {
    /// Makes edits, for which `read` was read, and appends their outcomes.
    ///
    /// # Errors
    /// A commit failed; later edits weren't tried.
    pub(crate) async fn make_edits(
        &mut self,
        edits: &[Edit],
        kind: EditKind,
        mut read: ReadBefore,
        outcomes: &mut Vec<Result<Revision>>,
    ) -> Result<()> {
        let mut uncompilable = std::mem::take(&mut read.uncompilable);
        let mut validated = std::mem::take(&mut read.validated);
        self.stopped = read.stopped.take();
        self.use_read(read).await?;
        for (edit, index) in edits.iter().zip(0_usize..) {
            if index > 0 && index % EDITS_PER_YIELD == 0 {
                // Edits of documents whose index is in memory never wait.
                yield_now().await;
            }
            self.prepare(edit).await?;
            let ahead = validated.remove(&index);
            let stopped = ahead.as_ref().and_then(Validated::stopped_function);
            let mut checked = self.check_validation(edit, ahead).await?;
            if let Some(error) = uncompilable.remove(&index) {
                checked = checked.and(Err(error));
            }
            let decided = match kind {
                EditKind::Interactive => self.decide_update(edit, checked).await,
                EditKind::Replicated => self.decide_replicated(edit, checked).await,
            };
            outcomes.push(self.add(edit, decided).await?);
            self.stopped = self.stopped.take().or(stopped);
        }
        Ok(())
    }

    /// Writes or deletes a local document, without its attachments; its number is the edit's plus 1. Returns
    /// the new number; 0 after a deletion.
    pub(crate) async fn update_local(&mut self, id: &str, edit: &Edit) -> Outcome<u64> {
        self.prepare(edit).await?;
        let key = local_key(id);
        if edit.body().len() > self.database.leaf_bytes_max {
            return Ok(Err(Error::new(ErrorKind::TooLarge, edit.id.clone())));
        }
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
            batch.put_value(&key, &encode_number(number), edit.stored().clone(), false);
        }
        let records = Records { batch, ..Records::default() };
        self.add(edit, Ok(Decided { outcome: number, records })).await
    }

    async fn decide_update(&mut self, edit: &Edit, checked: Checked) -> Result<Decided<Revision>> {
        check_edit(edit)?;
        let latest = self.writer.latest();
        let mut old = leaves(&latest, &edit.id).await?;
        let parent = match (&edit.revision, old.first()) {
            (None, None) => None,
            (None, Some(winner)) if winner.deleted && !edit.deleted => Some(0),
            (Some(revision), Some(_)) => {
                Some(old.iter().position(|leaf| leaf.revision == *revision).ok_or_else(Error::conflict)?)
            }
            _ => return Err(Error::conflict()),
        };
        let check = checked?;
        let mut generation = 1;
        if let Some(parent) = parent {
            let parent = &mut old[parent];
            generation = parent.revision.generation.saturating_add(1);
            self.read_tail(&latest, parent).await?;
            if !has_tail(generation) {
                // The new leaf's chunk lists these ancestors.
                parent.complete_path(&latest, &edit.id, generation - chunk_length(generation)).await?;
            }
        }
        let parent = parent.map(|parent| &old[parent]);
        let stubs = Stubs::of_update(&latest, edit, parent).await?;
        // New attachments of an interactive edit get its generation, whatever the client states.
        let attachments = attachments_of(edit, &stubs, |_| generation)?;
        if let Some(check) = check {
            self.validate_update(check, edit, &attachments, parent).await?;
        }
        let digest = digest(edit, &attachments);
        let revision = Revision::next(parent.map(|leaf| &leaf.revision), edit.deleted, &digest);
        let revision = revision.ok_or_else(|| Error::bad_request("the document has too many revisions"))?;
        let mut path = vec![revision.id.clone()];
        path.extend(parent.iter().flat_map(|leaf| leaf.path.iter().cloned()));
        let replaced = parent.map(|leaf| &leaf.revision);
        let mut new: Vec<TreeLeaf> =
            old.iter().filter(|leaf| Some(&leaf.revision) != replaced).cloned().collect();
        let leaf = new_leaf(edit, revision.clone(), path, attachments, self.database.leaf_bytes_max)?;
        self.check_partition(&latest, &edit.id, parent, &leaf).await?;
        new.push(leaf);
        let mut records = rewrite(&latest, &edit.id, &old, &new, self.revs_limit).await?;
        reference_uploads(edit, &mut records);
        Ok(Decided { outcome: revision, records })
    }

    /// Refuses an edit that enlarges a full partition. The edit that fills it is accepted.
    async fn check_partition(
        &mut self,
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

    async fn decide_replicated(&mut self, edit: &Edit, checked: Checked) -> Result<Decided<Revision>> {
        check_edit(edit)?;
        let revision = edit.revision.clone().ok_or_else(|| {
            Error::bad_request("When `new_edits: false`, the document needs `_rev` or `_revisions` specified")
        })?;
        if revision.generation == 0 {
            return Err(Error::bad_request("Invalid rev format"));
        }
        let path = edit.path(&revision);
        let latest = self.writer.latest();
        let mut old = leaves(&latest, &edit.id).await?;
        for leaf in old.iter_mut().filter(|leaf| leaf.revision.generation > revision.generation) {
            leaf.read_tail(&latest).await?;
        }
        let mut new = old.clone();
        if old.iter().any(|leaf| leaf.descends_from(&revision)) {
            // Already known: the uploads that came with it are removed.
            return Ok(Decided { outcome: revision, records: Records::default() });
        }
        let check = checked?;
        let stubs = Stubs::of_replica(&latest, edit, &revision, &path, &old).await?;
        let revpos = |new: &NewAttachment| new.revpos.unwrap_or(revision.generation);
        let attachments = attachments_of(edit, &stubs, revpos)?;
        if let Some(check) = check {
            self.validate_replica(check, edit, &attachments, &revision, &path, &old).await?;
        }
        let leaf = new_leaf(edit, revision.clone(), path, attachments, self.database.leaf_bytes_max)?;
        let joins_at = generation_to_join(&latest, &edit.id, &leaf).await?;
        for known in &mut new {
            known.complete_path(&latest, &edit.id, joins_at.unwrap_or(revision.generation)).await?;
            if joins_at.is_some_and(|generation| known.revision.generation == generation) {
                known.read_tail(&latest).await?;
            }
        }
        if !merge(&mut new, leaf) {
            return Ok(Decided { outcome: revision, records: Records::default() });
        }
        let mut records = rewrite(&latest, &edit.id, &old, &new, self.revs_limit).await?;
        reference_uploads(edit, &mut records);
        Ok(Decided { outcome: revision, records })
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
    path: Vec<RevisionId>,
    mut attachments: Vec<Attachment>,
    leaf_bytes_max: usize,
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
    if body.bytes().len() > 1 + leaf_bytes_max {
        return Err(Error::new(ErrorKind::TooLarge, edit.id.clone()));
    }
    let (deleted, has_attachments) = (edit.deleted, !attachments.is_empty());
    let state = LeafState { deleted, has_attachments, out_of_line_bytes, ..LeafState::default() };
    Ok(TreeLeaf::new(revision, path, state, body, attachments))
}

/// The oldest generation of a new leaf's path, if the path may join a stored one there that continues further
/// back.
///
/// `None` if a full chunk is stored for a revision on the path, or the path is complete: then the older part is
/// known.
async fn generation_to_join(latest: &StoreSnapshot, id: &str, leaf: &TreeLeaf) -> Result<Option<u32>> {
    let generation = leaf.revision.generation;
    let oldest = generation - (leaf.path.len() as u32 - 1);
    let mut boundary = chunk_boundary(generation - 1);
    while boundary > 0 {
        let Some(ancestor_id) = leaf.ancestor(boundary) else {
            return Ok(Some(oldest));
        };
        let ancestor = Revision { generation: boundary, id: ancestor_id.clone() };
        let chunk = latest.get(&path_key(id, &ancestor)).await?;
        if chunk.is_some_and(|chunk| decode_chunk_count(&chunk.meta) >= chunk_length(boundary) as usize) {
            return Ok(None);
        }
        boundary = chunk_boundary(boundary - 1);
    }
    // No full chunk is stored for any revision on the path.
    Ok((oldest > 1).then_some(oldest))
}
