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
//!    taken in, also after the log has stopped. A write that waits to be done again for want of room
//!    doesn't.
//! 4. Where a panic leaves what is said here half done, the log stops: nobody waits for what nobody does.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::{Either, select};
use settee_io::OnPanic;
use tokio::sync::oneshot;

use crate::error::Stopped;
use crate::log::{Shared, Stage};
use crate::mark::Mark;
use crate::planted::Planted;
use crate::room::is_no_room;
use crate::state::{Action, State};

/// A write that found no room is done again after this time.
const NO_ROOM_PAUSE: Duration = Duration::from_millis(250);

/// A write or a sync that was taken from the state, until its end is taken in.
struct UnderWay {
    shared: Arc<Shared>,
    action: Option<Action>,
}

impl UnderWay {
    fn new(shared: &Arc<Shared>, action: Action) -> UnderWay {
        UnderWay { shared: shared.clone(), action: Some(action) }
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
            self.shared.ended(result, action);
            self.shared.drive();
        }
    }
}

impl Drop for UnderWay {
    /// Whoever was to submit it panicked.
    fn drop(&mut self) {
        if let Some(action) = self.action.take()
            && std::thread::panicking()
        {
            self.shared.ended(Err(self.shared.panicked()), action);
        }
    }
}

impl Shared {
    /// Submits what is to begin.
    pub(crate) fn drive(self: &Arc<Self>) {
        let _stop = self.stop_on_panic();
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
        UnderWay::new(self, action).submit();
    }

    /// As [`Shared::submit`], in this thread, until it has ended.
    fn run(self: &Arc<Self>, action: Action) {
        let under_way = UnderWay::new(self, action.clone());
        under_way.end(match action {
            Action::Write { file, offset, bytes, sync: true, .. } => {
                file.write_and_sync_at_blocking(offset, bytes)
            }
            Action::Write { file, offset, bytes, .. } => file.write_at_blocking(offset, bytes),
            Action::Sync { file } => file.sync_blocking(),
        });
    }

