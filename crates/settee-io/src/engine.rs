//! The engine trait, and the operations on files that an engine runs.
//!
//! An [`Operation`] is plain data and owns its buffers. It can be queued, reordered, counted and simulated,
//! and no buffer is freed while the kernel uses it, even if the future that waits for it is dropped. An
//! operation is either submitted (the engine completes it later) or run in the caller's thread, for callers
//! without an executor.

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

/// An open file of an engine. Requests share it, so the system's descriptor is closed only after the last
/// in-flight operation has finished.
#[derive(Debug)]
#[allow(missing_docs, reason = "the variants' docs name the fields")]
pub enum Descriptor {
    /// A file of the operating system, accessed through its page cache.
    System(std::fs::File),
    /// The file of `of`, opened again for direct I/O (O_DIRECT). `of` stays open, and so keeps the file's
    /// lock.
    Direct { file: std::fs::File, of: Arc<Descriptor> },
    /// A file of a simulation.
    Simulated(Box<dyn Any + Send + Sync>),
}

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// Read an existing file.
    Read,
    /// Read and write an existing file.
    Write,
    /// Read and write a file that must not exist yet.
    CreateNew,
    /// Read and write a file; it is created if it doesn't exist.
    Create,
}

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name without its directory.
    pub name: String,
    /// Whether the entry is a directory.
    pub is_directory: bool,
}

/// The identity of an open file and the time of its last change. If two readings are equal, they saw the same
/// file and nothing was written in between, unless its times were set explicitly. Linking a file doesn't
/// change its identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileIdentity {
    /// File system (`st_dev`).
    pub device: u64,
    /// Number of the file in its file system (`st_ino`).
    pub inode: u64,
    /// Time of the last write in nanoseconds since 1970 (`st_mtim`), with the resolution of the file system.
    pub modified_ns: i128,
}

/// An operation of an [`Engine`]. Offsets and lengths are in bytes.
#[derive(Debug)]
#[allow(missing_docs, reason = "the variants' docs name the fields")]
pub enum Operation {
    /// Opens a file. Outcome: [`Outcome::Opened`].
    Open { path: PathBuf, mode: OpenMode },
    /// Opens `file` again for direct I/O, with the same access rights. Reads and writes through the new
    /// descriptor must be aligned in offset, length and memory. Outcome: [`Outcome::OpenedDirect`], or an
    /// error of kind `Unsupported` that says why direct I/O is not available.
    OpenDirect { file: Arc<Descriptor> },
    /// Reads up to `buffer.capacity()` bytes into the front of `buffer`. Fewer bytes are a regular result; 0
    /// bytes mean the end of the file. Outcome: [`Outcome::Read`].
    Read { file: Arc<Descriptor>, offset: u64, buffer: AlignedBuffer },
    /// Writes a part of `buffer`, at least one byte unless the buffer is empty. With `sync`, if all of
    /// `buffer` was written, everything written to the file up to and including this write is then on stable
    /// storage, as after `Sync`; if that sync fails, the error is a [`SyncFailed`]. Outcome:
    /// [`Outcome::Count`].
    Write { file: Arc<Descriptor>, offset: u64, buffer: Bytes, sync: bool },
    /// Puts the file's data, and the metadata needed to read it, on stable storage (fdatasync(2)). Outcome:
    /// [`Outcome::Done`].
    Sync { file: Arc<Descriptor> },
    /// Reserves disk space for the range without changing its contents. The file grows to cover the range,
    /// with zeros (fallocate(2)). A file system that can't reserve only grows the file. Outcome:
    /// [`Outcome::Done`].
    Allocate { file: Arc<Descriptor>, offset: u64, length: u64 },
    /// Truncates or extends the file. Outcome: [`Outcome::Done`].
    SetLength { file: Arc<Descriptor>, length: u64 },
    /// Returns the file's length. Outcome: [`Outcome::Count`].
    Length { file: Arc<Descriptor> },
    /// Returns the number of the file's names (stat(2)). Outcome: [`Outcome::Count`].
    LinkCount { file: Arc<Descriptor> },
    /// Returns the file's identity and the time of its last change (stat(2)). Outcome: [`Outcome::Identity`].
    Identity { file: Arc<Descriptor> },
    /// Takes the file's exclusive advisory lock, or fails with `WouldBlock` (flock(2)). The lock ends with
    /// the descriptor. Outcome: [`Outcome::Done`].
    Lock { file: Arc<Descriptor> },
    /// Creates a directory; its parent must exist. Outcome: [`Outcome::Done`].
    CreateDirectory { path: PathBuf },
    /// Lists a directory, in no particular order. Outcome: [`Outcome::Entries`].
    List { path: PathBuf },
    /// Puts a directory's entries (creations, renames, removals) on stable storage. Outcome:
    /// [`Outcome::Done`].
    SyncDirectory { path: PathBuf },
    /// Removes a file's name. Outcome: [`Outcome::Done`].
    Remove { path: PathBuf },
    /// Removes an empty directory. Outcome: [`Outcome::Done`].
    RemoveDirectory { path: PathBuf },
    /// Renames a file, replacing any file of the new name. Outcome: [`Outcome::Done`].
    Rename { from: PathBuf, to: PathBuf },
    /// Adds a second name to a file. The name must not exist and must be in the same file system (link(2)).
    /// Outcome: [`Outcome::Done`].
    Link { from: PathBuf, to: PathBuf },
}

