//! Checkpoints: what the memory layers hold goes into the tree.
//!
//! A checkpoint freezes the memory layer, waits until the log has persisted all that is in it,
//! merges the frozen layers into the tree, commits the tree's root, and then puts the new base under
//! every state there is. Writers and readers go on meanwhile. The tree is changed by its touched
//! leaves, or written anew, whichever the model says is cheaper; both read the old one in the order
//! of keys. As it learns the pointer that each key had before, the live bytes of each segment stay
//! exact.
//!
//! Segments that lie wholly at or below the checkpoint, and are sealed, become the store's: then
//! they can be rewritten. Those that the log seals later are taken over then, without another
//! checkpoint.
//!
//! A checkpoint that fails leaves the layers that it froze, and the next one begins with these: so
//! however often one fails, there are no more layers. Where the tree turns out to be damaged, another
//! is built in its place from what the segments hold (`open.rs`).
//!
//! Invariants:
//! 1. The log is persisted up to a checkpoint before its root is written.
//! 2. A new tree's file is on stable storage, its name too, before the manifest names it; the one
//!    before it goes after that.
//! 3. A state is rebased only onto a base that has all of the layers which it loses.
//! 4. Once the manifest is in place nothing can fail before all states are rebased.
//! 5. The log lets go of a segment once all states stand on a base that has it.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::{Either, select};
use settee_io::{OnPanic, OperationKind, folder, yield_now};
use settee_log::{Seq, Stage};
use settee_tree::{Change, Root, Scan, Tree, TreeBuilder, TreeError};

use crate::entry::{self, EntryView, Pointer, Reader};
use crate::error::{ReadError, StoreError};
use crate::layer::Layer;
use crate::manifest::{Manifest, tree_name};
use crate::merge::Merged;
use crate::segments::{Segment, Segments};
use crate::state::{BY_KEY, BY_SEQ, Base, IndexSums, Live, State, TreeBase};
use crate::store::{Place, Shared};

/// A tree is written anew when its file is more than so many times what lives in it.
const TREE_GARBAGE_MAX: u64 = 2;

/// What a leaf takes, about, in bytes.
const NODE_BYTES: u64 = 4 << 10;

/// After how many rows other tasks may run.
const YIELD_COUNT: usize = 1024;

/// From how many places in the layers the leaves are counted that they touch.
const SAMPLE_COUNT: usize = 64;

/// What a root carries beside the tree: the store's own facts as of that checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    pub last_listed: u64,
    pub live: BTreeMap<u32, Live>,
}

impl Facts {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        entry::push_number(self.last_listed, &mut bytes);
        for (segment, live) in &self.live {
            entry::push_number((*segment).into(), &mut bytes);
            entry::push_number(live.bytes, &mut bytes);
            entry::push_number(live.count, &mut bytes);
        }
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<Facts> {
        let mut reader = Reader(bytes);
        let mut facts = Facts { last_listed: reader.number()?, live: BTreeMap::new() };
        while !reader.0.is_empty() {
            let segment = u32::try_from(reader.number()?).ok()?;
            let live = Live { bytes: reader.number()?, count: reader.number()? };
            facts.live.insert(segment, live);
        }
        Some(facts)
    }
}

/// What a checkpoint did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// Its last record.
    pub seq: u64,
    /// Keys that were merged into the tree.
    pub key_count: u64,
    /// Whether the tree was written anew.
    pub is_whole: bool,
}

/// The live bytes of segments, as pointers come and go.
struct Accounts {
    live: BTreeMap<u32, Live>,
}

impl Accounts {
    fn add(&mut self, pointer: &Pointer) {
        let live = self.live.entry(pointer.location.segment).or_default();
        live.bytes += u64::from(pointer.location.length);
        live.count += 1;
    }

    fn remove(&mut self, pointer: &Pointer) {
        let segment = pointer.location.segment;
        let live = self.live.get_mut(&segment).expect("what is replaced was counted");
        live.bytes -= u64::from(pointer.location.length);
        live.count -= 1;
        if live.count == 0 {
            self.live.remove(&segment);
        }
    }
}

