//! The log's state: accepted records, the location of their bytes, and the watermarks.
//!
//! One mutex protects all of it. Nothing here waits or does I/O: [`LogState::accept`] copies a frame into the
//! open buffer, [`LogState::next_action`] returns the next write or sync to submit, and
//! [`LogState::complete_write`] and [`LogState::complete_sync`] record its result. The rules of group commit
//! are therefore in one place, independent of the threads that execute the actions: `accept` places frames,
//! `pipeline` decides what is written and synced, and when.
//!
//! Accepted bytes are kept in a queue of chunks: parts of buffers, and large values that were not copied. A
//! chunk is dropped once its bytes and the frames that reach into it are written. The pool bounds the memory.
//!
//! A *group* is the set of batches that one sync makes durable. A group is closed when a caller waits for it,
//! when written bytes reach their age limit, after 8 MiB of a stream (appends that no caller waits for), and
//! at the end of a segment. It may first wait a moment for callers that have just committed and may commit
//! again. Then all its bytes are written (several writes in flight at once), and then the file is synced.
//! Batches accepted in the meantime form the next group. Full buffers are written as they fill up, also
//! during a sync.
//!
//! Invariants (`check` verifies those that need no search, around each transition):
//! 1. `persisted <= written <= accepted`; none moves backwards; each is the end of an unbroken prefix.
//! 2. The sync of a group begins when all of the group is written, or together with the group's last write
//!    if no other write is incomplete. So it depends on no other write.
//! 3. Bytes covered by a sync are never written again: after a closed group, the next frame begins at a
//!    multiple of [`SYNC_ALIGNMENT`].
//! 4. No byte of a segment is written before all of the previous segment is persisted.
//! 5. After a failure no action begins and no watermark moves. A write that fails for lack of disk space is
//!    not a failure: it stays incomplete and is retried with the same bytes at the same offset. Until it
//!    succeeds, no batch is accepted and no other write begins.
//! 6. A chunk is dropped only when every frame that it holds a part of is written: a reader finds a frame
//!    whole in memory, or whole in the file.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use settee_io::{BufferPool, TailBuffer};

use crate::error::Stopped;
use crate::format::SYNC_ALIGNMENT;
use crate::options::LogOptions;
use crate::types::{LogStats, SegmentInfo, Seq};
use crate::watermark::{Position, Watermark};
use group::{Barrier, ClosedGroup, FormingGroup};
use write::{IncompleteWrite, SuspendedWrites};

mod accept;
mod capacity;
mod check;
mod chunk;
mod group;
mod pipeline;
mod placement;
mod segments;
mod waiters;
mod write;

pub(crate) use capacity::{fitting_bytes_max, reserve_bytes};
pub(crate) use chunk::{Chunk, ChunkMemory};
pub(crate) use placement::{AppendBlocked, Placement, SpaceRequest};
pub(crate) use segments::{ClosedSegments, OpenSegment, SegmentMeta};
pub(crate) use waiters::Waiters;
pub(crate) use write::Action;

/// See the module documentation.
pub(crate) struct LogState {
    pub options: LogOptions,
    pub pool: Arc<BufferPool>,

    // Watermarks, and their waiters.
    /// End of the last accepted frame.
    pub accepted: Watermark,
    pub written: Watermark,
    pub persisted: Watermark,
    /// End of the last persisted frame.
    persisted_frames_end: Position,
    /// Where the next frame begins.
    pub next: Position,
    /// Everything up to here is to be written: requested by a caller, or by the age limit.
    pub write_wanted: Watermark,
    /// Everything up to here is to be persisted: requested by a caller, the age limit, or the limit of a
    /// stream.
    pub persist_wanted: Watermark,
    /// Start of the age limit of accepted bytes that no caller waits for; `None` once their write is
    /// requested or submitted.
    accepted_since: Option<Duration>,
    /// Start of the age limit of written bytes: the first write since the last sync, or that sync's
    /// completion; `None` once a sync is requested.
    written_since: Option<Duration>,
    pub written_waiters: Waiters,
    pub persisted_waiters: Waiters,

