//! Blocks: the encoding of a segment index's entries.
//!
//! A block consists of the number of its entries (2 bytes), the entries, and zeros up to a multiple of
//! [`BLOCK_ALIGNMENT`]: a lookup reads one page. An entry that needs more than a page gets a block of more
//! pages, whose rest is filled with further entries.
//!
//! Decoding trusts nothing: each number is checked before it is used, and none determines the size of an
//! allocation.

use std::ops::Range;

use crate::format::{Flags, KEY_SIZE_MAX, META_SIZE_MAX};

/// Blocks begin at, and occupy, multiples of this many bytes.
pub(super) const BLOCK_ALIGNMENT: usize = 4096;

/// Largest block in bytes: one that begins with the longest key and the largest meta.
pub(super) const BLOCK_SIZE_MAX: usize = 5 * BLOCK_ALIGNMENT;
const _: () = assert!(COUNT_SIZE + FIXED_SIZE_MAX + KEY_SIZE_MAX + META_SIZE_MAX <= BLOCK_SIZE_MAX);

/// Size of the entry count at the start of a block, in bytes.
pub(super) const COUNT_SIZE: usize = 2;

/// Largest size of an entry in bytes without its key and meta.
pub(super) const FIXED_SIZE_MAX: usize = 1 + 10 + 10 + 5 + 2 + 3 + 3 + 8;

/// Largest size of an encoded number in bytes.
const VARINT_SIZE_MAX: usize = 10;

/// The part with which entries of both kinds begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EntryHeader {
    pub flags: Flags,
    /// Its `Seq`, relative to the segment index's first.
    pub seq_delta: u64,
    /// Location of its record: the offset in the low 32 bits, and above them the segment's number relative to
    /// the first one.
    pub packed_location: u64,
    pub length: u32,
    pub meta_size: usize,
}

impl EntryHeader {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(self.flags.bits());
        put_varint(out, self.seq_delta);
        put_varint(out, self.packed_location);
        put_varint(out, u64::from(self.length));
        put_varint(out, self.meta_size as u64);
    }

    #[inline]
    fn take(cursor: &mut Cursor<'_>) -> Option<EntryHeader> {
        Some(EntryHeader {
            flags: Flags::from_bits(cursor.take(1)?[0])?,
            seq_delta: cursor.varint()?,
            packed_location: cursor.varint()?,
            length: u32::try_from(cursor.varint()?).ok()?,
            meta_size: cursor.size(META_SIZE_MAX)?,
        })
    }
}

/// An entry by `Seq`. It is self-contained, so that it can be decoded from its first byte. The ranges refer
/// to the bytes from which it was decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SeqEntry {
    pub header: EntryHeader,
    /// The header's bytes, which are the same in the entry by key.
    pub header_range: Range<usize>,
    pub checksum: u64,
    pub key: Range<usize>,
    pub meta: Range<usize>,
}

impl SeqEntry {
    pub(super) fn put(header: &EntryHeader, checksum: u64, key: &[u8], meta: &[u8], out: &mut Vec<u8>) {
        header.put(out);
        put_varint(out, key.len() as u64);
        out.extend_from_slice(&checksum.to_le_bytes());
        out.extend_from_slice(key);
        out.extend_from_slice(meta);
    }

    /// The entry at `at`; it ends where its meta does.
    pub(super) fn decode(bytes: &[u8], at: usize) -> Option<SeqEntry> {
        let mut cursor = Cursor { bytes, at };
        let header = EntryHeader::take(&mut cursor)?;
        let header_range = at..cursor.at;
        let key_size = cursor.size(KEY_SIZE_MAX)?;
        let checksum = cursor.u64()?;
        let key = cursor.range(key_size)?;
        let meta = cursor.range(header.meta_size)?;
        Some(SeqEntry { header, header_range, checksum, key, meta })
    }
}

/// An entry by key; it contains only the part of the key that differs from the previous one in the block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KeyEntry {
    pub header: EntryHeader,
    pub meta: Range<usize>,
}

impl KeyEntry {
    /// Appends an entry by key, copied from the entry by `Seq` that is in `out` itself.
    pub(super) fn put(entry: &SeqEntry, shared: usize, out: &mut Vec<u8>) {
        out.extend_from_within(entry.header_range.clone());
        put_varint(out, shared as u64);
        put_varint(out, (entry.key.len() - shared) as u64);
        // The meta follows the key.
        out.extend_from_within(entry.key.start + shared..entry.meta.end);
    }

