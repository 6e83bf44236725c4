//! Documents, revision trees and changes over an ordered key-value store.
//!
//! - [`Databases`] is a server's set of databases; [`Database`] is one of them.
//! - [`Edit`] is a document on its way in: parsed, checked and hashed in its caller's task.
//! - [`View`] is a persisted state; everything that is read comes from one.
//! - [`Document`] is a revision on its way out.
//!
//! This crate knows nothing of HTTP and nothing of file formats.

mod database;
mod databases;
mod document;
mod edit;
mod error;
mod json;
mod keys;
mod limits;
mod revision;
mod sequence;
mod stats;
mod tree;
mod update;
mod view;

pub use database::{Database, Info};
pub use databases::{
    BackupProgress, BackupSummary, Databases, DatabasesOptions, FailedDatabase, NAME_SIZE_MAX, NameRange,
    OfflineDatabases, OfflineEvent, RestoreSummary, check_database_name, restore,
};
pub use document::{Document, Extras};
pub use edit::{Edit, ID_SIZE_MAX, Options, check_document_id, parse_local_revision};
pub use error::{Error, ErrorKind, Result};
pub use json::{NESTING_MAX, write_json_string};
pub use limits::StoreLimits;
pub use revision::{Hash, Revision, parse_hash, write_hash};
pub use settee_io::PoolStats;
pub use settee_store::{
    Backup, CheckSummary, Compaction, InvalidLimit, LogOptions, LogStats, RepairSummary, Seq, Stage,
};
pub use stats::Stats;
pub use update::DOCUMENT_BYTES_LIMIT;
pub use view::{BodyRef, Leaf, Range, Row, Rows, Summary, View};
