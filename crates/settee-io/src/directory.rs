//! Operations on directories and on the names in them. [`Operation`] describes each.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use crate::engine::operation::{Entry, Operation, Outcome};
use crate::engine::request::{Engine, submit};
use crate::{Env, Error, Result};

/// Time between two attempts to sync a directory while no file descriptor is free.
const SYNC_PAUSE: Duration = Duration::from_millis(100);

/// Creates the directory and its missing parents. Returns once the new names are on stable storage. An
/// existing directory is no error.
///
/// # Errors
/// The system's error; some parents may have been created. If no file descriptor was free
/// ([`Error::is_no_descriptor`](crate::Error::is_no_descriptor)), the directories created by this call are
/// removed again.
pub async fn create(engine: &dyn Engine, path: &Path) -> Result<()> {
    let mut created = Vec::new();
    let result = create_all(engine, path, &mut created).await;
    if result.as_ref().is_err_and(Error::is_no_descriptor) {
        // Otherwise the next attempt would find these directories and take their names for durable.
        for directory in created.into_iter().rev() {
            let remove = Operation::RemoveDirectory { path: directory.to_path_buf() };
            // Fails if another task has created a directory in it meanwhile; that task syncs the name itself.
            let _ = submit(engine, directory, remove).await;
        }
    }
    result
}

/// Creates the directory and its missing parents, and appends those that did not exist to `created`, topmost
/// first.
async fn create_all<'a>(engine: &dyn Engine, path: &'a Path, created: &mut Vec<&'a Path>) -> Result<()> {
    let mut directories = Vec::new();
    let mut at = Some(path);
    while let Some(directory) = at.filter(|directory| !directory.as_os_str().is_empty()) {
        directories.push(directory);
        match submit(engine, directory, Operation::CreateDirectory { path: directory.to_path_buf() }).await {
            Ok(_) => {
                created.push(directory);
                // The parent may come from a process that was killed before its sync, so its name is synced
                // too. A grandparent that this process may not read existed before.
                let above = parent_of(directory);
                if above.parent().is_some() {
                    match sync(engine, parent_of(above)).await {
                        Err(error) if error.io_kind() == Some(std::io::ErrorKind::PermissionDenied) => {}
                        synced => synced?,
                    }
                }
                break;
            }
            Err(error) if error.io_kind() == Some(std::io::ErrorKind::AlreadyExists) => break,
            Err(error) if error.is_not_found() => at = directory.parent(),
            Err(error) => return Err(error),
        }
    }
    // The topmost directory exists now; create the others from the top down. A directory that existed may
    // come from a process that was killed before its sync, so its name is synced too.
    for (below, directory) in directories.iter().rev().enumerate() {
        if below > 0 {
            submit(engine, directory, Operation::CreateDirectory { path: directory.to_path_buf() }).await?;
            created.push(directory);
        }
        sync(engine, parent_of(directory)).await?;
    }
    Ok(())
}

/// Puts the directory's entries on stable storage, and then returns.
///
/// # Errors
/// The system's error.
pub async fn sync(engine: &dyn Engine, path: &Path) -> Result<()> {
    submit(engine, path, Operation::SyncDirectory { path: path.to_path_buf() }).await.map(drop)
}

/// Serialises the syncs of one directory that several tasks change. After a failed sync no later one
/// succeeds.
///
/// A failed sync leaves directory entries, of any task, that no later sync writes, while the later sync
/// succeeds: for Linux see fsync(2), "ERRORS". So a task whose sync succeeds after another's failed could not
/// rely on its own entries.
#[derive(Debug)]
pub struct DirectorySyncs {
    directory: PathBuf,
    turn: tokio::sync::Mutex<()>,
    failed: OnceLock<Error>,
}

impl DirectorySyncs {
    /// Returns the state for the syncs of `directory`; none has failed yet.
    pub fn new(directory: &Path) -> DirectorySyncs {
        DirectorySyncs { directory: directory.to_owned(), turn: Default::default(), failed: OnceLock::new() }
    }

