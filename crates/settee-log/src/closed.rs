//! Closed segments: sealing, truncation and transfer.
//!
//! Sealing reads a segment back, checks it, and writes its segment index after its last frame, so that its
//! records can be found without reading its frames (`segment_index.rs`). Reserved space that was not used is
//! returned to the file system. No correctness depends on a seal: a segment whose sealing failed or was
//! interrupted by a crash is complete without one.
//!
//! Truncation is for a log whose user has the records' content elsewhere (a checkpoint). The next segment's
//! header names the oldest segment that is still needed; once that header is on the medium, older files are
//! removed. One of them may be recycled as the next segment's file: its space is allocated, and a sync of
//! bytes written over old ones changes no metadata.
//!
//! Alternatively closed segments are transferred to the user, who then owns their files and removes them.
//!
//! Invariants:
//! 1. A segment is sealed only when the next one's first group is persisted: so the last segment that
//!    recovery finds ends in frames.
//! 2. A file is removed only when a persisted header says that it isn't needed.
//! 3. A file is recycled only if it has no other user: no reader (no shared handle), no backup (no other
//!    link). Its header is zeroed on the medium before it gets its new name; its old frames name another
//!    segment, so they are never accepted as the new one's.
//! 4. A segment is transferred only when sealing has finished or skipped it: the next one's header and
//!    everything before it are persisted, and the log no longer writes to it.
//! 5. A segment counts as sealed only when its segment index is on the medium, also if an earlier process
//!    wrote it.
//!
//! Limits: each environment seals few segments at a time ([`settee_io::Env::background`]); sealing one takes
//! [`WINDOW_BYTES`] of memory, or the segment's largest frame, plus the segment index. A stream that fills
//! one segment after another needs the disk and the processor itself: sealing waits for a pause, as long as
//! no more than [`SEAL_BACKLOG_MAX`] segments wait.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use settee_io::{File, OnPanic, OpenMode, directory};

use crate::error::ReadError;
use crate::format::{RecordRef, SEGMENT_HEADER_SIZE, SYNC_ALIGNMENT, SegmentHeader};
use crate::log::{Location, SegmentInfo, Seq, Shared};
use crate::read_view::{FileSlot, ReadView};
use crate::recovery::{Tail, next_frame, next_frame_end, segment_path};
use crate::reservation::{
    DiskReservation, OpenSegment, PreallocatedSegment, ReservationError, is_no_space, is_refusal,
};
use crate::segment_index::{EntryRef, SegmentIndex, SegmentIndexBuilder, SegmentIndexError, footer_start};
use crate::state::LogState;

/// Sealing starts when no segment has been closed for this long.
const SEAL_PAUSE: Duration = Duration::from_millis(200);

/// Sealing doesn't wait for a pause if more than this many segments wait for it: about as many as a log has.
const SEAL_BACKLOG_MAX: u32 = 16;

/// Bytes of a segment read at once, if no frame is larger: small enough to stay in the processor's cache, in
/// reused memory.
const WINDOW_BYTES: u64 = 256 << 10;

/// The log's metadata of a segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SegmentMeta {
    pub epoch: u32,
    pub first_seq: u64,
    /// Size of its frames in bytes, header included.
    pub bytes: u64,
}

/// The state of sealing, truncation and transfer.
pub(crate) struct ClosedSegments {
    /// All segments below are sealed, or are in `unsealed` because they can't be.
    pub seal_next: u32,
    pub unsealed: BTreeSet<u32>,
    /// Segments in `unsealed` whose segment index failed for lack of disk space.
    pub without_space: BTreeSet<u32>,
    pub is_sealing: bool,
    /// Segments below this one are sealed without waiting for a pause.
    pub seal_soon: u32,
    /// All segments below were removed or transferred.
    pub oldest: u32,
    /// The newest segment's header says that segments below this one are not needed.
    pub needed: u32,
    /// Records before this `Seq` aren't needed.
    pub truncate_before: u64,
}

