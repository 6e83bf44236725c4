//! Backup: copies a store to another directory while it is written to.
//!
//! A version pins its files: while it lives, none of them is removed. Its listed segments are hard-linked, or
//! opened if they can't be. The others are opened: the tree as of the version's root, and the log's segments
//! up to their present ends. The opened files are copied afterwards: the copied parts of them do not change.
//! The manifest of that version is written last. Nothing is locked meanwhile.
//!
//! A file is identified by the BLAKE3 checksum of all of its bytes: a cryptographic hash, since clients
//! choose much of what the files hold. An earlier backup's file is linked if its recorded checksum is that of
//! the file. The checksums of listed segments are in the manifest: none of them is read, also after the data
//! directory was copied or restored. For a tree that no checkpoint changes meanwhile, the identity that the
//! system gives a file is recorded too: while the identity is the same, so is the checksum. Unlisted segments
//! are read each time; checkpoints keep them few.
//!
//! Invariants:
//! 1. A linked file never changes again: rewriting a segment makes a new file, and a log does not recycle a
//!    file that has a second name.
//! 2. Unlisted segments are copied, since a process that opens them may append.
//! 3. Everything accepted before the call is in the copy.
//! 4. An interrupted copy has no manifest; a complete one has none only if no file is listed yet.
//! 5. The checksum returned for a file is that of the bytes the store had; for a listed segment, that of the bytes
//!    that it had when its checksum was computed: when it was sealed, or, if an earlier process did that, listed. So a
//!    comparison of the backup's files with their checksums finds damage since then.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::{Either, select};
use settee_io::{Env, File, FileIdentity, OpenMode, directory};
use settee_log::{FileDigest, Manifest, SegmentInfo};

use crate::error::StoreError;
use crate::manifest::{StoreSection, tree_name};
use crate::read::Snapshot;
use crate::shared::Shared;
use crate::version::Version;

/// Number of bytes copied at once.
const COPY_BYTES: u64 = 1 << 20;

/// The BLAKE3 hash of all bytes of a file.
pub type Checksum = blake3::Hash;

/// A file of a backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackupFile {
    /// Its length in bytes.
    pub length: u64,
    /// The checksum of all of it.
    pub checksum: Checksum,
    /// Identity of the store's file when the backup was made, for a tree; `None` for other files, and for a tree
    /// that was changed in place meanwhile.
    pub source: Option<FileIdentity>,
}

/// The files of a backup of one store by name, without the manifest.
pub type BackupFiles = BTreeMap<String, BackupFile>;

/// An earlier backup, whose files are linked where they are the same.
#[derive(Debug, Clone, Copy)]
pub struct EarlierBackup<'a> {
    /// Its directory.
    pub directory: &'a Path,
    /// The files returned when it was made.
    pub files: &'a BackupFiles,
}

/// Counts of a backup.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Backup {
    /// Files that were linked.
    pub linked_count: u64,
    /// Their bytes.
    pub linked_bytes: u64,
    /// Files that were copied.
    pub copied_count: u64,
    /// Their bytes.
    pub copied_bytes: u64,
}

/// A file of a backup in progress.
struct Part {
    from: PartSource,
    name: String,
    /// Bytes to use instead of the first ones of the file.
    head: Option<Bytes>,
    end: u64,
    /// What the manifest says of a listed segment.
    digest: Option<FileDigest>,
    /// As in [`BackupFile::source`].
    identity: Option<FileIdentity>,
}

impl Part {
    /// Its length; of a listed segment the one that it was sealed with.
    fn length(&self) -> u64 {
        self.digest.map_or(self.end, |digest| digest.length)
    }

    /// The checksum of a listed segment.
    fn known_checksum(&self) -> Option<Checksum> {
        self.digest.map(|digest| Checksum::from_bytes(digest.checksum.0))
    }

    /// The file of an earlier backup that has its name and its length.
    fn in_earlier(&self, earlier: EarlierBackup<'_>) -> Option<(PathBuf, BackupFile)> {
        let file = earlier.files.get(&self.name).filter(|file| file.length == self.length())?;
        Some((earlier.directory.join(&self.name), *file))
    }
}

/// Where a part is read from.
enum PartSource {
    /// The part was linked.
    Linked,
    Open(Arc<File>),
}

impl Shared {
    /// See [`crate::Store::backup`].
    pub(crate) async fn backup(
        &self,
        to: &Path,
        earlier: Option<EarlierBackup<'_>>,
    ) -> Result<(Backup, BackupFiles), StoreError> {
        let env = &self.context.env;
        directory::create(&*env.engine, to).await?;
        let (mut done, mut files) = (Backup::default(), BackupFiles::new());
        let (manifest, parts) = self.take_parts(to, earlier).await?;
        for part in parts {
            let file = self.finish_part(&part, to, earlier, &mut done).await?;
            files.insert(part.name, file);
        }
        directory::sync(&*env.engine, to).await?;
        if let Some(manifest) = manifest {
            manifest.write(env, to).await?;
        }
        Ok((done, files))
    }

