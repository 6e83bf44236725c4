//! The log's state: what has been accepted, where its bytes are, and how far it has got.
//!
//! All of it lies under one mutex. Nothing here waits or does I/O: a frame is accepted into the
//! open buffer ([`State::accept`]), [`State::next_action`] says which write or sync is to begin,
//! and [`State::wrote`] and [`State::synced`] take in how it ended. So the rules of the group
//! commit stand in one place, whoever carries the actions out.
//!
//! Accepted bytes lie in chunks, one behind another: parts of buffers, and large values that
//! were not copied. A chunk goes when it is written, so memory is held by what is under way.
//!
//! A *group* is what one sync makes durable. It is cut where somebody waits for it, all before
//! the cut is written (several writes in flight at once), and then the file is synced; what
//! comes meanwhile is the next group. Full buffers are written as they fill, also during a sync.
//!
//! Invariants:
//! 1. `persisted <= written <= accepted`; none moves backwards; each is the end of an unbroken
//!    prefix.
//! 2. A sync begins when all of its group is written: it covers nothing that was in flight.
//! 3. What a sync has covered is never written again: behind a cut the next frame begins at a
//!    multiple of [`SYNC_ALIGNMENT`].
//! 4. Nothing of a segment is written before all of the segment before is persisted.
//! 5. After a failure no action begins and no mark moves. A write that found no room is no failure: it
//!    stays in flight, and is done again, with the same bytes at the same place; until it has ended
//!    well nothing is accepted, and no other write begins.
//! 6. A chunk goes only when every frame that it has a part of is written: a reader finds a frame
//!    whole in memory, or whole in the file.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use settee_io::{BufferPool, File, Reservation, Stall, TailBuffer};
use tokio::sync::oneshot;

use crate::chunk::{Chunk, Memory};
use crate::error::Stopped;
use crate::format::{Batch, FrameHeader, FrameKind, FrameSink, SEGMENT_HEADER_SIZE, SYNC_ALIGNMENT};
use crate::log::{LogOptions, LogStats};
use crate::mark::{Mark, Position};
use crate::planted::Planted;
use crate::room::{OpenSegment, fitting, reserve_of};
use crate::seal::{Known, Left};
use crate::waiters::Waiters;

/// A stream that nobody waits for is synced whenever it is so many bytes further, so that the sync
/// at a segment's end, behind which all that follows waits, is a short one.
const STREAM_SYNC_BYTES: usize = 8 << 20;

/// How much a new measurement of a sync counts: one part in this many.
const SYNC_TIME_WEIGHT: u32 = 8;

/// A write that was submitted.
struct Flight {
    id: u64,
    end: Mark,
    done: bool,
}

/// A group that was cut.
struct Cut {
    end: Mark,
    /// Where its last frame ends: in direct mode the group ends behind padding.
    frames_end: Position,
    /// Where what comes behind it begins.
    resume: Position,
    file: Arc<File>,
    committer_count: usize,
    /// Since when its sync is under way.
    syncing_since: Option<Duration>,
}

/// The group that is forming, and what is known of those who commit.
#[derive(Default)]
struct Group {
    number: u64,
    /// Those who wait for it.
    committer_count: usize,
    batch_count: usize,
    bytes: usize,
    /// How many committers there will be when all who have just been told have come back.
    expected_count: usize,
    /// When the last sync ended.
    synced_at: Duration,
}

/// The segment that was left last, until all of it is persisted.
struct Barrier {
    end: Mark,
    frames_end: Position,
    file: Arc<File>,
}

/// The writes that found no room on the disk, until they have ended well.
struct Unwritten {
    /// With what the system said. Other logs that share the pool don't wait for the buffers that this one holds.
    stall: Stall,
    ids: Vec<u64>,
    /// Those of them that wait to be done again.
    waiting: Vec<Action>,
}

