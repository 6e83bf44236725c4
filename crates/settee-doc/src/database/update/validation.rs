//! Validation of edits: types and functions of design documents, and their `validate_doc_update` functions, which
//! check all other edits but those of local documents.
//!
//! Design documents are scanned at the first edit after one of them was written; the functions found are kept
//! until the next write of a design document. An edit is validated after its conflict check, against the revision
//! that it replaces, which is read only if there is a function.
//!
//! The functions run for all edits of a group together before the writer is waited for, against the persisted
//! state. The outcome counts if the edit then replaces the same revision and the functions are the same ones;
//! otherwise they run again while the updater waits, before the next edit is decided. Once a function has exceeded a
//! limit of time or memory, all further edits of the request get that error.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};

use super::check::{Check, Checked, StoppedFunction, Validated};
use super::edits::EditKind;
use super::updater::Updater;
use crate::attachments::Attachment;
use crate::database::range::Range;
use crate::database::snapshot::{LeafContent, Snapshot};
use crate::database::state::{Database, Validation};
use crate::design_functions::{DesignFunctions, ProposedWrite, ValidatingDesign};
use crate::documents::design::{self, DESIGN_PREFIX};
use crate::documents::rev_tree::TreeLeaf;
use crate::documents::{Document, Edit, Extras, Revision, RevisionId};
use crate::{Error, Result};

/// Bytes of documents that are validated together, from which on further ones are validated alone.
const AHEAD_BYTES_MAX: usize = 4 << 20;

impl Database {
    /// Validates edits as of the persisted state, until a function exceeds a limit. Left out are those that can't be
    /// validated so: of what is in conflict or has attachments, or could not be read, and everything while the
    /// functions aren't known.
    pub(crate) async fn validate_ahead(&self, edits: &[Edit], kind: EditKind) -> HashMap<usize, Validated> {
        let cached = self.validation.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Validation::By(validator) = cached else { return HashMap::new() };
        let snapshot = self.snapshot();
        let (mut proposals, mut writes, mut bytes) = (Vec::new(), Vec::new(), 0);
        for (index, edit) in edits.iter().enumerate() {
            if edit.id.starts_with(DESIGN_PREFIX) || !edit.attachments.is_empty() {
                continue;
            }
            let proposal = match kind {
                EditKind::Interactive => snapshot.propose(edit).await,
                EditKind::Replicated => snapshot.propose_replica(edit).await,
            };
            let Ok(Some((replaced, write))) = proposal else { continue };
            bytes += write.document.len() + write.previous.as_ref().map_or(0, String::len);
            if bytes > AHEAD_BYTES_MAX && !writes.is_empty() {
                break;
            }
            proposals.push((index, replaced));
            writes.push(write);
        }
        if writes.is_empty() {
            return HashMap::new();
        }
        let outcomes = validator.validate(writes).await.unwrap_or_default();
        let validated = proposals.into_iter().zip(outcomes).map(|((index, replaced), outcome)| {
            (index, Validated { validator: validator.clone(), replaced, outcome })
        });
        validated.collect()
    }
}

impl Snapshot {
    /// What an interactive edit without attachments would be validated with, and the revision that it replaces.
    /// `None` if it is in conflict.
    async fn propose(&self, edit: &Edit) -> Result<Option<(Option<Revision>, ProposedWrite)>> {
        let Some(revision) = &edit.revision else {
            let is_free = self.find(&edit.id).await?.is_none_or(|winner| winner.deleted);
            let write = || Ok(ProposedWrite { document: proposed(edit, &[], None)?, previous: None });
            return is_free.then(|| write().map(|write| (None, write))).transpose();
        };
        let leaves = self.leaves(&edit.id).await?;
        if !leaves.iter().any(|leaf| leaf.revision == *revision) {
            return Ok(None);
        }
        let Some((previous, history)) = self.previous(&edit.id, revision).await? else { return Ok(None) };
        let document = proposed(edit, &[], Some((revision.clone(), history)))?;
        let write = ProposedWrite { document, previous: Some(previous) };
        Ok(Some((Some(revision.clone()), write)))
    }

