//! Chunks of segments in memory, for many stores together, within one bound.
//!
//! A chunk is [`CHUNK_BYTES`] of a file, aligned to its offsets. A read that finds all chunks of its
//! range copies the range out of them: no system call, no task, and nothing of the cache is held by
//! who has the copy. The cache is cut into shards by the chunk's place, each with a lock of its own,
//! held for the lookup and the copy. A shard keeps its chunks in a ring with a hand (CLOCK): a chunk
//! that was used since the hand last came by is passed over once.
//!
//! Only files that never change again are cached: segments that the log handed over, and rewritten
//! ones. The log's own segments aren't: their newest records are in its memory, the chunk at the end
//! of what is written would have to be dropped with every write, and all of them are handed over
//! with one of the next checkpoints.
//!
//! Invariants:
//! 1. What the chunks in a shard take is at most the shard's share of the bound.
//! 2. A file's number belongs to one opened file for as long as the process runs: a chunk is never
//!    found for another file, whatever their names are. When the file goes, so do its chunks.
//! 3. What is found was read from the medium in a range of which a record was found undamaged.

use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of a chunk; the last one of a file may have fewer.
pub const CHUNK_BYTES: usize = 4 << 10;

/// A read of more bytes goes past the cache: it would take many chunks, and copying them out costs
/// the more the less it saves.
pub(crate) const CACHED_BYTES_MAX: u64 = 16 << 10;

/// Most shards.
const SHARD_COUNT_MAX: usize = 64;

/// A shard has at least this many bytes, unless there is but one.
const SHARD_BYTES_MIN: usize = 256 << 10;

/// What a chunk takes beside its bytes: about what its places in map and ring do.
const CHUNK_OVERHEAD: usize = 80;

/// Chunks of a file have numbers of so many bits: offsets in segments have 32.
const CHUNK_BITS: u32 = 32 - CHUNK_BYTES.ilog2();

/// A bounded cache of chunks of segments, shared by any number of stores.
pub struct ChunkCache {
    shards: Box<[Mutex<Shard>]>,
    shard_bytes_max: usize,
    next_file: AtomicU64,
}

/// What a [`ChunkCache`] holds and has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ChunkStats {
    /// The bound in bytes.
    pub bytes_max: u64,
    /// Bytes held.
    pub bytes: u64,
    /// Chunks held.
    pub chunk_count: u64,
    /// Lookups that found their chunk: a read of several chunks has several.
    pub hit_count: u64,
    /// Lookups that didn't.
    pub miss_count: u64,
    /// Chunks that had to go for others.
    pub evicted_count: u64,
}

/// A file's number, and a chunk's in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Place(u64);

impl Place {
    fn new(file: u64, chunk: u64) -> Place {
        Place(file << CHUNK_BITS | chunk)
    }

    fn hash(self) -> u64 {
        let mut hasher = PlaceHasher::default();
        hasher.write_u64(self.0);
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
    chunks: HashMap<Place, Chunk, BuildHasherDefault<PlaceHasher>>,
    /// Places around which the hand goes.
    ring: Vec<Place>,
    hand: usize,
    bytes: usize,
    hit_count: u64,
    miss_count: u64,
    evicted_count: u64,
}

struct Chunk {
    bytes: Box<[u8]>,
    /// Where it is in the ring.
    index: u32,
    /// Since the hand last came by.
    is_used: bool,
}

impl ChunkCache {
    /// A cache of at most `bytes_max` bytes. With 0 it keeps nothing.
    pub fn new(bytes_max: usize) -> ChunkCache {
        // A power of two, so that no lookup divides.
        let shard_count = 1 << (bytes_max / SHARD_BYTES_MIN).clamp(1, SHARD_COUNT_MAX).ilog2();
        let shards = (0..shard_count).map(|_| Mutex::default()).collect();
        ChunkCache { shards, shard_bytes_max: bytes_max / shard_count, next_file: AtomicU64::new(0) }
    }

    /// What it holds and has done so far.
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

    fn shard(&self, place: Place) -> MutexGuard<'_, Shard> {
        // The map uses the lowest and the highest bits.
        lock(&self.shards[(place.hash() >> 24) as usize & (self.shards.len() - 1)])
    }
}

/// A file's part of a cache: its chunks go with it.
pub(crate) struct FileChunks {
    cache: Arc<ChunkCache>,
    file: u64,
    /// The file's bytes that may be cached.
    length: u64,
}

impl FileChunks {
    /// For one opened file, whose first `length` bytes don't change any more.
    pub(crate) fn new(cache: &Arc<ChunkCache>, length: u64) -> FileChunks {
        let file = cache.next_file.fetch_add(1, Ordering::Relaxed);
        FileChunks { cache: cache.clone(), file, length: length.min(1 << 32) }
    }

