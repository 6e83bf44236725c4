//! Planned panics of tasks. As in a server, the task that panics ends and the others continue.
//!
//! An environment from [`Panics::env`] counts a task's calls to the engine, to the clock and for spawning
//! tasks, and panics in the planned call. A test that plans each call of a task in turn makes the task panic
//! wherever it uses its environment, with all that it holds there.

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
    /// Name of the task that is being polled in this thread.
    static CURRENT: Cell<&'static str> = const { Cell::new(Panics::OUTSIDE) };
}

/// A planned panic.
#[derive(Debug)]
pub struct Panics {
    task: &'static str,
    call: u64,
    count: AtomicU64,
    has_fired: AtomicBool,
}

impl Panics {
    /// The name for calls outside the environment's tasks: from completions of operations, and from the
    /// future that is run, whose panic ends the test.
    pub const OUTSIDE: &'static str = "";

    /// Plans a panic in the call with this index, counted over all tasks of this name together.
    pub fn new(task: &'static str, call: u64) -> Arc<Panics> {
        Arc::new(Panics { task, call, count: AtomicU64::new(0), has_fired: AtomicBool::new(false) })
    }

    /// Whether the panic has happened. False if the tasks made fewer calls.
    pub fn has_fired(&self) -> bool {
        self.has_fired.load(Ordering::Relaxed)
    }

    /// Returns `env` with the planned panic.
    pub fn env(self: &Arc<Self>, env: &Env) -> Env {
        Env {
            engine: Arc::new(CountingCalls { inner: env.engine.clone(), panics: self.clone() }),
            clock: Arc::new(CountingCalls { inner: env.clock.clone(), panics: self.clone() }),
            spawn: Arc::new(CountingCalls { inner: env.spawn.clone(), panics: self.clone() }),
            ..env.clone()
        }
    }

    /// Counts a call, and panics if it is the planned one.
    fn call(&self) {
        if CURRENT.get() == self.task && self.count.fetch_add(1, Ordering::Relaxed) == self.call {
            self.has_fired.store(true, Ordering::Relaxed);
            // Panics without printing a message.
            resume_unwind(Box::new("planned"));
        }
    }
}

/// A part of the environment that counts its calls.
struct CountingCalls<T: ?Sized> {
    inner: Arc<T>,
    panics: Arc<Panics>,
}

impl Engine for CountingCalls<dyn Engine> {
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

impl Clock for CountingCalls<dyn Clock> {
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

impl Spawn for CountingCalls<dyn Spawn> {
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
