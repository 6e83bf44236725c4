//! Checkpoints: merge the memtables into the tree.
//!
//! A checkpoint makes the memtable immutable, waits until the log has persisted its records, merges the
//! immutable memtables into the tree, commits the tree's root, and installs the new checkpoint state in every
//! version. Writers and readers go on meanwhile. The tree is changed leaf by leaf or written to a new file,
//! whichever the cost model says is cheaper; both read the old tree in the order of keys. Since that yields
//! the previous pointers of each key, the live bytes of each segment stay exact.
//!
//! Sealed segments that end at or before the checkpoint are transferred to the store, which can then rewrite
//! them. Segments that the log seals later are transferred then, without another checkpoint.
//!
//! A checkpoint that fails leaves its immutable memtables, and the next one begins with them; however often
//! one fails, their number does not grow. If the tree turns out to be damaged, a new one is built from the
//! segments (`open.rs`).
//!
//! Invariants:
//! 1. The log is persisted up to a checkpoint before its root is written.
//! 2. A new tree's file and its name are on stable storage before the manifest names it; the old file is
//!    removed after that.
//! 3. A version drops a memtable only when it is given a checkpoint state that contains it.
//! 4. Once the manifest is replaced, nothing can fail before all versions have the new checkpoint state.
//! 5. The log releases a segment once the checkpoint states of all versions contain it.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::{Either, select};
use settee_io::{OnPanic, OperationKind, directory, yield_now};
use settee_log::{Seq, Stage};
use settee_tree::{Change, Root, Scan, Tree, TreeBuilder, TreeError};

use crate::checkpoint_state::{CheckpointFacts, CheckpointState, CheckpointTree, Live};
use crate::entry::{EntryView, Pointer};
use crate::error::{ReadError, StoreError};
use crate::manifest::{Manifest, tree_name};
use crate::memtable::{Memtable, MemtableMap};
use crate::merge::Merged;
use crate::segments::{Segment, Segments};
use crate::store::{Shared, StoreContext};
use crate::tree_index::{BY_KEY, BY_SEQ, IndexAggregates};
use crate::version::Version;

/// A tree is written to a new file when its file would exceed its live bytes times this.
const TREE_GARBAGE_MAX: u64 = 2;

/// Approximate size of a leaf in bytes.
const NODE_BYTES: u64 = 4 << 10;

/// Number of rows between two yields to other tasks.
const YIELD_COUNT: usize = 1024;

/// Number of keys per memtable that the cost model samples.
const SAMPLE_COUNT: usize = 64;

/// Result of a checkpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// The checkpoint's last record.
    pub seq: u64,
    /// Number of keys merged into the tree.
    pub key_count: u64,
    /// Whether the tree was written to a new file.
    pub is_whole: bool,
}

/// Live bytes and records by segment, updated as pointers are added and removed.
struct LiveCounter {
    live: BTreeMap<u32, Live>,
}

impl LiveCounter {
    fn add(&mut self, pointer: &Pointer) {
        let live = self.live.entry(pointer.location.segment).or_default();
        live.bytes += u64::from(pointer.location.length);
        live.count += 1;
    }

    fn remove(&mut self, pointer: &Pointer) {
        let segment = pointer.location.segment;
        let live = self.live.get_mut(&segment).expect("a replaced record was counted");
        live.bytes -= u64::from(pointer.location.length);
        live.count -= 1;
        if live.count == 0 {
            self.live.remove(&segment);
        }
    }
}

