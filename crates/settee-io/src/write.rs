//! Writes on their way: each is carried on from the completion of its last request until all of
//! it is written, whether or not anyone still waits for it.
//!
//! In direct mode a write goes past the page cache where its offset and length are aligned, and
//! through it otherwise. The kernel keeps the two coherent one after the other, but not at once:
//! the page cache is written back by pages, with the bytes that a direct write in flight beside
//! them is about to replace. So the gate lets either direct or buffered writes be in flight, never
//! both; what doesn't fit waits until the others have ended. Reads never wait: a buffered read
//! beside a direct write leaves nothing in the cache, and a direct read writes back first what
//! the cache has of its range.
//!
//! Invariants:
//! 1. `done` is called exactly once, and after all of the buffer has been written; with no call
//!    only where the engine is abandoned (a simulated loss of power).
//! 2. Direct and buffered writes of one handle are never in flight together.
//! 3. A write that waits is let in by whoever leaves; the waiting are let in in their order, and
//!    nobody overtakes them, so that neither kind starves the other.
//! 4. However many wait or come up short, the stack stays flat: one frame at a time lets in.
//!
//! The gate holds one handle's writes, not the file's: who writes to the same bytes or their
//! neighbours by two handles, one of them direct, must order the writes.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Buf, Bytes};

use crate::engine::{Completion, Operation, OperationKind, Outcome, Request, SyncFailed};
use crate::file::Shared;
use crate::{AlignedBuffer, Alignment, Error, Result};

/// Most bytes that a direct write copies at once, where the caller's memory isn't aligned.
const COPY_SIZE_MAX: usize = 1 << 20;

/// Whom a write tells that it has ended.
pub(crate) type Done = Box<dyn FnOnce(Result<()>) + Send>;

/// A write of which `buffer` is still to be written.
pub(crate) struct Writing {
    pub(crate) shared: Arc<Shared>,
    pub(crate) offset: u64,
    pub(crate) buffer: Bytes,
    pub(crate) sync: bool,
    pub(crate) done: Done,
}

impl Writing {
    /// Submits the write, or has it wait at the gate. The buffer isn't empty.
    pub(crate) fn begin(self) {
        let direct = self.shared.direct_for(self.offset, self.buffer.len());
        let shared = self.shared.clone();
        if let Some(writing) = shared.gate.enter(direct.is_some(), self) {
            writing.submit(direct);
        }
    }

    fn submit(self, direct: Option<Alignment>) {
        let operation = next_write(&self.shared, self.offset, &self.buffer, self.sync, direct);
        let shared = self.shared.clone();
        let completion = Completion::call(move |result| self.ended(direct, result));
        shared.engine.submit(Request { operation, completion });
    }

    /// Goes on, or ends, and lets in who waits.
    fn ended(mut self, direct: Option<Alignment>, result: io::Result<Outcome>) {
        let shared = self.shared.clone();
        let result = advance(&shared, &mut self.offset, &mut self.buffer, direct, result);
        if result.is_ok() && !self.buffer.is_empty() {
            shared.gate.lock().waiting.push_front(self);
            return shared.gate.leave();
        }
        shared.gate.leave();
        // Whoever is told may close the file: nothing here keeps it open.
        let done = self.done;
        drop((self.shared, shared));
        done(result);
    }
}

/// The next request of a write.
fn next_write(
    shared: &Shared,
    offset: u64,
    buffer: &Bytes,
    sync: bool,
    direct: Option<Alignment>,
) -> Operation {
    let Some(alignment) = direct else {
        return Operation::Write { file: shared.descriptor.clone(), offset, buffer: buffer.clone(), sync };
    };
    let part = if buffer.as_ptr().addr().is_multiple_of(alignment.bytes()) {
        buffer.clone()
    } else {
        let size = buffer.len().min(COPY_SIZE_MAX.max(alignment.bytes()));
        let mut copy = AlignedBuffer::new(size, alignment);
        copy.append(&buffer[..size]);
        Bytes::from(copy)
    };
    // The last part's sync covers those before.
    let sync = sync && part.len() == buffer.len();
    Operation::Write { file: shared.direct_descriptor(), offset, buffer: part, sync }
}

