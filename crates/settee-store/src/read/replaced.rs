//! Finds records that later records of their keys replaced, as long as no compaction has left them out.
//!
//! The index doesn't have them; the segments do. The search goes from the segment of a live record back, one
//! segment after another. A segment with a segment index is searched through that: a filter excludes most keys,
//! and a key's records are adjacent. A segment that isn't sealed yet is scanned once, and a table of its records
//! is kept for later searches of the same request.
//!
//! A replaced record is garbage, and may be left out by any compaction. What is found is what the files of the
//! snapshot's version contain, so a snapshot gives the same answers as long as it exists.
//!
//! Invariants:
//! 1. A search passes over no segment: it ends at the first that it can't search. So it has seen all newer
//!    records of the keys before an older one.
//! 2. The segments searched depend on the start alone, not on the keys.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use settee_io::File;
use settee_log::{
    Flags, ReadFormat, RecordRef, Segment, SegmentIndex, SegmentIndexError, Seq, scan_segment,
    scan_whole_frames,
};

use super::snapshot::Snapshot;
use crate::error::ReadError;
use crate::index::Location;

/// Bytes of segments without an index that one [`ReplacedRecords`] scans; a single segment may have more.
const SCANNED_BYTES_MAX: u64 = 64 << 20;

/// Number of records of one key that a search visits.
const RECORD_COUNT_MAX: usize = 10_000;

/// Number of attempts to read a segment that is sealed meanwhile, which changes the length of its file twice.
const ATTEMPT_COUNT_MAX: usize = 3;

/// Searches the segments of a snapshot for replaced records. Its limits apply to all its searches together:
/// [`StoreOptions::replaced_segments_max`](crate::StoreOptions::replaced_segments_max) segments, of which those
/// without a segment index are scanned up to 64 MiB.
pub struct ReplacedRecords {
    snapshot: Snapshot,
    /// The segments searched so far, by their last number; `None` if one can't be searched.
    opened: BTreeMap<u32, Option<Arc<Source>>>,
    scanned_bytes: u64,
}

/// A record of a key, live or replaced. Its value was not read.
#[derive(Debug, Clone, Copy)]
pub struct ReplacedRecord<'a> {
    /// Its location, for [`Snapshot::read`].
    pub location: Location,
    /// Whether it removed the key.
    pub is_tombstone: bool,
    /// Its meta.
    pub meta: &'a [u8],
    /// Compactions may have left out newer records of the key that were replaced as of this `Seq`; 0 if there
    /// are none.
    pub left_out_to: Seq,
}

/// A search, from one segment to the next older one.
pub struct ReplacedSearch<'a> {
    records: &'a mut ReplacedRecords,
    keys: Vec<Vec<u8>>,
    progress: Vec<KeyProgress>,
    /// The segments still to be searched, newest last.
    places: Vec<Place>,
    /// See [`ReplacedRecord::left_out_to`].
    left_out_to: u64,
    /// The first of the segments searched so far.
    first: u32,
}

#[derive(Debug, Clone, Copy, Default)]
struct KeyProgress {
    record_count: usize,
    is_done: bool,
}

/// A segment of the snapshot's version.
struct Place {
    segment: Arc<Segment>,
    /// Whether nothing is written to it any more.
    is_listed: bool,
}

/// What a segment is searched through.
enum Source {
    Index(Box<SegmentIndex>),
    Table(ScannedTable),
}

/// The records of a segment that has no index.
struct ScannedTable {
    segment: u32,
    file: Arc<File>,
    /// Ordered by the keys' hashes, the newest first.
    records: Vec<ScannedRecord>,
}

struct ScannedRecord {
    key_hash: u32,
    offset: u32,
    length: u32,
}

impl ReplacedRecords {
    /// Reads nothing yet.
    pub fn new(snapshot: &Snapshot) -> ReplacedRecords {
        ReplacedRecords { snapshot: snapshot.clone(), opened: BTreeMap::new(), scanned_bytes: 0 }
    }