/// Decides what becomes of a key: what the layers hold takes the place of what the tree holds.
fn decide(
    accounts: &mut Accounts,
    key: &[u8],
    new: &[u8],
    previous: Option<&[u8]>,
) -> Result<Change, ReadError> {
    let new_view = EntryView::trusted(new);
    if key.first() == Some(&BY_SEQ) {
        return Ok(if new_view.is_tombstone() { Change::Remove } else { Change::Put(new.to_vec()) });
    }
    let previous = previous.map(crate::state::decode).transpose()?;
    let old: Vec<Pointer> = previous.iter().flat_map(EntryView::pointers).collect();
    let mut pointers: Vec<Pointer> = new_view.pointers().collect();
    if !new_view.is_whole() {
        pointers.extend(&old);
    }
    // Behind the first that needs no older one nothing is needed.
    let count = pointers.iter().position(|pointer| pointer.init).map_or(pointers.len(), |at| at + 1);
    pointers.truncate(count);
    old.iter().for_each(|pointer| accounts.remove(pointer));
    pointers.iter().for_each(|pointer| accounts.add(pointer));
    if new_view.is_tombstone() {
        return Ok(Change::Remove);
    }
    let mut bytes = Vec::with_capacity(new.len());
    new_view.encode_with(&pointers[1..], &mut bytes);
    Ok(Change::Put(bytes))
}

/// All changes that the layers hold, in the order of the tree's keys.
struct Changes {
    by_key: Merged,
    by_seq: Merged,
}

