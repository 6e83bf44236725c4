//! Listing segments in the manifest: the log doesn't replay them any more, and they can be rewritten.
//!
//! Sealed segments that end at or before the checkpoint are listed after it. Segments that the log seals later
//! are listed then, without another checkpoint.
//!
//! Invariant: a segment is listed only once the checkpoint states of all versions contain its records.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::{Either, select};
use settee_io::OnPanic;
use settee_log::{Edit, Seq};

use crate::error::StoreError;
use crate::shared::Shared;

impl Shared {
    /// Starts listing the log's closed, checkpointed segments after `done_to`, as soon as the log has sealed
    /// them, unless such a job is running or there are none. Sealing waits for a pause in the appends,
    /// which may take long; closing or dropping the store ends the wait.
    pub(crate) fn start_listing(self: &Arc<Self>, done_to: u32) {
        if self.is_closed()
            || self.last_closed_segment(done_to).is_none()
            || self.jobs.is_listing.swap(true, Ordering::AcqRel)
        {
            return;
        }
        let shared = self.clone();
        self.context.env.spawn("store segments", async move {
            let _end = OnPanic(|| shared.jobs.is_listing.store(false, Ordering::Release));
            let mut done_to = done_to;
            while let Some(last) = shared.last_closed_segment(done_to).filter(|_| !shared.is_closed()) {
                if let Err(error) = shared.list_to(last).await {
                    shared.warn_of_listing(&error);
                    shared.jobs.is_listing.store(false, Ordering::Release);
                    return;
                }
                done_to = last;
            }
            shared.jobs.is_listing.store(false, Ordering::Release);
            // A checkpoint may have found the job still running.
            shared.start_listing(done_to);
        });
    }

    pub(super) fn warn_of_listing(&self, error: &StoreError) {
        let directory = self.context.directory.display();
        tracing::warn!(%error, %directory, "segments could not be listed in the manifest");
    }

    /// Makes the log seal its closed segments soon, waits for that, and lists them.
    pub(crate) async fn list_soon(&self) -> Result<(), StoreError> {
        let open = self.log.seal_soon();
        let mut sealed = self.log.sealed_below();
        while sealed < open && !self.is_closed() {
            sealed = self.log.sealed_changed(sealed).await?;
        }
        self.list_sealed().await
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

    /// Lists the segments up to `last`, as soon as they are sealed.
    async fn list_to(self: &Arc<Self>, last: u32) -> Result<(), StoreError> {
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
        self.list_sealed().await?;
        self.start_compaction();
        Ok(())
    }

    /// Lists the checkpointed segments that the log has sealed.
    pub(super) async fn list_sealed(&self) -> Result<(), StoreError> {
        self.check_files()?;
        let checkpoint = self.checkpoint_state();
        let _stop = self.stop_on_panic();
        if self.is_closed() {
            return Ok(());
        }
        let edit = Edit { list_to: Some(Seq(checkpoint.seq)), ..Edit::default() };
        let is_listed =
            self.edit(edit, |section| section.at(checkpoint.seq, checkpoint.last_in_seq_index)).await?;
        if is_listed {
            self.install_set().await;
        }
        Ok(())
    }
}