    /// As if the file were still that one.
    #[cfg(feature = "planted-faults")]
    pub(crate) fn stale(&self, length: u64) -> FileChunks {
        FileChunks { cache: self.cache.clone(), file: self.file, length }
    }

    /// The chunks that a range touches, in bytes, where it is one that may be cached.
    pub(crate) fn around(&self, range: &Range<u64>) -> Option<Range<u64>> {
        let is_cached = range.end <= self.length && range.end - range.start <= CACHED_BYTES_MAX;
        let chunk = CHUNK_BYTES as u64;
        let end = range.end.next_multiple_of(chunk).min(self.length);
        is_cached.then(|| range.start - range.start % chunk..end)
    }

    /// A copy of the range, where all of its chunks are here.
    pub(crate) fn copy(&self, range: &Range<u64>) -> Option<Vec<u8>> {
        self.around(range)?;
        let mut out = Vec::with_capacity((range.end - range.start) as usize);
        let mut at = range.start;
        while at < range.end {
            let chunk = at / CHUNK_BYTES as u64;
            let first = chunk * CHUNK_BYTES as u64;
            let to = range.end.min(first + CHUNK_BYTES as u64);
            let place = Place::new(self.file, chunk);
            let within = (at - first) as usize..(to - first) as usize;
            if !self.cache.shard(place).copy(place, within, &mut out) {
                return None;
            }
            at = to;
        }
        Some(out)
    }

    /// Keeps the chunks from `from` on that begin and end in `bytes`, which were read at `start`, the
    /// beginning of a chunk.
    pub(crate) fn insert(&self, start: u64, bytes: &[u8], from: u64) {
        debug_assert_eq!(start % CHUNK_BYTES as u64, 0);
        for (chunk, bytes) in (start / CHUNK_BYTES as u64..).zip(bytes.chunks(CHUNK_BYTES)) {
            let first = chunk * CHUNK_BYTES as u64;
            let is_whole = bytes.len() == CHUNK_BYTES || first + bytes.len() as u64 == self.length;
            if first < from || !is_whole {
                continue;
            }
            let place = Place::new(self.file, chunk);
            // What had to go is freed without the lock.
            let _gone = self.cache.shard(place).insert(place, bytes, self.cache.shard_bytes_max);
        }
    }

    /// Forgets the chunks that a range touches.
    pub(crate) fn remove(&self, range: &Range<u64>) {
        let chunk = CHUNK_BYTES as u64;
        for chunk in range.start / chunk..range.end.div_ceil(chunk) {
            let place = Place::new(self.file, chunk);
            let _gone = self.cache.shard(place).remove(place);
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
    fn copy(&mut self, place: Place, within: Range<usize>, out: &mut Vec<u8>) -> bool {
        let Some(chunk) = self.chunks.get_mut(&place) else {
            self.miss_count += 1;
            return false;
        };
        self.hit_count += 1;
        chunk.is_used = true;
        out.extend_from_slice(&chunk.bytes[within]);
        true
    }

    fn insert(&mut self, place: Place, bytes: &[u8], bytes_max: usize) -> Vec<Box<[u8]>> {
        let mut gone = Vec::new();
        let size = cost(bytes);
        if size > bytes_max || self.chunks.contains_key(&place) {
            return gone;
        }
        while self.bytes + size > bytes_max {
            let Some(victim) = self.victim() else { break };
            gone.extend(self.remove(victim));
            self.evicted_count += 1;
        }
        self.bytes += size;
        let index = self.ring.len() as u32;
        self.chunks.insert(place, Chunk { bytes: bytes.into(), index, is_used: false });
        self.ring.push(place);
        gone
    }

    fn remove(&mut self, place: Place) -> Option<Box<[u8]>> {
        let Chunk { bytes, index, .. } = self.chunks.remove(&place)?;
        self.ring.swap_remove(index as usize);
        if let Some(moved) = self.ring.get(index as usize)
            && let Some(chunk) = self.chunks.get_mut(moved)
        {
            chunk.index = index;
        }
        self.bytes -= cost(&bytes);
        Some(bytes)
    }

    /// The next that wasn't used since the hand was there. The hand goes past it: what takes its
    /// slot is the newest, and has a round before it.
    fn victim(&mut self) -> Option<Place> {
        loop {
            if self.hand >= self.ring.len() {
                self.hand = 0;
            }
            let place = *self.ring.get(self.hand)?;
            self.hand += 1;
            let is_used = self.chunks.get_mut(&place).map(|chunk| std::mem::take(&mut chunk.is_used));
            if is_used != Some(true) {
                return Some(place);
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
