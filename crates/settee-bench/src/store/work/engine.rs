//! What a workload requires of an engine.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::data::Key;

/// An error that ends a run.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// An engine with an open database.
pub(crate) trait TestEngine: Send + Sync + Sized + 'static {
    type Reader: Reader;

    /// Writes the pairs as one atomic batch: on stable storage if `durable` is set; otherwise only to the
    /// engine's memory, if the engine supports that.
    fn write(
        &self,
        pairs: &[(Key, Bytes)],
        durable: bool,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Writes all accepted batches to the kernel, without a sync if the engine supports that.
    fn flush_to_kernel(&self) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Writes all accepted batches to the index on disk and syncs it.
    fn write_out(&self) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Waits until the engine's background work has finished, as far as the engine reports it.
    fn settle(&self) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Returns a reader of the newest state, which need not show later writes.
    fn reader(&self) -> Result<Self::Reader, Failure>;

    /// Runs `lane` `count` times concurrently: as tasks, or as threads if the engine's calls block.
    fn lanes<T, F, L>(
        self: &Arc<Self>,
        count: usize,
        lane: L,
    ) -> impl Future<Output = Result<Vec<T>, Failure>> + Send
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Failure>> + Send + 'static,
        L: Fn(Arc<Self>, usize) -> F + Clone + Send + Sync + 'static;

    /// Lets other tasks run, if lanes are tasks.
    fn yield_now(&self) -> impl Future<Output = ()> + Send;

    fn pause(&self, time: Duration) -> impl Future<Output = ()> + Send;

    /// A description of the engine's configuration.
    fn setup(&self) -> String;

    /// The engine's own counters, as text.
    fn counters(&self) -> String;
}

/// A snapshot of a database, or its newest state.
pub(crate) trait Reader: Send + 'static {
    /// Number of writes that are visible. None: all.
    fn visible(&self) -> Option<u64>;

    /// Calls `check` with the value. Returns false if there is none.
    fn get(
        &mut self,
        key: &Key,
        check: impl FnOnce(&[u8]) + Send,
    ) -> impl Future<Output = Result<bool, Failure>> + Send;

    /// Calls `each` with up to `count` pairs from `start` on, in the order of keys; without `values`, values
    /// are empty. Returns the number of pairs.
    fn scan(
        &mut self,
        start: &Key,
        count: u64,
        values: bool,
        each: impl FnMut(&[u8], &[u8]) + Send,
    ) -> impl Future<Output = Result<u64, Failure>> + Send;
}
