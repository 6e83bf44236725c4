//! Verification: checks whether a segment's file contains what was written to it, and finds the readable
//! records of a damaged one.
//!
//! Goes from frame to frame as recovery does. At a frame that isn't whole, it searches for the next whole one
//! and reports the records in between, each checked separately: damage doesn't end the check. Nothing is
//! changed or locked.
//!
//! Limits: as in recovery, one segment is in memory during the check.

use settee_io::File;

use crate::format::{
    FORMAT_VERSION, FRAME_ALIGNMENT, FRAME_HEADER_SIZE, Frame, FrameHeader, FrameSeed, HeaderError,
    RECORD_HEADER_SIZE, Record, RecordRef, SEGMENT_BYTES_LIMIT, SEGMENT_HEADER_SIZE, SYNC_ALIGNMENT,
    SegmentHeader,
};
use crate::types::{Location, Seq};

/// Size of the used part of a header; the rest is zeros.
const HEADER_USED: usize = 80;

/// The content of a segment's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentHead {
    /// The segment's number.
    pub number: u32,
    /// Its epoch.
    pub epoch: u32,
    /// The random id of its log.
    pub log_id: [u8; 16],
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
    /// The damage, in the order of the file.
    pub damage: Vec<DamagedRange>,
}

/// Reads a segment's header. If it isn't valid, returns `Err(true)` for one that is all zeros (a segment that
/// was not begun), and `Err(false)` for a damaged one.
///
/// # Errors
/// An I/O error.
pub async fn segment_head(file: &File) -> Result<Result<SegmentHead, bool>, settee_io::Error> {
    let bytes = file.read_at(0, SEGMENT_HEADER_SIZE).await?;
    Ok(match SegmentHeader::decode(&bytes) {
        Ok((header, _)) => Ok(head_of(&header)),
        Err(_) => Err(bytes.iter().all(|byte| *byte == 0)),
    })
}

fn head_of(header: &SegmentHeader) -> SegmentHead {
    SegmentHead {
        number: header.segment,
        epoch: header.epoch,
        log_id: header.log_id,
        oldest: header.oldest,
        first_seq: Seq(header.first_seq),
        previous_end: header.previous_end,
        previous_checksum: header.previous_checksum,
    }
}

