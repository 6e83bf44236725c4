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
use std::sync::Arc;

use bytes::Bytes;
use settee_store::{BATCH_SIZE_MAX, Batch, KEY_SIZE_MAX, Seq, Snapshot, Stage, Value, Writer};

use crate::attachment::{
    Attachment, BODY_NAME, Claim, Content, NewAttachment, Orphan, encode_table, remove_unused,
};
use crate::database::Database;
use crate::databases::Changed;
use crate::design::DESIGN_PREFIX;
use crate::edit::{Edit, check_document_id};
use crate::keys::{
    PATH_CHUNK_COUNT, chunk_boundary, conflict_key, decode_chunk_meta, document_key, encode_chunk_meta,
    encode_leaf_meta, encode_number, local_key, path_key,
};
use crate::numbers::Number;
use crate::partition::{partition_of, partition_prefix};
use crate::revision::Revision;
use crate::tree::{Body, Leaf, leaves, merge, needs_chunk, unused_chunks};
use crate::view::View;
use crate::{Error, ErrorKind, Result};

mod purge;
mod stubs;
mod validation;

use stubs::Stubs;

/// Edits that come together are committed together up to this many bytes.
const BATCH_BYTES: usize = 1 << 20;

/// Deletions of what no document refers to that one sweep commits, in bytes; the next goes on.
const SWEPT_BYTES_MAX: usize = 16 << 20;

/// The most that [`crate::Options::document_bytes_max`] may be: a batch holds two documents of
/// that size, which is what it takes when a leaf loses to another.
pub const DOCUMENT_BYTES_LIMIT: usize = BATCH_SIZE_MAX / 2 - 4 * KEY_SIZE_MAX;

/// In front of a stored body: its bytes follow as they are.
pub(crate) const ENCODING_PLAIN: u8 = 0;

/// In front of a stored body: a table of attachments comes first.
pub(crate) const ENCODING_ATTACHMENTS: u8 = 1;

/// In front of a table of attachments whose last entry is the body, which stands apart.
pub(crate) const ENCODING_APART: u8 = 2;

/// The one updater of a database, for the edits of one request.
pub(crate) struct Updater<'a> {
    database: &'a Database,
    writer: Writer<'a>,
    stage: Stage,
    /// How many revisions of a path are kept.
    revs_limit: u32,
    records: Records,
    /// Ids whose edits are among the records, and so not in the index yet.
    touched: HashSet<String>,
    /// Whether all of the records delete.
    deletes_alone: bool,
    /// Whether what an edit let go of is left to be removed.
    is_sweep_due: bool,
    news: News<'a>,
}

/// Records that are committed together, and what is to be told then.
#[derive(Default)]
struct Records {
    batch: Batch,
    /// Uploads that documents among them refer to.
    claims: Vec<Arc<Claim>>,
    /// What they mark as let go of.
    orphans: Vec<Orphan>,
    /// One of the database's numbers that is among them.
    number: Option<(Number, u64)>,
    /// Whether there is a document's among them.
    is_change: bool,
    /// Whether there is a design document's among them.
    has_design: bool,
}

/// Tells those who follow all databases what was accepted: when it goes, and so also where whoever wrote
/// it doesn't wait for the rest.
pub(crate) struct News<'a> {
    changed: &'a Changed,
    is_due: bool,
}

impl Drop for News<'_> {
    fn drop(&mut self) {
        if self.is_due {
            self.changed.note();
        }
    }
}

/// What an edit comes to.
struct Decided<T> {
    outcome: T,
    records: Records,
}