/// Takes what was written off the buffer.
fn advance(
    shared: &Shared,
    offset: &mut u64,
    buffer: &mut Bytes,
    direct: Option<Alignment>,
    result: io::Result<Outcome>,
) -> Result<()> {
    let count = match result {
        Ok(Outcome::Count(count)) => usize::try_from(count).expect("no more than was given"),
        Ok(_) => unreachable!("write gives a count"),
        Err(error) => match error.downcast::<SyncFailed>() {
            Ok(SyncFailed(error)) => return Err(Error::io(OperationKind::Sync, &shared.path, error)),
            Err(error) if direct.is_some() && shared.is_refusal(&error) => return Ok(()),
            Err(error) => return Err(Error::io(OperationKind::Write, &shared.path, error)),
        },
    };
    if count == 0 {
        let source = io::Error::from(io::ErrorKind::WriteZero);
        return Err(Error::io(OperationKind::Write, &shared.path, source));
    }
    buffer.advance(count);
    *offset += count as u64;
    Ok(())
}

/// Writes in the caller's thread, unless writes of the other kind must end before.
pub(crate) fn write_blocking(
    shared: &Arc<Shared>,
    mut offset: u64,
    mut buffer: Bytes,
    sync: bool,
) -> Result<()> {
    while !buffer.is_empty() {
        let direct = shared.direct_for(offset, buffer.len());
        if !shared.gate.try_enter(direct.is_some()) {
            let (sender, receiver) = std::sync::mpsc::sync_channel(1);
            let done: Done = Box::new(move |result| drop(sender.send(result)));
            Writing { shared: shared.clone(), offset, buffer, sync, done }.begin();
            return receiver.recv().unwrap_or_else(|_| Err(shared.stopped(OperationKind::Write)));
        }
        let result = shared.engine.run(next_write(shared, offset, &buffer, sync, direct));
        shared.gate.leave();
        advance(shared, &mut offset, &mut buffer, direct, result)?;
    }
    Ok(())
}

/// Lets direct or buffered writes of a handle be in flight.
#[derive(Default)]
pub(crate) struct Gate(Mutex<GateState>);

#[derive(Default)]
struct GateState {
    in_flight_count: usize,
    /// Whether those in flight are direct.
    direct: bool,
    /// In order. As many as the callers begin: each has its buffer already.
    waiting: VecDeque<Writing>,
    /// A frame further up, or another thread, is letting in.
    lets_in: bool,
}

impl GateState {
    fn admits(&self, direct: bool) -> bool {
        self.in_flight_count == 0 || self.direct == direct
    }

    fn count_in(&mut self, direct: bool) {
        self.in_flight_count += 1;
        self.direct = direct;
    }
}

impl Gate {
    fn lock(&self) -> MutexGuard<'_, GateState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the write back where it may go on; otherwise it waits.
    fn enter(&self, direct: bool, writing: Writing) -> Option<Writing> {
        let mut state = self.lock();
        if !state.waiting.is_empty() || !state.admits(direct) {
            state.waiting.push_back(writing);
            return None;
        }
        state.count_in(direct);
        Some(writing)
    }

    fn try_enter(&self, direct: bool) -> bool {
        let mut state = self.lock();
        let admitted = state.waiting.is_empty() && state.admits(direct);
        if admitted {
            state.count_in(direct);
        }
        admitted
    }

    /// Ends one write in flight, and lets in who may go on.
    fn leave(&self) {
        let mut state = self.lock();
        state.in_flight_count -= 1;
        if state.lets_in {
            return;
        }
        state.lets_in = true;
        while let Some(first) = state.waiting.front() {
            let direct = first.shared.direct_for(first.offset, first.buffer.len());
            if !state.admits(direct.is_some()) {
                break;
            }
            state.count_in(direct.is_some());
            let writing = state.waiting.pop_front().expect("it was there");
            drop(state);
            writing.submit(direct);
            state = self.lock();
        }
        state.lets_in = false;
    }
}
