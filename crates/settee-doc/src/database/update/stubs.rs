//! Resolution of the attachment stubs of an edit.
//!
//! A stub states that a revision has its parent's attachment of that name. CouchDB searches the nearest
//! ancestor whose body it still has. Here only leaves are searched: if a replicated edit's ancestor isn't a
//! leaf any more, another leaf's attachment is used, but only if it must be the same one.
//!
//! Invariant: a stub never resolves to other content than its edit's ancestors had.

use std::collections::HashMap;

use settee_store::Snapshot as StoreSnapshot;

use crate::Result;
use crate::attachments::{Attachment, Content, NewAttachment};
use crate::documents::rev_tree::TreeLeaf;
use crate::documents::{Edit, Revision, RevisionId};

/// Candidates for an edit's stubs, by name; those of its ancestor first.
#[derive(Default)]
pub(super) struct Stubs(HashMap<String, Vec<Candidate>>);

struct Candidate {
    attachment: Attachment,
    origin: Origin,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// The edit's ancestor has it.
    Ancestor,
    /// Another leaf has it, from a revision that is an ancestor of both.
    Shared,
    /// Another leaf has it.
    Other,
}

impl Stubs {
    /// Candidates for an edit that replaces `parent`.
    pub(super) async fn of_update(
        latest: &StoreSnapshot,
        edit: &Edit,
        parent: Option<&TreeLeaf>,
    ) -> Result<Stubs> {
        let mut stubs = Stubs::default();
        if let Some(parent) = parent
            && edit.attachments.iter().any(is_stub)
        {
            stubs.add(latest, parent, |_| Origin::Ancestor).await?;
        }
        Ok(stubs)
    }

    /// Candidates for a replicated edit, whose path leads from `revision` back.
    pub(super) async fn of_replica(
        latest: &StoreSnapshot,
        edit: &Edit,
        revision: &Revision,
        path: &[RevisionId],
        leaves: &[TreeLeaf],
    ) -> Result<Stubs> {
        let mut stubs = Stubs::default();
        let at = |generation: u32| path.get(revision.generation.checked_sub(generation)? as usize);
        let is_ancestor = |leaf: &TreeLeaf| at(leaf.revision.generation) == Some(&leaf.revision.id);
        let is_found = |stubs: &Stubs| edit.attachments.iter().all(|new| !is_stub(new) || stubs.has(new));
        if is_found(&stubs) {
            return Ok(stubs);
        }
        for leaf in leaves.iter().filter(|leaf| is_ancestor(leaf)) {
            stubs.add(latest, leaf, |_| Origin::Ancestor).await?;
        }
        if is_found(&stubs) {
            return Ok(stubs);
        }
        // A stub with a digest needs no path.
        let stub_generation =
            |new: &NewAttachment| new.revpos.filter(|_| matches!(new.content, Content::Stub(None)));
        let oldest_generation = edit.attachments.iter().filter_map(stub_generation).min();
        for leaf in leaves.iter().filter(|leaf| leaf.has_attachments && !is_ancestor(leaf)) {
            let mut leaf = leaf.clone();
            if let Some(generation) = oldest_generation {
                leaf.complete_path(latest, &edit.id, generation).await?;
            }
            let origin = |attachment: &Attachment| {
                let ancestor = leaf.ancestor(attachment.revpos);
                let is_shared = ancestor.is_some() && ancestor == at(attachment.revpos);
                if is_shared { Origin::Shared } else { Origin::Other }
            };
            stubs.add(latest, &leaf, origin).await?;
        }
        Ok(stubs)
    }

    /// The attachment that a stub resolves to; `None` if there is none, or if `new` isn't a stub.
    pub(super) fn find(&self, new: &NewAttachment) -> Option<&Attachment> {
        let Content::Stub(digest) = &new.content else { return None };
        let fits = |candidate: &&Candidate| {
            let matches_origin = match (candidate.origin, digest) {
                // Servers compress differently, so as in CouchDB the digest isn't compared.
                (Origin::Ancestor, _) => true,
                (_, Some(digest)) => candidate.attachment.digest == *digest,
                (Origin::Shared, None) => new.revpos.is_some(),
                (Origin::Other, None) => false,
            };
            // As in CouchDB, a stated generation must match.
            matches_origin && new.revpos.is_none_or(|revpos| revpos == candidate.attachment.revpos)
        };
        self.0.get(&new.name)?.iter().find(fits).map(|candidate| &candidate.attachment)
    }

    fn has(&self, new: &NewAttachment) -> bool {
        self.find(new).is_some()
    }

    async fn add(
        &mut self,
        latest: &StoreSnapshot,
        leaf: &TreeLeaf,
        origin: impl Fn(&Attachment) -> Origin,
    ) -> Result<()> {
        for attachment in leaf.attachments(latest).await?.iter() {
            let candidate = Candidate { origin: origin(attachment), attachment: attachment.clone() };
            self.0.entry(attachment.name.clone()).or_default().push(candidate);
        }
        Ok(())
    }
}

fn is_stub(new: &NewAttachment) -> bool {
    matches!(new.content, Content::Stub(_))
}
