//! Scans: the entries of a range in order, in either direction, with read-ahead.
//!
//! A scan holds the inner nodes from the root down to its position, with the children not visited yet, and
//! the next leaves. It begins with one leaf and doubles the amount of each read, up to the option's limit.
//!
//! Invariants:
//! 1. Dropping the future of [`Scan::next`] loses no entry: the position moves only after the nodes it leads
//!    to were read.
//! 2. Leaves read ahead aren't cached, so that a long scan evicts nothing.

use std::collections::VecDeque;
use std::fmt;
use std::ops::{Bound, Range};
use std::sync::Arc;

use crate::error::TreeError;
use crate::node::Node;
use crate::reduction::Reduction;
use crate::root::Root;

/// Reads of up to this many leaves go into the cache.
const LEAVES_KEPT_MAX: usize = 2;

/// # Scans
impl<R: Reduction> Root<R> {
    /// A scan of the entries in the range, in ascending or descending key order: see [`Scan::next`].
    pub fn scan(&self, range: (Bound<&[u8]>, Bound<&[u8]>), descending: bool) -> Scan<R> {
        Scan::new(self.clone(), range, descending)
    }
}

/// A scan over the entries of a root. It holds the root.
pub struct Scan<R: Reduction> {
    root: Root<R>,
    start: Bound<Vec<u8>>,
    end: Bound<Vec<u8>>,
    descending: bool,
    /// Inner nodes from the root down; the children of the last one come next.
    frames: Vec<ScanFrame>,
    leaves: VecDeque<Arc<Node>>,
    leaf: Option<Arc<Node>>,
    /// The entries of `leaf` not returned yet.
    remaining: Range<usize>,
    key: Vec<u8>,
    /// Target size of the next read in bytes.
    read_bytes: usize,
}

/// An inner node between the root and the position.
struct ScanFrame {
    node: Arc<Node>,
    /// The children not visited yet.
    remaining: Range<usize>,
}

impl<R: Reduction> Scan<R> {
    fn new(root: Root<R>, range: (Bound<&[u8]>, Bound<&[u8]>), descending: bool) -> Scan<R> {
        let mut scan = Scan {
            start: range.0.map(<[u8]>::to_vec),
            end: range.1.map(<[u8]>::to_vec),
            descending,
            frames: Vec::new(),
            leaves: VecDeque::new(),
            leaf: None,
            remaining: 0..0,
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

    /// The next entry, key and value; `None` after the last. Reads when no entry is remaining in memory.
    /// Dropping the future loses no entry.
    ///
    /// # Errors
    /// [`TreeError::Damaged`], or the system's error; a later call tries again.
    pub async fn next(&mut self) -> Result<Option<(&[u8], &[u8])>, TreeError> {
        while self.remaining.is_empty() {
            if !self.open_leaf() && !self.read().await? {
                return Ok(None);
            }
        }
        Ok(self.take())
    }

    /// The next entry if it is in memory; never waits. `None` if it isn't, or after the last; [`Scan::next`]
    /// distinguishes the two.
    #[inline]
    pub fn next_in_memory(&mut self) -> Option<(&[u8], &[u8])> {
        while self.remaining.is_empty() {
            if !self.open_leaf() {
                return None;
            }
        }
        self.take()
    }

    #[inline]
    fn take(&mut self) -> Option<(&[u8], &[u8])> {
        let index = if self.descending { self.remaining.next_back() } else { self.remaining.next() }?;
        let leaf = self.leaf.as_deref()?;
        let (rest, value) = leaf.item(index);
        // `open_leaf` put the leaf's common prefix into the key.
        self.key.truncate(leaf.prefix().len());
        self.key.extend_from_slice(rest);
        Some((&self.key, value))
    }

    /// Continues with the next leaf in memory; `false` if there is none.
    fn open_leaf(&mut self) -> bool {
        let Some(leaf) = self.leaves.pop_front() else { return false };
        self.remaining = leaf.entries_in(as_slice(&self.start), as_slice(&self.end));
        self.key.clear();
        self.key.extend_from_slice(leaf.prefix());
        self.leaf = Some(leaf);
        true
    }

    fn enter(&mut self, node: Arc<Node>) {
        let remaining = node.children_in(as_slice(&self.start), as_slice(&self.end));
        self.frames.push(ScanFrame { node, remaining });
    }

    /// Reads the next leaves, or an inner node on the way to them; `false` at the end of the range.
    async fn read(&mut self) -> Result<bool, TreeError> {
        while self.frames.pop_if(|frame| frame.remaining.is_empty()).is_some() {}
        let Some(ScanFrame { node, remaining }) = self.frames.last() else { return Ok(false) };
        let level = node.level() - 1;
        let mut pointers = Vec::new();
        let mut bytes = 0;
        for at in 0..remaining.len() {
            let index = if self.descending { remaining.end - 1 - at } else { remaining.start + at };
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
            let Range { start, end } = &mut frame.remaining;
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
