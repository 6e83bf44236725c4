//! The directory of a sealed segment: its commits by `Seq` and by key, without its frames. Or that
//! of a file into which commits of several segments were copied: it says where they lay there.
//!
//! Sealing writes a footer behind the last frame: blocks of entries by `Seq`, the same in the
//! order of keys, an index of both, a filter of keys, and a trailer, with which the file ends.
//! [`Directory::open`] reads the trailer and then the indexes and the filter, which stay in
//! memory; after that a lookup of a key is at most one read of one block, and none for 99 of
//! 100 keys that aren't there. Scans read ahead, up to [`READ_BYTES_MAX`].
//!
//! Entries stand in the file twice, in both orders, whole but for the record's checksum, which
//! the order by key leaves out. If the order by key were references to the entries by `Seq`, a
//! lookup would cost two reads, and a scan by key (a checkpoint, a range) one for each entry, as
//! keys come in any order. The second copy costs a key's rest after the one before it, the meta
//! and about 13 bytes: for keys of 20 bytes and metas of 25, some 50 bytes a record.
//!
//! Invariants:
//! 1. The trailer's checksum covers the trailer, which holds that of the indexes and the filter,
//!    which hold those of the blocks: no byte of the footer changes unnoticed, and no block of
//!    another time or place passes.
//! 2. A block is checked before anything in it is believed, and what is checked and wrong all
//!    the same is an error, no panic.
//! 3. No size is believed before the file is known to be as long: what is allocated is bounded
//!    by the file's length.
//! 4. A separator is greater than all keys before its block and no greater than those in it,
//!    but where one key goes on from the block before: then it is that key.
//!
//! Bytes: `docs/format.md`, "A segment's footer".

use std::ops::{Bound, Range, RangeBounds};
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use settee_io::{File, yield_now};

use crate::format::{Flags, KEY_SIZE_MAX, xxh3_64};
use crate::log::{Location, Seq};
use block::{Block, COUNT_SIZE, Cursor, Head, KeyEntry, SeqEntry, decode_index};

mod block;
mod builder;
mod filter;
mod trailer;

pub use builder::DirectoryBuilder;
pub use trailer::{TRAILER_SIZE, Trailer, footer_start};

/// The most that a scan reads at once, in bytes. It begins with one block and doubles that with
/// each read.
const READ_BYTES_MAX: usize = 256 << 10;

/// Why a directory can't be read. The segment's frames may be sound all the same, and what a
/// directory says can be had from them.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DirectoryError {
    /// The file doesn't end with a footer: the segment is not sealed, or the footer's last bytes
    /// are damaged.
    #[error("{} doesn't end with a directory", path.display())]
    Absent {
        /// The segment's file.
        path: PathBuf,
    },

    /// The footer's bytes are not what was written.
    #[error("damaged directory in {} at offset {offset}: {what}", path.display())]
    Damaged {
        /// The segment's file.
        path: PathBuf,
        /// Where what is damaged begins, in bytes.
        offset: u64,
        /// What is wrong.
        what: &'static str,
    },

    /// The footer was written by a later version.
    #[error("the directory in {} has format {found}; this version reads up to {known}", path.display())]
    NewerFormat {
        /// The segment's file.
        path: PathBuf,
        /// The version it was written in.
        found: u32,
        /// The newest version that can be read.
        known: u32,
    },

    /// The system failed to read.
    #[error(transparent)]
    Io(#[from] settee_io::Error),
}

/// What a directory says of one commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryRef<'a> {
    /// Its place in the order of the log.
    pub seq: Seq,
    /// What it is.
    pub flags: Flags,
    /// The key.
    pub key: &'a [u8],
    /// The meta.
    pub meta: &'a [u8],
    /// Where its record lies.
    pub location: Location,
}

impl EntryRef<'_> {
    /// A copy that stands by itself.
    pub fn to_entry(&self) -> Entry {
        Entry {
            seq: self.seq,
            flags: self.flags,
            key: self.key.to_vec(),
            meta: self.meta.to_vec(),
            location: self.location,
        }
    }
}

/// As [`EntryRef`], with bytes of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its place in the order of the log.
    pub seq: Seq,
    /// What it is.
    pub flags: Flags,
    /// The key.
    pub key: Vec<u8>,
    /// The meta.
    pub meta: Vec<u8>,
    /// Where its record lies.
    pub location: Location,
}

