//! Shared state of a tree's handle, its roots and its scans: the open file, read by nodes.
//!
//! Invariants:
//! 1. Reads are bounded by the known length of the file, and verified before use.
//! 2. A node's level is one less than its parent's, so every descent ends.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;
use settee_io::{CachedFile, Damage, Env, Error, File, ReadAhead, ReadAt, ReadPolicy};

use crate::error::TreeError;
use crate::format::{AttachmentPointer, HEAD_SIZE, Pointer, RootRecord, Seed};
use crate::node::Node;
use crate::options::TreeOptions;
use crate::reduction::Reduction;

/// An open tree.
pub(crate) struct Shared<R: Reduction> {
    pub(crate) env: Env,
    pub(crate) file: File,
    pub(crate) reduction: R,
    pub(crate) options: TreeOptions,
    pub(crate) incarnation: [u8; 16],
    pub(crate) seed: Seed,
    /// The tree's nodes in the cache.
    pub(crate) nodes: CachedFile<Arc<Node>>,
    /// Offset behind the last byte in the file, including writes in flight.
    end: AtomicU64,
    node_read_count: AtomicU64,
    /// Whether a read found damage.
    pub(crate) found_damage: AtomicBool,
    newest: Mutex<Newest<R>>,
}

/// The newest roots.
pub(crate) struct Newest<R: Reduction> {
    pub(crate) root: Arc<RootState<R>>,
    pub(crate) committed: Arc<RootState<R>>,
}

/// The contents of a root. Immutable, except that a commit sets `committed` once.
pub(crate) struct RootState<R: Reduction> {
    /// The root node and its location; `None` if the tree has no entry.
    pub(crate) top: Option<Top>,
    pub(crate) count: u64,
    pub(crate) live_bytes: u64,
    pub(crate) summary: R::Summary,
    /// End of the root's part of the file, before its commit.
    pub(crate) end: u64,
    pub(crate) committed: OnceLock<Committed>,
}

#[derive(Clone)]
pub(crate) struct Top {
    pub(crate) pointer: Pointer,
    pub(crate) node: Arc<Node>,
}

/// The data that a commit adds to a root.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Committed {
    pub(crate) seq: u64,
    pub(crate) end: u64,
    pub(crate) attachment: AttachmentPointer,
}

impl<R: Reduction> RootState<R> {
    /// A root without entries.
    pub(crate) fn empty(reduction: &R) -> RootState<R> {
        RootState {
            top: None,
            count: 0,
            live_bytes: 0,
            summary: reduction.zero(),
            end: HEAD_SIZE,
            committed: OnceLock::new(),
        }
    }

    /// A copy that isn't committed.
    pub(crate) fn uncommitted_copy(&self) -> RootState<R> {
        RootState {
            top: self.top.clone(),
            count: self.count,
            live_bytes: self.live_bytes,
            summary: self.summary.clone(),
            end: self.end,
            committed: OnceLock::new(),
        }
    }

    /// The slot's record of this root.
    pub(crate) fn record(&self, reduction: &R, committed: &Committed) -> RootRecord {
        let mut summary = Vec::new();
        reduction.encode(&self.summary, &mut summary);
        RootRecord {
            seq: committed.seq,
            pointer: self.top.as_ref().map(|top| top.pointer),
            level: self.top.as_ref().map_or(0, |top| top.node.level()),
            count: self.count,
            live_bytes: self.live_bytes,
            end: committed.end,
            attachment: committed.attachment,
            summary,
        }
    }
}

impl<R: Reduction> Shared<R> {
    pub(crate) fn new(
        env: &Env,
        file: File,
        reduction: R,
        options: TreeOptions,
        incarnation: [u8; 16],
        end: u64,
    ) -> Shared<R> {
        let empty = Arc::new(RootState::empty(&reduction));
        Shared {
            env: env.clone(),
            file,
            reduction,
            nodes: options.cache.tree(),
            options,
            incarnation,
            seed: Seed::new(&incarnation),
            end: AtomicU64::new(end),
            node_read_count: AtomicU64::new(0),
            found_damage: AtomicBool::new(false),
            newest: Mutex::new(Newest { root: empty.clone(), committed: empty }),
        }
    }

