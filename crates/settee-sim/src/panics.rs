//! Tasks that panic at a call into their environment, as the tasks of a server do: the one that panics
//! ends, and the others go on.
//!
//! An environment from [`Panics::env`] counts the calls that the planned task makes to the engine, to
//! the clock and to spawn tasks, and panics in the one that was planned. So a test that plans each
//! call of a task in turn has it panic wherever it touches its environment, with all that it holds there.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use settee_io::{
    AlignedBuffer, Clock, Descriptor, Descriptors, Engine, Env, Operation, Outcome, Request, Sleep, Spawn,
    Task,
};

thread_local! {
    /// The task that is being polled in this thread.
    static CURRENT: Cell<&'static str> = const { Cell::new(Panics::OUTSIDE) };
}

/// One planned panic.
#[derive(Debug)]
pub struct Panics {
    task: &'static str,
    call: u64,
    count: AtomicU64,
    has_fired: AtomicBool,
}

impl Panics {
    /// The name of what is not a task of the environment: the completions of operations, and the future
    /// that is run, whose panic ends the test.
    pub const OUTSIDE: &'static str = "";

    /// The call with this index, of those that all tasks of this name make together, panics.
    pub fn new(task: &'static str, call: u64) -> Arc<Panics> {
        Arc::new(Panics { task, call, count: AtomicU64::new(0), has_fired: AtomicBool::new(false) })
    }

    /// Whether it has panicked: not where the task made fewer calls.
    pub fn has_fired(&self) -> bool {
        self.has_fired.load(Ordering::Relaxed)
    }

    /// An environment whose tasks may panic.
    pub fn env(self: &Arc<Self>, env: &Env) -> Env {
        Env {
            engine: Arc::new(Calls { inner: env.engine.clone(), panics: self.clone() }),
            clock: Arc::new(Calls { inner: env.clock.clone(), panics: self.clone() }),
            spawn: Arc::new(Calls { inner: env.spawn.clone(), panics: self.clone() }),
            ..env.clone()
        }
    }

    /// Counts a call, and panics where it was planned.
    fn call(&self) {
        if CURRENT.get() == self.task && self.count.fetch_add(1, Ordering::Relaxed) == self.call {
            self.has_fired.store(true, Ordering::Relaxed);
            // As a panic, but nothing is printed.
            resume_unwind(Box::new("planned"));
        }
    }
}

/// A part of the environment, whose calls are counted.
struct Calls<T: ?Sized> {
    inner: Arc<T>,
    panics: Arc<Panics>,
}

impl Engine for Calls<dyn Engine> {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn submit(&self, request: Request) {
        self.panics.call();
        self.inner.submit(request);
    }

    fn run(&self, operation: Operation) -> io::Result<Outcome> {
        self.panics.call();
        self.inner.run(operation)
    }

    fn descriptors(&self) -> Option<&Arc<Descriptors>> {
        self.inner.descriptors()
    }

    fn reads_in_place(&self) -> bool {
        self.inner.reads_in_place()
    }

    fn read_cached(
        &self,
        file: &Descriptor,
        offset: u64,
        buffer: &mut AlignedBuffer,
    ) -> Option<io::Result<()>> {
        self.panics.call();
        self.inner.read_cached(file, offset, buffer)
    }
}

impl Clock for Calls<dyn Clock> {
    fn now(&self) -> Duration {
        self.panics.call();
        self.inner.now()
    }

    fn unix_us(&self) -> u64 {
        self.panics.call();
        self.inner.unix_us()
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        self.panics.call();
        self.inner.sleep(duration)
    }
}

impl Spawn for Calls<dyn Spawn> {
    fn spawn(&self, name: &'static str, mut task: Task) {
        self.panics.call();
        let task = poll_fn(move |context| {
            let outside = CURRENT.replace(name);
            let polled = catch_unwind(AssertUnwindSafe(|| task.as_mut().poll(context)));
            CURRENT.set(outside);
            polled.unwrap_or(Poll::Ready(()))
        });
        self.inner.spawn(name, Box::pin(task));
    }
}
