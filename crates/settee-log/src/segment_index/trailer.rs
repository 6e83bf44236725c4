//! A footer's trailer: the last bytes of the file, which locate everything else.

use settee_io::File;

use super::block::{BLOCK_ALIGNMENT, Cursor};
use super::error::{SegmentIndexError, damaged};
use super::filter::LINE_SIZE;
use crate::format::xxh3_64;
use crate::types::Seq;

/// Size of a trailer in bytes.
pub const TRAILER_SIZE: usize = 152;

pub(super) const FOOTER_VERSION: u32 = 1;
const MAGIC: [u8; 8] = *b"SETTEEFT";
const CHECKSUM_AT: usize = TRAILER_SIZE - 8;

/// Offset of the footer of a segment whose frames end at `frames_end`.
pub const fn footer_start(frames_end: u64) -> u64 {
    frames_end.next_multiple_of(BLOCK_ALIGNMENT as u64)
}

/// A footer's description of its segment, and the sizes of its sections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Trailer {
    /// The segment's number; that of the first one if there are several.
    pub segment: u32,
    /// The last segment's number; the same if there is only one.
    pub last_segment: u32,
    /// The segment's epoch, or the number chosen for a file of several segments.
    pub epoch: u32,
    /// Offset where the last frame ends.
    pub frames_end: u64,
    /// Checksum of the last frame, or of the segment's header; the next segment's header repeats it.
    pub frames_checksum: u64,
    /// The `Seq` of the first record; 0 if there is none.
    pub first_seq: Seq,
    /// The `Seq` of the last record; 0 if there is none.
    pub last_seq: Seq,
    /// Number of records, each with an entry.
    pub record_count: u64,
    /// Number of records that are tombstones.
    pub tombstone_count: u64,
    /// Number of records that are in the seq index.
    pub in_seq_index_count: u64,
    /// Number of distinct keys.
    pub key_count: u64,
    /// Total size of the records in bytes.
    pub record_bytes: u64,
    pub(super) sizes: SectionSizes,
    /// Checksum of all bytes between the blocks and the trailer.
    pub(super) index_checksum: u64,
}

/// Size of each section in bytes, in their order in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct SectionSizes {
    pub seq_blocks: u64,
    pub key_blocks: u64,
    pub seq_index: u64,
    pub key_index: u64,
    pub filter: u64,
}

/// Why bytes are not a trailer of this file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TrailerError {
    Absent,
    Invalid(&'static str),
    Newer(u32),
}

impl Trailer {
    /// Reads and verifies the trailer of a sealed segment, with which the file must end, and checks that it
    /// belongs to the segment with this number and epoch. Dropping the future abandons the read.
    ///
    /// # Errors
    /// [`SegmentIndexError::Absent`] if the file doesn't end with a footer; otherwise as listed in
    /// [`SegmentIndexError`].
    pub async fn read(file: &File, segment: u32, epoch: u32) -> Result<Trailer, SegmentIndexError> {
        Trailer::read_covering(file, segment, segment, epoch).await
    }

    /// As [`Trailer::read`], for a file that contains records of the segments from `first` to `last`.
    ///
    /// # Errors
    /// As [`Trailer::read`].
    pub async fn read_covering(
        file: &File,
        first: u32,
        last: u32,
        epoch: u32,
    ) -> Result<Trailer, SegmentIndexError> {
        let length = file.length().await?;
        let path = || file.path().to_path_buf();
        let Some(start) = length.checked_sub(TRAILER_SIZE as u64) else {
            return Err(SegmentIndexError::Absent { path: path() });
        };
        let bytes = file.read_exact_at(start, TRAILER_SIZE).await?;
        let trailer = Trailer::decode(&bytes, length).map_err(|error| match error {
            TrailerError::Absent => SegmentIndexError::Absent { path: path() },
            TrailerError::Invalid(what) => damaged(file, start, what),
            TrailerError::Newer(found) => {
                SegmentIndexError::NewerFormat { path: path(), found, known: FOOTER_VERSION }
            }
        })?;
        if (trailer.segment, trailer.last_segment, trailer.epoch) != (first, last, epoch) {
            return Err(damaged(file, start, "its footer belongs to another segment"));
        }
        Ok(trailer)
    }

    /// Offset of the blocks by `Seq`, with which the footer begins.
    pub(super) fn seq_blocks_start(&self) -> u64 {
        footer_start(self.frames_end)
    }