impl Changes {
    fn new(frozen: &[crate::state::Memory]) -> Changes {
        let all = |layer: fn(&crate::state::Memory) -> &Layer| {
            Merged::new(frozen.iter().map(layer), Bound::Unbounded, Bound::Unbounded, false)
        };
        Changes { by_key: all(|memory| &memory.by_key), by_seq: all(|memory| &memory.by_seq) }
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

/// What is to be merged: all up to `seq`, in the layers up to `generation`.
pub(crate) struct Frozen {
    pub layers: Arc<Vec<crate::state::Memory>>,
    pub base: Arc<Base>,
    pub generation: u64,
    pub seq: u64,
    pub last_listed: u64,
}

impl Frozen {
    /// Freezes a state's memory layer, unless layers of a checkpoint that failed are left: then it is
    /// these. None where there is nothing to be merged.
    pub(crate) fn of(state: &mut State) -> Frozen {
        if state.frozen.is_empty() {
            state.freeze();
        }
        let (generation, seq, last_listed) = match state.frozen.first() {
            Some(newest) => (newest.generation, newest.last_seq, newest.last_listed),
            None => (0, state.last_seq, state.last_listed),
        };
        Frozen { layers: state.frozen.clone(), base: state.base.clone(), generation, seq, last_listed }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    fn key_count(&self) -> u64 {
        self.layers.iter().map(|layer| layer.len() as u64).sum()
    }
}

impl Shared {
    /// Brings the tree up to what is accepted now. `None` where it is. To be called in a task of its
    /// own: dropped half-way it would leave the files and the states at odds.
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
        self.start_taking_over(0);
        Ok(all)
    }

    /// Merges what is frozen, or all there is where nothing is: the second says whether it was all.
    async fn checkpoint_once(
        &self,
        manifest: &mut Manifest,
    ) -> Result<Option<(Checkpoint, bool)>, StoreError> {
        if self.is_closed() {
            return Ok(None);
        }
        self.check_files()?;
        let is_damaged = self.is_index_damaged.load(Ordering::Acquire);
        let (frozen, is_all) = {
            let _stop = self.stop_on_panic();
            let mut state = self.accepted.lock().await;
            let frozen = Frozen::of(&mut state);
            (frozen, state.memory.is_empty())
        };
        if frozen.is_empty() && !is_damaged {
            return Ok(None);
        }
        let persisted = pin!(self.log.wait(Seq(frozen.seq), Stage::Persisted));
        match select(persisted, pin!(self.log.finds_no_room())).await {
            Either::Left((persisted, _)) => persisted?,
            // Writers that wait for the checkpoint are refused, and it is tried again.
            Either::Right((error, _)) => return Err(error.into()),
        }
        self.shown(Seq(frozen.seq)).await?;
        let _turn = self.place.env.background.acquire().await;
        let mut next = manifest.clone();
        let made = self.make_base(&frozen, is_damaged, &mut next).await;
        let (base, done) = match made {
            Ok(made) => made,
            Err(error) => {
                self.abandon(next.tree, manifest).await;
                return Err(self.failed_sync(error));
            }
        };
        let base = Base { segments: self.take_over(&frozen.base, frozen.seq, &mut next), ..base };
        let replaced = manifest.tree.filter(|number| next.tree != Some(*number));
        let stop = self.stop_on_panic();
        if next != *manifest {
            next.number += 1;
            next.checkpoint = base.seq;
            next.last_listed = base.last_listed;
            let number = next.tree;
            if let Err(error) = self.install(manifest, next).await {
                self.abandon(number, manifest).await;
                return Err(error);
            }
        }
        let live_bytes = base.live_bytes();
        self.rebase(Arc::new(base), frozen.generation).await;
        self.hand_over(manifest, live_bytes);
        drop(stop);
        if let Some(number) = replaced {
            self.is_index_damaged.store(false, Ordering::Release);
            // Snapshots that read it have it open.
            self.remove_file(&self.place.folder.join(tree_name(number))).await;
        }
        self.count(|counts| {
            counts.checkpoint_count += 1;
            counts.whole_count += u64::from(done.is_whole);
        });
        Ok(Some((done, is_all)))
    }

    /// The base with what is frozen: by merging it into the tree, or, where that is damaged, from what
    /// the segments hold up to there.
    async fn make_base(
        &self,
        frozen: &Frozen,
        is_damaged: bool,
        next: &mut Manifest,
    ) -> Result<(Base, Checkpoint), StoreError> {
        let (segments, number) = (&frozen.base.segments, next.tree);
        if !is_damaged {
            let merged = async {
                let (tree, facts, done) = self.place.merge(frozen, next).await?;
                Ok((Base::new(Some(tree), &facts, segments.clone()).await?, done))
            };
            match merged.await {
                Err(error @ (StoreError::Tree(_) | StoreError::Read(_))) if error.is_of_damaged_index() => {
                    let folder = self.place.folder.display();
                    tracing::warn!(%error, %folder, "the index is built anew from the segments");
                }
                merged => return merged,
            }
        }
        next.tree = number;
        next.last_listed = frozen.last_listed;
        let source = Some((&*self.log, frozen.seq));
        let (tree, facts) = self.place.rebuild(next, segments, source).await?;
        let base = Base::new(tree, &facts, segments.clone()).await?;
        if base.seq < frozen.seq && !frozen.is_empty() {
            let (path, what) = (self.place.folder.clone(), "the log lacks records that it had accepted");
            return Err(StoreError::Damaged { path, offset: 0, what });
        }
        let key_count = frozen.key_count();
        Ok((base, Checkpoint { seq: frozen.seq, key_count, is_whole: true }))
    }

    /// Removes a tree that a checkpoint made in vain, unless a manifest may name it.
    async fn abandon(&self, tree: Option<u64>, manifest: &Manifest) {
        if let Some(number) = tree.filter(|_| tree != manifest.tree && self.failed.get().is_none()) {
            self.remove_file(&self.place.folder.join(tree_name(number))).await;
        }
    }

    /// Starts to take over what the log has left of checkpointed segments behind `done_to`, once it has
    /// sealed them, unless that is under way, or there are none. Whoever waits for a pause in the appends
    /// may wait long: a store that is closed or dropped ends it.
    pub(crate) fn start_taking_over(self: &Arc<Self>, done_to: u32) {
        if self.is_closed()
            || self.left_behind(done_to).is_none()
            || self.is_taking_over.swap(true, Ordering::AcqRel)
        {
            return;
        }
        let shared = self.clone();
        self.place.env.spawn("store segments", async move {
            let _end = OnPanic(|| shared.is_taking_over.store(false, Ordering::Release));
            let mut done_to = done_to;
            while let Some(last) = shared.left_behind(done_to).filter(|_| !shared.is_closed()) {
                if let Err(error) = shared.take_over_to(last).await {
                    tracing::warn!(%error, folder = %shared.place.folder.display(), "segments stay with the log");
                    shared.is_taking_over.store(false, Ordering::Release);
                    return;
                }
                done_to = last;
            }
            shared.is_taking_over.store(false, Ordering::Release);
            // A checkpoint may have found it under way just before.
            shared.start_taking_over(done_to);
        });
    }

    /// The last of the log's segments behind `done_to` that it has left, and that are checkpointed.
    fn left_behind(&self, done_to: u32) -> Option<u32> {
        let checkpoint = self.base().seq;
        let mut known = self.log.known_segments();
        // The one that takes records.
        known.pop();
        let newest = known.iter().rev().find(|segment| segment.last_seq.0 <= checkpoint)?;
        Some(newest.number).filter(|number| *number > done_to)
    }

    /// Takes over the log's segments up to this one, as soon as they are sealed.
    async fn take_over_to(self: &Arc<Self>, last: u32) -> Result<(), StoreError> {
        loop {
            let told = self.checkpointed.notified();
            let sealed = self.log.sealed_below();
            if self.is_closed() {
                return Ok(());
            }
            if sealed > last {
                break;
            }
            if let Either::Right((changed, _)) =
                select(pin!(told), pin!(self.log.sealed_changed(sealed))).await
            {
                changed?;
            }
        }
        self.take_over_sealed().await?;
        self.start_compaction(&self.base());
        Ok(())
    }

    /// Makes the store's what was sealed of the log's checkpointed segments since the last checkpoint.
    pub(crate) async fn take_over_sealed(&self) -> Result<(), StoreError> {
        let mut manifest = self.manifest.lock().await;
        self.check_files()?;
        let base = self.accepted.lock().await.base.clone();
        let mut next = manifest.clone();
        let segments = self.take_over(&base, base.seq, &mut next);
        let _stop = self.stop_on_panic();
        if self.is_closed() || next == *manifest {
            return Ok(());
        }
        next.number += 1;
        next.checkpoint = base.seq;
        next.last_listed = base.last_listed;
        self.install(&mut manifest, next).await?;
        self.rebase(Arc::new(Base { segments, ..(*base).clone() }), 0).await;
        self.hand_over(&manifest, base.live_bytes());
        Ok(())
    }

    /// Has the log let go of what the manifest doesn't count as its own. Not before all states have that in
    /// their base: a commit takes the log's files as they are then, also while a base waits for its writer.
    fn hand_over(&self, manifest: &Manifest, live_bytes: u64) {
        self.log.hand_over(manifest.first_log_segment);
        self.log.set_bytes_elsewhere(live_bytes);
    }

    /// Makes the store's what is wholly checkpointed and sealed of the log's segments.
    fn take_over(&self, base: &Base, checkpoint: u64, manifest: &mut Manifest) -> Arc<Segments> {
        let mut segments = (*base.segments).clone();
        let files = self.log.files();
        for known in self.log.known_segments() {
            let is_whole = known.last_seq.0 <= checkpoint && known.is_sealed;
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
            let segment =
                Segment::new(&self.place.env, &self.place.folder, name, self.place.options.log.direct);
            let segment = segment.with_chunks(self.place.chunks.as_ref());
            segments.insert(Arc::new(segment.with_file(file.clone())));
            manifest.first_log_segment = known.number + 1;
        }
        manifest.segments = segments.names();
        Arc::new(segments)
    }

    /// Puts the next manifest in the place of this one.
    pub(crate) async fn install(&self, manifest: &mut Manifest, next: Manifest) -> Result<(), StoreError> {
        let (env, folder) = (&self.place.env, &self.place.folder);
        next.prepare(env, folder).await?;
        // A sync of the folder may have failed meanwhile, whoever's it was.
        self.check_files()?;
        // The new name is there and not durable. Writers that wait for memory are refused meanwhile.
        let has_waited = AtomicBool::new(false);
        let tries_on = |error: &settee_io::Error| {
            has_waited.store(true, Ordering::Relaxed);
            self.note_checkpoint_error(Some(error.clone().into()));
            !self.is_closed()
        };
        match Manifest::replace(env, folder, &self.place.syncs(), tries_on).await {
            Ok(()) => {
                if has_waited.into_inner() {
                    self.note_checkpoint_error(None);
                }
                *manifest = next;
            }
            // Which of the two is there is unknown: no file that either names may change.
            Err(error) => {
                let _ = self.failed.set(error.clone());
                return Err(self.failed_sync(error));
            }
        }
        Ok(())
    }

    /// Stops the log where a sync of its folder failed: no later one covers what that was to.
    pub(crate) fn failed_sync(&self, error: StoreError) -> StoreError {
        if let StoreError::Io(error) = &error
            && error.operation() == Some(OperationKind::SyncFolder)
            && !error.is_no_descriptor()
        {
            self.log.stop(error.clone());
        }
        error
    }

    /// Removes a file that no manifest names: if that fails, it goes at the next opening.
    pub(crate) async fn remove_file(&self, path: &Path) {
        self.place.remove_file(path).await;
    }

    /// Puts a base under all states that there are.
    pub(crate) async fn rebase(&self, base: Arc<Base>, generation: u64) {
        let mut accepted = self.accepted.lock().await;
        let files = self.log.files();
        accepted.rebase(&base, &files, generation);
        let replaced = self.rebase_shown(&base, &files, generation);
        drop(accepted);
        self.checkpointed.notify_waiters();
        // Large layers take a while to drop: without the lock.
        drop(replaced);
    }
}

impl Place {
    /// See [`Shared::remove_file`].
    pub(crate) async fn remove_file(&self, path: &Path) {
        match folder::remove(&*self.env.engine, path).await {
            Err(error) if !error.is_not_found() => {
                tracing::warn!(%error, "a file that nothing needs stays until the next opening");
            }
            _ => {}
        }
    }

    /// Merges the layers into the tree, and commits its root. The manifest names the tree then; it is the
    /// caller's to install.
    pub(crate) async fn merge(
        &self,
        frozen: &Frozen,
        manifest: &mut Manifest,
    ) -> Result<(TreeBase, Facts, Checkpoint), StoreError> {
        let key_count = frozen.key_count();
        let mut accounts = Accounts { live: (*frozen.base.live).clone() };
        let done = |is_whole| Checkpoint { seq: frozen.seq, key_count, is_whole };
        // One that failed behind its commit, and is tried again, can't be committed there once more.
        let has_newer_root = |tree: &TreeBase| tree.tree.committed().seq() >= frozen.seq;
        if let Some(tree) = frozen.base.tree.as_ref().filter(|tree| !has_newer_root(tree))
            && !self.is_whole_cheaper(tree, &frozen.layers).await?
        {
            match self.change_touched(tree, frozen, &mut accounts).await {
                // Its file takes no more writes: what it holds is in the next one.
                Err(StoreError::Tree(TreeError::Stopped { source })) => {
                    tracing::warn!(%source, folder = %self.folder.display(), "the tree is written anew");
                    accounts.live = (*frozen.base.live).clone();
                }
                changed => {
                    let root = changed?;
                    let facts = Facts { last_listed: frozen.last_listed, live: accounts.live };
                    tree.tree.commit(&root, frozen.seq, &facts.encode()).await?;
                    // Where nothing changed, the root is the one before, with its own `Seq`.
                    let root = tree.tree.committed();
                    return Ok((TreeBase { root, ..tree.clone() }, facts, done(false)));
                }
            }
        }
        let number = manifest.tree.unwrap_or(0) + 1;
        let path = self.folder.join(tree_name(number));
        match folder::remove(&*self.env.engine, &path).await {
            // Left by a checkpoint that failed.
            Err(error) if !error.is_not_found() => return Err(error.into()),
            _ => {}
        }
        match self.write_tree(&path, &manifest.incarnation, frozen, accounts).await {
            Ok((tree, facts)) => {
                manifest.tree = Some(number);
                let root = tree.root();
                Ok((TreeBase { number, tree, root }, facts, done(true)))
            }
            Err(error) => {
                // It may have taken the last room that there was.
                self.remove_file(&path).await;
                Err(error)
            }
        }
    }

    /// Writes what the tree and the layers hold together to a new file, which is durable then.
    async fn write_tree(
        &self,
        path: &Path,
        incarnation: &[u8; 16],
        frozen: &Frozen,
        mut accounts: Accounts,
    ) -> Result<(Arc<Tree<IndexSums>>, Facts), StoreError> {
        let (options, sums) = (self.tree_options(incarnation), IndexSums(self.options.measure));
        let mut builder = TreeBuilder::create(&self.env, path, options, sums).await?;
        self.write_anew(&mut builder, frozen, &mut accounts).await?;
        let facts = Facts { last_listed: frozen.last_listed, live: accounts.live };
        let tree = builder.finish(frozen.seq, &facts.encode()).await?;
        self.sync_directory().await?;
        Ok((Arc::new(tree), facts))
    }

    /// Changes the leaves that the layers touch.
    async fn change_touched(
        &self,
        TreeBase { tree, root, .. }: &TreeBase,
        frozen: &Frozen,
        accounts: &mut Accounts,
    ) -> Result<Root<IndexSums>, StoreError> {
        let mut damaged: Result<(), ReadError> = Ok(());
        let changed = tree
            .update(root, Changes::new(&frozen.layers), |key, new: Vec<u8>, previous| {
                decide(accounts, key, &new, previous).unwrap_or_else(|error| {
                    damaged = Err(error);
                    Change::Keep
                })
            })
            .await?;
        damaged?;
        Ok(changed)
    }

    /// Writes what the old tree and the changes hold together, in the order of keys.
    async fn write_anew(
        &self,
        builder: &mut TreeBuilder<IndexSums>,
        frozen: &Frozen,
        accounts: &mut Accounts,
    ) -> Result<(), StoreError> {
        let mut old = OldRows::begin(frozen.base.tree.as_ref()).await?;
        for (count, (key, new)) in Changes::new(&frozen.layers).enumerate() {
            while old.stands && old.key < key {
                builder.push(&old.key, &old.value).await?;
                old.advance().await?;
            }
            let is_known = old.stands && old.key == key;
            let previous = is_known.then_some(&old.value[..]);
            if let Change::Put(value) = decide(accounts, &key, &new, previous)? {
                builder.push(&key, &value).await?;
            }
            if is_known {
                old.advance().await?;
            }
            if count % YIELD_COUNT == 0 {
                yield_now().await;
            }
        }
        while old.stands {
            builder.push(&old.key, &old.value).await?;
            old.advance().await?;
        }
        Ok(())
    }

    /// Whether writing the tree anew costs less than changing the leaves that the layers touch: where
    /// they touch half of them, or where most of the file would be garbage.
    async fn is_whole_cheaper(
        &self,
        tree: &TreeBase,
        layers: &[crate::state::Memory],
    ) -> Result<bool, StoreError> {
        let (file_bytes, live_bytes) = (tree.tree.file_bytes(), tree.root.live_bytes());
        let leaf_count = (live_bytes / NODE_BYTES).max(1) as f64;
        let mut touched = 0.0;
        for layer in layers {
            touched += touched_leaves(tree, BY_KEY, &layer.by_key, leaf_count).await?;
            touched += touched_leaves(tree, BY_SEQ, &layer.by_seq, leaf_count).await?;
        }
        let touched = touched.min(leaf_count);
        let grown = file_bytes + (touched * NODE_BYTES as f64) as u64;
        Ok(touched * 2.0 >= leaf_count || grown > TREE_GARBAGE_MAX * live_bytes)
    }
}

/// The rows of the tree that is to be replaced, in the order of keys.
struct OldRows {
    scan: Option<Scan<IndexSums>>,
    key: Vec<u8>,
    value: Vec<u8>,
    /// Whether there is a row.
    stands: bool,
    count: usize,
}

impl OldRows {
    async fn begin(tree: Option<&TreeBase>) -> Result<OldRows, ReadError> {
        let scan = tree.map(|tree| tree.root.scan((Bound::Unbounded, Bound::Unbounded), false));
        let mut rows = OldRows { scan, key: Vec::new(), value: Vec::new(), stands: false, count: 0 };
        rows.advance().await?;
        Ok(rows)
    }

    async fn advance(&mut self) -> Result<(), ReadError> {
        let Some(scan) = &mut self.scan else { return Ok(()) };
        let row = scan.next().await?;
        self.stands = row.is_some();
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

/// How many of the tree's leaves a layer's keys touch, about: between two keys that are so many
/// ranks apart, the keys in between are taken to be spread evenly.
async fn touched_leaves(
    tree: &TreeBase,
    prefix: u8,
    layer: &Layer,
    leaf_count: f64,
) -> Result<f64, StoreError> {
    let step = (layer.len() / SAMPLE_COUNT).max(1);
    let leaves_per_entry = leaf_count / tree.root.len().max(1) as f64;
    let mut cursor = layer.cursor();
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
