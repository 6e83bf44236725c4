//! Buffers: the accepted bytes that are not yet written, as a queue of chunks, and where the next frame begins.
//!
//! Invariants:
//! 1. The last chunk is the open buffer's, if there is one, and grows with it.
//! 2. A chunk is dropped only when every frame that it holds a part of is written: a reader finds a frame
//!    whole in memory, or whole in the file.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use settee_io::{BufferPool, File, Reservation, TailBuffer};

use super::chunk::{Chunk, ChunkMemory};
use super::placement::AppendBlocked;
use crate::format::{FrameSink, SYNC_ALIGNMENT};
use crate::options::LogOptions;
use crate::watermark::{Position, Watermark};

/// See the module documentation.
pub(super) struct Buffers {
    chunks: VecDeque<Chunk>,
    open: Option<TailBuffer>,
    /// Size of the next buffer in bytes: doubled when a buffer fills up, reset to the minimum when the log
    /// becomes idle.
    buffer_bytes: usize,
    /// Where the next frame begins.
    next: Position,
    /// Whether `chunks` has changed since the read view was published.
    read_view_is_stale: bool,
    /// Total padding in bytes.
    padding_bytes: u64,
}

/// Writes one frame into the open buffer, which has enough capacity.
pub(super) struct BufferSink<'a> {
    pub buffers: &'a mut Buffers,
    pub file: &'a Arc<File>,
    /// `Seq` of the last record before the frame.
    pub seq: u64,
    pub share_bytes_min: usize,
    /// Pool reservation for the large values that are not copied; `None` if all values are copied.
    pub reservation: Option<Arc<Reservation>>,
}

impl FrameSink for BufferSink<'_> {
    fn copy(&mut self, bytes: &[u8]) -> &mut [u8] {
        self.buffers.copy(bytes)
    }

    fn share(&mut self, value: &Bytes) {
        match &self.reservation {
            Some(reservation) if value.len() >= self.share_bytes_min => {
                self.buffers.share(value, reservation, self.file, self.seq);
            }
            _ => drop(self.copy(value)),
        }
    }
}

impl Buffers {
    /// The buffers of a log whose next frame begins at `next`.
    pub(super) fn new(options: &LogOptions, next: Position) -> Buffers {
        Buffers {
            chunks: VecDeque::new(),
            open: None,
            buffer_bytes: options.buffer_bytes_min,
            next,
            read_view_is_stale: false,
            padding_bytes: 0,
        }
    }

    /// Where the next frame begins.
    pub(super) fn next(&self) -> Position {
        self.next
    }

    pub(super) fn chunks(&self) -> &VecDeque<Chunk> {
        &self.chunks
    }

    /// The first chunk that ends after `submitted`, and whether it may still grow.
    pub(super) fn chunk_after(&self, submitted: Position) -> Option<(&Chunk, bool)> {
        let index = self.chunks.iter().position(|chunk| chunk.end > submitted)?;
        Some((&self.chunks[index], self.open.is_some() && index + 1 == self.chunks.len()))
    }

    /// End of the last chunk.
    pub(super) fn end(&self) -> Option<Position> {
        self.chunks.back().map(|last| last.end)
    }

    /// Whether no chunk ends after `submitted`.
    pub(super) fn is_submitted(&self, submitted: Position) -> bool {
        self.end().is_none_or(|end| end <= submitted)
    }

