//! The options of a tree, their defaults and their ranges.

use std::sync::Arc;

use crate::cache::NodeCache;
use crate::format::BLOCK_SIZE;

/// Range of a node's target size, in bytes.
const NODE_BYTES: std::ops::RangeInclusive<usize> = 256..=32 << 10;

/// Range of the write buffer's size, in bytes.
const WRITE_BUFFER_BYTES: std::ops::RangeInclusive<usize> = BLOCK_SIZE as usize..=64 << 20;

/// Range of a scan's read-ahead limit, in bytes.
const READ_AHEAD_BYTES: std::ops::RangeInclusive<usize> = 1..=64 << 20;

/// How a tree is written and read. All options except the incarnation may differ from one opening to the
/// next.
#[derive(Debug, Clone)]
pub struct TreeOptions {
    /// Target size of a node in bytes: 256 to 32 KiB; default 4 KiB. An entry larger than that makes a larger
    /// node.
    pub node_bytes: usize,
    /// Size of a write in bytes: 4 KiB to 64 MiB, a multiple of 4 KiB; default 1 MiB. A few such writes are
    /// in flight.
    pub write_buffer_bytes: usize,
    /// Largest read-ahead of a scan in bytes; default 256 KiB. A scan begins with one leaf.
    pub read_ahead_bytes_max: usize,
    /// Whether reads and writes bypass the page cache where the file system supports it; default false.
    pub direct: bool,
    /// The tree's random identifier: [`Tree::open`](crate::Tree::open) checks it,
    /// [`Tree::create`](crate::Tree::create) assigns it. `None`, the default: `open` accepts any tree,
    /// `create` generates an identifier.
    pub incarnation: Option<[u8; 16]>,
    /// The cache that holds the tree's nodes.
    pub cache: Arc<NodeCache>,
}

impl TreeOptions {
    /// The defaults: nodes of 4 KiB, writes of 1 MiB, read-ahead of up to 256 KiB, through the page cache.
    pub fn new(cache: Arc<NodeCache>) -> TreeOptions {
        TreeOptions {
            node_bytes: 4 << 10,
            write_buffer_bytes: 1 << 20,
            read_ahead_bytes_max: 256 << 10,
            direct: false,
            incarnation: None,
            cache,
        }
    }

    /// # Panics
    /// If an option is out of its range.
    pub(crate) fn check(&self) {
        assert!(NODE_BYTES.contains(&self.node_bytes), "nodes of {} bytes", self.node_bytes);
        let buffer = self.write_buffer_bytes;
        let is_whole = buffer.is_multiple_of(BLOCK_SIZE as usize);
        assert!(WRITE_BUFFER_BYTES.contains(&buffer) && is_whole, "writes of {buffer} bytes");
        let ahead = self.read_ahead_bytes_max;
        assert!(READ_AHEAD_BYTES.contains(&ahead), "{ahead} bytes read ahead");
    }
}
