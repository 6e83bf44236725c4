//! Operations on files as plain data, their kinds and their outcomes.
//!
//! An [`Operation`] owns its buffers. It can be queued, reordered, counted and simulated, and no buffer is
//! freed while the kernel uses it, even if the future that waits for it is dropped.

use std::any::Any;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;

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

/// An operation of an [`Engine`](crate::Engine). Offsets and lengths are in bytes.
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
