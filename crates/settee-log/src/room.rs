//! Room for appends: segments, space reserved on the disk before bytes are accepted, buffers.
//!
//! A full disk shows here, as a refusal, and not in a write that has been promised: nothing is
//! latched, and appends go on by themselves once there is room. (Where the file system promises nothing
//! by a reservation it shows in the write: see `drive.rs`.) So does a process without a file descriptor
//! for the next segment: what could not be opened has not been changed.
//!
//! What will be needed soon is made ahead, by a task beside the appends: more of the open
//! segment, and the next one. Where commits wait for syncs of small groups, what is made ahead is
//! also filled with zeros: a sync of bytes written over zeros that are on the medium changes no
//! metadata, and takes about two thirds of one into reserved space (`settee bench sync`). Bulk
//! streams don't pay for zeros.
//!
//! Invariants:
//! 1. Room ends at multiples of [`SYNC_ALIGNMENT`], where it was made here: zeros begin in no block
//!    that a sync may have covered.
//! 2. Zeros are written and synced by a handle of their own: the system tells each handle of a
//!    failed write-back once, and a group's sync must learn of every one.
//! 3. A panic of a task that makes room leaves the folder, or the segment, in a state that nobody can
//!    tell: it stops the log.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{Either, select};
use settee_io::{File, OpenMode, OperationKind, TailBuffer, folder};

use crate::error::{AppendError, Stopped};
use crate::format::{FrameSeed, SEGMENT_HEADER_SIZE, SYNC_ALIGNMENT, SegmentHeader};
use crate::log::{LogOptions, Shared};
use crate::recovery::segment_path;
use crate::seal::Known;
use crate::state::{Claim, Lack, State};
use crate::view::{Slot, View};

/// What a segment reserves first, in bytes: small databases stay small.
const FIRST_ROOM_BYTES: u32 = 64 << 10;

/// Room at the end of the open segment, in bytes, that is kept for batches which free space: they
/// find it on a full disk. Of a small segment it is a quarter.
pub(crate) const RESERVE_BYTES: u32 = 32 << 10;

/// The most that is filled with zeros at once, in bytes.
const FILL_BYTES_MAX: u32 = 1 << 20;

/// Room is filled where groups are smaller than this on average: otherwise the zeros cost more
/// than the syncs gain.
const FILL_GROUP_BYTES_MAX: usize = 64 << 10;

/// One write of zeros, in bytes.
const ZEROS: &[u8] = &[0; 256 << 10];

/// A log takes about so many segments, unless a stream makes them larger.
const SEGMENT_COUNT_AIM: u64 = 16;

/// A segment has room for so many batches like its first, as far as that is no more than twice the log:
/// one that is full with each batch would be synced, and followed by another, for each; and what was
/// overwritten in the open one can't be freed.
const SEGMENT_BATCH_COUNT_MIN: usize = 8;

/// A segment is made ahead only in a log of this many bytes: for it, a spare is at most a
/// twentieth.
const SPARE_LOG_BYTES_MIN: u64 = 20 * FIRST_ROOM_BYTES as u64;

/// How often it is tried to lock a new segment's file, and how far apart.
const LOCK_TRIES_MAX: usize = 1000;
const LOCK_PAUSE: Duration = Duration::from_millis(2);

/// The segment that takes appends.
pub(crate) struct OpenSegment {
    pub number: u32,
    pub epoch: u32,
    pub seed: FrameSeed,
    pub file: Arc<File>,
    /// Where it is full.
    pub bytes_max: u32,
    /// Room is reserved up to here.
    pub allocated: u32,
    /// The checksum that the next frame carries on.
    pub checksum: u64,
    /// Its header, until that has been accepted with the first frame.
    pub header: Option<[u8; SEGMENT_HEADER_SIZE]>,
}

/// How much of a segment is kept for batches that free space.
pub(crate) fn reserve_of(bytes_max: u32) -> u32 {
    RESERVE_BYTES.min(bytes_max / 4)
}

