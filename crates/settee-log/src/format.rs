//! The bytes of a segment: its header, frames, and the records in them.
//!
//! A segment is a header and then frames, each a batch of commits, or one extent. A frame's
//! checksum covers its header and its records' checksums, and a record's checksum covers the
//! record: each byte is hashed once, a record read by its position can be checked alone, and a
//! frame is whole only with all of its records. A record is hashed where the batch is made; its
//! `Seq`, which is known only when it gets its place, is added to the hash.
//!
//! Invariants:
//! 1. A frame lies in one segment. It begins where the one before it ends, or at the next
//!    multiple of [`SYNC_ALIGNMENT`].
//! 2. A frame names its segment and epoch and carries the checksum of what stands before it,
//!    so that bytes of another time or place never pass as its successor.
//! 3. A frame says how much of its segment was persisted when it was appended: damage below
//!    that is no torn write.
//! 4. A frame's checksum has a seed that follows from the log's random id, which no client is
//!    told: no value holds what looks like a frame.
//!
//! Written down in `docs/format.md`; all numbers are little-endian.

use std::ops::Range;

use bytes::Bytes;
use twox_hash::XxHash3_64;

use crate::log::{Location, SEGMENT_BYTES_LIMIT, Seq};

/// Largest batch in bytes as it stands in the log. A batch never spans segments; it holds the
/// largest document.
pub const BATCH_SIZE_MAX: usize = 16 << 20;

/// Longest key in bytes.
pub const KEY_SIZE_MAX: usize = 16 << 10;

/// Largest meta in bytes.
pub const META_SIZE_MAX: usize = 512;

/// Largest extent in bytes.
pub const EXTENT_SIZE_MAX: usize = 1 << 20;

/// Most extents that one record refers to.
pub const EXTENT_COUNT_MAX: usize = 64 << 10;

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
pub(crate) const FORMAT_VERSION: u32 = 2;

const SEGMENT_MAGIC: [u8; 8] = *b"SETTEELG";
const SEGMENT_HEADER_USED: usize = 80;
/// The header's flag of a file that held another segment before.
const REUSED: u32 = 1;
/// The last number and epoch that a segment may have: some are left, so that the next ones are
/// numbers as well.
const NUMBER_MAX: u32 = u32::MAX - 16;
/// The last `Seq` with which a segment may begin.
const FIRST_SEQ_MAX: u64 = 1 << 62;
/// Bytes of one reference to an extent.
const LOCATION_SIZE: usize = 12;
/// What a `Seq` is multiplied by before it is added to a record's hash: odd, so that no two
/// give the same.
const SEQ_FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
/// Bytes in front of a record that are known only when it gets its place: checksum and `Seq`.
const PLACE_SIZE: usize = 16;
/// What a batch's first record reserves, in bytes, so that few small ones need no second time.
const FIRST_CAPACITY: usize = 512;
/// A value up to this size is copied into its batch; of a larger one the batch holds a share.
const VALUE_COPY_MAX: usize = 1024;

/// What a record is, besides a value under a key. The log keeps it; the layer above gives it
/// its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags(u8);

impl Flags {
    /// The key has no value from here on.
    pub const TOMBSTONE: Flags = Flags(1);
    /// The record shows in the feed of changes.
    pub const LISTED: Flags = Flags(2);
    /// The value is a list of extents: see [`Batch::push_extents`].
    pub const EXTENTS: Flags = Flags(4);
    const EXTENT: Flags = Flags(8);
    /// The value is a change to what the key held before.
    pub const DELTA: Flags = Flags(16);
    const KNOWN: u32 = 31;

    /// No flag.
    pub const fn none() -> Flags {
        Flags(0)
    }

    /// The flags as they stand in a record.
    pub(crate) const fn bits(self) -> u8 {
        self.0
    }

