//! Upgrade: converts a data directory that the version before wrote to a new one in the present format.
//!
//! The databases are converted one by one (`convert`), compared with their originals (`verify`), and entered in
//! the new catalogue, which has another name until all are there: without a catalogue, a part isn't mistaken for
//! all databases. An interrupted upgrade continues if it is started again; until it has ended, the file
//! [`UNFINISHED_FILE`] says which files it reads, and no server opens the new directory.
//!
//! Documents with all leaves and their paths, attachments, local documents, limits and purge infos are kept.
//! Updates are numbered anew under new incarnations: clients that followed the originals start over.
//!
//! Invariants:
//! 1. The previous directory is only read. Its lock is held meanwhile, unless it is on a read-only medium.
//! 2. A database is in the new catalogue only after all of its records were compared with the previous ones.
//! 3. Of a database with damage nothing is entered.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use settee_io::{Env, File, OpenMode, directory};
use settee_store::{
    Batch, CheckEvent, LogOptions, Salvage, Stage, Store, StoreOptions, copy_file, is_previous_format,
};

use super::catalogue_entry::CatalogueEntry;
use super::data_directory::{
    CATALOGUE_DIRECTORY, DATABASES_DIRECTORY, LOCK_FILE, directory_of, lock, lock_if_writable,
};
use super::offline_catalogue::{Entries, plain_options, read_entries};
use super::runs::{self, DirectoryKind};
use crate::database::{Database, Identity, stored_revs_limit};
use crate::documents::keys;
use crate::{Error, ErrorKind, Result};
use convert::Conversion;
use verify::compare;

mod convert;
mod verify;

/// File in the new directory until the upgrade is complete.
pub(super) const UNFINISHED_FILE: &str = "upgrade.unfinished";

/// The catalogue's directory until the upgrade is complete.
const UNFINISHED_CATALOGUE: &str = "catalogue.unfinished";

const MAGIC: &str = "settee upgrade 1";

/// An event during an upgrade.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpgradeEvent {
    /// The next database.
    Database(String),
    /// The next step for this database.
    Step(UpgradeStep),
    /// How much of this step is done, and all of it: bytes if the step is a check, otherwise segments.
    Progress(u64, u64),
    /// What the operator should know of the previous directory.
    Note(String),
}

/// A step in the conversion of a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpgradeStep {
    /// Every byte of the previous files is checked.
    Check,
    /// The records are copied.
    Copy,
    /// The paths that have more than sixteen revisions are encoded anew.
    Convert,
    /// The new records are compared with the previous ones.
    Compare,
    /// Garbage is removed.
    Compact,
}

/// The result of an upgrade.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UpgradeSummary {
    /// All databases.
    pub database_count: u64,
    /// Those that an earlier, interrupted upgrade had converted. They aren't counted in what follows.
    pub earlier_count: u64,
    /// Documents of the others, deleted ones included.
    pub document_count: u64,
}

/// Converts the data directory `from`, which the version before wrote and no process uses, to the new directory
/// `to`, an absolute path; or continues with that. `files` are names of files that are copied too, if they are
/// there. Calls `report` for each event as it occurs.
///
/// # Errors
/// `NotFound` if there are no databases in `from`; `BadRequest` if it is a backup, or `to` isn't empty and has no
/// interrupted upgrade of the same files, or lies in a data directory or a backup; `InUse`; `Internal` for damage
/// in `from`, or a record that isn't the same after the conversion; or the system's error. Then `to` holds a
/// part, with which the next call continues, and `from` is unchanged.
pub async fn upgrade(
    env: &Env,
    from: &Path,
    to: &Path,
    files: &[&str],
    report: impl FnMut(UpgradeEvent) + Send,
) -> Result<UpgradeSummary> {
    let engine = &*env.engine;
    check_is_previous(env, from).await?;
    runs::check_surroundings(env, to).await?;
    if to == from {
        return Err(Error::bad_request("the directories are the same"));
    }
    if to.starts_with(from) {
        return Err(Error::bad_request(format!("{} lies in {}", to.display(), from.display())));
    }
    let previous_lock = lock_if_writable(env, from).await?;
    let is_new = is_empty(env, to).await?;
    if !is_new && read_file(env, &to.join(UNFINISHED_FILE)).await?.is_none() {
        let to = to.display();
        return Err(Error::bad_request(format!(
            "{to} is not empty: an upgrade into it has ended, or never began"
        )));
    }
    directory::create(engine, to).await?;
    let _lock = lock(env, to).await?;
    begin(env, from, to).await?;
    let report: Report<'_> = Mutex::new(Box::new(report));
    let upgrade = Upgrade { env, from, to, report };
    if previous_lock.is_none() {
        let text =
            format!("{} couldn't be locked: no other process may write to it meanwhile", from.display());
        upgrade.report(UpgradeEvent::Note(text));
    }
    let mut summary = UpgradeSummary::default();
    if directory::list(engine, to).await?.iter().all(|entry| entry.name != CATALOGUE_DIRECTORY) {
        upgrade.convert_all(&mut summary).await?;
        for name in files {
            upgrade.copy_file(name).await?;
        }
        directory::sync(engine, to).await?;
        // Last: its absence marks an incomplete upgrade.
        directory::rename(engine, &to.join(UNFINISHED_CATALOGUE), &to.join(CATALOGUE_DIRECTORY)).await?;
        directory::sync(engine, to).await?;
    }
    directory::remove(engine, &to.join(UNFINISHED_FILE)).await?;
    directory::sync(engine, to).await?;
    Ok(summary)
}

