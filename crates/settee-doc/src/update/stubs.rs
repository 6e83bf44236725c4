//! What the stubs of an edit stand for.
//!
//! A stub says that a revision has what its parent has under a name. CouchDB looks for that in the
//! nearest ancestor whose body it still has. Here leaves alone have bodies: so where a replica's
//! ancestor is no leaf any more, what another leaf has is taken, but only where it must be the same.
//!
//! Invariant: a stub never stands for another content than the one that its edit's ancestors had.

use std::collections::HashMap;

use settee_store::Snapshot;

use crate::Result;
use crate::attachment::{Attachment, Content, NewAttachment};
use crate::edit::Edit;
use crate::revision::{Hash, Revision};
use crate::tree::Leaf;

/// What an edit's stubs may stand for, by name: that of its ancestor first.
#[derive(Default)]
pub(super) struct Stubs(HashMap<String, Vec<Known>>);

struct Known {
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
    /// Those of an edit that replaces `parent`.
    pub(super) async fn of_update(latest: &Snapshot, edit: &Edit, parent: Option<&Leaf>) -> Result<Stubs> {
        let mut stubs = Stubs::default();
        if let Some(parent) = parent
            && edit.attachments.iter().any(is_stub)
        {
            stubs.add(latest, parent, |_| Origin::Ancestor).await?;
        }
        Ok(stubs)
    }

    /// Those of a replicated edit, whose path leads from `revision` back.
    pub(super) async fn of_replica(
        latest: &Snapshot,
        edit: &Edit,
        revision: Revision,
        path: &[Hash],
        leaves: &[Leaf],
    ) -> Result<Stubs> {
        let mut stubs = Stubs::default();
        let at = |generation: u32| path.get(revision.generation.checked_sub(generation)? as usize);
        let is_ancestor = |leaf: &Leaf| at(leaf.revision.generation) == Some(&leaf.revision.hash);
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
        // Where a digest tells, no path has to be read.
        let came_with =
            |new: &NewAttachment| new.revpos.filter(|_| matches!(new.content, Content::Stub(None)));
        let back_to = edit.attachments.iter().filter_map(came_with).min();
        for leaf in leaves.iter().filter(|leaf| leaf.has_attachments && !is_ancestor(leaf)) {
            let mut leaf = leaf.clone();
            if let Some(generation) = back_to {
                leaf.complete_path(latest, &edit.id, generation).await?;
            }
            let origin = |attachment: &Attachment| {
                let hash = leaf.ancestor(attachment.revpos);
                let is_shared = hash.is_some() && hash.as_ref() == at(attachment.revpos);
                if is_shared { Origin::Shared } else { Origin::Other }
            };
            stubs.add(latest, &leaf, origin).await?;
        }
        Ok(stubs)
    }

    /// What an attachment of the edit stands for; `None` where it is a stub of nothing, or no stub.
    pub(super) fn find(&self, new: &NewAttachment) -> Option<&Attachment> {
        let Content::Stub(digest) = &new.content else { return None };
        let fits = |known: &&Known| {
            let is_it = match (known.origin, digest) {
                // Servers compress in their own ways: as in CouchDB the digest isn't asked for.
                (Origin::Ancestor, _) => true,
                (_, Some(digest)) => known.attachment.digest == *digest,
                (Origin::Shared, None) => new.revpos.is_some(),
                (Origin::Other, None) => false,
            };
            // Where it says what it came with, that must be it, as in CouchDB.
            is_it && new.revpos.is_none_or(|revpos| revpos == known.attachment.revpos)
        };
        self.0.get(&new.name)?.iter().find(fits).map(|known| &known.attachment)
    }

    fn has(&self, new: &NewAttachment) -> bool {
        self.find(new).is_some()
    }

    async fn add(
        &mut self,
        latest: &Snapshot,
        leaf: &Leaf,
        origin: impl Fn(&Attachment) -> Origin,
    ) -> Result<()> {
        for attachment in leaf.attachments(latest).await?.iter() {
            let known = Known { origin: origin(attachment), attachment: attachment.clone() };
            self.0.entry(attachment.name.clone()).or_default().push(known);
        }
        Ok(())
    }
}

fn is_stub(new: &NewAttachment) -> bool {
    matches!(new.content, Content::Stub(_))
}
