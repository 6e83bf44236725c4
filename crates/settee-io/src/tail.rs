//! The published tail of an append-only log: one appends, many read what has been published,
//! none waits, and ranges of the same memory are on their way to the disk meanwhile.
//!
//! A buffer is a fixed piece of memory and the count of bytes that are published. The one who
//! appends writes behind that count and then raises it (Release); a reader looks at the count
//! (Acquire) and touches only what lies below. Each byte is thus written once, before anyone
//! can see it, and never again while anyone can. A pool lends the memory and gets it back.
//!
//! Invariants:
//! 1. `published <= length <= capacity`; none moves backwards while the buffer lives.
//! 2. Only the [`TailBuffer`] writes, through `&mut`, at or behind `length`; there is one for
//!    each piece of memory.
//! 3. A reference into the memory covers published bytes only, and holds the memory.
//! 4. Memory goes back to its pool when the buffer, its readers and their slices are all gone.
//! 5. Every byte of the memory is initialised: with zeros when allocated, or by an earlier use.
//!
//! The races of this protocol are searched by loom (`tail/races.rs`).

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc as PoolArc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use crate::pool::BufferPool;

pub(crate) mod sync;

use sync::{Arc, AtomicUsize, Shadow};

/// What a buffer's address and capacity are multiples of, in bytes: no smaller than what direct
/// I/O asks for on today's devices, and a page.
pub const TAIL_ALIGNMENT: usize = 4096;

/// Memory of fixed capacity to append to; there is one owner, who alone can. From
/// [`BufferPool::take`]. Dropping it leaves its readers what was published.
pub struct TailBuffer {
    shared: Arc<Shared>,
    capacity: usize,
    length: usize,
}

impl TailBuffer {
    /// An empty buffer on `memory`, which goes back to `pool` in the end.
    pub(crate) fn new(memory: Memory, pool: PoolArc<BufferPool>) -> TailBuffer {
        let capacity = memory.capacity();
        let shared = Shared { published: AtomicUsize::new(0), memory: Some(memory), pool };
        TailBuffer { shared: Arc::new(shared), capacity, length: 0 }
    }

    /// How many bytes it can hold, those it holds included.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// How many bytes were appended, published or not.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether nothing was appended yet.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Appends `bytes`, and hands out the copy, which may still be changed. Nobody sees it before
    /// [`TailBuffer::publish`].
    ///
    /// # Panics
    /// Where there is no room for all of them; nothing is appended then.
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
    /// Where there is no room for all of them; nothing is appended then.
    pub fn pad(&mut self, count: usize) {
        let range = self.grow(count);
        // SAFETY: as in `extend`.
        unsafe { self.shared.memory().clear(range) };
    }

    /// Makes visible to readers what was appended so far. Costs one atomic store.
    pub fn publish(&mut self) {
        // Release: whoever reads this count with Acquire also sees the bytes below it.
        self.shared.published.store(self.length, Ordering::Release);
    }

    /// One who reads what is published, now and later.
    pub fn reader(&self) -> TailReader {
        TailReader { shared: self.shared.clone() }
    }

