//! Verification: whether a segment's file holds what was written to it, and what of a damaged one can
//! still be read.
//!
//! Goes from frame to frame as recovery does. Where a frame isn't whole it looks for the next one that
//! is, and gives what records stand between, each checked by itself: damage ends nothing. Nothing is
//! changed or locked.
//!
//! Limits: as in recovery, a segment is in memory meanwhile.

use settee_io::File;

use crate::format::{
    FORMAT_VERSION, FRAME_ALIGNMENT, FRAME_HEADER_SIZE, Frame, FrameHeader, FrameSeed, HeaderError,
    RECORD_HEADER_SIZE, RecordRef, SEGMENT_HEADER_SIZE, SYNC_ALIGNMENT, SegmentHeader,
};
use crate::log::{Location, SEGMENT_BYTES_LIMIT, Seq};

/// Behind these a header is zeros.
const HEADER_USED: usize = 80;

/// What a segment's header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentHead {
    /// The segment's number.
    pub number: u32,
    /// Its epoch.
    pub epoch: u32,
    /// The random id of its log.
    pub log_id: [u8; 16],
    /// The oldest segment that the log still needed when it began.
    pub oldest: u32,
    /// The `Seq` of the first commit that was put there.
    pub first_seq: Seq,
    /// Where the frames of the segment before it end.
    pub previous_end: u64,
    /// The checksum of the last frame before it.
    pub previous_checksum: u64,
}

/// Bytes that are not what was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Damage {
    /// Where it begins, in bytes from the file's first.
    pub offset: u64,
    /// It ends before here.
    pub end: u64,
    /// What is wrong.
    pub what: &'static str,
    /// It may as well be what a crash left of a write that nobody was told of: opening cuts it.
    pub is_doubtful: bool,
}

/// What [`check_segment`] found.
#[derive(Debug, Clone, Default)]
pub struct SegmentCheck {
    /// The header, where it is sound.
    pub head: Option<SegmentHead>,
    /// Where the frames end.
    pub frames_end: u64,
    /// The checksum of the last frame, or of the header; unknown behind damage.
    pub frames_checksum: Option<u64>,
    /// The last commit; 0 where there is none.
    pub last_seq: Seq,
    /// What is wrong, in the order of the file.
    pub damage: Vec<Damage>,
}

/// What a segment's file says of itself; `None` where its header is damaged, or zeros as that of one
/// that wasn't begun (`Err(true)`).
///
/// # Errors
/// What the system says.
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

/// Reads the segment `number` and checks all of it: the header, every frame and record, their order,
/// and that what lies between is zeros where it must be. `end` is where its frames end, where that is
/// known; the last segment of a log ends where its frames do. `log_id` is that of the log, for a
/// segment whose header is damaged; `known` is a commit that the log is known to have had: where the last
/// segment ends before, that is damage. `visit` is told every record, extents too, in the order of the
/// file, and whether it is sound: of one that isn't nothing can be believed.
///
/// # Errors
/// What the system says. Damage is no error.
pub async fn check_segment(
    file: &File,
    number: u32,
    end: Option<u64>,
    log_id: Option<[u8; 16]>,
    known: Seq,
    visit: impl FnMut(Location, RecordRef<'_>, bool),
) -> Result<SegmentCheck, settee_io::Error> {
    let length = file.length().await?.min(SEGMENT_BYTES_LIMIT.into());
    let wanted = end.unwrap_or(length).min(length);
    let bytes = file.read_exact_at(0, wanted as usize).await?;
    let mut found = SegmentCheck { frames_end: SEGMENT_HEADER_SIZE as u64, ..SegmentCheck::default() };
    if let Some(end) = end.filter(|end| *end > length) {
        found.damaged(length, end, "it is shorter than it was");
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
                found.damaged(HEADER_USED as u64, SEGMENT_HEADER_SIZE as u64, "its header goes on");
            }
        }
        other => found.damaged(0, SEGMENT_HEADER_SIZE as u64, why_no_header(&other.map(drop))),
    }
    let is_last = end.is_none();
    let Some(seed) = seed else {
        let tells_more = guess(&bytes, number, visit);
        found.damage[0].is_doubtful = is_last && !tells_more;
        return Ok(found);
    };
    let mut walk =
        Walk { bytes: &bytes, number, epoch, seed, is_reused, is_last, known, next_seq, found, visit };
    if walk.found.head.is_none() && is_last && !walk.tells_more(0) {
        // A crash may have cut short what began it: nothing of it was told of.
        walk.found.damage.iter_mut().for_each(|damage| damage.is_doubtful = true);
    }
    walk.run().await;
    Ok(walk.found)
}

