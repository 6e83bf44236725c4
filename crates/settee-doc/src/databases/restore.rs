//! Restoring a run of a backup into a new data folder.
//!
//! What the run's file `complete` names is compared with what is there before anything is copied. The
//! catalogue comes last: without it a part of the databases isn't taken for all of them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use settee_io::{Env, File, OpenMode, folder};
use settee_store::{Batch, LogOptions, Stage, Store, copy_store};

use super::catalogue::Entry;
use super::offline::plain_options;
use super::runs::{self, Contents, FailedDatabase, Kind};
use super::{CATALOGUE_FOLDER, DATABASES_FOLDER};
use crate::{Error, ErrorKind, Result};

/// Differences that an error names.
const NAMED_MAX: usize = 10;

/// What was restored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RestoreSummary {
    /// The run.
    pub run: PathBuf,
    /// Bytes that were copied.
    pub bytes: u64,
    /// Databases that the run doesn't have: requests for them get an error that names the folder, until
    /// that is put there from another run, or they are deleted.
    pub failed: Vec<FailedDatabase>,
}

/// Copies a run of a backup, or the newest whole one in a backup's folder, to a new data folder, whose path
/// is absolute. Nothing is shared with the backup. That the run has all of its files, at their lengths, is
/// verified before; what is in them isn't: that [`super::OfflineDatabases::check`] does.
///
/// # Errors
/// `BadRequest` where `to` isn't empty, or lies in another data folder or a backup; `NotFound` where there is
/// no whole run; `Internal` where the run isn't as it was made: then nothing was copied; or what the system
/// says.
pub async fn restore(env: &Env, backup: &Path, to: &Path) -> Result<RestoreSummary> {
    let engine = &*env.engine;
    let run = choose(env, backup).await?;
    let contents = Contents::read(env, &run).await?;
    let contents = contents.ok_or_else(|| Error::new(ErrorKind::NotFound, runs::not_whole(&run)))?;
    let differences = contents.differences(env, &run).await?;
    if !differences.is_empty() {
        let named = differences.iter().take(NAMED_MAX);
        let named: Vec<String> = named.map(|(path, what)| format!("{}: {what}", path.display())).collect();
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
        return Err(Error::new(ErrorKind::Internal, reason));
    }
    runs::check_surroundings(env, to).await?;
    if !folder::list(engine, to).await?.is_empty() {
        return Err(Error::bad_request(format!("{} is not empty", to.display())));
    }
    let mut bytes = 0;
    let folders: BTreeSet<&Path> =
        contents.files.keys().filter_map(|path| Path::new(path).parent()).collect();
    folder::create(engine, &to.join(DATABASES_FOLDER)).await?;
    for place in folders.into_iter().filter(|place| place.starts_with(DATABASES_FOLDER)) {
        bytes += copy_store(env, &run.join(place), &to.join(place)).await?;
    }
    for path in contents.files.keys().filter(|path| !path.contains('/')) {
        copy_other(env, &run.join(path), &to.join(path)).await?;
    }
    // Last: where it is missing, so may be others.
    bytes += copy_store(env, &run.join(CATALOGUE_FOLDER), &to.join(CATALOGUE_FOLDER)).await?;
    note_missing(env, to, &contents.failed).await?;
    folder::sync(engine, &to.join(DATABASES_FOLDER)).await?;
    folder::sync(engine, to).await?;
    Ok(RestoreSummary { run, bytes, failed: contents.failed })
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

/// Has the new catalogue know that databases which aren't there held something: none of them is then
/// opened as an empty one.
async fn note_missing(env: &Env, to: &Path, failed: &[FailedDatabase]) -> Result<()> {
    if failed.is_empty() {
        return Ok(());
    }
    let options = plain_options(LogOptions::DEFAULT);
    let (catalogue, _) = Store::open(env, &to.join(CATALOGUE_FOLDER), options).await?;
    for FailedDatabase { name, folder_number, .. } in failed {
        let mut writer = catalogue.writer().await;
        let Some(found) = writer.get(name.as_bytes()).await? else { continue };
        let entry = Entry::decode(&found.meta)?;
        if entry.folder_number == *folder_number && !entry.was_written {
            let mut batch = Batch::new();
            let entry = Entry { was_written: true, ..entry };
            batch.put(name.as_bytes(), &entry.encode(), Bytes::new(), false);
            writer.commit(&batch, Stage::Accepted).await?;
        }
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
