//! What a batch needs in order to be accepted, and where it is stored then.

use std::sync::Arc;

use crate::format::Batch;
use crate::watermark::Position;

/// Why a batch can't be accepted yet.
#[derive(Debug)]
pub(crate) enum AppendBlocked {
    /// It needs a new segment: there is no open segment, or the open one is full.
    Segment,
    /// The open segment's disk reservation must extend to this offset.
    DiskReservation(u32),
    /// It needs a buffer of this many bytes.
    Buffer(usize),
    /// Earlier writes failed for lack of disk space and wait for a retry.
    Writes(Arc<settee_io::Error>),
}

/// Disk space that a batch needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SpaceRequest {
    /// Size of its frame in bytes.
    pub size: usize,
    /// Whether it may use the reserve for batches that free space.
    pub may_use_reserve: bool,
}

impl SpaceRequest {
    pub(crate) fn of(batch: &Batch) -> SpaceRequest {
        SpaceRequest { size: batch.size(), may_use_reserve: batch.may_use_reserve }
    }
}

/// Position, first `Seq` and group number of an accepted frame.
pub(crate) struct Placement {
    pub at: Position,
    pub first_seq: u64,
    pub group: u64,
}
