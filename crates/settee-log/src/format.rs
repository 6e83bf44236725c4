//! The bytes of a segment: its header, frames, and the records in them.
//!
//! A segment is a header followed by frames; each frame is a batch of records, or one extent. A frame's
//! checksum covers its header and its records' checksums, and a record's checksum covers the record: each
//! byte is hashed once, a record read by its position can be verified alone, and a frame is whole only with
//! all of its records. A record is hashed when the batch is built; its `Seq`, which is known only when it is
//! appended, is added to the hash.
//!
//! Invariants:
//! 1. A frame lies in one segment. It begins where the previous one ends, or at the next multiple of
//!    [`SYNC_ALIGNMENT`].
//! 2. A frame names its segment and epoch and contains the checksum of the previous frame or header, so that
//!    bytes of another time or place are never accepted as its successor.
//! 3. A frame says how much of its segment was persisted when it was appended: damage below that is not a
//!    torn write.
//! 4. A frame's checksum has a seed derived from the log's random id, which clients never learn: no client
//!    value can look like a frame.
//!
//! Specified in `docs/format.md`; all numbers are little-endian.

use std::ops::Range;

use bytes::Bytes;
use twox_hash::XxHash3_64;

use crate::log::{Location, SEGMENT_BYTES_LIMIT, Seq};

/// Largest batch in bytes, as encoded in the log. A batch never spans segments; it holds the largest
/// document.
pub const BATCH_SIZE_MAX: usize = 16 << 20;

/// Longest key in bytes.
pub const KEY_SIZE_MAX: usize = 16 << 10;

/// Largest meta in bytes.
pub const META_SIZE_MAX: usize = 512;

/// Largest extent in bytes.
pub const EXTENT_SIZE_MAX: usize = 1 << 20;

/// Largest number of extents to which one record refers.
pub const EXTENT_COUNT_MAX: usize = 64 << 10;

/// Bytes before a segment's first frame: one sector, for alignment.
pub(crate) const SEGMENT_HEADER_SIZE: usize = 512;

/// The size of a frame is a multiple of this many bytes.
pub(crate) const FRAME_ALIGNMENT: usize = 8;

/// After a sync the next frame begins at a multiple of this many bytes: the unit in which the system writes
/// back a buffered file. Bytes covered by a sync are never written again, so that no torn write can damage
/// them.
pub(crate) const SYNC_ALIGNMENT: u32 = 4096;

pub(crate) const FRAME_HEADER_SIZE: usize = 48;
pub(crate) const RECORD_HEADER_SIZE: usize = 28;
pub(crate) const FORMAT_VERSION: u32 = 2;

const SEGMENT_MAGIC: [u8; 8] = *b"SETTEELG";
const SEGMENT_HEADER_USED: usize = 80;
/// Header flag of a file that held another segment before.
const REUSED: u32 = 1;
/// Largest segment number and epoch that are valid; the remaining ones ensure that their successors don't
/// overflow.
const NUMBER_MAX: u32 = u32::MAX - 16;
/// Largest `Seq` with which a segment may begin.
const FIRST_SEQ_MAX: u64 = 1 << 62;
/// Size of a reference to an extent in bytes.
const LOCATION_SIZE: usize = 12;
/// Factor by which a `Seq` is multiplied before it is added to a record's hash: odd, so that distinct numbers
/// stay distinct.
const SEQ_FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
/// Bytes at the start of a record that are known only when it is appended: checksum and `Seq`.
const PLACE_SIZE: usize = 16;
/// Bytes reserved for a batch's first record, so that a few small records need no second allocation.
const FIRST_CAPACITY: usize = 512;
/// Values of up to this many bytes are copied into their batch; larger ones are shared.
const VALUE_COPY_MAX: usize = 1024;

/// Properties of a record besides its key and value. The log stores them; the crates above define their
/// meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags(u8);

