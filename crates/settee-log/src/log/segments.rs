//! The segments of a log, for a caller that truncates the log or takes over segments.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::{Either, select};
use settee_io::File;

use super::Log;
use crate::error::Stopped;
use crate::format::{SEGMENT_HEADER_SIZE, SegmentHeader};
use crate::read_view::Files;
use crate::segment_index::{SegmentIndex, SegmentIndexError};
use crate::segment_name::segment_path;
use crate::types::{SegmentInfo, Seq};

impl Log {
    /// Declares that records before `seq`, among those appended so far, are no longer needed, because the
    /// caller has their content elsewhere. Segments that hold only such records are removed some time after
    /// the next segment has begun, and are then not replayed; until their removal they may still be read and
    /// replayed.
    pub fn truncate_before(&self, seq: Seq) {
        self.shared.lock().truncate_before(seq.0);
    }

    /// The segments' numbers, oldest first. All but the last are closed, and are sealed in the background.
    pub fn segments(&self) -> Vec<u32> {
        self.shared.read_view.load().files.keys().copied().collect()
    }

    /// Metadata of the log's segments, oldest first.
    pub fn segment_infos(&self) -> Vec<SegmentInfo> {
        self.shared.lock().segment_infos()
    }

    /// All segments below this one are sealed, or can't be (see [`SegmentInfo::is_sealed`]), and are fully
    /// persisted: they can be transferred. A closed segment is sealed in a pause of the appends, or when too
    /// many wait for it.
    pub fn sealed_below(&self) -> u32 {
        *self.shared.sealed_below.borrow()
    }

    /// Returns [`Log::sealed_below`] as soon as it differs from `seen`. Dropping the future has no effect.
    ///
    /// # Errors
    /// The log stopped before that.
    pub async fn sealed_changed(&self, seen: u32) -> Result<u32, Stopped> {
        let mut sealed = self.shared.sealed_below.subscribe();
        let changed = pin!(sealed.wait_for(|below| *below != seen));
        match select(changed, pin!(self.shared.wait_until_stopped())).await {
            Either::Left((Ok(below), _)) => Ok(*below),
            _ => Err(self.shared.stop_reason()),
        }
    }

    /// Requests that the segments closed so far be sealed without waiting for a pause in the appends;
    /// [`Log::sealed_changed`] reports when they are. Returns the first segment that isn't among them: the
    /// open one, or the one before it if nothing has been appended since that was closed.
    pub fn seal_soon(&self) -> u32 {
        let mut state = self.shared.lock();
        let end = state.request_sealing();
        self.shared.start_sealing(&mut state);
        end
    }

    /// Transfers the segments below this one to the caller: they are no longer part of the log, which never
    /// removes or changes their files. The next segment's header records this.
    ///
    /// When it is opened again, the log treats them as truncated and removes them, unless
    /// [`crate::Start::first_segment`] excludes them. So the caller first stores durably that `first_segment`
    /// will be at least `below`.
    ///
    /// Their bytes count as live when the log sizes its next segments, until [`Log::set_transferred_bytes`]
    /// corrects that.
    ///
    /// # Panics
    /// If `below` is greater than [`Log::sealed_below`].
    pub fn transfer(&self, below: u32) {
        self.shared.transfer(below);
    }

    /// Sets how many live bytes of this log are in transferred segments; the log includes them when it sizes
    /// its next segments. 0 after opening.
    pub fn set_transferred_bytes(&self, bytes: u64) {
        self.shared.lock().segments.set_transferred_bytes(bytes);
    }

    /// The files of the log's current segments, for [`Log::read_in`]. Cheap.
    ///
    /// Segments that are transferred or truncated later can still be read through it, even after their files
    /// were removed, and after the log was closed.
    pub fn files(&self) -> Files {
        Files(self.shared.read_view.load().files.clone())
    }

    /// The file of one of the log's segments.
    pub fn segment_file(&self, segment: u32) -> Option<Arc<File>> {
        self.shared.read_view.load().files.get(&segment).cloned()
    }

    /// The segment index of a sealed segment.
    ///
    /// # Errors
    /// [`SegmentIndexError::Absent`] if it isn't sealed (yet); otherwise as [`SegmentIndex::open`].
    pub async fn segment_index(&self, segment: u32) -> Result<SegmentIndex, SegmentIndexError> {
        let path = || segment_path(&self.shared.directory, segment);
        let file = self.segment_file(segment);
        let file = file.ok_or_else(|| SegmentIndexError::Absent { path: path() })?;
        let epoch = match SegmentHeader::decode(&file.read_at(0, SEGMENT_HEADER_SIZE).await?) {
            Ok((header, _)) => header.epoch,
            Err(_) => return Err(SegmentIndexError::Absent { path: path() }),
        };
        SegmentIndex::open(file, segment, epoch).await
    }

    /// Switches direct I/O for reads and writes on or off; possible at any time, also with operations in
    /// flight. Segments on a file system that refuses direct I/O stay as they are.
    ///
    /// # Errors
    /// An I/O error; some segments may have changed. `Closed` after [`Log::close`].
    pub async fn set_direct(&self, direct: bool) -> Result<(), settee_io::Error> {
        // While this is held, no segment is added or removed.
        let reservation = self.shared.reservation.lock().await;
        if self.shared.is_closed() {
            return Err((*self.shared.stop_reason().source).clone());
        }
        let files = self.shared.read_view.load().files.clone();
        let preallocated = reservation.next.as_ref().map(|preallocated| preallocated.file.clone());
        for file in files.values().cloned().chain(preallocated) {
            file.set_direct(direct).await?;
        }
        self.shared.direct.store(direct, Ordering::Relaxed);
        self.shared.lock().set_direct(direct);
        Ok(())
    }
}
