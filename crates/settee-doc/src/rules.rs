//! Rules about what is stored that hold for all databases of a server; each update reads them.

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

    /// Bytes of a partition from which on an interactive edit may not make it larger.
    pub(crate) fn partition_bytes_max(&self) -> u64 {
        self.partition_bytes_max.load(Ordering::Relaxed)
    }

    pub(crate) fn set_partition_bytes_max(&self, bytes: u64) {
        self.partition_bytes_max.store(bytes, Ordering::Relaxed);
    }
}
