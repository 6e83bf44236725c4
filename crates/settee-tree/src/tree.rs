//! A tree: the handle that opens, updates, commits and closes a file.
//!
//! Invariants:
//! 1. Updates and commits come one after another; readers wait for none of them.
//! 2. A commit syncs the nodes before it writes their root, and that to the slot which the newest
//!    committed root is not in: whatever becomes of the write, that root is there.
//! 3. After a failed sync, or a failed write of a root, nothing is written any more.
//!
//! Crash cases: a commit that was torn costs itself alone, since the other slot has the root
//! before it; opening syncs the file, since a killed process may have left the newest root in the page
//! cache alone. What lies behind the newest root's end belongs to nobody; appending goes on behind
//! the end of the file, never over it.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use settee_io::{Env, Error, File, OpenMode};
use tokio::sync::{Mutex, oneshot};

use crate::append::{Appender, Writer, WriterGuard};
use crate::cache::NodeCache;
use crate::error::TreeError;
use crate::format::{
    ATTACHMENT_SIZE_MAX, AttachmentPointer, BLOCK_SIZE, BlockError, FILE_SIZE_MAX, FORMAT_VERSION, HEAD_SIZE,
    RootRecord, SLOTS, decode_header, encode_header,
};
use crate::reduction::Reduction;
use crate::root::Root;
use crate::shared::{Committed, RootState, Shared, Top};

/// The smallest and the largest target for a node's size in bytes.
const NODE_BYTES: std::ops::RangeInclusive<usize> = 256..=32 << 10;

/// The smallest and the largest write buffer in bytes.
const WRITE_BUFFER_BYTES: std::ops::RangeInclusive<usize> = BLOCK_SIZE as usize..=64 << 20;

/// The most that a scan reads ahead in bytes.
const READ_AHEAD_BYTES: std::ops::RangeInclusive<usize> = 1..=64 << 20;

/// How a tree is written and read. All but the incarnation may differ from one opening to the
/// next.
#[derive(Debug, Clone)]
pub struct TreeOptions {
    /// What nodes are filled up to, in bytes: 256 to 32 KiB. Larger entries make larger nodes.
    pub node_bytes: usize,
    /// How much is written at once, in bytes: 4 KiB to 64 MiB, a multiple of 4 KiB. A few such
    /// writes are in flight.
    pub write_buffer_bytes: usize,
    /// Up to how much a scan reads ahead, in bytes. It begins with one leaf.
    pub read_ahead_bytes_max: usize,
    /// Past the page cache, where the file system can.
    pub direct: bool,
    /// The tree's random name: checked by [`Tree::open`], given to the tree by [`Tree::create`].
    /// `None`: opens any, and creates one with a name of its own.
    pub incarnation: Option<[u8; 16]>,
    /// Where nodes are kept.
    pub cache: Arc<NodeCache>,
}

impl TreeOptions {
    /// The defaults: nodes of 4 KiB, writes of 1 MiB, up to 256 KiB read ahead, buffered.
    pub fn new(cache: Arc<NodeCache>) -> TreeOptions {
        TreeOptions {
            node_bytes: 4 << 10,
            write_buffer_bytes: 1 << 20,
            read_ahead_bytes_max: 256 << 10,
            direct: false,
            incarnation: None,
            cache,
        }
    }

    /// # Panics
    /// Where an option is out of its range.
    fn check(&self) {
        assert!(NODE_BYTES.contains(&self.node_bytes), "nodes of {} bytes", self.node_bytes);
        let buffer = self.write_buffer_bytes;
        let is_whole = buffer.is_multiple_of(BLOCK_SIZE as usize);
        assert!(WRITE_BUFFER_BYTES.contains(&buffer) && is_whole, "writes of {buffer} bytes");
        let ahead = self.read_ahead_bytes_max;
        assert!(READ_AHEAD_BYTES.contains(&ahead), "{ahead} bytes read ahead");
    }
}

