//! Builds the footer of a segment.
//!
//! Entries by `Seq` are packed into blocks as they are added. The order by key is determined at the end: runs
//! of entry positions are sorted and merged, and the entries copied in that order. That takes time, so
//! [`SegmentIndexBuilder::finish`] yields to other tasks meanwhile.
//!
//! Positions are sorted by an integer made of the key's first bytes after the prefix that all keys share. The
//! keys themselves, which are scattered over memory, are compared only if these bytes are equal.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::ops::Range;

use settee_io::yield_now;

use super::block::{
    BLOCK_ALIGNMENT, BlockWriter, EntryHeader, FIXED_SIZE_MAX, KeyEntry, SeqEntry, put_varint,
};
use super::entry::EntryRef;
use super::filter;
use super::trailer::{SectionSizes, TRAILER_SIZE, Trailer};
use crate::format::{Flags, KEY_SIZE_MAX, META_SIZE_MAX, xxh3_64};

/// Number of positions sorted at a time, between yields to other tasks.
const RUN_COUNT: usize = 1024;

/// Bytes of a key used as its sort prefix.
const SORT_SIZE: usize = size_of::<u64>();

/// Number of entries between yields to other tasks.
const YIELD_COUNT: usize = 1024;

/// Builds the footer of a segment from its records, or that of a file with records of several segments.
///
/// Memory per record: its key, its meta and about 30 bytes; while [`SegmentIndexBuilder::finish`] runs, twice
/// that, plus 20 bytes. Growing buffers may temporarily take up to twice as much.
///
/// # Example
/// ```
/// use settee_log::{SegmentIndexBuilder, EntryRef, Flags, Location, Seq, footer_start};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let mut builder = SegmentIndexBuilder::new(1, 1);
/// let location = Location { segment: 1, offset: 560, length: 37 };
/// builder.push(EntryRef { seq: Seq(1), flags: Flags::IN_SEQ_INDEX, key: b"key", meta: b"", location }, 99);
/// let footer = builder.finish(600, 98).await;
/// assert_eq!(footer_start(600), 4096);
/// assert_eq!(footer.len() % 4096, 0);
/// # }
/// ```
#[derive(Debug)]
pub struct SegmentIndexBuilder {
    /// The trailer, without the fields that are known only at the end.
    trailer: Trailer,
    /// The footer built so far: blocks by `Seq`.
    out: Vec<u8>,
    block: Option<BlockWriter>,
    /// The `Seq` of the open block's first entry, relative to the segment index's first.
    block_first: u64,
    seq_index: Vec<u8>,
    /// Position of each entry in `out`, in the order of `Seq`.
    positions: Vec<EntryPosition>,
    /// Length of the prefix that all keys share, in bytes.
    common: usize,
    /// Total size of the entries in bytes, without block overhead.
    entry_bytes: usize,
}

impl SegmentIndexBuilder {
    /// An empty builder for a segment.
    pub fn new(segment: u32, epoch: u32) -> SegmentIndexBuilder {
        SegmentIndexBuilder::covering(segment, segment, epoch)
    }

    /// An empty builder for a file with records of the segments from `first` to `last`. Entries keep the
    /// locations of their records in these segments; `epoch` is any further number that distinguishes the
    /// file from others.
    ///
    /// # Panics
    /// If `last` is less than `first`.
    pub fn covering(first: u32, last: u32, epoch: u32) -> SegmentIndexBuilder {
        assert!(first <= last, "segments {first} to {last}");
        SegmentIndexBuilder {
            trailer: Trailer { segment: first, last_segment: last, epoch, ..Trailer::default() },
            out: Vec::new(),
            block: None,
            block_first: 0,
            seq_index: Vec::new(),
            positions: Vec::new(),
            common: 0,
            entry_bytes: 0,
        }
    }

