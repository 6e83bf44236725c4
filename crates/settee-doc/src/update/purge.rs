//! Purging: revisions that go for good, as if they had never been.
//!
//! A purged leaf goes with what of its path and of its attachments no other leaf has; a document
//! goes with its last leaf, and no change tells of it. A replica may bring either again. Each purge
//! leaves a note with its number and what it was to remove, for whoever follows the purges.
//!
//! Invariant: what goes and the note of it are one batch.

use std::collections::HashSet;

use bytes::Bytes;
use settee_store::Snapshot;

use crate::Result;
use crate::design::DESIGN_PREFIX;
use crate::json::write_json_string;
use crate::keys::{conflict_key, decode_number, document_key, purge_key};
use crate::numbers::{Number, remove_notes};
use crate::revision::Revision;
use crate::tree::{Leaf, leaves, unused_chunks};

use super::{Records, Updater, remove_unused_attachments, rewrite};

impl Updater<'_> {
    /// Removes those of `revisions` that are leaves of a document, and returns them. At most `notes_max`
    /// notes of purges are left.
    pub(crate) async fn purge(
        &mut self,
        id: &str,
        revisions: &[Revision],
        notes_max: u64,
    ) -> Result<Vec<Revision>> {
        // Each has a batch of its own, since all write the same number.
        self.commit().await?;
        let latest = self.writer.latest();
        let old = leaves(&latest, id).await?;
        let mut kept = old.clone();
        let mut asked = HashSet::with_capacity(revisions.len());
        let once: Vec<Revision> =
            revisions.iter().copied().filter(|revision| asked.insert(*revision)).collect();
        kept.retain(|leaf| !asked.contains(&leaf.revision));
        let mut records = Records::default();
        if kept.len() < old.len() {
            records = match kept.is_empty() {
                true => remove(&latest, id, &old).await?,
                false => rewrite(&latest, id, &old, &kept, self.revs_limit).await?,
            };
            for key in unused_chunks(&latest, id, &mut kept, u32::MAX, self.revs_limit).await? {
                records.batch.delete(&key);
            }
        }
        let number = match self.writer.get(&Number::PurgeSeq.key()).await? {
            Some(last) => decode_number(&last.meta)? + 1,
            None => 1,
        };
        Number::PurgeSeq.put(number, &mut records.batch);
        records.number = Some((Number::PurgeSeq, number));
        if let Some(up_to) = number.checked_sub(notes_max) {
            remove_notes(&latest, up_to, &mut records.batch).await?;
        }
        records.batch.put(&purge_key(number), &[], note(id, revisions), false);
        records.is_change = true;
        records.has_design = id.starts_with(DESIGN_PREFIX);
        self.deletes_alone &= kept.is_empty();
        self.touched.insert(id.to_owned());
        self.records = records;
        let leaves: HashSet<Revision> = old.iter().map(|leaf| leaf.revision).collect();
        Ok(once.into_iter().filter(|revision| leaves.contains(revision)).collect())
    }
}

/// The records that remove a document, but for the chunks of its paths.
async fn remove(latest: &Snapshot, id: &str, old: &[Leaf]) -> Result<Records> {
    let mut records = Records::default();
    records.batch.delete(&document_key(id));
    for leaf in old.iter().filter(|leaf| !leaf.stored_as_winner) {
        records.batch.delete(&conflict_key(id, leaf.revision));
    }
    remove_unused_attachments(&mut records, latest, id, old, &[]).await?;
    Ok(records)
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
