//! The engine on io_uring(7).
//!
//! One thread owns the ring: it alone submits and reaps. A request goes into a bounded inbox
//! (a short mutex); the ring's thread moves what has arrived into its table of flights, submits
//! all of it with one `io_uring_enter`, and waits in the same call for what completes. A read of
//! an eventfd is always in the ring, so that whoever fills an empty inbox ends that wait.
//!
//! Hand-overs between threads, of which each costs a wake-up unless the other is awake already:
//! - a read, or a write that the kernel starts without blocking: two, as with [`ThreadEngine`]:
//!   to the ring's thread and back to the task. Of many requests, many share each wake-up.
//! - what the kernel can't start without blocking (every sync; buffered writes on ext4) it gives
//!   to a worker of its own: four. A write with its sync is two such operations: six.
//!
//! So the ring serves direct reads and direct writes, which the kernel starts without blocking,
//! and the threads all else: what the page cache is asked for, and every sync ([`RingUse`]). A
//! direct write with its sync goes to the threads too: one hand-over there and one back.
//!
//! Callers don't submit in place, although it would save a hand-over: the kernel completes a
//! request in the context of the thread that submitted it, which would interrupt the runtime's
//! threads; it cancels what a thread has begun when that thread ends; and submitting may block,
//! where the device's queue is full.
//!
//! Invariants:
//! 1. A buffer and its descriptor stay in the table until the kernel's completion for them has
//!    been reaped, whatever becomes of the future that waits; if the ring fails they are leaked.
//! 2. A request in flight has exactly one entry in the submission queue or in the kernel. The
//!    table has one place less than the queue has entries, which is left to the eventfd's read:
//!    so neither the submission nor the completion queue ever overflows.
//! 3. A sync that belongs to a write is submitted after that write's completion, and only where
//!    all of it was written. (A linked pair would save two hand-overs, but a kernel that is
//!    short of memory may take only its first half, and the sync would no longer wait.)
//! 4. The engine's end waits for all that was submitted.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use io_uring::{IoUring, Probe, opcode, squeue, types};
use rustix::event::EventfdFlags;
use rustix::io::Errno;

use crate::Descriptors;
use crate::engine::{Completion, Descriptor, Engine, Operation, Outcome, Request, SyncFailed};
use crate::threads::{ThreadEngine, system};

/// Most entries a ring may have; the kernel's own limit is 32,768.
const ENTRY_COUNT_MAX: u32 = 4096;

/// Most bytes of one read or write: the kernel's own limit, a page short of 2 GiB.
const TRANSFER_SIZE_MAX: usize = 0x7fff_f000;

/// How long the ring's thread lets go when the kernel has no memory for a submission.
const NO_MEMORY_PAUSE: Duration = Duration::from_millis(1);

/// The completion of the eventfd's read. All others are places in the table.
const WAKE: u64 = u64::MAX;

/// Which operations go through the ring; the others go to the threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RingUse {
    /// Direct reads, and direct writes without a sync.
    Direct,
    /// These, and buffered reads.
    Reads,
    /// Reads, writes and syncs.
    All,
}

/// The limits of a [`UringEngine`].
#[derive(Debug, Clone, Copy)]
pub struct UringOptions {
    /// Entries of the ring, and so, but for one, how many requests are in flight at once. A
    /// power of two, at least 2, at most 4,096.
    pub entry_count: u32,
    /// Requests that wait for a place in flight.
    pub queue_count_max: usize,
    /// What goes through the ring.
    pub ring_use: RingUse,
}

impl Default for UringOptions {
    fn default() -> UringOptions {
        UringOptions { entry_count: 512, queue_count_max: 1024, ring_use: RingUse::Direct }
    }
}

/// Runs reads, writes and syncs on an io_uring, and all else on a [`ThreadEngine`]. What is
/// submitted while the inbox is full runs in the caller's thread. Dropping it waits for what is
/// in flight.
#[derive(Debug)]
pub struct UringEngine {
    inbox: Arc<Inbox>,
    threads: Arc<ThreadEngine>,
    thread: Option<JoinHandle<()>>,
    ring_use: RingUse,
}