/// What of an edit's failure ends the whole request: nothing more can be accepted.
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
            news: News { changed: &database.changed, is_due: false },
        }
    }

    /// Removes what no document refers to, before any edit. Its failure isn't the edits': what is left is
    /// left to the next updater.
    pub(crate) async fn sweep(&mut self) {
        if let Err(error) = self.try_sweep().await {
            // Each update would say so; why is told by whoever has failed.
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
            let mut taken = self.database.orphans.take();
            let (mut batch, mut rest) = (Batch::new(), None);
            while batch.size() < BATCH_BYTES
                && let Some(lot) = taken.next()
            {
                match self.writer.get(&lot.mark_key()).await? {
                    Some(_) => rest = lot.clone().remove(BATCH_BYTES, &mut batch),
                    // A document has taken it in, or the update that let go of it wasn't accepted.
                    None => taken.forget_last(),
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

    /// An interactive edit: it replaces a leaf, or makes a new document.
    pub(crate) async fn update(&mut self, edit: &Edit) -> Outcome<Revision> {
        self.prepare(edit).await?;
        let checked = self.is_checked(edit).await?;
        let decided = self.decide_update(edit, checked).await;
        self.add(edit, decided).await
    }

    /// A replicated edit: its path is merged into the tree.
    pub(crate) async fn replicate(&mut self, edit: &Edit) -> Outcome<Revision> {
        self.prepare(edit).await?;
        let checked = self.is_checked(edit).await?;
        let decided = self.decide_replicated(edit, checked).await;
        self.add(edit, decided).await
    }

    /// A local document: written as it comes, without its attachments, with the number after the one it
    /// names. Returns the new number; 0 where it is deleted.
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

    /// Commits what is left. Returns the last `Seq` accepted so far, by whomever: whoever is told of an
    /// outcome waits for it, and lets go of the news then.
    pub(crate) async fn finish(mut self) -> Result<(Seq, News<'a>)> {
        self.commit().await?;
        if self.is_sweep_due {
            self.sweep().await;
        }
        Ok((self.writer.last_seq(), self.news))
    }

    /// Lets an edit see those of its own request.
    async fn prepare(&mut self, edit: &Edit) -> Result<()> {
        if self.touched.contains(&edit.id) { self.commit().await } else { Ok(()) }
    }

    /// Adds an edit's records to those that wait to be committed.
    async fn add<T>(&mut self, edit: &Edit, decided: Result<Decided<T>>) -> Outcome<T> {
        let Decided { outcome, records } = match decided {
            Ok(decided) => decided,
            Err(error) => return Ok(Err(error)),
        };
        if records.batch.size() > BATCH_SIZE_MAX {
            // The log would refuse it with the whole request.
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
        // Before the commit, whose future may be dropped: without their marks they are forgotten again.
        self.is_sweep_due |= !records.orphans.is_empty();
        records.orphans.drain(..).for_each(|orphan| self.database.orphans.push(orphan));
        if records.has_design {
            self.forget_validation();
        }
        let seq = self.writer.commit(&records.batch, self.stage).await?;
        records.claims.iter().for_each(|claim| claim.keep());
        self.news.is_due |= records.is_change;
        if let Some((number, value)) = records.number {
            self.database.accept_number(seq, number, value);
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
        // What an interactive edit brings is new with it, whatever a client says it came with.
        let attachments = attachments_of(edit, &stubs, |_| generation)?;
        let digest = digest(edit, &attachments);
        let revision = Revision::next(parent.map(|leaf| leaf.revision), edit.deleted, &digest);
        let revision = revision.ok_or_else(|| Error::bad_request("the document has too many revisions"))?;
        let mut path = vec![revision.hash];
        path.extend(parent.iter().flat_map(|leaf| &leaf.path));
        let replaced = parent.map(|leaf| leaf.revision);
        let mut new: Vec<Leaf> = old.iter().filter(|leaf| Some(leaf.revision) != replaced).cloned().collect();
        let leaf = new_leaf(edit, revision, path, attachments)?;
        self.check_partition(&latest, &edit.id, parent, &leaf).await?;
        new.push(leaf);
        let mut records = rewrite(&latest, &edit.id, &old, &new, self.revs_limit).await?;
        take_in(edit, &mut records);
        Ok(Decided { outcome: revision, records })
    }

    /// Refuses an edit that makes a full partition larger. The one that fills it is taken.
    async fn check_partition(
        &self,
        latest: &Snapshot,
        id: &str,
        parent: Option<&Leaf>,
        leaf: &Leaf,
    ) -> Result<()> {
        let Some(partition) = partition_of(id).filter(|_| self.database.is_partitioned()) else {
            return Ok(());
        };
        let bytes_max = self.database.rules.partition_bytes_max();
        let view = View::new(self.writer.latest(), self.revs_limit, Arc::default());
        if view.counts(&partition_prefix(partition)).await?.bytes < bytes_max {
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
            // Known already: what came with it goes again.
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
        take_in(edit, &mut records);
        Ok(Decided { outcome: revision, records })
    }
}

impl Records {
    /// Adds others behind these.
    fn extend(&mut self, other: Records) {
        if self.batch.is_empty() {
            self.batch = other.batch;
        } else {
            self.batch.extend(&other.batch);
        }
        self.claims.extend(other.claims);
        self.orphans.extend(other.orphans);
        self.number = other.number.or(self.number);
        self.is_change |= other.is_change;
        self.has_design |= other.has_design;
    }
}

/// The attachments that an edit's revision has; `revpos` is what those that it brings came with.
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
            Err(Error::bad_request(format!("the content of attachment {} didn't come", new.name)))
        }
    };
    edit.attachments.iter().map(resolve).collect()
}

/// What a revision is named by beside its parent: the body's digest, or that and the attachments.
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

/// Makes an edit's uploads its document's, its body's among them.
fn take_in(edit: &Edit, records: &mut Records) {
    let uploads = edit.attachments.iter().filter_map(|new| match &new.content {
        Content::Stored(upload) => Some(upload),
        _ => None,
    });
    for upload in uploads.chain(&edit.ahead) {
        records.claims.push(upload.take_in(&mut records.batch));
    }
}

/// The records that turn a document's tree from `old` into `new`, `revs_limit` revisions of each
/// path kept.
async fn rewrite(
    latest: &Snapshot,
    id: &str,
    old: &[Leaf],
    new: &[Leaf],
    revs_limit: u32,
) -> Result<Records> {
    let has_design = id.starts_with(DESIGN_PREFIX);
    let mut records = Records { is_change: true, has_design, ..Records::default() };
    let batch = &mut records.batch;
    let mut is_pruning_due = false;
    let winner = new.iter().map(Leaf::rank).max().expect("a tree has a leaf");
    let has_conflicts = new.len() > 1;
    for leaf in new {
        let wins = leaf.rank() == winner;
        let body = match &leaf.body {
            Body::New(body, _) => body.clone(),
            // It stays where it is.
            Body::Stored(_) if !wins && !leaf.stored_as_winner => continue,
            Body::Stored(entry) => Value::new(latest.read(entry.location).await?.value()),
        };
        let generation = leaf.revision.generation;
        let meta = encode_leaf_meta(
            generation,
            &leaf.path,
            leaf.deleted,
            wins && has_conflicts,
            leaf.has_attachments,
            leaf.apart_bytes,
        );
        match wins {
            true => batch.put_value(&document_key(id), &meta, body, true),
            false => batch.put_value(&conflict_key(id, leaf.revision), &meta, body, false),
        }
        if matches!(leaf.body, Body::New(..)) {
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

fn revisions(leaves: &[Leaf]) -> HashSet<Revision> {
    leaves.iter().map(|leaf| leaf.revision).collect()
}

/// Removes the chunks that have become too old for every leaf. It looks at the oldest ones alone, and
/// comes once in [`PATH_CHUNK_COUNT`] generations: so updates cost what they did, and what is left of a
/// path over the limit is less than two chunks.
async fn prune(batch: &mut Batch, latest: &Snapshot, id: &str, new: &[Leaf], revs_limit: u32) -> Result<()> {
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

/// What the leaves that went had and no other has goes with them.
async fn remove_unused_attachments(
    records: &mut Records,
    latest: &Snapshot,
    id: &str,
    old: &[Leaf],
    new: &[Leaf],
) -> Result<()> {
    let kept = revisions(new);
    let is_gone = |leaf: &&Leaf| !kept.contains(&leaf.revision);
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
    records.orphans.extend(remove_unused(id, &unused, &kept, &mut records.batch)?);
    Ok(())
}

/// The chunks of a new leaf's path that aren't stored, or reach less far back there: a replica
/// may know more of the path than the one before it. Those that are too old are left out. Returns
/// whether there were any.
async fn put_chunks(
    batch: &mut Batch,
    latest: &Snapshot,
    id: &str,
    leaf: &Leaf,
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

/// What both kinds of edits of ordinary documents must be.
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
) -> Result<Leaf> {
    let mut apart_bytes = 0;
    let body = if let Some(upload) = &edit.ahead {
        apart_bytes = edit.body().len() as u32;
        attachments.push(upload.to_attachment(BODY_NAME, "", revision.generation));
        Value::new(encode_table(&attachments, b"", ENCODING_APART))
    } else if attachments.is_empty() {
        edit.stored().clone()
    } else {
        Value::new(encode_table(&attachments, &edit.body(), ENCODING_ATTACHMENTS))
    };
    if body.bytes().len() > 1 + DOCUMENT_BYTES_LIMIT {
        return Err(Error::new(ErrorKind::TooLarge, edit.id.clone()));
    }
    let (deleted, has_attachments) = (edit.deleted, !attachments.is_empty());
    let body = Body::New(body, attachments);
    Ok(Leaf { revision, deleted, path, body, has_attachments, apart_bytes, stored_as_winner: false })
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
