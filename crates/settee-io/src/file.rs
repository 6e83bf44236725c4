//! A shared, positional file handle.
//!
//! Owns the descriptor together with the requests in flight. Many tasks use a `File` at once. A read
//! (`file/read.rs`) takes no lock; a write takes that of its write gate (`file/write.rs`) for a moment.
//!
//! A handle has a descriptor through the page cache and, after the first [`File::set_direct`], a second one
//! for direct I/O (`file/open.rs`). Each request takes one of the two by the mode at that moment and by its
//! own alignment, so the mode can change while requests are in flight. In direct mode too, unaligned requests
//! go through the page cache, with the same results: the kernel keeps the two coherent, and the gate excludes
//! the one case in which it doesn't (both kinds of writes at once).
//!
//! Invariants:
//! 1. The system's descriptor is closed only after the last in-flight operation has finished, even if the
//!    future that waited for it was dropped.
//! 2. After [`File::close`] no operation begins: each fails with [`Error::Closed`].

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::engine::operation::{FileIdentity, OpenMode, Operation, OperationKind, Outcome};
use crate::engine::request::{Completion, Engine, Request, begin, stopped, submit};
use crate::{Alignment, Error, Result};

mod open;
mod read;
mod write;

pub use open::DirectMode;
use open::OpenFile;
use read::{PendingRead, read_in_place};
use write::{FileShared, PendingWrite, WriteGate, write_blocking};

/// An open file. Offsets and lengths are in bytes.
pub struct File {
    shared: Arc<FileShared>,
    closed: AtomicBool,
}

impl File {
    /// Opens `path`, in buffered mode.
    ///
    /// # Errors
    /// The system's error; no file was created, unless the system crashes.
    pub async fn open(engine: &Arc<dyn Engine>, path: &Path, mode: OpenMode) -> Result<File> {
        Ok(File::new(OpenFile::open(engine, path, mode, false).await?))
    }

    /// Opens `path` as [`File::open`] does with [`OpenMode::CreateNew`]; the descriptors may come from the
    /// reserve ([`Descriptors::reserve`](crate::Descriptors::reserve)). For files that other work already
    /// waits for.
    ///
    /// # Errors
    /// As [`File::open`].
    pub async fn create_reserved(engine: &Arc<dyn Engine>, path: &Path) -> Result<File> {
        Ok(File::new(OpenFile::open(engine, path, OpenMode::CreateNew, true).await?))
    }

    fn new(file: OpenFile) -> File {
        let shared = FileShared { file, gate: WriteGate::default() };
        File { shared: Arc::new(shared), closed: AtomicBool::new(false) }
    }

    /// Returns the path by which the file was opened.
    pub fn path(&self) -> &Arc<Path> {
        &self.shared.file.path
    }

    /// Switches later requests to direct or to buffered mode; requests in flight end as they began. In direct
    /// mode reads are rounded out to the alignment, writes whose offset or length is unaligned go through the
    /// page cache, and writes of unaligned memory are copied. If direct I/O isn't available for this file,
    /// the handle stays in buffered mode and returns the reason; the first such reason in the process is
    /// logged as a warning.
    ///
    /// # Errors
    /// [`Error::Closed`], or a system error that doesn't concern direct I/O, for example that no file
    /// descriptor is free. The mode is then unchanged.
    pub async fn set_direct(&self, direct: bool) -> Result<DirectMode> {
        self.check_open()?;
        self.shared.file.set_direct(direct).await
    }

    /// The alignment of direct mode; `None` in buffered mode.
    pub fn direct(&self) -> Option<Alignment> {
        self.shared.file.direct()
    }

    /// Reads `length` bytes at `offset`, fewer only at the end of the file. In buffered mode, bytes in the
    /// page cache are read in the caller's thread; the rest goes through the engine. Dropping the future
    /// abandons the read.
    ///
    /// # Errors
    /// [`Error::Closed`], or the system's error.
    pub async fn read_at(&self, offset: u64, length: usize) -> Result<Bytes> {
        self.read_until(offset, length, length).await
    }

    /// Reads as [`File::read_at`] does, but may return as soon as the first `wanted` bytes are read.
    pub(crate) async fn read_until(&self, offset: u64, length: usize, wanted: usize) -> Result<Bytes> {
        self.check_open()?;
        let first = read_in_place(&self.shared.file, offset, length);
        if first.len() >= wanted {
            return Ok(first);
        }
        self.read_rest(first, offset, length, wanted).await
    }

    /// The first half of [`File::read_until`]: reads the part at the front of the range that the page cache
    /// holds.
    pub(crate) fn read_cached(&self, offset: u64, length: usize) -> Result<Bytes> {
        self.check_open()?;
        Ok(read_in_place(&self.shared.file, offset, length))
    }

