//! Publishing versions: accepted ones are queued until they are persisted, then snapshots show them.

use std::any::Any;
use std::sync::{Arc, PoisonError, Weak};

use settee_log::{Appended, SegmentSet, Seq, Stage, Stopped};

use super::state::Shared;
use crate::batch::Batch;
use crate::index::Location;
use crate::read::Snapshot;
use crate::space::Space;
use crate::version::{CheckpointState, NewRecord, PreviousEntry, Version};

impl Shared {
    /// A snapshot of the newest persisted version.
    pub(crate) fn snapshot(&self) -> Snapshot {
        self.publish();
        self.snapshot_of(self.versions.published.load_full())
    }

    /// A snapshot of a version.
    pub(crate) fn snapshot_of(&self, version: Arc<Version>) -> Snapshot {
        let (log, aggregate) = (self.log.clone(), self.context.options.aggregate);
        let read_ahead = self.context.read_ahead.clone();
        let replaced_segments_max = self.context.options.replaced_segments_max;
        Snapshot { log, version, aggregate, read_ahead, replaced_segments_max, lookup: None }
    }

    /// The newest checkpoint state. It does not change while a checkpoint is excluded.
    pub(crate) fn checkpoint_state(&self) -> Arc<CheckpointState> {
        self.versions.published.load().checkpoint.clone()
    }

    /// The space of the published version.
    pub(crate) fn published_space(&self) -> Space {
        self.space.of(&self.versions.published.load())
    }

    /// Inserts an appended batch into the writer's version, queues a copy for publication, publishes what is
    /// persisted, records the memory in use, and starts a checkpoint if one is due.
    pub(crate) fn insert_batch(
        self: &Arc<Self>,
        version: &mut Version,
        batch: &Batch,
        appended: &Appended,
        previous: &[PreviousEntry],
    ) {
        {
            // A queued version of the same group would be superseded at publication. Dropping it first leaves
            // its nodes unshared, so this insert modifies them in place.
            let mut queue = self.versions.unpersisted.lock().unwrap_or_else(PoisonError::into_inner);
            queue.pop_back_if(|(group, _)| *group == appended.group);
        }
        let first = appended.first_seq.0;
        assert!(version.last_seq < first, "a batch at Seq {first} after {}", version.last_seq);
        let records = (first..).zip(batch.records.records()).zip(&appended.locations);
        for (index, ((seq, (flags, key, meta)), at)) in records.enumerate() {
            let record = NewRecord { flags, key, meta, location: Location::in_log(Seq(seq), *at) };
            let previous = previous.get(index).copied().unwrap_or_default();
            version.insert(&record, previous, &self.context.options.rules());
        }
        assert!(version.last_seq == appended.last_seq.0, "the index lacks records of a batch");
        version.check();
        version.set = self.log.segment_set();
        let queued = (appended.group, version.clone());
        {
            let mut queue = self.versions.unpersisted.lock().unwrap_or_else(PoisonError::into_inner);
            let is_newest = queue.back().is_none_or(|(_, last)| last.last_seq < first);
            assert!(is_newest, "a version at Seq {first} would be queued after a later one");
            queue.push_back(queued);
        }
        self.publish();
        self.record_memory(version);
        self.note_commit(version, batch.size());
        if self.is_checkpoint_due(version) {
            self.start_checkpoint();
        }
    }

    /// Publishes the newest persisted version if it is not published yet.
    pub(crate) fn publish(&self) {
        let persisted = self.log.persisted().0;
        if persisted == self.versions.published.load().last_seq {
            return;
        }
        let _stop = self.stop_on_panic();
        let mut queue = self.versions.unpersisted.lock().unwrap_or_else(PoisonError::into_inner);
        let count = queue.partition_point(|(_, version)| version.last_seq <= persisted);
        let shown: Vec<_> = queue.drain(..count).collect();
        let Some((_, newest)) = shown.last() else {
            return;
        };
        // Under the lock, so that an older version never replaces a newer one.
        let seq = newest.last_seq;
        assert!(seq <= persisted, "Seq {seq} would be shown, and {persisted} is persisted");
        newest.check();
        let shown_seq = self.versions.published.load().last_seq;
        assert!(seq >= shown_seq, "Seq {seq} would be shown after {shown_seq}");
        let previous = self.versions.published.swap(Arc::new(newest.clone()));
        drop(queue);
        self.versions.published_seq.send_if_modified(|published_seq| {
            let later = seq > *published_seq;
            *published_seq = seq.max(*published_seq);
            later
        });
        // Dropping large memtables takes a while: without the lock.
        drop((shown, previous));
    }

    /// Installs a set, and a checkpoint state if one is given, in the published version and in the queued ones.
    /// Returns the version it replaced.
    pub(super) fn install_published(
        &self,
        checkpoint: Option<(&Arc<CheckpointState>, u64)>,
        set: &Arc<SegmentSet>,
    ) -> Arc<Version> {
        let mut queue = self.versions.unpersisted.lock().unwrap_or_else(PoisonError::into_inner);
        queue.iter_mut().for_each(|(_, version)| version.set_files(checkpoint, set));
        let mut newest = (**self.versions.published.load()).clone();
        let now = self.context.env.clock.now();
        let mut replaced = self.counters.replaced.lock().unwrap_or_else(PoisonError::into_inner);
        replaced.retain(|(part, _)| part.strong_count() > 0);
        if !Arc::ptr_eq(&newest.set, set) {
            let part: Weak<dyn Any + Send + Sync> = Arc::<SegmentSet>::downgrade(&newest.set);
            replaced.push((part, now));
        }
        if checkpoint.is_some() {
            let part: Weak<dyn Any + Send + Sync> = Arc::<CheckpointState>::downgrade(&newest.checkpoint);
            replaced.push((part, now));
        }
        drop(replaced);
        newest.set_files(checkpoint, set);
        self.versions.published.swap(Arc::new(newest))
    }

    /// Returns once snapshots show the persisted `seq`. Either they show it already, or another commit of its
    /// group is inserting into the index and publishes both.
    pub(crate) async fn wait_visible(&self, seq: Seq) -> Result<(), Stopped> {
        self.publish();
        let mut published_seq = self.versions.published_seq.subscribe();
        let is_over = published_seq.wait_for(|shown| *shown >= seq.0 || self.is_broken()).await;
        match *is_over.expect("the store outlives its borrower") >= seq.0 {
            true => Ok(()),
            false => Err(self.stop_reason()),
        }
    }

    /// Returns once a snapshot shows a record later than `seq`.
    pub(crate) async fn changed_after(&self, seq: Seq) -> Result<(), Stopped> {
        let mut published_seq = self.versions.published_seq.subscribe();
        loop {
            let is_closed = self.is_closed() || self.is_broken();
            // Before publishing: the wait below covers what is persisted later.
            let persisted = self.log.persisted();
            self.publish();
            if *published_seq.borrow_and_update() > seq.0 {
                return Ok(());
            }
            if is_closed {
                return Err(self.stop_reason());
            }
            if persisted > seq {
                // Its writer is about to insert it into the index, and then publishes it.
                let changed = published_seq.changed().await;
                changed.expect("the store outlives its borrower");
            } else {
                self.log.wait(Seq(seq.0.saturating_add(1)), Stage::Persisted).await?;
            }
        }
    }
}
