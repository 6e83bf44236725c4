//! What readers see: the segments' files, and the accepted bytes that are not yet in them.
//!
//! A view is replaced whole when a chunk comes or goes, and never changed; within the chunk that
//! grows, the buffer itself says how far it is published. Readers take no lock and wait for
//! nobody: not for a write or a sync, and not for whoever waits for a buffer.
//!
//! Invariants:
//! 1. A view with a frame's bytes is published before the frame's append returns.
//! 2. A chunk leaves the view after all of it is in its file.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use bytes::{Bytes, BytesMut};
use settee_io::File;

use crate::chunk::{Chunk, Memory};
use crate::mark::Position;
use crate::state::State;

/// The segments' files, by number.
pub(crate) type FileMap = BTreeMap<u32, Arc<Slot>>;

/// The files of a log's segments at one time: see [`crate::Log::files`]. Cheap to clone; used from
/// many tasks at once.
#[derive(Debug, Clone, Default)]
pub struct Files(pub(crate) Arc<FileMap>);

impl Files {
    /// A segment's file. None where the segment wasn't the log's at that time, or the log was closed
    /// or dropped while it was.
    pub fn get(&self, segment: u32) -> Option<Arc<File>> {
        self.0.get(&segment)?.get()
    }

    /// The segments' numbers, oldest first.
    pub fn segments(&self) -> impl Iterator<Item = u32> {
        self.0.keys().copied()
    }
}

/// A segment's file, until the log lets go of it at its end, whoever else has the slot: with the file
/// its lock goes, so that the folder can be opened again.
#[derive(Debug)]
pub(crate) struct Slot(ArcSwapOption<File>);

impl Slot {
    pub(crate) fn new(file: Arc<File>) -> Arc<Slot> {
        Arc::new(Slot(ArcSwapOption::from(Some(file))))
    }

    pub(crate) fn get(&self) -> Option<Arc<File>> {
        self.0.load_full()
    }

    /// The file, for whoever no longer shares it.
    pub(crate) fn into_file(self) -> Option<Arc<File>> {
        self.0.into_inner()
    }

    pub(crate) fn let_go(&self) {
        self.0.store(None);
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct View {
    pub files: Arc<FileMap>,
    chunks: Vec<Seen>,
}

/// A chunk as readers see it.
struct Seen {
    start: Position,
    /// The end of its bytes; for the last chunk, its buffer knows better.
    end: Position,
    memory: Memory,
}

impl View {
    pub(crate) fn new(files: Arc<FileMap>, state: &State) -> View {
        let see = |chunk: &Chunk| Seen { start: chunk.start, end: chunk.end, memory: chunk.memory.clone() };
        let mut chunks: Vec<Seen> = state.chunks.iter().map(see).collect();
        if let Some(last) = chunks.last_mut() {
            last.end = Position::END;
        }
        View { files, chunks }
    }

    /// A copy of the bytes from `start` to `end`, where all of them are in memory.
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

/// The parts as one: a copy only where there are several.
fn join(mut parts: Vec<Bytes>) -> Bytes {
    if parts.len() == 1 {
        return parts.remove(0);
    }
    let mut joined = BytesMut::with_capacity(parts.iter().map(Bytes::len).sum());
    parts.iter().for_each(|part| joined.extend_from_slice(part));
    joined.freeze()
}
