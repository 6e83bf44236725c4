//! Mango: selectors over documents, answered from indexes of their fields. Pure logic, without storage.
//!
//! - [`FindRequest`] is the parsed body of a `_find` or `_explain` request.
//! - [`IndexDefinition`] is one index: how it is created, how a design document stores it, and a document's key
//!   in it.
//! - [`plan`] chooses an index, as CouchDB 3.5 does, and the ranges of its keys that must be read.
//! - [`Explanation`] is what `_explain` answers; [`Bookmark`] is where the next page begins.
//!
//! Invariants:
//! 1. An index's rows in the planned ranges include each row of a matching document. The whole selector is
//!    applied to what is read, so that ranges need not be exact.
//! 2. Ranges are disjoint and ascend. The results are those that CouchDB finds through the same index, in the
//!    same order.
//! 3. A request, a definition and a plan are limited in size: see [`limits`].

mod bookmark;
mod covering;
mod design;
mod error;
mod explain;
mod index;
pub mod limits;
mod normal;
mod plan;
mod ranges;
mod reason;
mod request;
mod spans;
mod text;
mod usability;

pub use bookmark::Bookmark;
pub use covering::CoveredFields;
pub use design::{DesignEdit, add_index, indexes_of, parse_bulk_delete, remove_indexes, write_index_list};
pub use error::{MangoError, MangoErrorKind};
pub use explain::Explanation;
pub use index::{DESIGN, Direction, IndexDefinition, NewIndex};
pub use normal::{Condition, Normal};
pub use plan::{Analysis, Candidate, Index, Plan, PlanScope, Scan, explain, plan};
pub use ranges::{IdRange, KeyBound, KeyRange};
pub use reason::Reason;
pub use request::FindRequest;
