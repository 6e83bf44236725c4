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
    /// The build runs until the returned guard is dropped.
    pub(crate) fn begin(&self, total: u64) -> Running<'_> {
        self.done.store(0, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
        self.is_running.store(true, Ordering::Relaxed);
        Running(self)
    }

    pub(crate) fn advance(&self, count: u64) {
        self.done.fetch_add(count, Ordering::Relaxed);
    }

    /// Changes done and changes in all, of a running build.
    pub(crate) fn get(&self) -> Option<(u64, u64)> {
        let is_running = self.is_running.load(Ordering::Relaxed);
        is_running.then(|| (self.done.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed)))
    }
}

/// A running build, which ends on drop: also when it panics.
pub(crate) struct Running<'a>(&'a Progress);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.is_running.store(false, Ordering::Relaxed);
    }
}

/// Counts one more of something until it is dropped.
pub(crate) struct Counted<'a>(&'a AtomicU64);

impl<'a> Counted<'a> {
    pub(crate) fn new(count: &'a AtomicU64) -> Counted<'a> {
        count.fetch_add(1, Ordering::Relaxed);
        Counted(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
