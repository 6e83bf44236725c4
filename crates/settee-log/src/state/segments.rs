//! The log's segments: the open one, and those before it.
//!
//! Invariants:
//! 1. A batch is placed only in disk space that is reserved.
//! 2. Segments below `seal_next` are sealed, or are in `unsealed` because they can't be.
//! 3. Only segments that a persisted manifest excludes or lists are released.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use settee_io::File;

use super::capacity::{fitting_bytes_max, reserve_bytes};
use super::placement::{AppendBlocked, SpaceRequest};
use crate::format::{
    FRAME_HEADER_SIZE, FrameHeader, FrameSeed, SEGMENT_HEADER_SIZE, SYNC_ALIGNMENT, SegmentHeader,
};
use crate::frames::Tail;
use crate::types::{SegmentInfo, Seq, TimelineId};
use crate::watermark::{Position, Watermark};

/// The segment that takes appends.
pub(crate) struct OpenSegment {
    pub number: u32,
    pub epoch: u32,
    pub seed: FrameSeed,
    pub file: Arc<File>,
    /// Offset at which it is full.
    pub bytes_max: u32,
    /// Disk space is reserved up to this offset.
    pub allocated: u32,
    /// Checksum of the last frame, which the next frame includes.
    pub checksum: u64,
    /// Its header, until it is accepted together with the first frame.
    pub header: Option<[u8; SEGMENT_HEADER_SIZE]>,
}

/// A segment's file that isn't in use yet.
pub(crate) struct PreallocatedSegment {
    pub number: u32,
    pub file: Arc<File>,
    pub allocated: u32,
    /// Whether the file held another segment before.
    pub is_reused: bool,
}

/// The log's metadata of a segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SegmentMeta {
    pub epoch: u32,
    /// Index of its timeline.
    pub timeline: u32,
    pub first_seq: u64,
    /// Size of its frames in bytes, header included. For the open segment this is its size when the log was
    /// opened: 0 if the segment was begun since.
    pub bytes: u64,
}

/// What the headers of new segments and the close mark repeat: the log's timeline, the number of its opening,
/// and the end that recovery found.
#[derive(Clone, Copy)]
pub(crate) struct Continuation {
    pub timeline: TimelineId,
    /// Its index among the log's timelines.
    pub timeline_index: u32,
    /// Number of this opening of the log; grows with each opening.
    pub epoch: u32,
    /// Where the log ended when it was opened.
    pub tail: Tail,
    /// Whether a close mark followed that end.
    pub is_marked: bool,
}

/// See the module documentation.
pub(crate) struct Segments {
    continuation: Continuation,
    /// The segment that takes appends; `None` between opening and the first append if there is none to
    /// continue in.
    open: Option<OpenSegment>,
    /// Whether the next segment is being created: the open one takes no more batches.
    is_rolling: bool,
    /// Whether the next batch begins a segment, however much space the open one has.
    ends_early: bool,
    /// All segments, by number.
    all: BTreeMap<u32, SegmentMeta>,
    /// Total size of the frames in the segments before the open one.
    closed_bytes: u64,
    /// Live bytes in listed segments, as the log's user reported.
    listed_live_bytes: u64,

    /// All segments below are sealed, or are in `unsealed` because they can't be.
    seal_next: u32,
    unsealed: BTreeSet<u32>,
    /// Segments in `unsealed` whose segment index failed for lack of disk space.
    without_space: BTreeSet<u32>,
    is_sealing: bool,
    /// Segments below this one are sealed without waiting for a pause in the writes.
    seal_soon: u32,
    /// All segments below were removed, or are listed in the manifest.
    oldest: u32,
    /// Segments below this one weren't needed when the open one began.
    needed: u32,
    /// Records before this `Seq` aren't needed.
    truncate_before: u64,
}

impl Segments {
    pub(super) fn new(
        continuation: Continuation,
        open: Option<OpenSegment>,
        all: BTreeMap<u32, SegmentMeta>,
        oldest: u32,
    ) -> Segments {
        let is_closed = |number: &u32| open.as_ref().is_none_or(|open| open.number != *number);
        let closed_bytes =
            all.iter().filter(|(number, _)| is_closed(number)).map(|(_, meta)| meta.bytes).sum();
        Segments {
            continuation,
            open,
            is_rolling: false,
            ends_early: false,
            all,
            closed_bytes,
            listed_live_bytes: 0,
            seal_next: oldest,
            unsealed: BTreeSet::new(),
            without_space: BTreeSet::new(),
            is_sealing: false,
            seal_soon: 0,
            oldest,
            needed: oldest,
            truncate_before: 0,
        }
    }

