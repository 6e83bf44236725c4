//! What the state knows of the log's segments: the open one, and those before it.

use std::collections::BTreeSet;
use std::sync::Arc;

use settee_io::File;

use crate::format::{FrameSeed, SEGMENT_HEADER_SIZE};

/// The segment that takes appends.
pub(crate) struct OpenSegment {
    pub number: u32,
    pub epoch: u32,
    pub seed: FrameSeed,
    pub file: Arc<File>,
    /// Offset at which it is full.
    pub bytes_max: u32,
    /// Disk space is reserved up to this offset.
    pub allocated: u32,
    /// Checksum of the last frame, which the next frame includes.
    pub checksum: u64,
    /// Its header, until it is accepted together with the first frame.
    pub header: Option<[u8; SEGMENT_HEADER_SIZE]>,
}

/// The log's metadata of a segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SegmentMeta {
    pub epoch: u32,
    pub first_seq: u64,
    /// Size of its frames in bytes, header included. For the open segment this is its size when the log was
    /// opened: 0 if the segment was begun since.
    pub bytes: u64,
}

/// The state of sealing, truncation and transfer.
pub(crate) struct ClosedSegments {
    /// All segments below are sealed, or are in `unsealed` because they can't be.
    pub seal_next: u32,
    pub unsealed: BTreeSet<u32>,
    /// Segments in `unsealed` whose segment index failed for lack of disk space.
    pub without_space: BTreeSet<u32>,
    pub is_sealing: bool,
    /// Segments below this one are sealed without waiting for a pause.
    pub seal_soon: u32,
    /// All segments below were removed or transferred.
    pub oldest: u32,
    /// The newest segment's header says that segments below this one are not needed.
    pub needed: u32,
    /// Records before this `Seq` aren't needed.
    pub truncate_before: u64,
}

impl ClosedSegments {
    /// Of a log whose first segment is `oldest`.
    pub(crate) fn new(oldest: u32) -> ClosedSegments {
        ClosedSegments {
            seal_next: oldest,
            unsealed: BTreeSet::new(),
            without_space: BTreeSet::new(),
            is_sealing: false,
            seal_soon: 0,
            oldest,
            needed: oldest,
            truncate_before: 0,
        }
    }
}
