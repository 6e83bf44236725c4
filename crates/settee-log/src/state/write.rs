//! Writes: to submit, incomplete, and suspended for lack of disk space.

use std::sync::Arc;

use bytes::Bytes;
use settee_io::{File, Stall};

use crate::watermark::Watermark;

/// A write or sync to submit.
#[derive(Clone)]
pub(crate) enum Action {
    /// Write the bytes at the offset; also sync the file if `sync` is set.
    Write { id: u64, file: Arc<File>, offset: u64, bytes: Bytes, sync: bool },
    /// Sync the file.
    Sync { file: Arc<File> },
}

/// A write that was submitted and that `written` doesn't cover yet.
pub(super) struct IncompleteWrite {
    pub id: u64,
    pub end: Watermark,
    /// Whether it has succeeded; it then waits for the writes before it.
    pub done: bool,
}

/// Writes that failed for lack of disk space, until they have succeeded.
pub(super) struct SuspendedWrites {
    /// Holds the I/O error. Marks the pool as stalled, so that other logs fail instead of waiting for this
    /// log's buffers.
    pub stall: Stall,
    pub ids: Vec<u64>,
    /// Those of them that wait for a retry.
    pub waiting: Vec<Action>,
}
