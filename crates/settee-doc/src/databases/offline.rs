//! The databases in a folder while no server has it: whether they are sound, and what of damaged ones
//! can be had.
//!
//! Nothing is opened, since that would change files: the catalogue too is read as what can be salvaged
//! of it. The folder's lock is held meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use settee_io::{Env, File, OpenMode, folder};
use settee_store::{
    Batch, CheckEvent, CheckSummary, Flags, LogOptions, Loss, RepairSummary, Salvage, Stage, Store,
    StoreOptions, Touched,
};

use super::catalogue::{Entry, deleted_number};
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
}

/// The databases in a folder that no server has.
pub struct OfflineDatabases {
    env: Env,
    folder: PathBuf,
    options: DatabasesOptions,
    _lock: File,
}

/// A database, as its catalogue has it, or without one.
struct Found {
    name: String,
    folder_number: u64,
    entry: Option<Entry>,
}

impl OfflineDatabases {
    /// Takes the folder's lock.
    ///
    /// # Errors
    /// `NotFound` where there is no such folder, or no databases in it; `Internal` where a server has
    /// it; or what the system says.
    pub async fn open(env: &Env, folder: &Path, options: DatabasesOptions) -> Result<OfflineDatabases> {
        let entries = folder::list(&*env.engine, folder).await?;
        if !entries
            .iter()
            .any(|entry| entry.is_folder && [CATALOGUE_FOLDER, DATABASES_FOLDER].contains(&&*entry.name))
        {
            let reason = format!("there are no databases in {}", folder.display());
            return Err(Error::new(ErrorKind::NotFound, reason));
        }
        let lock = super::lock(env, folder).await?;
        Ok(OfflineDatabases { env: env.clone(), folder: folder.to_path_buf(), options, _lock: lock })
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
        let all = self.find().await?;
        if let Some(name) = database
            && !all.iter().any(|found| found.name == name)
        {
            return Err(Error::no_database());
        }
        if database.is_none() {
            told(OfflineEvent::Database(None));
            let place = self.folder.join(CATALOGUE_FOLDER);
            let options = self.store_options(true);
            let explained = |event| told(explain(event, keys::describe_name));
            let checked = settee_store::check(&self.env, &place, &options, explained);
            add(&mut sums, &checked.await?);
        }
        for found in all.iter().filter(|found| database.is_none_or(|name| found.name == name)) {
            told(OfflineEvent::Database(Some(found.name.clone())));
            let place = folder_of(&self.folder, found.folder_number);
            if found.entry.is_none() {
                problem(
                    &mut sums,
                    &mut told,
                    format!("{}: the catalogue names no database here", place.display()),
                );
            }
            let options = self.store_options(false);
            let explained = |event| told(explain(event, keys::describe));
            let checked = settee_store::check(&self.env, &place, &options, explained);
            let checked = checked.await?;
            add(&mut sums, &checked);
            if found.entry.is_some_and(|entry| entry.was_written) && checked.last_seq == 0 {
                problem(
                    &mut sums,
                    &mut told,
                    format!("{}: the files of this database are gone", place.display()),
                );
            }
        }
        Ok(sums)
    }

    /// Salvages all databases into the new folder `to`. This one is left as it is. What is wrong and
    /// what is lost is told. Returns the sums, the catalogue not counted.
    ///
    /// # Errors
    /// `BadRequest` where `to` isn't empty; or what the system says: then `to` holds a part.
    pub async fn repair(
        &self,
        to: &Path,
        mut told: impl FnMut(OfflineEvent) + Send,
    ) -> Result<RepairSummary> {
        if !folder::list(&*self.env.engine, to).await?.is_empty() {
            return Err(Error::bad_request(format!("{} is not empty", to.display())));
        }
        folder::create(&*self.env.engine, to).await?;
        let _lock = super::lock(&self.env, to).await?;
        let all = self.find().await?;
        let mut sums = RepairSummary::default();
        let (catalogue, _) =
            Store::open(&self.env, &to.join(CATALOGUE_FOLDER), self.store_options(true)).await?;
        for found in &all {
            told(OfflineEvent::Database(Some(found.name.clone())));
            let (from, to) =
                (folder_of(&self.folder, found.folder_number), folder_of(to, found.folder_number));
            let done = {
                let told = std::sync::Mutex::new(&mut told);
                let tell = |event| (told.lock().unwrap_or_else(std::sync::PoisonError::into_inner))(event);
                let mut event = |event| tell(explain(event, keys::describe));
                let mut lost = |Loss { key, has_older, .. }: Loss| {
                    tell(OfflineEvent::Lost { what: keys::describe(&key), has_older });
                };
                settee_store::repair(&self.env, &from, &to, &self.store_options(false), &mut event, &mut lost)
                    .await?
            };
            sums.record_count += done.record_count;
            sums.lost_count += done.lost_count;
            sums.problem_count += done.problem_count;
            let entry = Entry {
                created_us: found.entry.map_or_else(|| self.env.clock.unix_us(), |entry| entry.created_us),
                folder_number: found.folder_number,
                // Its updates have other numbers now: whoever followed it begins anew.
                incarnation: self.env.random_bytes(),
                was_written: done.record_count > 0,
            };
            let mut batch = Batch::new();
            batch.put(found.name.as_bytes(), &entry.encode(), Bytes::new(), false);
            catalogue.writer().await.commit(&batch, Stage::Accepted).await?;
        }
        catalogue.close().await?;
        Ok(sums)
    }
}

fn plain_options(log: LogOptions) -> StoreOptions {
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
    match lock.lock().await {
        Ok(()) => Ok(lock),
        Err(error) if error.io_kind() == Some(std::io::ErrorKind::WouldBlock) => {
            let reason = format!("{} is in use by another process", folder.display());
            Err(Error::new(ErrorKind::Internal, reason))
        }
        Err(error) => Err(error.into()),
    }
}

fn problem(sums: &mut CheckSummary, told: &mut impl FnMut(OfflineEvent), what: String) {
    sums.problem_count += 1;
    told(OfflineEvent::Problem { what, touched: "all of it".to_owned(), is_doubtful: false });
}

fn explain(event: CheckEvent, describe: fn(&[u8]) -> String) -> OfflineEvent {
    let problem = match event {
        CheckEvent::Progress(done, all) => return OfflineEvent::Progress(done, all),
        CheckEvent::Problem(problem) => problem,
    };
    let touched = match &problem.touched {
        Touched::Nothing => "no document: it can be made anew from the rest".to_owned(),
        Touched::Unknown => "what else is told of this file".to_owned(),
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
