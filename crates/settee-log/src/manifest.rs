//! The manifest: the atomically replaced list of a log's files.
//!
//! It names the segments that are never appended to again, says up to which number it does so, and carries a
//! section of the log's user, which the log doesn't interpret. Later segments aren't in it: recovery finds
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
use settee_io::{Damage, Entry, Env, File, OpenMode};

use crate::error::{EditError, OpenError, is_no_space};
use crate::segment_set::{SegmentName, SegmentSet};

/// File names in the log's directory: the manifest, and the next one while it is written.
pub const MANIFEST_FILE: &str = "manifest";
const NEXT_FILE: &str = "manifest.next";

const MAGIC: &str = "settee manifest 2";

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
    /// In ascending order, without overlap.
    pub segments: Vec<SegmentName>,
    /// Lines of the log's user, without empty ones.
    pub user: String,
}

impl Manifest {
    pub(crate) fn encode(&self) -> String {
        let mut text = format!("{MAGIC}\n");
        let mut line =
            |line: std::fmt::Arguments<'_>| writeln!(text, "{line}").expect("writing to a string can't fail");
        line(format_args!("number {}", self.number));
        line(format_args!("next-file {}", self.next_file));
        line(format_args!("listed-to {}", self.listed_to));
        for SegmentName { first, last, generation, epoch, bytes, clean_to } in &self.segments {
            line(format_args!("segment {first} {last} {generation} {epoch} {bytes} {clean_to}"));
        }
        self.user.lines().for_each(|of_user| line(format_args!("user {of_user}")));
        let checksum = twox_hash::XxHash3_64::oneshot(text.as_bytes());
        writeln!(text, "checksum {checksum:016x}").expect("writing to a string can't fail");
        text
    }