    /// A version that shows everything accepted before the call, and the log's unlisted segments, up to ends that
    /// are not before its checkpoint.
    async fn pin_version(&self) -> Result<(Arc<Version>, Vec<SegmentInfo>), StoreError> {
        loop {
            let changed = pin!(self.status_changed.notified());
            self.check_not_closed()?;
            let infos = self.log.segment_infos();
            // Not only `flush`: a backup doesn't wait for disk space.
            match select(pin!(self.log.flush()), pin!(self.log.wait_for_no_space())).await {
                Either::Left((flushed, _)) => flushed?,
                Either::Right((error, _)) => return Err(error.into()),
            }
            let Snapshot { version, .. } = self.snapshot();
            // Otherwise a checkpoint was made since, whose records may be beyond these ends.
            let last = infos.last();
            let is_covered = version.checkpoint.seq <= last.map_or(0, |last| last.last_seq.0)
                && version.set.listed_to() < last.map_or(1, |last| last.number);
            let has_all = infos.first().is_none_or(|first| first.number <= version.set.listed_to() + 1);
            if is_covered && has_all {
                return Ok((version, infos));
            }
            if !has_all {
                // Segments were listed; the versions are about to get the set that says so.
                changed.await;
            }
        }
    }

    /// Links the files that can be linked, and opens the others. A version pins them; nothing is locked.
    async fn take_parts(
        &self,
        to: &Path,
        earlier: Option<EarlierBackup<'_>>,
    ) -> Result<(Option<Manifest>, Vec<Part>), StoreError> {
        let (version, infos) = self.pin_version().await?;
        let (set, checkpoint) = (&version.set, &version.checkpoint);
        let mut parts = Vec::new();
        for segment in set.listed() {
            let (name, digest) = (segment.name.file_name(), segment.name.digest);
            let mut part = Part {
                from: PartSource::Linked,
                name,
                head: None,
                end: digest.length,
                digest: Some(digest),
                identity: None,
            };
            let target = to.join(&part.name);
            // An earlier backup's file first: the store's own may be a copy of it, after a restore.
            let is_linked = match earlier.and_then(|earlier| part.in_earlier(earlier)) {
                Some((path, file)) if Some(file.checksum) == part.known_checksum() => {
                    self.link_earlier(&part, &path, &target).await?
                }
                _ => false,
            };
            if !is_linked && !self.link(segment.path(), &target).await? {
                let file = segment.file().await?;
                (part.from, part.end) = (PartSource::Open(file.clone()), file.length().await?);
            }
            parts.push(part);
        }
        let tree = checkpoint.tree.as_ref();
        if let Some(tree) = tree {
            let head = tree.root.head().expect("what is checkpointed was committed");
            let mut part = self.part(tree_name(tree.number), Some(head.into()), tree.root.end()).await?;
            if let PartSource::Open(file) = &part.from {
                let identity = file.identity().await?;
                // A later root has changed the file in place.
                part.identity = (tree.tree.committed().seq() == tree.root.seq()).then_some(identity);
            }
            parts.push(part);
        }
        // A segment without frames holds nothing.
        let is_begun = |info: &&SegmentInfo| info.frame_bytes > 0 && info.number > set.listed_to();
        for info in infos.iter().filter(is_begun) {
            parts.push(self.part(format!("{:010}.log", info.number), None, info.frame_bytes).await?);
        }
        let section = StoreSection {
            incarnation: self.incarnation,
            tree: tree.map(|tree| tree.number),
            checkpoint: checkpoint.seq,
            last_in_seq_index: checkpoint.last_in_seq_index,
        };
        // Without a manifest, a log has one timeline.
        let has_manifest = tree.is_some() || set.listed_to() > 0 || self.log.timelines().count() > 1;
        let manifest = has_manifest.then(|| self.log.manifest_of(set, section.encode()));
        Ok((manifest, parts))
    }

    /// Opens one of the store's files anew, to be copied up to `end`.
    async fn part(&self, name: String, head: Option<Bytes>, end: u64) -> Result<Part, StoreError> {
        let file =
            File::open(&self.context.env.engine, &self.context.directory.join(&name), OpenMode::Read).await?;
        file.set_direct(self.context.options.log.direct).await?;
        Ok(Part { from: PartSource::Open(Arc::new(file)), name, head, end, digest: None, identity: None })
    }

    /// Hard-links a file that never changes; false if the file system can't.
    async fn link(&self, path: &Path, to: &Path) -> Result<bool, StoreError> {
        match directory::link(&*self.context.env.engine, path, to).await {
            Ok(()) => Ok(true),
            Err(error) => match error.io_kind() {
                Some(ErrorKind::CrossesDevices | ErrorKind::Unsupported | ErrorKind::PermissionDenied)
                | Some(ErrorKind::TooManyLinks) => Ok(false),
                _ => Err(error.into()),
            },
        }
    }

