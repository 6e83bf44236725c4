//! A shared, positional file handle.
//!
//! Owns the descriptor together with the requests in flight. `File` is used from many tasks at
//! once; reading takes no lock, and a write that of its gate (`write.rs`), for a moment.
//!
//! A handle has a descriptor through the page cache, and, once [`File::set_direct`] asked for
//! it, a second one past it. Each request takes one of the two by the mode at that moment and by
//! its own alignment, so that the mode can change while others are in flight. What isn't aligned
//! goes through the page cache in direct mode too, and is as correct; the kernel keeps the two
//! coherent, and where it doesn't (two kinds of writes at once) the gate does.
//!
//! Invariants:
//! 1. The system's descriptor is closed only after the last operation in flight has finished,
//!    also when the future that waited for it is gone.
//! 2. After [`File::close`] no operation begins: each gives [`Error::Closed`].

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once, OnceLock};

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::descriptors::Ticket;
use crate::engine::{
    Completion, Descriptor, Engine, FileIdentity, OpenMode, Operation, OperationKind, Outcome, Request,
};
use crate::read::{Reading, read_in_place};
use crate::write::{Gate, Writing, write_blocking};
use crate::{Alignment, Descriptors, Error, OFFSET_MAX, Result};

/// An open file. Offsets and lengths are in bytes.
pub struct File {
    shared: Arc<Shared>,
    closed: AtomicBool,
}

/// What a handle shares with its writes in flight, which outlive it.
pub(crate) struct Shared {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) path: Arc<Path>,
    pub(crate) descriptor: Arc<Descriptor>,
    /// What [`Engine::reads_in_place`] said.
    pub(crate) reads_in_place: bool,
    /// Set by the first who gets it, and kept: another mode leaves requests in flight on it.
    direct: OnceLock<Direct>,
    is_direct: AtomicBool,
    pub(crate) gate: Gate,
    /// Whether its descriptors may be of the reserve.
    uses_reserve: bool,
    /// Counts the descriptor.
    _ticket: Option<Ticket>,
}

struct Direct {
    descriptor: Arc<Descriptor>,
    alignment: Alignment,
    /// Counts this one.
    _ticket: Option<Ticket>,
}

/// How a handle reads and writes: what [`File::set_direct`] came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DirectMode {
    /// Through the page cache, as asked for.
    Buffered,
    /// Past the page cache, where offset and length are multiples of this alignment.
    Direct(Alignment),
    /// Through the page cache, since direct I/O can't be had for this file, and why.
    Refused(String),
}

impl File {
    /// Opens `path`, in buffered mode.
    ///
    /// # Errors
    /// What the system says; nothing was created, unless a crash follows.
    pub async fn open(engine: &Arc<dyn Engine>, path: &Path, mode: OpenMode) -> Result<File> {
        File::open_counted(engine, path, mode, false).await
    }

    /// As [`File::open`] with [`OpenMode::CreateNew`], and may take a descriptor of the reserve
    /// ([`Descriptors::reserve`]). For files that others already wait for.
    ///
    /// # Errors
    /// As [`File::open`].
    pub async fn create_reserved(engine: &Arc<dyn Engine>, path: &Path) -> Result<File> {
        File::open_counted(engine, path, OpenMode::CreateNew, true).await
    }

    async fn open_counted(
        engine: &Arc<dyn Engine>,
        path: &Path,
        mode: OpenMode,
        uses_reserve: bool,
    ) -> Result<File> {
        let take = |descriptors: &Arc<Descriptors>| descriptors.take(uses_reserve);
        let ticket = engine.descriptors().map(take).transpose();
        let ticket = ticket.map_err(|error| Error::io(OperationKind::Open, path, error))?;
        let operation = Operation::Open { path: path.to_path_buf(), mode };
        let Outcome::Opened(descriptor) = submit(&**engine, path, operation).await? else {
            unreachable!("open gives a descriptor");
        };
        let shared = Shared {
            engine: engine.clone(),
            path: path.into(),
            descriptor: Arc::new(descriptor),
            reads_in_place: engine.reads_in_place(),
            direct: OnceLock::new(),
            is_direct: AtomicBool::new(false),
            gate: Gate::default(),
            uses_reserve,
            _ticket: ticket,
        };
        Ok(File { shared: Arc::new(shared), closed: AtomicBool::new(false) })
    }