/// Where a segment is full that is to be full at `bytes_max`, but holds a frame that ends at `end`.
pub(crate) fn fitting(bytes_max: u32, end: u32) -> u32 {
    if end + reserve_of(bytes_max) <= bytes_max { bytes_max } else { end + RESERVE_BYTES }
}

/// What whoever makes room has made ahead.
#[derive(Default)]
pub(crate) struct Room {
    pub next: Option<Spare>,
}

/// A segment's file that isn't in use yet.
pub(crate) struct Spare {
    pub number: u32,
    pub file: Arc<File>,
    pub allocated: u32,
    /// It held another segment before.
    pub is_reused: bool,
}

/// What is made ahead, by one task at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Chore {
    /// More room in the open segment.
    Reserve,
    /// The next segment.
    Prepare,
    /// Fewer of the old ones.
    Forget,
}

/// Why there is no room.
pub(crate) enum RoomError {
    /// The disk has none, or the process no file descriptor; everything is as it was.
    Refused(settee_io::Error),
    /// Something else failed: the log stops.
    Failed(settee_io::Error),
    /// The log had stopped.
    Stopped(Stopped),
}

impl From<settee_io::Error> for RoomError {
    fn from(error: settee_io::Error) -> RoomError {
        match is_refusal(&error) {
            true => RoomError::Refused(error),
            false => RoomError::Failed(error),
        }
    }
}

/// Whether there was no room, or no file descriptor, and nothing else happened.
pub(crate) fn is_refusal(error: &settee_io::Error) -> bool {
    is_no_room(error) || error.is_no_descriptor()
}

/// Whether the disk refused room, and nothing else happened.
pub(crate) fn is_no_room(error: &settee_io::Error) -> bool {
    error.is_no_space() && !is_of_sync(error)
}

/// Whether a sync failed: it may have dropped what others wrote before, and is never just a full
/// disk.
fn is_of_sync(error: &settee_io::Error) -> bool {
    matches!(error.operation(), Some(OperationKind::Sync | OperationKind::SyncFolder))
}

impl LogOptions {
    /// How large a segment gets in a log of so many bytes, of which the last `under_way` aren't
    /// persisted yet: twice these, if the log isn't smaller. A segment isn't written before the one
    /// before is persisted, so a stream that fills small ones would wait for a sync behind each.
    pub(crate) fn segment_bytes(&self, log_bytes: u64, under_way: u64) -> u32 {
        let most = self.segment_bytes_max;
        let aim = (log_bytes / SEGMENT_COUNT_AIM).max((2 * under_way).min(log_bytes));
        let aim = u32::try_from(aim).unwrap_or(most);
        aim.clamp(self.segment_bytes_min.min(most), most)
    }
}

impl State {
    /// What is to be made ahead now.
    fn chore(&self) -> Option<Chore> {
        let segment = self.segment.as_ref()?;
        if self.has_forgotten() {
            return Some(Chore::Forget);
        }
        if self.chore_refused {
            return None;
        }
        let used = self.next.offset();
        let left = segment.allocated.saturating_sub(used);
        if segment.allocated < segment.bytes_max {
            // Small logs stay small; in a large one a stream would have filled the rest before more
            // is there.
            let ahead = ahead(segment.allocated);
            let low = if segment.allocated < FILL_BYTES_MAX { ahead / 2 } else { ahead };
            if left < low + reserve_of(segment.bytes_max) {
                return Some(Chore::Reserve);
            }
        }
        // Early: a stream that comes to the end before the next one is there waits for a folder's sync.
        let is_begun = used > segment.bytes_max / 4;
        let pays = self.log_bytes() >= SPARE_LOG_BYTES_MIN && self.spare_number <= segment.number;
        (is_begun && pays).then_some(Chore::Prepare)
    }

