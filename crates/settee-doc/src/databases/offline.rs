//! The databases in a folder while no server has it: whether they are sound, and what of damaged ones
//! can be had.
//!
//! Nothing is opened, since that would change files: the catalogue too is read as what can be salvaged
//! of it. The folder's lock is held meanwhile, where it can be taken: not on a medium that can't be written.
//! In a run of a backup, which nobody opens, no lock is taken, so that nothing is left there; whether the
//! run is whole, and has all of its files, is checked first.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use settee_io::{Env, File, OpenMode, folder};
use settee_store::{
    Batch, CheckEvent, CheckSummary, Flags, LogOptions, Loss, RepairSummary, Salvage, Stage, Store,
    StoreOptions, Touched, checksum_file,
};

use super::catalogue::{Entry, deleted_number};
use super::runs::{self, Contents, FailedDatabase, Kind};
use super::salvage;
use super::{CATALOGUE_FOLDER, DATABASES_FOLDER, DatabasesOptions, LOCK_FILE, folder_of};
use crate::{Error, ErrorKind, Result, keys};

/// Names of databases that the catalogue doesn't tell any more begin with this.
const RECOVERED_PREFIX: &str = "recovered-";

/// What is told while databases are checked or repaired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OfflineEvent {
    /// This one is next; `None`: the catalogue.
    Database(Option<String>),
    /// So many of its bytes are done, of so many.
    Progress(u64, u64),
    /// Something is wrong with it.
    Problem {
        /// Where, and what, in words.
        what: String,
        /// Which documents that touches, in words.
        touched: String,
        /// It may as well be what a crash left: opening puts it right.
        is_doubtful: bool,
    },
    /// The newest version of this can't be read.
    Lost {
        /// What it is, in words.
        what: String,
        /// Whether an older version was kept.
        has_older: bool,
    },
    /// Something to know that is no problem.
    Note(String),
}

/// The databases in a folder that no server has.
pub struct OfflineDatabases {
    env: Env,
    folder: PathBuf,
    options: DatabasesOptions,
    kind: Kind,
    lock: Option<File>,
}

/// A database, as its catalogue has it, or without one.
struct Found {
    name: String,
    folder_number: u64,
    entry: Option<Entry>,
}

impl OfflineDatabases {
    /// Takes the folder's lock, where it can be written.
    ///
    /// # Errors
    /// `NotFound` where there is no such folder, or no databases in it; `InUse` where a server has it; or
    /// what the system says.
    pub async fn open(env: &Env, folder: &Path, options: DatabasesOptions) -> Result<OfflineDatabases> {
        let kind = Kind::of(env, folder).await?;
        let lock = match kind {
            Kind::Run { .. } => None,
            Kind::Data => lock_if_writable(env, folder).await?,
            Kind::Backup => {
                let reason = format!(
                    "there are no databases in {} itself: it holds the runs of a backup, each of which is a \
                     folder of its own",
                    folder.display()
                );
                return Err(Error::new(ErrorKind::NotFound, reason));
            }
            Kind::Other => {
                let reason = format!("there are no databases in {}", folder.display());
                return Err(Error::new(ErrorKind::NotFound, reason));
            }
        };
        Ok(OfflineDatabases { env: env.clone(), folder: folder.to_path_buf(), options, kind, lock })
    }

    /// Whether others are kept from opening the databases meanwhile. A run of a backup isn't opened by
    /// anybody.
    pub fn is_protected(&self) -> bool {
        self.lock.is_some() || matches!(self.kind, Kind::Run { .. })
    }

    fn store_options(&self, is_catalogue: bool) -> StoreOptions {
        let measure = if is_catalogue { None } else { Some(keys::measure as _) };
        StoreOptions { measure, ..plain_options(self.options.log) }
    }

