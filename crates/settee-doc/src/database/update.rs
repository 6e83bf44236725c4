//! Updates: edits are decided against the newest accepted state, by one updater at a time.
//!
//! An edit passes `prepare` (commits earlier edits of the same document), a check (`check_validation`), a
//! decision (`decide_…`, which makes its records), `add` (collects the records) and `commit` (one batch for
//! many edits). `commit` only accepts the batch: the caller waits for durability with the result of `finish`.
//!
//! Conflict checks read only the index. A stored value is read if a leaf with a tail is replaced (once, for all
//! of a request's edits before the writer is waited for) or changes its key, or if attachments are resolved or
//! removed, a full partition's edit is measured, or design documents are scanned. The records
//! of one document are in one batch, so that a document's update is atomic.
//!
//! Invariants:
//! 1. An edit sees all edits accepted before it, including those of its own request.
//! 2. An outcome is returned to a request only after every record it depends on, its own included, is
//!    accepted; waiting for the `Seq` that `finish` returns makes it durable.

mod check;
mod edits;
mod purge;
mod records;
mod stubs;
mod updater;
mod validation;

pub(crate) use check::StoppedFunction;
pub(crate) use edits::EditKind;
pub(crate) use updater::{NotifyOnDrop, ReadBefore, Updater};