    /// Decodes what [`Manifest::encode`] wrote; an error says what is wrong.
    pub(crate) fn decode(text: &[u8]) -> Result<Manifest, &'static str> {
        let text = std::str::from_utf8(text).map_err(|_| "it isn't text")?;
        let at = text.rfind("checksum ").ok_or("it has no checksum")?;
        let (body, checksum) = text.split_at(at);
        let checksum = checksum.strip_prefix("checksum ").and_then(|rest| rest.strip_suffix('\n'));
        // Compared as text: a digit in upper case is a flipped bit too.
        let expected = format!("{:016x}", twox_hash::XxHash3_64::oneshot(body.as_bytes()));
        if checksum != Some(&expected[..]) {
            return Err("its checksum doesn't match");
        }
        let mut lines = body.lines();
        if lines.next() != Some(MAGIC) {
            return Err("it has another format");
        }
        let mut manifest = Manifest::default();
        for line in lines {
            manifest.take(line).ok_or("a line is invalid")?;
        }
        let violated = SegmentSet::violated_invariant(&manifest.segments, manifest.listed_to);
        violated.map_or(Ok(manifest), Err)
    }

    fn take(&mut self, line: &str) -> Option<()> {
        let (name, rest) = line.split_once(' ')?;
        match name {
            "number" => self.number = rest.parse().ok()?,
            "next-file" => self.next_file = rest.parse().ok()?,
            "listed-to" => self.listed_to = rest.parse().ok()?,
            "segment" => {
                let mut words = rest.split(' ');
                let mut number = || words.next()?.parse::<u64>().ok();
                let mut small = || u32::try_from(number()?).ok();
                let [first, last, generation, epoch] = [small()?, small()?, small()?, small()?];
                let (bytes, clean_to) = (number()?, number()?);
                let is_whole = words.next().is_none();
                let segment = SegmentName { first, last, generation, epoch, bytes, clean_to };
                self.segments.push(is_whole.then_some(segment)?);
            }
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
    /// [`OpenError::Damaged`], or an I/O error.
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
        Manifest::decode(&bytes)
            .map(Some)
            .map_err(|what| OpenError::Damaged(Damage { path, offset: 0, what }))
    }

    /// Writes this manifest to the file of the next one; the current one stays.
    ///
    /// # Errors
    /// [`EditError::TooLong`], before anything is written; or an I/O error.
    pub(crate) async fn prepare(&self, env: &Env, directory: &Path) -> Result<(), EditError> {
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
        if written.is_err() {
            // What a failed sync lost of a file, no later sync brings back: the next attempt begins a new one.
            match directory::remove(&*env.engine, &next).await {
                Err(error) if !error.is_not_found() => return Err(error.into()),
                _ => {}
            }
        }
        Ok(written?)
    }

    /// Reserves disk space for the manifest after this one. Without it, an edit on a full disk may be refused.
    pub(crate) async fn reserve_next(&self, env: &Env, directory: &Path) {
        let (next, size) = (directory.join(NEXT_FILE), self.encode().len() as u64);
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

    /// Removes rewritten segments that this manifest doesn't name, and a next manifest, left by work that a
    /// crash interrupted, or by a process that ended while they were in use.
    ///
    /// # Errors
    /// An I/O error; some files may have been removed.
    pub(crate) async fn sweep(&self, env: &Env, directory: &Path) -> Result<(), settee_io::Error> {
        let named: Vec<String> = self.segments.iter().map(SegmentName::file_name).collect();
        for entry in directory::list(&*env.engine, directory).await? {
            let is_ours = entry.name == NEXT_FILE || entry.name.ends_with(".seg");
            if is_ours && !named.contains(&entry.name) {
                tracing::info!(file = entry.name, directory = %directory.display(), "removed an unneeded file");
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

/// The part of the manifest that isn't in the set.
pub(crate) struct ManifestState {
    /// As in [`Manifest`].
    pub number: u64,
    /// As in [`Manifest`].
    pub user: String,
}

impl ManifestState {
    /// That of a log with this manifest.
    pub(crate) fn new(manifest: Option<Manifest>) -> ManifestState {
        let Manifest { number, user, .. } = manifest.unwrap_or_default();
        ManifestState { number, user }
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
mod tests {
    use super::*;

    fn manifest(segment_count: u32) -> Manifest {
        let segment = |number| SegmentName {
            first: number,
            last: number,
            generation: 1,
            epoch: 1,
            bytes: u64::from(u32::MAX),
            clean_to: u64::from(u32::MAX),
        };
        Manifest {
            number: 7,
            next_file: 12,
            listed_to: segment_count,
            segments: (1..=segment_count).map(segment).collect(),
            user: "tree 7\nnote with spaces\n".to_owned(),
        }
    }

    #[test]
    fn what_is_encoded_is_decoded_and_every_flipped_bit_is_found() {
        let bytes = manifest(3).encode().into_bytes();
        assert_eq!(Manifest::decode(&bytes), Ok(manifest(3)));
        for bit in 0..8 * bytes.len() {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Manifest::decode(&flipped).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_manifest_that_could_not_be_read_is_refused_and_the_one_before_stays() {
        let sim = settee_sim::Sim::new(7);
        let (env, directory) = (sim.env(), Path::new("/data/log"));
        sim.run(async {
            directory::create(&*env.engine, directory).await.unwrap();
            let (small, long) = (manifest(3), manifest(500_000));
            small.write(&env, directory).await.unwrap();
            let refused = long.write(&env, directory).await;
            let is_refused = matches!(&refused, Err(EditError::TooLong { size, size_max, .. })
                if size > size_max && *size == long.encode().len() as u64);
            assert!(is_refused, "{refused:?}");
            let files = directory::list(&*env.engine, directory).await.unwrap();
            assert_eq!(files.len(), 1, "nothing was written");
            assert_eq!(Manifest::read(&env, directory).await.unwrap(), Some(small));
            // The largest manifest that fits is read again.
            let line = (long.encode().len() - manifest(499_000).encode().len()) / 1000;
            let most = manifest((SIZE_MAX as usize / (line + 1)) as u32);
            most.write(&env, directory).await.unwrap();
            assert_eq!(Manifest::read(&env, directory).await.unwrap(), Some(most));
        })
        .unwrap();
    }
}
