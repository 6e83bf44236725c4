//! Online backup of all databases.
//!
//! The databases are copied first, each as of its own point in time, and the catalogue last, when every
//! database that it names has been copied. A database created meanwhile is copied too; the copy of a deleted
//! one is removed. If the catalogue came first, it could name databases whose files are deleted before they
//! are copied.
//!
//! Several databases are copied concurrently, so that their syncs overlap. A damaged database that can't be
//! copied doesn't fail the backup: the run's list and every restore of the run name it.
//!
//! Invariants:
//! 1. For each database that the catalogue's copy names there is a copy, or the list records why not.
//! 2. A database that the catalogue's copy records as written isn't empty in the run.
//! 3. A file is shared with an earlier run only if it has the checksum that the earlier run's list records:
//!    the directory may hold runs of another data directory, for example of a restored one.

use std::collections::{BTreeMap, HashSet};
use std::path::{Component, Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use settee_io::{Env, File, OpenMode, directory};
use settee_store::{Backup, BackupFiles, EarlierBackup};

use super::catalogue_entry::CatalogueEntry;
use super::data_directory::{CATALOGUE_DIRECTORY, directory_of};
use super::offline_catalogue::read_catalogue;
use super::runs::{self, Contents, DirectoryKind, FailedDatabase};
use super::server::Databases;
use super::state::DatabasesInner;
use crate::{Error, ErrorKind, Result};

/// Largest number of rounds, each of which copies databases created during the previous one.
const ROUND_COUNT_MAX: usize = 32;

/// Databases copied concurrently: their syncs overlap.
const COPIED_AT_ONCE: usize = 8;

/// The result of a backup.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BackupSummary {
    /// The run's directory.
    pub directory: PathBuf,
    /// Number of databases in the run.
    pub database_count: u64,
    /// Databases that could not be copied.
    pub failed: Vec<FailedDatabase>,
    /// Files linked and copied.
    pub files: Backup,
    /// Number of interrupted runs removed.
    pub removed_count: u64,
}

/// Progress of a backup.
#[derive(Debug, Default)]
pub struct BackupProgress {
    done: AtomicU64,
    all: AtomicU64,
}

impl BackupProgress {
    /// Number of databases done, and of all databases. Both may grow.
    pub fn counts(&self) -> (u64, u64) {
        let done = self.done.load(Ordering::Relaxed);
        (done, self.all.load(Ordering::Relaxed).max(done))
    }
}

/// Outcomes of the databases, by directory number.
#[derive(Default)]
struct RunOutcome {
    copied: BTreeMap<u64, Backup>,
    failed: BTreeMap<u64, FailedDatabase>,
    /// The recorded checksums of the copied files, by their paths in the run.
    files: BackupFiles,
    /// The error that ends the backup.
    error: Option<Error>,
}

/// The newest complete run in the same directory, whose files are shared.
struct EarlierRun {
    run: PathBuf,
    contents: Contents,
}

/// A run in progress.
struct RunInProgress<'a> {
    run: &'a Path,
    earlier: Option<EarlierRun>,
    outcome: Mutex<RunOutcome>,
    progress: &'a BackupProgress,
}

impl RunInProgress<'_> {
    fn outcome(&self) -> MutexGuard<'_, RunOutcome> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The earlier run's files of the store in this relative directory.
    fn earlier(&self, place: &Path) -> Option<(PathBuf, BackupFiles)> {
        let earlier = self.earlier.as_ref()?;
        Some((earlier.run.join(place), earlier.contents.in_directory(place)))
    }

    fn record(&self, place: &Path, files: BackupFiles) {
        let path = |name: String| place.join(name).to_string_lossy().into_owned();
        self.outcome().files.extend(files.into_iter().map(|(name, file)| (path(name), file)));
    }
}