    /// Takes in how a write or a sync has ended, and tells who waited.
    fn ended(self: &Arc<Self>, result: settee_io::Result<()>, action: Action) {
        let _stop = self.stop_on_panic();
        let (write, synced) = match &action {
            Action::Write { id, bytes, sync, .. } => (Some((*id, bytes.len())), *sync),
            Action::Sync { .. } => (None, true),
        };
        if let Err(error) = result {
            match write {
                None if self.options.is_planted(Planted::SyncRetried) => return self.lock().retry_sync(),
                Some((id, _)) if is_no_room(&error) && self.keep_unwritten(id, action, &error) => {}
                _ => {
                    self.stop(error);
                    self.lock().operation_count -= 1;
                }
            }
            return self.ended.notify_waiters();
        }
        let mut state = self.lock();
        state.operation_count -= 1;
        let now = self.env.clock.now();
        let mut woken = Vec::new();
        if let Some((id, size)) = write {
            woken = state.wrote(id, size, now);
            if let Some(source) = state.no_room_beside_unsynced() {
                drop(state);
                self.stop((*source).clone());
                return self.ended.notify_waiters();
            }
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

    /// Has a write that found no room done again after a while. Returns false where the log has stopped or
    /// is being closed, and where other writes wait for their sync: some file systems report with one write
    /// that an earlier one could not be stored, and report it once, so that no later sync would tell.
    fn keep_unwritten(self: &Arc<Self>, id: u64, write: Action, error: &settee_io::Error) -> bool {
        // It wakes those who wait for buffers: before the lock is taken.
        let stall = self.env.buffers.stall(Arc::new(error.clone()));
        let mut state = self.lock();
        if state.stopped.is_some() || state.closing || state.has_unsynced() {
            return false;
        }
        if state.no_room().is_none() {
            tracing::warn!(%error, folder = %self.folder.display(), "a write waits for room on the disk");
        }
        state.operation_count -= 1;
        let is_first = state.found_no_room(id, write, stall);
        drop(state);
        if is_first {
            let (log, clock, again) = (Arc::downgrade(self), self.env.clock.clone(), self.again.clone());
            self.env.spawn("log write again", async move {
                let _stop = OnPanic(|| log.upgrade().into_iter().for_each(|shared| shared.stop_panicked()));
                select(clock.sleep(NO_ROOM_PAUSE), pin!(again.notified())).await;
                let Some(shared) = log.upgrade() else { return };
                let writes = shared.lock().take_unwritten();
                let under_way: Vec<_> =
                    writes.into_iter().map(|write| UnderWay::new(&shared, write)).collect();
                under_way.into_iter().for_each(UnderWay::submit);
            });
        }
        true
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
            let _stop = OnPanic(|| log.upgrade().into_iter().for_each(|shared| shared.stop_panicked()));
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

    /// Whether it has stopped, or is being closed.
    pub(crate) fn is_ending(&self) -> bool {
        let state = self.lock();
        state.stopped.is_some() || state.closing
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

    /// From now on a write that finds no room is given up, and stops the log. Those that wait for it are
    /// tried once more, at once.
    pub(crate) fn begin_closing(&self) {
        self.lock().closing = true;
        self.again.notify_one();
    }

    /// Returns once a write has found no room.
    pub(crate) async fn finds_no_room(&self) -> Arc<settee_io::Error> {
        loop {
            let ended = self.ended.notified();
            if let Some(source) = self.lock().no_room() {
                return source;
            }
            ended.await;
        }
    }

    /// As [`Shared::flush`]; false where a write finds no room meanwhile.
    pub(crate) async fn try_flush(self: &Arc<Self>) -> Result<bool, Stopped> {
        match select(pin!(self.flush()), pin!(self.finds_no_room())).await {
            Either::Left((flushed, _)) => flushed.map(|()| true),
            Either::Right(_) => Ok(false),
        }
    }

    /// What a panic stops the log with.
    pub(crate) fn panicked(&self) -> settee_io::Error {
        settee_io::Error::Panicked { path: self.folder.as_path().into() }
    }

    /// Stops the log after a panic: what it left can't be told.
    pub(crate) fn stop_panicked(&self) {
        self.stop(self.panicked());
    }

    /// Stops the log where whoever has this panics.
    pub(crate) fn stop_on_panic(&self) -> OnPanic<impl FnMut()> {
        OnPanic(|| self.stop_panicked())
    }

    /// Latches the first failure.
    pub(crate) fn stop(&self, error: settee_io::Error) {
        let mut state = self.lock();
        let held = self.stop_locked(&mut state, error);
        drop(state);
        // Wakes whoever waited.
        drop(held);
    }

    /// As [`Shared::stop`], for who has the lock; drops what is returned without it.
    pub(crate) fn stop_locked(&self, state: &mut State, error: settee_io::Error) -> impl Sized + use<> {
        let is_first = state.stopped.is_none();
        if is_first {
            tracing::error!(%error, folder = %self.folder.display(), "log stopped");
            state.stopped = Some(Stopped { source: Arc::new(error) });
        }
        is_first.then(|| self.let_go(state))
    }

    /// Ends the log: nothing more is begun, whoever waits is told.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        if state.stopped.is_none() {
            state.stopped = Some(self.closed());
        }
        let held = self.let_go(&mut state);
        drop(state);
        // Wakes whoever waited.
        drop(held);
    }

    /// Lets go of what is accepted and was not written, and of all who wait: nothing of it comes.
    /// Its memory is for other logs. What is returned is dropped without the lock.
    fn let_go(&self, state: &mut State) -> impl Sized + use<> {
        let held = state.clear();
        self.publish(state);
        self.timer_moved.notify_one();
        self.ended.notify_waiters();
        held
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
