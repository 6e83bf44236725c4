//! Memory limits shared by many stores: of memtables, and of what is read ahead.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Memory for the memtables of all stores that are given this budget. Each store also has a limit of its own.
///
/// At half of the budget, stores that use more than half of the average share begin a checkpoint with their
/// next commit. At the full budget, writers of these stores wait for that checkpoint. Smaller stores do not
/// wait, since their memory would not help; the budget is exceeded by no more than theirs.
#[derive(Debug)]
pub struct MemoryBudget {
    bytes_max: usize,
    used: AtomicUsize,
    store_count: AtomicUsize,
}

impl MemoryBudget {
    /// Creates a budget of `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> MemoryBudget {
        MemoryBudget { bytes_max, used: AtomicUsize::new(0), store_count: AtomicUsize::new(0) }
    }

    /// The budget in bytes.
    pub fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Bytes in use.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    pub(crate) fn add_store(&self) {
        self.store_count.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn remove_store(&self, bytes: usize) {
        self.change(bytes, 0);
        self.store_count.fetch_sub(1, Ordering::Relaxed);
    }

    /// Changes a store's use from `before` to `now` bytes.
    pub(crate) fn change(&self, before: usize, now: usize) {
        // Wraps: the bytes subtracted were added before.
        self.used.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Whether a store that uses `own` bytes should begin a checkpoint.
    pub(crate) fn needs_checkpoint(&self, own: usize) -> bool {
        self.used() >= self.bytes_max / 2 && self.is_large(own)
    }

    /// Whether the writers of a store that uses `own` bytes should wait for its checkpoint.
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
    fn large_stores_make_checkpoints_and_small_ones_go_on() {
        let budget = MemoryBudget::new(1000);
        let own = [10, 20, 570];
        own.iter().for_each(|own| {
            budget.add_store();
            budget.change(0, *own);
        });
        assert_eq!(own.map(|own| budget.needs_checkpoint(own)), [false, false, true]);
        assert!(!budget.is_full(570));
        budget.change(570, 1570);
        assert_eq!([10, 20, 1570].map(|own| budget.is_full(own)), [false, false, true]);
        budget.remove_store(1570);
        assert_eq!((budget.used(), budget.needs_checkpoint(20)), (30, false));
    }
}

/// Bounds the bytes of records that the scans of all stores that share it hold in memory: see
/// [`ReadAhead`](crate::ReadAhead).
#[derive(Debug)]
pub struct ReadAheadBudget {
    bytes_left: AtomicU64,
}

impl ReadAheadBudget {
    /// A budget of `bytes_max` bytes.
    pub fn new(bytes_max: u64) -> ReadAheadBudget {
        ReadAheadBudget { bytes_left: AtomicU64::new(bytes_max) }
    }

    /// Bytes that no scan holds.
    pub fn bytes_left(&self) -> u64 {
        self.bytes_left.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: u64) -> bool {
        let subtract = |left: u64| left.checked_sub(bytes);
        self.bytes_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, subtract).is_ok()
    }
}

/// The bytes that a scan has taken from the budget; returned on drop.
pub(crate) struct TakenBytes {
    budget: Arc<ReadAheadBudget>,
    bytes: u64,
}

impl TakenBytes {
    pub(crate) fn new(budget: &Arc<ReadAheadBudget>) -> TakenBytes {
        TakenBytes { budget: budget.clone(), bytes: 0 }
    }

    /// Takes `bytes` if the budget has them left.
    pub(crate) fn take(&mut self, bytes: u64) -> bool {
        let is_taken = self.budget.take(bytes);
        self.bytes += if is_taken { bytes } else { 0 };
        is_taken
    }
}

impl Drop for TakenBytes {
    fn drop(&mut self) {
        self.budget.bytes_left.fetch_add(self.bytes, Ordering::Relaxed);
    }
}