    /// The second half of [`File::read_until`]: reads the bytes after `first` through the engine.
    pub(crate) async fn read_rest(
        &self,
        first: Bytes,
        offset: u64,
        length: usize,
        wanted: usize,
    ) -> Result<Bytes> {
        let mut read = PendingRead::new(first, offset, length, wanted);
        while !read.is_done() {
            let (part, operation) = read.next(&self.shared.file);
            let result = begin(&*self.shared.file.engine, operation).await;
            read.finish_request(&self.shared.file, part, result.unwrap_or_else(|_| Err(stopped())))?;
        }
        Ok(read.into_bytes())
    }

    /// Reads as [`File::read_at`] does, in the caller's thread, which waits for the medium.
    ///
    /// # Errors
    /// As [`File::read_at`].
    #[inline]
    pub fn read_at_blocking(&self, offset: u64, length: usize) -> Result<Bytes> {
        self.check_open()?;
        let first = read_in_place(&self.shared.file, offset, length);
        if first.len() >= length { Ok(first) } else { self.read_rest_blocking(first, offset, length) }
    }

    fn read_rest_blocking(&self, first: Bytes, offset: u64, length: usize) -> Result<Bytes> {
        let mut read = PendingRead::new(first, offset, length, length);
        while !read.is_done() {
            let (part, operation) = read.next(&self.shared.file);
            read.finish_request(&self.shared.file, part, self.shared.file.engine.run(operation))?;
        }
        Ok(read.into_bytes())
    }

    /// Reads exactly `length` bytes at `offset`.
    ///
    /// # Errors
    /// [`Error::PastEnd`] if the file has fewer, else as [`File::read_at`].
    pub async fn read_exact_at(&self, offset: u64, length: usize) -> Result<Bytes> {
        let bytes = self.read_at(offset, length).await?;
        if bytes.len() < length {
            return Err(Error::PastEnd { path: self.path().clone(), offset, length });
        }
        Ok(bytes)
    }

    /// Writes all of `buffer` at `offset`. Returns when the kernel has the bytes: they survive the end of the
    /// process, but not a power loss. Dropping the future does not stop the write.
    ///
    /// # Errors
    /// [`Error::Closed`], or the system's error; which part of the range was written is unknown.
    pub async fn write_at(&self, offset: u64, buffer: Bytes) -> Result<()> {
        self.write(offset, buffer, false).await
    }

    /// Writes as [`File::write_at`] does and then syncs as [`File::sync`] does, in one request.
    ///
    /// # Errors
    /// As [`File::write_at`] and [`File::sync`].
    pub async fn write_and_sync_at(&self, offset: u64, buffer: Bytes) -> Result<()> {
        self.write(offset, buffer, true).await
    }

    async fn write(&self, offset: u64, buffer: Bytes, sync: bool) -> Result<()> {
        let (sender, receiver) = oneshot::channel();
        self.begin_write(offset, buffer, sync, move |result| drop(sender.send(result)));
        receiver.await.unwrap_or_else(|_| Err(self.shared.file.stopped(OperationKind::Write)))
    }

    /// Begins to write all of `buffer` at `offset`, and returns without waiting. `done` is called exactly
    /// once, when all of it is written and, with `sync`, synced. It is called from any thread, possibly
    /// before this returns; it must be short and must not block, and it may begin writes. The handle may be
    /// closed and dropped meanwhile. Writes that are in flight together may be written in any order.
    ///
    /// `done` receives the errors of [`File::write_and_sync_at`].
    pub fn begin_write(
        &self,
        offset: u64,
        buffer: Bytes,
        sync: bool,
        done: impl FnOnce(Result<()>) + Send + 'static,
    ) {
        if let Err(error) = self.check_open() {
            return done(Err(error));
        }
        match (buffer.is_empty(), sync) {
            (true, true) => self.begin_sync(done),
            (true, false) => done(Ok(())),
            (false, _) => {
                PendingWrite { shared: self.shared.clone(), offset, buffer, sync, done: Box::new(done) }
                    .begin();
            }
        }
    }

    /// Like [`File::sync`], but returns without waiting. For `done` see [`File::begin_write`].
    pub fn begin_sync(&self, done: impl FnOnce(Result<()>) + Send + 'static) {
        if let Err(error) = self.check_open() {
            return done(Err(error));
        }
        let path = self.path().clone();
        let completion = Completion::call(move |result| {
            done(result.map(drop).map_err(|error| Error::io(OperationKind::Sync, &path, error)));
        });
        let operation = Operation::Sync { file: self.shared.file.descriptor.clone() };
        self.shared.file.engine.submit(Request { operation, completion });
    }

