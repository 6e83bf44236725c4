//! Which background job is due.

use super::capacity::{FIRST_RESERVATION_BYTES, reserve_ahead_bytes, reserve_bytes};
use super::segments::Segments;
use crate::watermark::Position;

/// Largest number of bytes that one background job fills with zeros.
pub(crate) const FILL_BYTES_MAX: u32 = 1 << 20;

/// Space is filled with zeros if groups are smaller than this on average; for larger ones the zeros cost more
/// than the syncs gain.
pub(super) const FILL_GROUP_BYTES_MAX: usize = 64 << 10;

/// Smallest log in bytes for which the next segment is preallocated: then the preallocated file is at most a
/// twentieth of it.
const PREALLOCATE_LOG_BYTES_MIN: u64 = 20 * FIRST_RESERVATION_BYTES as u64;

/// Work done in the background, by one task at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BackgroundJob {
    /// Reserve more space in the open segment.
    Reserve,
    /// Create the next segment.
    Preallocate,
    /// Remove segments that are no longer needed.
    Truncate,
}

/// The state of the background jobs.
#[derive(Default)]
pub(crate) struct Background {
    is_running: bool,
    /// Whether the last job was refused disk space.
    refused: bool,
    /// Number of the preallocated segment; 0 for none.
    preallocated_number: u32,
}

impl Background {
    /// Begins the job that is due in a log of `log_bytes` whose open segment has bytes up to the offset `used`.
    /// No other begins until [`Background::end`].
    pub(super) fn begin(
        &mut self,
        segments: &Segments,
        persisted: Position,
        used: u32,
        log_bytes: u64,
    ) -> Option<BackgroundJob> {
        if segments.is_rolling() || self.is_running {
            return None;
        }
        let job = self.next(segments, persisted, used, log_bytes);
        self.is_running = job.is_some();
        job
    }

    fn next(
        &self,
        segments: &Segments,
        persisted: Position,
        used: u32,
        log_bytes: u64,
    ) -> Option<BackgroundJob> {
        let segment = segments.open()?;
        if segments.has_truncated(persisted) {
            return Some(BackgroundJob::Truncate);
        }
        if self.refused {
            return None;
        }
        let available = segment.allocated.saturating_sub(used);
        if segment.allocated < segment.bytes_max {
            // In a small segment space is reserved late, so that small logs stay small; in a large one early,
            // before a stream has filled the reserved space.
            let step = reserve_ahead_bytes(segment.allocated);
            let low = if segment.allocated < FILL_BYTES_MAX { step / 2 } else { step };
            if available < low + reserve_bytes(segment.bytes_max) {
                return Some(BackgroundJob::Reserve);
            }
        }
        // Early, since a stream that reaches the end before the next segment exists waits for a directory
        // sync.
        let is_quarter_full = used > segment.bytes_max / 4;
        let pays = log_bytes >= PREALLOCATE_LOG_BYTES_MIN && self.preallocated_number <= segment.number;
        (is_quarter_full && pays).then_some(BackgroundJob::Preallocate)
    }

    /// The job has ended. If it was refused disk space, no space is reserved ahead until an append has reserved
    /// some.
    pub(crate) fn end(&mut self, refused: bool) {
        (self.is_running, self.refused) = (false, refused);
    }

    /// Forgets that a job was refused disk space.
    pub(super) fn forget_refusal(&mut self) {
        self.refused = false;
    }

    /// The segment with this number is preallocated; 0 if none is.
    pub(crate) fn set_preallocated(&mut self, number: u32) {
        self.preallocated_number = number;
    }
}
