//! Benchmark of file I/O through `settee-io`, compared with the machine's limits: random reads, and flushes
//! of large buffers.
//!
//! - Random 4 KiB reads of a file of random bytes: cold and past the page cache, compared with `fio`; cached,
//!   compared with pread(2).
//! - Sequential writes by size, number in flight, engine and mode, compared with `fio`.
//!
//! Peers run on the same files in the same rounds; ratios are medians over the rounds. If `fio` isn't
//! installed or fails, the row has the reason and no ratio.

use std::io as std_io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use settee_io::{DirectMode, Engine, EngineKind, EngineOptions, File, OpenMode, RingUse};

use crate::space;
use crate::{Error, Result};

pub(crate) mod data_file;
pub(crate) mod fio;
mod flush;
mod random;
pub mod row;

pub use data_file::BLOCK_BYTES;
pub use flush::{IN_FLIGHT_COUNTS, SIZES};
pub(crate) use random::{ended, run_blocking};
pub use row::{IoRow, RatioAim};

/// A part of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Random reads past the page cache.
    Cold,
    /// Random reads from the page cache.
    Cached,
    /// Sequential writes.
    Flush,
}

/// Parameters of a run.
#[derive(Debug, Clone)]
pub struct Config {
    /// The directory for the files.
    pub directory: PathBuf,
    /// Bytes of the file that is read, a multiple of [`BLOCK_BYTES`].
    pub file_bytes: u64,
    /// Duration of a workload of reads in a round.
    pub duration: Duration,
    /// Number of rounds of reads. Each workload is measured once per round.
    pub rounds: usize,
    /// Number of rounds of flushes. Each combination of parameters is measured once per round.
    pub flush_rounds: usize,
    /// Bytes that are flushed for each combination, a multiple of the largest of [`SIZES`].
    pub flush_bytes: u64,
    /// The parts to run.
    pub parts: Vec<Part>,
    fio: Option<fio::Fio>,
}

impl Config {
    /// All parts at full size, with `fio` if it is installed.
    pub fn new(directory: impl Into<PathBuf>) -> Config {
        Config {
            directory: directory.into(),
            file_bytes: 1 << 30,
            duration: Duration::from_millis(600),
            rounds: 5,
            flush_rounds: 3,
            flush_bytes: 512 << 20,
            parts: vec![Part::Cold, Part::Cached, Part::Flush],
            fio: fio::Fio::find(),
        }
    }

    /// The small form, which takes seconds; its figures aren't reliable.
    pub fn small(self) -> Config {
        Config {
            file_bytes: 8 << 20,
            duration: Duration::from_millis(20),
            rounds: 1,
            flush_rounds: 1,
            flush_bytes: *SIZES.iter().max().expect("there are some") as u64,
            ..self
        }
    }

    /// Runs without `fio` even if it is installed.
    pub fn without_fio(mut self) -> Config {
        self.fio = None;
        self
    }

    /// A description of the run for the table's head.
    pub fn title(&self) -> String {
        format!(
            "a file of {} MiB of random bytes in {}, reads in {} round(s) of {} ms; flushes of {} MiB, \
             {} round(s), each with one sync\n{}; peer: {}",
            self.file_bytes >> 20,
            self.directory.display(),
            self.rounds,
            self.duration.as_millis(),
            self.flush_bytes >> 20,
            self.flush_rounds,
            data_file::machine(&self.directory),
            self.fio.as_ref().map_or("no fio", |fio| &fio.version),
        )
    }
}

/// Runs the benchmark, calls `each` with each row as it is measured, and removes its files. Needs a tokio
/// runtime of several threads; cancelled by dropping the future.
///
/// # Errors
/// [`Error::Space`] before anything is written; [`Error::File`] and [`Error::Wrong`].
pub async fn run(config: &Config, mut each: impl FnMut(IoRow)) -> Result<()> {
    let largest = *SIZES.iter().max().expect("there are some") as u64;
    if config.file_bytes == 0
        || !config.file_bytes.is_multiple_of(BLOCK_BYTES as u64)
        || config.flush_bytes == 0
        || !config.flush_bytes.is_multiple_of(largest)
        || config.rounds == 0
        || config.flush_rounds == 0
    {
        let reason =
            format!("files are of whole blocks, flushes of whole {largest} bytes, rounds one at least");
        return Err(Error::wrong("bench io", reason));
    }
    space::check(&config.directory, config.file_bytes + config.flush_bytes)?;
    let directory = space::Directory::new(Some(&config.directory))?;
    if config.parts.iter().any(|part| *part != Part::Flush) {
        let path = directory.path().join("random");
        let (made, bytes) = (path.clone(), config.file_bytes);
        run_blocking(move || data_file::create(&made, bytes, 1).and_then(|()| data_file::evict(&made, 1)))
            .await?;
        if config.parts.contains(&Part::Cold) {
            random::cold(config, &path, &mut each).await?;
        }
        if config.parts.contains(&Part::Cached) {
            let warmed = path.clone();
            run_blocking(move || data_file::warm(&warmed)).await?;
            random::cached(config, &path, &mut each).await?;
        }
    }
    if config.parts.contains(&Part::Flush) {
        flush::measure(config, directory.path(), &mut each).await?;
    }
    Ok(())
}

/// Starts an engine, or returns the reason why it can't be started.
pub(crate) fn start_engine(kind: EngineKind, ring_use: Option<RingUse>) -> Result<Arc<dyn Engine>, String> {
    let mut options = EngineOptions { kind, ..EngineOptions::default() };
    if let Some(ring_use) = ring_use {
        options.uring.ring_use = ring_use;
    }
    options.start().map_err(|error: std_io::Error| format!("no {kind} engine: {error}"))
}

/// Opens a file in direct mode, or returns the reason why the file system refuses it.
pub(crate) async fn open_direct(engine: &Arc<dyn Engine>, path: &Path) -> Result<Result<File, String>> {
    let file = File::open(engine, path, OpenMode::Read).await.map_err(failed)?;
    Ok(set_direct(&file).await?.map(|()| file))
}

/// Switches a file to direct mode, or returns the reason why that fails.
pub(crate) async fn set_direct(file: &File) -> Result<Result<(), String>> {
    Ok(match file.set_direct(true).await.map_err(failed)? {
        DirectMode::Direct(_) => Ok(()),
        DirectMode::Buffered => Err("the file stayed buffered".to_owned()),
        DirectMode::Refused(reason) => Err(format!("no direct mode: {reason}")),
    })
}

/// Converts an error of the engine or the files.
pub(crate) fn failed(error: impl std::fmt::Display) -> Error {
    Error::wrong("bench io", error.to_string())
}