/// Refuses a directory in which an upgrade has not ended.
///
/// # Errors
/// `BadRequest`.
pub(super) async fn refuse_unfinished(env: &Env, directory: &Path) -> Result<()> {
    let Some(_) = read_file(env, &directory.join(UNFINISHED_FILE)).await? else { return Ok(()) };
    let directory = directory.display();
    Err(Error::bad_request(format!(
        "the upgrade into {directory} was interrupted: `settee upgrade OLD {directory}` continues it"
    )))
}

/// The contents of a small file; `None` if there is none.
async fn read_file(env: &Env, path: &Path) -> Result<Option<Bytes>> {
    let file = match File::open(&env.engine, path, OpenMode::Read).await {
        Err(error) if error.is_not_found() => return Ok(None),
        opened => opened?,
    };
    let length = file.length().await?.min(4096);
    Ok(Some(file.read_exact_at(0, length as usize).await?))
}

async fn is_empty(env: &Env, directory_path: &Path) -> Result<bool> {
    let entries = directory::list(&*env.engine, directory_path).await?;
    // A crash may have left no more than these.
    Ok(entries.iter().all(|entry| [LOCK_FILE, UNFINISHED_FILE].contains(&&*entry.name)))
}

/// Refuses a run of a backup that the version before made.
///
/// # Errors
/// `BadRequest`.
pub(super) async fn refuse_previous_run(env: &Env, run: &Path) -> Result<()> {
    if !is_previous_format(env, &run.join(CATALOGUE_DIRECTORY)).await? {
        return Ok(());
    }
    let run = run.display();
    Err(Error::bad_request(format!(
        "{run} was made by an earlier version: restore it with that version, and convert what it restored with \
         `settee upgrade`"
    )))
}

/// Refuses a data directory that the version before wrote, and names the command that converts it.
///
/// # Errors
/// `BadRequest`.
pub(super) async fn refuse_previous(env: &Env, directory: &Path) -> Result<()> {
    if !is_previous_format(env, &directory.join(CATALOGUE_DIRECTORY)).await? {
        return Ok(());
    }
    let directory = directory.display();
    Err(Error::bad_request(format!(
        "{directory} was written by an earlier version, and no database in it was changed: `settee upgrade {directory} \
         NEW_DIRECTORY` converts it"
    )))
}

/// Fails unless `from` is a data directory that the version before wrote.
async fn check_is_previous(env: &Env, from: &Path) -> Result<()> {
    let place = from.display();
    match DirectoryKind::of(env, from).await? {
        DirectoryKind::Data if is_previous_format(env, &from.join(CATALOGUE_DIRECTORY)).await? => Ok(()),
        DirectoryKind::Data => Err(Error::bad_request(format!(
            "the catalogue of {place} isn't in the format of the version before: it may be in the present one \
             already, or missing, or damaged. Nothing was upgraded"
        ))),
        DirectoryKind::Run { .. } | DirectoryKind::Backup => Err(Error::bad_request(format!(
            "{place} is a backup: restore it with the version that made it, and upgrade what was restored"
        ))),
        DirectoryKind::Other => {
            Err(Error::new(ErrorKind::NotFound, format!("there are no databases in {place}")))
        }
    }
}

/// Records which files are read, or compares that with what an interrupted upgrade recorded.
async fn begin(env: &Env, from: &Path, to: &Path) -> Result<()> {
    let path = to.join(UNFINISHED_FILE);
    let content = format!("{MAGIC}\nfiles {}\n", fingerprint(env, from).await?);
    match read_file(env, &path).await? {
        Some(found) if found == content.as_bytes() => Ok(()),
        Some(_) if !is_empty(env, to).await? => {
            let (from, to) = (from.display(), to.display());
            Err(Error::bad_request(format!(
                "{to} holds an interrupted upgrade of other files than those that are in {from} now: remove it, \
                 and start anew"
            )))
        }
        _ => {
            let file = File::open(&env.engine, &path, OpenMode::Create).await?;
            file.set_length(0).await?;
            file.write_and_sync_at(0, Bytes::from(content)).await?;
            Ok(directory::sync(&*env.engine, to).await?)
        }
    }
}

