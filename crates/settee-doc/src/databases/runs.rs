//! The runs of a backup, as they lie on the disk.
//!
//! A backup's folder holds runs, `000001`, `000002`, …, each a data folder by itself; what two of them
//! have in common is one file with several names. While a run is made it has the file `unfinished`, which
//! its maker locks; that becomes `complete`, in one step, with the list of the run's files in it.
//!
//! Invariants:
//! 1. A run counts if and only if it has the file `complete`, which is never there in part.
//! 2. `complete` names every file of the run's databases and its catalogue, with its length and checksum.
//! 3. An interrupted run is removed only where it has the file `unfinished`, and nobody has locked it.
//!
//! Bytes: `docs/format.md`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use settee_io::{Env, File, FileIdentity, OpenMode, folder};
use settee_store::{BackupFile, BackupFiles, checksum_file};

use super::{CATALOGUE_FOLDER, DATABASES_FOLDER, LOCK_FILE};
use crate::{Error, ErrorKind, Result};

/// Marks a run that is whole.
pub(super) const COMPLETE_FILE: &str = "complete";

/// Marks a run that is being made, or was interrupted.
pub(super) const UNFINISHED_FILE: &str = "unfinished";

const MAGIC: &str = "settee backup 3";

/// The list of a run that was made before checksums were recorded.
const MAGIC_WITHOUT_CHECKSUMS: &str = "settee backup 2";

/// A list of a run's files isn't longer, in bytes: some five million files.
const LIST_SIZE_MAX: u64 = 1 << 30;

/// Digits of a run's name, at least.
const RUN_DIGITS: usize = 6;

/// A database that a run doesn't have, though it was there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedDatabase {
    /// Its name.
    pub name: String,
    /// Why it could not be copied.
    pub reason: String,
    /// The number of its folder.
    pub(super) folder_number: u64,
}

/// What the file `complete` says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Contents {
    pub(super) made_us: u64,
    /// The files, by their paths in the run.
    pub(super) files: BackupFiles,
    pub(super) failed: Vec<FailedDatabase>,
}

fn checksum(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex()[..32].to_owned()
}

impl Contents {
    pub(super) fn encode(&self) -> String {
        let mut text = format!("{MAGIC}\nmade {}\n", self.made_us);
        for FailedDatabase { name, reason, folder_number } in &self.failed {
            let line = serde_json::json!([folder_number, name, reason]);
            writeln!(text, "failed {line}").expect("a String takes all");
        }
        for (path, BackupFile { length, checksum, source }) in &self.files {
            let checksum = checksum.expect("a run that is made has all checksums");
            let source = source.map_or("-".to_owned(), |source| {
                format!("{}:{}:{}", source.device, source.inode, source.modified_ns)
            });
            writeln!(text, "file {length} {checksum} {source} {path}").expect("a String takes all");
        }
        let checksum = checksum(&text);
        writeln!(text, "checksum {checksum}").expect("a String takes all");
        text
    }

