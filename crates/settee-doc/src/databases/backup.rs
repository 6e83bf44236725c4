//! Backup of all databases while they are used, and its restoration.
//!
//! A backup's folder holds runs, `000001`, `000002`, …, each a data folder by itself; what two of them
//! have in common is one file with several names. A run counts once its file `complete` is there, which
//! is written last.
//!
//! The databases come first, each as of its own moment, and the catalogue last, when every database
//! that it names has been copied. A database that is created meanwhile is copied too; the copy of one
//! that was deleted goes again. Were the catalogue first, it would name databases whose files are gone by the time it is their turn.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use settee_io::{Env, File, OpenMode, folder};
use settee_store::{Backup, copy_store};

use super::offline::read_catalogue;
use super::{CATALOGUE_FOLDER, DATABASES_FOLDER, Databases, Inner, folder_of};
use crate::{Error, ErrorKind, Result};

/// Marks a run that is whole.
const COMPLETE_FILE: &str = "complete";

/// How often databases may come while all others have been copied.
const ROUND_COUNT_MAX: usize = 32;

/// What a backup did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BackupSummary {
    /// The run's folder.
    pub folder: PathBuf,
    /// Databases that are in it.
    pub database_count: u64,
    /// What was linked and copied.
    pub files: Backup,
}

impl Databases {
    /// Copies all databases into a new run in `folder`, which must be absolute, with all that was accepted
    /// before the call, while others go on. What an earlier run there has isn't copied again.
    /// `others` are files of the data folder that belong to no database. Dropping the future doesn't
    /// stop it.
    ///
    /// # Errors
    /// `BadRequest` where the folder is relative, or lies in the data folder; `Conflict` where a backup is
    /// under way; `Stopped`; or what the system says: then the run has no mark, and doesn't count.
    pub async fn backup(&self, folder: &Path, others: &'static [&'static str]) -> Result<BackupSummary> {
        if !folder.is_absolute() || folder.starts_with(&self.inner.folder) {
            let reason = "a backup's folder is given by its absolute path, and isn't in the data folder";
            return Err(Error::bad_request(reason));
        }
        let folder = folder.to_path_buf();
        let (done, result) = tokio::sync::oneshot::channel();
        // It opens databases, as its callers do.
        let databases = Databases { inner: self.inner.clone() };
        self.inner.env.spawn("backup", async move {
            drop(done.send(databases.run_backup(&folder, others).await));
        });
        result.await.unwrap_or_else(|_| Err(Error::new(ErrorKind::Stopped, "the server is stopping")))
    }

    async fn run_backup(&self, folder: &Path, others: &[&str]) -> Result<BackupSummary> {
        let inner = &self.inner;
        let engine = &*inner.env.engine;
        let Ok(_turn) = inner.backup.try_lock() else {
            return Err(Error::new(ErrorKind::Conflict, "A backup is under way."));
        };
        let runs = runs(&inner.env, folder).await?;
        let previous = runs.iter().rev().find(|run| run.is_complete).map(|run| run.path(folder));
        let run = folder.join(format!("{:06}", runs.last().map_or(1, |run| run.number + 1)));
        folder::create(engine, &run.join(DATABASES_FOLDER)).await?;
        let mut summary = BackupSummary { folder: run.clone(), ..BackupSummary::default() };
        let mut copied = BTreeSet::new();
        for _ in 0..ROUND_COUNT_MAX {
            for name in self.names() {
                self.back_up_one(&name, &run, previous.as_deref(), &mut copied, &mut summary).await?;
            }
            if inner.back_up_catalogue(&run, previous.as_deref(), &copied, &mut summary).await? {
                for name in others {
                    copy_other(&inner.env, &inner.folder.join(name), &run.join(name)).await?;
                }
                complete(&inner.env, &run).await?;
                folder::sync(engine, folder).await?;
                return Ok(summary);
            }
        }
        Err(Error::new(ErrorKind::Conflict, "databases are created faster than they can be copied"))
    }

    /// Copies a database, unless it is deleted meanwhile.
    async fn back_up_one(
        &self,
        name: &str,
        run: &Path,
        previous: Option<&Path>,
        copied: &mut BTreeSet<u64>,
        summary: &mut BackupSummary,
    ) -> Result<()> {
        let number = self.inner.lock().known.get(name).copied();
        let Some(number) = number.filter(|number| !copied.contains(number)) else { return Ok(()) };
        let database = match self.get(name).await {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            got => got?,
        };
        // Another one may have the name by now: then this number's copy is of no use, and it is asked
        // for again.
        if self.inner.lock().known.get(name) != Some(&number) {
            return Ok(());
        }
        let (to, previous) = (folder_of(run, number), previous.map(|run| folder_of(run, number)));
        match database.backup(&to, previous.as_deref()).await {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Ok(folder::remove_with_files(&*self.inner.env.engine, &to).await?)
            }
            done => {
                add(&mut summary.files, &done?);
                summary.database_count += 1;
                copied.insert(number);
                Ok(())
            }
        }
    }
}

