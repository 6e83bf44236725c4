//! A root: an immutable snapshot of the tree.
//!
//! Lookups descend from the root node, which a root holds in memory, through the cache, and through the file
//! for nodes that the cache lacks. The only lock is that of a cache shard, held briefly.
//!
//! Invariants:
//! 1. The results of a root never change.
//! 2. A lookup reads at most one node per level, and none that is cached; a lookup of many keys reads each
//!    node once.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use crate::error::TreeError;
use crate::format::{BLOCK_SIZE, HEAD_SIZE, Pointer, SLOTS, encode_header};
use crate::node::Node;
use crate::reduction::Reduction;
use crate::shared::{RootState, Shared};

/// Number of keys that [`Root::get_many`] looks up in one descent: their leaves are in memory together.
const KEYS_AT_ONCE_MAX: usize = 4096;

/// With more keys than this, [`Root::get_many`] doesn't cache leaves: a pass over much of the tree must not
/// evict nodes in use.
const KEYS_KEPT_MAX: usize = 1024;

/// A snapshot of a tree: cheap to clone, read by any number of tasks at once. It keeps the file open.
pub struct Root<R: Reduction> {
    pub(crate) shared: Arc<Shared<R>>,
    pub(crate) state: Arc<RootState<R>>,
}

impl<R: Reduction> Clone for Root<R> {
    fn clone(&self) -> Root<R> {
        Root { shared: self.shared.clone(), state: self.state.clone() }
    }
}

/// # The whole
impl<R: Reduction> Root<R> {
    /// The `seq` it was committed with; 0 if it isn't committed.
    pub fn seq(&self) -> u64 {
        self.state.committed.get().map_or(0, |committed| committed.seq)
    }

    /// Whether a read of any root of this handle of the tree found damage, or [`Root::report_damage`] was called.
    pub fn found_damage(&self) -> bool {
        self.shared.found_damage.load(Ordering::Relaxed)
    }

    /// Records that an entry isn't what the caller once put: see [`Root::found_damage`].
    pub fn report_damage(&self) {
        self.shared.found_damage.store(true, Ordering::Relaxed);
    }

    /// Number of entries.
    pub fn len(&self) -> u64 {
        self.state.count
    }

    /// Whether it has no entry.
    pub fn is_empty(&self) -> bool {
        self.state.count == 0
    }

    /// The summary of all entries.
    pub fn summary(&self) -> R::Summary {
        self.state.summary.clone()
    }

    /// Exact size in bytes of the nodes it consists of: a file with nothing else would take this plus its
    /// head and its attachment.
    pub fn live_bytes(&self) -> u64 {
        self.state.live_bytes
    }

    /// Number of nodes from the root node to a leaf, both included.
    pub fn height(&self) -> usize {
        self.state.top.as_ref().map_or(0, |top| usize::from(top.node.level()) + 1)
    }

    /// The tree's random identifier.
    pub fn incarnation(&self) -> [u8; 16] {
        self.shared.incarnation
    }

    /// Size in bytes of the prefix of the file that must be copied to hold this root. The copy's head must be
    /// [`Root::head`], since the file's own head describes later roots.
    pub fn end(&self) -> u64 {
        self.state.committed.get().map_or(self.state.end, |committed| committed.end)
    }

    /// The first [`HEAD_SIZE`] bytes of a file that holds only this root: together with the bytes up to
    /// [`Root::end`] they form a tree of the same incarnation. `None` if the root isn't committed.
    pub fn head(&self) -> Option<Vec<u8>> {
        let committed = self.state.committed.get()?;
        let mut head = encode_header(&self.shared.incarnation);
        let record = self.state.record(&self.shared.reduction, committed);
        head.extend_from_slice(&record.encode(&self.shared.incarnation, SLOTS[0]));
        head.resize(head.len() + BLOCK_SIZE as usize, 0);
        debug_assert_eq!(head.len() as u64, HEAD_SIZE);
        Some(head)
    }

    /// The attachment it was committed with; empty if it had none or isn't committed.
    ///
    /// # Errors
    /// [`TreeError::Damaged`], or the system's error.
    pub async fn attachment(&self) -> Result<Bytes, TreeError> {
        let Some(committed) = self.state.committed.get() else { return Ok(Bytes::new()) };
        let attachment = committed.attachment;
        if attachment.length == 0 {
            return Ok(Bytes::new());
        }
        let bytes = self.shared.file.read_exact_at(attachment.offset, attachment.length as usize).await?;
        if self.shared.seed.checksum(attachment.offset, &bytes) != attachment.checksum {
            return Err(self.shared.damaged(attachment.offset, "the attachment's checksum doesn't match"));
        }
        Ok(bytes)
    }
}

