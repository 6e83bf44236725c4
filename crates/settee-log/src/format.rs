//! The bytes of a segment: its header, frames, and the records in them.
//!
//! A segment is a header and then frames, each a batch of records. A frame's checksum covers
//! its header and its records' checksums, and a record's checksum covers the record: each byte
//! is hashed once, a record read by its position can be checked alone, and a frame is whole
//! only with all of its records.
//!
//! Invariants:
//! 1. A frame lies in one segment. It begins where the one before it ends, or, after a sync, at
//!    the next multiple of [`SYNC_ALIGNMENT`].
//! 2. A frame names its segment and epoch and carries the checksum of what stands before it,
//!    so that bytes of another time or place never pass as its successor.
//! 3. A frame says how much of its segment was persisted when it was appended: damage below
//!    that is no torn write.
//!
//! Written down in `docs/format.md`; all numbers are little-endian.

use std::ops::Range;

use bytes::Bytes;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::log::Seq;

/// Largest batch in bytes as it stands in the log. A batch never spans segments; it holds the
/// largest document.
pub const BATCH_SIZE_MAX: usize = 16 << 20;

/// Longest key in bytes.
pub const KEY_SIZE_MAX: usize = 16 << 10;

/// Largest meta in bytes.
pub const META_SIZE_MAX: usize = 512;

/// Bytes before a segment's first frame: a sector, so that what follows is aligned.
pub(crate) const SEGMENT_HEADER_SIZE: usize = 512;

/// Frames take a multiple of this many bytes.
pub(crate) const FRAME_ALIGNMENT: usize = 8;

/// After a sync the next frame begins at a multiple of this many bytes: the unit in which the
/// system writes a buffered file back. What a sync has covered is never written again, so that
/// no torn write can harm it.
pub(crate) const SYNC_ALIGNMENT: u32 = 4096;

pub(crate) const FRAME_HEADER_SIZE: usize = 48;
pub(crate) const RECORD_HEADER_SIZE: usize = 28;
pub(crate) const FORMAT_VERSION: u32 = 1;

const SEGMENT_MAGIC: [u8; 8] = *b"SETTEELG";
const SEGMENT_HEADER_USED: usize = 72;
const FRAME_MAGIC: u16 = 0x5EF7;
const KIND_BATCH: u8 = 1;

/// What a record is, besides a value under a key. The log keeps it; the layer above gives it
/// its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags(u8);

impl Flags {
    /// The key has no value from here on.
    pub const TOMBSTONE: Flags = Flags(1);
    /// The record shows in the feed of changes.
    pub const LISTED: Flags = Flags(2);
    const KNOWN: u32 = 3;

    /// No flag.
    pub const fn none() -> Flags {
        Flags(0)
    }

    /// These flags and `other`'s.
    pub const fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    /// Whether all of `other`'s flags are set.
    pub const fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }
}

/// A segment's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    /// The segment's number: 1, 2, …
    pub segment: u32,
    /// Grows with every opening of the log.
    pub epoch: u32,
    /// The log's own random name.
    pub log_id: [u8; 16],
    /// The `Seq` of the first record to come.
    pub first_seq: u64,
    /// Where the frames of the segment before this one end; 0 in the first.
    pub previous_end: u64,
    /// The checksum of the last frame before this segment, or of that segment's header.
    pub previous_checksum: u64,
}

/// What a segment's first bytes are not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeaderError {
    /// Not a header, or a torn one.
    Invalid,
    /// A whole header of a later version.
    Newer(u32),
}