    /// A closed store's files may belong to another process, and its directory may be gone.
    fn check_not_closed(&self) -> Result<(), StoreError> {
        match self.is_closed() {
            true => Err(settee_io::Error::Closed { path: self.context.directory.as_path().into() }.into()),
            false => Ok(()),
        }
    }

    /// Copies a part, unless it is linked or the earlier backup has the same file.
    async fn finish_part(
        &self,
        part: &Part,
        to: &Path,
        earlier: Option<EarlierBackup<'_>>,
        done: &mut Backup,
    ) -> Result<BackupFile, StoreError> {
        let target = to.join(&part.name);
        let (length, known) = (part.length(), part.known_checksum());
        // That of a listed segment would have been linked before.
        let earlier = earlier.filter(|_| known.is_none()).and_then(|earlier| part.in_earlier(earlier));
        let mut checksum = match &earlier {
            _ if known.is_some() => known,
            Some((_, file)) if part.identity.is_some() && file.source == part.identity => Some(file.checksum),
            Some(_) => Some(self.read_part(part, None).await?),
            None => None,
        };
        let is_linked = match (&part.from, earlier) {
            (PartSource::Linked, _) => true,
            (PartSource::Open(_), Some((path, file))) if checksum == Some(file.checksum) => {
                self.link_earlier(part, &path, &target).await?
            }
            _ => false,
        };
        if is_linked {
            done.linked_count += 1;
            done.linked_bytes += length;
        } else {
            let copy = File::open(&self.context.env.engine, &target, OpenMode::CreateNew).await?;
            let found = self.read_part(part, Some(&copy)).await?;
            if checksum.replace(known.unwrap_or(found)).is_some_and(|known| known != found) {
                tracing::warn!(file = %target.display(), "the copied segment is damaged: its checksum differs");
            }
            copy.sync().await?;
            done.copied_count += 1;
            done.copied_bytes += part.end;
        }
        let checksum = checksum.expect("a linked file's is known, and a copied one was read");
        Ok(BackupFile { length, checksum, source: part.identity })
    }

    /// Links an earlier backup's file with the same checksum as `part`. Returns false if the file is missing,
    /// has another length or head, or can't be linked.
    async fn link_earlier(&self, part: &Part, from: &Path, to: &Path) -> Result<bool, StoreError> {
        let engine = &self.context.env.engine;
        let file = match File::open(engine, from, OpenMode::Read).await {
            Err(error) if error.is_not_found() => return Ok(false),
            opened => opened?,
        };
        if file.length().await? != part.length() {
            return Ok(false);
        }
        if let Some(head) = &part.head
            && file.read_exact_at(0, head.len()).await? != *head
        {
            return Ok(false);
        }
        Ok(directory::link(&**engine, from, to).await.is_ok())
    }

    /// Reads all of a part that isn't linked, writes it to `copy` if given, and returns the checksum of the bytes
    /// read.
    async fn read_part(&self, part: &Part, copy: Option<&File>) -> Result<Checksum, StoreError> {
        let PartSource::Open(file) = &part.from else { unreachable!("a linked part isn't read") };
        let mut hasher = blake3::Hasher::new();
        let mut at = 0;
        while at < part.end {
            self.check_not_closed()?;
            let bytes = match &part.head {
                Some(head) if at == 0 => head.clone(),
                _ => file.read_exact_at(at, (part.end - at).min(COPY_BYTES) as usize).await?,
            };
            hasher.update(&bytes);
            let size = bytes.len() as u64;
            if let Some(copy) = copy {
                copy.write_at(at, bytes).await?;
            }
            at += size;
            self.pace(size).await;
        }
        Ok(hasher.finalize())
    }
}

/// Returns the checksum of a file that does not change.
///
/// # Errors
/// The system's error.
pub async fn checksum_file(env: &Env, path: &Path) -> Result<Checksum, settee_io::Error> {
    read_file(env, path, None).await
}

/// Copies a file that does not change to the new file `to`, and returns its checksum. The copy is then on
/// stable storage, except its name.
///
/// # Errors
/// The system's error; then `to` may hold a part of the copy.
pub async fn copy_file(env: &Env, from: &Path, to: &Path) -> Result<Checksum, settee_io::Error> {
    let copy = File::open(&env.engine, to, OpenMode::CreateNew).await?;
    let checksum = read_file(env, from, Some(&copy)).await?;
    copy.sync().await?;
    Ok(checksum)
}

async fn read_file(env: &Env, path: &Path, copy: Option<&File>) -> Result<Checksum, settee_io::Error> {
    let file = File::open(&env.engine, path, OpenMode::Read).await?;
    let length = file.length().await?;
    let mut hasher = blake3::Hasher::new();
    let mut at = 0;
    while at < length {
        let size = (length - at).min(COPY_BYTES);
        let bytes = file.read_exact_at(at, size as usize).await?;
        hasher.update(&bytes);
        if let Some(copy) = copy {
            copy.write_at(at, bytes).await?;
        }
        at += size;
    }
    Ok(hasher.finalize())
}
