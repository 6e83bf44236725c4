//! The segment index of a sealed segment: its records by `Seq` and by key, without its frames. Or the index
//! of a file into which records of several segments were copied; it contains their original locations.
//!
//! Sealing writes a footer after the last frame: blocks of entries ordered by `Seq`, blocks of the same
//! entries ordered by key, an index of both, a filter of keys, and a trailer that ends the file.
//! [`SegmentIndex::open`] reads the trailer, then the block indexes and the filter, which stay in memory.
//! After that a lookup of a key is at most one read of one block, and no read for 99 of 100 absent keys.
//! Scans read ahead, up to [`READ_BYTES_MAX`].
//!
//! The file contains each entry twice, once in each order, complete except for the record's checksum, which
//! the order by key omits. If the order by key contained references to the entries by `Seq`, a lookup would
//! cost two reads, and a scan by key (a checkpoint, a range) one read per entry, since keys arrive in any
//! order. The second copy costs the part of the key that differs from the previous one, the meta, and about
//! 13 bytes: for keys of 20 bytes and metas of 25, some 50 bytes per record.
//!
//! Invariants:
//! 1. The trailer's checksum covers the trailer, which contains that of the indexes and the filter, which
//!    contain those of the blocks: no byte of the footer changes unnoticed, and no block of another time or
//!    place is accepted.
//! 2. A block is verified before its content is used, and content that is invalid nevertheless is an error,
//!    not a panic.
//! 3. A size is used only after a check against the file's length, so allocations are bounded by that length.
//! 4. A separator is greater than all keys before its block and no greater than those in it, except when one
//!    key continues from the previous block: then it is that key.
//!
//! Bytes: `docs/format.md`, "A segment's footer".

use std::ops::{Bound, Range, RangeBounds};
use std::sync::Arc;

use bytes::Bytes;
use settee_io::{File, yield_now};

use crate::format::{KEY_SIZE_MAX, xxh3_64};
use crate::types::{Location, Seq};
use block::{Block, COUNT_SIZE, Cursor, EntryHeader, KeyEntry, SeqEntry, decode_index};
use error::damaged;

mod block;
mod builder;
mod entry;
mod error;
mod filter;
mod trailer;

pub use builder::SegmentIndexBuilder;
pub use entry::{Entry, EntryRef};
pub use error::SegmentIndexError;
pub use trailer::{TRAILER_SIZE, Trailer, footer_start};

/// Largest read of a scan in bytes. A scan begins with one block and doubles the size with each read.
const READ_BYTES_MAX: usize = 256 << 10;

/// The segment index of a sealed segment. It can be used from many tasks at once; reading takes no lock.
#[derive(Debug)]
pub struct SegmentIndex {
    file: Arc<File>,
    trailer: Trailer,
    /// Both block indexes and the filter, as encoded in the file.
    loaded: Vec<u8>,
    seq_blocks: Vec<Block>,
    /// The first `Seq` of each block, relative to the trailer's first.
    seq_firsts: Vec<u64>,
    key_blocks: Vec<Block>,
    separators: Vec<Separator>,
    /// The smallest key, in `loaded`.
    smallest_key: Range<usize>,
    /// The largest key, in `loaded`.
    largest_key: Range<usize>,
    /// The filter, in `loaded`.
    filter: Range<usize>,
}

/// Separates a block's keys from those of the previous block.
#[derive(Debug, Clone)]
struct Separator {
    /// Its bytes, in `loaded`.
    bytes: Range<usize>,
    /// Whether the block's first key is also the last key of the previous block.
    is_same_key: bool,
}

impl SegmentIndex {
    /// Reads and verifies the trailer, the indexes and the filter of the sealed segment with this number and
    /// epoch; the file must end with its footer. Keeps in memory 10 bits per key and, for each block of some
    /// 50 to 100 entries, about 50 bytes plus a separator (as much of a key as distinguishes it from the
    /// previous one). Dropping the future abandons the reads.
    ///
    /// # Errors
    /// [`SegmentIndexError::Absent`] if the file doesn't end with a footer; otherwise as listed in
    /// [`SegmentIndexError`].
    pub async fn open(file: Arc<File>, segment: u32, epoch: u32) -> Result<SegmentIndex, SegmentIndexError> {
        SegmentIndex::open_covering(file, segment, segment, epoch).await
    }

