//! Sealing: one task per log writes the segment indexes of closed segments, one after another.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use settee_io::{Damage, File, OnPanic};

use super::scan::walk;
use crate::error::is_no_space;
use crate::file_digest::FileHasher;
use crate::format::{RecordRef, SEGMENT_HEADER_SIZE, SYNC_ALIGNMENT, SegmentHeader};
use crate::frames::{FrameChain, Tail};
use crate::segment_index::{EntryRef, SegmentIndex, SegmentIndexBuilder, SegmentIndexError, footer_start};
use crate::segment_name::segment_path;
use crate::shared::Shared;
use crate::state::LogState;
use crate::types::Location;

/// Sealing starts when no segment has been closed for this long.
const SEAL_PAUSE: Duration = Duration::from_millis(200);

/// Sealing doesn't wait for a pause if more than this many segments wait for it: about as many as a log has.
const SEAL_BACKLOG_MAX: u32 = 16;

/// Seals a segment, and returns the next one to seal.
async fn seal_one(log: &Weak<Shared>, number: u32) -> Option<u32> {
    let shared = log.upgrade()?;
    let _permit = shared.env.background.acquire().await;
    let _sealing = shared.sealing.lock().await;
    if shared.is_stopped() {
        return None;
    }
    let sealed = shared.seal(number).await;
    let lacks_space = failed_for_space(&sealed);
    if let Err(error) = &sealed {
        tracing::warn!(
            %error, number, directory = %shared.directory.display(),
            "could not write a segment index"
        );
    }
    if matches!(sealed, Ok(true)) {
        shared.retry_sealing().await;
    }
    let (is_sealed, mut state) = (sealed.unwrap_or(false), shared.lock());
    state.segments.end_sealing(number, is_sealed, lacks_space);
    let next = state.begin_sealing();
    let below = state.segments.sealed_below();
    drop(state);
    shared.sealed_below.send_replace(below);
    next
}

impl Shared {
    /// Starts sealing if there are segments to seal.
    pub(crate) fn start_sealing(self: &Arc<Self>, state: &mut LogState) {
        let Some(mut number) = state.begin_sealing() else { return };
        let (log, clock) = (Arc::downgrade(self), self.env.clock.clone());
        self.env.spawn("log seal", async move {
            // The open segment when the last pause began; sealing delays no append for it.
            let mut seen = 0;
            let numbers = || {
                let shared = log.upgrade()?;
                let state = shared.lock();
                let persisted = state.watermarks.persisted().at.segment();
                let open = state.segments.open().map_or(persisted, |open| open.number);
                Some((open, state.segments.seal_soon()))
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
        state.segments.end_sealing(number, false, false);
        self.start_sealing(&mut state);
        let below = state.segments.sealed_below();
        drop(state);
        self.sealed_below.send_replace(below);
    }

    /// Seals segments whose sealing failed for lack of disk space, until space runs out again.
    async fn retry_sealing(&self) {
        let numbers = self.lock().segments.without_space();
        for number in numbers {
            let sealed = self.seal(number).await;
            if failed_for_space(&sealed) {
                return;
            }
            self.lock().segments.end_sealing_again(number, sealed.unwrap_or(false));
        }
    }

    /// Writes a segment's index, unless it has one or was removed. Returns whether it has one.
    async fn seal(&self, number: u32) -> Result<bool, SegmentIndexError> {
        let set = self.read_view.load().set.clone();
        let (Some(segment), Some(next)) = (set.get(number), set.get(number + 1)) else { return Ok(false) };
        let (file, next) = (segment.file().await?, next.file().await?);
        let (Some((header, checksum)), Some((following, _))) = (header(&file).await?, header(&next).await?)
        else {
            return Ok(false);
        };
        let frames_end = (following.previous_end, following.previous_checksum);
        if let Ok(index) = SegmentIndex::open(file.clone(), number, header.epoch).await
            && (index.trailer().frames_end, index.trailer().frames_checksum) == frames_end
        {
            // A process that was killed may have left it only in the page cache.
            file.sync().await?;
            return Ok(true);
        }
        let end = following.previous_end;
        let (builder, tail, mut hasher) = index_of_segment(&file, &header, checksum, end).await?;
        if (tail.end, tail.checksum) != frames_end {
            let (path, what) = (segment_path(&self.directory, number), "a frame is damaged");
            return Err(SegmentIndexError::Damaged(Damage { path, offset: tail.end, what }));
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
        hasher.read_to(&file, start).await?;
        hasher.update(start, &blocks);
        segment.set_digest(hasher.finish());
        Ok(true)
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

/// Builds the segment index of a segment's frames up to `end`. Returns it, where the whole frames end, and the
/// hasher of the bytes read.
async fn index_of_segment(
    file: &File,
    header: &SegmentHeader,
    checksum: u64,
    end: u64,
) -> Result<(SegmentIndexBuilder, Tail, Box<FileHasher>), settee_io::Error> {
    let mut builder = SegmentIndexBuilder::new(header.segment, header.epoch);
    let push = |location: Location, record: RecordRef<'_>| {
        let RecordRef { seq, flags, key, meta, .. } = record;
        builder.push(EntryRef { seq, flags, key, meta, location }, record.checksum());
    };
    let mut chain = FrameChain::new(file, header, checksum, end);
    chain.reader.hasher = Some(Box::default());
    let tail = walk(&mut chain, push).await?;
    Ok((builder, tail, chain.reader.hasher.take().unwrap_or_default()))
}
