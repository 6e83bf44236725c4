//! A segment: its file, its indexes, and reading its records.
//!
//! Invariant: a reader whose future isn't polled delays no other: what several wait for is loaded by a task.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use settee_io::{Alignment, Damage, Env, File, ReadAt, ReadPolicy};
use tokio::sync::OnceCell;

use super::block_index::{SparseBlockIndex, address};
use super::chunks::{CHUNK_BYTES, ChunkCache, FileChunks};
use super::stored_file::StoredFile;
use crate::error::ReadError;
use crate::file_digest::FileDigest;
use crate::format::{Flags, Record};
use crate::read_policy::read_policy;
use crate::segment_index::{SegmentIndex, SegmentIndexError, Trailer};
use crate::types::{Location, Seq};

/// Reads whole chunks for the cache, each of them once.
const BY_CHUNKS: ReadPolicy = match Alignment::new(CHUNK_BYTES) {
    Ok(chunk) => ReadPolicy::chunked(chunk),
    Err(_) => panic!("a chunk is a power of two"),
};

/// A segment's file as the manifest names it: the log's, or one that replaced several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SegmentName {
    /// Number of the first segment whose records it holds.
    pub first: u32,
    /// Number of the last one.
    pub last: u32,
    /// 0 as the log wrote it; otherwise the number given to the file by [`crate::FileNumbers`].
    pub generation: u32,
    /// Epoch of its segment index.
    pub epoch: u32,
    /// Where its frames end; in a rewritten segment, its records and the sparse block index. 0 if the log may
    /// still append to it.
    pub bytes: u64,
    /// Nothing that was garbage as of this `Seq` is in it; 0 as the log wrote it.
    pub clean_to: u64,
    /// Index of the timeline under which it was written, among those of the log.
    pub timeline: u32,
    /// What identifies the bytes of the file; of length 0 if the log may still write to it.
    pub digest: FileDigest,
}

impl SegmentName {
    /// A segment as the log writes it.
    pub fn of_log(number: u32, epoch: u32, bytes: u64) -> SegmentName {
        SegmentName { first: number, last: number, epoch, bytes, ..SegmentName::default() }
    }

    /// The file's name in the log's directory.
    pub fn file_name(&self) -> String {
        match self.generation {
            0 => format!("{:010}.log", self.first),
            generation => format!("{:010}-{:010}-{generation}.seg", self.first, self.last),
        }
    }
}

/// A segment of a log, as the log wrote it or rewritten.
pub struct Segment {
    /// Its file's name, and what the manifest says of it.
    pub name: SegmentName,
    file: Arc<StoredFile>,
    /// Only of a rewritten segment.
    block_index: OnceCell<SparseBlockIndex>,
    /// The file's part of the chunk cache.
    chunks: Option<FileChunks>,
    /// [`SegmentName::clean_to`], raised by what has become known since the manifest was written.
    clean_to: AtomicU64,
    /// [`SegmentName::digest`], once the segment is sealed.
    digest: OnceCell<FileDigest>,
    contents: OnceCell<SegmentContents>,
    tombstone_bytes: OnceCell<u64>,
}

/// Summary of a segment's index.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SegmentContents {
    /// `Seq` of its last record.
    pub last_seq: u64,
    /// All records, tombstones included.
    pub record_count: u64,
    /// Their bytes.
    pub record_bytes: u64,
    /// Tombstones.
    pub tombstone_count: u64,
}

/// A record to be read, with a number chosen by the caller.
#[derive(Debug, Clone, Copy)]
pub struct WantedRecord {
    /// The caller's number for it.
    pub index: usize,
    /// Its update number.
    pub seq: Seq,
    /// Where the log first stored it.
    pub location: Location,
}

/// A record that was not found in the chunk cache.
struct CacheMiss {
    wanted: WantedRecord,
    /// Range of the file that holds the record.
    range: Range<u64>,
    /// Index of the read that covers the range.
    read: usize,
}