    /// The databases that there are: those that the catalogue names, and folders that it doesn't name.
    async fn find(&self) -> Result<Vec<Found>> {
        let place = self.folder.join(CATALOGUE_FOLDER);
        let (names, deleted) = read_catalogue(&self.env, &place, self.options.log).await?;
        let known: BTreeSet<u64> = names.values().map(|entry| entry.folder_number).collect();
        let mut found: Vec<Found> = names
            .into_iter()
            .map(|(name, entry)| Found { name, folder_number: entry.folder_number, entry: Some(entry) })
            .collect();
        for entry in folder::list(&*self.env.engine, &self.folder.join(DATABASES_FOLDER)).await? {
            let Ok(folder_number) = entry.name.parse::<u64>() else { continue };
            if !known.contains(&folder_number) && !deleted.contains(&folder_number) {
                let name = format!("{RECOVERED_PREFIX}{folder_number}");
                found.push(Found { name, folder_number, entry: None });
            }
        }
        Ok(found)
    }

    /// Checks the catalogue and all databases, or the one of that name; nothing is changed. What is
    /// wrong is told as it is found. Returns the sums.
    ///
    /// # Errors
    /// `NotFound` where there is no database of that name; or what the system says. Damage is told, and
    /// is no error.
    pub async fn check(
        &self,
        database: Option<&str>,
        mut told: impl FnMut(OfflineEvent) + Send,
    ) -> Result<CheckSummary> {
        let mut sums = CheckSummary::default();
        let Some(run) = self.check_run(&mut sums, &mut told).await? else { return Ok(sums) };
        let all = self.find().await?;
        if let Some(name) = database
            && !all.iter().any(|found| found.name == name)
        {
            return Err(Error::no_database());
        }
        let chosen = |found: &&Found| database.is_none_or(|name| found.name == name);
        let folders: Vec<PathBuf> = all.iter().filter(chosen).map(Found::folder).collect();
        let is_chosen = |path: &Path| database.is_none() || folders.iter().any(|one| path.starts_with(one));
        self.check_checksums(&run, is_chosen, &mut sums, &mut told).await?;
        if database.is_none() {
            add(&mut sums, &self.check_catalogue(&mut told).await?);
        }
        for found in all.iter().filter(chosen) {
            if run.lacks(found.folder_number) {
                continue;
            }
            told(OfflineEvent::Database(Some(found.name.clone())));
            let place = folder_of(&self.folder, found.folder_number);
            let options = self.store_options(false);
            let explained = |event| told(explain(event, keys::describe));
            let checked = settee_store::check(&self.env, &place, &options, explained).await?;
            add(&mut sums, &checked);
            if let Some(what) = found.problem(checked.last_seq == 0) {
                sums.problem_count += 1;
                told(whole_problem(format!("{}: {what}", place.display())));
            }
        }
        Ok(sums)
    }

    async fn check_catalogue(&self, told: &mut (impl FnMut(OfflineEvent) + Send)) -> Result<CheckSummary> {
        told(OfflineEvent::Database(None));
        let place = self.folder.join(CATALOGUE_FOLDER);
        let explained = |event| told(explain(event, keys::describe_name));
        Ok(settee_store::check(&self.env, &place, &self.store_options(true), explained).await?)
    }

    /// Compares a run of a backup with its list of files, but for what they hold. Returns the list without
    /// the files that differ, an empty one where this is no run; `None` where the run isn't whole, and what
    /// it has isn't worth a look.
    async fn check_run(
        &self,
        sums: &mut CheckSummary,
        told: &mut (impl FnMut(OfflineEvent) + Send),
    ) -> Result<Option<Contents>> {
        let Kind::Run { is_whole } = self.kind else { return Ok(Some(Contents::default())) };
        let mut tell = |what: String| {
            sums.problem_count += 1;
            told(whole_problem(what));
        };
        if !is_whole {
            tell(runs::not_whole(&self.folder));
            return Ok(None);
        }
        let mut contents = match Contents::read(&self.env, &self.folder).await {
            Ok(contents) => contents.unwrap_or_default(),
            // All else can be checked without it.
            Err(error) if error.kind() == ErrorKind::Internal => {
                tell(error.to_string());
                return Ok(Some(Contents::default()));
            }
            Err(error) => return Err(error),
        };
        for (path, what) in contents.differences(&self.env, &self.folder).await? {
            tell(format!("{}: {what}", self.folder.join(&path).display()));
            contents.files.remove(&path);
        }
        for FailedDatabase { name, reason, .. } in &contents.failed {
            tell(format!("the database {name} isn't in this run, since it could not be copied: {reason}"));
        }
        if !contents.has_checksums() {
            told(OfflineEvent::Note(format!("{}: {}", self.folder.display(), runs::NO_CHECKSUMS)));
        }
        Ok(Some(contents))
    }

