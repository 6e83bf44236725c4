//! The chunk cache: chunks of segments in memory, shared by many stores, with one limit.
//!
//! A chunk is [`CHUNK_BYTES`] of a file, aligned to its offsets. A read that finds all chunks of its range
//! copies the range: no system call, no task, and the copy pins nothing in the cache. The cache is divided
//! into shards by the chunk's key, each with a lock of its own, held for the lookup and the copy. A shard
//! keeps its chunks in a ring with a hand (CLOCK): a chunk that was used since the hand last passed it is
//! skipped once.
//!
//! Only files that never change again are cached: segments transferred from the log, and rewritten ones. The
//! log's own segments aren't. Their newest records are in the log's memory, the chunk at the end of the
//! written part would have to be dropped with every write, and all of them are transferred soon after a
//! checkpoint.
//!
//! Invariants:
//! 1. The chunks in a shard take at most the shard's share of the limit.
//! 2. A file's number belongs to one opened file for as long as the process runs: a chunk is never found for
//!    another file, whatever their names are. When the file is dropped, so are its chunks.
//! 3. A cached chunk was read from the medium in a range in which a record was found undamaged.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of a chunk; the last one of a file may have fewer.
pub const CHUNK_BYTES: usize = 4 << 10;

/// Longest read in bytes that uses the cache. A longer one would take many chunks, and copying them costs
/// more the less it saves.
pub(crate) const CACHED_BYTES_MAX: u64 = 16 << 10;

/// Largest number of shards.
const SHARD_COUNT_MAX: usize = 64;

/// Smallest size of a shard in bytes, unless there is only one.
const SHARD_BYTES_MIN: usize = 256 << 10;

/// Approximate size of a chunk's slots in the map and the ring, in bytes.
const CHUNK_OVERHEAD: usize = 80;

/// Bits of a chunk's number in its file: offsets in segments have 32.
const CHUNK_BITS: u32 = 32 - CHUNK_BYTES.ilog2();

/// A bounded cache of chunks of segments, shared by any number of stores.
pub struct ChunkCache {
    shards: Box<[Mutex<Shard>]>,
    shard_bytes_max: usize,
    next_file: AtomicU64,
}

/// Contents and counters of a [`ChunkCache`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ChunkStats {
    /// The limit in bytes.
    pub bytes_max: u64,
    /// Bytes held.
    pub bytes: u64,
    /// Chunks held.
    pub chunk_count: u64,
    /// Lookups that found their chunk; a read of several chunks makes several.
    pub hit_count: u64,
    /// Lookups that did not find their chunk.
    pub miss_count: u64,
    /// Chunks removed to make space for others.
    pub evicted_count: u64,
}

/// A file's number, and a chunk's number in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct ChunkKey(u64);

impl ChunkKey {
    fn new(file: u64, chunk: u64) -> ChunkKey {
        ChunkKey(file << CHUNK_BITS | chunk)
    }

    fn hash(self) -> u64 {
        let mut hasher = ChunkKeyHasher::default();
        hasher.write_u64(self.0);
        hasher.finish()
    }
}

/// Multiplies and folds; needs no defence, since the keys are not chosen by clients.
#[derive(Default)]
struct ChunkKeyHasher(u64);

impl Hasher for ChunkKeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u64(&mut self, value: u64) {
        // The constant keeps a zero from giving zero.
        let product = u128::from(self.0 ^ value ^ 0xF39C_C060_5CED_C835) * 0x9E37_79B9_7F4A_7C15;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}

#[derive(Default)]
struct Shard {
    chunks: HashMap<ChunkKey, Chunk, BuildHasherDefault<ChunkKeyHasher>>,
    /// The keys that the hand passes over.
    ring: Vec<ChunkKey>,
    hand: usize,
    bytes: usize,
    hit_count: u64,
    miss_count: u64,
    evicted_count: u64,
}

struct Chunk {
    bytes: Box<[u8]>,
    /// Its index in the ring.
    index: u32,
    /// Whether it was used since the hand last passed it.
    is_used: bool,
}

impl ChunkCache {
    /// Creates a cache of at most `bytes_max` bytes. With 0 it keeps nothing.
    pub fn new(bytes_max: usize) -> ChunkCache {
        // A power of two, so that no lookup divides.
        let shard_count = 1 << (bytes_max / SHARD_BYTES_MIN).clamp(1, SHARD_COUNT_MAX).ilog2();
        let shards = (0..shard_count).map(|_| Mutex::default()).collect();
        ChunkCache { shards, shard_bytes_max: bytes_max / shard_count, next_file: AtomicU64::new(0) }
    }

    /// Contents and counters, summed over the shards.
    pub fn stats(&self) -> ChunkStats {
        let bytes_max = (self.shard_bytes_max * self.shards.len()) as u64;
        let mut stats = ChunkStats { bytes_max, ..ChunkStats::default() };
        for shard in &self.shards {
            let shard = lock(shard);
            stats.bytes += shard.bytes as u64;
            stats.chunk_count += shard.ring.len() as u64;
            stats.hit_count += shard.hit_count;
            stats.miss_count += shard.miss_count;
            stats.evicted_count += shard.evicted_count;
        }
        stats
    }

    fn shard(&self, key: ChunkKey) -> MutexGuard<'_, Shard> {
        // The map uses the lowest and the highest bits.
        lock(&self.shards[(key.hash() >> 24) as usize & (self.shards.len() - 1)])
    }
}