impl SegmentHeader {
    /// The header's bytes, and its checksum, which the first frame carries on.
    pub(crate) fn encode(&self) -> ([u8; SEGMENT_HEADER_SIZE], u64) {
        let mut bytes = [0; SEGMENT_HEADER_SIZE];
        bytes[..8].copy_from_slice(&SEGMENT_MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.segment.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[24..40].copy_from_slice(&self.log_id);
        bytes[40..48].copy_from_slice(&self.first_seq.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.previous_end.to_le_bytes());
        bytes[56..64].copy_from_slice(&self.previous_checksum.to_le_bytes());
        let checksum = xxh3_64(&bytes[..64]);
        bytes[64..SEGMENT_HEADER_USED].copy_from_slice(&checksum.to_le_bytes());
        (bytes, checksum)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<(SegmentHeader, u64), HeaderError> {
        let bytes = bytes.get(..SEGMENT_HEADER_SIZE).ok_or(HeaderError::Invalid)?;
        let checksum = u64_at(bytes, 64);
        if bytes[..8] != SEGMENT_MAGIC || checksum != xxh3_64(&bytes[..64]) {
            return Err(HeaderError::Invalid);
        }
        let version = u32_at(bytes, 8);
        if version > FORMAT_VERSION {
            return Err(HeaderError::Newer(version));
        }
        let header = SegmentHeader {
            segment: u32_at(bytes, 12),
            epoch: u32_at(bytes, 16),
            log_id: bytes[24..40].try_into().expect("16 bytes"),
            first_seq: u64_at(bytes, 40),
            previous_end: u64_at(bytes, 48),
            previous_checksum: u64_at(bytes, 56),
        };
        Ok((header, checksum))
    }
}

/// A frame's header, less what follows from its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    /// Bytes of records after the header, without the padding.
    pub length: u32,
    pub segment: u32,
    pub epoch: u32,
    pub first_seq: u64,
    pub record_count: u32,
    /// Up to where the segment was persisted when this frame was appended.
    pub persisted: u32,
    /// The checksum of the frame before, or of the segment's header.
    pub previous: u64,
}

impl FrameHeader {
    /// Bytes from this frame's first byte to the next frame's.
    pub(crate) fn frame_size(&self) -> usize {
        frame_size(self.length as usize)
    }

    /// The header's bytes; `records` gives the frame's records, whole.
    pub(crate) fn encode(
        &self,
        record_checksums: impl Iterator<Item = u64>,
    ) -> ([u8; FRAME_HEADER_SIZE], u64) {
        let mut bytes = [0; FRAME_HEADER_SIZE];
        bytes[..2].copy_from_slice(&FRAME_MAGIC.to_le_bytes());
        bytes[2] = KIND_BATCH;
        bytes[4..8].copy_from_slice(&self.length.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.segment.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.first_seq.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.record_count.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.persisted.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.previous.to_le_bytes());
        let checksum = frame_checksum(&bytes[..40], record_checksums);
        bytes[40..48].copy_from_slice(&checksum.to_le_bytes());
        (bytes, checksum)
    }
}

fn frame_checksum(header: &[u8], record_checksums: impl Iterator<Item = u64>) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(header);
    for checksum in record_checksums {
        hash.update(&checksum.to_le_bytes());
    }
    hash.digest()
}

/// Bytes that a frame with `length` bytes of records takes.
pub(crate) const fn frame_size(length: usize) -> usize {
    (FRAME_HEADER_SIZE + length).next_multiple_of(FRAME_ALIGNMENT)
}

/// A whole frame found in a segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frame<'a> {
    pub header: FrameHeader,
    pub checksum: u64,
    records: &'a [u8],
}