    /// Reads what [`Contents::encode`] wrote; an error says what is wrong.
    pub(super) fn decode(bytes: &[u8]) -> Result<Contents, &'static str> {
        let text = std::str::from_utf8(bytes).map_err(|_| "it isn't text")?;
        let has_checksums = match text.lines().next() {
            Some(MAGIC) => true,
            Some(MAGIC_WITHOUT_CHECKSUMS) => false,
            _ => return Err("it has another format"),
        };
        let (body, last) = text.split_at(text.rfind("checksum ").ok_or("it has no checksum")?);
        if last.strip_prefix("checksum ").and_then(|rest| rest.strip_suffix('\n')) != Some(&checksum(body)) {
            return Err("its checksum doesn't match");
        }
        let mut contents = Contents::default();
        for line in body.lines().skip(1) {
            contents.take(line, has_checksums).ok_or("a line makes no sense")?;
        }
        Ok(contents)
    }

    fn take(&mut self, line: &str, has_checksums: bool) -> Option<()> {
        let (what, rest) = line.split_once(' ')?;
        match what {
            "made" => self.made_us = rest.parse().ok()?,
            "file" => {
                let (length, rest) = rest.split_once(' ')?;
                let mut file = BackupFile { length: length.parse().ok()?, checksum: None, source: None };
                let mut path = rest;
                if has_checksums {
                    let mut parts = rest.splitn(3, ' ');
                    file.checksum = Some(parts.next()?.parse().ok()?);
                    file.source = parse_source(parts.next()?)?;
                    path = parts.next()?;
                }
                let is_within = path.split('/').all(|part| !["", ".", ".."].contains(&part));
                is_within.then(|| self.files.insert(path.to_owned(), file))?;
            }
            "failed" => {
                let (folder_number, name, reason) = serde_json::from_str(rest).ok()?;
                self.failed.push(FailedDatabase { name, reason, folder_number });
            }
            _ => return None,
        }
        Some(())
    }

    /// Lists a run of now that nobody changes any more. `known` has what was recorded of its files when they
    /// were copied, by their paths; the others, which are small, are read.
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
                    let checksum = Some(checksum_file(env, &run.join(&path)).await?);
                    BackupFile { length, checksum, source: None }
                }
            };
            contents.files.insert(path, file);
        }
        Ok(contents)
    }

    /// The files in a folder of the run, by their names.
    pub(super) fn in_folder(&self, folder: &Path) -> BackupFiles {
        let prefix = format!("{}/", folder.display());
        let within = self.files.range(prefix.clone()..).take_while(|(path, _)| path.starts_with(&prefix));
        within.map(|(path, file)| (path[prefix.len()..].to_owned(), *file)).collect()
    }

    /// Whether the list tells what is in the files.
    pub(super) fn has_checksums(&self) -> bool {
        self.files.values().all(|file| file.checksum.is_some())
    }

    /// Whether the database in the folder of this number could not be copied.
    pub(super) fn lacks(&self, folder_number: u64) -> bool {
        self.failed.iter().any(|failed| failed.folder_number == folder_number)
    }

    /// Reads what the file `complete` of a run says; `None` where there is none.
    ///
    /// # Errors
    /// `Internal` where it is damaged; or what the system says.
    pub(super) async fn read(env: &Env, run: &Path) -> Result<Option<Contents>> {
        let path = run.join(COMPLETE_FILE);
        let file = match File::open(&env.engine, &path, OpenMode::Read).await {
            Err(error) if error.is_not_found() => return Ok(None),
            opened => opened?,
        };
        let length = file.length().await?.min(LIST_SIZE_MAX);
        let bytes = file.read_exact_at(0, length as usize).await?;
        let damaged = |what| Error::new(ErrorKind::Internal, format!("damaged: {}: {what}", path.display()));
        Contents::decode(&bytes).map(Some).map_err(damaged)
    }

    /// Where a run isn't as this says, each time with the file's path in it: what is missing, has another length,
    /// or is there beside it. Files that belong to no database may come and go. What the files hold isn't
    /// read.
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

/// The lengths in bytes of the files of a run's databases and its catalogue, and of those beside them.
async fn lengths(env: &Env, run: &Path) -> Result<BTreeMap<String, u64>> {
    let engine = &*env.engine;
    let mut folders = vec![String::new(), format!("{CATALOGUE_FOLDER}/")];
    for entry in folder::list(engine, &run.join(DATABASES_FOLDER)).await? {
        folders.push(format!("{DATABASES_FOLDER}/{}/", entry.name));
    }
    let mut files = BTreeMap::new();
    for place in folders {
        for entry in folder::list(engine, &run.join(&place)).await? {
            let is_mark = [COMPLETE_FILE, UNFINISHED_FILE, LOCK_FILE].contains(&&*entry.name);
            if !(entry.is_folder || (place.is_empty() && is_mark)) {
                let path = format!("{place}{}", entry.name);
                let file = File::open(&env.engine, &run.join(&path), OpenMode::Read).await?;
                files.insert(path, file.length().await?);
            }
        }
    }
    Ok(files)
}

/// What a folder is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Data,
    Run {
        is_whole: bool,
    },
    /// It holds runs.
    Backup,
    Other,
}

