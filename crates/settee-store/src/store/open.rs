//! Opening a store: reads the manifest, opens the tree, and rebuilds it if necessary.
//!
//! A missing or damaged tree is rebuilt from the segment indexes and the log: before the log is opened, if it
//! is found by then; after replay, if a leaf of a replayed key turns out to be damaged; or instead of a
//! checkpoint that reads a damaged node. The new tree has a file of its own, and the old one stays until the
//! manifest names the new: a failure changes nothing.

use std::sync::Arc;

use settee_io::{Damage, File, OpenMode, directory};
use settee_log::{Log, LogLock, segment_head};
use settee_tree::{Tree, TreeError};

use crate::error::StoreError;
use crate::index::IndexAggregates;
use crate::manifest::{MANIFEST_FILE, Manifest, tree_name};
use crate::memtable::Memtable;
use crate::segments::{Segment, Segments};
use crate::shared::StoreContext;
use crate::version::{CheckpointFacts, CheckpointState, CheckpointTree, Version};

impl StoreContext {
    /// Locks the directory, and then reads the manifest: until then another process may have changed it.
    pub(super) async fn lock(&self) -> Result<(Option<Manifest>, LogLock), StoreError> {
        let locked = Log::lock(&self.env, &self.directory).await?;
        let _ = self.syncs.set(locked.directory_syncs().clone());
        Ok((Manifest::read(&self.env, &self.directory).await?, locked))
    }

    /// Opens the tree and the segments that the manifest names.
    pub(super) async fn open(
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
    pub(super) async fn rebuild_after_replay(
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
        if checkpoint.seq > version.last_seq {
            let (path, what) = (self.directory.clone(), "segments hold records later than the log's");
            return Err(StoreError::Damaged(Damage { path, offset: 0, what }));
        }
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
            return Err(StoreError::Damaged(Damage { path, offset: 0, what }));
        }
        let attachment = root.attachment().await?;
        let facts = CheckpointFacts::decode(&attachment).ok_or_else(|| {
            StoreError::Damaged(Damage {
                path: path.clone(),
                offset: 0,
                what: "the segment table in its root is invalid",
            })
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
}

/// Whether a tree that couldn't be opened has to be rebuilt: it is damaged or missing.
fn is_lost(error: &StoreError) -> bool {
    match error {
        StoreError::Tree(TreeError::Io(error)) => error.is_not_found(),
        StoreError::Tree(TreeError::NoRoot { .. } | TreeError::OtherIncarnation { .. }) => true,
        StoreError::Damaged(_) => true,
        error => error.is_of_damaged_index(),
    }
}
