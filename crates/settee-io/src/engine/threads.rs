//! The engine on `std`'s positional I/O and bounded thread pools.
//!
//! There are three pools, each with a queue and threads of its own: one for operations that only read, one
//! for those that may wait for writes, one for syncs (including writes with a sync). An operation submitted
//! while its queue is full runs in the caller's thread, which slows the caller and bounds the memory. There a
//! read waits at most for the medium. A write or a sync also delays everything else that the thread would do,
//! including reads of other tasks; only a queue at least as long as the callers' operations in flight
//! prevents that.
//!
//! A buffered read from the page cache (`preadv2(2)` with `RWF_NOWAIT`) needs no hand-over between threads.
//! Every other operation needs two: to the pool's thread, and back to the task.
//!
//! Invariants:
//! 1. A thread for reads runs no operation that changes a file or a directory, or that syncs: a file system
//!    makes those wait for each other, and for dirty pages to be written to the medium.
//! 2. Each request is completed exactly once, also when the engine is dropped.

use std::collections::VecDeque;
use std::fs::{self, OpenOptions};
use std::io::{self, IoSliceMut};
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags, StatxFlags};
use rustix::io::{Errno, ReadWriteFlags};

use crate::engine::descriptors::Descriptors;
use crate::engine::operation::{Descriptor, Entry, FileIdentity, OpenMode, Operation, Outcome, SyncFailed};
use crate::engine::request::{Engine, Request};
use crate::{AlignedBuffer, Alignment};

/// Assumed alignment for direct I/O, in bytes, if the kernel doesn't report it.
const UNKNOWN_ALIGNMENT: u32 = 4096;

/// Permissions of created files. They hold users' data, so only the server's own user may read them; the
/// process's umask can only restrict them further (open(2)).
const FILE_MODE: u32 = 0o600;

/// Permissions of created directories.
const DIRECTORY_MODE: u32 = 0o700;

/// The limits of a [`ThreadEngine`].
#[derive(Debug, Clone, Copy)]
pub struct ThreadOptions {
    /// Threads for reads and other operations that change nothing. Default: 8.
    pub thread_count: usize,
    /// Threads for writes and other operations that may wait for writes. Default: 4. Few, because a file
    /// system runs only one write to a file at a time.
    pub write_thread_count: usize,
    /// Threads for syncs, and so the number of syncs that run at once. Default: 8.
    pub sync_thread_count: usize,
    /// Number of requests that may wait in each of the three queues. Default: 1,024.
    pub queue_count_max: usize,
    /// Number of files that may be open at once; see [`Descriptors`]. Default: no limit.
    pub files_max: usize,
}

impl Default for ThreadOptions {
    fn default() -> ThreadOptions {
        ThreadOptions {
            thread_count: 8,
            write_thread_count: 4,
            sync_thread_count: 8,
            queue_count_max: 1024,
            files_max: usize::MAX,
        }
    }
}

/// Runs operations on three thread pools. Dropping it completes the queued requests and then ends the
/// threads.
#[derive(Debug)]
pub struct ThreadEngine {
    reads: ThreadPool,
    writes: ThreadPool,
    syncs: ThreadPool,
    descriptors: Arc<Descriptors>,
}

impl ThreadEngine {
    /// Starts the engine's threads.
    ///
    /// # Panics
    /// If the system can't start a thread.
    pub fn new(options: ThreadOptions) -> ThreadEngine {
        let start = |name, thread_count| ThreadPool::start(name, thread_count, options.queue_count_max);
        ThreadEngine {
            reads: start("settee-read", options.thread_count),
            writes: start("settee-write", options.write_thread_count),
            syncs: start("settee-sync", options.sync_thread_count),
            descriptors: Descriptors::new(options.files_max),
        }
    }

