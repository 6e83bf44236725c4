//! What becomes of segments that were left: they are sealed, and forgotten or handed over.
//!
//! Sealing reads a segment back, checks it, and writes its directory behind its last frame, so
//! that its records can be found without reading its frames (`directory.rs`). The room that was
//! reserved and not used goes back to the file system. Nothing depends on a seal: a segment
//! whose sealing failed, or was cut short by a crash, is whole without one.
//!
//! Forgetting is for a log whose user has what it said elsewhere (a checkpoint). The next segment's
//! header names the oldest segment that is still needed; once that header is on the medium, the
//! older files go. One may be used again as the next segment's file: its room is there, and
//! syncing what is written over old bytes changes no metadata.
//!
//! Or they are handed over to that user, who from then on keeps their files, and removes them.
//!
//! Invariants:
//! 1. A segment is sealed only when the next one's first group is persisted: so the last segment
//!    that recovery finds ends in frames.
//! 2. A file goes only when a persisted header says that it isn't needed.
//! 3. A file is used again only when nobody else has it: no reader (nobody shares the handle), no
//!    backup (no other link). Its header is zeros, on the medium, before it gets its new name;
//!    its old frames name another segment, so they never pass as the new one's.
//! 4. A segment is handed over only when sealing has passed it: the next one's header and all
//!    before it are persisted, and nobody here writes to it any more.
//! 5. What counts as sealed has its directory on the medium, also where an earlier process wrote it.
//!
//! Limits: few segments are sealed at a time in each environment ([`settee_io::Env::background`]);
//! it takes [`WINDOW_BYTES`] in memory, or the segment's largest frame, and what the directory takes. A
//! stream that fills one segment after another needs the disk and the processor itself: sealing waits
//! for a pause, as long as no more than [`SEAL_BACKLOG_MAX`] segments wait.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use settee_io::{File, OnPanic, OpenMode, folder};

use crate::directory::{Directory, DirectoryBuilder, DirectoryError, EntryRef, footer_start};
use crate::error::ReadError;
use crate::format::{RecordRef, SEGMENT_HEADER_SIZE, SYNC_ALIGNMENT, SegmentHeader};
use crate::log::{Location, SegmentInfo, Seq, Shared};
use crate::recovery::{Tail, next_frame, next_frame_end, segment_path};
use crate::room::{OpenSegment, Room, RoomError, Spare, is_no_room, is_refusal};
use crate::state::State;
use crate::view::{Slot, View};

/// Segments are sealed once no other was left for so long,
const SEAL_PAUSE: Duration = Duration::from_millis(200);

/// or when more than this many wait for it: a log takes about as many.
const SEAL_BACKLOG_MAX: u32 = 16;

/// What is read of a segment at once, in bytes, where no frame is larger: little enough to stay in the
/// processor's cache, in memory that was used before.
const WINDOW_BYTES: u64 = 256 << 10;

/// What the log knows of a segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Known {
    pub epoch: u32,
    pub first_seq: u64,
    /// What its frames take.
    pub bytes: u64,
}

/// The segments that were left, as far as something is to be done about them.
pub(crate) struct Left {
    /// All below are sealed, or can't be: then they are among `unsealed`.
    pub seal_next: u32,
    pub unsealed: BTreeSet<u32>,
    /// Those among them for whose directory the disk had no room.
    pub without_room: BTreeSet<u32>,
    pub is_sealing: bool,
    /// Those below are sealed without waiting for a pause.
    pub seal_soon: u32,
    /// All below are gone, or are others'.
    pub oldest: u32,
    /// The newest segment's header says that all below this are not needed.
    pub needed: u32,
    /// Records before this aren't needed.
    pub forget_before: u64,
}

impl State {
    /// The segment to seal next: of the one behind it something is persisted.
    fn to_seal(&self) -> Option<u32> {
        let next = self.left.seal_next;
        (next < self.persisted.at.segment() && !self.left.is_sealing).then_some(next)
    }

    /// The first segment that isn't sealed until more is accepted: the open one, or the one before it
    /// where whoever needed the open one went away, and nothing is in it.
    pub(crate) fn seal_end(&self) -> u32 {
        let is_begun = |segment: &OpenSegment| segment.header.is_none();
        let end_of = |segment: &OpenSegment| segment.number - u32::from(!is_begun(segment));
        self.segment.as_ref().map_or(self.persisted.at.segment(), end_of)
    }

