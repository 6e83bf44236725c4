//! A node: a sorted array of items (key, payload) with a checksum, searched without decoding.
//!
//! A leaf's payloads are values; an inner node's payloads are child records ([`Child`]). Keys are stored
//! without the prefix that all keys of the node share. An array of 16-bit positions locates the items, so
//! that a search touches a few of them and decodes none.
//!
//! Invariants:
//! 1. A [`Node`] has passed its checksum; its positions ascend and lie within it, and so do its items' keys.
//!    Reading a node can't panic, whatever its bytes are.
//! 2. A key in an inner node, a *separator*, is no greater than any key under its child, and greater than all
//!    keys under the previous child. Keys below a node's first separator belong to its first child.
//! 3. A node is at most [`NODE_SIZE_MAX`] bytes.
//!
//! Bytes: `docs/format.md`, "A tree file".

use std::cmp::Ordering;
use std::ops::{Bound, Range};

use crate::format::{
    KEY_SIZE_MAX, LEVEL_MAX, Pointer, Seed, VALUE_SIZE_MAX, put_varint, take_varint, u16_at, u64_at,
};
use crate::reduction::{Reduction, SUMMARY_SIZE_MAX};

/// The largest node in bytes: its positions have 16 bits.
pub(crate) const NODE_SIZE_MAX: usize = u16::MAX as usize;

pub(crate) const NODE_HEADER_SIZE: usize = 16;

/// Bytes of an item besides its key suffix and its payload: its position and the suffix's size.
pub(crate) const ITEM_OVERHEAD: usize = 4;

/// The largest payload of an inner node: pointer, two varints, summary.
pub(crate) const CHILD_SIZE_MAX: usize = 8 + 10 + 10 + SUMMARY_SIZE_MAX;

/// A search counts up to this many heads instead of continuing the binary search.
const HEADS_COUNTED_MAX: usize = 256;

const LEAF: u8 = 1;
const INNER: u8 = 2;

/// Three of the largest items fit a node; `run.rs` explains when a node must hold that many.
const _: () = assert!(
    NODE_HEADER_SIZE + 3 * (ITEM_OVERHEAD + KEY_SIZE_MAX + CHILD_SIZE_MAX) <= NODE_SIZE_MAX
        && NODE_HEADER_SIZE + ITEM_OVERHEAD + KEY_SIZE_MAX + VALUE_SIZE_MAX <= NODE_SIZE_MAX
);

/// A verified node in memory.
#[derive(Debug)]
pub(crate) struct Node {
    bytes: Box<[u8]>,
    /// The [`head`] of each key's suffix, side by side: a search touches few cache lines before it compares
    /// keys.
    heads: Box<[u32]>,
    offset: u64,
    level: u8,
    count: u16,
    prefix_size: u16,
}

/// An inner node's item: one child.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Child<S> {
    /// Lower bound of the child's keys.
    pub(crate) separator: Vec<u8>,
    pub(crate) pointer: Pointer,
    /// Number of entries under the child.
    pub(crate) count: u64,
    /// Bytes of the nodes under the child and of the child itself, each aligned.
    pub(crate) live_bytes: u64,
    pub(crate) summary: S,
}

/// The part of a [`Child`] that is its item's payload.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ChildRecord<S> {
    pub(crate) pointer: Pointer,
    pub(crate) count: u64,
    pub(crate) live_bytes: u64,
    pub(crate) summary: S,
}

impl<S> Child<S> {
    /// Appends the payload.
    pub(crate) fn encode<R: Reduction<Summary = S>>(&self, reduction: &R, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.pointer.pack().to_le_bytes());
        put_varint(out, self.count);
        put_varint(out, self.live_bytes);
        let before = out.len();
        reduction.encode(&self.summary, out);
        let size = out.len() - before;
        assert!(size <= SUMMARY_SIZE_MAX, "a summary of {size} bytes");
    }
}

