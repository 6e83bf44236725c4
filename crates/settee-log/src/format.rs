//! The bytes of a segment: its header, frames, and the records in them.
//!
//! A segment is a header followed by frames; each frame is a batch of records. A frame's
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
//! 4. A close mark, written when the log is closed in order, says where the frames end and that all of them are
//!    persisted: after it, damage in them is never a torn write.
//! 5. A frame's checksum has a seed derived from the random id of its timeline, which clients never learn: no client
//!    value can look like a frame.
//!
//! Specified in `docs/format.md`; all numbers are little-endian.

mod batch;
mod checksum;
mod flags;
mod frame;
mod integers;
mod record;
mod segment_header;
mod sizes;

pub(crate) use batch::FrameSink;
pub use batch::{Batch, Value};
pub(crate) use checksum::{FrameSeed, xxh3_64};
pub use flags::Flags;
pub(crate) use frame::{Frame, FrameHeader};
pub use record::{Record, RecordRef};
pub(crate) use segment_header::{HeaderError, SegmentHeader};
pub use sizes::{BATCH_SIZE_MAX, KEY_SIZE_MAX, META_SIZE_MAX, SEGMENT_BYTES_LIMIT};
pub(crate) use sizes::{
    FORMAT_VERSION, FRAME_ALIGNMENT, FRAME_HEADER_SIZE, RECORD_HEADER_SIZE, SEGMENT_HEADER_SIZE,
    SYNC_ALIGNMENT,
};

#[cfg(test)]
mod tests;
