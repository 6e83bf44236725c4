//! The environment: files, clock, tasks, randomness and memory for buffers, handed in from above.
//!
//! Nothing in the engine's crates reaches for the system's own, which `clippy.toml` checks; so
//! a simulation that replaces these four replaces everything.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use crate::{BufferPool, Engine};

/// How many may work in the background at once, with much memory or for long: one that seals or
/// compacts is not kept waiting by each checkpoint, nor the other way round.
pub const BACKGROUND_COUNT: usize = 2;

/// How many may compact at once: what they have in memory stays there while they keep within their pace.
pub const COMPACTION_COUNT: usize = 4;

/// A task to run to its end.
pub type Task = Pin<Box<dyn Future<Output = ()> + Send + 'static>>;

/// Completes when its time has come.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send + 'static>>;

/// Tells the time.
pub trait Clock: Send + Sync + 'static {
    /// Time since a fixed moment in the past; never goes backwards.
    fn now(&self) -> Duration;

    /// The calendar's time: microseconds since 1970-01-01 UTC. May jump.
    fn unix_us(&self) -> u64;

    /// Completes once `duration` has passed.
    fn sleep(&self, duration: Duration) -> Sleep;
}

/// Runs tasks.
pub trait Spawn: Send + Sync + 'static {
    /// Starts `task`, which runs to its end unless the executor ends first.
    fn spawn(&self, name: &'static str, task: Task);
}

/// Gives random bytes, good enough for secrets on a real machine.
pub trait Random: Send + Sync + 'static {
    /// Fills `bytes`.
    fn fill(&self, bytes: &mut [u8]);
}

/// Where a piece of the engine runs. Cheap to clone.
#[derive(Clone)]
pub struct Env {
    /// Files.
    pub engine: Arc<dyn Engine>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Tasks.
    pub spawn: Arc<dyn Spawn>,
    /// Randomness.
    pub random: Arc<dyn Random>,
    /// Memory for what is accepted and not yet written, bounded for all who have this
    /// environment together.
    pub buffers: Arc<BufferPool>,
    /// Whoever works in the background, with much memory or for long, takes a permit first.
    pub background: Arc<Semaphore>,
    /// Whoever compacts takes a permit of this for all of it, before one of those; the latter it gives
    /// back while it waits.
    pub compaction: Arc<Semaphore>,
}

impl Env {
    /// `N` random bytes.
    pub fn random_bytes<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        self.random.fill(&mut bytes);
        bytes
    }

    /// Starts a task.
    pub fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.spawn.spawn(name, Box::pin(task));
    }
}

/// Lets other tasks run before this one goes on: for long work between two awaits.
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
