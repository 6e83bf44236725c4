//! The cost model of a checkpoint: whether a new file costs less than changing leaves.

use std::ops::Bound;

use crate::error::StoreError;
use crate::index::{BY_KEY, BY_SEQ};
use crate::memtable::{Memtable, MemtableMap};
use crate::version::CheckpointTree;

/// A tree is written to a new file when its file would exceed its live bytes times this.
const TREE_GARBAGE_MAX: u64 = 2;

/// Approximate size of a leaf in bytes.
const NODE_BYTES: u64 = 4 << 10;

/// Number of keys per memtable that the cost model samples.
const SAMPLE_COUNT: usize = 64;

/// Whether writing a new file costs less than changing the touched leaves: if half of the leaves are
/// touched, or if most of the file would be garbage.
pub(super) async fn is_whole_cheaper(
    tree: &CheckpointTree,
    memtables: &[Memtable],
) -> Result<bool, StoreError> {
    let (file_bytes, live_bytes) = (tree.tree.file_bytes(), tree.root.live_bytes());
    let leaf_count = (live_bytes / NODE_BYTES).max(1) as f64;
    let mut touched = 0.0;
    for memtable in memtables {
        touched += touched_leaves(tree, BY_KEY, &memtable.by_key, leaf_count).await?;
        touched += touched_leaves(tree, BY_SEQ, &memtable.by_seq, leaf_count).await?;
    }
    let touched = touched.min(leaf_count);
    let grown = file_bytes + (touched * NODE_BYTES as f64) as u64;
    Ok(touched * 2.0 >= leaf_count || grown > TREE_GARBAGE_MAX * live_bytes)
}

/// Approximate number of leaves that a map's keys touch. The keys between two sampled ones are taken to be
/// spread evenly over the ranks between them.
async fn touched_leaves(
    tree: &CheckpointTree,
    prefix: u8,
    map: &MemtableMap,
    leaf_count: f64,
) -> Result<f64, StoreError> {
    let step = (map.len() / SAMPLE_COUNT).max(1);
    let leaves_per_entry = leaf_count / tree.root.len().max(1) as f64;
    let mut cursor = map.cursor();
    let (mut touched, mut last_rank) = (0.0, None);
    while let Some(found) = cursor.next() {
        let key = [&[prefix], found.key].concat();
        let rank = tree.root.count_in((Bound::Unbounded, Bound::Excluded(&key[..]))).await?;
        if let Some(last) = last_rank.replace(rank) {
            let leaves = rank.saturating_sub(last) as f64 * leaves_per_entry;
            touched += if leaves > 0.0 { leaves * (1.0 - (-(step as f64) / leaves).exp()) } else { 0.0 };
        }
        cursor.skip(step as u64 - 1);
    }
    Ok(touched + 1.0)
}
