//! A segment's header: its timeline, its place in the log, and the end of the segment before it.

use super::checksum::{FrameSeed, xxh3_64};
use super::integers::{u32_at, u64_at};
use super::sizes::{FORMAT_VERSION, SEGMENT_BYTES_LIMIT, SEGMENT_HEADER_SIZE};
use crate::types::{ReadFormat, TimelineId};

const SEGMENT_MAGIC: [u8; 8] = *b"SETTEELG";
/// Size of the part of a header that is not zeros.
pub(super) const SEGMENT_HEADER_USED: usize = 80;
/// Header flag of a file that held another segment before.
const REUSED: u32 = 1;
/// Largest segment number and epoch that are valid; the remaining ones ensure that their successors don't
/// overflow.
const NUMBER_MAX: u32 = u32::MAX - 16;
/// Largest `Seq` with which a segment may begin.
const FIRST_SEQ_MAX: u64 = 1 << 62;

/// A segment's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    /// The segment's number: 1, 2, …
    pub segment: u32,
    /// Grows with each opening of the log.
    pub epoch: u32,
    /// The timeline under which the segment was begun.
    pub timeline: TimelineId,
    /// Whether the file held another segment before, whose bytes may follow the last frame.
    pub is_reused: bool,
    /// The oldest segment that the log still needed when this one began.
    pub oldest: u32,
    /// The `Seq` of the first record to come.
    pub first_seq: u64,
    /// Offset where the frames of the previous segment end; 0 in the first segment.
    pub previous_end: u64,
    /// Checksum of the previous segment's last frame, or of its header if it has no frame.
    pub previous_checksum: u64,
}

/// Why a segment's first bytes are not a valid header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeaderError {
    /// Not a header, or a torn one.
    Invalid,
    /// A whole header of another version.
    Version(u32),
    /// A whole header that no log writes, and why.
    Impossible(&'static str),
}

impl SegmentHeader {
    /// The header's bytes, and its checksum, which the first frame repeats.
    pub(crate) fn encode(&self) -> ([u8; SEGMENT_HEADER_SIZE], u64) {
        let mut bytes = [0; SEGMENT_HEADER_SIZE];
        bytes[..8].copy_from_slice(&SEGMENT_MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.segment.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.oldest.to_le_bytes());
        bytes[24..40].copy_from_slice(&self.timeline.0);
        bytes[40..48].copy_from_slice(&self.first_seq.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.previous_end.to_le_bytes());
        bytes[56..64].copy_from_slice(&self.previous_checksum.to_le_bytes());
        bytes[64..68].copy_from_slice(&if self.is_reused { REUSED } else { 0 }.to_le_bytes());
        let checksum = xxh3_64(&bytes[..72]);
        bytes[72..SEGMENT_HEADER_USED].copy_from_slice(&checksum.to_le_bytes());
        (bytes, checksum)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<(SegmentHeader, u64), HeaderError> {
        SegmentHeader::decode_as(ReadFormat::Present, bytes)
    }

    /// As [`SegmentHeader::decode`], for a format that is only read.
    pub(crate) fn decode_as(format: ReadFormat, bytes: &[u8]) -> Result<(SegmentHeader, u64), HeaderError> {
        let bytes = bytes.get(..SEGMENT_HEADER_SIZE).ok_or(HeaderError::Invalid)?;
        let checksum = u64_at(bytes, 72);
        // For other versions, only the position of the magic and the version are known.
        if bytes[..8] == SEGMENT_MAGIC && u32_at(bytes, 8) == 1 && u64_at(bytes, 64) == xxh3_64(&bytes[..64])
        {
            return Err(HeaderError::Version(1));
        }
        if bytes[..8] != SEGMENT_MAGIC || checksum != xxh3_64(&bytes[..72]) {
            return Err(HeaderError::Invalid);
        }
        let version = u32_at(bytes, 8);
        let expected = match format {
            ReadFormat::Present => FORMAT_VERSION,
            // It differs in its version alone: a log had one id, and no timelines.
            ReadFormat::Previous => FORMAT_VERSION - 1,
        };
        if version != expected {
            return Err(HeaderError::Version(version));
        }
        let header = SegmentHeader {
            segment: u32_at(bytes, 12),
            epoch: u32_at(bytes, 16),
            oldest: u32_at(bytes, 20),
            timeline: TimelineId(bytes[24..40].try_into().expect("16 bytes")),
            first_seq: u64_at(bytes, 40),
            previous_end: u64_at(bytes, 48),
            previous_checksum: u64_at(bytes, 56),
            is_reused: u32_at(bytes, 64) & REUSED != 0,
        };
        if u32_at(bytes, 64) & !REUSED != 0 {
            return Err(HeaderError::Impossible("its header has unknown flags"));
        }
        header.check().map_err(HeaderError::Impossible)?;
        Ok((header, checksum))
    }

    /// Whether a log can have written this header.
    fn check(&self) -> Result<(), &'static str> {
        let require = |holds: bool, what| if holds { Ok(()) } else { Err(what) };
        require((1..=NUMBER_MAX).contains(&self.segment), "its header has an invalid segment number")?;
        require((1..=NUMBER_MAX).contains(&self.epoch), "its header has an invalid epoch")?;
        require(
            (1..=self.segment).contains(&self.oldest),
            "its header names a later segment as the oldest one needed",
        )?;
        require((1..=FIRST_SEQ_MAX).contains(&self.first_seq), "its header has an invalid `Seq`")?;
        let is_end = match self.segment {
            1 => self.previous_end == 0,
            _ => (SEGMENT_HEADER_SIZE as u64..=u64::from(SEGMENT_BYTES_LIMIT)).contains(&self.previous_end),
        };
        require(is_end, "its header has an invalid end of the previous segment")
    }

    /// The seed of the segment's frames.
    pub(crate) fn frame_seed(&self) -> FrameSeed {
        FrameSeed::of(self.timeline)
    }
}
