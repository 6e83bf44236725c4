//! The manifest: the atomically replaced list of a store's files.
//!
//! It names the tree, the store's segments, and the first segment that is still the log's. A directory
//! without a manifest holds only a log. The manifest is text, so that it can be read when all else is lost;
//! its last line is a checksum of the others. Bytes: `docs/format.md`.
//!
//! Invariants:
//! 1. A file that it names was synced, and its directory entry too, before the manifest was.
//! 2. A file is removed only once a manifest that doesn't name it is on stable storage.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use settee_io::directory::{self, DirectorySyncs};
use settee_io::{Damage, Env, File, OpenMode};

use crate::error::StoreError;

/// File names in the store's directory: the manifest, and the next one while it is written.
pub(crate) const MANIFEST_FILE: &str = "manifest";
const NEXT_FILE: &str = "manifest.next";

/// How long opening a store waits for a file descriptor to sync the directory.
const SYNC_TIME_MAX: Duration = Duration::from_secs(10);

const MAGIC: &str = "settee store manifest 1";

/// Longest manifest in bytes: a few hundred thousand segments.
const SIZE_MAX: u64 = 16 << 20;

/// The files of a store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Manifest {
    /// Incremented with each manifest.
    pub number: u64,
    /// Incarnation of the tree, which its roots name.
    pub incarnation: [u8; 16],
    /// Number of the log's first segment.
    pub first_log_segment: u32,
    /// Number in the name of the tree's file.
    pub tree: Option<u64>,
    /// `Seq` of the checkpoint that the files are as of. An older root of the tree doesn't know of segments
    /// that moved since.
    pub checkpoint: u64,
    /// The last record that was ever in the seq index.
    pub last_in_seq_index: u64,
    /// In ascending order, without overlap.
    pub segments: Vec<SegmentName>,
}

/// A segment's file: the log's, or one that replaced several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SegmentName {
    pub first: u32,
    pub last: u32,
    /// 0 as the log wrote it; incremented with each rewrite.
    pub generation: u32,
    /// Epoch of its segment index.
    pub epoch: u32,
    /// Where its frames end; in a rewritten segment, its records and the sparse block index.
    pub bytes: u64,
    /// Nothing that was garbage as of this `Seq` is in it; 0 as the log wrote it.
    pub clean_to: u64,
}

impl SegmentName {
    pub(crate) fn file_name(&self) -> String {
        match self.generation {
            0 => format!("{:010}.log", self.first),
            generation => format!("{:010}-{:010}-{generation}.seg", self.first, self.last),
        }
    }
}

pub(crate) fn tree_name(number: u64) -> String {
    format!("{number:010}.tree")
}

impl Manifest {
    pub(crate) fn encode(&self) -> String {
        let mut text = format!("{MAGIC}\nnumber {}\nincarnation ", self.number);
        self.incarnation
            .iter()
            .for_each(|byte| write!(text, "{byte:02x}").expect("writing to a string can't fail"));
        let mut line =
            |line: std::fmt::Arguments<'_>| writeln!(text, "{line}").expect("writing to a string can't fail");
        line(format_args!(""));
        line(format_args!("first-log-segment {}", self.first_log_segment));
        line(format_args!("checkpoint {}", self.checkpoint));
        line(format_args!("last-listed {}", self.last_in_seq_index));
        if let Some(number) = self.tree {
            line(format_args!("tree {number}"));
        }
        for SegmentName { first, last, generation, epoch, bytes, clean_to } in &self.segments {
            line(format_args!("segment {first} {last} {generation} {epoch} {bytes} {clean_to}"));
        }
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
        manifest.violated_invariant().map_or(Ok(manifest), Err)
    }

