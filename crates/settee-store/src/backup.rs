//! Backup: a copy of a store in another folder, made while it is written to.
//!
//! While the set of files is held still (nothing is checkpointed, handed over or replaced) the segments
//! that are the store's get a second name, or are opened where that can't be, and what else belongs to
//! this moment is opened: the tree as of its newest root, and the log's segments as far as they reach
//! now. That takes no longer than the names do. Then all goes on, and what was opened is copied: what is
//! copied of a file does not change, whoever gets it, and its removal doesn't harm who has it open. The
//! manifest of that moment comes last.
//!
//! A file is identified by the BLAKE3 checksum of all of its bytes: a cryptographic hash, since clients
//! choose much of what is in the files. An earlier backup's file is shared where its recorded checksum is
//! the file's. Of files that are never changed in place (segments that are the store's; a tree while nothing
//! is checkpointed) the identity that the system gives is recorded too: while it is the same, so is the
//! checksum, and nothing is read. The log's segments are read each time; checkpoints keep them small.
//!
//! Invariants:
//! 1. A linked file is never changed again by anybody: rewriting a segment makes a new file, and a log
//!    uses no file again that has a second name.
//! 2. The log's own segments are copied, since whoever opens them locks them and may write on.
//! 3. All that was accepted before the call is in the copy.
//! 4. The log's segments are opened anew: its own handles have its locks, and a store that was closed
//!    meanwhile must be free to be opened again.
//! 5. A copy that was cut short has no manifest, unless it has but a log.
//! 6. The checksum that is returned of a file is that of the bytes which the store had.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::{Either, select};
use settee_io::folder::{self, DirectorySyncs};
use settee_io::{Env, File, FileIdentity, OpenMode};
use settee_log::SegmentInfo;

use crate::error::StoreError;
use crate::manifest::{Manifest, tree_name};
use crate::store::Shared;

/// How much is copied at once, in bytes.
const COPY_BYTES: u64 = 1 << 20;

/// The BLAKE3 hash of all bytes of a file.
pub type Checksum = blake3::Hash;

/// A file of a backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackupFile {
    /// Its length in bytes.
    pub length: u64,
    /// `None` in a backup that was made before checksums were recorded.
    pub checksum: Option<Checksum>,
    /// Identity of the store's file when the backup was made; `None` where that tells nothing, since the
    /// file is changed in place.
    pub source: Option<FileIdentity>,
}

/// The files of a backup of one store by their names, without the manifest.
pub type BackupFiles = BTreeMap<String, BackupFile>;

/// An earlier backup, whose files are shared where they are the same.
#[derive(Debug, Clone, Copy)]
pub struct EarlierBackup<'a> {
    /// Its folder.
    pub folder: &'a Path,
    /// What was returned when it was made.
    pub files: &'a BackupFiles,
}

/// What a backup took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Backup {
    /// Files that were linked, and not copied.
    pub linked_count: u64,
    /// Their bytes.
    pub linked_bytes: u64,
    /// Files that were copied.
    pub copied_count: u64,
    /// Their bytes.
    pub copied_bytes: u64,
}

/// A file of a backup that is being made.
struct Part {
    from: Source,
    name: String,
    /// In place of what the file begins with.
    head: Option<Bytes>,
    end: u64,
    /// As in [`BackupFile::source`].
    identity: Option<FileIdentity>,
}

