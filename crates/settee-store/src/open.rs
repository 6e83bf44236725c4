//! Opening: the manifest, the tree, and what they say of the log.
//!
//! A tree that is missing or damaged is built anew from the segments' directories and the log.

use std::sync::Arc;

use settee_io::{File, OpenMode, folder};
use settee_log::{Locked, Log, OpenError, Seq, segment_head};
use settee_tree::{Tree, TreeError};

use crate::checkpoint::{Facts, Frozen};
use crate::entry::Location;
use crate::error::StoreError;
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
                return Ok((manifest, locked?));
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
        let (tree, facts) = match self.open_tree(&manifest).await {
            Ok(Some((tree, facts))) => (Some(tree), facts),
            Ok(None) => (None, Facts::default()),
            Err(error) if is_lost(&error) => {
                tracing::warn!(%error, folder = %self.folder.display(), "the index is built anew from the segments");
                self.rebuild(&mut manifest, &segments).await?
            }
            Err(error) => return Err(error),
        };
        let base = Base::new(tree, &facts, segments).await?;
        Ok((manifest, base, facts))
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

    /// Builds the tree of what the segments hold, and writes the manifest that names it.
    async fn rebuild(
        &self,
        manifest: &mut Manifest,
        segments: &Arc<Segments>,
    ) -> Result<(Option<TreeBase>, Facts), StoreError> {
        let rules = self.options.rules();
        let base = Base::new(None, &Facts::default(), segments.clone()).await?;
        let mut state = State {
            memory: Memory::new(1),
            frozen: Arc::default(),
            base: Arc::new(base),
            files: Default::default(),
            last_seq: 0,
            last_listed: 0,
        };
        let mut facts = Facts::default();
        manifest.tree = None;
        let all = segments.iter().count();
        for (index, segment) in segments.iter().enumerate() {
            tracing::info!(segment = %segment.path().display(), "{} of {all}: reading its directory", index + 1);
            let directory = segment.directory().await?;
            let mut scan = directory.scan_seq(Seq(0));
            while let Some((entry, _)) = scan.next().await? {
                let settee_log::Location { segment, offset, length } = entry.location;
                let location = Location { seq: entry.seq.0, segment, offset, length };
                let (flags, key, meta) = (entry.flags, entry.key, entry.meta);
                let record = Incoming { flags, key, meta, location };
                state.enter(&record, Beneath::default(), &rules);
            }
            let is_last = index + 1 == all;
            if is_last || state.memory.bytes() >= self.options.memory_bytes_max / 2 {
                state.settle_all(rules.measure).await?;
                facts = self.rebuild_step(&mut state, manifest).await?.unwrap_or(facts);
            }
        }
        manifest.number += 1;
        manifest.checkpoint = state.last_seq;
        manifest.write(&self.env, &self.folder).await?;
        facts.last_listed = facts.last_listed.max(manifest.last_listed);
        Ok((state.base.tree.clone(), facts))
    }

    async fn rebuild_step(
        &self,
        state: &mut State,
        manifest: &mut Manifest,
    ) -> Result<Option<Facts>, StoreError> {
        // The newest listed record may have been replaced since, and gone: the root is to know of it too.
        state.last_listed = state.last_listed.max(manifest.last_listed);
        let Some(frozen) = Frozen::of(state) else { return Ok(None) };
        let (tree, facts, _) = self.merge(&frozen, manifest).await?;
        let base = Base::new(Some(tree), &facts, state.base.segments.clone()).await?;
        let files = state.files.clone();
        state.rebase(&Arc::new(base), &files, frozen.generation);
        Ok(Some(facts))
    }
}

/// Whether a tree that couldn't be opened is to be built anew: it is damaged, or gone.
fn is_lost(error: &StoreError) -> bool {
    match error {
        StoreError::Tree(TreeError::Io(error)) => error.is_not_found(),
        StoreError::Tree(error) => matches!(
            error,
            TreeError::Damaged { .. } | TreeError::NoRoot { .. } | TreeError::OtherIncarnation { .. }
        ),
        StoreError::Damaged { .. } => true,
        _ => false,
    }
}
