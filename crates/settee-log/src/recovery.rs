//! Recovery: what a log holds after its process or the power has gone.
//!
//! Reads every segment in order and checks every frame. Damage in the last segment above all
//! that is known to have been persisted is a torn tail, which is cut; any other is an error.
//! The cases, with their labels, are in `docs/recovery.md`.
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
//!
//! Limits: no more than [`SEGMENT_BYTES_LIMIT`] bytes of a file are read at once, whatever its
//! length, since no frame lies behind them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use settee_io::{Env, File, OpenMode, folder};

use crate::error::OpenError;
use crate::format::{
    FORMAT_VERSION, FRAME_ALIGNMENT, Frame, FrameHeader, FrameKind, FrameSeed, HeaderError, RecordRef,
    SEGMENT_HEADER_SIZE, SYNC_ALIGNMENT, SegmentHeader,
};
use crate::log::{Location, LogOptions, SEGMENT_BYTES_LIMIT};
use crate::planted::Planted;
use crate::room::OpenSegment;
use crate::seal::Known;

/// What opening a log found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Segments that were read.
    pub segment_count: usize,
    /// Records handed to `replay`.
    pub record_count: u64,
    /// Bytes of a torn tail that were cut from the last segment.
    pub cut_bytes: u64,
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

/// After how many bytes of a segment recovery lets other tasks run.
const YIELD_BYTES: usize = 1 << 20;

/// How many segments a crash can leave without a header: the one that was begun last, and the
/// one that was made ahead of it.
const TORN_SEGMENT_COUNT_MAX: usize = 2;

/// How often it is tried to lock a segment that another log may have, and how far apart.
const LOCK_TRIES_MAX: usize = 25;
const LOCK_PAUSE: Duration = Duration::from_millis(2);

/// What is wrong with a segment of another log.
const FOREIGN: &str = "it belongs to another log";

/// How much of a file can be frames.
const BYTES_MAX: u64 = SEGMENT_BYTES_LIMIT as u64;

/// A log as it was found.
#[derive(Default)]
pub(crate) struct Recovered {
    options: LogOptions,
    pub files: BTreeMap<u32, Arc<File>>,
    pub tail: Tail,
    pub last_seq: u64,
    pub epoch: u32,
    pub log_id: Option<[u8; 16]>,
    pub file_bytes: u64,
    /// The oldest segment that is needed.
    pub oldest: u32,
    pub segments: BTreeMap<u32, Known>,
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

/// Reads the log in `folder`; see [`crate::Log::open`].
pub(crate) async fn recover(
    env: &Env,
    folder: &Path,
    options: &LogOptions,
    mut replay: impl FnMut(Location, RecordRef<'_>) + Send,
) -> Result<Recovered, OpenError> {
    let mut segments = Vec::new();
    for entry in folder::list(&*env.engine, folder).await? {
        if let Some(number) = segment_number(&entry.name) {
            segments.push(Segment::open(env, folder, number).await?);
        }
    }
    // Whatever a crash has left behind the last one, one of these is what another log would write to.
    for segment in segments.iter().rev().take(TORN_SEGMENT_COUNT_MAX + 1) {
        segment.lock(env).await?;
    }
    // What was locked may have been forgotten by another log in between, and its lock with it.
    let numbers = folder::list(&*env.engine, folder).await?;
    let numbers = numbers.iter().filter_map(|entry| segment_number(&entry.name));
    if let Some(last) = segments.last()
        && !numbers.eq(segments.iter().map(|segment| segment.number))
    {
        return Err(OpenError::InUse { path: last.path.clone() });
    }
    let seed = segments.iter().rev().find_map(|segment| Some(segment.header.ok()?.0.frame_seed()));
    let discarded = take_torn(&mut segments, seed).await?;
    let mut found = Recovered { options: *options, oldest: 1, ..Recovered::default() };
    if let Some(last) = segments.last() {
        let (header, _) = last.header()?;
        (found.oldest, found.log_id) = (header.oldest, Some(header.log_id));
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
        let next = segments.get(index + 1).map(Segment::header).transpose()?;
        found.take(segment, next.map(|(header, _)| header), &mut replay).await?;
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
    found.files = segments.into_iter().map(|segment| (segment.number, segment.file)).collect();
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
    /// Checks a segment and replays its records. `next` is the header of the one after it.
    async fn take(
        &mut self,
        segment: &Segment,
        next: Option<SegmentHeader>,
        replay: &mut (impl FnMut(Location, RecordRef<'_>) + Send),
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
            return Err(segment.damaged(0, "it doesn't follow the segment before it"));
        }
        self.log_id = Some(header.log_id);
        self.epoch = header.epoch;
        self.tail = Tail { segment: header.segment, end: SEGMENT_HEADER_SIZE as u64, checksum };
        // Behind the frames there may be a directory, or what the file held before.
        let end = next.map_or(segment.length.min(BYTES_MAX), |next| next.previous_end);
        if end > segment.length {
            return Err(segment.damaged(segment.length, "it is shorter than it was"));
        }
        let bytes = match segment.read(end).await {
            Err(_) if self.options.is_planted(Planted::ErrorAsEnd) => vec![0; end as usize].into(),
            read => read?,
        };
        let mut yield_at = YIELD_BYTES;
        while let Some((start, frame)) = next_frame(&bytes, &header, &self.tail, self.last_seq)
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
                replay(location, record);
            }
            self.tail.end = (start + frame.header.frame_size()) as u64;
            self.tail.checksum = frame.checksum;
            self.summary.record_count += frame.header.next_seq() - frame.header.first_seq;
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
        self.summary.segment_count += 1;
        self.file_bytes += self.tail.end;
        let known = Known { first_seq: header.first_seq, bytes: self.tail.end };
        self.segments.insert(header.segment, known);
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
/// `last_seq`, and where it begins: right there, or at the next boundary.
pub(crate) fn next_frame<'a>(
    bytes: &'a [u8],
    segment: &SegmentHeader,
    tail: &Tail,
    last_seq: u64,
) -> Option<(usize, Frame<'a>)> {
    let (end, seed) = (tail.end as usize, segment.frame_seed());
    let next = |start: usize| {
        let bytes = bytes.get(start..)?;
        let header = FrameHeader::decode(bytes, seed)?;
        let belongs = header.segment == segment.segment
            && header.epoch == segment.epoch
            && header.first_seq == last_seq + 1
            && header.previous == tail.checksum;
        // A frame whose padding is missing is torn as well.
        if !belongs || header.frame_size() > bytes.len() {
            return None;
        }
        Some((start, Frame::decode(bytes, seed)?))
    };
    next(end).or_else(|| next(end.next_multiple_of(SYNC_ALIGNMENT as usize)))
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

    fn damaged(&self, offset: u64, what: &'static str) -> OpenError {
        OpenError::Damaged { path: self.path.clone(), offset, what }
    }

    /// The header and its checksum.
    fn header(&self) -> Result<(SegmentHeader, u64), OpenError> {
        match self.header {
            Ok((header, checksum)) if header.segment == self.number => Ok((header, checksum)),
            Ok(_) => Err(self.damaged(0, "it is another segment, renamed")),
            Err(HeaderError::Invalid) => Err(self.damaged(0, "its header is damaged")),
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