impl Databases {
    /// Copies all databases into a new run in `directory`, an absolute path, including everything accepted
    /// before the call; reads and writes continue. Files that an earlier run has are linked; interrupted runs
    /// are removed. `others` are files of the data directory that belong to no database. Dropping the future
    /// doesn't cancel the backup.
    ///
    /// Databases that can't be copied are left out, and listed in the summary.
    ///
    /// # Errors
    /// `BadRequest` if the directory is relative, lies in a data directory or a run, holds anything but runs,
    /// or can't be created; `Conflict` if a backup is in progress; `NoSpace`; `Stopped`; or the system's
    /// error: then the run isn't complete, and doesn't count.
    pub async fn backup(&self, directory: &Path, others: &'static [&'static str]) -> Result<BackupSummary> {
        self.backup_with(directory, others, Arc::default()).await
    }

    /// As [`Databases::backup`]; updates `progress` meanwhile.
    ///
    /// # Errors
    /// See there.
    pub async fn backup_with(
        &self,
        directory: &Path,
        others: &'static [&'static str],
        progress: Arc<BackupProgress>,
    ) -> Result<BackupSummary> {
        let is_plain =
            directory.is_absolute() && directory.components().all(|part| part != Component::ParentDir);
        if !is_plain || directory.starts_with(&self.inner.directory) {
            let reason = "a backup's directory is given by its absolute path, without .., and isn't in the data directory";
            return Err(Error::bad_request(reason));
        }
        let directory = directory.to_path_buf();
        let (done, result) = tokio::sync::oneshot::channel();
        // Its own handle, since it opens databases.
        let databases = Databases { inner: self.inner.clone() };
        self.inner.env.spawn("backup", async move {
            drop(done.send(databases.run_backup(&directory, others, &progress).await));
        });
        result.await.unwrap_or_else(|_| Err(Error::new(ErrorKind::Stopped, "the server is stopping")))
    }

    async fn run_backup(
        &self,
        directory: &Path,
        others: &[&str],
        progress: &BackupProgress,
    ) -> Result<BackupSummary> {
        let inner = &self.inner;
        let env = &inner.env;
        let Ok(_turn) = inner.backup.try_lock() else {
            return Err(Error::new(ErrorKind::Conflict, "A backup is under way."));
        };
        let (mut runs, removed_count) = inner.prepare_target(directory).await?;
        let number = runs.last().map_or(1, |run| run.number + 1);
        runs.retain(|run| run.is_complete);
        let earlier = match runs.pop() {
            Some(run) => EarlierRun::read(env, run.path).await?,
            None => None,
        };
        let run = directory.join(format!("{number:06}"));
        let unfinished = runs::begin(env, &run).await.map_err(|error| of_target(directory, error))?;
        let outcome = Mutex::default();
        let work = RunInProgress { run: &run, earlier, outcome, progress };
        for _ in 0..ROUND_COUNT_MAX {
            self.copy_all(&work).await?;
            let Some(mut summary) = inner.back_up_catalogue(&work).await? else { continue };
            for name in others {
                copy_other(env, &inner.directory.join(name), &run.join(name)).await?;
            }
            let known = std::mem::take(&mut work.outcome().files);
            let contents = Contents::of(env, &run, &known, summary.failed.clone()).await?;
            runs::complete(env, &run, &unfinished, &contents).await?;
            directory::sync(&*env.engine, directory).await?;
            (summary.directory, summary.removed_count) = (run, removed_count);
            return Ok(summary);
        }
        Err(Error::new(ErrorKind::Conflict, "databases are created faster than they can be copied"))
    }

    /// Copies all databases that haven't been copied, several concurrently.
    async fn copy_all(&self, work: &RunInProgress<'_>) -> Result<()> {
        let names = {
            let outcome = work.outcome();
            let slots = self.inner.lock();
            let is_pending =
                |number: &u64| !outcome.copied.contains_key(number) && !outcome.failed.contains_key(number);
            let pending = slots.names.iter().filter(|(_, number)| is_pending(number));
            pending.map(|(name, _)| name.to_string()).collect::<Vec<String>>()
        };
        work.progress.all.fetch_add(names.len() as u64, Ordering::Relaxed);
        let at_once = COPIED_AT_ONCE.min(self.inner.options.open_databases_max).max(1);
        let names = Mutex::new(names.into_iter());
        let next = || names.lock().unwrap_or_else(PoisonError::into_inner).next();
        let worker = async || {
            while let Some(name) = next().filter(|_| work.outcome().error.is_none()) {
                if let Err(error) = self.back_up_one(&name, work).await {
                    work.outcome().error.get_or_insert(error);
                }
                work.progress.done.fetch_add(1, Ordering::Relaxed);
            }
        };
        all((0..at_once).map(|_| Box::pin(worker()) as Pin<Box<dyn Future<Output = ()> + Send + '_>>)).await;
        work.outcome().error.take().map_or(Ok(()), Err)
    }

    /// Copies a database, unless it is deleted meanwhile.
    ///
    /// # Errors
    /// Errors that would affect all other databases too.
    async fn back_up_one(&self, name: &str, work: &RunInProgress<'_>) -> Result<()> {
        let Some(number) = self.inner.lock().names.get(name).copied() else { return Ok(()) };
        let to = directory_of(work.run, number);
        match self.copy_one(name, number, work).await {
            Ok(Some(files)) => {
                work.outcome().copied.insert(number, files);
                return Ok(());
            }
            Ok(None) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) if error.kind() == ErrorKind::NoSpace || self.inner.lock().closed => {
                return Err(error);
            }
            Err(error) => {
                tracing::error!(%error, database = name, "a database could not be backed up");
                let (name, reason) = (name.to_owned(), error.to_string());
                let failed = FailedDatabase { name, reason, directory_number: number };
                work.outcome().failed.insert(number, failed);
            }
        }
        Ok(directory::remove_with_files(&*self.inner.env.engine, &to).await?)
    }

    /// `None` if the name belongs to another database by now; the next round copies that one.
    async fn copy_one(&self, name: &str, number: u64, work: &RunInProgress<'_>) -> Result<Option<Backup>> {
        let database = self.get(name).await?;
        if self.inner.lock().names.get(name) != Some(&number) {
            return Ok(None);
        }
        let place = directory_of(Path::new(""), number);
        let earlier = work.earlier(&place);
        let earlier = earlier.as_ref().map(|(directory, files)| EarlierBackup { directory, files });
        let (done, files) = database.backup(&work.run.join(&place), earlier).await?;
        work.record(&place, files);
        Ok(Some(done))
    }
}

