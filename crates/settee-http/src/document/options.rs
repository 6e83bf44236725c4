//! The options for reading a document, and what they add to its JSON.

use settee_doc::{Document, Extras, Leaves, ReplacedRevision, Revision, RevisionId, Snapshot};

use super::revision_arg;
use crate::error::ApiError;
use crate::query::Query;

/// The options for reading a document.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct DocumentOptions {
    pub(crate) revs: bool,
    pub(crate) conflicts: bool,
    revs_info: bool,
    deleted_conflicts: bool,
    local_seq: bool,
    /// Whether the content of attachments is included.
    pub(crate) attachments: bool,
    /// Includes only attachments newer than the newest of these revisions that is an ancestor of the
    /// document.
    pub(crate) attachments_since: Option<Vec<Revision>>,
    encoding: bool,
}

impl DocumentOptions {
    /// The options for a document in a row of a list.
    pub(crate) fn of_row(conflicts: bool, attachments: bool, encoding: bool) -> DocumentOptions {
        DocumentOptions { conflicts, attachments, encoding, ..DocumentOptions::default() }
    }

    pub(crate) fn from_query(query: Query<'_>) -> Result<DocumentOptions, ApiError> {
        let mut options = DocumentOptions::default();
        for (name, value) in query.pairs() {
            if name == "atts_since" {
                options.attachments_since = Some(revision_arg::parse_list_value(&value)?);
                options.attachments = true;
            }
            if value != "true" {
                continue;
            }
            match name.as_ref() {
                "revs" => options.revs = true,
                "revs_info" => options.revs_info = true,
                "conflicts" => options.conflicts = true,
                "deleted_conflicts" => options.deleted_conflicts = true,
                "local_seq" => options.local_seq = true,
                "attachments" => options.attachments = true,
                "att_encoding_info" => options.encoding = true,
                "meta" => {
                    options.revs_info = true;
                    options.conflicts = true;
                    options.deleted_conflicts = true;
                }
                _ => {}
            }
        }
        Ok(options)
    }

    /// Collects the members to add to the JSON of `document`.
    pub(crate) async fn extras(&self, snapshot: &Snapshot, document: &Document) -> Result<Extras, ApiError> {
        let mut extras = Extras::default();
        if *self == DocumentOptions::default() {
            return Ok(extras);
        }
        extras.encoding = self.encoding;
        let (id, revision) = (document.id.as_str(), &document.revision);
        if self.revs || self.revs_info || self.conflicts || self.deleted_conflicts {
            let leaves = snapshot.open_leaves(id).await?;
            let own = leaves.iter().position(|leaf| leaf.revision == *revision);
            if self.revs || self.revs_info {
                let history = match own {
                    Some(index) => leaves.history(index).await?,
                    None => leaves.history_of(revision).await?,
                };
                if self.revs_info {
                    let mut replaced = snapshot.replaced_revisions();
                    let older = leaves.replaced_ancestors(revision, &history, &mut replaced).await?;
                    extras.revs_info = revisions_info(document, &history, &older);
                }
                extras.revisions = self.revs.then_some(history);
            }
            // As in CouchDB, a replaced revision isn't in conflict with leaves.
            for (index, leaf) in leaves.iter().enumerate().filter(|_| own.is_some()) {
                match leaf.deleted {
                    _ if own == Some(index) => {}
                    true if self.deleted_conflicts => extras.deleted_conflicts.push(leaf.revision),
                    false if self.conflicts => extras.conflicts.push(leaf.revision),
                    _ => {}
                }
            }
        }
        if self.local_seq
            && let Some(summary) = snapshot.find(id).await?
        {
            extras.local_seq = Some(summary.seq.0);
        }
        Ok(extras)
    }

    /// Reads one of several leaves. As in CouchDB, members about the whole document are left out.
    pub(crate) async fn open_leaf(&self, leaves: &Leaves, index: usize) -> Result<OpenedLeaf, ApiError> {
        let document = leaves.document(index).await?;
        let history = match self.needs_history(&document) {
            true => leaves.history(index).await?,
            false => Vec::new(),
        };
        Ok(self.opened(document, history))
    }

    /// As [`DocumentOptions::open_leaf`], for a revision that isn't a leaf any more.
    pub(crate) async fn open_replaced(
        &self,
        leaves: &Leaves,
        replaced: &ReplacedRevision,
    ) -> Result<OpenedLeaf, ApiError> {
        let document = leaves.replaced_document(replaced).await?;
        let history = match self.needs_history(&document) {
            true => leaves.history_of(&replaced.revision).await?,
            false => Vec::new(),
        };
        Ok(self.opened(document, history))
    }

    fn needs_history(&self, document: &Document) -> bool {
        self.revs || (self.attachments_since.is_some() && !document.attachments.is_empty())
    }

    fn opened(&self, document: Document, history: Vec<RevisionId>) -> OpenedLeaf {
        let since = self.attachments_since.as_deref().filter(|_| !document.attachments.is_empty());
        let known = since.map_or(0, |since| newest_known(&document.revision, &history, since));
        let revisions = self.revs.then_some(history);
        let extras = Extras { revisions, encoding: self.encoding, ..Extras::default() };
        OpenedLeaf { document, extras, known }
    }
}

/// A leaf, or a replaced revision, that was read, to be sent.
pub(crate) struct OpenedLeaf {
    pub(crate) document: Document,
    pub(crate) extras: Extras,
    /// Attachments of this generation and older ones are known to the client.
    pub(crate) known: u32,
}

/// The newest generation in the document's history that the client has, according to `atts_since`.
pub(crate) async fn known_generation(
    snapshot: &Snapshot,
    document: &Document,
    options: &DocumentOptions,
) -> Result<u32, ApiError> {
    let Some(since) = &options.attachments_since else { return Ok(0) };
    let history = snapshot.history(&document.id, &document.revision).await?;
    Ok(newest_known(&document.revision, &history, since))
}

/// The generation of the newest of `since` in the history that leads to `revision`.
fn newest_known(revision: &Revision, history: &[RevisionId], since: &[Revision]) -> u32 {
    let has = |known: &&Revision| {
        let age = revision.generation.checked_sub(known.generation);
        age.and_then(|age| history.get(age as usize)) == Some(&known.id)
    };
    since.iter().filter(has).map(|known| known.generation).max().unwrap_or(0)
}

/// `_revs_info`; `older` are the ancestors in the history that can still be read.
fn revisions_info(
    document: &Document,
    history: &[RevisionId],
    older: &[Option<ReplacedRevision>],
) -> Vec<(Revision, &'static str)> {
    let newest = document.revision.generation;
    let deleted = std::iter::once(Some(document.deleted))
        .chain(older.iter().map(|older| older.as_ref().map(|older| older.deleted)));
    let revisions = history.iter().zip(0u32..).zip(deleted).map(|((id, age), deleted)| {
        let status = match deleted {
            Some(true) => "deleted",
            Some(false) => "available",
            None => "missing",
        };
        (Revision { generation: newest.saturating_sub(age), id: id.clone() }, status)
    });
    revisions.collect()
}
