//! A pool of memory for buffers, with one limit for all its users. `tail.rs` makes buffers of the memory.
//!
//! A pool's bytes are either leased, as buffers or as reservations for memory that others allocate, or kept:
//! buffers that were returned and wait for their next use. A request for more bytes than are free waits in a
//! queue; returning bytes serves the queue from its front. Kept memory never makes a request wait: it is
//! reused, or freed if another size needs its bytes.
//!
//! Invariants:
//! 1. `leased_bytes + kept_bytes <= bytes_max`. Fresh memory is allocated after its bytes are leased, and
//!    freed before they are leased again.
//! 2. First come, first served: no request is granted while an earlier one waits.
//! 3. When the mutex is released, the first waiting request does not fit. So a request that is cancelled,
//!    even after it was granted, lets those behind it move up.
//! 4. No waker is called, cloned or dropped under the mutex, because it may run arbitrary code.
//!
//! The pool needs neither threads nor a runtime.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::sync::watch;

use crate::Error;
use crate::tail::memory::{Memory, TAIL_ALIGNMENT};
use crate::tail::sync::{Mutex, MutexGuard};

/// Smallest buffer, in bytes.
pub const BUFFER_SIZE_MIN: usize = 64 << 10;

/// Largest power of two that is a valid size of an allocation.
const BUFFER_SIZE_MAX: usize = 1 << (usize::BITS - 2);

const _: () = assert!(BUFFER_SIZE_MIN.is_power_of_two());
const _: () = assert!(BUFFER_SIZE_MIN.is_multiple_of(TAIL_ALIGNMENT));

/// The limit of a [`BufferPool`].
#[derive(Debug, Clone, Copy)]
pub struct PoolOptions {
    /// Limit on the leased and kept bytes together. Default: 64 MiB.
    pub bytes_max: usize,
}

impl Default for PoolOptions {
    fn default() -> PoolOptions {
        PoolOptions { bytes_max: 64 << 20 }
    }
}

/// Usage of a pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Limit on the leased and kept bytes together.
    pub bytes_max: usize,
    /// Bytes of the buffers and reservations in use.
    pub leased_bytes: usize,
    /// Bytes of the returned buffers that are kept for their next use.
    pub kept_bytes: usize,
    /// Number of requests that wait for bytes.
    pub waiting_count: usize,
}

/// Leases memory up to a limit. Shared through an [`Arc`] and used from any thread.
pub struct BufferPool {
    bytes_max: usize,
    state: Mutex<PoolState>,
    /// The errors of the current stalls, earliest first.
    stalls: watch::Sender<Vec<Arc<Error>>>,
}

impl BufferPool {
    /// Returns a pool that holds no memory yet.
    pub fn new(options: PoolOptions) -> Arc<BufferPool> {
        let state = PoolState {
            bytes_max: options.bytes_max,
            leased_bytes: 0,
            kept_bytes: 0,
            kept: Vec::new(),
            next_number: 0,
            waiting: BTreeMap::new(),
            granted: BTreeMap::new(),
        };
        let stalls = watch::Sender::new(Vec::new());
        Arc::new(BufferPool { bytes_max: options.bytes_max, state: Mutex::new(state), stalls })
    }

    /// Returns the capacity of the buffer that a request for `capacity` bytes gets: a power of two, at least
    /// [`BUFFER_SIZE_MIN`]. `None` if no allocation can be that large. A pool with a smaller limit never
    /// grants such a buffer.
    pub const fn buffer_size(capacity: usize) -> Option<usize> {
        match capacity {
            0..=BUFFER_SIZE_MIN => Some(BUFFER_SIZE_MIN),
            _ if capacity > BUFFER_SIZE_MAX => None,
            _ => Some(capacity.next_power_of_two()),
        }
    }

    /// Reserves `bytes` for memory that the caller allocates, or returns `None` if too few bytes are free or
    /// other requests wait.
    pub fn try_reserve(self: &Arc<Self>, bytes: usize) -> Option<Reservation> {
        self.lock().grant_now(LeaseRequest::Reservation(bytes))?;
        Some(Reservation { pool: self.clone(), bytes })
    }

    /// Like [`BufferPool::try_reserve`], but waits, in one queue with the requests for buffers; first come,
    /// first served. Cancel-safe like [`BufferPool::take`].
    ///
    /// # Panics
    /// If `bytes` exceeds the pool's limit.
    pub async fn reserve(self: &Arc<Self>, bytes: usize) -> Reservation {
        self.acquire(LeaseRequest::Reservation(bytes)).await;
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

    /// Returns the pool's usage at one moment.
    pub fn stats(&self) -> PoolStats {
        let state = self.lock();
        PoolStats {
            bytes_max: state.bytes_max,
            leased_bytes: state.leased_bytes,
            kept_bytes: state.kept_bytes,
            waiting_count: state.waiting.len(),
        }
    }

    /// Leases memory of `bytes`, a result of [`BufferPool::buffer_size`], or returns `None` if too few bytes
    /// are free or other requests wait. [`BufferPool::return_memory`] ends the lease.
    pub(super) fn try_lease_memory(&self, bytes: usize) -> Option<Memory> {
        let grant = self.lock().grant_now(LeaseRequest::Buffer(bytes))?;
        Some(grant.into_memory(bytes))
    }

    /// Like [`BufferPool::try_lease_memory`], but waits for the memory; first come, first served.
    ///
    /// # Panics
    /// If `bytes` exceeds the pool's limit.
    pub(super) async fn lease_memory(&self, bytes: usize) -> Memory {
        self.acquire(LeaseRequest::Buffer(bytes)).await.into_memory(bytes)
    }

    /// Ends the lease of `memory` and keeps it for its next use.
    pub(super) fn return_memory(&self, memory: Memory) {
        let request = LeaseRequest::Buffer(memory.capacity());
        self.end_lease(request, Grant(Some(memory)));
    }

    fn end_lease(&self, request: LeaseRequest, grant: Grant) {
        let mut state = self.lock();
        state.end_lease(request, grant);
        let woken = state.serve();
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }

    fn acquire(&self, request: LeaseRequest) -> Acquire<'_> {
        let bytes = request.bytes();
        assert!(bytes <= self.bytes_max, "{bytes} bytes of a pool of {}", self.bytes_max);
        Acquire { pool: self, request, number: None }
    }