    pub(crate) fn newest(&self) -> MutexGuard<'_, Newest<R>> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn end(&self) -> u64 {
        self.end.load(Ordering::Relaxed)
    }

    /// Only the writer calls this.
    pub(crate) fn set_end(&self, end: u64) {
        self.end.store(end, Ordering::Relaxed);
    }

    pub(crate) fn node_read_count(&self) -> u64 {
        self.node_read_count.load(Ordering::Relaxed)
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.file.path().to_path_buf()
    }

    pub(crate) fn damaged(&self, offset: u64, what: &'static str) -> TreeError {
        self.found_damage.store(true, Ordering::Relaxed);
        TreeError::Damaged(Damage { path: self.path(), offset, what })
    }

    /// A node from the cache.
    #[inline]
    pub(crate) fn cached(&self, pointer: Pointer, level: u8) -> Option<Arc<Node>> {
        self.nodes.get(pointer.offset).filter(|node| node.level() == level)
    }

    pub(crate) fn insert_cached(&self, pointer: Pointer, node: &Arc<Node>) {
        self.nodes.insert(pointer.offset, node.clone());
    }

    /// The location of an inner node's child.
    pub(crate) fn child_pointer(&self, node: &Node, index: usize) -> Result<Pointer, TreeError> {
        let pointer = node.child_pointer(index);
        pointer.ok_or_else(|| self.malformed_item(node.offset()))
    }

    /// The error for an inner node at `offset` with an item that can't be decoded.
    pub(crate) fn malformed_item(&self, offset: u64) -> TreeError {
        self.damaged(offset, "an inner node's item is malformed")
    }

    /// A node from the cache or the file. `keep` puts a node read from the file into the cache.
    pub(crate) async fn load(&self, pointer: Pointer, level: u8, keep: bool) -> Result<Arc<Node>, TreeError> {
        if let Some(node) = self.cached(pointer, level) {
            return Ok(node);
        }
        let bytes = if self.is_within(pointer) {
            self.file.read_exact_at(pointer.offset, usize::from(pointer.length)).await
        } else {
            Err(self.past_end(pointer))
        };
        let node = self.decode(bytes, pointer, level)?;
        if keep {
            self.insert_cached(pointer, &node);
        }
        Ok(node)
    }

    /// Nodes of one level, in any order. Reads of the nodes that the cache lacks are merged where they are
    /// adjacent, and run concurrently. `keep` puts those nodes into the cache.
    pub(crate) async fn load_many(
        &self,
        pointers: &[Pointer],
        level: u8,
        keep: bool,
    ) -> Result<Vec<Arc<Node>>, TreeError> {
        let mut nodes: Vec<Option<Arc<Node>>> =
            pointers.iter().map(|pointer| self.cached(*pointer, level)).collect();
        let missing: Vec<usize> = (0..nodes.len()).filter(|index| nodes[*index].is_none()).collect();
        if !missing.is_empty() {
            let wanted: Vec<Pointer> = missing.iter().map(|index| pointers[*index]).collect();
            for (index, node) in missing.into_iter().zip(self.read_many(&wanted, level).await) {
                let node = node?;
                if keep {
                    self.insert_cached(pointers[index], &node);
                }
                nodes[index] = Some(node);
            }
        }
        Ok(nodes.into_iter().flatten().collect())
    }

    /// Nodes of one level from the file, bypassing the cache, in the order of `pointers`. Several reads run
    /// concurrently; their memory is bounded.
    pub(crate) async fn read_many(
        &self,
        pointers: &[Pointer],
        level: u8,
    ) -> Vec<Result<Arc<Node>, TreeError>> {
        let mut reads = Vec::with_capacity(pointers.len());
        for (index, pointer) in pointers.iter().enumerate() {
            // Nothing is read beyond the file's end.
            let length = if self.is_within(*pointer) { usize::from(pointer.length) } else { 0 };
            reads.push(ReadAt { offset: pointer.offset, length, tag: index });
        }
        reads.sort_unstable_by_key(|read| read.offset);
        let mut stream = self.file.read_stream(reads, ReadPolicy::ADJACENT_ONLY, ReadAhead::default());
        let mut nodes: Vec<Option<_>> = pointers.iter().map(|_| None).collect();
        while let Some((index, bytes)) = stream.next().await {
            nodes[index] = Some(self.decode(bytes, pointers[index], level));
        }
        nodes.into_iter().flatten().collect()
    }

    fn decode(
        &self,
        bytes: settee_io::Result<Bytes>,
        pointer: Pointer,
        level: u8,
    ) -> Result<Arc<Node>, TreeError> {
        self.node_read_count.fetch_add(1, Ordering::Relaxed);
        let bytes = bytes.map_err(|error| match error {
            Error::PastEnd { offset, .. } => self.damaged(offset, "the file ends before a node does"),
            error => TreeError::Io(error),
        })?;
        match Node::decode(&bytes, pointer, level, self.seed) {
            Ok(node) => Ok(Arc::new(node)),
            Err(what) => Err(self.damaged(pointer.offset, what)),
        }
    }

    fn is_within(&self, pointer: Pointer) -> bool {
        pointer.offset >= HEAD_SIZE && pointer.end() <= self.end()
    }

    fn past_end(&self, pointer: Pointer) -> Error {
        let Pointer { offset, length } = pointer;
        Error::PastEnd { path: self.file.path().clone(), offset, length: usize::from(length) }
    }
}
