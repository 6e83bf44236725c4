//! Recovery: rebuilds the log's state after a crash of the process or a power loss.
//!
//! Reads every segment in order and checks every frame. Damage in the last segment that is above everything
//! known to have been persisted is a torn tail, which is cut; any other damage is an error. If the log was
//! closed in order, a close mark follows its last frame: all before it is known to have been persisted. The
//! cases, with their labels, are in `docs/recovery.md`.
//!
//! A caller that has all records up to some `Seq` elsewhere (a checkpoint) says so: of segments
//! without later records only the header is read, and a sealed segment's records are taken from its segment
//! index if that agrees with the headers. The last segment is always read completely.
//!
//! `locking` locks the directory, `segment` checks a single segment and sets it aside.
//!
//! Invariants:
//! 1. Records passed to `replay` are whole, in order, and persisted before `recover` returns.
//! 2. Nothing is appended after a cut: the log then continues in a new segment, whose header says where the
//!    previous one ends. If only zeros follow the last frame, nothing is cut, and the log continues in that
//!    segment.
//! 3. An I/O error is never treated as the end of a file.
//! 4. Files are changed only after all of them were found sound and to belong to one log.
//! 5. Client data is never accepted as a frame: only someone who knows the timeline's id can create one. The
//!    exception is a log whose first header isn't whole: then the id is unknown.
//! 6. Segments up to the last one that the manifest lists are not read.
//! 7. A segment that isn't of one of the log's timelines, or has records of another one, is an error, never cut.
//!    Nothing is appended to a segment of an earlier timeline, and nothing in it is cut.
//! 8. What recovery returns ends at a frame's end in the last segment; segments are contiguous, and their epochs
//!    and `Seq`s ascend. Asserted before files are changed; bytes that contradict it are errors before that.
//!
//! Limits: a window of one segment is in memory (`frames.rs`). No more than
//! [`SEGMENT_BYTES_LIMIT`](crate::format::SEGMENT_BYTES_LIMIT) bytes of a file are read, whatever its length,
//! since no frame lies beyond them.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use settee_io::{Damage, Env, File, directory};

use crate::error::OpenError;
use crate::failpoints::Failpoint;
use crate::format::{
    FRAME_ALIGNMENT, Frame, FrameSeed, HeaderError, RecordRef, SEGMENT_HEADER_SIZE, SYNC_ALIGNMENT,
    SegmentHeader,
};
use crate::frames::{FrameChain, Tail};
use crate::manifest::{Manifest, manifest_path};
use crate::options::LogOptions;
use crate::segment_index::{EntryRef, SegmentIndex, SegmentIndexError, Trailer};
use crate::segment_name::segment_path;
use crate::state::{OpenSegment, SegmentMeta};
use crate::timeline::Timelines;
use crate::types::{Location, Seq};
use segment::{
    BEYOND_TIMELINE, BYTES_MAX, DAMAGED_HEADER, FOREIGN, Segment, TORN_SEGMENT_COUNT_MAX, open_segments,
};

mod locking;
mod segment;

pub use locking::LogLock;
pub(crate) use locking::{lock, lock_directory};

/// Summary of opening a log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Number of segments.
    pub segment_count: usize,
    /// Number of segments whose records were replayed from the segment index instead of the frames.
    pub segment_index_count: usize,
    /// Number of segments of which only the header was read, since none of their records was needed.
    pub skipped_count: usize,
    /// Number of records passed to `replay`.
    pub record_count: u64,
    /// Bytes of a torn tail that were cut from the last segment.
    pub cut_bytes: u64,
    /// Whether a close mark follows the last frame: the log was closed in order.
    pub was_closed: bool,
}

/// The receiver of the replayed records.
pub(crate) enum Replay<'a> {
    /// Receives whole records with their locations, so every frame is read.
    Records(&'a mut (dyn FnMut(Location, RecordRef<'_>) + Send)),
    /// Receives what a segment index contains of each record.
    Entries(&'a mut (dyn FnMut(EntryRef<'_>) + Send)),
    /// Needs no record: only the last segment's frames are read.
    Nothing,
}

/// Error text for a segment whose header names another end of the previous one.
const NOT_CONSECUTIVE: &str = "it doesn't follow the segment before it";