    /// Reads the files of a run that are chosen by their paths in it, and compares their checksums with the
    /// list.
    async fn check_checksums(
        &self,
        run: &Contents,
        is_chosen: impl Fn(&Path) -> bool,
        sums: &mut CheckSummary,
        told: &mut (impl FnMut(OfflineEvent) + Send),
    ) -> Result<()> {
        let chosen = || run.files.iter().filter(|(path, _)| is_chosen(Path::new(path)));
        let (mut done, all) = (0, chosen().map(|(_, file)| file.length).sum());
        for (path, file) in chosen() {
            let Some(checksum) = file.checksum else { continue };
            let place = self.folder.join(path);
            let what = match checksum_file(&self.env, &place).await {
                Ok(found) if found == checksum => None,
                Ok(_) => Some(format!("{}: {}", place.display(), runs::OTHER_CHECKSUM)),
                Err(error) => Some(error.to_string()),
            };
            if let Some(what) = what {
                sums.problem_count += 1;
                told(whole_problem(what));
            }
            done += file.length;
            told(OfflineEvent::Progress(done, all));
        }
        Ok(())
    }

    /// Salvages all databases into the new folder `to`, an absolute path. This one is left as it is. What is
    /// wrong and what is lost is told, with the problems that a check tells. Returns the sums; of the records
    /// the catalogue's aren't counted.
    ///
    /// # Errors
    /// `BadRequest` where `to` isn't empty, or lies in a data folder or a backup; or what the system says: then `to` holds a part.
    pub async fn repair(
        &self,
        to: &Path,
        mut told: impl FnMut(OfflineEvent) + Send,
    ) -> Result<RepairSummary> {
        runs::check_surroundings(&self.env, to).await?;
        if !folder::list(&*self.env.engine, to).await?.is_empty() {
            return Err(Error::bad_request(format!("{} is not empty", to.display())));
        }
        folder::create(&*self.env.engine, to).await?;
        let _lock = super::lock(&self.env, to).await?;
        let mut sums = RepairSummary::default();
        let mut checked = CheckSummary::default();
        let run = self.check_run(&mut checked, &mut told).await?.unwrap_or_default();
        self.check_checksums(&run, |_| true, &mut checked, &mut told).await?;
        add(&mut checked, &self.check_catalogue(&mut told).await?);
        sums.problem_count += checked.problem_count;
        let all = self.find().await?;
        let (catalogue, _) =
            Store::open(&self.env, &to.join(CATALOGUE_FOLDER), self.store_options(true)).await?;
        for found in all.iter().filter(|found| !run.lacks(found.folder_number)) {
            told(OfflineEvent::Database(Some(found.name.clone())));
            let (from, to) =
                (folder_of(&self.folder, found.folder_number), folder_of(to, found.folder_number));
            let mut cut = BTreeSet::new();
            let done = {
                let told = std::sync::Mutex::new(&mut told);
                let tell = |event| (told.lock().unwrap_or_else(std::sync::PoisonError::into_inner))(event);
                let mut event = |event| tell(explain(event, keys::describe));
                let mut lost = |Loss { key, has_older, .. }: Loss| {
                    cut.extend(keys::document_of_chunk(&key));
                    tell(OfflineEvent::Lost { what: keys::describe(&key), has_older });
                };
                settee_store::repair(&self.env, &from, &to, &self.store_options(false), &mut event, &mut lost)
                    .await?
            };
            if !cut.is_empty() {
                let lost = |id: &str, name: &str| {
                    let what = format!("attachment {name:?} of document {id:?}, which is there without it");
                    told(OfflineEvent::Lost { what, has_older: false });
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
                told(whole_problem(format!("{}: {what}", from.display())));
            }
            sums.record_count += done.record_count;
            sums.lost_count += done.lost_count;
            sums.problem_count += done.problem_count;
            let entry = Entry {
                // Its updates have other numbers now, and some may be lost: followers and replications
                // begin anew.
                created_us: self.env.clock.unix_us(),
                folder_number: found.folder_number,
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

pub(super) fn plain_options(log: LogOptions) -> StoreOptions {
    StoreOptions { log: LogOptions { direct: false, ..log }, ..StoreOptions::DEFAULT }
}

/// What a catalogue that nobody has open tells, as far as it can be read, and the numbers of deleted
/// databases.
pub(super) async fn read_catalogue(
    env: &Env,
    place: &Path,
    log: LogOptions,
) -> Result<(BTreeMap<String, Entry>, BTreeSet<u64>)> {
    let mut told = |_: CheckEvent| {};
    let mut salvage = Salvage::begin(env, place, &plain_options(log), &mut told).await?;
    let (mut names, mut deleted) = (BTreeMap::new(), BTreeSet::new());
    while let Some(records) = salvage.next().await? {
        for record in records {
            let is_gone = record.flags.has(Flags::TOMBSTONE);
            if let Some(number) = deleted_number(&record.key) {
                if is_gone {
                    deleted.remove(&number)
                } else {
                    deleted.insert(number)
                };
                continue;
            }
            let Ok(name) = String::from_utf8(record.key) else { continue };
            if is_gone {
                names.remove(&name);
            } else if let Ok(entry) = Entry::decode(&record.meta) {
                names.insert(name, entry);
            }
        }
    }
    Ok((names, deleted))
}

/// Takes a data folder's lock.
pub(super) async fn lock(env: &Env, folder: &Path) -> Result<File> {
    let lock = File::open(&env.engine, &folder.join(LOCK_FILE), OpenMode::Create).await?;
    take(lock, folder).await
}

/// The lock of a folder that can be written, or that has one.
async fn lock_if_writable(env: &Env, folder: &Path) -> Result<Option<File>> {
    let cannot_write = |error: &settee_io::Error| {
        let kinds = [std::io::ErrorKind::ReadOnlyFilesystem, std::io::ErrorKind::PermissionDenied];
        error.io_kind().is_some_and(|kind| kinds.contains(&kind))
    };
    let path = folder.join(LOCK_FILE);
    let file = match File::open(&env.engine, &path, OpenMode::Create).await {
        Err(error) if cannot_write(&error) => match File::open(&env.engine, &path, OpenMode::Read).await {
            Err(error) if cannot_write(&error) || error.is_not_found() => return Ok(None),
            opened => opened?,
        },
        opened => opened?,
    };
    take(file, folder).await.map(Some)
}

async fn take(lock: File, folder: &Path) -> Result<File> {
    match lock.lock().await {
        Ok(()) => Ok(lock),
        Err(error) if error.io_kind() == Some(std::io::ErrorKind::WouldBlock) => {
            let reason = format!("{} is in use by another process", folder.display());
            Err(Error::new(ErrorKind::InUse, reason))
        }
        Err(error) => Err(error.into()),
    }
}

/// Something is wrong with all of a database, or of a run.
fn whole_problem(what: String) -> OfflineEvent {
    OfflineEvent::Problem { what, touched: "all of it".to_owned(), is_doubtful: false }
}

impl Found {
    /// Its path in the data folder.
    fn folder(&self) -> PathBuf {
        folder_of(Path::new(""), self.folder_number)
    }

    /// What the catalogue and the database's folder say against each other.
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
        CheckEvent::Problem(problem) => problem,
    };
    let touched = match &problem.touched {
        Touched::Nothing => "no document: it can be made anew from the rest".to_owned(),
        Touched::Unknown => {
            "what this alone doesn't tell: documents that other problems name, or any".to_owned()
        }
        Touched::OldVersion(key) => format!("a version of {}", describe(key)),
        Touched::Key(key) => describe(key),
        Touched::IndexOf(start, end) => {
            let end = end.as_ref().map_or("the last".to_owned(), |end| format!("before {}", describe(end)));
            let start = if start.is_empty() { "the first".to_owned() } else { describe(start) };
            format!("looking up what lies from {start} up to {end}: the values themselves are elsewhere")
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