/// An open tree. Used from many tasks at once; reading goes through its roots.
///
/// There must be one handle at a time that writes to a file; it doesn't lock the file.
pub struct Tree<R: Reduction> {
    pub(crate) shared: Arc<Shared<R>>,
    pub(crate) writer: Arc<Mutex<Writer>>,
    is_torn: bool,
}

impl<R: Reduction> Tree<R> {
    /// Creates an empty tree in a file that must not exist yet. Nothing of it is durable before
    /// the first commit, and its name only when the caller has synced the folder.
    ///
    /// # Errors
    /// What the system says. The file may be there.
    ///
    /// # Panics
    /// Where an option is out of its range.
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
        // The whole head, so that the file is as long as any root says.
        let mut head = encode_header(&incarnation);
        head.resize(HEAD_SIZE as usize, 0);
        file.write_at(0, head.into()).await?;
        let shared = Shared::new(env, file, reduction, options, incarnation, HEAD_SIZE);
        Ok(Tree { shared: Arc::new(shared), writer: Arc::default(), is_torn: false })
    }

    /// Opens a tree at the newest root that was committed: the one whose commit was torn, if any,
    /// is as if it had never been ([`Tree::is_torn`]). Reads the head and the root node, and syncs the
    /// file: what is read may have come from the page cache.
    ///
    /// # Errors
    /// [`TreeError::NoRoot`] where there is none; [`TreeError::OtherIncarnation`] and
    /// [`TreeError::OtherFormat`] where the file is another's; [`TreeError::Damaged`] where what
    /// a root stands for isn't there; what the system says.
    ///
    /// # Panics
    /// Where an option is out of its range.
    pub async fn open(
        env: &Env,
        path: &Path,
        options: TreeOptions,
        reduction: R,
    ) -> Result<Tree<R>, TreeError> {
        options.check();
        let file = File::open(&env.engine, path, OpenMode::Write).await?;
        file.set_direct(options.direct).await?;
        let length = file.length().await?;
        let head = file.read_at(0, HEAD_SIZE as usize).await?;
        let Head { incarnation, newest, slot, is_torn } = Head::decode(&head, path)?;
        if options.incarnation.is_some_and(|expected| expected != incarnation) {
            return Err(TreeError::OtherIncarnation { path: path.to_path_buf() });
        }
        let damaged = |what| TreeError::Damaged { path: path.to_path_buf(), offset: SLOTS[slot], what };
        if length < newest.end {
            return Err(damaged("the file is shorter than the root says"));
        }
        if length > FILE_SIZE_MAX {
            return Err(damaged("the file is longer than a tree's can be"));
        }
        // Behind what a crash may have left.
        let end = length.next_multiple_of(BLOCK_SIZE);
        let last_seq = newest.seq;
        let shared = Arc::new(Shared::new(env, file, reduction, options, incarnation, end));
        let state = Arc::new(load_root(&shared, newest, SLOTS[slot]).await?);
        // Before anybody counts on the root: a process that was killed in the midst of its commit may
        // have left it in the page cache alone.
        shared.file.sync().await?;
        let mut roots = shared.newest();
        roots.root = state.clone();
        roots.committed = state;
        drop(roots);
        let writer = Writer { stopped: None, last_seq, next_slot: 1 - slot };
        Ok(Tree { shared, writer: Arc::new(Mutex::new(writer)), is_torn })
    }

    /// The newest state: of the last update or commit, or as it was opened. A snapshot, which
    /// never changes, and holds the file.
    pub fn root(&self) -> Root<R> {
        self.root_of(self.shared.newest().root.clone())
    }

    /// The newest committed state: what opening the file again gives.
    pub fn committed(&self) -> Root<R> {
        self.root_of(self.shared.newest().committed.clone())
    }

    pub(crate) fn root_of(&self, state: Arc<RootState<R>>) -> Root<R> {
        Root { shared: self.shared.clone(), state }
    }

    /// The tree's random name.
    pub fn incarnation(&self) -> [u8; 16] {
        self.shared.incarnation
    }

    /// Bytes of the file, those on their way there included.
    pub fn file_bytes(&self) -> u64 {
        self.shared.end()
    }

    /// How many nodes were read from the file so far, by any root or update of this handle.
    pub fn node_read_count(&self) -> u64 {
        self.shared.node_read_count()
    }

    /// Whether a root slot held something that is no root when the tree was opened: a commit cut
    /// short by a crash, or damage.
    pub fn is_torn(&self) -> bool {
        self.is_torn
    }

    /// Makes `root`, a root of this tree, what opening the file gives, with `attachment` beside
    /// it: syncs its nodes, writes the root, and syncs that. When it returns, both are durable,
    /// and [`Root::seq`] of all handles to that root is `seq`; where the root had been committed
    /// before, [`Tree::root`] gives one with the new `seq`. A dropped future changes nothing:
    /// the commit goes on to its end.
    ///
    /// # Errors
    /// [`TreeError::StaleSeq`], [`TreeError::TooLarge`] and [`TreeError::NoSpace`]: the tree is
    /// as before. [`TreeError::Stopped`]: reopening tells whether the root was committed.
    ///
    /// # Panics
    /// Where `root` is another tree's.
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
        // In a task of its own: a root half written must never be written over by another.
        let (sender, done) = oneshot::channel();
        self.shared.env.spawn("tree commit", async move { drop(sender.send(commit.run(writer).await)) });
        let path = self.shared.file.path();
        done.await.unwrap_or_else(|_| {
            Err(TreeError::Stopped { source: Arc::new(Error::Closed { path: path.clone() }) })
        })
    }

    /// Waits for the update or commit that is under way, and closes the file: for its roots too,
    /// which can't read what isn't cached any more. Later updates and commits are refused.
    pub async fn close(&self) {
        let mut writer = self.writer.lock().await;
        writer.stop(Error::Closed { path: self.shared.file.path().clone() });
        self.shared.file.close();
    }

    pub(crate) async fn appender(&self) -> Result<Appender<R>, TreeError> {
        Appender::new(&self.shared, self.writer.clone().lock_owned().await)
    }
}

