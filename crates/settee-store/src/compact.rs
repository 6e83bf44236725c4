//! Compaction: copies the live records of neighbouring segments to one new file, and removes the segments.
//!
//! A record is live if its key's entry in the tree points to it. The segment's index and the tree are each
//! read once, in the order of keys; then the records are copied in the order of the log. Pointers to them
//! don't change (`segments.rs`), so compaction never blocks a commit: a record that is replaced while it is
//! copied becomes garbage in the new file, and is counted as such.
//!
//! A tombstone hides nothing in the tree, where its key is simply missing. It matters when the tree is
//! rebuilt from the segments: without it an older record of its key would reappear. It is therefore copied
//! until no older segment holds anything that was garbage when the tombstone was checkpointed, because the
//! segment has been rewritten since or holds no garbage. Which segments are rewritten: `compact/choose.rs`.
//!
//! A compaction that waits for a permit, or sleeps to keep its rate, blocks no other background work. The
//! number of concurrent rewrites is limited, since each holds segment indexes in memory.
//!
//! Invariants:
//! 1. Only records that were garbage as of a durable checkpoint are left out.
//! 2. The new file and its name are on stable storage before the manifest names it; the old files are removed
//!    after that, each with its last reader.
//! 3. A record that can't be read is never left out: the segments then stay unchanged.
//! 4. A new file has no more bytes, tombstones included, than a segment may have, and no more than
//!    [`RECORD_COUNT_MAX`] records, unless it replaces a single segment that had more.

use std::collections::{BTreeSet, VecDeque};
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::{Either, select};
use settee_io::OnPanic;
use settee_log::{Edit, Segment, SegmentName, SegmentSet};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::error::StoreError;
use crate::failpoints::Failpoint;
use crate::shared::Shared;
use crate::space::Space;
use crate::version::CheckpointState;

mod choose;
mod copy;
mod kept_records;

use choose::{Overview, TreeSize, live_of};
use copy::SegmentCopy;
use kept_records::{KeptRecords, Plan, find_kept_records};

/// Largest number of records in a segment made of several: its segment index is built in memory.
const RECORD_COUNT_MAX: usize = 1 << 20;

/// Result of a compaction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Compaction {
    /// Segments removed.
    pub segment_count: u64,
    /// Their size in bytes.
    pub bytes_before: u64,
    /// Size in bytes of the segments that replaced them.
    pub bytes_after: u64,
}

/// What frees the most.
enum Choice {
    /// A segment, with the overview that led to it.
    Segment(usize, Overview),
    Tree,
}

/// What was rewritten.
enum Rewritten {
    Segments(Compaction),
    /// The tree, unless there was this error.
    Tree(Option<StoreError>),
}

/// Neighbouring segments that are rewritten to one.
struct CompactionInputs {
    /// In the order of the log.
    plans: VecDeque<Plan>,
    /// Tombstones up to this `Seq` are dropped.
    tombstones_to: u64,
    checkpoint: Arc<CheckpointState>,
    /// Segments without garbage as of that checkpoint.
    clean: Vec<Arc<Segment>>,
}

impl Shared {
    /// Rewrites segments, and the tree, until at most `garbage_percent_max` percent of their bytes are garbage. A
    /// segment that can't be read is skipped from then on. If compaction was requested, it is retried, and its error
    /// is returned once the others are done.
    pub(crate) async fn compact(
        &self,
        garbage_percent_max: u64,
        is_manual: bool,
    ) -> Result<Compaction, StoreError> {
        self.compact_while(garbage_percent_max, is_manual, || true).await
    }

    /// As [`Shared::compact`], until a batch is committed: `commit_count` were so far.
    pub(crate) async fn compact_while_paused(
        &self,
        garbage_percent_max: u64,
        commit_count: u64,
    ) -> Result<(), StoreError> {
        let is_paused = || self.jobs.commit_count.load(Ordering::Relaxed) == commit_count;
        self.compact_while(garbage_percent_max, false, is_paused).await.map(drop)
    }

