//! The log's public interface: appending, waiting and closing. `open`, `read`, `many` and `segments` have the
//! rest.
//!
//! `append` takes one mutex, assigns the batch its position, copies it after the previous ones, and returns.
//! `state.rs` decides what is written and synced, and when; threads that change the state execute these
//! actions (`submit_loop.rs`). Readers find accepted bytes and files in an immutable view that is replaced as
//! a whole (`read_view.rs`). Disk space is reserved before bytes are accepted (`reservation.rs`).
//!
//! Invariants:
//! 1. Recovery yields a prefix of the accepted batches, each whole, and never less than what was persisted.
//! 2. After a failed write or sync no append succeeds, and no watermark moves.
//! 3. No lock is held across an await, except `manifest`, `reservation` and `sealing`, which readers don't
//!    take; they are taken in this order.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::oneshot;

use crate::error::{AppendError, Stopped};
use crate::format::Batch;
use crate::shared::Shared;
use crate::state::{AppendBlocked, Placement, SpaceRequest};
use crate::types::{Appended, Location, LogStats, Seq, Stage};
use crate::watermark::{Position, Watermark};

mod many;
mod open;
pub(crate) mod read;
mod segments;
pub(crate) mod timelines;

/// A segmented append-only log in a directory of its own. It can be used from many tasks at once.
///
/// Dropping it without [`Log::close`] acts like a crash of the process: bytes that were accepted and not yet
/// written may be lost. Writes in flight still complete; until then, the directory can't be opened again
/// ([`crate::OpenError::InUse`]).
pub struct Log {
    shared: Arc<Shared>,
}

impl Log {
    /// Accepts a batch: assigns its position, which never changes, and starts bringing it to `stage`, for
    /// which [`Log::wait`] waits. Returns immediately, unless it has to wait for a new segment, more reserved
    /// disk space, or a buffer when the pool is empty.
    ///
    /// Dropping the future before it returns leaves the batch out as a whole.
    ///
    /// # Errors
    /// [`AppendError::TooLarge`], [`AppendError::NoSpace`] and [`AppendError::NoDescriptor`] leave the log
    /// unchanged; [`AppendError::Stopped`] is permanent.
    ///
    /// # Panics
    /// If the batch has no records.
    pub async fn append(&self, batch: &Batch, stage: Stage) -> Result<Appended, AppendError> {
        let placed = self.place(batch, stage).await?;
        Ok(appended(batch, &placed))
    }

    /// Appends a batch and returns once it is persisted, in the caller's thread: if no other thread is
    /// writing, this one writes and syncs, without a thread switch. For callers without an executor;
    /// preparatory work (a new segment, disk space, a buffer) still runs in tasks.
    ///
    /// # Errors
    /// As [`Log::append`]. After [`AppendError::Stopped`] it is unknown whether the batch survives.
    ///
    /// # Panics
    /// In a task of an executor, which it would block, and if the batch has no records.
    pub fn append_blocking(&self, batch: &Batch) -> Result<Appended, AppendError> {
        self.check(batch)?;
        let mut buffer = None;
        let placed = loop {
            let placed = self.shared.try_place(batch, Stage::Persisted, &mut buffer)?;
            match placed {
                Ok(placed) => break placed,
                Err(blocked) => {
                    self.shared.submit_ready();
                    let (done, made) = oneshot::channel();
                    let (shared, request) = (self.shared.clone(), SpaceRequest::of(batch));
                    self.shared.env.spawn("log reservation", async move {
                        let _ = done.send(shared.provide(blocked, request).await);
                    });
                    let made = made.blocking_recv();
                    buffer = made.unwrap_or_else(|_| Err(self.shared.stop_reason().into()))?;
                }
            }
        };
        let appended = appended(batch, &placed);
        self.shared.wait_blocking(Watermark { seq: appended.last_seq.0, at: Position::default() })?;
        Ok(appended)
    }

    fn check(&self, batch: &Batch) -> Result<(), AppendError> {
        assert!(!batch.is_empty(), "a batch has records");
        let max = self.shared.options.batch_bytes_max;
        match batch.size() > max {
            true => Err(AppendError::TooLarge { size: batch.size(), max }),
            false => Ok(()),
        }
    }

    async fn place(&self, batch: &Batch, stage: Stage) -> Result<Placement, AppendError> {
        self.check(batch)?;
        let mut buffer = None;
        loop {
            match self.shared.try_place(batch, stage, &mut buffer)? {
                Ok(placed) => {
                    self.shared.submit_ready();
                    return Ok(placed);
                }
                Err(blocked) => {
                    self.shared.submit_ready();
                    buffer = self.shared.provide(blocked, SpaceRequest::of(batch)).await?;
                }
            }
        }
    }

