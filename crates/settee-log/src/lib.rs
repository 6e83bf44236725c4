//! A segmented append-only log: asynchronous append, group commit, recovery.
//!
//! A [`Log`] is a folder of segments. [`Log::append`] takes a [`Batch`] of records, copies it
//! into memory and returns its position at once; what has come is written and synced together,
//! as somebody asks for it; [`Log::wait`] tells when a record has got as far as its [`Stage`].
//! Whoever waits at the same time shares one sync.
//!
//! Bytes: `docs/format.md`. Crash cases: `docs/recovery.md`.
//!
//! # A log in 20 lines
//! `cargo run -p settee-log --example log`
#![doc = concat!("```\n", include_str!("../examples/log.rs"), "```\n")]
//! # A write-ahead log for a database of one's own
//! `cargo run -p settee-log --example wal`
#![doc = concat!("```\n", include_str!("../examples/wal.rs"), "```\n")]

mod check;
mod chunk;
mod directory;
mod drive;
mod error;
mod format;
mod log;
mod many;
mod mark;
mod planted;
mod recovery;
mod room;
mod seal;
mod state;
mod view;
mod waiters;

pub use check::{Damage, SegmentCheck, SegmentHead, check_segment, segment_head};
pub use directory::{
    Directory, DirectoryBuilder, DirectoryError, Entry, EntryRef, KeyScan, SeqScan, TRAILER_SIZE, Trailer,
    footer_start,
};
pub use error::{AppendError, InvalidLimit, OpenError, ReadError, Stopped};
pub use format::{
    BATCH_SIZE_MAX, Batch, EXTENT_COUNT_MAX, EXTENT_SIZE_MAX, Flags, KEY_SIZE_MAX, META_SIZE_MAX, Record,
    RecordRef, Value,
};
pub use log::{
    Appended, Location, Log, LogOptions, LogStats, SEGMENT_BYTES_LIMIT, SegmentInfo, Seq, Stage, read_record,
};
pub use many::read_policy;
#[cfg(feature = "planted-faults")]
pub use planted::Planted;
pub use recovery::{Locked, Recovery, Start};
pub use seal::scan_segment;
pub use view::Files;
