//! The parameters of a run, and the counts at its scale.

use std::path::PathBuf;
use std::time::Duration;

use super::plan::{
    ATTACHMENT_BYTES, ATTACHMENT_COUNT_MIN, ATTACHMENT_PUT_COUNT, COLD_COUNT, DOCUMENT_BYTES, DOCUMENT_COUNT,
    FOLLOWER_COUNT, FOLLOWER_COUNT_MIN, Kind, LARGE_COUNT, PLANS, Plan, UPDATED_BYTES,
};
use crate::drive::{Durability, Target};
use crate::error::Result;

/// Upper bound of the bytes of JSON that a row of documents writes per second.
const WRITTEN_BYTES_PER_SECOND: f64 = 200e6;

/// Minimum number of documents of a scaled-down load.
pub(super) const SCALED_COUNT_MIN: u64 = 200;

/// Duration of a row, except for loads, and its minimum at a small scale.
const ROW_TIME: Duration = Duration::from_secs(5);
const ROW_TIME_MIN: Duration = Duration::from_millis(20);

/// Parameters of a run.
#[derive(Debug, Clone, clap::Args)]
pub struct Config {
    /// Run rows whose names contain one of these strings, separated by commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = row_name)]
    pub rows: Vec<String>,

    /// Factor for documents, updates, attachments, followers and seconds
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = crate::scale)]
    pub scale: f64,

    /// Duration of a row in seconds, except for loads, independent of the scale
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub seconds: Option<f64>,
}

/// The servers of a run.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The server.
    pub target: Target,
    /// The bare server. None: rows aren't compared with it.
    pub bare: Option<Target>,
    /// A directory on the disk that the server writes to. None: syncs aren't measured.
    pub directory: Option<PathBuf>,
    /// Stage that writes have reached when they are acknowledged.
    pub durability: Durability,
}

fn seconds(text: &str) -> Result<f64, String> {
    crate::number(text, ROW_TIME_MIN.as_secs_f64(), 600.0)
}

fn row_name(text: &str) -> Result<String, String> {
    if !text.is_empty() && row_names().any(|name| name.contains(text)) {
        return Ok(text.to_owned());
    }
    let names: Vec<&str> = row_names().collect();
    Err(format!("no row's name contains it; the rows are {}", names.join(", ")))
}

/// The names of the rows, for `--rows`.
pub fn row_names() -> impl Iterator<Item = &'static str> {
    PLANS.iter().map(|plan| plan.name)
}

impl Config {
    /// Duration of a row that isn't a load, without that of its limit.
    pub fn row_time(&self) -> Duration {
        let scaled = || ROW_TIME.mul_f64(self.scale).max(ROW_TIME_MIN);
        self.seconds.map_or_else(scaled, Duration::from_secs_f64)
    }

    /// Number of followers of the changes feed.
    pub fn follower_count(&self) -> u64 {
        self.scaled(FOLLOWER_COUNT, FOLLOWER_COUNT_MIN)
    }

    /// Maximum number of attachments that a row puts.
    pub(super) fn attachment_count(&self) -> u64 {
        self.scaled(ATTACHMENT_PUT_COUNT, ATTACHMENT_COUNT_MIN)
    }

    /// Upper bound of the bytes of JSON and attachments that the rows store at the same time. A row that writes
    /// for a time counts with the throughput of a fast disk.
    pub fn written_bytes(&self) -> u64 {
        let sizes = self.plans().map(|plan| match plan.kind {
            Kind::Load(load) => self.scaled(load.count, SCALED_COUNT_MIN) * load.documents.bytes() as u64,
            Kind::Put { .. } | Kind::Update { .. } | Kind::History | Kind::Beside => {
                (self.row_time().as_secs_f64() * WRITTEN_BYTES_PER_SECOND) as u64
            }
            Kind::BulkUpdates => self.scaled(LARGE_COUNT, SCALED_COUNT_MIN) * UPDATED_BYTES as u64,
            Kind::Cold { .. } => self.scaled(COLD_COUNT, SCALED_COUNT_MIN) * DOCUMENT_BYTES as u64,
            Kind::AttachmentPut { .. } => self.attachment_count() * ATTACHMENT_BYTES as u64,
            _ => self.scaled(DOCUMENT_COUNT, SCALED_COUNT_MIN) * DOCUMENT_BYTES as u64,
        });
        // Each row's database is deleted after it, except for the main one: the largest counts twice.
        2 * sizes.max().unwrap_or(0)
    }

    /// `count` at the run's scale, at least `count_min`.
    pub(super) fn scaled(&self, count: u64, count_min: u64) -> u64 {
        ((count as f64 * self.scale) as u64).max(count_min)
    }

    pub(super) fn plans(&self) -> impl Iterator<Item = &'static Plan> {
        let wanted = |plan: &&Plan| self.rows.iter().any(|part| plan.name.contains(part.as_str()));
        PLANS.iter().filter(move |plan| self.rows.is_empty() || wanted(plan))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(rows: &[&str], scale: f64) -> Config {
        Config { rows: rows.iter().map(|&row| row.to_owned()).collect(), scale, seconds: None }
    }

    #[test]
    fn row_names_are_unique_and_parts_of_names_select_rows() {
        let mut names: Vec<&str> = row_names().collect();
        assert_eq!(config(&["attachment"], 1.0).plans().count(), 4);
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn counts_scale_down_to_their_minimum() {
        let full = config(&[], 1.0);
        assert_eq!(full.follower_count(), 10_000);
        assert_eq!(config(&[], 0.001).scaled(DOCUMENT_COUNT, SCALED_COUNT_MIN), SCALED_COUNT_MIN);
        let all = full.written_bytes();
        assert!(all >= 2 * 1_000_000_000, "attachments or puts decide: {all}");
        assert!(config(&["get-1"], 1.0).written_bytes() < all);
    }

    #[test]
    fn flags_accept_numbers_within_bounds_and_names_of_rows() {
        assert!(seconds("0.01").is_err() && seconds("3").is_ok());
        assert_eq!(row_name("get-"), Ok("get-".to_owned()));
        assert!(row_name("").is_err());
        assert!(row_name("nonsense").unwrap_err().contains("followers"));
    }
}
