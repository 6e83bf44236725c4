//! Documents, revision trees and changes over an ordered key-value store.
//!
//! - [`Databases`] is a server's set of databases; [`Database`] is one of them.
//! - [`Edit`] is a document to be written: parsed, checked and hashed in its caller's task.
//! - [`Snapshot`] is a persisted state; every read goes through one.
//! - [`Document`] is a revision that was read.
//!
//! This crate knows nothing of HTTP and nothing of file formats.

mod attachment;
mod counters;
mod database;
mod databases;
mod design;
mod document;
mod edit;
mod error;
#[cfg(test)]
mod fuzz;
mod json;
mod keys;
mod leaves;
mod limits;
mod out_of_line;
mod partition;
mod rev_tree;
mod revision;
mod rules;
mod selector;
mod sequence;
mod snapshot;
mod spool;
mod stats;
mod subscribers;
mod update;

pub use attachment::{
    Attachment, AttachmentReader, CHUNK_BYTES, Content, Following, Md5Digest, NewAttachment, Upload,
    Uploading, digest_text, is_compressible, parse_digest,
};
pub use database::{Database, Info};
pub use databases::{
    BackupProgress, BackupSummary, CompactionTask, DatabaseEvent, Databases, DatabasesOptions, EventKind,
    FailedDatabase, NAME_SIZE_MAX, NameRange, OfflineDatabases, OfflineEvent, RestoreSummary,
    check_database_name, restore,
};
pub use document::{Document, Extras};
pub use edit::{Edit, ID_SIZE_MAX, Options, check_attachment_name, check_document_id, parse_local_revision};
pub use error::{Error, ErrorKind, Result};
pub use json::{
    JsonError, NESTING_MAX, check_tokens, each_json_element, each_json_member, write_json_string,
};
pub use leaves::{Leaves, Matched};
pub use limits::StoreLimits;
pub use out_of_line::OUT_OF_LINE_BYTES_MIN;
pub use partition::{check_partition, partition_prefix};
pub use revision::{Hash, Revision, parse_hash, write_hash};
pub use selector::{Fields, SELECTOR_BYTES_MAX, Selector, SelectorError};
pub use settee_io::PoolStats;
pub use settee_store::{
    Backup, CheckSummary, Compaction, InvalidLimit, LogOptions, LogStats, RepairSummary, Seq, Stage,
};
pub use snapshot::{
    BodyRef, Counts, Leaf, LocalRow, LocalRows, Purge, Purges, Range, Row, Rows, Snapshot, Summary,
};
pub use spool::{Spool, SpoolError, Spools};
pub use stats::Stats;
pub use update::DOCUMENT_BYTES_LIMIT;
