//! Requests to an engine: the engine trait, and the completions that receive the results.
//!
//! A request is either submitted (the engine completes it later) or run in the caller's thread, for callers
//! without an executor.
//!
//! Invariant: a completion delivers exactly one result, unless it is abandoned (a simulated power loss).

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use tokio::sync::oneshot;

use crate::engine::descriptors::Descriptors;
use crate::engine::operation::{Descriptor, Operation, Outcome};
use crate::{AlignedBuffer, Error, Result};

/// An operation, and the completion to call with its result.
#[derive(Debug)]
pub struct Request {
    /// The operation.
    pub operation: Operation,
    /// Receives the result.
    pub completion: Completion,
}

/// Receives the result of a request. Dropped unused, it reports that the engine has stopped.
pub struct Completion(Option<Waiter>);

/// Receiver of a completion's result.
enum Waiter {
    /// The task that holds the other end of the channel.
    Task(oneshot::Sender<io::Result<Outcome>>),
    /// A function, called in the thread in which the request ends.
    Call(Box<dyn FnOnce(io::Result<Outcome>) + Send>),
}

impl Completion {
    /// Returns a completion and the channel on which its result arrives.
    pub fn new() -> (Completion, oneshot::Receiver<io::Result<Outcome>>) {
        let (sender, receiver) = oneshot::channel();
        (Completion(Some(Waiter::Task(sender))), receiver)
    }

    /// Returns a completion that calls `done` with the result, in the thread in which the request ends. That
    /// may be the thread that called [`Engine::submit`], before the call returns. `done` must be short and
    /// must not block, because the engine's thread does nothing else meanwhile. It may submit requests.
    pub fn call(done: impl FnOnce(io::Result<Outcome>) + Send + 'static) -> Completion {
        Completion(Some(Waiter::Call(Box::new(done))))
    }

    /// Delivers the result. If the waiting task is gone the result is dropped.
    pub fn complete(mut self, result: io::Result<Outcome>) {
        self.notify(result);
    }

    /// Drops it without a call: for a simulated power loss, which no task survives.
    pub fn abandon(mut self) {
        self.0 = None;
    }

    fn notify(&mut self, result: io::Result<Outcome>) {
        match self.0.take() {
            Some(Waiter::Task(sender)) => drop(sender.send(result)),
            Some(Waiter::Call(done)) => {
                // A panic of `done` must not end the engine's thread, which serves other requests too.
                let called = catch_unwind(AssertUnwindSafe(|| done(result)));
                if called.is_err() {
                    tracing::error!("the completion of an operation on a file panicked");
                }
            }
            None => {}
        }
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        self.notify(Err(stopped()));
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Completion")
    }
}

/// Runs operations on files: on the operating system ([`crate::ThreadEngine`],
/// [`crate::UringEngine`]), or in a simulation (`settee-sim`).
pub trait Engine: Send + Sync + 'static {
    /// Returns the engine's name for logs and metrics.
    fn name(&self) -> &'static str;

    /// Starts the operation and returns without waiting for it; if the queue is full it runs the operation in
    /// the caller's thread instead. The completion is called exactly once, from any thread, possibly before
    /// this returns. Operations that are in flight together may run in any order.
    fn submit(&self, request: Request);

    /// Runs the operation in the caller's thread and returns when it is done. An operation that a signal
    /// interrupted before it had any effect is repeated, so callers never see EINTR.
    fn run(&self, operation: Operation) -> io::Result<Outcome>;

    /// Returns the counter of open files, if the engine limits their number.
    fn descriptors(&self) -> Option<&Arc<Descriptors>> {
        None
    }

    /// Returns whether [`File`](crate::File) first tries buffered reads of the system's files in the caller's
    /// thread, by a system call that doesn't wait for the medium (preadv2(2) with `RWF_NOWAIT`) and that
    /// bypasses the engine. Called when a file is opened. Such a read is too short for a virtual call:
    /// processors mispredict each return to the frames above a system call, which costs up to a tenth of the
    /// read.
    fn reads_in_place(&self) -> bool {
        false
    }

    /// Reads from a cache without waiting for the medium, for files that are not the system's: as
    /// [`Operation::Read`], with the bytes in `buffer`. Returns `None` if the bytes aren't cached or the
    /// engine can't tell.
    fn read_cached(
        &self,
        file: &Descriptor,
        offset: u64,
        buffer: &mut AlignedBuffer,
    ) -> Option<io::Result<()>> {
        let _ = (file, offset, buffer);
        None
    }
}

/// The error of a request whose engine was dropped.
pub(crate) fn stopped() -> io::Error {
    io::Error::other("the engine has stopped")
}

/// Submits an operation, and returns the channel on which its result arrives.
pub(crate) fn begin(engine: &dyn Engine, operation: Operation) -> oneshot::Receiver<io::Result<Outcome>> {
    let (completion, done) = Completion::new();
    engine.submit(Request { operation, completion });
    done
}

/// Submits an operation and waits for its result.
///
/// # Errors
/// The system's error, with the operation and `path`.
pub(crate) async fn submit(engine: &dyn Engine, path: &Path, operation: Operation) -> Result<Outcome> {
    let kind = operation.kind();
    let result = begin(engine, operation).await.unwrap_or_else(|_| Err(stopped()));
    result.map_err(|source| Error::io(kind, path, source))
}