impl Segment {
    /// A segment whose file is opened by its first use.
    pub fn new(env: &Env, directory: &Path, name: SegmentName, direct: bool) -> Segment {
        let path = directory.join(name.file_name());
        Segment::of(name, Arc::new(StoredFile::new(env, path, direct)))
    }

    /// A segment in a file that may have other users.
    pub(crate) fn of(name: SegmentName, file: Arc<StoredFile>) -> Segment {
        Segment {
            name,
            file,
            block_index: OnceCell::new(),
            chunks: None,
            clean_to: AtomicU64::new(name.clean_to),
            digest: OnceCell::new(),
            contents: OnceCell::new(),
            tombstone_bytes: OnceCell::new(),
        }
    }

    /// A segment of the log in a file that is open.
    pub(crate) fn of_log(env: &Env, number: u32, epoch: u32, timeline: u32, file: Arc<File>) -> Segment {
        let name = SegmentName { timeline, ..SegmentName::of_log(number, epoch, 0) };
        Segment::of(name, Arc::new(StoredFile::opened(env, file)))
    }

    /// A new segment in a file that was just written.
    pub fn rewritten(
        env: &Env,
        name: SegmentName,
        file: Arc<File>,
        block_index: SparseBlockIndex,
    ) -> Segment {
        let segment = Segment::of(name, Arc::new(StoredFile::opened(env, file)));
        Segment { block_index: OnceCell::new_with(Some(block_index)), ..segment }
    }

    /// This segment of the log, of which `bytes` bytes are frames, once it is sealed and its digest is known.
    pub(crate) fn sealed(&self, bytes: u64, digest: FileDigest) -> Segment {
        Segment::of(SegmentName { bytes, digest, ..self.name }, self.file.clone())
    }

    /// The digest of this segment of the log, if it is known.
    pub(crate) fn known_digest(&self) -> Option<FileDigest> {
        self.digest.get().copied()
    }

    /// Records the digest of this segment of the log, which is sealed.
    pub(crate) fn set_digest(&self, digest: FileDigest) {
        // Sealing and listing find the same one.
        let _ = self.digest.set(digest);
    }

    /// The digest of this segment of the log, which must be sealed. The first call reads the file, unless the
    /// digest is known from its sealing.
    pub(crate) async fn find_digest(&self) -> Result<FileDigest, settee_io::Error> {
        self.digest.get_or_try_init(async || FileDigest::of(&*self.file().await?).await).await.copied()
    }

    /// Keeps the segment's chunks in a cache, if there is one.
    pub fn with_chunks(self, cache: Option<&Arc<ChunkCache>>) -> Segment {
        let chunks = cache.map(|cache| FileChunks::new(cache, self.name.bytes));
        Segment { chunks, ..self }
    }

    /// Remembers a summary that is known.
    pub fn with_contents(self, contents: SegmentContents, tombstone_bytes: u64) -> Segment {
        let (contents, tombstone_bytes) = (Some(contents), Some(tombstone_bytes));
        Segment {
            contents: OnceCell::new_with(contents),
            tombstone_bytes: OnceCell::new_with(tombstone_bytes),
            ..self
        }
    }

