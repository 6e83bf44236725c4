//! The node cache: nodes of many trees in memory, within one limit.
//!
//! Nodes that an update replaced are removed at once, so that they don't evict nodes in use.

use std::fmt;
use std::sync::Arc;

use settee_io::{Cache, CacheStats, CachedFile};

use crate::node::Node;

/// A bounded cache of nodes, shared by any number of trees.
pub struct NodeCache(Arc<Cache<Arc<Node>>>);

impl NodeCache {
    /// A cache of at most `bytes_max` bytes. With 0 it caches nothing.
    pub fn new(bytes_max: usize) -> NodeCache {
        NodeCache(Arc::new(Cache::new(bytes_max, |node: &Arc<Node>| node.memory_bytes())))
    }

    /// Contents and counters.
    pub fn stats(&self) -> CacheStats {
        self.0.stats()
    }

    /// The nodes of a tree that was just opened, by their offsets.
    pub(crate) fn tree(&self) -> CachedFile<Arc<Node>> {
        CachedFile::new(&self.0, u64::MAX)
    }
}

impl fmt::Debug for NodeCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