    /// Adds a record, with its checksum. Cheap: the key and the meta are copied, and each full block of 4 KiB
    /// is hashed.
    ///
    /// # Panics
    /// If the `Seq` isn't greater than the previous one, the record lies in another segment, the key or the
    /// meta exceeds its limit, or all entries take more than 4 GiB.
    pub fn push(&mut self, entry: EntryRef<'_>, checksum: u64) {
        let covered = self.trailer.segment..=self.trailer.last_segment;
        assert!(covered.contains(&entry.location.segment), "a record of another segment");
        assert!(entry.key.len() <= KEY_SIZE_MAX, "key of {} bytes", entry.key.len());
        assert!(entry.meta.len() <= META_SIZE_MAX, "meta of {} bytes", entry.meta.len());
        if self.positions.is_empty() {
            self.trailer.first_seq = entry.seq;
        } else {
            assert!(entry.seq > self.trailer.last_seq, "{:?} out of order", entry.seq);
        }
        self.trailer.last_seq = entry.seq;
        self.trailer.record_count += 1;
        self.trailer.tombstone_count += u64::from(entry.flags.has(Flags::TOMBSTONE));
        self.trailer.in_seq_index_count += u64::from(entry.flags.has(Flags::IN_SEQ_INDEX));
        self.trailer.record_bytes += u64::from(entry.location.length);
        let header = EntryHeader {
            flags: entry.flags,
            seq_delta: entry.seq.0 - self.trailer.first_seq.0,
            packed_location: u64::from(entry.location.segment - self.trailer.segment) << 32
                | u64::from(entry.location.offset),
            length: entry.location.length,
            meta_size: entry.meta.len(),
        };
        if !self.put(&header, checksum, entry.key, entry.meta) {
            self.end_block();
            assert!(self.put(&header, checksum, entry.key, entry.meta), "an empty block takes any entry");
        }
    }

    /// Appends the entry to the open block, or a new one; returns whether it fits.
    fn put(&mut self, header: &EntryHeader, checksum: u64, key: &[u8], meta: &[u8]) -> bool {
        let block = self.block.get_or_insert_with(|| BlockWriter::begin(&mut self.out));
        if block.is_empty() {
            self.block_first = header.seq_delta;
        }
        let start = self.out.len();
        SeqEntry::put(header, checksum, key, meta, &mut self.out);
        if !block.accept(&self.out) {
            self.out.truncate(start);
            return false;
        }
        self.entry_bytes += self.out.len() - start;
        let position = EntryPosition {
            start: u32::try_from(start).expect("entries take no more than 4 GiB"),
            key_size: key.len() as u16,
            key_at: (self.out.len() - start - key.len() - meta.len()) as u8,
        };
        match self.positions.first() {
            None => self.common = key.len(),
            Some(first) => {
                let common = &first.key(&self.out)[..self.common];
                if !key.starts_with(common) {
                    self.common = shared_size(key, common);
                }
            }
        }
        self.positions.push(position);
        true
    }

    fn end_block(&mut self) {
        if let Some(block) = self.block.take() {
            block.end(&mut self.out, xxh3_64, &mut self.seq_index);
            put_varint(&mut self.seq_index, self.block_first);
        }
    }

    /// Number of records so far.
    pub fn record_count(&self) -> u64 {
        self.trailer.record_count
    }

