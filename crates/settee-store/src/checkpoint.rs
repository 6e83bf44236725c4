//! Checkpoints: merge the memtables into the tree.
//!
//! A checkpoint makes the memtable immutable, waits until the log has persisted its records, merges the
//! immutable memtables into the tree, commits the tree's root, and installs the new checkpoint state in every
//! version. Writers and readers go on meanwhile. The tree is changed leaf by leaf or written to a new file,
//! whichever the cost model says is cheaper (`merge.rs`, `cost.rs`). Sealed segments are then listed in the
//! manifest (`listing.rs`).
//!
//! A checkpoint that fails leaves its immutable memtables, and the next one begins with them; however often
//! one fails, their number does not grow. If the tree turns out to be damaged, a new one is built from the
//! segments (`rebuild.rs`).
//!
//! Invariants:
//! 1. The log is persisted up to a checkpoint before its root is written.
//! 2. A new tree's file and its name are on stable storage before the manifest names it; the old file is
//!    removed after that, with its last reader.
//! 3. Segments are listed only up to a checkpoint that is installed in all versions.
//! 4. A version drops a memtable only when it is given a checkpoint state that contains it.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{Either, select};
use settee_io::{Damage, OnPanic};
use settee_log::{Edit, Seq, Stage};

use crate::error::{ReadError, StoreError};
use crate::manifest::{StoreSection, tree_name};
use crate::memtable::Memtable;
use crate::shared::Shared;
use crate::version::{CheckpointState, Version};

mod cost;
mod input;
mod listing;
mod merge;
mod rebuild;

pub use merge::Checkpoint;
pub(crate) use rebuild::RebuildSource;

use input::CheckpointInput;

/// Pause after a failed checkpoint before the next attempt.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

impl Shared {
    /// Whether the memtables are large enough for a checkpoint.
    pub(crate) fn is_checkpoint_due(&self, version: &Version) -> bool {
        let options = &self.context.options;
        let entries = |memtable: &Memtable| (memtable.by_key.len() + memtable.by_seq.len()) as u64;
        let entry_count: u64 = version.memtables().map(entries).sum();
        let tree_count = version.checkpoint.tree.as_ref().map_or(0, |tree| tree.root.len());
        let share = (tree_count / options.checkpoint_divisor).max(options.checkpoint_entries_min);
        let record_bytes = version.memtables().map(|memtable| memtable.record_bytes).sum::<u64>();
        let dead_bytes = version.memtables().map(|memtable| memtable.dead_bytes).sum::<u64>();
        let garbage_due = (version.checkpoint.live_bytes() / options.checkpoint_divisor)
            .max(options.checkpoint_garbage_min);
        entry_count >= share.min(options.checkpoint_entries_max)
            || version.memtable.bytes() >= options.memory_bytes_max / 2
            || options.memory.as_ref().is_some_and(|budget| budget.needs_checkpoint(version.memtable.bytes()))
            || dead_bytes >= garbage_due
            || record_bytes >= options.checkpoint_bytes_max
    }

    /// Starts a checkpoint in the background unless one is running.
    pub(crate) fn start_checkpoint(self: &Arc<Self>) {
        if self.is_closed() || self.jobs.is_checkpointing.swap(true, Ordering::AcqRel) {
            return;
        }
        let shared = self.clone();
        self.context.env.spawn("store checkpoint", async move {
            let _end = OnPanic(|| {
                shared.jobs.is_checkpointing.store(false, Ordering::Release);
                shared.status_changed.notify_waiters();
            });
            let done = AssertUnwindSafe(shared.checkpoint()).catch_unwind().await;
            let error = done.unwrap_or_else(|_| Err(shared.panicked())).err();
            if let Some(error) = &error {
                tracing::warn!(%error, directory = %shared.context.directory.display(), "a checkpoint failed");
            }
            let failed = error.is_some();
            shared.note_checkpoint_error(error);
            if failed {
                shared.context.env.clock.sleep(RETRY_PAUSE).await;
            }
            shared.jobs.is_checkpointing.store(false, Ordering::Release);
            shared.start_compaction();
            shared.watch_for_pause_if_due();
            shared.status_changed.notify_waiters();
        });
    }

    /// Starts a rebuild of the tree if the error shows that it is damaged.
    pub(crate) fn note_damage(self: &Arc<Self>, error: &ReadError) {
        if error.is_of_damaged_index() {
            self.jobs.is_index_damaged.store(true, Ordering::Release);
            self.start_checkpoint();
        }
    }

    /// Merges everything accepted by now into the tree; `None` if there was nothing to do. Must run in a task
    /// of its own: dropped half-way, it would leave the files and the versions inconsistent.
    pub(crate) async fn checkpoint(self: &Arc<Self>) -> Result<Option<Checkpoint>, StoreError> {
        let mut section = self.files.section.lock().await;
        let mut all: Option<Checkpoint> = None;
        while let Some((done, is_all)) = self.checkpoint_once(&mut section, false).await? {
            let before = all.unwrap_or_default();
            let (key_count, is_whole) = (before.key_count + done.key_count, before.is_whole || done.is_whole);
            all = Some(Checkpoint { seq: done.seq, key_count, is_whole });
            if is_all {
                break;
            }
        }
        drop(section);
        self.start_listing(0);
        Ok(all)
    }

