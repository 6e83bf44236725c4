//! The read view: the set of files, and the accepted bytes that are not yet in them.
//!
//! A view is immutable and is replaced as a whole when a chunk is added or dropped; for the chunk that still
//! grows, its buffer holds the published length. Readers take no lock and never wait for a write, a sync, or
//! an append that waits for a buffer.
//!
//! Invariants:
//! 1. A view with a frame's bytes is published before the frame's append returns.
//! 2. A chunk leaves the view after all of it is in its file.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::segment_set::SegmentSet;
use crate::state::{Chunk, ChunkMemory};
use crate::watermark::Position;

/// See the module documentation.
#[derive(Default)]
pub(crate) struct ReadView {
    pub set: Arc<SegmentSet>,
    chunks: Vec<ReadChunk>,
}

/// A chunk as readers see it.
struct ReadChunk {
    start: Position,
    /// End of its bytes; for the last chunk [`Position::END`], since its buffer limits the reads.
    end: Position,
    memory: ChunkMemory,
}

impl ReadView {
    pub(crate) fn new(set: Arc<SegmentSet>, accepted: &VecDeque<Chunk>) -> ReadView {
        let see =
            |chunk: &Chunk| ReadChunk { start: chunk.start, end: chunk.end, memory: chunk.memory.clone() };
        let mut chunks: Vec<ReadChunk> = accepted.iter().map(see).collect();
        if let Some(last) = chunks.last_mut() {
            last.end = Position::END;
        }
        ReadView { set, chunks }
    }

    /// A copy of the bytes from `start` to `end`, if all of them are in memory.
    pub(crate) fn copy(&self, start: Position, end: Position) -> Option<Bytes> {
        let first = self.chunks.partition_point(|chunk| chunk.end <= start);
        let mut parts = Vec::new();
        let mut at = start;
        for chunk in &self.chunks[first..] {
            if chunk.start > at {
                return None;
            }
            let to = end.min(chunk.end);
            parts.push(chunk.memory.copy(at.since(chunk.start), to.since(chunk.start))?);
            at = to;
            if at == end {
                return Some(join(parts));
            }
        }
        None
    }
}

/// Concatenates the parts; copies only if there are several.
fn join(mut parts: Vec<Bytes>) -> Bytes {
    if parts.len() == 1 {
        return parts.remove(0);
    }
    let mut joined = BytesMut::with_capacity(parts.iter().map(Bytes::len).sum());
    parts.iter().for_each(|part| joined.extend_from_slice(part));
    joined.freeze()
}
