//! Accepting frames: checks for disk space, and copies each frame into the open buffer, or shares its large
//! values.

use std::sync::Arc;

use bytes::Bytes;
use settee_io::{Reservation, TailBuffer};

use super::LogState;
use super::capacity::{fitting_bytes_max, reserve_bytes};
use super::chunk::{Chunk, ChunkMemory};
use super::placement::{AppendBlocked, Placement, SpaceRequest};
use crate::format::{Batch, FrameHeader, FrameSink, SEGMENT_HEADER_SIZE, SYNC_ALIGNMENT};
use crate::watermark::Watermark;

/// Writes a frame into the open buffer, which has enough capacity.
struct BufferSink<'a> {
    state: &'a mut LogState,
    /// Pool reservation for the large values that are not copied; `None` if all values are copied.
    reservation: Option<Arc<Reservation>>,
}

impl FrameSink for BufferSink<'_> {
    fn copy(&mut self, bytes: &[u8]) -> &mut [u8] {
        self.state.next = self.state.next.plus(bytes.len());
        self.state.open_buffer.as_mut().expect("a buffer was provided").extend(bytes)
    }

    fn share(&mut self, value: &Bytes) {
        match &self.reservation {
            Some(reservation) if value.len() >= self.state.options.bypass_bytes_min => {
                self.state.share(value, reservation)
            }
            _ => drop(self.copy(value)),
        }
    }
}

impl LogState {
    /// Accepts a frame, or returns what blocks it. If blocked, no byte is accepted; the open buffer may have
    /// been closed, and the capacity of a segment without frames increased. `buffer` is a buffer that the
    /// caller has obtained from the pool.
    pub(crate) fn accept(
        &mut self,
        batch: &Batch,
        buffer: &mut Option<TailBuffer>,
    ) -> Result<Placement, AppendBlocked> {
        self.check_space(SpaceRequest::of(batch))?;
        let header = self.open_segment.as_ref().expect("check_space found a segment").header;
        let header_size = header.map_or(0, |header| header.len());
        let shared_bytes = self.bytes_to_share(batch);
        let reservation =
            (shared_bytes > 0).then(|| self.pool.try_reserve(shared_bytes)).flatten().map(Arc::new);
        let copied = header_size + batch.size() - if reservation.is_some() { shared_bytes } else { 0 };
        self.provide_buffer(copied, buffer)?;
        if self.options.direct {
            // Closing the previous buffer may have added padding.
            self.check_space(SpaceRequest::of(batch))?;
        }
        if let Some(header) = header {
            BufferSink { state: self, reservation: None }.copy(&header);
            self.open_segment.as_mut().expect("check_space found a segment").header = None;
            self.stats.file_bytes += header.len() as u64;
        }
        let (at, first_seq) = (self.next, self.accepted.seq + 1);
        let segment = self.open_segment.as_ref().expect("check_space found a segment");
        let persisted = self.persisted_frames_end;
        let persisted = if persisted.segment() == segment.number { persisted.offset() } else { 0 };
        let frame = FrameHeader {
            seed: segment.seed,
            length: 0,
            segment: segment.number,
            epoch: segment.epoch,
            first_seq,
            record_count: 0,
            persisted,
            previous: segment.checksum,
        };
        let checksum = batch.write_frame(frame, &mut BufferSink { state: self, reservation });
        self.open_segment.as_mut().expect("check_space found a segment").checksum = checksum;
        let seq = self.accepted.seq + batch.len() as u64;
        self.accepted = Watermark { seq, at: self.next };
        self.open_buffer.as_mut().expect("provide_buffer opened one").publish();
        self.chunks.back_mut().expect("provide_buffer opened one").end = self.next;
        // If the frame ends with a shared value, the last chunk is empty.
        for chunk in self.chunks.iter_mut().rev().take_while(|chunk| chunk.end == self.next) {
            chunk.seq = seq;
        }
        for chunk in self.chunks.iter_mut().rev().take_while(|chunk| chunk.end > at) {
            chunk.frame_end = self.next;
        }
        self.stats.batch_count += 1;
        self.stats.file_bytes += batch.size() as u64;
        self.group.batch_count += 1;
        self.group.bytes += batch.size();
        Ok(Placement { at, first_seq, group: self.group.number })
    }

