//! Map/reduce views and Mango indexes over a database's changes.
//!
//! - [`Views`] is a server's set of indexes, [`DesignViews`] those of one design document.
//! - An index is a tree of rows ([`IndexSnapshot`]): [`MapRows`] reads rows, [`Groups`] reduces them.
//! - A build reads the documents that changed, in the order of the log, calls the map functions in background
//!   tasks, and merges what they emit into the trees. Readers use a snapshot meanwhile.
//!
//! An index can be made again from its documents, so it is never repaired: one that can't be read is begun anew.
//!
//! This crate knows nothing of HTTP.

mod build;
mod design;
mod design_views;
mod error;
mod index;
mod index_file;
mod javascript;
mod keeper;
pub mod mango;
mod mapper;
mod mappers;
mod merge;
mod options;
mod planned;
mod progress;
mod query;
mod read;
mod reduce;
mod row;
mod views;

pub use design::{Design, Language, Signature, ViewDefinition};
pub use design_views::{BuildTask, DesignInfo, DesignViews};
pub use error::{Result, ViewError, ViewErrorKind};
pub use options::ViewsOptions;
pub use query::{Group, Grouping, Groups, KeyRange, KeySpace, MapRows};
pub use read::{IndexSnapshot, RowRange, RowScan};
pub use row::ViewRow;
pub use views::Views;

/// Version of the order of keys, as `_info` shows it: an index of another version is built anew.
pub const COLLATION_VERSION: &str = settee_collate::VERSION;
