//! Write rules that apply to all databases of a server; each update reads them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::design_functions::DesignFunctions;

/// The rules of a server.
pub(crate) struct Rules {
    partition_bytes_max: AtomicU64,
    design_functions: OnceLock<Arc<dyn DesignFunctions>>,
}

impl Default for Rules {
    /// Rules without a limit on partitions, and without design functions.
    fn default() -> Rules {
        Rules { partition_bytes_max: AtomicU64::new(u64::MAX), design_functions: OnceLock::new() }
    }
}

impl Rules {
    /// Size of a partition in bytes from which on interactive edits may not enlarge it.
    pub(crate) fn partition_bytes_max(&self) -> u64 {
        self.partition_bytes_max.load(Ordering::Relaxed)
    }

    pub(crate) fn set_partition_bytes_max(&self, bytes: u64) {
        self.partition_bytes_max.store(bytes, Ordering::Relaxed);
    }

    /// What compiles and runs design functions; `None` where nothing does.
    pub(crate) fn design_functions(&self) -> Option<&Arc<dyn DesignFunctions>> {
        self.design_functions.get()
    }

    /// Returns false, and changes nothing, if they were set before.
    pub(crate) fn set_design_functions(&self, functions: Arc<dyn DesignFunctions>) -> bool {
        self.design_functions.set(functions).is_ok()
    }
}
