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
//! 4. Files are changed only after all of them were found sound.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use settee_io::{Env, File, OpenMode, folder};

use crate::error::OpenError;
use crate::format::{
    FORMAT_VERSION, FRAME_ALIGNMENT, Frame, FrameKind, HeaderError, RecordRef, SEGMENT_HEADER_SIZE,
    SYNC_ALIGNMENT, SegmentHeader,
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
    (digits.len() == 10).then(|| digits.parse().ok()).flatten()
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
    let mut discarded: Vec<Segment> = Vec::new();
    while discarded.len() < TORN_SEGMENT_COUNT_MAX
        && let Some(last) = segments.last()
        && last.is_torn_from_the_start().await?
    {
        // Where frames were written all of the segment before had been persisted.
        let is_begun = last.has_frames(&last.read(last.length).await?);
        discarded.extend(segments.pop());
        if is_begun {
            break;
        }
    }
    let mut found = Recovered { options: *options, oldest: 1, ..Recovered::default() };
    if let Some(Segment { header: Ok((header, _)), .. }) = segments.last() {
        found.oldest = header.oldest;
    }
    // Left over where a crash came between the header that says so and their removal.
    let forgotten: Vec<Segment> = segments.extract_if(.., |segment| segment.number < found.oldest).collect();
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
        found.summary.cut_bytes += segment.set_aside(env, folder).await?;
    }
    for segment in forgotten {
        folder::remove(&*env.engine, &segment.path).await?;
    }
    found.files = segments.into_iter().map(|segment| (segment.number, segment.file)).collect();
    Ok(found)
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
        let end = next.map_or(segment.length, |next| next.previous_end);
        if end > segment.length {
            return Err(segment.damaged(segment.length, "it is shorter than it was"));
        }
        let bytes = match segment.read(end).await {
            Err(_) if self.options.is_planted(Planted::ErrorAsEnd) => vec![0; end as usize].into(),
            read => read?,
        };
        let mut yield_at = YIELD_BYTES;
        while let Some((start, frame)) =
            next_frame(&bytes, &header, &self.tail, self.last_seq).or_else(|| self.recycled_frame(&bytes))
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
            segment.check_cut(&bytes, self.tail.end)?;
            let behind = &bytes[self.tail.end as usize..];
            self.ends_clean = torn_bytes(behind) == 0;
            // What the file held before isn't torn: only what was written for this segment is.
            let is_torn = !header.is_reused || segment.has_frames(behind);
            self.torn_bytes = if is_torn { torn_bytes(behind) } else { 0 };
        }
        self.summary.segment_count += 1;
        self.file_bytes += self.tail.end;
        let known = Known { first_seq: header.first_seq, bytes: self.tail.end };
        self.segments.insert(header.segment, known);
        Ok(())
    }

    /// [`Planted::RecycledFrame`].
    fn recycled_frame<'a>(&self, bytes: &'a [u8]) -> Option<(usize, Frame<'a>)> {
        if !self.options.is_planted(Planted::RecycledFrame) {
            return None;
        }
        let start = (self.tail.end as usize).next_multiple_of(SYNC_ALIGNMENT as usize);
        Some((start, Frame::decode(bytes.get(start..)?)?))
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
    let end = tail.end as usize;
    let next = |start: usize| {
        let frame = Frame::decode(bytes.get(start..)?)?;
        let header = &frame.header;
        let belongs = header.segment == segment.segment
            && header.epoch == segment.epoch
            && header.first_seq == last_seq + 1
            && header.previous == tail.checksum;
        // A frame whose padding is missing is torn as well.
        (belongs && start + header.frame_size() <= bytes.len()).then_some((start, frame))
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
        if length > u64::from(SEGMENT_BYTES_LIMIT) {
            return Err(OpenError::Damaged { path, offset: 0, what: "it is larger than any segment" });
        }
        let header = SegmentHeader::decode(&file.read_at(0, SEGMENT_HEADER_SIZE).await?);
        Ok(Segment { number, path, file, length, header })
    }

    /// Its first `end` bytes.
    async fn read(&self, end: u64) -> Result<bytes::Bytes, OpenError> {
        Ok(self.file.read_exact_at(0, end as usize).await?)
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
            Err(HeaderError::Version(found)) => {
                Err(OpenError::OtherFormat { path: self.path.clone(), found, known: FORMAT_VERSION })
            }
        }
    }

    /// Takes it out of the log: renamed where something had been written to it, in case somebody
    /// wants to look. Returns how many bytes that was.
    async fn set_aside(&self, env: &Env, folder: &Path) -> Result<u64, OpenError> {
        let bytes = self.read(self.length).await?;
        // A file that was to be used again: its header is zeros, and behind it is what it held.
        let is_unused =
            bytes.iter().take(SYNC_ALIGNMENT as usize).all(|byte| *byte == 0) && !self.has_frames(&bytes);
        let written = if is_unused { 0 } else { torn_bytes(&bytes) };
        if written > 0 {
            let aside = self.path.with_extension("torn");
            tracing::warn!(path = %aside.display(), bytes = written, "set aside a segment without a header");
            folder::rename(&*env.engine, &self.path, &aside).await?;
        } else {
            folder::remove(&*env.engine, &self.path).await?;
        }
        folder::sync(&*env.engine, folder).await?;
        Ok(written)
    }

    /// Whether there are frames that were written for this segment.
    fn has_frames(&self, bytes: &[u8]) -> bool {
        let mut places = (0..bytes.len()).step_by(FRAME_ALIGNMENT);
        places.any(|at| Frame::decode(&bytes[at..]).is_some_and(|frame| frame.header.segment == self.number))
    }

    /// Whether it may come after the segment `before`, as their headers tell.
    fn check_follows(&self, before: &Segment) -> Result<(), OpenError> {
        let ((header, _), (before, _)) = (self.header()?, before.header()?);
        if header.log_id != before.log_id || header.epoch < before.epoch {
            return Err(self.damaged(0, "it belongs to another log"));
        }
        Ok(())
    }

    /// Whether nothing in this last segment was ever persisted, since not even its header is
    /// whole.
    async fn is_torn_from_the_start(&self) -> Result<bool, OpenError> {
        if self.header != Err(HeaderError::Invalid) {
            return Ok(false);
        }
        self.check_cut(&self.read(self.length).await?, 0)?;
        Ok(true)
    }

    /// Whether all from `cut` on may go: no whole frame behind it says that more than `cut` had
    /// been persisted.
    fn check_cut(&self, bytes: &[u8], cut: u64) -> Result<(), OpenError> {
        let start = (cut as usize).next_multiple_of(FRAME_ALIGNMENT);
        for at in (start..bytes.len()).step_by(FRAME_ALIGNMENT) {
            let Some(frame) = Frame::decode(&bytes[at..]) else {
                continue;
            };
            let persisted = u64::from(frame.header.persisted);
            let epoch = self.header.map_or(frame.header.epoch, |(header, _)| header.epoch);
            let belongs = (frame.header.segment, frame.header.epoch) == (self.number, epoch);
            // One that tells of more than stands before it was not written by a log.
            if belongs && persisted <= at as u64 && persisted > cut {
                return Err(self.damaged(cut, "a frame is damaged below what had been persisted"));
            }
        }
        Ok(())
    }
}
