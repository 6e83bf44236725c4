//! Opening: the manifest, the tree, and what they say of the log.
//!
//! A tree that is missing or damaged is built anew from the segments' directories and the log: before
//! the log is opened, where that is found by then; behind what was replayed, where a leaf turns out to
//! be damaged under a replayed key; or in place of a checkpoint that meets one. The new tree has another
//! file, and the one before stays until the manifest names it: what fails changes nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use settee_io::{File, OpenMode, folder};
use settee_log::{Files, Locked, Log, OpenError, SegmentInfo, Seq, scan_segment, segment_head};
use settee_tree::{Tree, TreeError};

use crate::checkpoint::{Facts, Frozen};
use crate::entry::Location;
use crate::error::{ReadError, StoreError};
use crate::manifest::{MANIFEST_FILE, Manifest, tree_name};
use crate::segments::{Segment, Segments};
use crate::state::{Base, Beneath, Incoming, IndexSums, Memory, State, TreeBase};
use crate::store::Place;

impl Place {
    /// Reads the manifest, and keeps others out of the log that it names: whoever had the store before
    /// may go on changing it until then.
    pub(crate) async fn lock(&self) -> Result<(Option<Manifest>, Locked), StoreError> {
        loop {
            let manifest = Manifest::read(&self.env, &self.folder).await?;
            let first = manifest.as_ref().map_or(1, |manifest| manifest.first_log_segment);
            let locked = Log::lock(&self.env, &self.folder, first).await;
            if let Err(error @ OpenError::InUse { .. }) = locked {
                return Err(error.into());
            }
            if Manifest::read(&self.env, &self.folder).await? == manifest {
                let locked = locked?;
                let _ = self.syncs.set(locked.directory_syncs().clone());
                return Ok((manifest, locked));
            }
        }
    }

    /// What the folder has of checkpoints, as its manifest says.
    pub(crate) async fn open(
        &self,
        manifest: Option<Manifest>,
    ) -> Result<(Manifest, Base, Facts), StoreError> {
        let Some(mut manifest) = manifest else {
            self.check_never_written().await?;
            let incarnation = self.env.random_bytes();
            let manifest = Manifest { incarnation, first_log_segment: 1, ..Manifest::default() };
            let base = Base::new(None, &Facts::default(), Arc::default()).await?;
            return Ok((manifest, base, Facts::default()));
        };
        let mut segments = Segments::default();
        for name in &manifest.segments {
            let segment = Segment::new(&self.env, &self.folder, *name, self.options.log.direct);
            segments.insert(Arc::new(segment.with_chunks(self.chunks.as_ref())));
        }
        let segments = Arc::new(segments);
        self.check_all_there(&manifest).await?;
        let opened = async {
            let (tree, facts) = self.open_tree(&manifest).await?.unzip();
            let without_tree = || Facts { last_listed: manifest.last_listed, ..Facts::default() };
            let facts = facts.unwrap_or_else(without_tree);
            Ok((Base::new(tree, &facts, segments.clone()).await?, facts))
        };
        match opened.await {
            Ok((base, facts)) => return Ok((manifest, base, facts)),
            Err(error) if !is_lost(&error) => return Err(error),
            Err(error) => self.warn_of_damage(&error),
        }
        let (tree, facts) = self.rebuild(&mut manifest, &segments, None).await?;
        let base = Base::new(tree, &facts, segments).await?;
        manifest.number += 1;
        manifest.checkpoint = base.seq;
        manifest.write(&self.env, &self.folder, &self.syncs()).await?;
        Ok((manifest, base, facts))
    }

    fn warn_of_damage(&self, error: &StoreError) {
        tracing::warn!(%error, folder = %self.folder.display(), "the index is built anew from the segments");
    }

    /// The state that was replayed, over a tree that is built anew from the segments and the log:
    /// where that turned out to be damaged of which the manifest said that it was there.
    pub(crate) async fn rebuild_replayed(
        &self,
        manifest: &mut Manifest,
        log: &Log,
        state: &State,
        error: &StoreError,
    ) -> Result<State, StoreError> {
        self.warn_of_damage(error);
        let segments = &state.base.segments;
        let mut next = Manifest { last_listed: state.last_listed, ..manifest.clone() };
        let (tree, facts) = self.rebuild(&mut next, segments, Some((log, state.last_seq))).await?;
        let base = Base::new(tree, &facts, segments.clone()).await?;
        next.number += 1;
        next.checkpoint = base.seq;
        next.write(&self.env, &self.folder, &self.syncs()).await?;
        let replaced = std::mem::replace(manifest, next).tree.filter(|_| state.base.tree.is_some());
        if let Some(number) = replaced {
            self.remove_file(&self.folder.join(tree_name(number))).await;
        }
        log.set_bytes_elsewhere(base.live_bytes());
        Ok(State {
            memory: Memory::new(1),
            frozen: Arc::default(),
            base: Arc::new(base),
            files: log.files(),
            last_seq: state.last_seq,
            last_listed: facts.last_listed,
        })
    }

