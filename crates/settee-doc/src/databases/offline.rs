//! Offline check and repair of the databases in a directory that no server uses.
//!
//! Nothing is opened, since that would change files: even the catalogue is read by salvage. The directory's
//! lock is held meanwhile if it can be taken, which isn't possible on a read-only medium. In a run of a
//! backup, which nothing opens, no lock is taken, so that no file is left there; the run's completeness is
//! checked first.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use settee_io::{Env, File, directory};
use settee_store::{
    Batch, CheckEvent, CheckSummary, Loss, RepairSummary, Stage, Store, StoreOptions, Touched, checksum_file,
};

use super::catalogue_entry::CatalogueEntry;
use super::data_directory::{CATALOGUE_DIRECTORY, DATABASES_DIRECTORY, directory_of, lock, lock_if_writable};
use super::offline_catalogue::{plain_options, read_catalogue};
use super::options::DatabasesOptions;
use super::runs::{self, Contents, DirectoryKind, FailedDatabase};
use super::salvage;
use super::upgrade;
use crate::documents::keys;
use crate::{Error, ErrorKind, Result};

/// Prefix of the names of databases that the catalogue doesn't name.
const RECOVERED_PREFIX: &str = "recovered-";

/// An event during a check or repair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OfflineEvent {
    /// The next database; `None`: the catalogue.
    Database(Option<String>),
    /// Bytes done and total bytes of the current database.
    Progress(u64, u64),
    /// A problem was found.
    Problem {
        /// Location and description.
        what: String,
        /// The affected documents.
        touched: String,
        /// Whether it may be a normal trace of a crash, which opening repairs.
        is_doubtful: bool,
    },
    /// The newest version of a record can't be read.
    Lost {
        /// Description of the record.
        what: String,
        /// Whether an older version was kept.
        has_older: bool,
    },
    /// Information that is no problem.
    Note(String),
}

/// The databases in a directory that no server uses.
pub struct OfflineDatabases {
    env: Env,
    directory: PathBuf,
    options: DatabasesOptions,
    kind: DirectoryKind,
    lock: Option<File>,
}

/// A database with its catalogue entry, if it has one.
struct FoundDatabase {
    name: String,
    directory_number: u64,
    entry: Option<CatalogueEntry>,
}

impl OfflineDatabases {
    /// Opens the directory, and takes its lock if the directory is writable.
    ///
    /// # Errors
    /// `NotFound` if the directory doesn't exist or holds no databases; `BadRequest` if an earlier version wrote it,
    /// or an upgrade into it was interrupted; `InUse` if a server uses it; or the
    /// system's error.
    pub async fn open(env: &Env, directory: &Path, options: DatabasesOptions) -> Result<OfflineDatabases> {
        let kind = DirectoryKind::of(env, directory).await?;
        let lock = match kind {
            DirectoryKind::Run { .. } => {
                upgrade::refuse_previous_run(env, directory).await?;
                None
            }
            DirectoryKind::Data => {
                upgrade::refuse_previous(env, directory).await?;
                upgrade::refuse_unfinished(env, directory).await?;
                lock_if_writable(env, directory).await?
            }
            DirectoryKind::Backup => {
                let reason = format!(
                    "there are no databases in {} itself: it holds the runs of a backup, each of which is a \
                     directory of its own",
                    directory.display()
                );
                return Err(Error::new(ErrorKind::NotFound, reason));
            }
            DirectoryKind::Other => {
                let reason = format!("there are no databases in {}", directory.display());
                return Err(Error::new(ErrorKind::NotFound, reason));
            }
        };
        Ok(OfflineDatabases { env: env.clone(), directory: directory.to_path_buf(), options, kind, lock })
    }

    /// Whether no other process can open the databases meanwhile. A run of a backup is never opened.
    pub fn is_protected(&self) -> bool {
        self.lock.is_some() || matches!(self.kind, DirectoryKind::Run { .. })
    }

    fn store_options(&self, is_catalogue: bool) -> StoreOptions {
        let aggregate = if is_catalogue { None } else { Some(keys::aggregate as _) };
        StoreOptions { aggregate, ..plain_options(self.options.log) }
    }

