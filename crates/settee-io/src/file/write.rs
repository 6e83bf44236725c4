//! Writes in progress. The completion of a write's request submits the next one until all of its buffer is
//! written, whether or not a task still waits for it.
//!
//! In direct mode an aligned write bypasses the page cache and an unaligned one goes through it. The kernel
//! keeps the two coherent one after the other, but not at once: the page cache is written back by pages,
//! together with the bytes that a direct write in flight is about to replace. So the gate admits either
//! direct or buffered writes, never both at once; a write of the other kind waits until those in flight have
//! ended. Reads never wait: a buffered read during a direct write leaves nothing in the cache, and a direct
//! read first writes back the cached part of its range.
//!
//! Invariants:
//! 1. `done` is called exactly once, after all of the buffer was written or a request failed. It is not
//!    called only if the engine is abandoned (a simulated power loss).
//! 2. Direct and buffered writes of one handle are never in flight together.
//! 3. A finishing write admits the next waiting writes in FIFO order. No write overtakes them, so neither
//!    kind starves the other.
//! 4. However many writes wait or come up short, the stack depth is bounded: one frame at a time admits
//!    writes.
//!
//! The gate covers the writes of one handle, not of the file. A caller that writes to the same or
//! neighbouring bytes by two handles, one of them direct, must order the writes itself.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Buf, Bytes};

use crate::engine::operation::{Operation, OperationKind, Outcome, SyncFailed};
use crate::engine::request::{Completion, Request};
use crate::file::open::OpenFile;
use crate::{AlignedBuffer, Alignment, Error, Result};

/// Most bytes that a direct write copies at once if the caller's memory isn't aligned.
const COPY_SIZE_MAX: usize = 1 << 20;

/// The part of a handle that it shares with its in-flight writes, which may outlive it.
pub(crate) struct FileShared {
    pub(crate) file: OpenFile,
    pub(crate) gate: WriteGate,
}

/// Called with the result of a write.
pub(crate) type Done = Box<dyn FnOnce(Result<()>) + Send>;

/// A write whose remaining bytes are `buffer`.
pub(crate) struct PendingWrite {
    pub(crate) shared: Arc<FileShared>,
    pub(crate) offset: u64,
    pub(crate) buffer: Bytes,
    pub(crate) sync: bool,
    pub(crate) done: Done,
}

impl PendingWrite {
    /// Submits the write, or queues it at the gate. `buffer` must not be empty.
    pub(crate) fn begin(self) {
        let direct = self.shared.file.direct_for(self.offset, self.buffer.len());
        let shared = self.shared.clone();
        if let Some(write) = shared.gate.enter(direct.is_some(), self) {
            write.submit(direct);
        }
    }

    fn submit(self, direct: Option<Alignment>) {
        let operation = next_write(&self.shared.file, self.offset, &self.buffer, self.sync, direct);
        let shared = self.shared.clone();
        let completion = Completion::call(move |result| self.finish_request(direct, result));
        shared.file.engine.submit(Request { operation, completion });
    }

    /// Continues or ends the write, and admits waiting writes.
    fn finish_request(mut self, direct: Option<Alignment>, result: io::Result<Outcome>) {
        let shared = self.shared.clone();
        let result = advance(&shared.file, &mut self.offset, &mut self.buffer, direct, result);
        if result.is_ok() && !self.buffer.is_empty() {
            shared.gate.lock().waiting.push_front(self);
            return shared.gate.leave();
        }
        shared.gate.leave();
        // `done` may close the file, so the references to it are dropped first.
        let done = self.done;
        drop((self.shared, shared));
        done(result);
    }
}

/// Returns the next request of a write.
fn next_write(
    file: &OpenFile,
    offset: u64,
    buffer: &Bytes,
    sync: bool,
    direct: Option<Alignment>,
) -> Operation {
    let Some(alignment) = direct else {
        return Operation::Write { file: file.descriptor.clone(), offset, buffer: buffer.clone(), sync };
    };
    let part = if buffer.as_ptr().addr().is_multiple_of(alignment.bytes()) {
        buffer.clone()
    } else {
        let size = buffer.len().min(COPY_SIZE_MAX.max(alignment.bytes()));
        let mut copy = AlignedBuffer::new(size, alignment);
        copy.append(&buffer[..size]);
        Bytes::from(copy)
    };
    // The sync of the last part covers the earlier ones.
    let sync = sync && part.len() == buffer.len();
    Operation::Write { file: file.direct_descriptor(), offset, buffer: part, sync }
}