/// The directory of a sealed segment. Used from many tasks at once; reading takes no lock.
#[derive(Debug)]
pub struct Directory {
    file: Arc<File>,
    trailer: Trailer,
    /// Both indexes and the filter, as they stand in the file.
    loaded: Vec<u8>,
    seq_blocks: Vec<Block>,
    /// The first `Seq` of each block, from the trailer's first.
    seq_firsts: Vec<u64>,
    key_blocks: Vec<Block>,
    separators: Vec<Separator>,
    /// These lie in `loaded`.
    smallest_key: Range<usize>,
    largest_key: Range<usize>,
    filter: Range<usize>,
}

/// What parts a block from the one before it.
#[derive(Debug, Clone)]
struct Separator {
    /// Where it lies in what is loaded.
    bytes: Range<usize>,
    /// The block's first key is the last one of the block before.
    is_same_key: bool,
}

impl Directory {
    /// Reads and checks the trailer, the indexes and the filter of the sealed segment with this
    /// number and epoch; the file must end with its footer. Keeps in memory 10 bits a key, and
    /// about 50 bytes and a separator (of a key, as much as tells it from the one before) for
    /// each block of some 50 to 100 entries. Dropping the future abandons the reads.
    ///
    /// # Errors
    /// [`DirectoryError::Absent`] where the file doesn't end with a footer; otherwise what
    /// [`DirectoryError`] names.
    pub async fn open(file: Arc<File>, segment: u32, epoch: u32) -> Result<Directory, DirectoryError> {
        Directory::open_covering(file, segment, segment, epoch).await
    }

    /// As [`Directory::open`], of a file that holds records of the segments from `first` to `last`:
    /// see [`DirectoryBuilder::covering`].
    ///
    /// # Errors
    /// As [`Directory::open`].
    pub async fn open_covering(
        file: Arc<File>,
        first: u32,
        last: u32,
        epoch: u32,
    ) -> Result<Directory, DirectoryError> {
        let trailer = Trailer::read_covering(&file, first, last, epoch).await?;
        let start = trailer.index_start();
        let sizes = trailer.sizes;
        let used = (sizes.seq_index + sizes.key_index + sizes.filter) as usize;
        let loaded_size = (used + TRAILER_SIZE).next_multiple_of(block::BLOCK_ALIGNMENT) - TRAILER_SIZE;
        // A copy: what was read may be a part of a larger buffer, and this is kept for long.
        let loaded = file.read_exact_at(start, loaded_size).await?.to_vec();
        if xxh3_64(&loaded) != trailer.index_checksum {
            return Err(damaged(&file, start, "its index's checksum doesn't match"));
        }
        Directory::decode(file.clone(), trailer, loaded)
            .ok_or_else(|| damaged(&file, start, "its index makes no sense"))
    }

    fn decode(file: Arc<File>, trailer: Trailer, loaded: Vec<u8>) -> Option<Directory> {
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
        let directory = Directory {
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
        Some(directory)
    }

    /// What the footer says of its segment.
    pub fn trailer(&self) -> &Trailer {
        &self.trailer
    }

    /// The smallest and the largest key; `None` where there is no entry.
    pub fn key_bounds(&self) -> Option<(&[u8], &[u8])> {
        let bounds = (&self.loaded[self.smallest_key.clone()], &self.loaded[self.largest_key.clone()]);
        (!self.key_blocks.is_empty()).then_some(bounds)
    }

    /// Bytes of memory that it holds.
    pub fn memory_bytes(&self) -> usize {
        self.loaded.capacity()
            + (self.seq_blocks.capacity() + self.key_blocks.capacity()) * size_of::<Block>()
            + self.seq_firsts.capacity() * size_of::<u64>()
            + self.separators.capacity() * size_of::<Separator>()
    }

    /// Whether the key may have an entry, from memory: `false` is certain, and `true` wrong for
    /// about one in a hundred keys that have none.
    pub fn may_contain(&self, key: &[u8]) -> bool {
        filter::may_contain(&self.loaded[self.filter.clone()], xxh3_64(key))
    }

    /// The newest entry of the key. At most one block is read, and none where the filter
    /// denies the key. Older ones: [`Directory::scan_keys`] over `key..=key`. Dropping the future
    /// abandons the read.
    ///
    /// # Errors
    /// [`DirectoryError::Damaged`] where the block is damaged, or what the system says.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Entry>, DirectoryError> {
        if !self.may_contain(key) {
            return Ok(None);
        }
        let mut scan = self.scan_keys((Bound::Included(key), Bound::Included(key)));
        Ok(scan.next().await?.map(|entry| entry.to_entry()))
    }

