//! Backup of all databases while they are used.
//!
//! The databases come first, each as of its own moment, and the catalogue last, when every database
//! that it names has been copied. A database that is created meanwhile is copied too; the copy of one
//! that was deleted goes again. Were the catalogue first, it would name databases whose files are gone by
//! the time it is their turn.
//!
//! Several are copied at once, so that their syncs overlap. One that can't be copied, since its files are
//! damaged, keeps no other from it: it is named in the run's list, and by whoever restores the run.
//!
//! Invariants:
//! 1. Of each database that the catalogue's copy names there is a copy, or the list says why there isn't.
//! 2. A database that the catalogue's copy notes as written isn't empty in the run.
//! 3. A file is shared with an earlier run only where it has the checksum that the earlier run's list
//!    records: the place may hold runs of another data folder, a restored one for example.

use std::collections::{BTreeMap, HashSet};
use std::path::{Component, Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use settee_io::{Env, folder};
use settee_store::{Backup, BackupFiles, EarlierBackup};

use super::catalogue::Entry;
use super::offline::read_catalogue;
use super::restore::copy_other;
use super::runs::{self, Contents, FailedDatabase, Kind};
use super::{CATALOGUE_FOLDER, Databases, Inner, folder_of};
use crate::{Error, ErrorKind, Result};

/// How often databases may come while all others have been copied.
const ROUND_COUNT_MAX: usize = 32;

/// Databases that are copied at once: their syncs overlap.
const COPIED_AT_ONCE: usize = 8;

/// What a backup did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BackupSummary {
    /// The run's folder.
    pub folder: PathBuf,
    /// Databases that are in it.
    pub database_count: u64,
    /// Those that could not be copied.
    pub failed: Vec<FailedDatabase>,
    /// What was linked and copied.
    pub files: Backup,
    /// Interrupted runs that were removed.
    pub removed_count: u64,
}

/// How far a backup has got.
#[derive(Debug, Default)]
pub struct BackupProgress {
    done: AtomicU64,
    all: AtomicU64,
}

impl BackupProgress {
    /// Databases that are done, and how many there are. Both may grow.
    pub fn counts(&self) -> (u64, u64) {
        let done = self.done.load(Ordering::Relaxed);
        (done, self.all.load(Ordering::Relaxed).max(done))
    }
}

/// What became of the databases, by the numbers of their folders.
#[derive(Default)]
struct Outcome {
    copied: BTreeMap<u64, Backup>,
    failed: BTreeMap<u64, FailedDatabase>,
    /// What was recorded of the files when they were copied, by their paths in the run.
    files: BackupFiles,
    /// Why it makes no sense to go on.
    error: Option<Error>,
}

/// The newest whole run in the same place, whose files are shared.
struct Earlier {
    run: PathBuf,
    contents: Contents,
}

/// A run that is being made.
struct Work<'a> {
    run: &'a Path,
    earlier: Option<Earlier>,
    outcome: Mutex<Outcome>,
    progress: &'a BackupProgress,
}

impl Work<'_> {
    fn outcome(&self) -> MutexGuard<'_, Outcome> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the earlier run has of the store in the folder `place` of a run.
    fn earlier(&self, place: &Path) -> Option<(PathBuf, BackupFiles)> {
        let earlier = self.earlier.as_ref()?;
        Some((earlier.run.join(place), earlier.contents.in_folder(place)))
    }

    fn record(&self, place: &Path, files: BackupFiles) {
        let path = |name: String| place.join(name).to_string_lossy().into_owned();
        self.outcome().files.extend(files.into_iter().map(|(name, file)| (path(name), file)));
    }
}