    /// A folder without a manifest holds a log alone. Where the manifest was lost, the segments that it
    /// named would be taken for forgotten.
    async fn check_never_written(&self) -> Result<(), StoreError> {
        let lost = || Err(StoreError::Missing { path: self.folder.join(MANIFEST_FILE) });
        for entry in folder::list(&*self.env.engine, &self.folder).await? {
            if entry.name.ends_with(".seg") {
                return lost();
            }
            if entry.name.ends_with(".log") {
                let file =
                    File::open(&self.env.engine, &self.folder.join(&entry.name), OpenMode::Read).await?;
                if segment_head(&file).await?.is_ok_and(|head| head.oldest > 1) {
                    return lost();
                }
            }
        }
        Ok(())
    }

    async fn open_tree(&self, manifest: &Manifest) -> Result<Option<(TreeBase, Facts)>, StoreError> {
        let Some(number) = manifest.tree else { return Ok(None) };
        let path = self.folder.join(tree_name(number));
        let options = self.tree_options(&manifest.incarnation);
        let tree = Tree::open(&self.env, &path, options, IndexSums(self.options.measure)).await?;
        let root = tree.root();
        if root.seq() < manifest.checkpoint {
            let what = "its newest root is damaged, and files have changed since the one before";
            return Err(StoreError::Damaged { path, offset: 0, what });
        }
        let attachment = root.attachment().await?;
        let facts = Facts::decode(&attachment).ok_or_else(|| StoreError::Damaged {
            path: path.clone(),
            offset: 0,
            what: "what its root says of the segments makes no sense",
        })?;
        Ok(Some((TreeBase { number, tree: Arc::new(tree), root }, facts)))
    }

    /// A segment that the manifest names and that isn't there is an error, before anything is
    /// changed.
    async fn check_all_there(&self, manifest: &Manifest) -> Result<(), StoreError> {
        let entries = folder::list(&*self.env.engine, &self.folder).await?;
        for name in &manifest.segments {
            let name = name.file_name();
            if entries.binary_search_by(|entry| entry.name.cmp(&name)).is_err() {
                return Err(StoreError::Missing { path: self.folder.join(name) });
            }
        }
        Ok(())
    }

    /// Builds a tree of what the segments hold, and of what the log does up to a `Seq`, where that is
    /// given: it has got there. The manifest names the tree then; it is the caller's to install.
    pub(crate) async fn rebuild(
        &self,
        manifest: &mut Manifest,
        segments: &Arc<Segments>,
        log: Option<(&Log, u64)>,
    ) -> Result<(Option<TreeBase>, Facts), StoreError> {
        let base = Base::new(None, &Facts::default(), segments.clone()).await?;
        let state = State {
            memory: Memory::new(1),
            frozen: Arc::default(),
            base: Arc::new(base),
            files: Default::default(),
            last_seq: 0,
            last_listed: 0,
        };
        let mut rebuild = Rebuild { place: self, manifest, state, facts: Facts::default() };
        let built = rebuild.take_all(segments, log).await;
        let Rebuild { manifest, state, mut facts, .. } = rebuild;
        let tree = state.base.tree.clone();
        if let Err(error) = built {
            if let Some(tree) = tree {
                self.remove_file(&self.folder.join(tree_name(tree.number))).await;
            }
            return Err(error);
        }
        self.rebuild_count.fetch_add(1, Ordering::Relaxed);
        manifest.tree = tree.as_ref().map(|tree| tree.number);
        facts.last_listed = facts.last_listed.max(manifest.last_listed);
        Ok((tree, facts))
    }
}

/// A tree that is built from the segments, step by step: memory is bounded.
struct Rebuild<'a> {
    place: &'a Place,
    manifest: &'a mut Manifest,
    state: State,
    facts: Facts,
}