    /// The path it was opened by.
    pub fn path(&self) -> &Arc<Path> {
        &self.shared.path
    }

    /// Has what begins from now on go past the page cache, or through it; what is in flight ends
    /// as it began. In direct mode reads are rounded out to the alignment; writes that aren't
    /// aligned in offset and length go through the page cache, those that are only not aligned
    /// in memory are copied. Where there is no direct I/O for this file the handle stays in
    /// buffered mode and says why; the first such reason in the process is logged as a warning.
    ///
    /// # Errors
    /// [`Error::Closed`], or what the system says that has nothing to do with direct I/O (no
    /// descriptors left); the mode is as it was.
    pub async fn set_direct(&self, direct: bool) -> Result<DirectMode> {
        self.check_open()?;
        if direct && self.shared.direct.get().is_none() {
            // A new segment's handle needs both.
            let take = |descriptors: &Arc<Descriptors>| descriptors.take(self.shared.uses_reserve);
            let ticket = self.shared.engine.descriptors().map(take).transpose();
            let ticket = ticket.map_err(|error| Error::io(OperationKind::OpenDirect, self.path(), error))?;
            let open = Operation::OpenDirect { file: self.shared.descriptor.clone() };
            match self.submit(open).await {
                Ok(Outcome::OpenedDirect { descriptor, alignment }) => {
                    // Another task may have been first; then this descriptor goes unused.
                    let _ = self.shared.direct.set(Direct {
                        descriptor: Arc::new(descriptor),
                        alignment,
                        _ticket: ticket,
                    });
                }
                Ok(_) => unreachable!("it gives a descriptor"),
                Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::Unsupported => {
                    let why = source.to_string();
                    self.shared.log_refusal(&why);
                    return Ok(DirectMode::Refused(why));
                }
                Err(error) => return Err(error),
            }
        }
        self.shared.is_direct.store(direct, Ordering::Relaxed);
        Ok(self.direct().map_or(DirectMode::Buffered, DirectMode::Direct))
    }

    /// The alignment of direct mode; `None` in buffered mode.
    pub fn direct(&self) -> Option<Alignment> {
        self.shared.direct()
    }

    /// Reads `length` bytes at `offset`, or what there is before the end of the file. In buffered
    /// mode what the page cache holds is read in place; the rest goes through the engine.
    /// Dropping the future abandons the read.
    ///
    /// # Errors
    /// [`Error::Closed`], or what the system says.
    pub async fn read_at(&self, offset: u64, length: usize) -> Result<Bytes> {
        self.read_until(offset, length, length).await
    }

    /// As [`File::read_at`], but also done once the first `wanted` bytes are read.
    pub(crate) async fn read_until(&self, offset: u64, length: usize, wanted: usize) -> Result<Bytes> {
        self.check_open()?;
        let first = read_in_place(&self.shared, offset, length);
        if first.len() >= wanted {
            return Ok(first);
        }
        self.read_behind(first, offset, length, wanted).await
    }

    /// What the page cache has of the range, where it has it: the first part of
    /// [`File::read_until`].
    pub(crate) fn read_cached(&self, offset: u64, length: usize) -> Result<Bytes> {
        self.check_open()?;
        Ok(read_in_place(&self.shared, offset, length))
    }

    /// The other part: goes on behind what was found.
    pub(crate) async fn read_behind(
        &self,
        first: Bytes,
        offset: u64,
        length: usize,
        wanted: usize,
    ) -> Result<Bytes> {
        let mut reading = Reading::behind(first, offset, length, wanted);
        while !reading.is_done() {
            let (part, operation) = reading.next(&self.shared);
            let result = begin(&*self.shared.engine, operation).await;
            reading.settle(&self.shared, part, result.unwrap_or_else(|_| Err(stopped())))?;
        }
        Ok(reading.into_bytes())
    }

    /// As [`File::read_at`], in the caller's thread, which waits for the medium.
    ///
    /// # Errors
    /// As [`File::read_at`].
    #[inline]
    pub fn read_at_blocking(&self, offset: u64, length: usize) -> Result<Bytes> {
        self.check_open()?;
        let first = read_in_place(&self.shared, offset, length);
        if first.len() >= length { Ok(first) } else { self.read_behind_blocking(first, offset, length) }
    }

