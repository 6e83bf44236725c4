//! The parameters of a run.

use std::path::PathBuf;
use std::time::Duration;

use crate::io::data_file;

/// Number of files that `parread` reads.
pub const FILE_COUNT: usize = 3;

/// Bytes of each read of `parread`.
pub const READ_BYTES: usize = 1024;

/// Number of parallel reads in flight of `parread`.
pub const PARALLEL_COUNT: usize = 50;

/// A part of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Riak's `parread`.
    Parread,
    /// Reads beside a writer.
    Beside,
}

/// Parameters of a run.
#[derive(Debug, Clone)]
pub struct Config {
    /// The directory for the files.
    pub directory: PathBuf,
    /// Bytes of each of [`FILE_COUNT`] files, a multiple of 4096.
    pub file_bytes: u64,
    /// Number of random reads of each file.
    pub read_count: usize,
    /// Number of rounds of `parread`. Each order is measured once per round.
    pub rounds: usize,
    /// Duration of the readers in a round, beside the writer and without it.
    pub duration: Duration,
    /// Number of rounds of the readers beside the writer.
    pub beside_rounds: usize,
    /// The parts to run.
    pub parts: Vec<Part>,
}

impl Config {
    /// All parts at full size.
    pub fn new(directory: impl Into<PathBuf>) -> Config {
        Config {
            directory: directory.into(),
            file_bytes: 1 << 30,
            read_count: 1000,
            rounds: 7,
            duration: Duration::from_millis(500),
            beside_rounds: 10,
            parts: vec![Part::Parread, Part::Beside],
        }
    }

    /// The small form, which takes seconds; its figures aren't reliable.
    pub fn small(self) -> Config {
        Config {
            file_bytes: 4 << 20,
            read_count: 50,
            rounds: 1,
            duration: Duration::from_millis(30),
            beside_rounds: 2,
            ..self
        }
    }

    /// A description of the run for the table's head.
    pub fn title(&self) -> String {
        format!(
            "{FILE_COUNT} files of {} MiB of random bytes in {}, {} reads of {READ_BYTES} bytes of each, {} round(s)\n\
             {}\n\
             published of Riak's parread: parallel 1.01 to 1.38 × serial, sorted 1.24 to 1.51 ×, by I/O scheduler",
            self.file_bytes >> 20,
            self.directory.display(),
            self.read_count,
            self.rounds,
            data_file::machine(&self.directory),
        )
    }
}