/// Identifies the files of the databases and of the catalogue, and their contents as of now.
async fn fingerprint(env: &Env, from: &Path) -> Result<String> {
    let engine = &*env.engine;
    let mut directories = vec![from.join(CATALOGUE_DIRECTORY)];
    let databases = directory::list(engine, &from.join(DATABASES_DIRECTORY)).await?;
    for entry in databases.into_iter().filter(|entry| entry.is_directory) {
        directories.push(from.join(DATABASES_DIRECTORY).join(entry.name));
    }
    let mut listing = BTreeMap::new();
    for place in directories {
        for entry in directory::list(engine, &place).await? {
            let path = place.join(entry.name);
            let file = File::open(&env.engine, &path, OpenMode::Read).await?;
            listing.insert(path, (file.length().await?, file.identity().await?));
        }
    }
    let mut hasher = blake3::Hasher::new();
    for (path, (length, identity)) in listing {
        let path = path.strip_prefix(from).unwrap_or(&path).display();
        hasher.update(format!("{path} {length} {}\n", identity.modified_ns).as_bytes());
    }
    Ok(hasher.finalize().to_hex().to_string())
}

type Report<'a> = Mutex<Box<dyn FnMut(UpgradeEvent) + Send + 'a>>;

/// An upgrade in progress.
struct Upgrade<'a> {
    env: &'a Env,
    from: &'a Path,
    to: &'a Path,
    report: Report<'a>,
}

/// What a check of previous files found.
#[derive(Default)]
struct Problems {
    count: u64,
    first: String,
}