/// Removes the written bytes from the front of the buffer.
fn advance(
    file: &OpenFile,
    offset: &mut u64,
    buffer: &mut Bytes,
    direct: Option<Alignment>,
    result: io::Result<Outcome>,
) -> Result<()> {
    let count = match result {
        Ok(Outcome::Count(count)) => usize::try_from(count).expect("no more than the buffer's length"),
        Ok(_) => unreachable!("write returns a count"),
        Err(error) => match error.downcast::<SyncFailed>() {
            Ok(SyncFailed(error)) => return Err(Error::io(OperationKind::Sync, &file.path, error)),
            Err(error) if direct.is_some() && file.is_refusal(&error) => return Ok(()),
            Err(error) => return Err(Error::io(OperationKind::Write, &file.path, error)),
        },
    };
    if count == 0 {
        let source = io::Error::from(io::ErrorKind::WriteZero);
        return Err(Error::io(OperationKind::Write, &file.path, source));
    }
    buffer.advance(count);
    *offset += count as u64;
    Ok(())
}

/// Writes in the caller's thread. If in-flight writes of the other kind must end first, queues the rest and
/// waits.
pub(crate) fn write_blocking(
    shared: &Arc<FileShared>,
    mut offset: u64,
    mut buffer: Bytes,
    sync: bool,
) -> Result<()> {
    while !buffer.is_empty() {
        let direct = shared.file.direct_for(offset, buffer.len());
        if !shared.gate.try_enter(direct.is_some()) {
            let (sender, receiver) = std::sync::mpsc::sync_channel(1);
            let done: Done = Box::new(move |result| drop(sender.send(result)));
            PendingWrite { shared: shared.clone(), offset, buffer, sync, done }.begin();
            return receiver.recv().unwrap_or_else(|_| Err(shared.file.stopped(OperationKind::Write)));
        }
        let result = shared.file.engine.run(next_write(&shared.file, offset, &buffer, sync, direct));
        shared.gate.leave();
        advance(&shared.file, &mut offset, &mut buffer, direct, result)?;
    }
    Ok(())
}

/// Admits either direct or buffered writes of a handle.
#[derive(Default)]
pub(crate) struct WriteGate(Mutex<GateState>);

#[derive(Default)]
struct GateState {
    in_flight_count: usize,
    /// Whether the writes in flight are direct.
    direct: bool,
    /// Waiting writes in FIFO order. Unbounded, but each already owns its buffer.
    waiting: VecDeque<PendingWrite>,
    /// Whether an outer frame or another thread is admitting writes.
    is_admitting: bool,
}

impl GateState {
    fn admits(&self, direct: bool) -> bool {
        self.in_flight_count == 0 || self.direct == direct
    }

    fn begin(&mut self, direct: bool) {
        self.in_flight_count += 1;
        self.direct = direct;
    }
}

impl WriteGate {
    fn lock(&self) -> MutexGuard<'_, GateState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the write if it is admitted; otherwise queues it.
    fn enter(&self, direct: bool, write: PendingWrite) -> Option<PendingWrite> {
        let mut state = self.lock();
        if !state.waiting.is_empty() || !state.admits(direct) {
            state.waiting.push_back(write);
            return None;
        }
        state.begin(direct);
        Some(write)
    }

    fn try_enter(&self, direct: bool) -> bool {
        let mut state = self.lock();
        let admitted = state.waiting.is_empty() && state.admits(direct);
        if admitted {
            state.begin(direct);
        }
        admitted
    }

    /// Ends one in-flight write, and admits the next waiting ones.
    fn leave(&self) {
        let mut state = self.lock();
        state.in_flight_count -= 1;
        if state.is_admitting {
            return;
        }
        state.is_admitting = true;
        while let Some(first) = state.waiting.front() {
            let direct = first.shared.file.direct_for(first.offset, first.buffer.len());
            if !state.admits(direct.is_some()) {
                break;
            }
            state.begin(direct.is_some());
            let write = state.waiting.pop_front().expect("the queue has a front");
            drop(state);
            write.submit(direct);
            state = self.lock();
        }
        state.is_admitting = false;
    }
}
