//! Groups: batches that share one sync. One group accepts batches while the one before it is written and
//! synced.

use std::sync::Arc;
use std::time::Duration;

use settee_io::File;

use crate::watermark::{Position, Watermark};

/// The group that accepts batches now, and the committer counts that decide when it is closed.
#[derive(Default)]
pub(super) struct FormingGroup {
    pub number: u64,
    /// Number of callers that wait for this group.
    pub committer_count: usize,
    pub batch_count: usize,
    pub bytes: usize,
    /// Number of committers expected in this group: those of the previous group, assumed to commit again,
    /// plus those that were already waiting when its sync completed.
    pub expected_count: usize,
    /// When the previous sync completed.
    pub synced_at: Duration,
}

/// A group that takes no more batches, until its sync has completed.
pub(super) struct ClosedGroup {
    pub end: Watermark,
    /// End of its last frame. In direct mode `end` includes padding and can be greater.
    pub frames_end: Position,
    /// Where the bytes after this group begin.
    pub resume: Position,
    pub file: Arc<File>,
    pub committer_count: usize,
    /// When its sync was submitted; `None` before.
    pub sync_started_at: Option<Duration>,
}

/// The previous segment, until all of it is persisted.
pub(super) struct Barrier {
    pub end: Watermark,
    pub frames_end: Position,
    pub file: Arc<File>,
}
