//! The lock of a log's directory: a file of its own, which the log holds locked (flock(2)) while it is open.
//!
//! A reader of a segment of a log that was closed therefore doesn't keep the directory locked. The file
//! is empty and is never removed: if it were, two logs could each lock a file of that name.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use settee_io::directory::DirectorySyncs;
use settee_io::{Env, File, OpenMode, directory};

use crate::error::OpenError;
use crate::manifest::{FileNumbers, Manifest, manifest_path};
use crate::segment_set::{ChunkCache, Segment, SegmentSet};

/// Name of the lock file.
const LOCK_FILE: &str = "lock";

/// Number of attempts to take the lock: a log that was just closed may have reported the end of an operation
/// before it released the lock.
const LOCK_TRIES_MAX: usize = 25;
/// Delay between these attempts.
const LOCK_PAUSE: Duration = Duration::from_millis(2);

/// A log's directory, locked against other logs: see [`crate::Log::lock`].
pub struct LogLock {
    /// `None` while there is no directory.
    pub(crate) file: Option<File>,
    pub(crate) manifest: Option<Manifest>,
    pub(crate) file_numbers: Arc<FileNumbers>,
    syncs: Arc<DirectorySyncs>,
}

impl LogLock {
    /// The log's manifest, if it has one. It can't change while the directory is locked.
    pub fn manifest(&self) -> Option<&Manifest> {
        self.manifest.as_ref()
    }

    /// The listed segments, whose files are opened when they are needed, in direct mode if `direct`. Their
    /// chunks are kept in the cache, if there is one.
    pub fn segment_set(
        &self,
        env: &Env,
        directory: &Path,
        direct: bool,
        chunks: Option<&Arc<ChunkCache>>,
    ) -> SegmentSet {
        let mut set = SegmentSet::default();
        let Some(manifest) = &self.manifest else { return set };
        for name in &manifest.segments {
            set.insert(Arc::new(Segment::new(env, directory, *name, direct).with_chunks(chunks)));
        }
        set.set_listed_to(manifest.listed_to);
        set
    }

    /// The numbers of the directory's new files, for other components that create files there.
    pub fn file_numbers(&self) -> &Arc<FileNumbers> {
        &self.file_numbers
    }

    /// The syncs of the log's directory, for other components that change the directory.
    pub fn directory_syncs(&self) -> &Arc<DirectorySyncs> {
        &self.syncs
    }
}

/// Locks a log's directory, if it exists, and then reads its manifest: until then another process may have
/// changed it.
pub(crate) async fn lock(env: &Env, directory: &Path) -> Result<LogLock, OpenError> {
    let file = match lock_directory(env, directory).await {
        Err(error) if error.is_not_found() => None,
        Err(error) if error.io_kind() == Some(std::io::ErrorKind::WouldBlock) => {
            return Err(OpenError::InUse { path: directory.join(LOCK_FILE) });
        }
        locked => Some(locked?),
    };
    let manifest = Manifest::read(env, directory).await?;
    let entries = directory::list(&*env.engine, directory).await?;
    match &manifest {
        Some(manifest) => manifest.check_all_there(directory, &entries)?,
        // A log writes its first manifest before it rewrites anything.
        None if entries.iter().any(|entry| entry.name.ends_with(".seg")) => {
            return Err(OpenError::Missing { path: manifest_path(directory) });
        }
        None => {}
    }
    let names = entries.iter().map(|entry| &*entry.name);
    let file_numbers = Arc::new(FileNumbers::after(manifest.as_ref(), names));
    Ok(LogLock { file, manifest, file_numbers, syncs: Arc::new(DirectorySyncs::new(directory)) })
}

/// Takes the lock of a directory that exists.
///
/// # Errors
/// An I/O error of kind `WouldBlock` if another log holds it.
pub(crate) async fn lock_directory(env: &Env, directory: &Path) -> Result<File, settee_io::Error> {
    let file = File::open(&env.engine, &directory.join(LOCK_FILE), OpenMode::Create).await?;
    for _ in 1..LOCK_TRIES_MAX {
        match file.lock().await {
            Err(error) if error.io_kind() == Some(std::io::ErrorKind::WouldBlock) => {
                env.clock.sleep(LOCK_PAUSE).await;
            }
            locked => return locked.map(|()| file),
        }
    }
    file.lock().await.map(|()| file)
}
