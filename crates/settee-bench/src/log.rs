//! Benchmark of the log, compared with the machine's limits and with other engines.
//!
//! - Bytes accepted in memory, compared with memcpy; a stream to the disk, compared with `fio`.
//! - Small batches, compared with the write-ahead logs of fjall and RocksDB, which run in a separate process
//!   (the `peers` directory of the source tree) if that was built.
//! - Durable appends of one writer, compared with write(2) and fdatasync(2) in a loop; of many writers,
//!   compared with fewer ones, and with the sum of a sync and a group's processor time.
//! - A stream under a memory limit: its rate, and how long it delays a task on the same thread.
//!
//! A workload and its peers run alternately, in rounds of the same run. Figures are medians of the rounds
//! unless a row has other information. Values are random bytes of a fixed seed, generated before the measured
//! time. A row without a peer has no ratio.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use settee_io::{BufferPool, Engine, EngineKind, EngineOptions, Env, PoolOptions};
use settee_log::{Log, LogOptions};
use tokio::runtime::Runtime;

use crate::space;
use crate::{Error, Result};

mod batches;
mod durable;
pub(crate) mod limit;
mod peers;
mod row;
mod stream;
mod writers;

pub use limit::{Phase, hold_up};
pub use row::{Against, LogAim, LogRow, heading};

/// Default number of rounds of a row.
const ROUND_COUNT: usize = 5;

/// Pause before each part, since a disk may still process earlier writes and removals.
const PART_PAUSE: Duration = Duration::from_secs(3);

/// A part of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Values accepted in memory.
    Memory,
    /// Values streamed to the disk.
    Disk,
    /// Small values in batches.
    Batches,
    /// Durable appends of one writer.
    Durable,
    /// Durable appends of many writers.
    Writers,
    /// A stream under a memory limit.
    Limit,
}

impl Part {
    /// All parts, in the table's order.
    pub const ALL: [Part; 6] =
        [Part::Memory, Part::Disk, Part::Batches, Part::Durable, Part::Writers, Part::Limit];
}

/// Parameters of a run.
#[derive(Debug, Clone)]
pub struct Config {
    /// The directory for the files.
    pub directory: PathBuf,
    /// The binary of the peers' crate. None: their rows have no ratio.
    pub peers: Option<PathBuf>,
    /// This program, which runs [`hold_up`] in a separate process: `PROGRAM bench log-hold-up
    /// DIRECTORY BYTES ENGINE CGROUP`.
    pub program: PathBuf,
    /// The engine for the log's I/O.
    pub engine: EngineKind,
    /// Factor for bytes, counts and times: 1 is the full size.
    pub scale: f64,
    /// The parts to run.
    pub parts: Vec<Part>,
}

impl Config {
    /// A description of the run for the table's head.
    ///
    /// # Errors
    /// [`Error::Wrong`] if the engine can't be started.
    pub fn title(&self) -> Result<String> {
        Ok(format!(
            "the log on {}, random values, in {}; {}; peers: {}",
            start_engine(self.engine)?.name(),
            self.directory.display(),
            crate::io::data_file::machine(&self.directory),
            self.peers.as_ref().map_or("none, see --peers".to_owned(), |path| path.display().to_string()),
        ))
    }

    /// `full` at this scale, at least `min`.
    fn scaled(&self, full: usize, min: usize) -> usize {
        ((full as f64 * self.scale) as usize).max(min)
    }
}

/// Options of a log for a stream. From the start its segments are as large as those of a log of 1 GiB and
/// more, since the peer's file is preallocated.
fn stream_options(direct: bool) -> LogOptions {
    let options = LogOptions::default();
    LogOptions { direct, segment_bytes_min: options.segment_bytes_max, ..options }
}

/// Maximum bytes on disk at full size: the streamed log and the peer's file.
const DISK_BYTES_MAX: u64 = 5 << 30;

