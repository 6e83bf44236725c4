//! The environment of a real machine: tokio's tasks and timers, the operating system's clocks and randomness.

use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::timer::ShortTimer;
use crate::{BACKGROUND_COUNT, BufferPool, COMPACTION_COUNT, PoolOptions};
use crate::{Clock, Engine, Env, IDLE_HANDLES_MAX, IdleHandles, Random, Sleep, Spawn, Task};
use crate::{ThreadEngine, ThreadOptions, UringEngine, UringOptions};

/// The engine that runs the operations on files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EngineKind {
    /// io_uring where the machine has it, else threads.
    #[default]
    Auto,
    /// io_uring, else an error.
    Uring,
    /// Threads only.
    Threads,
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            EngineKind::Auto => "auto",
            EngineKind::Uring => "io_uring",
            EngineKind::Threads => "threads",
        })
    }
}

impl FromStr for EngineKind {
    type Err = String;

    fn from_str(name: &str) -> Result<EngineKind, String> {
        [EngineKind::Auto, EngineKind::Uring, EngineKind::Threads]
            .into_iter()
            .find(|kind| kind.to_string() == name)
            .ok_or_else(|| format!("{name:?} is not an engine: auto, io_uring or threads"))
    }
}

/// The choice of an engine, and its limits.
#[derive(Debug, Clone, Copy, Default)]
pub struct EngineOptions {
    /// The engine. Default: [`EngineKind::Auto`].
    pub kind: EngineKind,
    /// Limits of the threads, which each engine has.
    pub threads: ThreadOptions,
    /// Limits of the ring, if there is one.
    pub uring: UringOptions,
}

impl EngineOptions {
    /// Starts the engine. Logs its name, and with [`EngineKind::Auto`] the reason if io_uring is not
    /// available. [`Engine::name`] returns the name later.
    ///
    /// # Errors
    /// With [`EngineKind::Uring`], the reason why io_uring is not available; nothing keeps running.
    pub fn start(&self) -> io::Result<Arc<dyn Engine>> {
        self.start_with(UringEngine::new)
    }

    /// Starts the engine as [`EngineOptions::start`] does, with the ring from `start_ring`.
    pub(crate) fn start_with(
        &self,
        start_ring: impl FnOnce(UringOptions, Arc<ThreadEngine>) -> io::Result<UringEngine>,
    ) -> io::Result<Arc<dyn Engine>> {
        let threads = Arc::new(ThreadEngine::new(self.threads));
        let engine: Arc<dyn Engine> = match self.kind {
            EngineKind::Threads => threads,
            EngineKind::Uring => Arc::new(start_ring(self.uring, threads)?),
            EngineKind::Auto => match start_ring(self.uring, threads.clone()) {
                Ok(engine) => Arc::new(engine),
                Err(reason) => {
                    tracing::debug!(%reason, "io_uring is not available: file operations run on threads");
                    threads
                }
            },
        };
        tracing::debug!(engine = engine.name(), wanted = %self.kind, "the file engine has started");
        Ok(engine)
    }
}

impl Env {
    /// Returns the environment of a real machine: files through a [`ThreadEngine`], tasks and timers on the
    /// tokio runtime of `handle`, which needs its time driver.
    pub fn system(handle: Handle, options: ThreadOptions) -> Env {
        Env::with_engine(handle, Arc::new(ThreadEngine::new(options)))
    }

    /// As [`Env::system`], on the caller's runtime.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn current(options: ThreadOptions) -> Env {
        Env::system(Handle::current(), options)
    }

    /// As [`Env::system`], with files through `engine`, from [`EngineOptions::start`].
    pub fn with_engine(handle: Handle, engine: Arc<dyn Engine>) -> Env {
        let files_max = engine.descriptors().map_or(usize::MAX, |descriptors| descriptors.count_max());
        Env {
            idle_handles: IdleHandles::new(IDLE_HANDLES_MAX.min(files_max / 4)),
            engine,
            clock: Arc::new(SystemClock::new()),
            spawn: Arc::new(TokioSpawn(handle)),
            random: Arc::new(SystemRandom),
            buffers: BufferPool::new(PoolOptions::default()),
            background: Arc::new(Semaphore::new(BACKGROUND_COUNT)),
            compaction: Arc::new(Semaphore::new(COMPACTION_COUNT)),
        }
    }
}

/// The operating system's clocks. A thread of the clock's own serves sleeps shorter than 2 ms, with a
/// precision of tens of microseconds. Longer sleeps, and those beyond the thread's limit, use tokio's timers,
/// with a precision of a millisecond, and must be created and polled on a tokio runtime. The thread starts
/// with the first short sleep and ends with the clock.
pub struct SystemClock {
    origin: Instant,
    timer: ShortTimer,
}

impl SystemClock {
    pub(crate) fn new() -> SystemClock {
        SystemClock { origin: Instant::now(), timer: ShortTimer::default() }
    }
}

impl fmt::Debug for SystemClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SystemClock").field("origin", &self.origin).finish_non_exhaustive()
    }
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
        match self.timer.sleep(duration) {
            Some(sleep) => Box::pin(sleep),
            None => Box::pin(tokio::time::sleep(duration)),
        }
    }
}

/// Starts tasks on a tokio runtime.
#[derive(Debug)]
pub struct TokioSpawn(pub Handle);

impl Spawn for TokioSpawn {
    fn spawn(&self, _name: &'static str, task: Task) {
        self.0.spawn(task);
    }
}

/// The operating system's randomness (getrandom(2)).
#[derive(Debug)]
pub struct SystemRandom;

impl Random for SystemRandom {
    fn fill(&self, bytes: &mut [u8]) {
        getrandom::fill(bytes).expect("the system returns random bytes");
    }
}