    /// Returns once `seq`, which need not exist yet, has reached `stage`.
    ///
    /// # Errors
    /// The log stopped before that.
    pub async fn wait(&self, seq: Seq, stage: Stage) -> Result<(), Stopped> {
        self.shared.wait(Watermark { seq: seq.0, at: Position::default() }, stage).await
    }

    /// Returns once everything accepted before the call is persisted.
    ///
    /// # Errors
    /// The log stopped before that.
    pub async fn flush(&self) -> Result<(), Stopped> {
        self.shared.flush().await
    }

    /// The last `Seq` that is persisted.
    pub fn persisted(&self) -> Seq {
        Seq(self.shared.persisted_seq.load(Ordering::Acquire))
    }

    /// Stops the log because of a failure elsewhere. A caller whose sync of the log's directory failed must
    /// call it, since no later sync covers the segment names that this one was to persist.
    pub fn stop(&self, error: settee_io::Error) {
        self.shared.stop(error);
    }

    /// Whether the log still accepts appends.
    ///
    /// # Errors
    /// Why it stopped.
    pub fn health(&self) -> Result<(), Stopped> {
        self.shared.lock().health()
    }

    /// Counters since it was opened, and current sizes.
    pub fn stats(&self) -> LogStats {
        self.shared.lock().stats()
    }

    /// As [`Log::flush`], but returns false if a write fails for lack of disk space meanwhile; the log keeps
    /// retrying that write.
    ///
    /// # Errors
    /// The log stopped before that.
    pub async fn try_flush(&self) -> Result<bool, Stopped> {
        self.shared.try_flush().await
    }

    /// Returns once a write has failed for lack of disk space, with the I/O error; the log keeps retrying
    /// that write. Never returns while there is space.
    pub async fn wait_for_no_space(&self) -> settee_io::Error {
        (*self.shared.wait_for_no_space().await).clone()
    }

    /// Announces that the log is about to be closed: from now on a write that fails for lack of disk space
    /// isn't retried, but stops the log and fails its waiters.
    pub fn begin_close(&self) {
        self.shared.begin_closing();
    }

    /// Persists everything accepted and ends the log; later appends and reads fail. Returns when no operation
    /// is in flight; then the directory can be opened again.
    ///
    /// If all of it was persisted, a close mark is written, if the disk has space for it. Opening then reports
    /// damage below the mark, instead of taking it for a torn write.
    ///
    /// # Errors
    /// The log stopped before all of it was persisted, or the disk had no space for it; the log has ended
    /// nevertheless.
    pub async fn close(&self) -> Result<(), Stopped> {
        self.begin_close();
        let flushed = self.flush().await;
        let was_running = self.shared.end();
        self.shared.wait_for_operations().await;
        let _manifest = self.shared.manifest.lock().await;
        let mut reservation = self.shared.reservation.lock().await;
        let _sealing = self.shared.sealing.lock().await;
        if was_running && flushed.is_ok() {
            self.shared.write_close_mark().await;
        }
        if let Err(error) = self.shared.remove_preallocated(&mut reservation).await {
            tracing::warn!(
                %error, directory = %self.shared.directory.display(),
                "the preallocated segment could not be removed"
            );
        }
        self.shared.release_files(&mut reservation);
        flushed
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.shared.end();
    }
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log").field("directory", &self.shared.directory).finish_non_exhaustive()
    }
}

fn appended(batch: &Batch, placed: &Placement) -> Appended {
    let last_seq = placed.first_seq + batch.len() as u64 - 1;
    let (first_seq, group) = (Seq(placed.first_seq), placed.group);
    Appended { first_seq, last_seq: Seq(last_seq), locations: locations(batch, placed), group }
}

fn locations(batch: &Batch, placed: &Placement) -> Vec<Location> {
    let locate = |range: std::ops::Range<u32>| Location {
        segment: placed.at.segment(),
        offset: placed.at.offset() + range.start,
        length: range.end - range.start,
    };
    batch.ranges().map(locate).collect()
}

impl Shared {
    /// Accepts a frame if nothing blocks it.
    fn try_place(
        self: &Arc<Self>,
        batch: &Batch,
        stage: Stage,
        buffer: &mut Option<settee_io::TailBuffer>,
    ) -> Result<Result<Placement, AppendBlocked>, Stopped> {
        let mut state = self.lock();
        state.health()?;
        let placed = state.accept(batch, stage, buffer, || self.env.clock.now());
        self.publish(&mut state);
        // Also when disk space is missing: there may be files to remove.
        self.run_background_jobs(&mut state);
        Ok(placed)
    }
}

#[cfg(test)]
mod tests;