    /// The entries whose keys lie in the range, in the order of keys, and of one key the newest
    /// first. See [`KeyScan::next`].
    pub fn scan_keys(&self, range: impl RangeBounds<[u8]>) -> KeyScan<'_> {
        let (start, end) = (range.start_bound(), range.end_bound());
        let separator = |separator: &Separator| &self.loaded[separator.bytes.clone()];
        let first = match start {
            Bound::Unbounded => 0,
            Bound::Included(key) | Bound::Excluded(key) => {
                // The first block that doesn't begin below the key, or the one before it.
                let next = self.separators.partition_point(|bytes| separator(bytes) < key);
                let begins = self.separators.get(next);
                let is_there = begins.is_some_and(|found| separator(found) == key && !found.is_same_key);
                if is_there { next } else { next.saturating_sub(1) }
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

    /// The entries from this `Seq` on, in the order of `Seq`. See [`SeqScan::next`].
    pub fn scan_seq(&self, from: Seq) -> SeqScan<'_> {
        let delta = from.0.saturating_sub(self.trailer.first_seq.0);
        let first = self.seq_firsts.partition_point(|first| *first <= delta).saturating_sub(1);
        SeqScan { blocks: BlockScan::new(self, &self.seq_blocks[first..]), from }
    }

    fn entry<'a>(&self, head: &Head, key: &'a [u8], meta: &'a [u8]) -> Option<EntryRef<'a>> {
        let seq = Seq(self.trailer.first_seq.0.checked_add(head.seq_delta)?);
        let segment = u64::from(self.trailer.segment) + (head.place >> 32);
        let segment = u32::try_from(segment).ok().filter(|number| *number <= self.trailer.last_segment)?;
        let location = Location { segment, offset: head.place as u32, length: head.length };
        Some(EntryRef { seq, flags: head.flags, key, meta, location })
    }
}

/// Entries in the order of keys.
#[derive(Debug)]
pub struct KeyScan<'a> {
    blocks: BlockScan<'a>,
    start: Bound<Vec<u8>>,
    end: Bound<Vec<u8>>,
    /// The entry's key, made from the one before it.
    key: Vec<u8>,
}

impl KeyScan<'_> {
    /// The next entry; `None` at the end. Dropping the future loses no entry.
    ///
    /// # Errors
    /// [`DirectoryError::Damaged`] where the next block is damaged, and what the system says; a
    /// later call tries again.
    pub async fn next(&mut self) -> Result<Option<EntryRef<'_>>, DirectoryError> {
        let entry = loop {
            if !self.blocks.advance().await? {
                return Ok(None);
            }
            let (block, at) = self.blocks.current();
            let Some(entry) = KeyEntry::decode(block, at, &mut self.key) else {
                return Err(self.blocks.damaged("an entry makes no sense"));
            };
            self.blocks.pass(entry.meta.end);
            if !is_within(&self.key, Bound::Unbounded, self.end.as_ref()) {
                self.blocks.stop();
                return Ok(None);
            }
            if is_within(&self.key, self.start.as_ref(), Bound::Unbounded) {
                break entry;
            }
        };
        // The keys that follow are no smaller.
        self.start = Bound::Unbounded;
        let meta = &self.blocks.current().0[entry.meta];
        let found = self.blocks.directory.entry(&entry.head, &self.key, meta);
        found.map(Some).ok_or_else(|| self.blocks.damaged("a Seq or a place makes no sense"))
    }
}

/// Entries in the order of `Seq`.
#[derive(Debug)]
pub struct SeqScan<'a> {
    blocks: BlockScan<'a>,
    from: Seq,
}

