//! Comparing a converted database with the records that it was made of.
//!
//! The previous records are read again in the order of their updates. One that isn't in the new database as it
//! was must have been replaced or removed by a later one: it is remembered until that one comes. Only records
//! after the last checkpoint can be replaced by later ones, so few are remembered. Paths are compared with those of
//! the previous path chunks, which are still there and are compared themselves.

use std::collections::BTreeSet;

use bytes::Bytes;
use settee_store::{Entry, Flags, Salvage, Salvaged, Snapshot as StoreSnapshot};

use super::convert::{id_of_leaf, key_until_converted, previous_path};
use crate::documents::keys::{CONFLICT, DOCUMENT, LeafMeta, LeafState, describe};
use crate::documents::leaf_value::LeafValue;
use crate::documents::rev_tree::TreeLeaf;
use crate::{Error, ErrorKind, Result};

/// Compares all records. Calls `report` with the number of segments done, after each.
///
/// # Errors
/// `Internal`, naming a record that differs; or a store's error.
pub(super) async fn compare(
    previous: &mut Salvage<'_>,
    snapshot: &StoreSnapshot,
    revs_limit: u32,
    mut report: impl FnMut(usize),
) -> Result<()> {
    previous.seek(0);
    // Keys whose last record so far differs.
    let mut differing: BTreeSet<Vec<u8>> = BTreeSet::new();
    for count in 1..=previous.segment_count() {
        let Some(records) = previous.next().await? else { break };
        for record in records {
            if is_same(&record, snapshot, revs_limit).await? {
                differing.remove(&record.key);
            } else {
                differing.insert(record.key);
            }
        }
        report(count);
    }
    match differing.first() {
        None => Ok(()),
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
    let is_removed = record.flags.has(Flags::TOMBSTONE);
    let Some(entry) = snapshot.get(&key_until_converted(&record.key)).await? else { return Ok(is_removed) };
    if is_removed {
        return Ok(false);
    }
    let value = snapshot.read(entry.location).await?.value();
    if entry.in_seq_index != record.flags.has(Flags::IN_SEQ_INDEX) {
        return Ok(false);
    }
    match is_leaf(record) {
        true => is_leaf_same(record, &entry, &value, snapshot, revs_limit).await,
        false => Ok((&entry.meta, &value) == (&record.meta, &record.value)),
    }
}

/// Whether a leaf has the content of a previous one, and its path as far as it is kept.
async fn is_leaf_same(
    record: &Salvaged,
    entry: &Entry,
    value: &Bytes,
    snapshot: &StoreSnapshot,
    revs_limit: u32,
) -> Result<bool> {
    let old = LeafMeta::decode_previous(&record.meta)?;
    let divided = LeafValue::decode(value)?;
    let mut leaf = TreeLeaf::stored(&entry.meta, entry.location, false)?;
    let state = LeafState { has_tail_in_value: false, ..LeafMeta::decode(&entry.meta)?.state };
    let is_same = state == old.state
        && leaf.revision == old.revision
        && record.value.first() == Some(&divided.encoding)
        && record.value[1..] == divided.rest;
    if !is_same {
        return Ok(false);
    }
    let malformed = |_| Error::damaged("the key of a leaf is malformed");
    let id = std::str::from_utf8(id_of_leaf(&record.key)?).map_err(malformed)?;
    let mut path = previous_path(snapshot, id, &old, revs_limit).await?;
    path.truncate(revs_limit as usize);
    leaf.complete_path(snapshot, id, old.revision.generation - (path.len() as u32 - 1)).await?;
    Ok(leaf.path.get(..path.len()) == Some(&path[..]))
}
