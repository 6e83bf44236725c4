//! The store's segments: those transferred from the log, and those that replaced them.
//!
//! A segment as the log wrote it holds records at the offsets that pointers give. A rewritten segment holds
//! the live records of a run of segments, unchanged, back to back, in their order. Pointers keep naming the
//! record's first location. A sparse block index gives the offset of each block of about [`BLOCK_BYTES`]
//! bytes, and the record is found in its block by its `Seq`. Moving a record therefore changes no pointer,
//! and the index takes a thousandth of the segment.
//!
//! Invariants:
//! 1. A file is open before its name is removed: readers that have the segment can go on.
//! 2. Blocks begin at records; their addresses and offsets ascend. A record as long as a block has one of its
//!    own: no small record is read together with a large one.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use settee_io::{Alignment, Env, File, OpenMode, ReadAt, ReadPolicy};
use settee_log::{Flags, Record, SegmentIndex, SegmentIndexError, Seq, Trailer};
use tokio::sync::OnceCell;

use crate::chunks::{CHUNK_BYTES, ChunkCache, FileChunks};
use crate::entry::Location;
use crate::error::ReadError;
use crate::manifest::SegmentName;

/// Size in bytes at which a block of a rewritten segment ends. A record of this size has a block of its own.
pub(crate) const BLOCK_BYTES: u32 = 2 << 10;

/// Reads whole chunks for the cache, each of them once.
const BY_CHUNKS: ReadPolicy = match Alignment::new(CHUNK_BYTES) {
    Ok(chunk) => ReadPolicy::chunked(chunk),
    Err(_) => panic!("a chunk is a power of two"),
};

/// First location of a record as a number: its segment's number and its offset.
pub(crate) fn address(segment: u32, offset: u32) -> u64 {
    u64::from(segment) << 32 | u64::from(offset)
}

/// A segment of the store.
pub(crate) struct Segment {
    pub name: SegmentName,
    path: PathBuf,
    env: Env,
    direct: bool,
    file: OnceCell<Arc<File>>,
    /// Only of a rewritten segment.
    block_index: OnceCell<SparseBlockIndex>,
    /// The file's part of the chunk cache.
    chunks: Option<FileChunks>,
    /// [`SegmentName::clean_to`], raised by what has become known since the manifest was written.
    clean_to: AtomicU64,
    contents: OnceCell<Contents>,
    tombstone_bytes: OnceCell<u64>,
}

/// Summary of a segment's index.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Contents {
    pub last_seq: u64,
    /// All records, tombstones included.
    pub record_count: u64,
    pub record_bytes: u64,
    /// Tombstones.
    pub tombstone_count: u64,
}

/// A record that was not found in the chunk cache.
struct CacheMiss {
    index: usize,
    location: Location,
    /// Range of the file that holds the record.
    range: Range<u64>,
    /// Index of the read that covers the range.
    read: usize,
}

impl Segment {
    pub(crate) fn new(env: &Env, directory: &Path, name: SegmentName, direct: bool) -> Segment {
        let path = directory.join(name.file_name());
        Segment {
            name,
            path,
            env: env.clone(),
            direct,
            file: OnceCell::new(),
            block_index: OnceCell::new(),
            chunks: None,
            clean_to: AtomicU64::new(name.clean_to),
            contents: OnceCell::new(),
            tombstone_bytes: OnceCell::new(),
        }
    }

    /// Uses another segment's chunks (a failpoint).
    #[cfg(feature = "failpoints")]
    pub(crate) fn with_stale_chunks(self, other: &Segment) -> Segment {
        let chunks = other.chunks.as_ref().map(|chunks| chunks.stale(self.name.bytes));
        Segment { chunks, ..self }
    }

    /// Keeps the segment's chunks in a cache, if there is one.
    pub(crate) fn with_chunks(self, cache: Option<&Arc<ChunkCache>>) -> Segment {
        let chunks = cache.map(|cache| FileChunks::new(cache, self.name.bytes));
        Segment { chunks, ..self }
    }

    /// Uses a file that is already open.
    pub(crate) fn with_file(self, file: Arc<File>) -> Segment {
        Segment { file: OnceCell::new_with(Some(file)), ..self }
    }

