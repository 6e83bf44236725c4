//! The memory of a buffer: an aligned allocation that is written and read by raw pointers.
//!
//! Invariant: every byte is initialised, with zeros when allocated, or by an earlier use.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::Range;
use std::ptr::NonNull;

use crate::tail::sync::Shadow;

/// Alignment of a buffer's address and capacity, in bytes: a page, and no less than direct I/O requires on
/// today's devices.
pub const TAIL_ALIGNMENT: usize = 4096;

/// Memory at an aligned address, zeroed when allocated and freed on drop. Accessed by raw pointers only, so
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
    /// Allocates `capacity` zeros. Aborts the process if the system has no memory.
    ///
    /// # Panics
    /// If `capacity` is zero or exceeds the size of any allocation.
    pub(crate) fn new(capacity: usize) -> Memory {
        assert!(capacity > 0, "memory of 0 bytes");
        let layout =
            Layout::from_size_align(capacity, TAIL_ALIGNMENT).expect("no larger than an allocation can be");
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Memory { start, layout, shadow: Shadow::new() }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.layout.size()
    }

    /// Copies `bytes` into `range`, which has the same length, and returns the copy.
    ///
    /// # Safety
    /// `range` is within the capacity, and nothing else reads or writes it, or holds a reference into it,
    /// while the returned reference lives.
    #[expect(clippy::mut_from_ref, reason = "the memory is accessed by raw pointers; see Safety")]
    pub(crate) unsafe fn write(&self, range: Range<usize>, bytes: &[u8]) -> &mut [u8] {
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
    pub(crate) unsafe fn clear(&self, range: Range<usize>) {
        debug_assert!(range.end <= self.capacity());
        self.shadow.write(range.clone());
        // SAFETY: the range is inside the allocation and ours, as the caller promises.
        unsafe { self.start.add(range.start).as_ptr().write_bytes(0, range.len()) };
    }

    /// Returns the bytes in `range`.
    ///
    /// # Safety
    /// `range` is within the capacity. Earlier writes to it have happened before, and none happens while the
    /// reference lives.
    pub(crate) unsafe fn read(&self, range: Range<usize>) -> &[u8] {
        debug_assert!(range.start <= range.end && range.end <= self.capacity());
        self.shadow.read(range.clone());
        // SAFETY: the range is inside the allocation, initialised (the module's invariant) and not written
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
