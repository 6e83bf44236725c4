//! Memory for buffers, bounded for all who share the pool.
//!
//! Bytes are leased, as buffers or as reservations for memory that is somebody else's, or kept:
//! buffers that came back and wait for their next use. Who finds too little free waits in a
//! queue; whatever gives bytes back serves the queue from its front. Kept memory never makes
//! anyone wait: it is freed when another size needs the room, else reused as it is.
//!
//! Invariants:
//! 1. `leased_bytes + kept_bytes <= bytes_max`; fresh memory is allocated after its bytes are
//!    leased, and freed before they are leased to others.
//! 2. First come, first served: nobody is given anything while an earlier one waits.
//! 3. Once the mutex is released, the first who waits does not fit. So a waiter that gives up,
//!    also after it was served, lets those behind it move up.
//! 4. No waker is called, cloned or dropped under the mutex: it may run anything.
//!
//! It needs neither threads nor a runtime.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::sync::watch;

use crate::Error;
use crate::tail::sync::{Mutex, MutexGuard};
use crate::tail::{Memory, TAIL_ALIGNMENT, TailBuffer};

/// The smallest buffer in bytes.
pub const BUFFER_SIZE_MIN: usize = 64 << 10;

/// The largest power of two that an allocation can have.
const BUFFER_SIZE_MAX: usize = 1 << (usize::BITS - 2);

const _: () = assert!(BUFFER_SIZE_MIN.is_power_of_two());
const _: () = assert!(BUFFER_SIZE_MIN.is_multiple_of(TAIL_ALIGNMENT));

/// The limit of a [`BufferPool`].
#[derive(Debug, Clone, Copy)]
pub struct PoolOptions {
    /// Bytes at most, leased and kept together.
    pub bytes_max: usize,
}

impl Default for PoolOptions {
    fn default() -> PoolOptions {
        PoolOptions { bytes_max: 64 << 20 }
    }
}

/// Where a pool's bytes are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// The limit.
    pub bytes_max: usize,
    /// Bytes of the buffers and reservations in use.
    pub leased_bytes: usize,
    /// Bytes of the buffers that wait for their next use.
    pub kept_bytes: usize,
    /// How many wait for bytes.
    pub waiting_count: usize,
}

/// Lends memory up to a limit. Shared through an [`Arc`], from any thread.
pub struct BufferPool {
    bytes_max: usize,
    state: Mutex<State>,
    /// The errors of the stalls that there are.
    stalls: watch::Sender<Vec<Arc<Error>>>,
}

impl BufferPool {
    /// A pool that holds no memory yet.
    pub fn new(options: PoolOptions) -> Arc<BufferPool> {
        let state = State {
            bytes_max: options.bytes_max,
            leased_bytes: 0,
            kept_bytes: 0,
            kept: Vec::new(),
            next_ticket: 0,
            waiting: BTreeMap::new(),
            granted: BTreeMap::new(),
        };
        let stalls = watch::Sender::new(Vec::new());
        Arc::new(BufferPool { bytes_max: options.bytes_max, state: Mutex::new(state), stalls })
    }

    /// The capacity in bytes of the buffer that one gets for asking for `capacity`: a power of
    /// two, at least [`BUFFER_SIZE_MIN`]. `None` where no allocation is as large. A pool whose
    /// limit is smaller never gives such a buffer.
    pub const fn buffer_size(capacity: usize) -> Option<usize> {
        match capacity {
            0..=BUFFER_SIZE_MIN => Some(BUFFER_SIZE_MIN),
            _ if capacity > BUFFER_SIZE_MAX => None,
            _ => Some(capacity.next_power_of_two()),
        }
    }

    /// A buffer of at least `capacity` bytes, as [`BufferPool::buffer_size`] says, or `None`
    /// where not so much is free or others wait. Fresh memory is zeroed, which takes a while;
    /// what was used before is not.
    pub fn try_take(self: &Arc<Self>, capacity: usize) -> Option<TailBuffer> {
        let need = Need::Buffer(Self::buffer_size(capacity)?);
        let grant = self.lock().grant_now(need)?;
        Some(self.buffer(need, grant))
    }

