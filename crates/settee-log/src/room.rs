//! Room for appends: segments, and space reserved on the disk before bytes are accepted.
//!
//! A full disk shows here, as a refusal, and not in a write that has been promised: nothing is
//! latched, and appends go on by themselves once there is room.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use settee_io::{File, OpenMode, folder};

use crate::error::{AppendError, Stopped};
use crate::format::{SEGMENT_HEADER_SIZE, SegmentHeader};
use crate::log::{Admission, Claim, OpenSegment, Shared, Stage, position};
use crate::recovery::{Tail, segment_path};

/// What a segment reserves first, in bytes: small databases stay small.
const FIRST_ROOM_BYTES: u32 = 64 << 10;

/// Room in the open segment, in bytes, that is kept for batches which free space: they find it
/// on a full disk.
pub(crate) const RESERVE_BYTES: u32 = 32 << 10;

/// The most that is reserved ahead at once, in bytes.
const ROOM_AHEAD_BYTES_MAX: u32 = 4 << 20;

/// Why there is no room.
enum RoomError {
    /// The disk has none; everything is as it was.
    Refused(settee_io::Error),
    /// Something else failed: the log stops.
    Failed(settee_io::Error),
    /// The log had stopped.
    Stopped(Stopped),
}

impl From<settee_io::Error> for RoomError {
    fn from(error: settee_io::Error) -> RoomError {
        if error.is_no_space() { RoomError::Refused(error) } else { RoomError::Failed(error) }
    }
}

impl Shared {
    /// Makes what a batch needs. Another append may come first: so look again.
    pub(crate) async fn make_room(&self, claim: Claim) -> Result<(), AppendError> {
        let _room = self.room.lock().await;
        let (admission, accepted) = {
            let mut state = self.lock();
            let admission = self.admit(&state, claim)?;
            // From here to the end of the roll nothing more goes into the old segment: what the
            // new one's header says of it must stay true.
            state.rolling = matches!(admission, Admission::NeedsSegment);
            (admission, state.accepted)
        };
        let made = match admission {
            Admission::Ready => Ok(()),
            Admission::NeedsBuffer => return Ok(self.wait(accepted.seq, Stage::Written).await?),
            Admission::NeedsRoom(end) => self.reserve(end).await,
            Admission::NeedsSegment => self.roll(claim).await,
        };
        self.lock().rolling = false;
        made.map_err(|error| match error {
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
        let (file, allocated) = {
            let state = self.lock();
            let segment = state.segment.as_ref().expect("it is the room's holder who changes segments");
            (segment.file.clone(), segment.allocated)
        };
        let ahead = (allocated / 2).min(ROOM_AHEAD_BYTES_MAX);
        let most = (end + ahead).min(self.options.segment_bytes_max);
        let mut reserved = most;
        let mut result = file.allocate(u64::from(allocated), u64::from(most - allocated)).await;
        if most > end && result.as_ref().is_err_and(settee_io::Error::is_no_space) {
            reserved = end;
            result = file.allocate(u64::from(allocated), u64::from(end - allocated)).await;
        }
        result?;
        self.lock().segment.as_mut().expect("as above").allocated = reserved;
        Ok(())
    }

    /// Begins the next segment, once all of this one is persisted.
    async fn roll(&self, claim: Claim) -> Result<(), RoomError> {
        self.flush().await.map_err(RoomError::Stopped)?;
        let (header, first) = {
            let state = self.lock();
            let tail = self.tail(&state);
            let header = SegmentHeader {
                segment: tail.segment + 1,
                epoch: self.epoch,
                log_id: self.log_id,
                first_seq: state.accepted.seq + 1,
                previous_end: tail.end,
                previous_checksum: tail.checksum,
            };
            (header, tail.segment == 0)
        };
        let path = segment_path(&self.folder, header.segment);
        let engine = &self.env.engine;
        if first {
            folder::create(&**engine, &self.folder).await?;
        }
        let file = File::open(engine, &path, OpenMode::CreateNew).await?;
        let needed = (SEGMENT_HEADER_SIZE + claim.size) as u32 + claim.reserve;
        let allocated = needed.max(FIRST_ROOM_BYTES).min(self.options.segment_bytes_max);
        if let Err(error) = file.allocate(0, u64::from(allocated)).await {
            drop(file);
            folder::remove(&**engine, &path).await.map_err(RoomError::Failed)?;
            return Err(error.into());
        }
        // The name is durable before anything in the segment is promised.
        folder::sync(&**engine, &self.folder).await.map_err(RoomError::Failed)?;
        self.begin(header, Arc::new(file), allocated);
        Ok(())
    }

    /// Takes the new segment into use. Its header goes to the file with the first batch.
    fn begin(&self, header: SegmentHeader, file: Arc<File>, allocated: u32) {
        let mut files = (**self.files.load()).clone();
        files.insert(header.segment, file.clone());
        self.files.store(Arc::new(files));
        let (bytes, checksum) = header.encode();
        let mut state = self.lock();
        assert!(state.buffer.is_empty() && state.writing.is_none(), "all of the last segment is persisted");
        state.buffer.extend_from_slice(&bytes);
        state.buffer_offset = 0;
        state.accepted.offset = bytes.len() as u32;
        state.written.offset = 0;
        state.persisted.offset = 0;
        state.segment =
            Some(OpenSegment { number: header.segment, epoch: header.epoch, file, allocated, checksum });
        state.stats.file_bytes += bytes.len() as u64;
        self.written_position.store(position(header.segment, 0), Ordering::Release);
    }

    /// Where the log ends, once all of it is written.
    fn tail(&self, state: &crate::log::State) -> Tail {
        match &state.segment {
            Some(segment) => Tail {
                segment: segment.number,
                end: u64::from(state.written.offset),
                checksum: segment.checksum,
            },
            None => self.recovered,
        }
    }
}
