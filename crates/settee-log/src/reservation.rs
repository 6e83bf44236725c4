//! Resources for appends: segments, disk space that is reserved before bytes are accepted, buffers.
//!
//! A full disk is detected here, as a refusal, and not in a write that was already accepted: nothing latches,
//! and appends succeed again once there is space. (On a file system whose reservations guarantee nothing, the
//! write fails instead: see `submit_loop.rs`.) A process without a free file descriptor for the next segment
//! is refused in the same way: a file that could not be opened has not been changed.
//!
//! A background job (`background`) prepares what will be needed soon: more space in the open segment, and
//! the next segment. If callers wait for syncs of small groups, the space is also filled with zeros: a sync
//! of bytes written over zeros that are on the medium changes no metadata, and takes about two thirds of the
//! time of a sync into merely reserved space (`settee bench io`). For bulk streams zero-filling costs more
//! than it saves.
//!
//! Invariants:
//! 1. Space reserved here ends at multiples of [`SYNC_ALIGNMENT`]: zeros never begin in a block that a sync
//!    may have covered.
//! 2. Zeros are written and synced through a separate file handle: the system reports a failed write-back
//!    once per handle, and a group's sync must see every one.
//! 3. A panic in a task that reserves space leaves the directory or the segment in an unknown state: it stops
//!    the log.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::{Either, select};
use settee_io::{File, OpenMode, TailBuffer, directory};

use crate::error::{AppendError, ReservationError, Stopped, is_sync_error};
use crate::format::{SEGMENT_HEADER_SIZE, SYNC_ALIGNMENT};
use crate::recovery::lock_directory;
use crate::segment_name::segment_path;
use crate::segment_set::Segment;
use crate::shared::{DiskReservation, Shared};
use crate::state::{
    AppendBlocked, FIRST_RESERVATION_BYTES, PreallocatedSegment, SpaceRequest, fitting_bytes_max,
    reserve_ahead_bytes, reserve_bytes,
};

mod background;

/// A segment holds at least this many batches like its first one, as long as that is no more than twice the
/// log's size. With less, each batch would fill a segment and cost a sync and a new file; and overwritten
/// records in the open segment can't be freed.
const SEGMENT_BATCH_COUNT_MIN: usize = 8;

/// The error of an append of `size` bytes for which no space was reserved.
pub(crate) fn append_error(error: ReservationError, size: usize) -> AppendError {
    match error {
        ReservationError::Refused(source) if source.is_no_descriptor() => {
            AppendError::NoDescriptor { size, source: Arc::new(source) }
        }
        ReservationError::Refused(source) => AppendError::NoSpace { size, source: Arc::new(source) },
        ReservationError::Stopped(stopped) => AppendError::Stopped(stopped),
        ReservationError::Failed(source) => AppendError::Stopped(Stopped { source: Arc::new(source) }),
    }
}

impl Shared {
    /// Provides what blocks a batch. Another append may use it first, so the caller checks again.
    pub(crate) async fn provide(
        self: &Arc<Self>,
        blocked: AppendBlocked,
        request: SpaceRequest,
    ) -> Result<Option<TailBuffer>, AppendError> {
        if let AppendBlocked::Writes(source) = blocked {
            return Err(AppendError::NoSpace { size: request.size, source });
        }
        if let AppendBlocked::Buffer(capacity) = blocked {
            let buffer = pin!(self.env.buffers.take(capacity));
            let (stopped, stalled) = (pin!(self.wait_until_stopped()), pin!(self.env.buffers.stalled()));
            return match select(buffer, select(stopped, stalled)).await {
                Either::Left((buffer, _)) => Ok(Some(buffer)),
                Either::Right((Either::Left(_), _)) => Err(self.stop_reason().into()),
                // The buffers may be held by writes that wait for disk space, of this log or another.
                Either::Right((Either::Right((source, _)), _)) => {
                    Err(AppendError::NoSpace { size: request.size, source })
                }
            };
        }
        // In a task of its own: if the caller's future were dropped midway, a half-created segment would
        // block the log permanently.
        let (done, made) = tokio::sync::oneshot::channel();
        let shared = self.clone();
        self.env.spawn("log reservation", async move {
            let _ = done.send(shared.reserve_space(request).await);
        });
        made.await.unwrap_or_else(|_| Err(self.stop_reason().into()))?;
        Ok(None)
    }

