//! Restoring a run of a backup into a new data directory.
//!
//! The list in the run's file `complete` is compared with the existing files before anything is copied, and
//! with their contents during the copy. Then each copied log starts a new timeline, so that no file that the
//! original or another copy writes from now on is taken for one of the copy's. The catalogue is copied under
//! another name, gets new incarnations there, and gets its own name last: without it, an incomplete copy isn't
//! mistaken for all databases.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use settee_io::{Env, directory};
use settee_store::{Batch, LogOptions, OpenError, Stage, Store, StoreError, copy_file, start_timeline};

use super::catalogue_entry::{CatalogueEntry, tombstone_number};
use super::data_directory::{CATALOGUE_DIRECTORY, DATABASES_DIRECTORY};
use super::offline_catalogue::plain_options;
use super::runs::{self, Contents, DirectoryKind, FailedDatabase};
use super::upgrade::refuse_previous_run;
use crate::{Error, ErrorKind, Result};

/// Largest number of differences that an error lists.
const NAMED_MAX: usize = 10;

/// Databases that get a new incarnation by one commit.
const RENEWED_AT_ONCE: usize = 1000;

/// The catalogue's directory until the restore is complete.
const UNFINISHED_CATALOGUE: &str = "catalogue.unfinished";

/// Runs of earlier versions have this file. A restored copy is another server, and both may run.
const SERVER_IDENTITY_FILE: &str = "server-uuid";

/// The result of a restore.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RestoreSummary {
    /// The run.
    pub run: PathBuf,
    /// Number of bytes copied.
    pub bytes: u64,
    /// Databases that the run lacks: requests for them fail with an error that names the directory, until the
    /// directory is restored from another run, or the database is deleted.
    pub failed: Vec<FailedDatabase>,
    /// Directories of databases that were damaged when they were backed up, each with the damage. Requests for them
    /// fail; `settee check --repair` salvages what can be read. They are on the timeline of the original.
    pub damaged: Vec<(PathBuf, String)>,
}

/// Copies a run of a backup, or the newest complete one in a backup's directory, to a new data directory with
/// an absolute path. Nothing is shared with the backup. The copied files are compared with the run's
/// checksums.
///
/// The copied databases are new incarnations, created now: clients that followed the originals start again,
/// and replications discard their checkpoints. The server's identity isn't restored.
///
/// # Errors
/// `BadRequest` if `to` isn't empty, or lies in another data directory or a backup, or an earlier version made the
/// run; `NotFound` if there is no
/// complete run; `Internal` if the run was modified: then the copied files are removed; or the system's
/// error: then `to` may hold a part, without a catalogue.
pub async fn restore(env: &Env, backup: &Path, to: &Path) -> Result<RestoreSummary> {
    let engine = &*env.engine;
    let run = choose(env, backup).await?;
    refuse_previous_run(env, &run).await?;
    let contents = Contents::read(env, &run).await?;
    let contents = contents.ok_or_else(|| Error::new(ErrorKind::NotFound, runs::incomplete_reason(&run)))?;
    let differences = contents.differences(env, &run).await?;
    if !differences.is_empty() {
        return Err(damaged(&run, &differences));
    }
    runs::check_surroundings(env, to).await?;
    if !directory::list(engine, to).await?.is_empty() {
        return Err(Error::bad_request(format!("{} is not empty", to.display())));
    }
    let differences = copy_files(env, &run, &contents, to).await?;
    if !differences.is_empty() {
        directory::remove_with_files(engine, &to.join(UNFINISHED_CATALOGUE)).await?;
        runs::remove(env, to).await?;
        return Err(damaged(&run, &differences));
    }
    let damaged = start_timelines(env, &contents, to).await?;
    renew(env, &to.join(UNFINISHED_CATALOGUE), &contents).await?;
    // Last: its absence marks an incomplete restore.
    directory::rename(engine, &to.join(UNFINISHED_CATALOGUE), &to.join(CATALOGUE_DIRECTORY)).await?;
    directory::sync(engine, to).await?;
    let bytes = contents.files.values().map(|file| file.length).sum();
    Ok(RestoreSummary { run, bytes, failed: contents.failed, damaged })
}

/// The path of a run's file in a restore that isn't complete.
fn place_of(to: &Path, path: &str) -> PathBuf {
    match Path::new(path).strip_prefix(CATALOGUE_DIRECTORY) {
        Ok(name) => to.join(UNFINISHED_CATALOGUE).join(name),
        Err(_) => to.join(path),
    }
}