    /// Uses another segment's part of the chunk cache: a bug that tests plant.
    #[cfg(feature = "failpoints")]
    pub fn share_chunks(&mut self, other: &Segment) {
        if let (Some(chunks), Some(other)) = (&mut self.chunks, &other.chunks) {
            chunks.chunks = other.chunks.clone();
        }
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// The file by its name.
    pub fn stored_file(&self) -> &Arc<StoredFile> {
        &self.file
    }

    /// The handle, if the caller is the only user of the segment and its file; otherwise the file is removed
    /// with its last user.
    pub(crate) fn take_file(self: Arc<Self>) -> Option<Arc<File>> {
        self.file.remove();
        let file = Arc::into_inner(self)?.file;
        file.take()
    }

    /// Its name as the next manifest gives it.
    pub(super) fn present_name(&self) -> SegmentName {
        SegmentName { clean_to: self.clean_to(), ..self.name }
    }

    /// Nothing that was garbage as of this `Seq` is in it.
    pub fn clean_to(&self) -> u64 {
        self.clean_to.load(Ordering::Relaxed)
    }

    /// Records that nothing that was garbage as of `seq` is in it; the next manifest contains that.
    pub fn raise_clean_to(&self, seq: u64) {
        self.clean_to.fetch_max(seq, Ordering::Relaxed);
    }

    /// The summary of its segment index, if it was read.
    pub fn known_contents(&self) -> Option<SegmentContents> {
        self.contents.get().copied()
    }

    /// The summary of its segment index: a small read, the first time. The file isn't kept open for it.
    ///
    /// # Errors
    /// See [`SegmentIndexError`].
    pub async fn contents(&self) -> Result<SegmentContents, SegmentIndexError> {
        let read = async || {
            let file = match self.file.get() {
                Some(file) => file,
                None => Arc::new(self.file.open_once().await?),
            };
            let SegmentName { first, last, epoch, .. } = self.name;
            let trailer = Trailer::read_covering(&file, first, last, epoch).await?;
            let Trailer { last_seq, record_count, record_bytes, tombstone_count, .. } = trailer;
            Ok(SegmentContents { last_seq: last_seq.0, record_count, record_bytes, tombstone_count })
        };
        self.contents.get_or_try_init(read).await.copied()
    }

    /// Bytes of its tombstones, if known.
    pub fn known_tombstone_bytes(&self) -> Option<u64> {
        self.tombstone_bytes.get().copied()
    }

    /// Bytes of its tombstones. The first call reads the segment index.
    ///
    /// # Errors
    /// See [`SegmentIndexError`].
    pub async fn find_tombstone_bytes(self: &Arc<Self>) -> Result<u64, SegmentIndexError> {
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

    /// The file, opened if it isn't open. It stays open as long as the caller keeps it.
    ///
    /// # Errors
    /// An I/O error; the next call tries again.
    pub async fn file(&self) -> Result<Arc<File>, settee_io::Error> {
        self.file.file().await
    }

    /// Opens the segment index.
    ///
    /// # Errors
    /// See [`SegmentIndexError`].
    pub async fn segment_index(&self) -> Result<SegmentIndex, SegmentIndexError> {
        let SegmentName { first, last, epoch, .. } = self.name;
        SegmentIndex::open_covering(self.file().await?, first, last, epoch).await
    }

    /// The sparse block index of a rewritten segment, read by the first call.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn block_index(self: &Arc<Self>) -> Result<&SparseBlockIndex, ReadError> {
        if self.block_index.get().is_none() {
            let segment = self.clone();
            self.file
                .in_task(async move {
                    let file = segment.file().await?;
                    let read = async || SparseBlockIndex::read(&file, segment.name.bytes).await;
                    segment.block_index.get_or_try_init(read).await.map(drop)
                })
                .await?;
        }
        Ok(self.block_index.get().expect("the task read it"))
    }

    /// Reads a record: from the chunk cache, or with one positional read.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub async fn read(self: &Arc<Self>, seq: Seq, location: Location) -> Result<Record, ReadError> {
        let range = self.range_of(location).await?;
        if let Some(record) = self.cached(seq, &range) {
            return Ok(record);
        }
        let file = self.file().await?;
        if let Some(chunks) = &self.chunks
            && let Some(around) = chunks.around(&range)
            && let Ok(bytes) = file.read_exact_at(around.start, size(&around)).await
            && let Ok(record) = self.record_in(seq, &range, bytes.slice(within(&range, &around)))
        {
            chunks.insert(around.start, &bytes, 0);
            return Ok(record);
        }
        self.read_alone(&file, seq, &range).await
    }

