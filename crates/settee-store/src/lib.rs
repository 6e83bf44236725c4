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

mod batch;
mod budget;
mod error;
mod failpoints;
mod options;

mod index;
mod manifest;
mod memtable;

mod version;

mod pacing;
mod space;

mod read;

mod shared;

mod backup;
mod check;
mod checkpoint;
mod compact;
mod reclaim;

mod repair;
mod store;

#[cfg(feature = "failpoints")]
#[path = "../tests/failpoints/mod.rs"]
mod faults;

pub use backup::{Backup, BackupFile, BackupFiles, Checksum, EarlierBackup, checksum_file, copy_file};
pub use batch::{Batch, KEY_SIZE_MAX, VALUE_SIZE_MAX};
pub use budget::{MemoryBudget, ReadAheadBudget};
pub use check::{CheckEvent, CheckSummary, Problem, Salvaged, Touched, check, is_previous_format};
pub use checkpoint::Checkpoint;
pub use compact::Compaction;
pub use error::{CommitError, ReadError, StoreError};
#[cfg(feature = "failpoints")]
pub use failpoints::Failpoint;
#[cfg(feature = "failpoints")]
pub use faults::LiveTable;
pub use index::{Aggregate, Entry, EntryRef, Location, OPERAND_COUNT_MAX, Pointer};
pub use memtable::{Aggregates, Cursor, Found, MemtableMap};
pub use options::{MergeOperator, StoreOptions, StoreStats};
pub use read::{
    READ_AHEAD_BYTES_MAX, READ_AHEAD_ROWS_MAX, ReadAhead, ReadRow, ReplacedRecord, ReplacedRecords,
    ReplacedSearch, RowSource, Scan, Snapshot,
};
pub use repair::{Loss, RepairSummary, Salvage, repair};
pub use settee_log::{
    AppendError, BATCH_SIZE_MAX, CHUNK_BYTES, ChunkCache, Flags, InvalidLimit, LogOptions, LogStats,
    META_SIZE_MAX, OpenError, Record, Recovery, Seq, Stage, Stopped, Timeline, Timelines, Value,
};
pub use settee_tree::NodeCache;
pub use store::{Store, Writer, start_timeline};
pub use version::Lookup;
