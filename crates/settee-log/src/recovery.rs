//! Recovery: what a log holds after its process or the power has gone.
//!
//! Reads every segment in order and checks every frame. Damage in the last segment above all
//! that is known to have been persisted is a torn tail, which is cut; any other is an error.
//! The cases, with their labels, are in `docs/recovery.md`.
//!
//! Whoever has all up to some `Seq` elsewhere (a checkpoint) names where to [`Start`]: of segments
//! without later records nothing is read but the header, and what a sealed one holds is told by its
//! directory, where that agrees with the headers. The last segment is always read whole.
//!
//! Invariants:
//! 1. What is handed to `replay` is whole, in order, and persisted before `recover` returns.
//! 2. Nothing is appended behind a cut: the log then goes on in a new segment, whose header says
//!    where the one before ends. Where nothing but zeros lies behind the last frame there is no
//!    cut, and the log goes on in that segment.
//! 3. An error from the system is never taken for the end of a file.
//! 4. Files are changed only after all of them were found sound, and belong to one log.
//! 5. What a client stored is never taken for a frame: only who knows the log's id makes one.
//!    But for a log whose first header isn't whole: then nobody knows it.
//! 6. A segment below the first one that was named is not looked at.
//!
//! Limits: no more than [`SEGMENT_BYTES_LIMIT`] bytes of a file are read at once, whatever its
//! length, since no frame lies behind them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use settee_io::folder::{self, DirectorySyncs};
use settee_io::{Env, File, OpenMode};

use crate::directory::{Directory, DirectoryError, EntryRef, Trailer};
use crate::error::OpenError;
use crate::format::{
    FORMAT_VERSION, FRAME_ALIGNMENT, Frame, FrameHeader, FrameKind, FrameSeed, HeaderError, RecordRef,
    SEGMENT_HEADER_SIZE, SYNC_ALIGNMENT, SegmentHeader,
};
use crate::log::{Location, LogOptions, SEGMENT_BYTES_LIMIT, Seq};
use crate::planted::Planted;
use crate::room::OpenSegment;
use crate::seal::Known;
use crate::view::{FileMap, Slot};

/// What opening a log found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Segments that there are.
    pub segment_count: usize,
    /// Those of them whose records came from their directories, and not from their frames.
    pub directory_count: usize,
    /// Those of them of which only the header was read, since none of their records was wanted.
    pub skipped_count: usize,
    /// Records handed to `replay`.
    pub record_count: u64,
    /// Bytes of a torn tail that were cut from the last segment.
    pub cut_bytes: u64,
}

/// Where a log begins for who has the rest elsewhere: see [`crate::Log::open_after`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Start {
    /// Segments with smaller numbers aren't the log's: 0 or 1 where all are.
    pub first_segment: u32,
    /// Records up to this one aren't replayed.
    pub after: Seq,
}

/// Who is told what the log holds.
pub(crate) enum Replay<'a> {
    /// Records, each with where it lies: so every frame is read.
    Records(&'a mut (dyn FnMut(Location, RecordRef<'_>) + Send)),
    /// What a directory says of them.
    Entries(&'a mut (dyn FnMut(EntryRef<'_>) + Send)),
}

/// Where a log ends: all zeros for one without segments.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tail {
    pub segment: u32,
    /// Where the segment's frames end.
    pub end: u64,
    /// The checksum of the last frame, or of the header.
    pub checksum: u64,
}

impl Tail {
    /// Where the next frame may begin.
    fn next_starts(&self) -> [usize; 2] {
        let end = self.end as usize;
        [end, end.next_multiple_of(SYNC_ALIGNMENT as usize)]
    }
}

/// After how many bytes of a segment recovery lets other tasks run.
const YIELD_BYTES: usize = 1 << 20;

/// How many segments a crash can leave without a header: the one that was left and is on its way to
/// stable storage, of which no sync has ended yet; the one that was begun after it, to which nothing is
/// written until then; and the one that was made ahead of that.
const TORN_SEGMENT_COUNT_MAX: usize = 3;

/// How often it is tried to lock a segment that another log may have, and how far apart.
const LOCK_TRIES_MAX: usize = 25;
const LOCK_PAUSE: Duration = Duration::from_millis(2);

