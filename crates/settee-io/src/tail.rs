//! The tail of an append-only log in memory. One writer appends, many readers read the published part without
//! waiting, and ranges of the same memory are meanwhile written to the disk.
//!
//! A buffer is a fixed piece of memory and the number of its bytes that are published. The writer writes
//! beyond the published bytes and then raises their number (Release); a reader loads the number (Acquire) and
//! touches only bytes below it. So each byte is written once, before any reader can see it, and never again
//! while one can. A [`BufferPool`] (`tail/pool.rs`) leases the memory (`tail/memory.rs`) and gets it back.
//!
//! Invariants:
//! 1. `published <= length <= capacity`; none decreases while the buffer lives.
//! 2. Only the [`TailBuffer`] writes, through `&mut`, at or beyond `length`. Each piece of memory has one.
//! 3. A reference into the memory covers published bytes only, and keeps the memory alive.
//! 4. Memory returns to its pool when the buffer, its readers and their slices are all dropped.
//! 5. Every byte of the memory is initialised: with zeros when allocated, or by an earlier use.
//!
//! Loom checks the races of this protocol (`tail/races.rs`).

use std::fmt;
use std::ops::Range;
use std::sync::Arc as PoolArc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

mod memory;
#[deny(unsafe_code)]
mod pool;
#[deny(unsafe_code)]
mod sync;

use memory::Memory;
pub use memory::TAIL_ALIGNMENT;
pub use pool::{BUFFER_SIZE_MIN, BufferPool, PoolOptions, PoolStats, Reservation, Stall};
use sync::{Arc, AtomicUsize};

/// Memory of fixed capacity to append to, with a single owner. From [`BufferPool::take`]. Its readers keep
/// the published bytes after it is dropped.
pub struct TailBuffer {
    shared: Arc<TailShared>,
    capacity: usize,
    length: usize,
}

impl TailBuffer {
    /// Returns an empty buffer in `memory`, which returns to `pool` at the end.
    fn new(memory: Memory, pool: PoolArc<BufferPool>) -> TailBuffer {
        let capacity = memory.capacity();
        let shared = TailShared { published: AtomicUsize::new(0), memory: Some(memory), pool };
        TailBuffer { shared: Arc::new(shared), capacity, length: 0 }
    }

    /// Capacity in bytes, including the bytes it holds.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Number of bytes appended, published or not.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether no byte was appended.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Appends `bytes`, and returns the copy, which the caller may still change. Readers don't see it before
    /// [`TailBuffer::publish`].
    ///
    /// # Panics
    /// If the remaining capacity is too small; nothing is appended then.
    pub fn extend(&mut self, bytes: &[u8]) -> &mut [u8] {
        let range = self.grow(bytes.len());
        // SAFETY: invariant 2: `&mut self` makes this the only writer, for as long as the copy is
        // borrowed. Invariant 3: the range begins at `length`, so that it is not published and no
        // reference covers it.
        unsafe { self.shared.memory().write(range, bytes) }
    }

    /// Appends `count` zeros, as [`TailBuffer::extend`] does bytes.
    ///
    /// # Panics
    /// If the remaining capacity is too small; nothing is appended then.
    pub fn pad(&mut self, count: usize) {
        let range = self.grow(count);
        // SAFETY: as in `extend`.
        unsafe { self.shared.memory().clear(range) };
    }

    /// Makes the bytes appended so far visible to readers. Costs one atomic store.
    pub fn publish(&mut self) {
        // Release: a reader that loads this count with Acquire also sees the bytes below it.
        self.shared.published.store(self.length, Ordering::Release);
    }

    /// Returns a reader of the published bytes, including those published later.
    pub fn reader(&self) -> TailReader {
        TailReader { shared: self.shared.clone() }
    }

    /// Raises `length` by `count` and returns the added range, which the caller must fill.
    fn grow(&mut self, count: usize) -> Range<usize> {
        let free = self.capacity - self.length;
        assert!(count <= free, "{count} bytes for a buffer with {free} bytes free");
        let start = self.length;
        self.length += count;
        start..self.length
    }
}

