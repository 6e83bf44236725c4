//! The engines with which `settee bench log` and `settee bench store` compare Settee. A process runs one
//! workload on one engine and prints its results as lines of JSON.
//!
//! This crate isn't part of the workspace, so that RocksDB is built only for measurements. As logs, engines
//! have their fastest settings: no compression, no compaction, no flush of the memtable during the run.
//! Neither engine can disable its memtable, whose cost is part of the figures. For stores see [`store`].
//!
//! ```text
//! cd peers && cargo build --release
//! settee bench log --peers peers/target/release/settee-peers
//! settee bench store --peers peers/target/release/settee-peers
//! ```

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use self::random::random_bytes;

mod fjall_log;
#[path = "../../crates/settee-bench/src/random.rs"]
mod random;
mod rocksdb_log;
mod store;

/// Seed of the values, which are generated before the measured time.
const SEED: u64 = 1;

/// Bytes of each value in batches.
const BATCH_VALUE_BYTES: usize = 100;

/// Number of values of a batch.
const BATCH_COUNT: usize = 16;

/// Bytes of each value that is appended durably.
const DURABLE_VALUE_BYTES: usize = 1024;

/// Size of a memtable in bytes, more than any run fills, so that none is flushed.
const MEMTABLE_BYTES: usize = 1 << 30;

/// Maximum MiB of a run, so that [`MEMTABLE_BYTES`] holds them.
const MIB_MAX: usize = 256;

/// Maximum number of durable appends of a run, so that [`MEMTABLE_BYTES`] holds them.
const COUNT_MAX: usize = 200_000;

const USAGE: &str =
    "usage: settee-peers fjall|rocksdb batches-written|batches-buffered|durable DIRECTORY AMOUNT

  batches-written   AMOUNT MiB of 100 B values in batches of 16, each batch written to the kernel
  batches-buffered  the same, buffered in the engine's memory and written to the kernel at the end
  durable           AMOUNT appends of 1 KiB, each on stable storage before the next
  DIRECTORY         must not exist; it is not removed

       settee-peers fjall|lmdb|redb|rocksdb store DIRECTORY SPEC

  SPEC              as settee bench store writes it; DIRECTORY may exist";

/// An error that ends a run.
type Failure = Box<dyn std::error::Error>;

/// Stage that a write has reached when it is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Durability {
    /// In the engine's memory; [`Engine::finish`] writes it to the kernel.
    Buffered,
    /// Written to the kernel.
    Written,
    /// On stable storage.
    Persisted,
}

/// An engine with an open, empty database.
trait Engine {
    /// Writes the values as one atomic batch. The keys are the numbers from `first` on.
    fn write(&self, first: u64, values: &[&[u8]]) -> Result<(), Failure>;

    /// Writes all batches to the kernel.
    fn finish(&self) -> Result<(), Failure>;

