//! An ordered, durable key-value store with snapshots over an append-only log.
//!
//! Values stay in the log. An index maps each key to the location of its newest record, with the record's
//! `meta` inline. Recent records are indexed in memtables ([`MemtableMap`]), all others in a tree on disk
//! (`settee-tree`) that background checkpoints update. Opening a store replays the records after the last
//! checkpoint. A [`Snapshot`] pins an immutable version of the index: readers never wait.
//!
//! Snapshots show only persisted records, so no reader sees what a crash can undo. A [`Writer`] sees the
//! newest accepted version; there is one at a time.
//!
//! Compaction frees the space of dead records by rewriting segments, in the background or by
//! [`Store::compact`]. Older snapshots keep reading the files they pin.
//!
//! Bytes: `docs/format.md`. Crash cases: `docs/recovery.md`. Design decisions:
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
mod checkpoint_state;
mod chunks;
mod compact;
mod entry;
mod error;
mod failpoints;
mod manifest;
mod memtable;
mod merge;
mod open;
mod options;
mod repair;
mod replay;
mod segments;
mod snapshot;
mod store;
mod tree_index;
mod values;
mod version;

pub use backup::{Backup, BackupFile, BackupFiles, Checksum, EarlierBackup, checksum_file, copy_file};
pub use batch::{Batch, KEY_SIZE_MAX, VALUE_SIZE_MAX};
pub use budget::MemoryBudget;
pub use check::{CheckEvent, CheckSummary, Problem, Salvaged, Touched, check};
pub use checkpoint::Checkpoint;
pub use chunks::{CHUNK_BYTES, ChunkCache, ChunkStats};
pub use compact::Compaction;
pub use entry::{Location, OPERAND_COUNT_MAX, Pointer};
pub use error::{CommitError, ReadError, StoreError};
#[cfg(feature = "failpoints")]
pub use failpoints::{Failpoint, LiveTable};
pub use memtable::{Aggregates, Cursor, Found, MemtableMap};
pub use options::{MergeOperator, StoreOptions, StoreStats};
pub use repair::{Loss, RepairSummary, Salvage, repair};
pub use settee_log::{
    AppendError, BATCH_SIZE_MAX, Flags, InvalidLimit, LogOptions, LogStats, META_SIZE_MAX, OpenError, Record,
    Recovery, Seq, Stage, Stopped, Value,
};
pub use settee_tree::NodeCache;
pub use snapshot::{Entry, EntryRef, Scan, Snapshot};
pub use store::{Store, Writer};
pub use tree_index::Aggregate;
pub use values::{READ_AHEAD_BYTES_MAX, READ_AHEAD_ROWS_MAX, ValueRef, ValueScan};
