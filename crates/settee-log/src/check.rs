//! Verification: checks whether a segment's file contains what was written to it, and finds the readable
//! records of a damaged one.
//!
//! Goes from frame to frame as recovery does. At a frame that isn't whole, it searches for the next whole one
//! and reports the records in between, each checked separately: damage doesn't end the check. Nothing is
//! changed or locked.
//!
//! Limits: as in recovery, a window of the segment is in memory (`frames.rs`).

use bytes::Bytes;
use settee_io::File;

use crate::format::{
    BATCH_SIZE_MAX, FORMAT_VERSION, FRAME_ALIGNMENT, FRAME_HEADER_SIZE, Frame, FrameSeed, HeaderError,
    RECORD_HEADER_SIZE, RecordRef, SEGMENT_BYTES_LIMIT, SEGMENT_HEADER_SIZE, SYNC_ALIGNMENT, SegmentHeader,
};
use crate::frames::FrameReader;
use crate::types::{Location, ReadFormat, Seq, TimelineId};

/// Size of the used part of a header; the rest is zeros.
const HEADER_USED: usize = 80;

/// The content of a segment's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentHead {
    /// The segment's number.
    pub number: u32,
    /// Its epoch.
    pub epoch: u32,
    /// The timeline under which it was begun.
    pub timeline: TimelineId,
    /// The oldest segment that the log still needed when this one began.
    pub oldest: u32,
    /// The `Seq` of the first record that was, or would be, stored in it.
    pub first_seq: Seq,
    /// Offset where the frames of the previous segment end.
    pub previous_end: u64,
    /// Checksum of the last frame of the previous segment.
    pub previous_checksum: u64,
}

/// A range of bytes that are not those that were written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DamagedRange {
    /// Offset of its first byte.
    pub offset: u64,
    /// Offset of the first byte after it.
    pub end: u64,
    /// Description of the damage.
    pub what: &'static str,
    /// Whether it may also be what a crash left of an unacknowledged write; opening the log cuts that.
    pub is_doubtful: bool,
}

/// The result of [`check_segment`].
#[derive(Debug, Clone, Default)]
pub struct SegmentCheck {
    /// The header, if it is sound.
    pub head: Option<SegmentHead>,
    /// Offset where the frames end.
    pub frames_end: u64,
    /// Checksum of the last frame, or of the header; unknown after damage.
    pub frames_checksum: Option<u64>,
    /// The last record; 0 if there is none.
    pub last_seq: Seq,
    /// Offset where the unused part of the segment begins: a multiple of 4096 after the frames, or the end of
    /// the close mark there.
    pub unused_start: u64,
    /// Whether a close mark follows the last frame: the log was closed in order after it.
    pub has_close_mark: bool,
    /// Whether the rest of the last frame's block isn't zeros, although the log wrote nothing else there unless
    /// a crash tore a write and the log was opened again. Unknown (false) for the last segment of a log, where
    /// that is reported as damage, and in a file that held another segment before.
    pub is_padding_written: bool,
    /// The damage, in the order of the file.
    pub damage: Vec<DamagedRange>,
}

/// Reads a segment's header. If it isn't valid, returns `Err(true)` for one that is all zeros (a segment that
/// was not begun), and `Err(false)` for a damaged one, or one in another
/// format.
///
/// # Errors
/// An I/O error.
pub async fn segment_head(
    file: &File,
    format: ReadFormat,
) -> Result<Result<SegmentHead, bool>, settee_io::Error> {
    let bytes = file.read_at(0, SEGMENT_HEADER_SIZE).await?;
    Ok(match SegmentHeader::decode_as(format, &bytes) {
        Ok((header, _)) => Ok(head_of(&header)),
        Err(_) => Err(bytes.iter().all(|byte| *byte == 0)),
    })
}

fn head_of(header: &SegmentHeader) -> SegmentHead {
    SegmentHead {
        number: header.segment,
        epoch: header.epoch,
        timeline: header.timeline,
        oldest: header.oldest,
        first_seq: Seq(header.first_seq),
        previous_end: header.previous_end,
        previous_checksum: header.previous_checksum,
    }
}

