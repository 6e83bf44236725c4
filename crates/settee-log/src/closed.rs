//! Closed segments: sealing and truncation.
//!
//! Sealing reads a segment back, checks it, and writes its segment index after its last frame, so that its
//! records can be found without reading its frames (`segment_index.rs`). Reserved space that was not used is
//! returned to the file system. No correctness depends on a seal: a segment whose sealing failed or was
//! interrupted by a crash is complete without one.
//!
//! Truncation is for a log whose user has the records' content elsewhere. A manifest excludes the segments
//! that aren't needed any more; then their files are removed, each with its last user. One of them may be
//! recycled as the next segment's file: its space is allocated, and a sync of bytes written over old ones
//! changes no metadata.
//!
//! Invariants:
//! 1. A segment is sealed only when the next one's first group is persisted: so the last segment that
//!    recovery finds ends in frames.
//! 2. A file is removed only when a manifest on stable storage excludes it.
//! 3. A file is recycled only if it has no other user: no reader (its segment and its handle are not shared),
//!    no backup (no other link). Its header is zeroed on the medium before it gets its new name; its old
//!    frames name another segment, so they are never accepted as the new one's.
//! 4. A segment is listed only when it is sealed: the next one's header and everything before it are
//!    persisted, and the log no longer writes to it.
//! 5. A sealed segment's file never changes again: its length and checksum are known from then on, and the
//!    manifest has them. After an opening they are read again when the segment is listed.
//! 6. A segment counts as sealed only when its segment index is on the medium, also if an earlier process
//!    wrote it.
//!
//! Limits: each environment seals few segments at a time ([`settee_io::Env::background`]); sealing one takes
//! the memory of a frame reader's window (`frames.rs`), plus the segment index. A stream that fills
//! one segment after another needs the disk and the processor itself: sealing waits for a pause, as long as
//! no more than `SEAL_BACKLOG_MAX` segments wait.

mod scan;
mod sealing;
mod truncation;

pub use scan::{scan_segment, scan_whole_frames};
