//! Reads as databases ask for them: many small ones of large cold files, and cached ones beside
//! a writer that never pauses.
//!
//! - Riak's `parread`: random 1 KiB reads of three files, one after the other as they come,
//!   sorted, in parallel, and grouped by the read planner. Every form reads other places, from
//!   one seed, so that none finds what another fetched; `/proc/self/io` tells what came from the
//!   device.
//! - Cached reads while a writer appends to the same file and syncs it without pause, against
//!   the same reads beside an idle control.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::io::row::Row;
use crate::io::subject::{self, BLOCK_BYTES};
use crate::{Error, Result, space};

mod beside;
mod parread;

/// How many files `parread` reads.
pub const FILE_COUNT: usize = 3;

/// Bytes of each of its reads.
pub const READ_BYTES: usize = 1024;

/// How many reads are outstanding in its parallel form.
pub const PARALLEL_COUNT: usize = 50;

/// A part of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Riak's `parread`.
    Parread,
    /// Reads beside a writer.
    Beside,
}

/// What is measured, and how large.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where the files are made.
    pub directory: PathBuf,
    /// Bytes of each of [`FILE_COUNT`] files, a multiple of 4096.
    pub file_bytes: u64,
    /// Random reads of each file.
    pub read_count: usize,
    /// How often each form of `parread` is measured, in turn with the others.
    pub rounds: usize,
    /// How long the readers run beside the writer, and beside its idle control, in a round.
    pub duration: Duration,
    /// How often they do.
    pub beside_rounds: usize,
    /// Which parts.
    pub parts: Vec<Part>,
}

impl Config {
    /// All parts at full size.
    pub fn new(directory: impl Into<PathBuf>) -> Config {
        Config {
            directory: directory.into(),
            file_bytes: 1 << 30,
            read_count: 1000,
            rounds: 7,
            duration: Duration::from_millis(500),
            beside_rounds: 10,
            parts: vec![Part::Parread, Part::Beside],
        }
    }

    /// The small form: seconds in all, too short for figures to rely on.
    pub fn small(self) -> Config {
        Config {
            file_bytes: 4 << 20,
            read_count: 50,
            rounds: 1,
            duration: Duration::from_millis(30),
            beside_rounds: 2,
            ..self
        }
    }

    /// What is measured where, in words.
    pub fn title(&self) -> String {
        format!(
            "{FILE_COUNT} files of {} MiB of random bytes in {}, {} reads of {READ_BYTES} bytes of each, {} round(s)\n\
             {}\n\
             published of Riak's parread: parallel 1.01 to 1.38 × serial, sorted 1.24 to 1.51 ×, by I/O scheduler",
            self.file_bytes >> 20,
            self.directory.display(),
            self.read_count,
            self.rounds,
            subject::machine(&self.directory),
        )
    }
}

/// Measures, and hands out each row as it comes. Its files are gone afterwards. Wants a tokio
/// runtime of several threads; dropping the future abandons it.
///
/// # Errors
/// [`Error::Space`] before anything is written; [`Error::File`] and [`Error::Wrong`].
pub async fn run(config: &Config, mut each: impl FnMut(Row)) -> Result<()> {
    if config.file_bytes < 2 * BLOCK_BYTES as u64
        || !config.file_bytes.is_multiple_of(BLOCK_BYTES as u64)
        || config.read_count == 0
        || config.rounds == 0
        || config.beside_rounds == 0
    {
        return Err(Error::wrong("bench reads", "files are of whole blocks, reads and rounds one at least"));
    }
    space::check(&config.directory, config.file_bytes * FILE_COUNT as u64 + beside::FILE_BYTES_MAX)?;
    let directory = space::Directory::new(Some(&config.directory))?;
    if config.parts.contains(&Part::Parread) {
        parread::measure(config, directory.path(), &mut each).await?;
    }
    if config.parts.contains(&Part::Beside) {
        beside::measure(config, &beside_path(directory.path()), &mut each).await?;
    }
    Ok(())
}

fn beside_path(directory: &Path) -> PathBuf {
    directory.join("appended")
}
