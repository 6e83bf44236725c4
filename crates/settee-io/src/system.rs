//! The environment of a real machine: tokio's tasks and timers, the operating system's clocks and randomness.

use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use tokio::runtime::{Handle, Runtime};
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
            spawn: Arc::new(TokioSpawn::new(handle)),
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

/// Number of threads for background tasks, at most; and at most as many as processors.
pub const BACKGROUND_THREADS_MAX: usize = 16;

/// Nice value of the threads for background tasks: see setpriority(2).
const BACKGROUND_NICE: i32 = 3;

/// Starts tasks on a tokio runtime. Background tasks have threads of their own, at a lower priority, which start
/// with the first of them.
pub struct TokioSpawn {
    handle: Handle,
    background: OnceLock<Option<Runtime>>,
}

impl TokioSpawn {
    /// Starts tasks on the runtime of `handle`.
    pub fn new(handle: Handle) -> TokioSpawn {
        TokioSpawn { handle, background: OnceLock::new() }
    }
}

impl Spawn for TokioSpawn {
    fn spawn(&self, _name: &'static str, task: Task) {
        self.handle.spawn(task);
    }

    fn spawn_background(&self, name: &'static str, task: Task) {
        match self.background.get_or_init(start_background) {
            Some(runtime) => drop(runtime.spawn(task)),
            None => self.spawn(name, task),
        }
    }
}

impl Drop for TokioSpawn {
    fn drop(&mut self) {
        // It may be dropped in a task, where waiting for the threads isn't allowed.
        if let Some(Some(runtime)) = self.background.take() {
            runtime.shutdown_background();
        }
    }
}

impl fmt::Debug for TokioSpawn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokioSpawn").finish_non_exhaustive()
    }
}

/// Starts the threads for background tasks; `None` if the system refuses them.
fn start_background() -> Option<Runtime> {
    let count = std::thread::available_parallelism().map_or(1, usize::from).min(BACKGROUND_THREADS_MAX);
    let built = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(count)
        .thread_name("background")
        .enable_time()
        .on_thread_start(|| {
            // Of the calling thread, on Linux. Without the right to do so, the priority stays.
            if let Err(error) = rustix::process::setpriority_process(None, BACKGROUND_NICE) {
                tracing::debug!(%error, "background tasks have no lower priority");
            }
        })
        .build();
    built.map_err(|error| tracing::warn!(%error, "background tasks have no threads of their own")).ok()
}

/// The operating system's randomness (getrandom(2)).
#[derive(Debug)]
pub struct SystemRandom;

impl Random for SystemRandom {
    fn fill(&self, bytes: &mut [u8]) {
        getrandom::fill(bytes).expect("the system returns random bytes");
    }
}
