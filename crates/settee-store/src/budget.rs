//! A limit of memory that many stores share.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Memory for recent records' index entries, shared by all stores that have it. Every store has a
/// limit of its own beside it.
///
/// Where half of it is taken, the stores that have more than half of an average one's share begin a
/// checkpoint with their next commit; where all of it is, writers of these stores wait for that.
/// Others don't: what they have would not help. So the limit is passed by no more than what small
/// stores take.
#[derive(Debug)]
pub struct MemoryBudget {
    bytes_max: usize,
    used: AtomicUsize,
    store_count: AtomicUsize,
}

impl MemoryBudget {
    /// A budget of so many bytes.
    pub fn new(bytes_max: usize) -> MemoryBudget {
        MemoryBudget { bytes_max, used: AtomicUsize::new(0), store_count: AtomicUsize::new(0) }
    }

    /// What may be taken, in bytes.
    pub fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// What is taken, in bytes.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    pub(crate) fn enter(&self) {
        self.store_count.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn leave(&self, bytes: usize) {
        self.change(bytes, 0);
        self.store_count.fetch_sub(1, Ordering::Relaxed);
    }

    /// A store that had `before` bytes has `now`.
    pub(crate) fn change(&self, before: usize, now: usize) {
        // Wraps: what is taken away was added before.
        self.used.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Whether a store with so much should begin a checkpoint.
    pub(crate) fn wants(&self, own: usize) -> bool {
        self.used() >= self.bytes_max / 2 && self.is_large(own)
    }

    /// Whether a store with so much should wait for its checkpoint.
    pub(crate) fn is_full(&self, own: usize) -> bool {
        self.used() >= self.bytes_max && self.is_large(own)
    }

    fn is_large(&self, own: usize) -> bool {
        own > 0 && own.saturating_mul(2 * self.store_count.load(Ordering::Relaxed)) >= self.used()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_stores_make_room_and_small_ones_go_on() {
        let budget = MemoryBudget::new(1000);
        let own = [10, 20, 570];
        own.iter().for_each(|own| {
            budget.enter();
            budget.change(0, *own);
        });
        assert_eq!(own.map(|own| budget.wants(own)), [false, false, true]);
        assert!(!budget.is_full(570));
        budget.change(570, 1570);
        assert_eq!([10, 20, 1570].map(|own| budget.is_full(own)), [false, false, true]);
        budget.leave(1570);
        assert_eq!((budget.used(), budget.wants(20)), (30, false));
    }
}
