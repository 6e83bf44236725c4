//! Publishing versions: accepted ones are queued until they are persisted, then snapshots show them.

use std::sync::{Arc, PoisonError};

use settee_log::{Appended, Files, Seq, Stage, Stopped};

use super::state::Shared;
use crate::batch::Batch;
use crate::index::Location;
use crate::read::Snapshot;
use crate::version::{CheckpointState, Incoming, PreviousEntry, Version};

impl Shared {
    /// A snapshot of the newest persisted version.
    pub(crate) fn snapshot(&self) -> Snapshot {
        self.publish();
        self.snapshot_of(self.published.load_full())
    }

    /// A snapshot of a version.
    pub(crate) fn snapshot_of(&self, version: Arc<Version>) -> Snapshot {
        Snapshot { log: self.log.clone(), version, aggregate: self.context.options.aggregate }
    }

    /// The newest checkpoint state. It does not change while the manifest is locked.
    pub(crate) fn checkpoint_state(&self) -> Arc<CheckpointState> {
        self.published.load().checkpoint.clone()
    }

    /// Inserts an appended batch into the writer's version, and queues a copy.
    pub(crate) fn enter(
        self: &Arc<Self>,
        version: &mut Version,
        batch: &Batch,
        appended: &Appended,
        previous: &[PreviousEntry],
    ) {
        {
            // The last queued version of the same group is published together with this one. Dropping it
            // means its nodes need not be copied again.
            let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
            pending.pop_back_if(|(group, _)| *group == appended.group);
        }
        let first = appended.first_seq.0;
        assert!(version.last_seq < first, "a batch at Seq {first} after {}", version.last_seq);
        let records = (first..).zip(batch.records.records()).zip(&appended.locations);
        for (index, ((seq, (flags, key, meta)), at)) in records.enumerate() {
            let record = Incoming { flags, key, meta, location: Location::in_log(Seq(seq), *at) };
            let previous = previous.get(index).copied().unwrap_or_default();
            version.enter(&record, previous, &self.context.options.rules());
        }
        assert!(version.last_seq == appended.last_seq.0, "the index lacks records of a batch");
        version.files = self.log.files();
        let queued = (appended.group, version.clone());
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).push_back(queued);
        self.publish();
        self.note_memory(version);
        if self.is_checkpoint_due(version) {
            self.start_checkpoint();
        }
    }

    /// Publishes the newest persisted version if it is not published yet.
    pub(crate) fn publish(&self) {
        let persisted = self.log.persisted().0;
        if persisted == self.published.load().last_seq {
            return;
        }
        let _stop = self.stop_on_panic();
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let count = pending.partition_point(|(_, version)| version.last_seq <= persisted);
        let shown: Vec<_> = pending.drain(..count).collect();
        let Some((_, newest)) = shown.last() else {
            return;
        };
        // Under the lock, so that an older version never replaces a newer one.
        let seq = newest.last_seq;
        assert!(seq <= persisted, "Seq {seq} would be shown, and {persisted} is persisted");
        let shown_seq = self.published.load().last_seq;
        assert!(seq >= shown_seq, "Seq {seq} would be shown after {shown_seq}");
        let previous = self.published.swap(Arc::new(newest.clone()));
        drop(pending);
        self.visible.send_if_modified(|visible| {
            let later = seq > *visible;
            *visible = seq.max(*visible);
            later
        });
        // Dropping large memtables takes a while: without the lock.
        drop((shown, previous));
    }

    /// Installs a checkpoint state in the published version and in the queued ones. Returns the version it
    /// replaced.
    pub(super) fn install_published(
        &self,
        checkpoint: &Arc<CheckpointState>,
        files: &Files,
        generation: u64,
    ) -> Arc<Version> {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        pending.iter_mut().for_each(|(_, version)| version.install(checkpoint, files, generation));
        let mut newest = (**self.published.load()).clone();
        let mut replaced = self.replaced.lock().unwrap_or_else(PoisonError::into_inner);
        replaced.retain(|(checkpoint, _)| checkpoint.strong_count() > 0);
        replaced.push((Arc::downgrade(&newest.checkpoint), self.context.env.clock.now()));
        drop(replaced);
        newest.install(checkpoint, files, generation);
        self.note_memory(&newest);
        self.published.swap(Arc::new(newest))
    }

    /// Returns once snapshots show the persisted `seq`. Either they show it already, or another commit of its
    /// group is inserting into the index and publishes both.
    pub(crate) async fn wait_visible(&self, seq: Seq) -> Result<(), Stopped> {
        self.publish();
        let mut visible = self.visible.subscribe();
        let is_over = visible.wait_for(|shown| *shown >= seq.0 || self.is_broken()).await;
        match *is_over.expect("the store outlives its borrower") >= seq.0 {
            true => Ok(()),
            false => Err(self.why_closed()),
        }
    }

    /// Returns once a snapshot shows a record later than `seq`.
    pub(crate) async fn changed_after(&self, seq: Seq) -> Result<(), Stopped> {
        let mut visible = self.visible.subscribe();
        loop {
            let is_closed = self.is_closed() || self.is_broken();
            // Before publishing: the wait below covers what is persisted later.
            let persisted = self.log.persisted();
            self.publish();
            if *visible.borrow_and_update() > seq.0 {
                return Ok(());
            }
            if is_closed {
                return Err(self.why_closed());
            }
            if persisted > seq {
                // Its writer is about to insert it into the index, and then publishes it.
                let changed = visible.changed().await;
                changed.expect("the store outlives its borrower");
            } else {
                self.log.wait(Seq(seq.0.saturating_add(1)), Stage::Persisted).await?;
            }
        }
    }
}
