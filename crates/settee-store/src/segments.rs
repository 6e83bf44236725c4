//! The segments that the log handed over, and those that took their place.
//!
//! A segment as the log wrote it holds records where its pointers say. One that was rewritten holds
//! what lived of a run of segments: the records as they were, back to back in their order. A
//! pointer goes on naming the record's first place; an index of pieces, of about [`PIECE_BYTES`] each, says
//! where in the file a piece begins, and the record is found in its piece by its `Seq`. So nothing
//! that points to a record changes when it is moved, and the index takes a thousandth of the
//! segment.
//!
//! Invariants:
//! 1. A file is open before its name is removed: whoever has the segment can go on reading.
//! 2. Pieces begin at records; their addresses ascend, as their places do. A record as long as
//!    a piece has one of its own: no small one is read with a large one.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use settee_io::{Alignment, Env, File, OpenMode, ReadAt, ReadPolicy};
use settee_log::{Directory, DirectoryError, Flags, Record, Seq, Trailer};
use tokio::sync::OnceCell;

use crate::chunks::{CHUNK_BYTES, ChunkCache, FileChunks};
use crate::entry::Location;
use crate::error::ReadError;
use crate::manifest::SegmentName;

/// A piece of a rewritten segment ends with the record that makes it at least so long, in bytes, and
/// before one that is so long by itself.
pub(crate) const PIECE_BYTES: u32 = 2 << 10;

/// What fills a cache of chunks reads each of them once.
const BY_CHUNKS: ReadPolicy = match Alignment::new(CHUNK_BYTES) {
    Ok(chunk) => ReadPolicy::chunked(chunk),
    Err(_) => panic!("a chunk is a power of two"),
};

/// The first place of a record: its segment's number and its offset there.
pub(crate) fn address(segment: u32, offset: u32) -> u64 {
    u64::from(segment) << 32 | u64::from(offset)
}

/// A segment that is the store's.
pub(crate) struct Segment {
    pub name: SegmentName,
    path: PathBuf,
    env: Env,
    direct: bool,
    file: OnceCell<Arc<File>>,
    /// Of a rewritten one.
    pieces: OnceCell<Pieces>,
    /// What of its file is in memory.
    chunks: Option<FileChunks>,
    /// [`SegmentName::clean_to`], and what has become known since it was written to the manifest.
    clean_to: AtomicU64,
    contents: OnceCell<Contents>,
    tombstone_bytes: OnceCell<u64>,
}

/// What a segment's directory says of it, in short.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Contents {
    pub last_seq: u64,
    /// All records, with the tombstones,
    pub record_count: u64,
    pub record_bytes: u64,
    /// and these alone.
    pub tombstone_count: u64,
}

/// A record that was not found in memory.
struct Missing {
    index: usize,
    location: Location,
    /// The bytes of the file among which it is,
    range: Range<u64>,
    /// and which read has them.
    read: usize,
}

impl Segment {
    pub(crate) fn new(env: &Env, folder: &Path, name: SegmentName, direct: bool) -> Segment {
        let path = folder.join(name.file_name());
        Segment {
            name,
            path,
            env: env.clone(),
            direct,
            file: OnceCell::new(),
            pieces: OnceCell::new(),
            chunks: None,
            clean_to: AtomicU64::new(name.clean_to),
            contents: OnceCell::new(),
            tombstone_bytes: OnceCell::new(),
        }
    }

    /// One that is taken for another by the cache of chunks.
    #[cfg(feature = "planted-faults")]
    pub(crate) fn with_stale_chunks(self, other: &Segment) -> Segment {
        let chunks = other.chunks.as_ref().map(|chunks| chunks.stale(self.name.bytes));
        Segment { chunks, ..self }
    }

    /// One whose chunks are kept in a cache, where there is one.
    pub(crate) fn with_chunks(self, cache: Option<&Arc<ChunkCache>>) -> Segment {
        let chunks = cache.map(|cache| FileChunks::new(cache, self.name.bytes));
        Segment { chunks, ..self }
    }

