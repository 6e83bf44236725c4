//! Sizes, limits and alignments of the format, in bytes; and its version.

/// Largest batch in bytes, as encoded in the log. A batch never spans segments; it holds the largest
/// document.
pub const BATCH_SIZE_MAX: usize = 16 << 20;

/// Longest key in bytes.
pub const KEY_SIZE_MAX: usize = 16 << 10;

/// Largest meta in bytes.
pub const META_SIZE_MAX: usize = 512;

/// Upper bound of [`crate::LogOptions::segment_bytes_max`], since offsets have 32 bits.
pub const SEGMENT_BYTES_LIMIT: u32 = 1 << 30;

/// Bytes before a segment's first frame: one sector, for alignment.
pub(crate) const SEGMENT_HEADER_SIZE: usize = 512;

/// The size of a frame is a multiple of this many bytes.
pub(crate) const FRAME_ALIGNMENT: usize = 8;

/// After a sync the next frame begins at a multiple of this many bytes: the unit in which the system writes
/// back a buffered file. Bytes covered by a sync are never written again, so that no torn write can damage
/// them.
pub(crate) const SYNC_ALIGNMENT: u32 = 4096;

/// Bytes before a frame's first record.
pub(crate) const FRAME_HEADER_SIZE: usize = 48;
/// Bytes before a record's key.
pub(crate) const RECORD_HEADER_SIZE: usize = 28;
/// Version of the format that this code writes.
pub(crate) const FORMAT_VERSION: u32 = 3;

/// Size of a frame with `length` bytes of records, in bytes.
pub(crate) const fn frame_size(length: usize) -> usize {
    (FRAME_HEADER_SIZE + length).next_multiple_of(FRAME_ALIGNMENT)
}
