//! Starting a new timeline in a copy of a log.

use std::path::Path;

use settee_io::Env;

use crate::error::{EditError, StartTimelineError};
use crate::format::SYNC_ALIGNMENT;
use crate::manifest::Manifest;
use crate::options::LogOptions;
use crate::recovery::{self, Replay};
use crate::timeline::Timeline;
use crate::types::{Seq, TimelineId};

/// Starts a new timeline in a copy of a log, after the copy's last record, and returns it; `None` if the copy is
/// empty. Opening the log from then on begins a new segment with the first append. For a copy that its origin
/// doesn't know of, before it is used; everything in it must be on stable storage. Durable once it returns.
///
/// # Errors
/// As [`crate::Log::open`] and [`crate::Log::edit`]. If the failure came from replacing the manifest, the new
/// timeline may have started.
pub async fn start_timeline(env: &Env, directory: &Path) -> Result<Option<Timeline>, StartTimelineError> {
    let locked = recovery::lock(env, directory).await?;
    let options = LogOptions::DEFAULT;
    let found = recovery::recover(env, directory, &options, &locked, Seq(0), Replay::Nothing).await?;
    if found.timelines.count() == 0 {
        return Ok(None);
    }
    if let Some(last) = found.files.get(&found.tail.segment).filter(|_| found.open.is_none()) {
        // What is left of a torn tail in the last block: nothing may follow where the timeline ends.
        let end = found.tail.end;
        let rest = (end.next_multiple_of(SYNC_ALIGNMENT.into()) - end) as usize;
        last.write_and_sync_at(end, vec![0; rest].into()).await.map_err(EditError::from)?;
    }
    let timelines = found.timelines.branch(TimelineId(env.random_bytes()), Seq(found.last_seq));
    let started = timelines.current();
    let next_file = locked.file_numbers().peek();
    let before = locked.manifest().cloned().unwrap_or_default();
    let manifest = Manifest { number: before.number + 1, next_file, timelines, ..before };
    manifest.write(env, directory).await?;
    Ok(started)
}
