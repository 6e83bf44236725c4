//! Accepting frames: checks for disk space, and copies each frame into the open buffer, or shares its large
//! values.

use std::sync::Arc;
use std::time::Duration;

use settee_io::TailBuffer;

use super::LogState;
use super::buffers::BufferSink;
use super::placement::{AppendBlocked, Placement, SpaceRequest};
use crate::format::{Batch, SEGMENT_HEADER_SIZE};
use crate::types::Stage;

impl LogState {
    /// Accepts a frame and requests that it reach `stage`, or returns what blocks it. If blocked, no byte is
    /// accepted; the open buffer may have been closed, and the capacity of a segment without frames increased.
    /// `buffer` is a buffer that the caller has obtained from the pool.
    pub(crate) fn accept(
        &mut self,
        batch: &Batch,
        stage: Stage,
        buffer: &mut Option<TailBuffer>,
        now: impl FnOnce() -> Duration,
    ) -> Result<Placement, AppendBlocked> {
        let request = SpaceRequest::of(batch);
        self.check_space(request)?;
        let segment = self.segments.open().expect("check_space found a segment");
        let (file, header) = (segment.file.clone(), segment.header);
        let header = header.as_ref().map_or(&[][..], |header| &header[..]);
        let seq = self.watermarks.accepted().seq;
        let share_bytes_min = self.options.bypass_bytes_min;
        // In direct mode no value is shared, since values aren't aligned.
        let shared_bytes = if self.options.direct { 0 } else { batch.shared_bytes(share_bytes_min) };
        let reservation =
            (shared_bytes > 0).then(|| self.pool.try_reserve(shared_bytes)).flatten().map(Arc::new);
        let copied = header.len() + batch.size() - if reservation.is_some() { shared_bytes } else { 0 };
        self.buffers.provide(copied, buffer, &self.options, &self.pool, &file, seq)?;
        if self.options.direct {
            // Closing the previous buffer may have added padding.
            self.check_space(request)?;
        }
        self.buffers.copy(header);
        let (at, first_seq) = (self.buffers.next(), seq + 1);
        let persisted = self.watermarks.persisted_frames_end(at.segment());
        let frame = self.segments.frame_header(first_seq, persisted);
        let buffers = &mut self.buffers;
        let mut sink = BufferSink { buffers, file: &file, seq, share_bytes_min, reservation };
        self.segments.accept(batch.write_frame(frame, &mut sink));
        self.watermarks.accept(batch.len(), self.buffers.next());
        self.buffers.end_frame(at, self.watermarks.accepted().seq);
        self.counters.batch_count += 1;
        let group = self.groups.add_batch(batch.size());
        match stage {
            Stage::Accepted => self.watermarks.start_age(now),
            _ => self.want(stage),
        }
        Ok(Placement { at, first_seq, group })
    }

    /// Accepts the open segment's header, without a frame, if that is all that it lacks. Nothing if there is no
    /// buffer for it at once: the first frame brings it then.
    pub(crate) fn accept_header(&mut self) {
        let Some(open) = self.segments.open().filter(|open| open.header.is_some()) else { return };
        let (file, seq) = (open.file.clone(), self.watermarks.accepted().seq);
        let provided =
            self.buffers.provide(SEGMENT_HEADER_SIZE, &mut None, &self.options, &self.pool, &file, seq);
        if provided.is_err() {
            return;
        }
        let Some((header, _)) = self.segments.take_header() else { return };
        let at = self.buffers.next();
        self.buffers.copy(&header);
        self.watermarks.accept(0, self.buffers.next());
        self.buffers.end_frame(at, seq);
        self.groups.add_batch(SEGMENT_HEADER_SIZE);
        self.want(Stage::Persisted);
    }

    /// Requests that all accepted bytes be written or persisted.
    pub(super) fn want(&mut self, stage: Stage) {
        match stage {
            Stage::Accepted => {}
            Stage::Written => self.watermarks.want_written(),
            Stage::Persisted => {
                self.watermarks.want_persisted();
                self.groups.add_committer();
            }
        }
    }

    /// Checks that no write waits for disk space, and that the open segment has space for the batch. Increases
    /// the capacity of a segment without frames that is too small for it.
    pub(super) fn check_space(&mut self, request: SpaceRequest) -> Result<(), AppendBlocked> {
        match self.writes.no_space_error() {
            Some(error) => Err(AppendBlocked::Writes(error)),
            None => self.segments.check_space(self.buffers.next().offset(), request),
        }
    }
}
