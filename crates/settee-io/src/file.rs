//! A shared, positional file handle.
//!
//! Owns the descriptor together with the requests in flight. `File` is used from many tasks at
//! once; nothing here takes a lock.
//!
//! Invariants:
//! 1. The system's descriptor is closed only after the last operation in flight has finished,
//!    also when the future that waited for it is gone.
//! 2. After [`File::close`] no operation begins: each gives [`Error::Closed`].

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::{Buf, Bytes};
use tokio::sync::oneshot;

use crate::engine::{Completion, Descriptor, Engine, OpenMode, Operation, OperationKind, Outcome, Request};
use crate::{Error, Result};

/// Most bytes that one request reads. A longer read is made of several, so that its memory is
/// bounded by what the file holds and not by what was asked for.
const READ_SIZE_MAX: usize = 64 << 20;

/// An open file. Offsets and lengths are in bytes.
pub struct File {
    engine: Arc<dyn Engine>,
    descriptor: Arc<Descriptor>,
    path: Arc<Path>,
    closed: AtomicBool,
}

impl File {
    /// Opens `path`.
    ///
    /// # Errors
    /// What the system says; nothing was created, unless a crash follows.
    pub async fn open(engine: &Arc<dyn Engine>, path: &Path, mode: OpenMode) -> Result<File> {
        let operation = Operation::Open { path: path.to_path_buf(), mode };
        let Outcome::Opened(descriptor) = submit(&**engine, path, operation).await? else {
            unreachable!("open gives a descriptor");
        };
        Ok(File {
            engine: engine.clone(),
            descriptor: Arc::new(descriptor),
            path: path.into(),
            closed: AtomicBool::new(false),
        })
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Arc<Path> {
        &self.path
    }

    /// Reads `length` bytes at `offset`, or what there is before the end of the file. What the
    /// page cache holds is read in place; the rest goes through the engine. Dropping the future
    /// abandons the read.
    ///
    /// # Errors
    /// [`Error::Closed`], or what the system says.
    pub async fn read_at(&self, offset: u64, length: usize) -> Result<Vec<u8>> {
        self.read_until(offset, length, length).await
    }

    /// As [`File::read_at`], but also done once the first `wanted` bytes are read.
    pub(crate) async fn read_until(&self, offset: u64, length: usize, wanted: usize) -> Result<Vec<u8>> {
        self.check_open()?;
        self.begin_read(offset, length).finish(self, wanted).await
    }

    /// As [`File::read_at`] for each offset and length, in their order; all of them are
    /// submitted before the first is waited for.
    ///
    /// # Errors
    /// As [`File::read_at`], with the first that failed.
    pub async fn read_many_at(&self, ranges: &[(u64, usize)]) -> Result<Vec<Vec<u8>>> {
        self.check_open()?;
        let begun: Vec<Reading> =
            ranges.iter().map(|&(offset, length)| self.begin_read(offset, length)).collect();
        let mut found = Vec::with_capacity(begun.len());
        for reading in begun {
            let wanted = reading.length;
            found.push(reading.finish(self, wanted).await?);
        }
        Ok(found)
    }

    /// Reads what is cached, and submits what isn't.
    fn begin_read(&self, offset: u64, length: usize) -> Reading {
        let mut buffer = vec![0; length.min(READ_SIZE_MAX)];
        let mut filled = 0;
        if length > 0
            && let Some(Ok(count)) = self.engine.read_cached(&self.descriptor, offset, &mut buffer)
        {
            filled = count;
        }
        let mut reading = Reading { offset, length, found: Vec::new(), pending: None };
        if filled == 0 && length > 0 {
            reading.pending = Some(self.submit_read(offset, buffer));
        } else {
            buffer.truncate(filled);
            reading.found = buffer;
        }
        reading
    }

    fn submit_read(&self, offset: u64, buffer: Vec<u8>) -> Pending {
        begin(&*self.engine, Operation::Read { file: self.descriptor.clone(), offset, buffer })
    }

    /// Reads exactly `length` bytes at `offset`.
    ///
    /// # Errors
    /// [`Error::PastEnd`] where the file has fewer, else as [`File::read_at`].
    pub async fn read_exact_at(&self, offset: u64, length: usize) -> Result<Vec<u8>> {
        let buffer = self.read_at(offset, length).await?;
        if buffer.len() < length {
            return Err(Error::PastEnd { path: self.path.clone(), offset, length });
        }
        Ok(buffer)
    }

    /// Writes all of `buffer` at `offset`. It is then in the system's hands: it survives the
    /// end of the process, not a power loss. Dropping the future does not stop the write.
    ///
    /// # Errors
    /// [`Error::Closed`], or what the system says; what of the range was written is unknown.
    pub async fn write_at(&self, offset: u64, buffer: Bytes) -> Result<()> {
        self.write(offset, buffer, false).await
    }

    /// As [`File::write_at`], and then as [`File::sync`], in one request.
    ///
    /// # Errors
    /// As [`File::write_at`] and [`File::sync`].
    pub async fn write_and_sync_at(&self, offset: u64, buffer: Bytes) -> Result<()> {
        self.write(offset, buffer, true).await
    }

    async fn write(&self, mut offset: u64, mut buffer: Bytes, sync: bool) -> Result<()> {
        self.check_open()?;
        if sync && buffer.is_empty() {
            return self.sync().await;
        }
        while !buffer.is_empty() {
            let file = self.descriptor.clone();
            let write = Operation::Write { file, offset, buffer: buffer.clone(), sync };
            let Outcome::Count(count) = self.submit(write).await? else {
                unreachable!("write gives a count");
            };
            let count = usize::try_from(count).expect("no more than was given");
            if count == 0 {
                let source = io::Error::from(io::ErrorKind::WriteZero);
                return Err(Error::io(OperationKind::Write, &self.path, source));
            }
            buffer.advance(count);
            offset += count as u64;
        }
        Ok(())
    }

    /// Returns once all writes to this file that had completed before are on stable storage.
    ///
    /// # Errors
    /// [`Error::Closed`], or what the system says. After a failed sync it is unknown what is
    /// on the medium, and a later sync that succeeds proves nothing.
    pub async fn sync(&self) -> Result<()> {
        self.check_open()?;
        self.submit(Operation::Sync { file: self.descriptor.clone() }).await.map(drop)
    }

    /// Reserves room for the range, which reads as zeros where nothing was written.
    ///
    /// # Errors
    /// [`Error::is_no_space`] where there is none; the file may have grown.
    pub async fn allocate(&self, offset: u64, length: u64) -> Result<()> {
        self.check_open()?;
        self.submit(Operation::Allocate { file: self.descriptor.clone(), offset, length }).await.map(drop)
    }

    /// Cuts the file at `length`, or extends it with zeros.
    ///
    /// # Errors
    /// [`Error::Closed`], or what the system says.
    pub async fn set_length(&self, length: u64) -> Result<()> {
        self.check_open()?;
        self.submit(Operation::SetLength { file: self.descriptor.clone(), length }).await.map(drop)
    }

    /// The file's length.
    ///
    /// # Errors
    /// [`Error::Closed`], or what the system says.
    pub async fn length(&self) -> Result<u64> {
        self.check_open()?;
        let Outcome::Count(length) = self.submit(Operation::Length { file: self.descriptor.clone() }).await?
        else {
            unreachable!("length gives a count");
        };
        Ok(length)
    }

    /// Takes the file's exclusive lock against other processes; it ends with the handle.
    ///
    /// # Errors
    /// An I/O error of kind `WouldBlock` where another holds it.
    pub async fn lock(&self) -> Result<()> {
        self.check_open()?;
        self.submit(Operation::Lock { file: self.descriptor.clone() }).await.map(drop)
    }

    /// Marks the handle closed: what is in flight finishes, what comes later is refused. The
    /// descriptor goes with the last of what was in flight and the handle itself.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    pub(crate) fn check_open(&self) -> Result<()> {
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Closed { path: self.path.clone() });
        }
        Ok(())
    }

    async fn submit(&self, operation: Operation) -> Result<Outcome> {
        submit(&*self.engine, &self.path, operation).await
    }
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("File").field("path", &self.path).finish_non_exhaustive()
    }
}

