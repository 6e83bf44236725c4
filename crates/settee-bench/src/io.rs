//! Benchmark of file I/O through `settee-io`, compared with the machine's limits.
//!
//! - Random 4 KiB reads of a file of random bytes: cold and past the page cache, compared with `fio`; cached,
//!   compared with pread(2).
//! - Reads beside a writer that appends and syncs without a pause, compared with the same reads without it.
//! - Durable writes: each method of syncing on each layout of file.
//!
//! Peers run on the same files in the same rounds; ratios are medians over the rounds. If `fio` isn't
//! installed or fails, rows have no ratio to it.

use std::path::Path;

use clap::ValueEnum;

use crate::report::Row;
use crate::rounds::run_blocking;
use crate::{Result, space};

mod beside;
mod common;
pub(crate) mod data_file;
pub(crate) mod fio;
mod random;
mod sync;

pub(crate) use common::start_engine;
use common::{FULL, SMALL};
pub use data_file::machine;

/// A part of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Random reads past the page cache
    Cold,
    /// Random reads from the page cache
    Cached,
    /// Reads beside a writer
    Beside,
    /// Each way of making a write durable
    Sync,
}

/// Parameters of a run.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Config {
    /// Run with small parameters that take seconds, as a test
    #[arg(long)]
    pub small: bool,

    /// Parts of the table, separated by commas [default: all]
    #[arg(long, value_name = "PARTS", value_delimiter = ',')]
    pub parts: Vec<Part>,

    /// Don't compare with fio, even if it is installed
    #[arg(long)]
    pub no_fio: bool,
}

/// Runs the benchmark in an empty directory and calls `each` with each row as it is measured. Needs a tokio
/// runtime of several threads; cancelled by dropping the future.
///
/// # Errors
/// [`Error::Space`](crate::Error::Space) before anything is written; [`Error::File`](crate::Error::File) and
/// [`Error::Wrong`](crate::Error::Wrong).
pub async fn run(config: &Config, directory: &Path, each: &mut dyn FnMut(Row)) -> Result<()> {
    let sizes = if config.small { &SMALL } else { &FULL };
    space::check(directory, sizes.file_bytes + beside::FILE_BYTES_MAX)?;
    let has = |part| config.parts.is_empty() || config.parts.contains(&part);
    if has(Part::Cold) || has(Part::Cached) {
        let path = directory.join("random");
        let (made, bytes) = (path.clone(), sizes.file_bytes);
        run_blocking(move || data_file::create(&made, bytes, 1)).await?;
        if has(Part::Cold) {
            random::cold(sizes, &path, !config.no_fio, each).await?;
        }
        if has(Part::Cached) {
            let warmed = path.clone();
            run_blocking(move || data_file::warm(&warmed)).await?;
            random::cached(sizes, &path, each).await?;
        }
    }
    if has(Part::Beside) {
        beside::measure(sizes, &directory.join("appended"), each).await?;
    }
    if has(Part::Sync) {
        let directory = directory.to_owned();
        let rows = run_blocking(move || sync::measure(&directory, sizes.sync_count)).await?;
        rows.into_iter().for_each(each);
    }
    Ok(())
}
