//! Truncation: segments that aren't needed leave the log, and their files are removed or recycled.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use settee_io::{File, OpenMode, directory};

use crate::error::{EditError, ReservationError, is_no_space, is_refusal};
use crate::format::SYNC_ALIGNMENT;
use crate::segment_name::segment_path;
use crate::segment_set::Segment;
use crate::shared::{DiskReservation, Shared};
use crate::state::PreallocatedSegment;

impl Shared {
    /// Removes the truncated segments from the list of files, and returns them. If that fails, it is tried again
    /// when the next segment begins; on a full disk, at once.
    pub(crate) async fn edit_out_truncated(&self) -> Vec<Arc<Segment>> {
        let Some(below) = self.lock().truncated_below() else { return Vec::new() };
        match self.edit_out(below).await {
            Ok(removed) => removed,
            Err(EditError::Stopped(_)) => Vec::new(),
            Err(error) => {
                if !matches!(&error, EditError::Io(error) if is_no_space(error)) {
                    self.lock().segments.put_off_truncation();
                }
                let directory = self.directory.display();
                tracing::warn!(%error, %directory, "truncated segments could not be removed");
                Vec::new()
            }
        }
    }

    /// Removes the files of segments that left the log, or recycles one for the next segment. Files that have
    /// other users are removed with the last of them.
    pub(crate) async fn remove_segments(
        &self,
        removed: Vec<Arc<Segment>>,
        reservation: &mut DiskReservation,
    ) -> Result<(), ReservationError> {
        removed.iter().for_each(|segment| segment.stored_file().remove());
        let recycled_bytes_max = self.lock().log_bytes() * self.options.recycled_percent_max / 100;
        for segment in removed {
            let path = segment.path().to_path_buf();
            let Some(file) = segment.take_file() else { continue };
            let unused = match reservation.next {
                None => self.recycle(reservation, &path, file, recycled_bytes_max).await?,
                Some(_) => Some(path),
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
        from: &Path,
        file: Arc<File>,
        bytes_max: u64,
    ) -> Result<Option<PathBuf>, ReservationError> {
        let from = from.to_path_buf();
        let Some(file) = Arc::into_inner(file) else { return Ok(Some(from)) };
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
