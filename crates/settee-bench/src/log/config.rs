//! The parameters of a run.

use std::path::PathBuf;

use settee_io::EngineKind;

use super::test_log::start_engine;
use crate::Result;
use crate::io::data_file;

/// A part of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Values accepted in memory.
    Memory,
    /// Values streamed to the disk.
    Disk,
    /// Small values in batches.
    Batches,
    /// Durable appends of one writer.
    Durable,
    /// Durable appends of many writers.
    Writers,
    /// A stream under a memory limit.
    Limit,
}

impl Part {
    /// All parts, in the table's order.
    pub const ALL: [Part; 6] =
        [Part::Memory, Part::Disk, Part::Batches, Part::Durable, Part::Writers, Part::Limit];
}

/// Parameters of a run.
#[derive(Debug, Clone)]
pub struct Config {
    /// The directory for the files.
    pub directory: PathBuf,
    /// The binary of the peers' crate. None: their rows have no ratio.
    pub peers: Option<PathBuf>,
    /// This program, which runs [`measure_delays`](super::measure_delays) in a separate process: `PROGRAM bench
    /// log-delay DIRECTORY BYTES ENGINE CGROUP`.
    pub program: PathBuf,
    /// The engine for the log's I/O.
    pub engine: EngineKind,
    /// Factor for bytes, counts and times: 1 is the full size.
    pub scale: f64,
    /// The parts to run.
    pub parts: Vec<Part>,
}

impl Config {
    /// A description of the run for the table's head.
    ///
    /// # Errors
    /// [`Error::Wrong`](crate::Error::Wrong) if the engine can't be started.
    pub fn title(&self) -> Result<String> {
        Ok(format!(
            "the log on {}, random values, in {}; {}; peers: {}",
            start_engine(self.engine)?.name(),
            self.directory.display(),
            data_file::machine(&self.directory),
            self.peers.as_ref().map_or("none, see --peers".to_owned(), |path| path.display().to_string()),
        ))
    }

    /// `full` at this scale, at least `min`.
    pub(super) fn scaled(&self, full: usize, min: usize) -> usize {
        ((full as f64 * self.scale) as usize).max(min)
    }
}
