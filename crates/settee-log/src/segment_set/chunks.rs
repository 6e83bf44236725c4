//! The chunk cache: chunks of segments in memory, shared by many logs, with one limit.
//!
//! A chunk is [`CHUNK_BYTES`] of a file, aligned to its offsets. A read that finds all chunks of its range
//! copies the range: no system call, no task, and the copy pins nothing in the cache.
//!
//! Only files that never change again are cached: the listed segments. The newest records of the others are in
//! the log's memory, and the chunk at the end of the written part would have to be dropped with every write.
//!
//! Invariant: a cached chunk was read from the medium in a range in which a record was found undamaged.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use settee_io::{Cache, CacheStats, CachedFile};

/// Bytes of a chunk; the last one of a file may have fewer.
pub const CHUNK_BYTES: usize = 4 << 10;

/// Longest read in bytes that uses the cache. A longer one would take many chunks, and copying them costs
/// more the less it saves.
pub(crate) const CACHED_BYTES_MAX: u64 = 16 << 10;

/// A bounded cache of chunks of segments, shared by any number of logs.
pub struct ChunkCache(Arc<Cache<Arc<[u8]>>>);

impl ChunkCache {
    /// Creates a cache of at most `bytes_max` bytes. With 0 it keeps nothing.
    pub fn new(bytes_max: usize) -> ChunkCache {
        ChunkCache(Arc::new(Cache::new(bytes_max, |bytes: &Arc<[u8]>| bytes.len())))
    }

    /// Contents and counters. A read of several chunks makes several lookups.
    pub fn stats(&self) -> CacheStats {
        self.0.stats()
    }
}

/// A file's part of a cache.
pub(crate) struct FileChunks {
    /// By their numbers in the file.
    pub(crate) chunks: Arc<CachedFile<Arc<[u8]>>>,
    /// Number of the file's bytes that may be cached.
    length: u64,
}

impl FileChunks {
    /// For one opened file, whose first `length` bytes don't change any more.
    pub(crate) fn new(cache: &Arc<ChunkCache>, length: u64) -> FileChunks {
        let chunk_count = length.div_ceil(CHUNK_BYTES as u64);
        FileChunks { chunks: Arc::new(CachedFile::new(&cache.0, chunk_count)), length }
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
            let bytes = self.chunks.get(chunk)?;
            out.extend_from_slice(&bytes[(at - first) as usize..(to - first) as usize]);
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
            self.chunks.insert(chunk, bytes.into());
        }
    }

    /// Removes the chunks that a range touches.
    pub(crate) fn remove(&self, range: &Range<u64>) {
        let chunk = CHUNK_BYTES as u64;
        for chunk in range.start / chunk..range.end.div_ceil(chunk) {
            self.chunks.remove(chunk);
        }
    }
}

impl fmt::Debug for ChunkCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests;
