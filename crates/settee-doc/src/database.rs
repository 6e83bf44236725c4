//! One database: its documents, local documents, changes and settings.
//!
//! [`Database`] is the open database (`state`). Every read goes through a [`Snapshot`], every write of a
//! document through `writes`, which passes its edits to `update`. `settings` changes the persisted `counters`.
//!
//! Invariants:
//! 1. Every read by a client shows a persisted state; the updater's own snapshots show accepted state.
//! 2. A document's update is one batch.

mod counters;
mod leaves;
mod out_of_line;
mod range;
mod read_ahead;
mod replaced;
mod rows;
mod settings;
mod snapshot;
mod state;
mod subscribers;
mod summary;
mod update;
mod writes;

pub(crate) use counters::stored_revs_limit;
pub use leaves::{Leaves, Matched};
pub use out_of_line::OUT_OF_LINE_BYTES_MIN;
pub use range::Range;
pub use read_ahead::{
    DocumentKey, DocumentRow, Documents, IdFilter, ListedDocuments, OrderedDocuments, Winner,
};
pub use replaced::{ReplacedRevision, ReplacedRevisions};
pub use rows::{LocalRow, LocalRows, Purge, Purges, Row, Rows};
pub use snapshot::{Counts, Snapshot};
pub use state::{Database, Info};
pub(crate) use state::{Identity, check_checkpoints};
pub use summary::{BodyRef, FoundLeaf, Leaf, Summary};
