//! An ordered, durable key-value store with snapshots over an append-only log.
//!
//! Values stay in the log. What says where each key's newest record lies, with the record's `meta`
//! inline, is an index: recent records in memory layers ([`Layer`]), all others in a tree on disk
//! (`settee-tree`), which a checkpoint brings up to date in the background. Opening a store replays
//! what came after the last checkpoint. A [`Snapshot`] is a state that no writer touches: readers
//! never wait.
//!
//! What a snapshot shows is persisted, so no reader ever sees what a crash can undo. A
//! [`Writer`] sees the newest accepted state, one at a time.
//!
//! Space that dead records take is given back by rewriting segments, in the background or by
//! [`Store::compact`]; readers of older snapshots go on with the files that they have.
//!
//! Bytes: `docs/format.md`. Crash cases: `docs/recovery.md`. What was chosen, and why:
//! `docs/decisions/0014-store.md`.
//!
//! # A store in 40 lines
//! `cargo run -p settee-store --example store`
#![doc = concat!("```\n", include_str!("../examples/store.rs"), "```\n")]

mod backup;
mod batch;
mod budget;
mod check;
mod checkpoint;
mod chunks;
mod compact;
mod entry;
mod error;
mod layer;
mod manifest;
mod merge;
mod open;
mod planted;
mod repair;
mod replay;
mod segments;
mod snapshot;
mod state;
mod store;
mod values;

pub use backup::{Backup, BackupFile, BackupFiles, Checksum, EarlierBackup, checksum_file, copy_file};
pub use batch::{Batch, KEY_SIZE_MAX, VALUE_SIZE_MAX};
pub use budget::MemoryBudget;
pub use check::{CheckEvent, CheckSummary, Problem, Salvaged, Touched, check};
pub use checkpoint::Checkpoint;
pub use chunks::{CHUNK_BYTES, ChunkCache, ChunkStats};
pub use compact::Compaction;
pub use entry::{CHAIN_COUNT_MAX, Location, Pointer};
pub use error::{CommitError, ReadError, StoreError};
pub use layer::{Cursor, Found, Layer, Sums};
#[cfg(feature = "planted-faults")]
pub use planted::{LiveTable, Planted};
pub use repair::{Loss, RepairSummary, Salvage, repair};
pub use settee_log::{
    AppendError, BATCH_SIZE_MAX, Flags, InvalidLimit, LogOptions, LogStats, META_SIZE_MAX, OpenError, Record,
    Recovery, Seq, Stage, Stopped, Value,
};
pub use settee_tree::NodeCache;
pub use snapshot::{Entry, EntryRef, Scan, Snapshot};
pub use state::Measure;
pub use store::{Fold, Store, StoreOptions, StoreStats, Writer};
pub use values::{AHEAD_BYTES_MAX, AHEAD_ROWS_MAX, ValueRef, ValueScan};