    /// Returns the pool for an operation, by what the operation may have to wait for.
    fn pool(&self, operation: &Operation) -> &ThreadPool {
        match operation {
            Operation::Open { mode: OpenMode::Read, .. }
            | Operation::OpenDirect { .. }
            | Operation::Read { .. }
            | Operation::Length { .. }
            | Operation::LinkCount { .. }
            | Operation::Identity { .. }
            | Operation::List { .. } => &self.reads,
            Operation::Open { mode: OpenMode::Write | OpenMode::CreateNew | OpenMode::Create, .. }
            | Operation::Write { sync: false, .. }
            | Operation::Allocate { .. }
            | Operation::SetLength { .. }
            | Operation::Lock { .. }
            | Operation::CreateDirectory { .. }
            | Operation::Remove { .. }
            | Operation::RemoveDirectory { .. }
            | Operation::Rename { .. }
            | Operation::Link { .. } => &self.writes,
            Operation::Write { sync: true, .. }
            | Operation::Sync { .. }
            | Operation::SyncDirectory { .. } => &self.syncs,
        }
    }
}

impl Engine for ThreadEngine {
    fn name(&self) -> &'static str {
        "threads"
    }

    fn submit(&self, request: Request) {
        if let Err(request) = self.pool(&request.operation).0.push(request) {
            request.completion.complete(run(request.operation));
        }
    }

    fn run(&self, operation: Operation) -> io::Result<Outcome> {
        run(operation)
    }

    fn descriptors(&self) -> Option<&Arc<Descriptors>> {
        Some(&self.descriptors)
    }

    fn reads_in_place(&self) -> bool {
        true
    }
}

/// Threads that serve one queue, until the pool is dropped and the queue is empty.
#[derive(Debug)]
struct ThreadPool(Arc<Queue>);

impl ThreadPool {
    /// Starts a pool of at least one thread, each with this name.
    fn start(name: &str, thread_count: usize, queue_count_max: usize) -> ThreadPool {
        let pool = ThreadPool(Arc::new(Queue::new(queue_count_max)));
        for _ in 0..thread_count.max(1) {
            let queue = pool.0.clone();
            let serve = move || queue.serve();
            thread::Builder::new().name(name.into()).spawn(serve).expect("the system starts a thread");
        }
        pool
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.0.stop();
    }
}

#[derive(Debug)]
struct Queue {
    state: Mutex<QueueState>,
    /// A request was queued, or the queue has stopped.
    arrived: Condvar,
    count_max: usize,
}

#[derive(Debug, Default)]
struct QueueState {
    requests: VecDeque<Request>,
    stopped: bool,
}

impl Queue {
    fn new(count_max: usize) -> Queue {
        Queue { state: Mutex::default(), arrived: Condvar::new(), count_max }
    }

    /// Queues the request, or returns it if the queue is full or has stopped.
    fn push(&self, request: Request) -> Result<(), Request> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.stopped || state.requests.len() >= self.count_max {
            return Err(request);
        }
        state.requests.push_back(request);
        drop(state);
        self.arrived.notify_one();
        Ok(())
    }

    fn serve(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(request) = state.requests.pop_front() {
                drop(state);
                request.completion.complete(run(request.operation));
                state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            } else if state.stopped {
                return;
            } else {
                state = self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    fn stop(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).stopped = true;
        self.arrived.notify_all();
    }
}

pub(crate) fn system(file: &Descriptor) -> &fs::File {
    match file {
        Descriptor::System(file) | Descriptor::Direct { file, .. } => file,
        Descriptor::Simulated(_) => panic!("a simulated file belongs to the simulation's engine"),
    }
}