    fn lock(&self) -> MutexGuard<'_, PoolState> {
        // Nothing under the mutex panics in the middle of a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferPool").field("stats", &self.stats()).finish()
    }
}

/// Bytes of a pool's limit for memory that the holder allocates. Returned to the pool on drop.
#[must_use = "the bytes are returned to the pool on drop"]
pub struct Reservation {
    pool: Arc<BufferPool>,
    bytes: usize,
}

impl Reservation {
    /// Returns the number of bytes reserved.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.pool.end_lease(LeaseRequest::Reservation(self.bytes), Grant(None));
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

/// Marks that leased memory is held for an unknown time. Ends on drop.
#[derive(Debug)]
#[must_use = "the stall ends on drop"]
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
            // No task waits for the end of a stall.
            false
        });
    }
}

impl Stall {
    /// Returns the error that caused the stall.
    pub fn error(&self) -> &Arc<Error> {
        &self.error
    }
}

/// A request to the pool.
#[derive(Clone, Copy)]
enum LeaseRequest {
    /// A buffer of this many bytes.
    Buffer(usize),
    /// This many bytes of the limit, without memory.
    Reservation(usize),
}

impl LeaseRequest {
    fn bytes(self) -> usize {
        match self {
            LeaseRequest::Buffer(bytes) | LeaseRequest::Reservation(bytes) => bytes,
        }
    }
}

/// A granted lease. Holds memory if a kept buffer has the requested size.
struct Grant(Option<Memory>);

impl Grant {
    /// Returns the kept memory, or fresh memory of `bytes`.
    fn into_memory(self, bytes: usize) -> Memory {
        self.0.unwrap_or_else(|| Memory::new(bytes))
    }
}

struct PoolState {
    bytes_max: usize,
    leased_bytes: usize,
    kept_bytes: usize,
    /// Memory in the order in which it was returned. The last is used first.
    kept: Vec<Memory>,
    next_number: u64,
    /// The waiting requests, by number in the order of arrival.
    waiting: BTreeMap<u64, (LeaseRequest, Waker)>,
    /// Granted requests whose future has not been polled since.
    granted: BTreeMap<u64, Grant>,
}

impl PoolState {
    /// Leases the bytes, unless other requests wait or too few bytes are free.
    fn grant_now(&mut self, request: LeaseRequest) -> Option<Grant> {
        if self.waiting.is_empty() { self.grant(request) } else { None }
    }

    /// Leases the bytes, unless too few are free.
    fn grant(&mut self, request: LeaseRequest) -> Option<Grant> {
        let bytes = request.bytes();
        if bytes > self.bytes_max - self.leased_bytes {
            return None;
        }
        let memory = match request {
            LeaseRequest::Buffer(_) => self.take_kept(bytes),
            LeaseRequest::Reservation(_) => None,
        };
        self.leased_bytes += bytes;
        // The memory that was returned first has been unused the longest.
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

    fn end_lease(&mut self, request: LeaseRequest, grant: Grant) {
        self.leased_bytes -= request.bytes();
        if let Some(memory) = grant.0 {
            self.kept_bytes += memory.capacity();
            self.kept.push(memory);
        }
    }

    /// Grants waiting requests from the front of the queue, and returns the wakers to call after the mutex is
    /// released.
    fn serve(&mut self) -> Vec<Waker> {
        let mut woken = Vec::new();
        while let Some(first) = self.waiting.first_entry() {
            let (number, request) = (*first.key(), first.get().0);
            let Some(grant) = self.grant(request) else { break };
            if let Some((_, waker)) = self.waiting.remove(&number) {
                woken.push(waker);
            }
            self.granted.insert(number, grant);
        }
        woken
    }
}

/// Waits for a lease. The first poll that finds too few free bytes queues it.
struct Acquire<'a> {
    pool: &'a BufferPool,
    request: LeaseRequest,
    /// Its number in the queue. `None` before it is queued and after it returned its lease.
    number: Option<u64>,
}

impl Future for Acquire<'_> {
    type Output = Grant;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Grant> {
        let waker = context.waker().clone();
        let mut state = self.pool.lock();
        let Some(number) = self.number else {
            if let Some(grant) = state.grant_now(self.request) {
                drop(state);
                return Poll::Ready(grant);
            }
            let number = state.next_number;
            state.next_number += 1;
            state.waiting.insert(number, (self.request, waker));
            drop(state);
            self.number = Some(number);
            return Poll::Pending;
        };
        if let Some(grant) = state.granted.remove(&number) {
            drop(state);
            self.number = None;
            return Poll::Ready(grant);
        }
        let waiting = state.waiting.get_mut(&number).expect("a queued request waits or was granted");
        let replaced = std::mem::replace(&mut waiting.1, waker);
        drop(state);
        drop(replaced);
        Poll::Pending
    }
}

impl Drop for Acquire<'_> {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let mut state = self.pool.lock();
        let removed = state.waiting.remove(&number);
        if let Some(grant) = state.granted.remove(&number) {
            state.end_lease(self.request, grant);
        }
        let woken = state.serve();
        drop(state);
        drop(removed);
        woken.into_iter().for_each(Waker::wake);
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
