//! Benchmark of the store, compared with other engines and with the machine's limits.
//!
//! - Loads without a sync, after Neon's `bench_ingest`: small and large values, keys in order and at random,
//!   with and without writing the index to disk, alone and beside a reader.
//! - Loads of many records, and reads of them: cached, from the page cache, cold with memory for a tenth of
//!   the data, in order; loads of increasing numbers of records, compared with the smallest.
//! - Durable single writes; overwriting all records while they are read; opening after a kill.
//!
//! Every run is a separate process, of this program ([`run_here`]) or of the peers' (the `peers` directory of
//! the source tree). Both compile the same source of the workloads, `work`. The engines run alternately, and
//! each round begins with another one; except for large data sets, of which the disk holds one at a time.
//! Figures are medians of the rounds; ratios are medians of the rounds' ratios to the peer with the best
//! median. Values are random bytes of a fixed seed; nothing is compressed.

use std::io::Write as _;
use std::path::Path;

use settee_io::EngineKind;

use crate::io::row::IoRow;
use crate::{Error, Result, space};

mod bare;
mod bench;
mod config;
mod durable;
mod ingest;
mod ours;
mod overwrite;
mod records;
mod runs;
mod table;
mod work;

use bench::Bench;
pub use config::{Config, Part};
pub use runs::PEERS;

/// Runs the benchmark, calls `each` with each row as it is measured, and removes its files. Blocks.
///
/// # Errors
/// [`Error::Space`] before anything is written; [`Error::File`]; [`Error::Wrong`] at the end if a run failed,
/// whose row has the reason.
pub fn run(config: &Config, mut each: impl FnMut(IoRow)) -> Result<()> {
    if config.records == 0 || config.rounds == 0 || config.ingest_bytes == 0 || config.durable_count == 0 {
        return Err(Error::wrong("bench store", "records, rounds and bytes are one at least"));
    }
    space::check(&config.directory, config.ingest_bytes.max(largest_bytes(config)))?;
    let bench = Bench::new(config)?;
    for part in Part::ALL.into_iter().filter(|part| config.parts.contains(part)) {
        std::thread::sleep(config.pause);
        match part {
            Part::Ingest => ingest::cases(&bench, &mut each)?,
            Part::Large => records::measure(&bench, 1 << 10, &mut each)?,
            Part::Small => records::measure(&bench, 100, &mut each)?,
            Part::Growth => ingest::growth(&bench, &mut each)?,
            Part::Durable => durable::measure(&bench, &mut each)?,
            Part::Overwrite => overwrite::measure(&bench, &mut each)?,
            Part::Open => records::open_after_kill(&bench, &mut each)?,
        }
    }
    match bench.failure_count() {
        0 => Ok(()),
        count => Err(Error::wrong("bench store", format!("{count} run(s) failed: see their rows"))),
    }
}

/// Bytes of the values of the largest data set.
fn largest_bytes(config: &Config) -> u64 {
    let of = |part| match part {
        Part::Large => config.records << 10,
        Part::Growth => config.records * 300,
        Part::Overwrite => config.records * 200,
        Part::Ingest | Part::Durable => config.ingest_bytes,
        Part::Small | Part::Open => config.records * 100,
    };
    config.parts.iter().copied().map(of).max().unwrap_or(0)
}

/// Runs one spec in this process and prints its messages, one JSON value per line. The engine `settee` is the
/// store, `bare` a lookup in memory and pread(2). The process is killed when the thread that started it ends.
///
/// # Errors
/// [`Error::Wrong`] with the reason.
pub fn run_here(engine_id: &str, directory: &Path, spec: &str, engine: EngineKind) -> Result<()> {
    // Without its parent, this process would run on for long without a use. Errors are ignored: then it does.
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    let print = |message| {
        let line = serde_json::to_string(&message).expect("a message is plain data");
        // Errors are ignored: the parent may have stopped reading.
        writeln!(std::io::stdout(), "{line}").ok();
    };
    runs::run_here(engine_id, directory, spec, engine, print)
        .map_err(|error| Error::wrong("bench store-run", error.to_string()))
}

#[cfg(test)]
mod tests;