/// A file's part of a cache; dropping it removes the file's chunks.
pub(crate) struct FileChunks {
    cache: Arc<ChunkCache>,
    /// The file's number in the cache.
    pub(crate) file: u64,
    /// Number of the file's bytes that may be cached.
    length: u64,
}

impl FileChunks {
    /// For one opened file, whose first `length` bytes don't change any more.
    pub(crate) fn new(cache: &Arc<ChunkCache>, length: u64) -> FileChunks {
        let file = cache.next_file.fetch_add(1, Ordering::Relaxed);
        FileChunks { cache: cache.clone(), file, length: length.min(1 << 32) }
    }

    /// The range of the chunks that a range touches, in bytes, if it may be cached.
    pub(crate) fn around(&self, range: &Range<u64>) -> Option<Range<u64>> {
        let is_cached = range.end <= self.length && range.end - range.start <= CACHED_BYTES_MAX;
        let chunk = CHUNK_BYTES as u64;
        let end = range.end.next_multiple_of(chunk).min(self.length);
        is_cached.then(|| range.start - range.start % chunk..end)
    }

    /// A copy of the range, if all of its chunks are cached.
    pub(crate) fn copy(&self, range: &Range<u64>) -> Option<Vec<u8>> {
        self.around(range)?;
        let mut out = Vec::with_capacity((range.end - range.start) as usize);
        let mut at = range.start;
        while at < range.end {
            let chunk = at / CHUNK_BYTES as u64;
            let first = chunk * CHUNK_BYTES as u64;
            let to = range.end.min(first + CHUNK_BYTES as u64);
            let key = ChunkKey::new(self.file, chunk);
            let within = (at - first) as usize..(to - first) as usize;
            if !self.cache.shard(key).copy(key, within, &mut out) {
                return None;
            }
            at = to;
        }
        Some(out)
    }

    /// Inserts the chunks from offset `from` on that lie wholly in `bytes`, which were read at `start`, the
    /// beginning of a chunk.
    pub(crate) fn insert(&self, start: u64, bytes: &[u8], from: u64) {
        debug_assert_eq!(start % CHUNK_BYTES as u64, 0);
        for (chunk, bytes) in (start / CHUNK_BYTES as u64..).zip(bytes.chunks(CHUNK_BYTES)) {
            let first = chunk * CHUNK_BYTES as u64;
            let is_whole = bytes.len() == CHUNK_BYTES || first + bytes.len() as u64 == self.length;
            if first < from || !is_whole {
                continue;
            }
            let key = ChunkKey::new(self.file, chunk);
            // Evicted chunks are freed without the lock.
            let _gone = self.cache.shard(key).insert(key, bytes, self.cache.shard_bytes_max);
        }
    }

    /// Removes the chunks that a range touches.
    pub(crate) fn remove(&self, range: &Range<u64>) {
        let chunk = CHUNK_BYTES as u64;
        for chunk in range.start / chunk..range.end.div_ceil(chunk) {
            let key = ChunkKey::new(self.file, chunk);
            let _gone = self.cache.shard(key).remove(key);
        }
    }
}

impl Drop for FileChunks {
    fn drop(&mut self) {
        self.remove(&(0..self.length));
    }
}

impl Shard {
    #[inline]
    fn copy(&mut self, key: ChunkKey, within: Range<usize>, out: &mut Vec<u8>) -> bool {
        let Some(chunk) = self.chunks.get_mut(&key) else {
            self.miss_count += 1;
            return false;
        };
        self.hit_count += 1;
        chunk.is_used = true;
        out.extend_from_slice(&chunk.bytes[within]);
        true
    }

    fn insert(&mut self, key: ChunkKey, bytes: &[u8], bytes_max: usize) -> Vec<Box<[u8]>> {
        let mut gone = Vec::new();
        let size = cost(bytes);
        if size > bytes_max || self.chunks.contains_key(&key) {
            return gone;
        }
        while self.bytes + size > bytes_max {
            let Some(victim) = self.victim() else { break };
            gone.extend(self.remove(victim));
            self.evicted_count += 1;
        }
        self.bytes += size;
        let index = self.ring.len() as u32;
        self.chunks.insert(key, Chunk { bytes: bytes.into(), index, is_used: false });
        self.ring.push(key);
        gone
    }

    fn remove(&mut self, key: ChunkKey) -> Option<Box<[u8]>> {
        let Chunk { bytes, index, .. } = self.chunks.remove(&key)?;
        self.ring.swap_remove(index as usize);
        if let Some(moved) = self.ring.get(index as usize)
            && let Some(chunk) = self.chunks.get_mut(moved)
        {
            chunk.index = index;
        }
        self.bytes -= cost(&bytes);
        Some(bytes)
    }

    /// The next chunk that was not used since the hand last passed it. The hand moves past it: the chunk that
    /// takes its slot is the newest, and has a full round before it.
    fn victim(&mut self) -> Option<ChunkKey> {
        loop {
            if self.hand >= self.ring.len() {
                self.hand = 0;
            }
            let key = *self.ring.get(self.hand)?;
            self.hand += 1;
            let is_used = self.chunks.get_mut(&key).map(|chunk| std::mem::take(&mut chunk.is_used));
            if is_used != Some(true) {
                return Some(key);
            }
        }
    }
}

fn cost(bytes: &[u8]) -> usize {
    bytes.len() + CHUNK_OVERHEAD
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for ChunkCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChunkCache").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