    /// As [`Snapshot::propose`], of a replicated edit. `None` if its revision is a leaf already, or it has none.
    async fn propose_replica(&self, edit: &Edit) -> Result<Option<(Option<Revision>, ProposedWrite)>> {
        let Some(revision) = &edit.revision else { return Ok(None) };
        let leaves = self.leaves(&edit.id).await?;
        if leaves.iter().any(|leaf| leaf.revision == *revision) {
            return Ok(None);
        }
        let path = edit.path(revision);
        let parent = replaced_leaf(revision, &path, &leaves, |leaf| &leaf.revision);
        let parent = parent.map(|leaf| leaf.revision.clone());
        let previous = match &parent {
            Some(parent) => match self.previous(&edit.id, parent).await? {
                Some((previous, _)) => Some(previous),
                None => return Ok(None),
            },
            None => None,
        };
        let document = proposed(edit, &[], Some((revision.clone(), path)))?;
        Ok(Some((parent, ProposedWrite { document, previous })))
    }

    /// The text of a leaf as validation functions get it, and its history.
    async fn previous(&self, id: &str, leaf: &Revision) -> Result<Option<(String, Vec<RevisionId>)>> {
        let Some(document) = self.revision(id, leaf, false).await?.into_iter().next() else {
            return Ok(None);
        };
        let document = self.read_whole(document).await?;
        let history = self.history(id, leaf).await?;
        let previous = text(&document, &Extras { revisions: Some(history.clone()), ..Extras::default() })?;
        Ok(Some((previous, history)))
    }
}

impl Updater<'_> {
    /// Checks a design document, or finds the functions that an edit has to pass.
    ///
    /// # Errors
    /// Inner: why the edit is refused, or why the design documents couldn't be scanned. Outer: the commit of
    /// earlier edits failed.
    pub(super) async fn check_validation(
        &mut self,
        edit: &Edit,
        ahead: Option<Validated>,
    ) -> Result<Checked> {
        if edit.id.starts_with(DESIGN_PREFIX) {
            return Ok(design::check(&edit.body()).map(|()| None));
        }
        let Some(functions) = self.database.rules.design_functions().cloned() else { return Ok(Ok(None)) };
        if self.records.has_design {
            // This request's design documents count.
            self.commit().await?;
        }
        Ok(match self.validation(&*functions).await {
            Err(error) => Err(error),
            Ok(Validation::By(validator)) => Ok(Some(Check { validator, ahead })),
            Ok(Validation::None | Validation::Unknown) => Ok(None),
        })
    }

    /// Validates an interactive edit that replaces `parent`.
    ///
    /// # Errors
    /// Those of [`Check::run`], or of reading the parent.
    pub(super) async fn validate_update(
        &mut self,
        check: Check,
        edit: &Edit,
        attachments: &[Attachment],
        parent: Option<&TreeLeaf>,
    ) -> Result<()> {
        // A document that is created again replaces nothing.
        let parent = parent.filter(|_| edit.revision.is_some());
        if let Some(outcome) = self.known_outcome(&check, parent.map(|parent| &parent.revision)) {
            return outcome;
        }
        let (mut previous, mut replaced) = (None, None);
        if let Some(parent) = parent {
            let stored = self.stored(&edit.id, parent).await?;
            replaced = Some((parent.revision.clone(), stored.1.revisions.clone().unwrap_or_default()));
            previous = Some(stored);
        }
        let document = proposed(edit, attachments, replaced)?;
        let previous = previous.map(|(document, extras)| text(&document, &extras)).transpose()?;
        self.run_check(&check, ProposedWrite { document, previous }).await
    }

    /// Validates a replicated edit, whose path leads from `revision` back. Of its ancestors only leaves count as
    /// the revision that it replaces.
    ///
    /// # Errors
    /// As [`Updater::validate_update`].
    pub(super) async fn validate_replica(
        &mut self,
        check: Check,
        edit: &Edit,
        attachments: &[Attachment],
        revision: &Revision,
        path: &[RevisionId],
        old: &[TreeLeaf],
    ) -> Result<()> {
        let parent = replaced_leaf(revision, path, old, |leaf| &leaf.revision);
        if let Some(outcome) = self.known_outcome(&check, parent.map(|parent| &parent.revision)) {
            return outcome;
        }
        let document = proposed(edit, attachments, Some((revision.clone(), path.to_vec())))?;
        let previous = match parent {
            Some(parent) => {
                let (document, extras) = self.stored(&edit.id, parent).await?;
                Some(text(&document, &extras)?)
            }
            None => None,
        };
        self.run_check(&check, ProposedWrite { document, previous }).await
    }

    /// The outcome for an edit that replaces `replaced`, if the functions needn't run: they did already, or one of them
    /// exceeded a limit for an earlier edit and would hold the writer as long again.
    fn known_outcome(&self, check: &Check, replaced: Option<&Revision>) -> Option<Result<()>> {
        if let Some(refusal) = self.stopped.as_ref().and_then(|stopped| stopped.refusal(&check.validator)) {
            return Some(Err(refusal));
        }
        check.outcome(replaced)
    }

    async fn run_check(&mut self, check: &Check, write: ProposedWrite) -> Result<()> {
        let outcome = check.run(write).await;
        self.stopped = StoppedFunction::of(&check.validator, &outcome);
        outcome
    }

    /// Reads a leaf with its history.
    async fn stored(&mut self, id: &str, leaf: &TreeLeaf) -> Result<(Document, Extras)> {
        let latest = self.writer.latest();
        let mut leaf = leaf.clone();
        leaf.limit_path(&latest, id, self.revs_limit).await?;
        let snapshot = Snapshot::new(latest, self.revs_limit, Arc::default());
        let LeafContent { attachments, body, large_body } = snapshot.read_body(id, leaf.location()).await?;
        let (revision, deleted) = (leaf.revision, leaf.deleted);
        let document = Document { id: id.into(), revision, deleted, body, attachments, large_body };
        let document = snapshot.read_whole(document).await?;
        Ok((document, Extras { revisions: Some(leaf.path), ..Extras::default() }))
    }

    /// Forgets the functions, since a design document is being written.
    pub(super) fn invalidate_validation(&self) {
        *self.cached_validation() = Validation::Unknown;
    }

    /// The functions, from the cache or a new scan.
    async fn validation(&mut self, functions: &dyn DesignFunctions) -> Result<Validation> {
        let cached = self.cached_validation().clone();
        if !matches!(cached, Validation::Unknown) {
            return Ok(cached);
        }
        let designs = self.validating_designs().await?;
        let found = match designs.is_empty() {
            true => Validation::None,
            false => {
                let database = self.database;
                Validation::By(functions.validator(database.name(), database.incarnation(), designs))
            }
        };
        self.cached_validation().clone_from(&found);
        Ok(found)
    }

    async fn validating_designs(&mut self) -> Result<Vec<ValidatingDesign>> {
        let snapshot = Snapshot::new(self.writer.latest(), self.revs_limit, Default::default());
        let range = Range { prefix: DESIGN_PREFIX.to_owned(), ..Range::default() };
        let mut rows = snapshot.all_docs(&range).await?;
        let mut designs = Vec::new();
        while let Some(row) = rows.next().await? {
            let document = snapshot.read(row.id, row.summary, row.body).await?;
            let document = snapshot.read_whole(document).await?;
            if design::has_validation(&document.body)? {
                let json = text(&document, &Extras::default())?;
                let Document { id, revision, .. } = document;
                designs.push(ValidatingDesign { id, revision, json });
            }
        }
        Ok(designs)
    }

    fn cached_validation(&self) -> std::sync::MutexGuard<'_, Validation> {
        self.database.validation.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The leaf that a replicated edit replaces, whose path leads from `revision` back: the newest leaf on it.
