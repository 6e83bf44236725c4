//! The environment of the engine's crates: files, clock, tasks, randomness, buffer memory and background
//! permits.
//!
//! No crate above uses the operating system's facilities directly (`clippy.toml` checks this), so a
//! simulation that replaces the engine, clock, executor and randomness replaces everything.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::{BufferPool, Engine, IdleHandles};

/// Number of permits of [`Env::background`]. More than one, so that sealing and compaction don't wait for
/// every checkpoint, nor checkpoints for them.
pub const BACKGROUND_COUNT: usize = 2;

/// Number of permits of [`Env::compaction`]: compactions that run at once. A compaction keeps its memory
/// while its pace limit makes it wait.
pub const COMPACTION_COUNT: usize = 4;

/// A future that an executor runs to completion.
pub type Task = Pin<Box<dyn Future<Output = ()> + Send + 'static>>;

/// A future that completes when a duration has passed.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send + 'static>>;

/// A source of time.
pub trait Clock: Send + Sync + 'static {
    /// Time since a fixed moment in the past. Monotonic.
    fn now(&self) -> Duration;

    /// Wall-clock time in microseconds since 1970-01-01 UTC. May jump.
    fn unix_us(&self) -> u64;

    /// Returns a future that completes once `duration` has passed.
    fn sleep(&self, duration: Duration) -> Sleep;
}

/// Starts tasks.
pub trait Spawn: Send + Sync + 'static {
    /// Starts `task`, which runs to completion unless the executor is shut down first. `name` is for
    /// diagnostics.
    fn spawn(&self, name: &'static str, task: Task);

    /// As [`Spawn::spawn`], for a task that computes for long without waiting. It delays no task of
    /// [`Spawn::spawn`] where the system has priorities. The default has none.
    fn spawn_background(&self, name: &'static str, task: Task) {
        self.spawn(name, task);
    }
}

/// A source of random bytes. On a real machine they are suitable for secrets.
pub trait Random: Send + Sync + 'static {
    /// Fills `bytes` with random bytes.
    fn fill(&self, bytes: &mut [u8]);
}

/// The facilities that the engine's crates run on. Cheap to clone.
#[derive(Clone)]
pub struct Env {
    /// Runs operations on files.
    pub engine: Arc<dyn Engine>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Starts tasks.
    pub spawn: Arc<dyn Spawn>,
    /// The source of randomness.
    pub random: Arc<dyn Random>,
    /// Memory for accepted and not yet written data. One pool, and so one limit, for all users of this
    /// environment.
    pub buffers: Arc<BufferPool>,
    /// Permits for background work that uses much memory or takes long. Such a job acquires one before it
    /// begins.
    pub background: Arc<Semaphore>,
    /// Permits for compactions. A compaction acquires one before it acquires a `background` permit, and
    /// releases it once the new segment is written. It releases its `background` permit while its pace limit
    /// makes it wait.
    pub compaction: Arc<Semaphore>,
    /// Files that may be closed while nobody uses them.
    pub idle_handles: Arc<IdleHandles>,
}

impl Env {
    /// Returns `N` random bytes.
    pub fn random_bytes<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        self.random.fill(&mut bytes);
        bytes
    }

    /// Starts a task; `name` is for diagnostics.
    pub fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.spawn.spawn(name, Box::pin(task));
    }

    /// Starts a task that computes for long: see [`Spawn::spawn_background`].
    pub fn spawn_background(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.spawn.spawn_background(name, Box::pin(task));
    }
}

/// Yields to the executor once. For long computations without other await points.
pub async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut yielded, true) {
            return std::task::Poll::Ready(());
        }
        context.waker().wake_by_ref();
        std::task::Poll::Pending
    })
    .await;
}

impl std::fmt::Debug for Env {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Env").field("engine", &self.engine.name()).finish_non_exhaustive()
    }
}
