//! What files cost by way of `settee-io`, against what the machine gives: random reads, and
//! flushes of large buffers.
//!
//! - Random 4 KiB reads of a file of random bytes, cold and past the page cache, against `fio`;
//!   the same, cached, against pread(2).
//! - Sequential writes by size, number in flight, engine and mode, against `fio`.
//!
//! Peers run on the same files in the same rounds; ratios are medians over the rounds. Where
//! `fio` isn't installed, or fails, a row says so and has no ratio.

use std::io as std_io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use settee_io::{DirectMode, Engine, EngineKind, EngineOptions, File, OpenMode, RingUse};

use crate::space;
use crate::{Error, Result};

pub(crate) mod fio;
mod flush;
mod random;
pub mod row;
pub(crate) mod subject;

pub use flush::{IN_FLIGHT_COUNTS, SIZES};
pub(crate) use random::{ended, run_blocking};
pub use row::{Aim, Row};
pub use subject::BLOCK_BYTES;

/// A part of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Random reads past the page cache.
    Cold,
    /// Random reads of what the page cache holds.
    Cached,
    /// Sequential writes.
    Flush,
}

/// What is measured, and how large.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where the files are made.
    pub directory: PathBuf,
    /// Bytes of the file that is read, a multiple of [`BLOCK_BYTES`].
    pub file_bytes: u64,
    /// How long a workload of reads lasts in a round.
    pub duration: Duration,
    /// How often each workload of reads is measured, in turn with the others.
    pub rounds: usize,
    /// How often each cell of the flushes is.
    pub flush_rounds: usize,
    /// Bytes that each cell of the flushes writes, a multiple of the largest of [`SIZES`].
    pub flush_bytes: u64,
    /// Which parts.
    pub parts: Vec<Part>,
    fio: Option<fio::Fio>,
}

impl Config {
    /// All parts at full size, with `fio` where it is installed.
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

    /// The small form: seconds in all, too short for figures to rely on.
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

    /// As on a machine without `fio`.
    pub fn without_fio(mut self) -> Config {
        self.fio = None;
        self
    }

    /// What is measured where, in words.
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
            subject::machine(&self.directory),
            self.fio.as_ref().map_or("no fio", |fio| &fio.version),
        )
    }
}

/// Measures, and hands out each row as it comes. Its files are gone afterwards. Wants a tokio
/// runtime of several threads; dropping the future abandons it.
///
/// # Errors
/// [`Error::Space`] before anything is written; [`Error::File`] and [`Error::Wrong`].
pub async fn run(config: &Config, mut each: impl FnMut(Row)) -> Result<()> {
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
        run_blocking(move || subject::create(&made, bytes, 1).and_then(|()| subject::chill(&made, 1)))
            .await?;
        if config.parts.contains(&Part::Cold) {
            random::cold(config, &path, &mut each).await?;
        }
        if config.parts.contains(&Part::Cached) {
            let warmed = path.clone();
            run_blocking(move || subject::warm(&warmed)).await?;
            random::cached(config, &path, &mut each).await?;
        }
    }
    if config.parts.contains(&Part::Flush) {
        flush::measure(config, directory.path(), &mut each).await?;
    }
    Ok(())
}

/// An engine, or why there is none.
pub(crate) fn start_engine(kind: EngineKind, ring_use: Option<RingUse>) -> Result<Arc<dyn Engine>, String> {
    let mut options = EngineOptions { kind, ..EngineOptions::default() };
    if let Some(ring_use) = ring_use {
        options.uring.ring_use = ring_use;
    }
    options.start().map_err(|error: std_io::Error| format!("no {kind} engine: {error}"))
}

/// The file past the page cache, or why the file system doesn't let us.
pub(crate) async fn open_direct(engine: &Arc<dyn Engine>, path: &Path) -> Result<Result<File, String>> {
    let file = File::open(engine, path, OpenMode::Read).await.map_err(failed)?;
    Ok(set_direct(&file).await?.map(|()| file))
}

/// Takes the file past the page cache, or says why it can't be.
pub(crate) async fn set_direct(file: &File) -> Result<Result<(), String>> {
    Ok(match file.set_direct(true).await.map_err(failed)? {
        DirectMode::Direct(_) => Ok(()),
        DirectMode::Buffered => Err("the file stayed buffered".to_owned()),
        DirectMode::Refused(reason) => Err(format!("no direct mode: {reason}")),
    })
}

/// An error of the engine or the files, as one of the measurement.
pub(crate) fn failed(error: impl std::fmt::Display) -> Error {
    Error::wrong("bench io", error.to_string())
}