/// A commit under way.
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
        // A commit that doesn't come to its end may have written its root.
        writer.stopped = Some(Arc::new(Error::Panicked { path: shared.file.path().clone() }));
        if let Err(error) = shared.file.sync().await {
            return Err(writer.fail_commit(error));
        }
        // Not the file's end: writes that failed, or that nobody waited for, may lie before that.
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

/// Writes the attachment; where it lies, and where it ends.
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
            let again = state.again();
            again.committed.get_or_init(|| committed);
            Arc::new(again)
        }
    };
    if is_newest {
        newest.root = state.clone();
    }
    newest.committed = state;
}

/// What a file's head says.
struct Head {
    incarnation: [u8; 16],
    newest: RootRecord,
    /// Which slot has it.
    slot: usize,
    is_torn: bool,
}

impl Head {
    fn decode(head: &[u8], path: &Path) -> Result<Head, TreeError> {
        let block =
            |offset: u64| head.get(offset as usize..(offset + BLOCK_SIZE) as usize).unwrap_or_default();
        let header = decode_header(block(0));
        let slots = SLOTS.map(|offset| RootRecord::decode(block(offset), offset));
        let damaged = |what| TreeError::Damaged { path: path.to_path_buf(), offset: 0, what };
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
            Err(BlockError::Invalid) => return Err(damaged("its header makes no sense")),
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

/// The state that a slot's record stands for.
async fn load_root<R: Reduction>(
    shared: &Arc<Shared<R>>,
    record: RootRecord,
    slot: u64,
) -> Result<RootState<R>, TreeError> {
    let summary = shared
        .reduction
        .decode(&record.summary)
        .ok_or_else(|| shared.damaged(slot, "the root's summary makes no sense"))?;
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
