//! A segmented append-only log: asynchronous append, group commit, recovery.
//!
//! A [`Log`] is a directory of segments. [`Log::append`] copies a [`Batch`] of records into memory and
//! returns its position immediately. Batches are written and synced in groups when a caller asks for it;
//! [`Log::wait`] returns when a record has reached a [`Stage`]. Callers that wait at the same time share one
//! sync.
//!
//! Bytes: `docs/format.md`. Crash cases: `docs/recovery.md`.
//!
//! # A log in 20 lines
//! `cargo run -p settee-log --example log`
#![doc = concat!("```\n", include_str!("../examples/log.rs"), "```\n")]
//! # A write-ahead log for your own database
//! `cargo run -p settee-log --example wal`
#![doc = concat!("```\n", include_str!("../examples/wal.rs"), "```\n")]

mod check;
mod closed;
mod edit;
mod error;
mod failpoints;
mod file_digest;
mod format;
mod frames;
mod log;
mod manifest;
mod options;
mod read_policy;
mod read_view;
mod recovery;
mod reservation;
mod segment_index;
mod segment_name;
mod segment_set;
mod shared;
mod state;
mod submit_loop;
mod timeline;
mod types;
mod watermark;

#[cfg(feature = "failpoints")]
#[path = "../tests/failpoints/freed_buffer.rs"]
mod freed_buffer;

pub use check::{DamagedRange, SegmentCheck, SegmentHead, check_segment, segment_head};
pub use closed::{scan_segment, scan_whole_frames};
pub use edit::{Edit, UserLines};
pub use error::{AppendError, EditError, InvalidLimit, OpenError, ReadError, StartTimelineError, Stopped};
#[cfg(feature = "failpoints")]
pub use failpoints::Failpoint;
pub use file_digest::{FileChecksum, FileDigest, FileHasher};
pub use format::{
    BATCH_SIZE_MAX, Batch, Flags, KEY_SIZE_MAX, META_SIZE_MAX, Record, RecordRef, SEGMENT_BYTES_LIMIT, Value,
};
pub use log::Log;
pub use log::read::read_record;
pub use log::timelines::start_timeline;
pub use manifest::{FileNumbers, MANIFEST_FILE, Manifest};
pub use options::LogOptions;
pub use read_policy::read_policy;
pub use recovery::{LogLock, Recovery};
pub use segment_index::{
    Entry, EntryRef, KeyScan, SegmentIndex, SegmentIndexBuilder, SegmentIndexError, SeqScan, TRAILER_SIZE,
    Trailer, footer_start,
};
pub use segment_set::{
    CHUNK_BYTES, ChunkCache, Segment, SegmentContents, SegmentName, SegmentSet, SparseBlockIndex, StoredFile,
    WantedRecord,
};
pub use timeline::{Timeline, Timelines};
pub use types::{Appended, Location, LogStats, ReadFormat, SegmentInfo, Seq, Stage, TimelineId};
