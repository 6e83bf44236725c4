//! The set of files: replacing the manifest, and installing the checkpoint state that matches it.
//!
//! Invariants:
//! 1. Once the manifest is replaced, nothing can fail before all versions have the new checkpoint state.
//! 2. After a sync of the directory failed, or it is unknown which manifest is durable, no file is changed.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use settee_io::OperationKind;

use super::state::Shared;
use crate::error::StoreError;
use crate::manifest::Manifest;
use crate::version::CheckpointState;

impl Shared {
    /// Checks that the store's files may be changed. They may not once the log has stopped: if a sync of the
    /// directory failed, names may be lost that the next manifest would rely on.
    pub(crate) fn check_files(&self) -> Result<(), StoreError> {
        self.log.health()?;
        self.files.error.get().cloned().map_or(Ok(()), Err)
    }

    /// Replaces the manifest.
    pub(crate) async fn replace_manifest(
        &self,
        manifest: &mut Manifest,
        next: Manifest,
    ) -> Result<(), StoreError> {
        assert!(next.number == manifest.number + 1, "manifest {} after {}", next.number, manifest.number);
        assert!(next.first_log_segment >= manifest.first_log_segment, "the log gets a segment back");
        if let Some(what) = next.violated_invariant() {
            panic!("the next manifest is invalid: {what}");
        }
        let (env, directory) = (&self.context.env, &self.context.directory);
        next.prepare(env, directory).await?;
        // Another sync of the directory may have failed meanwhile.
        self.check_files()?;
        // While the directory sync is retried (no free descriptor), waiting writers are refused.
        let has_waited = AtomicBool::new(false);
        let keep_trying = |error: &settee_io::Error| {
            has_waited.store(true, Ordering::Relaxed);
            self.note_checkpoint_error(Some(error.clone().into()));
            !self.is_closed()
        };
        match Manifest::replace(env, directory, &self.context.syncs(), keep_trying).await {
            Ok(()) => {
                if has_waited.into_inner() {
                    self.note_checkpoint_error(None);
                }
                *manifest = next;
            }
            // It is unknown which of the two manifests is durable: no file that either names may change.
            Err(error) => {
                let _ = self.files.error.set(error.clone());
                return Err(self.failed_sync(error));
            }
        }
        Ok(())
    }

    /// Installs a checkpoint state in all versions.
    pub(crate) async fn install_checkpoint(&self, checkpoint: Arc<CheckpointState>, generation: u64) {
        let mut accepted = self.versions.accepted.lock().await;
        let files = self.log.files();
        accepted.set_checkpoint(&checkpoint, &files, generation);
        let replaced = self.install_published(&checkpoint, &files, generation);
        self.record_memory(&accepted);
        let shown = self.versions.published.load().last_seq;
        assert!(shown <= accepted.last_seq, "Seq {shown} is shown, {} accepted", accepted.last_seq);
        drop(accepted);
        self.status_changed.notify_waiters();
        // Dropping large memtables takes a while: without the lock.
        drop(replaced);
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
