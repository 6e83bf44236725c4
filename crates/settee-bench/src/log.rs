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

use std::time::Duration;

use crate::{Result, space};

mod batches;
mod bench;
mod config;
mod durable;
mod limit;
mod peers;
mod row;
mod stream;
mod test_log;
mod writers;

use bench::Bench;
pub use config::{Config, Part};
pub use limit::{Phase, measure_delays};
pub use row::{Against, LogAim, LogRow, heading};

/// Pause before each part, since a disk may still process earlier writes and removals.
const PART_PAUSE: Duration = Duration::from_secs(3);

/// Maximum bytes on disk at full size: the streamed log and the peer's file.
const DISK_BYTES_MAX: u64 = 5 << 30;

/// Runs the benchmark, calls `each` with each row as it is measured, and removes its files. Blocks the
/// calling thread, which must not be an executor's, and starts its own executor.
///
/// # Errors
/// [`Error::Space`](crate::Error::Space) before anything is written; [`Error::File`](crate::Error::File), and
/// [`Error::Wrong`](crate::Error::Wrong) with the error of the log or a peer.
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

#[cfg(test)]
mod tests;
