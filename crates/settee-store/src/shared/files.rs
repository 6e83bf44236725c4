//! The set of files: editing its list, and installing checkpoint states and sets in the versions.
//!
//! Invariants:
//! 1. Once the manifest names a new tree, nothing can fail before all versions have its checkpoint state.
//! 2. A segment is listed, or left out by a rewrite, only as of a checkpoint that all versions have: so every
//!    version that can still be written or published may be given the log's present set.
//! 3. After a sync of the directory failed, or it is unknown which manifest is durable, no file is changed.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use settee_io::OperationKind;
use settee_log::Edit;

use super::state::Shared;
use crate::error::StoreError;
use crate::manifest::StoreSection;
use crate::version::{CheckpointState, Version};

impl Shared {
    /// Checks that the store's files may be changed. They may not once the log has stopped: if a sync of the
    /// directory failed, names may be lost that the next manifest would rely on.
    pub(crate) fn check_files(&self) -> Result<(), StoreError> {
        self.log.check_editable()?;
        match self.is_broken() {
            true => Err(self.panicked()),
            false => Ok(()),
        }
    }

    /// Edits the list of files. `change` makes the store's next section from the present one. Returns false if
    /// there was nothing to change.
    pub(crate) async fn edit(
        &self,
        edit: Edit<'_>,
        change: impl FnOnce(StoreSection) -> StoreSection + Send,
    ) -> Result<bool, StoreError> {
        let user = |text: &str| {
            let present = StoreSection::decode(text).expect("the store wrote it, and opening checked it");
            change(present).encode()
        };
        // While the directory sync is retried (no free descriptor), waiting writers are refused.
        let has_waited = AtomicBool::new(false);
        let keep_trying = |error: &settee_io::Error| {
            has_waited.store(true, Ordering::Relaxed);
            self.note_checkpoint_error(Some(error.clone().into()));
            !self.is_closed()
        };
        let edited = self.log.edit(Edit { user: Some(Box::new(user)), ..edit }, keep_trying).await;
        if edited.is_ok() && has_waited.into_inner() {
            self.note_checkpoint_error(None);
        }
        Ok(edited?)
    }

    /// Installs a checkpoint state, and the log's present set, in all versions.
    pub(crate) async fn install_checkpoint(&self, checkpoint: Arc<CheckpointState>, generation: u64) {
        self.install(Some((&checkpoint, generation))).await;
    }

    /// Installs the log's present set in all versions.
    pub(crate) async fn install_set(&self) {
        self.install(None).await;
    }

    async fn install(&self, checkpoint: Option<(&Arc<CheckpointState>, u64)>) {
        let mut accepted = self.versions.accepted.lock().await;
        let set = match (self.log.segment_set(), self.is_closed()) {
            (set, false) => set,
            // A log that has been closed has none any more.
            (_, true) => accepted.set.clone(),
        };
        accepted.set_files(checkpoint, &set);
        let replaced = self.install_published(checkpoint, &set);
        self.record_memory(&accepted);
        if !self.is_closed() {
            self.record_space(&accepted);
        }
        let shown = self.versions.published.load().last_seq;
        assert!(shown <= accepted.last_seq, "Seq {shown} is shown, {} accepted", accepted.last_seq);
        drop(accepted);
        self.status_changed.notify_waiters();
        // Dropping large memtables takes a while: without the lock.
        drop(replaced);
    }

    /// Records the sizes of a version's files, and of the log's unlisted segments.
    pub(super) fn record_space(&self, version: &Version) {
        self.space.set(version, self.log.stats().file_bytes);
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
}
