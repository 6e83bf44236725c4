//! Benchmark of the log, compared with the machine's limits.
//!
//! - Bytes accepted in memory, compared with memcpy; a stream to the disk, compared with `fio`.
//! - Durable appends of one writer, compared with write(2) and fdatasync(2) in a loop; of many writers,
//!   compared with fewer ones, and with the sum of a sync and a group's processor time.
//!
//! A workload and its peers run alternately, in rounds of the same run. Values are random bytes of a fixed seed,
//! generated before the measured time.

use std::path::Path;
use std::time::Duration;

use clap::ValueEnum;

use crate::report::Row;
use crate::{Result, space};

mod bench;
mod durable;
mod stream;
mod writers;

use bench::Bench;
pub use bench::{Config, Part};

/// Pause before each part, since a disk may still process earlier writes and removals.
const PART_PAUSE: Duration = Duration::from_secs(3);

/// Maximum bytes on disk at full size: the streamed log and the peer's file.
const DISK_BYTES_MAX: u64 = 5 << 30;

/// Runs the benchmark in an empty directory and calls `each` with each row as it is measured. Needs a tokio
/// runtime of several threads; cancelled by dropping the future.
///
/// # Errors
/// [`Error::Space`](crate::Error::Space) before anything is written; [`Error::File`](crate::Error::File), and
/// [`Error::Wrong`](crate::Error::Wrong) with the error of the log.
pub async fn run(config: &Config, directory: &Path, each: &mut dyn FnMut(Row)) -> Result<()> {
    space::check(directory, (DISK_BYTES_MAX as f64 * config.scale.min(1.0) / 2.0) as u64)?;
    let bench = Bench::start(config, directory)?;
    for part in Part::value_variants() {
        if !config.parts.is_empty() && !config.parts.contains(part) {
            continue;
        }
        tokio::time::sleep(PART_PAUSE.mul_f64(config.scale)).await;
        match part {
            Part::Memory => stream::memory(&bench, each).await?,
            Part::Disk => stream::disk(&bench, each).await?,
            Part::Durable => durable::run(&bench, each).await?,
            Part::Writers => writers::run(&bench, each).await?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
