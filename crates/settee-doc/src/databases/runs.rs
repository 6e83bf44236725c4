//! The runs of a backup on disk.
//!
//! A backup's directory holds runs, `000001`, `000002`, …, each a complete data directory; files that two
//! runs share are hard links. A run in progress has the file `unfinished`, locked by its writer; at the end
//! it is atomically renamed to `complete`, with the list of the run's files in it.
//!
//! Invariants:
//! 1. A run is complete if and only if it has the file `complete`, which always holds the whole list.
//! 2. `complete` lists every file of the run's databases and its catalogue, with its length and checksum.
//! 3. An interrupted run is removed only if it has the file `unfinished`, and no process holds its lock.
//!
//! Bytes: `docs/format.md`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use settee_io::{Env, File, FileIdentity, OpenMode, directory};
use settee_store::{BackupFile, BackupFiles, checksum_file};

use super::data_directory::{CATALOGUE_DIRECTORY, DATABASES_DIRECTORY, LOCK_FILE};
use crate::{Error, ErrorKind, Result};

/// Name of the file in a complete run.
pub(super) const COMPLETE_FILE: &str = "complete";

/// Name of the file in a run that is in progress or was interrupted.
pub(super) const UNFINISHED_FILE: &str = "unfinished";

/// What the first line of the list begins with, before the version.
const MAGIC: &str = "settee backup ";

/// Version of the list that this code writes.
const LIST_VERSION: u32 = 4;

/// Largest list of a run's files in bytes: some five million files.
const LIST_SIZE_MAX: u64 = 1 << 30;

/// Smallest number of digits of a run's name.
const RUN_DIGITS: usize = 6;

/// A database that a run lacks, since it could not be copied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedDatabase {
    /// Its name.
    pub name: String,
    /// Why it could not be copied.
    pub reason: String,
    /// The number of its directory.
    pub(super) directory_number: u64,
}

/// The contents of the file `complete`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Contents {
    pub(super) made_us: u64,
    /// The files, by their paths in the run.
    pub(super) files: BackupFiles,
    pub(super) failed: Vec<FailedDatabase>,
}

/// Why bytes are not the list of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ListError {
    /// They are damaged, and how.
    Damaged(&'static str),
    /// They are a whole list of another version.
    Version(u32),
}

fn checksum(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex()[..32].to_owned()
}

impl Contents {
    pub(super) fn encode(&self) -> String {
        let mut text = format!("{MAGIC}{LIST_VERSION}\nmade {}\n", self.made_us);
        for FailedDatabase { name, reason, directory_number } in &self.failed {
            let line = serde_json::json!([directory_number, name, reason]);
            writeln!(text, "failed {line}").expect("a String grows");
        }
        for (path, BackupFile { length, checksum, source }) in &self.files {
            let source = source.map_or("-".to_owned(), |source| {
                format!("{}:{}:{}", source.device, source.inode, source.modified_ns)
            });
            writeln!(text, "file {length} {checksum} {source} {path}").expect("a String grows");
        }
        let checksum = checksum(&text);
        writeln!(text, "checksum {checksum}").expect("a String grows");
        text
    }

    /// Decodes the result of [`Contents::encode`].
    pub(super) fn decode(bytes: &[u8]) -> Result<Contents, ListError> {
        let damaged = ListError::Damaged;
        let text = std::str::from_utf8(bytes).map_err(|_| damaged("it isn't text"))?;
        let (body, last) = text.split_at(text.rfind("checksum ").ok_or(damaged("it has no checksum"))?);
        if last.strip_prefix("checksum ").and_then(|rest| rest.strip_suffix('\n')) != Some(&checksum(body)) {
            return Err(damaged("its checksum doesn't match"));
        }
        let version = body.lines().next().and_then(|line| line.strip_prefix(MAGIC)?.parse().ok());
        match version.ok_or(damaged("it isn't the list of a run"))? {
            LIST_VERSION => {}
            version => return Err(ListError::Version(version)),
        }
        let mut contents = Contents::default();
        for line in body.lines().skip(1) {
            contents.take(line).ok_or(damaged("a line is malformed"))?;
        }
        Ok(contents)
    }