    /// Whether there are files to remove.
    pub(crate) fn has_forgotten(&self) -> bool {
        let open = self.segment.as_ref().map(|segment| segment.number);
        self.left.oldest < self.left.needed && open == Some(self.persisted.at.segment())
    }

    /// How large the log is: its segments, and what of it lies elsewhere.
    pub(crate) fn log_bytes(&self) -> u64 {
        self.stats.file_bytes + self.bytes_elsewhere
    }

    /// What is known of the segments, oldest first.
    pub(crate) fn segment_infos(&self) -> Vec<SegmentInfo> {
        let end = self.accepted.at;
        let mut last_seq = self.accepted.seq;
        let mut infos = Vec::with_capacity(self.segments.len());
        for (&number, known) in self.segments.iter().rev() {
            let frame_bytes = if number == end.segment() { end.offset().into() } else { known.bytes };
            infos.push(SegmentInfo {
                number,
                epoch: known.epoch,
                first_seq: Seq(known.first_seq),
                last_seq: Seq(last_seq),
                frame_bytes,
                is_sealed: number < self.left.seal_next && !self.left.unsealed.contains(&number),
            });
            last_seq = known.first_seq - 1;
        }
        infos.reverse();
        infos
    }

    /// The oldest segment that has a record which is still needed.
    pub(crate) fn oldest_needed(&self) -> u32 {
        let is_needed = |known: &Known| known.first_seq <= self.left.forget_before;
        let newest_first = self.segments.iter().rev();
        newest_first
            .filter(|(_, known)| is_needed(known))
            .map(|(number, _)| *number)
            .next()
            .unwrap_or(self.left.oldest)
            .max(self.left.oldest)
    }
}

/// Seals a segment, and returns the next one to seal.
async fn seal_one(log: &Weak<Shared>, number: u32) -> Option<u32> {
    let shared = log.upgrade()?;
    let _turn = shared.env.background.acquire().await;
    let _sealing = shared.sealing.lock().await;
    if shared.is_stopped() {
        return None;
    }
    let sealed = shared.seal(number).await;
    let without_room = found_no_room(&sealed).then_some(number);
    if let Err(error) = &sealed {
        tracing::warn!(%error, number, folder = %shared.folder.display(), "a segment stays without a directory");
    }
    if matches!(sealed, Ok(true)) {
        shared.seal_those_without_room().await;
    }
    let (below, next) = {
        let mut state = shared.lock();
        state.left.without_room.extend(without_room);
        if !sealed.unwrap_or(false) && state.segments.contains_key(&number) {
            state.left.unsealed.insert(number);
        }
        state.left.seal_next = state.left.seal_next.max(number + 1);
        state.left.is_sealing = false;
        let next = state.to_seal();
        state.left.is_sealing = next.is_some();
        (state.left.seal_next, next)
    };
    shared.sealed_below.send_replace(below);
    next
}