/// Merges a key's memtable entry with its previous entry in the tree.
fn decide(
    live_counter: &mut LiveCounter,
    key: &[u8],
    new: &[u8],
    previous: Option<&[u8]>,
) -> Result<Change, ReadError> {
    let new_view = EntryView::trusted(new);
    if key.first() == Some(&BY_SEQ) {
        return Ok(if new_view.is_tombstone() { Change::Remove } else { Change::Put(new.to_vec()) });
    }
    let previous = previous.map(crate::tree_index::decode).transpose()?;
    let old: Vec<Pointer> = previous.iter().flat_map(EntryView::pointers).collect();
    let mut pointers: Vec<Pointer> = new_view.pointers().collect();
    if !new_view.is_whole() {
        pointers.extend(&old);
    }
    // Records older than the first base value are not needed.
    let count = pointers.iter().position(|pointer| pointer.is_base).map_or(pointers.len(), |at| at + 1);
    pointers.truncate(count);
    old.iter().for_each(|pointer| live_counter.remove(pointer));
    pointers.iter().for_each(|pointer| live_counter.add(pointer));
    if new_view.is_tombstone() {
        return Ok(Change::Remove);
    }
    let mut bytes = Vec::with_capacity(new.len());
    new_view.encode_with(&pointers[1..], &mut bytes);
    Ok(Change::Put(bytes))
}

/// The changes in the memtables, in the order of the tree's keys.
struct Changes {
    by_key: Merged,
    by_seq: Merged,
}

impl Changes {
    fn new(memtables: &[Memtable]) -> Changes {
        let all = |index: fn(&Memtable) -> &MemtableMap| {
            Merged::new(memtables.iter().map(index), Bound::Unbounded, Bound::Unbounded, false)
        };
        Changes { by_key: all(|memtable| &memtable.by_key), by_seq: all(|memtable| &memtable.by_seq) }
    }
}

impl Iterator for Changes {
    type Item = (Vec<u8>, Vec<u8>);

    fn next(&mut self) -> Option<(Vec<u8>, Vec<u8>)> {
        let row = |prefix, merged: &Merged| {
            let found = merged.current();
            let view = EntryView::trusted(found.value);
            let value = if view.is_whole() {
                found.value.to_vec()
            } else {
                let mut value = Vec::new();
                view.encode_over(merged.older().map(|older| EntryView::trusted(older.value)), &mut value);
                value
            };
            ([&[prefix], found.key].concat(), value)
        };
        if self.by_key.advance() {
            return Some(row(BY_KEY, &self.by_key));
        }
        self.by_seq.advance().then(|| row(BY_SEQ, &self.by_seq))
    }
}

/// Input of a checkpoint: all records up to `seq`, in the memtables up to `generation`.
pub(crate) struct CheckpointInput {
    pub memtables: Arc<Vec<Memtable>>,
    pub checkpoint: Arc<CheckpointState>,
    pub generation: u64,
    pub seq: u64,
    pub last_in_seq_index: u64,
}

impl CheckpointInput {
    /// Makes a version's memtable immutable, unless a failed checkpoint left immutable memtables: then the
    /// input is these.
    pub(crate) fn of(version: &mut Version) -> CheckpointInput {
        if version.immutable.is_empty() {
            version.switch_memtable();
        }
        let (generation, seq, last_in_seq_index) = match version.immutable.first() {
            Some(newest) => (newest.generation, newest.last_seq, newest.last_in_seq_index),
            None => (0, version.last_seq, version.last_in_seq_index),
        };
        CheckpointInput {
            memtables: version.immutable.clone(),
            checkpoint: version.checkpoint.clone(),
            generation,
            seq,
            last_in_seq_index,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.memtables.is_empty()
    }

    fn key_count(&self) -> u64 {
        self.memtables.iter().map(|memtable| memtable.len() as u64).sum()
    }
}

impl Shared {
    /// Merges everything accepted by now into the tree; `None` if there was nothing to do. Must run in a task
    /// of its own: dropped half-way, it would leave the files and the versions inconsistent.
    pub(crate) async fn checkpoint(self: &Arc<Self>) -> Result<Option<Checkpoint>, StoreError> {
        let mut manifest = self.manifest.lock().await;
        let mut all: Option<Checkpoint> = None;
        while let Some((done, is_all)) = self.checkpoint_once(&mut manifest).await? {
            let before = all.unwrap_or_default();
            let (key_count, is_whole) = (before.key_count + done.key_count, before.is_whole || done.is_whole);
            all = Some(Checkpoint { seq: done.seq, key_count, is_whole });
            if is_all {
                break;
            }
        }
        drop(manifest);
        self.start_transfer(0);
        Ok(all)
    }

