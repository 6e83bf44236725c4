//! When background work frees disk space: while writes go on, when they pause, and how fast writers may be
//! meanwhile.
//!
//! While writes go on, a checkpoint and then a compaction keep the garbage of log and tree together at
//! `garbage_percent_max`. A store with more garbage ends its open segment at each checkpoint, so that the segment's
//! garbage can be freed too. When no batch was committed for `idle_delay_ms`, what is left is freed down to
//! `garbage_idle_percent_max`: a checkpoint, an early end of the open segment, compaction.
//!
//! Work at a pause is done once for each pause. Only a commit, or the end of other background work, begins the next
//! wait for one, and only in a store with enough garbage: an idle store has neither a timer nor a task.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::select;
use settee_io::OnPanic;
use settee_log::AppendError;

use crate::error::{CommitError, StoreError};
use crate::pacing::PacingLimits;
use crate::shared::Shared;
use crate::space::Space;
use crate::version::Version;

impl Shared {
    /// Whether the store has so much garbage that some is freed at a pause.
    fn has_idle_garbage(&self, space: Space) -> bool {
        let options = &self.context.options;
        let freed = space.garbage.saturating_sub(self.space.unreclaimable());
        freed > options.reclaim_bytes_min
            && space.exceeds_by(options.garbage_idle_percent_max, options.reclaim_bytes_min)
    }

    /// Whether there is more garbage than permitted while writes go on, and enough of it to end a segment for.
    pub(crate) fn has_garbage_for_new_segment(&self, version: &Version) -> bool {
        let (options, space) = (&self.context.options, self.space.of(version));
        space.exceeds(options.garbage_percent_max) && space.garbage >= options.reclaim_bytes_min
    }

    /// Waits for a pause if the store has garbage that is freed then.
    pub(crate) fn watch_for_pause_if_due(self: &Arc<Self>) {
        if self.has_idle_garbage(self.published_space()) {
            self.watch_for_pause();
        }
    }

    /// Charges the pacing with a batch of this size that was committed to `version`, and waits for a pause if there
    /// is garbage to free.
    pub(crate) fn note_commit(self: &Arc<Self>, version: &Version, bytes: usize) {
        self.jobs.commit_count.fetch_add(1, Ordering::Relaxed);
        let space = self.space.of(version);
        let excess = if self.is_reclaiming() { self.excess(space) } else { 0.0 };
        self.pacing.charge(self.context.env.clock.now(), bytes as u64, excess);
        if self.has_idle_garbage(space) {
            self.watch_for_pause();
        }
    }

    /// Whether background work that frees space is in progress, and may succeed.
    pub(crate) fn is_reclaiming(&self) -> bool {
        let is_busy = self.jobs.is_checkpointing.load(Ordering::Relaxed)
            || self.jobs.is_compacting.load(Ordering::Relaxed);
        is_busy && !self.is_closed() && self.last_checkpoint_error().is_none()
    }

    fn excess(&self, space: Space) -> f64 {
        let options = &self.context.options;
        let limits = PacingLimits {
            soft_percent: options.garbage_percent_max,
            hard_percent: options.garbage_hard_percent_max,
        };
        limits.excess(space, self.space.unreclaimable())
    }

    /// Waits until the previous batch's delay has passed, or the work that it is for has ended. Writers continue
    /// in the order of their calls.
    pub(crate) async fn wait_for_pace(&self) {
        let clock = &self.context.env.clock;
        let begun = clock.now();
        if self.pacing.delay(begun).is_zero() {
            return;
        }
        let _turn = self.pacing.turn.lock().await;
        loop {
            let changed = self.status_changed.notified();
            let delay = self.pacing.delay(clock.now());
            if delay.is_zero() || self.is_closed() {
                break;
            }
            if !self.is_reclaiming() {
                self.pacing.end();
                break;
            }
            select(clock.sleep(delay), pin!(changed)).await;
        }
        self.pacing.count(clock.now() - begun);
    }