impl<S> ChildRecord<S> {
    pub(crate) fn decode<R: Reduction<Summary = S>>(reduction: &R, payload: &[u8]) -> Option<ChildRecord<S>> {
        let pointer = child_pointer(payload)?;
        let (count, live_bytes, rest) = child_counts(payload)?;
        Some(ChildRecord { pointer, count, live_bytes, summary: reduction.decode(rest)? })
    }
}

/// The pointer in an inner node's payload.
#[inline]
fn child_pointer(payload: &[u8]) -> Option<Pointer> {
    let packed = payload.first_chunk::<8>()?;
    Some(Pointer::unpack(u64::from_le_bytes(*packed)))
}

/// Count and live bytes in an inner node's payload, and the summary's bytes.
fn child_counts(payload: &[u8]) -> Option<(u64, u64, &[u8])> {
    let mut rest = payload.get(8..)?;
    let count = take_varint(&mut rest)?;
    let live_bytes = take_varint(&mut rest)?;
    Some((count, live_bytes, rest))
}

impl Node {
    /// Verifies the bytes read for the node at `pointer`, and copies them.
    pub(crate) fn decode(
        bytes: &[u8],
        pointer: Pointer,
        level: u8,
        seed: Seed,
    ) -> Result<Node, &'static str> {
        if bytes.len() < NODE_HEADER_SIZE || bytes.len() != usize::from(pointer.length) {
            return Err("a node is smaller than its header");
        }
        if u64_at(bytes, 0) != seed.checksum(pointer.offset, &bytes[8..]) {
            return Err("a node's checksum doesn't match");
        }
        Node::decode_checked(bytes.into(), pointer.offset, level)
    }

    /// As [`Node::decode`], for bytes that were just encoded or whose checksum was already compared.
    pub(crate) fn decode_checked(bytes: Box<[u8]>, offset: u64, level: u8) -> Result<Node, &'static str> {
        let (found_level, kind) = (bytes[14], bytes[15]);
        let (count, prefix_size) = (u16_at(&bytes, 10), u16_at(&bytes, 12));
        let mut node = Node { bytes, heads: Box::default(), offset, level: found_level, count, prefix_size };
        if usize::from(u16_at(&node.bytes, 8)) != node.bytes.len() {
            return Err("a node has another length than its parent records");
        }
        if found_level != level || found_level > LEVEL_MAX || (kind != if level == 0 { LEAF } else { INNER })
        {
            return Err("a node has another level than its parent records");
        }
        if !node.is_sound() {
            return Err("a node is malformed");
        }
        node.heads = (0..node.len()).map(|index| head(node.key_rest(index))).collect();
        Ok(node)
    }

    /// Verifies invariant 1.
    fn is_sound(&self) -> bool {
        let size = self.bytes.len();
        let items_start = self.positions_start() + 2 * self.len();
        if self.count == 0 || items_start > size || self.position(0) != items_start {
            return false;
        }
        let positions = self.positions_start();
        let array = &self.bytes[positions..items_start];
        let mut start = items_start;
        let mut are_sound = true;
        for index in 1..=self.len() {
            let end = array.get(2 * index..2 * index + 2).map_or(size, |pair| usize::from(u16_at(pair, 0)));
            let fits = end <= size && start + 2 <= end;
            are_sound &= fits && start + 2 + usize::from(u16_at(&self.bytes, start)) <= end;
            if !are_sound {
                return false;
            }
            start = end;
        }
        true
    }

    /// Its offset in the file.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    /// The level; 0 is a leaf.
    pub(crate) fn level(&self) -> u8 {
        self.level
    }

    pub(crate) fn is_leaf(&self) -> bool {
        self.level == 0
    }

    /// Number of items; at least one.
    pub(crate) fn len(&self) -> usize {
        usize::from(self.count)
    }

    /// The bytes it takes in memory.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of::<Node>() + self.bytes.len() + size_of_val(&*self.heads)
    }

    fn positions_start(&self) -> usize {
        NODE_HEADER_SIZE + usize::from(self.prefix_size)
    }

    #[inline]
    fn position(&self, index: usize) -> usize {
        usize::from(u16_at(&self.bytes, self.positions_start() + 2 * index))
    }

    /// The prefix that all keys share.
    #[inline]
    pub(crate) fn prefix(&self) -> &[u8] {
        &self.bytes[NODE_HEADER_SIZE..NODE_HEADER_SIZE + usize::from(self.prefix_size)]
    }

    /// A key's suffix behind the prefix.
    #[inline]
    pub(crate) fn key_rest(&self, index: usize) -> &[u8] {
        let position = self.position(index);
        let size = usize::from(u16_at(&self.bytes, position));
        &self.bytes[position + 2..position + 2 + size]
    }

    /// A key's suffix behind the prefix, and the item's payload.
    #[inline]
    pub(crate) fn item(&self, index: usize) -> (&[u8], &[u8]) {
        debug_assert!(index < self.len());
        let position = self.position(index);
        let end = if index + 1 < self.len() { self.position(index + 1) } else { self.bytes.len() };
        let size = usize::from(u16_at(&self.bytes, position));
        self.bytes[position + 2..end].split_at(size)
    }

    /// A leaf's value, or an inner node's encoded child.
    #[inline]
    pub(crate) fn payload(&self, index: usize) -> &[u8] {
        self.item(index).1
    }

    /// Replaces the contents of `key` with an item's key.
    #[inline]
    pub(crate) fn copy_key(&self, index: usize, key: &mut Vec<u8>) {
        key.clear();
        key.extend_from_slice(self.prefix());
        key.extend_from_slice(self.key_rest(index));
    }

    pub(crate) fn key(&self, index: usize) -> Vec<u8> {
        let mut key = Vec::new();
        self.copy_key(index, &mut key);
        key
    }

    /// Compares the item's key with `key`.
    pub(crate) fn compare(&self, index: usize, key: &[u8]) -> Ordering {
        let prefix = self.prefix();
        match key.split_at_checked(prefix.len()) {
            Some((front, rest)) => prefix.cmp(front).then_with(|| self.key_rest(index).cmp(rest)),
            None => prefix.cmp(key).then(Ordering::Greater),
        }
    }

    /// `Ok`: the index of the item with this key. `Err`: the index where it would be inserted.
    #[inline]
    pub(crate) fn search(&self, key: &[u8]) -> Result<usize, usize> {
        let prefix = self.prefix();
        let rest = match key.strip_prefix(prefix) {
            Some(rest) => rest,
            None if prefix < key => return Err(self.len()),
            None => return Err(0),
        };
        let wanted = head(rest);
        let mut low = lower_bound(&self.heads, wanted);
        let mut high = low + self.heads[low..].iter().take_while(|head| **head == wanted).count();
        while low < high {
            let middle = (low + high) / 2;
            match self.key_rest(middle).cmp(rest) {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return Ok(middle),
            }
        }
        Err(low)
    }

    /// The child of an inner node that covers this key.
    #[inline]
    pub(crate) fn child_index(&self, key: &[u8]) -> usize {
        match self.search(key) {
            Ok(index) => index,
            Err(index) => index.saturating_sub(1),
        }
    }

    /// The items of a leaf that lie in the range.
    pub(crate) fn entries_in(&self, start: Bound<&[u8]>, end: Bound<&[u8]>) -> Range<usize> {
        let at = |key: &[u8], behind: bool| match self.search(key) {
            Ok(index) => index + usize::from(behind),
            Err(index) => index,
        };
        let first = match start {
            Bound::Unbounded => 0,
            Bound::Included(key) => at(key, false),
            Bound::Excluded(key) => at(key, true),
        };
        let last = match end {
            Bound::Unbounded => self.len(),
            Bound::Included(key) => at(key, true),
            Bound::Excluded(key) => at(key, false),
        };
        first..last.max(first)
    }

    /// The children of an inner node that may have keys in the range.
    pub(crate) fn children_in(&self, start: Bound<&[u8]>, end: Bound<&[u8]>) -> Range<usize> {
        let first = match start {
            Bound::Unbounded => 0,
            Bound::Included(key) | Bound::Excluded(key) => self.child_index(key),
        };
        let last = match end {
            Bound::Unbounded => self.len(),
            Bound::Included(key) => self.child_index(key) + 1,
            // A child whose separator is the range's end has no key below it.
            Bound::Excluded(key) => match self.search(key) {
                Ok(index) | Err(index) => index.max(1),
            },
        };
        first..last.max(first)
    }

    /// The pointer to a child.
    #[inline]
    pub(crate) fn child_pointer(&self, index: usize) -> Option<Pointer> {
        child_pointer(self.payload(index))
    }

    /// A child's record, which lacks its separator.
    pub(crate) fn child_record<R: Reduction>(
        &self,
        reduction: &R,
        index: usize,
    ) -> Option<ChildRecord<R::Summary>> {
        ChildRecord::decode(reduction, self.payload(index))
    }

    /// A child with its separator.
    pub(crate) fn child<R: Reduction>(&self, reduction: &R, index: usize) -> Option<Child<R::Summary>> {
        let ChildRecord { pointer, count, live_bytes, summary } = self.child_record(reduction, index)?;
        Some(Child { separator: self.key(index), pointer, count, live_bytes, summary })
    }
}

