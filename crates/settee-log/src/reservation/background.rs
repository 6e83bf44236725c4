//! Background jobs: reserve more of the open segment, preallocate the next one, remove truncated ones.
//!
//! A log runs one job at a time, in a task that holds the reservation's mutex. After a refusal it reserves
//! nothing ahead until an append has reserved space; an append that gets none reports the error.

use std::sync::Arc;

use bytes::Bytes;
use settee_io::{File, OpenMode, directory};

use crate::error::{ReservationError, is_sync_error};
use crate::format::SYNC_ALIGNMENT;
use crate::segment_name::segment_path;
use crate::shared::{DiskReservation, Shared};
use crate::state::{BackgroundJob, FILL_BYTES_MAX, FIRST_RESERVATION_BYTES, LogState, reserve_ahead_bytes};

/// The bytes of one write of zeros.
const ZEROS: &[u8] = &[0; 256 << 10];

impl Shared {
    /// Starts the background job that is due, if any, and sealing.
    pub(crate) fn run_background_jobs(self: &Arc<Self>, state: &mut LogState) {
        self.start_sealing(state);
        let Some(job) = state.begin_background_job() else { return };
        let shared = self.clone();
        self.env.spawn("log background job", async move {
            let _stop = shared.stop_on_panic();
            // Before the reservation is locked: nobody who needs space waits for a manifest.
            let truncated = match job {
                BackgroundJob::Truncate => shared.edit_out_truncated().await,
                _ => Vec::new(),
            };
            let mut reservation = shared.reservation.lock().await;
            if shared.is_stopped() {
                return;
            }
            let done = match job {
                BackgroundJob::Reserve => shared.reserve_ahead().await,
                BackgroundJob::Preallocate => shared.preallocate(&mut reservation).await,
                BackgroundJob::Truncate => shared.remove_segments(truncated, &mut reservation).await,
            };
            let mut refused = false;
            match done {
                Ok(()) | Err(ReservationError::Stopped(_)) => {}
                // The append that needs the space will report it.
                Err(ReservationError::Refused(_)) => refused = true,
                Err(ReservationError::Failed(error))
                    if job == BackgroundJob::Preallocate && !is_sync_error(&error) =>
                {
                    tracing::warn!(
                        %error, directory = %shared.directory.display(),
                        "could not preallocate a segment"
                    );
                    refused = true;
                }
                Err(ReservationError::Failed(error)) => shared.stop(error),
            }
            shared.lock().background.end(refused);
        });
    }

    /// Reserves more space in the open segment, filled with zeros if that pays.
    async fn reserve_ahead(&self) -> Result<(), ReservationError> {
        let (number, file, allocated, bytes_max) = self.open_segment();
        let fill = self.lock().zero_fill_pays();
        let count = if fill {
            reserve_ahead_bytes(allocated).min(FILL_BYTES_MAX)
        } else {
            reserve_ahead_bytes(allocated)
        };
        let end =
            (allocated + count.max(FIRST_RESERVATION_BYTES)).min(bytes_max).next_multiple_of(SYNC_ALIGNMENT);
        // The next segment may have begun meanwhile, with more space than it needs.
        if end <= allocated {
            return Ok(());
        }
        file.allocate(u64::from(allocated), u64::from(end - allocated)).await?;
        if fill {
            self.fill_with_zeros(number, allocated, end).await?;
        }
        self.lock().set_reserved(end);
        Ok(())
    }

    /// Creates the next segment's file in advance.
    async fn preallocate(&self, reservation: &mut DiskReservation) -> Result<(), ReservationError> {
        let (number, fill, log_bytes) = {
            let state = self.lock();
            let Some(segment) = state.segments.open() else {
                return Ok(());
            };
            (segment.number + 1, state.zero_fill_pays(), state.log_bytes())
        };
        if reservation.next.as_ref().is_some_and(|preallocated| preallocated.number == number) {
            return Ok(());
        }
        // For a stream, all of the space is reserved before anything is written, so that writes and
        // reservations don't wait for each other.
        let most = self.options.segment_bytes(log_bytes, 0);
        let preallocated_bytes_max =
            if fill { 0 } else { log_bytes * self.options.recycled_percent_max / 100 };
        let allocated = u32::try_from(preallocated_bytes_max)
            .unwrap_or(most)
            .clamp(FIRST_RESERVATION_BYTES.min(most), most);
        let preallocated = self.create(number, allocated).await?;
        if fill && let Err(error) = self.fill_with_zeros(number, 0, preallocated.allocated).await {
            drop(preallocated);
            // Otherwise the segment couldn't be created later.
            directory::remove(&*self.env.engine, &segment_path(&self.directory, number)).await?;
            return Err(error.into());
        }
        reservation.next = Some(preallocated);
        self.lock().background.set_preallocated(number);
        Ok(())
    }

    /// Writes zeros over a segment's reserved space and syncs them.
    async fn fill_with_zeros(&self, number: u32, from: u32, to: u32) -> Result<(), settee_io::Error> {
        let path = segment_path(&self.directory, number);
        let file = File::open(&self.env.engine, &path, OpenMode::Write).await?;
        self.apply_direct_mode(&file).await?;
        // In a segment that was opened again, the reserved space may begin at any offset.
        let mut at = from.next_multiple_of(SYNC_ALIGNMENT);
        while at < to && !self.is_stopped() {
            let count = ZEROS.len().min((to - at) as usize);
            file.write_at(u64::from(at), Bytes::from_static(&ZEROS[..count])).await?;
            at += count as u32;
        }
        file.sync().await
    }
}
