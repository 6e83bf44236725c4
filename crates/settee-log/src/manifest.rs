//! The manifest: the atomically replaced list of a log's files.
//!
//! It names the segments that are never appended to again, each with its length and checksum, says up to which
//! number it does so, names the log's timelines, and carries a section of the log's user, which the log doesn't interpret. Later segments aren't in it: recovery finds
//! them by listing the directory. A directory without a manifest has only such segments. The manifest is
//! text, so that it can be read when all else is lost; its last line is a checksum of the others. Bytes:
//! `docs/format.md`.
//!
//! Invariants:
//! 1. A file that it names was synced, and its directory entry too, before the manifest was.
//! 2. A file is removed only once a manifest that doesn't name it is on stable storage.
//! 3. No file gets a name that a manifest on stable storage ever gave to another one.
//! 4. The next manifest's file takes its space in advance, so that files can be removed on a full disk.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use settee_io::directory::{self, DirectorySyncs};
use settee_io::{Damage, Entry, Env, File, OpenMode, OperationKind};
use tokio::sync::oneshot;

use crate::error::{EditError, OpenError, is_no_space};
use crate::file_digest::{FileChecksum, FileDigest};
use crate::segment_set::{SegmentName, SegmentSet};
use crate::timeline::{Timeline, Timelines};
use crate::types::{Seq, TimelineId};

/// File names in the log's directory: the manifest, and the next one while it is written.
pub const MANIFEST_FILE: &str = "manifest";
const NEXT_FILE: &str = "manifest.next";

/// What the first line begins with, before the version.
const MAGIC: &str = "settee manifest ";
/// Version of the manifest that this code writes.
const MANIFEST_VERSION: u32 = 3;

/// Disk space kept for the next manifest beyond the size of the present one: for as many bytes, one edit may add
/// lines.
const RESERVE_BYTES: u64 = 4 << 10;

/// Longest manifest in bytes: a few hundred thousand segments.
const SIZE_MAX: u64 = 16 << 20;

/// The files of a log that are never appended to again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Manifest {
    /// Incremented with each manifest.
    pub number: u64,
    /// No file has been given this number or a later one: see [`FileNumbers`].
    pub next_file: u32,
    /// Segments up to this number are in `segments`, or were removed.
    pub listed_to: u32,
    /// The timelines to which the log's segments belong.
    pub timelines: Timelines,
    /// In ascending order, without overlap.
    pub segments: Vec<SegmentName>,
    /// Lines of the log's user, without empty ones.
    pub user: String,
}

impl Manifest {
    pub(crate) fn encode(&self) -> String {
        let mut text = format!("{MAGIC}{MANIFEST_VERSION}\n");
        let mut line =
            |line: std::fmt::Arguments<'_>| writeln!(text, "{line}").expect("writing to a string can't fail");
        line(format_args!("number {}", self.number));
        line(format_args!("next-file {}", self.next_file));
        line(format_args!("listed-to {}", self.listed_to));
        let mut parent: Option<TimelineId> = None;
        for Timeline { id, after } in self.timelines.iter() {
            match parent.replace(*id) {
                None => line(format_args!("timeline {id}")),
                Some(parent) => line(format_args!("timeline {id} {parent} {}", after.0)),
            }
        }
        for SegmentName { first, last, generation, epoch, bytes, clean_to, timeline, digest } in
            &self.segments
        {
            let FileDigest { length, checksum } = digest;
            line(format_args!(
                "segment {first} {last} {generation} {epoch} {bytes} {clean_to} {timeline} {length} {checksum}"
            ));
        }
        self.user.lines().for_each(|of_user| line(format_args!("user {of_user}")));
        let checksum = twox_hash::XxHash3_64::oneshot(text.as_bytes());
        writeln!(text, "checksum {checksum:016x}").expect("writing to a string can't fail");
        text
    }