/// Appends a node of these items, sorted by key, to `out`. The checksum stays zero, since it depends on the
/// offset: see [`seal`].
pub(crate) fn encode<'a>(
    level: u8,
    count: usize,
    items: impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone,
    prefix_size: usize,
    out: &mut Vec<u8>,
) {
    let start = out.len();
    out.resize(start + NODE_HEADER_SIZE, 0);
    let prefix = items.clone().next().map_or(&[][..], |(key, _)| &key[..prefix_size]);
    out.extend_from_slice(prefix);
    let positions = out.len();
    out.resize(positions + 2 * count, 0);
    for (index, (key, payload)) in items.enumerate() {
        let position = out.len() - start;
        out[positions + 2 * index..][..2].copy_from_slice(&(position as u16).to_le_bytes());
        let rest = &key[prefix_size..];
        out.extend_from_slice(&(rest.len() as u16).to_le_bytes());
        out.extend_from_slice(rest);
        out.extend_from_slice(payload);
    }
    let length = out.len() - start;
    assert!(length <= NODE_SIZE_MAX, "a node of {length} bytes");
    let header = &mut out[start..start + NODE_HEADER_SIZE];
    header[8..10].copy_from_slice(&(length as u16).to_le_bytes());
    header[10..12].copy_from_slice(&(count as u16).to_le_bytes());
    header[12..14].copy_from_slice(&(prefix_size as u16).to_le_bytes());
    header[14] = level;
    header[15] = if level == 0 { LEAF } else { INNER };
}