/// What is to begin.
#[derive(Clone)]
pub(crate) enum Action {
    /// Write the bytes at the offset, and sync the file where `sync` says so.
    Write { id: u64, file: Arc<File>, offset: u64, bytes: Bytes, sync: bool },
    /// Sync the file.
    Sync { file: Arc<File> },
}

/// What a batch lacks to be accepted.
#[derive(Debug)]
pub(crate) enum Lack {
    /// A new segment, since there is none or this one is full.
    Segment,
    /// Room reserved up to this offset.
    Room(u32),
    /// A buffer of this many bytes.
    Buffer(usize),
    /// Room on the disk for what was accepted before.
    Writes(Arc<settee_io::Error>),
}

/// What a batch needs of the disk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Claim {
    /// Its bytes.
    pub size: usize,
    /// Whether it may have the room that is kept for what frees space.
    pub may_use_reserve: bool,
}

impl Claim {
    pub(crate) fn of(batch: &Batch) -> Claim {
        Claim { size: batch.size(), may_use_reserve: batch.may_use_reserve }
    }
}

/// A frame's place.
pub(crate) struct Placed {
    pub at: Position,
    pub first_seq: u64,
    pub group: u64,
}

/// Takes a frame into the open buffer, which has room for it.
struct Sink<'a> {
    state: &'a mut State,
    /// What large values count as that are not copied; `None` where all are.
    room: Option<Arc<Reservation>>,
}

impl FrameSink for Sink<'_> {
    fn copy(&mut self, bytes: &[u8]) -> &mut [u8] {
        self.state.next = self.state.next.plus(bytes.len());
        self.state.open.as_mut().expect("a buffer was provided").extend(bytes)
    }

    fn share(&mut self, value: &Bytes) {
        match &self.room {
            Some(room) if value.len() >= self.state.options.bypass_bytes_min => self.state.share(value, room),
            _ => drop(self.copy(value)),
        }
    }
}

pub(crate) struct State {
    pub options: LogOptions,
    pub pool: Arc<BufferPool>,
    /// The segment that takes appends; none between opening and the first append.
    pub segment: Option<OpenSegment>,
    /// The end of the last frame.
    pub accepted: Mark,
    pub written: Mark,
    pub persisted: Mark,
    /// The end of the last frame that is persisted.
    persisted_frames_end: Position,
    /// Where the next frame begins.
    pub next: Position,
    /// Accepted, and not yet written; the last one grows while there is an open buffer.
    pub chunks: VecDeque<Chunk>,
    open: Option<TailBuffer>,
    /// The size of the next buffer in bytes: it grows while buffers fill up, and shrinks when
    /// there is a pause.
    buffer_bytes: usize,
    /// The chunks aren't those that readers have been shown.
    pub view_is_old: bool,
    /// Up to here writes have been submitted.
    submitted: Position,
    flights: VecDeque<Flight>,
    flight_count: u64,
    unwritten: Option<Unwritten>,
    /// The log is being closed: a write that finds no room is given up.
    pub closing: bool,
    group: Group,
    cut: Option<Cut>,
    barrier: Option<Barrier>,
    /// Somebody wants all up to here written; persisted.
    pub write_wanted: Mark,
    pub persist_wanted: Mark,
    /// Since when something accepted has waited for its write, something written for a sync.
    accepted_since: Option<Duration>,
    written_since: Option<Duration>,
    /// What a sync takes.
    sync_time: Duration,
    /// A running average of a group's bytes.
    pub group_bytes: usize,
    pub written_waiters: Waiters,
    pub persisted_waiters: Waiters,
    pub stopped: Option<Stopped>,
    /// The next segment is being made: nothing more goes into this one.
    pub rolling: bool,
    /// Something is being made ahead; the last time there was no room for it; and the number of
    /// the segment that was.
    pub has_chore: bool,
    pub chore_refused: bool,
    pub spare_number: u32,
    /// All segments, by number.
    pub segments: BTreeMap<u32, Known>,
    pub left: Left,
    /// Live bytes of segments that were handed over.
    pub bytes_elsewhere: u64,
    /// Somebody carries out actions.
    pub driving: bool,
    /// Writes and syncs that are under way.
    pub operation_count: usize,
    /// The next time that somebody will look, if nothing happens before.
    pub timer: Option<Duration>,
    pub stats: LogStats,
}

