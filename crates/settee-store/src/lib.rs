//! An ordered, durable key-value store with snapshots over an append-only log.
//!
//! Values stay in the log; the [`Layer`] in memory maps each key to its newest record, with the
//! record's `meta` inline, and is rebuilt at open by reading the log. A [`Snapshot`] is a state
//! of that index which no writer touches: readers never wait.
//!
//! What a snapshot shows is persisted, so no reader ever sees what a crash can undo. A
//! [`Writer`] sees the newest accepted state, one at a time.

mod layer;
mod snapshot;
mod store;

pub use layer::{Cursor, Found, Layer, Location, Previous, Sums};
pub use settee_log::{
    AppendError, BATCH_SIZE_MAX, Flags, InvalidLimit, LogOptions, LogStats, META_SIZE_MAX, OpenError,
    ReadError, Record, Recovery, Seq, Stage, Stopped,
};
pub use snapshot::{Entry, Scan, Snapshot};
pub use store::{Batch, KEY_SIZE_MAX, Store, StoreOptions, VALUE_SIZE_MAX, Writer};