    // The open segment.

    /// The segment that takes appends.
    pub(crate) fn open(&self) -> Option<&OpenSegment> {
        self.open.as_ref()
    }

    /// The number of the segment that takes appends, or in which the log ended when it was opened.
    pub(crate) fn last_number(&self) -> u32 {
        self.open.as_ref().map_or(self.continuation.tail.segment, |open| open.number)
    }

    /// Whether the next segment is being created.
    pub(super) fn is_rolling(&self) -> bool {
        self.is_rolling
    }

    /// Sets whether the open segment takes no more batches, because the next one is being created.
    pub(crate) fn set_rolling(&mut self, is_rolling: bool) {
        self.is_rolling = is_rolling;
    }

    /// Requires that the next batch begin a segment, if the open one has records. The log ends at `accepted`.
    pub(super) fn end_early(&mut self, accepted: Watermark) {
        self.ends_early = self.open_has_records(accepted);
    }

    /// Takes back what [`Segments::end_early`] required. Returns whether it had been required.
    pub(crate) fn cancel_early_end(&mut self) -> bool {
        std::mem::take(&mut self.ends_early)
    }

    /// Whether the open segment has records in a log that ends at `accepted`.
    pub(super) fn open_has_records(&self, accepted: Watermark) -> bool {
        let first = self.open.as_ref().and_then(|open| self.all.get(&open.number));
        first.is_some_and(|meta| meta.first_seq <= accepted.seq)
    }

    /// Records that disk space of the open segment is reserved up to `end`.
    pub(super) fn set_reserved(&mut self, end: u32) {
        if let Some(open) = &mut self.open {
            open.allocated = open.allocated.max(end);
        }
    }

    /// Checks that the open segment has disk space for the batch at the offset `next`. Increases the capacity
    /// of a segment with at most a block of frames that is too small for it.
    pub(super) fn check_space(&mut self, next: u32, request: SpaceRequest) -> Result<(), AppendBlocked> {
        let Some(open) = self.open.as_mut().filter(|_| !self.is_rolling) else {
            return Err(AppendBlocked::Segment);
        };
        if self.ends_early {
            return Err(AppendBlocked::Segment);
        }
        let is_fresh = open.header.is_some();
        let end = next + if is_fresh { SEGMENT_HEADER_SIZE as u32 } else { 0 } + request.size as u32;
        // After a header alone the first frame follows in the next block.
        if is_fresh || next <= SYNC_ALIGNMENT {
            open.bytes_max = fitting_bytes_max(open.bytes_max, end);
        }
        let reserve = if request.may_use_reserve { 0 } else { reserve_bytes(open.bytes_max) };
        if end + reserve > open.bytes_max {
            return Err(AppendBlocked::Segment);
        }
        if end + reserve > open.allocated {
            return Err(AppendBlocked::DiskReservation(end + reserve));
        }
        Ok(())
    }

    /// The header of the next frame in the open segment; the batch fills in the rest.
    pub(super) fn frame_header(&self, first_seq: u64, persisted: u32) -> FrameHeader {
        let OpenSegment { number, epoch, seed, checksum, .. } =
            *self.open.as_ref().expect("a segment is open");
        FrameHeader {
            seed,
            length: 0,
            segment: number,
            epoch,
            first_seq,
            record_count: 0,
            persisted,
            previous: checksum,
        }
    }

    /// Records that a frame with this checksum was accepted, and before the first frame the segment's header.
    pub(super) fn accept(&mut self, checksum: u64) {
        let open = self.open.as_mut().expect("a segment is open");
        (open.checksum, open.header) = (checksum, None);
    }

    /// Takes the open segment's header and file, if its header wasn't accepted yet: the caller accepts it.
    pub(super) fn take_header(&mut self) -> Option<([u8; SEGMENT_HEADER_SIZE], Arc<File>)> {
        let open = self.open.as_mut()?;
        Some((open.header.take()?, open.file.clone()))
    }