/// Starts a new timeline in each copied log. One that was damaged before it was backed up stays as it is, and can't
/// be opened: returns their directories, each with the damage.
async fn start_timelines(env: &Env, contents: &Contents, to: &Path) -> Result<Vec<(PathBuf, String)>> {
    let within = contents.files.keys().filter(|path| path.contains('/'));
    let directories: BTreeSet<PathBuf> =
        within.filter_map(|path| Some(place_of(to, path).parent()?.to_path_buf())).collect();
    let mut damaged = Vec::new();
    for directory in directories {
        match start_timeline(env, &directory).await {
            Err(StoreError::Log(
                error @ (OpenError::Damaged(_) | OpenError::Missing { .. } | OpenError::Behind { .. }),
            )) => damaged.push((directory, error.to_string())),
            started => drop(started?),
        }
    }
    Ok(damaged)
}

/// Copies the files of a run, except the server's identity; the catalogue under another name. Returns the
/// files that differ from the list, each with its difference.
async fn copy_files(env: &Env, run: &Path, contents: &Contents, to: &Path) -> Result<Vec<(String, String)>> {
    let engine = &*env.engine;
    let place_of = |path: &str| place_of(to, path);
    let files = || contents.files.iter().filter(|(path, _)| *path != SERVER_IDENTITY_FILE);
    let mut directories: BTreeSet<PathBuf> =
        files().filter_map(|(path, _)| Some(place_of(path).parent()?.to_path_buf())).collect();
    directories.extend([to.join(DATABASES_DIRECTORY), to.join(UNFINISHED_CATALOGUE)]);
    for directory in &directories {
        directory::create(engine, directory).await?;
    }
    let mut differences = Vec::new();
    for (path, file) in files() {
        let copied = copy_file(env, &run.join(path), &place_of(path)).await?;
        if file.checksum != copied {
            differences.push((path.clone(), runs::OTHER_CHECKSUM.to_owned()));
        }
    }
    for directory in &directories {
        directory::sync(engine, directory).await?;
    }
    Ok(differences)
}

/// The error for a run that differs from its list.
fn damaged(run: &Path, differences: &[(String, String)]) -> Error {
    let named = differences.iter().take(NAMED_MAX);
    let named: Vec<String> =
        named.map(|(path, what)| format!("{}: {what}", run.join(path).display())).collect();
    let more = match differences.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        count => format!("; and {count} more"),
    };
    let reason = format!(
        "{} is damaged, and nothing was restored: {}{more}. Restore another run; `settee check {} --repair \
         NEW_DIRECTORY` salvages what can be read of this one",
        run.display(),
        named.join("; "),
        run.display()
    );
    Error::new(ErrorKind::Internal, reason)
}

/// The run to restore: `backup` itself, or its newest complete run.
async fn choose(env: &Env, backup: &Path) -> Result<PathBuf> {
    match DirectoryKind::of(env, backup).await? {
        DirectoryKind::Run { is_complete: true } => return Ok(backup.to_path_buf()),
        DirectoryKind::Run { is_complete: false } => {
            return Err(Error::new(ErrorKind::NotFound, runs::incomplete_reason(backup)));
        }
        _ => {}
    }
    let runs = runs::runs(env, backup).await?;
    let whole = runs.into_iter().rev().find(|run| run.is_complete);
    let none =
        || Error::new(ErrorKind::NotFound, format!("there is no whole backup in {}", backup.display()));
    Ok(whole.ok_or_else(none)?.path)
}

/// Gives the databases of a restored catalogue new incarnations. It also records that the databases which the
/// run lacks have data, so that none of them is opened as an empty one.
async fn renew(env: &Env, catalogue: &Path, contents: &Contents) -> Result<()> {
    let options = plain_options(LogOptions::DEFAULT);
    let (catalogue, _) = Store::open(env, catalogue, options).await?;
    let created_us = env.clock.unix_us();
    let (mut batch, mut count) = (Batch::new(), 0);
    let mut scan = catalogue.snapshot().scan(Bound::Unbounded, Bound::Unbounded, false);
    while let Some(found) = scan.next().await? {
        if tombstone_number(found.key).is_some() {
            continue;
        }
        let entry = CatalogueEntry::decode(found.meta)?;
        let was_written = entry.was_written || contents.lacks(entry.directory_number);
        let entry = CatalogueEntry { created_us, incarnation: env.random_bytes(), was_written, ..entry };
        batch.put(found.key, &entry.encode(), Bytes::new(), false);
        count += 1;
        if count % RENEWED_AT_ONCE == 0 {
            catalogue.writer().await.commit(&std::mem::take(&mut batch), Stage::Accepted).await?;
        }
    }
    drop(scan);
    if !batch.is_empty() {
        catalogue.writer().await.commit(&batch, Stage::Accepted).await?;
    }
    Ok(catalogue.close().await?)
}