/// Runs an operation. Repeats it if a signal interrupted it before it had any effect.
fn run(operation: Operation) -> io::Result<Outcome> {
    match operation {
        Operation::Open { path, mode } => {
            open(&path, mode).map(|file| Outcome::Opened(Descriptor::System(file)))
        }
        Operation::OpenDirect { file } => open_direct(file),
        Operation::Read { file, offset, mut buffer } => {
            rustix::io::retry_on_intr(|| {
                buffer.fill(|memory| rustix::io::pread(system(&file), memory, offset).map(|(read, _)| read))
            })?;
            Ok(Outcome::Read { buffer })
        }
        Operation::Write { file, offset, buffer, sync } => {
            let file = system(&file);
            let count = uninterrupted(|| file.write_at(&buffer, offset))?;
            // The caller submits the rest of a short write as another request, with its own sync.
            if sync && count == buffer.len() {
                file.sync_data().map_err(SyncFailed::wrap)?;
            }
            Ok(Outcome::Count(count as u64))
        }
        Operation::Sync { file } => system(&file).sync_data().map(|()| Outcome::Done),
        Operation::Allocate { file, offset, length } => {
            let file = system(&file);
            let allocate = || {
                rustix::fs::fallocate(file, FallocateFlags::empty(), offset, length).map_err(io::Error::from)
            };
            match uninterrupted(allocate) {
                // A file system that can't reserve space still grows the file. A full disk then fails the
                // write.
                Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                    file.set_len(file.metadata()?.len().max(offset.saturating_add(length)))?;
                }
                result => result?,
            }
            Ok(Outcome::Done)
        }
        Operation::SetLength { file, length } => {
            uninterrupted(|| system(&file).set_len(length))?;
            Ok(Outcome::Done)
        }
        Operation::Length { file } => Ok(Outcome::Count(system(&file).metadata()?.len())),
        Operation::LinkCount { file } => Ok(Outcome::Count(system(&file).metadata()?.nlink())),
        Operation::Identity { file } => {
            let found = system(&file).metadata()?;
            let modified_ns = i128::from(found.mtime()) * 1_000_000_000 + i128::from(found.mtime_nsec());
            Ok(Outcome::Identity(FileIdentity { device: found.dev(), inode: found.ino(), modified_ns }))
        }
        Operation::Lock { file } => {
            system(&file).try_lock().map_err(io::Error::from)?;
            Ok(Outcome::Done)
        }
        Operation::CreateDirectory { path } => {
            fs::DirBuilder::new().mode(DIRECTORY_MODE).create(path).map(|()| Outcome::Done)
        }
        Operation::List { path } => list(&path).map(Outcome::Entries),
        Operation::SyncDirectory { path } => fs::File::open(path)?.sync_all().map(|()| Outcome::Done),
        Operation::Remove { path } => fs::remove_file(path).map(|()| Outcome::Done),
        Operation::RemoveDirectory { path } => fs::remove_dir(path).map(|()| Outcome::Done),
        Operation::Rename { from, to } => fs::rename(from, to).map(|()| Outcome::Done),
        Operation::Link { from, to } => fs::hard_link(from, to).map(|()| Outcome::Done),
    }
}

/// Fills `buffer` with the part at the front of the range that the page cache holds. Returns `false` if that
/// is nothing, if the file system doesn't support it, or after any other error; the read through the pool
/// then reports it.
#[inline(always)]
pub(crate) fn read_cached(file: &fs::File, offset: u64, buffer: &mut AlignedBuffer) -> bool {
    // For preadv2(2) an offset of -1 means the descriptor's own position; pread(2) refuses it.
    i64::try_from(offset).is_ok() && buffer.fill(|memory| read_nowait(file, memory, offset)).is_ok()
}

/// Reads the part at the front of the range that the page cache holds into `memory`, and returns the bytes
/// read. Fails with `AGAIN` if that is nothing (preadv2(2), `RWF_NOWAIT`).
#[inline(always)]
fn read_nowait<'a>(
    file: &fs::File,
    memory: &'a mut [MaybeUninit<u8>],
    offset: u64,
) -> Result<&'a mut [u8], Errno> {
    let buffer = IoVector { start: memory.as_mut_ptr().cast(), length: memory.len() };
    // SAFETY: `IoSliceMut` is documented to have the ABI of an iovec. It names `memory`, ours to
    // write to for as long as it lives, which is the call below. That the memory may not be
    // initialised is no matter: the call doesn't look at it, and hands it to the kernel, which
    // only writes.
    let buffer = unsafe { mem::transmute::<IoVector, IoSliceMut<'_>>(buffer) };
    let count = rustix::io::preadv2(file, &mut [buffer], offset, ReadWriteFlags::NOWAIT)?;
    let read = &mut memory[..count];
    // SAFETY: the kernel has written the first `count` bytes.
    Ok(unsafe { read.assume_init_mut() })
}

