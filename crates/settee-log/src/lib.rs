//! A segmented append-only log: asynchronous append, group commit, recovery.
//!
//! A [`Log`] is a folder of segments. [`Log::append`] takes a [`Batch`] of records, copies it
//! into memory and returns its position at once; one writer task hands what has come to the
//! system and syncs it where somebody asked for that; [`Log::wait`] tells when a record has
//! got as far as its [`Stage`]. Whoever waits at the same time shares one sync.
//!
//! Bytes: `docs/format.md`. Crash cases: `docs/recovery.md`.

mod error;
mod format;
mod log;
mod recovery;
mod room;
mod writer;

pub use error::{AppendError, OpenError, ReadError, Stopped};
pub use format::{BATCH_SIZE_MAX, Batch, Flags, KEY_SIZE_MAX, META_SIZE_MAX, Record, RecordRef};
pub use log::{Appended, Location, Log, LogOptions, LogStats, SEGMENT_BYTES_LIMIT, Seq, Stage};
pub use recovery::Recovery;
