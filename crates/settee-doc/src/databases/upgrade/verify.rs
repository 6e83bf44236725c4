//! Comparing a converted database with the records that it was made of.
//!
//! The previous records are read again in the order of their updates. One that isn't in the new database as it
//! was must have been replaced or removed by a later one: it is remembered until that one comes. Only records
//! after the last checkpoint can be replaced by later ones, so few are remembered.

use std::collections::BTreeSet;

use settee_store::{Flags, Salvage, Salvaged, Snapshot as StoreSnapshot};

use super::convert::{id_of_leaf, id_with_size};
use crate::documents::keys::{CONFLICT, DOCUMENT, LeafMeta, LeafState, PATH, decode_path_key, describe};
use crate::documents::leaf_value::LeafValue;
use crate::documents::path::decode_chunk;
use crate::documents::rev_tree::{TreeLeaf, leaves};
use crate::{Error, ErrorKind, Result};

/// The number of records that were compared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Compared {
    /// Leaves: documents, and their branches.
    pub(super) leaf_count: u64,
    /// All records.
    pub(super) record_count: u64,
}

/// Compares all records. Calls `report` with the number of segments done, after each.
///
/// # Errors
/// `Internal`, naming a record that differs; or a store's error.
pub(super) async fn compare(
    previous: &mut Salvage<'_>,
    snapshot: &StoreSnapshot,
    revs_limit: u32,
    mut report: impl FnMut(usize),
) -> Result<Compared> {
    previous.seek(0);
    let mut compared = Compared::default();
    // Keys whose last record so far differs.
    let mut differing: BTreeSet<Vec<u8>> = BTreeSet::new();
    for count in 1..=previous.segment_count() {
        let Some(records) = previous.next().await? else { break };
        for record in records {
            compared.record_count += 1;
            compared.leaf_count += u64::from(is_leaf(&record));
            if is_same(&record, snapshot, revs_limit).await? {
                differing.remove(&record.key);
            } else {
                differing.insert(record.key);
            }
        }
        report(count);
    }
    match differing.first() {
        None => Ok(compared),
        Some(key) => {
            let (count, what) = (differing.len(), describe(key));
            let reason = format!("{count} records differ after the conversion, the first being {what}");
            Err(Error::new(ErrorKind::Internal, reason))
        }
    }
}

fn is_leaf(record: &Salvaged) -> bool {
    matches!(record.key.first(), Some(&DOCUMENT | &CONFLICT)) && !record.flags.has(Flags::TOMBSTONE)
}

/// Whether the new database has what a record says.
async fn is_same(record: &Salvaged, snapshot: &StoreSnapshot, revs_limit: u32) -> Result<bool> {
    let kind = record.key.first().copied().unwrap_or_default();
    let is_removed = record.flags.has(Flags::TOMBSTONE);
    if kind == PATH {
        // It may have been removed only once no leaf needed it.
        return if is_removed { Ok(true) } else { is_path_same(record, snapshot, revs_limit).await };
    }
    let Some(entry) = snapshot.get(&record.key).await? else { return Ok(is_removed) };
    if is_removed {
        return Ok(false);
    }
    let value = snapshot.read(entry.location).await?.value();
    let is_in_seq_index = record.flags.has(Flags::IN_SEQ_INDEX);
    if kind != DOCUMENT && kind != CONFLICT {
        return Ok(
            (&entry.meta, &value, entry.in_seq_index) == (&record.meta, &record.value, is_in_seq_index)
        );
    }
    let (old, new) = (LeafMeta::decode_previous(&record.meta)?, LeafMeta::decode(&entry.meta)?);
    let divided = LeafValue::decode(&value)?;
    let state = LeafState { has_tail_in_value: false, ..new.state };
    Ok(state == old.state
        && new.revision == old.revision
        && entry.in_seq_index == is_in_seq_index
        && record.value.first() == Some(&divided.encoding)
        && record.value[1..] == divided.rest
        && has_path(snapshot, &record.key, &old, revs_limit).await?)
}

/// Whether a leaf has the path that is in a previous leaf's meta, as far as it is kept.
async fn has_path(snapshot: &StoreSnapshot, key: &[u8], old: &LeafMeta<'_>, revs_limit: u32) -> Result<bool> {
    let malformed = || Error::damaged("the key of a leaf is malformed");
    let id = std::str::from_utf8(id_of_leaf(key)?).map_err(|_| malformed())?;
    let all = leaves(snapshot, id).await?;
    let Some(mut leaf) = all.into_iter().find(|leaf| leaf.revision == old.revision) else { return Ok(false) };
    let mut path = old.path();
    path.truncate(revs_limit as usize);
    leaf.complete_path(snapshot, id, old.revision.generation + 1 - path.len() as u32).await?;
    Ok(leaf.path.get(..path.len()) == Some(&path[..]))
}

/// Whether the paths through the revision of a previous path chunk continue with its ancestors, as far as they
/// are kept.
async fn is_path_same(record: &Salvaged, snapshot: &StoreSnapshot, revs_limit: u32) -> Result<bool> {
    let malformed = || Error::damaged("the key of a chunk of a revision path is malformed");
    let id = id_with_size(&record.key[1..]).ok_or_else(malformed)?;
    let prefix = &record.key[..3 + id.len()];
    let revision = decode_path_key(&record.key, prefix)?;
    let id = std::str::from_utf8(id).map_err(|_| malformed())?;
    let ancestors = decode_chunk(&record.meta, &record.value)?;
    for leaf in &mut leaves(snapshot, id).await? {
        let needed = kept_ancestors(leaf, revision.generation, ancestors.len(), revs_limit);
        if needed == 0 {
            continue;
        }
        leaf.complete_path(snapshot, id, revision.generation - needed as u32).await?;
        if leaf.descends_from(&revision) {
            let back = (leaf.revision.generation - revision.generation) as usize + 1;
            if leaf.path.get(back..back + needed) != Some(&ancestors[..needed]) {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Number of a revision's ancestors that are among the last `revs_limit` revisions of a leaf.
fn kept_ancestors(leaf: &TreeLeaf, generation: u32, count: usize, revs_limit: u32) -> usize {
    let oldest = leaf.revision.generation.saturating_sub(revs_limit) + 1;
    (generation.saturating_sub(oldest) as usize).min(count)
}