    /// Moves `length` forward and returns what it moved over, which the caller must fill.
    fn grow(&mut self, count: usize) -> Range<usize> {
        let room = self.capacity - self.length;
        assert!(count <= room, "{count} bytes for a buffer with room for {room}");
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

/// Reads what is published of a [`TailBuffer`], from any thread, without a lock. Cheap to
/// clone; holds the buffer's memory, and its room in the pool.
#[derive(Clone)]
pub struct TailReader {
    shared: Arc<Shared>,
}

impl TailReader {
    /// How many bytes are published. Never decreases. What the one who appends did before
    /// publishing them has happened for whoever sees the count.
    pub fn published(&self) -> usize {
        self.shared.published.load(Ordering::Acquire)
    }

    /// A copy of the bytes in `range`, or `None` where not all of it is published.
    pub fn copy(&self, range: Range<usize>) -> Option<Bytes> {
        self.shared.read(range).map(Bytes::copy_from_slice)
    }

    /// The bytes in `range` themselves, or `None` where not all of it is published: for handing
    /// to a write. They hold the whole buffer, and its room in the pool, until dropped. Their
    /// address is as aligned as the range's start, up to [`TAIL_ALIGNMENT`].
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

/// What a buffer, its readers and their slices have in common.
struct Shared {
    published: AtomicUsize,
    /// `None` only while being dropped.
    memory: Option<Memory>,
    pool: PoolArc<BufferPool>,
}

impl Shared {
    fn memory(&self) -> &Memory {
        self.memory.as_ref().expect("memory is there until the drop")
    }

    /// The bytes in `range`, or `None` where not all of it is published.
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

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.pool.give_back(memory);
        }
    }
}

/// The owner behind the `Bytes` that [`TailReader::slice`] gives.
struct Slice {
    shared: Arc<Shared>,
    range: Range<usize>,
}

impl AsRef<[u8]> for Slice {
    fn as_ref(&self) -> &[u8] {
        self.shared.read(self.range.clone()).expect("what was published stays so")
    }
}

/// Zeroed memory at an aligned address, freed on drop. Reached by raw pointers only, so that
/// references to one part of it may live while another part is written.
pub(crate) struct Memory {
    start: NonNull<u8>,
    layout: Layout,
    shadow: Shadow,
}

// SAFETY: it owns its allocation, which any thread may free. What is shared is reached through
// unsafe functions only, whose callers rule out races.
unsafe impl Send for Memory {}

// SAFETY: as above: `&Memory` alone gives no access to the bytes.
unsafe impl Sync for Memory {}

impl Memory {
    /// `capacity` zeros. The process ends where the system has no memory.
    ///
    /// # Panics
    /// Where `capacity` is zero or larger than an allocation can be.
    pub(crate) fn new(capacity: usize) -> Memory {
        assert!(capacity > 0, "memory of no bytes");
        let layout = Layout::from_size_align(capacity, TAIL_ALIGNMENT).expect("an allocation's size");
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Memory { start, layout, shadow: Shadow::new() }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.layout.size()
    }

    /// Copies `bytes` into `range`, which is as long, and returns the copy.
    ///
    /// # Safety
    /// `range` is within the capacity, and nobody else reads or writes it, or holds a reference
    /// into it, while what is returned lives.
    #[expect(clippy::mut_from_ref, reason = "the memory is reached by raw pointers; see Safety")]
    unsafe fn write(&self, range: Range<usize>, bytes: &[u8]) -> &mut [u8] {
        debug_assert!(range.len() == bytes.len() && range.end <= self.capacity());
        self.shadow.write(range.clone());
        // SAFETY: the range is inside the allocation and ours, as the caller promises, and
        // `bytes`, being a reference, can't overlap it.
        unsafe {
            let start = self.start.add(range.start).as_ptr();
            start.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
            std::slice::from_raw_parts_mut(start, bytes.len())
        }
    }

    /// Fills `range` with zeros.
    ///
    /// # Safety
    /// As for [`Memory::write`].
    unsafe fn clear(&self, range: Range<usize>) {
        debug_assert!(range.end <= self.capacity());
        self.shadow.write(range.clone());
        // SAFETY: the range is inside the allocation and ours, as the caller promises.
        unsafe { self.start.add(range.start).as_ptr().write_bytes(0, range.len()) };
    }

    /// The bytes in `range`.
    ///
    /// # Safety
    /// `range` is within the capacity; writes to it have happened before, and there is none
    /// while the reference lives.
    unsafe fn read(&self, range: Range<usize>) -> &[u8] {
        debug_assert!(range.start <= range.end && range.end <= self.capacity());
        self.shadow.read(range.clone());
        // SAFETY: the range is inside the allocation, initialised (invariant 5) and not written
        // while the reference lives, as the caller promises.
        unsafe { std::slice::from_raw_parts(self.start.add(range.start).as_ptr(), range.len()) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and freed once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

#[cfg(all(test, loom))]
mod races;
#[cfg(all(test, not(loom)))]
mod tests;