impl Upgrade<'_> {
    fn report(&self, event: UpgradeEvent) {
        (self.report.lock().unwrap_or_else(PoisonError::into_inner))(event);
    }

    /// Counts the damage that a check reports, and reports its progress.
    fn observe(&self, event: CheckEvent, problems: &Mutex<Problems>) {
        match event {
            CheckEvent::Progress(done, all) => self.report(UpgradeEvent::Progress(done, all)),
            CheckEvent::Timelines(_) => {}
            CheckEvent::Problem(problem) if problem.is_doubtful => self.report(UpgradeEvent::Note(format!(
                "{problem}. This was left out: if a crash caused it, it was never acknowledged, and the version that \
                 wrote it leaves it out too"
            ))),
            CheckEvent::Problem(problem) => {
                let mut problems = problems.lock().unwrap_or_else(PoisonError::into_inner);
                if problems.count == 0 {
                    problems.first = problem.to_string();
                }
                problems.count += 1;
            }
        }
    }

    async fn convert_all(&self, summary: &mut UpgradeSummary) -> Result<()> {
        let (env, options) = (self.env, plain_options(LogOptions::DEFAULT));
        let Entries { names, deleted, unreadable_count } = {
            let problems = Mutex::default();
            let mut observe = |event| self.observe(event, &problems);
            let place = self.from.join(CATALOGUE_DIRECTORY);
            let mut previous = Salvage::begin_previous(env, &place, &options, &mut observe).await?;
            check(&problems, "the catalogue", self.from)?;
            read_entries(&mut previous).await?
        };
        if unreadable_count > 0 {
            let reason = format!("{unreadable_count} entries of the catalogue can't be decoded");
            return Err(Error::new(ErrorKind::Internal, reason));
        }
        let known: BTreeSet<u64> =
            names.values().map(|entry| entry.directory_number).chain(deleted).collect();
        for entry in directory::list(&*env.engine, &self.from.join(DATABASES_DIRECTORY)).await? {
            if entry.name.parse().is_ok_and(|number| !known.contains(&number)) {
                let reason = format!(
                    "the catalogue names no database in {DATABASES_DIRECTORY}/{}: the end of the catalogue may be \
                     lost. `settee check --repair NEW_DIRECTORY` of the version that wrote it gives such databases \
                     names; or move that directory away",
                    entry.name
                );
                return Err(Error::new(ErrorKind::Internal, reason));
            }
        }
        directory::create(&*env.engine, &self.to.join(UNFINISHED_CATALOGUE)).await?;
        let (catalogue, _) = Store::open(env, &self.to.join(UNFINISHED_CATALOGUE), options).await?;
        for (name, entry) in names {
            summary.database_count += 1;
            if catalogue.snapshot().get(name.as_bytes()).await?.is_some() {
                summary.earlier_count += 1;
                continue;
            }
            self.report(UpgradeEvent::Database(name.clone()));
            let (document_count, was_written) = self.convert(&name, &entry).await?;
            summary.document_count += document_count;
            let entry = CatalogueEntry {
                created_us: env.clock.unix_us(),
                incarnation: env.random_bytes(),
                was_written,
                ..entry
            };
            let mut batch = Batch::new();
            batch.put(name.as_bytes(), &entry.encode(), Bytes::new(), false);
            catalogue.writer().await.commit(&batch, Stage::Persisted).await?;
        }
        Ok(catalogue.close().await?)
    }

    /// Converts a database, and compares it with the previous one. Returns the number of its documents, and whether
    /// it has data.
    async fn convert(&self, name: &str, entry: &CatalogueEntry) -> Result<(u64, bool)> {
        let directory_of = |data: &Path| directory_of(data, entry.directory_number);
        let (from, to) = (directory_of(self.from), directory_of(self.to));
        if directory::list(&*self.env.engine, &from).await?.is_empty() {
            if !entry.was_written {
                return Ok((0, false));
            }
            return Err(gone(name, &from));
        }
        let options = StoreOptions { aggregate: Some(keys::aggregate), ..plain_options(LogOptions::DEFAULT) };
        let problems = Mutex::default();
        let mut observe = |event| self.observe(event, &problems);
        self.report(UpgradeEvent::Step(UpgradeStep::Check));
        let mut previous = Salvage::begin_previous(self.env, &from, &options, &mut observe).await?;
        check(&problems, &format!("the database {name}"), self.from)?;
        let has_data = previous.last_seq() > 0;
        if entry.was_written && !has_data {
            return Err(gone(name, &from));
        }
        let total = previous.segment_count() as u64;
        let progress = |count| self.report(UpgradeEvent::Progress(count as u64, total));

        let (store, _) = Store::open(self.env, &to, options.clone()).await?;
        let mut conversion = Conversion::new(&store);
        // Otherwise an interrupted upgrade has got that far.
        if !conversion.was_compared().await? {
            self.report(UpgradeEvent::Step(UpgradeStep::Copy));
            conversion.copy(&mut previous, progress).await?;
            self.report(UpgradeEvent::Step(UpgradeStep::Convert));
            conversion.convert_paths().await?;
            self.report(UpgradeEvent::Step(UpgradeStep::Compare));
            let snapshot = store.snapshot();
            let revs_limit = stored_revs_limit(&snapshot).await?;
            compare(&mut previous, &snapshot, revs_limit, progress)
                .await
                .map_err(|error| Error::new(error.kind(), format!("the database {name}: {error}")))?;
            conversion.set_compared().await?;
        }
        conversion.remove_scratch().await?;
        store.close().await?;

        self.report(UpgradeEvent::Step(UpgradeStep::Compact));
        // Leaves that were copied as they were are garbage now, and are never looked for as replaced revisions.
        let identity =
            Identity { created_us: 0, incarnation: entry.incarnation, is_partitioned: entry.is_partitioned };
        let database = Database::open(self.env, &to, name, identity, options.clone()).await?;
        let compacted = database.compact().await;
        database.close().await?;
        compacted?;
        let (store, _) = Store::open(self.env, &to, options).await?;
        Conversion::new(&store).end().await?;
        let aggregates = store.snapshot().total_aggregates();
        store.close().await?;
        Ok((aggregates[keys::AGGREGATE_DOCUMENTS] + aggregates[keys::AGGREGATE_DELETED], has_data))
    }

    /// Copies a file of the data directory, if it is there.
    async fn copy_file(&self, name: &str) -> Result<()> {
        let (from, to) = (self.from.join(name), self.to.join(name));
        match directory::remove(&*self.env.engine, &to).await {
            Err(error) if !error.is_not_found() => return Err(error.into()),
            _ => {}
        }
        let is_there =
            directory::list(&*self.env.engine, self.from).await?.iter().any(|entry| entry.name == name);
        if is_there {
            copy_file(self.env, &from, &to).await?;
        }
        Ok(())
    }
}

/// The error for a database that has data according to the catalogue.
fn gone(name: &str, from: &Path) -> Error {
    let reason = format!(
        "the files of the database {name} are gone from {}: put them back, or delete it with the version that wrote it",
        from.display()
    );
    Error::new(ErrorKind::Internal, reason)
}

/// Fails if a check found damage.
fn check(problems: &Mutex<Problems>, what: &str, from: &Path) -> Result<()> {
    let problems = problems.lock().unwrap_or_else(PoisonError::into_inner);
    if problems.count == 0 {
        return Ok(());
    }
    let (Problems { count, first }, from) = (&*problems, from.display());
    let reason = format!(
        "{what} is damaged, and nothing of it was converted. Problems: {count}. The first is: {first}. `settee check {from} \
         --repair NEW_DIRECTORY` of the version that wrote it salvages what can be read, and that can be upgraded"
    );
    Err(Error::new(ErrorKind::Internal, reason))
}
