//! The submit loop: executes the actions that the state returns.
//!
//! There is no writer task. A thread that changes the state (an append, a completed operation, the timer)
//! then submits all actions that have become possible. A write therefore begins in the thread of the append
//! that fills a buffer or finds the log idle, and the next one in the thread where the previous one
//! completed: a durable append costs two thread switches, to the I/O engine and from there to the waiter.
//!
//! Invariants:
//! 1. Code that may have made an action possible calls [`Shared::submit_ready`] afterwards, without holding
//!    the lock.
//! 2. One thread at a time submits. A completion during submission only records its result; the submitting
//!    thread's loop picks up what it made possible. So an engine that completes synchronously doesn't
//!    recurse. A thread in a blocking wait may also take actions, and executes them itself.
//! 3. `engine_operation_count` includes an operation from when it is taken from the state until its result is
//!    recorded, also after the log has stopped. It excludes a write that waits for a retry after lack of disk
//!    space.
//! 4. If a panic interrupts these steps, the log stops, so no caller waits for an action that will never be
//!    executed.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::{Either, select};
use settee_io::OnPanic;

use crate::error::{Stopped, is_no_space};
use crate::failpoints::Failpoint;
use crate::shared::Shared;
use crate::state::{Action, LogState, TimerChange};
use crate::types::Stage;
use crate::watermark::Watermark;

/// Delay before a write that failed for lack of disk space is retried.
const NO_SPACE_RETRY_DELAY: Duration = Duration::from_millis(250);

/// A write or sync taken from the state, until its result is recorded.
struct SubmittedAction {
    shared: Arc<Shared>,
    action: Option<Action>,
}

impl SubmittedAction {
    fn new(shared: &Arc<Shared>, action: Action) -> SubmittedAction {
        SubmittedAction { shared: shared.clone(), action: Some(action) }
    }

    fn submit(self) {
        match self.action.clone() {
            Some(Action::Write { file, offset, bytes, sync, .. }) => {
                file.begin_write(offset, bytes, sync, move |result| self.end(result));
            }
            Some(Action::Sync { file }) => file.begin_sync(move |result| self.end(result)),
            None => {}
        }
    }

    fn end(mut self, result: settee_io::Result<()>) {
        if let Some(action) = self.action.take() {
            self.shared.complete(result, action);
            self.shared.submit_ready();
        }
    }
}

impl Drop for SubmittedAction {
    /// Records a failure if the submitting thread panics.
    fn drop(&mut self) {
        if let Some(action) = self.action.take()
            && std::thread::panicking()
        {
            self.shared.complete(Err(self.shared.panic_error()), action);
        }
    }
}

impl Shared {
    /// Submits all actions that are possible now.
    pub(crate) fn submit_ready(self: &Arc<Self>) {
        let _stop = self.stop_on_panic();
        let mut began = false;
        loop {
            let action = {
                let mut state = self.lock();
                if state.is_submitting() && !began {
                    return;
                }
                let action = state.submit_next(self.env.clock.now());
                if action.is_none() {
                    self.set_timer(&mut state);
                    // Seals segments that were closed after the last append, when no append would start it.
                    self.start_sealing(&mut state);
                }
                self.publish(&mut state);
                action
            };
            let Some(action) = action else { return };
            began = true;
            #[cfg(feature = "failpoints")]
            let Some(action) = self.fetch_later(action) else { continue };
            self.submit(action);
        }
    }

    pub(crate) fn submit(self: &Arc<Self>, action: Action) {
        SubmittedAction::new(self, action).submit();
    }

    /// Executes the action in this thread and records its result.
    fn run(self: &Arc<Self>, action: Action) {
        let submitted = SubmittedAction::new(self, action.clone());
        submitted.end(match action {
            Action::Write { file, offset, bytes, sync: true, .. } => {
                file.write_and_sync_at_blocking(offset, bytes)
            }
            Action::Write { file, offset, bytes, .. } => file.write_at_blocking(offset, bytes),
            Action::Sync { file } => file.sync_blocking(),
        });
    }

    /// Records the result of a write or sync, and notifies the waiters.
    fn complete(self: &Arc<Self>, result: settee_io::Result<()>, action: Action) {
        let _stop = self.stop_on_panic();
        let (write, synced) = match &action {
            Action::Write { id, bytes, sync, .. } => (Some((*id, bytes.len())), *sync),
            Action::Sync { .. } => (None, true),
        };
        if let Err(error) = result {
            match write {
                None if self.options.is_enabled(Failpoint::SyncRetried) => return self.lock().retry_sync(),
                Some((id, _)) if is_no_space(&error) && self.suspend_write(id, action, &error) => {}
                _ => {
                    self.stop(error);
                    self.lock().end_operation();
                }
            }
            return self.status_changed.notify_waiters();
        }
        let mut state = self.lock();
        state.end_operation();
        let now = self.env.clock.now();
        let mut woken = Vec::new();
        if let Some((id, size)) = write {
            woken = state.complete_write(id, size, now);
            if let Some(source) = state.no_space_with_unsynced_writes() {
                drop(state);
                self.stop((*source).clone());
                return self.status_changed.notify_waiters();
            }
            // Before the read view without these chunks is published: a reader that misses a chunk must see
            // this position.
            state.check();
            self.written_position.store(state.watermarks.written().at.bits(), Ordering::Release);
        }
        if synced {
            woken.append(&mut state.complete_sync(now));
            state.check();
            self.persisted_seq.store(state.watermarks.persisted().seq, Ordering::Release);
        }
        self.publish(&mut state);
        let is_last = state.stopped().is_some() && !state.has_operations();
        drop(state);
        if is_last {
            self.status_changed.notify_waiters();
        }
        for waiter in woken {
            // The waiter may have been cancelled.
            let _ = waiter.send(());
        }
    }

