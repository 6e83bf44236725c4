//! SKELETON: the public API that settee-doc will have; bodies follow.
#![allow(missing_docs, unused_variables, clippy::todo, unreachable_pub)]

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use settee_io::Env;

/// How far a write must have got before its future completes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage { Accepted, Written, Persisted }

/// A database's update number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Seq(pub u64);

/// A revision: `N-` and 32 lowercase hex digits. Display and FromStr (junk: ErrorKind::BadRequest "Invalid rev format").
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision { pub generation: u32, pub hash: [u8; 16] }
impl std::fmt::Display for Revision { fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { todo!() } }
impl std::str::FromStr for Revision { type Err = Error; fn from_str(s: &str) -> Result<Revision, Error> { todo!() } }

/// What went wrong. Display is the text for CouchDB's `reason`.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{reason}")]
pub struct Error { kind: ErrorKind, reason: String }
impl Error {
    pub fn new(kind: ErrorKind, reason: impl Into<String>) -> Error { Error { kind, reason: reason.into() } }
    pub fn kind(&self) -> ErrorKind { self.kind }
}
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What the caller can do about an error; the HTTP status and CouchDB's error name derive from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// 404 not_found; reasons "missing", "deleted", "Database does not exist."
    NotFound,
    /// 409 conflict "Document update conflict."
    Conflict,
    /// 400 bad_request
    BadRequest,
    /// 400 illegal_docid
    IllegalDocId,
    /// 400 illegal_database_name
    IllegalDatabaseName,
    /// 412 file_exists
    DatabaseExists,
    /// 400 doc_validation ("Bad special document member: _x")
    DocValidation,
    /// 413 document_too_large
    TooLarge,
    /// 507 insufficent_storage
    NoSpace,
    /// 503: the database's log stopped after a failed write or sync; reads go on
    Stopped,
    /// 501 not_implemented (attachments, for now)
    NotImplemented,
    /// 500: damaged data or an I/O error while reading
    Internal,
}

#[derive(Debug, Clone)]
pub struct Options {
    /// Largest document in bytes: its JSON text as stored.
    pub document_bytes_max: u64,
}
impl Default for Options { fn default() -> Options { Options { document_bytes_max: 8_000_000 } } }

/// The server's databases. Opening takes an exclusive lock on the folder (another process: an
/// error that names the folder).
pub struct Databases {}
impl Databases {
    pub async fn open(env: Env, folder: &Path, options: Options) -> Result<Arc<Databases>> { todo!() }
    /// Creates; persisted when it returns.
    pub async fn create(&self, name: &str) -> Result<Arc<Database>> { todo!() }
    /// Deletes; persisted when it returns. Open feeds on it end.
    pub async fn delete(&self, name: &str) -> Result<()> { todo!() }
    /// Opens on demand. NotFound: "Database does not exist."
    pub async fn get(&self, name: &str) -> Result<Arc<Database>> { todo!() }
    /// Names, sorted by bytes.
    pub fn names(&self) -> Vec<String> { todo!() }
    /// Whether every open log still takes writes: else the reason it stopped.
    pub fn health(&self) -> Result<()> { todo!() }
    /// Persists everything accepted and closes; later writes are refused.
    pub async fn close(&self) -> Result<()> { todo!() }
}

/// Checks a database's name against CouchDB's rule (`^[a-z][a-z0-9_$()+/-]*$`, and the system's `_users`, `_replicator`, `_global_changes`).
pub fn check_database_name(name: &str) -> Result<()> { todo!() }

