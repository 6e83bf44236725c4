//! Workloads, peers and physical limits: what `settee bench` measures and prints.
//!
//! - [`fabric`] is CouchDB's own table, in this process or against any CouchDB URL.
//! - [`api`] measures the HTTP API of any server that speaks CouchDB's, beside what was recorded
//!   of CouchDB 3.5.0 and the limits of the machine in the same run.
//! - [`sync`] measures each way of making a write durable.
//! - [`io`] measures reads and flushes of files, [`reads`] reads as databases ask for them.
//! - [`log`] measures the log against memcpy, `fio`, raw syncs, and other engines' logs.
//! - [`store`] measures the store against fjall, LMDB, redb, RocksDB, `fio`, and a bare pread.
//! - [`soak`] runs mixed clients on a server that is killed, and compares what it has with what it said.
//! - [`hostile`] runs hostile clients and measures what others meet meanwhile.
//! - [`http`] and [`couch`] are the client, which loading and dumping share.
//!
//! Every run has a fixed seed, random values, a stated durability and a small form that the
//! tests run.

pub mod api;
pub mod couch;
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