impl State {
    /// The state of a log that ends at `end`, all of it persisted.
    pub(crate) fn new(
        options: LogOptions,
        pool: Arc<BufferPool>,
        end: Mark,
        segment: Option<OpenSegment>,
        segments: BTreeMap<u32, Known>,
    ) -> State {
        let oldest = segments.first_key_value().map_or(1, |(number, _)| *number);
        let file_bytes = segments.values().map(|known| known.bytes).sum();
        let next = Position::new(end.at.segment(), end.at.offset().next_multiple_of(SYNC_ALIGNMENT));
        State {
            options,
            pool,
            segment,
            accepted: end,
            written: end,
            persisted: end,
            persisted_frames_end: end.at,
            next,
            chunks: VecDeque::new(),
            open: None,
            buffer_bytes: options.buffer_bytes_min,
            view_is_old: false,
            submitted: next,
            flights: VecDeque::new(),
            flight_count: 0,
            unwritten: None,
            closing: false,
            group: Group::default(),
            cut: None,
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
            has_chore: false,
            chore_refused: false,
            spare_number: 0,
            left: Left {
                seal_next: oldest,
                unsealed: BTreeSet::new(),
                without_room: BTreeSet::new(),
                is_sealing: false,
                seal_soon: 0,
                oldest,
                needed: oldest,
                forget_before: 0,
            },
            bytes_elsewhere: 0,
            segments,
            driving: false,
            operation_count: 0,
            timer: None,
            stats: LogStats { file_bytes, ..LogStats::default() },
        }
    }

    /// Accepts a frame, or says what it lacks; then nothing has changed, but that a buffer which
    /// it doesn't fit is closed, to be written. `buffer` is one that the caller has waited for.
    pub(crate) fn accept(
        &mut self,
        batch: &Batch,
        kind: FrameKind,
        buffer: &mut Option<TailBuffer>,
    ) -> Result<Placed, Lack> {
        self.check_room(Claim::of(batch))?;
        let header = self.segment.as_ref().expect("checked").header;
        let header_size = header.map_or(0, |header| header.len());
        let shared_bytes = self.bytes_to_share(batch);
        let room = (shared_bytes > 0).then(|| self.pool.try_reserve(shared_bytes)).flatten().map(Arc::new);
        let copied = header_size + batch.size() - if room.is_some() { shared_bytes } else { 0 };
        self.provide_buffer(copied, buffer)?;
        if self.options.direct {
            // The buffer before may have been padded.
            self.check_room(Claim::of(batch))?;
        }
        if let Some(header) = header {
            Sink { state: self, room: None }.copy(&header);
            self.segment.as_mut().expect("checked").header = None;
            self.stats.file_bytes += header.len() as u64;
        }
        let (at, first_seq) = (self.next, self.accepted.seq + 1);
        let segment = self.segment.as_ref().expect("checked");
        let persisted = self.persisted_frames_end;
        let persisted = if persisted.segment() == segment.number { persisted.offset() } else { 0 };
        let frame = FrameHeader {
            seed: segment.seed,
            kind,
            length: 0,
            segment: segment.number,
            epoch: segment.epoch,
            first_seq,
            record_count: 0,
            persisted,
            previous: segment.checksum,
        };
        let checksum = batch.write_frame(frame, &mut Sink { state: self, room });
        self.segment.as_mut().expect("checked").checksum = checksum;
        let seq = match kind {
            FrameKind::Batch => self.accepted.seq + batch.len() as u64,
            FrameKind::Extent => self.accepted.seq,
        };
        self.accepted = Mark { seq, at: self.next };
        self.open.as_mut().expect("provided").publish();
        self.chunks.back_mut().expect("provided").end = self.next;
        // Behind a shared value that ends the frame the last chunk is empty.
        for chunk in self.chunks.iter_mut().rev().take_while(|chunk| chunk.end == self.next) {
            chunk.seq = seq;
        }
        for chunk in self.chunks.iter_mut().rev().take_while(|chunk| chunk.end > at) {
            chunk.frame_end = self.next;
        }
        self.stats.batch_count += u64::from(kind == FrameKind::Batch);
        self.stats.extent_count += u64::from(kind == FrameKind::Extent);
        self.stats.file_bytes += batch.size() as u64;
        self.group.batch_count += 1;
        self.group.bytes += batch.size();
        Ok(Placed { at, first_seq, group: self.group.number })
    }

