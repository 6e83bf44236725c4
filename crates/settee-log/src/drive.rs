//! Carrying out what the state says is to be done.
//!
//! There is no writer task: whoever changes the state (an append, an operation that ended, a
//! timer) looks what is to begin and submits it. So a write begins in the thread of the append
//! that fills a buffer or finds the log idle, and the next one in the thread where the last one
//! ended: a durable append costs two hand-overs, to the engine and from it to whoever waits.
//!
//! Invariants:
//! 1. Whoever may have made an action possible calls [`Shared::drive`] afterwards, without the
//!    lock.
//! 2. One thread at a time submits: what ends meanwhile, also in that thread, is seen by its next
//!    look. So engines that run a request in place don't lead to recursion without end. Beside it
//!    one that waits in its own thread may take actions, and carries them out itself.
//! 3. An operation counts as under way from when it was taken from the state to when its end was
//!    taken in, also after the log has stopped.

use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};

use futures_util::future::select;
use tokio::sync::oneshot;

use crate::error::Stopped;
use crate::log::{Shared, Stage};
use crate::mark::Mark;
use crate::planted::Planted;
use crate::state::{Action, State};

impl Shared {
    /// Submits what is to begin.
    pub(crate) fn drive(self: &Arc<Self>) {
        let mut began = false;
        loop {
            let action = {
                let mut state = self.lock();
                if state.driving && !began {
                    return;
                }
                let action = state.next_action(self.env.clock.now());
                state.driving = action.is_some();
                if action.is_none() {
                    self.set_timer(&mut state);
                    // Where the last segment was left that nobody appends behind for now.
                    self.start_sealing(&mut state);
                }
                self.publish(&mut state);
                action
            };
            let Some(action) = action else { return };
            began = true;
            #[cfg(feature = "planted-faults")]
            let Some(action) = self.fetch_later(action) else { continue };
            self.submit(action);
        }
    }

    pub(crate) fn submit(self: &Arc<Self>, action: Action) {
        let shared = self.clone();
        match action {
            Action::Write { id, file, offset, bytes, sync } => {
                let size = bytes.len();
                file.begin_write(offset, bytes, sync, move |result| {
                    shared.ended(result, Some((id, size)), sync);
                    shared.drive();
                });
            }
            Action::Sync { file } => file.begin_sync(move |result| {
                shared.ended(result, None, true);
                shared.drive();
            }),
        }
    }

    /// As [`Shared::submit`], in this thread, until it has ended.
    fn run(&self, action: Action) {
        match action {
            Action::Write { id, file, offset, bytes, sync } => {
                let size = bytes.len();
                let result = match sync {
                    true => file.write_and_sync_at_blocking(offset, bytes),
                    false => file.write_at_blocking(offset, bytes),
                };
                self.ended(result, Some((id, size)), sync);
            }
            Action::Sync { file } => self.ended(file.sync_blocking(), None, true),
        }
    }

    /// Takes in how a write or a sync has ended, and tells who waited.
    fn ended(&self, result: settee_io::Result<()>, write: Option<(u64, usize)>, synced: bool) {
        if let Err(error) = result {
            if write.is_none() && self.options.is_planted(Planted::SyncRetried) {
                return self.lock().retry_sync();
            }
            self.stop(error);
            self.lock().operation_count -= 1;
            return self.ended.notify_waiters();
        }
        let now = self.env.clock.now();
        let mut state = self.lock();
        state.operation_count -= 1;
        let mut woken = Vec::new();
        if let Some((id, size)) = write {
            woken = state.wrote(id, size, now);
            // Before the chunks go: readers look there first.
            self.written_position.store(state.written.at.bits(), Ordering::Release);
        }
        if synced {
            woken.append(&mut state.synced(now));
            self.persisted_seq.store(state.persisted.seq, Ordering::Release);
        }
        self.publish(&mut state);
        let is_last = state.stopped.is_some() && state.operation_count == 0;
        drop(state);
        if is_last {
            self.ended.notify_waiters();
        }
        for waiter in woken {
            // Whoever waited may have gone.
            let _ = waiter.send(());
        }
    }

    /// Looks again when something has grown old, or a group has waited long enough. A log has one
    /// timer, or none.
    fn set_timer(self: &Arc<Self>, state: &mut State) {
        let Some(deadline) = state.deadline() else { return };
        if state.timer.is_some_and(|timer| timer <= deadline) {
            return;
        }
        if state.timer.replace(deadline).is_some() {
            return self.timer_moved.notify_one();
        }
        let (log, clock, moved) = (Arc::downgrade(self), self.env.clock.clone(), self.timer_moved.clone());
        self.env.spawn("log timer", async move {
            loop {
                let Some(deadline) = log.upgrade().and_then(|shared| shared.lock().timer) else { return };
                let now = clock.now();
                if now >= deadline {
                    break;
                }
                select(clock.sleep(deadline - now), pin!(moved.notified())).await;
            }
            let Some(shared) = log.upgrade() else { return };
            shared.lock().timer = None;
            shared.drive();
        });
    }

