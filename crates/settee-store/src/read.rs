//! Reading: snapshots, scans of their index, and values.
//!
//! A snapshot (`snapshot.rs`) pins a version of the index. `scan.rs` merges the version's memtables and its
//! tree in the order of one of the two indexes (`order.rs`). `values.rs` reads many values: in bulk, and
//! along a scan.

mod order;
mod scan;
mod snapshot;
mod values;

pub use scan::Scan;
pub use snapshot::Snapshot;
pub use values::{READ_AHEAD_BYTES_MAX, READ_AHEAD_ROWS_MAX, ValueRef, ValueScan};