    /// Starts a task that frees garbage once no batch was committed for a while, unless there is one.
    pub(crate) fn watch_for_pause(self: &Arc<Self>) {
        if self.is_closed() || self.jobs.is_watching.swap(true, Ordering::AcqRel) {
            return;
        }
        let (weak, clock) = (Arc::downgrade(self), self.context.env.clock.clone());
        let delay = Duration::from_millis(self.context.options.idle_delay_ms);
        let mut seen = self.jobs.commit_count.load(Ordering::Relaxed);
        self.context.env.spawn("store pause", async move {
            loop {
                // Without a reference to the store: the wait keeps no directory locked.
                clock.sleep(delay).await;
                let Some(shared) = weak.upgrade().filter(|shared| !shared.is_closed()) else { return };
                let count = shared.jobs.commit_count.load(Ordering::Relaxed);
                if count == seen {
                    // A commit from now on starts the next wait.
                    shared.jobs.is_watching.store(false, Ordering::Release);
                    shared.reclaim_at_pause().await;
                    return;
                }
                seen = count;
            }
        });
    }

    /// Frees garbage down to `garbage_idle_percent_max`, unless a compaction is in progress: it waits for a pause
    /// again when it has ended.
    async fn reclaim_at_pause(self: &Arc<Self>) {
        if !self.has_idle_garbage(self.published_space()) {
            return;
        }
        // Before the flag: a compaction that ends now sees it.
        self.jobs.has_missed_pause.store(true, Ordering::Release);
        if self.jobs.is_compacting.swap(true, Ordering::AcqRel) {
            return;
        }
        self.jobs.has_missed_pause.store(false, Ordering::Release);
        let _end = OnPanic(|| self.end_compaction());
        if let Err(error) = self.reclaim_all().await {
            let directory = self.context.directory.display();
            tracing::warn!(%error, %directory, "garbage could not be freed at a pause");
        }
        self.end_compaction();
    }

    async fn reclaim_all(self: &Arc<Self>) -> Result<(), StoreError> {
        let seen = self.jobs.commit_count.load(Ordering::Relaxed);
        let checkpointed = self.checkpoint().await;
        self.note_checkpoint_error(checkpointed.as_ref().err().cloned());
        if checkpointed.is_ok()
            && self.open_segment_garbage() >= self.context.options.reclaim_bytes_min
            && !self.is_closed()
        {
            match self.log.begin_segment().await.map_err(CommitError::from) {
                // A full disk: what is listed is compacted nevertheless.
                Err(CommitError::Append(AppendError::NoSpace { .. } | AppendError::NoDescriptor { .. })) => {}
                begun => begun?,
            }
        }
        // A full disk has no space for a checkpoint: what is listed is compacted nevertheless.
        self.list_soon().await?;
        self.compact_while_paused(self.context.options.garbage_idle_percent_max, seen).await?;
        checkpointed.map(drop)
    }

    /// Bytes of the open segment that a new segment would free: garbage as of the checkpoint, and disk space that is
    /// reserved for more batches.
    fn open_segment_garbage(&self) -> u64 {
        let checkpoint = self.checkpoint_state();
        let infos = self.log.segment_infos();
        let Some(open) = infos.last().filter(|open| open.last_seq.0 <= checkpoint.seq) else { return 0 };
        let live = checkpoint.live.get(&open.number).map_or(0, |live| live.bytes);
        open.frame_bytes.saturating_sub(live) + self.log.stats().reserved_bytes
    }

    /// A compaction has ended. Waits for a pause again if one came meanwhile. Not otherwise: work at a pause may begin
    /// a compaction, and would follow it for ever.
    pub(crate) fn end_compaction(self: &Arc<Self>) {
        self.jobs.is_compacting.store(false, Ordering::Release);
        self.status_changed.notify_waiters();
        if self.jobs.has_missed_pause.swap(false, Ordering::AcqRel) {
            self.watch_for_pause_if_due();
        }
    }
}
