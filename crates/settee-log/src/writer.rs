//! The writer: the one task that hands accepted bytes to the system.
//!
//! It takes whatever has come as one group, writes it, with a sync where somebody waits for
//! one, moves the marks, wakes who waited, and looks again: so what arrives during a sync forms
//! the next group, and a lone writer is never delayed. A group costs two hand-overs, to the
//! engine and back.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{Either, select};
use settee_io::File;

use crate::error::Stopped;
use crate::format::SYNC_ALIGNMENT;
use crate::log::{Mark, Shared, State, position};

/// What the writer does next.
enum Step {
    /// Write the bytes at the offset, and sync the file where `sync` says so.
    Write { segment: u32, file: Arc<File>, offset: u32, bytes: Bytes, end: Mark, sync: bool },
    /// Sync what has been written.
    Sync { file: Arc<File>, end: Mark },
    /// Nothing to do until work comes, or until the time is up.
    Wait(Option<Duration>),
    /// The log has ended.
    End,
}

/// Runs until the log ends.
pub(crate) async fn run(shared: Arc<Shared>) {
    loop {
        match shared.next_step() {
            Step::Write { segment, file, offset, bytes, end, sync } => {
                let length = bytes.len();
                let result = match sync {
                    true => file.write_and_sync_at(u64::from(offset), bytes).await,
                    false => file.write_at(u64::from(offset), bytes).await,
                };
                match result {
                    Ok(()) => shared.wrote(segment, end, length, sync),
                    Err(error) => shared.stop(error),
                }
            }
            Step::Sync { file, end } => match file.sync().await {
                Ok(()) => shared.synced(end),
                Err(error) => shared.stop(error),
            },
            Step::Wait(None) => shared.work.notified().await,
            Step::Wait(Some(time)) => {
                let work = std::pin::pin!(shared.work.notified());
                // Whichever it was, the next look tells what to do.
                if let Either::Right(_) = select(work, shared.env.clock.sleep(time)).await {
                    shared.age();
                }
            }
            Step::End => return,
        }
    }
}

impl Shared {
    fn next_step(&self) -> Step {
        let mut guard = self.lock();
        let state = &mut *guard;
        if state.stopped.is_some() {
            return match state.closing {
                true => Step::End,
                false => Step::Wait(None),
            };
        }
        let Some(segment) = &state.segment else {
            return Step::Wait(None);
        };
        if state.accepted.seq > state.written.seq {
            let bytes = Bytes::from(std::mem::take(&mut state.buffer));
            let (offset, end) = (state.buffer_offset, state.accepted);
            state.writing = Some((offset, bytes.clone()));
            state.group += 1;
            let is_old =
                state.unsynced_since.is_some_and(|since| self.env.clock.now() >= since + self.age_max());
            let sync = is_old || state.persist_wanted > state.persisted.seq;
            let (segment, file) = (segment.number, segment.file.clone());
            state.begin_group(sync);
            return Step::Write { segment, file, offset, bytes, end, sync };
        }
        if state.persist_wanted > state.persisted.seq {
            let (file, end) = (segment.file.clone(), state.written);
            state.begin_group(true);
            return Step::Sync { file, end };
        }
        Step::Wait(
            state.unsynced_since.map(|since| (since + self.age_max()).saturating_sub(self.env.clock.now())),
        )
    }

    fn age_max(&self) -> Duration {
        Duration::from_millis(self.options.written_age_ms_max)
    }

    fn wrote(&self, segment: u32, end: Mark, length: usize, synced: bool) {
        let mut state = self.lock();
        state.written = end;
        state.writing = None;
        state.stats.write_count += 1;
        state.stats.written_bytes += length as u64;
        if state.unsynced_since.is_none() {
            state.unsynced_since = Some(self.env.clock.now());
        }
        self.written_position.store(position(segment, end.offset), Ordering::Release);
        let woken = state.written_waiters.take_up_to(end.seq);
        drop(state);
        woken.into_iter().for_each(wake);
        if synced {
            self.synced(end);
        }
    }

    fn synced(&self, end: Mark) {
        let mut state = self.lock();
        state.persisted = end;
        state.unsynced_since = None;
        state.stats.sync_count += 1;
        self.persisted_seq.store(end.seq, Ordering::Release);
        let woken = state.persisted_waiters.take_up_to(end.seq);
        drop(state);
        woken.into_iter().for_each(wake);
    }

    /// What is written has waited long enough for a sync.
    fn age(&self) {
        let mut state = self.lock();
        state.persist_wanted = state.persist_wanted.max(state.written.seq);
    }

    /// Latches the first failure.
    pub(crate) fn stop(&self, error: settee_io::Error) {
        tracing::error!(%error, folder = %self.folder.display(), "log stopped");
        let mut state = self.lock();
        if state.stopped.is_none() {
            state.stopped = Some(Stopped { source: Arc::new(error) });
        }
        state.written_waiters.clear();
        state.persisted_waiters.clear();
    }
}

impl State {
    /// Lets the next group begin behind what has been accepted; apart from it where that is
    /// about to be synced.
    fn begin_group(&mut self, synced: bool) {
        if synced {
            let begin = self.accepted.offset.next_multiple_of(SYNC_ALIGNMENT);
            self.stats.file_bytes += u64::from(begin - self.accepted.offset);
            self.accepted.offset = begin;
        }
        self.buffer_offset = self.accepted.offset;
    }
}

fn wake(waiter: tokio::sync::oneshot::Sender<()>) {
    // Whoever waited may have gone.
    let _ = waiter.send(());
}