    fn read_behind_blocking(&self, first: Bytes, offset: u64, length: usize) -> Result<Bytes> {
        let mut reading = Reading::behind(first, offset, length, length);
        while !reading.is_done() {
            let (part, operation) = reading.next(&self.shared);
            reading.settle(&self.shared, part, self.shared.engine.run(operation))?;
        }
        Ok(reading.into_bytes())
    }

    /// Reads exactly `length` bytes at `offset`.
    ///
    /// # Errors
    /// [`Error::PastEnd`] where the file has fewer, else as [`File::read_at`].
    pub async fn read_exact_at(&self, offset: u64, length: usize) -> Result<Bytes> {
        let bytes = self.read_at(offset, length).await?;
        if bytes.len() < length {
            return Err(Error::PastEnd { path: self.path().clone(), offset, length });
        }
        Ok(bytes)
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

    async fn write(&self, offset: u64, buffer: Bytes, sync: bool) -> Result<()> {
        let (sender, receiver) = oneshot::channel();
        self.begin_write(offset, buffer, sync, move |result| drop(sender.send(result)));
        receiver.await.unwrap_or_else(|_| Err(self.shared.stopped(OperationKind::Write)))
    }

    /// Begins to write all of `buffer` at `offset`, and returns. `done` is called exactly once,
    /// when all of it is written and, with `sync`, synced: in any thread, perhaps before this
    /// returns. It must be short and must not wait; it may begin writes. The handle may be
    /// closed and dropped meanwhile. Writes begun together may be written in any order.
    ///
    /// `done` gets the errors of [`File::write_and_sync_at`].
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
                Writing { shared: self.shared.clone(), offset, buffer, sync, done: Box::new(done) }.begin();
            }
        }
    }

    /// Begins what [`File::sync`] does, and returns. Of `done`, see [`File::begin_write`].
    pub fn begin_sync(&self, done: impl FnOnce(Result<()>) + Send + 'static) {
        if let Err(error) = self.check_open() {
            return done(Err(error));
        }
        let path = self.path().clone();
        let completion = Completion::call(move |result| {
            done(result.map(drop).map_err(|error| Error::io(OperationKind::Sync, &path, error)));
        });
        let operation = Operation::Sync { file: self.shared.descriptor.clone() };
        self.shared.engine.submit(Request { operation, completion });
    }

    /// As [`File::write_at`], in the caller's thread. It waits for other writes where they are
    /// in flight and it can't be beside them (aligned and other writes in direct mode).
    ///
    /// # Errors
    /// As [`File::write_at`].
    pub fn write_at_blocking(&self, offset: u64, buffer: Bytes) -> Result<()> {
        self.check_open()?;
        write_blocking(&self.shared, offset, buffer, false)
    }

    /// As [`File::write_and_sync_at`], in the caller's thread, as [`File::write_at_blocking`].
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

    /// As [`File::sync`], in the caller's thread.
    ///
    /// # Errors
    /// As [`File::sync`].
    pub fn sync_blocking(&self) -> Result<()> {
        self.check_open()?;
        let result = self.shared.engine.run(Operation::Sync { file: self.shared.descriptor.clone() });
        result.map(drop).map_err(|error| Error::io(OperationKind::Sync, self.path(), error))
    }

    /// Returns once all writes to this file that had completed before are on stable storage.
    ///
    /// # Errors
    /// [`Error::Closed`], or what the system says. After a failed sync it is unknown what is
    /// on the medium, and a later sync that succeeds proves nothing.
    pub async fn sync(&self) -> Result<()> {
        self.check_open()?;
        self.submit(Operation::Sync { file: self.shared.descriptor.clone() }).await.map(drop)
    }

    /// Reserves room for the range, which reads as zeros where nothing was written.
    ///
    /// # Errors
    /// [`Error::is_no_space`] where there is none; the file may have grown.
    pub async fn allocate(&self, offset: u64, length: u64) -> Result<()> {
        self.check_open()?;
        self.submit(Operation::Allocate { file: self.shared.descriptor.clone(), offset, length })
            .await
            .map(drop)
    }

    /// Cuts the file at `length`, or extends it with zeros.
    ///
    /// # Errors
    /// [`Error::Closed`], or what the system says.
    pub async fn set_length(&self, length: u64) -> Result<()> {
        self.check_open()?;
        self.submit(Operation::SetLength { file: self.shared.descriptor.clone(), length }).await.map(drop)
    }

    /// The file's length.
    ///
    /// # Errors
    /// [`Error::Closed`], or what the system says.
    pub async fn length(&self) -> Result<u64> {
        self.check_open()?;
        let Outcome::Count(length) =
            self.submit(Operation::Length { file: self.shared.descriptor.clone() }).await?
        else {
            unreachable!("length gives a count");
        };
        Ok(length)
    }

    /// How many names the file has.
    ///
    /// # Errors
    /// [`Error::Closed`], or what the system says.
    pub async fn link_count(&self) -> Result<u64> {
        self.check_open()?;
        let operation = Operation::LinkCount { file: self.shared.descriptor.clone() };
        let Outcome::Count(count) = self.submit(operation).await? else {
            unreachable!("link count gives a count");
        };
        Ok(count)
    }

    /// Which file it is, and when it was last written to.
    ///
    /// # Errors
    /// [`Error::Closed`], or what the system says.
    pub async fn identity(&self) -> Result<FileIdentity> {
        self.check_open()?;
        let operation = Operation::Identity { file: self.shared.descriptor.clone() };
        let Outcome::Identity(identity) = self.submit(operation).await? else {
            unreachable!("identity gives an identity");
        };
        Ok(identity)
    }

    /// Takes the file's exclusive lock against all other handles, of this process too; it ends with
    /// the handle (flock(2)).
    ///
    /// # Errors
    /// An I/O error of kind `WouldBlock` where another holds it.
    pub async fn lock(&self) -> Result<()> {
        self.check_open()?;
        self.submit(Operation::Lock { file: self.shared.descriptor.clone() }).await.map(drop)
    }

    /// Marks the handle closed: what is in flight finishes, what comes later is refused. The
    /// descriptor goes with the last of what was in flight and the handle itself.
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
        submit(&*self.shared.engine, self.path(), operation).await
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