    /// Whether the open segment takes the batch.
    pub(crate) fn check_room(&mut self, claim: Claim) -> Result<(), Lack> {
        if let Some(unwritten) = &self.unwritten {
            return Err(Lack::Writes(unwritten.stall.error().clone()));
        }
        let rolling = self.rolling;
        let next = self.next.offset();
        let Some(segment) = self.segment.as_mut().filter(|_| !rolling) else {
            return Err(Lack::Segment);
        };
        let is_fresh = segment.header.is_some();
        let end = next + if is_fresh { SEGMENT_HEADER_SIZE as u32 } else { 0 } + claim.size as u32;
        if is_fresh {
            segment.bytes_max = fitting(segment.bytes_max, end);
        }
        let reserve = if claim.may_use_reserve { 0 } else { reserve_of(segment.bytes_max) };
        if end + reserve > segment.bytes_max {
            return Err(Lack::Segment);
        }
        if end + reserve > segment.allocated {
            return Err(Lack::Room(end + reserve));
        }
        Ok(())
    }

    /// Bytes of values that are large enough to be written from where they are. In direct mode
    /// they aren't aligned.
    fn bytes_to_share(&self, batch: &Batch) -> usize {
        match self.options.direct {
            true => 0,
            false => batch.shared_bytes(self.options.bypass_bytes_min),
        }
    }

    /// Sees that the open buffer takes `count` bytes.
    fn provide_buffer(&mut self, count: usize, given: &mut Option<TailBuffer>) -> Result<(), Lack> {
        if self.open.as_ref().is_some_and(|open| open.capacity() - open.len() >= count) {
            return Ok(());
        }
        if self.open.is_some() {
            self.buffer_bytes = (self.buffer_bytes * 2).min(self.options.buffer_bytes_max);
            self.close_buffer();
        }
        let capacity = count.max(self.buffer_bytes);
        let given = given.take().filter(|buffer| buffer.capacity() >= count);
        let buffer = given.or_else(|| self.pool.try_take(capacity)).ok_or(Lack::Buffer(capacity))?;
        let memory = Memory::Buffer(buffer.reader(), 0);
        self.push_chunk(memory, 0);
        self.open = Some(buffer);
        Ok(())
    }

    /// Adds a chunk that begins where the next byte goes.
    fn push_chunk(&mut self, memory: Memory, length: usize) {
        let file = self.segment.as_ref().expect("there is a segment").file.clone();
        let (start, end) = (self.next, self.next.plus(length));
        let (seq, frame_end) = (self.accepted.seq, end);
        self.chunks.push_back(Chunk { start, end, seq, frame_end, file, memory });
        self.next = end;
        self.view_is_old = true;
    }

    /// Puts a value between what the open buffer has so far and what comes.
    fn share(&mut self, value: &Bytes, room: &Arc<Reservation>) {
        let open = self.open.as_mut().expect("a buffer was provided");
        open.publish();
        let (reader, length) = (open.reader(), open.len());
        self.chunks.back_mut().expect("the open buffer's").end = self.next;
        self.push_chunk(Memory::Value(value.clone(), room.clone()), value.len());
        self.push_chunk(Memory::Buffer(reader, length), 0);
    }