    /// The entry at `at`. Replaces `key`, the previous entry's key, with its own.
    pub(super) fn decode(bytes: &[u8], at: usize, key: &mut Vec<u8>) -> Option<KeyEntry> {
        let mut cursor = Cursor { bytes, at };
        let header = EntryHeader::take(&mut cursor)?;
        let shared = cursor.size(key.len())?;
        let rest_size = cursor.size(KEY_SIZE_MAX - shared)?;
        let rest = cursor.take(rest_size)?;
        let meta = cursor.range(header.meta_size)?;
        key.truncate(shared);
        key.extend_from_slice(rest);
        Some(KeyEntry { header, meta })
    }
}

/// A block under construction, at the end of a buffer.
#[derive(Debug)]
pub(super) struct BlockWriter {
    start: usize,
    count: u16,
    size_max: usize,
}

impl BlockWriter {
    pub(super) fn begin(out: &mut Vec<u8>) -> BlockWriter {
        let start = out.len();
        out.extend_from_slice(&[0; COUNT_SIZE]);
        BlockWriter { start, count: 0, size_max: BLOCK_ALIGNMENT }
    }

    /// Accepts the bytes appended to `out` since the last call as an entry, if they fit. The first entry
    /// always fits.
    pub(super) fn accept(&mut self, out: &[u8]) -> bool {
        let size = out.len() - self.start;
        if self.count == 0 {
            self.size_max = size.next_multiple_of(BLOCK_ALIGNMENT);
            assert!(self.size_max <= BLOCK_SIZE_MAX, "an entry of {size} bytes");
        }
        let fits = size <= self.size_max;
        self.count += u16::from(fits);
        fits
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Pads the block, and appends to `index` what each block's index entry begins with: the block's size in
    /// pages and its checksum.
    pub(super) fn end(self, out: &mut Vec<u8>, checksum: impl Fn(&[u8]) -> u64, index: &mut Vec<u8>) {
        out[self.start..self.start + COUNT_SIZE].copy_from_slice(&self.count.to_le_bytes());
        out.resize(self.start + self.size_max, 0);
        put_varint(index, (self.size_max / BLOCK_ALIGNMENT) as u64);
        index.extend_from_slice(&checksum(&out[self.start..]).to_le_bytes());
    }
}

/// Position and checksum of a block in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Block {
    pub start: u64,
    pub size: usize,
    pub checksum: u64,
}

/// Decodes the index of the blocks in the section `section`. `first` decodes the part of each index entry
/// that describes the block's first entry. The blocks fill the section, so there are no more of them than it
/// has pages.
pub(super) fn decode_index<T>(
    cursor: &mut Cursor<'_>,
    section: Range<u64>,
    mut first: impl FnMut(&mut Cursor<'_>) -> Option<T>,
) -> Option<(Vec<Block>, Vec<T>)> {
    let (mut blocks, mut firsts) = (Vec::new(), Vec::new());
    let mut start = section.start;
    while start < section.end {
        let size = cursor.size(BLOCK_SIZE_MAX / BLOCK_ALIGNMENT)? * BLOCK_ALIGNMENT;
        let end = start + size as u64;
        if size == 0 || end > section.end {
            return None;
        }
        blocks.push(Block { start, size, checksum: cursor.u64()? });
        firsts.push(first(cursor)?);
        start = end;
    }
    cursor.is_at_end().then_some((blocks, firsts))
}

/// Encodes a number with seven bits per byte, lowest first; all bytes but the last have the top bit set.
pub(super) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Decodes numbers and bytes from the front of a slice. `None` means that the slice is too short, or a number
/// out of bounds.
pub(super) struct Cursor<'a> {
    pub bytes: &'a [u8],
    pub at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { bytes, at: 0 }
    }

    pub(super) fn range(&mut self, size: usize) -> Option<Range<usize>> {
        let end = self.at.checked_add(size).filter(|end| *end <= self.bytes.len())?;
        Some(std::mem::replace(&mut self.at, end)..end)
    }

    pub(super) fn take(&mut self, size: usize) -> Option<&'a [u8]> {
        let range = self.range(size)?;
        Some(&self.bytes[range])
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().expect("4 bytes")))
    }

    pub(super) fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().expect("8 bytes")))
    }

    #[inline]
    pub(super) fn varint(&mut self) -> Option<u64> {
        let rest = self.bytes.get(self.at..)?;
        let mut value = 0;
        for (index, byte) in rest.iter().take(VARINT_SIZE_MAX).enumerate() {
            value |= u64::from(byte & 0x7F) << (7 * index);
            if *byte < 0x80 {
                // The last possible byte has only one bit left.
                let fits = index + 1 < VARINT_SIZE_MAX || *byte <= 1;
                self.at += index + 1;
                return fits.then_some(value);
            }
        }
        None
    }

    /// A size in bytes, at most `max`.
    pub(super) fn size(&mut self, max: usize) -> Option<usize> {
        usize::try_from(self.varint()?).ok().filter(|size| *size <= max)
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.at == self.bytes.len()
    }
}