impl SeqScan<'_> {
    /// The next entry, with the checksum that stands in its record; `None` at the end. Dropping
    /// the future loses no entry.
    ///
    /// # Errors
    /// As [`KeyScan::next`].
    pub async fn next(&mut self) -> Result<Option<(EntryRef<'_>, u64)>, DirectoryError> {
        let first_seq = self.blocks.directory.trailer.first_seq.0;
        let entry = loop {
            if !self.blocks.advance().await? {
                return Ok(None);
            }
            let (block, at) = self.blocks.current();
            let Some(entry) = SeqEntry::decode(block, at) else {
                return Err(self.blocks.damaged("an entry makes no sense"));
            };
            self.blocks.pass(entry.meta.end);
            if first_seq.saturating_add(entry.head.seq_delta) >= self.from.0 {
                break entry;
            }
        };
        let block = self.blocks.current().0;
        let found = self.blocks.directory.entry(&entry.head, &block[entry.key], &block[entry.meta]);
        let found = found.map(|found| Some((found, entry.checksum)));
        found.ok_or_else(|| self.blocks.damaged("a Seq or a place makes no sense"))
    }
}

/// Blocks that lie one behind another, read some at a time.
#[derive(Debug)]
struct BlockScan<'a> {
    directory: &'a Directory,
    /// Not read yet.
    ahead: &'a [Block],
    /// Read, and not yet entered.
    read: &'a [Block],
    /// What was read last.
    bytes: Bytes,
    /// The current block, in `bytes`.
    block: Range<usize>,
    /// Where its next entry begins, from the block's first byte, and how many are left.
    at: usize,
    left: usize,
    /// How much the next read takes.
    read_bytes: usize,
}

impl<'a> BlockScan<'a> {
    fn new(directory: &'a Directory, blocks: &'a [Block]) -> BlockScan<'a> {
        BlockScan {
            directory,
            ahead: blocks,
            read: &[],
            bytes: Bytes::new(),
            block: 0..0,
            at: 0,
            left: 0,
            read_bytes: block::BLOCK_ALIGNMENT,
        }
    }

    /// The current block, and where its next entry begins.
    fn current(&self) -> (&[u8], usize) {
        (&self.bytes[self.block.clone()], self.at)
    }

    /// The current entry ends here.
    fn pass(&mut self, end: usize) {
        self.at = end;
        self.left -= 1;
    }

    fn stop(&mut self) {
        (self.left, self.read, self.ahead) = (0, &[], &[]);
    }

    /// Goes on to the next block where the current one has no entry left; `false` at the end.
    async fn advance(&mut self) -> Result<bool, DirectoryError> {
        while self.left == 0 {
            let Some(block) = self.read.first() else {
                if !self.read_ahead().await? {
                    return Ok(false);
                }
                continue;
            };
            let start = self.block.end;
            let bytes = &self.bytes[start..start + block.size];
            if xxh3_64(bytes) != block.checksum {
                return Err(damaged(&self.directory.file, block.start, "a block's checksum doesn't match"));
            }
            self.left = usize::from(u16::from_le_bytes([bytes[0], bytes[1]]));
            self.at = COUNT_SIZE;
            self.block = start..start + block.size;
            self.read = &self.read[1..];
        }
        Ok(true)
    }

    async fn read_ahead(&mut self) -> Result<bool, DirectoryError> {
        let Some(first) = self.ahead.first() else {
            return Ok(false);
        };
        if !self.bytes.is_empty() {
            // What is cached is read in place: other tasks get their turn all the same.
            yield_now().await;
        }
        let (mut count, mut size) = (1, first.size);
        while let Some(block) = self.ahead.get(count)
            && size + block.size <= self.read_bytes
        {
            (count, size) = (count + 1, size + block.size);
        }
        self.bytes = self.directory.file.read_exact_at(first.start, size).await?;
        self.block = 0..0;
        (self.read, self.ahead) = self.ahead.split_at(count);
        self.read_bytes = (self.read_bytes * 2).min(READ_BYTES_MAX);
        Ok(true)
    }

    /// The error of the current block.
    fn damaged(&self, what: &'static str) -> DirectoryError {
        let next = self.read.first().or(self.ahead.first()).map(|block| block.start);
        let end = next.unwrap_or(self.directory.trailer.index_start());
        damaged(&self.directory.file, end.saturating_sub(self.block.len() as u64), what)
    }
}

fn is_within(key: &[u8], start: Bound<&Vec<u8>>, end: Bound<&Vec<u8>>) -> bool {
    let range = (start.map(Vec::as_slice), end.map(Vec::as_slice));
    RangeBounds::<[u8]>::contains(&range, key)
}

fn damaged(file: &File, offset: u64, what: &'static str) -> DirectoryError {
    DirectoryError::Damaged { path: file.path().to_path_buf(), offset, what }
}

#[cfg(test)]
mod tests;