/// The recovered state of a log.
#[derive(Default)]
pub(crate) struct Recovered {
    options: LogOptions,
    pub files: BTreeMap<u32, Arc<File>>,
    pub tail: Tail,
    pub last_seq: u64,
    pub epoch: u32,
    /// Empty if there is neither a manifest nor a segment.
    pub timelines: Timelines,
    pub file_bytes: u64,
    /// The oldest segment that is needed.
    pub oldest: u32,
    pub segments: BTreeMap<u32, SegmentMeta>,
    /// Records up to this one have been replayed, or are excluded by the caller.
    known_seq: u64,
    /// Bytes that were written after the tail.
    torn_bytes: u64,
    /// Whether only zeros follow the tail, or the close mark after it.
    ends_clean: bool,
    /// The last segment, if the log may continue in it.
    pub open: Option<OpenSegment>,
    pub summary: Recovery,
}

/// Reads the log in `directory`; see [`crate::Log::open_after`].
pub(crate) async fn recover(
    env: &Env,
    directory: &Path,
    options: &LogOptions,
    locked: &LogLock,
    after: Seq,
    mut replay: Replay<'_>,
) -> Result<Recovered, OpenError> {
    let oldest = locked.manifest().map_or(0, |manifest| manifest.listed_to) + 1;
    let mut segments = open_segments(env, directory, locked.manifest()).await?;
    // Their removal was interrupted, or they were in use when their process ended.
    let left_over: Vec<Segment> = segments.extract_if(.., |segment| segment.number < oldest).collect();
    let timelines = locked.manifest().map(|manifest| manifest.timelines.clone()).unwrap_or_default();
    let of_header = || segments.iter().rev().find_map(|segment| Some(segment.header.ok()?.0.timeline));
    let seed = timelines.current().map(|current| current.id).or_else(of_header).map(FrameSeed::of);
    let discarded = split_off_torn(&mut segments, seed).await?;
    let mut found =
        Recovered { options: *options, oldest, known_seq: after.0, timelines, ..Recovered::default() };
    if let Some(last) = segments.last() {
        let (header, _) = last.header()?;
        if found.timelines.current().is_none() {
            found.timelines = Timelines::first(segments[0].header()?.0.timeline);
        }
        if found.timelines.index_of(header.timeline).is_none() {
            return Err(last.damaged(0, FOREIGN));
        }
        if header.oldest > oldest {
            // The segments before that one are in a later manifest, or were removed by one.
            return Err(newer_manifest(directory, locked));
        }
    } else if oldest > 1 || after.0 > 0 || found.timelines.current().is_some_and(|one| one.after.0 > 0) {
        // The manifest, or the caller, has seen records of this log beyond here.
        return Err(match discarded.last() {
            Some(torn) => torn.damaged(0, DAMAGED_HEADER),
            None => OpenError::Missing { path: segment_path(directory, oldest) },
        });
    }
    for segment in &left_over {
        segment.check_left_over(&found.timelines)?;
    }
    for (number, expected) in
        segments.iter().chain(discarded.iter().rev()).map(|segment| segment.number).zip(oldest..)
    {
        if number != expected {
            return Err(OpenError::Missing { path: segment_path(directory, expected) });
        }
    }
    for segment in &segments {
        segment.timeline(&found.timelines)?;
    }
    for pair in segments.windows(2) {
        pair[1].check_follows(&pair[0])?;
    }
    for (index, segment) in segments.iter().enumerate() {
        found.recover_segment(segment, segments.get(index + 1), &mut replay).await?;
    }
    // What the manifest's timelines share was on stable storage before the manifest was.
    let expected = found.timelines.current().map_or(after, |current| after.max(current.after));
    if let Some(last) = segments.last().filter(|_| found.last_seq < expected.0) {
        let (path, offset) = (last.path.clone(), found.tail.end);
        return Err(OpenError::Behind { path, offset, found: Seq(found.last_seq), expected });
    }
    found.check();
    if let Some(last) = segments.last() {
        found.finish(env, last).await?;
    }
    for segment in discarded {
        found.summary.cut_bytes += segment.set_aside(env, directory, seed).await?;
    }
    for segment in left_over {
        segment.remove_left_over(env, directory, seed).await?;
    }
    if let Some(manifest) = locked.manifest() {
        manifest.sweep(env, directory).await?;
        Manifest::reserve_next(env, directory, manifest.encode().len() as u64).await;
    }
    found.files = segments.into_iter().map(|segment| (segment.number, segment.file)).collect();
    Ok(found)
}