/// What is wrong with a segment of another log.
const FOREIGN: &str = "it belongs to another log";
const DAMAGED_HEADER: &str = "its header is damaged";
const DOESNT_FOLLOW: &str = "it doesn't follow the segment before it";

/// How much of a file can be frames.
const BYTES_MAX: u64 = SEGMENT_BYTES_LIMIT as u64;

/// A log as it was found.
#[derive(Default)]
pub(crate) struct Recovered {
    options: LogOptions,
    pub files: FileMap,
    pub tail: Tail,
    pub last_seq: u64,
    pub epoch: u32,
    pub log_id: Option<[u8; 16]>,
    pub file_bytes: u64,
    /// The oldest segment that is needed.
    pub oldest: u32,
    pub segments: BTreeMap<u32, Known>,
    /// Records up to this one are known to whoever opens the log: they were replayed, or needn't be.
    known_seq: u64,
    /// What lies behind the tail and was written, in bytes.
    torn_bytes: u64,
    /// Nothing but zeros lies behind the tail.
    ends_clean: bool,
    /// The last segment, where the log may go on in it.
    pub open: Option<OpenSegment>,
    pub summary: Recovery,
}

/// The file of a segment.
pub(crate) fn segment_path(folder: &Path, segment: u32) -> PathBuf {
    folder.join(format!("{segment:010}.log"))
}

fn segment_number(name: &str) -> Option<u32> {
    let digits = name.strip_suffix(".log")?;
    let is_number = digits.len() == 10 && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|number| is_number && *number > 0)
}

/// The segments in `folder` from the one with the number `first` on, in order.
async fn segments_from(env: &Env, folder: &Path, first: u32) -> Result<Vec<u32>, OpenError> {
    let entries = folder::list(&*env.engine, folder).await?;
    let numbers = entries.iter().filter_map(|entry| segment_number(&entry.name));
    Ok(numbers.filter(|number| *number >= first).collect())
}

/// The segments of a log that nobody else opens meanwhile: see [`crate::Log::lock`].
pub struct Locked {
    first: u32,
    segments: Vec<Segment>,
    syncs: Arc<DirectorySyncs>,
}

impl Locked {
    /// The syncs of the log's directory, for others who change that.
    pub fn directory_syncs(&self) -> &Arc<DirectorySyncs> {
        &self.syncs
    }
}

/// Opens the segments from the one with the number `first` on, and keeps other logs out.
pub(crate) async fn lock(env: &Env, folder: &Path, first: u32) -> Result<Locked, OpenError> {
    let syncs = Arc::new(DirectorySyncs::new(folder));
    Ok(Locked { first, segments: open_segments(env, folder, first).await?, syncs })
}

async fn open_segments(env: &Env, folder: &Path, first: u32) -> Result<Vec<Segment>, OpenError> {
    let mut segments = Vec::new();
    for number in segments_from(env, folder, first).await? {
        segments.push(Segment::open(env, folder, number).await?);
    }
    // Whatever a crash has left behind the last one, one of these is what another log would write to.
    // The oldest first: a log that has the folder has had that one's lock for long, and while it is
    // waited for here nobody keeps that log from locking its next segment.
    for segment in &segments[segments.len().saturating_sub(TORN_SEGMENT_COUNT_MAX + 1)..] {
        segment.lock(env).await?;
    }
    // What was locked may have been forgotten by another log in between, and its lock with it.
    let numbers = segments_from(env, folder, first).await?;
    if let Some(last) = segments.last()
        && !numbers.into_iter().eq(segments.iter().map(|segment| segment.number))
    {
        return Err(OpenError::InUse { path: last.path.clone() });
    }
    Ok(segments)
}

