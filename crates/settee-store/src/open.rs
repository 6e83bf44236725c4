//! Opening a store: reads the manifest, opens the tree, and rebuilds it if necessary.
//!
//! A missing or damaged tree is rebuilt from the segment indexes and the log: before the log is opened, if it
//! is found by then; after replay, if a leaf of a replayed key turns out to be damaged; or instead of a
//! checkpoint that reads a damaged node. The new tree has a file of its own, and the old one stays until the
//! manifest names the new: a failure changes nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use settee_io::{File, OpenMode, directory};
use settee_log::{Files, Log, LogLock, OpenError, SegmentInfo, Seq, scan_segment, segment_head};
use settee_tree::{Tree, TreeError};

use crate::checkpoint::CheckpointInput;
use crate::checkpoint_state::{CheckpointFacts, CheckpointState, CheckpointTree};
use crate::entry::Location;
use crate::error::{ReadError, StoreError};
use crate::manifest::{MANIFEST_FILE, Manifest, tree_name};
use crate::memtable::Memtable;
use crate::segments::{Segment, Segments};
use crate::store::StoreContext;
use crate::tree_index::IndexAggregates;
use crate::version::{Incoming, PreviousEntry, Version};

impl StoreContext {
    /// Reads the manifest, and locks the log that it names. Reads it again under the lock, since a process
    /// that had the store before may have changed it until then.
    pub(crate) async fn lock(&self) -> Result<(Option<Manifest>, LogLock), StoreError> {
        loop {
            let manifest = Manifest::read(&self.env, &self.directory).await?;
            let first = manifest.as_ref().map_or(1, |manifest| manifest.first_log_segment);
            let locked = Log::lock(&self.env, &self.directory, first).await;
            if let Err(error @ OpenError::InUse { .. }) = locked {
                return Err(error.into());
            }
            if Manifest::read(&self.env, &self.directory).await? == manifest {
                let locked = locked?;
                let _ = self.syncs.set(locked.directory_syncs().clone());
                return Ok((manifest, locked));
            }
        }
    }

    /// Opens the tree and the segments that the manifest names.
    pub(crate) async fn open(
        &self,
        manifest: Option<Manifest>,
    ) -> Result<(Manifest, CheckpointState, CheckpointFacts), StoreError> {
        let Some(mut manifest) = manifest else {
            self.check_never_written().await?;
            let incarnation = self.env.random_bytes();
            let manifest = Manifest { incarnation, first_log_segment: 1, ..Manifest::default() };
            let checkpoint = CheckpointState::new(None, &CheckpointFacts::default(), Arc::default()).await?;
            return Ok((manifest, checkpoint, CheckpointFacts::default()));
        };
        let mut segments = Segments::default();
        for name in &manifest.segments {
            let segment = Segment::new(&self.env, &self.directory, *name, self.options.log.direct);
            segments.insert(Arc::new(segment.with_chunks(self.chunks.as_ref())));
        }
        let segments = Arc::new(segments);
        self.check_all_there(&manifest).await?;
        let opened = async {
            let (tree, facts) = self.open_tree(&manifest).await?.unzip();
            let without_tree = || CheckpointFacts {
                last_in_seq_index: manifest.last_in_seq_index,
                ..CheckpointFacts::default()
            };
            let facts = facts.unwrap_or_else(without_tree);
            Ok((CheckpointState::new(tree, &facts, segments.clone()).await?, facts))
        };
        match opened.await {
            Ok((checkpoint, facts)) => return Ok((manifest, checkpoint, facts)),
            Err(error) if !is_lost(&error) => return Err(error),
            Err(error) => self.warn_of_damage(&error),
        }
        let (tree, facts) = self.rebuild(&mut manifest, &segments, None).await?;
        let checkpoint = CheckpointState::new(tree, &facts, segments).await?;
        manifest.number += 1;
        manifest.checkpoint = checkpoint.seq;
        manifest.write(&self.env, &self.directory, &self.syncs()).await?;
        Ok((manifest, checkpoint, facts))
    }

    fn warn_of_damage(&self, error: &StoreError) {
        tracing::warn!(%error, directory = %self.directory.display(), "rebuilding the index from the segments");
    }