    /// As [`SegmentIndex::open`], for a file that contains records of the segments from `first` to `last`:
    /// see [`SegmentIndexBuilder::covering`].
    ///
    /// # Errors
    /// As [`SegmentIndex::open`].
    pub async fn open_covering(
        file: Arc<File>,
        first: u32,
        last: u32,
        epoch: u32,
    ) -> Result<SegmentIndex, SegmentIndexError> {
        let trailer = Trailer::read_covering(&file, first, last, epoch).await?;
        let start = trailer.index_start();
        let sizes = trailer.sizes;
        let used = (sizes.seq_index + sizes.key_index + sizes.filter) as usize;
        let loaded_size = (used + TRAILER_SIZE).next_multiple_of(block::BLOCK_ALIGNMENT) - TRAILER_SIZE;
        // A copy, since the bytes may be part of a larger buffer, and this is kept for long.
        let loaded = file.read_exact_at(start, loaded_size).await?.to_vec();
        if xxh3_64(&loaded) != trailer.index_checksum {
            return Err(damaged(&file, start, "its index's checksum doesn't match"));
        }
        SegmentIndex::decode(file.clone(), trailer, loaded)
            .ok_or_else(|| damaged(&file, start, "its block index is invalid"))
    }

    fn decode(file: Arc<File>, trailer: Trailer, loaded: Vec<u8>) -> Option<SegmentIndex> {
        let seq_index_end = trailer.sizes.seq_index as usize;
        let key_index_end = seq_index_end + trailer.sizes.key_index as usize;
        let filter = key_index_end..key_index_end + trailer.sizes.filter as usize;
        let seq_section = trailer.seq_blocks_start()..trailer.key_blocks_start();
        let mut cursor = Cursor::new(&loaded[..seq_index_end]);
        let (seq_blocks, seq_firsts) = decode_index(&mut cursor, seq_section, |cursor| cursor.varint())?;
        let mut cursor = Cursor { bytes: &loaded[..key_index_end], at: seq_index_end };
        let mut key = || {
            let size = cursor.size(KEY_SIZE_MAX)?;
            cursor.range(size)
        };
        let (smallest_key, largest_key) = (key()?, key()?);
        let key_section = trailer.key_blocks_start()..trailer.index_start();
        let (key_blocks, separators) = decode_index(&mut cursor, key_section, |cursor| {
            let number = cursor.size(2 * KEY_SIZE_MAX + 1)?;
            Some(Separator { bytes: cursor.range(number / 2)?, is_same_key: number % 2 == 1 })
        })?;
        let segment_index = SegmentIndex {
            file,
            trailer,
            loaded,
            seq_blocks,
            seq_firsts,
            key_blocks,
            separators,
            smallest_key,
            largest_key,
            filter,
        };
        Some(segment_index)
    }

    /// The footer's trailer.
    pub fn trailer(&self) -> &Trailer {
        &self.trailer
    }

    /// The smallest and the largest key; `None` if there is no entry.
    pub fn key_bounds(&self) -> Option<(&[u8], &[u8])> {
        let bounds = (&self.loaded[self.smallest_key.clone()], &self.loaded[self.largest_key.clone()]);
        (!self.key_blocks.is_empty()).then_some(bounds)
    }