    /// Writes as [`File::write_at`] does, in the caller's thread. In direct mode it waits for in-flight
    /// writes that may not run beside it (aligned and unaligned writes exclude each other).
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn write_at_blocking(&self, offset: u64, buffer: Bytes) -> Result<()> {
        self.check_open()?;
        write_blocking(&self.shared, offset, buffer, false)
    }

    /// Writes and syncs as [`File::write_and_sync_at`] does, in the caller's thread; waits as
    /// [`File::write_at_blocking`] does.
    ///
    /// # Errors
    /// As [`File::write_and_sync_at`].
    pub fn write_and_sync_at_blocking(&self, offset: u64, buffer: Bytes) -> Result<()> {
        self.check_open()?;
        if buffer.is_empty() {
            return self.sync_blocking();
        }
        write_blocking(&self.shared, offset, buffer, true)
    }

    /// Syncs as [`File::sync`] does, in the caller's thread.
    ///
    /// # Errors
    /// As [`File::sync`].
    pub fn sync_blocking(&self) -> Result<()> {
        self.check_open()?;
        let result =
            self.shared.file.engine.run(Operation::Sync { file: self.shared.file.descriptor.clone() });
        result.map(drop).map_err(|error| Error::io(OperationKind::Sync, self.path(), error))
    }

    /// Returns when all writes to this file that had completed before the call are on stable storage.
    ///
    /// # Errors
    /// [`Error::Closed`], or the system's error. After a failed sync the contents of the medium are unknown,
    /// and a later sync that succeeds proves nothing about those writes.
    pub async fn sync(&self) -> Result<()> {
        self.check_open()?;
        self.submit(Operation::Sync { file: self.shared.file.descriptor.clone() }).await.map(drop)
    }

    /// Reserves disk space for the range, which reads as zeros where nothing was written.
    ///
    /// # Errors
    /// [`Error::is_no_space`] if the disk is full; the file may have grown.
    pub async fn allocate(&self, offset: u64, length: u64) -> Result<()> {
        self.check_open()?;
        self.submit(Operation::Allocate { file: self.shared.file.descriptor.clone(), offset, length })
            .await
            .map(drop)
    }

    /// Truncates the file to `length` bytes, or extends it with zeros.
    ///
    /// # Errors
    /// [`Error::Closed`], or the system's error.
    pub async fn set_length(&self, length: u64) -> Result<()> {
        self.check_open()?;
        self.submit(Operation::SetLength { file: self.shared.file.descriptor.clone(), length })
            .await
            .map(drop)
    }

    /// Returns the file's length in bytes.
    ///
    /// # Errors
    /// [`Error::Closed`], or the system's error.
    pub async fn length(&self) -> Result<u64> {
        self.check_open()?;
        let Outcome::Count(length) =
            self.submit(Operation::Length { file: self.shared.file.descriptor.clone() }).await?
        else {
            unreachable!("length returns a count");
        };
        Ok(length)
    }

    /// Returns the number of the file's names.
    ///
    /// # Errors
    /// [`Error::Closed`], or the system's error.
    pub async fn link_count(&self) -> Result<u64> {
        self.check_open()?;
        let operation = Operation::LinkCount { file: self.shared.file.descriptor.clone() };
        let Outcome::Count(count) = self.submit(operation).await? else {
            unreachable!("link count returns a count");
        };
        Ok(count)
    }

    /// Returns the file's identity and the time of its last write.
    ///
    /// # Errors
    /// [`Error::Closed`], or the system's error.
    pub async fn identity(&self) -> Result<FileIdentity> {
        self.check_open()?;
        let operation = Operation::Identity { file: self.shared.file.descriptor.clone() };
        let Outcome::Identity(identity) = self.submit(operation).await? else {
            unreachable!("identity returns an identity");
        };
        Ok(identity)
    }

    /// Takes the file's exclusive lock. It excludes all other handles, also of this process, and ends with
    /// this handle (flock(2)).
    ///
    /// # Errors
    /// An I/O error of kind `WouldBlock` if another handle holds it.
    pub async fn lock(&self) -> Result<()> {
        self.check_open()?;
        self.submit(Operation::Lock { file: self.shared.file.descriptor.clone() }).await.map(drop)
    }

    /// Closes the handle: requests in flight finish, later ones fail with [`Error::Closed`]. The descriptor
    /// is closed once the last request in flight has ended and the handle is dropped.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Closed { path: self.path().clone() });
        }
        Ok(())
    }

    async fn submit(&self, operation: Operation) -> Result<Outcome> {
        submit(&*self.shared.file.engine, self.path(), operation).await
    }
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("File")
            .field("path", self.path())
            .field("direct", &self.direct())
            .finish_non_exhaustive()
    }
}