/// A key's first bytes as a number; their order agrees with the order of the keys.
#[inline]
fn head(rest: &[u8]) -> u32 {
    match rest.first_chunk::<4>() {
        Some(first) => u32::from_be_bytes(*first),
        None => rest.iter().zip([24, 16, 8]).fold(0, |head, (byte, shift)| head | u32::from(*byte) << shift),
    }
}

/// Number of sorted heads below `wanted`. The last [`HEADS_COUNTED_MAX`] are counted, several at once by
/// vector instructions: a binary search would wait for each cache miss before the next comparison.
#[inline]
fn lower_bound(heads: &[u32], wanted: u32) -> usize {
    let (mut first, mut last) = (0, heads.len());
    while last - first > HEADS_COUNTED_MAX {
        let middle = (first + last) / 2;
        if heads[middle] < wanted { first = middle } else { last = middle }
    }
    first + heads[first..last].iter().map(|head| u32::from(*head < wanted)).sum::<u32>() as usize
}

/// Stores the checksum of a node that will be written at `offset`.
pub(crate) fn seal(node: &mut [u8], offset: u64, seed: Seed) {
    let checksum = seed.checksum(offset, &node[8..]);
    node[..8].copy_from_slice(&checksum.to_le_bytes());
}

#[cfg(test)]
mod tests;