/// Runs the benchmark, calls `each` with each row as it is measured, and removes its files. Blocks the
/// calling thread, which must not be an executor's, and starts its own executor.
///
/// # Errors
/// [`Error::Space`] before anything is written; [`Error::File`], and [`Error::Wrong`] with the error of the
/// log or a peer.
pub fn run(config: &Config, mut each: impl FnMut(LogRow)) -> Result<()> {
    let needed = (DISK_BYTES_MAX as f64 * config.scale.min(1.0) / 2.0) as u64;
    space::check(&config.directory, needed)?;
    let bench = Bench::start(config.clone())?;
    for part in Part::ALL.into_iter().filter(|part| config.parts.contains(part)) {
        std::thread::sleep(PART_PAUSE.mul_f64(config.scale));
        match part {
            Part::Memory => stream::memory(&bench, &mut each)?,
            Part::Disk => stream::disk(&bench, &mut each)?,
            Part::Batches => batches::run(&bench, &mut each)?,
            Part::Durable => durable::run(&bench, &mut each)?,
            Part::Writers => writers::run(&bench, &mut each)?,
            Part::Limit => limit::run(&bench, &mut each)?,
        }
    }
    Ok(())
}

/// The state that the parts of a run share.
struct Bench {
    config: Config,
    directory: space::Directory,
    runtime: Runtime,
    engine: Arc<dyn Engine>,
    log_count: Cell<usize>,
}

impl Bench {
    fn start(config: Config) -> Result<Bench> {
        let directory = space::Directory::new(Some(&config.directory))?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .map_err(|error| Error::file(&config.directory, error))?;
        let engine = start_engine(config.engine)?;
        Ok(Bench { config, directory, runtime, engine, log_count: Cell::new(0) })
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    /// An environment with a pool of `pool_bytes` for accepted bytes that aren't written yet.
    fn env(&self, pool_bytes: usize) -> Env {
        let env = Env::with_engine(self.runtime.handle().clone(), self.engine.clone());
        Env { buffers: BufferPool::new(PoolOptions { bytes_max: pool_bytes }), ..env }
    }

    /// An environment with the default pool.
    fn default_env(&self) -> Env {
        Env::with_engine(self.runtime.handle().clone(), self.engine.clone())
    }

    /// Opens an empty log in a new directory.
    fn open(&self, env: &Env, options: LogOptions) -> Result<TestLog> {
        let number = self.log_count.replace(self.log_count.get() + 1);
        let directory = self.path().join(format!("log-{number}"));
        let log = self.runtime.block_on(open(env, &directory, options))?;
        Ok(TestLog { log: Arc::new(log), directory })
    }

    /// Closes the log and removes its files.
    fn remove(&self, test_log: TestLog) -> Result<()> {
        let closed = self.runtime.block_on(test_log.log.close());
        remove_directory(&test_log.directory)?;
        closed.map_err(refused)
    }

    /// Runs `task` as a task of the runtime, as a user's code would.
    fn in_task<T: Send + 'static>(
        &self,
        task: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let task = self.runtime.spawn(task);
        self.runtime.block_on(task).unwrap_or_else(|error| Err(refused(error)))
    }
}

/// A log under test.
struct TestLog {
    log: Arc<Log>,
    directory: PathBuf,
}

async fn open(env: &Env, directory: &Path, options: LogOptions) -> Result<Log> {
    std::fs::create_dir_all(directory).map_err(|error| Error::file(directory, error))?;
    let (log, _) = Log::open(env, directory, options, |_, _| {}).await.map_err(refused)?;
    Ok(log)
}

fn start_engine(kind: EngineKind) -> Result<Arc<dyn Engine>> {
    EngineOptions { kind, ..EngineOptions::default() }
        .start()
        .map_err(|error| Error::wrong("engine", error.to_string()))
}

/// Removes a directory and syncs the file system, so that this work doesn't affect the next measurement.
fn remove_directory(directory: &Path) -> Result<()> {
    let failed = |error| Error::file(directory, error);
    std::fs::remove_dir_all(directory).map_err(failed)?;
    settle(directory.parent().unwrap_or(directory))
}

fn settle(directory: &Path) -> Result<()> {
    let synced = std::fs::File::open(directory).and_then(|file| Ok(rustix::fs::syncfs(file)?));
    synced.map_err(|error| Error::file(directory, error))
}

/// Random bytes of a fixed seed.
fn random_bytes(bytes: usize) -> Bytes {
    crate::random::random_bytes(1, bytes).into()
}

/// Converts an error of the log.
fn refused(error: impl std::fmt::Display) -> Error {
    Error::wrong("bench log", error.to_string())
}

/// The median of at least one value.
fn median(values: &[f64]) -> f64 {
    crate::io::row::median(values.to_vec()).expect("there is a round")
}

/// The figures of all rounds, for a note that shows their spread.
fn rounds_text(values: &[f64]) -> String {
    let texts: Vec<String> = values.iter().map(|value| row::figure(*value)).collect();
    texts.join(" ")
}

#[cfg(test)]
mod tests;