    /// Writes the tree to a new file without its garbage, together with what the memtables hold. Must run in a task
    /// of its own, as [`Shared::checkpoint`].
    pub(crate) async fn rewrite_tree(&self) -> Result<(), StoreError> {
        let mut section = self.files.section.lock().await;
        self.checkpoint_once(&mut section, true).await.map(drop)
    }

    /// Merges the immutable memtables, or the mutable one if there are none. The second value is whether that
    /// was everything. With `rewrites_tree` the tree is written to a new file, even if there is nothing to merge.
    async fn checkpoint_once(
        &self,
        section: &mut StoreSection,
        rewrites_tree: bool,
    ) -> Result<Option<(Checkpoint, bool)>, StoreError> {
        if self.is_closed() {
            return Ok(None);
        }
        self.check_files()?;
        let is_damaged = self.jobs.is_index_damaged.load(Ordering::Acquire);
        let (input, is_all) = {
            let _stop = self.stop_on_panic();
            let mut version = self.versions.accepted.lock().await;
            let input = CheckpointInput::of(&mut version);
            if self.has_garbage_for_new_segment(&version) {
                self.log.end_segment();
            }
            (input, version.memtable.is_empty())
        };
        if input.is_empty() && !is_damaged && !rewrites_tree {
            return Ok(None);
        }
        let persisted = pin!(self.log.wait(Seq(input.seq), Stage::Persisted));
        match select(persisted, pin!(self.log.wait_for_no_space())).await {
            Either::Left((persisted, _)) => persisted?,
            // Writers that wait for the checkpoint are refused, and it is retried.
            Either::Right((error, _)) => return Err(error.into()),
        }
        self.wait_visible(Seq(input.seq)).await?;
        let persisted = self.log.persisted().0;
        assert!(persisted >= input.seq, "a checkpoint at Seq {} with {persisted} persisted", input.seq);
        let _background_permit = self.context.env.background.acquire().await;
        let mut next = section.clone();
        let made = self.make_checkpoint_state(&input, is_damaged, rewrites_tree, &mut next).await;
        let (checkpoint, done) = match made {
            Ok(made) => made,
            Err(error) => {
                self.abandon(next.tree, section).await;
                return Err(self.failed_sync(error));
            }
        };
        let stop = self.stop_on_panic();
        if next.tree != section.tree {
            next = next.at(checkpoint.seq, checkpoint.last_in_seq_index);
            let new = next.clone();
            if let Err(error) = self.edit(Edit::default(), |_| new).await {
                self.abandon(next.tree, section).await;
                return Err(error);
            }
            *section = next;
            self.jobs.is_index_damaged.store(false, Ordering::Release);
            // Unlinked when no version reads it any more.
            input.checkpoint.tree.iter().for_each(|replaced| replaced.file.remove());
        }
        self.log.set_listed_live_bytes(checkpoint.live_bytes());
        self.install_checkpoint(Arc::new(checkpoint), input.generation).await;
        drop(stop);
        // The checkpoint is made, whatever becomes of this; `start_listing` tries again.
        if let Err(error) = self.list_sealed().await {
            self.warn_of_listing(&error);
        }
        self.count(|counts| {
            counts.checkpoint_count += 1;
            counts.whole_count += u64::from(done.is_whole);
        });
        Ok(Some((done, is_all)))
    }

    /// Makes the checkpoint state that contains the input: by merging the input into the tree, or, if that is
    /// damaged, by rebuilding the tree from the segments and the log.
    async fn make_checkpoint_state(
        &self,
        input: &CheckpointInput,
        is_damaged: bool,
        rewrites_tree: bool,
        next: &mut StoreSection,
    ) -> Result<(CheckpointState, Checkpoint), StoreError> {
        let number = next.tree;
        if !is_damaged {
            let merged = async {
                let (tree, facts, done) = self.context.merge(input, rewrites_tree, next).await?;
                Ok((CheckpointState::new(Some(tree), &facts).await?, done))
            };
            match merged.await {
                Err(error @ (StoreError::Tree(_) | StoreError::Read(_))) if error.is_of_damaged_index() => {
                    let directory = self.context.directory.display();
                    tracing::warn!(%error, %directory, "rebuilding the index from the segments");
                }
                merged => return merged,
            }
        }
        next.tree = number;
        next.last_in_seq_index = input.last_in_seq_index;
        let source = RebuildSource::Log(&self.log, input.seq);
        let (tree, facts) = self.context.rebuild(next, source).await?;
        let checkpoint = CheckpointState::new(tree, &facts).await?;
        let is_short = checkpoint.seq < input.seq && !input.is_empty();
        if is_short || checkpoint.seq > input.seq {
            let what = match is_short {
                true => "records that the log accepted are missing",
                false => "segments hold records later than the log's",
            };
            let path = self.context.directory.clone();
            return Err(StoreError::Damaged(Damage { path, offset: 0, what }));
        }
        let key_count = input.key_count();
        Ok((checkpoint, Checkpoint { seq: input.seq, key_count, is_whole: true }))
    }

    /// Removes a tree file that a failed checkpoint wrote, unless a manifest may name it.
    async fn abandon(&self, tree: Option<u32>, section: &StoreSection) {
        if let Some(number) = tree.filter(|_| tree != section.tree && self.log.edit_error().is_none()) {
            self.remove_file(&self.context.directory.join(tree_name(number))).await;
        }
    }
}
