//! Restoring a run of a backup into a new data folder.
//!
//! What the run's file `complete` names is compared with what is there before anything is copied, and what
//! is in the files while they are. The catalogue is copied under another name, where it gets new
//! incarnations, and gets its own name last: without it a part of the databases isn't taken for all of them.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use settee_io::{Env, File, OpenMode, folder};
use settee_store::{Batch, LogOptions, Stage, Store, copy_file};

use super::catalogue::{Entry, deleted_number};
use super::offline::plain_options;
use super::runs::{self, Contents, FailedDatabase, Kind};
use super::{CATALOGUE_FOLDER, DATABASES_FOLDER};
use crate::{Error, ErrorKind, Result};

/// Differences that an error names.
const NAMED_MAX: usize = 10;

/// Databases that get a new incarnation by one commit.
const RENEWED_AT_ONCE: usize = 1000;

/// The catalogue's folder until all is restored.
const UNFINISHED_CATALOGUE: &str = "catalogue.unfinished";

/// Runs of earlier versions have this file. A restored copy is another server: both may run.
const SERVER_IDENTITY_FILE: &str = "server-uuid";

/// What was restored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RestoreSummary {
    /// The run.
    pub run: PathBuf,
    /// Bytes that were copied.
    pub bytes: u64,
    /// What an operator should know of the run.
    pub note: Option<&'static str>,
    /// Databases that the run doesn't have: requests for them get an error that names the folder, until
    /// that is put there from another run, or they are deleted.
    pub failed: Vec<FailedDatabase>,
}

/// Copies a run of a backup, or the newest whole one in a backup's folder, to a new data folder, whose path
/// is absolute. Nothing is shared with the backup. What is copied is compared with the run's checksums.
///
/// The copy's databases are new incarnations, created now: followers of those that were backed up begin
/// anew, and replications give their checkpoints up. The identity of the server isn't restored.
///
/// # Errors
/// `BadRequest` where `to` isn't empty, or lies in another data folder or a backup; `NotFound` where there is
/// no whole run; `Internal` where the run isn't as it was made: then nothing is left of what was copied; or
/// what the system says: then `to` may hold a part, without a catalogue.
pub async fn restore(env: &Env, backup: &Path, to: &Path) -> Result<RestoreSummary> {
    let engine = &*env.engine;
    let run = choose(env, backup).await?;
    let contents = Contents::read(env, &run).await?;
    let contents = contents.ok_or_else(|| Error::new(ErrorKind::NotFound, runs::not_whole(&run)))?;
    let differences = contents.differences(env, &run).await?;
    if !differences.is_empty() {
        return Err(damaged(&run, &differences));
    }
    runs::check_surroundings(env, to).await?;
    if !folder::list(engine, to).await?.is_empty() {
        return Err(Error::bad_request(format!("{} is not empty", to.display())));
    }
    let differences = copy_files(env, &run, &contents, to).await?;
    if !differences.is_empty() {
        folder::remove_with_files(engine, &to.join(UNFINISHED_CATALOGUE)).await?;
        runs::remove(env, to).await?;
        return Err(damaged(&run, &differences));
    }
    renew(env, &to.join(UNFINISHED_CATALOGUE), &contents).await?;
    // Last: where it is missing, so may be others.
    folder::rename(engine, &to.join(UNFINISHED_CATALOGUE), &to.join(CATALOGUE_FOLDER)).await?;
    folder::sync(engine, to).await?;
    let bytes = contents.files.values().map(|file| file.length).sum();
    let note = (!contents.has_checksums()).then_some(runs::NO_CHECKSUMS);
    Ok(RestoreSummary { run, bytes, note, failed: contents.failed })
}

/// Copies the files of a run, but for the server's identity; the catalogue under another name. Returns
/// those that differ from the list, with what is wrong with each.
async fn copy_files(env: &Env, run: &Path, contents: &Contents, to: &Path) -> Result<Vec<(String, String)>> {
    let engine = &*env.engine;
    let place_of = |path: &str| match Path::new(path).strip_prefix(CATALOGUE_FOLDER) {
        Ok(name) => to.join(UNFINISHED_CATALOGUE).join(name),
        Err(_) => to.join(path),
    };
    let files = || contents.files.iter().filter(|(path, _)| *path != SERVER_IDENTITY_FILE);
    let mut folders: BTreeSet<PathBuf> =
        files().filter_map(|(path, _)| Some(place_of(path).parent()?.to_path_buf())).collect();
    folders.extend([to.join(DATABASES_FOLDER), to.join(UNFINISHED_CATALOGUE)]);
    for folder in &folders {
        folder::create(engine, folder).await?;
    }
    let mut differences = Vec::new();
    for (path, file) in files() {
        let copied = copy_file(env, &run.join(path), &place_of(path)).await?;
        if file.checksum.is_some_and(|checksum| checksum != copied) {
            differences.push((path.clone(), runs::OTHER_CHECKSUM.to_owned()));
        }
    }
    for folder in &folders {
        folder::sync(engine, folder).await?;
    }
    Ok(differences)
}

/// Says that a run differs from its list.
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
         NEW_FOLDER` salvages what can be read of this one",
        run.display(),
        named.join("; "),
        run.display()
    );
    Error::new(ErrorKind::Internal, reason)
}

/// The run that is meant.
async fn choose(env: &Env, backup: &Path) -> Result<PathBuf> {
    match Kind::of(env, backup).await? {
        Kind::Run { is_whole: true } => return Ok(backup.to_path_buf()),
        Kind::Run { is_whole: false } => {
            return Err(Error::new(ErrorKind::NotFound, runs::not_whole(backup)));
        }
        _ => {}
    }
    let runs = runs::runs(env, backup).await?;
    let whole = runs.into_iter().rev().find(|run| run.is_whole);
    let none =
        || Error::new(ErrorKind::NotFound, format!("there is no whole backup in {}", backup.display()));
    Ok(whole.ok_or_else(none)?.path)
}

/// Gives the databases of a restored catalogue new incarnations. It also notes of those that the run doesn't
/// have that they held something: none of them is then opened as an empty one.
async fn renew(env: &Env, catalogue: &Path, contents: &Contents) -> Result<()> {
    let options = plain_options(LogOptions::DEFAULT);
    let (catalogue, _) = Store::open(env, catalogue, options).await?;
    let created_us = env.clock.unix_us();
    let (mut batch, mut count) = (Batch::new(), 0);
    let mut scan = catalogue.snapshot().scan(Bound::Unbounded, Bound::Unbounded, false);
    while let Some(found) = scan.next().await? {
        if deleted_number(found.key).is_some() {
            continue;
        }
        let entry = Entry::decode(found.meta)?;
        let was_written = entry.was_written || contents.lacks(entry.folder_number);
        let entry = Entry { created_us, incarnation: env.random_bytes(), was_written, ..entry };
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

/// Copies a small file, where it is there.
pub(super) async fn copy_other(env: &Env, from: &Path, to: &Path) -> Result<()> {
    let from = match File::open(&env.engine, from, OpenMode::Read).await {
        Err(error) if error.is_not_found() => return Ok(()),
        opened => opened?,
    };
    let bytes = from.read_at(0, from.length().await? as usize).await?;
    let to = File::open(&env.engine, to, OpenMode::CreateNew).await?;
    Ok(to.write_and_sync_at(0, bytes).await?)
}