/// Reads the log in `folder`; see [`crate::Log::open_after`].
pub(crate) async fn recover(
    env: &Env,
    folder: &Path,
    options: &LogOptions,
    start: Start,
    locked: Locked,
    mut replay: Replay<'_>,
) -> Result<Recovered, OpenError> {
    assert_eq!(locked.first, start.first_segment, "other segments were locked");
    let mut segments = locked.segments;
    let seed = segments.iter().rev().find_map(|segment| Some(segment.header.ok()?.0.frame_seed()));
    let discarded = take_torn(&mut segments, seed).await?;
    let (oldest, known_seq) = (start.first_segment.max(1), start.after.0);
    let mut found = Recovered { options: *options, oldest, known_seq, ..Recovered::default() };
    if let Some(last) = segments.last() {
        let (header, _) = last.header()?;
        (found.oldest, found.log_id) = (oldest.max(header.oldest), Some(header.log_id));
    } else if oldest > 1 || start.after.0 > 0 {
        // Somebody has seen this log go on behind here.
        return Err(match discarded.last() {
            Some(torn) => torn.damaged(0, DAMAGED_HEADER),
            None => OpenError::Missing { path: segment_path(folder, oldest) },
        });
    }
    // Left over where a crash came between the header that says so and their removal.
    let forgotten: Vec<Segment> = segments.extract_if(.., |segment| segment.number < found.oldest).collect();
    for segment in &forgotten {
        segment.check_forgotten(found.log_id)?;
    }
    for (number, expected) in
        segments.iter().chain(discarded.iter().rev()).map(|segment| segment.number).zip(found.oldest..)
    {
        if number != expected {
            return Err(OpenError::Missing { path: segment_path(folder, expected) });
        }
    }
    for pair in segments.windows(2) {
        pair[1].check_follows(&pair[0])?;
    }
    for (index, segment) in segments.iter().enumerate() {
        found.take(segment, segments.get(index + 1), &mut replay).await?;
    }
    if found.last_seq < start.after.0 {
        return Err(OpenError::Behind { found: Seq(found.last_seq), expected: start.after });
    }
    if let Some(last) = segments.last() {
        found.finish(env, last).await?;
    }
    for segment in discarded {
        found.summary.cut_bytes += segment.set_aside(env, folder, seed).await?;
    }
    for segment in forgotten {
        segment.remove_forgotten(env, folder, seed).await?;
    }
    found.files = segments.into_iter().map(|segment| (segment.number, Slot::new(segment.file))).collect();
    Ok(found)
}

/// Takes out the last segments in which nothing was ever persisted, the last one first. `seed` is
/// that of the log's frames, where a header tells it.
async fn take_torn(segments: &mut Vec<Segment>, seed: Option<FrameSeed>) -> Result<Vec<Segment>, OpenError> {
    let mut torn: Vec<Segment> = Vec::new();
    while torn.len() < TORN_SEGMENT_COUNT_MAX
        && let Some(last) = segments.last()
        && last.header == Err(HeaderError::Invalid)
    {
        let bytes = last.read(last.length).await?;
        last.check_cut(&bytes, 0, seed)?;
        // Where frames were written all of the segment before had been persisted.
        let is_begun = last.has_frames(&bytes, seed);
        torn.extend(segments.pop());
        if is_begun {
            break;
        }
    }
    Ok(torn)
}

impl Recovered {
    /// Checks a segment and replays its records, as far as that is wanted. `next` is the one after
    /// it.
    async fn take(
        &mut self,
        segment: &Segment,
        next: Option<&Segment>,
        replay: &mut Replay<'_>,
    ) -> Result<(), OpenError> {
        let (header, checksum) = segment.header()?;
        if header.segment == self.oldest && self.oldest > 1 {
            // What came before is not needed any more: only this header tells of it.
            let (end, checksum) = (header.previous_end, header.previous_checksum);
            self.tail = Tail { segment: header.segment - 1, end, checksum };
            self.last_seq = header.first_seq - 1;
        }
        let follows = (header.previous_end, header.previous_checksum) == (self.tail.end, self.tail.checksum);
        if !(follows && header.first_seq == self.last_seq + 1) {
            return Err(segment.damaged(0, DOESNT_FOLLOW));
        }
        self.log_id = Some(header.log_id);
        self.epoch = header.epoch;
        self.tail = Tail { segment: header.segment, end: SEGMENT_HEADER_SIZE as u64, checksum };
        self.known_seq = self.known_seq.max(self.last_seq);
        let is_read = match next {
            Some(next) => !self.take_unread(segment, next, replay).await?,
            None => true,
        };
        if is_read {
            self.take_frames(segment, next.map(Segment::header).transpose()?, replay).await?;
        }
        self.summary.segment_count += 1;
        self.file_bytes += self.tail.end;
        let known = Known { epoch: header.epoch, first_seq: header.first_seq, bytes: self.tail.end };
        self.segments.insert(header.segment, known);
        Ok(())
    }