/// A read on its way: what has been found, and what is asked for beyond it.
struct Reading {
    offset: u64,
    length: usize,
    found: Vec<u8>,
    pending: Option<Pending>,
}

impl Reading {
    /// A short read, of the cache too, may be the end of the file: only a read of nothing is.
    /// It is done once the first `wanted` bytes are read.
    async fn finish(mut self, file: &File, wanted: usize) -> Result<Vec<u8>> {
        while self.found.len() < wanted {
            let pending = self.pending.take().unwrap_or_else(|| {
                let rest = (self.length - self.found.len()).min(READ_SIZE_MAX);
                file.submit_read(self.offset + self.found.len() as u64, vec![0; rest])
            });
            let Outcome::Read { mut buffer, count } = pending.result(&file.path).await? else {
                unreachable!("read gives a buffer");
            };
            if count == 0 {
                break;
            }
            buffer.truncate(count);
            if self.found.is_empty() {
                self.found = buffer;
            } else {
                self.found.extend_from_slice(&buffer);
            }
        }
        Ok(self.found)
    }
}

/// A submitted operation, whose result is on its way.
struct Pending {
    kind: OperationKind,
    done: oneshot::Receiver<io::Result<Outcome>>,
}

impl Pending {
    async fn result(self, path: &Path) -> Result<Outcome> {
        let result = self.done.await.unwrap_or_else(|_| Err(io::Error::other("the engine has stopped")));
        result.map_err(|source| Error::io(self.kind, path, source))
    }
}

fn begin(engine: &dyn Engine, operation: Operation) -> Pending {
    let kind = operation.kind();
    let (completion, done) = Completion::new();
    engine.submit(Request { operation, completion });
    Pending { kind, done }
}

/// Submits an operation and waits for it.
pub(crate) async fn submit(engine: &dyn Engine, path: &Path, operation: Operation) -> Result<Outcome> {
    begin(engine, operation).result(path).await
}
