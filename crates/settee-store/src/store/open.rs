//! Opening a store: reads the manifest, opens the tree, and rebuilds it if necessary.
//!
//! A missing or damaged tree is rebuilt from the segment indexes and the log: before the log is opened, if it
//! is found by then; after replay, if a leaf of a replayed key turns out to be damaged; or instead of a
//! checkpoint that reads a damaged node. The new tree has a file of its own, and the old one stays until the
//! manifest names the new: a failure changes nothing.

use std::path::Path;
use std::sync::Arc;

use settee_io::{Damage, Env, directory};
use settee_log::{Log, LogLock, SegmentSet, Timeline};
use settee_tree::{Tree, TreeError};

use crate::checkpoint::RebuildSource;
use crate::error::StoreError;
use crate::index::IndexAggregates;
use crate::manifest::{StoreManifest, StoreSection, tree_name};
use crate::memtable::Memtable;
use crate::shared::StoreContext;
use crate::version::{CheckpointFacts, CheckpointState, CheckpointTree, Version};

impl StoreContext {
    /// Locks the directory, and then reads the manifest: until then another process may have changed it.
    pub(super) async fn lock(&self) -> Result<(LogLock, Option<StoreManifest>), StoreError> {
        let locked = Log::lock(&self.env, &self.directory).await?;
        let _ = self.syncs.set(locked.directory_syncs().clone());
        let _ = self.file_numbers.set(locked.file_numbers().clone());
        let manifest = locked.manifest().filter(|manifest| !StoreManifest::has_no_section(manifest)).cloned();
        let manifest = manifest.map(|manifest| StoreManifest::of(manifest, &self.directory)).transpose()?;
        Ok((locked, manifest))
    }

    /// Opens the tree that the manifest names, or rebuilds it from the listed segments. The section that is
    /// returned names the tree.
    pub(super) async fn open(
        &self,
        manifest: Option<&StoreManifest>,
        set: &SegmentSet,
    ) -> Result<(StoreSection, CheckpointState, CheckpointFacts), StoreError> {
        let Some(StoreManifest { section, .. }) = manifest else {
            let section = StoreSection { incarnation: self.env.random_bytes(), ..StoreSection::default() };
            let checkpoint = CheckpointState::new(None, &CheckpointFacts::default()).await?;
            return Ok((section, checkpoint, CheckpointFacts::default()));
        };
        let mut section = section.clone();
        let opened = async {
            let (tree, facts) = self.open_tree(&section).await?.unzip();
            let without_tree = || CheckpointFacts {
                last_in_seq_index: section.last_in_seq_index,
                ..CheckpointFacts::default()
            };
            let facts = facts.unwrap_or_else(without_tree);
            Ok((CheckpointState::new(tree, &facts).await?, facts))
        };
        match opened.await {
            Ok((checkpoint, facts)) => return Ok((section, checkpoint, facts)),
            Err(error) if !is_lost(&error) => return Err(error),
            Err(error) => self.warn_of_damage(&error),
        }
        let (tree, facts) = self.rebuild(&mut section, RebuildSource::Listed(set)).await?;
        let checkpoint = CheckpointState::new(tree, &facts).await?;
        section.checkpoint = checkpoint.seq;
        Ok((section, checkpoint, facts))
    }

    fn warn_of_damage(&self, error: &StoreError) {
        tracing::warn!(%error, directory = %self.directory.display(), "rebuilding the index from the segments");
    }

    /// Rebuilds the tree after replay, where a node that replay needs turned out to be damaged, and returns a
    /// version that replaces the replayed one. The section then names the tree.
    pub(super) async fn rebuild_after_replay(
        &self,
        section: &mut StoreSection,
        log: &Log,
        version: &Version,
        error: &StoreError,
    ) -> Result<Version, StoreError> {
        self.warn_of_damage(error);
        section.last_in_seq_index = version.last_in_seq_index;
        let (tree, facts) = self.rebuild(section, RebuildSource::Log(log, version.last_seq)).await?;
        let checkpoint = CheckpointState::new(tree, &facts).await?;
        if checkpoint.seq > version.last_seq {
            let (path, what) = (self.directory.clone(), "segments hold records later than the log's");
            return Err(StoreError::Damaged(Damage { path, offset: 0, what }));
        }
        section.checkpoint = checkpoint.seq;
        log.set_listed_live_bytes(checkpoint.live_bytes());
        Ok(Version {
            memtable: Memtable::new(1),
            immutable: Arc::default(),
            checkpoint: Arc::new(checkpoint),
            set: log.segment_set(),
            last_seq: version.last_seq,
            last_in_seq_index: facts.last_in_seq_index,
        })
    }

    /// Removes the trees that the manifest doesn't name, left by work that a crash interrupted, or by a
    /// process that ended while they were in use.
    pub(super) async fn remove_other_trees(&self, tree: Option<u32>) -> Result<(), StoreError> {
        let named = tree.map(tree_name);
        for entry in directory::list(&*self.env.engine, &self.directory).await? {
            if entry.name.ends_with(".tree") && named.as_ref() != Some(&entry.name) {
                let directory = self.directory.display();
                tracing::info!(file = entry.name, %directory, "removed an unneeded file");
                match directory::remove(&*self.env.engine, &self.directory.join(&entry.name)).await {
                    // Its last reader in this process has just removed it.
                    Err(error) if error.is_not_found() => {}
                    removed => removed?,
                }
            }
        }
        Ok(())
    }

    async fn open_tree(
        &self,
        section: &StoreSection,
    ) -> Result<Option<(CheckpointTree, CheckpointFacts)>, StoreError> {
        let Some(number) = section.tree else { return Ok(None) };
        let path = self.directory.join(tree_name(number));
        let options = self.tree_options(&section.incarnation);
        let tree = Tree::open(&self.env, &path, options, IndexAggregates(self.options.aggregate)).await?;
        let root = tree.root();
        if root.seq() < section.checkpoint {
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
        Ok(Some((CheckpointTree::new(&self.env, number, path, Arc::new(tree)), facts)))
    }
}

/// Starts a new timeline in a copy of a store, which isn't open, and returns it; `None` if the copy is empty. The
/// copy and its origin may then both be written: neither accepts a segment that the other wrote. Durable once it
/// returns.
///
/// # Errors
/// As [`Store::open`](crate::Store::open); the log is read as far as opening it would. After an error of replacing
/// the manifest, the new timeline may have started.
pub async fn start_timeline(env: &Env, directory: &Path) -> Result<Option<Timeline>, StoreError> {
    Ok(settee_log::start_timeline(env, directory).await?)
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
