//! Tree entries that a writer has looked up.
//!
//! A writer needs the entry of a key twice: to decide what to write, and to correct the aggregates when it
//! commits. A lookup remembers what the tree has, so that each key costs one descent. Many keys are looked up
//! in one pass, before the writer's lock is taken, so that others write meanwhile. A lookup contains nothing
//! of the memtables: searching them costs no read, and they have what was committed since.
//!
//! Invariant: a lookup's values are those of one root of the tree. A version with another root doesn't use it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::checkpoint_state::{CheckpointState, CheckpointTree};
use crate::error::ReadError;
use crate::index::BY_KEY;

/// The tree's values by key, without the index's prefix. `None`: the tree doesn't have the key.
type TreeValues = HashMap<Box<[u8]>, Option<Arc<[u8]>>>;

/// Tree entries that a writer has looked up: see [`Store::look_up`](crate::Store::look_up).
pub struct Lookup {
    tree: Option<CheckpointTree>,
    /// Keys that weren't looked up, since the memtables had their whole entries.
    in_memory: Vec<Vec<u8>>,
    values: Mutex<TreeValues>,
    /// Counts descents: [`StoreStats::write_lookup_count`](crate::StoreStats::write_lookup_count).
    write_lookup_count: Arc<AtomicU64>,
}

impl Lookup {
    /// A lookup without keys.
    pub(crate) fn new(checkpoint: &Arc<CheckpointState>, write_lookup_count: &Arc<AtomicU64>) -> Lookup {
        let (tree, write_lookup_count) = (checkpoint.tree.clone(), write_lookup_count.clone());
        Lookup { tree, in_memory: Vec::new(), values: Mutex::default(), write_lookup_count }
    }

    /// Looks up keys that are in ascending order, in one pass.
    ///
    /// # Errors
    /// See [`ReadError`]; then the lookup is unchanged.
    pub(crate) async fn add(&self, keys: &[impl AsRef<[u8]>]) -> Result<(), ReadError> {
        let Some(CheckpointTree { root, .. }) = &self.tree else { return Ok(()) };
        let tree_keys: Vec<Vec<u8>> = keys.iter().map(|key| tree_key(key.as_ref())).collect();
        self.write_lookup_count.fetch_add(keys.len() as u64, Ordering::Relaxed);
        let mut found = Vec::with_capacity(keys.len());
        root.get_many(&tree_keys, |_, value| found.push(value.map(Arc::from))).await?;
        let keys = keys.iter().map(|key| Box::from(key.as_ref()));
        self.values().extend(keys.zip(found));
        Ok(())
    }

    /// Whether the values are those of this checkpoint state's tree.
    pub(crate) fn matches(&self, checkpoint: &Arc<CheckpointState>) -> bool {
        // A root's `Seq` identifies it within its file, and a file's number is given once.
        let root = |tree: &Option<CheckpointTree>| tree.as_ref().map(|tree| (tree.number, tree.root.seq()));
        root(&self.tree) == root(&checkpoint.tree)
    }

    /// Looks up the same keys in another checkpoint state's tree.
    ///
    /// # Errors
    /// As [`Lookup::add`].
    pub(crate) async fn repeat_in(&self, checkpoint: &Arc<CheckpointState>) -> Result<Lookup, ReadError> {
        let repeated = Lookup::new(checkpoint, &self.write_lookup_count);
        let mut keys: Vec<Box<[u8]>> = self.values().keys().cloned().collect();
        // The checkpoint may have moved them to the tree.
        keys.extend(self.in_memory.iter().map(|key| Box::from(&key[..])));
        keys.sort_unstable();
        keys.dedup();
        repeated.add(&keys).await?;
        Ok(repeated)
    }

    /// The tree's value of a key; reads the tree if the key hasn't been looked up yet.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub(crate) async fn value(&self, key: &[u8]) -> Result<Option<Arc<[u8]>>, ReadError> {
        let Some(CheckpointTree { root, .. }) = &self.tree else { return Ok(None) };
        if let Some(value) = self.values().get(key) {
            return Ok(value.clone());
        }
        self.write_lookup_count.fetch_add(1, Ordering::Relaxed);
        let value = root.get_with(&tree_key(key), |value| value.map(Arc::from)).await?;
        self.values().insert(key.into(), value.clone());
        Ok(value)
    }

    /// Remembers keys that weren't looked up, since the memtables had their whole entries.
    pub(crate) fn set_in_memory(&mut self, keys: Vec<Vec<u8>>) {
        self.in_memory = keys;
    }

    /// Drops the values of keys, which are in the memtables from now on.
    pub(crate) fn remove<'a>(&self, keys: impl Iterator<Item = &'a [u8]>) {
        let mut values = self.values();
        keys.for_each(|key| drop(values.remove(key)));
    }

    fn values(&self) -> MutexGuard<'_, TreeValues> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The form of a key in the tree: with the prefix of the index by key.
pub(crate) fn tree_key(key: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(1 + key.len());
    bytes.push(BY_KEY);
    bytes.extend_from_slice(key);
    bytes
}