    fn take(&mut self, line: &str) -> Option<()> {
        let (what, rest) = line.split_once(' ')?;
        match what {
            "made" => self.made_us = rest.parse().ok()?,
            "file" => {
                let mut parts = rest.splitn(4, ' ');
                let (length, checksum) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
                let file = BackupFile { length, checksum, source: parse_source(parts.next()?)? };
                let path = parts.next()?;
                let is_within = path.split('/').all(|part| !["", ".", ".."].contains(&part));
                is_within.then(|| self.files.insert(path.to_owned(), file))?;
            }
            "failed" => {
                let (directory_number, name, reason) = serde_json::from_str(rest).ok()?;
                self.failed.push(FailedDatabase { name, reason, directory_number });
            }
            _ => return None,
        }
        Some(())
    }

    /// Lists the files of a run that doesn't change any more, made now. `known` has the checksums recorded by
    /// the copy, by path; the remaining files, which are small, are read.
    pub(super) async fn of(
        env: &Env,
        run: &Path,
        known: &BackupFiles,
        failed: Vec<FailedDatabase>,
    ) -> Result<Contents> {
        let made_us = env.clock.unix_us();
        let mut contents = Contents { made_us, files: BackupFiles::new(), failed };
        for (path, length) in lengths(env, run).await? {
            let file = match known.get(&path) {
                Some(file) => *file,
                None => {
                    let checksum = checksum_file(env, &run.join(&path)).await?;
                    BackupFile { length, checksum, source: None }
                }
            };
            contents.files.insert(path, file);
        }
        Ok(contents)
    }

    /// The files in a directory of the run, by name.
    pub(super) fn in_directory(&self, directory: &Path) -> BackupFiles {
        let prefix = format!("{}/", directory.display());
        let within = self.files.range(prefix.clone()..).take_while(|(path, _)| path.starts_with(&prefix));
        within.map(|(path, file)| (path[prefix.len()..].to_owned(), *file)).collect()
    }

    /// Whether the database with this directory number could not be copied.
    pub(super) fn lacks(&self, directory_number: u64) -> bool {
        self.failed.iter().any(|failed| failed.directory_number == directory_number)
    }

    /// Reads the file `complete` of a run; `None` if it doesn't exist.
    ///
    /// # Errors
    /// `Internal` if it is damaged, or of another version; or the system's error.
    pub(super) async fn read(env: &Env, run: &Path) -> Result<Option<Contents>> {
        let path = run.join(COMPLETE_FILE);
        let file = match File::open(&env.engine, &path, OpenMode::Read).await {
            Err(error) if error.is_not_found() => return Ok(None),
            opened => opened?,
        };
        let length = file.length().await?.min(LIST_SIZE_MAX);
        let bytes = file.read_exact_at(0, length as usize).await?;
        let path = path.display();
        Contents::decode(&bytes).map(Some).map_err(|error| match error {
            ListError::Damaged(what) => Error::new(ErrorKind::Internal, format!("damaged: {path}: {what}")),
            ListError::Version(found) => {
                let reason = format!(
                    "{path} has format {found}; this version reads {LIST_VERSION}: restore the run with the \
                     version that made it"
                );
                Error::new(ErrorKind::Internal, reason)
            }
        })
    }

    /// Compares a run's files with this list: returns the path and a description of each file that is
    /// missing, has another length, or isn't listed. Files that belong to no database may come and go.
    /// Contents aren't read.
    pub(super) async fn differences(&self, env: &Env, run: &Path) -> Result<Vec<(String, String)>> {
        let found = lengths(env, run).await?;
        let mut differences = Vec::new();
        let mut differs = |path: &str, what: String| differences.push((path.to_owned(), what));
        for (path, BackupFile { length, .. }) in &self.files {
            match found.get(path) {
                None => differs(path, "it is missing: the run's file `complete` names it".to_owned()),
                Some(found) if found != length => {
                    differs(path, format!("it has {found} bytes, and had {length} when the run was made"));
                }
                Some(_) => {}
            }
        }
        for path in found.keys().filter(|path| path.contains('/') && !self.files.contains_key(*path)) {
            differs(path, "it wasn't there when the run was made".to_owned());
        }
        Ok(differences)
    }
}

