//! The parameters of a run, and the counts at a smaller scale.

use std::path::PathBuf;
use std::time::Duration;

use settee_doc::Stage;

use crate::http::Server;

/// Minimum number of documents of a scaled-down load.
pub(super) const SCALED_COUNT_MIN: u64 = 200;

/// A server and its process.
#[derive(Debug, Clone)]
pub struct Target {
    /// The server's address.
    pub server: Server,
    /// The process whose processor time is counted. None: not counted.
    pub pid: Option<u32>,
}

/// Parameters of a run.
#[derive(Debug, Clone)]
pub struct Config {
    /// The server.
    pub target: Target,
    /// The bare server. None: rows aren't compared with it.
    pub bare: Option<Target>,
    /// A directory on the disk that the server writes to. None: syncs aren't measured.
    pub directory: Option<PathBuf>,
    /// Factor for the counts of documents, updates, attachments and followers.
    pub scale: f64,
    /// Duration of a row that isn't a load, without that of its limit.
    pub row_time: Duration,
    /// Stage that writes have reached when they are acknowledged.
    pub durability: Stage,
    /// Parts of names that select rows. Empty: all rows.
    pub rows: Vec<String>,
}

/// `count` at a scale, at least `count_min`.
pub(super) fn scaled(scale: f64, count: u64, count_min: u64) -> u64 {
    ((count as f64 * scale) as u64).max(count_min)
}