    /// A description of the engine's configuration.
    fn setup(&self) -> String;
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let [engine, workload, directory, amount] = arguments[..] else {
        eprintln!("{USAGE}");
        return ExitCode::FAILURE;
    };
    if workload == "store" {
        // Without its parent, this process would run on for long without a use. Errors are ignored.
        let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
        return match store::run(engine, directory.as_ref(), amount, print) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("settee-peers: {error}");
                ExitCode::FAILURE
            }
        };
    }
    match amount
        .parse()
        .map_err(Failure::from)
        .and_then(|amount| run(engine, workload, directory.into(), amount))
    {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("settee-peers: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints a message at once, since the parent waits for it.
fn print(message: store::work::Message) {
    println!("{}", serde_json::to_string(&message).expect("a message is plain data"));
}

fn run(name: &str, workload: &str, directory: PathBuf, amount: usize) -> Result<serde_json::Value, Failure> {
    if directory.exists() {
        return Err(format!("{} exists already", directory.display()).into());
    }
    let (durability, max) = match workload {
        "batches-written" => (Durability::Written, MIB_MAX),
        "batches-buffered" => (Durability::Buffered, MIB_MAX),
        "durable" => (Durability::Persisted, COUNT_MAX),
        _ => return Err(USAGE.into()),
    };
    if !(1..=max).contains(&amount) {
        return Err(format!("an amount of {amount} is not from 1 to {max}").into());
    }
    let engine = open(name, &directory, durability)?;
    let result = match durability {
        Durability::Persisted => durable(&*engine, amount)?,
        Durability::Buffered | Durability::Written => batches(&*engine, amount << 20)?,
    };
    Ok(serde_json::json!({
        "engine": name,
        "workload": workload,
        "operations": result.operations,
        "bytes": result.bytes,
        "seconds": result.seconds,
        "p50_us": result.percentile_us(0.5),
        "p99_us": result.percentile_us(0.99),
        "setup": engine.setup(),
    }))
}

fn open(name: &str, directory: &Path, durability: Durability) -> Result<Box<dyn Engine>, Failure> {
    match name {
        "fjall" => Ok(Box::new(fjall_log::Fjall::open(directory, durability)?)),
        "rocksdb" => Ok(Box::new(rocksdb_log::RocksDb::open(directory, durability)?)),
        _ => Err(USAGE.into()),
    }
}

/// The result of a run.
struct Measured {
    operations: u64,
    bytes: u64,
    seconds: f64,
    /// Latencies of operations in ascending order; empty if they weren't timed singly.
    latencies: Vec<Duration>,
}

impl Measured {
    fn percentile_us(&self, share: f64) -> Option<f64> {
        let rank = (share * self.latencies.len() as f64).ceil() as usize;
        self.latencies.get(rank.saturating_sub(1)).map(|latency| latency.as_secs_f64() * 1e6)
    }
}

fn batches(engine: &dyn Engine, bytes: usize) -> Result<Measured, Failure> {
    let values = random_bytes(SEED, bytes);
    let (values, _) = values.as_chunks::<BATCH_VALUE_BYTES>();
    let mut batch: Vec<&[u8]> = Vec::with_capacity(BATCH_COUNT);
    let start = Instant::now();
    for (index, chunk) in values.chunks(BATCH_COUNT).enumerate() {
        batch.clear();
        batch.extend(chunk.iter().map(|value| value.as_slice()));
        engine.write((index * BATCH_COUNT) as u64, &batch)?;
    }
    engine.finish()?;
    let seconds = start.elapsed().as_secs_f64();
    let operations = values.len() as u64;
    Ok(Measured { operations, bytes: operations * BATCH_VALUE_BYTES as u64, seconds, latencies: Vec::new() })
}

fn durable(engine: &dyn Engine, count: usize) -> Result<Measured, Failure> {
    let values = random_bytes(SEED, count * DURABLE_VALUE_BYTES);
    let (values, _) = values.as_chunks::<DURABLE_VALUE_BYTES>();
    let mut latencies = Vec::with_capacity(count);
    let start = Instant::now();
    for (index, value) in values.iter().enumerate() {
        let before = Instant::now();
        engine.write(index as u64, &[value])?;
        latencies.push(before.elapsed());
    }
    let seconds = start.elapsed().as_secs_f64();
    latencies.sort_unstable();
    let bytes = (count * DURABLE_VALUE_BYTES) as u64;
    Ok(Measured { operations: count as u64, bytes, seconds, latencies })
}

#[cfg(test)]
mod tests {
    //! Goal: each engine runs each workload and reports its operations.
    //! Method: the smallest amounts, in a directory that is removed afterwards.

    use super::*;

    #[test]
    fn every_engine_runs_every_workload() {
        for engine in ["fjall", "rocksdb"] {
            for (workload, operations) in
                [("batches-written", 10485), ("batches-buffered", 10485), ("durable", 1)]
            {
                let name = format!("settee-peers-{}-{engine}-{workload}", std::process::id());
                let directory = std::env::temp_dir().join(name);
                let report = run(engine, workload, directory.clone(), 1).unwrap();
                std::fs::remove_dir_all(directory).unwrap();
                assert_eq!(report["operations"], operations, "{report}");
                assert!(report["seconds"].as_f64().unwrap() > 0.0, "{report}");
            }
        }
    }

    #[test]
    fn invalid_arguments_are_refused() {
        let directory = std::env::temp_dir().join(format!("settee-peers-{}-none", std::process::id()));
        for (engine, workload, amount) in [
            ("fjall", "other", 1),
            ("other", "durable", 1),
            ("fjall", "durable", 0),
            ("fjall", "durable", COUNT_MAX + 1),
        ] {
            assert!(
                run(engine, workload, directory.clone(), amount).is_err(),
                "{engine} {workload} {amount}"
            );
        }
        assert!(run("fjall", "durable", std::env::temp_dir(), 1).is_err(), "an existing directory");
    }
}
