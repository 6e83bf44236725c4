//! The node cache: nodes of many trees in memory, within one limit.
//!
//! The cache is split into shards by the node's key, each with its own lock, held for one lookup. A shard
//! keeps leaves and inner nodes in separate rings with a clock hand (CLOCK): a node used since the hand's
//! last visit is skipped once.
//!
//! Invariants:
//! 1. The nodes in a shard take at most the shard's share of the limit.
//! 2. An inner node is evicted only if its shard has no leaf: the upper levels, which every lookup needs,
//!    stay while they fit. Nodes that an update replaced are removed at once, so that stale inner nodes don't
//!    evict nodes in use.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::node::Node;

/// Largest number of shards.
const SHARD_COUNT_MAX: usize = 64;

/// Smallest size of a shard in bytes, unless there is only one.
const SHARD_BYTES_MIN: usize = 256 << 10;

/// Estimated bytes that a node takes in map and ring, besides its own memory.
const NODE_OVERHEAD: usize = 96;

/// A bounded cache of nodes, shared by any number of trees.
pub struct NodeCache {
    shards: Box<[Mutex<Shard>]>,
    shard_bytes_max: usize,
    next_tree: AtomicU64,
}

/// Contents and counters of a [`NodeCache`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheStats {
    /// The limit in bytes.
    pub bytes_max: u64,
    /// Bytes in use.
    pub bytes: u64,
    /// Number of nodes.
    pub node_count: u64,
    /// Number of inner nodes.
    pub inner_count: u64,
    /// Lookups that found their node.
    pub hit_count: u64,
    /// Lookups that didn't find their node.
    pub miss_count: u64,
    /// Nodes evicted for others.
    pub evicted_count: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct NodeKey {
    tree: u64,
    offset: u64,
}

impl NodeKey {
    fn hash(self) -> u64 {
        let mut hasher = NodeKeyHasher::default();
        std::hash::Hash::hash(&self, &mut hasher);
        hasher.finish()
    }
}

/// Hashes by multiplying and folding: an adversary has no influence on the keys.
#[derive(Default)]
struct NodeKeyHasher(u64);

impl Hasher for NodeKeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        // The constant keeps zero from hashing to zero.
        let mixed = self.0 ^ value ^ 0xF39C_C060_5CED_C835;
        let product = u128::from(mixed) * 0x9E37_79B9_7F4A_7C15;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}

#[derive(Default)]
struct Shard {
    nodes: HashMap<NodeKey, CachedNode, BuildHasherDefault<NodeKeyHasher>>,
    leaves: Ring,
    inner: Ring,
    bytes: usize,
    hit_count: u64,
    miss_count: u64,
    evicted_count: u64,
}

struct CachedNode {
    node: Arc<Node>,
    /// Whether it was used since the clock hand's last visit.
    is_used: bool,
    /// Its index in its ring.
    index: u32,
}

/// Keys of the nodes, with the clock hand.
#[derive(Default)]
struct Ring {
    keys: Vec<NodeKey>,
    hand: usize,
}

impl NodeCache {
    /// A cache of at most `bytes_max` bytes. With 0 it caches nothing.
    pub fn new(bytes_max: usize) -> NodeCache {
        // A power of two, so that no lookup divides.
        let shard_count = 1 << (bytes_max / SHARD_BYTES_MIN).clamp(1, SHARD_COUNT_MAX).ilog2();
        let shards = (0..shard_count).map(|_| Mutex::default()).collect();
        NodeCache { shards, shard_bytes_max: bytes_max / shard_count, next_tree: AtomicU64::new(0) }
    }

    /// Contents and counters.
    pub fn stats(&self) -> CacheStats {
        let bytes_max = (self.shard_bytes_max * self.shards.len()) as u64;
        let mut stats = CacheStats { bytes_max, ..CacheStats::default() };
        for shard in &self.shards {
            let shard = lock(shard);
            stats.bytes += shard.bytes as u64;
            stats.node_count += shard.nodes.len() as u64;
            stats.inner_count += shard.inner.keys.len() as u64;
            stats.hit_count += shard.hit_count;
            stats.miss_count += shard.miss_count;
            stats.evicted_count += shard.evicted_count;
        }
        stats
    }

    fn shard_index(&self, key: NodeKey) -> usize {
        // The map uses the lowest and the highest bits.
        (key.hash() >> 24) as usize & (self.shards.len() - 1)
    }

    fn shard(&self, key: NodeKey) -> MutexGuard<'_, Shard> {
        lock(&self.shards[self.shard_index(key)])
    }
}

