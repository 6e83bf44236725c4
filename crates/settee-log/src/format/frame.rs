//! Frames: a header, and the records of one batch. And the close mark, a header without records.

use bytes::Bytes;

use super::checksum::{FrameSeed, frame_checksum};
use super::integers::{u16_at, u32_at, u64_at};
use super::record::RecordRef;
use super::sizes::{FRAME_HEADER_SIZE, RECORD_HEADER_SIZE, SEGMENT_HEADER_SIZE, SYNC_ALIGNMENT, frame_size};
use crate::types::Location;

/// The kind of a frame that has the records of one batch.
const BATCH_KIND: u8 = 1;
/// The kind of a close mark.
const CLOSE_MARK_KIND: u8 = 2;

/// A frame's header, or a close mark: a header without records, which a log writes after its last frame when
/// it is closed, and everything is persisted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    pub seed: FrameSeed,
    /// Size of the records after the header in bytes, without padding.
    pub length: u32,
    pub segment: u32,
    pub epoch: u32,
    /// The `Seq` of the first record; the others follow consecutively. In a close mark that of the next record.
    pub first_seq: u64,
    pub record_count: u32,
    /// Offset up to which the segment was persisted when this frame was appended. In a close mark the end of
    /// the last frame.
    pub persisted: u32,
    /// Checksum of the previous frame, or of the segment's header.
    pub previous: u64,
}

impl FrameHeader {
    /// Distance in bytes from this frame to the next.
    pub(crate) fn frame_size(&self) -> usize {
        frame_size(self.length as usize)
    }

    /// Where its records end, relative to its start.
    pub(crate) fn records_end(&self) -> usize {
        FRAME_HEADER_SIZE + self.length as usize
    }

    /// The `Seq` of the first record after this frame.
    pub(crate) fn next_seq(&self) -> u64 {
        self.first_seq + u64::from(self.record_count)
    }

    /// Offset of the close mark that follows a last frame which ends at `end`.
    pub(crate) fn mark_start(end: u64) -> u64 {
        end.next_multiple_of(SYNC_ALIGNMENT.into())
    }

    /// The header's bytes, with the checksum over them and the records' checksums.
    pub(crate) fn encode(
        &self,
        record_checksums: impl Iterator<Item = u64>,
    ) -> ([u8; FRAME_HEADER_SIZE], u64) {
        self.encode_as(BATCH_KIND, record_checksums)
    }

    /// The bytes of a close mark.
    pub(crate) fn encode_mark(&self) -> [u8; FRAME_HEADER_SIZE] {
        self.encode_as(CLOSE_MARK_KIND, std::iter::empty()).0
    }

    fn encode_as(
        &self,
        kind: u8,
        record_checksums: impl Iterator<Item = u64>,
    ) -> ([u8; FRAME_HEADER_SIZE], u64) {
        let mut bytes = [0; FRAME_HEADER_SIZE];
        bytes[..2].copy_from_slice(&self.seed.magic());
        bytes[2] = kind;
        bytes[4..8].copy_from_slice(&self.length.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.segment.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.first_seq.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.record_count.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.persisted.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.previous.to_le_bytes());
        let checksum = frame_checksum(self.seed, &bytes[..40], record_checksums);
        bytes[40..48].copy_from_slice(&checksum.to_le_bytes());
        (bytes, checksum)
    }

    /// Decodes the header at the start of `bytes` if it may be one; its checksum isn't verified. Without a seed
    /// every value is accepted as the frame's first bytes.
    pub(crate) fn decode(bytes: &[u8], seed: Option<FrameSeed>) -> Option<FrameHeader> {
        let header = FrameHeader::decode_as(BATCH_KIND, bytes, seed)?;
        let count_max = header.length as usize / RECORD_HEADER_SIZE;
        (1..=count_max).contains(&(header.record_count as usize)).then_some(header)
    }

    /// Decodes and verifies the close mark at the start of `bytes`, which begin at the offset `start`; whether
    /// it follows the last frame isn't checked. Without a seed it only has to look like one.
    pub(crate) fn decode_mark(start: u64, bytes: &[u8], seed: Option<FrameSeed>) -> Option<FrameHeader> {
        let mark = FrameHeader::decode_as(CLOSE_MARK_KIND, bytes, seed)?;
        let is_mark = mark.length == 0
            && mark.record_count == 0
            && mark.persisted as usize >= SEGMENT_HEADER_SIZE
            && FrameHeader::mark_start(mark.persisted.into()) == start
            && (seed.is_none() || bytes[..FRAME_HEADER_SIZE] == mark.encode_mark());
        is_mark.then_some(mark)
    }

