//! Rebuilds the tree from the segment indexes and the log, step by step, with bounded memory.
//!
//! The new tree has a file of its own, and the old one stays until the manifest names the new: a failure
//! changes nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use settee_io::Damage;
use settee_log::{Log, Segment, SegmentInfo, SegmentSet, Seq, scan_segment};

use super::input::CheckpointInput;
use crate::error::{ReadError, StoreError};
use crate::index::Location;
use crate::manifest::{StoreSection, tree_name};
use crate::memtable::Memtable;
use crate::shared::StoreContext;
use crate::version::{CheckpointFacts, CheckpointState, CheckpointTree, NewRecord, PreviousEntry, Version};

/// What a tree is rebuilt from.
pub(crate) enum RebuildSource<'a> {
    /// The listed segments of a log that isn't open yet.
    Listed(&'a SegmentSet),
    /// The log up to a `Seq` that it has reached.
    Log(&'a Log, u64),
}

impl StoreContext {
    /// Builds a tree. `section` names it then; the caller installs it.
    pub(crate) async fn rebuild(
        &self,
        section: &mut StoreSection,
        source: RebuildSource<'_>,
    ) -> Result<(Option<CheckpointTree>, CheckpointFacts), StoreError> {
        let checkpoint = CheckpointState::new(None, &CheckpointFacts::default()).await?;
        let version = Version {
            memtable: Memtable::new(1),
            immutable: Arc::default(),
            checkpoint: Arc::new(checkpoint),
            set: Arc::default(),
            last_seq: 0,
            last_in_seq_index: 0,
        };
        let mut rebuild = Rebuild { context: self, section, version, facts: CheckpointFacts::default() };
        let built = rebuild.take_all(source).await;
        let Rebuild { section, version, mut facts, .. } = rebuild;
        let tree = version.checkpoint.tree.clone();
        if let Err(error) = built {
            if let Some(tree) = tree {
                self.remove_file(&self.directory.join(tree_name(tree.number))).await;
            }
            return Err(error);
        }
        self.rebuild_count.fetch_add(1, Ordering::Relaxed);
        section.tree = tree.as_ref().map(|tree| tree.number);
        facts.last_in_seq_index = facts.last_in_seq_index.max(section.last_in_seq_index);
        Ok((tree, facts))
    }
}

/// A tree that is built from the segments step by step, with bounded memory.
struct Rebuild<'a> {
    context: &'a StoreContext,
    section: &'a mut StoreSection,
    version: Version,
    facts: CheckpointFacts,
}

impl Rebuild<'_> {
    async fn take_all(&mut self, source: RebuildSource<'_>) -> Result<(), StoreError> {
        // In this order: a segment that is listed meanwhile is in the set.
        let infos = match source {
            RebuildSource::Listed(_) => Vec::new(),
            RebuildSource::Log(log, _) => log.segment_infos(),
        };
        let pinned;
        let (listed, log) = match source {
            RebuildSource::Listed(set) => (set, None),
            RebuildSource::Log(log, up_to) => {
                pinned = log.segment_set();
                (&*pinned, Some((log, up_to)))
            }
        };
        let all = listed.listed().count();
        for (index, segment) in listed.listed().enumerate() {
            tracing::info!(segment = %segment.path().display(), "{} of {all}: reading its segment index", index + 1);
            self.take_segment_index(segment).await?;
            self.step(false).await?;
        }
        if let Some((log, up_to)) = log {
            // Then everything accepted by now is in the files.
            log.flush().await?;
            let is_unlisted = |info: &&SegmentInfo| info.number > listed.listed_to();
            for info in infos.iter().filter(is_unlisted).filter(|info| info.first_seq.0 <= up_to) {
                self.take_frames(info, listed, up_to).await?;
                self.step(false).await?;
            }
        }
        self.step(true).await
    }

    async fn take_segment_index(&mut self, segment: &Arc<Segment>) -> Result<(), StoreError> {
        let rules = self.context.options.rules();
        let segment_index = segment.segment_index().await?;
        let mut scan = segment_index.scan_seq(Seq(0));
        while let Some((entry, _)) = scan.next().await? {
            let location = Location::in_log(entry.seq, entry.location);
            let (flags, key, meta) = (entry.flags, entry.key, entry.meta);
            let record = NewRecord { flags, key, meta, location };
            self.version.insert(&record, PreviousEntry::default(), &rules);
        }
        Ok(())
    }

    /// Inserts the records of a segment of the log, which may not have a segment index yet.
    async fn take_frames(
        &mut self,
        known: &SegmentInfo,
        set: &SegmentSet,
        up_to: u64,
    ) -> Result<(), StoreError> {
        let rules = self.context.options.rules();
        let last = known.last_seq.0.min(up_to);
        let Some(segment) = set.get(known.number).filter(|_| last >= known.first_seq.0) else {
            return Ok(());
        };
        let file = segment.file().await?;
        tracing::info!(segment = %file.path().display(), "reading its frames");
        let mut reached = 0;
        let version = &mut self.version;
        let scanned = scan_segment(&file, known.number, known.frame_bytes, |at, record| {
            if record.seq.0 > up_to {
                return;
            }
            reached = record.seq.0;
            let location = Location::in_log(record.seq, at);
            let (flags, key, meta) = (record.flags, record.key, record.meta);
            version.insert(&NewRecord { flags, key, meta, location }, PreviousEntry::default(), &rules);
        })
        .await;
        if reached < last {
            scanned.map_err(ReadError::from)?;
            let (path, offset) = (file.path().to_path_buf(), known.frame_bytes);
            return Err(StoreError::Damaged(Damage {
                path,
                offset,
                what: "records that were in it are missing",
            }));
        }
        Ok(())
    }

    /// Merges the memtable into the tree if it is large, or if this is the last step.
    async fn step(&mut self, is_last: bool) -> Result<(), StoreError> {
        let Rebuild { context, section, version, facts } = self;
        if !is_last && version.memtable.bytes() < context.options.memory_bytes_max / 2 {
            return Ok(());
        }
        version.backfill_all(context.options.aggregate).await?;
        // The last record of the seq index may have been replaced and compacted away since: the root records
        // it nevertheless.
        version.last_in_seq_index = version.last_in_seq_index.max(section.last_in_seq_index);
        let input = CheckpointInput::of(version);
        if input.is_empty() {
            return Ok(());
        }
        let replaced = version.checkpoint.tree.as_ref().map(|tree| tree.number);
        let (tree, new_facts, _) = context.merge(&input, false, section).await?;
        let replaced = replaced.filter(|number| *number != tree.number);
        let checkpoint = CheckpointState::new(Some(tree), &new_facts).await?;
        *facts = new_facts;
        let set = version.set.clone();
        version.set_files(Some((&Arc::new(checkpoint), input.generation)), &set);
        if let Some(number) = replaced {
            context.remove_file(&context.directory.join(tree_name(number))).await;
        }
        Ok(())
    }
}