    /// One whose file is open already.
    pub(crate) fn with_file(self, file: Arc<File>) -> Segment {
        Segment { file: OnceCell::new_with(Some(file)), ..self }
    }

    pub(crate) fn with_pieces(self, pieces: Pieces) -> Segment {
        Segment { pieces: OnceCell::new_with(Some(pieces)), ..self }
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

    /// Whatever was dead as of this `Seq` isn't in it.
    pub(crate) fn clean_to(&self) -> u64 {
        self.clean_to.load(Ordering::Relaxed)
    }

    /// Nothing that was dead as of this `Seq` is in it; the next manifest says so.
    pub(crate) fn raise_clean_to(&self, seq: u64) {
        self.clean_to.fetch_max(seq, Ordering::Relaxed);
    }

    /// What its directory says of it, where that was read.
    pub(crate) fn known_contents(&self) -> Option<Contents> {
        self.contents.get().copied()
    }

    /// What its directory says of it: a small read, the first time. The file isn't kept open for it.
    ///
    /// # Errors
    /// See [`DirectoryError`].
    pub(crate) async fn contents(&self) -> Result<Contents, DirectoryError> {
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

    /// What its tombstones take, where that is known.
    pub(crate) fn known_tombstone_bytes(&self) -> Option<u64> {
        self.tombstone_bytes.get().copied()
    }

    /// Finds out what its tombstones take, in bytes: the first time its directory is read.
    ///
    /// # Errors
    /// See [`DirectoryError`].
    pub(crate) async fn find_tombstone_bytes(&self) -> Result<u64, DirectoryError> {
        let read = async || {
            let directory = self.directory().await?;
            let mut scan = directory.scan_seq(Seq(0));
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

    /// Its file, opened where it isn't yet.
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

    /// Its records' directory.
    ///
    /// # Errors
    /// See [`DirectoryError`].
    pub(crate) async fn directory(&self) -> Result<Directory, DirectoryError> {
        let SegmentName { first, last, epoch, .. } = self.name;
        Directory::open_covering(self.file().await?.clone(), first, last, epoch).await
    }

    pub(crate) async fn pieces(&self) -> Result<&Pieces, ReadError> {
        let load = async || Pieces::read(self.file().await?, self.name.bytes).await;
        self.pieces.get_or_try_init(load).await
    }

    /// Reads a record: from the cache of chunks, or by one positional read.
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

    /// Reads many records, each once where several lie in one piece; those that aren't in the cache of
    /// chunks all at once, by few reads. With `keep` their chunks are kept there. The results are in
    /// no order, each with the number that was given with its location.
    pub(crate) async fn read_many(
        &self,
        wanted: &[(usize, Location)],
        keep: bool,
    ) -> Vec<(usize, Result<Record, ReadError>)> {
        let mut results = Vec::with_capacity(wanted.len());
        let mut missing = Vec::new();
        for (index, location) in wanted.iter().copied() {
            match self.range_of(location).await {
                Ok(range) => match self.cached(location, &range) {
                    Some(record) => results.push((index, Ok(record))),
                    None => missing.push(Missing { index, location, range, read: 0 }),
                },
                Err(error) => results.push((index, Err(error))),
            }
        }
        if missing.is_empty() {
            return results;
        }
        match self.file().await {
            Ok(file) => results.extend(self.read_missing(file, missing, keep).await),
            Err(error) => {
                results.extend(missing.iter().map(|missing| (missing.index, Err(error.clone().into()))));
            }
        }
        results
    }

    async fn read_missing(
        &self,
        file: &File,
        mut missing: Vec<Missing>,
        keep: bool,
    ) -> Vec<(usize, Result<Record, ReadError>)> {
        let chunks = self.chunks.as_ref().filter(|_| keep);
        let kept = |range: &Range<u64>| chunks.and_then(|chunks| chunks.around(range));
        missing.sort_unstable_by_key(|missing| (missing.range.start, missing.range.end));
        let mut reads: Vec<ReadAt> = Vec::with_capacity(missing.len());
        let mut last = None;
        for missing in &mut missing {
            if last.as_ref() != Some(&missing.range) {
                let around = kept(&missing.range).unwrap_or_else(|| missing.range.clone());
                reads.push(ReadAt::new(around.start, size(&around)));
                last = Some(missing.range.clone());
            }
            missing.read = reads.len() - 1;
        }
        let policy = if chunks.is_some() { BY_CHUNKS } else { settee_log::read_policy(&reads) };
        let values = file.read_many(&reads, policy).await;
        let mut results = Vec::with_capacity(missing.len());
        let mut kept_to = 0;
        for Missing { index, location, range, read } in missing {
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
                // What lies around it is no matter of the record.
                (Err(_), Some(_), _) => self.read_alone(file, location, &range).await,
                (record, ..) => record,
            };
            results.push((index, record));
        }
        results
    }

    /// The bytes of its file among which a record is: its own, or those of its piece.
    async fn range_of(&self, location: Location) -> Result<Range<u64>, ReadError> {
        let Location { segment, offset, length, .. } = location;
        if self.name.generation == 0 {
            return Ok(u64::from(offset)..u64::from(offset) + u64::from(length));
        }
        let (start, end) = self.pieces().await?.find(address(segment, offset));
        Ok(start.into()..end.into())
    }

    /// The record, where all chunks of its range are in memory.
    fn cached(&self, location: Location, range: &Range<u64>) -> Option<Record> {
        let chunks = self.chunks.as_ref()?;
        let record = self.record_in(location, range, chunks.copy(range)?.into());
        if record.is_err() {
            // It may have been garbled on its way here: the medium is asked again.
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

    /// The record in the bytes of its range.
    fn record_in(&self, location: Location, range: &Range<u64>, bytes: Bytes) -> Result<Record, ReadError> {
        let start = range.start as u32;
        if self.name.generation == 0 {
            let record = Record::decode(bytes).map_err(|what| self.damaged(start, what))?;
            return match record.seq() == location.seq() {
                true => Ok(record),
                false => Err(self.damaged(start, "another record stands there")),
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
        Err(self.damaged(start, "a record that the index names is not there"))
    }

    fn damaged(&self, offset: u32, what: &'static str) -> ReadError {
        ReadError::Damaged { path: self.path.clone(), offset: offset.into(), what }
    }
}

fn size(range: &Range<u64>) -> usize {
    (range.end - range.start) as usize
}

/// Where a range lies in one that holds it.
fn within(range: &Range<u64>, around: &Range<u64>) -> Range<usize> {
    (range.start - around.start) as usize..(range.end - around.start) as usize
}

/// Where the pieces of a rewritten segment begin: addresses and places, both ascending, and where
/// the last one ends.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Pieces {
    begins: Vec<(u64, u32)>,
    end: u32,
}

const PIECE_ENTRY_SIZE: usize = 12;
/// Count, end of the records, checksum.
const PIECES_TRAILER_SIZE: usize = 16;

impl Pieces {
    /// Adds a record that lies behind those before.
    pub(crate) fn push(&mut self, address: u64, length: u32) {
        let is_full = self.begins.last().is_none_or(|(_, place)| self.end - place >= PIECE_BYTES);
        if is_full || length >= PIECE_BYTES {
            self.begins.push((address, self.end));
        }
        self.end = self.end.checked_add(length).expect("a segment's records take no more than it may");
    }

    /// Where the piece begins and ends that has this address.
    fn find(&self, address: u64) -> (u32, u32) {
        let next = self.begins.partition_point(|(first, _)| *first <= address);
        let start = self.begins.get(next.saturating_sub(1)).map_or(0, |(_, place)| *place);
        (start, self.begins.get(next).map_or(self.end, |(_, place)| *place))
    }

    /// As it stands behind the records.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.begins.len() * PIECE_ENTRY_SIZE + PIECES_TRAILER_SIZE);
        for (address, place) in &self.begins {
            bytes.extend_from_slice(&address.to_le_bytes());
            bytes.extend_from_slice(&place.to_le_bytes());
        }
        bytes.extend_from_slice(&(self.begins.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&self.end.to_le_bytes());
        bytes.extend_from_slice(&twox_hash::XxHash3_64::oneshot(&bytes).to_le_bytes());
        bytes
    }

    /// Reads the pieces of a file whose records and pieces together take `bytes`.
    async fn read(file: &File, bytes: u64) -> Result<Pieces, ReadError> {
        let damaged = |what| ReadError::Damaged { path: file.path().to_path_buf(), offset: bytes, what };
        if bytes < PIECES_TRAILER_SIZE as u64 || bytes > file.length().await? {
            return Err(damaged("it is shorter than it was"));
        }
        let trailer = file.read_exact_at(bytes - PIECES_TRAILER_SIZE as u64, PIECES_TRAILER_SIZE).await?;
        let count = u32::from_le_bytes(trailer[..4].try_into().expect("4 bytes")) as u64;
        let size = count * PIECE_ENTRY_SIZE as u64 + PIECES_TRAILER_SIZE as u64;
        let start = bytes.checked_sub(size).ok_or_else(|| damaged("its pieces make no sense"))?;
        let table = file.read_exact_at(start, size as usize).await?;
        Pieces::decode(&table).ok_or_else(|| damaged("its pieces are damaged"))
    }

    fn decode(bytes: &[u8]) -> Option<Pieces> {
        let (body, checksum) = bytes.split_at_checked(bytes.len().checked_sub(8)?)?;
        if twox_hash::XxHash3_64::oneshot(body).to_le_bytes() != checksum {
            return None;
        }
        let (entries, trailer) = body.split_at_checked(body.len().checked_sub(8)?)?;
        let end = u32::from_le_bytes(trailer[4..].try_into().ok()?);
        let (entries, rest) = entries.as_chunks::<PIECE_ENTRY_SIZE>();
        let begin = |entry: &[u8; PIECE_ENTRY_SIZE]| {
            let (address, place) = entry.split_at(8);
            let place = u32::from_le_bytes(place.try_into().expect("4 bytes"));
            (u64::from_le_bytes(address.try_into().expect("8 bytes")), place)
        };
        let begins: Vec<_> = entries.iter().map(begin).collect();
        let ascends = begins.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1);
        let within = begins.last().is_none_or(|(_, place)| *place < end);
        (rest.is_empty() && ascends && within).then_some(Pieces { begins, end })
    }
}

/// The store's segments, by the numbers that they cover.
#[derive(Clone, Default)]
pub(crate) struct Segments {
    by_last: BTreeMap<u32, Arc<Segment>>,
}

impl Segments {
    /// The one that has what the log wrote to the segment with this number.
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

    /// How many bytes are read for a record.
    fn read_size(pieces: &Pieces, address: u64) -> u32 {
        let (start, end) = pieces.find(address);
        end - start
    }

    #[test]
    fn a_small_record_beside_a_large_one_is_read_alone() {
        let mut pieces = Pieces::default();
        let records = [(512, 100), (612, 10 << 20), (20 << 20, 100), ((20 << 20) + 100, PIECE_BYTES)];
        records.iter().for_each(|(offset, length)| pieces.push(address(1, *offset), *length));
        for (offset, length) in records {
            assert_eq!(read_size(&pieces, address(1, offset)), length, "the record at {offset}");
        }
        assert_eq!(Pieces::decode(&pieces.encode()), Some(pieces));
    }

    #[test]
    fn small_records_share_pieces() {
        let mut pieces = Pieces::default();
        (0..1000).for_each(|number| pieces.push(address(1, 512 + 100 * number), 100));
        let most = (0..1000).map(|number| read_size(&pieces, address(1, 512 + 100 * number))).max();
        assert!(most.is_some_and(|most| most < PIECE_BYTES + 100), "{most:?} bytes");
        assert!(pieces.begins.len() <= 100_000 / PIECE_BYTES as usize + 1, "{} pieces", pieces.begins.len());
    }
}