    /// Schedules a retry of a write that failed for lack of disk space. Returns false if the log has stopped
    /// or is being closed, or if other completed writes are not yet synced: some file systems report the
    /// failed write-back of an earlier write with a later one, and only once, so that no later sync would
    /// report it.
    fn suspend_write(self: &Arc<Self>, id: u64, write: Action, error: &settee_io::Error) -> bool {
        // Before the lock is taken, since it wakes tasks that wait for buffers.
        let stall = self.env.buffers.stall(Arc::new(error.clone()));
        let mut state = self.lock();
        let is_new = state.no_space_error().is_none();
        let Some(is_first) = state.suspend_write(id, write, stall) else { return false };
        drop(state);
        if is_new {
            tracing::warn!(
                %error, directory = %self.directory.display(),
                "a write failed for lack of disk space and is being retried"
            );
        }
        if is_first {
            let (log, clock, retry_now) =
                (Arc::downgrade(self), self.env.clock.clone(), self.retry_now.clone());
            self.env.spawn("log write retry", async move {
                let _stop = OnPanic(|| log.upgrade().into_iter().for_each(|shared| shared.stop_panicked()));
                select(clock.sleep(NO_SPACE_RETRY_DELAY), pin!(retry_now.notified())).await;
                let Some(shared) = log.upgrade() else { return };
                let writes = shared.lock().take_suspended_writes();
                let submitted: Vec<_> =
                    writes.into_iter().map(|write| SubmittedAction::new(&shared, write)).collect();
                submitted.into_iter().for_each(SubmittedAction::submit);
            });
        }
        true
    }

    /// Starts or advances the timer that calls the submit loop when an age limit or a group's delay expires.
    /// A log has at most one timer.
    fn set_timer(self: &Arc<Self>, state: &mut LogState) {
        match state.set_timer() {
            TimerChange::None => return,
            TimerChange::Moved => return self.timer_moved.notify_one(),
            TimerChange::Started => {}
        }
        let (log, clock, moved) = (Arc::downgrade(self), self.env.clock.clone(), self.timer_moved.clone());
        self.env.spawn("log timer", async move {
            let _stop = OnPanic(|| log.upgrade().into_iter().for_each(|shared| shared.stop_panicked()));
            loop {
                let Some(deadline) = log.upgrade().and_then(|shared| shared.lock().timer()) else { return };
                let now = clock.now();
                if now >= deadline {
                    break;
                }
                select(clock.sleep(deadline - now), pin!(moved.notified())).await;
            }
            let Some(shared) = log.upgrade() else { return };
            shared.lock().end_timer();
            shared.submit_ready();
        });
    }

    /// Returns once `wanted` has reached `stage`.
    pub(crate) async fn wait(self: &Arc<Self>, wanted: Watermark, stage: Stage) -> Result<(), Stopped> {
        let Some(arrival) = self.lock().begin_wait(wanted, stage)? else { return Ok(()) };
        self.submit_ready();
        arrival.await.map_err(|_| self.stop_reason())
    }

    /// Returns once `wanted` is persisted, and executes the writes and syncs for it in this thread.
    pub(crate) fn wait_blocking(self: &Arc<Self>, wanted: Watermark) -> Result<(), Stopped> {
        loop {
            let begun = self.lock().begin_wait(wanted, Stage::Persisted)?;
            let Some(arrival) = begun else {
                // Submits the actions of batches accepted in the meantime.
                self.submit_ready();
                return Ok(());
            };
            let action = {
                let mut state = self.lock();
                let action = match state.is_submitting() {
                    true => None,
                    false => state.next_action(self.env.clock.now()),
                };
                self.publish(&mut state);
                action
            };
            match action {
                Some(action) => self.run(action),
                None => {
                    self.submit_ready();
                    return arrival.blocking_recv().map_err(|_| self.stop_reason());
                }
            }
        }
    }

    pub(crate) async fn flush(self: &Arc<Self>) -> Result<(), Stopped> {
        let accepted = self.lock().watermarks.accepted();
        self.wait(accepted, Stage::Persisted).await
    }

    /// Like [`Shared::flush`], but returns false if a write fails for lack of disk space meanwhile.
    pub(crate) async fn try_flush(self: &Arc<Self>) -> Result<bool, Stopped> {
        match select(pin!(self.flush()), pin!(self.wait_for_no_space())).await {
            Either::Left((flushed, _)) => flushed.map(|()| true),
            Either::Right(_) => Ok(false),
        }
    }
}