/// Reads the segment `number` and checks all of it: the header, every frame and record, their order, and that
/// unused bytes are zeros where they must be. `end` is where its frames end, if known; the last segment of a
/// log ends where its frames do. `timeline` is assumed for a segment whose header is damaged.
/// `expected_seq` is a record that the log is known to have contained: a last segment that ends before it is
/// damaged. Calls `visit` with every record, in the order of the file, and whether it is
/// sound; the content of an unsound one can't be trusted.
///
/// # Errors
/// An I/O error. Damage is not an error.
pub async fn check_segment(
    file: &File,
    number: u32,
    end: Option<u64>,
    timeline: Option<TimelineId>,
    expected_seq: Seq,
    format: ReadFormat,
    visit: impl FnMut(Location, RecordRef<'_>, bool),
) -> Result<SegmentCheck, settee_io::Error> {
    let length = file.length().await?.min(SEGMENT_BYTES_LIMIT.into());
    let read_end = end.unwrap_or(length).min(length);
    let head = file.read_exact_at(0, read_end.min(SEGMENT_HEADER_SIZE as u64) as usize).await?;
    let (frames_end, unused_start) = (SEGMENT_HEADER_SIZE as u64, SYNC_ALIGNMENT.into());
    let mut found = SegmentCheck { frames_end, unused_start, ..SegmentCheck::default() };
    if let Some(end) = end.filter(|end| *end > length) {
        found.damaged(length, end, "it is shorter than it should be");
    }
    let (mut epoch, mut seed, mut is_reused) = (None, timeline.map(FrameSeed::of), true);
    let mut next_seq = None;
    match SegmentHeader::decode_as(format, &head) {
        Ok((header, checksum)) if header.segment == number => {
            found.head = Some(head_of(&header));
            found.frames_checksum = Some(checksum);
            (epoch, seed, is_reused) = (Some(header.epoch), Some(header.frame_seed()), header.is_reused);
            next_seq = Some(header.first_seq);
            found.last_seq = Seq(header.first_seq - 1);
            if !is_zeros(&head[HEADER_USED..]) {
                found.damaged(
                    HEADER_USED as u64,
                    SEGMENT_HEADER_SIZE as u64,
                    "its header has data in its unused part",
                );
            }
        }
        other => found.damaged(0, SEGMENT_HEADER_SIZE as u64, why_no_header(&other.map(drop))),
    }
    let is_last = end.is_none();
    let reader = FrameReader::new(file, number, epoch, seed, read_end);
    let mut walk = Walk { reader, number, is_reused, is_last, expected_seq, next_seq, found, visit };
    if walk.found.head.is_none() {
        // A crash may have interrupted the creation of the segment: nothing in it was acknowledged.
        let is_doubtful = is_last && !walk.reader.remainder(0).await?.proves_more_persisted;
        walk.found.damage.iter_mut().for_each(|damage| damage.is_doubtful |= is_doubtful);
    }
    match seed {
        Some(_) => {
            walk.run().await?;
            walk.check_end(length).await?;
        }
        None => walk.guess().await?,
    }
    Ok(walk.found)
}

fn why_no_header(decoded: &Result<(), HeaderError>) -> &'static str {
    match decoded {
        Ok(()) => "it is another segment, renamed",
        Err(HeaderError::Invalid) => "its header is damaged",
        Err(HeaderError::Impossible(what)) => what,
        Err(HeaderError::Version(found)) if *found >= FORMAT_VERSION => "its header names a later format",
        Err(HeaderError::Version(_)) => "its header names an older format",
    }
}

fn is_zeros(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

impl SegmentCheck {
    fn damaged(&mut self, offset: u64, end: u64, what: &'static str) {
        self.damage.push(DamagedRange { offset, end, what, is_doubtful: false });
    }
}

/// A walk over a segment's frames.
struct Walk<'a, V> {
    reader: FrameReader<'a>,
    number: u32,
    is_reused: bool,
    is_last: bool,
    expected_seq: Seq,
    /// `None` after damage.
    next_seq: Option<u64>,
    found: SegmentCheck,
    visit: V,
}

