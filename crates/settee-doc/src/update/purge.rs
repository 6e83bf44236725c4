//! Purging: revisions that go for good, as if they had never been.
//!
//! A purged leaf goes with what of its path and of its attachments no other leaf has; a document
//! goes with its last leaf, and no change tells of it. A replica may bring either again. Each purge
//! leaves a note with its number and what it was to remove, for whoever follows the purges.
//!
//! Invariant: what goes and the note of it are one batch.

use bytes::Bytes;
use settee_store::{Batch, Snapshot};

use crate::Result;
use crate::json::write_json_string;
use crate::keys::{conflict_key, decode_number, document_key, purge_key};
use crate::numbers::{Number, remove_notes};
use crate::revision::Revision;
use crate::tree::{Leaf, leaves, unused_chunks};

use super::{Updater, remove_unused_attachments, rewrite};

/// What a purge has come to.
pub(crate) struct Purged {
    /// The leaves that went.
    pub revisions: Vec<Revision>,
    /// The purge's number.
    pub number: u64,
}

impl Updater<'_> {
    /// Removes those of `revisions` that are leaves of a document. At most `notes_max` notes of
    /// purges are left.
    pub(crate) async fn purge(&mut self, id: &str, revisions: &[Revision], notes_max: u64) -> Result<Purged> {
        // Each has a batch of its own, since all write the same number.
        self.commit().await?;
        let latest = self.writer.latest();
        let old = leaves(&latest, id).await?;
        let mut kept = old.clone();
        kept.retain(|leaf| !revisions.contains(&leaf.revision));
        let mut records = Batch::new();
        if kept.len() < old.len() {
            records = match kept.is_empty() {
                true => remove(&latest, id, &old).await?,
                false => rewrite(&latest, id, &old, &kept, self.revs_limit).await?,
            };
            for key in unused_chunks(&latest, id, &mut kept, u32::MAX, self.revs_limit).await? {
                records.delete(&key);
            }
        }
        let number = match self.writer.get(&Number::PurgeSeq.key()).await? {
            Some(last) => decode_number(&last.meta)? + 1,
            None => 1,
        };
        Number::PurgeSeq.put(number, &mut records);
        if let Some(up_to) = number.checked_sub(notes_max) {
            remove_notes(&latest, up_to, &mut records).await?;
        }
        records.put(&purge_key(number), &[], note(id, revisions), false);
        self.deletes_alone &= kept.is_empty();
        self.touched.insert(id.to_owned());
        self.batch = records;
        let mut gone: Vec<Revision> = Vec::new();
        for revision in revisions {
            if old.iter().any(|leaf| leaf.revision == *revision) && !gone.contains(revision) {
                gone.push(*revision);
            }
        }
        Ok(Purged { revisions: gone, number })
    }
}

/// The records that remove a document, but for the chunks of its paths.
async fn remove(latest: &Snapshot, id: &str, old: &[Leaf]) -> Result<Batch> {
    let mut batch = Batch::new();
    batch.delete(&document_key(id));
    for leaf in old.iter().filter(|leaf| !leaf.stored_as_winner) {
        batch.delete(&conflict_key(id, leaf.revision));
    }
    remove_unused_attachments(&mut batch, latest, id, old, &[]).await?;
    Ok(batch)
}

/// `{"id":…,"revs":[…]}`
fn note(id: &str, revisions: &[Revision]) -> Bytes {
    let mut text = b"{\"id\":".to_vec();
    write_json_string(id, &mut text);
    text.extend_from_slice(b",\"revs\":[");
    for (index, revision) in revisions.iter().enumerate() {
        text.extend_from_slice(if index == 0 { b"\"" } else { b",\"" });
        revision.write(&mut text);
        text.push(b'"');
    }
    text.extend_from_slice(b"]}");
    text.into()
}
