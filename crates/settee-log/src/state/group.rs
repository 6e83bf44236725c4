//! Groups: batches that share one sync. One group accepts batches while the one before it is written and
//! synced.

use std::sync::Arc;
use std::time::Duration;

use settee_io::File;

use crate::options::{GROUP_BATCHES_MAX, GROUP_BYTES_MAX, LogOptions};
use crate::watermark::{Position, Watermark};

/// Weight of the running average of the sync time: a new measurement counts one part in this many.
const SYNC_TIME_WEIGHT: u32 = 8;

/// The group that accepts batches now, and the committer counts that decide when it is closed.
#[derive(Default)]
struct FormingGroup {
    number: u64,
    /// Number of callers that wait for this group.
    committer_count: usize,
    batch_count: usize,
    bytes: usize,
    /// Number of committers expected in this group: those of the previous group, assumed to commit again,
    /// plus those that were already waiting when its sync completed.
    expected_count: usize,
    /// When the previous sync completed.
    synced_at: Duration,
}

/// A group that takes no more batches, until its sync has completed.
#[derive(Clone)]
pub(super) struct ClosedGroup {
    pub end: Watermark,
    /// End of its last frame. In direct mode `end` includes padding and can be greater.
    pub frames_end: Position,
    /// Where the bytes after this group begin.
    pub resume: Position,
    pub file: Arc<File>,
}

/// The sync of the closed group.
struct GroupSync {
    group: ClosedGroup,
    committer_count: usize,
    /// When the sync was submitted; `None` before.
    started_at: Option<Duration>,
}

/// The groups of a log.
#[derive(Default)]
pub(super) struct Groups {
    forming: FormingGroup,
    closed: Option<GroupSync>,
    /// The end of the previous segment, until all of it is persisted.
    barrier: Option<ClosedGroup>,
    /// Running average of the time of a sync.
    sync_time: Duration,
    /// Running average of the size of a group in bytes.
    bytes_average: usize,
}

impl Groups {
    /// The closed group, until its sync has completed.
    pub(super) fn closed(&self) -> Option<&ClosedGroup> {
        self.closed.as_ref().map(|sync| &sync.group)
    }

    /// The end of the previous segment, unless all of it is persisted.
    pub(super) fn barrier(&self) -> Option<&ClosedGroup> {
        self.barrier.as_ref()
    }

    /// Running average of the time of a sync.
    pub(super) fn sync_time(&self) -> Duration {
        self.sync_time
    }

    /// Bytes in the forming group.
    pub(super) fn forming_bytes(&self) -> usize {
        self.forming.bytes
    }

    /// The average size of a group in bytes, or that of the forming one, if it is larger.
    pub(super) fn usual_bytes(&self) -> usize {
        self.bytes_average.max(self.forming.bytes)
    }

    /// Adds a batch of this size to the forming group. Returns the group's number.
    pub(super) fn add_batch(&mut self, size: usize) -> u64 {
        self.forming.batch_count += 1;
        self.forming.bytes += size;
        self.forming.number
    }

    /// Registers a committer. The next group expects it again.
    pub(super) fn add_committer(&mut self) {
        self.forming.committer_count += 1;
    }

    /// The time until which a group whose sync was requested waits for more batches: those of committers
    /// whose previous commit has just completed and that are likely to commit again.
    pub(super) fn deadline(&self, options: &LogOptions) -> Duration {
        let max = Duration::from_micros(options.group_delay_us_max);
        self.forming.synced_at + (self.sync_time / 2).min(max)
    }

    /// Whether a group whose sync was requested is due: it waits for no more batches. Only a group of two or
    /// more committers can gain from waiting, so one that expects a single committer is due as soon as that
    /// one commits.
    pub(super) fn is_due(&self, options: &LogOptions, now: Duration) -> bool {
        let FormingGroup { committer_count, expected_count, batch_count, bytes, .. } = self.forming;
        committer_count >= expected_count
            || bytes >= GROUP_BYTES_MAX
            || batch_count >= GROUP_BATCHES_MAX
            || now >= self.deadline(options)
    }

    /// Closes the forming group.
    pub(super) fn close(&mut self, group: ClosedGroup) {
        let forming = &mut self.forming;
        self.bytes_average = (self.bytes_average * 3 + forming.bytes) / 4;
        let committer_count = std::mem::take(&mut forming.committer_count);
        (forming.batch_count, forming.bytes) = (0, 0);
        forming.number += 1;
        self.closed = Some(GroupSync { group, committer_count, started_at: None });
    }

    /// Begins the sync of the closed group, unless it has begun or `written` doesn't cover the group. Returns
    /// the file to sync.
    pub(super) fn begin_sync(&mut self, written: Watermark, now: Duration) -> Option<Arc<File>> {
        let sync = self.closed.as_mut()?;
        let is_ready = sync.started_at.is_none() && written.reaches(sync.group.end);
        is_ready.then(|| {
            sync.started_at = Some(now);
            sync.group.file.clone()
        })
    }

    /// Begins the sync of the closed group if the group ends at `end`: the end of a write that is about to be
    /// submitted, and that then includes the sync. Returns whether it does.
    pub(super) fn begin_sync_with_write(&mut self, end: Watermark, now: Duration) -> bool {
        let Some(sync) = self.closed.as_mut().filter(|sync| sync.group.end == end) else { return false };
        sync.started_at = Some(now);
        true
    }

    /// Records the success of the closed group's sync. Returns the group.
    pub(super) fn complete_sync(&mut self, now: Duration) -> ClosedGroup {
        let GroupSync { group, committer_count, started_at } = self.closed.take().expect("a group is closed");
        let taken = now.saturating_sub(started_at.expect("its sync has begun"));
        self.sync_time = match self.sync_time {
            Duration::ZERO => taken,
            average => (average * (SYNC_TIME_WEIGHT - 1) + taken) / SYNC_TIME_WEIGHT,
        };
        self.barrier.take_if(|barrier| group.end.reaches(barrier.end));
        self.forming.synced_at = now;
        self.forming.expected_count = committer_count + self.forming.committer_count;
        group
    }

    /// [`Failpoint::SyncRetried`](crate::failpoints::Failpoint::SyncRetried).
    pub(super) fn retry_sync(&mut self) {
        self.closed.as_mut().expect("a group is closed").started_at = None;
    }

    /// Begins a segment. `barrier` is the end of the previous one, unless all of it is persisted.
    pub(super) fn begin_segment(&mut self, barrier: Option<ClosedGroup>) {
        assert!(self.barrier.is_none(), "the previous segment is persisted");
        self.forming.number += 1;
        self.barrier = barrier;
    }

    /// Releases the file handles, for the caller to drop after unlocking.
    pub(super) fn release(&mut self) -> impl Sized + use<> {
        (self.closed.take(), self.barrier.take())
    }

    /// The end of the closed group if its sync has begun.
    pub(super) fn syncing(&self) -> Option<Watermark> {
        let sync = self.closed.as_ref()?;
        sync.started_at.map(|_| sync.group.end)
    }
}
