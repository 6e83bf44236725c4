//! The engine on io_uring(7).
//!
//! One thread owns the ring: it alone submits and reaps. A request goes into a bounded inbox (under a mutex
//! held briefly). The ring's thread moves the requests that have arrived into its in-flight table, submits
//! all of them with one `io_uring_enter`, and in the same call waits for completions. A read of an eventfd is
//! always in the ring, so that a caller that fills an empty inbox ends that wait.
//!
//! Hand-overs between threads, each of which costs a wake-up unless the other thread is awake already:
//! - A read, or a write that the kernel starts without blocking, needs two, as with [`ThreadEngine`]: to the
//!   ring's thread and back to the task. Requests in flight together share wake-ups.
//! - An operation that the kernel can't start without blocking (every sync; buffered writes on ext4) goes to
//!   a kernel worker and needs four. A write with its sync is two such operations and needs six.
//!
//! So the ring runs direct reads and direct writes, which the kernel starts without blocking, and the threads
//! run everything else: buffered reads and writes, and every sync ([`RingUse`]). A direct write with a sync
//! goes to the threads too: one hand-over there and one back.
//!
//! Callers don't submit to the ring themselves, although that would save a hand-over. The kernel completes a
//! request in the context of the thread that submitted it, which would interrupt the runtime's threads; it
//! cancels a thread's requests when the thread ends; and a submission may block if the device's queue is
//! full.
//!
//! Invariants:
//! 1. A buffer and its descriptor stay in the in-flight table until their completion has been reaped from
//!    the kernel, even if the future that waits is dropped. If the ring fails they are leaked.
//! 2. A request in flight has exactly one entry in the submission queue or in the kernel. The table has one
//!    slot fewer than the queue has entries, which leaves one for the eventfd's read. So neither the
//!    submission nor the completion queue ever overflows.
//! 3. The sync of a write is submitted after the write's completion, and only if all of it was written. (A
//!    linked pair would save two hand-overs, but a kernel that is short of memory may take only its first
//!    half, and the sync would no longer wait.)
//! 4. Dropping the engine waits for all submitted requests.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use io_uring::{IoUring, Probe, opcode, squeue, types};
use rustix::event::EventfdFlags;
use rustix::io::Errno;

use crate::engine::descriptors::Descriptors;
use crate::engine::operation::{Descriptor, Operation, Outcome, SyncFailed};
use crate::engine::request::{Completion, Engine, Request};
use crate::engine::threads::{ThreadEngine, system};

/// Most entries of a ring. The kernel's own limit is 32,768.
const ENTRY_COUNT_MAX: u32 = 4096;

/// Most bytes of one read or write: the kernel's own limit, a page short of 2 GiB.
const TRANSFER_SIZE_MAX: usize = 0x7fff_f000;

/// Pause of the ring's thread after the kernel had no memory for a submission.
const NO_MEMORY_PAUSE: Duration = Duration::from_millis(1);

/// User data of the eventfd's read. That of every other entry is a slot of the in-flight table.
const WAKE: u64 = u64::MAX;

/// The operations that go through the ring; the others go to the threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RingUse {
    /// Direct reads, and direct writes without a sync.
    Direct,
    /// As `Direct`, and also buffered reads.
    Reads,
    /// Reads, writes and syncs.
    All,
}

/// The limits of a [`UringEngine`].
#[derive(Debug, Clone, Copy)]
pub struct UringOptions {
    /// Entries of the ring. One fewer is the number of requests in flight. A power of two from 2 to 4,096.
    /// Default: 512.
    pub entry_count: u32,
    /// Number of requests that may wait for a slot. Default: 1,024.
    pub queue_count_max: usize,
    /// The operations that go through the ring. Default: [`RingUse::Direct`].
    pub ring_use: RingUse,
}

impl Default for UringOptions {
    fn default() -> UringOptions {
        UringOptions { entry_count: 512, queue_count_max: 1024, ring_use: RingUse::Direct }
    }
}

/// Runs reads, writes and syncs on an io_uring as [`RingUse`] says, and all other operations on a
/// [`ThreadEngine`]. An operation submitted while the inbox is full runs in the caller's thread. Dropping the
/// engine waits for the requests in flight.
#[derive(Debug)]
pub struct UringEngine {
    inbox: Arc<Inbox>,
    threads: Arc<ThreadEngine>,
    thread: Option<JoinHandle<()>>,
    ring_use: RingUse,
}

