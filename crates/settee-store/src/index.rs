//! The index: what is stored for each key, in memory and on disk.
//!
//! An entry holds the locations of the records that make up a key's value (`location.rs`), with the flags and
//! the meta of the newest one. It has the same bytes in a memtable and in the tree (`format.rs`). `tree.rs`
//! defines the tree's keys and aggregates, and `entry.rs` the entries that readers receive.

mod entry;
mod format;
mod location;
mod tree;

pub use entry::{Entry, EntryRef};
pub(crate) use format::{EntryView, Reader, encode, push_number};
pub use location::{Location, OPERAND_COUNT_MAX, Pointer};
pub use tree::Aggregate;
pub(crate) use tree::{BY_KEY, BY_SEQ, IndexAggregates, SEQ_SIZE, decode, own_aggregates};
