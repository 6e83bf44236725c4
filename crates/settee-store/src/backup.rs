//! Backup: a copy of a store in another folder, made while it is written to.
//!
//! While the set of files is held still (nothing is checkpointed, handed over or replaced) the segments
//! that are the store's get a second name, or are opened where that can't be, and what else belongs to
//! this moment is opened: the tree as of its newest root, and the log's segments as far as they reach
//! now. That takes no longer than the names do. Then all goes on, and what was opened is copied: what is
//! copied of a file does not change, whoever gets it, and its removal doesn't harm who has it open. The
//! manifest of that moment comes last.
//!
//! Invariants:
//! 1. A linked file is never changed again by anybody: rewriting a segment makes a new file, and a log
//!    uses no file again that has a second name.
//! 2. The log's own segments are copied, since whoever opens them locks them and may write on.
//! 3. All that was accepted before the call is in the copy.
//! 4. The log's segments are opened anew: its own handles have its locks, and a store that was closed
//!    meanwhile must be free to be opened again.
//! 5. A copy that was cut short has no manifest, unless it has but a log.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use settee_io::{Env, File, OpenMode, folder};
use settee_log::SegmentInfo;
use settee_tree::HEAD_SIZE;

use crate::error::StoreError;
use crate::manifest::{Manifest, tree_name};
use crate::store::Shared;

/// How much is copied at once, in bytes.
const COPY_BYTES: u64 = 1 << 20;

/// How much of two files' ends is compared, in bytes: a directory's trailer.
const END_BYTES: u64 = 4 << 10;

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

/// A part of a file that is to be copied once all goes on.
struct Part {
    file: Arc<File>,
    name: String,
    /// In place of what the file begins with.
    head: Option<Bytes>,
    end: u64,
}

impl Shared {
    /// See [`crate::Store::backup`].
    pub(crate) async fn backup(&self, to: &Path, previous: Option<&Path>) -> Result<Backup, StoreError> {
        let env = &self.place.env;
        folder::create(&*env.engine, to).await?;
        let mut done = Backup::default();
        let (manifest, parts) = self.take_parts(to, &mut done).await?;
        for part in parts {
            self.copy_part(&part, to, previous, &mut done).await?;
        }
        folder::sync(&*env.engine, to).await?;
        if manifest.number > 0 {
            manifest.write(env, to).await?;
        }
        Ok(done)
    }

    /// Links what can be linked, and opens what is to be copied, while the set of files is held still:
    /// what the store is made of now.
    async fn take_parts(&self, to: &Path, done: &mut Backup) -> Result<(Manifest, Vec<Part>), StoreError> {
        let manifest = self.manifest.lock().await;
        self.check_not_closed()?;
        let infos = self.log.known_segments();
        self.log.flush().await?;
        let base = self.base();
        let mut parts = Vec::new();
        for segment in base.segments.iter() {
            let name = segment.name.file_name();
            let file = segment.file().await?;
            let end = file.length().await?;
            match self.link(segment.path(), &to.join(&name)).await? {
                true => {
                    done.linked_count += 1;
                    done.linked_bytes += end;
                }
                false => parts.push(Part { file: file.clone(), name, head: None, end }),
            }
        }
        if let Some(tree) = &base.tree {
            let head = tree.root.head().expect("what is checkpointed was committed");
            parts.push(self.part(tree_name(tree.number), Some(head.into()), tree.root.end()).await?);
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
        Ok(Part { file: Arc::new(file), name, head, end })
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

    /// Copies a part of a file, unless the earlier backup has the same.
    async fn copy_part(
        &self,
        part: &Part,
        to: &Path,
        previous: Option<&Path>,
        done: &mut Backup,
    ) -> Result<(), StoreError> {
        let env = &self.place.env;
        let target = to.join(&part.name);
        if let Some(previous) = previous {
            let earlier = previous.join(&part.name);
            if is_same(env, &earlier, part).await?
                && folder::link(&*env.engine, &earlier, &target).await.is_ok()
            {
                done.linked_count += 1;
                done.linked_bytes += part.end;
                return Ok(());
            }
        }
        let copy = File::open(&env.engine, &target, OpenMode::CreateNew).await?;
        let mut at = 0;
        if let Some(head) = &part.head {
            copy.write_at(0, head.clone()).await?;
            at = HEAD_SIZE;
        }
        while at < part.end {
            self.check_not_closed()?;
            let size = (part.end - at).min(COPY_BYTES);
            let bytes = part.file.read_exact_at(at, size as usize).await?;
            copy.write_at(at, bytes).await?;
            at += size;
            self.pace(size).await;
        }
        copy.sync().await?;
        done.copied_count += 1;
        done.copied_bytes += part.end;
        Ok(())
    }
}

/// Whether an earlier backup's file is what is to be copied: as long, with the same beginning and end.
/// These tell a tree's root, a segment's log, number and epoch, and a directory's checksums.
async fn is_same(env: &Env, earlier: &Path, part: &Part) -> Result<bool, StoreError> {
    let file = match File::open(&env.engine, earlier, OpenMode::Read).await {
        Err(error) if error.is_not_found() => return Ok(false),
        opened => opened?,
    };
    if file.length().await? != part.end {
        return Ok(false);
    }
    let head = match &part.head {
        Some(head) => head.clone(),
        None => part.file.read_exact_at(0, part.end.min(END_BYTES) as usize).await?,
    };
    let start = part.end - part.end.min(END_BYTES);
    let is_in_head = part.head.is_some() && start < HEAD_SIZE;
    let ends_same = is_in_head
        || file.read_exact_at(start, (part.end - start) as usize).await?
            == part.file.read_exact_at(start, (part.end - start) as usize).await?;
    Ok(ends_same && file.read_exact_at(0, head.len()).await? == head)
}

/// Copies a store that nobody has open, a backup or another, into the new folder `to`: whole files, so
/// that what is done to the copy touches nothing else. Files that belong to no store are left out.
///
/// # Errors
/// What the system says; then `to` holds a part.
pub async fn copy_store(env: &Env, from: &Path, to: &Path) -> Result<u64, StoreError> {
    folder::create(&*env.engine, to).await?;
    let mut names: Vec<String> =
        folder::list(&*env.engine, from).await?.into_iter().map(|entry| entry.name).collect();
    // The manifest last: without it a part of a store can't be taken for a whole one.
    names.sort_by_key(|name| name == crate::manifest::MANIFEST_FILE);
    let mut copied = 0;
    for name in names {
        let is_ours = name == crate::manifest::MANIFEST_FILE
            || Path::new(&name)
                .extension()
                .is_some_and(|kind| ["log", "seg", "tree"].iter().any(|own| kind == *own));
        if is_ours {
            copied += copy_file(env, &from.join(&name), &to.join(&name)).await?;
        }
    }
    folder::sync(&*env.engine, to).await?;
    Ok(copied)
}

async fn copy_file(env: &Env, from: &Path, to: &Path) -> Result<u64, StoreError> {
    let from = File::open(&env.engine, from, OpenMode::Read).await?;
    let to = File::open(&env.engine, to, OpenMode::CreateNew).await?;
    let length = from.length().await?;
    let mut at = 0;
    while at < length {
        let size = (length - at).min(COPY_BYTES);
        to.write_at(at, from.read_exact_at(at, size as usize).await?).await?;
        at += size;
    }
    to.sync().await?;
    Ok(length)
}