    /// Merges the immutable memtables, or the mutable one if there are none. The second value is whether that
    /// was everything.
    async fn checkpoint_once(
        &self,
        manifest: &mut Manifest,
    ) -> Result<Option<(Checkpoint, bool)>, StoreError> {
        if self.is_closed() {
            return Ok(None);
        }
        self.check_files()?;
        let is_damaged = self.is_index_damaged.load(Ordering::Acquire);
        let (input, is_all) = {
            let _stop = self.stop_on_panic();
            let mut version = self.accepted.lock().await;
            let input = CheckpointInput::of(&mut version);
            (input, version.memtable.is_empty())
        };
        if input.is_empty() && !is_damaged {
            return Ok(None);
        }
        let persisted = pin!(self.log.wait(Seq(input.seq), Stage::Persisted));
        match select(persisted, pin!(self.log.wait_for_no_space())).await {
            Either::Left((persisted, _)) => persisted?,
            // Writers that wait for the checkpoint are refused, and it is retried.
            Either::Right((error, _)) => return Err(error.into()),
        }
        self.wait_visible(Seq(input.seq)).await?;
        let _turn = self.context.env.background.acquire().await;
        let mut next = manifest.clone();
        let made = self.make_checkpoint_state(&input, is_damaged, &mut next).await;
        let (checkpoint, done) = match made {
            Ok(made) => made,
            Err(error) => {
                self.abandon(next.tree, manifest).await;
                return Err(self.failed_sync(error));
            }
        };
        let checkpoint = CheckpointState {
            segments: self.collect_sealed(&input.checkpoint, input.seq, &mut next),
            ..checkpoint
        };
        let replaced = manifest.tree.filter(|number| next.tree != Some(*number));
        let stop = self.stop_on_panic();
        if next != *manifest {
            next.number += 1;
            next.checkpoint = checkpoint.seq;
            next.last_in_seq_index = checkpoint.last_in_seq_index;
            let number = next.tree;
            if let Err(error) = self.install(manifest, next).await {
                self.abandon(number, manifest).await;
                return Err(error);
            }
        }
        let live_bytes = checkpoint.live_bytes();
        self.install_version(Arc::new(checkpoint), input.generation).await;
        self.transfer(manifest, live_bytes);
        drop(stop);
        if let Some(number) = replaced {
            self.is_index_damaged.store(false, Ordering::Release);
            // Snapshots that read it have it open.
            self.remove_file(&self.context.directory.join(tree_name(number))).await;
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
        next: &mut Manifest,
    ) -> Result<(CheckpointState, Checkpoint), StoreError> {
        let (segments, number) = (&input.checkpoint.segments, next.tree);
        if !is_damaged {
            let merged = async {
                let (tree, facts, done) = self.context.merge(input, next).await?;
                Ok((CheckpointState::new(Some(tree), &facts, segments.clone()).await?, done))
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
        let source = Some((&*self.log, input.seq));
        let (tree, facts) = self.context.rebuild(next, segments, source).await?;
        let checkpoint = CheckpointState::new(tree, &facts, segments.clone()).await?;
        if checkpoint.seq < input.seq && !input.is_empty() {
            let (path, what) = (self.context.directory.clone(), "records that the log accepted are missing");
            return Err(StoreError::Damaged { path, offset: 0, what });
        }
        let key_count = input.key_count();
        Ok((checkpoint, Checkpoint { seq: input.seq, key_count, is_whole: true }))
    }

    /// Removes a tree file that a failed checkpoint wrote, unless a manifest may name it.
    async fn abandon(&self, tree: Option<u64>, manifest: &Manifest) {
        if let Some(number) = tree.filter(|_| tree != manifest.tree && self.failed.get().is_none()) {
            self.remove_file(&self.context.directory.join(tree_name(number))).await;
        }
    }

    /// Starts the transfer of the log's closed, checkpointed segments after `done_to`, as soon as the log has
    /// sealed them, unless a transfer is running or there are none. Sealing waits for a pause in the appends,
    /// which may take long; closing or dropping the store ends the wait.
    pub(crate) fn start_transfer(self: &Arc<Self>, done_to: u32) {
        if self.is_closed()
            || self.last_closed_segment(done_to).is_none()
            || self.is_transferring.swap(true, Ordering::AcqRel)
        {
            return;
        }
        let shared = self.clone();
        self.context.env.spawn("store segments", async move {
            let _end = OnPanic(|| shared.is_transferring.store(false, Ordering::Release));
            let mut done_to = done_to;
            while let Some(last) = shared.last_closed_segment(done_to).filter(|_| !shared.is_closed()) {
                if let Err(error) = shared.transfer_to(last).await {
                    tracing::warn!(%error, directory = %shared.context.directory.display(), "segments could not be transferred from the log");
                    shared.is_transferring.store(false, Ordering::Release);
                    return;
                }
                done_to = last;
            }
            shared.is_transferring.store(false, Ordering::Release);
            // A checkpoint may have found the transfer still running.
            shared.start_transfer(done_to);
        });
    }

    /// The last of the log's closed and checkpointed segments after `done_to`.
    fn last_closed_segment(&self, done_to: u32) -> Option<u32> {
        let checkpoint_seq = self.checkpoint_state().seq;
        let mut known = self.log.segment_infos();
        // The segment that takes records.
        known.pop();
        let newest = known.iter().rev().find(|segment| segment.last_seq.0 <= checkpoint_seq)?;
        Some(newest.number).filter(|number| *number > done_to)
    }

    /// Transfers the log's segments up to `last`, as soon as they are sealed.
    async fn transfer_to(self: &Arc<Self>, last: u32) -> Result<(), StoreError> {
        loop {
            let notified = self.checkpointed.notified();
            let sealed = self.log.sealed_below();
            if self.is_closed() {
                return Ok(());
            }
            if sealed > last {
                break;
            }
            if let Either::Right((changed, _)) =
                select(pin!(notified), pin!(self.log.sealed_changed(sealed))).await
            {
                changed?;
            }
        }
        self.transfer_sealed().await?;
        self.start_compaction(&self.checkpoint_state());
        Ok(())
    }

    /// Transfers the checkpointed segments that the log has sealed since the last checkpoint.
    pub(crate) async fn transfer_sealed(&self) -> Result<(), StoreError> {
        let mut manifest = self.manifest.lock().await;
        self.check_files()?;
        let checkpoint = self.accepted.lock().await.checkpoint.clone();
        let mut next = manifest.clone();
        let segments = self.collect_sealed(&checkpoint, checkpoint.seq, &mut next);
        let _stop = self.stop_on_panic();
        if self.is_closed() || next == *manifest {
            return Ok(());
        }
        next.number += 1;
        next.checkpoint = checkpoint.seq;
        next.last_in_seq_index = checkpoint.last_in_seq_index;
        self.install(&mut manifest, next).await?;
        self.install_version(Arc::new(CheckpointState { segments, ..(*checkpoint).clone() }), 0).await;
        self.transfer(&manifest, checkpoint.live_bytes());
        Ok(())
    }

    /// Makes the log release the segments that the manifest counts as the store's. Only after all versions
    /// have a checkpoint state that contains them: until then a commit still takes the log's files.
    fn transfer(&self, manifest: &Manifest, live_bytes: u64) {
        self.log.transfer(manifest.first_log_segment);
        self.log.set_transferred_bytes(live_bytes);
    }

    /// Adds the log's sealed and wholly checkpointed segments to the store's, and to the manifest.
    fn collect_sealed(
        &self,
        checkpoint: &CheckpointState,
        checkpoint_seq: u64,
        manifest: &mut Manifest,
    ) -> Arc<Segments> {
        let mut segments = (*checkpoint.segments).clone();
        let files = self.log.files();
        for known in self.log.segment_infos() {
            let is_whole = known.last_seq.0 <= checkpoint_seq && known.is_sealed;
            let Some(file) = files.get(known.number).filter(|_| is_whole) else { break };
            let bytes = known.frame_bytes;
            let name = crate::manifest::SegmentName {
                first: known.number,
                last: known.number,
                generation: 0,
                epoch: known.epoch,
                bytes,
                clean_to: 0,
            };
            let segment = Segment::new(
                &self.context.env,
                &self.context.directory,
                name,
                self.context.options.log.direct,
            );
            let segment = segment.with_chunks(self.context.chunks.as_ref());
            segments.insert(Arc::new(segment.with_file(file.clone())));
            manifest.first_log_segment = known.number + 1;
        }
        manifest.segments = segments.names();
        Arc::new(segments)
    }

    /// Replaces the manifest.
    pub(crate) async fn install(&self, manifest: &mut Manifest, next: Manifest) -> Result<(), StoreError> {
        let (env, directory) = (&self.context.env, &self.context.directory);
        next.prepare(env, directory).await?;
        // Another sync of the directory may have failed meanwhile.
        self.check_files()?;
        // The new name exists and is not durable. Writers that wait for memory are refused meanwhile.
        let has_waited = AtomicBool::new(false);
        let tries_on = |error: &settee_io::Error| {
            has_waited.store(true, Ordering::Relaxed);
            self.note_checkpoint_error(Some(error.clone().into()));
            !self.is_closed()
        };
        match Manifest::replace(env, directory, &self.context.syncs(), tries_on).await {
            Ok(()) => {
                if has_waited.into_inner() {
                    self.note_checkpoint_error(None);
                }
                *manifest = next;
            }
            // It is unknown which of the two manifests is durable: no file that either names may change.
            Err(error) => {
                let _ = self.failed.set(error.clone());
                return Err(self.failed_sync(error));
            }
        }
        Ok(())
    }

    /// Stops the log if a sync of its directory failed: no later sync covers what that one should have.
    pub(crate) fn failed_sync(&self, error: StoreError) -> StoreError {
        if let StoreError::Io(error) = &error
            && error.operation() == Some(OperationKind::SyncDirectory)
            && !error.is_no_descriptor()
        {
            self.log.stop(error.clone());
        }
        error
    }

    /// Removes a file that no manifest names. If that fails, the next open removes it.
    pub(crate) async fn remove_file(&self, path: &Path) {
        self.context.remove_file(path).await;
    }

    /// Installs a checkpoint state in all versions.
    pub(crate) async fn install_version(&self, checkpoint: Arc<CheckpointState>, generation: u64) {
        let mut accepted = self.accepted.lock().await;
        let files = self.log.files();
        accepted.install(&checkpoint, &files, generation);
        let replaced = self.install_published(&checkpoint, &files, generation);
        drop(accepted);
        self.checkpointed.notify_waiters();
        // Dropping large memtables takes a while: without the lock.
        drop(replaced);
    }
}

impl StoreContext {
    /// See [`Shared::remove_file`].
    pub(crate) async fn remove_file(&self, path: &Path) {
        match directory::remove(&*self.env.engine, path).await {
            Err(error) if !error.is_not_found() => {
                tracing::warn!(%error, "an unneeded file could not be removed; the next open removes it");
            }
            _ => {}
        }
    }

    /// Merges the memtables into the tree, and commits its root. `manifest` names the tree then; the caller
    /// installs it.
    pub(crate) async fn merge(
        &self,
        input: &CheckpointInput,
        manifest: &mut Manifest,
    ) -> Result<(CheckpointTree, CheckpointFacts, Checkpoint), StoreError> {
        let key_count = input.key_count();
        let mut live_counter = LiveCounter { live: (*input.checkpoint.live).clone() };
        let done = |is_whole| Checkpoint { seq: input.seq, key_count, is_whole };
        // A retry of a checkpoint that failed after its commit can't commit the same `Seq` to that file
        // again.
        let has_newer_root = |tree: &CheckpointTree| tree.tree.committed().seq() >= input.seq;
        if let Some(tree) = input.checkpoint.tree.as_ref().filter(|tree| !has_newer_root(tree))
            && !self.is_whole_cheaper(tree, &input.memtables).await?
        {
            match self.change_touched(tree, input, &mut live_counter).await {
                // The file takes no more writes: its contents go into the next file.
                Err(StoreError::Tree(TreeError::Stopped { source })) => {
                    tracing::warn!(%source, directory = %self.directory.display(), "writing a new tree file");
                    live_counter.live = (*input.checkpoint.live).clone();
                }
                changed => {
                    let root = changed?;
                    let facts = CheckpointFacts {
                        last_in_seq_index: input.last_in_seq_index,
                        live: live_counter.live,
                    };
                    tree.tree.commit(&root, input.seq, &facts.encode()).await?;
                    // If nothing changed, the root is the previous one, with its own `Seq`.
                    let root = tree.tree.committed();
                    return Ok((CheckpointTree { root, ..tree.clone() }, facts, done(false)));
                }
            }
        }
        let number = manifest.tree.unwrap_or(0) + 1;
        let path = self.directory.join(tree_name(number));
        match directory::remove(&*self.env.engine, &path).await {
            // Left by a failed checkpoint.
            Err(error) if !error.is_not_found() => return Err(error.into()),
            _ => {}
        }
        match self.write_tree(&path, &manifest.incarnation, input, live_counter).await {
            Ok((tree, facts)) => {
                manifest.tree = Some(number);
                let root = tree.root();
                Ok((CheckpointTree { number, tree, root }, facts, done(true)))
            }
            Err(error) => {
                // It may have used the last free space.
                self.remove_file(&path).await;
                Err(error)
            }
        }
    }

    /// Writes the tree merged with the memtables to a new file, and makes it durable.
    async fn write_tree(
        &self,
        path: &Path,
        incarnation: &[u8; 16],
        input: &CheckpointInput,
        mut live_counter: LiveCounter,
    ) -> Result<(Arc<Tree<IndexAggregates>>, CheckpointFacts), StoreError> {
        let (options, aggregates) = (self.tree_options(incarnation), IndexAggregates(self.options.aggregate));
        let mut builder = TreeBuilder::create(&self.env, path, options, aggregates).await?;
        self.write_anew(&mut builder, input, &mut live_counter).await?;
        let facts = CheckpointFacts { last_in_seq_index: input.last_in_seq_index, live: live_counter.live };
        let tree = builder.finish(input.seq, &facts.encode()).await?;
        self.sync_directory().await?;
        Ok((Arc::new(tree), facts))
    }

    /// Changes the leaves that the memtables touch.
    async fn change_touched(
        &self,
        CheckpointTree { tree, root, .. }: &CheckpointTree,
        input: &CheckpointInput,
        live_counter: &mut LiveCounter,
    ) -> Result<Root<IndexAggregates>, StoreError> {
        let mut damaged: Result<(), ReadError> = Ok(());
        let changed = tree
            .update(root, Changes::new(&input.memtables), |key, new: Vec<u8>, previous| {
                decide(live_counter, key, &new, previous).unwrap_or_else(|error| {
                    damaged = Err(error);
                    Change::Keep
                })
            })
            .await?;
        damaged?;
        Ok(changed)
    }

    /// Writes the old tree merged with the changes, in the order of keys.
    async fn write_anew(
        &self,
        builder: &mut TreeBuilder<IndexAggregates>,
        input: &CheckpointInput,
        live_counter: &mut LiveCounter,
    ) -> Result<(), StoreError> {
        let mut old = OldRows::begin(input.checkpoint.tree.as_ref()).await?;
        for (count, (key, new)) in Changes::new(&input.memtables).enumerate() {
            while old.is_valid && old.key < key {
                builder.push(&old.key, &old.value).await?;
                old.advance().await?;
            }
            let is_known = old.is_valid && old.key == key;
            let previous = is_known.then_some(&old.value[..]);
            if let Change::Put(value) = decide(live_counter, &key, &new, previous)? {
                builder.push(&key, &value).await?;
            }
            if is_known {
                old.advance().await?;
            }
            if count % YIELD_COUNT == 0 {
                yield_now().await;
            }
        }
        while old.is_valid {
            builder.push(&old.key, &old.value).await?;
            old.advance().await?;
        }
        Ok(())
    }

    /// Whether writing a new file costs less than changing the touched leaves: if half of the leaves are
    /// touched, or if most of the file would be garbage.
    async fn is_whole_cheaper(
        &self,
        tree: &CheckpointTree,
        memtables: &[Memtable],
    ) -> Result<bool, StoreError> {
        let (file_bytes, live_bytes) = (tree.tree.file_bytes(), tree.root.live_bytes());
        let leaf_count = (live_bytes / NODE_BYTES).max(1) as f64;
        let mut touched = 0.0;
        for memtable in memtables {
            touched += touched_leaves(tree, BY_KEY, &memtable.by_key, leaf_count).await?;
            touched += touched_leaves(tree, BY_SEQ, &memtable.by_seq, leaf_count).await?;
        }
        let touched = touched.min(leaf_count);
        let grown = file_bytes + (touched * NODE_BYTES as f64) as u64;
        Ok(touched * 2.0 >= leaf_count || grown > TREE_GARBAGE_MAX * live_bytes)
    }
}

/// The rows of the tree that is to be replaced, in the order of keys.
struct OldRows {
    scan: Option<Scan<IndexAggregates>>,
    key: Vec<u8>,
    value: Vec<u8>,
    /// Whether there is a current row.
    is_valid: bool,
    count: usize,
}

impl OldRows {
    async fn begin(tree: Option<&CheckpointTree>) -> Result<OldRows, ReadError> {
        let scan = tree.map(|tree| tree.root.scan((Bound::Unbounded, Bound::Unbounded), false));
        let mut rows = OldRows { scan, key: Vec::new(), value: Vec::new(), is_valid: false, count: 0 };
        rows.advance().await?;
        Ok(rows)
    }

    async fn advance(&mut self) -> Result<(), ReadError> {
        let Some(scan) = &mut self.scan else { return Ok(()) };
        let row = scan.next().await?;
        self.is_valid = row.is_some();
        if let Some((key, value)) = row {
            self.key.clear();
            self.key.extend_from_slice(key);
            self.value.clear();
            self.value.extend_from_slice(value);
        }
        self.count += 1;
        if self.count.is_multiple_of(YIELD_COUNT) {
            yield_now().await;
        }
        Ok(())
    }
}

/// Approximate number of leaves that a map's keys touch. The keys between two sampled ones are taken to be
/// spread evenly over the ranks between them.
async fn touched_leaves(
    tree: &CheckpointTree,
    prefix: u8,
    map: &MemtableMap,
    leaf_count: f64,
) -> Result<f64, StoreError> {
    let step = (map.len() / SAMPLE_COUNT).max(1);
    let leaves_per_entry = leaf_count / tree.root.len().max(1) as f64;
    let mut cursor = map.cursor();
    let (mut touched, mut last_rank) = (0.0, None);
    while let Some(found) = cursor.next() {
        let key = [&[prefix], found.key].concat();
        let rank = tree.root.count_in((Bound::Unbounded, Bound::Excluded(&key[..]))).await?;
        if let Some(last) = last_rank.replace(rank) {
            let leaves = rank.saturating_sub(last) as f64 * leaves_per_entry;
            touched += if leaves > 0.0 { leaves * (1.0 - (-(step as f64) / leaves).exp()) } else { 0.0 };
        }
        cursor.skip(step as u64 - 1);
    }
    Ok(touched + 1.0)
}
