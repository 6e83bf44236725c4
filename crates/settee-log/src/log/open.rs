//! Opening a log.

use std::path::Path;

use settee_io::Env;

use super::Log;
use crate::error::OpenError;
use crate::format::RecordRef;
use crate::options::LogOptions;
use crate::recovery::{self, LogLock, Recovery, Replay, Start};
use crate::segment_index::EntryRef;
use crate::shared::Shared;
use crate::state::{Continuation, LogState};
use crate::types::Location;
use crate::watermark::{Position, Watermark};

impl Log {
    /// Opens the log in `directory`, which the first append creates, and passes each record of each whole
    /// batch to `replay`, in order. The replayed records are persisted once this returns. If no torn tail was
    /// cut, the log continues in the last segment.
    ///
    /// Not for a log that has transferred segments ([`Log::transfer`]): it would treat their files as
    /// truncated and remove them. Use [`Log::open_after`] for that.
    ///
    /// # Errors
    /// Damage below what had been persisted, a missing segment, another format, or an I/O error. Files are
    /// changed only after all of them were found sound; then a torn tail is cut.
    ///
    /// # Panics
    /// If [`LogOptions::check`] rejects the options.
    pub async fn open(
        env: &Env,
        directory: &Path,
        options: LogOptions,
        mut replay: impl FnMut(Location, RecordRef<'_>) + Send,
    ) -> Result<(Log, Recovery), OpenError> {
        let (start, locked) = (Start::default(), recovery::lock(env, directory, 0).await?);
        Log::open_from(env, directory, options, start, locked, Replay::Records(&mut replay)).await
    }

    /// As [`Log::open`], for a caller that has the records up to `start.after` elsewhere: the later ones are
    /// passed to `replay`, in order. Sealed segments are replayed from their segment index; frames are read
    /// only of the last segment, and of segments whose index is missing, damaged, or inconsistent with the
    /// headers.
    ///
    /// Segments below `start.first_segment` don't belong to the log: they aren't read, locked or changed, and
    /// need not exist. Segments between `start.first_segment` and the oldest one that the last header names
    /// were truncated, and are removed. A caller that takes over segments therefore stores a new
    /// `first_segment` durably before it calls [`Log::transfer`].
    ///
    /// # Errors
    /// As [`Log::open`]. [`OpenError::Behind`] if the log ends before `start.after`; [`OpenError::Missing`]
    /// if there is no segment although `start` implies one.
    ///
    /// # Panics
    /// As [`Log::open`].
    pub async fn open_after(
        env: &Env,
        directory: &Path,
        options: LogOptions,
        start: Start,
        replay: impl FnMut(EntryRef<'_>) + Send,
    ) -> Result<(Log, Recovery), OpenError> {
        let locked = Log::lock(env, directory, start.first_segment).await?;
        Log::open_locked(env, directory, options, start, locked, replay).await
    }

    /// Prevents other logs from opening the directory until the result is dropped or passed to
    /// [`Log::open_locked`]. Changes nothing. For a caller that, before opening the log, reads related files
    /// that the log's current owner might still change. Segments below `first_segment` are ignored. A log
    /// without segments can't be locked, but has nothing to lose.
    ///
    /// # Errors
    /// [`OpenError::InUse`], or an I/O error.
    pub async fn lock(env: &Env, directory: &Path, first_segment: u32) -> Result<LogLock, OpenError> {
        recovery::lock(env, directory, first_segment).await
    }

    /// As [`Log::open_after`], for a log that was locked.
    ///
    /// # Errors
    /// As [`Log::open_after`].
    ///
    /// # Panics
    /// As [`Log::open`], and if the lock's first segment isn't `start.first_segment`.
    pub async fn open_locked(
        env: &Env,
        directory: &Path,
        options: LogOptions,
        start: Start,
        locked: LogLock,
        mut replay: impl FnMut(EntryRef<'_>) + Send,
    ) -> Result<(Log, Recovery), OpenError> {
        let replay = Replay::Entries(&mut replay);
        let opened = Log::open_from(env, directory, options, start, locked, replay).await?;
        // A caller that takes over segments waits until they are sealed.
        let shared = &opened.0.shared;
        shared.start_sealing(&mut shared.lock());
        Ok(opened)
    }

    async fn open_from(
        env: &Env,
        directory: &Path,
        options: LogOptions,
        start: Start,
        locked: LogLock,
        replay: Replay<'_>,
    ) -> Result<(Log, Recovery), OpenError> {
        let checked = options.check(env.buffers.stats().bytes_max);
        assert!(checked.is_ok(), "{checked:?}");
        let directory_syncs = locked.directory_syncs().clone();
        let found = recovery::recover(env, directory, &options, start, locked, replay).await?;
        if options.direct {
            for file in found.files.values().filter_map(|slot| slot.get()) {
                file.set_direct(true).await?;
            }
        }
        let end =
            Watermark { seq: found.last_seq, at: Position::new(found.tail.segment, found.tail.end as u32) };
        let is_marked = found.is_marked();
        let mut open = found.open;
        if let Some(segment) = &mut open {
            segment.bytes_max = segment.bytes_max.max(options.segment_bytes(found.file_bytes, 0));
        }
        let continuation = Continuation {
            log_id: found.log_id.unwrap_or_else(|| env.random_bytes()),
            epoch: found.epoch + 1,
            tail: found.tail,
            is_marked,
        };
        let state = LogState::new(options, env.buffers.clone(), end, continuation, open, found.segments);
        let shared = Shared::new(env, directory, directory_syncs, options, found.files, state);
        Ok((Log { shared }, found.summary))
    }
}