impl Rebuild<'_> {
    async fn take_all(&mut self, segments: &Segments, log: Option<(&Log, u64)>) -> Result<(), StoreError> {
        let all = segments.iter().count();
        for (index, segment) in segments.iter().enumerate() {
            tracing::info!(segment = %segment.path().display(), "{} of {all}: reading its directory", index + 1);
            self.take_directory(segment).await?;
            self.step(false).await?;
        }
        if let Some((log, up_to)) = log {
            let (known, files) = (log.known_segments(), log.files());
            // What is accepted by now is in the files then.
            log.flush().await?;
            for known in known.iter().filter(|known| known.first_seq.0 <= up_to) {
                self.take_frames(known, &files, up_to).await?;
                self.step(false).await?;
            }
        }
        self.step(true).await
    }

    async fn take_directory(&mut self, segment: &Segment) -> Result<(), StoreError> {
        let rules = self.place.options.rules();
        let directory = segment.directory().await?;
        let mut scan = directory.scan_seq(Seq(0));
        while let Some((entry, _)) = scan.next().await? {
            let settee_log::Location { segment, offset, length } = entry.location;
            let location = Location { seq: entry.seq.0, segment, offset, length };
            let (flags, key, meta) = (entry.flags, entry.key, entry.meta);
            let record = Incoming { flags, key, meta, location };
            self.state.enter(&record, Beneath::default(), &rules);
        }
        Ok(())
    }

    /// Takes a segment of the log, whose directory may not be there yet.
    async fn take_frames(
        &mut self,
        known: &SegmentInfo,
        files: &Files,
        up_to: u64,
    ) -> Result<(), StoreError> {
        let rules = self.place.options.rules();
        let last = known.last_seq.0.min(up_to);
        // Handed over or forgotten: nobody does either meanwhile.
        let Some(file) = files.get(known.number).filter(|_| last >= known.first_seq.0) else { return Ok(()) };
        tracing::info!(segment = %file.path().display(), "reading its frames");
        let mut reached = 0;
        let state = &mut self.state;
        let scanned = scan_segment(&file, known.number, known.frame_bytes, |at, record| {
            if record.is_extent() || record.seq.0 > up_to {
                return;
            }
            reached = record.seq.0;
            let location =
                Location { seq: reached, segment: at.segment, offset: at.offset, length: at.length };
            let (flags, key, meta) = (record.flags, record.key, record.meta);
            state.enter(&Incoming { flags, key, meta, location }, Beneath::default(), &rules);
        })
        .await;
        if reached < last {
            scanned.map_err(ReadError::from)?;
            let (path, offset) = (file.path().to_path_buf(), known.frame_bytes);
            return Err(StoreError::Damaged { path, offset, what: "it lacks records that it had" });
        }
        Ok(())
    }

    /// Merges what is in memory into the tree, where it is much, or the rest.
    async fn step(&mut self, is_last: bool) -> Result<(), StoreError> {
        let Rebuild { place, manifest, state, facts } = self;
        if !is_last && state.memory.bytes() < place.options.memory_bytes_max / 2 {
            return Ok(());
        }
        state.settle_all(place.options.measure).await?;
        // The newest listed record may have been replaced since, and gone: the root is to know of it too.
        state.last_listed = state.last_listed.max(manifest.last_listed);
        let frozen = Frozen::of(state);
        if frozen.is_empty() {
            return Ok(());
        }
        let replaced = state.base.tree.as_ref().map(|tree| tree.number);
        let (tree, new_facts, _) = place.merge(&frozen, manifest).await?;
        let replaced = replaced.filter(|number| *number != tree.number);
        let base = Base::new(Some(tree), &new_facts, state.base.segments.clone()).await?;
        *facts = new_facts;
        let files = state.files.clone();
        state.rebase(&Arc::new(base), &files, frozen.generation);
        if let Some(number) = replaced {
            place.remove_file(&place.folder.join(tree_name(number))).await;
        }
        Ok(())
    }
}

/// Whether a tree that couldn't be opened is to be built anew: it is damaged, or gone.
fn is_lost(error: &StoreError) -> bool {
    match error {
        StoreError::Tree(TreeError::Io(error)) => error.is_not_found(),
        StoreError::Tree(TreeError::NoRoot { .. } | TreeError::OtherIncarnation { .. }) => true,
        StoreError::Damaged { .. } => true,
        error => error.is_of_damaged_index(),
    }
}