    /// Begins a search in the segment of the record at `from`, a live one. No newer segment may contain a record
    /// of `keys`.
    pub fn search(&mut self, from: Location, keys: Vec<Vec<u8>>) -> ReplacedSearch<'_> {
        let set = &self.snapshot.version.set;
        // Up to the first segment with garbage that is older than `from`, there is nothing to find.
        let dirty = set.listed().find(|segment| segment.clean_to() < from.seq);
        let first = dirty.map_or(u32::MAX, |segment| segment.name.first);
        let places = set.iter().rev().filter(|segment| segment.name.first <= from.segment);
        let place = |segment: &Arc<Segment>| Place {
            segment: segment.clone(),
            is_listed: segment.name.last <= set.listed_to(),
        };
        let places = places.map(place).take_while(|place| !place.is_listed || place.first() >= first);
        let mut places: Vec<Place> = places.take(self.snapshot.replaced_segments_max).collect();
        places.reverse();
        let progress = vec![KeyProgress::default(); keys.len()];
        ReplacedSearch { records: self, keys, progress, places, left_out_to: 0, first: from.segment + 1 }
    }

    /// Opens a segment, unless that was done before; `None` if it can't be searched, or a limit is reached.
    async fn open(&mut self, place: &Place) -> Result<Option<Arc<Source>>, ReadError> {
        let number = place.last();
        if let Some(opened) = self.opened.get(&number) {
            return Ok(opened.clone());
        }
        if self.opened.len() >= self.snapshot.replaced_segments_max {
            return Ok(None);
        }
        let opened = match place.is_listed {
            true => self.open_listed(&place.segment).await?,
            false => self.open_unlisted(&place.segment).await?,
        };
        let opened = opened.map(Arc::new);
        self.opened.insert(number, opened.clone());
        Ok(opened)
    }

    async fn open_listed(&mut self, segment: &Arc<Segment>) -> Result<Option<Source>, ReadError> {
        let error = match segment.segment_index().await {
            Ok(index) => return Ok(Some(Source::Index(Box::new(index)))),
            Err(SegmentIndexError::Io(error)) => return Err(error.into()),
            Err(error) => error,
        };
        if segment.name.generation > 0 {
            warn_of(&error);
            return Ok(None);
        }
        if !self.may_scan(segment.name.bytes) {
            return Ok(None);
        }
        self.scanned_bytes += segment.name.bytes;
        let (file, number) = (segment.file().await?, segment.name.first);
        let mut records = Vec::new();
        match scan_segment(&file, number, segment.name.bytes, collect_into(&mut records)).await {
            Ok(()) => Ok(Some(Source::Table(ScannedTable::new(number, file, records)))),
            Err(settee_log::ReadError::Damaged(error)) => {
                warn_of(&error);
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn open_unlisted(&mut self, segment: &Segment) -> Result<Option<Source>, ReadError> {
        let (file, number) = (segment.file().await?, segment.name.first);
        for attempt in 1.. {
            let length = file.length().await?;
            match self.read_unlisted(number, &file, length).await {
                // Sealing changes the length while the file is read.
                Err(_) if attempt < ATTEMPT_COUNT_MAX && file.length().await? != length => {}
                read => return read,
            }
        }
        Ok(None)
    }

    /// Reads the segment index of an unlisted segment, or its frames.
    async fn read_unlisted(
        &mut self,
        number: u32,
        file: &Arc<File>,
        length: u64,
    ) -> Result<Option<Source>, ReadError> {
        let Ok(head) = settee_log::segment_head(file, ReadFormat::Present).await? else { return Ok(None) };
        let open = async || match SegmentIndex::open(file.clone(), number, head.epoch).await {
            Ok(index) => Ok(Some(Source::Index(Box::new(index)))),
            Err(SegmentIndexError::Io(error)) => Err(error),
            // It isn't sealed; or else its frames tell the same.
            Err(_) => Ok(None),
        };
        if let Some(source) = open().await? {
            return Ok(Some(source));
        }
        let infos = self.snapshot.log.segment_infos();
        let Some(info) = infos.into_iter().find(|info| info.number == number) else {
            // Listed meanwhile, so that it has an index.
            return Ok(open().await?);
        };
        if !self.may_scan(info.frame_bytes) {
            return Ok(None);
        }
        let (mut records, end) = (Vec::new(), info.frame_bytes.min(length));
        scan_whole_frames(file, number, end, collect_into(&mut records)).await?;
        self.scanned_bytes += info.frame_bytes;
        Ok(Some(Source::Table(ScannedTable::new(number, file.clone(), records))))
    }

    /// Whether that many bytes may be scanned.
    fn may_scan(&self, bytes: u64) -> bool {
        self.scanned_bytes == 0 || self.scanned_bytes + bytes <= SCANNED_BYTES_MAX
    }
}

impl ReplacedSearch<'_> {
    /// Searches the next segment: passes its records of the keys to `visit`, key by key in the order in which
    /// the keys were given, and the newest first of each key. `visit` gets the key's index, and returns whether
    /// it wants older records of that key. Returns false, having visited nothing, if no segment is left, or the
    /// next can't be searched, or a limit is reached.
    ///
    /// Live records of the keys are visited too, and no record that is later than the snapshot.
    ///
    /// # Errors
    /// See [`ReadError`]; the store stays usable.
    pub async fn next_segment(
        &mut self,
        mut visit: impl FnMut(usize, ReplacedRecord<'_>) -> bool,
    ) -> Result<bool, ReadError> {
        let Some(place) = self.places.pop() else { return Ok(false) };
        let Some(source) = self.records.open(&place).await? else {
            self.places.clear();
            return Ok(false);
        };
        let last_seq = self.records.snapshot.version.last_seq;
        if place.last() + 1 < self.first {
            // Segments without live records were removed.
            self.left_out_to = u64::MAX;
        }
        self.first = place.first();
        let left_out_to = Seq(self.left_out_to);
        for (index, (key, progress)) in self.keys.iter().zip(&mut self.progress).enumerate() {
            if progress.is_done {
                continue;
            }
            let mut visit = |record: ReplacedRecord<'_>| {
                if record.location.seq <= last_seq {
                    progress.record_count += 1;
                    progress.is_done = !visit(index, ReplacedRecord { left_out_to, ..record })
                        || progress.record_count >= RECORD_COUNT_MAX;
                }
                !progress.is_done
            };
            let visited = match &*source {
                Source::Index(segment_index) => visit_indexed(segment_index, key, &mut visit).await,
                Source::Table(table) => table.visit(key, &mut visit).await,
            };
            match visited {
                Err(
                    error @ (ReadError::Damaged(_) | ReadError::Record(settee_log::ReadError::Damaged(_))),
                ) => {
                    warn_of(&error);
                    self.places.clear();
                    break;
                }
                visited => visited?,
            }
        }
        if place.segment.name.generation > 0 {
            self.left_out_to = self.left_out_to.max(place.segment.clean_to());
        }
        Ok(true)
    }
}

impl Place {
    fn first(&self) -> u32 {
        self.segment.name.first
    }

    fn last(&self) -> u32 {
        self.segment.name.last
    }
}

/// Visits a key's records, the newest first, as long as `visit` returns true.
async fn visit_indexed(
    segment_index: &SegmentIndex,
    key: &[u8],
    visit: &mut impl FnMut(ReplacedRecord<'_>) -> bool,
) -> Result<(), ReadError> {
    if !segment_index.may_contain(key) {
        return Ok(());
    }
    let mut scan = segment_index.scan_keys((Bound::Included(key), Bound::Included(key)));
    while let Some(entry) = scan.next().await.map_err(of_index)? {
        let location = Location::in_log(entry.seq, entry.location);
        let is_tombstone = entry.flags.has(Flags::TOMBSTONE);
        if !visit(ReplacedRecord { location, is_tombstone, meta: entry.meta, left_out_to: Seq(0) }) {
            return Ok(());
        }
    }
    Ok(())
}

/// Logs that a search ends at a damaged segment: live records don't depend on what it looks for.
fn warn_of(error: &dyn std::fmt::Display) {
    tracing::warn!(%error, "replaced records in a segment and in older ones can't be found");
}

fn of_index(error: SegmentIndexError) -> ReadError {
    match error {
        SegmentIndexError::Damaged(damage) => ReadError::Damaged(damage),
        SegmentIndexError::Io(error) => ReadError::Io(error),
        // Its trailer was read before.
        SegmentIndexError::Absent { .. } | SegmentIndexError::NewerFormat { .. } => ReadError::InvalidEntry,
    }
}

impl ScannedTable {
    fn new(segment: u32, file: Arc<File>, mut records: Vec<ScannedRecord>) -> ScannedTable {
        records.sort_unstable_by_key(|record| (record.key_hash, Reverse(record.offset)));
        ScannedTable { segment, file, records }
    }

    /// Visits a key's records, the newest first, as long as `visit` returns true. Reads each of them.
    async fn visit(
        &self,
        key: &[u8],
        visit: &mut impl FnMut(ReplacedRecord<'_>) -> bool,
    ) -> Result<(), ReadError> {
        let hash = key_hash(key);
        let first = self.records.partition_point(|record| record.key_hash < hash);
        for ScannedRecord { offset, length, .. } in
            self.records[first..].iter().take_while(|record| record.key_hash == hash)
        {
            let record = settee_log::read_record(&self.file, (*offset).into(), *length).await?;
            if record.key() != key {
                continue;
            }
            let Seq(seq) = record.seq();
            let location = Location { seq, segment: self.segment, offset: *offset, length: *length };
            let is_tombstone = record.flags().has(Flags::TOMBSTONE);
            if !visit(ReplacedRecord { location, is_tombstone, meta: record.meta(), left_out_to: Seq(0) }) {
                return Ok(());
            }
        }
        Ok(())
    }
}

fn collect_into(records: &mut Vec<ScannedRecord>) -> impl FnMut(settee_log::Location, RecordRef<'_>) {
    |location, record| {
        let settee_log::Location { offset, length, .. } = location;
        records.push(ScannedRecord { key_hash: key_hash(record.key), offset, length });
    }
}

fn key_hash(key: &[u8]) -> u32 {
    twox_hash::XxHash3_64::oneshot(key) as u32
}
