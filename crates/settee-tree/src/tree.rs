//! The tree's handle: opens, updates, commits and closes a file.
//!
//! Invariants:
//! 1. Updates and commits run one after another; readers wait for none of them.
//! 2. A commit syncs the nodes before it writes their root. It writes the root to the slot that doesn't hold
//!    the newest committed root, so that root survives whatever happens to the write.
//! 3. After a failed sync, or a failed write of a root, nothing is written any more.
//!
//! Crash cases: a torn commit loses only itself, since the other slot holds the previous root. Opening syncs
//! the file, since a killed process may have left the newest root in the page cache only. Bytes behind the
//! newest root's end are garbage; appending continues behind the end of the file and never overwrites them.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use settee_io::{Damage, Env, Error, File, OpenMode};
use tokio::sync::{Mutex, oneshot};

use crate::append::{Appender, Writer, WriterGuard};
use crate::error::TreeError;
use crate::format::{
    ATTACHMENT_SIZE_MAX, AttachmentPointer, BLOCK_SIZE, BlockError, FILE_SIZE_MAX, FORMAT_VERSION, HEAD_SIZE,
    RootRecord, SLOTS, decode_header, encode_header,
};
use crate::options::TreeOptions;
use crate::reduction::Reduction;
use crate::root::Root;
use crate::shared::{Committed, RootState, Shared, Top};

/// An open tree, usable from many tasks at once; reads go through its roots.
///
/// Only one handle at a time may write to a file; the tree doesn't lock the file.
pub struct Tree<R: Reduction> {
    pub(crate) shared: Arc<Shared<R>>,
    pub(crate) writer: Arc<Mutex<Writer>>,
    is_torn: bool,
}

impl<R: Reduction> Tree<R> {
    /// Creates an empty tree in a file that must not exist yet. Nothing is durable before the first commit;
    /// the file's name is durable only after the caller has synced the directory.
    ///
    /// # Errors
    /// The system's error. The file may exist.
    ///
    /// # Panics
    /// If an option is out of its range.
    pub async fn create(
        env: &Env,
        path: &Path,
        options: TreeOptions,
        reduction: R,
    ) -> Result<Tree<R>, TreeError> {
        options.check();
        let file = File::open(&env.engine, path, OpenMode::CreateNew).await?;
        file.set_direct(options.direct).await?;
        let incarnation = options.incarnation.unwrap_or_else(|| env.random_bytes());
        // The whole head, so that the file is at least as long as any root's end.
        let mut head = encode_header(&incarnation);
        head.resize(HEAD_SIZE as usize, 0);
        file.write_at(0, head.into()).await?;
        let shared = Shared::new(env, file, reduction, options, incarnation, HEAD_SIZE);
        Ok(Tree { shared: Arc::new(shared), writer: Arc::default(), is_torn: false })
    }

    /// Opens a tree at the newest committed root; a torn commit is ignored ([`Tree::is_torn`]). Reads the
    /// head and the root node, and syncs the file, since the bytes read may exist in the page cache only.
    ///
    /// # Errors
    /// [`TreeError::NoRoot`] if the file holds no root; [`TreeError::OtherIncarnation`] and
    /// [`TreeError::OtherFormat`] if it holds another tree or format; [`TreeError::Damaged`] if the root node
    /// can't be read; or the system's error.
    ///
    /// # Panics
    /// If an option is out of its range.
    pub async fn open(
        env: &Env,
        path: &Path,
        options: TreeOptions,
        reduction: R,
    ) -> Result<Tree<R>, TreeError> {
        Tree::open_as(env, path, OpenMode::Write, options, reduction).await
    }

    /// As [`Tree::open`], for reading alone: the file may be on a read-only medium, and isn't synced. Commits fail.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// As there.
    pub async fn open_to_read(
        env: &Env,
        path: &Path,
        options: TreeOptions,
        reduction: R,
    ) -> Result<Tree<R>, TreeError> {
        Tree::open_as(env, path, OpenMode::Read, options, reduction).await
    }

    async fn open_as(
        env: &Env,
        path: &Path,
        mode: OpenMode,
        options: TreeOptions,
        reduction: R,
    ) -> Result<Tree<R>, TreeError> {
        options.check();
        let file = File::open(&env.engine, path, mode).await?;
        file.set_direct(options.direct).await?;
        let length = file.length().await?;
        let head = file.read_at(0, HEAD_SIZE as usize).await?;
        let Head { incarnation, newest, slot, is_torn } = Head::decode(&head, path)?;
        if options.incarnation.is_some_and(|expected| expected != incarnation) {
            return Err(TreeError::OtherIncarnation { path: path.to_path_buf() });
        }
        let damaged =
            |what| TreeError::Damaged(Damage { path: path.to_path_buf(), offset: SLOTS[slot], what });
        if length < newest.end {
            return Err(damaged("the file is shorter than its root requires"));
        }
        if length > FILE_SIZE_MAX {
            return Err(damaged("the file is longer than a tree can be"));
        }
        // Behind bytes that a crash may have left.
        let end = length.next_multiple_of(BLOCK_SIZE);
        let last_seq = newest.seq;
        let shared = Arc::new(Shared::new(env, file, reduction, options, incarnation, end));
        let state = Arc::new(load_root(&shared, newest, SLOTS[slot]).await?);
        if mode == OpenMode::Write {
            // Before anyone relies on the root: a process that was killed during its commit may have left it in
            // the page cache only.
            shared.file.sync().await?;
        }
        let mut roots = shared.newest();
        roots.root = state.clone();
        roots.committed = state;
        drop(roots);
        let writer = Writer { stopped: None, last_seq, next_slot: 1 - slot };
        Ok(Tree { shared, writer: Arc::new(Mutex::new(writer)), is_torn })
    }