    pub(crate) fn with_block_index(self, block_index: SparseBlockIndex) -> Segment {
        Segment { block_index: OnceCell::new_with(Some(block_index)), ..self }
    }

    pub(crate) fn with_contents(self, contents: Contents, tombstone_bytes: u64) -> Segment {
        let (contents, tombstone_bytes) = (Some(contents), Some(tombstone_bytes));
        Segment {
            contents: OnceCell::new_with(contents),
            tombstone_bytes: OnceCell::new_with(tombstone_bytes),
            ..self
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Nothing that was garbage as of this `Seq` is in it.
    pub(crate) fn clean_to(&self) -> u64 {
        self.clean_to.load(Ordering::Relaxed)
    }

    /// Records that nothing that was garbage as of `seq` is in it; the next manifest contains that.
    pub(crate) fn raise_clean_to(&self, seq: u64) {
        self.clean_to.fetch_max(seq, Ordering::Relaxed);
    }

    /// The summary of its segment index, if it was read.
    pub(crate) fn known_contents(&self) -> Option<Contents> {
        self.contents.get().copied()
    }

    /// The summary of its segment index: a small read, the first time. The file isn't kept open for it.
    ///
    /// # Errors
    /// See [`SegmentIndexError`].
    pub(crate) async fn contents(&self) -> Result<Contents, SegmentIndexError> {
        let read = async || {
            let opened;
            let file = match self.file.get() {
                Some(file) => file,
                None => {
                    opened = File::open(&self.env.engine, &self.path, OpenMode::Read).await?;
                    &opened
                }
            };
            let SegmentName { first, last, epoch, .. } = self.name;
            let trailer = Trailer::read_covering(file, first, last, epoch).await?;
            let Trailer { last_seq, record_count, record_bytes, tombstone_count, .. } = trailer;
            Ok(Contents { last_seq: last_seq.0, record_count, record_bytes, tombstone_count })
        };
        self.contents.get_or_try_init(read).await.copied()
    }

    /// Bytes of its tombstones, if known.
    pub(crate) fn known_tombstone_bytes(&self) -> Option<u64> {
        self.tombstone_bytes.get().copied()
    }

    /// Bytes of its tombstones. The first call reads the segment index.
    ///
    /// # Errors
    /// See [`SegmentIndexError`].
    pub(crate) async fn find_tombstone_bytes(&self) -> Result<u64, SegmentIndexError> {
        let read = async || {
            let segment_index = self.segment_index().await?;
            let mut scan = segment_index.scan_seq(Seq(0));
            let mut bytes = 0;
            while let Some((entry, _)) = scan.next().await? {
                if entry.flags.has(Flags::TOMBSTONE) {
                    bytes += u64::from(entry.location.length);
                }
            }
            Ok(bytes)
        };
        self.tombstone_bytes.get_or_try_init(read).await.copied()
    }

    /// The file, opened by the first call.
    pub(crate) async fn file(&self) -> Result<&Arc<File>, settee_io::Error> {
        let open = async || {
            let file = File::open(&self.env.engine, &self.path, OpenMode::Read).await?;
            if self.direct {
                file.set_direct(true).await?;
            }
            Ok(Arc::new(file))
        };
        self.file.get_or_try_init(open).await
    }

    /// Opens the segment index.
    ///
    /// # Errors
    /// See [`SegmentIndexError`].
    pub(crate) async fn segment_index(&self) -> Result<SegmentIndex, SegmentIndexError> {
        let SegmentName { first, last, epoch, .. } = self.name;
        SegmentIndex::open_covering(self.file().await?.clone(), first, last, epoch).await
    }

    pub(crate) async fn block_index(&self) -> Result<&SparseBlockIndex, ReadError> {
        let load = async || SparseBlockIndex::read(self.file().await?, self.name.bytes).await;
        self.block_index.get_or_try_init(load).await
    }

    /// Reads a record: from the chunk cache, or with one positional read.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub(crate) async fn read(&self, location: Location) -> Result<Record, ReadError> {
        let range = self.range_of(location).await?;
        if let Some(record) = self.cached(location, &range) {
            return Ok(record);
        }
        let file = self.file().await?;
        if let Some(chunks) = &self.chunks
            && let Some(around) = chunks.around(&range)
            && let Ok(bytes) = file.read_exact_at(around.start, size(&around)).await
            && let Ok(record) = self.record_in(location, &range, bytes.slice(within(&range, &around)))
        {
            chunks.insert(around.start, &bytes, 0);
            return Ok(record);
        }
        self.read_alone(file, location, &range).await
    }

    /// Reads many records; several records of one block cost one read. Those not in the chunk cache are read
    /// together, with few reads. With `keep`, their chunks are inserted into the cache. The results are in no
    /// order, each with the number given with its location.
    pub(crate) async fn read_many(
        &self,
        wanted: &[(usize, Location)],
        keep: bool,
    ) -> Vec<(usize, Result<Record, ReadError>)> {
        let mut results = Vec::with_capacity(wanted.len());
        let mut misses = Vec::new();
        for (index, location) in wanted.iter().copied() {
            match self.range_of(location).await {
                Ok(range) => match self.cached(location, &range) {
                    Some(record) => results.push((index, Ok(record))),
                    None => misses.push(CacheMiss { index, location, range, read: 0 }),
                },
                Err(error) => results.push((index, Err(error))),
            }
        }
        if misses.is_empty() {
            return results;
        }
        match self.file().await {
            Ok(file) => results.extend(self.read_misses(file, misses, keep).await),
            Err(error) => {
                results.extend(misses.iter().map(|miss| (miss.index, Err(error.clone().into()))));
            }
        }
        results
    }

    async fn read_misses(
        &self,
        file: &File,
        mut misses: Vec<CacheMiss>,
        keep: bool,
    ) -> Vec<(usize, Result<Record, ReadError>)> {
        let chunks = self.chunks.as_ref().filter(|_| keep);
        let kept = |range: &Range<u64>| chunks.and_then(|chunks| chunks.around(range));
        misses.sort_unstable_by_key(|miss| (miss.range.start, miss.range.end));
        let mut reads: Vec<ReadAt> = Vec::with_capacity(misses.len());
        let mut last = None;
        for miss in &mut misses {
            if last.as_ref() != Some(&miss.range) {
                let around = kept(&miss.range).unwrap_or_else(|| miss.range.clone());
                reads.push(ReadAt::new(around.start, size(&around)));
                last = Some(miss.range.clone());
            }
            miss.read = reads.len() - 1;
        }
        let policy = if chunks.is_some() { BY_CHUNKS } else { settee_log::read_policy(&reads) };
        let values = file.read_many(&reads, policy).await;
        let mut results = Vec::with_capacity(misses.len());
        let mut kept_to = 0;
        for CacheMiss { index, location, range, read } in misses {
            let around = kept(&range);
            let record = match &values[read] {
                Ok(bytes) => {
                    let bytes = bytes.slice(within(&range, around.as_ref().unwrap_or(&range)));
                    self.record_in(location, &range, bytes)
                }
                Err(error) => Err(error.clone().into()),
            };
            let record = match (record, chunks.zip(around), &values[read]) {
                (Ok(record), Some((chunks, around)), Ok(bytes)) => {
                    if around.end > kept_to {
                        chunks.insert(around.start, bytes, kept_to);
                        kept_to = around.end;
                    }
                    Ok(record)
                }
                // Damage elsewhere in the chunks does not concern the record.
                (Err(_), Some(_), _) => self.read_alone(file, location, &range).await,
                (record, ..) => record,
            };
            results.push((index, record));
        }
        results
    }

    /// Range of the file that holds a record: its own bytes, or its block.
    async fn range_of(&self, location: Location) -> Result<Range<u64>, ReadError> {
        let Location { segment, offset, length, .. } = location;
        if self.name.generation == 0 {
            return Ok(u64::from(offset)..u64::from(offset) + u64::from(length));
        }
        let (start, end) = self.block_index().await?.find(address(segment, offset));
        Ok(start.into()..end.into())
    }

    /// The record, if all chunks of its range are in the cache.
    fn cached(&self, location: Location, range: &Range<u64>) -> Option<Record> {
        let chunks = self.chunks.as_ref()?;
        let record = self.record_in(location, range, chunks.copy(range)?.into());
        if record.is_err() {
            // The bytes may have been garbled in memory: read the medium again.
            chunks.remove(range);
        }
        record.ok()
    }

    async fn read_alone(
        &self,
        file: &File,
        location: Location,
        range: &Range<u64>,
    ) -> Result<Record, ReadError> {
        self.record_in(location, range, file.read_exact_at(range.start, size(range)).await?)
    }

    /// Decodes the record from the bytes of its range.
    fn record_in(&self, location: Location, range: &Range<u64>, bytes: Bytes) -> Result<Record, ReadError> {
        let start = range.start as u32;
        if self.name.generation == 0 {
            let record = Record::decode(bytes).map_err(|what| self.damaged(start, what))?;
            return match record.seq() == location.seq() {
                true => Ok(record),
                false => Err(self.damaged(start, "it holds another record there")),
            };
        }
        let mut at = 0;
        while let Some((found, size)) = Record::peek(&bytes[at..]) {
            if found == location.seq() {
                let record = Record::decode(bytes.slice(at..at + size));
                return record.map_err(|what| self.damaged(start, what));
            }
            at += size;
        }
        Err(self.damaged(start, "a record that the index points to is missing"))
    }

    fn damaged(&self, offset: u32, what: &'static str) -> ReadError {
        ReadError::Damaged { path: self.path.clone(), offset: offset.into(), what }
    }
}

fn size(range: &Range<u64>) -> usize {
    (range.end - range.start) as usize
}

/// Position of a range inside one that contains it.
fn within(range: &Range<u64>, around: &Range<u64>) -> Range<usize> {
    (range.start - around.start) as usize..(range.end - around.start) as usize
}

/// The sparse block index of a rewritten segment: the address and the offset of each block, both ascending,
/// and the end of the last block.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SparseBlockIndex {
    starts: Vec<(u64, u32)>,
    end: u32,
}