/// A document on its way in.
#[derive(Debug, Clone)]
pub struct Edit {
    /// Empty only between `parse` and the caller's setting it.
    pub id: String,
    /// `_rev`: interactive edits: what it replaces; replicated ones: the revision itself.
    pub revision: Option<Revision>,
    /// `_revisions`, newest first, starting at `revision`; replicated edits only.
    pub ancestors: Vec<[u8; 16]>,
    pub deleted: bool,
    /// The members that aren't reserved, as JSON text without white space or the outer braces.
    pub body: Bytes,
}
impl Edit {
    /// Parses a document's JSON text in one pass: UTF-8, syntax, reserved members (compared
    /// after unescaping). `_id` is checked by the rules for ids where present; whether there is one is the caller's business.
    /// Errors: BadRequest (invalid JSON: "invalid UTF-8 JSON"; "Document must be a JSON object"; bad _rev; bad _deleted ...), DocValidation, IllegalDocId,
    /// TooLarge, NotImplemented (attachments that aren't empty).
    pub fn parse(json: &[u8], options: &Options) -> Result<Edit> { todo!() }
    /// An edit that deletes what `revision` names, with an empty body.
    pub fn delete(id: &str, revision: Option<Revision>) -> Edit { todo!() }
}
/// CouchDB's rules for document ids: not empty, no `_` first but `_design/x` and `_local/x`.
pub fn check_document_id(id: &str) -> Result<()> { todo!() }

#[derive(Debug, Clone, Copy)]
pub struct Info {
    pub doc_count: u64,
    pub doc_del_count: u64,
    pub update_seq: Seq,
    /// Bytes in files; bytes of JSON text that live.
    pub file_bytes: u64,
    pub external_bytes: u64,
    pub active_bytes: u64,
}

pub struct Database {}
impl Database {
    pub fn name(&self) -> &str { todo!() }
    /// Microseconds since 1970 at its creation: `instance_start_time`.
    pub fn created_us(&self) -> u64 { todo!() }
    pub fn info(&self) -> Info { todo!() }
    /// The newest persisted state.
    pub fn view(&self) -> View { todo!() }

    /// One interactive edit (`new_edits=true`): checks the revision, makes the new one, returns
    /// once `stage` is reached. Conflict where `edit.revision` isn't a current leaf.
    pub async fn update(&self, edit: Edit, stage: Stage) -> Result<Revision> { todo!() }
    /// Several; each is decided by itself, in order; the outer error (NoSpace, Stopped) means none or an unknown part was stored.
    pub async fn update_all(&self, edits: Vec<Edit>, stage: Stage) -> Result<Vec<Result<Revision>>> { todo!() }
    /// Replicated edits (`new_edits=false`): merged into the revision trees; never a conflict.
    pub async fn replicate_all(&self, edits: Vec<Edit>, stage: Stage) -> Result<Vec<Result<Revision>>> { todo!() }

    /// Local documents: ids without `_local/`; the revision is `0-N`. `revision` None = must not exist, as CouchDB decides it.
    pub async fn put_local(&self, id: &str, revision: Option<&str>, body: Bytes, stage: Stage) -> Result<String> { todo!() }
    pub async fn delete_local(&self, id: &str, revision: Option<&str>, stage: Stage) -> Result<String> { todo!() }

    /// Returns once everything accepted before the call is persisted.
    pub async fn barrier(&self) -> Result<()> { todo!() }
    /// Returns once a document with a later `Seq` is visible, or the database was deleted or closed (then Err NotFound).
    pub async fn changed_after(&self, seq: Seq) -> Result<()> { todo!() }

    /// `N-opaque`; equal positions give equal text.
    pub fn seq_text(&self, seq: Seq) -> String { todo!() }
    /// Appends `N-opaque` without quotes.
    pub fn write_seq(&self, seq: Seq, out: &mut Vec<u8>) { todo!() }
    /// `0`, `now`, `N-opaque`, `"N-opaque"`; of another incarnation: 0; junk: BadRequest.
    pub fn parse_since(&self, text: &str) -> Result<Seq> { todo!() }
}

/// A document's index entry: no body was read for it.
#[derive(Debug, Clone, Copy)]
pub struct Summary { pub revision: Revision, pub deleted: bool, pub has_conflicts: bool, pub seq: Seq }

/// One leaf of a revision tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leaf { pub revision: Revision, pub deleted: bool }

/// A revision of a document with its body.
#[derive(Debug, Clone)]
pub struct Document { pub id: String, pub revision: Revision, pub deleted: bool, pub body: Bytes }