    /// The newest root: of the last update or commit, or the one that was opened. It is an immutable snapshot
    /// and keeps the file open.
    pub fn root(&self) -> Root<R> {
        self.root_of(self.shared.newest().root.clone())
    }

    /// The newest committed root: the one that opening the file again returns.
    pub fn committed(&self) -> Root<R> {
        self.root_of(self.shared.newest().committed.clone())
    }

    pub(crate) fn root_of(&self, state: Arc<RootState<R>>) -> Root<R> {
        Root { shared: self.shared.clone(), state }
    }

    /// The tree's random identifier.
    pub fn incarnation(&self) -> [u8; 16] {
        self.shared.incarnation
    }

    /// Size of the file in bytes, including writes in flight.
    pub fn file_bytes(&self) -> u64 {
        self.shared.end()
    }

    /// Number of nodes read from the file so far by any root or update of this handle.
    pub fn node_read_count(&self) -> u64 {
        self.shared.node_read_count()
    }

    /// Whether updates and commits are refused, after a failed write or sync. Waits for the one in progress.
    pub async fn is_stopped(&self) -> bool {
        self.writer.lock().await.stopped.is_some()
    }

    /// Whether a root slot held neither a root nor zeros when the tree was opened: after a commit interrupted
    /// by a crash, or damage.
    pub fn is_torn(&self) -> bool {
        self.is_torn
    }

    /// Commits `root`, a root of this tree, with `attachment`: syncs its nodes, writes the root, and syncs
    /// that. When it returns, root and attachment are durable, opening the file returns this root, and
    /// [`Root::seq`] of all handles to it is `seq`. If the root had been committed before, [`Tree::root`]
    /// returns a root with the new `seq`. Dropping the future doesn't cancel the commit.
    ///
    /// # Errors
    /// [`TreeError::StaleSeq`], [`TreeError::TooLarge`] and [`TreeError::NoSpace`]: the tree is unchanged.
    /// [`TreeError::Stopped`]: reopening shows whether the root was committed.
    ///
    /// # Panics
    /// If `root` belongs to another tree.
    pub async fn commit(&self, root: &Root<R>, seq: u64, attachment: &[u8]) -> Result<(), TreeError> {
        assert!(Arc::ptr_eq(&root.shared, &self.shared), "a root of another tree");
        if attachment.len() > ATTACHMENT_SIZE_MAX {
            let (what, max) = ("an attachment", ATTACHMENT_SIZE_MAX);
            return Err(TreeError::TooLarge { what, size: attachment.len(), max });
        }
        let writer = self.writer.clone().lock_owned().await;
        let commit = Commit {
            shared: self.shared.clone(),
            state: root.state.clone(),
            seq,
            attachment: Bytes::copy_from_slice(attachment),
        };
        // In a task of its own: a half-written root must never be overwritten by another commit.
        let (sender, done) = oneshot::channel();
        self.shared.env.spawn("tree commit", async move { drop(sender.send(commit.run(writer).await)) });
        let path = self.shared.file.path();
        done.await.unwrap_or_else(|_| {
            Err(TreeError::Stopped { source: Arc::new(Error::Closed { path: path.clone() }) })
        })
    }

    /// Waits for the update or commit in progress, then closes the file. Its roots can read only cached nodes
    /// afterwards; later updates and commits are refused.
    pub async fn close(&self) {
        let mut writer = self.writer.lock().await;
        writer.stop(Error::Closed { path: self.shared.file.path().clone() });
        self.shared.file.close();
    }

    pub(crate) async fn appender(&self) -> Result<Appender<R>, TreeError> {
        Appender::new(&self.shared, self.writer.clone().lock_owned().await)
    }
}

/// A commit in progress.
struct Commit<R: Reduction> {
    shared: Arc<Shared<R>>,
    state: Arc<RootState<R>>,
    seq: u64,
    attachment: Bytes,
}