    /// Makes the new segment the open one. The log ends at `accepted`.
    pub(super) fn begin(&mut self, new: PreallocatedSegment, bytes_max: u32, accepted: Watermark) {
        let PreallocatedSegment { number, file, allocated, is_reused } = new;
        let Continuation { timeline, timeline_index, epoch, tail, .. } = self.continuation;
        let (mut previous_end, mut previous_checksum) = (tail.end, tail.checksum);
        if let Some(open) = &self.open {
            // Without the padding after the last frame.
            (previous_end, previous_checksum) = (accepted.at.offset().into(), open.checksum);
            if let Some(meta) = self.all.get_mut(&open.number) {
                meta.bytes = previous_end;
                self.closed_bytes += previous_end;
            }
        }
        self.needed = self.oldest_needed();
        self.ends_early = false;
        let header = SegmentHeader {
            segment: number,
            epoch,
            timeline,
            is_reused,
            oldest: self.oldest,
            first_seq: accepted.seq + 1,
            previous_end,
            previous_checksum,
        };
        self.all.insert(
            number,
            SegmentMeta { epoch, timeline: timeline_index, first_seq: header.first_seq, bytes: 0 },
        );
        let seed = header.frame_seed();
        let (header, checksum) = header.encode();
        let header = Some(header);
        self.open = Some(OpenSegment { number, epoch, seed, file, bytes_max, allocated, checksum, header });
    }

    /// The close mark of a log that ends at `accepted`; `None` if the log is empty, still ends with the mark
    /// found when it was opened, or ends in a segment of an earlier timeline, to which nothing is written: the
    /// manifest says which record is the last one there.
    pub(super) fn close_mark(&self, accepted: Watermark) -> Option<[u8; FRAME_HEADER_SIZE]> {
        let Continuation { timeline, timeline_index, tail, is_marked, .. } = self.continuation;
        let (segment, persisted) = (accepted.at.segment(), accepted.at.offset());
        if is_marked && (tail.segment, tail.end) == (segment, persisted.into()) {
            return None;
        }
        let meta = self.all.get(&segment).filter(|meta| meta.timeline == timeline_index)?;
        let previous = match self.open.as_ref().filter(|open| open.number == segment) {
            Some(open) => open.checksum,
            // A segment without frames has begun since, whose header has the checksum, or none has.
            None => match self.open.as_ref().and_then(|open| open.header.as_ref()) {
                Some(header) => SegmentHeader::decode(header).ok()?.0.previous_checksum,
                None => tail.checksum,
            },
        };
        let mark = FrameHeader {
            seed: FrameSeed::of(timeline),
            length: 0,
            segment,
            epoch: meta.epoch,
            first_seq: accepted.seq + 1,
            record_count: 0,
            persisted,
            previous,
        };
        Some(mark.encode_mark())
    }

    /// Releases the open segment, for the caller to drop after unlocking.
    pub(super) fn release(&mut self) -> impl Sized + use<> {
        self.open.take()
    }

    // Sizes and metadata.

    /// Bytes of the open segment's disk space beyond `next`, where the next frame begins.
    pub(super) fn reserved_bytes(&self, next: Position) -> u64 {
        let open = self.open.as_ref().filter(|open| open.number == next.segment());
        open.map_or(0, |open| open.allocated.saturating_sub(next.offset()).into())
    }

    /// Total size of the frames in all segments of a log that ends at `accepted`.
    pub(super) fn file_bytes(&self, accepted: Position) -> u64 {
        let is_in_open = self.open.as_ref().is_some_and(|open| open.number == accepted.segment());
        self.closed_bytes + if is_in_open { accepted.offset().into() } else { 0 }
    }

    /// Live bytes in listed segments.
    pub(super) fn listed_live_bytes(&self) -> u64 {
        self.listed_live_bytes
    }

    /// Sets the number of live bytes in listed segments.
    pub(crate) fn set_listed_live_bytes(&mut self, bytes: u64) {
        self.listed_live_bytes = bytes;
    }

    /// Metadata of the segments, oldest first. The log ends at `accepted`.
    pub(super) fn infos(&self, accepted: Watermark) -> Vec<SegmentInfo> {
        let mut last_seq = accepted.seq;
        let mut infos = Vec::with_capacity(self.all.len());
        for (&number, meta) in self.all.iter().rev() {
            let is_last = number == accepted.at.segment();
            infos.push(SegmentInfo {
                number,
                epoch: meta.epoch,
                first_seq: Seq(meta.first_seq),
                last_seq: Seq(last_seq),
                frame_bytes: if is_last { accepted.at.offset().into() } else { meta.bytes },
                is_sealed: number < self.seal_next && !self.unsealed.contains(&number),
            });
            last_seq = meta.first_seq - 1;
        }
        infos.reverse();
        infos
    }

