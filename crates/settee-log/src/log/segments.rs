//! The segments of a log, and the list of files.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::{Either, select};
use tokio::sync::oneshot;

use super::Log;
use crate::edit::Edit;
use crate::error::{AppendError, EditError, ReservationError, Stopped};
use crate::format::{SEGMENT_HEADER_SIZE, SegmentHeader};
use crate::manifest::Manifest;
use crate::reservation::append_error;
use crate::segment_index::{SegmentIndex, SegmentIndexError};
use crate::segment_name::segment_path;
use crate::segment_set::SegmentSet;
use crate::timeline::Timelines;
use crate::types::{SegmentInfo, Seq};

impl Log {
    /// Declares that records before `seq`, among those appended so far, are no longer needed, because the
    /// caller has their content elsewhere. Segments that hold only such records are removed some time after
    /// the next segment has begun, and are then not replayed; until their removal they may still be read and
    /// replayed. Not for a log with listed segments.
    pub fn truncate_before(&self, seq: Seq) {
        self.shared.lock().truncate_before(seq.0);
    }

    /// The unlisted segments' numbers, oldest first. All but the last are closed, and are sealed in the background.
    pub fn segments(&self) -> Vec<u32> {
        self.shared.lock().segment_infos().iter().map(|info| info.number).collect()
    }

    /// Metadata of the unlisted segments, oldest first.
    pub fn segment_infos(&self) -> Vec<SegmentInfo> {
        self.shared.lock().segment_infos()
    }

    /// All segments below this one are sealed, or can't be (see [`SegmentInfo::is_sealed`]), and are fully
    /// persisted: they can be listed. A closed segment is sealed in a pause of the appends, or when too
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

    /// Has the next batch begin a segment, so that the records before it can be listed and rewritten. The segment
    /// ends with the last batch accepted before the call.
    pub fn end_segment(&self) {
        self.shared.lock().end_segment();
    }

    /// Begins a segment now and persists its header, so that the segment before it can be sealed although
    /// nothing is appended. Does nothing if no batch was appended since the last segment began. For a pause in
    /// the appends: [`Log::end_segment`] costs no write.
    ///
    /// # Errors
    /// The disk had no space, there was no file descriptor, or the log has stopped; otherwise the log is
    /// unchanged.
    pub async fn begin_segment(&self) -> Result<(), AppendError> {
        // In a task of its own: if the future were dropped midway, the log would take no batches.
        let (done, begun) = oneshot::channel();
        let shared = self.shared.clone();
        self.shared.env.spawn("log segment", async move {
            let _ = done.send(shared.begin_segment_early().await);
        });
        let begun = begun.await.unwrap_or_else(|_| Err(ReservationError::Stopped(self.shared.stop_reason())));
        begun.map_err(|error| append_error(error, SEGMENT_HEADER_SIZE))?;
        Ok(self.shared.flush().await?)
    }

    /// Changes the list of files: writes a manifest and then makes the next set of segments. Durable once it
    /// returns. Returns false if there was nothing to change. While the sync of the directory lacks a file
    /// descriptor, it is repeated as long as `keep_trying` says so.
    ///
    /// Await it in a task of its own: if its future is dropped midway, the present set stays, and until the next
    /// edit it is unknown which manifest is durable.
    ///
    /// # Errors
    /// See [`EditError`]. If the failure came after the manifest was replaced, [`Log::edit_error`] returns it
    /// from then on.
    pub async fn edit(
        &self,
        edit: Edit<'_>,
        keep_trying: impl Fn(&settee_io::Error) -> bool,
    ) -> Result<bool, EditError> {
        self.shared.edit(edit, keep_trying).await
    }

    /// Why the list of files can't be changed any more: it is unknown which manifest is durable, so no file
    /// that either names may be removed before the log is opened again.
    pub fn edit_error(&self) -> Option<EditError> {
        self.shared.edit_error.get().cloned()
    }

    /// Checks that [`Log::edit`] is possible.
    ///
    /// # Errors
    /// Why it isn't any more.
    pub fn check_editable(&self) -> Result<(), EditError> {
        self.shared.check_editable()
    }

    /// A manifest for a copy of the listed files of a set, with the user's lines `user`.
    pub fn manifest_of(&self, set: &SegmentSet, user: String) -> Manifest {
        let (next_file, listed_to) = (self.shared.file_numbers.peek(), set.listed_to());
        let timelines = self.shared.timelines.clone();
        Manifest { number: 1, next_file, listed_to, timelines, segments: set.names(), user }
    }

    /// The log's timelines. Records are appended to the last one.
    pub fn timelines(&self) -> &Timelines {
        &self.shared.timelines
    }

    /// Sets how many live bytes of this log are in listed segments; the log includes them when it sizes its
    /// next segments. 0 after opening.
    pub fn set_listed_live_bytes(&self, bytes: u64) {
        self.shared.lock().segments.set_listed_live_bytes(bytes);
    }

    /// The present files of the log. A caller that keeps the set can read all of them ([`Log::read_in`]), also after
    /// they were removed, and after the log was closed.
    pub fn segment_set(&self) -> Arc<SegmentSet> {
        self.shared.read_view.load().set.clone()
    }

    /// The segment index of a sealed segment.
    ///
    /// # Errors
    /// [`SegmentIndexError::Absent`] if it isn't sealed (yet); otherwise as [`SegmentIndex::open`].
    pub async fn segment_index(&self, segment: u32) -> Result<SegmentIndex, SegmentIndexError> {
        let path = || segment_path(&self.shared.directory, segment);
        let set = self.segment_set();
        let found = set.get(segment).filter(|found| found.name.generation == 0);
        let file = found.ok_or_else(|| SegmentIndexError::Absent { path: path() })?.file().await?;
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
        // While this is held, no segment begins.
        let reservation = self.shared.reservation.lock().await;
        if self.shared.is_closed() {
            return Err((*self.shared.stop_reason().source).clone());
        }
        let set = self.segment_set();
        for segment in set.iter() {
            segment.stored_file().set_direct(direct).await?;
        }
        if let Some(preallocated) = &reservation.next {
            preallocated.file.set_direct(direct).await?;
        }
        self.shared.direct.store(direct, Ordering::Relaxed);
        self.shared.lock().set_direct(direct);
        Ok(())
    }
}
