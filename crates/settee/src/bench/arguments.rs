//! Arguments that several benchmarks share.

use std::path::PathBuf;

use clap::ValueEnum;
use settee_bench::http::Server;
use settee_doc::Stage;

use crate::secret::UserArgs;

/// Arguments of the benchmarks of a server.
#[derive(clap::Args)]
pub(super) struct CommonArgs {
    /// Server that speaks CouchDB's API: `http://[user:password@]host:port`
    #[arg(long, value_name = "URL")]
    pub(super) url: Option<Server>,

    #[command(flatten)]
    pub(super) user: UserArgs,

    /// The server's process id, to measure its processor time
    #[arg(long, visible_alias = "pid", value_name = "PID", requires = "url")]
    pub(super) server_pid: Option<u32>,

    /// Start a server for the measurement, with its data in a new directory
    #[arg(long, conflicts_with = "url")]
    pub(super) spawn: bool,

    /// Directory on a disk, in which the new directory is created [default: the system's temporary directory]
    #[arg(long, value_name = "DIR")]
    pub(super) data_dir: Option<PathBuf>,

    /// Stage that writes have reached when they are acknowledged
    #[arg(long, value_name = "STAGE", default_value = "persisted")]
    pub(super) durability: Durability,

    /// Print JSON lines instead of a table
    #[arg(long)]
    pub(super) json: bool,
}

impl CommonArgs {
    /// Whether the databases are opened in this process, without a server.
    pub(super) fn is_in_process(&self) -> bool {
        self.url.is_none() && !self.spawn
    }

    /// The stage of acknowledged writes, as the table's title states it.
    pub(super) fn durability_text(&self) -> &'static str {
        match self.durability {
            Durability::Accepted => "writes acknowledged when accepted",
            Durability::Written => "writes acknowledged when written",
            Durability::Persisted => "writes acknowledged when persisted",
        }
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum Durability {
    Accepted,
    Written,
    Persisted,
}

impl From<Durability> for Stage {
    fn from(durability: Durability) -> Stage {
        match durability {
            Durability::Accepted => Stage::Accepted,
            Durability::Written => Stage::Written,
            Durability::Persisted => Stage::Persisted,
        }
    }
}

/// Parses the scale of a benchmark.
pub(super) fn scale(text: &str) -> Result<f64, String> {
    number(text, 0.001, 10.0)
}

/// Parses a number from `min` to `max`.
pub(super) fn number(text: &str, min: f64, max: f64) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if (min..=max).contains(&number) => Ok(number),
        _ => Err(format!("expected a number from {min} to {max}")),
    }
}