    async fn compact_while(
        &self,
        garbage_percent_max: u64,
        is_manual: bool,
        may_continue: impl Fn() -> bool,
    ) -> Result<Compaction, StoreError> {
        let mut unreadable = self.files.compacting.lock().await;
        if is_manual {
            unreadable.clear();
        }
        let mut done = Compaction::default();
        let (mut failed, mut written_tree) = (None, None);
        while !self.is_closed() && may_continue() {
            let known_count = unreadable.len();
            let one = match self.compact_some(garbage_percent_max, written_tree, &mut unreadable).await {
                Ok(Some(Rewritten::Segments(one))) => one,
                Ok(Some(Rewritten::Tree(error))) => {
                    // The segments are compacted nevertheless: each needs less space than a tree.
                    failed = failed.or(error);
                    written_tree = self.checkpoint_state().tree.as_ref().map(|tree| tree.number);
                    continue;
                }
                Ok(None) => {
                    let left = listed_space(&self.checkpoint_state(), &self.log.segment_set());
                    let is_left = left.exceeds(garbage_percent_max);
                    self.space.set_unreclaimable(if is_left { left.garbage } else { 0 });
                    break;
                }
                // The others are compacted nevertheless.
                Err(error) if unreadable.len() > known_count => {
                    tracing::warn!(%error, directory = %self.context.directory.display(), "a segment can't be compacted");
                    failed = failed.or(Some(error));
                    continue;
                }
                Err(error) => return Err(error),
            };
            done.segment_count += one.segment_count;
            done.bytes_before += one.bytes_before;
            done.bytes_after += one.bytes_after;
            self.count(|counts| {
                counts.compacted_count += one.segment_count;
                counts.compacted_bytes += one.bytes_before;
                counts.copied_bytes += one.bytes_after;
            });
        }
        failed.map_or(Ok(done), Err)
    }

    /// Starts compaction in the background if there is too much garbage and none is running.
    pub(crate) fn start_compaction(self: &Arc<Self>) {
        let percent_max = self.context.options.garbage_percent_max;
        let space = self.space.checkpointed();
        if !space.exceeds(percent_max) || self.is_closed() {
            return;
        }
        // Tombstones that must stay count as far as their size is known; compaction finds out the rest.
        let overview = self.overview(&self.checkpoint_state(), &self.log.segment_set());
        let kept = overview.kept_tombstone_bytes();
        let needed = Space { live: space.live + kept, garbage: space.garbage.saturating_sub(kept) };
        let is_due = needed.exceeds(percent_max) || overview.oldest_blocker(&BTreeSet::new()).is_some();
        if !is_due || self.jobs.is_compacting.swap(true, Ordering::AcqRel) {
            return;
        }
        let shared = self.clone();
        self.context.env.spawn("store compaction", async move {
            let compacted = async {
                shared.list_soon().await?;
                shared.compact(percent_max, false).await
            };
            let _end = OnPanic(|| shared.jobs.is_compacting.store(false, Ordering::Release));
            if let Err(error) = compacted.await {
                tracing::warn!(%error, directory = %shared.context.directory.display(), "compaction failed");
            }
            shared.end_compaction();
        });
    }

    fn overview(&self, checkpoint: &CheckpointState, set: &SegmentSet) -> Overview {
        Overview::new(checkpoint, set, self.context.options.is_enabled(Failpoint::TombstoneTooSoon))
    }

    /// Rewrites the segments that free the most, or the tree if that frees more. `None` if there is not too much
    /// garbage, or the store was closed. Adds a segment that can't be read to `unreadable`. The tree `written_tree` is
    /// left alone: this compaction has tried to rewrite it.
    async fn compact_some(
        &self,
        garbage_percent_max: u64,
        written_tree: Option<u32>,
        unreadable: &mut BTreeSet<u32>,
    ) -> Result<Option<Rewritten>, StoreError> {
        let (checkpoint, set) = {
            let version = self.versions.accepted.lock().await;
            (version.checkpoint.clone(), version.set.clone())
        };
        let chosen = self.choose(&checkpoint, &set, garbage_percent_max, written_tree, unreadable).await?;
        let (best, overview) = match chosen {
            None => return Ok(None),
            Some(Choice::Tree) => return Ok(Some(Rewritten::Tree(self.rewrite_tree().await.err()))),
            Some(Choice::Segment(best, overview)) => (best, overview),
        };
        let env = &self.context.env;
        // In this order: a task that waits for the first permit does not hold the second.
        let Some(compaction_permit) = self.permit(&env.compaction).await else { return Ok(None) };
        let Some(background_permit) = self.permit(&env.background).await else { return Ok(None) };
        let inputs = self.gather(checkpoint, best, &overview, unreadable).await?;
        let segment = self.rewrite(&inputs, background_permit, unreadable).await?;
        drop(compaction_permit);
        let name = segment.as_ref().map(|segment| segment.name);
        if let Err(error) = self.replace(&inputs, segment).await {
            if let Some(name) = name {
                self.discard_output(&self.context.directory.join(name.file_name())).await;
            }
            return Err(error);
        }
        let plans = &inputs.plans;
        Ok(Some(Rewritten::Segments(Compaction {
            segment_count: plans.len() as u64,
            bytes_before: plans.iter().map(|plan| plan.segment.name.bytes).sum(),
            bytes_after: name.map_or(0, |name| name.bytes),
        })))
    }