impl Kind {
    pub(super) async fn of(env: &Env, place: &Path) -> Result<Kind> {
        let entries = folder::list(&*env.engine, place).await?;
        let has = |name: &str| entries.iter().any(|entry| !entry.is_folder && entry.name == name);
        let has_databases = entries
            .iter()
            .any(|entry| entry.is_folder && [CATALOGUE_FOLDER, DATABASES_FOLDER].contains(&&*entry.name));
        if has(COMPLETE_FILE) && has_databases {
            return Ok(Kind::Run { is_whole: true });
        }
        let is_named_so = place.file_name().is_some_and(|name| is_run_name(&name.to_string_lossy()));
        if has(UNFINISHED_FILE) || (has_databases && is_named_so && !has(LOCK_FILE)) {
            return Ok(Kind::Run { is_whole: false });
        }
        if has_databases {
            return Ok(Kind::Data);
        }
        for entry in entries.iter().filter(|entry| entry.is_folder && is_run_name(&entry.name)) {
            let inside = folder::list(&*env.engine, &place.join(&entry.name)).await?;
            if inside.iter().any(|entry| {
                [COMPLETE_FILE, UNFINISHED_FILE, DATABASES_FOLDER, CATALOGUE_FOLDER].contains(&&*entry.name)
            }) {
                return Ok(Kind::Backup);
            }
        }
        Ok(Kind::Other)
    }
}

pub(super) fn is_run_name(name: &str) -> bool {
    name.len() >= RUN_DIGITS && name.bytes().all(|byte| byte.is_ascii_digit())
}

/// What is said of a file that isn't the one which was backed up.
pub(super) const OTHER_CHECKSUM: &str = "its checksum differs: it doesn't hold what was backed up";

/// What is said of a run whose list has no checksums.
pub(super) const NO_CHECKSUMS: &str = "this run was made by a version that recorded no checksums: of its files \
     the lengths alone can be compared with what was backed up, and later runs share none of them";

/// `None` where it makes no sense.
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

/// What is said of a run without its mark.
pub(super) fn not_whole(run: &Path) -> String {
    format!(
        "this run isn't whole: it has no file `{COMPLETE_FILE}`, since its backup was interrupted, or is under \
         way; if it isn't, {} may be deleted",
        run.display()
    )
}

/// Keeps a run from being opened as a data folder.
///
/// # Errors
/// `BadRequest`.
pub(super) async fn refuse_run(env: &Env, place: &Path) -> Result<()> {
    let Kind::Run { is_whole } = Kind::of(env, place).await? else { return Ok(()) };
    let place = place.display();
    Err(Error::bad_request(match is_whole {
        true => format!(
            "{place} is a run of a backup, which shares files with other runs: make a data folder of it with \
             `settee restore {place} NEW_FOLDER`"
        ),
        false => format!("{place} is a run of a backup that was interrupted, and no data folder"),
    }))
}

/// Sees to it that what is to be made at `place`, an absolute path, lies in no data folder, and in no run
/// or folder of runs.
///
/// # Errors
/// `BadRequest`.
pub(super) async fn check_surroundings(env: &Env, place: &Path) -> Result<()> {
    for around in place.ancestors().skip(1) {
        // What can't be listed is no folder of ours, or can't be written to either.
        let Ok(kind) = Kind::of(env, around).await else { continue };
        let is_locked = || async {
            let entries = folder::list(&*env.engine, around).await.unwrap_or_default();
            entries.iter().any(|entry| entry.name == LOCK_FILE)
        };
        let what = match kind {
            Kind::Run { .. } => "which is a run of a backup",
            Kind::Backup => "which holds the runs of a backup",
            // Other folders may hold one that is called `databases`.
            Kind::Data if is_locked().await => "which is a data folder",
            Kind::Data | Kind::Other => continue,
        };
        let reason = format!("{} lies in {}, {what}: choose another", place.display(), around.display());
        return Err(Error::bad_request(reason));
    }
    Ok(())
}

/// A run in a backup's folder.
pub(super) struct Run {
    pub(super) number: u64,
    pub(super) path: PathBuf,
    pub(super) is_whole: bool,
}