impl<V: FnMut(Location, RecordRef<'_>, bool)> Walk<'_, V> {
    async fn run(&mut self) -> Result<(), settee_io::Error> {
        let end = self.reader.end;
        let mut at = end.min(SEGMENT_HEADER_SIZE as u64);
        while at < end {
            let padding = self.reader.padding(at).await?;
            let belongs = self.reader.belongs();
            let frame = self.reader.frame_after(at, belongs).await?;
            // In the last segment, a torn frame may have a later one behind its padding.
            if let Some(frame) = frame.filter(|frame| !self.is_last || self.follows(frame)) {
                self.take(at, padding, &frame);
                at = frame.end();
                continue;
            }
            if self.is_last {
                let mark_end = self.close_mark_end(at).await?;
                let remainder = self.reader.remainder(mark_end.unwrap_or(at)).await?;
                // Recovery stops here too, unless a later frame or mark says that more was persisted.
                if !remainder.proves_more_persisted && (mark_end.is_some() || !self.is_record_missing()) {
                    if mark_end.is_some() && !is_zeros(&padding) {
                        self.check_remainder(at, at + padding.len() as u64);
                    }
                    self.check_remainder(mark_end.unwrap_or(at), remainder.written_end);
                    break;
                }
            }
            let next = self.reader.find(at + FRAME_ALIGNMENT as u64).await?;
            // Padding may follow up to the known end.
            self.salvage(at, next.as_ref().map_or(end, |frame| frame.start)).await?;
            let Some(next) = next else { break };
            at = next.start;
        }
        self.found.frames_end = at;
        Ok(())
    }

    /// Reports the records of everything that looks like a frame, for an unknown timeline.
    async fn guess(&mut self) -> Result<(), settee_io::Error> {
        let mut at = SEGMENT_HEADER_SIZE as u64;
        while let Some(frame) = self.reader.find(at).await? {
            let records_start = frame.start + FRAME_HEADER_SIZE as u64;
            at = self.report_records(records_start, frame.start + frame.header.records_end() as u64).await?;
        }
        Ok(())
    }

    /// Checks what follows the last frame in a file of `length` bytes.
    async fn check_end(&mut self, length: u64) -> Result<(), settee_io::Error> {
        let frames_end = self.found.frames_end;
        self.reader.end = length;
        let mark_end = self.close_mark_end(frames_end).await?;
        self.found.has_close_mark = mark_end.is_some();
        self.found.unused_start = mark_end.unwrap_or(frames_end.next_multiple_of(SYNC_ALIGNMENT.into()));
        if !self.is_last && !self.is_reused {
            let padding = self.reader.padding(frames_end).await?;
            self.found.is_padding_written = !is_zeros(&padding);
        }
        Ok(())
    }

    /// Where the close mark ends that follows the frames up to `at`.
    async fn close_mark_end(&mut self, at: u64) -> Result<Option<u64>, settee_io::Error> {
        let Some((seq, checksum)) = self.next_seq.zip(self.found.frames_checksum) else { return Ok(None) };
        self.reader.mark_after(at, checksum, seq - 1).await
    }

    /// Checks and reports the frame that is found at `at` or behind the padding there.
    fn take(&mut self, at: u64, padding: Bytes, frame: &Frame) {
        let (start, end) = (frame.start, frame.end());
        if !self.is_reused && start > at && !is_zeros(&padding) {
            self.found.damaged(at, start, "unexpected bytes between two frames");
        }
        if !is_zeros(frame.padding()) {
            let records_end = start + frame.header.records_end() as u64;
            self.found.damaged(records_end, end, "unexpected bytes after a frame's records");
        }
        if self.found.frames_checksum.is_some_and(|checksum| checksum != frame.header.previous) {
            self.found.damaged(start, end, "a frame doesn't follow the previous one");
        }
        if self.next_seq.is_some_and(|seq| seq != frame.header.first_seq) {
            self.found.damaged(start, end, "update numbers are missing before a frame");
        }
        frame.records().for_each(|(location, record)| (self.visit)(location, record, true));
        self.reader.epoch = Some(frame.header.epoch);
        self.next_seq = Some(frame.header.next_seq());
        self.found.last_seq = Seq(frame.header.next_seq() - 1);
        self.found.frames_checksum = Some(frame.checksum);
    }

    /// Whether a frame is the next one, as far as is known.
    fn follows(&self, frame: &Frame) -> bool {
        self.found.frames_checksum.is_none_or(|checksum| checksum == frame.header.previous)
            && self.next_seq.is_none_or(|seq| seq == frame.header.first_seq)
    }

    /// Whether the log is known to have contained the next record.
    fn is_record_missing(&self) -> bool {
        self.next_seq.is_some_and(|seq| seq <= self.expected_seq.0)
    }

    /// Reports what was written after the last frame of a log.
    fn check_remainder(&mut self, offset: u64, end: u64) {
        if offset < end && !self.is_reused {
            let what = "bytes after the last whole frame: a write interrupted by a crash, or damage";
            self.found.damage.push(DamagedRange { offset, end, what, is_doubtful: true });
        }
    }

    /// Reports the consecutive records between the last whole frame and `end`.
    async fn salvage(&mut self, at: u64, end: u64) -> Result<(), settee_io::Error> {
        // Zeros up to the end are unused space.
        if end == self.reader.end && self.reader.written_end(at).await? == at {
            return Ok(());
        }
        self.found.damaged(at, end, "a frame is damaged");
        (self.found.frames_checksum, self.next_seq) = (None, None);
        let aligned = at.next_multiple_of(SYNC_ALIGNMENT.into()).min(end);
        // If the frame's header is still recognizable, its records begin after it.
        let head_size = (aligned.max((at + FRAME_HEADER_SIZE as u64).min(end)) - at) as usize;
        let is_here = !is_zeros(&self.reader.bytes(at, head_size).await?[..head_size]);
        let start = if is_here { at } else { aligned };
        self.report_records(start + FRAME_HEADER_SIZE as u64, end).await.map(drop)
    }

    /// Reports the consecutive records between two offsets, and returns where they end.
    async fn report_records(&mut self, start: u64, end: u64) -> Result<u64, settee_io::Error> {
        let mut at = start;
        loop {
            let head = self.reader.bytes(at, RECORD_HEADER_SIZE).await?;
            let size = RecordRef::peek_size(&head).unwrap_or(usize::MAX);
            if size > BATCH_SIZE_MAX || at + size as u64 > end || is_zeros(&head[..RECORD_HEADER_SIZE]) {
                return Ok(at);
            }
            drop(head);
            let bytes = self.reader.bytes(at, size).await?;
            let Some(record) = RecordRef::undecoded(&bytes) else { return Ok(at) };
            let location = Location { segment: self.number, offset: at as u32, length: size as u32 };
            (self.visit)(location, record, RecordRef::decode(&bytes).is_ok());
            at += size as u64;
        }
    }
}