const BLOCK_ENTRY_SIZE: usize = 12;
/// Count, end of the records, checksum.
const BLOCK_INDEX_TRAILER_SIZE: usize = 16;

impl SparseBlockIndex {
    /// Adds a record that follows those before it.
    pub(crate) fn push(&mut self, address: u64, length: u32) {
        let is_full = self.starts.last().is_none_or(|(_, file_offset)| self.end - file_offset >= BLOCK_BYTES);
        if is_full || length >= BLOCK_BYTES {
            self.starts.push((address, self.end));
        }
        self.end = self.end.checked_add(length).expect("a segment is smaller than 4 GiB");
    }

    /// Start and end of the block that holds an address.
    fn find(&self, address: u64) -> (u32, u32) {
        let next = self.starts.partition_point(|(first, _)| *first <= address);
        let start = self.starts.get(next.saturating_sub(1)).map_or(0, |(_, file_offset)| *file_offset);
        (start, self.starts.get(next).map_or(self.end, |(_, file_offset)| *file_offset))
    }

    /// The bytes that follow the records in the file.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.starts.len() * BLOCK_ENTRY_SIZE + BLOCK_INDEX_TRAILER_SIZE);
        for (address, file_offset) in &self.starts {
            bytes.extend_from_slice(&address.to_le_bytes());
            bytes.extend_from_slice(&file_offset.to_le_bytes());
        }
        bytes.extend_from_slice(&(self.starts.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&self.end.to_le_bytes());
        bytes.extend_from_slice(&twox_hash::XxHash3_64::oneshot(&bytes).to_le_bytes());
        bytes
    }