/// One tree's nodes in a cache. Dropping it removes them.
pub(crate) struct TreeNodes {
    cache: Arc<NodeCache>,
    tree: u64,
    /// Bit set of the shards that may hold nodes of the tree; a small tree uses few.
    shards: AtomicU64,
}

const _: () = assert!(SHARD_COUNT_MAX <= u64::BITS as usize);

impl TreeNodes {
    /// For a new tree.
    pub(crate) fn new(cache: &Arc<NodeCache>) -> TreeNodes {
        let tree = cache.next_tree.fetch_add(1, Ordering::Relaxed);
        TreeNodes { cache: cache.clone(), tree, shards: AtomicU64::new(0) }
    }

    fn key(&self, offset: u64) -> NodeKey {
        NodeKey { tree: self.tree, offset }
    }

    pub(crate) fn get(&self, offset: u64) -> Option<Arc<Node>> {
        let key = self.key(offset);
        self.cache.shard(key).get(key)
    }

    pub(crate) fn insert(&self, offset: u64, node: &Arc<Node>) {
        let key = self.key(offset);
        let index = self.cache.shard_index(key);
        self.shards.fetch_or(1 << index, Ordering::Relaxed);
        // Evicted nodes are freed outside the lock.
        let _evicted = lock(&self.cache.shards[index]).insert(key, node, self.cache.shard_bytes_max);
    }

    pub(crate) fn remove(&self, offset: u64) {
        let key = self.key(offset);
        let _evicted = self.cache.shard(key).remove(key);
    }
}

impl Drop for TreeNodes {
    fn drop(&mut self) {
        let used = *self.shards.get_mut();
        let shards = self.cache.shards.iter().enumerate().filter(|(index, _)| used & 1 << index != 0);
        for (_, shard) in shards {
            let _evicted = lock(shard).remove_tree(self.tree);
        }
    }
}

impl Shard {
    fn ring(&mut self, is_leaf: bool) -> &mut Ring {
        if is_leaf { &mut self.leaves } else { &mut self.inner }
    }

    #[inline]
    fn get(&mut self, key: NodeKey) -> Option<Arc<Node>> {
        let Some(entry) = self.nodes.get_mut(&key) else {
            self.miss_count += 1;
            return None;
        };
        self.hit_count += 1;
        entry.is_used = true;
        Some(entry.node.clone())
    }

    fn insert(&mut self, key: NodeKey, node: &Arc<Node>, bytes_max: usize) -> Vec<Arc<Node>> {
        let mut evicted = Vec::new();
        let size = cost(node);
        if size > bytes_max || self.nodes.contains_key(&key) {
            return evicted;
        }
        while self.bytes + size > bytes_max {
            let is_leaf = !self.leaves.keys.is_empty();
            let Some(victim) = self.victim(is_leaf) else { break };
            evicted.extend(self.remove(victim));
            self.evicted_count += 1;
        }
        self.bytes += size;
        let keys = &mut self.ring(node.is_leaf()).keys;
        let index = keys.len() as u32;
        keys.push(key);
        self.nodes.insert(key, CachedNode { node: node.clone(), is_used: false, index });
        evicted
    }

    fn remove(&mut self, key: NodeKey) -> Option<Arc<Node>> {
        let CachedNode { node, index, .. } = self.nodes.remove(&key)?;
        let keys = &mut self.ring(node.is_leaf()).keys;
        keys.swap_remove(index as usize);
        if let Some(moved) = keys.get(index as usize).copied()
            && let Some(entry) = self.nodes.get_mut(&moved)
        {
            entry.index = index;
        }
        self.bytes -= cost(&node);
        Some(node)
    }

    fn remove_tree(&mut self, tree: u64) -> Vec<Arc<Node>> {
        let keys: Vec<NodeKey> = self.nodes.keys().filter(|key| key.tree == tree).copied().collect();
        keys.into_iter().filter_map(|key| self.remove(key)).collect()
    }

    /// The next node that wasn't used since the hand's last visit. The hand moves past it: the slot's new
    /// node is the newest, and gets a full round.
    fn victim(&mut self, is_leaf: bool) -> Option<NodeKey> {
        let ring = if is_leaf { &mut self.leaves } else { &mut self.inner };
        loop {
            if ring.hand >= ring.keys.len() {
                ring.hand = 0;
            }
            let key = *ring.keys.get(ring.hand)?;
            ring.hand += 1;
            let is_used = self.nodes.get_mut(&key).map(|entry| std::mem::take(&mut entry.is_used));
            if is_used != Some(true) {
                return Some(key);
            }
        }
    }
}

fn cost(node: &Node) -> usize {
    node.memory_bytes() + NODE_OVERHEAD
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for NodeCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeCache").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