    /// Whether room made ahead is to be filled with zeros: the groups are small, and so is the one
    /// that is forming, which for a stream that nobody waits for gets large.
    fn fill_pays(&self) -> bool {
        self.stats.sync_count > 0 && self.group_bytes.max(self.forming_bytes()) < FILL_GROUP_BYTES_MAX
    }
}

/// How much is reserved ahead in a segment that has reserved so much: few steps, since each waits
/// for the writes to the file that are under way, and they for it.
fn ahead(allocated: u32) -> u32 {
    allocated / 2
}

impl Shared {
    /// Makes what a batch lacks. Another append may take it first: so look again.
    pub(crate) async fn make(
        self: &Arc<Self>,
        lack: Lack,
        claim: Claim,
    ) -> Result<Option<TailBuffer>, AppendError> {
        if let Lack::Writes(source) = lack {
            return Err(AppendError::NoSpace { size: claim.size, source });
        }
        if let Lack::Buffer(capacity) = lack {
            let buffer = pin!(self.env.buffers.take(capacity));
            let (ends, stalled) = (pin!(self.ends()), pin!(self.env.buffers.stalled()));
            return match select(buffer, select(ends, stalled)).await {
                Either::Left((buffer, _)) => Ok(Some(buffer)),
                Either::Right((Either::Left(_), _)) => Err(self.why_stopped().into()),
                // The buffers that it waits for may be those of writes that wait for room, of this log or another.
                Either::Right((Either::Right((source, _)), _)) => {
                    Err(AppendError::NoSpace { size: claim.size, source })
                }
            };
        }
        // In a task of its own: a segment half made would be in the way for good, were the
        // caller's future dropped there.
        let (done, made) = tokio::sync::oneshot::channel();
        let shared = self.clone();
        self.env.spawn("log room", async move {
            let _ = done.send(shared.make_room(claim).await);
        });
        made.await.unwrap_or_else(|_| Err(self.why_stopped().into()))?;
        Ok(None)
    }

    async fn make_room(self: Arc<Self>, claim: Claim) -> Result<(), AppendError> {
        let mut room = self.room.lock().await;
        let _stop = self.stop_on_panic();
        let lack = {
            let mut state = self.lock();
            if let Some(stopped) = &state.stopped {
                return Err(stopped.clone().into());
            }
            let lack = state.check_room(claim).err();
            // From here to the end of the roll nothing more goes into the old segment: what the
            // new one's header says of it must stay true.
            state.rolling = matches!(lack, Some(Lack::Segment));
            lack
        };
        let made = match lack {
            None | Some(Lack::Buffer(_)) => Ok(()),
            Some(Lack::Writes(source)) => Err(RoomError::Refused((*source).clone())),
            Some(Lack::Room(end)) => match self.reserve(end).await {
                Err(RoomError::Refused(_)) if room.next.is_some() => {
                    match self.give_up_spare(&mut room).await {
                        Ok(()) => self.reserve(end).await,
                        Err(error) => Err(RoomError::Failed(error)),
                    }
                }
                reserved => reserved,
            },
            Some(Lack::Segment) => self.roll(claim, &mut room).await,
        };
        self.lock().rolling = false;
        made.map_err(|error| match error {
            RoomError::Refused(source) if source.is_no_descriptor() => {
                AppendError::NoDescriptor { size: claim.size, source: Arc::new(source) }
            }
            RoomError::Refused(source) => AppendError::NoSpace { size: claim.size, source: Arc::new(source) },
            RoomError::Stopped(stopped) => AppendError::Stopped(stopped),
            RoomError::Failed(source) => {
                // The folder or the segment is in a state that nobody can tell.
                self.stop(source.clone());
                AppendError::Stopped(Stopped { source: Arc::new(source) })
            }
        })
    }

