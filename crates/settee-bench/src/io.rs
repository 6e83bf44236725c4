//! Benchmark of file I/O through `settee-io`, compared with the machine's limits: random reads, and flushes
//! of large buffers.
//!
//! - Random 4 KiB reads of a file of random bytes: cold and past the page cache, compared with `fio`; cached,
//!   compared with pread(2).
//! - Sequential writes by size, number in flight, engine and mode, compared with `fio`.
//!
//! Peers run on the same files in the same rounds; ratios are medians over the rounds. If `fio` isn't
//! installed or fails, the row has the reason and no ratio.

use crate::space;
use crate::{Error, Result};

mod config;
pub(crate) mod data_file;
pub(crate) mod engine;
pub(crate) mod fio;
mod flush;
mod random;
pub mod row;
pub(crate) mod tasks;

pub use config::{Config, IN_FLIGHT_COUNTS, Part, SIZES};
pub use data_file::BLOCK_BYTES;
pub use row::IoRow;
use tasks::run_blocking;

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