    /// The databases that the catalogue names, and directories that it doesn't name.
    async fn find(&self) -> Result<Vec<FoundDatabase>> {
        let place = self.directory.join(CATALOGUE_DIRECTORY);
        let (names, deleted) = read_catalogue(&self.env, &place, self.options.log).await?;
        let known: BTreeSet<u64> = names.values().map(|entry| entry.directory_number).collect();
        let mut found: Vec<FoundDatabase> = names
            .into_iter()
            .map(|(name, entry)| FoundDatabase {
                name,
                directory_number: entry.directory_number,
                entry: Some(entry),
            })
            .collect();
        for entry in directory::list(&*self.env.engine, &self.directory.join(DATABASES_DIRECTORY)).await? {
            let Ok(directory_number) = entry.name.parse::<u64>() else { continue };
            if !known.contains(&directory_number) && !deleted.contains(&directory_number) {
                let name = format!("{RECOVERED_PREFIX}{directory_number}");
                found.push(FoundDatabase { name, directory_number, entry: None });
            }
        }
        Ok(found)
    }

    /// Checks the catalogue and all databases, or the one of that name, without changing anything. Calls
    /// `report` for each event as it occurs. Returns the sums.
    ///
    /// # Errors
    /// `NotFound` if there is no database of that name; or the system's error. Damage is reported, and is not
    /// an error.
    pub async fn check(
        &self,
        database: Option<&str>,
        mut report: impl FnMut(OfflineEvent) + Send,
    ) -> Result<CheckSummary> {
        let mut sums = CheckSummary::default();
        let Some(run) = self.check_run(&mut sums, &mut report).await? else { return Ok(sums) };
        let all = self.find().await?;
        if let Some(name) = database
            && !all.iter().any(|found| found.name == name)
        {
            return Err(Error::no_database());
        }
        let chosen = |found: &&FoundDatabase| database.is_none_or(|name| found.name == name);
        let directories: Vec<PathBuf> = all.iter().filter(chosen).map(FoundDatabase::directory).collect();
        let is_chosen =
            |path: &Path| database.is_none() || directories.iter().any(|one| path.starts_with(one));
        self.check_checksums(&run, is_chosen, &mut sums, &mut report).await?;
        if database.is_none() {
            add(&mut sums, &self.check_catalogue(&mut report).await?);
        }
        for found in all.iter().filter(chosen) {
            if run.lacks(found.directory_number) {
                continue;
            }
            report(OfflineEvent::Database(Some(found.name.clone())));
            let place = directory_of(&self.directory, found.directory_number);
            let options = self.store_options(false);
            let explained = |event| report(explain(event, keys::describe));
            let checked = settee_store::check(&self.env, &place, &options, explained).await?;
            add(&mut sums, &checked);
            if let Some(what) = found.problem(checked.last_seq == 0) {
                sums.problem_count += 1;
                report(whole_problem(format!("{}: {what}", place.display())));
            }
        }
        Ok(sums)
    }

    async fn check_catalogue(&self, report: &mut (impl FnMut(OfflineEvent) + Send)) -> Result<CheckSummary> {
        report(OfflineEvent::Database(None));
        let place = self.directory.join(CATALOGUE_DIRECTORY);
        let explained = |event| report(explain(event, keys::describe_name));
        Ok(settee_store::check(&self.env, &place, &self.store_options(true), explained).await?)
    }