    /// Bytes in chunks: those not yet written, and those before them in the same chunk or frame.
    pub(super) fn memory_bytes(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.end.since(chunk.start)).sum()
    }

    pub(super) fn padding_bytes(&self) -> u64 {
        self.padding_bytes
    }

    /// Whether the chunks have changed since the last call.
    pub(super) fn take_stale(&mut self) -> bool {
        std::mem::take(&mut self.read_view_is_stale)
    }

    /// Ensures that the open buffer has `count` free bytes, for a frame in this file after the record `seq`.
    /// If it takes a new buffer, that is `provided` if large enough, or one from the pool.
    pub(super) fn provide(
        &mut self,
        count: usize,
        provided: &mut Option<TailBuffer>,
        options: &LogOptions,
        pool: &Arc<BufferPool>,
        file: &Arc<File>,
        seq: u64,
    ) -> Result<(), AppendBlocked> {
        if self.open.as_ref().is_some_and(|open| open.capacity() - open.len() >= count) {
            return Ok(());
        }
        if self.open.is_some() {
            self.buffer_bytes = (self.buffer_bytes * 2).min(options.buffer_bytes_max);
            self.close(options.direct);
        }
        let capacity = count.max(self.buffer_bytes);
        let provided = provided.take().filter(|buffer| buffer.capacity() >= count);
        let buffer = provided.or_else(|| pool.try_take(capacity)).ok_or(AppendBlocked::Buffer(capacity))?;
        self.push_chunk(ChunkMemory::Buffer(buffer.reader(), 0), 0, file, seq);
        self.open = Some(buffer);
        Ok(())
    }

    /// Appends a copy of the bytes to the open buffer. Returns the copy.
    pub(super) fn copy(&mut self, bytes: &[u8]) -> &mut [u8] {
        self.next = self.next.plus(bytes.len());
        self.open.as_mut().expect("a buffer was provided").extend(bytes)
    }

    /// Appends a value without copying it, between the bytes already in the open buffer and those to come.
    fn share(&mut self, value: &Bytes, reservation: &Arc<Reservation>, file: &Arc<File>, seq: u64) {
        let open = self.open.as_mut().expect("a buffer was provided");
        open.publish();
        let (reader, length) = (open.reader(), open.len());
        self.chunks.back_mut().expect("the open buffer has a chunk").end = self.next;
        self.push_chunk(ChunkMemory::Value(value.clone(), reservation.clone()), value.len(), file, seq);
        self.push_chunk(ChunkMemory::Buffer(reader, length), 0, file, seq);
    }

    /// Adds a chunk at the current end of the log.
    fn push_chunk(&mut self, memory: ChunkMemory, length: usize, file: &Arc<File>, seq: u64) {
        let (start, end, file) = (self.next, self.next.plus(length), file.clone());
        self.chunks.push_back(Chunk { start, end, seq, frame_end: end, file, memory });
        self.next = end;
        self.read_view_is_stale = true;
    }

    /// Publishes a frame that was appended from `start` on and ends with the record `seq`.
    pub(super) fn end_frame(&mut self, start: Position, seq: u64) {
        self.open.as_mut().expect("a buffer was provided").publish();
        self.chunks.back_mut().expect("the open buffer has a chunk").end = self.next;
        // If the frame ends with a shared value, the last chunk is empty.
        for chunk in self.chunks.iter_mut().rev().take_while(|chunk| chunk.end == self.next) {
            chunk.seq = seq;
        }
        for chunk in self.chunks.iter_mut().rev().take_while(|chunk| chunk.end > start) {
            chunk.frame_end = self.next;
        }
    }

    /// Closes the open buffer, so that it is written as soon as possible.
    pub(super) fn close(&mut self, direct: bool) {
        if self.open.is_some() && direct {
            self.pad();
        }
        self.open = None;
    }

    /// Advances to the next multiple of [`SYNC_ALIGNMENT`].
    pub(super) fn pad(&mut self) {
        let begin = self.next.offset().next_multiple_of(SYNC_ALIGNMENT);
        let count = (begin - self.next.offset()) as usize;
        self.next = self.next.plus(count);
        self.padding_bytes += count as u64;
        match &mut self.open {
            Some(open) if open.capacity() - open.len() >= count => {
                open.pad(count);
                open.publish();
                self.chunks.back_mut().expect("the open buffer has a chunk").end = self.next;
            }
            _ => self.open = None,
        }
    }

    /// Continues in a new buffer that begins at a multiple of [`SYNC_ALIGNMENT`].
    pub(super) fn align(&mut self) {
        // The previous buffer, which may be unaligned, is written in buffered mode.
        self.open = None;
        self.pad();
    }

    /// Sets the position of the next frame to the start of a segment.
    pub(super) fn begin_segment(&mut self, number: u32) {
        self.next = Position::new(number, 0);
    }

    /// Drops the chunks whose frames are written. In an idle log these are all chunks, and the open buffer is
    /// closed, so that the next append takes a small one.
    pub(super) fn release_written(&mut self, options: &LogOptions, written: Watermark, is_idle: bool) {
        if is_idle {
            self.read_view_is_stale |= !self.chunks.is_empty();
            self.chunks.clear();
            self.open = None;
            self.buffer_bytes = options.buffer_bytes_min;
        }
        let open_count = usize::from(self.open.is_some());
        let is_written = |chunk: &Chunk| chunk.end <= written.at && chunk.frame_end <= written.at;
        while self.chunks.len() > open_count && is_written(&self.chunks[0]) {
            self.chunks.pop_front();
            self.read_view_is_stale = true;
        }
    }

    /// Releases all unwritten bytes, for the caller to drop after unlocking.
    pub(super) fn release(&mut self) -> impl Sized + use<> {
        self.read_view_is_stale = true;
        (std::mem::take(&mut self.chunks), self.open.take())
    }
}