    /// Decodes what [`Manifest::encode`] wrote.
    pub(crate) fn decode(text: &[u8]) -> Result<Manifest, ManifestError> {
        let damaged = ManifestError::Damaged;
        let text = std::str::from_utf8(text).map_err(|_| damaged("it isn't text"))?;
        let at = text.rfind("checksum ").ok_or(damaged("it has no checksum"))?;
        let (body, checksum) = text.split_at(at);
        let checksum = checksum.strip_prefix("checksum ").and_then(|rest| rest.strip_suffix('\n'));
        // Compared as text: a digit in upper case is a flipped bit too.
        let expected = format!("{:016x}", twox_hash::XxHash3_64::oneshot(body.as_bytes()));
        if checksum != Some(&expected[..]) {
            return Err(damaged("its checksum doesn't match"));
        }
        let mut lines = body.lines();
        let version = lines.next().and_then(|line| line.strip_prefix(MAGIC)?.parse().ok());
        match version.ok_or(damaged("it isn't a manifest"))? {
            MANIFEST_VERSION => {}
            version => return Err(ManifestError::Version(version)),
        }
        let (mut manifest, mut timelines) = (Manifest::default(), Vec::new());
        for line in lines {
            manifest.take(line, &mut timelines).ok_or(damaged("a line is invalid"))?;
        }
        manifest.timelines = Timelines::new(timelines);
        manifest.violated_invariant().map_or(Ok(manifest), |what| Err(damaged(what)))
    }