    /// Its memory use in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.loaded.capacity()
            + (self.seq_blocks.capacity() + self.key_blocks.capacity()) * size_of::<Block>()
            + self.seq_firsts.capacity() * size_of::<u64>()
            + self.separators.capacity() * size_of::<Separator>()
    }

    /// Checks in memory whether the key may have an entry: `false` is certain; `true` is wrong for about one
    /// in a hundred absent keys.
    pub fn may_contain(&self, key: &[u8]) -> bool {
        filter::may_contain(&self.loaded[self.filter.clone()], xxh3_64(key))
    }

    /// The newest entry of the key. Reads at most one block, and none if the filter excludes the key. For
    /// older entries use [`SegmentIndex::scan_keys`] over `key..=key`. Dropping the future abandons the read.
    ///
    /// # Errors
    /// [`SegmentIndexError::Damaged`] if the block is damaged, or an I/O error.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Entry>, SegmentIndexError> {
        if !self.may_contain(key) {
            return Ok(None);
        }
        let mut scan = self.scan_keys((Bound::Included(key), Bound::Included(key)));
        Ok(scan.next().await?.map(|entry| entry.to_entry()))
    }

    /// The entries with keys in the range, ordered by key, and the newest first for each key. See
    /// [`KeyScan::next`].
    pub fn scan_keys(&self, range: impl RangeBounds<[u8]>) -> KeyScan<'_> {
        let (start, end) = (range.start_bound(), range.end_bound());
        let separator = |separator: &Separator| &self.loaded[separator.bytes.clone()];
        let first = match start {
            Bound::Unbounded => 0,
            Bound::Included(key) | Bound::Excluded(key) => {
                // The first block whose separator isn't below the key, or the block before it.
                let next = self.separators.partition_point(|bytes| separator(bytes) < key);
                let begins = self.separators.get(next);
                let begins_with_key =
                    begins.is_some_and(|found| separator(found) == key && !found.is_same_key);
                if begins_with_key { next } else { next.saturating_sub(1) }
            }
        };
        let last = match end {
            Bound::Unbounded => self.separators.len(),
            Bound::Included(key) => self.separators.partition_point(|bytes| separator(bytes) <= key),
            Bound::Excluded(key) => self.separators.partition_point(|bytes| separator(bytes) < key),
        };
        let blocks = self.key_blocks.get(first..last).unwrap_or_default();
        KeyScan {
            blocks: BlockScan::new(self, blocks),
            start: start.map(<[u8]>::to_vec),
            end: end.map(<[u8]>::to_vec),
            key: Vec::new(),
        }
    }

    /// The entries from this `Seq` on, ordered by `Seq`. See [`SeqScan::next`].
    pub fn scan_seq(&self, from: Seq) -> SeqScan<'_> {
        let seq_delta = from.0.saturating_sub(self.trailer.first_seq.0);
        let first = self.seq_firsts.partition_point(|first| *first <= seq_delta).saturating_sub(1);
        SeqScan { blocks: BlockScan::new(self, &self.seq_blocks[first..]), from }
    }

    fn entry<'a>(&self, header: &EntryHeader, key: &'a [u8], meta: &'a [u8]) -> Option<EntryRef<'a>> {
        let seq = Seq(self.trailer.first_seq.0.checked_add(header.seq_delta)?);
        let segment = u64::from(self.trailer.segment) + (header.packed_location >> 32);
        let segment = u32::try_from(segment).ok().filter(|number| *number <= self.trailer.last_segment)?;
        let location = Location { segment, offset: header.packed_location as u32, length: header.length };
        Some(EntryRef { seq, flags: header.flags, key, meta, location })
    }
}

/// A scan of entries ordered by key.
#[derive(Debug)]
pub struct KeyScan<'a> {
    blocks: BlockScan<'a>,
    start: Bound<Vec<u8>>,
    end: Bound<Vec<u8>>,
    /// The current entry's key, decoded relative to the previous one.
    key: Vec<u8>,
}

impl KeyScan<'_> {
    /// The next entry; `None` at the end. Dropping the future loses no entry.
    ///
    /// # Errors
    /// [`SegmentIndexError::Damaged`] if the next block is damaged, or an I/O error; a later call tries
    /// again.
    pub async fn next(&mut self) -> Result<Option<EntryRef<'_>>, SegmentIndexError> {
        let entry = loop {
            if !self.blocks.advance().await? {
                return Ok(None);
            }
            let (block, at) = self.blocks.current();
            let Some(entry) = KeyEntry::decode(block, at, &mut self.key) else {
                return Err(self.blocks.damaged("an entry is invalid"));
            };
            self.blocks.advance_to(entry.meta.end);
            if !is_within(&self.key, Bound::Unbounded, self.end.as_ref()) {
                self.blocks.stop();
                return Ok(None);
            }
            if is_within(&self.key, self.start.as_ref(), Bound::Unbounded) {
                break entry;
            }
        };
        // Later keys are no smaller, so the start need not be checked again.
        self.start = Bound::Unbounded;
        let meta = &self.blocks.current().0[entry.meta];
        let found = self.blocks.segment_index.entry(&entry.header, &self.key, meta);
        found.map(Some).ok_or_else(|| self.blocks.damaged("a Seq or a location is invalid"))
    }
}

/// A scan of entries ordered by `Seq`.
#[derive(Debug)]
pub struct SeqScan<'a> {
    blocks: BlockScan<'a>,
    from: Seq,
}