impl EarlierRun {
    /// `None` if its list can't be read: then nothing is shared with it.
    async fn read(env: &Env, run: PathBuf) -> Result<Option<EarlierRun>> {
        match Contents::read(env, &run).await {
            Ok(contents) => Ok(contents.map(|contents| EarlierRun { run, contents })),
            Err(error) if error.kind() == ErrorKind::Internal => {
                tracing::warn!(%error, "an earlier run can't be used: all is copied");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

impl DatabasesInner {
    /// Inspects a backup's directory, and removes interrupted runs. Returns the remaining runs.
    async fn prepare_target(&self, directory: &Path) -> Result<(Vec<runs::Run>, u64)> {
        let env = &self.env;
        runs::check_surroundings(env, directory).await?;
        let of_target = |error| of_target(directory, error);
        match DirectoryKind::of(env, directory).await.map_err(of_target)? {
            DirectoryKind::Backup => {}
            DirectoryKind::Data | DirectoryKind::Run { .. } => {
                let reason =
                    format!("{} holds databases itself: choose another directory", directory.display());
                return Err(Error::bad_request(reason));
            }
            DirectoryKind::Other => {
                let entries = directory::list(&*env.engine, directory)
                    .await
                    .map_err(|error| of_target(error.into()))?;
                // An interrupted run may still be empty.
                let is_nothing = |entry: &settee_io::Entry| {
                    entry.name.starts_with('.')
                        || entry.name == "lost+found"
                        || (entry.is_directory && runs::is_run_name(&entry.name))
                };
                if !entries.iter().all(is_nothing) {
                    let reason =
                        format!("{} is not empty, and holds no runs of a backup", directory.display());
                    return Err(Error::bad_request(reason));
                }
            }
        }
        let mut removed_count = 0;
        let mut kept = Vec::new();
        for run in runs::runs(env, directory).await.map_err(of_target)? {
            if !run.is_complete && runs::remove_interrupted(env, &run.path).await.map_err(of_target)? {
                tracing::info!(run = %run.path.display(), "removed a run that was interrupted");
                removed_count += 1;
            } else {
                kept.push(run);
            }
        }
        Ok((kept, removed_count))
    }

    /// Copies the catalogue. Removes the copy and returns `None` if it names databases that haven't been
    /// copied, or that were empty when they were copied and aren't any more.
    async fn back_up_catalogue(&self, work: &RunInProgress<'_>) -> Result<Option<BackupSummary>> {
        let engine = &*self.env.engine;
        let (place, to) = (Path::new(CATALOGUE_DIRECTORY), work.run.join(CATALOGUE_DIRECTORY));
        let earlier = work.earlier(place);
        let earlier = earlier.as_ref().map(|(directory, files)| EarlierBackup { directory, files });
        let (mut files, recorded) = self.catalogue.backup(&to, earlier).await?;
        work.record(place, recorded);
        let (names, _) = read_catalogue(&self.env, &to, self.options.log).await?;
        let named: HashSet<u64> = names.values().map(|entry| entry.directory_number).collect();
        let (empty, deleted, is_complete) = {
            let mut outcome = work.outcome();
            let was_empty = |entry: &&CatalogueEntry| {
                let files = outcome.copied.get(&entry.directory_number);
                entry.was_written && files.is_some_and(|files| files.linked_count + files.copied_count == 0)
            };
            let empty: Vec<u64> =
                names.values().filter(was_empty).map(|entry| entry.directory_number).collect();
            for number in &empty {
                outcome.copied.remove(number);
            }
            let is_there =
                |number: &u64| outcome.copied.contains_key(number) || outcome.failed.contains_key(number);
            let is_complete = named.iter().all(is_there);
            let is_deleted = |number: &u64| !named.contains(number);
            let deleted: Vec<u64> = outcome.copied.keys().copied().filter(is_deleted).collect();
            if is_complete {
                outcome.failed.retain(|number, _| named.contains(number));
            }
            (empty, deleted, is_complete)
        };
        for number in empty {
            directory::remove_with_files(engine, &directory_of(work.run, number)).await?;
        }
        if !is_complete {
            directory::remove_with_files(engine, &to).await?;
            return Ok(None);
        }
        for number in deleted {
            // Deleted meanwhile.
            directory::remove_with_files(engine, &directory_of(work.run, number)).await?;
            work.outcome().copied.remove(&number);
        }
        let outcome = work.outcome();
        outcome.copied.values().for_each(|one| add(&mut files, one));
        let database_count = outcome.copied.len() as u64;
        let failed = outcome.failed.values().cloned().collect();
        Ok(Some(BackupSummary { database_count, failed, files, ..BackupSummary::default() }))
    }
}

/// Turns an error of the backup's directory into `BadRequest`, if another directory could help.
fn of_target(directory: &Path, error: Error) -> Error {
    match error.kind() {
        ErrorKind::Internal => {
            Error::bad_request(format!("{} can't hold a backup: {error}", directory.display()))
        }
        _ => error,
    }
}

/// Polls all futures concurrently; returns when all have ended.
async fn all<F: Future<Output = ()> + Unpin>(futures: impl Iterator<Item = F>) {
    let mut futures: Vec<F> = futures.collect();
    let run = std::future::poll_fn(move |context| {
        futures.retain_mut(|future| Pin::new(future).poll(context).is_pending());
        if futures.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    });
    run.await;
}

fn add(sums: &mut Backup, one: &Backup) {
    sums.linked_count += one.linked_count;
    sums.linked_bytes += one.linked_bytes;
    sums.copied_count += one.copied_count;
    sums.copied_bytes += one.copied_bytes;
}

/// Copies a small file, if it exists.
async fn copy_other(env: &Env, from: &Path, to: &Path) -> Result<()> {
    let from = match File::open(&env.engine, from, OpenMode::Read).await {
        Err(error) if error.is_not_found() => return Ok(()),
        opened => opened?,
    };
    let bytes = from.read_at(0, from.length().await? as usize).await?;
    let to = File::open(&env.engine, to, OpenMode::CreateNew).await?;
    Ok(to.write_and_sync_at(0, bytes).await?)
}