    // Buffers.
    /// Accepted bytes that are not yet written. The last chunk grows while there is an open buffer.
    pub chunks: VecDeque<Chunk>,
    open_buffer: Option<TailBuffer>,
    /// Size of the next buffer in bytes: doubled when a buffer fills up, reset to the minimum when the log
    /// becomes idle.
    buffer_bytes: usize,
    /// Whether `chunks` has changed since the read view was published.
    pub read_view_is_stale: bool,

    // Groups.
    group: FormingGroup,
    closed_group: Option<ClosedGroup>,
    barrier: Option<Barrier>,
    /// Running average of the time of a sync.
    sync_time: Duration,
    /// Running average of the size of a group in bytes.
    pub group_bytes: usize,

    // Segments.
    /// The segment that takes appends; `None` between opening and the first append if there is none to
    /// continue in.
    pub open_segment: Option<OpenSegment>,
    /// Whether the next segment is being created: the open one takes no more batches.
    pub rolling: bool,
    /// Whether a background job is running.
    pub has_background_job: bool,
    /// Whether the last background job was refused disk space.
    pub background_job_refused: bool,
    /// Number of the preallocated segment; 0 for none.
    pub preallocated_number: u32,
    /// All segments, by number.
    pub segments: BTreeMap<u32, SegmentMeta>,
    pub closed: ClosedSegments,
    /// Bytes in segments that were transferred to the caller: all their bytes, until the caller reports the
    /// number of live ones.
    pub transferred_bytes: u64,

    // Submission.
    /// End of the bytes whose writes have been submitted.
    submitted: Position,
    /// Writes that were submitted, suspended ones included, in the order of their positions. Each is removed
    /// when `written` covers it.
    incomplete_writes: VecDeque<IncompleteWrite>,
    write_count: u64,
    suspended: Option<SuspendedWrites>,
    /// Whether a thread is in [`crate::shared::Shared::submit_ready`].
    pub is_submitting: bool,
    /// Number of writes and syncs that the engine executes; suspended writes excluded.
    pub engine_operation_count: usize,
    /// When the timer fires; `None` if none is set.
    pub timer: Option<Duration>,
    /// Whether the log is being closed: a write that fails for lack of disk space then stops the log.
    pub is_closing: bool,
    pub stopped: Option<Stopped>,
    pub stats: LogStats,
}

impl LogState {
    /// The state of a log that ends at `end` and is fully persisted.
    pub(crate) fn new(
        options: LogOptions,
        pool: Arc<BufferPool>,
        end: Watermark,
        open_segment: Option<OpenSegment>,
        segments: BTreeMap<u32, SegmentMeta>,
    ) -> LogState {
        let oldest = segments.first_key_value().map_or(1, |(number, _)| *number);
        let file_bytes = segments.values().map(|meta| meta.bytes).sum();
        let next = Position::new(end.at.segment(), end.at.offset().next_multiple_of(SYNC_ALIGNMENT));
        LogState {
            options,
            pool,
            open_segment,
            accepted: end,
            written: end,
            persisted: end,
            persisted_frames_end: end.at,
            next,
            chunks: VecDeque::new(),
            open_buffer: None,
            buffer_bytes: options.buffer_bytes_min,
            read_view_is_stale: false,
            submitted: next,
            incomplete_writes: VecDeque::new(),
            write_count: 0,
            suspended: None,
            is_closing: false,
            group: FormingGroup::default(),
            closed_group: None,
            barrier: None,
            write_wanted: end,
            persist_wanted: end,
            accepted_since: None,
            written_since: None,
            sync_time: Duration::ZERO,
            group_bytes: 0,
            written_waiters: Waiters::default(),
            persisted_waiters: Waiters::default(),
            stopped: None,
            rolling: false,
            has_background_job: false,
            background_job_refused: false,
            preallocated_number: 0,
            closed: ClosedSegments::new(oldest),
            transferred_bytes: 0,
            segments,
            is_submitting: false,
            engine_operation_count: 0,
            timer: None,
            stats: LogStats { file_bytes, ..LogStats::default() },
        }
    }