impl LogState {
    /// The segment to seal next, if part of the segment after it is persisted.
    fn to_seal(&self) -> Option<u32> {
        let next = self.closed.seal_next;
        (next < self.persisted.at.segment() && !self.closed.is_sealing).then_some(next)
    }

    /// The first segment that can't be sealed until more is accepted: the open one, or the one before it if
    /// the append that created the open one was cancelled, so that it is empty.
    pub(crate) fn seal_end(&self) -> u32 {
        let is_begun = |segment: &OpenSegment| segment.header.is_none();
        let end_of = |segment: &OpenSegment| segment.number - u32::from(!is_begun(segment));
        self.segment.as_ref().map_or(self.persisted.at.segment(), end_of)
    }

    /// Whether there are truncated segments to remove.
    pub(crate) fn has_files_to_remove(&self) -> bool {
        let open = self.segment.as_ref().map(|segment| segment.number);
        self.closed.oldest < self.closed.needed && open == Some(self.persisted.at.segment())
    }

    /// Size of the log in bytes: its segments, and the live bytes of transferred ones.
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
        let is_needed = |meta: &SegmentMeta| meta.first_seq <= self.closed.truncate_before;
        let newest_first = self.segments.iter().rev();
        newest_first
            .filter(|(_, meta)| is_needed(meta))
            .map(|(number, _)| *number)
            .next()
            .unwrap_or(self.closed.oldest)
            .max(self.closed.oldest)
    }
}

/// Seals a segment, and returns the next one to seal.
async fn seal_one(log: &Weak<Shared>, number: u32) -> Option<u32> {
    let shared = log.upgrade()?;
    let _permit = shared.env.background.acquire().await;
    let _sealing = shared.sealing.lock().await;
    if shared.is_stopped() {
        return None;
    }
    let sealed = shared.seal(number).await;
    let without_space = failed_for_space(&sealed).then_some(number);
    if let Err(error) = &sealed {
        tracing::warn!(
            %error, number, directory = %shared.directory.display(),
            "could not write a segment index"
        );
    }
    if matches!(sealed, Ok(true)) {
        shared.retry_sealing().await;
    }
    let (below, next) = {
        let mut state = shared.lock();
        state.closed.without_space.extend(without_space);
        if !sealed.unwrap_or(false) && state.segments.contains_key(&number) {
            state.closed.unsealed.insert(number);
        }
        state.closed.seal_next = state.closed.seal_next.max(number + 1);
        state.closed.is_sealing = false;
        let next = state.to_seal();
        state.closed.is_sealing = next.is_some();
        (state.closed.seal_next, next)
    };
    shared.sealed_below.send_replace(below);
    next
}

impl Shared {
    /// Starts sealing if there are segments to seal.
    pub(crate) fn start_sealing(self: &Arc<Self>, state: &mut LogState) {
        let Some(mut number) = state.to_seal() else { return };
        state.closed.is_sealing = true;
        let (log, clock) = (Arc::downgrade(self), self.env.clock.clone());
        self.env.spawn("log seal", async move {
            // The open segment when the last pause began; sealing delays no append for it.
            let mut seen = 0;
            let numbers = || {
                let shared = log.upgrade()?;
                let state = shared.lock();
                let open = state.segment.as_ref().map(|segment| segment.number);
                Some((open.unwrap_or(state.persisted.at.segment()), state.closed.seal_soon))
            };
            loop {
                let this = number;
                let _skip =
                    OnPanic(|| log.upgrade().into_iter().for_each(|shared| shared.skip_sealing(this)));
                let Some((open, seal_soon)) = numbers() else { return };
                if open != seen && open - number <= SEAL_BACKLOG_MAX && number >= seal_soon {
                    seen = open;
                    clock.sleep(SEAL_PAUSE).await;
                    continue;
                }
                let Some(next) = seal_one(&log, number).await else { return };
                number = next;
            }
        });
    }

