//! What the tail and the pool synchronise with: the standard library's, or loom's in a loom test.
//!
//! Loom doesn't see plain memory. So each access to a buffer also touches a [`Shadow`]: one of
//! loom's cells for each of the buffer's first bytes, and nothing at all elsewhere.

#[cfg(not(all(test, loom)))]
pub(crate) use std::sync::{Arc, Mutex, MutexGuard, atomic::AtomicUsize};

#[cfg(all(test, loom))]
pub(crate) use loom::sync::{Arc, Mutex, MutexGuard, atomic::AtomicUsize};

/// Nothing: loom is not looking.
#[cfg(not(all(test, loom)))]
pub(crate) struct Shadow;

#[cfg(not(all(test, loom)))]
impl Shadow {
    pub(crate) fn new() -> Shadow {
        Shadow
    }

    #[inline(always)]
    pub(crate) fn read(&self, _range: std::ops::Range<usize>) {}

    #[inline(always)]
    pub(crate) fn write(&self, _range: std::ops::Range<usize>) {}
}

/// How many bytes of a buffer loom watches; its tests touch no others.
#[cfg(all(test, loom))]
pub(crate) const SHADOW_COUNT: usize = 4;

/// Where loom sees the reads and writes of a buffer's first bytes.
#[cfg(all(test, loom))]
pub(crate) struct Shadow([loom::cell::UnsafeCell<()>; SHADOW_COUNT]);

#[cfg(all(test, loom))]
impl Shadow {
    pub(crate) fn new() -> Shadow {
        Shadow(std::array::from_fn(|_| loom::cell::UnsafeCell::new(())))
    }

    /// Fails the model where a write of one of these bytes did not happen before.
    pub(crate) fn read(&self, range: std::ops::Range<usize>) {
        self.0[range].iter().for_each(|cell| cell.with(|_| ()));
    }

    /// Fails the model where any access to one of these bytes did not happen before.
    pub(crate) fn write(&self, range: std::ops::Range<usize>) {
        self.0[range].iter().for_each(|cell| cell.with_mut(|_| ()));
    }
}