    fn decode_as(kind: u8, bytes: &[u8], seed: Option<FrameSeed>) -> Option<FrameHeader> {
        let head = bytes.get(..FRAME_HEADER_SIZE)?;
        let seed = seed.unwrap_or(FrameSeed(u64::from(u16_at(head, 0))));
        if head[..2] != seed.magic() || head[2] != kind || head[3] != 0 {
            return None;
        }
        Some(FrameHeader {
            seed,
            length: u32_at(head, 4),
            segment: u32_at(head, 8),
            epoch: u32_at(head, 12),
            first_seq: u64_at(head, 16),
            record_count: u32_at(head, 24),
            persisted: u32_at(head, 28),
            previous: u64_at(head, 32),
        })
    }

    /// Whether the record may be the frame's record at `index`.
    fn accepts(&self, record: &RecordRef<'_>, index: usize) -> bool {
        self.first_seq.checked_add(index as u64) == Some(record.seq.0)
    }
}

/// A whole frame found in a segment.
#[derive(Debug)]
pub(crate) struct Frame {
    pub header: FrameHeader,
    pub checksum: u64,
    /// Where it begins in its segment.
    pub start: u64,
    /// Its bytes; the padding may be missing.
    bytes: Bytes,
}

impl Frame {
    /// Decodes and verifies the frame at the start of `bytes`, which begin at the offset `start`; its position
    /// in the log isn't checked. Without a seed it only has to look like one, so that bytes made up by a client
    /// may be accepted; therefore its first record must look like one, too.
    pub(crate) fn decode(start: u64, bytes: &Bytes, seed: Option<FrameSeed>) -> Option<Frame> {
        let header = FrameHeader::decode(bytes, seed)?;
        let bytes = bytes.slice(..header.frame_size().min(bytes.len()));
        let is_complete = bytes.len() >= header.records_end();
        let frame = is_complete.then(|| Frame { header, checksum: u64_at(&bytes, 40), start, bytes })?;
        let is_whole = match seed {
            Some(seed) => frame.is_sound(seed),
            None => frame.split().next().is_some_and(|(_, record)| header.accepts(&record, 0)),
        };
        is_whole.then_some(frame)
    }

    fn is_sound(&self, seed: FrameSeed) -> bool {
        // The frame's checksum first: if it matches, a log has written this header, and only then the
        // records, which may be large, are hashed.
        let count = self.header.record_count as usize;
        let mut checksums = Vec::with_capacity(count);
        let mut end = FRAME_HEADER_SIZE;
        for (at, record) in self.split().take(count) {
            if !self.header.accepts(&record, checksums.len()) {
                return false;
            }
            checksums.push(record.checksum());
            end = at + record.size();
        }
        checksums.len() == count
            && end == self.header.records_end()
            && frame_checksum(seed, &self.bytes[..40], checksums.into_iter()) == self.checksum
            && self.split().all(|(at, _)| RecordRef::decode(&self.bytes[at..]).is_ok())
    }

    /// Where it ends in its segment, with its padding.
    pub(crate) fn end(&self) -> u64 {
        self.start + self.header.frame_size() as u64
    }

    /// The bytes after its records.
    pub(crate) fn padding(&self) -> &[u8] {
        &self.bytes[self.header.records_end()..]
    }

    /// Its records, each with its location.
    pub(crate) fn records(&self) -> impl Iterator<Item = (Location, RecordRef<'_>)> {
        self.split().map(|(at, record)| {
            let (segment, offset) = (self.header.segment, self.start as u32 + at as u32);
            (Location { segment, offset, length: record.size() as u32 }, record)
        })
    }

    /// Its records, each with its offset in the frame.
    fn split(&self) -> impl Iterator<Item = (usize, RecordRef<'_>)> {
        let records = &self.bytes[..self.header.records_end()];
        let mut end = FRAME_HEADER_SIZE;
        std::iter::from_fn(move || {
            let (record, _) = RecordRef::split(&records[end..]).ok()?;
            let at = end;
            end += record.size();
            Some((at, record))
        })
    }
}