    /// Rebuilds the tree after replay, where a node that replay needs turned out to be damaged, and returns a
    /// version that replaces the replayed one.
    pub(crate) async fn rebuild_after_replay(
        &self,
        manifest: &mut Manifest,
        log: &Log,
        version: &Version,
        error: &StoreError,
    ) -> Result<Version, StoreError> {
        self.warn_of_damage(error);
        let segments = &version.checkpoint.segments;
        let mut next = Manifest { last_in_seq_index: version.last_in_seq_index, ..manifest.clone() };
        let (tree, facts) = self.rebuild(&mut next, segments, Some((log, version.last_seq))).await?;
        let checkpoint = CheckpointState::new(tree, &facts, segments.clone()).await?;
        next.number += 1;
        next.checkpoint = checkpoint.seq;
        next.write(&self.env, &self.directory, &self.syncs()).await?;
        let replaced = std::mem::replace(manifest, next).tree.filter(|_| version.checkpoint.tree.is_some());
        if let Some(number) = replaced {
            self.remove_file(&self.directory.join(tree_name(number))).await;
        }
        log.set_transferred_bytes(checkpoint.live_bytes());
        Ok(Version {
            memtable: Memtable::new(1),
            immutable: Arc::default(),
            checkpoint: Arc::new(checkpoint),
            files: log.files(),
            last_seq: version.last_seq,
            last_in_seq_index: facts.last_in_seq_index,
        })
    }

    /// A directory without a manifest holds only a log. If a manifest was lost, the segments that it named
    /// would be taken for removed ones.
    async fn check_never_written(&self) -> Result<(), StoreError> {
        let lost = || Err(StoreError::Missing { path: self.directory.join(MANIFEST_FILE) });
        for entry in directory::list(&*self.env.engine, &self.directory).await? {
            if entry.name.ends_with(".seg") {
                return lost();
            }
            if entry.name.ends_with(".log") {
                let file =
                    File::open(&self.env.engine, &self.directory.join(&entry.name), OpenMode::Read).await?;
                if segment_head(&file).await?.is_ok_and(|head| head.oldest > 1) {
                    return lost();
                }
            }
        }
        Ok(())
    }

    async fn open_tree(
        &self,
        manifest: &Manifest,
    ) -> Result<Option<(CheckpointTree, CheckpointFacts)>, StoreError> {
        let Some(number) = manifest.tree else { return Ok(None) };
        let path = self.directory.join(tree_name(number));
        let options = self.tree_options(&manifest.incarnation);
        let tree = Tree::open(&self.env, &path, options, IndexAggregates(self.options.aggregate)).await?;
        let root = tree.root();
        if root.seq() < manifest.checkpoint {
            let what = "its newest root is damaged, and files have changed since the one before";
            return Err(StoreError::Damaged { path, offset: 0, what });
        }
        let attachment = root.attachment().await?;
        let facts = CheckpointFacts::decode(&attachment).ok_or_else(|| StoreError::Damaged {
            path: path.clone(),
            offset: 0,
            what: "the segment table in its root is invalid",
        })?;
        Ok(Some((CheckpointTree { number, tree: Arc::new(tree), root }, facts)))
    }

    /// Fails before anything is changed if a segment that the manifest names is missing.
    async fn check_all_there(&self, manifest: &Manifest) -> Result<(), StoreError> {
        let entries = directory::list(&*self.env.engine, &self.directory).await?;
        for name in &manifest.segments {
            let name = name.file_name();
            if entries.binary_search_by(|entry| entry.name.cmp(&name)).is_err() {
                return Err(StoreError::Missing { path: self.directory.join(name) });
            }
        }
        Ok(())
    }

    /// Builds a tree from the segments, and from the log up to a `Seq` that it has reached, if that is given.
    /// `manifest` names the tree then; the caller installs it.
    pub(crate) async fn rebuild(
        &self,
        manifest: &mut Manifest,
        segments: &Arc<Segments>,
        log: Option<(&Log, u64)>,
    ) -> Result<(Option<CheckpointTree>, CheckpointFacts), StoreError> {
        let checkpoint = CheckpointState::new(None, &CheckpointFacts::default(), segments.clone()).await?;
        let version = Version {
            memtable: Memtable::new(1),
            immutable: Arc::default(),
            checkpoint: Arc::new(checkpoint),
            files: Default::default(),
            last_seq: 0,
            last_in_seq_index: 0,
        };
        let mut rebuild = Rebuild { context: self, manifest, version, facts: CheckpointFacts::default() };
        let built = rebuild.take_all(segments, log).await;
        let Rebuild { manifest, version, mut facts, .. } = rebuild;
        let tree = version.checkpoint.tree.clone();
        if let Err(error) = built {
            if let Some(tree) = tree {
                self.remove_file(&self.directory.join(tree_name(tree.number))).await;
            }
            return Err(error);
        }
        self.rebuild_count.fetch_add(1, Ordering::Relaxed);
        manifest.tree = tree.as_ref().map(|tree| tree.number);
        facts.last_in_seq_index = facts.last_in_seq_index.max(manifest.last_in_seq_index);
        Ok((tree, facts))
    }
}