    /// The flags that `bits` are; `None` where there are others among them.
    pub(crate) fn from_bits(bits: u8) -> Option<Flags> {
        (u32::from(bits) & !Flags::KNOWN == 0).then_some(Flags(bits))
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
    /// The file held another segment before: what lies behind the last frame may be of that.
    pub is_reused: bool,
    /// The oldest segment that the log still needed when this one began.
    pub oldest: u32,
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
    /// A whole header of another version.
    Version(u32),
    /// A whole header that no log writes, and why.
    Impossible(&'static str),
}

/// What the checksums of a log's frames begin with, and the frames themselves. It follows from the
/// log's id, which clients aren't told: so they can't make bytes that look like a frame.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameSeed(u64);

impl FrameSeed {
    pub(crate) fn of(log_id: &[u8; 16]) -> FrameSeed {
        FrameSeed(xxh3_64(log_id))
    }

    /// A frame's first bytes: whoever looks for frames has little to hash.
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
    /// The header's bytes, and its checksum, which the first frame carries on.
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
        // Of another version only the magic and the version's place are known.
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

    /// Whether a log can have written this.
    fn check(&self) -> Result<(), &'static str> {
        let require = |holds: bool, what| if holds { Ok(()) } else { Err(what) };
        require((1..=NUMBER_MAX).contains(&self.segment), "its header names no segment")?;
        require((1..=NUMBER_MAX).contains(&self.epoch), "its header names no epoch")?;
        require(
            (1..=self.segment).contains(&self.oldest),
            "its header needs segments that aren't before it",
        )?;
        require((1..=FIRST_SEQ_MAX).contains(&self.first_seq), "its header names no `Seq`")?;
        let is_end = match self.segment {
            1 => self.previous_end == 0,
            _ => (SEGMENT_HEADER_SIZE as u64..=u64::from(SEGMENT_BYTES_LIMIT)).contains(&self.previous_end),
        };
        require(is_end, "its header says of the segment before that it ends where none does")
    }

    /// The seed of the log's frames.
    pub(crate) fn frame_seed(&self) -> FrameSeed {
        FrameSeed::of(&self.log_id)
    }
}

/// What a frame holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum FrameKind {
    /// Commits: one record for each `Seq`, atomic.
    Batch = 1,
    /// One record without a `Seq`, dead until a commit refers to it.
    Extent = 2,
}

/// A frame's header, less what its records say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    pub seed: FrameSeed,
    pub kind: FrameKind,
    /// Bytes of records after the header, without the padding.
    pub length: u32,
    pub segment: u32,
    pub epoch: u32,
    /// The `Seq` of the first commit here, or of the next to come.
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

    /// The `Seq` of the first record after this frame.
    pub(crate) fn next_seq(&self) -> u64 {
        match self.kind {
            FrameKind::Batch => self.first_seq + u64::from(self.record_count),
            FrameKind::Extent => self.first_seq,
        }
    }

    /// The header's bytes, with the checksum over them and the records' own.
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

    /// What the front of `bytes` says, if it may be a frame's header: nothing is hashed yet.
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

    /// As [`FrameHeader::decode`] where nobody knows the seed, so that what a client made up may
    /// pass: its first record must look like one, too.
    pub(crate) fn guess(bytes: &[u8]) -> Option<FrameHeader> {
        let seed = FrameSeed(u64::from(u16_at(bytes.get(..FRAME_HEADER_SIZE)?, 0)));
        let header = FrameHeader::decode(bytes, seed)?;
        let records = bytes[FRAME_HEADER_SIZE..].get(..header.length as usize)?;
        let (record, _) = RecordRef::split(records).ok()?;
        header.admits(&record, 0).then_some(header)
    }

    /// Whether the record may be the frame's one at `index`.
    fn admits(&self, record: &RecordRef<'_>, index: usize) -> bool {
        let is_extent = record.flags.has(Flags::EXTENT);
        match self.kind {
            FrameKind::Batch => !is_extent && self.first_seq.checked_add(index as u64) == Some(record.seq.0),
            FrameKind::Extent => is_extent && record.seq == Seq(0),
        }
    }
}