impl Databases {
    /// Copies all databases into a new run in `folder`, which must be absolute, with all that was accepted
    /// before the call, while others go on. What an earlier run there has isn't copied again; interrupted
    /// runs are removed. `others` are files of the data folder that belong to no database. Dropping the
    /// future doesn't stop it.
    ///
    /// Databases that can't be copied are named by the summary, and left out.
    ///
    /// # Errors
    /// `BadRequest` where the folder is relative, lies in a data folder or a run, holds something else than
    /// runs, or can't be made; `Conflict` where a backup is under way; `NoSpace`; `Stopped`; or what the
    /// system says: then the run has no mark, and doesn't count.
    pub async fn backup(&self, folder: &Path, others: &'static [&'static str]) -> Result<BackupSummary> {
        self.backup_with(folder, others, Arc::default()).await
    }

    /// As [`Databases::backup`]; `progress` tells others how far it has got.
    ///
    /// # Errors
    /// See there.
    pub async fn backup_with(
        &self,
        folder: &Path,
        others: &'static [&'static str],
        progress: Arc<BackupProgress>,
    ) -> Result<BackupSummary> {
        let is_plain = folder.is_absolute() && folder.components().all(|part| part != Component::ParentDir);
        if !is_plain || folder.starts_with(&self.inner.folder) {
            let reason =
                "a backup's folder is given by its absolute path, without .., and isn't in the data folder";
            return Err(Error::bad_request(reason));
        }
        let folder = folder.to_path_buf();
        let (done, result) = tokio::sync::oneshot::channel();
        // It opens databases, as its callers do.
        let databases = Databases { inner: self.inner.clone() };
        self.inner.env.spawn("backup", async move {
            drop(done.send(databases.run_backup(&folder, others, &progress).await));
        });
        result.await.unwrap_or_else(|_| Err(Error::new(ErrorKind::Stopped, "the server is stopping")))
    }

    async fn run_backup(
        &self,
        folder: &Path,
        others: &[&str],
        progress: &BackupProgress,
    ) -> Result<BackupSummary> {
        let inner = &self.inner;
        let env = &inner.env;
        let Ok(_turn) = inner.backup.try_lock() else {
            return Err(Error::new(ErrorKind::Conflict, "A backup is under way."));
        };
        let (mut runs, removed_count) = inner.prepare_target(folder).await?;
        let number = runs.last().map_or(1, |run| run.number + 1);
        runs.retain(|run| run.is_whole);
        let earlier = match runs.pop() {
            Some(run) => Earlier::read(env, run.path).await?,
            None => None,
        };
        let run = folder.join(format!("{number:06}"));
        let mark = runs::begin(env, &run).await.map_err(|error| of_target(folder, error))?;
        let outcome = Mutex::default();
        let work = Work { run: &run, earlier, outcome, progress };
        for _ in 0..ROUND_COUNT_MAX {
            self.copy_all(&work).await?;
            let Some(mut summary) = inner.back_up_catalogue(&work).await? else { continue };
            for name in others {
                copy_other(env, &inner.folder.join(name), &run.join(name)).await?;
            }
            let known = std::mem::take(&mut work.outcome().files);
            let contents = Contents::of(env, &run, &known, summary.failed.clone()).await?;
            runs::complete(env, &run, &mark, &contents).await?;
            folder::sync(&*env.engine, folder).await?;
            (summary.folder, summary.removed_count) = (run, removed_count);
            return Ok(summary);
        }
        Err(Error::new(ErrorKind::Conflict, "databases are created faster than they can be copied"))
    }

    /// Copies all databases that haven't been, some at once.
    async fn copy_all(&self, work: &Work<'_>) -> Result<()> {
        let names = {
            let outcome = work.outcome();
            let slots = self.inner.lock();
            let is_left =
                |number: &u64| !outcome.copied.contains_key(number) && !outcome.failed.contains_key(number);
            let left = slots.known.iter().filter(|(_, number)| is_left(number));
            left.map(|(name, _)| name.to_string()).collect::<Vec<String>>()
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
    /// Those that would meet all others too.
    async fn back_up_one(&self, name: &str, work: &Work<'_>) -> Result<()> {
        let Some(number) = self.inner.lock().known.get(name).copied() else { return Ok(()) };
        let to = folder_of(work.run, number);
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
                let failed = FailedDatabase { name, reason, folder_number: number };
                work.outcome().failed.insert(number, failed);
            }
        }
        Ok(folder::remove_with_files(&*self.inner.env.engine, &to).await?)
    }

    /// `None` where another one has the name by now: it is asked for again.
    async fn copy_one(&self, name: &str, number: u64, work: &Work<'_>) -> Result<Option<Backup>> {
        let database = self.get(name).await?;
        if self.inner.lock().known.get(name) != Some(&number) {
            return Ok(None);
        }
        let place = folder_of(Path::new(""), number);
        let earlier = work.earlier(&place);
        let earlier = earlier.as_ref().map(|(folder, files)| EarlierBackup { folder, files });
        let (done, files) = database.backup(&work.run.join(&place), earlier).await?;
        work.record(&place, files);
        Ok(Some(done))
    }
}