    /// Returns once `wanted` has got as far as `stage`.
    pub(crate) async fn wait(self: &Arc<Self>, wanted: Mark, stage: Stage) -> Result<(), Stopped> {
        let Some(arrival) = self.begin_wait(wanted, stage)? else { return Ok(()) };
        self.drive();
        arrival.await.map_err(|_| self.why_stopped())
    }

    /// Where a wait's end arrives; `None` where it has.
    fn begin_wait(&self, wanted: Mark, stage: Stage) -> Result<Option<oneshot::Receiver<()>>, Stopped> {
        let mut state = self.lock();
        let reached = match stage {
            Stage::Accepted => return state.stopped.clone().map_or(Ok(None), Err),
            Stage::Written => state.written,
            Stage::Persisted => state.persisted,
        };
        if reached.reaches(wanted) {
            return Ok(None);
        }
        if let Some(stopped) = &state.stopped {
            return Err(stopped.clone());
        }
        // What is accepted is brought on its way; what is still to come brings itself.
        let accepted = state.accepted.reaches(wanted);
        let waiters = match stage {
            Stage::Persisted => {
                if accepted && !state.persist_wanted.reaches(wanted) {
                    state.want_persisted();
                }
                &mut state.persisted_waiters
            }
            _ => {
                if accepted && !state.write_wanted.reaches(wanted) {
                    state.want_written();
                }
                &mut state.written_waiters
            }
        };
        Ok(Some(waiters.add(wanted)))
    }

    /// As [`Shared::wait`] for persisted, in this thread, which does what is to be done.
    pub(crate) fn wait_blocking(self: &Arc<Self>, wanted: Mark) -> Result<(), Stopped> {
        loop {
            let Some(arrival) = self.begin_wait(wanted, Stage::Persisted)? else {
                // For those who came meanwhile.
                self.drive();
                return Ok(());
            };
            let action = {
                let mut state = self.lock();
                let action = match state.driving {
                    true => None,
                    false => state.next_action(self.env.clock.now()),
                };
                self.publish(&mut state);
                action
            };
            match action {
                Some(action) => self.run(action),
                None => {
                    self.drive();
                    return arrival.blocking_recv().map_err(|_| self.why_stopped());
                }
            }
        }
    }

    pub(crate) async fn flush(self: &Arc<Self>) -> Result<(), Stopped> {
        let accepted = self.lock().accepted;
        self.wait(accepted, Stage::Persisted).await
    }

    /// What a caller learns once the log, or the executor under it, has ended.
    pub(crate) fn closed(&self) -> Stopped {
        let source = settee_io::Error::Closed { path: self.folder.as_path().into() };
        Stopped { source: Arc::new(source) }
    }

    pub(crate) fn why_stopped(&self) -> Stopped {
        self.lock().stopped.clone().unwrap_or_else(|| self.closed())
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.lock().stopped.is_some()
    }

    /// Whether its files were given up.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Gives up the files of a log that has ended, and so their locks. For who holds the room: nobody
    /// else works with them.
    pub(crate) fn let_go_of_files(&self) {
        self.closed.store(true, Ordering::Release);
        let mut state = self.lock();
        let held = state.let_go_of_files();
        let view = self.view.swap(Arc::default());
        drop(state);
        view.files.values().for_each(|slot| slot.let_go());
        drop((held, view));
    }

    /// Latches the first failure.
    pub(crate) fn stop(&self, error: settee_io::Error) {
        let mut state = self.lock();
        if state.stopped.is_some() {
            return;
        }
        tracing::error!(%error, folder = %self.folder.display(), "log stopped");
        state.stopped = Some(Stopped { source: Arc::new(error) });
        self.let_go(state);
    }

    /// Ends the log: nothing more is begun, whoever waits is told.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        if state.stopped.is_none() {
            state.stopped = Some(self.closed());
        }
        self.let_go(state);
    }

    /// Lets go of what is accepted and was not written, and of all who wait: nothing of it comes.
    /// Its memory is for other logs.
    fn let_go(&self, mut state: MutexGuard<'_, State>) {
        let held = state.clear();
        self.publish(&mut state);
        drop(state);
        // Wakes whoever waited.
        drop(held);
        self.timer_moved.notify_one();
        self.ended.notify_waiters();
    }

    /// Returns once the log has stopped, or ended.
    pub(crate) async fn ends(&self) {
        loop {
            let ended = self.ended.notified();
            if self.is_stopped() {
                return;
            }
            ended.await;
        }
    }

    /// Returns once no write or sync is under way in a log that has ended.
    pub(crate) async fn wait_for_operations(&self) {
        loop {
            let ended = self.ended.notified();
            if self.lock().operation_count == 0 {
                return;
            }
            ended.await;
        }
    }
}
