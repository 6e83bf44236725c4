//! The messages of a run, each a line of JSON.

use serde::{Deserialize, Serialize};

/// A message of a run, printed as a line of JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Message {
    /// One second of [`super::Operation::Overwrite`].
    Second(Second),
    /// All records are loaded; the process waits to be killed.
    #[serde(rename = "Held")]
    Loaded,
    /// The last message of a run.
    Report(Box<Report>),
}

/// One second of [`super::Operation::Overwrite`].
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Second {
    pub second: u64,
    pub writes: u64,
    pub reads: u64,
    pub read_p50_us: f64,
    pub read_p99_us: f64,
    /// Bytes that the directory takes on disk.
    pub disk_bytes: u64,
    /// Bytes of live keys and values.
    pub live_bytes: u64,
    /// The engine's own counters, as text.
    pub engine: String,
}

/// The result of a run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Report {
    pub operations: u64,
    /// Bytes of keys and values.
    pub bytes: u64,
    pub seconds: f64,
    /// Duration of the opening, which isn't part of `seconds`.
    pub open_seconds: f64,
    pub p50_us: Option<f64>,
    pub p99_us: Option<f64>,
    /// Processor time of the process in the measured time.
    pub cpu_seconds: f64,
    /// Bytes that this process wrote to files in the measured time (`/proc/self/io`).
    pub written_bytes: u64,
    /// Bytes that this process read from devices in the measured time (`/proc/self/io`).
    pub fetched_bytes: u64,
    /// Reads that the device completed in the measured time, for operations that read.
    pub device_reads: u64,
    /// Bytes written to files from the opening to the end of the run.
    pub written_bytes_in_all: u64,
    /// Peak resident memory of the process, minus that before the opening.
    pub peak_bytes: u64,
    /// Anonymous resident memory at the end of the run, minus that before the opening.
    pub anonymous_bytes: u64,
    /// Bytes that the directory takes on disk at the end.
    pub disk_bytes: u64,
    /// Number of reads beside the writer.
    pub beside_reads: u64,
    /// Number of reads beside the writer that found a value.
    pub beside_found: u64,
    /// Average number of records by which the reader's snapshots lag behind the writer.
    pub beside_lag: f64,
    /// A description of the engine's configuration.
    pub setup: String,
    /// The engine's own counters at the end, as text.
    pub engine: String,
}