    /// Reserves up to `end` in the open segment, and ahead where the disk has it.
    async fn reserve(&self, end: u32) -> Result<(), RoomError> {
        let (_, file, allocated, bytes_max) = self.open_segment();
        let end = end.next_multiple_of(SYNC_ALIGNMENT);
        let most = (end + ahead(allocated)).min(bytes_max).next_multiple_of(SYNC_ALIGNMENT);
        let mut reserved = most;
        let mut result = file.allocate(u64::from(allocated), u64::from(most - allocated)).await;
        if most > end && result.as_ref().is_err_and(settee_io::Error::is_no_space) {
            reserved = end;
            result = file.allocate(u64::from(allocated), u64::from(end - allocated)).await;
        }
        result?;
        let mut state = self.lock();
        state.segment.as_mut().expect("it is the room's holder who changes segments").allocated = reserved;
        state.chore_refused = false;
        Ok(())
    }

    /// The open segment's number and file, how much of it is reserved, and where it is full.
    fn open_segment(&self) -> (u32, Arc<File>, u32, u32) {
        let state = self.lock();
        let segment = state.segment.as_ref().expect("it is the room's holder who changes segments");
        (segment.number, segment.file.clone(), segment.allocated, segment.bytes_max)
    }

    /// Begins the next segment. What is in the one before is still on its way.
    async fn roll(self: &Arc<Self>, claim: Claim, room: &mut Room) -> Result<(), RoomError> {
        let under_way = self.lock().unpersisted_bytes();
        loop {
            let barrier = {
                let mut state = self.lock();
                match &state.stopped {
                    Some(stopped) => return Err(RoomError::Stopped(stopped.clone())),
                    None => state.wait_for_barrier(),
                }
            };
            let Some(left) = barrier else { break };
            self.drive();
            match select(left, pin!(self.finds_no_room())).await {
                Either::Left((Ok(()), _)) => {}
                Either::Left((Err(_), _)) => return Err(RoomError::Stopped(self.why_stopped())),
                Either::Right((source, _)) => return Err(RoomError::Refused((*source).clone())),
            }
        }
        let (number, log_bytes) = {
            let state = self.lock();
            let last = state.segment.as_ref().map_or(self.recovered.segment, |segment| segment.number);
            (last + 1, state.log_bytes())
        };
        let batches = (SEGMENT_BATCH_COUNT_MIN * claim.size)
            .min(usize::try_from(2 * log_bytes).unwrap_or(usize::MAX))
            .min(self.options.segment_bytes_max as usize);
        let bytes_max = self.options.segment_bytes(log_bytes, under_way).max(batches as u32);
        let bytes_max = fitting(bytes_max, (SEGMENT_HEADER_SIZE + claim.size) as u32);
        let needed = (SEGMENT_HEADER_SIZE + claim.size) as u32 + reserve_of(bytes_max);
        let spare = match room.next.take_if(|spare| spare.number == number) {
            Some(spare) => spare,
            None => self.create(number, needed.max(FIRST_ROOM_BYTES.min(bytes_max))).await?,
        };
        self.begin_segment(spare, bytes_max);
        self.drive();
        Ok(())
    }

    /// Creates a segment's file with `allocated` bytes of room; its name is durable before
    /// anything in it is promised.
    async fn create(&self, number: u32, allocated: u32) -> Result<Spare, RoomError> {
        let path = segment_path(&self.folder, number);
        let engine = &self.env.engine;
        let allocated = allocated.next_multiple_of(SYNC_ALIGNMENT);
        if number == 1 {
            folder::create(&**engine, &self.folder).await?;
        }
        // Writers of a log that has segments wait for the next one.
        let file = match number {
            1 => File::open(engine, &path, OpenMode::CreateNew).await?,
            _ => File::create_reserved(engine, &path).await?,
        };
        let made = async {
            self.take_into_use(&file).await?;
            file.allocate(0, u64::from(allocated)).await?;
            self.directory_syncs.sync(&**engine).await
        };
        match made.await {
            Err(error) if is_of_sync(&error) && !error.is_no_descriptor() => {
                return Err(RoomError::Failed(error));
            }
            Err(error) => {
                // Or it couldn't be created any more.
                drop(file);
                folder::remove(&**engine, &path).await.map_err(RoomError::Failed)?;
                return Err(error.into());
            }
            Ok(()) => {}
        }
        Ok(Spare { number, file: Arc::new(file), allocated, is_reused: false })
    }