    /// A buffer as of [`BufferPool::try_take`], once it is there: first come, first served.
    /// Cancel-safe: dropped, it gives up its place, or what it was given and never saw.
    ///
    /// # Panics
    /// Where the buffer would be larger than the whole pool.
    pub async fn take(self: &Arc<Self>, capacity: usize) -> TailBuffer {
        let bytes = Self::buffer_size(capacity).unwrap_or(usize::MAX);
        let need = Need::Buffer(bytes);
        let grant = self.turn(need).await;
        self.buffer(need, grant)
    }

    /// Counts `bytes` that somebody else's memory holds, or `None` where not so much is free
    /// or others wait.
    pub fn try_reserve(self: &Arc<Self>, bytes: usize) -> Option<Reservation> {
        self.lock().grant_now(Need::Reservation(bytes))?;
        Some(Reservation { pool: self.clone(), bytes })
    }

    /// A reservation as of [`BufferPool::try_reserve`], once there is room: in one queue with
    /// those who take buffers, first come, first served. Cancel-safe, as [`BufferPool::take`].
    ///
    /// # Panics
    /// Where `bytes` is more than the whole pool.
    pub async fn reserve(self: &Arc<Self>, bytes: usize) -> Reservation {
        self.turn(Need::Reservation(bytes)).await;
        Reservation { pool: self.clone(), bytes }
    }

    /// Reports that leased memory is held for an unknown time because of `error`, until the returned guard is
    /// dropped. Nothing else changes: a user that must not wait so long watches [`BufferPool::stalled`].
    pub fn stall(self: &Arc<Self>, error: Arc<Error>) -> Stall {
        self.stalls.send_modify(|stalls| stalls.push(error.clone()));
        Stall { pool: self.clone(), error }
    }

    /// Returns the error of the earliest [`BufferPool::stall`] as soon as there is one. Cancel-safe.
    pub async fn stalled(&self) -> Arc<Error> {
        let mut stalls = self.stalls.subscribe();
        let stalls = stalls.wait_for(|stalls| !stalls.is_empty()).await;
        stalls.expect("the pool holds the sender")[0].clone()
    }

    /// Where the bytes are, at one moment.
    pub fn stats(&self) -> PoolStats {
        let state = self.lock();
        PoolStats {
            bytes_max: state.bytes_max,
            leased_bytes: state.leased_bytes,
            kept_bytes: state.kept_bytes,
            waiting_count: state.waiting.len(),
        }
    }

    /// Ends the lease of `memory` and keeps it.
    pub(crate) fn give_back(&self, memory: Memory) {
        let need = Need::Buffer(memory.capacity());
        self.end_lease(need, Grant(Some(memory)));
    }

    fn end_lease(&self, need: Need, grant: Grant) {
        let mut state = self.lock();
        state.end_lease(need, grant);
        let woken = state.serve();
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }

    fn turn(&self, need: Need) -> Turn<'_> {
        let bytes = need.bytes();
        assert!(bytes <= self.bytes_max, "{bytes} bytes of a pool of {}", self.bytes_max);
        Turn { pool: self, need, ticket: None }
    }

    fn buffer(self: &Arc<Self>, need: Need, grant: Grant) -> TailBuffer {
        let memory = grant.0.unwrap_or_else(|| Memory::new(need.bytes()));
        TailBuffer::new(memory, self.clone())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing under the mutex panics half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferPool").field("stats", &self.stats()).finish()
    }
}

/// Bytes of a pool's limit that memory from elsewhere uses; given back on drop.
#[must_use = "dropped, it gives the bytes back"]
pub struct Reservation {
    pool: Arc<BufferPool>,
    bytes: usize,
}

