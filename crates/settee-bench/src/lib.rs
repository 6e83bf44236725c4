//! Benchmarks of Settee: the workloads, peers and physical limits behind `settee bench`.
//!
//! - [`fabric`] runs the workload of CouchDB's `fabric_bench` on any server compatible with CouchDB.
//! - [`api`] measures the HTTP API of any such server, and compares it with figures recorded of CouchDB 3.5.0
//!   and with the machine's limits, measured in the same run.
//! - [`io`] measures reads of files, and each way of making a write durable.
//! - [`log`] measures the log against memcpy, `fio` and raw syncs.
//! - [`store`] measures the store against fjall, LMDB, redb, RocksDB, `fio`, and a bare pread.
//! - [`soak`] runs mixed clients on a server that is killed, and compares the server's content with its
//!   responses.
//! - [`footprint`] samples the disk space of a database whose documents are overwritten.
//! - [`views`] measures views and Mango of any server compatible with CouchDB: builds, queries, and indexes that
//!   follow writes.
//! - [`hostile`] runs hostile clients and measures the latency of ordinary clients beside them.
//!
//! Each has a `Config`, which is also its arguments on the command line, and reports [`report::Row`]s. Every run
//! has a fixed seed, random values, a stated durability and a small form that the tests run.

pub mod api;
mod control_group;
pub mod documents;
pub mod drive;
mod error;
pub mod fabric;
pub mod footprint;
pub mod hostile;
pub mod io;
pub mod limits;
pub mod log;
mod mail;
pub mod process;
mod random;
pub mod report;
pub mod rounds;
pub mod soak;
pub mod space;
pub mod stats;
pub mod store;
pub mod views;

pub use error::{Error, Result};

/// Parses the scale of a benchmark.
fn scale(text: &str) -> std::result::Result<f64, String> {
    number(text, 0.001, 10.0)
}

/// Parses a number from `min` to `max`.
fn number(text: &str, min: f64, max: f64) -> std::result::Result<f64, String> {
    match text.parse() {
        Ok(number) if (min..=max).contains(&number) => Ok(number),
        _ => Err(format!("expected a number from {min} to {max}")),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_scale_is_a_number_within_bounds() {
        assert_eq!(super::scale("0.5"), Ok(0.5));
        for bad in ["0", "11", "NaN", "x"] {
            assert!(super::scale(bad).is_err(), "{bad}");
        }
    }
}