    /// Reads many records; several records of one block cost one read. Those not in the chunk cache are read
    /// together, with few reads. With `keep`, their chunks are inserted into the cache. The results are in no
    /// order, each with the number given with its location.
    pub async fn read_many(
        self: &Arc<Self>,
        wanted: &[WantedRecord],
        keep: bool,
    ) -> Vec<(usize, Result<Record, ReadError>)> {
        let mut results = Vec::with_capacity(wanted.len());
        let mut misses = Vec::new();
        for wanted in wanted.iter().copied() {
            match self.range_of(wanted.location).await {
                Ok(range) => match self.cached(wanted.seq, &range) {
                    Some(record) => results.push((wanted.index, Ok(record))),
                    None => misses.push(CacheMiss { wanted, range, read: 0 }),
                },
                Err(error) => results.push((wanted.index, Err(error))),
            }
        }
        if misses.is_empty() {
            return results;
        }
        match self.file().await {
            Ok(file) => results.extend(self.read_misses(&file, misses, keep).await),
            Err(error) => {
                results.extend(misses.iter().map(|miss| (miss.wanted.index, Err(error.clone().into()))));
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
        let policy = if chunks.is_some() { BY_CHUNKS } else { read_policy(&reads) };
        let values = file.read_many(&reads, policy).await;
        let mut results = Vec::with_capacity(misses.len());
        let mut kept_to = 0;
        for CacheMiss { wanted: WantedRecord { index, seq, .. }, range, read } in misses {
            let around = kept(&range);
            let record = match &values[read] {
                Ok(bytes) => {
                    let bytes = bytes.slice(within(&range, around.as_ref().unwrap_or(&range)));
                    self.record_in(seq, &range, bytes)
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
                (Err(_), Some(_), _) => self.read_alone(file, seq, &range).await,
                (record, ..) => record,
            };
            results.push((index, record));
        }
        results
    }

    /// Range of the file that holds a record: its own bytes, or its block.
    async fn range_of(self: &Arc<Self>, location: Location) -> Result<Range<u64>, ReadError> {
        let Location { segment, offset, length } = location;
        if self.name.generation == 0 {
            return Ok(u64::from(offset)..u64::from(offset) + u64::from(length));
        }
        let (start, end) = self.block_index().await?.find(address(segment, offset));
        Ok(start.into()..end.into())
    }

    /// The record, if all chunks of its range are in the cache.
    fn cached(&self, seq: Seq, range: &Range<u64>) -> Option<Record> {
        let chunks = self.chunks.as_ref()?;
        let record = self.record_in(seq, range, chunks.copy(range)?.into());
        if record.is_err() {
            // The bytes may have been garbled in memory: read the medium again.
            chunks.remove(range);
        }
        record.ok()
    }

    async fn read_alone(&self, file: &File, seq: Seq, range: &Range<u64>) -> Result<Record, ReadError> {
        self.record_in(seq, range, file.read_exact_at(range.start, size(range)).await?)
    }

    /// Decodes the record from the bytes of its range.
    fn record_in(&self, seq: Seq, range: &Range<u64>, bytes: Bytes) -> Result<Record, ReadError> {
        let start = range.start as u32;
        if self.name.generation == 0 {
            let record = Record::decode(bytes).map_err(|what| self.damaged(start, what))?;
            return match record.seq() == seq {
                true => Ok(record),
                false => Err(self.damaged(start, "it holds another record there")),
            };
        }
        let mut at = 0;
        while let Some((found, size)) = Record::peek(&bytes[at..]) {
            if found == seq {
                let record = Record::decode(bytes.slice(at..at + size));
                return record.map_err(|what| self.damaged(start, what));
            }
            at += size;
        }
        Err(self.damaged(start, "a record that the index points to is missing"))
    }

    fn damaged(&self, offset: u32, what: &'static str) -> ReadError {
        ReadError::Damaged(Damage { path: self.path().to_path_buf(), offset: offset.into(), what })
    }
}

fn size(range: &Range<u64>) -> usize {
    (range.end - range.start) as usize
}

/// Position of a range inside one that contains it.
fn within(range: &Range<u64>, around: &Range<u64>) -> Range<usize> {
    (range.start - around.start) as usize..(range.end - around.start) as usize
}

impl std::fmt::Debug for Segment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Segment").field(&self.name).finish()
    }
}