    /// Checks that the open segment has disk space for the batch. Increases the capacity of a segment without
    /// frames that is too small for it.
    pub(crate) fn check_space(&mut self, request: SpaceRequest) -> Result<(), AppendBlocked> {
        if let Some(suspended) = &self.suspended {
            return Err(AppendBlocked::Writes(suspended.stall.error().clone()));
        }
        let rolling = self.rolling;
        let next = self.next.offset();
        let Some(segment) = self.open_segment.as_mut().filter(|_| !rolling) else {
            return Err(AppendBlocked::Segment);
        };
        let is_fresh = segment.header.is_some();
        let end = next + if is_fresh { SEGMENT_HEADER_SIZE as u32 } else { 0 } + request.size as u32;
        if is_fresh {
            segment.bytes_max = fitting_bytes_max(segment.bytes_max, end);
        }
        let reserve = if request.may_use_reserve { 0 } else { reserve_bytes(segment.bytes_max) };
        if end + reserve > segment.bytes_max {
            return Err(AppendBlocked::Segment);
        }
        if end + reserve > segment.allocated {
            return Err(AppendBlocked::DiskReservation(end + reserve));
        }
        Ok(())
    }

    /// Bytes of values that are large enough to be written without a copy. None in direct mode, since they
    /// aren't aligned.
    fn bytes_to_share(&self, batch: &Batch) -> usize {
        match self.options.direct {
            true => 0,
            false => batch.shared_bytes(self.options.bypass_bytes_min),
        }
    }

    /// Ensures that the open buffer has `count` bytes of capacity.
    fn provide_buffer(
        &mut self,
        count: usize,
        provided: &mut Option<TailBuffer>,
    ) -> Result<(), AppendBlocked> {
        if self.open_buffer.as_ref().is_some_and(|open| open.capacity() - open.len() >= count) {
            return Ok(());
        }
        if self.open_buffer.is_some() {
            self.buffer_bytes = (self.buffer_bytes * 2).min(self.options.buffer_bytes_max);
            self.close_buffer();
        }
        let capacity = count.max(self.buffer_bytes);
        let provided = provided.take().filter(|buffer| buffer.capacity() >= count);
        let buffer =
            provided.or_else(|| self.pool.try_take(capacity)).ok_or(AppendBlocked::Buffer(capacity))?;
        let memory = ChunkMemory::Buffer(buffer.reader(), 0);
        self.push_chunk(memory, 0);
        self.open_buffer = Some(buffer);
        Ok(())
    }

    /// Adds a chunk at the current end of the log.
    fn push_chunk(&mut self, memory: ChunkMemory, length: usize) {
        let file = self.open_segment.as_ref().expect("an open segment").file.clone();
        let (start, end) = (self.next, self.next.plus(length));
        let (seq, frame_end) = (self.accepted.seq, end);
        self.chunks.push_back(Chunk { start, end, seq, frame_end, file, memory });
        self.next = end;
        self.read_view_is_stale = true;
    }

    /// Appends a value without copying it, between the bytes already in the open buffer and those to come.
    fn share(&mut self, value: &Bytes, reservation: &Arc<Reservation>) {
        let open = self.open_buffer.as_mut().expect("a buffer was provided");
        open.publish();
        let (reader, length) = (open.reader(), open.len());
        self.chunks.back_mut().expect("the open buffer's").end = self.next;
        self.push_chunk(ChunkMemory::Value(value.clone(), reservation.clone()), value.len());
        self.push_chunk(ChunkMemory::Buffer(reader, length), 0);
    }

    /// Closes the open buffer, so that it is written as soon as possible.
    pub(super) fn close_buffer(&mut self) {
        if self.options.direct {
            self.pad();
        }
        self.open_buffer = None;
    }

    /// Advances to the next multiple of [`SYNC_ALIGNMENT`].
    pub(super) fn pad(&mut self) {
        let begin = self.next.offset().next_multiple_of(SYNC_ALIGNMENT);
        let count = (begin - self.next.offset()) as usize;
        self.next = self.next.plus(count);
        self.stats.padding_bytes += count as u64;
        self.stats.file_bytes += count as u64;
        match &mut self.open_buffer {
            Some(open) if open.capacity() - open.len() >= count => {
                open.pad(count);
                open.publish();
                self.chunks.back_mut().expect("the open buffer's").end = self.next;
            }
            _ => self.open_buffer = None,
        }
    }

    /// Makes buffers begin and end at multiples of [`SYNC_ALIGNMENT`] from now on, or stops that.
    pub(crate) fn set_direct(&mut self, direct: bool) {
        if direct && !self.options.direct {
            // An unaligned buffer is written as it is; the file does such a write buffered.
            self.open_buffer = None;
            self.pad();
        }
        self.options.direct = direct;
    }
}