/// The lengths in bytes of the files of a run's databases and catalogue, and of its top-level files.
async fn lengths(env: &Env, run: &Path) -> Result<BTreeMap<String, u64>> {
    let engine = &*env.engine;
    let mut directories = vec![String::new(), format!("{CATALOGUE_DIRECTORY}/")];
    for entry in directory::list(engine, &run.join(DATABASES_DIRECTORY)).await? {
        directories.push(format!("{DATABASES_DIRECTORY}/{}/", entry.name));
    }
    let mut files = BTreeMap::new();
    for directory_path in directories {
        for entry in directory::list(engine, &run.join(&directory_path)).await? {
            let is_marker = [COMPLETE_FILE, UNFINISHED_FILE, LOCK_FILE].contains(&&*entry.name);
            if !(entry.is_directory || (directory_path.is_empty() && is_marker)) {
                let path = format!("{directory_path}{}", entry.name);
                let file = File::open(&env.engine, &run.join(&path), OpenMode::Read).await?;
                files.insert(path, file.length().await?);
            }
        }
    }
    Ok(files)
}

/// The kind of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DirectoryKind {
    Data,
    Run {
        is_complete: bool,
    },
    /// A directory that holds runs.
    Backup,
    Other,
}

impl DirectoryKind {
    pub(super) async fn of(env: &Env, directory_path: &Path) -> Result<DirectoryKind> {
        let entries = directory::list(&*env.engine, directory_path).await?;
        let has = |name: &str| entries.iter().any(|entry| !entry.is_directory && entry.name == name);
        let has_databases = entries.iter().any(|entry| {
            entry.is_directory && [CATALOGUE_DIRECTORY, DATABASES_DIRECTORY].contains(&&*entry.name)
        });
        if has(COMPLETE_FILE) && has_databases {
            return Ok(DirectoryKind::Run { is_complete: true });
        }
        let has_run_name =
            directory_path.file_name().is_some_and(|name| is_run_name(&name.to_string_lossy()));
        if has(UNFINISHED_FILE) || (has_databases && has_run_name && !has(LOCK_FILE)) {
            return Ok(DirectoryKind::Run { is_complete: false });
        }
        if has_databases {
            return Ok(DirectoryKind::Data);
        }
        for entry in entries.iter().filter(|entry| entry.is_directory && is_run_name(&entry.name)) {
            let inside = directory::list(&*env.engine, &directory_path.join(&entry.name)).await?;
            if inside.iter().any(|entry| {
                [COMPLETE_FILE, UNFINISHED_FILE, DATABASES_DIRECTORY, CATALOGUE_DIRECTORY]
                    .contains(&&*entry.name)
            }) {
                return Ok(DirectoryKind::Backup);
            }
        }
        Ok(DirectoryKind::Other)
    }
}

pub(super) fn is_run_name(name: &str) -> bool {
    name.len() >= RUN_DIGITS && name.bytes().all(|byte| byte.is_ascii_digit())
}

/// Description of a file whose contents aren't those that were backed up.
pub(super) const OTHER_CHECKSUM: &str = "its checksum differs: it doesn't hold what was backed up";

/// `None` if it is malformed.
fn parse_source(text: &str) -> Option<Option<FileIdentity>> {
    if text == "-" {
        return Some(None);
    }
    let mut parts = text.splitn(3, ':');
    Some(Some(FileIdentity {
        device: parts.next()?.parse().ok()?,
        inode: parts.next()?.parse().ok()?,
        modified_ns: parts.next()?.parse().ok()?,
    }))
}

