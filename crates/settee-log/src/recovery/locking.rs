//! The lock of a log's directory: the locks of its segments' files.

use std::path::Path;
use std::sync::Arc;

use settee_io::Env;
use settee_io::directory::{self, DirectorySyncs};

use super::segment::{Segment, TORN_SEGMENT_COUNT_MAX};
use crate::error::OpenError;
use crate::segment_name::segment_number;

/// The segments of a log, locked against other logs: see [`crate::Log::lock`].
pub struct LogLock {
    pub(super) first: u32,
    pub(super) segments: Vec<Segment>,
    syncs: Arc<DirectorySyncs>,
}

impl LogLock {
    /// The syncs of the log's directory, for other components that change the directory.
    pub fn directory_syncs(&self) -> &Arc<DirectorySyncs> {
        &self.syncs
    }
}

/// Opens the segments from number `first` on, and locks them against other logs.
pub(crate) async fn lock(env: &Env, directory: &Path, first: u32) -> Result<LogLock, OpenError> {
    let syncs = Arc::new(DirectorySyncs::new(directory));
    Ok(LogLock { first, segments: open_segments(env, directory, first).await?, syncs })
}

async fn open_segments(env: &Env, directory: &Path, first: u32) -> Result<Vec<Segment>, OpenError> {
    let mut segments = Vec::new();
    for number in segments_from(env, directory, first).await? {
        segments.push(Segment::open(env, directory, number).await?);
    }
    // Whatever a crash has left after the last segment, another log would write to one of these. The oldest
    // is locked first: a log that owns the directory has held that lock for long, and while we wait for it we
    // don't prevent that log from locking its next segment.
    for segment in &segments[segments.len().saturating_sub(TORN_SEGMENT_COUNT_MAX + 1)..] {
        segment.lock(env).await?;
    }
    // Another log may have truncated a locked segment in the meantime, so that its lock protects nothing.
    let numbers = segments_from(env, directory, first).await?;
    if let Some(last) = segments.last()
        && !numbers.into_iter().eq(segments.iter().map(|segment| segment.number))
    {
        return Err(OpenError::InUse { path: last.path.clone() });
    }
    Ok(segments)
}

/// The numbers of the segments in `directory` that are at least `first`, in order.
async fn segments_from(env: &Env, directory: &Path, first: u32) -> Result<Vec<u32>, OpenError> {
    let entries = directory::list(&*env.engine, directory).await?;
    let numbers = entries.iter().filter_map(|entry| segment_number(&entry.name));
    Ok(numbers.filter(|number| *number >= first).collect())
}
