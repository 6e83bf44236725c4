//! The parameters of a run.

use std::path::PathBuf;
use std::time::Duration;

use settee_io::EngineKind;

use super::runs::PEERS;
use crate::io::data_file;

/// Pause before each part, since a disk may still process earlier writes and removals.
const PART_PAUSE: Duration = Duration::from_secs(3);

/// A part of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Loads after Neon's `bench_ingest`.
    Ingest,
    /// A load of 1 KiB records, and reads and scans of them.
    Large,
    /// A load of 100 B records, and reads and scans of them.
    Small,
    /// Loads of increasing numbers of records.
    Growth,
    /// Durable single writes.
    Durable,
    /// Overwriting while reading.
    Overwrite,
    /// Opening after a kill.
    Open,
}

impl Part {
    /// All parts, in the table's order.
    pub const ALL: [Part; 7] =
        [Part::Ingest, Part::Large, Part::Small, Part::Growth, Part::Durable, Part::Overwrite, Part::Open];
}

/// Parameters of a run.
#[derive(Debug, Clone)]
pub struct Config {
    /// The directory for the files.
    pub directory: PathBuf,
    /// The binary of the peers' crate. None: rows have no ratio to a peer.
    pub peers: Option<PathBuf>,
    /// The peers to run, of [`PEERS`].
    pub peer_names: Vec<&'static str>,
    /// This program: `PROGRAM bench store-run WHO DIRECTORY SPEC ENGINE` calls [`run_here`](super::run_here).
    pub program: PathBuf,
    /// The I/O engine of the store.
    pub engine: EngineKind,
    /// The parts to run.
    pub parts: Vec<Part>,
    /// Bytes of values of each load after `bench_ingest`.
    pub ingest_bytes: u64,
    /// Number of records of the large data sets.
    pub records: u64,
    /// The engines' memory in bytes while records are loaded, and for the loads after `bench_ingest`.
    pub memory_bytes: u64,
    /// Maximum number of reads of a measurement. Cold ones are fewer.
    pub read_count: u64,
    /// Number of durable writes of a single writer. Many writers do ten times as many.
    pub durable_count: u64,
    /// Number of rounds. Large data sets are loaded only once.
    pub rounds: usize,
    /// Duration of the reads of `fio`.
    pub fio_time: Duration,
    /// Pause before each part.
    pub pause: Duration,
}

impl Config {
    /// All parts at full size, without peers.
    pub fn new(directory: impl Into<PathBuf>, program: impl Into<PathBuf>) -> Config {
        Config {
            directory: directory.into(),
            peers: None,
            peer_names: PEERS.to_vec(),
            program: program.into(),
            engine: EngineKind::Auto,
            parts: Part::ALL.to_vec(),
            ingest_bytes: 128 << 20,
            records: 10_000_000,
            memory_bytes: 512 << 20,
            read_count: 2_000_000,
            durable_count: 2_000,
            rounds: 3,
            fio_time: Duration::from_secs(5),
            pause: PART_PAUSE,
        }
    }

    /// The small form, which takes seconds; its figures aren't reliable.
    pub fn small(self) -> Config {
        Config {
            ingest_bytes: 64 << 10,
            records: 2_000,
            memory_bytes: 64 << 20,
            read_count: 2_000,
            durable_count: 5,
            rounds: 1,
            fio_time: Duration::from_millis(50),
            pause: Duration::ZERO,
            ..self
        }
    }

    /// A description of the run for the table's head.
    pub fn title(&self) -> String {
        format!(
            "the store in {}, random values, {} MiB of memory for each engine; {} round(s) of small data sets, {} \
             records in large ones\n{}; peers: {}",
            self.directory.display(),
            self.memory_bytes >> 20,
            self.rounds,
            self.records,
            data_file::machine(&self.directory),
            match &self.peers {
                Some(path) => format!("{} of {}", self.peer_names.join(", "), path.display()),
                None => "none, see --peers".to_owned(),
            }
        )
    }
}