    // Sealing.

    /// All segments below this one are sealed, or can't be.
    pub(crate) fn sealed_below(&self) -> u32 {
        self.seal_next
    }

    /// Segments below this one are sealed without waiting for a pause in the writes.
    pub(crate) fn seal_soon(&self) -> u32 {
        self.seal_soon
    }

    /// Requests that the closed segments be sealed without waiting for a pause in the writes. Returns the
    /// number of the first segment to which this doesn't apply: the open one, or without one the last; or, if
    /// the open one is still empty (the append that created it was cancelled), the one before it, which is
    /// sealed only once the open one contains a persisted group.
    pub(super) fn request_sealing(&mut self, persisted: Position) -> u32 {
        let end_of = |open: &OpenSegment| open.number - u32::from(open.header.is_some());
        self.seal_soon = self.open.as_ref().map_or(persisted.segment(), end_of);
        self.seal_soon
    }

    /// Begins sealing the oldest unsealed segment, if the persisted bytes end in a later one and no other is
    /// being sealed.
    pub(super) fn begin_sealing(&mut self, persisted: Position) -> Option<u32> {
        let is_due = self.seal_next < persisted.segment() && !self.is_sealing;
        self.is_sealing |= is_due;
        is_due.then_some(self.seal_next)
    }

    /// Records that the sealing of a segment has ended. `is_sealed`: the segment has a segment index.
    /// `lacks_space`: it failed for lack of disk space, and is retried later.
    pub(crate) fn end_sealing(&mut self, number: u32, is_sealed: bool, lacks_space: bool) {
        if lacks_space {
            self.without_space.insert(number);
        }
        if !is_sealed && self.all.contains_key(&number) {
            self.unsealed.insert(number);
        }
        self.seal_next = self.seal_next.max(number + 1);
        self.is_sealing = false;
    }

    /// Segments whose segment index failed for lack of disk space.
    pub(crate) fn without_space(&self) -> BTreeSet<u32> {
        self.without_space.clone()
    }

    /// Records that the sealing of a segment of [`Segments::without_space`] was retried, and disk space
    /// didn't run out.
    pub(crate) fn end_sealing_again(&mut self, number: u32, is_sealed: bool) {
        self.without_space.remove(&number);
        if is_sealed {
            self.unsealed.remove(&number);
        }
    }

    // Truncation and release.

    /// Declares that records before `seq` aren't needed any more. The log ends at `accepted`.
    pub(super) fn truncate_before(&mut self, seq: u64, accepted: Watermark) {
        self.truncate_before = self.truncate_before.max(seq.min(accepted.seq + 1));
    }

    /// Whether there are truncated segments to remove.
    pub(super) fn has_truncated(&self, persisted: Position) -> bool {
        let open = self.open.as_ref().map(|open| open.number);
        self.oldest < self.needed && open == Some(persisted.segment())
    }

    /// The segments below this one are truncated, and nothing is written to them any more; `None` if there are
    /// none.
    pub(super) fn truncated_below(&self, persisted: Position) -> Option<u32> {
        self.has_truncated(persisted).then_some(self.needed)
    }

    /// Truncates nothing more before the next segment begins.
    pub(crate) fn put_off_truncation(&mut self) {
        self.needed = self.oldest;
    }

    /// Releases the segments below this one: the manifest lists them, or excludes them.
    pub(crate) fn release_below(&mut self, below: u32) {
        if below <= self.oldest {
            return;
        }
        let kept = self.all.split_off(&below);
        let released = std::mem::replace(&mut self.all, kept);
        let bytes = released.values().map(|meta| meta.bytes).sum();
        self.closed_bytes = self.closed_bytes.saturating_sub(bytes);
        self.unsealed = self.unsealed.split_off(&below);
        self.without_space = self.without_space.split_off(&below);
        self.oldest = below;
    }

    /// The oldest segment with a record that is still needed.
    fn oldest_needed(&self) -> u32 {
        // The newest segment that begins at or before `truncate_before` may contain the first needed record.
        let begins_before = |meta: &SegmentMeta| meta.first_seq <= self.truncate_before;
        let newest = self.all.iter().rev().find(|(_, meta)| begins_before(meta));
        newest.map_or(self.oldest, |(number, _)| self.oldest.max(*number))
    }
}
