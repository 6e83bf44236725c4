//! How a log ends: it stops after a failure or a panic, or it is closed.
//!
//! The first error latches. Stopping releases the unwritten bytes and the waiters at once; closing also
//! releases the file handles, once no operation is in flight.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use settee_io::OnPanic;

use super::{DiskReservation, Shared};
use crate::error::Stopped;
use crate::format::{FrameHeader, SEGMENT_BYTES_LIMIT, SYNC_ALIGNMENT};
use crate::state::LogState;

impl Shared {
    /// The error that callers get once the log, or the executor under it, has ended.
    pub(crate) fn closed_error(&self) -> Stopped {
        let source = settee_io::Error::Closed { path: self.directory.as_path().into() };
        Stopped { source: Arc::new(source) }
    }

    pub(crate) fn stop_reason(&self) -> Stopped {
        self.lock().stopped().cloned().unwrap_or_else(|| self.closed_error())
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.lock().stopped().is_some()
    }

    /// Whether the log has stopped or is being closed.
    pub(crate) fn is_ending(&self) -> bool {
        self.lock().is_ending()
    }

    /// Whether its file handles were released.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Releases the file handles of a log that has ended, and its lock. The caller holds the reservation's
    /// mutex, so no background job uses the files.
    pub(crate) fn release_files(&self, reservation: &mut DiskReservation) {
        self.closed.store(true, Ordering::Release);
        let mut state = self.lock();
        let released = state.release_files();
        let read_view = self.read_view.swap(Arc::default());
        drop(state);
        drop((released, read_view));
        reservation.lock = None;
    }

    /// From now on a write that fails for lack of disk space stops the log. Writes that wait for a retry are
    /// tried once more, immediately.
    pub(crate) fn begin_closing(&self) {
        self.lock().begin_closing();
        self.retry_now.notify_one();
    }

    /// Returns once a write has failed for lack of disk space.
    pub(crate) async fn wait_for_no_space(&self) -> Arc<settee_io::Error> {
        loop {
            let ended = self.status_changed.notified();
            if let Some(source) = self.lock().no_space_error() {
                return source;
            }
            ended.await;
        }
    }

    /// The error with which a panic stops the log.
    pub(crate) fn panic_error(&self) -> settee_io::Error {
        settee_io::Error::Panicked { path: self.directory.as_path().into() }
    }

    /// Stops the log after a panic, which leaves its state unknown.
    pub(crate) fn stop_panicked(&self) {
        self.stop(self.panic_error());
    }

    /// A guard that stops the log if the current task panics.
    pub(crate) fn stop_on_panic(&self) -> OnPanic<impl FnMut()> {
        OnPanic(|| self.stop_panicked())
    }

    /// Stops the log. The first error latches.
    pub(crate) fn stop(&self, error: settee_io::Error) {
        let mut state = self.lock();
        let released = self.stop_locked(&mut state, error);
        drop(state);
        // Wakes the waiters.
        drop(released);
    }

    /// As [`Shared::stop`], for a caller that holds the lock; it drops the returned value after unlocking.
    pub(crate) fn stop_locked(&self, state: &mut LogState, error: settee_io::Error) -> impl Sized + use<> {
        if state.stopped().is_some() {
            return None;
        }
        tracing::error!(%error, directory = %self.directory.display(), "log stopped");
        state.stop(Stopped { source: Arc::new(error) });
        Some(self.release(state))
    }

    /// Ends the log: no further action begins, and all waiters are notified. Returns whether it was still
    /// running.
    pub(crate) fn end(&self) -> bool {
        let mut state = self.lock();
        let was_running = state.stopped().is_none();
        state.stop(self.closed_error());
        let released = self.release(&mut state);
        drop(state);
        // Wakes the waiters.
        drop(released);
        was_running
    }

    /// Writes the close mark of a log that was closed in order, unless some of it isn't persisted. The caller
    /// holds the mutexes of the reservation and of sealing, so nobody else writes to the segment.
    ///
    /// The mark isn't synced: after a power loss without it, the log is as after a kill. For the same reason
    /// a failure (the disk is full, say) has no effect but that.
    pub(crate) async fn write_close_mark(&self) {
        let Some((end, mark)) = self.lock().close_mark() else { return };
        let set = self.read_view.load().set.clone();
        let file = set.get(end.segment()).and_then(|segment| segment.stored_file().get());
        let start = FrameHeader::mark_start(end.offset().into());
        let block_end = start + u64::from(SYNC_ALIGNMENT);
        let Some(file) = file.filter(|_| block_end <= u64::from(SEGMENT_BYTES_LIMIT)) else { return };
        let mut block = vec![0; SYNC_ALIGNMENT as usize];
        block[..mark.len()].copy_from_slice(&mark);
        if let Err(error) = file.write_at(start, block.into()).await {
            tracing::info!(%error, directory = %self.directory.display(), "the log has no close mark");
        }
    }

    /// Releases all unwritten bytes, whose memory returns to the pool, and all waiters. The caller drops the
    /// returned value after unlocking.
    fn release(&self, state: &mut LogState) -> impl Sized + use<> {
        let released = state.release();
        self.publish(state);
        self.timer_moved.notify_one();
        self.status_changed.notify_waiters();
        released
    }

    /// Returns once the log has stopped or ended.
    pub(crate) async fn wait_until_stopped(&self) {
        loop {
            let ended = self.status_changed.notified();
            if self.is_stopped() {
                return;
            }
            ended.await;
        }
    }

    /// Returns once a log that has ended has no write or sync in flight.
    pub(crate) async fn wait_for_operations(&self) {
        loop {
            let ended = self.status_changed.notified();
            if !self.lock().has_operations() {
                return;
            }
            ended.await;
        }
    }
}
