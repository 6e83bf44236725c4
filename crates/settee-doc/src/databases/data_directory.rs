//! A data directory: the names of what it holds, and its lock.
//!
//! The catalogue and each database have a directory of their own. One process at a time uses a data
//! directory: the one that holds the lock of its lock file.

use std::path::{Path, PathBuf};

use settee_io::{Env, File, OpenMode};

use crate::{Error, ErrorKind, Result};

/// Directory of the catalogue.
pub(super) const CATALOGUE_DIRECTORY: &str = "catalogue";
/// Directory of the databases' directories.
pub(super) const DATABASES_DIRECTORY: &str = "databases";
/// File that the process which uses the data directory has locked.
pub(super) const LOCK_FILE: &str = "lock";

/// The directory of the database with this number.
pub(super) fn directory_of(data: &Path, number: u64) -> PathBuf {
    data.join(DATABASES_DIRECTORY).join(format!("{number:010}"))
}

/// Takes a data directory's lock.
pub(super) async fn lock(env: &Env, directory: &Path) -> Result<File> {
    let lock = File::open(&env.engine, &directory.join(LOCK_FILE), OpenMode::Create).await?;
    take(lock, directory).await
}

/// Takes the lock of a directory that is writable or has a lock file.
pub(super) async fn lock_if_writable(env: &Env, directory: &Path) -> Result<Option<File>> {
    let cannot_write = |error: &settee_io::Error| {
        let kinds = [std::io::ErrorKind::ReadOnlyFilesystem, std::io::ErrorKind::PermissionDenied];
        error.io_kind().is_some_and(|kind| kinds.contains(&kind))
    };
    let path = directory.join(LOCK_FILE);
    let file = match File::open(&env.engine, &path, OpenMode::Create).await {
        Err(error) if cannot_write(&error) => match File::open(&env.engine, &path, OpenMode::Read).await {
            Err(error) if cannot_write(&error) || error.is_not_found() => return Ok(None),
            opened => opened?,
        },
        opened => opened?,
    };
    take(file, directory).await.map(Some)
}

async fn take(lock: File, directory: &Path) -> Result<File> {
    match lock.lock().await {
        Ok(()) => Ok(lock),
        Err(error) if error.io_kind() == Some(std::io::ErrorKind::WouldBlock) => {
            let reason = format!("{} is in use by another process", directory.display());
            Err(Error::new(ErrorKind::InUse, reason))
        }
        Err(error) => Err(error.into()),
    }
}
