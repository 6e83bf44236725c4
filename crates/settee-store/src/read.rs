//! Reading: snapshots, scans of their index, and values.
//!
//! A snapshot (`snapshot.rs`) pins a version of the index. `scan.rs` merges the version's memtables and its
//! tree in the order of one of the two indexes (`order.rs`). `bulk.rs` reads many records together, and
//! `ahead.rs` reads the records of a sequence of rows ahead. `replaced.rs` finds records that later ones replaced.

mod ahead;
mod bulk;
mod order;
mod replaced;
mod scan;
mod snapshot;

pub use ahead::{READ_AHEAD_BYTES_MAX, READ_AHEAD_ROWS_MAX, ReadAhead, ReadRow, RowSource};
pub use replaced::{ReplacedRecord, ReplacedRecords, ReplacedSearch};
pub use scan::Scan;
pub use snapshot::Snapshot;