    /// Leaves a segment without a segment index, because sealing it panicked, and continues with the next.
    fn skip_sealing(self: &Arc<Self>, number: u32) {
        tracing::error!(
            number, directory = %self.directory.display(),
            "sealing panicked: the segment has no segment index"
        );
        let mut state = self.lock();
        if state.segments.contains_key(&number) {
            state.closed.unsealed.insert(number);
        }
        state.closed.seal_next = state.closed.seal_next.max(number + 1);
        state.closed.is_sealing = false;
        self.start_sealing(&mut state);
        let below = state.closed.seal_next;
        drop(state);
        self.sealed_below.send_replace(below);
    }

    /// Seals segments whose sealing failed for lack of disk space, until space runs out again.
    async fn retry_sealing(&self) {
        let numbers = self.lock().closed.without_space.clone();
        for number in numbers {
            let sealed = self.seal(number).await;
            if failed_for_space(&sealed) {
                return;
            }
            let mut state = self.lock();
            state.closed.without_space.remove(&number);
            if matches!(sealed, Ok(true)) {
                state.closed.unsealed.remove(&number);
            }
        }
    }

    /// Writes a segment's index, unless it has one or was removed. Returns whether it has one.
    async fn seal(&self, number: u32) -> Result<bool, SegmentIndexError> {
        let files = self.read_view.load().files.clone();
        let file = |number| files.get(&number).and_then(|slot| slot.get());
        let (Some(file), Some(next)) = (file(number), file(number + 1)) else { return Ok(false) };
        let (Some((header, checksum)), Some((following, _))) = (header(&file).await?, header(&next).await?)
        else {
            return Ok(false);
        };
        if SegmentIndex::open(file.clone(), number, header.epoch).await.is_ok() {
            // A process that was killed may have left it only in the page cache.
            file.sync().await?;
            return Ok(true);
        }
        let end = following.previous_end;
        let (builder, tail) = index_of_segment(&file, &header, checksum, end).await?;
        if (tail.end, tail.checksum) != (end, following.previous_checksum) {
            let (path, what) = (segment_path(&self.directory, number), "a frame is damaged");
            return Err(SegmentIndexError::Damaged { path, offset: tail.end, what });
        }
        let footer = builder.finish(end, tail.checksum).await;
        let start = footer_start(end);
        let length = start + footer.len() as u64;
        file.allocate(start, footer.len() as u64).await?;
        // The trailer is written last: if it is whole, so are the blocks.
        let blocks = Bytes::from(footer);
        let trailer_start = length - u64::from(SYNC_ALIGNMENT);
        let trailer = blocks.slice((trailer_start - start) as usize..);
        file.write_at(start, blocks.slice(..(trailer_start - start) as usize)).await?;
        // The footer must end the file, so reserved space behind it is released.
        file.set_length(length).await?;
        file.sync().await?;
        file.write_at(trailer_start, trailer).await?;
        file.sync().await?;
        Ok(true)
    }

    /// See [`crate::Log::transfer`].
    pub(crate) fn transfer(&self, below: u32) {
        let mut state = self.lock();
        if below <= state.closed.oldest {
            return;
        }
        let sealed_below = state.closed.seal_next;
        assert!(below <= sealed_below, "segment {below} or one before it isn't sealed");
        let kept = state.segments.split_off(&below);
        let removed = std::mem::replace(&mut state.segments, kept);
        let removed_bytes: u64 = removed.values().map(|meta| meta.bytes).sum();
        state.stats.file_bytes = state.stats.file_bytes.saturating_sub(removed_bytes);
        state.transferred_bytes += removed_bytes;
        state.closed.unsealed = state.closed.unsealed.split_off(&below);
        state.closed.without_space = state.closed.without_space.split_off(&below);
        state.closed.oldest = below;
        let files = (*self.read_view.load().files).clone().split_off(&below);
        self.read_view.store(Arc::new(ReadView::new(Arc::new(files), &state)));
    }

