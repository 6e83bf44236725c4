//! Benchmarks of Settee: the workloads, peers and physical limits behind `settee bench`.
//!
//! - [`fabric`] runs the workload of CouchDB's `fabric_bench`, in this process or against any CouchDB URL.
//! - [`api`] measures the HTTP API of any server compatible with CouchDB, and compares it with figures
//!   recorded of CouchDB 3.5.0 and with the machine's limits, measured in the same run.
//! - [`sync`] measures each way of making a write durable.
//! - [`io`] measures reads and flushes of files; [`reads`] measures the reads of a database.
//! - [`log`] measures the log against memcpy, `fio`, raw syncs, and other engines' logs.
//! - [`store`] measures the store against fjall, LMDB, redb, RocksDB, `fio`, and a bare pread.
//! - [`soak`] runs mixed clients on a server that is killed, and compares the server's content with its
//!   responses.
//! - [`hostile`] runs hostile clients and measures the latency of ordinary clients beside them.
//! - [`http`] and [`couch`] are the client, shared with `settee load` and `settee dump`.
//!
//! Every run has a fixed seed, random values, a stated durability and a small form that the tests run.

pub mod api;
mod control_group;
pub mod couch;
mod descriptors;
pub mod documents;
mod drive;
mod error;
pub mod fabric;
pub mod hostile;
pub mod http;
pub mod io;
pub mod limits;
pub mod log;
pub mod process;
mod random;
pub mod reads;
pub mod report;
pub mod soak;
pub mod space;
pub mod stats;
pub mod store;
pub mod sync;

pub use error::{Error, Result};
