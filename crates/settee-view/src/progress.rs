//! How far a build is, for `_active_tasks`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The progress of the builds of a design document's indexes.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    is_running: AtomicBool,
    done: AtomicU64,
    total: AtomicU64,
}

impl Progress {
    pub(crate) fn begin(&self, total: u64) {
        self.done.store(0, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
        self.is_running.store(true, Ordering::Relaxed);
    }

    pub(crate) fn advance(&self, count: u64) {
        self.done.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn end(&self) {
        self.is_running.store(false, Ordering::Relaxed);
    }

    /// Changes done and changes in all, of a running build.
    pub(crate) fn get(&self) -> Option<(u64, u64)> {
        let is_running = self.is_running.load(Ordering::Relaxed);
        is_running.then(|| (self.done.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed)))
    }
}