impl UringEngine {
    /// An engine with its ring set up and its thread started; what isn't for the ring goes to
    /// `threads`.
    ///
    /// # Errors
    /// Of kind `Unsupported` or `PermissionDenied` where the kernel is too old, or doesn't let
    /// this process use io_uring; else what the system says. Nothing is left running.
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
        // The ring is set up by the thread that will use it: the kernel wants a single issuer.
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

    /// Whether the operation is one for the ring.
    fn is_for_ring(&self, operation: &Operation) -> bool {
        let is_direct = |file: &Descriptor| matches!(file, Descriptor::Direct { .. });
        let (wanted, offset) = match operation {
            Operation::Read { file, offset, .. } if is_direct(file) => (RingUse::Direct, *offset),
            Operation::Read { offset, .. } => (RingUse::Reads, *offset),
            Operation::Write { file, offset, sync: false, .. } if is_direct(file) => {
                (RingUse::Direct, *offset)
            }
            Operation::Write { offset, .. } => (RingUse::All, *offset),
            Operation::Sync { .. } => (RingUse::All, 0),
            _ => return false,
        };
        // An offset of -1 would mean the descriptor's own position to the ring, not an error.
        self.ring_use >= wanted && i64::try_from(offset).is_ok()
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

/// What has been submitted and isn't in flight yet.
#[derive(Debug)]
struct Inbox {
    state: Mutex<InboxState>,
    wake: OwnedFd,
    count_max: usize,
}

#[derive(Debug, Default)]
struct InboxState {
    requests: std::collections::VecDeque<Request>,
    /// The ring's thread found nothing, and must be woken by who brings something.
    asleep: bool,
    stopped: bool,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, InboxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues the request, or gives it back where the inbox is full or has stopped.
    #[allow(clippy::result_large_err, reason = "the request itself, on its way to be run")]
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
        // Fails only where the counter is full, and then the other side is about to wake.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

/// A request that the kernel works on.
#[derive(Debug)]
struct Flight {
    operation: Operation,
    completion: Completion,
    /// All of the write has been written, and what is in flight is its sync.
    written: bool,
}

/// The ring, and what is in flight in it: the state of its thread.
struct Ring {
    ring: IoUring,
    inbox: Arc<Inbox>,
    threads: Arc<ThreadEngine>,
    flights: Vec<Option<Flight>>,
    free: Vec<usize>,
    /// Where the eventfd's counter is read to.
    counter: Box<[u8; 8]>,
    wake_in_flight: bool,
}

impl Ring {
    fn new(entry_count: u32, inbox: Arc<Inbox>, threads: Arc<ThreadEngine>) -> io::Result<Ring> {
        let ring = set_up(entry_count)?;
        let place_count = entry_count as usize - 1;
        Ok(Ring {
            ring,
            inbox,
            threads,
            flights: std::iter::repeat_with(|| None).take(place_count).collect(),
            free: (0..place_count).collect(),
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
                    // What was not submitted is still in the queue, for the next time.
                    Some(Errno::AGAIN | Errno::BUSY) => thread::sleep(NO_MEMORY_PAUSE),
                    _ => {
                        tracing::error!(%error, "the ring failed: its operations run without it");
                        return;
                    }
                },
            }
            // What arrives while we reap is admitted after it, and needs no wake-up.
            self.inbox.lock().asleep = false;
            self.reap();
        }
    }

    /// Moves what has arrived into flight, as far as there are places; true where nothing more
    /// will arrive.
    fn admit(&mut self) -> bool {
        let mut state = self.inbox.lock();
        let count = state.requests.len().min(self.free.len());
        let requests: Vec<Request> = state.requests.drain(..count).collect();
        // Where places ran out, the next completion makes one, and no one need wake us.
        state.asleep = state.requests.is_empty();
        let (stopped, emptied) = (state.stopped, state.requests.is_empty());
        drop(state);
        for Request { operation, completion } in requests {
            let place = self.free.pop().expect("no more than there are places");
            self.launch(place, Flight { operation, completion, written: false });
        }
        // Who stopped the inbox wakes us once, after that; a read begun later would wait for ever.
        if !stopped && !self.wake_in_flight {
            self.await_wake();
        }
        stopped && emptied
    }

    fn is_idle(&self) -> bool {
        self.free.len() == self.flights.len() && !self.wake_in_flight
    }

    /// Puts the flight into its place, and the entry for its next step into the queue.
    fn launch(&mut self, place: usize, flight: Flight) {
        let flight = self.flights[place].insert(flight);
        let entry = entry(flight).user_data(place as u64);
        // SAFETY: the entry's buffer and descriptor belong to the flight, which stays in the
        // table, untouched, until `settle` has the kernel's completion; a table that ends
        // earlier leaks its flights (`Ring::drop`). Moving the flight does not move the memory,
        // which its buffer only points to; `Bytes` that are written have no unique owner meanwhile
        // who could change them.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("an entry for every place");
    }

    /// Reads the eventfd, so that its next write ends the wait in the kernel.
    fn await_wake(&mut self) {
        let (file, size) = (types::Fd(self.inbox.wake.as_raw_fd()), self.counter.len() as u32);
        let entry = opcode::Read::new(file, self.counter.as_mut_ptr(), size).build().user_data(WAKE);
        // SAFETY: the counter has `size` bytes and is used by nothing else; `Ring::drop` leaks it
        // if the read is still in flight. The inbox holds the eventfd, and we the inbox.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("an entry for the eventfd");
        self.wake_in_flight = true;
    }

    fn reap(&mut self) {
        loop {
            let Some(entry) = self.ring.completion().next() else { return };
            match entry.user_data() {
                WAKE => self.wake_in_flight = false,
                place => self.settle(place as usize, entry.result()),
            }
        }
    }

    /// Ends the flight, or starts its sync. `result` is the kernel's: a count, or an error below
    /// zero.
    fn settle(&mut self, place: usize, result: i32) {
        let mut flight = self.flights[place].take().expect("the kernel completes what is in flight");
        let result = usize::try_from(result).map_err(|_| Errno::from_raw_os_error(-result));
        if let Operation::Write { buffer, sync: true, .. } = &flight.operation
            && !flight.written
            && result == Ok(buffer.len())
        {
            flight.written = true;
            return self.launch(place, flight);
        }
        self.free.push(place);
        let Flight { operation, completion, written } = flight;
        let outcome = match (result, operation) {
            // The kernel gave up before it did anything; all of it is done again, by a thread.
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
    /// An orderly end finds nothing in flight. Otherwise (the ring failed, or its thread
    /// panicked) the kernel may still use what is: that is leaked, and who waits is told.
    fn drop(&mut self) {
        let waiting = {
            let mut state = self.inbox.lock();
            state.stopped = true;
            std::mem::take(&mut state.requests)
        };
        for request in waiting {
            self.threads.submit(request);
        }
        for flight in self.flights.drain(..).flatten() {
            std::mem::forget(flight.operation);
            flight.completion.complete(Err(io::Error::other("the ring failed; what was done is unknown")));
        }
        if self.wake_in_flight {
            std::mem::forget(std::mem::take(&mut self.counter));
        }
    }
}

/// The queue entry for the flight's next step.
fn entry(flight: &mut Flight) -> squeue::Entry {
    let size = |length: usize| length.min(TRANSFER_SIZE_MAX) as u32;
    let fd = |file: &Descriptor| types::Fd(system(file).as_raw_fd());
    match &mut flight.operation {
        Operation::Read { file, offset, buffer } => {
            let memory = buffer.unfilled();
            let start = memory.as_mut_ptr().cast();
            opcode::Read::new(fd(file), start, size(memory.len())).offset(*offset).build()
        }
        Operation::Write { file, offset, buffer, .. } if !flight.written => {
            opcode::Write::new(fd(file), buffer.as_ptr(), size(buffer.len())).offset(*offset).build()
        }
        Operation::Write { file, .. } | Operation::Sync { file } => {
            opcode::Fsync::new(fd(file)).flags(types::FsyncFlags::DATASYNC).build()
        }
        other => unreachable!("{} is not for the ring", other.kind()),
    }
}

/// A ring that has what we need.
fn set_up(entry_count: u32) -> io::Result<IoUring> {
    // With one issuer that also waits, completions are processed in its wait alone (Linux 6.1).
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