impl UringEngine {
    /// Sets up the ring and starts its thread. Operations that aren't for the ring go to `threads`.
    ///
    /// # Errors
    /// Of kind `Unsupported` or `PermissionDenied` if the kernel is too old, or doesn't let this process use
    /// io_uring; else the system's error. Nothing keeps running.
    pub fn new(options: UringOptions, threads: Arc<ThreadEngine>) -> io::Result<UringEngine> {
        let count = options.entry_count;
        if !count.is_power_of_two() || !(2..=ENTRY_COUNT_MAX).contains(&count) {
            let message = format!("a ring of {count} entries: not a power of two in 2..={ENTRY_COUNT_MAX}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let inbox = Arc::new(Inbox {
            state: Mutex::default(),
            wake: rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?,
            count_max: options.queue_count_max,
        });
        let (started, start) = mpsc::sync_channel(1);
        // The thread that will use the ring sets it up, because the kernel requires a single issuer.
        let (its_inbox, its_threads) = (inbox.clone(), threads.clone());
        let serve = move || match Ring::new(count, its_inbox, its_threads) {
            Ok(ring) => {
                let _ = started.send(Ok(()));
                ring.serve();
            }
            Err(error) => {
                let _ = started.send(Err(error));
            }
        };
        let thread = thread::Builder::new().name("settee-uring".into()).spawn(serve)?;
        start.recv().unwrap_or_else(|_| Err(io::Error::other("the ring's thread has ended")))?;
        Ok(UringEngine { inbox, threads, thread: Some(thread), ring_use: options.ring_use })
    }

    /// Whether the operation goes through the ring.
    fn is_for_ring(&self, operation: &Operation) -> bool {
        let is_direct = |file: &Descriptor| matches!(file, Descriptor::Direct { .. });
        let (needed, offset) = match operation {
            Operation::Read { file, offset, .. } if is_direct(file) => (RingUse::Direct, *offset),
            Operation::Read { offset, .. } => (RingUse::Reads, *offset),
            Operation::Write { file, offset, sync: false, .. } if is_direct(file) => {
                (RingUse::Direct, *offset)
            }
            Operation::Write { offset, .. } => (RingUse::All, *offset),
            Operation::Sync { .. } => (RingUse::All, 0),
            _ => return false,
        };
        // For the ring an offset of -1 would mean the descriptor's own position, not an error.
        self.ring_use >= needed && i64::try_from(offset).is_ok()
    }
}

impl Engine for UringEngine {
    fn name(&self) -> &'static str {
        "io_uring"
    }

    fn submit(&self, request: Request) {
        if !self.is_for_ring(&request.operation) {
            self.threads.submit(request);
        } else if let Err(request) = self.inbox.push(request) {
            request.completion.complete(self.threads.run(request.operation));
        }
    }

    fn run(&self, operation: Operation) -> io::Result<Outcome> {
        self.threads.run(operation)
    }

    fn descriptors(&self) -> Option<&Arc<Descriptors>> {
        self.threads.descriptors()
    }

    fn reads_in_place(&self) -> bool {
        true
    }
}

