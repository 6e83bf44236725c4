//! The engine: what runs operations on files.
//!
//! An [`Operation`] is plain data and owns its buffers, so that it can be queued, reordered,
//! counted and simulated, and so that no buffer is freed while the system uses it, whatever
//! becomes of the future that waits for it. Each operation can be submitted (the engine
//! completes it later) or run (in the caller's thread, for users without an executor).

use std::any::Any;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::descriptors::Descriptors;
use crate::{AlignedBuffer, Alignment};

/// An open file as its engine knows it. Requests share it, so it is dropped, and with it the
/// system's descriptor, only after the last operation in flight has finished.
#[derive(Debug)]
#[allow(missing_docs, reason = "the fields are what the variants' docs name")]
pub enum Descriptor {
    /// A file of the operating system, through its page cache.
    System(std::fs::File),
    /// The same file past the page cache (O_DIRECT). It keeps the descriptor that it was made
    /// from, and with it the file's lock.
    Direct { file: std::fs::File, of: Arc<Descriptor> },
    /// A file of a simulation.
    Simulated(Box<dyn Any + Send + Sync>),
}

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// Reading an existing file.
    Read,
    /// Reading and writing an existing file.
    Write,
    /// Reading and writing a file that must not exist yet.
    CreateNew,
    /// Reading and writing a file, created where it doesn't exist.
    Create,
}

/// One name in a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name without its folder.
    pub name: String,
    /// Whether it is a folder itself.
    pub is_folder: bool,
}

/// Which file an open one is, and its last change: two readings that are equal saw one file, in which
/// nothing was written between them, unless its times were set by hand. Linking a file changes nothing here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileIdentity {
    /// The file system (`st_dev`).
    pub device: u64,
    /// The file in it (`st_ino`).
    pub inode: u64,
    /// Time of the last write, in nanoseconds since 1970 (`st_mtim`), as fine as the file system has it.
    pub modified_ns: i128,
}

/// What an engine can be asked for. Offsets and lengths are in bytes.
#[derive(Debug)]
#[allow(missing_docs, reason = "the fields are what the variants' docs name")]
pub enum Operation {
    /// Opens a file: [`Outcome::Opened`].
    Open { path: PathBuf, mode: OpenMode },
    /// Opens the file of `file` a second time, past the page cache, with the same rights:
    /// [`Outcome::OpenedDirect`], or an error of kind `Unsupported` that says why the file can't
    /// be had so. Reads and writes through it must be aligned in offset, length and memory.
    OpenDirect { file: Arc<Descriptor> },
    /// Reads up to `buffer.capacity()` bytes into the front of `buffer`: [`Outcome::Read`].
    /// Fewer is an everyday result; 0 is the end of the file.
    Read { file: Arc<Descriptor>, offset: u64, buffer: AlignedBuffer },
    /// Writes some of `buffer`, at least one byte of a buffer that isn't empty:
    /// [`Outcome::Count`]. With `sync`, and where it wrote all of `buffer`, everything written
    /// to the file up to and with this write is on stable storage afterwards (as `Sync`). Where it
    /// is the sync that fails, the error is a [`SyncFailed`].
    Write { file: Arc<Descriptor>, offset: u64, buffer: Bytes, sync: bool },
    /// Puts the file's data, and the metadata needed to read it, on stable storage
    /// (fdatasync(2)): [`Outcome::Done`].
    Sync { file: Arc<Descriptor> },
    /// Reserves room for the range without changing what is read there; the file's length
    /// grows to cover it, reading as zeros (fallocate(2)). A file system that can't reserve only
    /// grows the length: [`Outcome::Done`].
    Allocate { file: Arc<Descriptor>, offset: u64, length: u64 },
    /// Cuts or extends the file: [`Outcome::Done`].
    SetLength { file: Arc<Descriptor>, length: u64 },
    /// The file's length: [`Outcome::Count`].
    Length { file: Arc<Descriptor> },
    /// How many names the file has (stat(2)): [`Outcome::Count`].
    LinkCount { file: Arc<Descriptor> },
    /// Which file it is, and when it was last changed (stat(2)): [`Outcome::Identity`].
    Identity { file: Arc<Descriptor> },
    /// Takes the file's exclusive advisory lock, or fails with `WouldBlock` (flock(2)):
    /// [`Outcome::Done`]. It ends with the descriptor.
    Lock { file: Arc<Descriptor> },
    /// Creates a folder, whose parent must exist: [`Outcome::Done`].
    CreateFolder { path: PathBuf },
    /// Lists a folder, in no order: [`Outcome::Entries`].
    List { path: PathBuf },
    /// Puts a folder's entries (creations, renames, removals) on stable storage:
    /// [`Outcome::Done`].
    SyncFolder { path: PathBuf },
    /// Removes a file's name: [`Outcome::Done`].
    Remove { path: PathBuf },
    /// Removes an empty folder: [`Outcome::Done`].
    RemoveFolder { path: PathBuf },
    /// Renames a file over whatever has the new name: [`Outcome::Done`].
    Rename { from: PathBuf, to: PathBuf },
    /// Gives a file a second name, which must be free and in the same file system (link(2)):
    /// [`Outcome::Done`].
    Link { from: PathBuf, to: PathBuf },
}