impl fmt::Debug for TailBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TailBuffer")
            .field("length", &self.length)
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

/// # Buffers
impl BufferPool {
    /// Returns a buffer of [`BufferPool::buffer_size`] of `capacity`, or `None` if too few bytes are free or
    /// other requests wait. Fresh memory is zeroed, which takes time; reused memory is not.
    pub fn try_take(self: &PoolArc<Self>, capacity: usize) -> Option<TailBuffer> {
        let memory = self.try_lease_memory(Self::buffer_size(capacity)?)?;
        Some(TailBuffer::new(memory, self.clone()))
    }

    /// Like [`BufferPool::try_take`], but waits for the buffer; first come, first served. Cancel-safe: a
    /// dropped future leaves the queue, and returns a buffer that it was granted.
    ///
    /// # Panics
    /// If the buffer would exceed the pool's limit.
    pub async fn take(self: &PoolArc<Self>, capacity: usize) -> TailBuffer {
        let bytes = Self::buffer_size(capacity).unwrap_or(usize::MAX);
        TailBuffer::new(self.lease_memory(bytes).await, self.clone())
    }
}

/// Reads the published bytes of a [`TailBuffer`], from any thread, without a lock. Cheap to clone. Keeps the
/// buffer's memory alive and leased from the pool.
#[derive(Clone)]
pub struct TailReader {
    shared: Arc<TailShared>,
}

impl TailReader {
    /// Returns the number of published bytes. Never decreases. Everything the writer did before it published
    /// them happens before this returns their number.
    pub fn published(&self) -> usize {
        self.shared.published.load(Ordering::Acquire)
    }

    /// Returns a copy of the bytes in `range`, or `None` if not all of them are published.
    pub fn copy(&self, range: Range<usize>) -> Option<Bytes> {
        self.shared.read(range).map(Bytes::copy_from_slice)
    }

    /// Returns the bytes in `range` without a copy, or `None` if not all of them are published. For passing
    /// to a write: they keep the whole buffer alive and leased from the pool until dropped. The address is
    /// a multiple of any power of two, up to [`TAIL_ALIGNMENT`], that divides `range.start`.
    pub fn slice(&self, range: Range<usize>) -> Option<Bytes> {
        self.shared.read(range.clone())?;
        Some(Bytes::from_owner(Slice { shared: self.shared.clone(), range }))
    }
}

impl fmt::Debug for TailReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TailReader").field("published", &self.published()).finish_non_exhaustive()
    }
}

/// The part that a buffer, its readers and their slices share.
struct TailShared {
    published: AtomicUsize,
    /// `None` only during the drop.
    memory: Option<Memory>,
    pool: PoolArc<BufferPool>,
}

impl TailShared {
    fn memory(&self) -> &Memory {
        self.memory.as_ref().expect("memory is present until the drop")
    }

    /// Returns the bytes in `range`, or `None` if not all of them are published.
    fn read(&self, range: Range<usize>) -> Option<&[u8]> {
        // Acquire: pairs with the Release in `publish`.
        let published = self.published.load(Ordering::Acquire);
        if range.start > range.end || range.end > published {
            return None;
        }
        // SAFETY: invariant 1: what is published is within the capacity. The load above makes
        // the writes of the range happen before, and no later one touches it (invariant 2).
        Some(unsafe { self.memory().read(range) })
    }
}

impl Drop for TailShared {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.pool.return_memory(memory);
        }
    }
}

/// The owner of the `Bytes` that [`TailReader::slice`] returns.
struct Slice {
    shared: Arc<TailShared>,
    range: Range<usize>,
}

impl AsRef<[u8]> for Slice {
    fn as_ref(&self) -> &[u8] {
        self.shared.read(self.range.clone()).expect("published bytes stay published")
    }
}

#[cfg(all(test, loom))]
mod races;
#[cfg(all(test, not(loom)))]
mod tests;
