//! The bytes of a tree's file except its nodes: header, root slots, checksums.
//!
//! A file begins with three blocks: the header, written once, and two root slots, written in turn. Nodes and
//! attachments follow in the order they were written; they are never overwritten.
//!
//! Invariants:
//! 1. A checksum covers the bytes, the tree's random incarnation and the offset, so bytes of another file or
//!    from another offset never match.
//! 2. A root is written only after everything it refers to was synced: a slot whose checksum matches is the
//!    root of a complete tree.
//!
//! Specified in `docs/format.md`, "A tree file"; all integers are little-endian.

use twox_hash::XxHash3_64;

use crate::reduction::SUMMARY_SIZE_MAX;

/// Longest key in bytes.
pub const KEY_SIZE_MAX: usize = (8 << 10) + 192;

/// Largest value in bytes.
pub const VALUE_SIZE_MAX: usize = 4 << 10;

/// Largest attachment of a root in bytes.
pub const ATTACHMENT_SIZE_MAX: usize = 16 << 20;

/// Bytes before the first node: the header and two root slots.
pub const HEAD_SIZE: u64 = 3 * BLOCK_SIZE;

/// The unit of the head and of a sync: after a sync or the end of an update, the next write begins at a
/// multiple of it, so that nothing synced is ever overwritten. At least the alignment that direct I/O
/// requires.
pub(crate) const BLOCK_SIZE: u64 = 4096;

/// Nodes begin at multiples of this many bytes.
pub(crate) const NODE_ALIGNMENT: u64 = 8;

/// Offsets of the root slots.
pub(crate) const SLOTS: [u64; 2] = [BLOCK_SIZE, 2 * BLOCK_SIZE];

/// The format version that is written and read.
pub(crate) const FORMAT_VERSION: u32 = 1;

/// Largest file in bytes: a node's offset, in units of its alignment, has 48 bits.
pub(crate) const FILE_SIZE_MAX: u64 = 1 << 50;

/// Largest level of a root that is accepted: with two children per node, more than a file holds.
pub(crate) const LEVEL_MAX: u8 = 48;

const HEADER_MAGIC: [u8; 8] = *b"SETTEETR";
const ROOT_MAGIC: [u8; 8] = *b"SETTEERT";
const SUMMARY_START: usize = 104;
/// Factor of an offset before it is added to a hash. It is odd, so that different offsets give different
/// products.
const OFFSET_FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;

const _: () = assert!(SUMMARY_START + SUMMARY_SIZE_MAX <= BLOCK_SIZE as usize);

/// Seed of one tree's checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seed(u64);

impl Seed {
    pub(crate) fn new(incarnation: &[u8; 16]) -> Seed {
        Seed(XxHash3_64::oneshot(incarnation))
    }

    /// The checksum of `bytes` at `offset`.
    pub(crate) fn checksum(self, offset: u64, bytes: &[u8]) -> u64 {
        (XxHash3_64::oneshot(bytes) ^ self.0).wrapping_add(offset.wrapping_mul(OFFSET_FACTOR))
    }
}

/// Location of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Pointer {
    /// In bytes; a multiple of [`NODE_ALIGNMENT`].
    pub(crate) offset: u64,
    /// In bytes, without the padding that aligns the next node.
    pub(crate) length: u16,
}

impl Pointer {
    pub(crate) fn pack(self) -> u64 {
        debug_assert!(self.offset.is_multiple_of(NODE_ALIGNMENT) && self.offset < FILE_SIZE_MAX);
        ((self.offset / NODE_ALIGNMENT) << 16) | u64::from(self.length)
    }

    pub(crate) fn unpack(packed: u64) -> Pointer {
        Pointer { offset: (packed >> 16) * NODE_ALIGNMENT, length: packed as u16 }
    }

    /// The bytes it takes in the file, including padding.
    pub(crate) fn aligned_length(self) -> u64 {
        u64::from(self.length).next_multiple_of(NODE_ALIGNMENT)
    }

    /// The offset of its end.
    pub(crate) fn end(self) -> u64 {
        self.offset + u64::from(self.length)
    }
}

/// Location of a root's attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct AttachmentPointer {
    pub(crate) offset: u64,
    pub(crate) length: u32,
    pub(crate) checksum: u64,
}

/// The contents of a root slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RootRecord {
    pub(crate) seq: u64,
    /// `None`: the tree has no entry.
    pub(crate) pointer: Option<Pointer>,
    pub(crate) level: u8,
    pub(crate) count: u64,
    pub(crate) live_bytes: u64,
    /// End of the root's part of the file, in bytes.
    pub(crate) end: u64,
    pub(crate) attachment: AttachmentPointer,
    pub(crate) summary: Vec<u8>,
}

/// Why a block is not a valid header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockError {
    /// Never written, torn, or damaged.
    Invalid,
    /// Written in another format version.
    Version(u32),
}

