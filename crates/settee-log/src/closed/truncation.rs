//! Truncation and transfer: segments leave the log, and their files are removed, recycled or handed over.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use settee_io::{File, OpenMode, directory};

use crate::error::{ReservationError, is_refusal};
use crate::format::SYNC_ALIGNMENT;
use crate::segment_name::segment_path;
use crate::shared::{DiskReservation, Shared};
use crate::state::PreallocatedSegment;

impl Shared {
    /// See [`crate::Log::transfer`].
    pub(crate) fn transfer(&self, below: u32) {
        let mut state = self.lock();
        if state.segments.transfer(below) {
            self.change_files(&mut state, |files| *files = files.split_off(&below));
        }
    }

    /// Removes truncated segments' files, or recycles one for the next segment.
    pub(crate) async fn truncate(&self, reservation: &mut DiskReservation) -> Result<(), ReservationError> {
        let (removed, recycled_bytes_max) = {
            let mut state = self.lock();
            (state.truncate(), state.log_bytes() * self.options.recycled_percent_max / 100)
        };
        for number in removed {
            // Readers that already have it keep it.
            let file = self.change_files(&mut self.lock(), |files| files.remove(&number));
            let unused = match reservation.next {
                None => self.recycle(reservation, number, file, recycled_bytes_max).await?,
                Some(_) => Some(segment_path(&self.directory, number)),
            };
            match unused {
                Some(path) => directory::remove(&*self.env.engine, &path).await?,
                None => {
                    let number = reservation.next.as_ref().map_or(0, |preallocated| preallocated.number);
                    self.lock().background.set_preallocated(number);
                }
            }
        }
        Ok(())
    }

    /// Recycles a truncated segment's file for the next segment, if it is small enough and has no other user.
    /// Otherwise returns its path, which may have changed.
    async fn recycle(
        &self,
        reservation: &mut DiskReservation,
        truncated: u32,
        file: Option<Arc<File>>,
        bytes_max: u64,
    ) -> Result<Option<PathBuf>, ReservationError> {
        let from = segment_path(&self.directory, truncated);
        let Some(file) = file.and_then(Arc::into_inner) else { return Ok(Some(from)) };
        let length = file.length().await?;
        if length > bytes_max || file.link_count().await? != 1 {
            return Ok(Some(from));
        }
        match file.write_and_sync_at(0, Bytes::from_static(&[0; SYNC_ALIGNMENT as usize])).await {
            Err(error) if is_refusal(&error) => return Ok(Some(from)),
            zeroed => zeroed?,
        }
        let number = self.lock().segments.last_number() + 1;
        let to = segment_path(&self.directory, number);
        directory::rename(&*self.env.engine, &from, &to).await.map_err(ReservationError::Failed)?;
        let keep_trying = |_: &settee_io::Error| !self.is_ending();
        self.directory_syncs
            .sync_with_retry(&self.env, keep_trying)
            .await
            .map_err(ReservationError::Failed)?;
        drop(file);
        let opened = async {
            let file = File::open(&self.env.engine, &to, OpenMode::Write).await?;
            self.apply_direct_mode(&file).await.map(|()| file)
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