fn replaced_leaf<'a, L>(
    revision: &Revision,
    path: &[RevisionId],
    leaves: &'a [L],
    revision_of: impl Fn(&L) -> &Revision,
) -> Option<&'a L> {
    let is_ancestor = |leaf: &&L| {
        let leaf = revision_of(leaf);
        let back = revision.generation.checked_sub(leaf.generation);
        back.and_then(|back| path.get(back as usize)) == Some(&leaf.id)
    };
    leaves.iter().filter(is_ancestor).max_by_key(|leaf| revision_of(leaf).generation)
}

/// The JSON text of an edit's document. A new document has no revision.
fn proposed(
    edit: &Edit,
    attachments: &[Attachment],
    revision: Option<(Revision, Vec<RevisionId>)>,
) -> Result<String> {
    let is_new = revision.is_none();
    let (revision, path) =
        revision.unwrap_or_else(|| (Revision { generation: 0, id: [0; 16].into() }, Vec::new()));
    let document = Document {
        id: edit.id.clone(),
        revision,
        deleted: edit.deleted,
        body: edit.body(),
        attachments: attachments.to_vec(),
        large_body: None,
    };
    let extras = Extras { revisions: Some(path).filter(|_| !is_new), ..Extras::default() };
    let mut json = Vec::new();
    match is_new {
        true => document.write_new_json(&mut json),
        false => document.write_json(&extras, &mut json),
    }
    into_text(json)
}

fn text(document: &Document, extras: &Extras) -> Result<String> {
    let mut json = Vec::new();
    document.write_json(extras, &mut json);
    into_text(json)
}

fn into_text(json: Vec<u8>) -> Result<String> {
    String::from_utf8(json).map_err(|_| Error::damaged("a document is not UTF-8"))
}
