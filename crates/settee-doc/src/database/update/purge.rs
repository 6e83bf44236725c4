//! Purging: removes revisions permanently, without a trace in the revision tree.
//!
//! A purged leaf is removed with those parts of its path and those attachments that no other leaf has; a
//! document is removed with its last leaf, and then doesn't appear in the changes. A replication may bring
//! either back. Each purge stores a purge info with its number, the document and the requested revisions, for
//! clients that follow the purges.
//!
//! The bodies of revisions that were replaced before are not read again, even if a replication brings the
//! revisions back: a tombstone of a key of its own tells how old they are (`database/replaced.rs`).
//!
//! Invariant: a removal and its purge info are in one batch.

use std::collections::HashSet;

use bytes::Bytes;
use settee_store::Snapshot as StoreSnapshot;

use super::records::{Records, remove_unused_attachments, rewrite};
use super::updater::Updater;
use crate::Result;
use crate::database::counters::{Counter, remove_purge_infos};
use crate::documents::Revision;
use crate::documents::design::DESIGN_PREFIX;
use crate::documents::keys::{conflict_key, decode_number, document_key, purge_key, purge_mark_key};
use crate::documents::rev_tree::{TreeLeaf, leaves, unused_chunks};
use crate::json::write_json_string;

impl Updater<'_> {
    /// Purges documents one by one, and appends the leaves that were removed of each.
    ///
    /// # Errors
    /// A purge failed; later ones weren't tried.
    pub(crate) async fn purge_all(
        &mut self,
        requests: &[(String, Vec<Revision>)],
        infos_max: u64,
        removed: &mut Vec<Vec<Revision>>,
    ) -> Result<()> {
        for (id, revisions) in requests {
            removed.push(self.purge(id, revisions, infos_max).await?);
        }
        Ok(())
    }

    /// Removes those of `revisions` that are leaves of a document, and returns them. Keeps at most
    /// `infos_max` purge infos.
    async fn purge(&mut self, id: &str, revisions: &[Revision], infos_max: u64) -> Result<Vec<Revision>> {
        // Each purge has its own batch, since all write the same counter.
        self.commit().await?;
        let latest = self.writer.latest();
        let old = leaves(&latest, id).await?;
        let mut kept = old.clone();
        let mut asked = HashSet::with_capacity(revisions.len());
        let once: Vec<&Revision> = revisions.iter().filter(|revision| asked.insert(*revision)).collect();
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
            // Last, so that all records of the leaves before it are those that remain.
            records.batch.delete(&purge_mark_key(id));
        }
        let number = match self.writer.get(&Counter::PurgeSeq.key()).await? {
            Some(last) => decode_number(&last.meta)? + 1,
            None => 1,
        };
        Counter::PurgeSeq.put(number, &mut records.batch);
        records.number = Some((Counter::PurgeSeq, number));
        if let Some(up_to) = number.checked_sub(infos_max) {
            remove_purge_infos(&latest, up_to, &mut records.batch).await?;
        }
        records.batch.put(&purge_key(number), &[], purge_info(id, revisions), false);
        records.notifies_db_updates = true;
        records.has_design = id.starts_with(DESIGN_PREFIX);
        self.frees_space &= kept.is_empty();
        self.uncommitted_ids.insert(id.to_owned());
        self.records = records;
        let leaves: HashSet<&Revision> = old.iter().map(|leaf| &leaf.revision).collect();
        Ok(once.into_iter().filter(|revision| leaves.contains(revision)).cloned().collect())
    }
}

/// The records that remove a document, except the chunks of its paths.
async fn remove(latest: &StoreSnapshot, id: &str, old: &[TreeLeaf]) -> Result<Records> {
    let mut records = Records::default();
    records.batch.delete(&document_key(id));
    for leaf in old {
        if !leaf.stored_as_winner {
            records.batch.delete(&conflict_key(id, &leaf.revision));
        }
    }
    remove_unused_attachments(&mut records, latest, id, old, &[]).await?;
    Ok(records)
}

/// `{"id":…,"revs":[…]}`
fn purge_info(id: &str, revisions: &[Revision]) -> Bytes {
    let mut text = b"{\"id\":".to_vec();
    write_json_string(id, &mut text);
    text.extend_from_slice(b",\"revs\":[");
    for (index, revision) in revisions.iter().enumerate() {
        text.extend_from_slice(if index == 0 { b"" } else { b"," });
        revision.write_json(&mut text);
    }
    text.extend_from_slice(b"]}");
    text.into()
}