/// The error for a log whose last header knows of a later manifest than the one found.
fn newer_manifest(directory: &Path, locked: &LogLock) -> OpenError {
    let path = manifest_path(directory);
    match locked.manifest() {
        Some(_) => OpenError::Damaged(Damage { path, offset: 0, what: "it is older than the log" }),
        None => OpenError::Missing { path },
    }
}

/// Splits off the last segments in which nothing was ever persisted, last one first. `seed` is that of the
/// log's frames, if a header reveals it.
async fn split_off_torn(
    segments: &mut Vec<Segment>,
    seed: Option<FrameSeed>,
) -> Result<Vec<Segment>, OpenError> {
    let mut torn: Vec<Segment> = Vec::new();
    while torn.len() < TORN_SEGMENT_COUNT_MAX
        && let Some(last) = segments.last()
        && last.header == Err(HeaderError::Invalid)
    {
        let content = last.frames(seed).remainder(0).await?;
        last.check_cut(0, &content)?;
        torn.extend(segments.pop());
        // Frames are written only after all of the previous segment had been persisted.
        if content.has_frames {
            break;
        }
    }
    Ok(torn)
}

impl Recovered {
    /// Checks a segment and replays its records as far as needed. `next` is the segment after it.
    async fn recover_segment(
        &mut self,
        segment: &Segment,
        next: Option<&Segment>,
        replay: &mut Replay<'_>,
    ) -> Result<(), OpenError> {
        let (header, checksum) = segment.header()?;
        if header.segment == self.oldest && self.oldest > 1 {
            // Earlier segments are no longer needed; only this header describes their end.
            let (end, checksum) = (header.previous_end, header.previous_checksum);
            self.tail = Tail { segment: header.segment - 1, end, checksum };
            self.last_seq = header.first_seq - 1;
        }
        let follows = (header.previous_end, header.previous_checksum) == (self.tail.end, self.tail.checksum);
        if !(follows && header.first_seq == self.last_seq + 1) {
            return Err(segment.damaged(0, NOT_CONSECUTIVE));
        }
        let timeline = segment.timeline(&self.timelines)?;
        self.epoch = header.epoch;
        self.tail = Tail { segment: header.segment, end: SEGMENT_HEADER_SIZE as u64, checksum };
        self.known_seq = self.known_seq.max(self.last_seq);
        let is_unread = match next {
            Some(next) => self.recover_unread(segment, next, replay).await?,
            None => false,
        };
        if !is_unread {
            self.replay_frames(segment, next.map(Segment::header).transpose()?, replay).await?;
        }
        if self.last_seq > self.timelines.last_seq(timeline).0 {
            return Err(segment.damaged(self.tail.end, BEYOND_TIMELINE));
        }
        self.summary.segment_count += 1;
        self.file_bytes += self.tail.end;
        let SegmentHeader { epoch, first_seq, .. } = header;
        let meta = SegmentMeta { epoch, timeline, first_seq, bytes: self.tail.end };
        self.segments.insert(header.segment, meta);
        Ok(())
    }

    /// Recovers a segment without reading its frames, from the header of `next`, the segment after it, and
    /// replays needed records from its segment index. Returns `false` if its frames have to be read.
    async fn recover_unread(
        &mut self,
        segment: &Segment,
        next: &Segment,
        replay: &mut Replay<'_>,
    ) -> Result<bool, OpenError> {
        if matches!(replay, Replay::Records(_)) {
            return Ok(false);
        }
        let ((header, _), (following, _)) = (segment.header()?, next.header()?);
        if following.first_seq < header.first_seq {
            return Err(next.damaged(0, NOT_CONSECUTIVE));
        }
        segment.check_length(following.previous_end)?;
        match replay {
            Replay::Entries(replay) if following.first_seq - 1 > self.known_seq => {
                if !self.replay_segment_index(segment, &header, &following, *replay).await? {
                    return Ok(false);
                }
                self.summary.segment_index_count += 1;
            }
            _ => self.summary.skipped_count += 1,
        }
        (self.tail.end, self.tail.checksum) = (following.previous_end, following.previous_checksum);
        self.last_seq = following.first_seq - 1;
        Ok(true)
    }