    /// Takes a segment as `next`, the one after it, has it, and replays what of it is wanted from its
    /// directory. `false` where its frames are to be read.
    async fn take_unread(
        &mut self,
        segment: &Segment,
        next: &Segment,
        replay: &mut Replay<'_>,
    ) -> Result<bool, OpenError> {
        let Replay::Entries(replay) = replay else { return Ok(false) };
        let ((header, _), (following, _)) = (segment.header()?, next.header()?);
        if following.first_seq < header.first_seq {
            return Err(next.damaged(0, DOESNT_FOLLOW));
        }
        segment.check_length(following.previous_end)?;
        if following.first_seq - 1 <= self.known_seq {
            self.summary.skipped_count += 1;
        } else if self.take_directory(segment, &header, &following, *replay).await? {
            self.summary.directory_count += 1;
        } else {
            return Ok(false);
        }
        (self.tail.end, self.tail.checksum) = (following.previous_end, following.previous_checksum);
        self.last_seq = following.first_seq - 1;
        Ok(true)
    }

    /// Replays a segment's entries from its directory. `false` where there is none, or it doesn't say
    /// what the headers do, or not all of it: then what was replayed is right all the same, and the
    /// frames have the rest.
    async fn take_directory(
        &mut self,
        segment: &Segment,
        header: &SegmentHeader,
        next: &SegmentHeader,
        replay: &mut (dyn FnMut(EntryRef<'_>) + Send),
    ) -> Result<bool, OpenError> {
        let directory = match Directory::open(segment.file.clone(), header.segment, header.epoch).await {
            Ok(directory) if agrees(directory.trailer(), header, next) => directory,
            Ok(_) => {
                tracing::warn!(path = %segment.path.display(), "a directory isn't that of its segment");
                return Ok(false);
            }
            Err(DirectoryError::Io(error)) => return Err(error.into()),
            Err(DirectoryError::Absent { .. }) => return Ok(false),
            Err(error) => {
                tracing::warn!(%error, "a segment is read without its directory");
                return Ok(false);
            }
        };
        let mut scan = directory.scan_seq(Seq(self.known_seq + 1));
        while self.known_seq + 1 < next.first_seq {
            let damage = match scan.next().await {
                Ok(Some((entry, _))) if self.is_next(&entry, next) => {
                    self.known_seq = entry.seq.0;
                    self.summary.record_count += 1;
                    replay(entry);
                    continue;
                }
                Err(DirectoryError::Io(error)) => return Err(error.into()),
                Err(error) => error.to_string(),
                Ok(_) => "it lacks entries".to_string(),
            };
            let path = segment.path.display();
            tracing::warn!(%path, damage, "a segment is read without the rest of its directory");
            return Ok(false);
        }
        Ok(true)
    }

    /// Whether an entry can be that of the next record, which lies before the segment `next`.
    fn is_next(&self, entry: &EntryRef<'_>, next: &SegmentHeader) -> bool {
        let end = u64::from(entry.location.offset) + u64::from(entry.location.length);
        entry.seq.0 == self.known_seq + 1 && end <= next.previous_end
    }

    /// Hands over a record, unless it needn't be.
    fn replay(&mut self, location: Location, record: RecordRef<'_>, replay: &mut Replay<'_>) {
        let RecordRef { seq, flags, key, meta, .. } = record;
        match replay {
            Replay::Records(replay) => replay(location, record),
            Replay::Entries(_) if seq.0 <= self.known_seq => return,
            Replay::Entries(replay) => replay(EntryRef { seq, flags, key, meta, location }),
        }
        self.summary.record_count += 1;
    }

    /// Reads a segment's frames. `next` is the header of the one after it.
    async fn take_frames(
        &mut self,
        segment: &Segment,
        next: Option<(SegmentHeader, u64)>,
        replay: &mut Replay<'_>,
    ) -> Result<(), OpenError> {
        let (header, _) = segment.header()?;
        // Behind the frames there may be a directory, or what the file held before.
        let end = next.map_or(segment.length.min(BYTES_MAX), |(next, _)| next.previous_end);
        segment.check_length(end)?;
        let bytes = match segment.read(end).await {
            Err(_) if self.options.is_planted(Planted::ErrorAsEnd) => vec![0; end as usize].into(),
            read => read?,
        };
        let mut yield_at = YIELD_BYTES;
        while let Some((start, frame)) = next_frame((0, &bytes), &header, &self.tail, self.last_seq)
            .or_else(|| self.recycled_frame(&bytes, &header))
        {
            if start > yield_at {
                settee_io::yield_now().await;
                yield_at = start + YIELD_BYTES;
            }
            for (offset, record) in frame.records().filter(|_| frame.header.kind == FrameKind::Batch) {
                let location = Location {
                    segment: header.segment,
                    offset: (start + offset) as u32,
                    length: record.size() as u32,
                };
                self.replay(location, record, replay);
            }
            self.tail.end = (start + frame.header.frame_size()) as u64;
            self.tail.checksum = frame.checksum;
            self.last_seq = frame.header.next_seq() - 1;
        }
        if next.is_some() && self.tail.end != end {
            return Err(segment.damaged(self.tail.end, "a frame is damaged, and others follow it"));
        }
        if next.is_none() {
            let seed = Some(header.frame_seed());
            segment.check_cut(&bytes, self.tail.end, seed)?;
            let behind = &bytes[self.tail.end as usize..];
            self.ends_clean = torn_bytes(behind) == 0 && segment.length <= BYTES_MAX;
            // What the file held before isn't torn: only what was written for this segment is.
            let is_torn = !header.is_reused || segment.has_frames(behind, seed);
            self.torn_bytes = if is_torn { torn_bytes(behind) } else { 0 };
        }
        Ok(())
    }

    /// [`Planted::RecycledFrame`].
    fn recycled_frame<'a>(&self, bytes: &'a [u8], header: &SegmentHeader) -> Option<(usize, Frame<'a>)> {
        if !self.options.is_planted(Planted::RecycledFrame) {
            return None;
        }
        let start = (self.tail.end as usize).next_multiple_of(SYNC_ALIGNMENT as usize);
        Some((start, Frame::decode(bytes.get(start..)?, header.frame_seed())?))
    }

    /// Cuts what lies behind the last whole frame, and puts what was found on stable storage:
    /// it may have been read from the page cache, left there by a process that was killed.
    async fn finish(&mut self, env: &Env, last: &Segment) -> Result<(), OpenError> {
        if self.options.is_planted(Planted::AppendBehindCut) {
            self.tail.end += std::mem::take(&mut self.torn_bytes);
        }
        if self.torn_bytes > 0 {
            tracing::warn!(path = %last.path.display(), offset = self.tail.end, bytes = self.torn_bytes, "cut a torn tail");
            self.summary.cut_bytes += self.torn_bytes;
        }
        if !self.ends_clean {
            // What was found shares its last block with what is cut: that block stays as it is.
            let end = self.tail.end.next_multiple_of(u64::from(SYNC_ALIGNMENT));
            if end < last.length {
                last.file.set_length(end).await?;
            }
        } else {
            self.open = Some(OpenSegment {
                number: last.number,
                epoch: self.epoch,
                seed: last.header()?.0.frame_seed(),
                file: last.file.clone(),
                bytes_max: last.length as u32,
                allocated: last.length as u32,
                checksum: self.tail.checksum,
                header: None,
            });
        }
        last.file.sync().await?;
        folder::sync(&*env.engine, last.path.parent().expect("a segment lies in a folder")).await?;
        Ok(())
    }
}

/// The frame that follows in a segment whose frames so far end at `tail` with the record
/// `last_seq`, and where it begins: right there, or at the next boundary. `bytes` are the segment's from
/// `base` on.
pub(crate) fn next_frame<'a>(
    (base, bytes): (usize, &'a [u8]),
    segment: &SegmentHeader,
    tail: &Tail,
    last_seq: u64,
) -> Option<(usize, Frame<'a>)> {
    let next = |start: usize| {
        let bytes = bytes.get(start.checked_sub(base)?..)?;
        // A frame whose padding is missing is torn as well.
        next_header(bytes, segment, tail, last_seq).filter(|header| header.frame_size() <= bytes.len())?;
        Some((start, Frame::decode(bytes, segment.frame_seed())?))
    };
    tail.next_starts().into_iter().find_map(next)
}

/// Where that frame ends by what its header says, though not all of it is among `bytes`.
pub(crate) fn next_frame_end(
    (base, bytes): (usize, &[u8]),
    segment: &SegmentHeader,
    tail: &Tail,
    last_seq: u64,
) -> Option<usize> {
    tail.next_starts().into_iter().find_map(|start| {
        let header = next_header(bytes.get(start.checked_sub(base)?..)?, segment, tail, last_seq)?;
        Some(start + header.frame_size())
    })
}

/// The header in front of these bytes, where it is that of the next frame.
fn next_header(bytes: &[u8], segment: &SegmentHeader, tail: &Tail, last_seq: u64) -> Option<FrameHeader> {
    let belongs = |header: &FrameHeader| {
        header.segment == segment.segment
            && header.epoch == segment.epoch
            && header.first_seq == last_seq + 1
            && header.previous == tail.checksum
    };
    FrameHeader::decode(bytes, segment.frame_seed()).filter(belongs)
}

/// Whether a footer is that of the segment with this header, before the segment `next`.
fn agrees(trailer: &Trailer, header: &SegmentHeader, next: &SegmentHeader) -> bool {
    (trailer.frames_end, trailer.frames_checksum) == (next.previous_end, next.previous_checksum)
        && trailer.record_count == next.first_seq - header.first_seq
}

/// How much of what lies behind the last frame was ever written: room reserved and not used
/// reads as zeros.
fn torn_bytes(behind: &[u8]) -> u64 {
    behind.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u64 + 1)
}