impl Flags {
    /// The key has no value from here on.
    pub const TOMBSTONE: Flags = Flags(1);
    /// The record is in the seq index, from which the feed of changes is read.
    pub const IN_SEQ_INDEX: Flags = Flags(2);
    /// The value is a list of extents: see [`Batch::push_extents`].
    pub const EXTENTS: Flags = Flags(4);
    const EXTENT: Flags = Flags(8);
    /// The value is a merge operand, to be combined with the key's older values.
    pub const OPERAND: Flags = Flags(16);
    const KNOWN: u32 = 31;

    /// No flag.
    pub const fn none() -> Flags {
        Flags(0)
    }

    /// The flags as encoded in a record.
    pub(crate) const fn bits(self) -> u8 {
        self.0
    }

    /// Decodes flags; `None` if `bits` contains unknown ones.
    pub(crate) fn from_bits(bits: u8) -> Option<Flags> {
        (u32::from(bits) & !Flags::KNOWN == 0).then_some(Flags(bits))
    }

    /// The union of these flags and `other`.
    pub const fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    /// Whether all flags of `other` are set.
    pub const fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }
}

/// A segment's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    /// The segment's number: 1, 2, …
    pub segment: u32,
    /// Grows with each opening of the log.
    pub epoch: u32,
    /// The log's random id.
    pub log_id: [u8; 16],
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

/// The seed of the checksums of a log's frames, and of the bytes with which frames begin. It is derived from
/// the log's id, which clients never learn: so they can't create bytes that look like a frame.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameSeed(u64);

impl FrameSeed {
    pub(crate) fn of(log_id: &[u8; 16]) -> FrameSeed {
        FrameSeed(xxh3_64(log_id))
    }

    /// A frame's first bytes, so that a search for frames has little to hash.
    fn magic(self) -> [u8; 2] {
        (self.0 as u16).to_le_bytes()
    }
}

impl std::fmt::Debug for FrameSeed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FrameSeed")
    }
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
        bytes[24..40].copy_from_slice(&self.log_id);
        bytes[40..48].copy_from_slice(&self.first_seq.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.previous_end.to_le_bytes());
        bytes[56..64].copy_from_slice(&self.previous_checksum.to_le_bytes());
        bytes[64..68].copy_from_slice(&if self.is_reused { REUSED } else { 0 }.to_le_bytes());
        let checksum = xxh3_64(&bytes[..72]);
        bytes[72..SEGMENT_HEADER_USED].copy_from_slice(&checksum.to_le_bytes());
        (bytes, checksum)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<(SegmentHeader, u64), HeaderError> {
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
        if version != FORMAT_VERSION {
            return Err(HeaderError::Version(version));
        }
        let header = SegmentHeader {
            segment: u32_at(bytes, 12),
            epoch: u32_at(bytes, 16),
            oldest: u32_at(bytes, 20),
            log_id: bytes[24..40].try_into().expect("16 bytes"),
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

    /// The seed of the log's frames.
    pub(crate) fn frame_seed(&self) -> FrameSeed {
        FrameSeed::of(&self.log_id)
    }
}

/// The content of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum FrameKind {
    /// Records with consecutive `Seq`s, atomic.
    Batch = 1,
    /// One record without a `Seq`, unreferenced until a batch refers to it.
    Extent = 2,
}

/// A frame's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    pub seed: FrameSeed,
    pub kind: FrameKind,
    /// Size of the records after the header in bytes, without padding.
    pub length: u32,
    pub segment: u32,
    pub epoch: u32,
    /// The `Seq` of the first record here, or of the next one to come.
    pub first_seq: u64,
    pub record_count: u32,
    /// Offset up to which the segment was persisted when this frame was appended.
    pub persisted: u32,
    /// Checksum of the previous frame, or of the segment's header.
    pub previous: u64,
}

impl FrameHeader {
    /// Distance in bytes from this frame to the next.
    pub(crate) fn frame_size(&self) -> usize {
        frame_size(self.length as usize)
    }

    /// The `Seq` of the first record after this frame.
    pub(crate) fn next_seq(&self) -> u64 {
        match self.kind {
            FrameKind::Batch => self.first_seq + u64::from(self.record_count),
            FrameKind::Extent => self.first_seq,
        }
    }