/// What is spliced into a document's JSON besides `_id` and `_rev`. Empty ones aren't shown.
#[derive(Debug, Clone, Default)]
pub struct Extras {
    /// `_revisions`: hashes, newest first, from the document's revision on.
    pub revisions: Option<Vec<[u8; 16]>>,
    /// `_conflicts`
    pub conflicts: Vec<Revision>,
    /// `_deleted_conflicts`
    pub deleted_conflicts: Vec<Revision>,
    /// `_revs_info`: revision and "available" | "missing" | "deleted"
    pub revs_info: Vec<(Revision, &'static str)>,
    /// `_local_seq`
    pub local_seq: Option<String>,
}
impl Document {
    /// `{"_id":…,"_rev":…,…}` appended to `out`; parses nothing.
    pub fn write_json(&self, extras: &Extras, out: &mut Vec<u8>) { todo!() }
}
/// Appends `text` as a JSON string with its quotes.
pub fn write_json_string(text: &str, out: &mut Vec<u8>) { todo!() }

/// A snapshot of a database. Cheap to clone.
#[derive(Clone)]
pub struct View {}
impl View {
    pub fn update_seq(&self) -> Seq { todo!() }
    pub fn doc_count(&self) -> u64 { todo!() }
    /// From the index alone. None: there never was such a document.
    pub fn find(&self, id: &str) -> Option<Summary> { todo!() }
    /// The winning revision with its body. NotFound "missing" | "deleted".
    pub async fn document(&self, id: &str) -> Result<Document> { todo!() }
    /// Many winning revisions, deleted ones too; None where there never was one.
    pub async fn documents(&self, ids: &[&str]) -> Result<Vec<Option<Document>>> { todo!() }
    /// The revision asked for: a leaf's body is there (deleted ones too: `{"_id","_rev","_deleted":true}`);
    /// with `latest` a leaf that descends from it. Err NotFound "missing" where the body is gone or never was.
    pub async fn revision(&self, id: &str, revision: Revision, latest: bool) -> Result<Vec<Document>> { todo!() }
    /// All leaves, the winner first, then as CouchDB orders them.
    pub fn leaves(&self, id: &str) -> Vec<Leaf> { todo!() }
    /// The hashes from `revision` back to the oldest known one.
    pub async fn history(&self, id: &str, revision: Revision) -> Result<Vec<[u8; 16]>> { todo!() }
    /// Of `revisions` those not in the tree, and leaves that may be their ancestors (`_revs_diff`).
    pub async fn missing(&self, id: &str, revisions: &[Revision]) -> Result<(Vec<Revision>, Vec<Revision>)> { todo!() }
    /// A local document: revision text (`0-N`) and body. NotFound "missing".
    pub async fn local(&self, id: &str) -> Result<(String, Bytes)> { todo!() }
    /// Documents that aren't deleted, in order of id (raw bytes), in a range.
    pub fn all_docs(&self, range: &Range) -> Rows { todo!() }
    /// Rows before the range in the direction of the scan: `_all_docs`' offset. O(log n).
    pub fn offset(&self, range: &Range) -> u64 { todo!() }
    /// Changes later than `since`, oldest first; or all up to now, newest first.
    pub fn changes(&self, since: Seq, descending: bool) -> Rows { todo!() }
    /// How many documents have changed after `seq`. O(log n).
    pub fn pending(&self, seq: Seq) -> u64 { todo!() }
}

/// A range of ids. `start` is where the scan begins, also when descending.
#[derive(Debug, Clone, Default)]
pub struct Range { pub start: Option<String>, pub end: Option<String>, pub exclusive_end: bool, pub descending: bool, pub skip: u64 }

/// A scan: index entries in order. Holds its snapshot.
pub struct Rows {}
impl Rows {
    /// The next row, from the index alone; None at the end.
    pub fn next(&mut self) -> Option<Row<'_>> { todo!() }
}
/// One row of a scan.
pub struct Row<'a> { _x: &'a () }
impl Row<'_> {
    pub fn id(&self) -> &str { todo!() }
    pub fn summary(&self) -> Summary { todo!() }
    /// Where the body is: to be read after the row is let go.
    pub fn body(&self) -> BodyRef { todo!() }
}
/// A body that has not been read yet.
#[derive(Debug, Clone, Copy)]
pub struct BodyRef {}
impl View {
    pub async fn read(&self, id: &str, summary: Summary, body: BodyRef) -> Result<Document> { todo!() }
}