    async fn reserve_space(self: Arc<Self>, request: SpaceRequest) -> Result<(), AppendError> {
        let mut reservation = self.reservation.lock().await;
        let _stop = self.stop_on_panic();
        let blocked = {
            let mut state = self.lock();
            state.health()?;
            state.begin_reservation(request)
        };
        let made = match blocked {
            None | Some(AppendBlocked::Buffer(_)) => Ok(()),
            Some(AppendBlocked::Writes(source)) => Err(ReservationError::Refused((*source).clone())),
            Some(AppendBlocked::DiskReservation(end)) => match self.reserve(end).await {
                Err(ReservationError::Refused(_)) if reservation.next.is_some() => {
                    match self.remove_preallocated(&mut reservation).await {
                        Ok(()) => self.reserve(end).await,
                        Err(error) => Err(ReservationError::Failed(error)),
                    }
                }
                reserved => reserved,
            },
            Some(AppendBlocked::Segment) => match self.roll(request, &mut reservation).await {
                // The open segment may have space, if it was to end early: the caller checks again.
                Err(ReservationError::Refused(_)) if self.lock().segments.cancel_early_end() => Ok(()),
                rolled => rolled,
            },
        };
        self.lock().segments.set_rolling(false);
        if let Err(ReservationError::Failed(source)) = &made {
            // The directory or the segment is in an unknown state.
            self.stop(source.clone());
        }
        made.map_err(|error| append_error(error, request.size))
    }

    /// Begins a segment now, although the open one has space, and persists its header: the open one can then be
    /// sealed. Does nothing if the open one has no records. The new segment takes no preallocated file, which may
    /// have more space than a log needs whose writes pause.
    pub(crate) async fn begin_segment_early(self: &Arc<Self>) -> Result<(), ReservationError> {
        let mut reservation = self.reservation.lock().await;
        let _stop = self.stop_on_panic();
        {
            let mut state = self.lock();
            state.health().map_err(ReservationError::Stopped)?;
            if !state.begin_rolling() {
                return Ok(());
            }
        }
        let request = SpaceRequest { size: 0, may_use_reserve: false };
        let rolled = async {
            self.remove_preallocated(&mut reservation).await.map_err(ReservationError::Failed)?;
            self.roll(request, &mut reservation).await
        };
        let rolled = rolled.await;
        {
            let mut state = self.lock();
            state.segments.set_rolling(false);
            if rolled.is_ok() {
                state.accept_header();
                self.publish(&mut state);
            }
        }
        if let Err(ReservationError::Failed(error)) = &rolled {
            // The directory or the segment is in an unknown state.
            self.stop(error.clone());
        }
        rolled
    }

    /// Reserves disk space up to `end` in the open segment, and further ahead if the disk has it.
    async fn reserve(&self, end: u32) -> Result<(), ReservationError> {
        let (_, file, allocated, bytes_max) = self.open_segment();
        let end = end.next_multiple_of(SYNC_ALIGNMENT);
        let most = (end + reserve_ahead_bytes(allocated)).min(bytes_max).next_multiple_of(SYNC_ALIGNMENT);
        let mut reserved = most;
        let mut result = file.allocate(u64::from(allocated), u64::from(most - allocated)).await;
        if most > end && result.as_ref().is_err_and(settee_io::Error::is_no_space) {
            reserved = end;
            result = file.allocate(u64::from(allocated), u64::from(end - allocated)).await;
        }
        result?;
        self.lock().set_reserved(reserved);
        Ok(())
    }

    /// The open segment's number, file, reserved size and capacity.
    fn open_segment(&self) -> (u32, Arc<File>, u32, u32) {
        let state = self.lock();
        let segment = state.segments.open().expect("only the reservation's holder replaces the segment");
        (segment.number, segment.file.clone(), segment.allocated, segment.bytes_max)
    }