    /// The header's bytes, with the checksum over them and the records' checksums.
    pub(crate) fn encode(
        &self,
        record_checksums: impl Iterator<Item = u64>,
    ) -> ([u8; FRAME_HEADER_SIZE], u64) {
        let mut bytes = [0; FRAME_HEADER_SIZE];
        bytes[..2].copy_from_slice(&self.seed.magic());
        bytes[2] = self.kind as u8;
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

    /// Decodes the header at the start of `bytes` if it may be one; its checksum isn't verified.
    pub(crate) fn decode(bytes: &[u8], seed: FrameSeed) -> Option<FrameHeader> {
        let head = bytes.get(..FRAME_HEADER_SIZE)?;
        if head[..2] != seed.magic() || head[3] != 0 {
            return None;
        }
        let kind = match head[2] {
            1 => FrameKind::Batch,
            2 => FrameKind::Extent,
            _ => return None,
        };
        let header = FrameHeader {
            seed,
            kind,
            length: u32_at(head, 4),
            segment: u32_at(head, 8),
            epoch: u32_at(head, 12),
            first_seq: u64_at(head, 16),
            record_count: u32_at(head, 24),
            persisted: u32_at(head, 28),
            previous: u64_at(head, 32),
        };
        let count_max = match kind {
            FrameKind::Batch => header.length as usize / RECORD_HEADER_SIZE,
            FrameKind::Extent => 1,
        };
        (1..=count_max).contains(&(header.record_count as usize)).then_some(header)
    }

    /// As [`FrameHeader::decode`] for an unknown seed, so that bytes made up by a client may be accepted;
    /// therefore its first record must look like one, too.
    pub(crate) fn guess(bytes: &[u8]) -> Option<FrameHeader> {
        let seed = FrameSeed(u64::from(u16_at(bytes.get(..FRAME_HEADER_SIZE)?, 0)));
        let header = FrameHeader::decode(bytes, seed)?;
        let records = bytes[FRAME_HEADER_SIZE..].get(..header.length as usize)?;
        let (record, _) = RecordRef::split(records).ok()?;
        header.accepts(&record, 0).then_some(header)
    }

    /// Whether the record may be the frame's record at `index`.
    fn accepts(&self, record: &RecordRef<'_>, index: usize) -> bool {
        let is_extent = record.flags.has(Flags::EXTENT);
        match self.kind {
            FrameKind::Batch => !is_extent && self.first_seq.checked_add(index as u64) == Some(record.seq.0),
            FrameKind::Extent => is_extent && record.seq == Seq(0),
        }
    }
}

/// XXH3 with 64 bits, seed 0: detects accidental damage, not attacks.
pub(crate) fn xxh3_64(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

fn frame_checksum(seed: FrameSeed, header: &[u8], record_checksums: impl Iterator<Item = u64>) -> u64 {
    // In one piece, since most batches are small and the streaming hash has a large state.
    let mut hashed = Vec::with_capacity(header.len() + record_checksums.size_hint().0 * 8);
    hashed.extend_from_slice(header);
    record_checksums.for_each(|checksum| hashed.extend_from_slice(&checksum.to_le_bytes()));
    XxHash3_64::oneshot_with_seed(seed.0, &hashed)
}

/// Hash of a record without its `Seq`: of its header from the sizes on, its key and meta, and its value.
fn record_hash(head: &[u8], value_hash: u64) -> u64 {
    xxh3_64(head) ^ value_hash.rotate_left(32)
}

fn record_checksum(hash: u64, seq: u64) -> u64 {
    hash.wrapping_add(seq.wrapping_mul(SEQ_FACTOR))
}

/// Size of a frame with `length` bytes of records, in bytes.
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
    /// Decodes and verifies the frame at the start of `bytes`, whose position in the log isn't checked.
    pub(crate) fn decode(bytes: &'a [u8], seed: FrameSeed) -> Option<Frame<'a>> {
        let header = FrameHeader::decode(bytes, seed)?;
        let records = bytes[FRAME_HEADER_SIZE..].get(..header.length as usize)?;
        let frame = Frame { header, checksum: u64_at(bytes, 40), records };
        // The frame's checksum first: if it matches, a log has written this header, and only then the
        // records, which may be large, are hashed.
        let mut checksums = Vec::with_capacity(header.record_count as usize);
        let mut end = 0;
        for (offset, record) in frame.records().take(header.record_count as usize) {
            if !header.accepts(&record, checksums.len()) {
                return None;
            }
            checksums.push(record.checksum);
            end = offset + record.size() - FRAME_HEADER_SIZE;
        }
        let is_whole = checksums.len() == header.record_count as usize
            && end == records.len()
            && frame_checksum(seed, &bytes[..40], checksums.into_iter()) == frame.checksum
            && frame.records().all(|(offset, _)| RecordRef::decode(&bytes[offset..]).is_ok());
        is_whole.then_some(frame)
    }

    /// Its records, each with its offset in bytes relative to the frame.
    pub(crate) fn records(&self) -> impl Iterator<Item = (usize, RecordRef<'a>)> + use<'a> {
        let records = self.records;
        let mut at = 0;
        std::iter::from_fn(move || {
            let (record, _) = RecordRef::split(&records[at..]).ok()?;
            let offset = FRAME_HEADER_SIZE + at;
            at += record.size();
            Some((offset, record))
        })
    }
}

/// A record as encoded in the log.
#[derive(Debug, Clone, Copy)]
pub struct RecordRef<'a> {
    /// Its `Seq`.
    pub seq: Seq,
    /// Its flags.
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
    /// Its size in bytes.
    pub fn size(&self) -> usize {
        RECORD_HEADER_SIZE + self.key.len() + self.meta.len() + self.value.len()
    }

    /// Its stored checksum.
    pub fn checksum(&self) -> u64 {
        self.checksum
    }

    /// Whether it is an extent.
    pub fn is_extent(&self) -> bool {
        self.flags.has(Flags::EXTENT)
    }

    /// Decodes and verifies the record at the start of `bytes`. It takes [`RecordRef::size`] bytes; another
    /// record may follow immediately.
    ///
    /// # Errors
    /// Description of the damage.
    pub fn decode(bytes: &'a [u8]) -> Result<RecordRef<'a>, &'static str> {
        let (record, head) = RecordRef::split(bytes)?;
        if record.checksum != record_checksum(record_hash(head, xxh3_64(record.value)), record.seq.0) {
            return Err("its checksum doesn't match");
        }
        Ok(record)
    }

    /// Decodes the record at the start of `bytes` without verifying it.
    pub(crate) fn undecoded(bytes: &'a [u8]) -> Option<RecordRef<'a>> {
        Some(RecordRef::split(bytes).ok()?.0)
    }

    /// Decodes the record at the start of `bytes` without verifying it, and returns also the hashed part of
    /// its header, key and meta.
    fn split(bytes: &'a [u8]) -> Result<(RecordRef<'a>, &'a [u8]), &'static str> {
        let head = bytes.get(..RECORD_HEADER_SIZE).ok_or("it ends within a record's header")?;
        let flags = u32_at(head, 24);
        if flags & !Flags::KNOWN != 0 {
            return Err("it has unknown flags");
        }
        let (meta_size, key_size) = (u16_at(head, 20) as usize, u16_at(head, 22) as usize);
        if meta_size > META_SIZE_MAX || key_size > KEY_SIZE_MAX {
            return Err("its key or meta is too large");
        }
        let key_end = RECORD_HEADER_SIZE + key_size;
        let meta_end = key_end + meta_size;
        let end = meta_end + u32_at(head, 16) as usize;
        let bytes = bytes.get(..end).ok_or("it ends within a record")?;
        let record = RecordRef {
            seq: Seq(u64_at(head, 8)),
            flags: Flags(flags as u8),
            key: &bytes[RECORD_HEADER_SIZE..key_end],
            meta: &bytes[key_end..meta_end],
            value: &bytes[meta_end..],
            checksum: u64_at(head, 0),
        };
        Ok((record, &bytes[PLACE_SIZE..meta_end]))
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
    /// Decodes and verifies the record that takes exactly `bytes`.
    ///
    /// # Errors
    /// Description of the damage.
    pub fn decode(bytes: Bytes) -> Result<Record, &'static str> {
        let record = Record::at_front(&bytes)?;
        if record.bytes.len() != bytes.len() {
            return Err("it has a different length");
        }
        Ok(record)
    }

    /// Decodes and verifies the record at the start of `bytes`, sharing them. Returns also its size in bytes;
    /// another record may follow immediately. None if there is no whole record.
    pub fn decode_first(bytes: &Bytes) -> Option<(Record, usize)> {
        let record = Record::at_front(bytes).ok()?;
        let size = record.bytes.len();
        Some((record, size))
    }

    /// The `Seq` and the size in bytes of the record at the start of `bytes`, unverified. None if no whole
    /// record is there.
    pub fn peek(bytes: &[u8]) -> Option<(Seq, usize)> {
        let record = RecordRef::split(bytes).ok()?.0;
        Some((record.seq, record.size()))
    }

    fn at_front(bytes: &Bytes) -> Result<Record, &'static str> {
        let record = RecordRef::decode(bytes)?;
        let key = RECORD_HEADER_SIZE..RECORD_HEADER_SIZE + record.key.len();
        let meta = key.end..key.end + record.meta.len();
        let value = meta.end..record.size();
        let bytes = bytes.slice(..value.end);
        Ok(Record { seq: record.seq, flags: record.flags, key, meta, value, bytes })
    }

    /// The record as encoded in the log, to be copied to another file.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Its stored checksum.
    pub fn checksum(&self) -> u64 {
        u64_at(&self.bytes, 0)
    }

    /// Its `Seq`.
    pub fn seq(&self) -> Seq {
        self.seq
    }

    /// Its flags.
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

    /// The value; shares the record's bytes.
    pub fn value(&self) -> Bytes {
        self.bytes.slice(self.value.clone())
    }

    /// Locations of the value's extents, in order; `None` if the record contains the value itself.
    pub fn extents(&self) -> Option<Vec<Location>> {
        let list = &self.bytes[self.value.clone()];
        let location = |bytes: &[u8]| Location {
            segment: u32_at(bytes, 0),
            offset: u32_at(bytes, 4),
            length: u32_at(bytes, 8),
        };
        self.flags.has(Flags::EXTENTS).then(|| list.chunks_exact(LOCATION_SIZE).map(location).collect())
    }

    /// Whether it is an extent.
    pub fn is_extent(&self) -> bool {
        self.flags.has(Flags::EXTENT)
    }
}

/// A value with its hash. Lets a caller hash it in advance, outside a critical section.
#[derive(Debug, Clone)]
pub struct Value {
    bytes: Bytes,
    hash: u64,
}

impl Value {
    /// Hashes the bytes, which it shares.
    pub fn new(bytes: Bytes) -> Value {
        Value { hash: xxh3_64(&bytes), bytes }
    }

    /// The value's bytes.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}

/// Records to append together: all of them survive, or none.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    /// The records as they will be encoded in the log, without the first [`PLACE_SIZE`] bytes' content and
    /// without the values in `parts`.
    bytes: Vec<u8>,
    parts: Vec<Part>,
    /// Total size of the records in bytes.
    size: usize,
    pub(crate) may_use_reserve: bool,
}

/// One record of a batch.
#[derive(Debug, Clone)]
struct Part {
    /// Where it ends in the batch's bytes.
    end: usize,
    hash: u64,
    /// Its value, if that isn't in the batch's bytes.
    value: Option<Bytes>,
}

/// Receives a frame piece by piece, on its way into the log.
pub(crate) trait FrameSink {
    /// Copies the bytes, and returns the copy, which the caller completes immediately.
    fn copy(&mut self, bytes: &[u8]) -> &mut [u8];

    /// Copies the value, or shares it.
    fn share(&mut self, value: &Bytes);
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// Adds a record, with a copy of its value.
    ///
    /// # Panics
    /// If the key or the meta exceeds its limit; the caller checks that.
    pub fn push(&mut self, flags: Flags, key: &[u8], meta: &[u8], value: &[u8]) {
        self.push_record(flags, key, meta, value, None, xxh3_64(value));
    }

    /// As [`Batch::push`], but a large value is shared instead of copied.
    ///
    /// # Panics
    /// As [`Batch::push`].
    pub fn push_bytes(&mut self, flags: Flags, key: &[u8], meta: &[u8], value: Bytes) {
        self.push_value(flags, key, meta, Value::new(value));
    }

    /// As [`Batch::push_bytes`], with a value that is already hashed.
    ///
    /// # Panics
    /// As [`Batch::push`].
    pub fn push_value(&mut self, flags: Flags, key: &[u8], meta: &[u8], value: Value) {
        let Value { bytes, hash } = value;
        if bytes.len() <= VALUE_COPY_MAX {
            self.push_record(flags, key, meta, &bytes, None, hash);
        } else {
            self.push_record(flags, key, meta, &[], Some(bytes), hash);
        }
    }

    /// Adds a record whose value is the concatenation of the extents' values. The extents are as durable as
    /// the record, since they were appended before it.
    ///
    /// # Panics
    /// As [`Batch::push`], and if there are more than [`EXTENT_COUNT_MAX`] extents.
    pub fn push_extents(&mut self, flags: Flags, key: &[u8], meta: &[u8], extents: &[Location]) {
        assert!(extents.len() <= EXTENT_COUNT_MAX, "{} extents", extents.len());
        let mut list = Vec::with_capacity(extents.len() * LOCATION_SIZE);
        for number in extents.iter().flat_map(|at| [at.segment, at.offset, at.length]) {
            list.extend_from_slice(&number.to_le_bytes());
        }
        self.push_bytes(flags.with(Flags::EXTENTS), key, meta, list.into());
    }

    /// A batch that is one extent.
    pub(crate) fn extent(value: Bytes) -> Batch {
        let mut batch = Batch::new();
        batch.push_bytes(Flags::EXTENT, &[], &[], value);
        batch
    }

    fn push_record(
        &mut self,
        flags: Flags,
        key: &[u8],
        meta: &[u8],
        copied: &[u8],
        shared: Option<Bytes>,
        value_hash: u64,
    ) {
        assert!(key.len() <= KEY_SIZE_MAX, "key of {} bytes", key.len());
        assert!(meta.len() <= META_SIZE_MAX, "meta of {} bytes", meta.len());
        let value = shared.as_deref().unwrap_or(copied);
        let value_size = u32::try_from(value.len()).expect("a value fits a batch");
        let start = self.bytes.len();
        let size = RECORD_HEADER_SIZE + key.len() + meta.len() + copied.len();
        self.bytes.reserve(if start == 0 { size.max(FIRST_CAPACITY) } else { size });
        self.bytes.extend_from_slice(&[0; PLACE_SIZE]);
        self.bytes.extend_from_slice(&value_size.to_le_bytes());
        self.bytes.extend_from_slice(&(meta.len() as u16).to_le_bytes());
        self.bytes.extend_from_slice(&(key.len() as u16).to_le_bytes());
        self.bytes.extend_from_slice(&u32::from(flags.0).to_le_bytes());
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(meta);
        let hash = record_hash(&self.bytes[start + PLACE_SIZE..], value_hash);
        self.size += self.bytes.len() - start + value.len();
        self.bytes.extend_from_slice(copied);
        self.parts.push(Part { end: self.bytes.len(), hash, value: shared });
    }

    /// Appends another batch's records.
    pub fn extend(&mut self, other: &Batch) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&other.bytes);
        self.parts.extend(other.parts.iter().map(|part| Part { end: start + part.end, ..part.clone() }));
        self.size += other.size;
    }

    /// Allows the batch to use the disk space that is reserved for batches which free space, so that
    /// deletions succeed on a full disk.
    pub fn use_reserve(&mut self) {
        self.may_use_reserve = true;
    }

    /// Number of records.
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// Whether it has no records.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// The flags, key and meta of its records, in order.
    pub fn records(&self) -> impl Iterator<Item = (Flags, &[u8], &[u8])> {
        self.heads().map(|(record, _)| {
            let key_end = RECORD_HEADER_SIZE + u16_at(record, 22) as usize;
            let meta_end = key_end + u16_at(record, 20) as usize;
            (Flags(record[24]), &record[RECORD_HEADER_SIZE..key_end], &record[key_end..meta_end])
        })
    }

    /// The flags, key, meta and value of its records, in order.
    pub fn values(&self) -> impl Iterator<Item = (Flags, &[u8], &[u8], Bytes)> {
        self.records().zip(self.heads()).map(|((flags, key, meta), (head, part))| {
            let in_head = RECORD_HEADER_SIZE + key.len() + meta.len();
            let value = part.value.clone().unwrap_or_else(|| Bytes::copy_from_slice(&head[in_head..]));
            (flags, key, meta, value)
        })
    }

    /// Size of its frame in bytes.
    pub fn size(&self) -> usize {
        frame_size(self.size)
    }

    /// Total size in bytes of the shared values of at least `size_min` bytes.
    pub(crate) fn shared_bytes(&self, size_min: usize) -> usize {
        let sizes = self.parts.iter().filter_map(|part| part.value.as_ref()).map(Bytes::len);
        sizes.filter(|size| *size >= size_min).sum()
    }

    /// Each record's part of the batch's bytes, and its other fields.
    fn heads(&self) -> impl Iterator<Item = (&[u8], &Part)> {
        let mut start = 0;
        self.parts
            .iter()
            .map(move |part| (&self.bytes[std::mem::replace(&mut start, part.end)..part.end], part))
    }

    /// Range of each record in bytes, relative to the frame.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<u32>> {
        let mut start = FRAME_HEADER_SIZE as u32;
        self.heads().map(move |(head, part)| {
            let size = head.len() + part.value.as_ref().map_or(0, Bytes::len);
            let range = start..start + size as u32;
            start = range.end;
            range
        })
    }