/// The source of the [`io::Error`] of an [`Operation::Write`] with `sync` whose write succeeded and whose
/// sync failed. The outer error has the kind of the inner one.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SyncFailed(pub io::Error);

impl SyncFailed {
    /// Wraps the system's error of the sync as the error of the whole operation.
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
    CreateDirectory,
    List,
    SyncDirectory,
    Remove,
    RemoveDirectory,
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
            OperationKind::CreateDirectory => "create directory",
            OperationKind::List => "list directory",
            OperationKind::SyncDirectory => "sync directory",
            OperationKind::Remove => "remove",
            OperationKind::RemoveDirectory => "remove directory",
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
            Operation::CreateDirectory { .. } => OperationKind::CreateDirectory,
            Operation::List { .. } => OperationKind::List,
            Operation::SyncDirectory { .. } => OperationKind::SyncDirectory,
            Operation::Remove { .. } => OperationKind::Remove,
            Operation::RemoveDirectory { .. } => OperationKind::RemoveDirectory,
            Operation::Rename { .. } => OperationKind::Rename,
            Operation::Link { .. } => OperationKind::Link,
        }
    }
}

/// The result of a successful operation. [`Operation`] says which variant each operation returns.
#[derive(Debug)]
#[allow(missing_docs, reason = "the variants' docs name the fields")]
pub enum Outcome {
    /// The operation is done and has no result.
    Done,
    /// The open file.
    Opened(Descriptor),
    /// The file opened for direct I/O, and the alignment that its requests need.
    OpenedDirect { descriptor: Descriptor, alignment: Alignment },
    /// The bytes read: the contents of `buffer`.
    Read { buffer: AlignedBuffer },
    /// Bytes written, the file's length in bytes, or the number of its names.
    Count(u64),
    /// The file's identity.
    Identity(FileIdentity),
    /// The directory's entries.
    Entries(Vec<Entry>),
}

/// An operation, and the completion to call with its result.
#[derive(Debug)]
pub struct Request {
    /// The operation.
    pub operation: Operation,
    /// Receives the result.
    pub completion: Completion,
}

/// Receives the result of a request. Dropped unused, it reports that the engine has stopped.
pub struct Completion(Option<Waiter>);

/// Receiver of a completion's result.
enum Waiter {
    /// The task that holds the other end of the channel.
    Task(oneshot::Sender<io::Result<Outcome>>),
    /// A function, called in the thread in which the request ends.
    Call(Box<dyn FnOnce(io::Result<Outcome>) + Send>),
}

impl Completion {
    /// Returns a completion and the channel on which its result arrives.
    pub fn new() -> (Completion, oneshot::Receiver<io::Result<Outcome>>) {
        let (sender, receiver) = oneshot::channel();
        (Completion(Some(Waiter::Task(sender))), receiver)
    }

    /// Returns a completion that calls `done` with the result, in the thread in which the request ends. That
    /// may be the thread that called [`Engine::submit`], before the call returns. `done` must be short and
    /// must not block, because the engine's thread does nothing else meanwhile. It may submit requests.
    pub fn call(done: impl FnOnce(io::Result<Outcome>) + Send + 'static) -> Completion {
        Completion(Some(Waiter::Call(Box::new(done))))
    }

    /// Delivers the result. If the waiting task is gone the result is dropped.
    pub fn complete(mut self, result: io::Result<Outcome>) {
        self.notify(result);
    }

    /// Drops it without a call: for a simulated power loss, which no task survives.
    pub fn abandon(mut self) {
        self.0 = None;
    }

    fn notify(&mut self, result: io::Result<Outcome>) {
        match self.0.take() {
            Some(Waiter::Task(sender)) => drop(sender.send(result)),
            Some(Waiter::Call(done)) => {
                // A panic of `done` must not end the engine's thread, which serves other requests too.
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
        self.notify(Err(io::Error::other("the engine has stopped")));
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
    /// Returns the engine's name for logs and metrics.
    fn name(&self) -> &'static str;

    /// Starts the operation and returns without waiting for it; if the queue is full it runs the operation in
    /// the caller's thread instead. The completion is called exactly once, from any thread, possibly before
    /// this returns. Operations that are in flight together may run in any order.
    fn submit(&self, request: Request);

    /// Runs the operation in the caller's thread and returns when it is done. An operation that a signal
    /// interrupted before it had any effect is repeated, so callers never see EINTR.
    fn run(&self, operation: Operation) -> io::Result<Outcome>;

    /// Returns the counter of open files, if the engine limits their number.
    fn descriptors(&self) -> Option<&Arc<Descriptors>> {
        None
    }

    /// Returns whether [`File`](crate::File) first tries buffered reads of the system's files in the caller's
    /// thread, by a system call that doesn't wait for the medium (preadv2(2) with `RWF_NOWAIT`) and that
    /// bypasses the engine. Called when a file is opened. Such a read is too short for a virtual call:
    /// processors mispredict each return to the frames above a system call, which costs up to a tenth of the
    /// read.
    fn reads_in_place(&self) -> bool {
        false
    }

    /// Reads from a cache without waiting for the medium, for files that are not the system's: as
    /// [`Operation::Read`], with the bytes in `buffer`. Returns `None` if the bytes aren't cached or the
    /// engine can't tell.
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
