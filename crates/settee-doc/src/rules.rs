//! Write rules that apply to all databases of a server; each update reads them.

use std::sync::atomic::{AtomicU64, Ordering};

/// The rules of a server.
pub(crate) struct Rules {
    partition_bytes_max: AtomicU64,
    /// See [`DatabasesOptions::ignore_validation`](crate::DatabasesOptions).
    pub(crate) ignore_validation: bool,
}

impl Rules {
    /// Rules without a limit on partitions.
    pub(crate) fn new(ignore_validation: bool) -> Rules {
        Rules { partition_bytes_max: AtomicU64::new(u64::MAX), ignore_validation }
    }

    /// Size of a partition in bytes from which on interactive edits may not enlarge it.
    pub(crate) fn partition_bytes_max(&self) -> u64 {
        self.partition_bytes_max.load(Ordering::Relaxed)
    }

    pub(crate) fn set_partition_bytes_max(&self, bytes: u64) {
        self.partition_bytes_max.store(bytes, Ordering::Relaxed);
    }
}