    /// Writes the frame, [`Batch::size`] bytes, and returns its checksum. The batch fills in the remaining
    /// fields of `header`.
    pub(crate) fn write_frame(&self, mut header: FrameHeader, sink: &mut impl FrameSink) -> u64 {
        header.length = self.size as u32;
        header.record_count = self.len() as u32;
        let seq_at = |index: usize| match header.kind {
            FrameKind::Batch => header.first_seq + index as u64,
            FrameKind::Extent => 0,
        };
        let checksum_at = |index: usize| record_checksum(self.parts[index].hash, seq_at(index));
        let (bytes, checksum) = header.encode((0..self.len()).map(checksum_at));
        sink.copy(&bytes);
        // Consecutive bytes up to a shared value are copied at once.
        let (mut start, mut first) = (0, 0);
        for (last, part) in self.parts.iter().enumerate() {
            if part.value.is_none() && last + 1 < self.len() {
                continue;
            }
            let run = sink.copy(&self.bytes[start..part.end]);
            let mut at = 0;
            for index in first..=last {
                let place = &mut run[at..at + PLACE_SIZE];
                place[..8].copy_from_slice(&checksum_at(index).to_le_bytes());
                place[8..].copy_from_slice(&seq_at(index).to_le_bytes());
                at = self.parts[index].end - start;
            }
            if let Some(value) = &part.value {
                sink.share(value);
            }
            (start, first) = (part.end, last + 1);
        }
        sink.copy(&[0; FRAME_ALIGNMENT][..self.size() - FRAME_HEADER_SIZE - self.size]);
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
