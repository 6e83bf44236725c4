//! Versions: immutable states of the index, in memory and on disk.
//!
//! A version is the mutable memtable, the immutable memtables, and the state of the last checkpoint: the
//! tree's root (`checkpoint_state.rs`). It also pins the set of segments, so that readers find its records
//! after segments were rewritten. Each memtable, and the tree, has an index by key and one by `Seq` (the seq
//! index).
//!
//! A version never changes once it is shared. The writer makes the next one by copying its own, which costs a
//! few reference counts, and changing the copy (`state.rs`); `check.rs` verifies the result. `replay.rs`
//! inserts the records of a log when a store is opened. `lookup.rs` remembers the tree entries that a writer
//! has read.

mod check;
mod checkpoint_state;
mod lookup;
mod replay;
mod state;

pub(crate) use checkpoint_state::{CheckpointFacts, CheckpointState, CheckpointTree, Live};
pub use lookup::Lookup;
pub(crate) use replay::Replay;
pub(crate) use state::{NewRecord, PreviousEntry, Version};
