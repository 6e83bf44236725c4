//! The parameters of a run.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use settee_io::EngineKind;

/// A part of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Loads as in Neon's bench_ingest
    Ingest,
    /// Load, reads and scans of 1 KiB records
    Large,
    /// Load, reads and scans of 100 B records
    Small,
    /// Loads of increasing numbers of records
    Growth,
    /// Durable single writes
    Durable,
    /// Overwrites with concurrent reads
    Overwrite,
    /// Opening after a kill
    Open,
}

/// Parameters of a run.
#[derive(Debug, Clone, clap::Args)]
pub struct Config {
    /// The binary of the `peers` crate, to compare with other engines
    #[arg(long, value_name = "PATH")]
    pub peers: Option<PathBuf>,

    /// I/O engine of the store: auto, io_uring or threads
    #[arg(long = "io-engine", value_name = "ENGINE", default_value = "auto")]
    pub engine: EngineKind,

    /// Run with small parameters that take seconds, as a test
    #[arg(long)]
    pub small: bool,

    /// Number of records of the large data sets [default: 10000000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    pub records: Option<u64>,

    /// Memory in MiB of each engine while it loads [default: 512]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(16..=1_048_576))]
    pub memory_mib: Option<u64>,

    /// Number of measurements of repeatable workloads; medians are printed [default: 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100))]
    pub rounds: Option<u64>,

    /// Parts of the table, separated by commas [default: all]
    #[arg(long, value_name = "PARTS", value_delimiter = ',')]
    pub parts: Vec<Part>,
}

/// The sizes of a run.
#[derive(Debug, Clone)]
pub(super) struct Sizes {
    /// Bytes of values of each load after `bench_ingest`.
    pub(super) ingest_bytes: u64,
    /// Number of records of the large data sets.
    pub(super) records: u64,
    /// The engines' memory in bytes while records are loaded, and for the loads after `bench_ingest`.
    pub(super) memory_bytes: u64,
    /// Maximum number of reads of a measurement. Cold ones are fewer.
    pub(super) read_count: u64,
    /// Number of durable writes of a single writer. Many writers do ten times as many.
    pub(super) durable_count: u64,
    /// Number of rounds. Large data sets are loaded only once.
    pub(super) rounds: usize,
    /// Duration of the reads of `fio`.
    pub(super) fio_time: Duration,
    /// Pause before each part, since a disk may still process earlier writes and removals.
    pub(super) pause: Duration,
}

const FULL: Sizes = Sizes {
    ingest_bytes: 128 << 20,
    records: 10_000_000,
    memory_bytes: 512 << 20,
    read_count: 2_000_000,
    durable_count: 2_000,
    rounds: 3,
    fio_time: Duration::from_secs(5),
    pause: Duration::from_secs(3),
};

/// Its figures aren't reliable.
const SMALL: Sizes = Sizes {
    ingest_bytes: 64 << 10,
    records: 2_000,
    memory_bytes: 64 << 20,
    read_count: 2_000,
    durable_count: 5,
    rounds: 1,
    fio_time: Duration::from_millis(50),
    pause: Duration::ZERO,
};

impl Config {
    pub(super) fn sizes(&self) -> Sizes {
        let sizes = if self.small { SMALL } else { FULL };
        Sizes {
            records: self.records.unwrap_or(sizes.records),
            memory_bytes: self.memory_mib.map_or(sizes.memory_bytes, |mib| mib << 20),
            rounds: self.rounds.map_or(sizes.rounds, |rounds| rounds as usize),
            ..sizes
        }
    }

    pub(super) fn parts(&self) -> impl Iterator<Item = &Part> {
        Part::value_variants().iter().filter(|part| self.parts.is_empty() || self.parts.contains(part))
    }

    /// A description of the run for the table's head.
    pub fn title(&self) -> String {
        let Sizes { memory_bytes, rounds, records, .. } = self.sizes();
        format!(
            "{} MiB of memory for each engine; {rounds} round(s) of small data sets, {records} records in large \
             ones; peers: {}",
            memory_bytes >> 20,
            self.peers.as_ref().map_or("none, see --peers".to_owned(), |path| path.display().to_string()),
        )
    }
}
