//! How large a segment becomes, and how much of it is kept for batches that free space.

use crate::options::LogOptions;

/// Space at the end of the open segment, in bytes, that is reserved for batches which free space, so that
/// they succeed on a full disk. In a small segment it is a quarter of the segment.
const RESERVE_BYTES: u32 = 32 << 10;

/// First disk reservation of a segment in bytes; it keeps small databases small.
pub(crate) const FIRST_RESERVATION_BYTES: u32 = 64 << 10;

/// Target number of segments in a log. A fast stream makes segments larger and so fewer.
const SEGMENT_COUNT_TARGET: u64 = 16;

/// Bytes at a segment's end that are reserved for batches which free space.
pub(crate) fn reserve_bytes(bytes_max: u32) -> u32 {
    RESERVE_BYTES.min(bytes_max / 4)
}

/// Capacity of a segment whose first frame ends at `end`: the planned `bytes_max`, or the frame plus the
/// reserve, if the planned capacity is too small for both.
pub(crate) fn fitting_bytes_max(bytes_max: u32, end: u32) -> u32 {
    if end + reserve_bytes(bytes_max) <= bytes_max { bytes_max } else { end + RESERVE_BYTES }
}

/// Bytes to reserve ahead in a segment with `allocated` bytes. The steps are large, so that there are few: a
/// reservation and the writes in flight to the same file wait for each other.
pub(crate) fn reserve_ahead_bytes(allocated: u32) -> u32 {
    allocated / 2
}

impl LogOptions {
    /// Capacity in bytes of the next segment in a log of `log_bytes`, of which the last `unpersisted_bytes`
    /// aren't persisted yet: a sixteenth of the log or, if that is more, twice `unpersisted_bytes` (at most
    /// the log's size), within the configured limits. A segment isn't written before the previous one is
    /// persisted, so a stream that fills small segments would wait for a sync after each.
    pub(crate) fn segment_bytes(&self, log_bytes: u64, unpersisted_bytes: u64) -> u32 {
        let most = self.segment_bytes_max;
        let target = (log_bytes / SEGMENT_COUNT_TARGET).max((2 * unpersisted_bytes).min(log_bytes));
        let target = u32::try_from(target).unwrap_or(most);
        target.clamp(self.segment_bytes_min.min(most), most)
    }
}
