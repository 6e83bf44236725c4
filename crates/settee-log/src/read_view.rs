//! The read view: the segments' files, and the accepted bytes that are not yet in them.
//!
//! A view is immutable and is replaced as a whole when a chunk is added or dropped; for the chunk that still
//! grows, its buffer holds the published length. Readers take no lock and never wait for a write, a sync, or
//! an append that waits for a buffer.
//!
//! Invariants:
//! 1. A view with a frame's bytes is published before the frame's append returns.
//! 2. A chunk leaves the view after all of it is in its file.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use settee_io::File;

use crate::state::{Chunk, ChunkMemory};
use crate::watermark::Position;

/// The segments' files, by number.
pub(crate) type FileMap = BTreeMap<u32, Arc<File>>;

/// The files of a log's segments at one point in time: see [`crate::Log::files`]. Cheap to clone; can be used
/// from many tasks at once.
#[derive(Debug, Clone, Default)]
pub struct Files(pub(crate) Arc<FileMap>);

impl Files {
    /// A segment's file. `None` if the segment was not part of the log at that time.
    pub fn get(&self, segment: u32) -> Option<Arc<File>> {
        self.0.get(&segment).cloned()
    }

    /// The segments' numbers, oldest first.
    pub fn segments(&self) -> impl Iterator<Item = u32> {
        self.0.keys().copied()
    }
}

/// See the module documentation.
#[derive(Default)]
pub(crate) struct ReadView {
    pub files: Arc<FileMap>,
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
    pub(crate) fn new(files: Arc<FileMap>, accepted: &VecDeque<Chunk>) -> ReadView {
        let see =
            |chunk: &Chunk| ReadChunk { start: chunk.start, end: chunk.end, memory: chunk.memory.clone() };
        let mut chunks: Vec<ReadChunk> = accepted.iter().map(see).collect();
        if let Some(last) = chunks.last_mut() {
            last.end = Position::END;
        }
        ReadView { files, chunks }
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
