//! Operations on names: folders and what they hold. See [`Operation`] for each.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use crate::engine::{Engine, Entry, Operation, Outcome};
use crate::file::submit;
use crate::{Env, Error, Result};

/// Time between two attempts to sync a folder for which there is no descriptor.
const SYNC_PAUSE: Duration = Duration::from_millis(100);

/// Creates the folder where it doesn't exist, and its missing parents, and puts the new names
/// on stable storage before it returns.
///
/// # Errors
/// What the system says; some parents may have been created. For want of a descriptor
/// ([`Error::is_no_descriptor`](crate::Error::is_no_descriptor)) none has.
pub async fn create(engine: &dyn Engine, path: &Path) -> Result<()> {
    let mut created = Vec::new();
    let result = create_all(engine, path, &mut created).await;
    if result.as_ref().is_err_and(Error::is_no_descriptor) {
        // Or the next attempt would find them there, and take their names for durable.
        for folder in created.into_iter().rev() {
            let remove = Operation::RemoveFolder { path: folder.to_path_buf() };
            // Another task may have made a folder in it meanwhile, and syncs its name by itself.
            let _ = submit(engine, folder, remove).await;
        }
    }
    result
}

/// Creates the folder; those that did not exist are in `created`, the topmost first.
async fn create_all<'a>(engine: &dyn Engine, path: &'a Path, created: &mut Vec<&'a Path>) -> Result<()> {
    let mut folders = Vec::new();
    let mut at = Some(path);
    while let Some(folder) = at.filter(|folder| !folder.as_os_str().is_empty()) {
        folders.push(folder);
        match submit(engine, folder, Operation::CreateFolder { path: folder.to_path_buf() }).await {
            Ok(_) => {
                created.push(folder);
                // The one that it was created in may have come from such a process, too. Where it
                // isn't ours to read it was there before.
                let above = parent_of(folder);
                if above.parent().is_some() {
                    match sync(engine, parent_of(above)).await {
                        Err(error) if error.io_kind() == Some(std::io::ErrorKind::PermissionDenied) => {}
                        synced => synced?,
                    }
                }
                break;
            }
            Err(error) if error.io_kind() == Some(std::io::ErrorKind::AlreadyExists) => break,
            Err(error) if error.is_not_found() => at = folder.parent(),
            Err(error) => return Err(error),
        }
    }
    // The topmost exists by now; the others follow from the top down. One that was there may
    // have come from a process that was killed before its sync, so it is synced as well.
    for (below, folder) in folders.iter().rev().enumerate() {
        if below > 0 {
            submit(engine, folder, Operation::CreateFolder { path: folder.to_path_buf() }).await?;
            created.push(folder);
        }
        sync(engine, parent_of(folder)).await?;
    }
    Ok(())
}

/// Puts the folder's entries on stable storage.
///
/// # Errors
/// What the system says.
pub async fn sync(engine: &dyn Engine, path: &Path) -> Result<()> {
    submit(engine, path, Operation::SyncFolder { path: path.to_path_buf() }).await.map(drop)
}

/// The syncs of one directory that several tasks change: one at a time, and none succeeds after one that failed.
///
/// A failed sync leaves entries behind that no later one writes, whoever's they are, and the later one succeeds:
/// for Linux see fsync(2), "ERRORS". So a task whose sync succeeds while another's fails knows nothing about its
/// own entries.
#[derive(Debug)]
pub struct DirectorySyncs {
    directory: PathBuf,
    turn: tokio::sync::Mutex<()>,
    failed: OnceLock<Error>,
}

impl DirectorySyncs {
    /// The syncs of `directory`.
    pub fn new(directory: &Path) -> DirectorySyncs {
        DirectorySyncs { directory: directory.to_owned(), turn: Default::default(), failed: OnceLock::new() }
    }

    /// As [`sync`].
    ///
    /// # Errors
    /// What the system says, now or at an earlier sync; without a descriptor nothing has begun, and a later sync
    /// may succeed.
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

    /// As [`DirectorySyncs::sync`], for a change that nobody can take back: without a descriptor it is tried again
    /// as long as `tries_on`, which is given the error, returns true. Others have their turn in between.
    ///
    /// # Errors
    /// As [`DirectorySyncs::sync`].
    pub async fn sync_patiently(&self, env: &Env, tries_on: impl Fn(&Error) -> bool) -> Result<()> {
        loop {
            match self.sync(&*env.engine).await {
                Err(error) if error.is_no_descriptor() && tries_on(&error) => {
                    env.clock.sleep(SYNC_PAUSE).await;
                }
                synced => return synced,
            }
        }
    }
}

/// What the folder holds, sorted by name; nothing where it doesn't exist.
///
/// # Errors
/// What the system says, but for a folder that doesn't exist.
pub async fn list(engine: &dyn Engine, path: &Path) -> Result<Vec<Entry>> {
    match submit(engine, path, Operation::List { path: path.to_path_buf() }).await {
        Ok(Outcome::Entries(mut entries)) => {
            entries.sort_by(|a, b| a.name.cmp(&b.name));
            Ok(entries)
        }
        Ok(_) => unreachable!("list gives entries"),
        Err(error) if error.is_not_found() => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Removes a file's name. The removal is durable after a [`sync`] of its folder.
///
/// # Errors
/// What the system says.
pub async fn remove(engine: &dyn Engine, path: &Path) -> Result<()> {
    submit(engine, path, Operation::Remove { path: path.to_path_buf() }).await.map(drop)
}

/// Removes a folder and the files in it; it holds no folders. Not being there is success.
///
/// # Errors
/// What the system says; some of the files may be gone.
pub async fn remove_with_files(engine: &dyn Engine, path: &Path) -> Result<()> {
    for entry in list(engine, path).await? {
        ignore_missing(remove(engine, &path.join(&entry.name)).await)?;
    }
    let remove = Operation::RemoveFolder { path: path.to_path_buf() };
    ignore_missing(submit(engine, path, remove).await.map(drop))
}

/// Renames a file over whatever has the new name. Durable after a [`sync`] of both folders.
///
/// # Errors
/// What the system says; the old name is then still there.
pub async fn rename(engine: &dyn Engine, from: &Path, to: &Path) -> Result<()> {
    let operation = Operation::Rename { from: from.to_path_buf(), to: to.to_path_buf() };
    submit(engine, from, operation).await.map(drop)
}

/// Gives a file a second name, which must be free and in the same file system. Durable after a
/// [`sync`] of the new name's folder.
///
/// # Errors
/// What the system says.
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
    async fn folders_are_created_with_their_parents_and_removed_with_their_files() {
        let root = tempfile::tempdir().unwrap();
        let engine = ThreadEngine::new(ThreadOptions::default());
        let folder = root.path().join("a/b/c");
        create(&engine, &folder).await.unwrap();
        create(&engine, &folder).await.unwrap();
        std::fs::write(folder.join("file"), b"x").unwrap();
        let names: Vec<_> =
            list(&engine, &folder).await.unwrap().into_iter().map(|entry| entry.name).collect();
        assert_eq!(names, ["file"]);
        remove_with_files(&engine, &folder).await.unwrap();
        remove_with_files(&engine, &folder).await.unwrap();
        assert_eq!(list(&engine, &folder).await.unwrap(), []);
        assert!(root.path().join("a/b").exists());
    }
}