impl Drop for UringEngine {
    fn drop(&mut self) {
        self.inbox.stop();
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

/// The requests that were submitted and aren't in flight yet.
#[derive(Debug)]
struct Inbox {
    state: Mutex<InboxState>,
    wake: OwnedFd,
    count_max: usize,
}

#[derive(Debug, Default)]
struct InboxState {
    requests: std::collections::VecDeque<Request>,
    /// Whether the ring's thread found nothing and must be woken by the next request.
    asleep: bool,
    stopped: bool,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, InboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues the request, or returns it if the inbox is full or has stopped.
    #[allow(clippy::result_large_err, reason = "the request itself, which the caller then runs")]
    fn push(&self, request: Request) -> Result<(), Request> {
        let mut state = self.lock();
        if state.stopped || state.requests.len() >= self.count_max {
            return Err(request);
        }
        state.requests.push_back(request);
        let asleep = std::mem::take(&mut state.asleep);
        drop(state);
        if asleep {
            self.wake();
        }
        Ok(())
    }

    fn stop(&self) {
        self.lock().stopped = true;
        self.wake();
    }

    fn wake(&self) {
        // Fails only if the counter is full, and then the ring's thread is about to wake anyway.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

/// A request that is in flight in the kernel.
#[derive(Debug)]
struct InFlight {
    operation: Operation,
    completion: Completion,
    /// Whether all of a write was written, so that its sync is in flight.
    written: bool,
}

/// The state of the ring's thread: the ring, and the requests in flight.
struct Ring {
    ring: IoUring,
    inbox: Arc<Inbox>,
    threads: Arc<ThreadEngine>,
    /// The in-flight table.
    in_flight: Vec<Option<InFlight>>,
    free_slots: Vec<usize>,
    /// Destination of the read of the eventfd's counter.
    counter: Box<[u8; 8]>,
    wake_in_flight: bool,
}

impl Ring {
    fn new(entry_count: u32, inbox: Arc<Inbox>, threads: Arc<ThreadEngine>) -> io::Result<Ring> {
        let ring = set_up(entry_count)?;
        let slot_count = entry_count as usize - 1;
        Ok(Ring {
            ring,
            inbox,
            threads,
            in_flight: std::iter::repeat_with(|| None).take(slot_count).collect(),
            free_slots: (0..slot_count).collect(),
            counter: Box::default(),
            wake_in_flight: false,
        })
    }

    fn serve(mut self) {
        loop {
            let ended = self.admit();
            if ended && self.is_idle() {
                return;
            }
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) => match Errno::from_io_error(&error) {
                    Some(Errno::INTR) => {}
                    // Unsubmitted entries stay in the queue, for the next submission.
                    Some(Errno::AGAIN | Errno::BUSY) => thread::sleep(NO_MEMORY_PAUSE),
                    _ => {
                        tracing::error!(%error, "the ring failed: its operations now run in their callers' threads");
                        return;
                    }
                },
            }
            // Requests that arrive while this reaps are admitted afterwards, without a wake-up.
            self.inbox.lock().asleep = false;
            self.reap();
        }
    }

    /// Moves requests from the inbox into free slots. Returns true if no more will arrive.
    fn admit(&mut self) -> bool {
        let mut state = self.inbox.lock();
        let count = state.requests.len().min(self.free_slots.len());
        let requests: Vec<Request> = state.requests.drain(..count).collect();
        // If no slot is free, the next completion frees one, and no request needs to wake this thread.
        state.asleep = state.requests.is_empty();
        let (stopped, emptied) = (state.stopped, state.requests.is_empty());
        drop(state);
        for Request { operation, completion } in requests {
            let slot = self.free_slots.pop().expect("no more requests than free slots");
            self.start(slot, InFlight { operation, completion, written: false });
        }
        // `Inbox::stop` wakes this thread once. A read begun after that would wait forever.
        if !stopped && !self.wake_in_flight {
            self.await_wake();
        }
        stopped && emptied
    }

    fn is_idle(&self) -> bool {
        self.free_slots.len() == self.in_flight.len() && !self.wake_in_flight
    }

    /// Puts the request into its slot, and the entry for its next step into the submission queue.
    fn start(&mut self, slot: usize, request: InFlight) {
        let request = self.in_flight[slot].insert(request);
        let entry = entry(request).user_data(slot as u64);
        // SAFETY: the entry's buffer and descriptor belong to the request, which stays in the table,
        // untouched, until `finish` has the kernel's completion; a table that ends earlier leaks its requests
        // (`Ring::drop`). Moving the request does not move the memory, which its buffer only points to.
        // `Bytes` being written have no unique owner meanwhile that could change them.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("the queue has an entry for every slot");
    }

    /// Begins a read of the eventfd, so that its next write ends the wait in the kernel.
    fn await_wake(&mut self) {
        let (file, size) = (types::Fd(self.inbox.wake.as_raw_fd()), self.counter.len() as u32);
        let entry = opcode::Read::new(file, self.counter.as_mut_ptr(), size).build().user_data(WAKE);
        // SAFETY: the counter has `size` bytes and is used by nothing else; `Ring::drop` leaks it
        // if the read is still in flight. The inbox holds the eventfd, and we the inbox.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("the queue has an entry for the eventfd");
        self.wake_in_flight = true;
    }

    fn reap(&mut self) {
        loop {
            let Some(entry) = self.ring.completion().next() else { return };
            match entry.user_data() {
                WAKE => self.wake_in_flight = false,
                slot => self.finish(slot as usize, entry.result()),
            }
        }
    }

    /// Completes the request, or starts its sync. `result` is the kernel's: a count, or a negated error
    /// number.
    fn finish(&mut self, slot: usize, result: i32) {
        let mut request = self.in_flight[slot].take().expect("the kernel completes requests in flight");
        let result = usize::try_from(result).map_err(|_| Errno::from_raw_os_error(-result));
        if let Operation::Write { buffer, sync: true, .. } = &request.operation
            && !request.written
            && result == Ok(buffer.len())
        {
            request.written = true;
            return self.start(slot, request);
        }
        self.free_slots.push(slot);
        let InFlight { operation, completion, written } = request;
        let outcome = match (result, operation) {
            // The kernel gave up before it did anything. A thread runs the request again.
            (Err(Errno::INTR | Errno::AGAIN | Errno::CANCELED), operation) => {
                return self.threads.submit(Request { operation, completion });
            }
            (Err(error), _) if written => Err(SyncFailed::wrap(error.into())),
            (Err(error), _) => Err(error.into()),
            (Ok(count), Operation::Read { mut buffer, .. }) => {
                // SAFETY: the kernel has completed a read of `count` bytes into the front of the
                // memory that `entry` took from this buffer, which nobody has touched since.
                unsafe { buffer.assume_filled(count) };
                Ok(Outcome::Read { buffer })
            }
            (Ok(_), Operation::Write { buffer, .. }) if written => Ok(Outcome::Count(buffer.len() as u64)),
            (Ok(count), Operation::Write { .. }) => Ok(Outcome::Count(count as u64)),
            (Ok(_), _) => Ok(Outcome::Done),
        };
        completion.complete(outcome);
    }
}

impl Drop for Ring {
    /// An orderly end finds nothing in flight. Otherwise (the ring failed, or its thread panicked) the kernel
    /// may still use the buffers and descriptors of the requests in flight, so these are leaked and the
    /// requests fail.
    fn drop(&mut self) {
        let waiting = {
            let mut state = self.inbox.lock();
            state.stopped = true;
            std::mem::take(&mut state.requests)
        };
        for request in waiting {
            self.threads.submit(request);
        }
        for request in self.in_flight.drain(..).flatten() {
            std::mem::forget(request.operation);
            request.completion.complete(Err(io::Error::other(
                "the ring failed; it is unknown whether the operation took effect",
            )));
        }
        if self.wake_in_flight {
            std::mem::forget(std::mem::take(&mut self.counter));
        }
    }
}

/// Returns the submission queue entry for the request's next step.
fn entry(request: &mut InFlight) -> squeue::Entry {
    let size = |length: usize| length.min(TRANSFER_SIZE_MAX) as u32;
    let fd = |file: &Descriptor| types::Fd(system(file).as_raw_fd());
    match &mut request.operation {
        Operation::Read { file, offset, buffer } => {
            let memory = buffer.unfilled();
            let start = memory.as_mut_ptr().cast();
            opcode::Read::new(fd(file), start, size(memory.len())).offset(*offset).build()
        }
        Operation::Write { file, offset, buffer, .. } if !request.written => {
            opcode::Write::new(fd(file), buffer.as_ptr(), size(buffer.len())).offset(*offset).build()
        }
        Operation::Write { file, .. } | Operation::Sync { file } => {
            opcode::Fsync::new(fd(file)).flags(types::FsyncFlags::DATASYNC).build()
        }
        other => unreachable!("{} is not for the ring", other.kind()),
    }
}

/// Sets up a ring, and checks that it supports the operations that go through it.
fn set_up(entry_count: u32) -> io::Result<IoUring> {
    // With a single issuer that also waits, completions are processed only during its wait (Linux 6.1).
    let ring = match IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(entry_count) {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => IoUring::new(entry_count)?,
        result => result?,
    };
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe)?;
    for (name, code) in
        [("read", opcode::Read::CODE), ("write", opcode::Write::CODE), ("fsync", opcode::Fsync::CODE)]
    {
        if !probe.is_supported(code) {
            let message = format!("this kernel's io_uring can't {name}");
            return Err(io::Error::new(io::ErrorKind::Unsupported, message));
        }
    }
    Ok(ring)
}

#[cfg(test)]
mod tests;
