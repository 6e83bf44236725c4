//! Values made from parts of many files (tree nodes, chunks of segments) in memory, within one limit.
//!
//! The cache is `quick_cache`'s: shards with a lock each, and an eviction that keeps a value used once only
//! while the values used more often leave space, so that a scan evicts none of those
//! (`docs/decisions/0021-cache.md`). This module numbers the files, and removes a file's values when it is
//! closed.
//!
//! Invariants:
//! 1. The values take at most the limit.
//! 2. A file's number belongs to one opened file for as long as the process runs: a value is never found for
//!    another file, whatever their names are. When the [`CachedFile`] is dropped, so are its values.

use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use quick_cache::sync::DefaultLifecycle;
use quick_cache::{OptionsBuilder, Weighter};

/// Number of positions of a file that are remembered; a file with more values is found by visiting the cache.
const REMEMBERED_MAX: usize = 64;

/// Largest number of shards.
const SHARD_COUNT_MAX: usize = 64;

/// Smallest size of a shard in bytes, unless there is only one.
const SHARD_BYTES_MIN: usize = 256 << 10;

/// Typical size of a value in bytes. It determines the number of ghost entries: the keys of evicted values.
const VALUE_BYTES: usize = 4 << 10;

/// Estimated bytes that a value takes in the cache besides its own memory.
pub const CACHE_ENTRY_BYTES: usize = 112;

/// A bounded cache of values, shared by any number of files. A lookup clones the value.
pub struct Cache<V> {
    values: Values<V>,
    next_file: AtomicU64,
}

type Values<V> = quick_cache::sync::Cache<Key, V, Weight<V>, BuildHasherDefault<KeyHasher>>;

/// Contents and counters of a [`Cache`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheStats {
    /// The limit in bytes.
    pub bytes_max: u64,
    /// Bytes in use.
    pub bytes: u64,
    /// Number of values.
    pub count: u64,
    /// Lookups that found their value.
    pub hit_count: u64,
    /// Lookups that didn't find their value.
    pub miss_count: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    file: u64,
    position: u64,
}

/// Hashes by multiplying and folding: an adversary has no influence on the keys.
#[derive(Default, Clone)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, value: u64) {
        // The constant keeps zero from hashing to zero.
        let mixed = self.0 ^ value ^ 0xF39C_C060_5CED_C835;
        let product = u128::from(mixed) * 0x9E37_79B9_7F4A_7C15;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}

/// The size of a value in bytes, which must not change.
struct Weight<V>(fn(&V) -> usize);

impl<V> Clone for Weight<V> {
    fn clone(&self) -> Weight<V> {
        Weight(self.0)
    }
}

impl<V> Weighter<Key, V> for Weight<V> {
    fn weight(&self, _: &Key, value: &V) -> u64 {
        ((self.0)(value) + CACHE_ENTRY_BYTES) as u64
    }
}

impl<V: Clone> Cache<V> {
    /// A cache of at most `bytes_max` bytes, whose values have the size that `weigh` returns. With 0 it caches
    /// nothing.
    pub fn new(bytes_max: usize, weigh: fn(&V) -> usize) -> Cache<V> {
        // Neither number depends on the machine: a simulation is the same everywhere.
        let shard_count = 1 << (bytes_max / SHARD_BYTES_MIN).clamp(1, SHARD_COUNT_MAX).ilog2();
        let options = OptionsBuilder::new()
            .shards(shard_count)
            .estimated_items_capacity(bytes_max / VALUE_BYTES)
            .weight_capacity((bytes_max / shard_count * shard_count) as u64)
            .build()
            .expect("all options are set");
        let hasher = BuildHasherDefault::default();
        let values = Values::with_options(options, Weight(weigh), hasher, DefaultLifecycle::default());
        Cache { values, next_file: AtomicU64::new(0) }
    }

    /// Contents and counters.
    pub fn stats(&self) -> CacheStats {
        CacheStats {
            bytes_max: self.values.capacity(),
            bytes: self.values.weight(),
            count: self.values.len() as u64,
            hit_count: self.values.hits(),
            miss_count: self.values.misses(),
        }
    }
}

/// One opened file's values in a cache. Dropping it removes them.
pub struct CachedFile<V: Clone> {
    cache: Arc<Cache<V>>,
    file: u64,
    /// Upper bound of the positions, exclusive.
    position_count: u64,
    /// Positions of inserted values, up to [`REMEMBERED_MAX`]; `None`: there were more.
    inserted: Mutex<Option<Vec<u64>>>,
}

impl<V: Clone> CachedFile<V> {
    /// For a file that was just opened, with values at positions below `position_count`.
    pub fn new(cache: &Arc<Cache<V>>, position_count: u64) -> CachedFile<V> {
        let file = cache.next_file.fetch_add(1, Ordering::Relaxed);
        CachedFile { cache: cache.clone(), file, position_count, inserted: Mutex::new(Some(Vec::new())) }
    }

    fn key(&self, position: u64) -> Key {
        Key { file: self.file, position }
    }

    /// The value at a position.
    pub fn get(&self, position: u64) -> Option<V> {
        self.cache.values.get(&self.key(position))
    }

    /// Inserts a value, unless it is too large for a shard. It may be evicted at once.
    pub fn insert(&self, position: u64, value: V) {
        let mut inserted = self.inserted.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(positions) = &mut *inserted {
            match positions.len() < REMEMBERED_MAX {
                true => positions.push(position),
                false => *inserted = None,
            }
        }
        drop(inserted);
        self.cache.values.insert(self.key(position), value);
    }

    /// Removes the value at a position.
    pub fn remove(&self, position: u64) {
        self.cache.values.remove(&self.key(position));
    }
}

impl<V: Clone> Drop for CachedFile<V> {
    fn drop(&mut self) {
        // A small file must not cost a visit of the whole cache.
        if let Some(positions) = self.inserted.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            positions.into_iter().for_each(|position| self.remove(position));
            return;
        }
        // The cheaper of visiting all positions and visiting all values of the cache.
        if self.position_count <= self.cache.values.len() as u64 {
            (0..self.position_count).for_each(|position| self.remove(position));
        } else {
            self.cache.values.retain(|key, _| key.file != self.file);
        }
    }
}

impl<V: Clone> fmt::Debug for Cache<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
