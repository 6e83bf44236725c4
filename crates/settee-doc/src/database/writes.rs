//! Writes of documents: interactive, replicated and local edits, and purges.
//!
//! An edit's attachments are uploaded first, and so is a body that doesn't fit its leaf's record. One updater at
//! a time then decides edits and commits their records; the writer waits for the sync without holding the
//! updater, so that concurrent writes share it. The edits of a large request are made in groups, between which
//! other requests have their turn.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use settee_store::{Location, Lookup, READ_AHEAD_BYTES_MAX, Seq, Snapshot as StoreSnapshot, Stage};

use super::counters::Counter;
use super::state::Database;
use super::update::{EditKind, NotifyOnDrop, ReadBefore, StoppedFunction, Updater};
use crate::attachments::Content;
use crate::documents::design::{DESIGN_PREFIX, view_functions};
use crate::documents::keys::{LeafMeta, document_key};
use crate::documents::leaf_value::LeafValue;
use crate::documents::path::has_tail;
use crate::documents::{Edit, Revision, RevisionId, check_document_id};
use crate::{Error, ErrorKind, Result};

/// An edit's uploads up to this many bytes are written with the edit; the rest is written before. They fit a
/// batch besides two of the largest documents.
const WITH_EDIT_BYTES_MAX: u64 = 256 << 10;

/// Largest number of edits that are made together: their documents are looked up before the writer is waited
/// for, the entries found are in memory until the edits are committed, and other requests wait for the writer
/// meanwhile.
const EDITS_TOGETHER_MAX: usize = 512;

/// An accepted update.
struct Accepted<'a> {
    /// The last `Seq` accepted by any updater until then.
    seq: Seq,
    /// Dropped once the `Seq` has reached its stage, which notifies `_db_updates` subscribers.
    _notification: NotifyOnDrop<'a>,
}

impl Database {
    /// Makes one interactive edit: checks the revision that it replaces, creates the new one, and returns it
    /// once `stage` is reached. After the future is dropped, the edit may or may not have been made.
    ///
    /// # Errors
    /// Inner and outer errors of [`Database::update_all`]. After `Stopped` it is unknown whether the edit
    /// survives.
    pub async fn update(&self, edit: Edit, stage: Stage) -> Result<Revision> {
        let mut outcomes = self.update_all(vec![edit], stage).await?;
        outcomes.pop().expect("an outcome for each edit")
    }

    /// Makes interactive edits, each decided separately, in order; returns once all that succeeded have
    /// reached `stage`. Edits of other requests may come between them. After the future is dropped, any prefix
    /// of them may have been made.
    ///
    /// # Errors
    /// Inner: why an edit was refused. `Conflict` if its revision isn't a leaf; `IllegalDocId`; `BadRequest`;
    /// `TooLarge`; `MissingStub`; `PartitionOverflow`; `InvalidDesignDoc`; `Uncompilable`; `Forbidden`,
    /// `Unauthorized` or `FunctionFailed` by a validation function; `Internal` or `NoDescriptor` if a read failed.
    ///
    /// Outer: in a partitioned database `IllegalDocId` or `IllegalPartition`, and nothing was changed.
    /// `NotFound` if the database was deleted; `NoSpace`; `NoDescriptor`; `Stopped`; `Internal`: the edits
    /// before the failed one may have been stored, each completely.
    pub async fn update_all(&self, edits: Vec<Edit>, stage: Stage) -> Result<Vec<Result<Revision>>> {
        self.make_edits(edits, EditKind::Interactive, stage).await
    }

    /// Makes replicated edits (`new_edits=false`), merged into the revision trees; never a conflict. Decided
    /// and returned as by [`Database::update_all`].
    ///
    /// # Errors
    /// As [`Database::update_all`], without `Conflict` and `PartitionOverflow`.
    pub async fn replicate_all(&self, edits: Vec<Edit>, stage: Stage) -> Result<Vec<Result<Revision>>> {
        self.make_edits(edits, EditKind::Replicated, stage).await
    }