impl Earlier {
    /// `None` where its list can't be read: nothing is shared with it then.
    async fn read(env: &Env, run: PathBuf) -> Result<Option<Earlier>> {
        match Contents::read(env, &run).await {
            Ok(contents) => Ok(contents.map(|contents| Earlier { run, contents })),
            Err(error) if error.kind() == ErrorKind::Internal => {
                tracing::warn!(%error, "an earlier run can't be used: all is copied");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

impl Inner {
    /// Looks at a backup's folder, and removes what was interrupted there. Returns the runs that there are.
    async fn prepare_target(&self, folder: &Path) -> Result<(Vec<runs::Run>, u64)> {
        let env = &self.env;
        runs::check_surroundings(env, folder).await?;
        let of_target = |error| of_target(folder, error);
        match Kind::of(env, folder).await.map_err(of_target)? {
            Kind::Backup => {}
            Kind::Data | Kind::Run { .. } => {
                let reason = format!("{} holds databases itself: choose another folder", folder.display());
                return Err(Error::bad_request(reason));
            }
            Kind::Other => {
                let entries =
                    folder::list(&*env.engine, folder).await.map_err(|error| of_target(error.into()))?;
                // A run that was hardly begun may be empty.
                let is_nothing = |entry: &settee_io::Entry| {
                    entry.name.starts_with('.')
                        || entry.name == "lost+found"
                        || (entry.is_folder && runs::is_run_name(&entry.name))
                };
                if !entries.iter().all(is_nothing) {
                    let reason = format!("{} is not empty, and holds no runs of a backup", folder.display());
                    return Err(Error::bad_request(reason));
                }
            }
        }
        let mut removed_count = 0;
        let mut kept = Vec::new();
        for run in runs::runs(env, folder).await.map_err(of_target)? {
            if !run.is_whole && runs::remove_interrupted(env, &run.path).await.map_err(of_target)? {
                tracing::info!(run = %run.path.display(), "removed a run that was interrupted");
                removed_count += 1;
            } else {
                kept.push(run);
            }
        }
        Ok((kept, removed_count))
    }

    /// Copies the catalogue; `None` where it names databases that haven't been copied, or were empty then
    /// and aren't any more: the copy is then removed.
    async fn back_up_catalogue(&self, work: &Work<'_>) -> Result<Option<BackupSummary>> {
        let engine = &*self.env.engine;
        let (place, to) = (Path::new(CATALOGUE_FOLDER), work.run.join(CATALOGUE_FOLDER));
        let earlier = work.earlier(place);
        let earlier = earlier.as_ref().map(|(folder, files)| EarlierBackup { folder, files });
        let (mut files, recorded) = self.catalogue.backup(&to, earlier).await?;
        work.record(place, recorded);
        let (names, _) = read_catalogue(&self.env, &to, self.options.log).await?;
        let named: HashSet<u64> = names.values().map(|entry| entry.folder_number).collect();
        let (empty, gone, is_whole) = {
            let mut outcome = work.outcome();
            let was_empty = |entry: &&Entry| {
                let files = outcome.copied.get(&entry.folder_number);
                entry.was_written && files.is_some_and(|files| files.linked_count + files.copied_count == 0)
            };
            let empty: Vec<u64> = names.values().filter(was_empty).map(|entry| entry.folder_number).collect();
            for number in &empty {
                outcome.copied.remove(number);
            }
            let is_there =
                |number: &u64| outcome.copied.contains_key(number) || outcome.failed.contains_key(number);
            let is_whole = named.iter().all(is_there);
            let is_gone = |number: &u64| !named.contains(number);
            let gone: Vec<u64> = outcome.copied.keys().copied().filter(is_gone).collect();
            if is_whole {
                outcome.failed.retain(|number, _| named.contains(number));
            }
            (empty, gone, is_whole)
        };
        for number in empty {
            folder::remove_with_files(engine, &folder_of(work.run, number)).await?;
        }
        if !is_whole {
            folder::remove_with_files(engine, &to).await?;
            return Ok(None);
        }
        for number in gone {
            // Deleted meanwhile.
            folder::remove_with_files(engine, &folder_of(work.run, number)).await?;
            work.outcome().copied.remove(&number);
        }
        let outcome = work.outcome();
        outcome.copied.values().for_each(|one| add(&mut files, one));
        let database_count = outcome.copied.len() as u64;
        let failed = outcome.failed.values().cloned().collect();
        Ok(Some(BackupSummary { database_count, failed, files, ..BackupSummary::default() }))
    }
}

/// What the folder for backups failed with, where another one would do.
fn of_target(folder: &Path, error: Error) -> Error {
    match error.kind() {
        ErrorKind::Internal => {
            Error::bad_request(format!("{} can't hold a backup: {error}", folder.display()))
        }
        _ => error,
    }
}

/// Runs all of them at once; returns when all have ended.
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