/// Reads the segment `number` and checks all of it: the header, every frame and record, their order, and that
/// unused bytes are zeros where they must be. `end` is where its frames end, if known; the last segment of a
/// log ends where its frames do. `log_id` is that of the log, for a segment whose header is damaged.
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
    log_id: Option<[u8; 16]>,
    expected_seq: Seq,
    visit: impl FnMut(Location, RecordRef<'_>, bool),
) -> Result<SegmentCheck, settee_io::Error> {
    let length = file.length().await?.min(SEGMENT_BYTES_LIMIT.into());
    let wanted = end.unwrap_or(length).min(length);
    let bytes = file.read_exact_at(0, wanted as usize).await?;
    let mut found = SegmentCheck { frames_end: SEGMENT_HEADER_SIZE as u64, ..SegmentCheck::default() };
    if let Some(end) = end.filter(|end| *end > length) {
        found.damaged(length, end, "it is shorter than it should be");
    }
    let (mut epoch, mut seed, mut is_reused) = (None, log_id.map(|id| FrameSeed::of(&id)), true);
    let mut next_seq = None;
    match SegmentHeader::decode(&bytes) {
        Ok((header, checksum)) if header.segment == number => {
            found.head = Some(head_of(&header));
            found.frames_checksum = Some(checksum);
            (epoch, seed, is_reused) = (Some(header.epoch), Some(header.frame_seed()), header.is_reused);
            next_seq = Some(header.first_seq);
            found.last_seq = Seq(header.first_seq - 1);
            if !is_zeros(&bytes[HEADER_USED..SEGMENT_HEADER_SIZE]) {
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
    let Some(seed) = seed else {
        let proves_more_persisted = guess(&bytes, number, visit);
        found.damage[0].is_doubtful = is_last && !proves_more_persisted;
        return Ok(found);
    };
    let mut walk =
        Walk { bytes: &bytes, number, epoch, seed, is_reused, is_last, expected_seq, next_seq, found, visit };
    if walk.found.head.is_none() && is_last && !walk.proves_more_persisted(0) {
        // A crash may have interrupted the creation of the segment: nothing in it was acknowledged.
        walk.found.damage.iter_mut().for_each(|damage| damage.is_doubtful = true);
    }
    walk.run().await;
    Ok(walk.found)
}

/// Reports the records of everything that looks like a frame, for an unknown log id. Returns whether one of
/// these frames says that something was persisted.
fn guess(bytes: &[u8], number: u32, mut visit: impl FnMut(Location, RecordRef<'_>, bool)) -> bool {
    let (mut at, mut proves_more_persisted) = (SEGMENT_HEADER_SIZE, false);
    while at < bytes.len() {
        let Some(header) = FrameHeader::guess(&bytes[at..]).filter(|header| header.segment == number) else {
            at += FRAME_ALIGNMENT;
            continue;
        };
        proves_more_persisted |= header.persisted > 0;
        let end = (at + FRAME_HEADER_SIZE + header.length as usize).min(bytes.len());
        let mut offset = at + FRAME_HEADER_SIZE;
        while let Some(record) = RecordRef::undecoded(&bytes[offset..end]) {
            let location = Location { segment: number, offset: offset as u32, length: record.size() as u32 };
            let is_sound = RecordRef::decode(&bytes[offset..end]).is_ok();
            offset += record.size();
            visit(location, record, is_sound);
        }
        at += header.frame_size();
    }
    proves_more_persisted
}

fn why_no_header(decoded: &Result<(), HeaderError>) -> &'static str {
    match decoded {
        Ok(()) => "it is another segment, renamed",
        Err(HeaderError::Invalid) => "its header is damaged",
        Err(HeaderError::Impossible(what)) => what,
        Err(HeaderError::Version(found)) if *found > FORMAT_VERSION => "its header names a later format",
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
    bytes: &'a [u8],
    number: u32,
    epoch: Option<u32>,
    seed: FrameSeed,
    is_reused: bool,
    is_last: bool,
    expected_seq: Seq,
    /// `None` after damage.
    next_seq: Option<u64>,
    found: SegmentCheck,
    visit: V,
}

impl<'a, V: FnMut(Location, RecordRef<'_>, bool)> Walk<'a, V> {
    async fn run(&mut self) {
        let mut turn = 0;
        let mut at = SEGMENT_HEADER_SIZE.min(self.bytes.len());
        while at < self.bytes.len() {
            if at >> 20 != turn {
                turn = at >> 20;
                settee_io::yield_now().await;
            }
            let aligned = at.next_multiple_of(SYNC_ALIGNMENT as usize);
            let here = [at, aligned].into_iter().find_map(|start| Some((start, self.frame(start)?)));
            if let Some((start, frame)) = here {
                at = self.take(at, start, &frame);
                continue;
            }
            let next = (at + FRAME_ALIGNMENT..self.bytes.len()).step_by(FRAME_ALIGNMENT).find_map(|start| {
                let frame = self.frame(start)?;
                Some((start, frame.header.persisted))
            });
            match next {
                // Recovery stops here too, unless a later frame says that more was persisted.
                _ if self.is_last && !self.is_record_missing() && !self.proves_more_persisted(at) => {
                    self.check_behind(at);
                    break;
                }
                Some((start, _)) => {
                    self.salvage(at, start);
                    at = start;
                }
                None => {
                    // Padding may follow up to the known end.
                    self.salvage(at, self.bytes.len());
                    break;
                }
            }
        }
        self.found.frames_end = at as u64;
    }

    /// The whole frame of this segment at this offset.
    fn frame(&self, start: usize) -> Option<Frame<'a>> {
        let bytes = self.bytes.get(start..)?;
        let header = FrameHeader::decode(bytes, self.seed)?;
        let belongs = header.segment == self.number && self.epoch.is_none_or(|epoch| epoch == header.epoch);
        (belongs && header.frame_size() <= bytes.len()).then(|| Frame::decode(bytes, self.seed))?
    }

    fn take(&mut self, at: usize, start: usize, frame: &Frame<'a>) -> usize {
        if !self.is_reused && !is_zeros(&self.bytes[at..start]) {
            self.found.damaged(at as u64, start as u64, "unexpected bytes between two frames");
        }
        let end = start + frame.header.frame_size();
        let records_end = start + FRAME_HEADER_SIZE + frame.header.length as usize;
        if !is_zeros(&self.bytes[records_end..end]) {
            self.found.damaged(records_end as u64, end as u64, "unexpected bytes after a frame's records");
        }
        if self.found.frames_checksum.is_some_and(|checksum| checksum != frame.header.previous) {
            self.found.damaged(start as u64, end as u64, "a frame doesn't follow the previous one");
        }
        if self.next_seq.is_some_and(|seq| seq != frame.header.first_seq) {
            self.found.damaged(start as u64, end as u64, "update numbers are missing before a frame");
        }
        for (offset, record) in frame.records() {
            self.report(start + offset, record, true);
        }
        self.epoch = Some(frame.header.epoch);
        self.next_seq = Some(frame.header.next_seq());
        self.found.last_seq = Seq(frame.header.next_seq() - 1);
        self.found.frames_checksum = Some(frame.checksum);
        end
    }

    fn report(&mut self, offset: usize, record: RecordRef<'_>, is_sound: bool) {
        let location = Location { segment: self.number, offset: offset as u32, length: record.size() as u32 };
        (self.visit)(location, record, is_sound);
    }

    /// Whether the log is known to have contained the next record.
    fn is_record_missing(&self) -> bool {
        self.next_seq.is_some_and(|seq| seq <= self.expected_seq.0)
    }

    /// Whether a later frame says that more than `at` was persisted.
    fn proves_more_persisted(&self, at: usize) -> bool {
        (at + FRAME_ALIGNMENT..self.bytes.len()).step_by(FRAME_ALIGNMENT).any(|start| {
            self.frame(start).is_some_and(|frame| {
                let persisted = frame.header.persisted as usize;
                persisted <= start && persisted > at
            })
        })
    }

    /// Checks the bytes after the last frame of a log.
    fn check_behind(&mut self, at: usize) {
        let written = self.bytes[at..].iter().rposition(|byte| *byte != 0);
        if let Some(last) = written.filter(|_| !self.is_reused) {
            let what = "bytes after the last whole frame: a write interrupted by a crash, or damage";
            let end = (at + last + 1) as u64;
            self.found.damage.push(DamagedRange { offset: at as u64, end, what, is_doubtful: true });
        }
    }

    /// Reports the consecutive records between the last whole frame and `end`.
    fn salvage(&mut self, at: usize, end: usize) {
        // Zeros up to the end are unused space.
        let is_rest = end == self.bytes.len() && is_zeros(&self.bytes[at..end]);
        if is_rest {
            return;
        }
        self.found.damaged(at as u64, end as u64, "a frame is damaged");
        (self.found.frames_checksum, self.next_seq) = (None, None);
        let aligned = at.next_multiple_of(SYNC_ALIGNMENT as usize).min(end);
        // If the frame's header is still recognizable, its records begin after it.
        let is_here = !is_zeros(&self.bytes[at..aligned.max((at + FRAME_HEADER_SIZE).min(end))]);
        let mut offset = if is_here { at } else { aligned } + FRAME_HEADER_SIZE;
        while offset + RECORD_HEADER_SIZE <= end
            && !is_zeros(&self.bytes[offset..offset + RECORD_HEADER_SIZE])
            && let Some((_, size)) = Record::peek(&self.bytes[offset..end])
        {
            let bytes = &self.bytes[offset..offset + size];
            let is_sound = RecordRef::decode(bytes).is_ok();
            if let Some(record) = RecordRef::undecoded(bytes) {
                self.report(offset, record, is_sound);
            }
            offset += size;
        }
    }
}
