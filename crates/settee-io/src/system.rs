//! The environment of the machine we run on: tokio's tasks and timers, the system's randomness.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::runtime::Handle;

use crate::{Clock, Env, Random, Sleep, Spawn, Task, ThreadEngine, ThreadOptions};

impl Env {
    /// The machine's environment: files through a [`ThreadEngine`], tasks and timers on the
    /// tokio runtime that `handle` names, which needs its time driver.
    pub fn system(handle: Handle, options: ThreadOptions) -> Env {
        Env {
            engine: Arc::new(ThreadEngine::new(options)),
            clock: Arc::new(SystemClock { origin: Instant::now() }),
            spawn: Arc::new(TokioSpawn(handle)),
            random: Arc::new(SystemRandom),
        }
    }
}

/// The system's clocks, and tokio's timers: a sleep must be polled on a tokio runtime.
#[derive(Debug)]
pub struct SystemClock {
    origin: Instant,
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    fn unix_us(&self) -> u64 {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    }

    fn sleep(&self, duration: Duration) -> Sleep {
        Box::pin(tokio::time::sleep(duration))
    }
}

/// Runs tasks on a tokio runtime.
#[derive(Debug)]
pub struct TokioSpawn(pub Handle);

impl Spawn for TokioSpawn {
    fn spawn(&self, _name: &'static str, task: Task) {
        self.0.spawn(task);
    }
}

/// The system's randomness (getrandom(2)).
#[derive(Debug)]
pub struct SystemRandom;

impl Random for SystemRandom {
    fn fill(&self, bytes: &mut [u8]) {
        getrandom::fill(bytes).expect("the system gives randomness");
    }
}
