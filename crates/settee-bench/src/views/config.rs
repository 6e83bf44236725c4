//! The parameters of a run.

use std::time::Duration;

use clap::ValueEnum;

use crate::error::Result;
use crate::mail::{MESSAGE_BYTES, MESSAGE_COUNT_MAX};

/// Size of a document in bytes.
pub const DOCUMENT_BYTES: usize = MESSAGE_BYTES;

/// Smallest number of documents: a range of a hundred rows needs some more.
const DOCUMENT_COUNT_MIN: u64 = 200;

/// Bytes of the documents and indexes of the archive for each of its documents, and of those that are
/// written for a second while views follow.
const STORED_BYTES_PER_DOCUMENT: u64 = 4 * DOCUMENT_BYTES as u64;
const FOLLOWED_BYTES_PER_SECOND: f64 = 200e6;

/// Parameters of a run.
#[derive(Debug, Clone, clap::Args)]
pub struct Config {
    /// Parts to run, separated by commas [default: all]
    #[arg(long, value_name = "PARTS", value_delimiter = ',')]
    pub parts: Vec<Part>,

    /// Number of documents; the test of 2011 had 1102400
    #[arg(long, value_name = "N", default_value_t = 110_240, value_parser = clap::value_parser!(u64).range(DOCUMENT_COUNT_MIN..=MESSAGE_COUNT_MAX))]
    pub documents: u64,

    /// Duration of each row of queries in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0, value_parser = seconds)]
    pub seconds: f64,

    /// Duration of the writes that views follow in seconds, and of the writes without views
    #[arg(long, value_name = "SECONDS", default_value_t = 20.0, value_parser = seconds)]
    pub follow_seconds: f64,
}

/// A part of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// The mailing list test of 2011: composite keys, arrays of objects as values, groups, an update of 1 %
    Mail,
    /// Builds of a view of one emit, without and with a function that needs the JavaScript engine
    Build,
    /// Full reads and ranges of small rows, also while an index is built
    Read,
    /// Searches with and without an index
    Mango,
    /// Batches of writes while three views follow
    Follow,
}

fn seconds(text: &str) -> Result<f64, String> {
    crate::number(text, 0.02, 3600.0)
}

impl Config {
    /// Upper bound of the bytes of documents and indexes that the server stores at the same time.
    pub fn written_bytes(&self) -> u64 {
        let size = |part| match part {
            Part::Follow => (self.follow_seconds * FOLLOWED_BYTES_PER_SECOND) as u64,
            _ => self.documents * STORED_BYTES_PER_DOCUMENT,
        };
        self.parts().into_iter().map(size).max().unwrap_or(0)
    }

    /// The parts to run.
    pub(super) fn parts(&self) -> Vec<Part> {
        match self.parts.is_empty() {
            true => Part::value_variants().to_vec(),
            false => self.parts.clone(),
        }
    }

    /// Duration of a row of queries.
    pub(super) fn row_time(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_selected_parts_decide_what_is_written() {
        let config = |parts: &[Part]| Config {
            parts: parts.to_vec(),
            documents: 1_000_000,
            seconds: 1.0,
            follow_seconds: 1.0,
        };
        assert_eq!(config(&[]).parts().len(), 5);
        assert_eq!(config(&[Part::Follow]).written_bytes(), 200_000_000);
        assert_eq!(config(&[Part::Follow, Part::Mango]).written_bytes(), 4096 * 1_000_000);
    }
}