    /// Removes truncated segments' files, or recycles one for the next segment.
    pub(crate) async fn truncate(&self, reservation: &mut DiskReservation) -> Result<(), ReservationError> {
        let (removed, recycled_bytes_max) = {
            let mut state = self.lock();
            if !state.has_files_to_remove() {
                // The next segment has begun meanwhile, and its header isn't on the medium yet.
                return Ok(());
            }
            let needed = state.closed.needed;
            let kept = state.segments.split_off(&needed);
            let removed = std::mem::replace(&mut state.segments, kept);
            state.closed.oldest = needed;
            let removed_bytes = removed.values().map(|meta| meta.bytes).sum();
            state.stats.file_bytes = state.stats.file_bytes.saturating_sub(removed_bytes);
            let recycled_bytes_max = state.log_bytes() * self.options.spare_percent_max / 100;
            (removed, recycled_bytes_max)
        };
        for number in removed.into_keys() {
            let slot = self.remove_from_view(number);
            let unused = match reservation.next {
                None => self.recycle(reservation, number, slot, recycled_bytes_max).await?,
                Some(_) => Some(segment_path(&self.directory, number)),
            };
            match unused {
                Some(path) => directory::remove(&*self.env.engine, &path).await?,
                None => {
                    self.lock().preallocated_number =
                        reservation.next.as_ref().map_or(0, |preallocated| preallocated.number)
                }
            }
        }
        Ok(())
    }

    /// Removes a segment's file from the read view; readers that already have it keep it.
    fn remove_from_view(&self, number: u32) -> Option<Arc<FileSlot>> {
        let state = self.lock();
        let mut files = (*self.read_view.load().files).clone();
        let slot = files.remove(&number);
        self.read_view.store(Arc::new(ReadView::new(Arc::new(files), &state)));
        slot
    }

    /// Recycles a truncated segment's file for the next segment, if it is small enough and has no other user.
    /// Otherwise returns its path, which may have changed.
    async fn recycle(
        &self,
        reservation: &mut DiskReservation,
        truncated: u32,
        slot: Option<Arc<FileSlot>>,
        bytes_max: u64,
    ) -> Result<Option<PathBuf>, ReservationError> {
        let from = segment_path(&self.directory, truncated);
        let file = slot.and_then(Arc::into_inner).and_then(FileSlot::into_file);
        let Some(mut file) = file else { return Ok(Some(from)) };
        let length = file.length().await?;
        if length > bytes_max || Arc::get_mut(&mut file).is_none() || file.link_count().await? != 1 {
            return Ok(Some(from));
        }
        match file.write_and_sync_at(0, Bytes::from_static(&[0; SYNC_ALIGNMENT as usize])).await {
            Err(error) if is_refusal(&error) => return Ok(Some(from)),
            zeroed => zeroed?,
        }
        let number = self.open_number() + 1;
        let to = segment_path(&self.directory, number);
        directory::rename(&*self.env.engine, &from, &to).await.map_err(ReservationError::Failed)?;
        let keep_trying = |_: &settee_io::Error| !self.is_ending();
        self.directory_syncs
            .sync_with_retry(&self.env, keep_trying)
            .await
            .map_err(ReservationError::Failed)?;
        // The handle of the old name holds the lock.
        drop(file);
        let opened = async {
            let file = File::open(&self.env.engine, &to, OpenMode::Write).await?;
            self.configure_and_lock(&file).await.map(|()| file)
        };
        let file = match opened.await {
            Err(error) if is_refusal(&error) => return Ok(Some(to)),
            opened => Arc::new(opened?),
        };
        reservation.next =
            Some(PreallocatedSegment { number, file, allocated: length as u32, is_reused: true });
        Ok(None)
    }
}

/// Whether sealing failed only for lack of disk space. After a failed sync, for any reason, a later one
/// proves nothing about earlier writes.
fn failed_for_space(sealed: &Result<bool, SegmentIndexError>) -> bool {
    matches!(sealed, Err(SegmentIndexError::Io(error)) if is_no_space(error))
}

