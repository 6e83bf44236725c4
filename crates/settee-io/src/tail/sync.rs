//! The synchronisation primitives of the tail and the pool: the standard library's, or loom's in a loom test.
//!
//! Loom doesn't track plain memory. So each access to a buffer also accesses a [`Shadow`], which in a loom
//! test has one loom cell for each of the buffer's first bytes and is otherwise empty.

#[cfg(not(all(test, loom)))]
pub(crate) use std::sync::{Arc, Mutex, MutexGuard, atomic::AtomicUsize};

#[cfg(all(test, loom))]
pub(crate) use loom::sync::{Arc, Mutex, MutexGuard, atomic::AtomicUsize};

/// Empty: not a loom test.
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

/// Number of bytes of a buffer that loom tracks; its tests touch no others.
#[cfg(all(test, loom))]
pub(crate) const SHADOW_COUNT: usize = 4;

/// The loom cells for a buffer's first bytes.
#[cfg(all(test, loom))]
pub(crate) struct Shadow([loom::cell::UnsafeCell<()>; SHADOW_COUNT]);

#[cfg(all(test, loom))]
impl Shadow {
    pub(crate) fn new() -> Shadow {
        Shadow(std::array::from_fn(|_| loom::cell::UnsafeCell::new(())))
    }

    /// Fails the loom test if a write of one of these bytes did not happen before.
    pub(crate) fn read(&self, range: std::ops::Range<usize>) {
        self.0[range].iter().for_each(|cell| cell.with(|_| ()));
    }

    /// Fails the loom test if an access to one of these bytes did not happen before.
    pub(crate) fn write(&self, range: std::ops::Range<usize>) {
        self.0[range].iter().for_each(|cell| cell.with_mut(|_| ()));
    }
}
