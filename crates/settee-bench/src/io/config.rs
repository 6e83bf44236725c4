//! The parameters of a run.

use std::path::PathBuf;
use std::time::Duration;

use super::data_file;
use super::fio::Fio;

/// Sizes of writes in bytes.
pub const SIZES: [usize; 4] = [64 << 10, 256 << 10, 1 << 20, 4 << 20];

/// Numbers of writes in flight.
pub const IN_FLIGHT_COUNTS: [usize; 3] = [1, 2, 4];

/// A part of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Random reads past the page cache.
    Cold,
    /// Random reads from the page cache.
    Cached,
    /// Sequential writes.
    Flush,
}

/// Parameters of a run.
#[derive(Debug, Clone)]
pub struct Config {
    /// The directory for the files.
    pub directory: PathBuf,
    /// Bytes of the file that is read, a multiple of [`BLOCK_BYTES`](super::BLOCK_BYTES).
    pub file_bytes: u64,
    /// Duration of a workload of reads in a round.
    pub duration: Duration,
    /// Number of rounds of reads. Each workload is measured once per round.
    pub rounds: usize,
    /// Number of rounds of flushes. Each combination of parameters is measured once per round.
    pub flush_rounds: usize,
    /// Bytes that are flushed for each combination, a multiple of the largest of [`SIZES`].
    pub flush_bytes: u64,
    /// The parts to run.
    pub parts: Vec<Part>,
    pub(super) fio: Option<Fio>,
}

impl Config {
    /// All parts at full size, with `fio` if it is installed.
    pub fn new(directory: impl Into<PathBuf>) -> Config {
        Config {
            directory: directory.into(),
            file_bytes: 1 << 30,
            duration: Duration::from_millis(600),
            rounds: 5,
            flush_rounds: 3,
            flush_bytes: 512 << 20,
            parts: vec![Part::Cold, Part::Cached, Part::Flush],
            fio: Fio::find(),
        }
    }

    /// The small form, which takes seconds; its figures aren't reliable.
    pub fn small(self) -> Config {
        Config {
            file_bytes: 8 << 20,
            duration: Duration::from_millis(20),
            rounds: 1,
            flush_rounds: 1,
            flush_bytes: *SIZES.iter().max().expect("there are some") as u64,
            ..self
        }
    }

    /// Runs without `fio` even if it is installed.
    pub fn without_fio(mut self) -> Config {
        self.fio = None;
        self
    }

    /// A description of the run for the table's head.
    pub fn title(&self) -> String {
        format!(
            "a file of {} MiB of random bytes in {}, reads in {} round(s) of {} ms; flushes of {} MiB, \
             {} round(s), each with one sync\n{}; peer: {}",
            self.file_bytes >> 20,
            self.directory.display(),
            self.rounds,
            self.duration.as_millis(),
            self.flush_bytes >> 20,
            self.flush_rounds,
            data_file::machine(&self.directory),
            self.fio.as_ref().map_or("no fio", |fio| &fio.version),
        )
    }
}