/// Tells the records of what looks like frames, where nobody knows the log's id any more, and returns
/// whether one of them says that something was persisted.
fn guess(bytes: &[u8], number: u32, mut visit: impl FnMut(Location, RecordRef<'_>, bool)) -> bool {
    let (mut at, mut tells_more) = (SEGMENT_HEADER_SIZE, false);
    while at < bytes.len() {
        let Some(header) = FrameHeader::guess(&bytes[at..]).filter(|header| header.segment == number) else {
            at += FRAME_ALIGNMENT;
            continue;
        };
        tells_more |= header.persisted > 0;
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
    tells_more
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
        self.damage.push(Damage { offset, end, what, is_doubtful: false });
    }
}

/// A segment on its way from frame to frame.
struct Walk<'a, V> {
    bytes: &'a [u8],
    number: u32,
    epoch: Option<u32>,
    seed: FrameSeed,
    is_reused: bool,
    is_last: bool,
    known: Seq,
    /// `None` behind damage.
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
                // Recovery goes no further, unless a later frame says that more was persisted.
                _ if self.is_last && !self.is_missed() && !self.tells_more(at) => {
                    self.check_behind(at);
                    break;
                }
                Some((start, _)) => {
                    self.salvage(at, start);
                    at = start;
                }
                None => {
                    // What is known to end here may still be filled up.
                    self.salvage(at, self.bytes.len());
                    break;
                }
            }
        }
        self.found.frames_end = at as u64;
    }

    /// The whole frame of this segment at this place.
    fn frame(&self, start: usize) -> Option<Frame<'a>> {
        let bytes = self.bytes.get(start..)?;
        let header = FrameHeader::decode(bytes, self.seed)?;
        let belongs = header.segment == self.number && self.epoch.is_none_or(|epoch| epoch == header.epoch);
        (belongs && header.frame_size() <= bytes.len()).then(|| Frame::decode(bytes, self.seed))?
    }

    fn take(&mut self, at: usize, start: usize, frame: &Frame<'a>) -> usize {
        if !self.is_reused && !is_zeros(&self.bytes[at..start]) {
            self.found.damaged(at as u64, start as u64, "something stands between two frames");
        }
        let end = start + frame.header.frame_size();
        let records_end = start + FRAME_HEADER_SIZE + frame.header.length as usize;
        if !is_zeros(&self.bytes[records_end..end]) {
            self.found.damaged(records_end as u64, end as u64, "something stands behind a frame's records");
        }
        if self.found.frames_checksum.is_some_and(|checksum| checksum != frame.header.previous) {
            self.found.damaged(start as u64, end as u64, "a frame doesn't carry on the one before it");
        }
        if self.next_seq.is_some_and(|seq| seq != frame.header.first_seq) {
            self.found.damaged(start as u64, end as u64, "update numbers are missing before a frame");
        }
        for (offset, record) in frame.records() {
            self.tell(start + offset, record, true);
        }
        self.epoch = Some(frame.header.epoch);
        self.next_seq = Some(frame.header.next_seq());
        self.found.last_seq = Seq(frame.header.next_seq() - 1);
        self.found.frames_checksum = Some(frame.checksum);
        end
    }

    fn tell(&mut self, offset: usize, record: RecordRef<'_>, is_sound: bool) {
        let location = Location { segment: self.number, offset: offset as u32, length: record.size() as u32 };
        (self.visit)(location, record, is_sound);
    }

    /// Whether the log is known to have had what comes next.
    fn is_missed(&self) -> bool {
        self.next_seq.is_some_and(|seq| seq <= self.known.0)
    }

    /// Whether a frame behind says that more was persisted than up to `at`.
    fn tells_more(&self, at: usize) -> bool {
        (at + FRAME_ALIGNMENT..self.bytes.len()).step_by(FRAME_ALIGNMENT).any(|start| {
            self.frame(start).is_some_and(|frame| {
                let persisted = frame.header.persisted as usize;
                persisted <= start && persisted > at
            })
        })
    }

    /// What lies behind the last frame of a log.
    fn check_behind(&mut self, at: usize) {
        let written = self.bytes[at..].iter().rposition(|byte| *byte != 0);
        if let Some(last) = written.filter(|_| !self.is_reused) {
            let what = "behind the last whole frame something was written: a crash cut a write short, or it is damaged";
            let end = (at + last + 1) as u64;
            self.found.damage.push(Damage { offset: at as u64, end, what, is_doubtful: true });
        }
    }

    /// Tells the records that stand between the last whole frame and `end`, as far as they lead.
    fn salvage(&mut self, at: usize, end: usize) {
        // Where the segment was left there may be less than a block of a torn write.
        let is_rest = end == self.bytes.len() && is_zeros(&self.bytes[at..end]);
        if is_rest {
            return;
        }
        self.found.damaged(at as u64, end as u64, "a frame is damaged");
        (self.found.frames_checksum, self.next_seq) = (None, None);
        let aligned = at.next_multiple_of(SYNC_ALIGNMENT as usize).min(end);
        // A header that can still be recognised says where its records begin.
        let is_here = !is_zeros(&self.bytes[at..aligned.max((at + FRAME_HEADER_SIZE).min(end))]);
        let mut offset = if is_here { at } else { aligned } + FRAME_HEADER_SIZE;
        while offset + RECORD_HEADER_SIZE <= end
            && !is_zeros(&self.bytes[offset..offset + RECORD_HEADER_SIZE])
            && let Some((_, size)) = crate::format::Record::peek(&self.bytes[offset..end])
        {
            let bytes = &self.bytes[offset..offset + size];
            let is_sound = RecordRef::decode(bytes).is_ok();
            if let Some(record) = RecordRef::undecoded(bytes) {
                self.tell(offset, record, is_sound);
            }
            offset += size;
        }
    }
}