    /// Compares the files of a run of a backup with its list, without their contents. Returns the list
    /// without the files that differ, or an empty list if this isn't a run; `None` if the run is incomplete,
    /// and its files need no further check.
    async fn check_run(
        &self,
        sums: &mut CheckSummary,
        report: &mut (impl FnMut(OfflineEvent) + Send),
    ) -> Result<Option<Contents>> {
        let DirectoryKind::Run { is_complete } = self.kind else { return Ok(Some(Contents::default())) };
        let mut emit = |what: String| {
            sums.problem_count += 1;
            report(whole_problem(what));
        };
        if !is_complete {
            emit(runs::incomplete_reason(&self.directory));
            return Ok(None);
        }
        let mut contents = match Contents::read(&self.env, &self.directory).await {
            Ok(contents) => contents.unwrap_or_default(),
            // The databases can be checked without the list.
            Err(error) if error.kind() == ErrorKind::Internal => {
                emit(error.to_string());
                return Ok(Some(Contents::default()));
            }
            Err(error) => return Err(error),
        };
        for (path, what) in contents.differences(&self.env, &self.directory).await? {
            emit(format!("{}: {what}", self.directory.join(&path).display()));
            contents.files.remove(&path);
        }
        for FailedDatabase { name, reason, .. } in &contents.failed {
            emit(format!("the database {name} isn't in this run, since it could not be copied: {reason}"));
        }
        Ok(Some(contents))
    }

    /// Reads the chosen files of a run, and compares their checksums with the list.
    async fn check_checksums(
        &self,
        run: &Contents,
        is_chosen: impl Fn(&Path) -> bool,
        sums: &mut CheckSummary,
        report: &mut (impl FnMut(OfflineEvent) + Send),
    ) -> Result<()> {
        let chosen = || run.files.iter().filter(|(path, _)| is_chosen(Path::new(path)));
        let (mut done, all) = (0, chosen().map(|(_, file)| file.length).sum());
        for (path, file) in chosen() {
            let place = self.directory.join(path);
            let what = match checksum_file(&self.env, &place).await {
                Ok(found) if found == file.checksum => None,
                Ok(_) => Some(format!("{}: {}", place.display(), runs::OTHER_CHECKSUM)),
                Err(error) => Some(error.to_string()),
            };
            if let Some(what) = what {
                sums.problem_count += 1;
                report(whole_problem(what));
            }
            done += file.length;
            report(OfflineEvent::Progress(done, all));
        }
        Ok(())
    }

    /// Salvages all databases into the new directory `to`, an absolute path. The source is not changed.
    /// Reports problems, including those that a check finds, and losses. Returns the sums; records of the
    /// catalogue aren't counted.
    ///
    /// # Errors
    /// `BadRequest` if `to` isn't empty, or lies in a data directory or a backup; or the system's error: then
    /// `to` holds a part.
    pub async fn repair(
        &self,
        to: &Path,
        mut report: impl FnMut(OfflineEvent) + Send,
    ) -> Result<RepairSummary> {
        runs::check_surroundings(&self.env, to).await?;
        if !directory::list(&*self.env.engine, to).await?.is_empty() {
            return Err(Error::bad_request(format!("{} is not empty", to.display())));
        }
        directory::create(&*self.env.engine, to).await?;
        let _lock = lock(&self.env, to).await?;
        let mut sums = RepairSummary::default();
        let mut checked = CheckSummary::default();
        let run = self.check_run(&mut checked, &mut report).await?.unwrap_or_default();
        self.check_checksums(&run, |_| true, &mut checked, &mut report).await?;
        add(&mut checked, &self.check_catalogue(&mut report).await?);
        sums.problem_count += checked.problem_count;
        let all = self.find().await?;
        let (catalogue, _) =
            Store::open(&self.env, &to.join(CATALOGUE_DIRECTORY), self.store_options(true)).await?;
        for found in all.iter().filter(|found| !run.lacks(found.directory_number)) {
            report(OfflineEvent::Database(Some(found.name.clone())));
            let (from, to) = (
                directory_of(&self.directory, found.directory_number),
                directory_of(to, found.directory_number),
            );
            let mut cut = BTreeSet::new();
            let done = {
                let report = std::sync::Mutex::new(&mut report);
                let emit = |event| (report.lock().unwrap_or_else(std::sync::PoisonError::into_inner))(event);
                let mut event = |event| emit(explain(event, keys::describe));
                let mut lost = |Loss { key, has_older, .. }: Loss| {
                    cut.extend(keys::document_of_chunk(&key));
                    emit(OfflineEvent::Lost { what: keys::describe(&key), has_older });
                };
                settee_store::repair(&self.env, &from, &to, &self.store_options(false), &mut event, &mut lost)
                    .await?
            };
            if !cut.is_empty() {
                let lost = |id: &str, name: &str| {
                    let what = format!("attachment {name:?} of document {id:?}, which is there without it");
                    report(OfflineEvent::Lost { what, has_older: false });
                };
                salvage::drop_cut_attachments(&self.env, &to, self.store_options(false), &cut, lost).await?;
            }
            let is_empty = done.record_count == 0 && {
                let checked =
                    settee_store::check(&self.env, &from, &self.store_options(false), |_| ()).await?;
                checked.last_seq == 0
            };
            if let Some(what) = found.problem(is_empty) {
                sums.problem_count += 1;
                report(whole_problem(format!("{}: {what}", from.display())));
            }
            sums.record_count += done.record_count;
            sums.lost_count += done.lost_count;
            sums.problem_count += done.problem_count;
            let entry = CatalogueEntry {
                // Its updates are renumbered, and some may be lost: clients that follow it and replications
                // must start again.
                created_us: self.env.clock.unix_us(),
                directory_number: found.directory_number,
                incarnation: self.env.random_bytes(),
                was_written: done.record_count > 0,
                is_partitioned: found.entry.is_some_and(|entry| entry.is_partitioned),
            };
            let mut batch = Batch::new();
            batch.put(found.name.as_bytes(), &entry.encode(), Bytes::new(), false);
            catalogue.writer().await.commit(&batch, Stage::Accepted).await?;
        }
        catalogue.close().await?;
        Ok(sums)
    }
}