    /// Replays a segment's entries from its segment index. Returns `false` if there is none, it disagrees
    /// with the headers, or it is incomplete: the entries replayed until then are correct, and the frames
    /// contain the rest.
    async fn replay_segment_index(
        &mut self,
        segment: &Segment,
        header: &SegmentHeader,
        next: &SegmentHeader,
        replay: &mut (dyn FnMut(EntryRef<'_>) + Send),
    ) -> Result<bool, OpenError> {
        let segment_index = match SegmentIndex::open(segment.file.clone(), header.segment, header.epoch).await
        {
            Ok(segment_index) if agrees(segment_index.trailer(), header, next) => segment_index,
            Ok(_) => {
                tracing::warn!(
                    path = %segment.path.display(),
                    "a segment index doesn't match its segment; reading the frames"
                );
                return Ok(false);
            }
            Err(SegmentIndexError::Io(error)) => return Err(error.into()),
            Err(SegmentIndexError::Absent { .. }) => return Ok(false),
            Err(error) => {
                tracing::warn!(%error, "could not read a segment index; reading the frames");
                return Ok(false);
            }
        };
        let mut scan = segment_index.scan_seq(Seq(self.known_seq + 1));
        while self.known_seq + 1 < next.first_seq {
            let damage = match scan.next().await {
                Ok(Some((entry, _))) if self.is_next(&entry, next) => {
                    self.known_seq = entry.seq.0;
                    self.summary.record_count += 1;
                    replay(entry);
                    continue;
                }
                Err(SegmentIndexError::Io(error)) => return Err(error.into()),
                Err(error) => error.to_string(),
                Ok(_) => "entries are missing".to_string(),
            };
            let path = segment.path.display();
            tracing::warn!(%path, damage, "a segment index is incomplete; reading the frames");
            return Ok(false);
        }
        Ok(true)
    }

    /// Whether an entry can be that of the next record, before the segment `next`.
    fn is_next(&self, entry: &EntryRef<'_>, next: &SegmentHeader) -> bool {
        let end = u64::from(entry.location.offset) + u64::from(entry.location.length);
        entry.seq.0 == self.known_seq + 1 && end <= next.previous_end
    }

    /// Passes a record to `replay` if it is needed.
    fn replay_record(&mut self, location: Location, record: RecordRef<'_>, replay: &mut Replay<'_>) {
        let RecordRef { seq, flags, key, meta, .. } = record;
        match replay {
            Replay::Records(replay) => replay(location, record),
            Replay::Entries(_) if seq.0 <= self.known_seq => return,
            Replay::Nothing => return,
            Replay::Entries(replay) => replay(EntryRef { seq, flags, key, meta, location }),
        }
        self.summary.record_count += 1;
    }

    /// Reads a segment's frames and replays their records. `next` is the header of the segment after it.
    async fn replay_frames(
        &mut self,
        segment: &Segment,
        next: Option<(SegmentHeader, u64)>,
        replay: &mut Replay<'_>,
    ) -> Result<(), OpenError> {
        let (header, checksum) = segment.header()?;
        // The frames may be followed by a segment index, or by the file's previous content.
        let end = next.map_or(segment.length.min(BYTES_MAX), |(next, _)| next.previous_end);
        segment.check_length(end)?;
        let mut chain = FrameChain::new(&segment.file, &header, checksum, end);
        while let Some(frame) = self.next_frame(&mut chain).await? {
            frame.records().for_each(|(location, record)| self.replay_record(location, record, replay));
        }
        (self.tail, self.last_seq) = (chain.tail, chain.last_seq);
        if next.is_some() && self.tail.end != end {
            return Err(segment.damaged(self.tail.end, "a frame is damaged, and others follow it"));
        }
        if next.is_none() {
            let mark_end = chain.mark_end().await?;
            self.summary.was_closed = mark_end.is_some();
            // Before a close mark there is no torn tail, whatever the padding holds.
            let end = mark_end.unwrap_or(self.tail.end);
            let remainder = chain.reader.remainder(end).await?;
            segment.check_cut(self.tail.end, &remainder)?;
            let written = remainder.written_end - end;
            let current = self.timelines.current().filter(|current| current.id != header.timeline);
            if written > 0 && current.is_some_and(|current| current.after.0 <= self.last_seq) {
                return Err(segment.damaged(end, BEYOND_TIMELINE));
            }
            // After a cut the padding may hold what was left of a torn tail: then nothing is appended here.
            let padding = chain.reader.padding(self.tail.end).await?;
            let is_unwritten = written == 0 && padding.iter().all(|byte| *byte == 0);
            self.ends_clean = is_unwritten && segment.length <= BYTES_MAX;
            // Only bytes written for this segment are a torn tail, not the file's previous content.
            let is_torn = !header.is_reused || remainder.has_frames;
            self.torn_bytes = if is_torn { written } else { 0 };
        }
        Ok(())
    }

    /// Whether the log's files end with a close mark: one that was found and not cut.
    pub(crate) fn is_marked(&self) -> bool {
        self.summary.was_closed && self.ends_clean
    }

    /// Verifies what the log relies on, whatever the files contain: what contradicts it was refused.
    fn check(&self) {
        let Some((last, meta)) = self.segments.last_key_value() else {
            assert_eq!(self.tail, Tail::default(), "a log without segments is empty");
            return;
        };
        assert_eq!(*last, self.tail.segment, "the log ends in its last segment");
        assert_eq!(meta.bytes, self.tail.end, "the log ends where the frames of its last segment do");
        assert!(self.tail.end >= SEGMENT_HEADER_SIZE as u64, "the log ends after a header");
        assert!(self.tail.end.is_multiple_of(FRAME_ALIGNMENT as u64), "the log ends at a frame's end");
        let segments: Vec<_> = self.segments.iter().collect();
        for pair in segments.windows(2) {
            let ((number, before), (next, after)) = (pair[0], pair[1]);
            assert_eq!(*next, number + 1, "segments are contiguous");
            assert!(before.epoch <= after.epoch, "epochs ascend");
            assert!(before.first_seq <= after.first_seq, "`Seq`s ascend");
        }
    }

    /// The next frame of a segment, unless a failpoint finds another one.
    async fn next_frame(&self, chain: &mut FrameChain<'_>) -> Result<Option<Frame>, settee_io::Error> {
        match chain.next().await {
            Err(_) if self.options.is_enabled(Failpoint::ErrorAsEnd) => {
                chain.reader.end = chain.tail.end;
                Ok(None)
            }
            Ok(None) if self.options.is_enabled(Failpoint::RecycledFrame) => chain.next_recycled().await,
            next => next,
        }
    }

    /// Cuts everything after the last whole frame, and syncs the segment and the directory: a killed process
    /// may have left what was read only in the page cache.
    async fn finish(&mut self, env: &Env, last: &Segment) -> Result<(), OpenError> {
        let (header, _) = last.header()?;
        if self.options.is_enabled(Failpoint::AppendAfterTornTail) {
            self.tail.end += std::mem::take(&mut self.torn_bytes);
        }
        if self.torn_bytes > 0 {
            tracing::warn!(
                path = %last.path.display(), offset = self.tail.end, bytes = self.torn_bytes,
                "cut a torn tail"
            );
            self.summary.cut_bytes += self.torn_bytes;
        }
        if !self.ends_clean {
            // The last block also contains recovered frames, and stays unchanged.
            let end = self.tail.end.next_multiple_of(u64::from(SYNC_ALIGNMENT));
            if end < last.length {
                last.file.set_length(end).await?;
            }
        } else if self.timelines.current().is_some_and(|current| current.id == header.timeline) {
            self.open = Some(OpenSegment {
                number: last.number,
                epoch: self.epoch,
                seed: header.frame_seed(),
                file: last.file.clone(),
                bytes_max: last.length as u32,
                allocated: last.length as u32,
                checksum: self.tail.checksum,
                header: None,
            });
        }
        last.file.sync().await?;
        directory::sync(&*env.engine, last.path.parent().expect("a segment lies in a directory")).await?;
        Ok(())
    }
}

/// Whether a footer belongs to the segment with this header and agrees with that of the segment after it.
fn agrees(trailer: &Trailer, header: &SegmentHeader, next: &SegmentHeader) -> bool {
    (trailer.frames_end, trailer.frames_checksum) == (next.previous_end, next.previous_checksum)
        && trailer.record_count == next.first_seq - header.first_seq
}