    /// The first invariant of a manifest that this one violates; `None` if it is valid.
    pub(crate) fn violated_invariant(&self) -> Option<&'static str> {
        let count = self.timelines.count() as u32;
        let is_unknown = self.segments.iter().any(|segment| segment.timeline >= count);
        let has_no_digest = self.segments.iter().any(|segment| segment.digest.length == 0);
        self.timelines
            .violated_invariant()
            .or_else(|| SegmentSet::violated_invariant(&self.segments, self.listed_to))
            .or(is_unknown.then_some("a segment is of a timeline that it doesn't name"))
            .or(has_no_digest.then_some("a segment has no length"))
    }

    fn take(&mut self, line: &str, timelines: &mut Vec<Timeline>) -> Option<()> {
        let (name, rest) = line.split_once(' ')?;
        match name {
            "number" => self.number = rest.parse().ok()?,
            "next-file" => self.next_file = rest.parse().ok()?,
            "listed-to" => self.listed_to = rest.parse().ok()?,
            "timeline" => timelines.push(decode_timeline(rest, timelines.last())?),
            "segment" => self.segments.push(decode_segment(rest)?),
            "user" => {
                self.user.push_str(rest);
                self.user.push('\n');
            }
            _ => return None,
        }
        Some(())
    }

    /// Reads a log's manifest; `None` if there is none.
    ///
    /// # Errors
    /// [`OpenError::Damaged`], [`OpenError::OtherFormat`], or an I/O error.
    pub async fn read(env: &Env, directory: &Path) -> Result<Option<Manifest>, OpenError> {
        let path = directory.join(MANIFEST_FILE);
        let file = match File::open(&env.engine, &path, OpenMode::Read).await {
            Err(error) if error.is_not_found() => return Ok(None),
            opened => opened?,
        };
        let length = file.length().await?;
        if length > SIZE_MAX {
            let what = "it is longer than any manifest";
            return Err(OpenError::Damaged(Damage { path, offset: SIZE_MAX, what }));
        }
        let bytes = file.read_exact_at(0, length as usize).await?;
        Manifest::decode(&bytes).map(Some).map_err(|error| match error {
            ManifestError::Damaged(what) => OpenError::Damaged(Damage { path, offset: 0, what }),
            ManifestError::Version(found) => OpenError::OtherFormat { path, found, known: MANIFEST_VERSION },
        })
    }

    /// Writes this manifest to the file of the next one; the current one stays. Returns its size in bytes.
    ///
    /// # Errors
    /// [`EditError::TooLong`], before anything is written; or an I/O error. If that is of the file's removal, the
    /// file must not be written again.
    pub(crate) async fn prepare(&self, env: &Env, directory: &Path) -> Result<u64, EditError> {
        let (next, text) = (directory.join(NEXT_FILE), self.encode());
        let size = text.len() as u64;
        if size > SIZE_MAX {
            let path = directory.join(MANIFEST_FILE);
            return Err(EditError::TooLong { path, size, size_max: SIZE_MAX });
        }
        let written = async {
            // It has the space that was reserved.
            let file = File::open(&env.engine, &next, OpenMode::Create).await?;
            file.write_at(0, Bytes::from(text)).await?;
            file.set_length(size).await?;
            file.sync().await
        };
        let written = written.await;
        if written.as_ref().is_err_and(|error| error.operation() == Some(OperationKind::Sync)) {
            // What a failed sync lost of a file, no later sync brings back: the next attempt begins a new one.
            directory::remove(&*env.engine, &next).await?;
        }
        written?;
        Ok(size)
    }

    /// Reserves disk space for the manifest after one of this size. Without it, an edit on a full disk may be
    /// refused.
    pub(crate) async fn reserve_next(env: &Env, directory: &Path, size: u64) {
        let next = directory.join(NEXT_FILE);
        let reserved = async {
            let file = File::open(&env.engine, &next, OpenMode::Create).await?;
            match file.allocate(0, size + RESERVE_BYTES).await {
                Err(error) if is_no_space(&error) => file.allocate(0, size).await,
                allocated => allocated,
            }
        };
        if let Err(error) = reserved.await {
            tracing::debug!(%error, "no space was reserved for the next manifest");
        }
    }

    /// Replaces the current manifest with the prepared one, atomically. Durable once it returns.
    ///
    /// # Errors
    /// An I/O error; it is then unknown which of the two is durable.
    pub(crate) async fn replace(
        env: &Env,
        directory: &Path,
        syncs: &DirectorySyncs,
        keep_trying: impl Fn(&settee_io::Error) -> bool,
    ) -> Result<(), settee_io::Error> {
        directory::rename(&*env.engine, &directory.join(NEXT_FILE), &directory.join(MANIFEST_FILE)).await?;
        syncs.sync_with_retry(env, keep_trying).await
    }

    /// Writes this manifest to a directory that no log uses.
    ///
    /// # Errors
    /// See [`EditError`].
    pub async fn write(&self, env: &Env, directory: &Path) -> Result<(), EditError> {
        self.prepare(env, directory).await?;
        Ok(Manifest::replace(env, directory, &DirectorySyncs::new(directory), |_| false).await?)
    }

    /// Whether it names the file of this segment as the log wrote it.
    pub(crate) fn names_log_segment(&self, number: u32) -> bool {
        let found = self.segments.binary_search_by_key(&number, |segment| segment.last);
        found.is_ok_and(|index| self.segments[index].generation == 0)
    }

    /// Removes rewritten segments that this manifest doesn't name, left by work that a crash interrupted, or by a
    /// process that ended while they were in use; and the file of the next manifest, whose syncs may have failed in
    /// an earlier process.
    ///
    /// # Errors
    /// An I/O error; some files may have been removed.
    pub(crate) async fn sweep(&self, env: &Env, directory: &Path) -> Result<(), settee_io::Error> {
        let named: Vec<String> = self.segments.iter().map(SegmentName::file_name).collect();
        for entry in directory::list(&*env.engine, directory).await? {
            let is_ours = entry.name == NEXT_FILE || entry.name.ends_with(".seg");
            if is_ours && !named.contains(&entry.name) {
                if entry.name != NEXT_FILE {
                    tracing::info!(file = entry.name, directory = %directory.display(), "removed an unneeded file");
                }
                match directory::remove(&*env.engine, &directory.join(&entry.name)).await {
                    // Its last user in this process has just removed it.
                    Err(error) if error.is_not_found() => {}
                    removed => removed?,
                }
            }
        }
        Ok(())
    }

    /// Fails if a segment that it names isn't among the directory's entries.
    ///
    /// # Errors
    /// [`OpenError::Missing`].
    pub(crate) fn check_all_there(&self, directory: &Path, entries: &[Entry]) -> Result<(), OpenError> {
        for name in self.segments.iter().map(SegmentName::file_name) {
            if entries.binary_search_by(|entry| entry.name.cmp(&name)).is_err() {
                return Err(OpenError::Missing { path: directory.join(name) });
            }
        }
        Ok(())
    }
}

/// Why bytes are not a manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ManifestError {
    /// They are damaged, and how.
    Damaged(&'static str),
    /// They are a whole manifest of another version.
    Version(u32),
}