/// XXH3 with 64 bits, seed 0: against accidents, not attackers.
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

/// The hash of a record but for its `Seq`: of its head from the sizes on, and of its value.
fn record_hash(head: &[u8], value_hash: u64) -> u64 {
    xxh3_64(head) ^ value_hash.rotate_left(32)
}

fn record_checksum(hash: u64, seq: u64) -> u64 {
    hash.wrapping_add(seq.wrapping_mul(SEQ_FACTOR))
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
    /// The whole, undamaged frame at the front of `bytes`, wherever in the seed's log it belongs.
    pub(crate) fn decode(bytes: &'a [u8], seed: FrameSeed) -> Option<Frame<'a>> {
        let header = FrameHeader::decode(bytes, seed)?;
        let records = bytes[FRAME_HEADER_SIZE..].get(..header.length as usize)?;
        let frame = Frame { header, checksum: u64_at(bytes, 40), records };
        // The frame's checksum first: where it matches, a log has written this header, and it is
        // worth hashing the records, of which there may be much.
        let mut checksums = Vec::with_capacity(header.record_count as usize);
        let mut end = 0;
        for (offset, record) in frame.records().take(header.record_count as usize) {
            if !header.admits(&record, checksums.len()) {
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

    /// Its records, each with its offset in bytes from the frame's first byte.
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

    /// The checksum that stands in it.
    pub fn checksum(&self) -> u64 {
        self.checksum
    }

    /// Whether it is an extent.
    pub fn is_extent(&self) -> bool {
        self.flags.has(Flags::EXTENT)
    }

    /// The undamaged record at the front of `bytes`, of which it takes [`RecordRef::size`]; another
    /// may follow at once.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(bytes: &'a [u8]) -> Result<RecordRef<'a>, &'static str> {
        let (record, head) = RecordRef::split(bytes)?;
        if record.checksum != record_checksum(record_hash(head, xxh3_64(record.value)), record.seq.0) {
            return Err("its checksum doesn't match");
        }
        Ok(record)
    }

    /// The record at the front of `bytes`; it may be damaged.
    pub(crate) fn undecoded(bytes: &'a [u8]) -> Option<RecordRef<'a>> {
        Some(RecordRef::split(bytes).ok()?.0)
    }

    /// The record at the front of `bytes` and what of its head is hashed; it may be damaged.
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
    /// The undamaged record that `bytes` are, to the last one.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(bytes: Bytes) -> Result<Record, &'static str> {
        let record = Record::at_front(&bytes)?;
        if record.bytes.len() != bytes.len() {
            return Err("it has another length");
        }
        Ok(record)
    }

    /// The undamaged record at the front of `bytes`, sharing them, and how many it takes; another may
    /// follow at once. None where there is no such record.
    pub fn decode_first(bytes: &Bytes) -> Option<(Record, usize)> {
        let record = Record::at_front(bytes).ok()?;
        let size = record.bytes.len();
        Some((record, size))
    }

    /// What the record at the front of `bytes` says of itself, unchecked: its `Seq`, and how many bytes
    /// it takes. None where no record is there whole.
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

    /// The record as it stands in the log: so it can be copied to another file.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The checksum that stands in it.
    pub fn checksum(&self) -> u64 {
        u64_at(&self.bytes, 0)
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

    /// Where the value's extents lie, in order; `None` where the value stands here itself.
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

/// A value with its hash: for who makes it where nobody waits, and puts it into a batch where others do.
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

    /// The value itself.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }
}

/// Records to append together: all of them survive, or none.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    /// One behind another: the records as they will stand in the log, but for the first
    /// [`PLACE_SIZE`] bytes of each, and without the values in `parts`.
    bytes: Vec<u8>,
    parts: Vec<Part>,
    /// Bytes of all records.
    size: usize,
    pub(crate) may_use_reserve: bool,
}

/// One record of a batch.
#[derive(Debug, Clone)]
struct Part {
    /// Where it ends in the batch's bytes.
    end: usize,
    hash: u64,
    /// Its value, where that isn't among the batch's bytes.
    value: Option<Bytes>,
}

/// Takes a frame on its way into the log, piece by piece.
pub(crate) trait FrameSink {
    /// Copies the bytes, and hands out the copy, to be completed at once.
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
    /// Where the key or the meta is over its limit: checking that is the caller's business.
    pub fn push(&mut self, flags: Flags, key: &[u8], meta: &[u8], value: &[u8]) {
        self.push_record(flags, key, meta, value, None, xxh3_64(value));
    }

    /// As [`Batch::push`], but a large value is shared and not copied.
    ///
    /// # Panics
    /// As [`Batch::push`].
    pub fn push_bytes(&mut self, flags: Flags, key: &[u8], meta: &[u8], value: Bytes) {
        self.push_value(flags, key, meta, Value::new(value));
    }

    /// As [`Batch::push_bytes`], but the value isn't hashed again.
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

    /// Adds a record whose value is what the extents hold, one behind another. They are as
    /// durable as the record, since they were appended before it.
    ///
    /// # Panics
    /// As [`Batch::push`], and where there are more than [`EXTENT_COUNT_MAX`] extents.
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

    /// Adds another batch's records behind these.
    pub fn extend(&mut self, other: &Batch) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&other.bytes);
        self.parts.extend(other.parts.iter().map(|part| Part { end: start + part.end, ..part.clone() }));
        self.size += other.size;
    }

    /// Lets the batch into the room that is kept back for what frees space: so deletions work
    /// on a full disk.
    pub fn use_reserve(&mut self) {
        self.may_use_reserve = true;
    }

    /// How many records it has.
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Its records' flags, keys and metas, in order.
    pub fn records(&self) -> impl Iterator<Item = (Flags, &[u8], &[u8])> {
        self.heads().map(|(record, _)| {
            let key_end = RECORD_HEADER_SIZE + u16_at(record, 22) as usize;
            let meta_end = key_end + u16_at(record, 20) as usize;
            (Flags(record[24]), &record[RECORD_HEADER_SIZE..key_end], &record[key_end..meta_end])
        })
    }

    /// Its records as they were added.
    pub fn values(&self) -> impl Iterator<Item = (Flags, &[u8], &[u8], Bytes)> {
        self.records().zip(self.heads()).map(|((flags, key, meta), (head, part))| {
            let in_head = RECORD_HEADER_SIZE + key.len() + meta.len();
            let value = part.value.clone().unwrap_or_else(|| Bytes::copy_from_slice(&head[in_head..]));
            (flags, key, meta, value)
        })
    }

    /// Bytes that it takes in the log.
    pub fn size(&self) -> usize {
        frame_size(self.size)
    }

    /// Bytes of the values that are shared and at least as large.
    pub(crate) fn shared_bytes(&self, size_min: usize) -> usize {
        let sizes = self.parts.iter().filter_map(|part| part.value.as_ref()).map(Bytes::len);
        sizes.filter(|size| *size >= size_min).sum()
    }

    /// Each record's bytes in the batch, and the rest of it.
    fn heads(&self) -> impl Iterator<Item = (&[u8], &Part)> {
        let mut start = 0;
        self.parts
            .iter()
            .map(move |part| (&self.bytes[std::mem::replace(&mut start, part.end)..part.end], part))
    }

    /// Where each record lies, in bytes from the frame's first byte.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = Range<u32>> {
        let mut start = FRAME_HEADER_SIZE as u32;
        self.heads().map(move |(head, part)| {
            let size = head.len() + part.value.as_ref().map_or(0, Bytes::len);
            let range = start..start + size as u32;
            start = range.end;
            range
        })
    }

    /// Hands out the frame, [`Batch::size`] bytes, and returns its checksum. `header` is complete
    /// but for what the batch itself says.
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
        // All up to a value that stands elsewhere lies together, and is copied at once.
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