impl SeqScan<'_> {
    /// The next entry and the checksum of its record; `None` at the end. Dropping the future loses no entry.
    ///
    /// # Errors
    /// As [`KeyScan::next`].
    pub async fn next(&mut self) -> Result<Option<(EntryRef<'_>, u64)>, SegmentIndexError> {
        let first_seq = self.blocks.segment_index.trailer.first_seq.0;
        let entry = loop {
            if !self.blocks.advance().await? {
                return Ok(None);
            }
            let (block, at) = self.blocks.current();
            let Some(entry) = SeqEntry::decode(block, at) else {
                return Err(self.blocks.damaged("an entry is invalid"));
            };
            self.blocks.advance_to(entry.meta.end);
            if first_seq.saturating_add(entry.header.seq_delta) >= self.from.0 {
                break entry;
            }
        };
        let block = self.blocks.current().0;
        let found = self.blocks.segment_index.entry(&entry.header, &block[entry.key], &block[entry.meta]);
        let found = found.map(|found| Some((found, entry.checksum)));
        found.ok_or_else(|| self.blocks.damaged("a Seq or a location is invalid"))
    }
}

/// A scan over adjacent blocks, several per read.
#[derive(Debug)]
struct BlockScan<'a> {
    segment_index: &'a SegmentIndex,
    /// Blocks not read yet.
    unread: &'a [Block],
    /// Blocks that were read, after the current one.
    read: &'a [Block],
    /// The bytes of the last read.
    bytes: Bytes,
    /// The current block, in `bytes`.
    block: Range<usize>,
    /// Offset of its next entry, relative to the block.
    at: usize,
    /// Number of its entries that remain.
    remaining: usize,
    /// Size of the next read in bytes.
    read_bytes: usize,
}

impl<'a> BlockScan<'a> {
    fn new(segment_index: &'a SegmentIndex, blocks: &'a [Block]) -> BlockScan<'a> {
        BlockScan {
            segment_index,
            unread: blocks,
            read: &[],
            bytes: Bytes::new(),
            block: 0..0,
            at: 0,
            remaining: 0,
            read_bytes: block::BLOCK_ALIGNMENT,
        }
    }

    /// The current block, and the offset of its next entry.
    fn current(&self) -> (&[u8], usize) {
        (&self.bytes[self.block.clone()], self.at)
    }

    /// Marks the current entry as consumed; it ends at `end`.
    fn advance_to(&mut self, end: usize) {
        self.at = end;
        self.remaining -= 1;
    }

    fn stop(&mut self) {
        (self.remaining, self.read, self.unread) = (0, &[], &[]);
    }

    /// Moves to the next block if the current one has no entry left; returns `false` at the end.
    async fn advance(&mut self) -> Result<bool, SegmentIndexError> {
        while self.remaining == 0 {
            let Some(block) = self.read.first() else {
                if !self.read_ahead().await? {
                    return Ok(false);
                }
                continue;
            };
            let start = self.block.end;
            let bytes = &self.bytes[start..start + block.size];
            if xxh3_64(bytes) != block.checksum {
                return Err(damaged(
                    &self.segment_index.file,
                    block.start,
                    "a block's checksum doesn't match",
                ));
            }
            self.remaining = usize::from(u16::from_le_bytes([bytes[0], bytes[1]]));
            self.at = COUNT_SIZE;
            self.block = start..start + block.size;
            self.read = &self.read[1..];
        }
        Ok(true)
    }

    async fn read_ahead(&mut self) -> Result<bool, SegmentIndexError> {
        let Some(first) = self.unread.first() else {
            return Ok(false);
        };
        if !self.bytes.is_empty() {
            // A cached read completes without waiting, so yield to other tasks here.
            yield_now().await;
        }
        let (mut count, mut size) = (1, first.size);
        while let Some(block) = self.unread.get(count)
            && size + block.size <= self.read_bytes
        {
            (count, size) = (count + 1, size + block.size);
        }
        self.bytes = self.segment_index.file.read_exact_at(first.start, size).await?;
        self.block = 0..0;
        (self.read, self.unread) = self.unread.split_at(count);
        self.read_bytes = (self.read_bytes * 2).min(READ_BYTES_MAX);
        Ok(true)
    }

    /// An error for the current block.
    fn damaged(&self, what: &'static str) -> SegmentIndexError {
        let next = self.read.first().or(self.unread.first()).map(|block| block.start);
        let end = next.unwrap_or(self.segment_index.trailer.index_start());
        damaged(&self.segment_index.file, end.saturating_sub(self.block.len() as u64), what)
    }
}

fn is_within(key: &[u8], start: Bound<&Vec<u8>>, end: Bound<&Vec<u8>>) -> bool {
    let range = (start.map(Vec::as_slice), end.map(Vec::as_slice));
    RangeBounds::<[u8]>::contains(&range, key)
}

#[cfg(test)]
mod tests;
