//! Transfer of segments from the log to the store, which can then rewrite them.
//!
//! Sealed segments that end at or before the checkpoint are transferred with it. Segments that the log seals
//! later are transferred then, without another checkpoint.
//!
//! Invariant: the log releases a segment once the checkpoint states of all versions contain it.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::{Either, select};
use settee_io::OnPanic;

use crate::error::StoreError;
use crate::manifest::{Manifest, SegmentName};
use crate::segments::{Segment, Segments};
use crate::shared::Shared;
use crate::version::CheckpointState;

impl Shared {
    /// Starts the transfer of the log's closed, checkpointed segments after `done_to`, as soon as the log has
    /// sealed them, unless a transfer is running or there are none. Sealing waits for a pause in the appends,
    /// which may take long; closing or dropping the store ends the wait.
    pub(crate) fn start_transfer(self: &Arc<Self>, done_to: u32) {
        if self.is_closed()
            || self.last_closed_segment(done_to).is_none()
            || self.jobs.is_transferring.swap(true, Ordering::AcqRel)
        {
            return;
        }
        let shared = self.clone();
        self.context.env.spawn("store segments", async move {
            let _end = OnPanic(|| shared.jobs.is_transferring.store(false, Ordering::Release));
            let mut done_to = done_to;
            while let Some(last) = shared.last_closed_segment(done_to).filter(|_| !shared.is_closed()) {
                if let Err(error) = shared.transfer_to(last).await {
                    tracing::warn!(%error, directory = %shared.context.directory.display(), "segments could not be transferred from the log");
                    shared.jobs.is_transferring.store(false, Ordering::Release);
                    return;
                }
                done_to = last;
            }
            shared.jobs.is_transferring.store(false, Ordering::Release);
            // A checkpoint may have found the transfer still running.
            shared.start_transfer(done_to);
        });
    }

    /// Makes the log seal its closed segments soon, waits for that, and transfers them.
    pub(crate) async fn transfer_soon(&self) -> Result<(), StoreError> {
        let open = self.log.seal_soon();
        let mut sealed = self.log.sealed_below();
        while sealed < open && !self.is_closed() {
            sealed = self.log.sealed_changed(sealed).await?;
        }
        self.transfer_sealed().await
    }

    /// The last of the log's closed and checkpointed segments after `done_to`.
    fn last_closed_segment(&self, done_to: u32) -> Option<u32> {
        let checkpoint_seq = self.checkpoint_state().seq;
        let mut known = self.log.segment_infos();
        // The segment that takes records.
        known.pop();
        let newest = known.iter().rev().find(|segment| segment.last_seq.0 <= checkpoint_seq)?;
        Some(newest.number).filter(|number| *number > done_to)
    }

    /// Transfers the log's segments up to `last`, as soon as they are sealed.
    async fn transfer_to(self: &Arc<Self>, last: u32) -> Result<(), StoreError> {
        loop {
            let notified = self.status_changed.notified();
            let sealed = self.log.sealed_below();
            if self.is_closed() {
                return Ok(());
            }
            if sealed > last {
                break;
            }
            if let Either::Right((changed, _)) =
                select(pin!(notified), pin!(self.log.sealed_changed(sealed))).await
            {
                changed?;
            }
        }
        self.transfer_sealed().await?;
        self.start_compaction(&self.checkpoint_state());
        Ok(())
    }

    /// Transfers the checkpointed segments that the log has sealed since the last checkpoint.
    async fn transfer_sealed(&self) -> Result<(), StoreError> {
        let mut manifest = self.files.manifest.lock().await;
        self.check_files()?;
        let checkpoint = self.versions.accepted.lock().await.checkpoint.clone();
        let mut next = manifest.clone();
        let segments = self.collect_sealed(&checkpoint, checkpoint.seq, &mut next);
        let _stop = self.stop_on_panic();
        if self.is_closed() || next == *manifest {
            return Ok(());
        }
        next.number += 1;
        next.checkpoint = checkpoint.seq;
        next.last_in_seq_index = checkpoint.last_in_seq_index;
        self.replace_manifest(&mut manifest, next).await?;
        self.install_checkpoint(Arc::new(CheckpointState { segments, ..(*checkpoint).clone() }), 0).await;
        self.transfer(&manifest, checkpoint.live_bytes());
        Ok(())
    }

    /// Makes the log release the segments that the manifest counts as the store's. Only after all versions
    /// have a checkpoint state that contains them: until then a commit still takes the log's files.
    pub(super) fn transfer(&self, manifest: &Manifest, live_bytes: u64) {
        self.log.transfer(manifest.first_log_segment);
        self.log.set_transferred_bytes(live_bytes);
    }

    /// Adds the log's sealed and wholly checkpointed segments to the store's, and to the manifest.
    pub(super) fn collect_sealed(
        &self,
        checkpoint: &CheckpointState,
        checkpoint_seq: u64,
        manifest: &mut Manifest,
    ) -> Arc<Segments> {
        let mut segments = (*checkpoint.segments).clone();
        let files = self.log.files();
        for known in self.log.segment_infos() {
            let is_whole = known.last_seq.0 <= checkpoint_seq && known.is_sealed;
            let Some(file) = files.get(known.number).filter(|_| is_whole) else { break };
            let bytes = known.frame_bytes;
            let name = SegmentName {
                first: known.number,
                last: known.number,
                generation: 0,
                epoch: known.epoch,
                bytes,
                clean_to: 0,
            };
            let segment = Segment::new(
                &self.context.env,
                &self.context.directory,
                name,
                self.context.options.log.direct,
            );
            let segment = segment.with_chunks(self.context.chunks.as_ref());
            segments.insert(Arc::new(segment.with_file(file.clone())));
            manifest.first_log_segment = known.number + 1;
        }
        manifest.segments = segments.names();
        Arc::new(segments)
    }
}
