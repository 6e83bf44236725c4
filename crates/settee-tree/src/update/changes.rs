//! The changes of an update, taken from their source in batches, and checked.
//!
//! Invariant: keys ascend strictly, over all batches of an update.

use crate::error::TreeError;
use crate::format::KEY_SIZE_MAX;

/// Number of changes per batch: the leaves they touch are in memory together.
const CHANGES_AT_ONCE_MAX: usize = 8192;

/// Bytes of keys per batch.
const KEY_BYTES_AT_ONCE_MAX: usize = 1 << 20;

/// The effect of a change on its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The key keeps its value, or stays absent.
    Keep,
    /// The key gets this value.
    Put(Vec<u8>),
    /// The key is removed.
    Remove,
}

/// The current batch and the source of later ones.
pub(super) struct Batch<K, C, I> {
    source: I,
    pub(super) changes: Vec<(K, Option<C>)>,
    /// The last key of the previous batch.
    last_key: Option<K>,
    taken_count: u64,
}

impl<K: AsRef<[u8]>, C, I: Iterator<Item = (K, C)>> Batch<K, C, I> {
    pub(super) fn new(source: I) -> Batch<K, C, I> {
        Batch { source, changes: Vec::new(), last_key: None, taken_count: 0 }
    }

    /// Takes the next batch; `false` after the last.
    pub(super) fn fill(&mut self) -> Result<bool, TreeError> {
        if let Some((key, _)) = self.changes.pop() {
            self.last_key = Some(key);
            self.changes.clear();
        }
        let mut key_bytes = 0;
        while self.changes.len() < CHANGES_AT_ONCE_MAX && key_bytes < KEY_BYTES_AT_ONCE_MAX {
            let Some((key, change)) = self.source.next() else { break };
            let before = self.changes.last().map(|(key, _)| key).or(self.last_key.as_ref());
            if before.is_some_and(|before| before.as_ref() >= key.as_ref()) {
                return Err(TreeError::KeyOrder { index: self.taken_count });
            }
            check_size("a key", key.as_ref().len(), KEY_SIZE_MAX)?;
            key_bytes += key.as_ref().len();
            self.taken_count += 1;
            self.changes.push((key, Some(change)));
        }
        Ok(!self.changes.is_empty())
    }
}

/// # Errors
/// [`TreeError::TooLarge`].
pub(crate) fn check_size(what: &'static str, size: usize, max: usize) -> Result<(), TreeError> {
    if size > max { Err(TreeError::TooLarge { what, size, max }) } else { Ok(()) }
}