impl<'a> Frame<'a> {
    /// The whole, undamaged frame at the front of `bytes`, wherever it belongs.
    pub(crate) fn decode(bytes: &'a [u8]) -> Option<Frame<'a>> {
        let head = bytes.get(..FRAME_HEADER_SIZE)?;
        if u16::from_le_bytes([head[0], head[1]]) != FRAME_MAGIC || head[2] != KIND_BATCH || head[3] != 0 {
            return None;
        }
        let header = FrameHeader {
            length: u32_at(head, 4),
            segment: u32_at(head, 8),
            epoch: u32_at(head, 12),
            first_seq: u64_at(head, 16),
            record_count: u32_at(head, 24),
            persisted: u32_at(head, 28),
            previous: u64_at(head, 32),
        };
        let records = bytes.get(FRAME_HEADER_SIZE..)?.get(..header.length as usize)?;
        let frame = Frame { header, checksum: u64_at(head, 40), records };
        let mut checksums =
            Vec::with_capacity((header.record_count as usize).min(records.len() / RECORD_HEADER_SIZE));
        for (index, (_, record)) in frame.records().enumerate() {
            if record.seq != Seq(header.first_seq.checked_add(index as u64)?) {
                return None;
            }
            checksums.push(record.checksum);
        }
        // Records end early where one is damaged, and the checksum then doesn't match.
        let whole = checksums.len() == header.record_count as usize
            && frame_checksum(&head[..40], checksums.into_iter()) == frame.checksum;
        whole.then_some(frame)
    }

    /// Its records, each with its offset in bytes from the frame's first byte.
    pub(crate) fn records(&self) -> impl Iterator<Item = (usize, RecordRef<'a>)> + use<'a> {
        let records = self.records;
        let mut at = 0;
        std::iter::from_fn(move || {
            let record = RecordRef::decode(&records[at..]).ok()?;
            let offset = FRAME_HEADER_SIZE + at;
            at += record.size();
            Some((offset, record))
        })
    }
}

/// A record as it stands in the log.
#[derive(Debug, Clone, Copy)]
pub struct RecordRef<'a> {
    /// Its place in the order of the log.
    pub seq: Seq,
    /// What it is.
    pub flags: Flags,
    /// The key, up to [`KEY_SIZE_MAX`] bytes.
    pub key: &'a [u8],
    /// Opaque to the log, up to [`META_SIZE_MAX`] bytes.
    pub meta: &'a [u8],
    /// The value.
    pub value: &'a [u8],
    checksum: u64,
}

impl<'a> RecordRef<'a> {
    /// Bytes that it takes.
    pub fn size(&self) -> usize {
        RECORD_HEADER_SIZE + self.key.len() + self.meta.len() + self.value.len()
    }

    /// The undamaged record at the front of `bytes`, or what is wrong with it.
    pub(crate) fn decode(bytes: &'a [u8]) -> Result<RecordRef<'a>, &'static str> {
        let head = bytes.get(..RECORD_HEADER_SIZE).ok_or("it ends within a record's header")?;
        let flags = u32_at(head, 24);
        if flags & !Flags::KNOWN != 0 {
            return Err("it has unknown flags");
        }
        let key_end = RECORD_HEADER_SIZE + u16_at(head, 22) as usize;
        let meta_end = key_end + u16_at(head, 20) as usize;
        let end = meta_end + u32_at(head, 16) as usize;
        let bytes = bytes.get(..end).ok_or("it ends within a record")?;
        let checksum = u64_at(head, 0);
        if checksum != xxh3_64(&bytes[8..]) {
            return Err("its checksum doesn't match");
        }
        Ok(RecordRef {
            seq: Seq(u64_at(head, 8)),
            flags: Flags(flags as u8),
            key: &bytes[RECORD_HEADER_SIZE..key_end],
            meta: &bytes[key_end..meta_end],
            value: &bytes[meta_end..],
            checksum,
        })
    }
}

/// A record that was read, with its bytes.
#[derive(Debug, Clone)]
pub struct Record {
    bytes: Bytes,
    seq: Seq,
    flags: Flags,
    key: Range<usize>,
    meta: Range<usize>,
    value: Range<usize>,
}

impl Record {
    /// The undamaged record that `bytes` are, to the last one.
    pub(crate) fn decode(bytes: Bytes) -> Result<Record, &'static str> {
        let record = RecordRef::decode(&bytes)?;
        if record.size() != bytes.len() {
            return Err("it has another length");
        }
        let key = RECORD_HEADER_SIZE..RECORD_HEADER_SIZE + record.key.len();
        let meta = key.end..key.end + record.meta.len();
        let value = meta.end..bytes.len();
        Ok(Record { seq: record.seq, flags: record.flags, key, meta, value, bytes })
    }

    /// Its place in the order of the log.
    pub fn seq(&self) -> Seq {
        self.seq
    }

    /// What it is.
    pub fn flags(&self) -> Flags {
        self.flags
    }

    /// The key.
    pub fn key(&self) -> &[u8] {
        &self.bytes[self.key.clone()]
    }

    /// The meta.
    pub fn meta(&self) -> &[u8] {
        &self.bytes[self.meta.clone()]
    }

    /// The value, sharing the bytes that were read.
    pub fn value(&self) -> Bytes {
        self.bytes.slice(self.value.clone())
    }
}