impl<R: Reduction> Commit<R> {
    async fn run(self, writer: WriterGuard) -> Result<(), TreeError> {
        let Commit { shared, state, seq, attachment } = self;
        writer.check()?;
        if seq <= writer.last_seq {
            return Err(TreeError::StaleSeq { seq, last: writer.last_seq });
        }
        let (mut writer, pointer, end) = append_attachment(&shared, writer, &attachment).await?;
        // An interrupted commit may have written its root.
        writer.stopped = Some(Arc::new(Error::Panicked { path: shared.file.path().clone() }));
        if let Err(error) = shared.file.sync().await {
            return Err(writer.fail_commit(error));
        }
        // Not the file's end: failed or abandoned writes may lie before that.
        let committed = Committed { seq, end: end.max(state.end), attachment: pointer };
        let slot = SLOTS[writer.next_slot];
        let block = state.record(&shared.reduction, &committed).encode(&shared.incarnation, slot);
        if let Err(error) = shared.file.write_and_sync_at(slot, block.into()).await {
            return Err(writer.fail_commit(error));
        }
        writer.stopped = None;
        writer.last_seq = seq;
        writer.next_slot = 1 - writer.next_slot;
        publish(&shared, state, committed);
        Ok(())
    }
}

/// Writes the attachment. Returns its pointer and the file's end behind it.
async fn append_attachment<R: Reduction>(
    shared: &Arc<Shared<R>>,
    writer: WriterGuard,
    attachment: &[u8],
) -> Result<(WriterGuard, AttachmentPointer, u64), TreeError> {
    if attachment.is_empty() {
        return Ok((writer, AttachmentPointer::default(), HEAD_SIZE));
    }
    let mut appender = Appender::new(shared, writer)?;
    let offset = appender.position();
    let checksum = shared.seed.checksum(offset, attachment);
    appender.append(attachment).await?;
    let (writer, end) = appender.finish().await?;
    Ok((writer, AttachmentPointer { offset, length: attachment.len() as u32, checksum }, end))
}

fn publish<R: Reduction>(shared: &Shared<R>, state: Arc<RootState<R>>, committed: Committed) {
    let mut newest = shared.newest();
    let is_newest = Arc::ptr_eq(&newest.root, &state);
    let state = match state.committed.set(committed) {
        Ok(()) => state,
        Err(_) => {
            let copy = state.uncommitted_copy();
            copy.committed.get_or_init(|| committed);
            Arc::new(copy)
        }
    };
    if is_newest {
        newest.root = state.clone();
    }
    newest.committed = state;
}

/// The decoded head of a file.
struct Head {
    incarnation: [u8; 16],
    newest: RootRecord,
    /// The slot that holds `newest`.
    slot: usize,
    is_torn: bool,
}

impl Head {
    fn decode(head: &[u8], path: &Path) -> Result<Head, TreeError> {
        let block =
            |offset: u64| head.get(offset as usize..(offset + BLOCK_SIZE) as usize).unwrap_or_default();
        let header = decode_header(block(0));
        let slots = SLOTS.map(|offset| RootRecord::decode(block(offset), offset));
        let damaged = |what| TreeError::Damaged(Damage { path: path.to_path_buf(), offset: 0, what });
        let incarnation = match header {
            Ok(incarnation) => incarnation,
            Err(BlockError::Version(found)) => {
                let known = FORMAT_VERSION;
                return Err(TreeError::OtherFormat { path: path.to_path_buf(), found, known });
            }
            // The first commit syncs the header before it writes a root.
            Err(BlockError::Invalid) if slots.iter().all(Option::is_none) => {
                return Err(TreeError::NoRoot { path: path.to_path_buf() });
            }
            Err(BlockError::Invalid) => return Err(damaged("the header is malformed")),
        };
        let is_torn =
            (0..2).any(|slot| slots[slot].is_none() && block(SLOTS[slot]).iter().any(|byte| *byte != 0));
        let mut newest: Option<(RootRecord, usize)> = None;
        for (slot, found) in slots.into_iter().enumerate() {
            let Some((record, of)) = found else { continue };
            if of != incarnation {
                return Err(damaged("a root of another tree"));
            }
            if newest.as_ref().is_none_or(|(newest, _)| newest.seq < record.seq) {
                newest = Some((record, slot));
            }
        }
        let (newest, slot) = newest.ok_or_else(|| TreeError::NoRoot { path: path.to_path_buf() })?;
        Ok(Head { incarnation, newest, slot, is_torn })
    }
}

/// Loads the root that a slot's record describes.
async fn load_root<R: Reduction>(
    shared: &Arc<Shared<R>>,
    record: RootRecord,
    slot: u64,
) -> Result<RootState<R>, TreeError> {
    let summary = shared
        .reduction
        .decode(&record.summary)
        .ok_or_else(|| shared.damaged(slot, "the root's summary is malformed"))?;
    let top = match record.pointer {
        Some(pointer) => Some(Top { pointer, node: shared.load(pointer, record.level, true).await? }),
        None => None,
    };
    let committed = Committed { seq: record.seq, end: record.end, attachment: record.attachment };
    Ok(RootState {
        top,
        count: record.count,
        live_bytes: record.live_bytes,
        summary,
        end: record.end,
        committed: committed.into(),
    })
}

impl<R: Reduction> fmt::Debug for Tree<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tree").field("path", &self.shared.file.path()).finish_non_exhaustive()
    }
}
