//! The end of a segment's frames, and the frame that may follow it.
//!
//! A frame follows if it begins at the tail or at the next multiple of [`SYNC_ALIGNMENT`], names this segment
//! and epoch, and repeats the checksum of what precedes it.

use super::frame::{Frame, FrameHeader};
use super::segment_header::SegmentHeader;
use super::sizes::SYNC_ALIGNMENT;

/// The end of a log; all zeros for one without segments.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tail {
    pub segment: u32,
    /// Offset where the segment's frames end.
    pub end: u64,
    /// Checksum of the last frame, or of the header if there is none.
    pub checksum: u64,
}

impl Tail {
    /// Offsets at which the next frame may begin.
    fn next_starts(&self) -> [usize; 2] {
        let end = self.end as usize;
        [end, end.next_multiple_of(SYNC_ALIGNMENT as usize)]
    }
}

/// The next frame of a segment whose frames so far end at `tail` with the record `last_seq`, and its offset:
/// right after the tail, or at the next boundary. `bytes` are the segment's bytes from `base` on.
pub(crate) fn next_frame<'a>(
    (base, bytes): (usize, &'a [u8]),
    segment: &SegmentHeader,
    tail: &Tail,
    last_seq: u64,
) -> Option<(usize, Frame<'a>)> {
    let next = |start: usize| {
        let bytes = bytes.get(start.checked_sub(base)?..)?;
        // A frame without its padding is torn too.
        next_header(bytes, segment, tail, last_seq).filter(|header| header.frame_size() <= bytes.len())?;
        Some((start, Frame::decode(bytes, segment.frame_seed())?))
    };
    tail.next_starts().into_iter().find_map(next)
}

/// End of that frame according to its header, even if `bytes` don't contain all of it.
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

/// The header at the start of `bytes`, if it is that of the next frame.
fn next_header(bytes: &[u8], segment: &SegmentHeader, tail: &Tail, last_seq: u64) -> Option<FrameHeader> {
    let belongs = |header: &FrameHeader| {
        header.segment == segment.segment
            && header.epoch == segment.epoch
            && header.first_seq == last_seq + 1
            && header.previous == tail.checksum
    };
    FrameHeader::decode(bytes, segment.frame_seed()).filter(belongs)
}
