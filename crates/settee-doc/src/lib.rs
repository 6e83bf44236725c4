//! Documents, revision trees and changes over an ordered key-value store.
//!
//! - [`Databases`] is a server's set of databases; [`Database`] is one of them.
//! - [`Edit`] is a document to be written: parsed, checked and hashed in its caller's task.
//! - [`Snapshot`] is a persisted state; every read goes through one.
//! - [`Document`] is a revision that was read.
//!
//! This crate knows nothing of HTTP and nothing of file formats.

mod attachments;
mod database;
mod databases;
mod design_functions;
mod documents;
mod error;
mod events;
#[cfg(test)]
#[path = "../tests/fuzz/mod.rs"]
mod fuzz;
mod json;
mod rules;
mod selector;
mod sequence;
mod stats;

pub use attachments::{
    Attachment, AttachmentReader, CHUNK_BYTES, Content, Following, Md5Digest, NewAttachment, Upload,
    Uploading, digest_text, is_compressible, parse_digest,
};
pub use database::{
    BodyRef, Counts, Database, DocumentKey, DocumentRow, Documents, FoundLeaf, IdFilter, Info, Leaf, Leaves,
    ListedDocuments, LocalRow, LocalRows, Matched, OUT_OF_LINE_BYTES_MIN, OrderedDocuments, Purge, Purges,
    Range, ReplacedRevision, ReplacedRevisions, Row, Rows, Snapshot, Summary, Winner,
};
pub use databases::{
    BackupProgress, BackupSummary, CompactionTask, Databases, DatabasesOptions, FailedDatabase,
    NAME_SIZE_MAX, NameRange, OfflineDatabases, OfflineEvent, RestoreSummary, Spool, SpoolError, Spools,
    StoreLimits, UpgradeEvent, UpgradeStep, UpgradeSummary, check_database_name, restore, upgrade,
};
pub use design_functions::{
    DesignFunctions, FunctionFuture, ProposedWrite, ValidatingDesign, Validator, ViewFunction,
};
pub use documents::{
    DOCUMENT_BYTES_LIMIT, Document, Edit, Extras, Hash, ID_SIZE_MAX, LargeBody, Options,
    REVISION_ID_SIZE_MAX, Revision, RevisionId, check_attachment_name, check_document_id, check_partition,
    parse_local_revision, partition_prefix,
};
pub use error::{Error, ErrorKind, Result};
pub use events::{DatabaseEvent, EventKind};
pub use json::{
    JsonError, NESTING_MAX, check_tokens, each_json_element, each_json_member, write_json_string,
};
pub use selector::{FieldPaths, Fields, SELECTOR_BYTES_MAX, Selector, SelectorError};
pub use settee_io::PoolStats;
pub use settee_store::{
    Backup, CheckSummary, Compaction, InvalidLimit, LogOptions, LogStats, RepairSummary, Seq, Stage,
};
pub use stats::Stats;