    /// Its memory use in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.out.capacity()
            + self.seq_index.capacity()
            + self.positions.capacity() * size_of::<EntryPosition>()
    }

    /// Upper bound for the size of the footer in bytes if it is finished now, for reserving space.
    pub fn footer_size_max(&self) -> u64 {
        // An entry by key is shorter than the same one by `Seq`. Any two adjacent blocks contain more than
        // one block of entries; a separator is never longer than a key.
        let seq_blocks = self.out.len().next_multiple_of(BLOCK_ALIGNMENT);
        let key_blocks = (2 * self.entry_bytes).next_multiple_of(BLOCK_ALIGNMENT) + BLOCK_ALIGNMENT;
        let block_count = (seq_blocks + key_blocks) / BLOCK_ALIGNMENT;
        let indexes = block_count * FIXED_SIZE_MAX + self.entry_bytes + 2 * (KEY_SIZE_MAX + FIXED_SIZE_MAX);
        let filter = filter::size(self.positions.len());
        let rest = (indexes + filter + TRAILER_SIZE).next_multiple_of(BLOCK_ALIGNMENT);
        (seq_blocks + key_blocks + rest) as u64
    }

    /// The footer's bytes, to be written at [`super::footer_start`]: a multiple of 4096, with which the file
    /// must end. `frames_end` is where the segment's last frame ends, and `frames_checksum` that frame's
    /// checksum. Yields to other tasks; dropping the future drops the builder.
    pub async fn finish(mut self, frames_end: u64, frames_checksum: u64) -> Vec<u8> {
        self.end_block();
        let order = self.order().await;
        let SegmentIndexBuilder { mut trailer, mut out, seq_index, .. } = self;
        let seq_blocks = out.len();
        let mut keys = KeySection::new(seq_blocks);
        for (index, position) in order.iter().enumerate() {
            if index % YIELD_COUNT == 0 {
                yield_now().await;
            }
            keys.push(&mut out, *position as usize);
        }
        keys.end_block(&mut out);
        trailer.frames_end = frames_end;
        trailer.frames_checksum = frames_checksum;
        trailer.key_count = keys.hashes.len() as u64;
        let index_start = out.len();
        let filter_size = filter::size(keys.hashes.len());
        out.extend_from_slice(&seq_index);
        keys.put_index(&mut out);
        let filter_start = out.len();
        trailer.sizes = SectionSizes {
            seq_blocks: seq_blocks as u64,
            key_blocks: (index_start - seq_blocks) as u64,
            seq_index: seq_index.len() as u64,
            key_index: (filter_start - index_start - seq_index.len()) as u64,
            filter: filter_size as u64,
        };
        let end = (filter_start + filter_size + TRAILER_SIZE).next_multiple_of(BLOCK_ALIGNMENT);
        out.resize(end - TRAILER_SIZE, 0);
        for hashes in keys.hashes.chunks(YIELD_COUNT) {
            yield_now().await;
            let filter = &mut out[filter_start..filter_start + filter_size];
            hashes.iter().for_each(|hash| filter::insert(filter, *hash));
        }
        trailer.index_checksum = xxh3_64(&out[index_start..]);
        out.extend_from_slice(&trailer.encode());
        out
    }

    /// The entries' positions ordered by key, and the newest first for each key.
    async fn order(&mut self) -> Vec<u32> {
        let (out, common) = (&self.out, self.common);
        let mut entries = Vec::with_capacity(self.positions.len());
        for positions in std::mem::take(&mut self.positions).chunks(RUN_COUNT) {
            let run = entries.len();
            entries.extend(
                positions
                    .iter()
                    .map(|position| SortEntry { number: position.number(out, common), position: *position }),
            );
            entries[run..].sort_unstable_by(|a, b| a.compare(b, out, common));
            yield_now().await;
        }
        let candidate = |run| MergeRun::first_of(run, out, common);
        let mut heap: BinaryHeap<MergeRun<'_>> = entries.chunks(RUN_COUNT).filter_map(candidate).collect();
        let mut order = Vec::with_capacity(entries.len());
        while let Some(mut first) = heap.peek_mut() {
            order.push(first.entry.position.start);
            match candidate(first.rest) {
                None => drop(PeekMut::pop(first)),
                Some(next) => *first = next,
            }
            if order.len() % YIELD_COUNT == 0 {
                yield_now().await;
            }
        }
        order
    }
}

/// Position of an entry by `Seq`.
#[derive(Debug, Clone, Copy)]
struct EntryPosition {
    start: u32,
    key_size: u16,
    /// Offset of its key within the entry.
    key_at: u8,
}

const _: () = assert!(KEY_SIZE_MAX <= u16::MAX as usize && FIXED_SIZE_MAX <= u8::MAX as usize);

impl EntryPosition {
    fn key<'a>(&self, out: &'a [u8]) -> &'a [u8] {
        let start = self.start as usize + usize::from(self.key_at);
        &out[start..start + usize::from(self.key_size)]
    }

    /// The key's sort prefix, after its first `common` bytes, as an integer.
    fn number(&self, out: &[u8], common: usize) -> u64 {
        let rest = &self.key(out)[common..];
        let mut bytes = [0; SORT_SIZE];
        let count = rest.len().min(SORT_SIZE);
        bytes[..count].copy_from_slice(&rest[..count]);
        u64::from_be_bytes(bytes)
    }
}

/// A position that is being sorted.
#[derive(Debug, Clone, Copy)]
struct SortEntry {
    number: u64,
    position: EntryPosition,
}

impl SortEntry {
    /// Orders by key, and the newest first for each key: a greater position is a greater `Seq`.
    fn compare(&self, other: &SortEntry, out: &[u8], common: usize) -> Ordering {
        let (a, b) = (&self.position, &other.position);
        let by_key = || match usize::from(a.key_size.max(b.key_size)) <= common + SORT_SIZE {
            // The keys are equal, or one continues the other with zeros.
            true => a.key_size.cmp(&b.key_size),
            false => a.key(out)[common..].cmp(&b.key(out)[common..]),
        };
        self.number.cmp(&other.number).then_with(by_key).then_with(|| b.start.cmp(&a.start))
    }
}