/// An iovec(3type).
#[repr(C)]
struct IoVector {
    start: *mut u8,
    length: usize,
}

fn open(path: &Path, mode: OpenMode) -> io::Result<fs::File> {
    let mut options = OpenOptions::new();
    options.read(true).mode(FILE_MODE);
    match mode {
        OpenMode::Read => &mut options,
        OpenMode::Write => options.write(true),
        OpenMode::CreateNew => options.write(true).create_new(true),
        OpenMode::Create => options.write(true).create(true).truncate(false),
    };
    let file = options.open(path)?;
    keep_access_time(&file);
    Ok(file)
}

/// Stops reads from updating the file's access time: the first read after a write would update it, and might
/// wait for the file system's journal. Not possible for files of other users (open(2), O_NOATIME); the error
/// is ignored.
fn keep_access_time(file: impl AsFd) {
    if let Ok(flags) = rustix::fs::fcntl_getfl(&file) {
        let _ = rustix::fs::fcntl_setfl(&file, flags | OFlags::NOATIME);
    }
}

/// Opens the file of `of` for direct I/O. It is opened through the descriptor and not by its path, which may
/// name another file by now.
fn open_direct(of: Arc<Descriptor>) -> io::Result<Outcome> {
    let file = system(&of);
    let alignment = direct_alignment(file)?;
    let access = rustix::fs::fcntl_getfl(file)? & OFlags::RWMODE;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let opened = rustix::io::retry_on_intr(|| {
        rustix::fs::open(&*path, access | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty())
    });
    let file = opened.map_err(|error| match error {
        Errno::INVAL | Errno::OPNOTSUPP => unsupported("the file system refuses direct I/O"),
        Errno::NOENT => unsupported("/proc is not available, through which files are opened for direct I/O"),
        error => error.into(),
    })?;
    keep_access_time(&file);
    Ok(Outcome::OpenedDirect { descriptor: Descriptor::Direct { file: file.into(), of }, alignment })
}

/// Returns the alignment that direct I/O on this file requires, the larger one of memory and offset.
fn direct_alignment(file: &fs::File) -> io::Result<Alignment> {
    let mask = StatxFlags::DIOALIGN;
    let (memory, offset) = match rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, mask) {
        Ok(found) if found.stx_mask & mask.bits() != 0 => {
            (found.stx_dio_mem_align, found.stx_dio_offset_align)
        }
        // A kernel before 6.1. No file system requires more than a page; one without direct I/O refuses when
        // the file is opened.
        Ok(_) | Err(Errno::NOSYS) => (UNKNOWN_ALIGNMENT, UNKNOWN_ALIGNMENT),
        Err(error) => return Err(error.into()),
    };
    if memory == 0 || offset == 0 {
        return Err(unsupported("the file system has no direct I/O for this file"));
    }
    Alignment::new(memory.max(offset) as usize).map_err(|invalid| unsupported(&invalid.to_string()))
}

fn unsupported(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, why)
}

fn list(path: &Path) -> io::Result<Vec<Entry>> {
    fs::read_dir(path)?
        .map(|entry| {
            let entry = entry?;
            let name = entry.file_name().into_string().map_err(|name| {
                io::Error::new(io::ErrorKind::InvalidData, format!("the name {name:?} is not UTF-8"))
            })?;
            Ok(Entry { name, is_directory: entry.file_type()?.is_dir() })
        })
        .collect()
}

fn uninterrupted<T>(mut operation: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match operation() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests;
