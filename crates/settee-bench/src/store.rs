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

use crate::report::Row;
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
use config::Sizes;
pub use config::{Config, Part};

/// Runs the benchmark in an empty directory and calls `each` with each row as it is measured. Blocks. `program`
/// is this program: `PROGRAM bench store-run WHO DIRECTORY SPEC ENGINE` calls [`run_here`].
///
/// # Errors
/// [`Error::Space`] before anything is written; [`Error::File`]; [`Error::Wrong`] at the end if a run failed,
/// whose row has the reason.
pub fn run(config: &Config, program: &Path, directory: &Path, each: &mut dyn FnMut(Row)) -> Result<()> {
    let sizes = config.sizes();
    let largest = config.parts().map(|part| largest_bytes(&sizes, *part)).max().unwrap_or(0);
    space::check(directory, largest.max(sizes.ingest_bytes))?;
    let bench = Bench::new(config, program, directory);
    for part in config.parts() {
        std::thread::sleep(sizes.pause);
        match part {
            Part::Ingest => ingest::cases(&bench, each)?,
            Part::Large => records::measure(&bench, 1 << 10, each)?,
            Part::Small => records::measure(&bench, 100, each)?,
            Part::Growth => ingest::growth(&bench, each)?,
            Part::Durable => durable::measure(&bench, each)?,
            Part::Overwrite => overwrite::measure(&bench, each)?,
            Part::Open => records::open_after_kill(&bench, each)?,
        }
    }
    match bench.failure_count() {
        0 => Ok(()),
        count => Err(Error::wrong("bench store", format!("{count} run(s) failed: see their rows"))),
    }
}

/// Bytes of the values of a part's largest data set.
fn largest_bytes(sizes: &Sizes, part: Part) -> u64 {
    match part {
        Part::Large => sizes.records << 10,
        Part::Growth => sizes.records * 300,
        Part::Overwrite => sizes.records * 200,
        Part::Ingest | Part::Durable => sizes.ingest_bytes,
        Part::Small | Part::Open => sizes.records * 100,
    }
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
