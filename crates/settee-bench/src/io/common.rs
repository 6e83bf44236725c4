//! The sizes of a run, and the engines under test.

use std::sync::Arc;
use std::time::Duration;

use settee_io::{Engine, EngineKind, EngineOptions};

/// The sizes of a run.
pub(super) struct Sizes {
    /// Bytes of the file that is read.
    pub(super) file_bytes: u64,
    /// Duration of a workload of reads in a round.
    pub(super) duration: Duration,
    /// Number of rounds of reads, and of reads beside the writer.
    pub(super) rounds: usize,
    pub(super) beside_rounds: usize,
    /// Number of durable writes of each kind.
    pub(super) sync_count: usize,
}

pub(super) const FULL: Sizes = Sizes {
    file_bytes: 1 << 30,
    duration: Duration::from_millis(600),
    rounds: 5,
    beside_rounds: 10,
    sync_count: 1_000,
};

/// Its figures aren't reliable.
pub(super) const SMALL: Sizes = Sizes {
    file_bytes: 8 << 20,
    duration: Duration::from_millis(20),
    rounds: 1,
    beside_rounds: 2,
    sync_count: 20,
};

/// Starts an engine, or returns the reason why it can't be started.
pub(crate) fn start_engine(kind: EngineKind) -> Result<Arc<dyn Engine>, String> {
    let options = EngineOptions { kind, ..EngineOptions::default() };
    options.start().map_err(|error| format!("no {kind} engine: {error}"))
}