    async fn make_edits(
        &self,
        mut edits: Vec<Edit>,
        kind: EditKind,
        stage: Stage,
    ) -> Result<Vec<Result<Revision>>> {
        self.check_partitions(edits.iter().map(|edit| &edit.id[..]))?;
        self.upload_inline(&mut edits).await?;
        self.write_oversize_bodies(&mut edits).await?;
        let (mut outcomes, mut accepted) = (Vec::with_capacity(edits.len()), Vec::new());
        let made = self.make_groups(&edits, kind, stage, &mut outcomes, &mut accepted).await;
        self.reach(made, accepted, stage).await?;
        Ok(outcomes)
    }

    /// Makes edits group by group. Appends their outcomes, and the updates that were accepted, also those before an
    /// error.
    async fn make_groups<'a>(
        &'a self,
        edits: &[Edit],
        kind: EditKind,
        stage: Stage,
        outcomes: &mut Vec<Result<Revision>>,
        accepted: &mut Vec<Accepted<'a>>,
    ) -> Result<()> {
        let mut stopped = None;
        for group in edits.chunks(EDITS_TOGETHER_MAX) {
            let read = self.read_for(group, kind, stopped).await;
            let mut updater = self.begin_update(stage).await?;
            let made = updater.make_edits(group, kind, read, outcomes).await;
            stopped = updater.stopped_function();
            self.accept(updater, made, accepted).await?;
        }
        Ok(())
    }

    /// Reads what the edits need, while others may write: looks up their documents in the index, and reads the
    /// tails of the leaves that they replace. What can't be read is left out: then each edit reads it, and reports
    /// the error.
    async fn read_for(&self, edits: &[Edit], kind: EditKind, stopped: Option<StoppedFunction>) -> ReadBefore {
        let snapshot = self.store.snapshot();
        let keys = edits.iter().map(|edit| document_key(&edit.id)).collect();
        let uncompilable = self.compile_views(edits).await;
        let Ok(lookup) = self.store.look_up_in(&snapshot, keys).await else {
            return ReadBefore { uncompilable, stopped, ..ReadBefore::default() };
        };
        let tails = match kind {
            EditKind::Interactive => read_tails(&snapshot, &lookup, edits).await,
            // A replica mostly sends complete paths.
            EditKind::Replicated => HashMap::new(),
        };
        let validated = match stopped {
            None => self.validate_ahead(edits, kind).await,
            Some(_) => HashMap::new(),
        };
        ReadBefore { lookup: Some(lookup), tails, uncompilable, validated, stopped }
    }

    /// Compiles the view functions of design documents. Returns the errors by the edits' indexes.
    async fn compile_views(&self, edits: &[Edit]) -> HashMap<usize, Error> {
        let mut errors = HashMap::new();
        let Some(functions) = self.rules.design_functions() else { return errors };
        for (index, edit) in edits.iter().enumerate() {
            if edit.deleted || !edit.id.starts_with(DESIGN_PREFIX) {
                continue;
            }
            // The updater reports members of wrong types.
            let Ok(sources) = view_functions(&edit.body()) else { continue };
            if !sources.is_empty()
                && let Err(error) = functions.compile(sources).await
            {
                errors.insert(index, error);
            }
        }
        errors
    }

    /// Removes revisions permanently, if they are leaves, with everything that no other leaf shares. Each
    /// document is a purge of its own. Returns the removed leaves of each document once all purges are
    /// persisted.
    ///
    /// # Errors
    /// `IllegalDocId` or `IllegalPartition`: nothing was changed. `NotFound` if the database was deleted;
    /// `TooLarge`; `NoSpace`; `NoDescriptor`; `Stopped`; `Internal`: the documents before the failed one may
    /// have been purged, each completely.
    pub async fn purge(&self, requests: &[(String, Vec<Revision>)]) -> Result<Vec<Vec<Revision>>> {
        requests.iter().try_for_each(|(id, _)| self.check_id(id))?;
        let infos_max = self.counter(Counter::PurgedInfosLimit);
        let (mut removed, mut accepted) = (Vec::with_capacity(requests.len()), Vec::new());
        let purged = self.purge_groups(requests, infos_max, &mut removed, &mut accepted).await;
        self.reach(purged, accepted, Stage::Persisted).await?;
        Ok(removed)
    }

    /// Purges group by group. Appends the removed leaves, and the updates that were accepted, also those before an
    /// error.
    async fn purge_groups<'a>(
        &'a self,
        requests: &[(String, Vec<Revision>)],
        infos_max: u64,
        removed: &mut Vec<Vec<Revision>>,
        accepted: &mut Vec<Accepted<'a>>,
    ) -> Result<()> {
        for group in requests.chunks(EDITS_TOGETHER_MAX) {
            let mut updater = self.begin_update(Stage::Persisted).await?;
            let purged = updater.purge_all(group, infos_max, removed).await;
            self.accept(updater, purged, accepted).await?;
        }
        Ok(())
    }

    /// Writes or deletes a local document; `edit.id` is `_local/…`. As in CouchDB the stored revision isn't
    /// checked: the new revision is the edit's plus 1. Returns the new revision, `0-N`, once `stage` is
    /// reached.
    ///
    /// # Errors
    /// `NotFound` for the deletion of a missing document, or if the database was deleted; `IllegalDocId`;
    /// `BadRequest` for a revision that isn't `0-N`; `TooLarge` for a body that doesn't fit one record,
    /// 8,355,840 bytes, since a local document is never stored out of line; `NoSpace`; `NoDescriptor`;
    /// `Stopped`; `Internal`.
    pub async fn put_local(&self, edit: Edit, stage: Stage) -> Result<String> {
        check_document_id(&edit.id)?;
        let id = edit.id.strip_prefix("_local/");
        let id =
            id.ok_or_else(|| Error::new(ErrorKind::IllegalDocId, "Local documents begin with _local/"))?;
        let mut updater = self.begin_update(stage).await?;
        let (made, outcome) = match updater.update_local(id, &edit).await {
            Ok(outcome) => (Ok(()), Some(outcome)),
            Err(error) => (Err(error), None),
        };
        let mut accepted = Vec::new();
        let made = self.accept(updater, made, &mut accepted).await;
        self.reach(made, accepted, stage).await?;
        let outcome = outcome.expect("an update that was made has an outcome");
        outcome.map(|number| format!("0-{number}"))
    }

    /// Checks the ids of a request to a partitioned database: as in CouchDB one bad id fails all of it. In
    /// other databases each edit fails alone.
    ///
    /// # Errors
    /// `IllegalDocId`, `IllegalPartition`.
    pub fn check_partitions<'a>(&self, ids: impl IntoIterator<Item = &'a str>) -> Result<()> {
        match self.is_partitioned() {
            true => ids.into_iter().try_for_each(|id| self.check_id(id)),
            false => Ok(()),
        }
    }

    /// Uploads the edits' inline attachments.
    async fn upload_inline(&self, edits: &mut [Edit]) -> Result<()> {
        for edit in edits {
            let Edit { id, attachments, .. } = edit;
            let mut together = 0;
            for attachment in attachments {
                if let Content::Inline(bytes) = &attachment.content {
                    let mut uploading = self.upload(id, &attachment.content_type, false, u64::MAX);
                    uploading.write(bytes).await?;
                    attachment.content = Content::Stored(uploading.finish(None).await?);
                }
                if let Content::Stored(upload) = &mut attachment.content {
                    together += upload.waiting_bytes();
                    if together > WITH_EDIT_BYTES_MAX {
                        upload.store(self).await?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Waits for the store's writer, and removes unreferenced uploads.
    async fn begin_update(&self, stage: Stage) -> Result<Updater<'_>> {
        self.health()?;
        let writer = self.store.writer().await;
        let mut updater = Updater::new(self, writer, stage);
        updater.remove_unreferenced_uploads().await;
        Ok(updater)
    }

    /// Ends an update whose edits were `made`, and appends what was accepted of it, after an error too.
    async fn accept<'a>(
        &self,
        updater: Updater<'a>,
        made: Result<()>,
        accepted: &mut Vec<Accepted<'a>>,
    ) -> Result<()> {
        let (made, seq, notification) = updater.finish(made).await;
        accepted.extend(seq.map(|seq| Accepted { seq, _notification: notification }));
        made.map_err(|error| self.not_found_if_deleted(error))
    }

    /// Returns once accepted updates have reached `stage`, and notifies of them. Also if a later update of the request
    /// failed, so that the answer isn't followed by a part of the request that becomes visible.
    ///
    /// # Errors
    /// That of the request, or why the stage can't be reached.
    async fn reach(&self, made: Result<()>, accepted: Vec<Accepted<'_>>, stage: Stage) -> Result<()> {
        let reached = self.reach_stage(accepted, stage).await;
        made.and(reached)
    }

    async fn reach_stage(&self, accepted: Vec<Accepted<'_>>, stage: Stage) -> Result<()> {
        let Some(Accepted { seq, .. }) = accepted.last() else { return self.health() };
        self.store.wait(*seq, stage).await.map_err(|error| self.not_found_if_deleted(error.into()))?;
        // A request that stored nothing in a new database leaves it a new one, without files to miss.
        if *seq > Seq(0)
            && let Some(callback) = &self.on_first_write
            && !self.was_written.load(Ordering::Relaxed)
            && !self.was_written.swap(true, Ordering::Relaxed)
        {
            callback(stage);
        }
        Ok(())
    }
}

/// The tails of the winning leaves that interactive edits replace, by the `Seq` of their records. A leaf with a
/// table of uploads is left out, since its update needs the whole value, and so is one that a snapshot of the
/// persisted state doesn't show.
async fn read_tails(
    snapshot: &StoreSnapshot,
    lookup: &Lookup,
    edits: &[Edit],
) -> HashMap<Seq, Vec<RevisionId>> {
    let (mut tails, mut wanted, mut wanted_bytes) = (HashMap::new(), Vec::new(), 0);
    for edit in edits {
        let Some(revision) = edit.revision.as_ref().filter(|revision| has_tail(revision.generation)) else {
            continue;
        };
        let Ok(Some(entry)) = snapshot.get_looked_up(&document_key(&edit.id), lookup).await else { continue };
        let Ok(leaf) = LeafMeta::decode(&entry.meta) else { continue };
        let needs_read = leaf.state.has_tail_in_value && !leaf.state.has_attachments;
        if needs_read && leaf.revision == *revision {
            wanted_bytes += u64::from(entry.location.length);
            wanted.push(entry.location);
            if wanted_bytes >= READ_AHEAD_BYTES_MAX {
                read_values(snapshot, &wanted, &mut tails).await;
                (wanted_bytes, wanted) = (0, Vec::new());
            }
        }
    }
    read_values(snapshot, &wanted, &mut tails).await;
    tails
}

/// Reads leaves' records in bulk, and adds their tails.
async fn read_values(
    snapshot: &StoreSnapshot,
    locations: &[Location],
    tails: &mut HashMap<Seq, Vec<RevisionId>>,
) {
    for (location, record) in locations.iter().zip(snapshot.read_many(locations).await) {
        let tail = record.map(|record| LeafValue::decode(&record.value()).and_then(|value| value.tail()));
        if let Ok(Ok(tail)) = tail {
            tails.insert(location.seq(), tail);
        }
    }
}