impl Inner {
    /// Copies the catalogue; `false` where it names databases that haven't been copied: then its copy is
    /// removed.
    async fn back_up_catalogue(
        &self,
        run: &Path,
        previous: Option<&Path>,
        copied: &BTreeSet<u64>,
        summary: &mut BackupSummary,
    ) -> Result<bool> {
        let engine = &*self.env.engine;
        let to = run.join(CATALOGUE_FOLDER);
        let previous = previous.map(|run| run.join(CATALOGUE_FOLDER));
        let done = self.catalogue.backup(&to, previous.as_deref()).await?;
        let (names, _) = read_catalogue(&self.env, &to, self.options.log).await?;
        let named: BTreeSet<u64> = names.values().map(|entry| entry.folder_number).collect();
        if !named.is_subset(copied) {
            folder::remove_with_files(engine, &to).await?;
            return Ok(false);
        }
        for number in copied.difference(&named) {
            // Deleted meanwhile.
            folder::remove_with_files(engine, &folder_of(run, *number)).await?;
            summary.database_count -= 1;
        }
        add(&mut summary.files, &done);
        Ok(true)
    }
}

/// Copies a run of a backup, or the newest whole one in a backup's folder, to a new data folder. Nothing is
/// shared with the backup. Returns the run and the bytes that were copied.
///
/// # Errors
/// `BadRequest` where `to` isn't empty; `NotFound` where there is no whole run; or what the system says.
pub async fn restore(env: &Env, backup: &Path, to: &Path, others: &[&str]) -> Result<(PathBuf, u64)> {
    let engine = &*env.engine;
    let is_run = folder::list(engine, backup).await?.iter().any(|entry| entry.name == COMPLETE_FILE);
    let run = match is_run {
        true => backup.to_path_buf(),
        false => {
            let runs = runs(env, backup).await?;
            let whole = runs.iter().rev().find(|run| run.is_complete);
            let none = || {
                Error::new(ErrorKind::NotFound, format!("there is no whole backup in {}", backup.display()))
            };
            whole.ok_or_else(none)?.path(backup)
        }
    };
    if !folder::list(engine, to).await?.is_empty() {
        return Err(Error::bad_request(format!("{} is not empty", to.display())));
    }
    folder::create(engine, &to.join(DATABASES_FOLDER)).await?;
    let mut bytes = 0;
    for entry in folder::list(engine, &run.join(DATABASES_FOLDER)).await? {
        let (from, to) = (run.join(DATABASES_FOLDER), to.join(DATABASES_FOLDER));
        bytes += copy_store(env, &from.join(&entry.name), &to.join(&entry.name)).await?;
    }
    for name in others {
        copy_other(env, &run.join(name), &to.join(name)).await?;
    }
    // Last: where it is missing, so may be others.
    bytes += copy_store(env, &run.join(CATALOGUE_FOLDER), &to.join(CATALOGUE_FOLDER)).await?;
    folder::sync(engine, &to.join(DATABASES_FOLDER)).await?;
    folder::sync(engine, to).await?;
    Ok((run, bytes))
}

struct Run {
    number: u64,
    name: String,
    is_complete: bool,
}

impl Run {
    fn path(&self, folder: &Path) -> PathBuf {
        folder.join(&self.name)
    }
}

/// The runs in a backup's folder, in their order.
async fn runs(env: &Env, folder: &Path) -> Result<Vec<Run>> {
    let mut runs = Vec::new();
    for entry in folder::list(&*env.engine, folder).await? {
        if let Some(number) = entry.name.parse().ok().filter(|_| entry.is_folder) {
            let inside = folder::list(&*env.engine, &folder.join(&entry.name)).await?;
            let is_complete = inside.iter().any(|entry| entry.name == COMPLETE_FILE);
            runs.push(Run { number, name: entry.name, is_complete });
        }
    }
    runs.sort_by_key(|run| run.number);
    Ok(runs)
}

async fn complete(env: &Env, run: &Path) -> Result<()> {
    folder::sync(&*env.engine, &run.join(DATABASES_FOLDER)).await?;
    folder::sync(&*env.engine, run).await?;
    let file = File::open(&env.engine, &run.join(COMPLETE_FILE), OpenMode::CreateNew).await?;
    let text = format!("settee backup 1\nmade {}\n", env.clock.unix_us());
    file.write_and_sync_at(0, Bytes::from(text)).await?;
    Ok(folder::sync(&*env.engine, run).await?)
}

/// Copies a small file, where it is there.
async fn copy_other(env: &Env, from: &Path, to: &Path) -> Result<()> {
    let from = match File::open(&env.engine, from, OpenMode::Read).await {
        Err(error) if error.is_not_found() => return Ok(()),
        opened => opened?,
    };
    let bytes = from.read_at(0, from.length().await? as usize).await?;
    let to = File::open(&env.engine, to, OpenMode::CreateNew).await?;
    Ok(to.write_and_sync_at(0, bytes).await?)
}

fn add(sums: &mut Backup, one: &Backup) {
    sums.linked_count += one.linked_count;
    sums.linked_bytes += one.linked_bytes;
    sums.copied_count += one.copied_count;
    sums.copied_bytes += one.copied_bytes;
}
