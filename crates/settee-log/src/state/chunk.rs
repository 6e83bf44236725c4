//! Chunks: accepted bytes that are contiguous in memory, either part of a buffer or a large value that was
//! not copied.

use std::sync::Arc;

use bytes::Bytes;
use settee_io::{File, Reservation, TailReader};

use crate::watermark::Position;

/// The memory of a chunk.
#[derive(Clone)]
pub(crate) enum ChunkMemory {
    /// Part of a buffer, from this index on.
    Buffer(TailReader, usize),
    /// A value that was not copied; the reservation counts its bytes against the pool.
    Value(Bytes, #[expect(dead_code, reason = "its drop returns the bytes to the pool")] Arc<Reservation>),
}

impl ChunkMemory {
    /// A copy of the bytes from `from` to `to`, relative to the chunk's start; `None` if some of them aren't
    /// published yet.
    pub(crate) fn copy(&self, from: usize, to: usize) -> Option<Bytes> {
        match self {
            ChunkMemory::Buffer(reader, base) => reader.copy(base + from..base + to),
            ChunkMemory::Value(value, _) => Some(value.slice(from..to)),
        }
    }

    pub(crate) fn share(&self, from: usize, to: usize) -> Bytes {
        match self {
            ChunkMemory::Buffer(reader, base) => {
                reader.slice(base + from..base + to).expect("what is accepted is published")
            }
            ChunkMemory::Value(value, _) => value.slice(from..to),
        }
    }
}

/// Accepted bytes that are contiguous in memory and in a segment.
pub(crate) struct Chunk {
    pub start: Position,
    pub end: Position,
    /// The last record that is complete at the chunk's end.
    pub seq: u64,
    /// End of the last frame that has a part in this chunk: the chunk stays until that is written, so that
    /// readers find a frame whole in memory or whole in the file.
    pub frame_end: Position,
    pub file: Arc<File>,
    pub memory: ChunkMemory,
}