/// A segment's file, with what its first bytes say.
struct Segment {
    number: u32,
    path: PathBuf,
    file: Arc<File>,
    length: u64,
    header: Result<(SegmentHeader, u64), HeaderError>,
}

impl Segment {
    async fn open(env: &Env, folder: &Path, number: u32) -> Result<Segment, OpenError> {
        let path = segment_path(folder, number);
        let file = Arc::new(File::open(&env.engine, &path, OpenMode::Write).await?);
        let length = file.length().await?;
        let header = SegmentHeader::decode(&file.read_at(0, SEGMENT_HEADER_SIZE).await?);
        Ok(Segment { number, path, file, length, header })
    }

    /// Keeps other logs out. One that was just closed may have told the end of an operation and not
    /// let go of its file yet: so it is tried more than once, but far less long than a log tries
    /// that has the folder and meets this.
    async fn lock(&self, env: &Env) -> Result<(), OpenError> {
        for _ in 0..LOCK_TRIES_MAX {
            match self.file.lock().await {
                Err(error) if error.io_kind() == Some(std::io::ErrorKind::WouldBlock) => {
                    env.clock.sleep(LOCK_PAUSE).await;
                }
                locked => return Ok(locked?),
            }
        }
        Err(OpenError::InUse { path: self.path.clone() })
    }