    /// Ends the open buffer: it is written as soon as may be.
    fn close_buffer(&mut self) {
        if self.options.direct {
            self.pad();
        }
        self.open = None;
    }

    /// Goes on to the next multiple of [`SYNC_ALIGNMENT`].
    fn pad(&mut self) {
        let begin = self.next.offset().next_multiple_of(SYNC_ALIGNMENT);
        let count = (begin - self.next.offset()) as usize;
        self.next = self.next.plus(count);
        self.stats.padding_bytes += count as u64;
        self.stats.file_bytes += count as u64;
        match &mut self.open {
            Some(open) if open.capacity() - open.len() >= count => {
                open.pad(count);
                open.publish();
                self.chunks.back_mut().expect("the open buffer's").end = self.next;
            }
            _ => self.open = None,
        }
    }

    /// Where the last write of what is accepted will end: in direct mode behind the padding,
    /// where that is still to be written.
    fn data_end(&self) -> Position {
        let resume = self.cut.as_ref().map_or(self.submitted, |cut| cut.resume.max(self.submitted));
        match self.chunks.back() {
            Some(last) if self.options.direct && last.end > resume => last.end.max(self.accepted.at),
            _ => self.accepted.at,
        }
    }

    /// From here on buffers begin and end at multiples of [`SYNC_ALIGNMENT`], or need not.
    pub(crate) fn set_direct(&mut self, direct: bool) {
        if direct && !self.options.direct {
            // What began anywhere is written as it is; the file takes such a write buffered.
            self.open = None;
            self.pad();
        }
        self.options.direct = direct;
    }

    /// Somebody waits for all that is accepted to be written, or persisted.
    pub(crate) fn want_written(&mut self) {
        self.write_wanted = self.accepted;
    }

    pub(crate) fn want_persisted(&mut self) {
        self.persist_wanted = self.accepted;
        self.group.committer_count += 1;
    }

    /// What was accepted begins to age.
    pub(crate) fn start_age(&mut self, now: impl FnOnce() -> Duration) {
        if self.accepted_since.is_none() {
            self.accepted_since = Some(now());
        }
    }

    /// What is to begin now; it counts as begun. Call until there is nothing.
    pub(crate) fn next_action(&mut self, now: Duration) -> Option<Action> {
        let action = self.find_action(now);
        self.operation_count += usize::from(action.is_some());
        action
    }

    fn find_action(&mut self, now: Duration) -> Option<Action> {
        if self.stopped.is_some() {
            return None;
        }
        if self.is_old(self.written_since, self.options.written_age_ms_max, now) {
            self.persist_wanted = self.accepted;
            self.written_since = None;
        }
        if self.is_old(self.accepted_since, self.options.accepted_age_ms_max, now) {
            self.want_written();
            self.accepted_since = None;
        }
        if self.cut.is_none() && self.group.bytes >= STREAM_SYNC_BYTES {
            self.persist_wanted = self.accepted;
        }
        if self.cut.is_none() && self.group_is_due(now) {
            self.cut_group();
        }
        if let Some(cut) = &mut self.cut
            && cut.syncing_since.is_none()
            && self.written.reaches(cut.end)
        {
            cut.syncing_since = Some(now);
            return Some(Action::Sync { file: cut.file.clone() });
        }
        self.next_write(now)
    }