    /// Waits for a permit; `None` if the store is closed meanwhile.
    async fn permit<'a>(&self, semaphore: &'a Semaphore) -> Option<SemaphorePermit<'a>> {
        let mut permit = pin!(semaphore.acquire());
        loop {
            let mut notified = pin!(self.status_changed.notified());
            notified.as_mut().enable();
            if self.is_closed() {
                return None;
            }
            if let Either::Left((permit, _)) = select(permit.as_mut(), notified).await {
                return permit.ok();
            }
        }
    }

    /// What to rewrite; `None` if there is not too much garbage.
    async fn choose(
        &self,
        checkpoint: &CheckpointState,
        set: &SegmentSet,
        garbage_percent_max: u64,
        written_tree: Option<u32>,
        unreadable: &mut BTreeSet<u32>,
    ) -> Result<Option<Choice>, StoreError> {
        let Some(tree) = &checkpoint.tree else { return Ok(None) };
        if !listed_space(checkpoint, set).exceeds(garbage_percent_max) {
            return Ok(None);
        }
        let may_rewrite_tree = written_tree != Some(tree.number);
        let tree = TreeSize::of(tree);
        for segment in set.listed() {
            // A segment that can't be read has no contents; its error is reported when it is to be rewritten.
            let _ = segment.contents().await;
        }
        loop {
            let overview = self.overview(checkpoint, set);
            let best = overview.best(garbage_percent_max, tree, unreadable);
            let bytes_min = self.context.options.reclaim_bytes_min;
            if may_rewrite_tree && overview.is_tree_better(best, garbage_percent_max, tree, bytes_min) {
                return Ok(Some(Choice::Tree));
            }
            let Some(best) = best else { return Ok(None) };
            if overview.facts[best].is_exact {
                return Ok(Some(Choice::Segment(best, overview)));
            }
            // Apparent garbage may be tombstones that must stay.
            let segment = &overview.segments[best];
            note_unreadable(segment.find_tombstone_bytes().await.map_err(Into::into), segment, unreadable)?;
        }
    }

    /// Adds neighbours as long as what is copied fits one segment.
    async fn gather(
        &self,
        checkpoint: Arc<CheckpointState>,
        best: usize,
        overview: &Overview,
        unreadable: &mut BTreeSet<u32>,
    ) -> Result<CompactionInputs, StoreError> {
        let log = &self.context.options.log;
        let target_bytes = overview.target_bytes(log.segment_bytes_min, log.segment_bytes_max);
        let (mut first, mut last) = (best, best);
        let mut plans = VecDeque::from([self.plan(best, overview, &checkpoint, unreadable).await?]);
        let (mut bytes, mut count) = plans[0].kept_records.size(overview.facts[best].tombstones_to);
        let (mut can_extend_forward, mut can_extend_back) = (true, true);
        loop {
            can_extend_forward = can_extend_forward && overview.joins(last + 1, target_bytes, unreadable);
            can_extend_back =
                can_extend_back && first > 0 && overview.joins(first - 1, target_bytes, unreadable);
            let next = match (can_extend_forward, can_extend_back) {
                (true, _) => last + 1,
                (false, true) => first - 1,
                (false, false) => break,
            };
            let plan = self.plan(next, overview, &checkpoint, unreadable).await?;
            let own = plan.kept_records.size(overview.facts[next.min(first)].tombstones_to);
            if bytes + own.0 > target_bytes || count + own.1 > RECORD_COUNT_MAX {
                *(if next > last { &mut can_extend_forward } else { &mut can_extend_back }) = false;
                continue;
            }
            (bytes, count) = (bytes + own.0, count + own.1);
            if next > last {
                last = next;
                plans.push_back(plan);
            } else {
                first = next;
                plans.push_front(plan);
            }
        }
        let tombstones_to = overview.facts[first].tombstones_to;
        Ok(CompactionInputs { plans, tombstones_to, checkpoint, clean: overview.clean() })
    }

    /// Determines the records of a segment that are copied.
    async fn plan(
        &self,
        index: usize,
        overview: &Overview,
        checkpoint: &CheckpointState,
        unreadable: &mut BTreeSet<u32>,
    ) -> Result<Plan, StoreError> {
        let (segment, tombstones_to) =
            (overview.segments[index].clone(), overview.facts[index].tombstones_to);
        let planned = async {
            let segment_index = segment.segment_index().await?;
            let trailer = segment_index.trailer();
            let has_live = live_of(checkpoint, &segment).count > 0;
            let has_tombstones = trailer.tombstone_count > 0 && trailer.last_seq.0 > tombstones_to;
            if !has_live && !has_tombstones {
                return Ok((None, KeptRecords::default()));
            }
            let version = match self.context.options.is_enabled(Failpoint::UpdateLost) {
                true => Some(self.versions.accepted.lock().await.clone()),
                false => None,
            };
            let kept_records = find_kept_records(&segment_index, checkpoint, version.as_ref()).await?;
            Ok((Some(segment_index), kept_records))
        };
        let (segment_index, kept_records) = note_unreadable(planned.await, &segment, unreadable)?;
        Ok(Plan { segment, segment_index, kept_records })
    }

    /// Copies the kept records of the inputs to a new file.
    async fn rewrite(
        &self,
        inputs: &CompactionInputs,
        background_permit: SemaphorePermit<'_>,
        unreadable: &mut BTreeSet<u32>,
    ) -> Result<Option<Arc<Segment>>, StoreError> {
        let names = || inputs.plans.iter().map(|plan| plan.segment.name);
        let generation = self.context.new_file_number();
        let name = SegmentName {
            first: names().map(|name| name.first).min().expect("there is an input"),
            last: names().map(|name| name.last).max().expect("there is an input"),
            generation,
            epoch: generation,
            clean_to: inputs.checkpoint.seq,
            timeline: self.log.timelines().current_index(),
            ..SegmentName::default()
        };
        let path = self.context.directory.join(name.file_name());
        self.check_files()?;
        let mut copy = SegmentCopy::new(self, &path, name, background_permit).await?;
        for plan in &inputs.plans {
            let copied = copy.take(plan, inputs.tombstones_to).await;
            if let Err(error) = note_unreadable(copied, &plan.segment, unreadable) {
                drop(copy);
                self.remove_file(&path).await;
                return Err(error);
            }
        }
        let segment = match copy.finish().await {
            Ok(segment) => segment,
            Err(error) => {
                let error = self.failed_sync(error);
                self.discard_output(&path).await;
                return Err(error);
            }
        };
        #[cfg(feature = "failpoints")]
        let segment = self.with_stale_chunks(segment, &inputs.plans[0].segment);
        Ok(segment)
    }

    /// Removes a new segment, unless a manifest may name it.
    async fn discard_output(&self, path: &Path) {
        if self.check_files().is_ok() {
            self.remove_file(path).await;
        }
    }

    /// Replaces the inputs with the new segment.
    async fn replace(&self, inputs: &CompactionInputs, new: Option<Arc<Segment>>) -> Result<(), StoreError> {
        // The next manifest records this at no cost: these segments had no garbage.
        inputs.clean.iter().for_each(|segment| segment.raise_clean_to(inputs.checkpoint.seq));
        if let Some(new) = &new {
            let numbers = |plan: &Plan| (plan.segment.name.first, plan.segment.name.last);
            let (first, last) = (inputs.plans.front().map(numbers), inputs.plans.back().map(numbers));
            let covered = first.zip(last).map(|(first, last)| (first.0, last.1));
            assert!(covered == Some((new.name.first, new.name.last)), "it replaces exactly its inputs");
        }
        if self.context.options.is_enabled(Failpoint::FileRemovedEarly) {
            for plan in &inputs.plans {
                self.remove_file(plan.segment.path()).await;
            }
        }
        let removed: Vec<_> = inputs.plans.iter().map(|plan| plan.segment.clone()).collect();
        let edit = Edit { removed, added: new, ..Edit::default() };
        let checkpoint = &inputs.checkpoint;
        let _stop = self.stop_on_panic();
        self.edit(edit, |section| section.at(checkpoint.seq, checkpoint.last_in_seq_index)).await?;
        self.install_set().await;
        #[cfg(feature = "failpoints")]
        for Plan { segment, .. } in &inputs.plans {
            self.recycle(segment).await?;
        }
        Ok(())
    }
}

/// What can be rewritten: the listed segments and the tree.
fn listed_space(checkpoint: &CheckpointState, set: &SegmentSet) -> Space {
    let tree = checkpoint.tree.as_ref().map_or(Space::default(), |tree| TreeSize::of(tree).space());
    let live = set.listed().map(|segment| live_of(checkpoint, segment).bytes).sum::<u64>();
    let garbage = set.listed_bytes().saturating_sub(live) + tree.garbage;
    Space { live: live + tree.live, garbage }
}

/// Adds a segment to `unreadable` if it could not be read.
fn note_unreadable<T>(
    result: Result<T, StoreError>,
    segment: &Segment,
    unreadable: &mut BTreeSet<u32>,
) -> Result<T, StoreError> {
    if result.as_ref().is_err_and(StoreError::is_of_reading) {
        unreadable.insert(segment.name.last);
    }
    result
}
