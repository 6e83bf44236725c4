//! Benchmark of reads typical of a database: many small ones of large cold files, and cached ones beside a
//! writer without pauses.
//!
//! - Riak's `parread`: random 1 KiB reads of three files, in random order, sorted, in parallel, and grouped
//!   by the read planner. Every order has its own random offsets, so that none reads bytes that another has
//!   brought into the cache; `/proc/self/io` reports the bytes read from the device.
//! - Cached reads while a writer appends to the same file and syncs it without a pause, compared with the
//!   same reads without a writer (the idle control).

use std::path::{Path, PathBuf};

use crate::io::data_file::BLOCK_BYTES;
use crate::io::row::IoRow;
use crate::{Error, Result, space};

mod beside;
mod config;
mod parread;

pub use config::{Config, FILE_COUNT, PARALLEL_COUNT, Part, READ_BYTES};

/// Runs the benchmark, calls `each` with each row as it is measured, and removes its files. Needs a tokio
/// runtime of several threads; cancelled by dropping the future.
///
/// # Errors
/// [`Error::Space`] before anything is written; [`Error::File`] and [`Error::Wrong`].
pub async fn run(config: &Config, mut each: impl FnMut(IoRow)) -> Result<()> {
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