    /// Syncs the directory as [`sync`] does, after earlier calls have ended.
    ///
    /// # Errors
    /// The system's error, of this sync or of an earlier one. If no file descriptor was free the sync has not
    /// begun, and a later one may succeed.
    pub async fn sync(&self, engine: &dyn Engine) -> Result<()> {
        let _turn = self.turn.lock().await;
        if let Some(error) = self.failed.get() {
            return Err(error.clone());
        }
        let synced = sync(engine, &self.directory).await;
        if let Err(error) = &synced
            && !error.is_no_descriptor()
        {
            let _ = self.failed.set(error.clone());
        }
        synced
    }

    /// Syncs the directory as [`DirectorySyncs::sync`] does, for a change that cannot be undone: while no
    /// file descriptor is free, it waits and tries again as long as `keep_trying`, called with the error,
    /// returns true. Other tasks may sync between the attempts.
    ///
    /// # Errors
    /// As [`DirectorySyncs::sync`].
    pub async fn sync_with_retry(&self, env: &Env, keep_trying: impl Fn(&Error) -> bool) -> Result<()> {
        loop {
            match self.sync(&*env.engine).await {
                Err(error) if error.is_no_descriptor() && keep_trying(&error) => {
                    env.clock.sleep(SYNC_PAUSE).await;
                }
                synced => return synced,
            }
        }
    }
}

/// Returns the directory's entries, sorted by name; none if the directory doesn't exist.
///
/// # Errors
/// The system's error, except that the directory doesn't exist.
pub async fn list(engine: &dyn Engine, path: &Path) -> Result<Vec<Entry>> {
    match submit(engine, path, Operation::List { path: path.to_path_buf() }).await {
        Ok(Outcome::Entries(mut entries)) => {
            entries.sort_by(|a, b| a.name.cmp(&b.name));
            Ok(entries)
        }
        Ok(_) => unreachable!("list returns entries"),
        Err(error) if error.is_not_found() => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Removes a file's name. The removal is durable after a [`sync`] of its directory.
///
/// # Errors
/// The system's error.
pub async fn remove(engine: &dyn Engine, path: &Path) -> Result<()> {
    submit(engine, path, Operation::Remove { path: path.to_path_buf() }).await.map(drop)
}

/// Removes a directory and the files in it. It must not contain directories. A missing directory is no error.
///
/// # Errors
/// The system's error; some of the files may have been removed.
pub async fn remove_with_files(engine: &dyn Engine, path: &Path) -> Result<()> {
    for entry in list(engine, path).await? {
        ignore_missing(remove(engine, &path.join(&entry.name)).await)?;
    }
    let remove = Operation::RemoveDirectory { path: path.to_path_buf() };
    ignore_missing(submit(engine, path, remove).await.map(drop))
}

/// Renames a file, replacing any file of the new name. Durable after a [`sync`] of both directories.
///
/// # Errors
/// The system's error; the old name then still exists.
pub async fn rename(engine: &dyn Engine, from: &Path, to: &Path) -> Result<()> {
    let operation = Operation::Rename { from: from.to_path_buf(), to: to.to_path_buf() };
    submit(engine, from, operation).await.map(drop)
}

/// Adds a second name to a file. The name must not exist and must be in the same file system. Durable after a
/// [`sync`] of the new name's directory.
///
/// # Errors
/// The system's error.
pub async fn link(engine: &dyn Engine, from: &Path, to: &Path) -> Result<()> {
    let operation = Operation::Link { from: from.to_path_buf(), to: to.to_path_buf() };
    submit(engine, to, operation).await.map(drop)
}

fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn ignore_missing(result: Result<()>) -> Result<()> {
    match result {
        Err(error) if error.is_not_found() => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ThreadEngine, ThreadOptions};

    #[tokio::test]
    async fn directories_are_created_with_their_parents_and_removed_with_their_files() {
        let root = tempfile::tempdir().unwrap();
        let engine = ThreadEngine::new(ThreadOptions::default());
        let directory = root.path().join("a/b/c");
        create(&engine, &directory).await.unwrap();
        create(&engine, &directory).await.unwrap();
        std::fs::write(directory.join("file"), b"x").unwrap();
        let names: Vec<_> =
            list(&engine, &directory).await.unwrap().into_iter().map(|entry| entry.name).collect();
        assert_eq!(names, ["file"]);
        remove_with_files(&engine, &directory).await.unwrap();
        remove_with_files(&engine, &directory).await.unwrap();
        assert_eq!(list(&engine, &directory).await.unwrap(), []);
        assert!(root.path().join("a/b").exists());
    }
}