/// The rest of a sorted run. The greatest in the heap is the one with the smallest first entry.
struct MergeRun<'a> {
    entry: SortEntry,
    rest: &'a [SortEntry],
    out: &'a [u8],
    common: usize,
}

impl<'a> MergeRun<'a> {
    fn first_of(run: &'a [SortEntry], out: &'a [u8], common: usize) -> Option<MergeRun<'a>> {
        let (entry, rest) = run.split_first()?;
        Some(MergeRun { entry: *entry, rest, out, common })
    }
}

impl Ord for MergeRun<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        other.entry.compare(&self.entry, self.out, self.common)
    }
}

impl PartialOrd for MergeRun<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Eq for MergeRun<'_> {}

impl PartialEq for MergeRun<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

/// The section by key, built after the section by `Seq`.
struct KeySection {
    block: Option<BlockWriter>,
    /// The index entry's part for the open block: the separator, preceded by twice its size, plus one if the
    /// key continues from the previous block.
    block_first: Vec<u8>,
    blocks: Vec<u8>,
    /// Hashes of the distinct keys.
    hashes: Vec<u64>,
    /// The smallest key, in an entry by `Seq`.
    smallest: Range<usize>,
    /// The last key so far, in an entry by `Seq`.
    last: Range<usize>,
}

impl KeySection {
    fn new(start: usize) -> KeySection {
        KeySection {
            block: None,
            block_first: Vec::new(),
            blocks: Vec::new(),
            hashes: Vec::new(),
            smallest: start..start,
            last: start..start,
        }
    }

    /// Adds the entry at `position`, whose key is no smaller than the last one.
    fn push(&mut self, out: &mut Vec<u8>, position: usize) {
        let entry = entry_at(out, position);
        let (key, last) = (&out[entry.key.clone()], &out[self.last.clone()]);
        let is_first = self.hashes.is_empty();
        let shared = shared_size(key, last);
        let is_new = is_first || shared < key.len().max(last.len());
        if is_new {
            self.hashes.push(xxh3_64(key));
        }
        if self.block.is_none() || !self.put(out, &entry, shared) {
            self.end_block(out);
            // The shortest prefix that is greater than the last key, which keeps the index small.
            let separator = match (is_first, is_new) {
                (true, _) => 0,
                (false, true) => shared + 1,
                (false, false) => entry.key.len(),
            };
            self.block_first.clear();
            put_varint(&mut self.block_first, separator as u64 * 2 + u64::from(!is_new));
            self.block_first.extend_from_slice(&out[entry.key.start..entry.key.start + separator]);
            self.block = Some(BlockWriter::begin(out));
            assert!(self.put(out, &entry, 0), "an empty block takes any entry");
        }
        if is_first {
            self.smallest = entry.key.clone();
        }
        self.last = entry.key;
    }

    fn put(&mut self, out: &mut Vec<u8>, entry: &SeqEntry, shared: usize) -> bool {
        let start = out.len();
        KeyEntry::put(entry, shared, out);
        let fits = self.block.as_mut().is_some_and(|block| block.accept(out));
        if !fits {
            out.truncate(start);
        }
        fits
    }

    fn end_block(&mut self, out: &mut Vec<u8>) {
        if let Some(block) = self.block.take() {
            block.end(out, xxh3_64, &mut self.blocks);
            self.blocks.extend_from_slice(&self.block_first);
        }
    }

    fn put_index(&self, out: &mut Vec<u8>) {
        for key in [&self.smallest, &self.last] {
            put_varint(out, key.len() as u64);
            out.extend_from_within(key.clone());
        }
        out.extend_from_slice(&self.blocks);
    }
}

/// Length of the common prefix of two keys in bytes.
fn shared_size(a: &[u8], b: &[u8]) -> usize {
    let (words, _) = a.as_chunks::<8>();
    let (others, _) = b.as_chunks::<8>();
    let same = words.iter().zip(others).take_while(|(a, b)| a == b).count() * 8;
    same + a[same..].iter().zip(&b[same..]).take_while(|(a, b)| a == b).count()
}

/// Decodes the entry at `position`.
fn entry_at(out: &[u8], position: usize) -> SeqEntry {
    SeqEntry::decode(out, position).expect("an entry was put here")
}