    /// Reads the index of a file whose records and index together have `bytes` bytes.
    async fn read(file: &File, bytes: u64) -> Result<SparseBlockIndex, ReadError> {
        let damaged = |what| ReadError::Damaged { path: file.path().to_path_buf(), offset: bytes, what };
        if bytes < BLOCK_INDEX_TRAILER_SIZE as u64 || bytes > file.length().await? {
            return Err(damaged("it is shorter than it was"));
        }
        let trailer =
            file.read_exact_at(bytes - BLOCK_INDEX_TRAILER_SIZE as u64, BLOCK_INDEX_TRAILER_SIZE).await?;
        let count = u32::from_le_bytes(trailer[..4].try_into().expect("4 bytes")) as u64;
        let size = count * BLOCK_ENTRY_SIZE as u64 + BLOCK_INDEX_TRAILER_SIZE as u64;
        let start = bytes.checked_sub(size).ok_or_else(|| damaged("its block index is invalid"))?;
        let table = file.read_exact_at(start, size as usize).await?;
        SparseBlockIndex::decode(&table).ok_or_else(|| damaged("its block index is damaged"))
    }

    fn decode(bytes: &[u8]) -> Option<SparseBlockIndex> {
        let (body, checksum) = bytes.split_at_checked(bytes.len().checked_sub(8)?)?;
        if twox_hash::XxHash3_64::oneshot(body).to_le_bytes() != checksum {
            return None;
        }
        let (entries, trailer) = body.split_at_checked(body.len().checked_sub(8)?)?;
        let end = u32::from_le_bytes(trailer[4..].try_into().ok()?);
        let (entries, rest) = entries.as_chunks::<BLOCK_ENTRY_SIZE>();
        let begin = |entry: &[u8; BLOCK_ENTRY_SIZE]| {
            let (address, file_offset) = entry.split_at(8);
            let file_offset = u32::from_le_bytes(file_offset.try_into().expect("4 bytes"));
            (u64::from_le_bytes(address.try_into().expect("8 bytes")), file_offset)
        };
        let starts: Vec<_> = entries.iter().map(begin).collect();
        let ascends = starts.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1);
        let within = starts.last().is_none_or(|(_, file_offset)| *file_offset < end);
        (rest.is_empty() && ascends && within).then_some(SparseBlockIndex { starts, end })
    }
}