/// A tree that is built from the segments step by step, with bounded memory.
struct Rebuild<'a> {
    context: &'a StoreContext,
    manifest: &'a mut Manifest,
    version: Version,
    facts: CheckpointFacts,
}

impl Rebuild<'_> {
    async fn take_all(&mut self, segments: &Segments, log: Option<(&Log, u64)>) -> Result<(), StoreError> {
        let all = segments.iter().count();
        for (index, segment) in segments.iter().enumerate() {
            tracing::info!(segment = %segment.path().display(), "{} of {all}: reading its segment index", index + 1);
            self.take_segment_index(segment).await?;
            self.step(false).await?;
        }
        if let Some((log, up_to)) = log {
            let (known, files) = (log.segment_infos(), log.files());
            // Then everything accepted by now is in the files.
            log.flush().await?;
            for known in known.iter().filter(|known| known.first_seq.0 <= up_to) {
                self.take_frames(known, &files, up_to).await?;
                self.step(false).await?;
            }
        }
        self.step(true).await
    }

    async fn take_segment_index(&mut self, segment: &Segment) -> Result<(), StoreError> {
        let rules = self.context.options.rules();
        let segment_index = segment.segment_index().await?;
        let mut scan = segment_index.scan_seq(Seq(0));
        while let Some((entry, _)) = scan.next().await? {
            let settee_log::Location { segment, offset, length } = entry.location;
            let location = Location { seq: entry.seq.0, segment, offset, length };
            let (flags, key, meta) = (entry.flags, entry.key, entry.meta);
            let record = Incoming { flags, key, meta, location };
            self.version.enter(&record, PreviousEntry::default(), &rules);
        }
        Ok(())
    }

    /// Inserts the records of a segment of the log, which may not have a segment index yet.
    async fn take_frames(
        &mut self,
        known: &SegmentInfo,
        files: &Files,
        up_to: u64,
    ) -> Result<(), StoreError> {
        let rules = self.context.options.rules();
        let last = known.last_seq.0.min(up_to);
        // If missing: transferred or removed. Neither happens during a rebuild.
        let Some(file) = files.get(known.number).filter(|_| last >= known.first_seq.0) else { return Ok(()) };
        tracing::info!(segment = %file.path().display(), "reading its frames");
        let mut reached = 0;
        let version = &mut self.version;
        let scanned = scan_segment(&file, known.number, known.frame_bytes, |at, record| {
            if record.is_extent() || record.seq.0 > up_to {
                return;
            }
            reached = record.seq.0;
            let location =
                Location { seq: reached, segment: at.segment, offset: at.offset, length: at.length };
            let (flags, key, meta) = (record.flags, record.key, record.meta);
            version.enter(&Incoming { flags, key, meta, location }, PreviousEntry::default(), &rules);
        })
        .await;
        if reached < last {
            scanned.map_err(ReadError::from)?;
            let (path, offset) = (file.path().to_path_buf(), known.frame_bytes);
            return Err(StoreError::Damaged { path, offset, what: "records that were in it are missing" });
        }
        Ok(())
    }

    /// Merges the memtable into the tree if it is large, or if this is the last step.
    async fn step(&mut self, is_last: bool) -> Result<(), StoreError> {
        let Rebuild { context, manifest, version, facts } = self;
        if !is_last && version.memtable.bytes() < context.options.memory_bytes_max / 2 {
            return Ok(());
        }
        version.backfill_all(context.options.aggregate).await?;
        // The last record of the seq index may have been replaced and compacted away since: the root records
        // it nevertheless.
        version.last_in_seq_index = version.last_in_seq_index.max(manifest.last_in_seq_index);
        let input = CheckpointInput::of(version);
        if input.is_empty() {
            return Ok(());
        }
        let replaced = version.checkpoint.tree.as_ref().map(|tree| tree.number);
        let (tree, new_facts, _) = context.merge(&input, manifest).await?;
        let replaced = replaced.filter(|number| *number != tree.number);
        let checkpoint =
            CheckpointState::new(Some(tree), &new_facts, version.checkpoint.segments.clone()).await?;
        *facts = new_facts;
        let files = version.files.clone();
        version.install(&Arc::new(checkpoint), &files, input.generation);
        if let Some(number) = replaced {
            context.remove_file(&context.directory.join(tree_name(number))).await;
        }
        Ok(())
    }
}

/// Whether a tree that couldn't be opened has to be rebuilt: it is damaged or missing.
fn is_lost(error: &StoreError) -> bool {
    match error {
        StoreError::Tree(TreeError::Io(error)) => error.is_not_found(),
        StoreError::Tree(TreeError::NoRoot { .. } | TreeError::OtherIncarnation { .. }) => true,
        StoreError::Damaged { .. } => true,
        error => error.is_of_damaged_index(),
    }
}