impl Shared {
    /// The alignment of direct mode; `None` in buffered mode.
    pub(crate) fn direct(&self) -> Option<Alignment> {
        // Relaxed: whoever sees an older mode takes a descriptor that serves as well.
        if !self.is_direct.load(Ordering::Relaxed) {
            return None;
        }
        self.direct.get().map(|direct| direct.alignment)
    }

    /// The alignment, where the range can be written past the page cache.
    pub(crate) fn direct_for(&self, offset: u64, length: usize) -> Option<Alignment> {
        let is_in_files = offset.checked_add(length as u64).is_some_and(|end| end <= OFFSET_MAX);
        self.direct()
            .filter(|alignment| is_in_files && alignment.divides(offset) && alignment.divides(length as u64))
    }

    /// The descriptor past the page cache.
    ///
    /// # Panics
    /// Where there never was an alignment of direct mode.
    pub(crate) fn direct_descriptor(&self) -> Arc<Descriptor> {
        self.direct.get().expect("direct mode has it").descriptor.clone()
    }

    /// Whether a direct request failed with what a file system says that has no direct I/O, for
    /// this request at least. Then the handle goes on in buffered mode.
    pub(crate) fn is_refusal(&self, error: &io::Error) -> bool {
        let refused = matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported);
        if refused {
            self.is_direct.store(false, Ordering::Relaxed);
            self.log_refusal(&error.to_string());
        }
        refused
    }

    fn log_refusal(&self, why: &str) {
        static FIRST: Once = Once::new();
        FIRST.call_once(|| {
            tracing::warn!(path = %self.path.display(), why, "no direct I/O: such files go through the page cache");
        });
        tracing::debug!(path = %self.path.display(), why, "no direct I/O");
    }

    pub(crate) fn stopped(&self, kind: OperationKind) -> Error {
        Error::io(kind, &self.path, stopped())
    }
}

fn stopped() -> io::Error {
    io::Error::other("the engine has stopped")
}

fn begin(engine: &dyn Engine, operation: Operation) -> oneshot::Receiver<io::Result<Outcome>> {
    let (completion, done) = Completion::new();
    engine.submit(Request { operation, completion });
    done
}

/// Submits an operation and waits for it.
pub(crate) async fn submit(engine: &dyn Engine, path: &Path, operation: Operation) -> Result<Outcome> {
    let kind = operation.kind();
    let result = begin(engine, operation).await.unwrap_or_else(|_| Err(stopped()));
    result.map_err(|source| Error::io(kind, path, source))
}