impl Reservation {
    /// How many bytes it counts.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.pool.end_lease(Need::Reservation(self.bytes), Grant(None));
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

/// Leased memory is held for an unknown time; ended on drop.
#[derive(Debug)]
#[must_use = "dropped, it ends the stall"]
pub struct Stall {
    pool: Arc<BufferPool>,
    error: Arc<Error>,
}

impl Drop for Stall {
    fn drop(&mut self) {
        self.pool.stalls.send_if_modified(|stalls| {
            if let Some(index) = stalls.iter().position(|error| Arc::ptr_eq(error, &self.error)) {
                stalls.remove(index);
            }
            // Nobody waits for the end of one.
            false
        });
    }
}

impl Stall {
    /// Why it stalled.
    pub fn error(&self) -> &Arc<Error> {
        &self.error
    }
}

/// What one wants of a pool.
#[derive(Clone, Copy)]
enum Need {
    /// A buffer of exactly so many bytes.
    Buffer(usize),
    /// So many bytes of the limit.
    Reservation(usize),
}

impl Need {
    fn bytes(self) -> usize {
        match self {
            Need::Buffer(bytes) | Need::Reservation(bytes) => bytes,
        }
    }
}

/// The bytes are leased; with memory where a kept buffer was just right.
struct Grant(Option<Memory>);

struct State {
    bytes_max: usize,
    leased_bytes: usize,
    kept_bytes: usize,
    /// The memory that came back last is at the end, and is used first.
    kept: Vec<Memory>,
    next_ticket: u64,
    /// Who waits, in the order of arrival.
    waiting: BTreeMap<u64, (Need, Waker)>,
    /// Who was served and has not come for it yet.
    granted: BTreeMap<u64, Grant>,
}

impl State {
    /// Leases what is needed, unless others wait for it or too little is free.
    fn grant_now(&mut self, need: Need) -> Option<Grant> {
        if self.waiting.is_empty() { self.grant(need) } else { None }
    }

    /// Leases what is needed, unless too little is free.
    fn grant(&mut self, need: Need) -> Option<Grant> {
        let bytes = need.bytes();
        if bytes > self.bytes_max - self.leased_bytes {
            return None;
        }
        let memory = match need {
            Need::Buffer(_) => self.take_kept(bytes),
            Need::Reservation(_) => None,
        };
        self.leased_bytes += bytes;
        // What came back first has been cold the longest.
        let mut evicted_count = 0;
        while self.leased_bytes + self.kept_bytes > self.bytes_max {
            self.kept_bytes -= self.kept[evicted_count].capacity();
            evicted_count += 1;
        }
        self.kept.drain(..evicted_count);
        Some(Grant(memory))
    }

    fn take_kept(&mut self, bytes: usize) -> Option<Memory> {
        let index = self.kept.iter().rposition(|memory| memory.capacity() == bytes)?;
        self.kept_bytes -= bytes;
        Some(self.kept.remove(index))
    }

    fn end_lease(&mut self, need: Need, grant: Grant) {
        self.leased_bytes -= need.bytes();
        if let Some(memory) = grant.0 {
            self.kept_bytes += memory.capacity();
            self.kept.push(memory);
        }
    }

    /// Serves those who wait, from the first on, and returns whom to wake without the mutex.
    fn serve(&mut self) -> Vec<Waker> {
        let mut woken = Vec::new();
        while let Some(first) = self.waiting.first_entry() {
            let (ticket, need) = (*first.key(), first.get().0);
            let Some(grant) = self.grant(need) else { break };
            if let Some((_, waker)) = self.waiting.remove(&ticket) {
                woken.push(waker);
            }
            self.granted.insert(ticket, grant);
        }
        woken
    }
}

/// Waits for its turn. Queued by the first poll that finds too little.
struct Turn<'a> {
    pool: &'a BufferPool,
    need: Need,
    /// Its place in the queue, until it has come for what it was granted.
    ticket: Option<u64>,
}

impl Future for Turn<'_> {
    type Output = Grant;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Grant> {
        let waker = context.waker().clone();
        let mut state = self.pool.lock();
        let Some(ticket) = self.ticket else {
            if let Some(grant) = state.grant_now(self.need) {
                drop(state);
                return Poll::Ready(grant);
            }
            let ticket = state.next_ticket;
            state.next_ticket += 1;
            state.waiting.insert(ticket, (self.need, waker));
            drop(state);
            self.ticket = Some(ticket);
            return Poll::Pending;
        };
        if let Some(grant) = state.granted.remove(&ticket) {
            drop(state);
            self.ticket = None;
            return Poll::Ready(grant);
        }
        let place = state.waiting.get_mut(&ticket).expect("who has a ticket waits or was served");
        let replaced = std::mem::replace(&mut place.1, waker);
        drop(state);
        drop(replaced);
        Poll::Pending
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let mut state = self.pool.lock();
        let left = state.waiting.remove(&ticket);
        if let Some(grant) = state.granted.remove(&ticket) {
            state.end_lease(self.need, grant);
        }
        let woken = state.serve();
        drop(state);
        drop(left);
        woken.into_iter().for_each(Waker::wake);
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
