//! Memory of the memtables: writers wait for a checkpoint while it is full, and are refused if one failed.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use super::state::Shared;
use crate::error::{CommitError, StoreError};
use crate::version::Version;

/// A writer is refused once memory exceeds its limit by the limit divided by this.
const WRITER_EXCESS_DIVISOR: usize = 2;

impl Shared {
    pub(super) fn record_memory(&self, version: &Version) {
        let now = version.memory_bytes();
        let before = self.memory.bytes.swap(now, Ordering::Relaxed);
        self.memory.immutable_count.store(version.immutable.len() as u64, Ordering::Relaxed);
        if let Some(budget) = &self.context.options.memory {
            budget.change(before, now);
        }
    }

    fn is_memory_full(&self) -> bool {
        let own = self.memory.bytes.load(Ordering::Relaxed);
        own >= self.context.options.memory_bytes_max
            || self.context.options.memory.as_ref().is_some_and(|budget| budget.is_full(own))
            || self.memory.immutable_count.load(Ordering::Relaxed)
                > self.context.options.immutable_memtables_max as u64
    }

    /// Whether writers have to wait for a checkpoint: memory is full, and the last checkpoint did not fail.
    /// If it failed, the commit reports that.
    pub(crate) fn is_waiting_for_memory(&self) -> bool {
        self.is_memory_full() && !self.is_closed() && self.last_checkpoint_error().is_none()
    }

    pub(crate) async fn wait_for_memory(self: &Arc<Self>) {
        while self.is_memory_full() && !self.is_closed() {
            let changed = self.status_changed.notified();
            self.start_checkpoint();
            if !self.is_waiting_for_memory() {
                return;
            }
            changed.await;
        }
    }

    /// Refuses a batch if memory is full and waiting cannot help: a checkpoint failed, or this writer, which
    /// keeps a checkpoint from beginning, has exceeded the limit too far.
    pub(crate) fn check_memory(&self) -> Result<(), CommitError> {
        if !self.is_memory_full() {
            return Ok(());
        }
        if let Some(source) = self.last_checkpoint_error() {
            return Err(CommitError::Full { source });
        }
        let bytes_max = self.context.options.memory_bytes_max;
        let bytes = self.memory.bytes.load(Ordering::Relaxed);
        match bytes.saturating_sub(bytes_max) >= bytes_max.div_ceil(WRITER_EXCESS_DIVISOR) {
            true => Err(CommitError::WriterFull { bytes, bytes_max }),
            false => Ok(()),
        }
    }

    /// Reports the result of a checkpoint, or an error it is retrying, to writers that wait for memory.
    pub(crate) fn note_checkpoint_error(&self, error: Option<StoreError>) {
        *self.memory.checkpoint_error.lock().unwrap_or_else(PoisonError::into_inner) = error;
        self.status_changed.notify_waiters();
    }

    pub(crate) fn last_checkpoint_error(&self) -> Option<StoreError> {
        self.memory.checkpoint_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
