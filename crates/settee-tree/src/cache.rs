//! Nodes in memory, for many trees together, within one bound.
//!
//! The cache is cut into shards by the node's place, each with a lock of its own, held for a
//! lookup. A shard keeps leaves and inner nodes apart, each in a ring with a hand (CLOCK): a node
//! that was used since the hand last came by is passed over once.
//!
//! Invariants:
//! 1. What the nodes in a shard take is at most the shard's share of the bound.
//! 2. An inner node goes only when its shard has no leaf: the upper levels, which every lookup
//!    needs, stay while there is room for them. What an update replaced is removed at once, so
//!    that inner nodes of the past don't crowd out what is used.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::node::Node;

/// Most shards.
const SHARD_COUNT_MAX: usize = 64;

/// A shard has at least this many bytes, unless there is but one.
const SHARD_BYTES_MIN: usize = 256 << 10;

/// What a node takes in the cache beside its own memory: about what its places in map and ring do.
const NODE_OVERHEAD: usize = 96;

/// A bounded cache of nodes, shared by any number of trees.
pub struct NodeCache {
    shards: Box<[Mutex<Shard>]>,
    shard_bytes_max: usize,
    next_tree: AtomicU64,
}

/// What a [`NodeCache`] holds and has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheStats {
    /// The bound in bytes.
    pub bytes_max: u64,
    /// Bytes held.
    pub bytes: u64,
    /// Nodes held.
    pub node_count: u64,
    /// Inner nodes among them.
    pub inner_count: u64,
    /// Lookups that found their node.
    pub hit_count: u64,
    /// Lookups that didn't.
    pub miss_count: u64,
    /// Nodes that had to go for others.
    pub evicted_count: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Place {
    tree: u64,
    offset: u64,
}

impl Place {
    fn hash(self) -> u64 {
        let mut hasher = PlaceHasher::default();
        std::hash::Hash::hash(&self, &mut hasher);
        hasher.finish()
    }
}

/// Multiplies and folds: places are our own choice, nobody else's.
#[derive(Default)]
struct PlaceHasher(u64);

impl Hasher for PlaceHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        // The constant keeps a zero from giving zero.
        let mixed = self.0 ^ value ^ 0xF39C_C060_5CED_C835;
        let product = u128::from(mixed) * 0x9E37_79B9_7F4A_7C15;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}

#[derive(Default)]
struct Shard {
    nodes: HashMap<Place, Entry, BuildHasherDefault<PlaceHasher>>,
    leaves: Ring,
    inner: Ring,
    bytes: usize,
    hit_count: u64,
    miss_count: u64,
    evicted_count: u64,
}

struct Entry {
    node: Arc<Node>,
    /// Since the hand last came by.
    is_used: bool,
    /// Where it is in its ring.
    index: u32,
}

/// Places around which a hand goes.
#[derive(Default)]
struct Ring {
    places: Vec<Place>,
    hand: usize,
}

impl NodeCache {
    /// A cache of at most `bytes_max` bytes. With 0 it keeps nothing.
    pub fn new(bytes_max: usize) -> NodeCache {
        // A power of two, so that no lookup divides.
        let shard_count = 1 << (bytes_max / SHARD_BYTES_MIN).clamp(1, SHARD_COUNT_MAX).ilog2();
        let shards = (0..shard_count).map(|_| Mutex::default()).collect();
        NodeCache { shards, shard_bytes_max: bytes_max / shard_count, next_tree: AtomicU64::new(0) }
    }

    /// What it holds and has done so far.
    pub fn stats(&self) -> CacheStats {
        let bytes_max = (self.shard_bytes_max * self.shards.len()) as u64;
        let mut stats = CacheStats { bytes_max, ..CacheStats::default() };
        for shard in &self.shards {
            let shard = lock(shard);
            stats.bytes += shard.bytes as u64;
            stats.node_count += shard.nodes.len() as u64;
            stats.inner_count += shard.inner.places.len() as u64;
            stats.hit_count += shard.hit_count;
            stats.miss_count += shard.miss_count;
            stats.evicted_count += shard.evicted_count;
        }
        stats
    }

    fn shard_index(&self, place: Place) -> usize {
        // The map uses the lowest and the highest bits.
        (place.hash() >> 24) as usize & (self.shards.len() - 1)
    }

    fn shard(&self, place: Place) -> MutexGuard<'_, Shard> {
        lock(&self.shards[self.shard_index(place)])
    }
}