/// # Lookups
impl<R: Reduction> Root<R> {
    /// The value of a key. Reads the nodes on the way that aren't cached, at most one per level. Dropping the
    /// future abandons the read.
    ///
    /// # Errors
    /// [`TreeError::Damaged`], or the system's error.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, TreeError> {
        self.get_with(key, |value| value.map(<[u8]>::to_vec)).await
    }

    /// As [`Root::get`], without a copy: passes the value to `take`.
    ///
    /// # Errors
    /// As [`Root::get`].
    pub async fn get_with<T>(
        &self,
        key: &[u8],
        take: impl FnOnce(Option<&[u8]>) -> T,
    ) -> Result<T, TreeError> {
        let Some(top) = &self.state.top else { return Ok(take(None)) };
        let mut node = match self.walk(key) {
            Walk::Leaf(leaf) => return Ok(take(find(&leaf, key))),
            Walk::Missing(node) => node,
            Walk::AtTop => top.node.clone(),
        };
        while !node.is_leaf() {
            let pointer = self.shared.child_pointer(&node, node.child_index(key))?;
            node = self.shared.load(pointer, node.level() - 1, true).await?;
        }
        Ok(take(find(&node, key)))
    }

    /// The value of a key from the cache only; never waits. `None` if a node isn't cached; [`Root::get`]
    /// reads it.
    #[inline]
    pub fn get_cached(&self, key: &[u8]) -> Option<Option<Vec<u8>>> {
        self.get_cached_with(key, |value| value.map(<[u8]>::to_vec))
    }

    /// As [`Root::get_cached`], without a copy: passes the value to `take`.
    pub fn get_cached_with<T>(&self, key: &[u8], take: impl FnOnce(Option<&[u8]>) -> T) -> Option<T> {
        if self.state.top.is_none() {
            return Some(take(None));
        }
        match self.walk(key) {
            Walk::Leaf(leaf) => Some(take(find(&leaf, key))),
            Walk::Missing(_) | Walk::AtTop => None,
        }
    }

    /// Descends to the key's leaf as far as the nodes are cached.
    fn walk(&self, key: &[u8]) -> Walk {
        let Some(top) = &self.state.top else { return Walk::AtTop };
        let mut below: Option<Arc<Node>> = None;
        loop {
            let node = below.as_ref().unwrap_or(&top.node);
            if node.is_leaf() {
                return Walk::Leaf(below.unwrap_or_else(|| top.node.clone()));
            }
            let pointer = node.child_pointer(node.child_index(key));
            match pointer.and_then(|pointer| self.shared.cached(pointer, node.level() - 1)) {
                Some(child) => below = Some(child),
                None => return below.map_or(Walk::AtTop, Walk::Missing),
            }
        }
    }

    /// Looks up many keys in ascending order (equal ones may follow each other), and calls `found` with each
    /// key's index and value, in order. All share one descent: each node is read once, and the reads of a
    /// level are merged where nodes are adjacent and run concurrently.
    ///
    /// # Errors
    /// [`TreeError::KeyOrder`], [`TreeError::Damaged`], or the system's error; `found` may have been called
    /// for some keys.
    pub async fn get_many<K: AsRef<[u8]>>(
        &self,
        keys: &[K],
        mut found: impl FnMut(usize, Option<&[u8]>),
    ) -> Result<(), TreeError> {
        if let Some(index) = keys.windows(2).position(|pair| pair[0].as_ref() > pair[1].as_ref()) {
            return Err(TreeError::KeyOrder { index: index as u64 + 1 });
        }
        let Some(top) = &self.state.top else {
            (0..keys.len()).for_each(|index| found(index, None));
            return Ok(());
        };
        let keep = keys.len() <= KEYS_KEPT_MAX;
        let key = |index: usize| keys[index].as_ref();
        for first in (0..keys.len()).step_by(KEYS_AT_ONCE_MAX) {
            let last = keys.len().min(first + KEYS_AT_ONCE_MAX);
            let mut nodes = vec![(top.node.clone(), first..last)];
            for level in (0..top.node.level()).rev() {
                let mut pointers = Vec::new();
                let mut parts = Vec::new();
                for (node, keys) in &nodes {
                    for (child, part) in partition(node, keys.clone(), key) {
                        pointers.push(self.shared.child_pointer(node, child)?);
                        parts.push(part);
                    }
                }
                let children = self.shared.load_many(&pointers, level, keep || level > 0).await?;
                nodes = children.into_iter().zip(parts).collect();
            }
            for (leaf, keys) in nodes {
                keys.for_each(|index| found(index, find(&leaf, key(index))));
            }
        }
        Ok(())
    }
}

/// How far a descent through cached nodes got.
enum Walk {
    Leaf(Arc<Node>),
    /// The next node below this one isn't cached.
    Missing(Arc<Node>),
    /// As `Missing` below the root node; or the tree has no root node.
    AtTop,
}

/// The value of a key in a leaf.
#[inline]
fn find<'a>(leaf: &'a Node, key: &[u8]) -> Option<&'a [u8]> {
    leaf.search(key).ok().map(|index| leaf.payload(index))
}

/// Splits sorted keys, given by index, among the children of an inner node that cover them, in order.
pub(crate) fn partition<'a>(
    node: &Node,
    keys: Range<usize>,
    key: impl Fn(usize) -> &'a [u8],
) -> Vec<(usize, Range<usize>)> {
    let mut parts = Vec::new();
    let mut first = keys.start;
    while first < keys.end {
        let child = node.child_index(key(first));
        let mut last = first + 1;
        if child + 1 == node.len() {
            last = keys.end;
        }
        while last < keys.end && node.compare(child + 1, key(last)).is_gt() {
            last += 1;
        }
        parts.push((child, first..last));
        first = last;
    }
    parts
}

impl<R: Reduction> fmt::Debug for Root<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Root")
            .field("path", &self.shared.file.path())
            .field("seq", &self.seq())
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

/// The root node's location.
pub(crate) fn top_pointer<R: Reduction>(state: &RootState<R>) -> Option<Pointer> {
    state.top.as_ref().map(|top| top.pointer)
}
