//! A segment of the store: its file, its indexes, and reading its records.
//!
//! Invariants:
//! 1. A file is open before its name is removed: readers that have the segment can go on.
//! 2. A reader whose future isn't polled delays no other: what several wait for is loaded by a task.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use settee_io::{Alignment, Damage, Env, File, OpenMode, ReadAt, ReadPolicy};
use settee_log::{Flags, Record, SegmentIndex, SegmentIndexError, Seq, Trailer};
use tokio::sync::{OnceCell, oneshot};

use super::block_index::{SparseBlockIndex, address};
use super::chunks::{CHUNK_BYTES, ChunkCache, FileChunks};
use crate::error::ReadError;
use crate::index::Location;
use crate::manifest::SegmentName;

/// Reads whole chunks for the cache, each of them once.
const BY_CHUNKS: ReadPolicy = match Alignment::new(CHUNK_BYTES) {
    Ok(chunk) => ReadPolicy::chunked(chunk),
    Err(_) => panic!("a chunk is a power of two"),
};

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
    pub(crate) chunks: Option<FileChunks>,
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
    pub(crate) async fn find_tombstone_bytes(self: &Arc<Self>) -> Result<u64, SegmentIndexError> {
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
    pub(crate) async fn file(self: &Arc<Self>) -> Result<&Arc<File>, settee_io::Error> {
        if self.file.get().is_none() {
            let segment = self.clone();
            self.in_task(async move { segment.open().await.map(drop) }).await?;
        }
        Ok(self.file.get().expect("the task opened it"))
    }

    async fn open(&self) -> Result<&Arc<File>, settee_io::Error> {
        let open = async || {
            let file = File::open(&self.env.engine, &self.path, OpenMode::Read).await?;
            if self.direct {
                file.set_direct(true).await?;
            }
            Ok(Arc::new(file))
        };
        self.file.get_or_try_init(open).await
    }

    /// Runs what others may wait for too in a task of its own: the caller's future may be left unpolled for as
    /// long as a client takes to read a response.
    async fn in_task<E: From<settee_io::Error> + Send + 'static>(
        &self,
        work: impl Future<Output = Result<(), E>> + Send + 'static,
    ) -> Result<(), E> {
        let (sender, done) = oneshot::channel();
        self.env.spawn("store segment", async move { drop(sender.send(work.await)) });
        let panicked = || settee_io::Error::Panicked { path: self.path.as_path().into() };
        done.await.unwrap_or_else(|_| Err(panicked().into()))
    }

    /// Opens the segment index.
    ///
    /// # Errors
    /// See [`SegmentIndexError`].
    pub(crate) async fn segment_index(self: &Arc<Self>) -> Result<SegmentIndex, SegmentIndexError> {
        let SegmentName { first, last, epoch, .. } = self.name;
        SegmentIndex::open_covering(self.file().await?.clone(), first, last, epoch).await
    }

    /// The sparse block index of a rewritten segment, read by the first call.
    pub(crate) async fn block_index(self: &Arc<Self>) -> Result<&SparseBlockIndex, ReadError> {
        if self.block_index.get().is_none() {
            let segment = self.clone();
            self.in_task(async move {
                let file = segment.open().await?;
                let read = async || SparseBlockIndex::read(file, segment.name.bytes).await;
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
    pub(crate) async fn read(self: &Arc<Self>, location: Location) -> Result<Record, ReadError> {
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
        self: &Arc<Self>,
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
    async fn range_of(self: &Arc<Self>, location: Location) -> Result<Range<u64>, ReadError> {
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
        ReadError::Damaged(Damage { path: self.path.clone(), offset: offset.into(), what })
    }
}

fn size(range: &Range<u64>) -> usize {
    (range.end - range.start) as usize
}

/// Position of a range inside one that contains it.
fn within(range: &Range<u64>, around: &Range<u64>) -> Range<usize> {
    (range.start - around.start) as usize..(range.end - around.start) as usize
}