/// Encodes the header block.
pub(crate) fn encode_header(incarnation: &[u8; 16]) -> Vec<u8> {
    let mut block = vec![0; BLOCK_SIZE as usize];
    block[..8].copy_from_slice(&HEADER_MAGIC);
    block[16..32].copy_from_slice(incarnation);
    block[32..36].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
    seal(&mut block, 0);
    block
}

/// Decodes a header block into its incarnation.
pub(crate) fn decode_header(block: &[u8]) -> Result<[u8; 16], BlockError> {
    let incarnation = unseal(block, 0, HEADER_MAGIC).ok_or(BlockError::Invalid)?;
    match u32_at(block, 32) {
        FORMAT_VERSION => Ok(incarnation),
        version => Err(BlockError::Version(version)),
    }
}

impl RootRecord {
    /// Encodes the block of the slot at `offset`.
    pub(crate) fn encode(&self, incarnation: &[u8; 16], offset: u64) -> Vec<u8> {
        assert!(self.summary.len() <= SUMMARY_SIZE_MAX, "a summary of {} bytes", self.summary.len());
        let mut block = vec![0; BLOCK_SIZE as usize];
        block[..8].copy_from_slice(&ROOT_MAGIC);
        block[16..32].copy_from_slice(incarnation);
        let mut put = |at: usize, value: u64| block[at..at + 8].copy_from_slice(&value.to_le_bytes());
        put(32, self.seq);
        put(40, self.pointer.map_or(0, Pointer::pack));
        put(48, u64::from(self.level));
        put(56, self.count);
        put(64, self.live_bytes);
        put(72, self.end);
        put(80, self.attachment.offset);
        put(88, self.attachment.checksum);
        put(96, u64::from(self.attachment.length) | (self.summary.len() as u64) << 32);
        block[SUMMARY_START..SUMMARY_START + self.summary.len()].copy_from_slice(&self.summary);
        seal(&mut block, offset);
        block
    }

    /// Decodes the slot at `offset` into its root and the incarnation that it belongs to.
    pub(crate) fn decode(block: &[u8], offset: u64) -> Option<(RootRecord, [u8; 16])> {
        let incarnation = unseal(block, offset, ROOT_MAGIC)?;
        let packed = u64_at(block, 40);
        let summary_size = u32_at(block, 100) as usize;
        let summary = block.get(SUMMARY_START..SUMMARY_START.checked_add(summary_size)?)?;
        let record = RootRecord {
            seq: u64_at(block, 32),
            pointer: (packed != 0).then(|| Pointer::unpack(packed)),
            level: u8::try_from(u64_at(block, 48)).ok().filter(|level| *level <= LEVEL_MAX)?,
            count: u64_at(block, 56),
            live_bytes: u64_at(block, 64),
            end: u64_at(block, 72),
            attachment: AttachmentPointer {
                offset: u64_at(block, 80),
                checksum: u64_at(block, 88),
                length: u32_at(block, 96),
            },
            summary: summary.to_vec(),
        };
        record.is_sound().then_some((record, incarnation))
    }

    /// Whether everything it refers to lies before its end.
    fn is_sound(&self) -> bool {
        let AttachmentPointer { offset, length, .. } = self.attachment;
        let within =
            |offset: u64, end: Option<u64>| offset >= HEAD_SIZE && end.is_some_and(|end| end <= self.end);
        let node_is_within = self.pointer.is_none_or(|node| within(node.offset, Some(node.end())));
        let attachment_is_within = length == 0 || within(offset, offset.checked_add(u64::from(length)));
        let has_entries = self.pointer.is_some() == (self.count > 0);
        self.end >= HEAD_SIZE
            && self.end <= FILE_SIZE_MAX
            && node_is_within
            && attachment_is_within
            && length as usize <= ATTACHMENT_SIZE_MAX
            && self.summary.len() <= SUMMARY_SIZE_MAX
            && has_entries
    }
}

/// Stores a head block's checksum. The seed is the incarnation in the block.
fn seal(block: &mut [u8], offset: u64) {
    let incarnation = block[16..32].try_into().expect("16 bytes");
    let checksum = Seed::new(&incarnation).checksum(offset, &block[16..]);
    block[8..16].copy_from_slice(&checksum.to_le_bytes());
}

fn unseal(block: &[u8], offset: u64, magic: [u8; 8]) -> Option<[u8; 16]> {
    if block.len() != BLOCK_SIZE as usize || block[..8] != magic {
        return None;
    }
    let incarnation = block[16..32].try_into().ok()?;
    (u64_at(block, 8) == Seed::new(&incarnation).checksum(offset, &block[16..])).then_some(incarnation)
}

#[inline]
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

/// Appends `value` in groups of seven bits, lowest first; every byte but the last has its top bit set.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value > 0x7f {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Takes a varint from the front of `bytes`.
pub(crate) fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        if shift == 63 && bits > 1 {
            return None;
        }
        value |= bits << shift;
        if *byte < 0x80 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests;
