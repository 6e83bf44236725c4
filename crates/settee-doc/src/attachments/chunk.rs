//! Chunks: the records that an upload's bytes are divided into.
//!
//! All chunks of an upload have [`CHUNK_BYTES`], except the last, which may be smaller. An empty upload has
//! none.

/// Size of a chunk in bytes; an attachment's last chunk may be smaller.
pub const CHUNK_BYTES: usize = 1 << 20;

/// Identifies an upload among those of its document.
pub(crate) type UploadId = [u8; 16];

/// Number of chunks of an upload of `length` bytes.
pub(super) fn chunk_count(length: u64) -> u32 {
    u32::try_from(length.div_ceil(CHUNK_BYTES as u64)).unwrap_or(u32::MAX)
}