/// Description of a run without the file `complete`.
pub(super) fn incomplete_reason(run: &Path) -> String {
    format!(
        "this run isn't whole: it has no file `{COMPLETE_FILE}`, since its backup was interrupted, or is under \
         way; if it isn't, {} may be deleted",
        run.display()
    )
}

/// Refuses to open a run as a data directory.
///
/// # Errors
/// `BadRequest`.
pub(super) async fn refuse_run(env: &Env, directory_path: &Path) -> Result<()> {
    let DirectoryKind::Run { is_complete } = DirectoryKind::of(env, directory_path).await? else {
        return Ok(());
    };
    let directory_path = directory_path.display();
    Err(Error::bad_request(match is_complete {
        true => format!(
            "{directory_path} is a run of a backup, which shares files with other runs: make a data directory of it with \
             `settee restore {directory_path} NEW_DIRECTORY`"
        ),
        false => format!("{directory_path} is a run of a backup that was interrupted, and no data directory"),
    }))
}

/// Verifies that `place`, an absolute path, isn't inside a data directory, a run, or a directory of runs.
///
/// # Errors
/// `BadRequest`.
pub(super) async fn check_surroundings(env: &Env, directory_path: &Path) -> Result<()> {
    for around in directory_path.ancestors().skip(1) {
        // A directory that can't be listed isn't ours, or can't be written to either.
        let Ok(kind) = DirectoryKind::of(env, around).await else { continue };
        let is_locked = || async {
            let entries = directory::list(&*env.engine, around).await.unwrap_or_default();
            entries.iter().any(|entry| entry.name == LOCK_FILE)
        };
        let what = match kind {
            DirectoryKind::Run { .. } => "which is a run of a backup",
            DirectoryKind::Backup => "which holds the runs of a backup",
            // Other directories may have a subdirectory called `databases`.
            DirectoryKind::Data if is_locked().await => "which is a data directory",
            DirectoryKind::Data | DirectoryKind::Other => continue,
        };
        let reason =
            format!("{} lies in {}, {what}: choose another", directory_path.display(), around.display());
        return Err(Error::bad_request(reason));
    }
    Ok(())
}

/// A run in a backup's directory.
pub(super) struct Run {
    pub(super) number: u64,
    pub(super) path: PathBuf,
    pub(super) is_complete: bool,
}

/// The runs in a backup's directory, in ascending order.
pub(super) async fn runs(env: &Env, backup: &Path) -> Result<Vec<Run>> {
    let mut runs = Vec::new();
    for entry in directory::list(&*env.engine, backup).await? {
        let Some(number) = entry.name.parse().ok().filter(|_| entry.is_directory && is_run_name(&entry.name))
        else {
            continue;
        };
        let path = backup.join(&entry.name);
        let inside = directory::list(&*env.engine, &path).await?;
        let is_complete = inside.iter().any(|entry| entry.name == COMPLETE_FILE);
        runs.push(Run { number, path, is_complete });
    }
    runs.sort_by_key(|run| run.number);
    Ok(runs)
}

/// Begins a run: creates its directory and the file `unfinished`, which stays locked while the returned file
/// is open.
///
/// # Errors
/// `Conflict` if another process begins the same run; or the system's error.
pub(super) async fn begin(env: &Env, run: &Path) -> Result<File> {
    directory::create(&*env.engine, &run.join(DATABASES_DIRECTORY)).await?;
    let another = || Error::new(ErrorKind::Conflict, "Another backup is begun in the same directory.");
    let unfinished = match File::open(&env.engine, &run.join(UNFINISHED_FILE), OpenMode::CreateNew).await {
        Err(error) if error.io_kind() == Some(std::io::ErrorKind::AlreadyExists) => return Err(another()),
        opened => opened?,
    };
    unfinished.lock().await.map_err(|_| another())?;
    directory::sync(&*env.engine, run).await?;
    Ok(unfinished)
}

