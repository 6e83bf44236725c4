//! What the log reaches, against what the machine gives and what other engines reach.
//!
//! - Bytes taken into memory against memcpy; a stream to the disk against `fio`.
//! - Small batches against the write-ahead logs of fjall and RocksDB, which run in a process of
//!   their own (the `peers` directory of the source tree) where that was built.
//! - Durable appends of one writer against write(2) and fdatasync(2) in a loop; of many, against
//!   one, and against what a sync and a group's processor time come to.
//! - A stream under a memory limit: how long it holds up a task that shares its thread.
//!
//! What is compared runs in turn, round by round, in the same run; figures are medians of the
//! rounds unless a row says otherwise. Values are random bytes of a fixed seed, made before the
//! clock starts. What isn't there to compare with leaves a row without ratio, never without row.

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
pub use row::{Against, Aim, Row, heading};

/// Rounds of a row, unless it says otherwise.
const ROUND_COUNT: usize = 5;

/// A pause before each part: a disk goes on with what it was given before, removed files too.
const PART_PAUSE: Duration = Duration::from_secs(3);

/// A part of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Values taken into memory.
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
    /// All, in the table's order.
    pub const ALL: [Part; 6] =
        [Part::Memory, Part::Disk, Part::Batches, Part::Durable, Part::Writers, Part::Limit];
}

/// What is measured, and where.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where the files are made.
    pub directory: PathBuf,
    /// The binary of the peers' crate; without it those rows have no ratio.
    pub peers: Option<PathBuf>,
    /// This program, to run [`hold_up`] in a process of its own: `PROGRAM bench log-hold-up
    /// DIRECTORY BYTES ENGINE CGROUP`.
    pub program: PathBuf,
    /// Which engine does the log's I/O.
    pub engine: EngineKind,
    /// Multiplies bytes, counts and times: 1 is the full size.
    pub scale: f64,
    /// Which parts.
    pub parts: Vec<Part>,
}

impl Config {
    /// What is measured where, in words.
    ///
    /// # Errors
    /// [`Error::Wrong`] where there is no such engine.
    pub fn title(&self) -> Result<String> {
        Ok(format!(
            "the log on {}, random values, in {}; {}; peers: {}",
            start_engine(self.engine)?.name(),
            self.directory.display(),
            crate::io::subject::machine(&self.directory),
            self.peers.as_ref().map_or("none, see --peers".to_owned(), |path| path.display().to_string()),
        ))
    }

    /// `full` at this scale, and no less than `least`.
    fn scaled(&self, full: usize, least: usize) -> usize {
        ((full as f64 * self.scale) as usize).max(least)
    }
}

/// Limits of the log where it takes a stream: its segments are as large from the start as those
/// of a log of 1 GiB and more, as the peer's file is laid out before.
fn stream_options(direct: bool) -> LogOptions {
    let options = LogOptions::default();
    LogOptions { direct, segment_bytes_min: options.segment_bytes_max, ..options }
}

/// Bytes on the disk at once, at full size: what the log has streamed beside the peer's file.
const DISK_BYTES_MAX: u64 = 5 << 30;

/// Measures, and hands out each row as it comes. Its files are gone afterwards. It takes the
/// calling thread, which must not be a task's, and starts an executor of its own.
///
/// # Errors
/// [`Error::Space`] before anything is written; [`Error::File`], and [`Error::Wrong`] with what
/// the log or a peer said.
pub fn run(config: &Config, mut each: impl FnMut(Row)) -> Result<()> {
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

/// What the parts share.
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

    /// An environment with a pool of `pool_bytes` for what is accepted and not yet written.
    fn env(&self, pool_bytes: usize) -> Env {
        let env = Env::with_engine(self.runtime.handle().clone(), self.engine.clone());
        Env { buffers: BufferPool::new(PoolOptions { bytes_max: pool_bytes }), ..env }
    }

    /// An environment with the default pool.
    fn default_env(&self) -> Env {
        Env::with_engine(self.runtime.handle().clone(), self.engine.clone())
    }

    /// An empty log in a directory of its own.
    fn open(&self, env: &Env, options: LogOptions) -> Result<Subject> {
        let number = self.log_count.replace(self.log_count.get() + 1);
        let directory = self.path().join(format!("log-{number}"));
        let log = self.runtime.block_on(open(env, &directory, options))?;
        Ok(Subject { log: Arc::new(log), directory })
    }

    /// Closes the log and removes its files.
    fn remove(&self, subject: Subject) -> Result<()> {
        let closed = self.runtime.block_on(subject.log.close());
        remove_directory(&subject.directory)?;
        closed.map_err(refused)
    }

    /// Runs in a task of the runtime, as a user's code would.
    fn in_task<T: Send + 'static>(
        &self,
        task: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let task = self.runtime.spawn(task);
        self.runtime.block_on(task).unwrap_or_else(|error| Err(refused(error)))
    }
}

/// A log that is measured.
struct Subject {
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

/// Removes it, and lets the file system take note, so that it doesn't during what comes next.
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

/// An error of the log, as one of the measurement.
fn refused(error: impl std::fmt::Display) -> Error {
    Error::wrong("bench log", error.to_string())
}

/// The median of at least one value.
fn median(values: &[f64]) -> f64 {
    crate::io::row::median(values.to_vec()).expect("there is a round")
}

/// The rounds' figures beside their median, so that their spread shows.
fn rounds_text(values: &[f64]) -> String {
    let texts: Vec<String> = values.iter().map(|value| row::figure(*value)).collect();
    texts.join(" ")
}

#[cfg(test)]
mod tests;