/// The error of an [`Operation::Write`] with `sync` whose write succeeded and whose sync failed:
/// inside the [`io::Error`], which has the kind of what the system said.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SyncFailed(pub io::Error);

impl SyncFailed {
    /// What the system said of the sync, as the error of the whole operation.
    pub fn wrap(error: io::Error) -> io::Error {
        io::Error::new(error.kind(), SyncFailed(error))
    }
}

/// The kind of an operation, for errors and metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "each is the kind of the operation of that name")]
pub enum OperationKind {
    Open,
    OpenDirect,
    Read,
    Write,
    Sync,
    Allocate,
    SetLength,
    Length,
    LinkCount,
    Identity,
    Lock,
    CreateFolder,
    List,
    SyncFolder,
    Remove,
    RemoveFolder,
    Rename,
    Link,
}

impl fmt::Display for OperationKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            OperationKind::Open => "open",
            OperationKind::OpenDirect => "open for direct I/O",
            OperationKind::Read => "read",
            OperationKind::Write => "write",
            OperationKind::Sync => "sync",
            OperationKind::Allocate => "allocate",
            OperationKind::SetLength => "set length",
            OperationKind::Length => "length",
            OperationKind::LinkCount => "link count",
            OperationKind::Identity => "identity",
            OperationKind::Lock => "lock",
            OperationKind::CreateFolder => "create folder",
            OperationKind::List => "list folder",
            OperationKind::SyncFolder => "sync folder",
            OperationKind::Remove => "remove",
            OperationKind::RemoveFolder => "remove folder",
            OperationKind::Rename => "rename",
            OperationKind::Link => "link",
        })
    }
}

impl Operation {
    /// The operation's kind.
    pub fn kind(&self) -> OperationKind {
        match self {
            Operation::Open { .. } => OperationKind::Open,
            Operation::OpenDirect { .. } => OperationKind::OpenDirect,
            Operation::Read { .. } => OperationKind::Read,
            Operation::Write { .. } => OperationKind::Write,
            Operation::Sync { .. } => OperationKind::Sync,
            Operation::Allocate { .. } => OperationKind::Allocate,
            Operation::SetLength { .. } => OperationKind::SetLength,
            Operation::Length { .. } => OperationKind::Length,
            Operation::LinkCount { .. } => OperationKind::LinkCount,
            Operation::Identity { .. } => OperationKind::Identity,
            Operation::Lock { .. } => OperationKind::Lock,
            Operation::CreateFolder { .. } => OperationKind::CreateFolder,
            Operation::List { .. } => OperationKind::List,
            Operation::SyncFolder { .. } => OperationKind::SyncFolder,
            Operation::Remove { .. } => OperationKind::Remove,
            Operation::RemoveFolder { .. } => OperationKind::RemoveFolder,
            Operation::Rename { .. } => OperationKind::Rename,
            Operation::Link { .. } => OperationKind::Link,
        }
    }
}

/// What an operation that succeeded gave; which one, [`Operation`] says at each.
#[derive(Debug)]
#[allow(missing_docs, reason = "the fields are what the variants' docs name")]
pub enum Outcome {
    /// It is done, and there is nothing to tell.
    Done,
    /// The file is open.
    Opened(Descriptor),
    /// The file is open for direct I/O, which wants this alignment.
    OpenedDirect { descriptor: Descriptor, alignment: Alignment },
    /// What was read: as much as `buffer` holds.
    Read { buffer: AlignedBuffer },
    /// Bytes written, the file's length, or how many names it has.
    Count(u64),
    /// Which file it is.
    Identity(FileIdentity),
    /// The folder's entries.
    Entries(Vec<Entry>),
}

