//! Truncation and transfer: segments leave the log, and their files are removed, recycled or handed over.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use settee_io::{File, OpenMode, directory};

use crate::error::{ReservationError, is_refusal};
use crate::format::SYNC_ALIGNMENT;
use crate::read_view::{FileSlot, ReadView};
use crate::segment_name::segment_path;
use crate::shared::{DiskReservation, PreallocatedSegment, Shared};

impl Shared {
    /// See [`crate::Log::transfer`].
    pub(crate) fn transfer(&self, below: u32) {
        let mut state = self.lock();
        if below <= state.closed.oldest {
            return;
        }
        let sealed_below = state.closed.seal_next;
        assert!(below <= sealed_below, "segment {below} or one before it isn't sealed");
        let kept = state.segments.split_off(&below);
        let removed = std::mem::replace(&mut state.segments, kept);
        let removed_bytes: u64 = removed.values().map(|meta| meta.bytes).sum();
        state.stats.file_bytes = state.stats.file_bytes.saturating_sub(removed_bytes);
        state.transferred_bytes += removed_bytes;
        state.closed.unsealed = state.closed.unsealed.split_off(&below);
        state.closed.without_space = state.closed.without_space.split_off(&below);
        state.closed.oldest = below;
        let files = (*self.read_view.load().files).clone().split_off(&below);
        self.read_view.store(Arc::new(ReadView::new(Arc::new(files), &state.chunks)));
    }

    /// Removes truncated segments' files, or recycles one for the next segment.
    pub(crate) async fn truncate(&self, reservation: &mut DiskReservation) -> Result<(), ReservationError> {
        let (removed, recycled_bytes_max) = {
            let mut state = self.lock();
            if !state.has_files_to_remove() {
                // The next segment has begun meanwhile, and its header isn't on the medium yet.
                return Ok(());
            }
            let needed = state.closed.needed;
            let kept = state.segments.split_off(&needed);
            let removed = std::mem::replace(&mut state.segments, kept);
            state.closed.oldest = needed;
            let removed_bytes = removed.values().map(|meta| meta.bytes).sum();
            state.stats.file_bytes = state.stats.file_bytes.saturating_sub(removed_bytes);
            let recycled_bytes_max = state.log_bytes() * self.options.spare_percent_max / 100;
            (removed, recycled_bytes_max)
        };
        for number in removed.into_keys() {
            let slot = self.remove_from_view(number);
            let unused = match reservation.next {
                None => self.recycle(reservation, number, slot, recycled_bytes_max).await?,
                Some(_) => Some(segment_path(&self.directory, number)),
            };
            match unused {
                Some(path) => directory::remove(&*self.env.engine, &path).await?,
                None => {
                    self.lock().preallocated_number =
                        reservation.next.as_ref().map_or(0, |preallocated| preallocated.number)
                }
            }
        }
        Ok(())
    }

    /// Removes a segment's file from the read view; readers that already have it keep it.
    fn remove_from_view(&self, number: u32) -> Option<Arc<FileSlot>> {
        let state = self.lock();
        let mut files = (*self.read_view.load().files).clone();
        let slot = files.remove(&number);
        self.read_view.store(Arc::new(ReadView::new(Arc::new(files), &state.chunks)));
        slot
    }

    /// Recycles a truncated segment's file for the next segment, if it is small enough and has no other user.
    /// Otherwise returns its path, which may have changed.
    async fn recycle(
        &self,
        reservation: &mut DiskReservation,
        truncated: u32,
        slot: Option<Arc<FileSlot>>,
        bytes_max: u64,
    ) -> Result<Option<PathBuf>, ReservationError> {
        let from = segment_path(&self.directory, truncated);
        let file = slot.and_then(Arc::into_inner).and_then(FileSlot::into_file);
        let Some(mut file) = file else { return Ok(Some(from)) };
        let length = file.length().await?;
        if length > bytes_max || Arc::get_mut(&mut file).is_none() || file.link_count().await? != 1 {
            return Ok(Some(from));
        }
        match file.write_and_sync_at(0, Bytes::from_static(&[0; SYNC_ALIGNMENT as usize])).await {
            Err(error) if is_refusal(&error) => return Ok(Some(from)),
            zeroed => zeroed?,
        }
        let number = self.open_number() + 1;
        let to = segment_path(&self.directory, number);
        directory::rename(&*self.env.engine, &from, &to).await.map_err(ReservationError::Failed)?;
        let keep_trying = |_: &settee_io::Error| !self.is_ending();
        self.directory_syncs
            .sync_with_retry(&self.env, keep_trying)
            .await
            .map_err(ReservationError::Failed)?;
        // The handle of the old name holds the lock.
        drop(file);
        let opened = async {
            let file = File::open(&self.env.engine, &to, OpenMode::Write).await?;
            self.configure_and_lock(&file).await.map(|()| file)
        };
        let file = match opened.await {
            Err(error) if is_refusal(&error) => return Ok(Some(to)),
            opened => Arc::new(opened?),
        };
        reservation.next =
            Some(PreallocatedSegment { number, file, allocated: length as u32, is_reused: true });
        Ok(None)
    }
}