    /// The oldest unsealed segment, if the persisted watermark is in a later one.
    pub(crate) fn next_to_seal(&self) -> Option<u32> {
        let next = self.closed.seal_next;
        (next < self.persisted.at.segment() && !self.closed.is_sealing).then_some(next)
    }

    /// The first segment that can't be sealed until more is accepted: the open one, or the one before it if
    /// the append that created the open one was cancelled, so that it is empty.
    pub(crate) fn seal_end(&self) -> u32 {
        let is_begun = |segment: &OpenSegment| segment.header.is_none();
        let end_of = |segment: &OpenSegment| segment.number - u32::from(!is_begun(segment));
        self.open_segment.as_ref().map_or(self.persisted.at.segment(), end_of)
    }

    /// Whether there are truncated segments to remove.
    pub(crate) fn has_files_to_remove(&self) -> bool {
        let open = self.open_segment.as_ref().map(|segment| segment.number);
        self.closed.oldest < self.closed.needed && open == Some(self.persisted.at.segment())
    }

    /// Size of the log in bytes: its segments, and [`LogState::transferred_bytes`].
    pub(crate) fn log_bytes(&self) -> u64 {
        self.stats.file_bytes + self.transferred_bytes
    }

    /// Metadata of the segments, oldest first.
    pub(crate) fn segment_infos(&self) -> Vec<SegmentInfo> {
        let end = self.accepted.at;
        let mut last_seq = self.accepted.seq;
        let mut infos = Vec::with_capacity(self.segments.len());
        for (&number, meta) in self.segments.iter().rev() {
            let frame_bytes = if number == end.segment() { end.offset().into() } else { meta.bytes };
            infos.push(SegmentInfo {
                number,
                epoch: meta.epoch,
                first_seq: Seq(meta.first_seq),
                last_seq: Seq(last_seq),
                frame_bytes,
                is_sealed: number < self.closed.seal_next && !self.closed.unsealed.contains(&number),
            });
            last_seq = meta.first_seq - 1;
        }
        infos.reverse();
        infos
    }

    /// The oldest segment with a record that is still needed.
    pub(crate) fn oldest_needed(&self) -> u32 {
        // Of these, the newest may hold the first record that is needed.
        let begins_at_or_before = |meta: &SegmentMeta| meta.first_seq <= self.closed.truncate_before;
        let newest_first = self.segments.iter().rev();
        newest_first
            .filter(|(_, meta)| begins_at_or_before(meta))
            .map(|(number, _)| *number)
            .next()
            .unwrap_or(self.closed.oldest)
            .max(self.closed.oldest)
    }

    /// Bytes in the current group.
    pub(crate) fn forming_bytes(&self) -> usize {
        self.group.bytes
    }

    /// Bytes of the open segment that are accepted and not yet persisted.
    pub(crate) fn unpersisted_bytes(&self) -> u64 {
        let segment = self.next.segment();
        let from = if self.persisted.at.segment() == segment { self.persisted.at.offset() } else { 0 };
        u64::from(self.next.offset().saturating_sub(from))
    }

    /// Bytes that are accepted and not yet written.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.end.since(chunk.start)).sum()
    }

    /// Takes out the file handles, for the caller to drop after unlocking.
    pub(crate) fn release_files(&mut self) -> impl Sized + use<> {
        (self.open_segment.take(), self.closed_group.take(), self.barrier.take())
    }

    /// Takes out all unwritten bytes and all waiters, for the caller to drop after unlocking.
    pub(crate) fn clear(&mut self) -> impl Sized + use<> {
        self.read_view_is_stale = true;
        self.timer = None;
        let waiters = [&mut self.written_waiters, &mut self.persisted_waiters].map(std::mem::take);
        (waiters, std::mem::take(&mut self.chunks), self.open_buffer.take(), self.suspended.take())
    }
}