    /// Makes a handle one that this log writes its next segment by: as the options have it, and with
    /// the lock. A log that is opened meanwhile finds this file, or one before it, to be locked.
    /// Whoever tries that has the lock for a moment, where this handle is new.
    pub(crate) async fn take_into_use(&self, file: &File) -> Result<(), settee_io::Error> {
        self.follow_mode(file).await?;
        for _ in 1..LOCK_TRIES_MAX {
            match file.lock().await {
                Err(error) if error.io_kind() == Some(std::io::ErrorKind::WouldBlock) => {
                    self.env.clock.sleep(LOCK_PAUSE).await;
                }
                locked => return locked,
            }
        }
        file.lock().await
    }

    /// Has the handle go past the page cache, where the options say so.
    async fn follow_mode(&self, file: &File) -> Result<(), settee_io::Error> {
        match self.direct.load(Ordering::Relaxed) {
            true => file.set_direct(true).await.map(drop),
            false => Ok(()),
        }
    }

    /// The open segment's number.
    pub(crate) fn open_number(&self) -> u32 {
        self.lock().segment.as_ref().map_or(self.recovered.segment, |segment| segment.number)
    }

    /// Takes the new segment into use. Its header is accepted with the first frame.
    fn begin_segment(&self, spare: Spare, bytes_max: u32) {
        let Spare { number, file, allocated, is_reused } = spare;
        let mut state = self.lock();
        let (previous_end, previous_checksum) = match &state.segment {
            Some(segment) => (u64::from(state.accepted.at.offset()), segment.checksum),
            None => (self.recovered.end, self.recovered.checksum),
        };
        let header = SegmentHeader {
            segment: number,
            epoch: self.epoch,
            log_id: self.log_id,
            is_reused,
            oldest: state.oldest_needed(),
            first_seq: state.accepted.seq + 1,
            previous_end,
            previous_checksum,
        };
        state.left.needed = header.oldest;
        if let Some(number) = state.segment.as_ref().map(|segment| segment.number)
            && let Some(known) = state.segments.get_mut(&number)
        {
            known.bytes = previous_end;
            // Without what was left empty behind the last frame.
            state.stats.file_bytes = state.segments.values().map(|known| known.bytes).sum();
        }
        state.segments.insert(number, Known { epoch: header.epoch, first_seq: header.first_seq, bytes: 0 });
        let seed = header.frame_seed();
        let (header, checksum) = header.encode();
        let mut files = (*self.view.load().files).clone();
        files.insert(number, Slot::new(file.clone()));
        let epoch = self.epoch;
        state.begin_segment(OpenSegment {
            number,
            epoch,
            seed,
            file,
            bytes_max,
            allocated,
            checksum,
            header: Some(header),
        });
        state.view_is_old = false;
        self.view.store(Arc::new(View::new(Arc::new(files), &state)));
    }

    /// Starts making ahead what will soon be needed.
    pub(crate) fn do_chores(self: &Arc<Self>, state: &mut State) {
        self.start_sealing(state);
        if state.rolling || state.has_chore {
            return;
        }
        let Some(chore) = state.chore() else { return };
        state.has_chore = true;
        let shared = self.clone();
        self.env.spawn("log chore", async move {
            let mut room = shared.room.lock().await;
            let _stop = shared.stop_on_panic();
            if shared.is_stopped() {
                return;
            }
            let done = match chore {
                Chore::Reserve => shared.reserve_ahead().await,
                Chore::Prepare => shared.prepare(&mut room).await,
                Chore::Forget => shared.forget(&mut room).await,
            };
            let mut refused = false;
            match done {
                Ok(()) | Err(RoomError::Stopped(_)) => {}
                // Who needs the room will ask for it.
                Err(RoomError::Refused(_)) => refused = true,
                Err(RoomError::Failed(error)) if chore == Chore::Prepare && !is_of_sync(&error) => {
                    tracing::warn!(%error, folder = %shared.folder.display(), "no segment was made ahead");
                    refused = true;
                }
                Err(RoomError::Failed(error)) => shared.stop(error),
            }
            let mut state = shared.lock();
            (state.has_chore, state.chore_refused) = (false, refused);
        });
    }