impl Shared {
    /// Starts sealing segments, where there are any to seal.
    pub(crate) fn start_sealing(self: &Arc<Self>, state: &mut State) {
        let Some(mut number) = state.to_seal() else { return };
        state.left.is_sealing = true;
        let (log, clock) = (Arc::downgrade(self), self.env.clock.clone());
        self.env.spawn("log seal", async move {
            // The open segment when the last pause began; nobody is kept waiting for one.
            let mut seen = 0;
            let numbers = || {
                let shared = log.upgrade()?;
                let state = shared.lock();
                let open = state.segment.as_ref().map(|segment| segment.number);
                Some((open.unwrap_or(state.persisted.at.segment()), state.left.seal_soon))
            };
            loop {
                let this = number;
                let _pass = OnPanic(|| log.upgrade().into_iter().for_each(|shared| shared.pass(this)));
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

    /// Leaves a segment without a directory, and goes on to the next: what sealed it panicked.
    fn pass(self: &Arc<Self>, number: u32) {
        tracing::error!(number, folder = %self.folder.display(), "sealing panicked: a segment stays without a directory");
        let mut state = self.lock();
        if state.segments.contains_key(&number) {
            state.left.unsealed.insert(number);
        }
        state.left.seal_next = state.left.seal_next.max(number + 1);
        state.left.is_sealing = false;
        self.start_sealing(&mut state);
        let below = state.left.seal_next;
        drop(state);
        self.sealed_below.send_replace(below);
    }

    /// Seals those segments that couldn't be, for a disk that was full, as far as it has room now.
    async fn seal_those_without_room(&self) {
        let numbers = self.lock().left.without_room.clone();
        for number in numbers {
            let sealed = self.seal(number).await;
            if found_no_room(&sealed) {
                return;
            }
            let mut state = self.lock();
            state.left.without_room.remove(&number);
            if matches!(sealed, Ok(true)) {
                state.left.unsealed.remove(&number);
            }
        }
    }

    /// Writes a segment's directory, unless it has one, or is gone. Returns whether it has one.
    async fn seal(&self, number: u32) -> Result<bool, DirectoryError> {
        let files = self.view.load().files.clone();
        let file = |number| files.get(&number).and_then(|slot| slot.get());
        let (Some(file), Some(next)) = (file(number), file(number + 1)) else { return Ok(false) };
        let (Some((header, checksum)), Some((following, _))) = (header(&file).await?, header(&next).await?)
        else {
            return Ok(false);
        };
        if Directory::open(file.clone(), number, header.epoch).await.is_ok() {
            // A process that was killed may have left it in the page cache alone.
            file.sync().await?;
            return Ok(true);
        }
        let end = following.previous_end;
        let (builder, tail) = directory_of(&file, &header, checksum, end).await?;
        if (tail.end, tail.checksum) != (end, following.previous_checksum) {
            let (path, what) = (segment_path(&self.folder, number), "a frame is damaged");
            return Err(DirectoryError::Damaged { path, offset: tail.end, what });
        }
        let footer = builder.finish(end, tail.checksum).await;
        let start = footer_start(end);
        let length = start + footer.len() as u64;
        file.allocate(start, footer.len() as u64).await?;
        // The trailer goes last: where it is whole, so are the blocks.
        let blocks = Bytes::from(footer);
        let trailer_start = length - u64::from(SYNC_ALIGNMENT);
        let trailer = blocks.slice((trailer_start - start) as usize..);
        file.write_at(start, blocks.slice(..(trailer_start - start) as usize)).await?;
        // It is the file's end: what was reserved behind it goes.
        file.set_length(length).await?;
        file.sync().await?;
        file.write_at(trailer_start, trailer).await?;
        file.sync().await?;
        Ok(true)
    }

    /// See [`crate::Log::hand_over`].
    pub(crate) fn hand_over(&self, below: u32) {
        let mut state = self.lock();
        if below <= state.left.oldest {
            return;
        }
        let sealed_below = state.left.seal_next;
        assert!(below <= sealed_below, "segment {below} isn't sealed, nor all before it");
        let kept = state.segments.split_off(&below);
        let gone = std::mem::replace(&mut state.segments, kept);
        let gone_bytes: u64 = gone.values().map(|known| known.bytes).sum();
        state.stats.file_bytes = state.stats.file_bytes.saturating_sub(gone_bytes);
        state.bytes_elsewhere += gone_bytes;
        state.left.unsealed = state.left.unsealed.split_off(&below);
        state.left.without_room = state.left.without_room.split_off(&below);
        state.left.oldest = below;
        let files = (*self.view.load().files).clone().split_off(&below);
        self.view.store(Arc::new(View::new(Arc::new(files), &state)));
    }

    /// Removes the files that aren't needed, or keeps one for the next segment.
    pub(crate) async fn forget(&self, room: &mut Room) -> Result<(), RoomError> {
        let (gone, spare_bytes_max) = {
            let mut state = self.lock();
            if !state.has_forgotten() {
                // The next segment has begun meanwhile, and its header isn't on the medium.
                return Ok(());
            }
            let needed = state.left.needed;
            let kept = state.segments.split_off(&needed);
            let gone = std::mem::replace(&mut state.segments, kept);
            state.left.oldest = needed;
            let gone_bytes = gone.values().map(|known| known.bytes).sum();
            state.stats.file_bytes = state.stats.file_bytes.saturating_sub(gone_bytes);
            let spare_bytes_max = state.log_bytes() * self.options.spare_percent_max / 100;
            (gone, spare_bytes_max)
        };
        for number in gone.into_keys() {
            let slot = self.take_out(number);
            let unused = match room.next {
                None => self.keep(room, number, slot, spare_bytes_max).await?,
                Some(_) => Some(segment_path(&self.folder, number)),
            };
            match unused {
                Some(path) => folder::remove(&*self.env.engine, &path).await?,
                None => self.lock().spare_number = room.next.as_ref().map_or(0, |spare| spare.number),
            }
        }
        Ok(())
    }

    /// Takes a segment's file from readers; those who have it already keep it.
    fn take_out(&self, number: u32) -> Option<Arc<Slot>> {
        let state = self.lock();
        let mut files = (*self.view.load().files).clone();
        let slot = files.remove(&number);
        self.view.store(Arc::new(View::new(Arc::new(files), &state)));
        slot
    }

    /// Makes the file of a segment the next one's, where that is worth it and nobody else has it.
    /// Otherwise returns its path, which it may have changed.
    async fn keep(
        &self,
        room: &mut Room,
        forgotten: u32,
        slot: Option<Arc<Slot>>,
        bytes_max: u64,
    ) -> Result<Option<PathBuf>, RoomError> {
        let from = segment_path(&self.folder, forgotten);
        let file = slot.and_then(Arc::into_inner).and_then(Slot::into_file);
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
        let to = segment_path(&self.folder, number);
        folder::rename(&*self.env.engine, &from, &to).await.map_err(RoomError::Failed)?;
        let tries_on = |_: &settee_io::Error| !self.is_ending();
        self.directory_syncs.sync_patiently(&self.env, tries_on).await.map_err(RoomError::Failed)?;
        // The handle of the old name has the lock.
        drop(file);
        let opened = async {
            let file = File::open(&self.env.engine, &to, OpenMode::Write).await?;
            self.take_into_use(&file).await.map(|()| file)
        };
        let file = match opened.await {
            Err(error) if is_refusal(&error) => return Ok(Some(to)),
            opened => Arc::new(opened?),
        };
        room.next = Some(Spare { number, file, allocated: length as u32, is_reused: true });
        Ok(None)
    }
}

/// Whether sealing failed for want of room alone. After a sync that failed, whyever, a later one proves
/// nothing of what was written before.
fn found_no_room(sealed: &Result<bool, DirectoryError>) -> bool {
    matches!(sealed, Err(DirectoryError::Io(error)) if is_no_room(error))
}

/// A segment's header and its checksum, where it is whole.
async fn header(file: &File) -> Result<Option<(SegmentHeader, u64)>, settee_io::Error> {
    let bytes = file.read_at(0, SEGMENT_HEADER_SIZE).await?;
    Ok(SegmentHeader::decode(&bytes).ok())
}

/// The directory of a segment's frames, up to `end`, and where those that are whole end.
async fn directory_of(
    file: &File,
    header: &SegmentHeader,
    checksum: u64,
    end: u64,
) -> Result<(DirectoryBuilder, Tail), settee_io::Error> {
    let mut builder = DirectoryBuilder::new(header.segment, header.epoch);
    let push = |location: Location, record: RecordRef<'_>| {
        if !record.is_extent() {
            let RecordRef { seq, flags, key, meta, .. } = record;
            builder.push(EntryRef { seq, flags, key, meta, location }, record.checksum());
        }
    };
    let tail = walk(file, header, checksum, end, push).await?;
    Ok((builder, tail))
}

/// Hands each record and extent of a segment's frames, up to `end`, to `visit`, and returns where those
/// that are whole end.
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
        let left = end.saturating_sub(base);
        let window = file.read_exact_at(base, left.min(size) as usize).await?;
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
            _ if left <= size => return Ok(tail),
            _ if tail.end > base => WINDOW_BYTES,
            // It is larger than the window.
            Some(needed) if needed > size => needed,
            _ => return Ok(tail),
        };
        settee_io::yield_now().await;
    }
}

/// Hands each record and extent of a segment to `visit`, in order, as its frames have them: for who
/// has taken over one without a directory, or with a damaged one. `frame_bytes` is where its frames
/// end ([`SegmentInfo::frame_bytes`]). A few of them are in memory at a time. Dropping the future ends it.
///
/// # Errors
/// [`ReadError::Damaged`] where the frames end before: what stands before that was visited. Or what
/// the system says.
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