    /// The first invariant of the list of segments that doesn't hold.
    pub(crate) fn violated_invariant(&self) -> Option<&'static str> {
        let segments = &self.segments;
        let violated = [
            (
                segments.iter().any(|segment| segment.first == 0 || segment.first > segment.last),
                "a segment's numbers are invalid",
            ),
            (!segments.is_sorted_by(|a, b| a.last < b.first), "its segments overlap, or are out of order"),
            (
                segments.last().is_some_and(|last| last.last >= self.first_log_segment),
                "a segment of the store is also the log's",
            ),
        ];
        violated.into_iter().find_map(|(is_violated, what)| is_violated.then_some(what))
    }

    fn take(&mut self, line: &str) -> Option<()> {
        let mut words = line.split(' ');
        let name = words.next()?;
        match name {
            "number" => self.number = words.next()?.parse().ok()?,
            "incarnation" => {
                let digits = words.next()?;
                if digits.len() != 32 || !digits.is_ascii() {
                    return None;
                }
                for (index, byte) in self.incarnation.iter_mut().enumerate() {
                    *byte = u8::from_str_radix(&digits[2 * index..2 * index + 2], 16).ok()?;
                }
            }
            "first-log-segment" => self.first_log_segment = words.next()?.parse().ok()?,
            "checkpoint" => self.checkpoint = words.next()?.parse().ok()?,
            "last-listed" => self.last_in_seq_index = words.next()?.parse().ok()?,
            "tree" => self.tree = Some(words.next()?.parse().ok()?),
            "segment" => {
                let mut number = || words.next()?.parse::<u64>().ok();
                let mut small = || u32::try_from(number()?).ok();
                let [first, last, generation, epoch] = [small()?, small()?, small()?, small()?];
                let (bytes, clean_to) = (number()?, number()?);
                let segment = SegmentName { first, last, generation, epoch, bytes, clean_to };
                self.segments.push(segment);
            }
            _ => return None,
        }
        words.next().is_none().then_some(())
    }

    /// Reads a store's manifest; `None` if there is none.
    ///
    /// # Errors
    /// [`StoreError::Damaged`], or the system's error.
    pub(crate) async fn read(env: &Env, directory: &Path) -> Result<Option<Manifest>, StoreError> {
        let path = directory.join(MANIFEST_FILE);
        let file = match File::open(&env.engine, &path, OpenMode::Read).await {
            Err(error) if error.is_not_found() => return Ok(None),
            opened => opened?,
        };
        let length = file.length().await?;
        if length > SIZE_MAX {
            let what = "it is longer than any manifest";
            return Err(StoreError::Damaged(Damage { path, offset: SIZE_MAX, what }));
        }
        let bytes = file.read_exact_at(0, length as usize).await?;
        Manifest::decode(&bytes)
            .map(Some)
            .map_err(|what| StoreError::Damaged(Damage { path, offset: 0, what }))
    }

    /// Writes this manifest to the file of the next one; the current one stays.
    ///
    /// # Errors
    /// [`StoreError::ManifestTooLong`], before anything is written; or the system's error.
    pub(crate) async fn prepare(&self, env: &Env, directory: &Path) -> Result<(), StoreError> {
        let (next, text) = (directory.join(NEXT_FILE), self.encode());
        let size = text.len() as u64;
        if size > SIZE_MAX {
            let path = directory.join(MANIFEST_FILE);
            return Err(StoreError::ManifestTooLong { path, size, size_max: SIZE_MAX });
        }
        match directory::remove(&*env.engine, &next).await {
            Err(error) if !error.is_not_found() => return Err(error.into()),
            _ => {}
        }
        let file = File::open(&env.engine, &next, OpenMode::CreateNew).await?;
        Ok(file.write_and_sync_at(0, Bytes::from(text)).await?)
    }

    /// Replaces the current manifest with the prepared one, atomically. Durable once it returns.
    ///
    /// # Errors
    /// The system's error; it is then unknown which of the two is durable.
    pub(crate) async fn replace(
        env: &Env,
        directory: &Path,
        syncs: &DirectorySyncs,
        keep_trying: impl Fn(&settee_io::Error) -> bool,
    ) -> Result<(), StoreError> {
        directory::rename(&*env.engine, &directory.join(NEXT_FILE), &directory.join(MANIFEST_FILE)).await?;
        Ok(syncs.sync_with_retry(env, keep_trying).await?)
    }

    /// Prepares and replaces.
    ///
    /// # Errors
    /// Those of [`Manifest::prepare`] and [`Manifest::replace`].
    pub(crate) async fn write(
        &self,
        env: &Env,
        directory: &Path,
        syncs: &DirectorySyncs,
    ) -> Result<(), StoreError> {
        self.prepare(env, directory).await?;
        let end = env.clock.now() + SYNC_TIME_MAX;
        Manifest::replace(env, directory, syncs, |_| env.clock.now() < end).await
    }

    /// Removes the store's files that this manifest doesn't name, left by work that a crash interrupted.
    /// Files with other kinds of names stay.
    ///
    /// # Errors
    /// The system's error; some files may have been removed.
    pub(crate) async fn remove_others(&self, env: &Env, directory: &Path) -> Result<(), StoreError> {
        let named: Vec<String> = self.file_names().collect();
        for entry in directory::list(&*env.engine, directory).await? {
            let is_ours = match entry.name.rsplit_once('.') {
                Some(("manifest", "next")) | Some((_, "tree" | "seg")) => true,
                Some((number, "log")) => {
                    number.parse().is_ok_and(|number: u32| number < self.first_log_segment)
                }
                _ => false,
            };
            if is_ours && !named.contains(&entry.name) {
                tracing::info!(file = entry.name, directory = %directory.display(), "removed an unneeded file");
                directory::remove(&*env.engine, &directory.join(&entry.name)).await?;
            }
        }
        Ok(())
    }

    /// Names of the tree's and the segments' files.
    pub(crate) fn file_names(&self) -> impl Iterator<Item = String> {
        self.tree.map(tree_name).into_iter().chain(self.segments.iter().map(SegmentName::file_name))
    }
}

#[cfg(test)]
mod tests {
    use settee_sim::Sim;

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
        let segments = (1..=segment_count).map(segment).collect();
        Manifest { number: 7, first_log_segment: segment_count + 1, segments, ..Manifest::default() }
    }

    #[test]
    fn a_manifest_that_could_not_be_read_is_refused_and_the_one_before_stays() {
        let sim = Sim::new(7);
        let (env, directory) = (sim.env(), Path::new("/data/store"));
        sim.run(async {
            directory::create(&*env.engine, directory).await.unwrap();
            let syncs = DirectorySyncs::new(directory);
            let (small, long) = (manifest(3), manifest(500_000));
            small.write(&env, directory, &syncs).await.unwrap();
            let refused = long.write(&env, directory, &syncs).await;
            let is_refused = matches!(&refused, Err(StoreError::ManifestTooLong { size, size_max, .. })
                if size > size_max && *size == long.encode().len() as u64);
            assert!(is_refused, "{refused:?}");
            assert_eq!(
                directory::list(&*env.engine, directory).await.unwrap().len(),
                1,
                "nothing was written"
            );
            assert_eq!(Manifest::read(&env, directory).await.unwrap(), Some(small));
            // The largest manifest that fits is read again.
            let line = (long.encode().len() - manifest(499_000).encode().len()) / 1000;
            let most = manifest((SIZE_MAX as usize / (line + 1)) as u32);
            most.write(&env, directory, &syncs).await.unwrap();
            assert_eq!(Manifest::read(&env, directory).await.unwrap(), Some(most));
        })
        .unwrap();
    }
}