/// The runs in a backup's folder, in their order.
pub(super) async fn runs(env: &Env, backup: &Path) -> Result<Vec<Run>> {
    let mut runs = Vec::new();
    for entry in folder::list(&*env.engine, backup).await? {
        let Some(number) = entry.name.parse().ok().filter(|_| entry.is_folder && is_run_name(&entry.name))
        else {
            continue;
        };
        let path = backup.join(&entry.name);
        let inside = folder::list(&*env.engine, &path).await?;
        let is_whole = inside.iter().any(|entry| entry.name == COMPLETE_FILE);
        runs.push(Run { number, path, is_whole });
    }
    runs.sort_by_key(|run| run.number);
    Ok(runs)
}

/// Begins a run: its folder, with the mark that it is unfinished, which is locked as long as the file that
/// this returns is there.
///
/// # Errors
/// `Conflict` where another process begins the same; or what the system says.
pub(super) async fn begin(env: &Env, run: &Path) -> Result<File> {
    folder::create(&*env.engine, &run.join(DATABASES_FOLDER)).await?;
    let another = || Error::new(ErrorKind::Conflict, "Another backup is begun in the same folder.");
    let mark = match File::open(&env.engine, &run.join(UNFINISHED_FILE), OpenMode::CreateNew).await {
        Err(error) if error.io_kind() == Some(std::io::ErrorKind::AlreadyExists) => return Err(another()),
        opened => opened?,
    };
    mark.lock().await.map_err(|_| another())?;
    folder::sync(&*env.engine, run).await?;
    Ok(mark)
}

/// Makes a run whole, once all else of it is on stable storage.
pub(super) async fn complete(env: &Env, run: &Path, mark: &File, contents: &Contents) -> Result<()> {
    let engine = &*env.engine;
    folder::sync(engine, &run.join(DATABASES_FOLDER)).await?;
    folder::sync(engine, run).await?;
    mark.write_and_sync_at(0, contents.encode().into()).await?;
    folder::rename(engine, &run.join(UNFINISHED_FILE), &run.join(COMPLETE_FILE)).await?;
    Ok(folder::sync(engine, run).await?)
}

/// Removes a run that was interrupted; `false` where it may be under way, or nothing tells that it was one.
pub(super) async fn remove_interrupted(env: &Env, run: &Path) -> Result<bool> {
    let mark = match File::open(&env.engine, &run.join(UNFINISHED_FILE), OpenMode::Write).await {
        Err(error) if error.is_not_found() => return Ok(false),
        opened => opened?,
    };
    match mark.lock().await {
        Err(error) if error.io_kind() == Some(std::io::ErrorKind::WouldBlock) => return Ok(false),
        locked => locked?,
    }
    // Its mark goes last.
    remove(env, run).await?;
    Ok(true)
}

/// Removes a folder that was made for databases, with all that is in it.
pub(super) async fn remove(env: &Env, place: &Path) -> Result<()> {
    let engine = &*env.engine;
    let databases = place.join(DATABASES_FOLDER);
    for entry in folder::list(engine, &databases).await? {
        folder::remove_with_files(engine, &databases.join(&entry.name)).await?;
    }
    folder::remove_with_files(engine, &databases).await?;
    folder::remove_with_files(engine, &place.join(CATALOGUE_FOLDER)).await?;
    Ok(folder::remove_with_files(engine, place).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_as_the_format_has_it_and_a_changed_one_is_refused() {
        let failed = FailedDatabase { name: "a\"b".into(), reason: "two\nlines".into(), folder_number: 7 };
        let source = Some(FileIdentity { device: 1, inode: 2, modified_ns: -3 });
        let log = BackupFile { length: 4096, checksum: Some([0xab; 32].into()), source };
        let other = BackupFile { length: 0, checksum: Some([1; 32].into()), source: None };
        let files = BTreeMap::from([("catalogue/0000000001.log".to_owned(), log), ("x y".to_owned(), other)]);
        let contents = Contents { made_us: 12, files, failed: vec![failed] };
        let text = contents.encode();
        let (of_log, of_other) = ("ab".repeat(32), "01".repeat(32));
        let body = format!(
            "settee backup 3\nmade 12\nfailed [7,\"a\\\"b\",\"two\\nlines\"]\n\
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
            assert_eq!(Contents::decode(text.as_bytes()), Err("a line makes no sense"), "{path}");
        }
    }
}
