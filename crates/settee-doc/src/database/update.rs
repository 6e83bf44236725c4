//! Updates: edits are decided against the newest accepted state, by one updater at a time.
//!
//! Edits are checked against the index; a body is read only if its leaf moves to another key because the
//! winner has changed. The records of many edits are committed as one batch; those of one document are in one
//! batch, so that a document's update is atomic.
//!
//! Invariants:
//! 1. An edit sees all edits accepted before it, including those of its own request.
//! 2. The state that an edit's outcome depends on is accepted when the outcome is returned, and persisted
//!    when everything accepted so far is persisted.

mod edits;
mod purge;
mod records;
mod stubs;
mod updater;
mod validation;

pub(crate) use updater::Updater;