/// Completes a run, after all its other files have reached stable storage.
pub(super) async fn complete(env: &Env, run: &Path, unfinished: &File, contents: &Contents) -> Result<()> {
    let engine = &*env.engine;
    directory::sync(engine, &run.join(DATABASES_DIRECTORY)).await?;
    directory::sync(engine, run).await?;
    unfinished.write_and_sync_at(0, contents.encode().into()).await?;
    directory::rename(engine, &run.join(UNFINISHED_FILE), &run.join(COMPLETE_FILE)).await?;
    Ok(directory::sync(engine, run).await?)
}

/// Removes an interrupted run; `false` if it may be in progress, or lacks the file `unfinished`.
pub(super) async fn remove_interrupted(env: &Env, run: &Path) -> Result<bool> {
    let unfinished = match File::open(&env.engine, &run.join(UNFINISHED_FILE), OpenMode::Write).await {
        Err(error) if error.is_not_found() => return Ok(false),
        opened => opened?,
    };
    match unfinished.lock().await {
        Err(error) if error.io_kind() == Some(std::io::ErrorKind::WouldBlock) => return Ok(false),
        locked => locked?,
    }
    // The file `unfinished` is removed last.
    remove(env, run).await?;
    Ok(true)
}

/// Removes a directory of databases with all its contents.
pub(super) async fn remove(env: &Env, directory_path: &Path) -> Result<()> {
    let engine = &*env.engine;
    let databases = directory_path.join(DATABASES_DIRECTORY);
    for entry in directory::list(engine, &databases).await? {
        directory::remove_with_files(engine, &databases.join(&entry.name)).await?;
    }
    directory::remove_with_files(engine, &databases).await?;
    directory::remove_with_files(engine, &directory_path.join(CATALOGUE_DIRECTORY)).await?;
    Ok(directory::remove_with_files(engine, directory_path).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_golden_bytes_and_a_modified_one_is_refused() {
        let failed = FailedDatabase { name: "a\"b".into(), reason: "two\nlines".into(), directory_number: 7 };
        let source = Some(FileIdentity { device: 1, inode: 2, modified_ns: -3 });
        let log = BackupFile { length: 4096, checksum: [0xab; 32].into(), source };
        let other = BackupFile { length: 0, checksum: [1; 32].into(), source: None };
        let files = BTreeMap::from([("catalogue/0000000001.log".to_owned(), log), ("x y".to_owned(), other)]);
        let contents = Contents { made_us: 12, files, failed: vec![failed] };
        let text = contents.encode();
        let (of_log, of_other) = ("ab".repeat(32), "01".repeat(32));
        let body = format!(
            "settee backup 4\nmade 12\nfailed [7,\"a\\\"b\",\"two\\nlines\"]\n\
             file 4096 {of_log} 1:2:-3 catalogue/0000000001.log\nfile 0 {of_other} - x y\nchecksum "
        );
        assert!(text.starts_with(&body) && text.len() == body.len() + 33, "{text}");
        assert_eq!(Contents::decode(text.as_bytes()), Ok(contents));
        for at in 0..text.len() {
            let mut changed = text.clone().into_bytes();
            changed[at] ^= 1;
            assert!(Contents::decode(&changed).is_err(), "at {at}");
            assert!(Contents::decode(&text.as_bytes()[..at]).is_err(), "cut at {at}");
        }
        for path in ["../x", "/x", "databases//x", "."] {
            let files = BTreeMap::from([(path.to_owned(), other)]);
            let text = Contents { files, ..Contents::default() }.encode();
            assert_eq!(
                Contents::decode(text.as_bytes()),
                Err(ListError::Damaged("a line is malformed")),
                "{path}"
            );
        }
    }

    #[test]
    fn a_list_of_another_version_is_distinguished_from_damage() {
        for version in [2, 3, 5] {
            let body = format!("settee backup {version}\nmade 12\n");
            let text = format!("{body}checksum {}\n", checksum(&body));
            assert_eq!(Contents::decode(text.as_bytes()), Err(ListError::Version(version)));
        }
    }
}