/// A problem that affects a whole database, or a whole run.
fn whole_problem(what: String) -> OfflineEvent {
    OfflineEvent::Problem { what, touched: "all of it".to_owned(), is_doubtful: false }
}

impl FoundDatabase {
    /// Its path relative to the data directory.
    fn directory(&self) -> PathBuf {
        directory_of(Path::new(""), self.directory_number)
    }

    /// A contradiction between the catalogue and the database's directory.
    fn problem(&self, is_empty: bool) -> Option<&'static str> {
        match self.entry {
            None => Some("the catalogue names no database here"),
            Some(entry) if entry.was_written && is_empty => Some("the files of this database are gone"),
            Some(_) => None,
        }
    }
}

fn explain(event: CheckEvent, describe: fn(&[u8]) -> String) -> OfflineEvent {
    let problem = match event {
        CheckEvent::Progress(done, all) => return OfflineEvent::Progress(done, all),
        CheckEvent::Timelines(timelines) => {
            let restored = timelines.iter().skip(1).map(|timeline| timeline.after.0.to_string());
            let restored = restored.collect::<Vec<_>>().join(", ");
            return OfflineEvent::Note(format!("its log was restored from a backup after update {restored}"));
        }
        CheckEvent::Problem(problem) => problem,
    };
    let touched = match &problem.touched {
        Touched::Nothing => "no document: it can be rebuilt from the rest".to_owned(),
        Touched::Unknown => "unknown: documents that other problems name, or any".to_owned(),
        Touched::OldVersion(key) => format!("a version of {}", describe(key)),
        Touched::Key(key) => describe(key),
        Touched::IndexOf(start, end) => {
            let end = end.as_ref().map_or("the last".to_owned(), |end| format!("before {}", describe(end)));
            let start = if start.is_empty() { "the first".to_owned() } else { describe(start) };
            format!("lookups from {start} up to {end}: the values themselves are stored elsewhere")
        }
    };
    OfflineEvent::Problem { what: problem.to_string(), touched, is_doubtful: problem.is_doubtful }
}

fn add(sums: &mut CheckSummary, one: &CheckSummary) {
    sums.file_count += one.file_count;
    sums.bytes += one.bytes;
    sums.record_count += one.record_count;
    sums.entry_count += one.entry_count;
    sums.problem_count += one.problem_count;
    sums.doubtful_count += one.doubtful_count;
}