    pub(super) fn key_blocks_start(&self) -> u64 {
        self.seq_blocks_start() + self.sizes.seq_blocks
    }

    /// Offset of the block indexes; everything from here to the trailer is loaded at once.
    pub(super) fn index_start(&self) -> u64 {
        self.key_blocks_start() + self.sizes.key_blocks
    }

    pub(super) fn encode(&self) -> [u8; TRAILER_SIZE] {
        let mut out = Vec::with_capacity(TRAILER_SIZE);
        out.extend_from_slice(&MAGIC);
        let last = if self.last_segment == self.segment { 0 } else { self.last_segment };
        for number in [FOOTER_VERSION, self.segment, self.epoch, last] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        let sizes = &self.sizes;
        let numbers = [
            self.frames_end,
            self.frames_checksum,
            self.first_seq.0,
            self.last_seq.0,
            self.record_count,
            self.tombstone_count,
            self.in_seq_index_count,
            self.key_count,
            self.record_bytes,
            sizes.seq_blocks,
            sizes.key_blocks,
            sizes.seq_index,
            sizes.key_index,
            sizes.filter,
            self.index_checksum,
        ];
        for number in numbers {
            out.extend_from_slice(&number.to_le_bytes());
        }
        let checksum = xxh3_64(&out);
        out.extend_from_slice(&checksum.to_le_bytes());
        out.try_into().expect("a trailer has its size")
    }

    /// Decodes the trailer of a file of `file_length` bytes.
    fn decode(bytes: &[u8], file_length: u64) -> Result<Trailer, TrailerError> {
        const SHORT: TrailerError = TrailerError::Invalid("its trailer is cut short");
        let mut cursor = Cursor::new(bytes.get(..TRAILER_SIZE).ok_or(SHORT)?);
        if cursor.take(8) != Some(&MAGIC) {
            return Err(TrailerError::Absent);
        }
        let mut stated = Cursor { bytes, at: CHECKSUM_AT };
        if stated.u64() != Some(xxh3_64(&bytes[..CHECKSUM_AT])) {
            return Err(TrailerError::Invalid("its trailer's checksum doesn't match"));
        }
        let version = cursor.u32().ok_or(SHORT)?;
        if version > FOOTER_VERSION {
            return Err(TrailerError::Newer(version));
        }
        let (segment, epoch) = (cursor.u32().ok_or(SHORT)?, cursor.u32().ok_or(SHORT)?);
        let last = cursor.u32().ok_or(SHORT)?;
        let mut next = || cursor.u64().ok_or(SHORT);
        let trailer = Trailer {
            segment,
            last_segment: if last == 0 { segment } else { last },
            epoch,
            frames_end: next()?,
            frames_checksum: next()?,
            first_seq: Seq(next()?),
            last_seq: Seq(next()?),
            record_count: next()?,
            tombstone_count: next()?,
            in_seq_index_count: next()?,
            key_count: next()?,
            record_bytes: next()?,
            sizes: SectionSizes {
                seq_blocks: next()?,
                key_blocks: next()?,
                seq_index: next()?,
                key_index: next()?,
                filter: next()?,
            },
            index_checksum: next()?,
        };
        let is_range = last == 0 || last > segment;
        if version == 0 || !is_range || !trailer.fits(file_length) {
            return Err(TrailerError::Invalid("its trailer doesn't fit the file"));
        }
        Ok(trailer)
    }

    /// Whether the sections are adjacent and end with the file, so that reading them never exceeds the file's
    /// size.
    fn fits(&self, file_length: u64) -> bool {
        let SectionSizes { seq_blocks, key_blocks, seq_index, key_index, filter } = self.sizes;
        let alignment = BLOCK_ALIGNMENT as u64;
        let start = self.frames_end.checked_next_multiple_of(alignment);
        let sections = [seq_blocks, key_blocks, seq_index, key_index, filter, TRAILER_SIZE as u64];
        let end = sections.iter().try_fold(start.unwrap_or(u64::MAX), |end, size| end.checked_add(*size));
        end.and_then(|end| end.checked_next_multiple_of(alignment)) == Some(file_length)
            && seq_blocks.is_multiple_of(alignment)
            && key_blocks.is_multiple_of(alignment)
            && filter.is_multiple_of(LINE_SIZE as u64)
    }
}