    /// When to call [`State::next_action`] again, if nothing happens before.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        if self.stopped.is_some() {
            return None;
        }
        let age = |since: Option<Duration>, max_ms| Some(since? + Duration::from_millis(max_ms));
        // What waits for a write or a sync to end is looked at when that ends.
        let is_idle = self.flights.is_empty() && self.barrier.is_none();
        let accepted = age(self.accepted_since.filter(|_| is_idle), self.options.accepted_age_ms_max);
        let written = age(self.written_since, self.options.written_age_ms_max);
        let group = (self.cut.is_none() && self.group_is_wanted()).then(|| self.group_deadline());
        [accepted, written, group].into_iter().flatten().min()
    }

    fn is_old(&self, since: Option<Duration>, max_ms: u64, now: Duration) -> bool {
        since.is_some_and(|since| now >= since + Duration::from_millis(max_ms))
    }

    fn group_is_wanted(&self) -> bool {
        !self.persisted.reaches(self.persist_wanted)
    }

    /// Until when a group that is wanted waits for more: for those who were told of the last one
    /// and will soon be back. Two committers are the least that can gain by it.
    fn group_deadline(&self) -> Duration {
        let max = Duration::from_micros(self.options.group_delay_us_max);
        self.group.synced_at + (self.sync_time / 2).min(max)
    }

    fn group_is_due(&self, now: Duration) -> bool {
        let group = &self.group;
        self.barrier.is_some()
            || self.group_is_wanted()
                && (group.committer_count >= group.expected_count
                    || group.bytes >= self.options.group_bytes_max
                    || group.batch_count >= self.options.group_writes_max
                    || now >= self.group_deadline())
    }

    /// Ends the group that is forming.
    fn cut_group(&mut self) {
        let (end, frames_end, resume, file) = match &self.barrier {
            Some(barrier) => (barrier.end, barrier.frames_end, barrier.end.at, barrier.file.clone()),
            None => {
                let end = self.accepted;
                self.pad();
                let at = self.data_end();
                let file = self.segment.as_ref().expect("something was accepted").file.clone();
                (Mark { at, ..end }, end.at, self.next, file)
            }
        };
        if self.submitted == end.at {
            // All of it is on its way: the padding, in a block that a sync will have covered, isn't.
            self.submitted = resume;
        }
        let group = &mut self.group;
        self.group_bytes = (self.group_bytes * 3 + group.bytes) / 4;
        let committer_count = std::mem::take(&mut group.committer_count);
        (group.batch_count, group.bytes) = (0, 0);
        group.number += 1;
        self.cut = Some(Cut { end, frames_end, resume, file, committer_count, syncing_since: None });
    }

    fn next_write(&mut self, now: Duration) -> Option<Action> {
        if self.flights.len() >= self.options.writes_in_flight_max || self.unwritten.is_some() {
            return None;
        }
        let index = self.chunks.iter().position(|chunk| chunk.end > self.submitted)?;
        let start = self.chunks[index].start.max(self.submitted);
        if self.barrier.as_ref().is_some_and(|barrier| start >= barrier.end.at) {
            return None;
        }
        let is_open = self.open.is_some() && index + 1 == self.chunks.len();
        let cut = self.cut.as_ref().filter(|cut| cut.end.at > start).map(|cut| (cut.end, cut.resume));
        let chunk_end = Mark { seq: self.chunks[index].seq, at: self.chunks[index].end };
        let (end, resume) = match cut {
            Some((end, resume)) if end.at <= chunk_end.at => (end, resume),
            Some(_) => (chunk_end, chunk_end.at),
            None if !is_open => (chunk_end, chunk_end.at),
            None if self.open_chunk_is_due() => {
                if self.options.direct {
                    self.pad();
                }
                (Mark { at: self.chunks[index].end, ..self.accepted }, self.next)
            }
            None => return None,
        };
        let chunk = &self.chunks[index];
        let bytes = chunk.memory.share(start.since(chunk.start), end.at.since(chunk.start));
        let file = chunk.file.clone();
        // Alone in flight, and the last of its group: it takes the sync along.
        let sync = match &mut self.cut {
            Some(cut) if cut.end == end && self.flights.is_empty() => {
                cut.syncing_since = Some(now);
                true
            }
            _ => false,
        };
        self.submitted = resume;
        if self.all_is_submitted() {
            self.accepted_since = None;
        }
        self.flight_count += 1;
        self.flights.push_back(Flight { id: self.flight_count, end, done: false });
        Some(Action::Write { id: self.flight_count, file, offset: u64::from(start.offset()), bytes, sync })
    }

    /// Whether the open buffer is to be written though it isn't full. One such write at a time:
    /// what comes meanwhile goes with the next.
    fn open_chunk_is_due(&self) -> bool {
        self.write_wanted.at > self.submitted && self.flights.is_empty()
    }

    /// A write has ended well. Returns who is to be told.
    pub(crate) fn wrote(&mut self, id: u64, size: usize, now: Duration) -> Vec<oneshot::Sender<()>> {
        if self.stopped.is_some() {
            return Vec::new();
        }
        self.stats.write_count += 1;
        self.stats.written_bytes += size as u64;
        if let Some(unwritten) = &mut self.unwritten {
            unwritten.ids.retain(|unwritten| *unwritten != id);
            self.unwritten.take_if(|unwritten| unwritten.ids.is_empty());
        }
        let flight = self.flights.iter_mut().find(|flight| flight.id == id);
        flight.expect("it was in flight").done = true;
        if self.options.is_planted(Planted::MarkPastHole) {
            self.pass_holes(id);
        }
        while let Some(flight) = self.flights.pop_front_if(|flight| flight.done) {
            self.written = flight.end;
        }
        if self.written_since.is_none() {
            self.written_since = Some(now);
        }
        self.let_go();
        let mut woken = self.written_waiters.take_reached(self.written);
        if self.options.is_planted(Planted::EarlyAcknowledgement) {
            woken.append(&mut self.persisted_waiters.take_reached(self.written));
        }
        woken
    }

    /// A write found no room: it is to be done again. Returns whether it is the first that waits for
    /// that.
    pub(crate) fn found_no_room(&mut self, id: u64, write: Action, stall: Stall) -> bool {
        let none = || Unwritten { stall, ids: Vec::new(), waiting: Vec::new() };
        let unwritten = self.unwritten.get_or_insert_with(none);
        if !unwritten.ids.contains(&id) {
            unwritten.ids.push(id);
        }
        unwritten.waiting.push(write);
        unwritten.waiting.len() == 1
    }

    /// The writes that are to be done again; they count as begun.
    pub(crate) fn take_unwritten(&mut self) -> Vec<Action> {
        let writes = self.unwritten.as_mut().map_or_else(Vec::new, |all| std::mem::take(&mut all.waiting));
        self.operation_count += writes.len();
        writes
    }

    /// What the system said of the writes that found no room.
    pub(crate) fn no_room(&self) -> Option<Arc<settee_io::Error>> {
        self.unwritten.as_ref().map(|unwritten| unwritten.stall.error().clone())
    }

    /// Whether a write has ended that no completed sync covers.
    pub(crate) fn has_unsynced(&self) -> bool {
        self.written.at != self.persisted.at || self.flights.iter().any(|flight| flight.done)
    }

    /// The error of a write that waits for room, where another write has ended that no sync covers: the
    /// error may have been that one's. `None` in every other case.
    pub(crate) fn no_room_beside_unsynced(&self) -> Option<Arc<settee_io::Error>> {
        let unwritten = self.unwritten.as_ref().filter(|unwritten| !unwritten.waiting.is_empty())?;
        self.has_unsynced().then(|| unwritten.stall.error().clone())
    }

    /// [`Planted::MarkPastHole`].
    fn pass_holes(&mut self, id: u64) {
        let index = self.flights.iter().position(|flight| flight.id == id).expect("it was in flight");
        let ended = self.flights.remove(index).expect("it is there");
        self.written = ended.end;
        for flight in self.flights.iter_mut().filter(|flight| ended.end.reaches(flight.end)) {
            flight.end = ended.end;
        }
    }

    fn all_is_submitted(&self) -> bool {
        self.chunks.back().is_none_or(|last| last.end <= self.submitted)
    }

    /// Drops the chunks that are written.
    fn let_go(&mut self) {
        if self.flights.is_empty() && self.all_is_submitted() {
            // A pause: whoever comes next takes a small buffer.
            self.view_is_old |= !self.chunks.is_empty();
            self.chunks.clear();
            self.open = None;
            self.buffer_bytes = self.options.buffer_bytes_min;
        }
        let open_count = usize::from(self.open.is_some());
        let is_written = |chunk: &Chunk| chunk.end <= self.written.at && chunk.frame_end <= self.written.at;
        while self.chunks.len() > open_count && is_written(&self.chunks[0]) {
            self.chunks.pop_front();
            self.view_is_old = true;
        }
    }

    /// The group's sync has ended well. Returns who is to be told.
    pub(crate) fn synced(&mut self, now: Duration) -> Vec<oneshot::Sender<()>> {
        if self.stopped.is_some() {
            return Vec::new();
        }
        let cut = self.cut.take().expect("it was being synced");
        let taken = now.saturating_sub(cut.syncing_since.expect("it was being synced"));
        self.sync_time = match self.sync_time {
            Duration::ZERO => taken,
            known => (known * (SYNC_TIME_WEIGHT - 1) + taken) / SYNC_TIME_WEIGHT,
        };
        self.persisted = cut.end;
        self.persisted_frames_end = cut.frames_end;
        if self.written.at == self.persisted.at {
            self.written_since = None;
        } else {
            self.written_since = Some(now);
        }
        self.barrier.take_if(|barrier| cut.end.reaches(barrier.end));
        self.group.synced_at = now;
        self.group.expected_count = cut.committer_count + self.group.committer_count;
        self.stats.sync_count += 1;
        self.stats.sync_us = self.sync_time.as_micros() as u64;
        self.persisted_waiters.take_reached(self.persisted)
    }

    /// [`Planted::SyncRetried`].
    pub(crate) fn retry_sync(&mut self) {
        self.operation_count -= 1;
        self.cut.as_mut().expect("it was being synced").syncing_since = None;
    }

    /// Leaves the open segment for `segment`, which takes what comes next. All of the one before
    /// is brought to stable storage first.
    pub(crate) fn begin_segment(&mut self, segment: OpenSegment) {
        assert!(!self.has_barrier(), "one segment is left at a time");
        if let Some(left) = &self.segment {
            let file = left.file.clone();
            if self.open.is_some() {
                self.close_buffer();
            }
            let end = Mark { at: self.data_end().max(self.persisted.at), ..self.accepted };
            // Padding alone is nothing to wait for: none is written where a log was opened again.
            self.barrier = (!self.persisted.reaches(self.accepted)).then_some(Barrier {
                end,
                frames_end: self.accepted.at,
                file,
            });
        }
        self.group.number += 1;
        self.chore_refused = false;
        self.next = Position::new(segment.number, 0);
        self.segment = Some(segment);
    }

    /// Whether the segment that was left is still on its way to stable storage.
    fn has_barrier(&self) -> bool {
        self.barrier.is_some()
    }

    /// Arrives when the segment that was left is persisted; `None` where it is.
    pub(crate) fn wait_for_barrier(&mut self) -> Option<oneshot::Receiver<()>> {
        let end = self.barrier.as_ref()?.end;
        Some(self.persisted_waiters.add(end))
    }

    /// Bytes of the group that is forming.
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

    /// Gives up the files; for the caller to drop without the lock.
    pub(crate) fn let_go_of_files(&mut self) -> impl Sized + use<> {
        (self.segment.take(), self.cut.take(), self.barrier.take())
    }

    /// Gives up all that was accepted and not written, and all who wait; for the caller to drop
    /// without the lock.
    pub(crate) fn clear(&mut self) -> impl Sized + use<> {
        self.view_is_old = true;
        self.timer = None;
        let waiters = [&mut self.written_waiters, &mut self.persisted_waiters].map(std::mem::take);
        (waiters, std::mem::take(&mut self.chunks), self.open.take(), self.unwritten.take())
    }
}
