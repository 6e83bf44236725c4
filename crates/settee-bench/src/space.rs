//! Disk space, checked before anything is written.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::error::{Error, Result};

/// Bytes on disk that a workload may take per byte of JSON. A server other than Settee may need this much
/// before it compacts.
const DISK_BYTES_PER_BYTE: u64 = 2;

/// Bytes on disk that stay free besides.
const SPARE_BYTES: u64 = 256 << 20;

/// The magic number of tmpfs (statfs(2)).
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// Checks that `directory`'s file system has space for `document_bytes` of documents.
///
/// # Errors
/// [`Error::Space`] with both figures if it hasn't, [`Error::File`] if the system doesn't report it.
pub fn check(directory: &Path, document_bytes: u64) -> Result<()> {
    let status = rustix::fs::statvfs(directory).map_err(|error| Error::file(directory, error.into()))?;
    let free = status.f_bavail.saturating_mul(status.f_frsize);
    let needed = document_bytes.saturating_mul(DISK_BYTES_PER_BYTE).saturating_add(SPARE_BYTES);
    if free < needed {
        return Err(Error::Space {
            directory: directory.to_owned(),
            needed_mb: needed >> 20,
            free_mb: free >> 20,
        });
    }
    Ok(())
}

/// Whether `directory` is on a tmpfs, where a sync costs nothing and persists nothing.
pub fn is_in_memory(directory: &Path) -> bool {
    rustix::fs::statfs(directory).is_ok_and(|status| status.f_type as u64 == TMPFS_MAGIC)
}

/// Syncs the file system of `directory` (syncfs(2)), so that earlier writes and removals don't affect the next
/// measurement.
///
/// # Errors
/// [`Error::File`].
pub(crate) fn sync_file_system(directory: &Path) -> Result<()> {
    let synced = std::fs::File::open(directory).and_then(|file| Ok(rustix::fs::syncfs(file)?));
    synced.map_err(|error| Error::file(directory, error))
}

/// A temporary directory, removed on drop.
#[derive(Debug)]
pub struct Directory {
    inner: TempDir,
}

impl Directory {
    /// Creates a directory in `parent`, which is created if it doesn't exist; without `parent`, in the
    /// system's directory for temporary files.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn new(parent: Option<&Path>) -> Result<Directory> {
        let parent = parent.map_or_else(std::env::temp_dir, PathBuf::from);
        std::fs::create_dir_all(&parent).map_err(|error| Error::file(&parent, error))?;
        let made = tempfile::Builder::new().prefix("settee-bench-").tempdir_in(&parent);
        Ok(Directory { inner: made.map_err(|error| Error::file(&parent, error))? })
    }

    /// The directory's path.
    pub fn path(&self) -> &Path {
        self.inner.path()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_the_free_space_is_refused_with_both_figures() {
        let directory = Directory::new(None).unwrap();
        check(directory.path(), 0).unwrap_or_else(|error| panic!("an empty workload fits: {error}"));
        let error = check(directory.path(), 1 << 60).unwrap_err();
        assert!(matches!(error, Error::Space { needed_mb, free_mb, .. } if needed_mb > free_mb), "{error}");
    }

    #[test]
    fn a_directory_is_removed_on_drop() {
        let directory = Directory::new(None).unwrap();
        let path = directory.path().to_owned();
        assert!(path.is_dir());
        drop(directory);
        assert!(!path.exists());
    }
}
