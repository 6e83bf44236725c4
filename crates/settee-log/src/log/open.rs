//! Opening a log.

use std::path::Path;
use std::sync::Arc;

use settee_io::Env;

use super::Log;
use crate::error::OpenError;
use crate::format::RecordRef;
use crate::options::LogOptions;
use crate::recovery::{self, LogLock, Recovery, Replay};
use crate::segment_index::EntryRef;
use crate::segment_set::{ChunkCache, Segment, SegmentSet};
use crate::shared::Shared;
use crate::state::{Continuation, LogState};
use crate::timeline::Timelines;
use crate::types::{Location, Seq, TimelineId};
use crate::watermark::{Position, Watermark};

impl Log {
    /// Opens the log in `directory`, which the first append creates, and passes each record of each whole
    /// batch after the listed segments to `replay`, in order. The replayed records are persisted once this
    /// returns. If no torn tail was cut, the log continues in the last segment.
    ///
    /// # Errors
    /// Damage below what had been persisted, a missing segment, another format, or an I/O error. Files are
    /// changed only after all of them were found sound; then a torn tail is cut, and files that the manifest
    /// doesn't name are removed. If a set of an earlier log in this directory is still in use, its files that
    /// were not opened yet may be among them; and the directory must not be removed and created again meanwhile,
    /// since its files are unlinked by name.
    ///
    /// # Panics
    /// If [`LogOptions::check`] rejects the options.
    pub async fn open(
        env: &Env,
        directory: &Path,
        options: LogOptions,
        mut replay: impl FnMut(Location, RecordRef<'_>) + Send,
    ) -> Result<(Log, Recovery), OpenError> {
        let locked = Log::lock(env, directory).await?;
        let set = locked.segment_set(env, directory, options.direct, None);
        let replay = Replay::Records(&mut replay);
        Log::open_from(env, directory, options, Seq(0), (locked, set), None, replay).await
    }

    /// As [`Log::open`], for a caller that has the records up to `after` elsewhere: the later ones are passed
    /// to `replay`, in order. Sealed segments are replayed from their segment index; frames are read only of
    /// the last segment, and of segments whose index is missing, damaged, or inconsistent with the headers.
    ///
    /// # Errors
    /// As [`Log::open`]. [`OpenError::Behind`] if the log ends before `after`; [`OpenError::Missing`] if there
    /// is no segment although `after` or the manifest implies one.
    ///
    /// # Panics
    /// As [`Log::open`].
    pub async fn open_after(
        env: &Env,
        directory: &Path,
        options: LogOptions,
        after: Seq,
        replay: impl FnMut(EntryRef<'_>) + Send,
    ) -> Result<(Log, Recovery), OpenError> {
        let locked = Log::lock(env, directory).await?;
        let set = locked.segment_set(env, directory, options.direct, None);
        Log::open_locked(env, directory, options, after, (locked, set), None, replay).await
    }

    /// Prevents other logs from opening the directory until the result is dropped or passed to
    /// [`Log::open_locked`], and reads the manifest. For a caller that, before opening the log, reads related
    /// files that the log's current owner might still change. Creates the directory's lock file; if there is
    /// no directory, there is nothing to lock and nothing to lose.
    ///
    /// # Errors
    /// [`OpenError::InUse`]; [`OpenError::Missing`] if the manifest is missing, or a segment that it names;
    /// [`OpenError::Damaged`]; or an I/O error.
    pub async fn lock(env: &Env, directory: &Path) -> Result<LogLock, OpenError> {
        recovery::lock(env, directory).await
    }

    /// As [`Log::open_after`], for a log that was locked. `set` is what [`LogLock::segment_set`] returned,
    /// and `chunks` its cache.
    ///
    /// # Errors
    /// As [`Log::open_after`].
    ///
    /// # Panics
    /// As [`Log::open`].
    pub async fn open_locked(
        env: &Env,
        directory: &Path,
        options: LogOptions,
        after: Seq,
        (locked, set): (LogLock, SegmentSet),
        chunks: Option<Arc<ChunkCache>>,
        mut replay: impl FnMut(EntryRef<'_>) + Send,
    ) -> Result<(Log, Recovery), OpenError> {
        let replay = Replay::Entries(&mut replay);
        let opened = Log::open_from(env, directory, options, after, (locked, set), chunks, replay).await?;
        // A caller that lists segments waits until they are sealed.
        let shared = &opened.0.shared;
        shared.start_sealing(&mut shared.lock());
        Ok(opened)
    }

    async fn open_from(
        env: &Env,
        directory: &Path,
        options: LogOptions,
        after: Seq,
        (locked, mut set): (LogLock, SegmentSet),
        chunks: Option<Arc<ChunkCache>>,
        replay: Replay<'_>,
    ) -> Result<(Log, Recovery), OpenError> {
        let checked = options.check(env.buffers.stats().bytes_max);
        assert!(checked.is_ok(), "{checked:?}");
        let found = recovery::recover(env, directory, &options, &locked, after, replay).await?;
        let is_marked = found.is_marked();
        for (number, file) in found.files {
            if options.direct {
                file.set_direct(true).await?;
            }
            let (epoch, timeline) =
                found.segments.get(&number).map_or((0, 0), |meta| (meta.epoch, meta.timeline));
            set.insert(Arc::new(Segment::of_log(env, number, epoch, timeline, file)));
        }
        let end =
            Watermark { seq: found.last_seq, at: Position::new(found.tail.segment, found.tail.end as u32) };
        let mut open = found.open;
        if let Some(segment) = &mut open {
            segment.bytes_max = segment.bytes_max.max(options.segment_bytes(found.file_bytes, 0));
        }
        let (timelines, timeline) = match found.timelines.current() {
            Some(current) => (found.timelines, current.id),
            None => {
                let id = TimelineId(env.random_bytes());
                (Timelines::first(id), id)
            }
        };
        let continuation = Continuation {
            timeline,
            timeline_index: timelines.current_index(),
            epoch: found.epoch + 1,
            tail: found.tail,
            is_marked,
        };
        let (pool, oldest) = (env.buffers.clone(), set.listed_to() + 1);
        let state = LogState::new(options, pool, end, continuation, open, found.segments, oldest);
        let shared = Shared::new(env, directory, locked, options, chunks, (set, timelines), state);
        Ok((Log { shared }, found.summary))
    }
}