    /// Its first `end` bytes, as far as there can be frames.
    async fn read(&self, end: u64) -> Result<bytes::Bytes, OpenError> {
        Ok(self.file.read_exact_at(0, end.min(BYTES_MAX) as usize).await?)
    }

    /// Whether there can be frames up to `end`.
    fn check_length(&self, end: u64) -> Result<(), OpenError> {
        match end > self.length {
            true => Err(self.damaged(self.length, "it is shorter than it was")),
            false => Ok(()),
        }
    }

    fn damaged(&self, offset: u64, what: &'static str) -> OpenError {
        OpenError::Damaged { path: self.path.clone(), offset, what }
    }

    /// The header and its checksum.
    fn header(&self) -> Result<(SegmentHeader, u64), OpenError> {
        match self.header {
            Ok((header, checksum)) if header.segment == self.number => Ok((header, checksum)),
            Ok(_) => Err(self.damaged(0, "it is another segment, renamed")),
            Err(HeaderError::Invalid) => Err(self.damaged(0, DAMAGED_HEADER)),
            Err(HeaderError::Impossible(what)) => Err(self.damaged(0, what)),
            Err(HeaderError::Version(found)) => {
                Err(OpenError::OtherFormat { path: self.path.clone(), found, known: FORMAT_VERSION })
            }
        }
    }