/// Where a part is read from.
enum Source {
    /// It was linked: from its new name.
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
        let env = &self.place.env;
        folder::create(&*env.engine, to).await?;
        let (mut done, mut files) = (Backup::default(), BackupFiles::new());
        let (manifest, parts) = self.take_parts(to).await?;
        for part in parts {
            let file = self.finish_part(&part, to, earlier, &mut done).await?;
            files.insert(part.name, file);
        }
        folder::sync(&*env.engine, to).await?;
        if manifest.number > 0 {
            manifest.write(env, to, &DirectorySyncs::new(to)).await?;
        }
        Ok((done, files))
    }

    /// Links what can be linked, and opens what is to be copied, while the set of files is held still:
    /// what the store is made of now.
    async fn take_parts(&self, to: &Path) -> Result<(Manifest, Vec<Part>), StoreError> {
        let manifest = self.manifest.lock().await;
        self.check_not_closed()?;
        let infos = self.log.known_segments();
        // Not `flush`: nobody may wait for room on the disk and hold the manifest.
        match select(pin!(self.log.flush()), pin!(self.log.finds_no_room())).await {
            Either::Left((flushed, _)) => flushed?,
            Either::Right((error, _)) => return Err(error.into()),
        }
        let base = self.base();
        let mut parts = Vec::new();
        for segment in base.segments.iter() {
            let name = segment.name.file_name();
            let file = segment.file().await?;
            let (end, identity) = (file.length().await?, Some(file.identity().await?));
            let from = match self.link(segment.path(), &to.join(&name)).await? {
                true => Source::Linked,
                false => Source::Open(file.clone()),
            };
            parts.push(Part { from, name, head: None, end, identity });
        }
        if let Some(tree) = &base.tree {
            let head = tree.root.head().expect("what is checkpointed was committed");
            let mut part = self.part(tree_name(tree.number), Some(head.into()), tree.root.end()).await?;
            if let Source::Open(file) = &part.from {
                part.identity = Some(file.identity().await?);
            }
            parts.push(part);
        }
        // One that was made and not begun holds nothing.
        let is_begun =
            |info: &&SegmentInfo| info.frame_bytes > 0 && info.number >= manifest.first_log_segment;
        for info in infos.iter().filter(is_begun) {
            parts.push(self.part(format!("{:010}.log", info.number), None, info.frame_bytes).await?);
        }
        Ok((manifest.clone(), parts))
    }

    /// One of the store's files, opened anew, up to `end`.
    async fn part(&self, name: String, head: Option<Bytes>, end: u64) -> Result<Part, StoreError> {
        let file = File::open(&self.place.env.engine, &self.place.folder.join(&name), OpenMode::Read).await?;
        file.set_direct(self.place.options.log.direct).await?;
        Ok(Part { from: Source::Open(Arc::new(file)), name, head, end, identity: None })
    }

    /// Gives a file that never changes a second name; `false` where that can't be.
    async fn link(&self, path: &Path, to: &Path) -> Result<bool, StoreError> {
        match folder::link(&*self.place.env.engine, path, to).await {
            Ok(()) => Ok(true),
            Err(error) => match error.io_kind() {
                Some(ErrorKind::CrossesDevices | ErrorKind::Unsupported | ErrorKind::PermissionDenied)
                | Some(ErrorKind::TooManyLinks) => Ok(false),
                _ => Err(error.into()),
            },
        }
    }

    /// What is read of a closed store's files may be anybody's, and its folder may be gone.
    fn check_not_closed(&self) -> Result<(), StoreError> {
        match self.is_closed() {
            true => Err(settee_io::Error::Closed { path: self.place.folder.as_path().into() }.into()),
            false => Ok(()),
        }
    }

    /// Copies a part, unless it is linked, or the earlier backup has the same.
    async fn finish_part(
        &self,
        part: &Part,
        to: &Path,
        earlier: Option<EarlierBackup<'_>>,
        done: &mut Backup,
    ) -> Result<BackupFile, StoreError> {
        let target = to.join(&part.name);
        let same_length = |backup: EarlierBackup<'_>| {
            let file = backup.files.get(&part.name).filter(|file| file.length == part.end)?;
            Some((backup.folder.join(&part.name), file.checksum?, file.source))
        };
        let earlier = earlier.and_then(same_length);
        let mut checksum = match (&earlier, &part.from) {
            (Some((_, checksum, source)), _) if part.identity.is_some() && *source == part.identity => {
                Some(*checksum)
            }
            (None, Source::Open(_)) => None,
            _ => Some(self.read_part(part, &target, None).await?),
        };
        let is_linked = match (&part.from, earlier) {
            (Source::Linked, _) => true,
            (Source::Open(_), Some((path, found, _))) if checksum == Some(found) => {
                self.link_earlier(part, &path, &target).await?
            }
            _ => false,
        };
        if is_linked {
            done.linked_count += 1;
            done.linked_bytes += part.end;
        } else {
            let copy = File::open(&self.place.env.engine, &target, OpenMode::CreateNew).await?;
            checksum = Some(self.read_part(part, &target, Some(&copy)).await?);
            copy.sync().await?;
            done.copied_count += 1;
            done.copied_bytes += part.end;
        }
        Ok(BackupFile { length: part.end, checksum, source: part.identity })
    }

    /// Links an earlier backup's file, of the same checksum as `part`; `false` where it is gone or was
    /// changed in a way that shows without reading all of it, or can't be linked.
    async fn link_earlier(&self, part: &Part, from: &Path, to: &Path) -> Result<bool, StoreError> {
        let engine = &self.place.env.engine;
        let file = match File::open(engine, from, OpenMode::Read).await {
            Err(error) if error.is_not_found() => return Ok(false),
            opened => opened?,
        };
        if file.length().await? != part.end {
            return Ok(false);
        }
        if let Some(head) = &part.head
            && file.read_exact_at(0, head.len()).await? != *head
        {
            return Ok(false);
        }
        Ok(folder::link(&**engine, from, to).await.is_ok())
    }

    /// Reads all of a part, which is linked at `target` where it isn't open, into `copy`, if there is one:
    /// the checksum of what was read.
    async fn read_part(
        &self,
        part: &Part,
        target: &Path,
        copy: Option<&File>,
    ) -> Result<Checksum, StoreError> {
        let linked;
        let file = match &part.from {
            Source::Open(file) => &**file,
            Source::Linked => {
                linked = File::open(&self.place.env.engine, target, OpenMode::Read).await?;
                &linked
            }
        };
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

/// Reads a file that nobody changes: its checksum.
///
/// # Errors
/// What the system says.
pub async fn checksum_file(env: &Env, path: &Path) -> Result<Checksum, settee_io::Error> {
    read_file(env, path, None).await
}

/// Copies a file that nobody changes to the new file `to`, which is on stable storage then, but for its
/// name: the checksum of what was copied.
///
/// # Errors
/// What the system says; then `to` may hold a part.
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
