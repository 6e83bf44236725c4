//! Shared: what a store's handle, its writer and its background jobs have in common.
//!
//! A commit appends a batch to the log and then inserts its records into the writer's version. A copy of that
//! version is queued until the log has persisted the batch, and is then published to new snapshots
//! (`publish.rs`). The copy shares all nodes until the next write changes them. When the memtables are large
//! (`memory.rs`), a checkpoint merges them into the tree. Every change of the set of files replaces the
//! manifest (`files.rs`).
//!
//! Invariants:
//! 1. A snapshot shows a prefix of the log, and all of that prefix is persisted.
//! 2. There is no await between a batch's append and its insertion into the index: a commit whose future is
//!    dropped has happened wholly or not at all.
//! 3. A snapshot taken after a wait for `Stage::Persisted` has returned shows the record that was waited for.
//! 4. A task that waits for a checkpoint holds nothing that the checkpoint needs. A writer that has filled
//!    memory by itself is therefore refused and does not wait.
//! 5. Work that changes files runs in a task of its own, to its end: a dropped future never leaves the files
//!    and the versions inconsistent.
//! 6. A panic that would make them inconsistent stops the store ([`Shared::stop_on_panic`]): between a
//!    batch's append and its insertion into the index, while a version is changed, and between the
//!    replacement of the manifest and the installation of the versions that match it. Any other panic ends
//!    only its task, which is retried.

mod context;
mod files;
mod memory;
mod publish;
mod state;
mod stats;

pub(crate) use context::StoreContext;
pub(crate) use state::Shared;