/// Records to append together: all of them survive, or none.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    /// The records as they will stand in the log, but for their `Seq` and checksum.
    bytes: Vec<u8>,
    ends: Vec<u32>,
    pub(crate) may_use_reserve: bool,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// Adds a record.
    ///
    /// # Panics
    /// Where the key or the meta is over its limit: checking that is the caller's business.
    pub fn push(&mut self, flags: Flags, key: &[u8], meta: &[u8], value: &[u8]) {
        assert!(key.len() <= KEY_SIZE_MAX, "key of {} bytes", key.len());
        assert!(meta.len() <= META_SIZE_MAX, "meta of {} bytes", meta.len());
        let value_size = u32::try_from(value.len()).expect("a value fits a batch");
        self.bytes.reserve(RECORD_HEADER_SIZE + key.len() + meta.len() + value.len());
        self.bytes.extend_from_slice(&[0; 16]);
        self.bytes.extend_from_slice(&value_size.to_le_bytes());
        self.bytes.extend_from_slice(&(meta.len() as u16).to_le_bytes());
        self.bytes.extend_from_slice(&(key.len() as u16).to_le_bytes());
        self.bytes.extend_from_slice(&u32::from(flags.0).to_le_bytes());
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(meta);
        self.bytes.extend_from_slice(value);
        self.ends.push(u32::try_from(self.bytes.len()).unwrap_or(u32::MAX));
    }

    /// Adds another batch's records behind these.
    pub fn extend(&mut self, other: &Batch) {
        let start = self.bytes.len() as u32;
        self.bytes.extend_from_slice(&other.bytes);
        self.ends.extend(other.ends.iter().map(|end| start + end));
    }

    /// Lets the batch into the room that is kept back for what frees space: so deletions work
    /// on a full disk.
    pub fn use_reserve(&mut self) {
        self.may_use_reserve = true;
    }

    /// How many records it has.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Its records' flags, keys and metas, in order.
    pub fn records(&self) -> impl Iterator<Item = (Flags, &[u8], &[u8])> {
        self.ranges().map(|range| {
            let at = |offset: u32| (offset as usize) - FRAME_HEADER_SIZE;
            let record = &self.bytes[at(range.start)..at(range.end)];
            let key_end = RECORD_HEADER_SIZE + u16_at(record, 22) as usize;
            let meta_end = key_end + u16_at(record, 20) as usize;
            (Flags(record[24]), &record[RECORD_HEADER_SIZE..key_end], &record[key_end..meta_end])
        })
    }

    /// Bytes that it takes in the log.
    pub fn size(&self) -> usize {
        frame_size(self.bytes.len())
    }

    /// Where each record lies, in bytes from the frame's first byte.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<u32>> {
        let mut start = FRAME_HEADER_SIZE as u32;
        self.ends.iter().map(move |end| {
            let range = start..FRAME_HEADER_SIZE as u32 + end;
            start = range.end;
            range
        })
    }

    /// Appends the frame to `out` and returns its checksum. `header` is complete but for what
    /// the batch itself says.
    pub(crate) fn write_frame(&self, mut header: FrameHeader, out: &mut Vec<u8>) -> u64 {
        header.length = self.bytes.len() as u32;
        header.record_count = self.len() as u32;
        let start = out.len();
        out.extend_from_slice(&[0; FRAME_HEADER_SIZE]);
        out.extend_from_slice(&self.bytes);
        out.resize(start + self.size(), 0);
        let frame = &mut out[start..];
        let mut checksums = Vec::with_capacity(self.len());
        for (index, range) in self.ranges().enumerate() {
            let record = &mut frame[range.start as usize..range.end as usize];
            record[8..16].copy_from_slice(&(header.first_seq + index as u64).to_le_bytes());
            let checksum = xxh3_64(&record[8..]);
            record[..8].copy_from_slice(&checksum.to_le_bytes());
            checksums.push(checksum);
        }
        let (bytes, checksum) = header.encode(checksums.into_iter());
        frame[..FRAME_HEADER_SIZE].copy_from_slice(&bytes);
        checksum
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

#[cfg(test)]
mod tests;