/// An operation on its way, with whom to tell.
#[derive(Debug)]
pub struct Request {
    /// What to do.
    pub operation: Operation,
    /// Whom to tell.
    pub completion: Completion,
}

/// Tells whoever waits for a request how it ended. Dropping it unused tells them that the
/// engine has gone.
pub struct Completion(Option<Tell>);

/// Whom a completion tells.
enum Tell {
    /// A task.
    Task(oneshot::Sender<io::Result<Outcome>>),
    /// A function, called in the thread where the request ended.
    Call(Box<dyn FnOnce(io::Result<Outcome>) + Send>),
}

impl Completion {
    /// A completion, and where its result arrives.
    pub fn new() -> (Completion, oneshot::Receiver<io::Result<Outcome>>) {
        let (sender, receiver) = oneshot::channel();
        (Completion(Some(Tell::Task(sender))), receiver)
    }

    /// A completion that calls `done` with the result, in whichever thread the request ends:
    /// that of the caller of [`Engine::submit`], before it returns, is one of them. `done` must
    /// be short, and must not wait: the engine's thread does nothing else meanwhile. It may
    /// submit.
    pub fn call(done: impl FnOnce(io::Result<Outcome>) + Send + 'static) -> Completion {
        Completion(Some(Tell::Call(Box::new(done))))
    }

    /// Tells the result. Whoever waited may have gone: then the result is dropped.
    pub fn complete(mut self, result: io::Result<Outcome>) {
        self.tell(result);
    }

    /// Drops it without a call: for the simulated loss of power, which nobody lives to be told of.
    pub fn abandon(mut self) {
        self.0 = None;
    }

    fn tell(&mut self, result: io::Result<Outcome>) {
        match self.0.take() {
            Some(Tell::Task(sender)) => drop(sender.send(result)),
            Some(Tell::Call(done)) => {
                // The engine's thread serves others too: it doesn't end with this one.
                let called = catch_unwind(AssertUnwindSafe(|| done(result)));
                if called.is_err() {
                    tracing::error!("the completion of an operation on a file panicked");
                }
            }
            None => {}
        }
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        self.tell(Err(io::Error::other("the engine has stopped")));
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Completion")
    }
}

/// Runs operations on files: on the operating system ([`crate::ThreadEngine`],
/// [`crate::UringEngine`]), or in a simulation (`settee-sim`).
pub trait Engine: Send + Sync + 'static {
    /// Its name, as logs and metrics show it.
    fn name(&self) -> &'static str;

    /// Starts the operation and returns at once, or runs it in place where too much is queued;
    /// the completion is called exactly once, from any thread, perhaps before this returns.
    /// Operations submitted together may run in any order.
    fn submit(&self, request: Request);

    /// Runs the operation in the caller's thread and returns when it is done. An operation that
    /// was interrupted before it did anything is tried again, and so no caller sees EINTR.
    fn run(&self, operation: Operation) -> io::Result<Outcome>;

    /// The count of the files that are open, where the engine limits it.
    fn descriptors(&self) -> Option<&Arc<Descriptors>> {
        None
    }

    /// Whether buffered reads of the system's files are tried in place first, by a call to the
    /// system that doesn't wait for the medium (preadv2(2) with `RWF_NOWAIT`) and that the engine
    /// sees nothing of. Asked when a file is opened. Such a read is too short for a virtual call:
    /// processors mispredict each return to what lies above a system call, which costs up to a
    /// tenth of the read.
    fn reads_in_place(&self) -> bool {
        false
    }

    /// The same for files of other kinds: reads as [`Operation::Read`] into `buffer`, which holds
    /// afterwards what was read, without waiting for the medium. `None` where the bytes aren't
    /// in memory, or the engine can't tell.
    fn read_cached(
        &self,
        file: &Descriptor,
        offset: u64,
        buffer: &mut AlignedBuffer,
    ) -> Option<io::Result<()>> {
        let _ = (file, offset, buffer);
        None
    }
}
