//! Accepted bytes that lie together in memory: part of a buffer, or a large value that wasn't copied.

use std::sync::Arc;

use bytes::Bytes;
use settee_io::{File, Reservation, TailReader};

use crate::mark::Position;

/// Where accepted bytes are.
#[derive(Clone)]
pub(crate) enum Memory {
    /// In a buffer, from this index on.
    Buffer(TailReader, usize),
    /// In a value that wasn't copied; its bytes count against the pool.
    Value(Bytes, #[expect(dead_code, reason = "held, not used")] Arc<Reservation>),
}

impl Memory {
    /// A copy of the bytes from `from` to `to`, counted from the chunk's first; `None` where they
    /// aren't all there yet.
    pub(crate) fn copy(&self, from: usize, to: usize) -> Option<Bytes> {
        match self {
            Memory::Buffer(reader, base) => reader.copy(base + from..base + to),
            Memory::Value(value, _) => Some(value.slice(from..to)),
        }
    }

    pub(crate) fn share(&self, from: usize, to: usize) -> Bytes {
        match self {
            Memory::Buffer(reader, base) => {
                reader.slice(base + from..base + to).expect("what is accepted is published")
            }
            Memory::Value(value, _) => value.slice(from..to),
        }
    }
}

/// Accepted bytes that lie together in memory and in a segment.
pub(crate) struct Chunk {
    pub start: Position,
    pub end: Position,
    /// The last record that is whole at its end.
    pub seq: u64,
    /// Where the last frame ends of which it has a part: readers find a frame whole in memory, or
    /// whole in the file.
    pub frame_end: Position,
    pub file: Arc<File>,
    pub memory: Memory,
}
