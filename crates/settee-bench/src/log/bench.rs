//! The parameters of a run, and the state that its parts share.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use clap::ValueEnum;
use settee_io::{BufferPool, Engine, EngineKind, Env, PoolOptions};
use settee_log::{Log, LogOptions};
use tokio::runtime::Handle;

use crate::io::start_engine;
use crate::rounds::failed;
use crate::{Error, Result, space};

/// A part of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Values accepted in memory
    Memory,
    /// Values streamed to the disk
    Disk,
    /// Durable appends of one writer
    Durable,
    /// Durable appends of many writers
    Writers,
}

/// Parameters of a run.
#[derive(Debug, Clone, clap::Args)]
pub struct Config {
    /// I/O engine of the log: auto, io_uring or threads
    #[arg(long = "io-engine", value_name = "ENGINE", default_value = "auto")]
    pub engine: EngineKind,

    /// Factor for bytes, counts and seconds
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = crate::scale)]
    pub scale: f64,

    /// Parts of the table, separated by commas [default: all]
    #[arg(long, value_name = "PARTS", value_delimiter = ',')]
    pub parts: Vec<Part>,
}

/// The state that the parts of a run share.
pub(super) struct Bench<'a> {
    pub(super) config: &'a Config,
    pub(super) directory: &'a Path,
    engine: Arc<dyn Engine>,
    log_count: AtomicUsize,
}

/// A log under test.
pub(super) struct TestLog {
    pub(super) log: Arc<Log>,
    directory: PathBuf,
}

impl<'a> Bench<'a> {
    pub(super) fn start(config: &'a Config, directory: &'a Path) -> Result<Bench<'a>> {
        let engine = start_engine(config.engine).map_err(failed)?;
        Ok(Bench { config, directory, engine, log_count: AtomicUsize::new(0) })
    }

    /// `full` at the run's scale, at least `min`.
    pub(super) fn scaled(&self, full: usize, min: usize) -> usize {
        ((full as f64 * self.config.scale) as usize).max(min)
    }

    /// An environment with a pool of `pool_bytes` for accepted bytes that aren't written yet, or the default
    /// one.
    pub(super) fn env(&self, pool_bytes: Option<usize>) -> Env {
        let mut env = Env::with_engine(Handle::current(), self.engine.clone());
        if let Some(bytes_max) = pool_bytes {
            env.buffers = BufferPool::new(PoolOptions { bytes_max });
        }
        env
    }

    /// Opens an empty log in a new directory.
    pub(super) async fn open(&self, env: &Env, options: LogOptions) -> Result<TestLog> {
        let number = self.log_count.fetch_add(1, Ordering::Relaxed);
        let directory = self.directory.join(format!("log-{number}"));
        std::fs::create_dir(&directory).map_err(|error| Error::file(&directory, error))?;
        let (log, _) = Log::open(env, &directory, options, |_, _| {}).await.map_err(failed)?;
        Ok(TestLog { log: Arc::new(log), directory })
    }

    /// Closes the log, removes its files and syncs the file system, so that this work doesn't affect the next
    /// measurement.
    pub(super) async fn remove(&self, test_log: TestLog) -> Result<()> {
        let closed = test_log.log.close().await;
        std::fs::remove_dir_all(&test_log.directory)
            .map_err(|error| Error::file(&test_log.directory, error))?;
        space::sync_file_system(self.directory)?;
        closed.map_err(failed)
    }
}

/// Runs a task of the runtime, as a user's code would.
pub(super) async fn in_task<T: Send + 'static>(
    task: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    tokio::spawn(task).await.map_err(failed)?
}

/// Random bytes of a fixed seed.
pub(super) fn random_bytes(bytes: usize) -> Bytes {
    crate::random::random_bytes(1, bytes).into()
}
