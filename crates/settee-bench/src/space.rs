//! Room on the disk: known before anything is written.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::error::{Error, Result};

/// What a workload may take on the disk for each byte of JSON it writes: a server that isn't
/// Settee may need this much before it compacts.
const BYTES_ON_DISK_FOR_EACH: u64 = 2;

/// What is left alone on top of it, in bytes.
const SPARE_BYTES: u64 = 256 << 20;

/// The magic number of tmpfs (statfs(2)).
const TMPFS_MAGIC: u64 = 0x0102_1994;

/// Refuses where `directory`'s file system hasn't the room for `document_bytes` of documents.
///
/// # Errors
/// [`Error::Space`] with both figures, [`Error::File`] where the system doesn't tell.
pub fn check(directory: &Path, document_bytes: u64) -> Result<()> {
    let status = rustix::fs::statvfs(directory).map_err(|error| Error::file(directory, error.into()))?;
    let free = status.f_bavail.saturating_mul(status.f_frsize);
    let needed = document_bytes.saturating_mul(BYTES_ON_DISK_FOR_EACH).saturating_add(SPARE_BYTES);
    if free < needed {
        return Err(Error::Space {
            directory: directory.to_owned(),
            needed_mb: needed >> 20,
            free_mb: free >> 20,
        });
    }
    Ok(())
}

/// Whether `directory` lies in memory, where a sync costs nothing and proves nothing.
pub fn is_in_memory(directory: &Path) -> bool {
    rustix::fs::statfs(directory).is_ok_and(|status| status.f_type as u64 == TMPFS_MAGIC)
}

/// A directory of the measurement's own that goes with the value.
#[derive(Debug)]
pub struct Directory {
    inner: TempDir,
}

impl Directory {
    /// Makes one in `parent`, which is made too where it doesn't exist, or where temporary files go.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn new(parent: Option<&Path>) -> Result<Directory> {
        let parent = parent.map_or_else(std::env::temp_dir, PathBuf::from);
        std::fs::create_dir_all(&parent).map_err(|error| Error::file(&parent, error))?;
        let made = tempfile::Builder::new().prefix("settee-bench-").tempdir_in(&parent);
        Ok(Directory { inner: made.map_err(|error| Error::file(&parent, error))? })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.inner.path()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_the_disk_holds_is_refused_with_both_figures() {
        let directory = Directory::new(None).unwrap();
        check(directory.path(), 0).unwrap_or_else(|error| panic!("an empty workload fits: {error}"));
        let error = check(directory.path(), 1 << 60).unwrap_err();
        assert!(matches!(error, Error::Space { needed_mb, free_mb, .. } if needed_mb > free_mb), "{error}");
    }

    #[test]
    fn a_directory_goes_with_its_value() {
        let directory = Directory::new(None).unwrap();
        let path = directory.path().to_owned();
        assert!(path.is_dir());
        drop(directory);
        assert!(!path.exists());
    }
}