/// The store's segments, by the numbers that they cover.
#[derive(Clone, Default)]
pub(crate) struct Segments {
    by_last: BTreeMap<u32, Arc<Segment>>,
}

impl Segments {
    /// The segment that holds the records of the log's segment with this number.
    pub(crate) fn get(&self, number: u32) -> Option<&Arc<Segment>> {
        let (_, segment) = self.by_last.range(number..).next()?;
        (segment.name.first <= number).then_some(segment)
    }

    pub(crate) fn insert(&mut self, segment: Arc<Segment>) {
        self.by_last.insert(segment.name.last, segment);
    }

    pub(crate) fn remove(&mut self, last: u32) {
        self.by_last.remove(&last);
    }

    /// In ascending order.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &Arc<Segment>> {
        self.by_last.values()
    }

    pub(crate) fn names(&self) -> Vec<SegmentName> {
        self.iter().map(|segment| SegmentName { clean_to: segment.clean_to(), ..segment.name }).collect()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.iter().map(|segment| segment.name.bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of bytes read for a record.
    fn read_size(block_index: &SparseBlockIndex, address: u64) -> u32 {
        let (start, end) = block_index.find(address);
        end - start
    }

    #[test]
    fn a_small_record_beside_a_large_one_is_read_alone() {
        let mut block_index = SparseBlockIndex::default();
        let records = [(512, 100), (612, 10 << 20), (20 << 20, 100), ((20 << 20) + 100, BLOCK_BYTES)];
        records.iter().for_each(|(offset, length)| block_index.push(address(1, *offset), *length));
        for (offset, length) in records {
            assert_eq!(read_size(&block_index, address(1, offset)), length, "the record at {offset}");
        }
        assert_eq!(SparseBlockIndex::decode(&block_index.encode()), Some(block_index));
    }

    #[test]
    fn small_records_share_blocks() {
        let mut block_index = SparseBlockIndex::default();
        (0..1000).for_each(|number| block_index.push(address(1, 512 + 100 * number), 100));
        let most = (0..1000).map(|number| read_size(&block_index, address(1, 512 + 100 * number))).max();
        assert!(most.is_some_and(|most| most < BLOCK_BYTES + 100), "{most:?} bytes");
        assert!(
            block_index.starts.len() <= 100_000 / BLOCK_BYTES as usize + 1,
            "{} blocks",
            block_index.starts.len()
        );
    }
}
