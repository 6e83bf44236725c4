//! Entries of a range in order, in either direction, read ahead.
//!
//! A scan holds the inner nodes from the root down to where it is, with what is left to visit of
//! each, and the leaves that come next. It begins with one leaf and doubles what it reads at once,
//! up to the option's limit.
//!
//! Invariants:
//! 1. Dropping the future of [`Scan::next`] loses no entry: a walk moves on only when what it
//!    leads to is there.
//! 2. Leaves that were read ahead don't go into the cache: a long scan crowds out nothing.

use std::collections::VecDeque;
use std::fmt;
use std::ops::{Bound, Range};
use std::sync::Arc;

use crate::error::TreeError;
use crate::node::Node;
use crate::reduction::Reduction;
use crate::root::Root;

/// Up to this many leaves read at once go into the cache.
const LEAVES_KEPT_MAX: usize = 2;

/// Entries of a root in order. Holds the root.
pub struct Scan<R: Reduction> {
    root: Root<R>,
    start: Bound<Vec<u8>>,
    end: Bound<Vec<u8>>,
    descending: bool,
    /// From the root down; the last one's children come next.
    frames: Vec<Frame>,
    leaves: VecDeque<Arc<Node>>,
    leaf: Option<Arc<Node>>,
    /// The entries of `leaf` that are left.
    left: Range<usize>,
    key: Vec<u8>,
    /// How much is read next, in bytes.
    read_bytes: usize,
}

/// An inner node on the way.
struct Frame {
    node: Arc<Node>,
    /// The children that are left.
    left: Range<usize>,
}

impl<R: Reduction> Scan<R> {
    pub(crate) fn new(root: Root<R>, range: (Bound<&[u8]>, Bound<&[u8]>), descending: bool) -> Scan<R> {
        let mut scan = Scan {
            start: range.0.map(<[u8]>::to_vec),
            end: range.1.map(<[u8]>::to_vec),
            descending,
            frames: Vec::new(),
            leaves: VecDeque::new(),
            leaf: None,
            left: 0..0,
            key: Vec::new(),
            read_bytes: 1,
            root,
        };
        if let Some(top) = &scan.root.state.top {
            let node = top.node.clone();
            if node.is_leaf() { scan.leaves.push_back(node) } else { scan.enter(node) }
        }
        scan
    }

    /// The next entry, key and value; `None` after the last. Reads where nothing is left in
    /// memory. Dropping the future loses no entry.
    ///
    /// # Errors
    /// [`TreeError::Damaged`], or what the system says; a later call tries again.
    pub async fn next(&mut self) -> Result<Option<(&[u8], &[u8])>, TreeError> {
        while self.left.is_empty() {
            if !self.open_leaf() && !self.read().await? {
                return Ok(None);
            }
        }
        Ok(self.take())
    }

    /// The next entry where it is in memory: nothing waits. `None` where it isn't, or there is
    /// none: [`Scan::next`] tells.
    #[inline]
    pub fn next_in_memory(&mut self) -> Option<(&[u8], &[u8])> {
        while self.left.is_empty() {
            if !self.open_leaf() {
                return None;
            }
        }
        self.take()
    }

    #[inline]
    fn take(&mut self) -> Option<(&[u8], &[u8])> {
        let index = if self.descending { self.left.next_back() } else { self.left.next() }?;
        let leaf = self.leaf.as_deref()?;
        let (rest, value) = leaf.item(index);
        // What all keys of the leaf begin with is there from the first one on.
        self.key.truncate(leaf.prefix().len());
        self.key.extend_from_slice(rest);
        Some((&self.key, value))
    }

    /// Goes on with the next leaf that was read; `false` where there is none.
    fn open_leaf(&mut self) -> bool {
        let Some(leaf) = self.leaves.pop_front() else { return false };
        self.left = leaf.entries_in(as_slice(&self.start), as_slice(&self.end));
        self.key.clear();
        self.key.extend_from_slice(leaf.prefix());
        self.leaf = Some(leaf);
        true
    }

    fn enter(&mut self, node: Arc<Node>) {
        let left = node.children_in(as_slice(&self.start), as_slice(&self.end));
        self.frames.push(Frame { node, left });
    }

    /// Reads the next leaves, or an inner node on the way there; `false` where the range ends.
    async fn read(&mut self) -> Result<bool, TreeError> {
        while self.frames.pop_if(|frame| frame.left.is_empty()).is_some() {}
        let Some(Frame { node, left }) = self.frames.last() else { return Ok(false) };
        let level = node.level() - 1;
        let mut pointers = Vec::new();
        let mut bytes = 0;
        for at in 0..left.len() {
            let index = if self.descending { left.end - 1 - at } else { left.start + at };
            let pointer = self.root.shared.child_pointer(node, index)?;
            bytes += usize::from(pointer.length);
            pointers.push(pointer);
            if level > 0 || bytes >= self.read_bytes {
                break;
            }
        }
        let keep = level > 0 || pointers.len() <= LEAVES_KEPT_MAX;
        let nodes = self.root.shared.load_many(&pointers, level, keep).await?;
        if let Some(frame) = self.frames.last_mut() {
            let Range { start, end } = &mut frame.left;
            if self.descending { *end -= nodes.len() } else { *start += nodes.len() }
        }
        if level > 0 {
            nodes.into_iter().for_each(|node| self.enter(node));
        } else {
            self.leaves.extend(nodes);
            self.read_bytes = (bytes * 2).min(self.root.shared.options.read_ahead_bytes_max);
        }
        Ok(true)
    }
}

pub(crate) fn as_slice(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}

impl<R: Reduction> fmt::Debug for Scan<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scan")
            .field("root", &self.root)
            .field("start", &self.start)
            .field("end", &self.end)
            .field("descending", &self.descending)
            .finish_non_exhaustive()
    }
}