    /// Reserves more of the open segment, filled with zeros where that pays.
    async fn reserve_ahead(&self) -> Result<(), RoomError> {
        let (number, file, allocated, bytes_max) = self.open_segment();
        let fill = self.lock().fill_pays();
        let count = if fill { ahead(allocated).min(FILL_BYTES_MAX) } else { ahead(allocated) };
        let end = (allocated + count.max(FIRST_ROOM_BYTES)).min(bytes_max).next_multiple_of(SYNC_ALIGNMENT);
        // The next segment may have begun meanwhile, with more room than it needs.
        if end <= allocated {
            return Ok(());
        }
        file.allocate(u64::from(allocated), u64::from(end - allocated)).await?;
        if fill {
            self.fill_with_zeros(number, allocated, end).await?;
        }
        let mut state = self.lock();
        if let Some(segment) = state.segment.as_mut() {
            segment.allocated = segment.allocated.max(end);
        }
        Ok(())
    }

    /// Makes the next segment's file.
    async fn prepare(&self, room: &mut Room) -> Result<(), RoomError> {
        let (number, fill, log_bytes) = {
            let state = self.lock();
            let Some(segment) = &state.segment else {
                return Ok(());
            };
            (segment.number + 1, state.fill_pays(), state.log_bytes())
        };
        if room.next.as_ref().is_some_and(|spare| spare.number == number) {
            return Ok(());
        }
        // A stream reserves what it may before anything is written: neither waits for the other.
        let most = self.options.segment_bytes(log_bytes, 0);
        let spare_bytes = if fill { 0 } else { log_bytes * self.options.spare_percent_max / 100 };
        let allocated = u32::try_from(spare_bytes).unwrap_or(most).clamp(FIRST_ROOM_BYTES.min(most), most);
        let spare = self.create(number, allocated).await?;
        if fill && let Err(error) = self.fill_with_zeros(number, 0, spare.allocated).await {
            drop(spare);
            // Or the segment couldn't be created any more.
            folder::remove(&*self.env.engine, &segment_path(&self.folder, number)).await?;
            return Err(error.into());
        }
        room.next = Some(spare);
        self.lock().spare_number = number;
        Ok(())
    }

    /// Gives back to the disk what was made ahead. Where that fails, the next opening does it; until then
    /// the segment can't be created.
    pub(crate) async fn give_up_spare(&self, room: &mut Room) -> Result<(), settee_io::Error> {
        let Some(Spare { number, file, .. }) = room.next.take() else { return Ok(()) };
        drop(file);
        folder::remove(&*self.env.engine, &segment_path(&self.folder, number)).await?;
        self.lock().spare_number = 0;
        Ok(())
    }

    /// Writes zeros over a segment's reserved room, and puts them on the medium.
    async fn fill_with_zeros(&self, number: u32, from: u32, to: u32) -> Result<(), settee_io::Error> {
        let path = segment_path(&self.folder, number);
        let file = File::open(&self.env.engine, &path, OpenMode::Write).await?;
        self.follow_mode(&file).await?;
        // Room of a segment that was opened again may begin anywhere.
        let mut at = from.next_multiple_of(SYNC_ALIGNMENT);
        while at < to && !self.is_stopped() {
            let count = ZEROS.len().min((to - at) as usize);
            file.write_at(u64::from(at), Bytes::from_static(&ZEROS[..count])).await?;
            at += count as u32;
        }
        file.sync().await
    }
}