/// A tree's part of a cache: its nodes go with it.
pub(crate) struct TreeNodes {
    cache: Arc<NodeCache>,
    tree: u64,
    /// The shards in which it may have nodes, a bit for each: a small tree's are few.
    shards: AtomicU64,
}

const _: () = assert!(SHARD_COUNT_MAX <= u64::BITS as usize);

impl TreeNodes {
    /// For one more tree.
    pub(crate) fn new(cache: &Arc<NodeCache>) -> TreeNodes {
        let tree = cache.next_tree.fetch_add(1, Ordering::Relaxed);
        TreeNodes { cache: cache.clone(), tree, shards: AtomicU64::new(0) }
    }

    fn place(&self, offset: u64) -> Place {
        Place { tree: self.tree, offset }
    }

    pub(crate) fn get(&self, offset: u64) -> Option<Arc<Node>> {
        let place = self.place(offset);
        self.cache.shard(place).get(place)
    }

    pub(crate) fn insert(&self, offset: u64, node: &Arc<Node>) {
        let place = self.place(offset);
        let index = self.cache.shard_index(place);
        self.shards.fetch_or(1 << index, Ordering::Relaxed);
        // What had to go is freed without the lock.
        let _gone = lock(&self.cache.shards[index]).insert(place, node, self.cache.shard_bytes_max);
    }

    pub(crate) fn remove(&self, offset: u64) {
        let place = self.place(offset);
        let _gone = self.cache.shard(place).remove(place);
    }
}

impl Drop for TreeNodes {
    fn drop(&mut self) {
        let used = *self.shards.get_mut();
        let shards = self.cache.shards.iter().enumerate().filter(|(index, _)| used & 1 << index != 0);
        for (_, shard) in shards {
            let _gone = lock(shard).remove_tree(self.tree);
        }
    }
}

impl Shard {
    fn ring(&mut self, is_leaf: bool) -> &mut Ring {
        if is_leaf { &mut self.leaves } else { &mut self.inner }
    }

    #[inline]
    fn get(&mut self, place: Place) -> Option<Arc<Node>> {
        let Some(entry) = self.nodes.get_mut(&place) else {
            self.miss_count += 1;
            return None;
        };
        self.hit_count += 1;
        entry.is_used = true;
        Some(entry.node.clone())
    }

    fn insert(&mut self, place: Place, node: &Arc<Node>, bytes_max: usize) -> Vec<Arc<Node>> {
        let mut gone = Vec::new();
        let size = cost(node);
        if size > bytes_max || self.nodes.contains_key(&place) {
            return gone;
        }
        while self.bytes + size > bytes_max {
            let is_leaf = !self.leaves.places.is_empty();
            let Some(victim) = self.victim(is_leaf) else { break };
            gone.extend(self.remove(victim));
            self.evicted_count += 1;
        }
        self.bytes += size;
        let places = &mut self.ring(node.is_leaf()).places;
        let index = places.len() as u32;
        places.push(place);
        self.nodes.insert(place, Entry { node: node.clone(), is_used: false, index });
        gone
    }

    fn remove(&mut self, place: Place) -> Option<Arc<Node>> {
        let Entry { node, index, .. } = self.nodes.remove(&place)?;
        let places = &mut self.ring(node.is_leaf()).places;
        places.swap_remove(index as usize);
        if let Some(moved) = places.get(index as usize).copied()
            && let Some(entry) = self.nodes.get_mut(&moved)
        {
            entry.index = index;
        }
        self.bytes -= cost(&node);
        Some(node)
    }

    fn remove_tree(&mut self, tree: u64) -> Vec<Arc<Node>> {
        let places: Vec<Place> = self.nodes.keys().filter(|place| place.tree == tree).copied().collect();
        places.into_iter().filter_map(|place| self.remove(place)).collect()
    }

    /// The next that wasn't used since the hand was there. The hand goes past it: what takes its
    /// slot is the newest, and has a round before it.
    fn victim(&mut self, is_leaf: bool) -> Option<Place> {
        let ring = if is_leaf { &mut self.leaves } else { &mut self.inner };
        loop {
            if ring.hand >= ring.places.len() {
                ring.hand = 0;
            }
            let place = *ring.places.get(ring.hand)?;
            ring.hand += 1;
            let is_used = self.nodes.get_mut(&place).map(|entry| std::mem::take(&mut entry.is_used));
            if is_used != Some(true) {
                return Some(place);
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