/// A segment's header and its checksum, if it is whole.
async fn header(file: &File) -> Result<Option<(SegmentHeader, u64)>, settee_io::Error> {
    let bytes = file.read_at(0, SEGMENT_HEADER_SIZE).await?;
    Ok(SegmentHeader::decode(&bytes).ok())
}

/// Builds the segment index of a segment's frames up to `end`, and returns where the whole frames end.
async fn index_of_segment(
    file: &File,
    header: &SegmentHeader,
    checksum: u64,
    end: u64,
) -> Result<(SegmentIndexBuilder, Tail), settee_io::Error> {
    let mut builder = SegmentIndexBuilder::new(header.segment, header.epoch);
    let push = |location: Location, record: RecordRef<'_>| {
        if !record.is_extent() {
            let RecordRef { seq, flags, key, meta, .. } = record;
            builder.push(EntryRef { seq, flags, key, meta, location }, record.checksum());
        }
    };
    let tail = walk(file, header, checksum, end, push).await?;
    Ok((builder, tail))
}

/// Passes each record and extent of a segment's frames up to `end` to `visit`, and returns where the whole
/// frames end.
async fn walk(
    file: &File,
    header: &SegmentHeader,
    checksum: u64,
    end: u64,
    mut visit: impl FnMut(Location, RecordRef<'_>),
) -> Result<Tail, settee_io::Error> {
    let mut tail = Tail { segment: header.segment, end: SEGMENT_HEADER_SIZE as u64, checksum };
    let mut last_seq = header.first_seq - 1;
    let mut size = WINDOW_BYTES;
    loop {
        let base = tail.end;
        let remaining = end.saturating_sub(base);
        let window = file.read_exact_at(base, remaining.min(size) as usize).await?;
        let bytes = (base as usize, &window[..]);
        while let Some((start, frame)) = next_frame(bytes, header, &tail, last_seq) {
            for (offset, record) in frame.records() {
                let offset = (start + offset) as u32;
                let location = Location { segment: header.segment, offset, length: record.size() as u32 };
                visit(location, record);
            }
            last_seq = frame.header.next_seq() - 1;
            tail.end = (start + frame.header.frame_size()) as u64;
            tail.checksum = frame.checksum;
        }
        size = match next_frame_end(bytes, header, &tail, last_seq).map(|frame_end| frame_end as u64 - base) {
            _ if remaining <= size => return Ok(tail),
            _ if tail.end > base => WINDOW_BYTES,
            // The frame is larger than the window.
            Some(needed) if needed > size => needed,
            _ => return Ok(tail),
        };
        settee_io::yield_now().await;
    }
}

/// Passes each record and extent of a segment to `visit`, in the order of its frames. For a caller that has
/// taken over a segment whose index is missing or damaged. `frame_bytes` is where its frames end
/// ([`SegmentInfo::frame_bytes`]). Only a few frames are in memory at a time. Dropping the future ends the
/// scan.
///
/// # Errors
/// [`ReadError::Damaged`] if the whole frames end earlier: the records before that were visited. Or an I/O
/// error.
pub async fn scan_segment(
    file: &File,
    segment: u32,
    frame_bytes: u64,
    visit: impl FnMut(Location, RecordRef<'_>),
) -> Result<(), ReadError> {
    let damaged = |offset, what| ReadError::Damaged { path: file.path().to_path_buf(), offset, what };
    let head = file.read_exact_at(0, SEGMENT_HEADER_SIZE).await?;
    let (header, checksum) = match SegmentHeader::decode(&head) {
        Ok((header, checksum)) if header.segment == segment => (header, checksum),
        _ => return Err(damaged(0, "its header isn't that of the segment")),
    };
    let tail = walk(file, &header, checksum, frame_bytes, visit).await?;
    match tail.end == frame_bytes {
        true => Ok(()),
        false => Err(damaged(tail.end, "a frame is damaged")),
    }
}