/// A timeline's line without its first word. `before` is the one of the line before.
fn decode_timeline(rest: &str, before: Option<&Timeline>) -> Option<Timeline> {
    let mut words = rest.split(' ');
    let id = decode_id(words.next()?)?;
    let after = match before {
        None => 0,
        Some(before) => {
            (decode_id(words.next()?)? == before.id).then_some(())?;
            words.next()?.parse().ok()?
        }
    };
    words.next().is_none().then_some(Timeline { id, after: Seq(after) })
}

fn decode_id(text: &str) -> Option<TimelineId> {
    let id = TimelineId(u128::from_str_radix(text, 16).ok()?.to_be_bytes());
    (id.to_string() == text).then_some(id)
}

/// A segment's line without its first word.
fn decode_segment(rest: &str) -> Option<SegmentName> {
    let mut words = rest.split(' ');
    let mut number = || words.next()?.parse::<u64>().ok();
    let mut small = || u32::try_from(number()?).ok();
    let [first, last, generation, epoch] = [small()?, small()?, small()?, small()?];
    let (bytes, clean_to, timeline, length) =
        (number()?, number()?, u32::try_from(number()?).ok()?, number()?);
    let digest = FileDigest { length, checksum: FileChecksum::parse(words.next()?)? };
    let segment = SegmentName { first, last, generation, epoch, bytes, clean_to, timeline, digest };
    words.next().is_none().then_some(segment)
}

/// The part of the manifest that isn't in the set.
pub(crate) struct ManifestState {
    /// As in [`Manifest`].
    pub number: u64,
    /// As in [`Manifest`].
    pub user: String,
    /// Ends when the space for the next manifest has been reserved.
    reserving: Option<oneshot::Receiver<()>>,
}

impl ManifestState {
    /// Starts reserving space for the manifest after one of this size, in a task: if the caller were dropped, what
    /// it began would still change the file.
    pub(crate) fn begin_reserving(&mut self, env: &Env, directory: &Path, size: u64) {
        let (done, reserving) = oneshot::channel();
        let (task_env, directory) = (env.clone(), directory.to_path_buf());
        env.spawn("log manifest", async move {
            Manifest::reserve_next(&task_env, &directory, size).await;
            let _ = done.send(());
        });
        self.reserving = Some(reserving);
    }

    /// Waits until that has ended.
    pub(crate) async fn end_reserving(&mut self) {
        if let Some(reserving) = &mut self.reserving {
            let _ = reserving.await;
            self.reserving = None;
        }
    }

    /// That of a log with this manifest.
    pub(crate) fn new(manifest: Option<Manifest>) -> ManifestState {
        let Manifest { number, user, .. } = manifest.unwrap_or_default();
        ManifestState { number, user, reserving: None }
    }
}

/// Numbers for the names of new files. No manifest on stable storage has ever named a file by a number that
/// is still to come.
#[derive(Debug)]
pub struct FileNumbers(AtomicU32);

impl Default for FileNumbers {
    fn default() -> FileNumbers {
        FileNumbers(AtomicU32::new(1))
    }
}

impl FileNumbers {
    /// Those of a log with this manifest, and files with these names, which a crash may have left.
    pub(crate) fn after<'a>(
        manifest: Option<&Manifest>,
        names: impl Iterator<Item = &'a str>,
    ) -> FileNumbers {
        let number = |name: &str| name.split_once('.')?.0.rsplit('-').next()?.parse::<u32>().ok();
        let left = names.filter(|name| !name.ends_with(".log") && !name.ends_with(".torn"));
        let next = left.filter_map(number).max().map_or(1, |last| last.saturating_add(1));
        FileNumbers(AtomicU32::new(manifest.map_or(1, |manifest| manifest.next_file).max(next)))
    }

    /// The next number.
    pub fn next(&self) -> u32 {
        self.0.fetch_add(1, Ordering::AcqRel)
    }

    /// The number that will be next.
    pub(crate) fn peek(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }
}

/// Path of a log's manifest.
pub(crate) fn manifest_path(directory: &Path) -> PathBuf {
    directory.join(MANIFEST_FILE)
}

#[cfg(test)]
mod tests;