    /// Takes it out of the log: renamed where something had been written to it, in case somebody
    /// wants to look. Returns how many bytes that was.
    async fn set_aside(&self, env: &Env, folder: &Path, seed: Option<FrameSeed>) -> Result<u64, OpenError> {
        let bytes = self.read(self.length).await?;
        // A file that was to be used again: its header is zeros, and behind it is what it held.
        let is_unused = bytes.iter().take(SYNC_ALIGNMENT as usize).all(|byte| *byte == 0)
            && !self.has_frames(&bytes, seed);
        let written = if is_unused { 0 } else { torn_bytes(&bytes) };
        if written > 0 || self.length > BYTES_MAX {
            let aside = self.path.with_extension("torn");
            tracing::warn!(path = %aside.display(), bytes = written, "set aside a segment without a header");
            folder::rename(&*env.engine, &self.path, &aside).await?;
        } else {
            if self.length == 0 {
                tracing::warn!(path = %self.path.display(), "removed an empty segment: never written, or cut");
            }
            folder::remove(&*env.engine, &self.path).await?;
        }
        folder::sync(&*env.engine, folder).await?;
        Ok(written)
    }

    /// Whether this file, older than any that is needed, is one of the log's, as far as it says.
    fn check_forgotten(&self, log_id: Option<[u8; 16]>) -> Result<(), OpenError> {
        // Its header was zeroed where it was to be used again.
        let is_foreign = self.header != Err(HeaderError::Invalid) && Some(self.header()?.0.log_id) != log_id;
        if is_foreign { Err(self.damaged(0, FOREIGN)) } else { Ok(()) }
    }

    /// Removes it from the folder, unless nobody knows what it is.
    async fn remove_forgotten(
        &self,
        env: &Env,
        folder: &Path,
        seed: Option<FrameSeed>,
    ) -> Result<(), OpenError> {
        let head = self.file.read_at(0, SEGMENT_HEADER_SIZE).await?;
        if self.header.is_err() && head.iter().any(|byte| *byte != 0) {
            return self.set_aside(env, folder, seed).await.map(drop);
        }
        Ok(folder::remove(&*env.engine, &self.path).await?)
    }

    /// The frames in `bytes` that were written for this segment, wherever they stand from `start`
    /// on; without a seed, what looks like such.
    fn frames(
        &self,
        bytes: &[u8],
        start: usize,
        seed: Option<FrameSeed>,
    ) -> impl Iterator<Item = (usize, FrameHeader)> {
        let epoch = self.header.ok().map(|(header, _)| header.epoch);
        let places = (start.next_multiple_of(FRAME_ALIGNMENT)..bytes.len()).step_by(FRAME_ALIGNMENT);
        places.filter_map(move |at| {
            let bytes = &bytes[at..];
            let header = match seed {
                Some(seed) => FrameHeader::decode(bytes, seed)?,
                None => FrameHeader::guess(bytes)?,
            };
            let belongs = header.segment == self.number && epoch.is_none_or(|epoch| header.epoch == epoch);
            // Only what may be a frame is hashed.
            (belongs && seed.is_none_or(|seed| Frame::decode(bytes, seed).is_some())).then_some((at, header))
        })
    }

    /// Whether there are frames that were written for this segment.
    fn has_frames(&self, bytes: &[u8], seed: Option<FrameSeed>) -> bool {
        self.frames(bytes, 0, seed).next().is_some()
    }

    /// Whether it may come after the segment `before`, as their headers tell.
    fn check_follows(&self, before: &Segment) -> Result<(), OpenError> {
        let ((header, _), (before, _)) = (self.header()?, before.header()?);
        if header.log_id != before.log_id || header.epoch < before.epoch {
            return Err(self.damaged(0, FOREIGN));
        }
        Ok(())
    }

    /// Whether all from `cut` on may go: no whole frame behind it says that more than `cut` had
    /// been persisted.
    fn check_cut(&self, bytes: &[u8], cut: u64, seed: Option<FrameSeed>) -> Result<(), OpenError> {
        // One that tells of more than stands before it was not written by a log.
        let tells = |(at, header): (usize, FrameHeader)| {
            let persisted = u64::from(header.persisted);
            persisted <= at as u64 && persisted > cut
        };
        match self.frames(bytes, cut as usize, seed).any(tells) {
            true => Err(self.damaged(cut, "a frame is damaged below what had been persisted")),
            false => Ok(()),
        }
    }
}