    /// Begins the next segment. The bytes of the previous one may still be in flight.
    async fn roll(
        self: &Arc<Self>,
        request: SpaceRequest,
        reservation: &mut DiskReservation,
    ) -> Result<(), ReservationError> {
        let unpersisted_bytes = self.lock().unpersisted_bytes();
        loop {
            let barrier = {
                let mut state = self.lock();
                state.health().map_err(ReservationError::Stopped)?;
                state.barrier_waiter()
            };
            let Some(persisted) = barrier else { break };
            self.submit_ready();
            match select(persisted, pin!(self.wait_for_no_space())).await {
                Either::Left((Ok(()), _)) => {}
                Either::Left((Err(_), _)) => return Err(ReservationError::Stopped(self.stop_reason())),
                Either::Right((source, _)) => return Err(ReservationError::Refused((*source).clone())),
            }
        }
        let (number, log_bytes) = {
            let state = self.lock();
            (state.segments.last_number() + 1, state.log_bytes())
        };
        let batches = (SEGMENT_BATCH_COUNT_MIN * request.size)
            .min(usize::try_from(2 * log_bytes).unwrap_or(usize::MAX))
            .min(self.options.segment_bytes_max as usize);
        let bytes_max = self.options.segment_bytes(log_bytes, unpersisted_bytes).max(batches as u32);
        let bytes_max = fitting_bytes_max(bytes_max, (SEGMENT_HEADER_SIZE + request.size) as u32);
        let needed = (SEGMENT_HEADER_SIZE + request.size) as u32 + reserve_bytes(bytes_max);
        if number == 1 {
            directory::create(&*self.env.engine, &self.directory).await?;
        }
        if reservation.lock.is_none() {
            reservation.lock = Some(lock_directory(&self.env, &self.directory).await?);
        }
        let preallocated = match reservation.next.take_if(|preallocated| preallocated.number == number) {
            Some(preallocated) => preallocated,
            None => self.create(number, needed.max(FIRST_RESERVATION_BYTES.min(bytes_max))).await?,
        };
        self.begin_segment(preallocated, bytes_max);
        self.submit_ready();
        Ok(())
    }

    /// Creates a segment's file with `allocated` bytes reserved. Its name is durable before a record in it is
    /// acknowledged.
    async fn create(&self, number: u32, allocated: u32) -> Result<PreallocatedSegment, ReservationError> {
        let path = segment_path(&self.directory, number);
        let engine = &self.env.engine;
        let allocated = allocated.next_multiple_of(SYNC_ALIGNMENT);
        // `create_reserved`: writers of a log that has segments wait for the next one.
        let file = match number {
            1 => File::open(engine, &path, OpenMode::CreateNew).await?,
            _ => File::create_reserved(engine, &path).await?,
        };
        let made = async {
            self.apply_direct_mode(&file).await?;
            file.allocate(0, u64::from(allocated)).await?;
            self.directory_syncs.sync(&**engine).await
        };
        match made.await {
            Err(error) if is_sync_error(&error) && !error.is_no_descriptor() => {
                return Err(ReservationError::Failed(error));
            }
            Err(error) => {
                // Otherwise it couldn't be created later.
                drop(file);
                directory::remove(&**engine, &path).await.map_err(ReservationError::Failed)?;
                return Err(error.into());
            }
            Ok(()) => {}
        }
        Ok(PreallocatedSegment { number, file: Arc::new(file), allocated, is_reused: false })
    }

    /// Sets direct I/O on the handle if it is configured.
    pub(crate) async fn apply_direct_mode(&self, file: &File) -> Result<(), settee_io::Error> {
        match self.direct.load(Ordering::Relaxed) {
            true => file.set_direct(true).await.map(drop),
            false => Ok(()),
        }
    }

    /// Makes the new segment the open one.
    fn begin_segment(&self, preallocated: PreallocatedSegment, bytes_max: u32) {
        let (number, file) = (preallocated.number, preallocated.file.clone());
        let mut state = self.lock();
        state.begin_segment(preallocated, bytes_max);
        let epoch = state.segments.open().map_or(0, |open| open.epoch);
        let segment =
            Arc::new(Segment::of_log(&self.env, number, epoch, self.timelines.current_index(), file));
        self.change_set(&mut state, |set| set.insert(segment));
    }

    /// Removes the preallocated segment, if there is one. If that fails, the next opening removes it; until
    /// then the segment can't be created.
    pub(crate) async fn remove_preallocated(
        &self,
        reservation: &mut DiskReservation,
    ) -> Result<(), settee_io::Error> {
        let Some(PreallocatedSegment { number, file, .. }) = reservation.next.take() else { return Ok(()) };
        drop(file);
        directory::remove(&*self.env.engine, &segment_path(&self.directory, number)).await?;
        self.lock().background.set_preallocated(0);
        Ok(())
    }
}
