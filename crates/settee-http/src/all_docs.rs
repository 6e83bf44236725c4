//! `_all_docs`, `_design_docs`, `_local_docs` and their `queries`: documents in a range of ids, or by id.

use std::borrow::Cow;
use std::sync::Arc;

use hyper::{Method, Response, StatusCode};
use settee_doc::{Database, Document, ErrorKind, LocalRow, Range, Revision, Row, Snapshot};

use crate::body::{self, ALLOCATION_BYTES, BodyBudget, MemoryPermit};
use crate::document::{DocumentOptions, write_document};
use crate::error::ApiError;
use crate::query::{self, Key};
use crate::response::{self, Body, HandlerResult};
use crate::response_writer::{self, ResponseWriter};
use crate::server::RequestContext;
use crate::{json, local};

/// The options of a list.
struct Args {
    start: Option<Key>,
    end: Option<Key>,
    inclusive_end: bool,
    descending: bool,
    /// JSON texts.
    keys: Option<Vec<String>>,
    skip: u64,
    limit: u64,
    include_docs: bool,
    conflicts: bool,
    attachments: bool,
    encoding: bool,
    update_seq: bool,
    /// Options for views, which are only checked here.
    group: Option<bool>,
    group_level: Option<u64>,
    reduce: bool,
    /// Whether local documents that CouchDB writes for itself are included.
    include_system: bool,
    partition: Option<String>,
}

/// Bytes that one of several queries takes besides its slot.
const QUERY_BYTES: usize = 4 * ALLOCATION_BYTES;

impl Default for Args {
    fn default() -> Args {
        Args {
            start: None,
            end: None,
            inclusive_end: true,
            descending: false,
            keys: None,
            skip: 0,
            limit: u64::MAX,
            include_docs: false,
            conflicts: false,
            attachments: false,
            encoding: false,
            update_seq: false,
            group: None,
            group_level: None,
            reduce: false,
            include_system: false,
            partition: None,
        }
    }
}

impl Args {
    /// Sets an option. `value` is JSON text for keys, plain text for others.
    fn set(&mut self, name: &str, value: &str) -> Result<(), ApiError> {
        match name {
            "startkey" | "start_key" => self.start = Some(Key::parse(value)?),
            "endkey" | "end_key" => self.end = Some(Key::parse(value)?),
            "key" => (self.start, self.end) = (Some(Key::parse(value)?), Some(Key::parse(value)?)),
            "inclusive_end" => self.inclusive_end = query::boolean(value)?,
            "descending" => self.descending = query::boolean(value)?,
            "skip" => self.skip = query::positive(value)?,
            "limit" => self.limit = query::positive(value)?,
            "include_docs" => self.include_docs = query::boolean(value)?,
            "conflicts" => self.conflicts = query::boolean(value)?,
            "attachments" => self.attachments = query::boolean(value)?,
            "att_encoding_info" => self.encoding = query::boolean(value)?,
            "update_seq" => self.update_seq = query::boolean(value)?,
            "include_system" => self.include_system = value == "true",
            "partition" => self.partition = Some(value.to_owned()),
            "group" => self.group = Some(query::boolean(value)?),
            "group_level" => self.group_level = Some(query::positive(value)?),
            "reduce" => self.reduce = query::boolean(value)?,
            name => return check_ignored(name, value),
        }
        Ok(())
    }

    /// Sets `keys` from JSON text.
    fn set_keys(
        &mut self,
        raw: &str,
        no_list: impl FnOnce() -> ApiError,
        budget: &mut BodyBudget,
    ) -> Result<(), ApiError> {
        let raw = query::json_value(raw)?;
        if raw == "null" {
            return Ok(());
        }
        let mut keys = Vec::new();
        json::each_element(raw, no_list, |key| budget.push(key.to_owned(), ALLOCATION_BYTES, &mut keys))?;
        self.keys = Some(keys);
        Ok(())
    }

    /// Sets the options in a request's body.
    fn take_members(&mut self, text: &[u8], budget: &mut BodyBudget) -> Result<(), ApiError> {
        json::each_member(text, |name, value| match name.as_ref() {
            "keys" => {
                let no_list = || ApiError::bad_request("`keys` body member must be an array.");
                self.set_keys(value, no_list, budget)
            }
            name if name.ends_with("key") => self.set(name, value),
            // A number or boolean may be sent as a string, too.
            name => self.set(name, &json::string(value).unwrap_or(Cow::Borrowed(value))),
        })
    }

    /// Checks that the options are compatible. Returns the scope, which the option `partition` narrows.
    fn check(&self, database: &Database, scope: Scope) -> Result<Scope, ApiError> {
        if self.keys.is_some() && (self.start.is_some() || self.end.is_some()) {
            let reason = "`keys` is incompatible with `key`, `start_key` and `end_key`";
            return Err(ApiError::query_parse_error(reason));
        }
        if self.reduce {
            return Err(ApiError::query_parse_error("Reduce is invalid for map-only views."));
        }
        match (self.group, self.group_level) {
            (_, Some(0)) | (None | Some(false), None) => {}
            (Some(false), Some(_)) => {
                let reason = "Can't specify group=false and group_level>0 at the same time";
                return Err(ApiError::query_parse_error(reason));
            }
            _ => return Err(ApiError::query_parse_error("Invalid use of grouping on a map view.")),
        }
        let Some(partition) = self.partition.as_ref().filter(|_| scope == Scope::All) else {
            return Ok(scope);
        };
        if !database.is_partitioned() {
            let reason = "`partition` parameter is not supported on this db";
            return Err(ApiError::query_parse_error(reason));
        }
        settee_doc::check_partition(partition)?;
        Ok(Scope::Partition(partition.clone()))
    }

    /// The range of ids; None if no id can be in it.
    fn range(&self) -> Option<Range> {
        let bound = |key: &Option<Key>| match key {
            Some(Key::Text(text)) => Some(text.clone()),
            Some(Key::BeforeAll) | None => None,
        };
        // JSON that isn't a string sorts before every id.
        let first_high = if self.descending { &self.start } else { &self.end };
        if *first_high == Some(Key::BeforeAll) {
            return None;
        }
        let range = Range {
            start: bound(&self.start),
            end: bound(&self.end),
            exclusive_end: !self.inclusive_end,
            descending: self.descending,
            skip: self.skip,
            ..Range::default()
        };
        let (low, high) =
            if self.descending { (&range.end, &range.start) } else { (&range.start, &range.end) };
        match (low, high) {
            (Some(low), Some(high)) if low > high => None,
            _ => Some(range),
        }
    }
}

/// Checks options on the freshness and order of a view. This list is always fresh and sorted.
fn check_ignored(name: &str, value: &str) -> Result<(), ApiError> {
    let allowed: &[&str] = match name {
        "stale" => &["ok", "update_after"],
        "stable" => &["true", "false"],
        "update" => &["true", "false", "lazy"],
        "sorted" => return query::boolean(value).map(drop),
        _ => return Ok(()),
    };
    match allowed.contains(&value) {
        true => Ok(()),
        false => Err(ApiError::query_parse_error(format!("Invalid value for `{name}`."))),
    }
}

/// The documents that a list is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Scope {
    All,
    Design,
    /// Those of one partition.
    Partition(String),
    Local,
}

/// Prefix of the ids of design documents.
const DESIGN: &str = "_design/";
/// Prefix of the ids of local documents.
const LOCAL: &str = "_local/";
/// Prefixes of the names of local documents that CouchDB writes for itself.
const SYSTEM_LOCALS: [&str; 2] = ["shard-sync-", "purge-"];

impl Scope {
    /// The prefix of the scope's ids.
    fn prefix(&self) -> String {
        match self {
            Scope::All => String::new(),
            Scope::Design => DESIGN.to_owned(),
            Scope::Partition(partition) => settee_doc::partition_prefix(partition),
            Scope::Local => LOCAL.to_owned(),
        }
    }

    /// Whether the list may have this key. As in CouchDB, a partition's list takes any key.
    fn takes_key(&self, key: &str) -> bool {
        let begins = |with: &str| json::string(key).is_some_and(|id| id.starts_with(with));
        match self {
            Scope::All | Scope::Partition(_) => true,
            Scope::Design => begins(DESIGN),
            Scope::Local => begins(LOCAL),
        }
    }
}

/// Handles `_all_docs`, `_design_docs`, `_local_docs` and `_partition/…/_all_docs`.
pub(crate) async fn handle(
    context: &mut RequestContext<'_>,
    database: Arc<Database>,
    scope: Scope,
) -> HandlerResult {
    let mut args = Args::default();
    let mut permit = MemoryPermit::default();
    match *context.method() {
        Method::GET | Method::HEAD => {}
        Method::POST => {
            let body = context.read_json_body().await?;
            let parse = move |text: &[u8], budget: &mut BodyBudget| {
                args.take_members(text, budget)?;
                Ok(args)
            };
            (args, permit) = body::parse_buffered(body, &context.server.body_memory, parse).await?;
        }
        _ => return Err(ApiError::method_not_allowed("GET,HEAD,POST")),
    }
    for (name, value) in context.query().pairs() {
        match name.as_ref() {
            // In a POST the query's `keys` override those of the body.
            "keys" if *context.method() == Method::POST => {
                let no_list = || ApiError::query_parse_error("`keys` must be an array of strings.");
                args.set_keys(&value, no_list, &mut BodyBudget::unlimited())?;
            }
            "keys" => {
                let no_list = || ApiError::bad_request("`keys` parameter must be an array.");
                args.set_keys(&value, no_list, &mut BodyBudget::unlimited())?;
            }
            name => args.set(name, &value)?,
        }
    }
    let scope = args.check(&database, scope)?;
    if context.is_head() {
        return Ok(head());
    }
    let snapshot = database.snapshot();
    response_writer::respond(context.output(), async move |mut out| {
        let _permit = permit;
        write_list(&database, &snapshot, &scope, args, &mut out).await?;
        out.buffer.extend_from_slice(b"\n");
        Ok(out)
    })
    .await
}

/// Handles `queries`: several lists in one response, each as if requested alone.
pub(crate) async fn queries(
    context: &mut RequestContext<'_>,
    database: Arc<Database>,
    scope: Scope,
) -> HandlerResult {
    if *context.method() != Method::POST {
        return Err(ApiError::method_not_allowed("POST"));
    }
    let body = context.read_body().await?;
    let options: Vec<(String, String)> =
        context.query().pairs().map(|(name, value)| (name.into_owned(), value.into_owned())).collect();
    let of = database.clone();
    let parse =
        move |text: &[u8], budget: &mut BodyBudget| parse_queries(text, &options, &of, &scope, budget);
    let (queries_args, permit) = body::parse_buffered(body, &context.server.body_memory, parse).await?;
    let snapshot = database.snapshot();
    response_writer::respond(context.output(), async move |mut out| {
        let _permit = permit;
        out.buffer.extend_from_slice(b"{\"results\":[");
        for (index, (scope, args)) in queries_args.into_iter().enumerate() {
            out.buffer.extend_from_slice(if index == 0 { b"\r\n" } else { b",\r\n" });
            write_list(&database, &snapshot, &scope, args, &mut out).await?;
        }
        out.buffer.extend_from_slice(b"\r\n]}\n");
        Ok(out)
    })
    .await
}

/// Parses the options of several lists; `options` apply to all of them.
fn parse_queries(
    text: &[u8],
    options: &[(String, String)],
    database: &Database,
    scope: &Scope,
    budget: &mut BodyBudget,
) -> Result<Vec<(Scope, Args)>, ApiError> {
    let [list] = json::pick(text, ["queries"])?;
    let list = list.ok_or_else(|| ApiError::bad_request("POST body must include `queries` parameter."))?;
    let each = QUERY_BYTES + options.iter().map(|(_, value)| value.len()).sum::<usize>();
    let no_list = || ApiError::bad_request("`queries` member must be an array.");
    let mut queries_args = Vec::new();
    json::each_element(list, no_list, |query| {
        let mut args = Args::default();
        for (name, value) in options {
            args.set(name, value)?;
        }
        args.take_members(query.as_bytes(), budget)?;
        let scope = args.check(database, scope.clone())?;
        budget.push((scope, args), each, &mut queries_args)
    })?;
    Ok(queries_args)
}

/// The response to a HEAD. It has no length.
fn head() -> Response<Body> {
    response::empty(StatusCode::OK)
}

/// Writes one list without the final newline.
async fn write_list(
    database: &Database,
    snapshot: &Snapshot,
    scope: &Scope,
    mut args: Args,
    out: &mut ResponseWriter,
) -> Result<(), ApiError> {
    match (args.keys.take(), scope) {
        (Some(keys), _) => by_keys(database, snapshot, scope, &args, keys, out).await?,
        (None, Scope::Local) => locals(database, snapshot, &args, out).await?,
        (None, _) => ranged(database, snapshot, scope, &args, out).await?,
    }
    out.buffer.extend_from_slice(b"\r\n]}");
    Ok(())
}

async fn ranged(
    database: &Database,
    snapshot: &Snapshot,
    scope: &Scope,
    args: &Args,
    out: &mut ResponseWriter,
) -> Result<(), ApiError> {
    let range = args.range().map(|range| Range { prefix: scope.prefix(), ..range });
    let offset = match &range {
        Some(range) => snapshot.offset(range).await?,
        None => 0,
    };
    let total = total(snapshot, scope).await?;
    write_head(database, snapshot, args, total, Some(offset), &mut out.buffer);
    let Some(range) = range else { return Ok(()) };
    let mut rows = snapshot.all_docs(&range).await?;
    let mut id = String::new();
    let mut left = args.limit;
    while left > 0
        && let Some(Row { id: row_id, summary, body }) = rows.next().await?
    {
        left -= 1;
        out.buffer.extend_from_slice(if left + 1 == args.limit { b"" } else { b",\r\n" });
        write_row(row_id, summary.revision, false, &mut out.buffer);
        if args.include_docs {
            id.clear();
            id.push_str(row_id);
            let document = snapshot.read(&id, summary, body).await?;
            write_doc(snapshot, &document, args, out).await?;
        }
        out.buffer.push(b'}');
        out.flush_full().await?;
    }
    Ok(())
}

/// Writes the local documents of a range. As in CouchDB, they are not counted.
async fn locals(
    database: &Database,
    snapshot: &Snapshot,
    args: &Args,
    out: &mut ResponseWriter,
) -> Result<(), ApiError> {
    write_head(database, snapshot, args, None, None, &mut out.buffer);
    let Some(range) = args.range() else { return Ok(()) };
    let mut skip = range.skip;
    let mut rows = snapshot.local_docs(&Range { skip: 0, ..range });
    let mut left = args.limit;
    while left > 0
        && let Some(LocalRow { name, number, body }) = rows.next().await?
    {
        let is_system = SYSTEM_LOCALS.iter().any(|system| name.starts_with(system));
        if is_system && !args.include_system {
            continue;
        }
        if skip > 0 {
            skip -= 1;
            continue;
        }
        left -= 1;
        out.buffer.extend_from_slice(if left + 1 == args.limit { b"" } else { b",\r\n" });
        let (id, revision) = (format!("{LOCAL}{name}"), format!("0-{number}"));
        write_row_of(&id, |out| out.extend_from_slice(revision.as_bytes()), false, &mut out.buffer);
        if args.include_docs {
            let body = snapshot.read_local(body).await?;
            out.buffer.extend_from_slice(b",\"doc\":");
            local::write_json(&id, &revision, &body, &mut out.buffer);
        }
        out.buffer.push(b'}');
        out.flush_full().await?;
    }
    Ok(())
}

/// Number of documents in the scope; None if unknown.
async fn total(snapshot: &Snapshot, scope: &Scope) -> Result<Option<u64>, ApiError> {
    Ok(match scope {
        Scope::All => Some(snapshot.doc_count()),
        Scope::Design | Scope::Partition(_) => Some(snapshot.counts(&scope.prefix()).await?.doc_count),
        Scope::Local => None,
    })
}

/// Writes rows in the order of the keys, also for missing and deleted documents.
async fn by_keys(
    database: &Database,
    snapshot: &Snapshot,
    scope: &Scope,
    args: &Args,
    mut keys: Vec<String>,
    out: &mut ResponseWriter,
) -> Result<(), ApiError> {
    write_head(database, snapshot, args, total(snapshot, scope).await?, None, &mut out.buffer);
    if args.descending {
        keys.reverse();
    }
    let skip = usize::try_from(args.skip).unwrap_or(usize::MAX);
    let limit = usize::try_from(args.limit).unwrap_or(usize::MAX);
    // As in CouchDB, `skip` and `limit` also count keys outside the scope.
    let keys = keys.iter().skip(skip).take(limit).filter(|key| scope.takes_key(key));
    for (index, key) in keys.enumerate() {
        out.buffer.extend_from_slice(if index == 0 { b"" } else { b",\r\n" });
        match scope {
            Scope::Local => write_local_key_row(snapshot, args, key, &mut out.buffer).await?,
            _ => write_key_row(snapshot, args, key, out).await?,
        }
        out.buffer.push(b'}');
        out.flush_full().await?;
    }
    Ok(())
}

/// Appends a key's row without its closing brace.
async fn write_key_row(
    snapshot: &Snapshot,
    args: &Args,
    key: &str,
    out: &mut ResponseWriter,
) -> Result<(), ApiError> {
    let id = json::string(key);
    let summary = match &id {
        Some(id) => snapshot.find(id).await?,
        None => None,
    };
    let Some((id, summary)) = id.as_ref().zip(summary) else {
        write_not_found(key, &mut out.buffer);
        return Ok(());
    };
    write_row(id, summary.revision, summary.deleted, &mut out.buffer);
    if args.include_docs && summary.deleted {
        out.buffer.extend_from_slice(b",\"doc\":null");
    } else if args.include_docs {
        let document = snapshot.document(id).await?;
        write_doc(snapshot, &document, args, out).await?;
    }
    Ok(())
}

/// Appends `,"doc":` and the document.
async fn write_doc(
    snapshot: &Snapshot,
    document: &Document,
    args: &Args,
    out: &mut ResponseWriter,
) -> Result<(), ApiError> {
    let options = DocumentOptions::of_row(args.conflicts, args.attachments, args.encoding);
    let extras = options.extras(snapshot, document).await?;
    out.buffer.extend_from_slice(b",\"doc\":");
    write_document(snapshot, document, &options, &extras, out).await
}

/// As [`write_key_row`], for a local document.
async fn write_local_key_row(
    snapshot: &Snapshot,
    args: &Args,
    key: &str,
    out: &mut Vec<u8>,
) -> Result<(), ApiError> {
    let id = json::string(key).unwrap_or_default();
    match snapshot.local(id.strip_prefix(LOCAL).unwrap_or_default()).await {
        Ok((revision, body)) => {
            write_row_of(&id, |out| out.extend_from_slice(revision.as_bytes()), false, out);
            if args.include_docs {
                out.extend_from_slice(b",\"doc\":");
                local::write_json(&id, &revision, &body, out);
            }
        }
        Err(error) if error.kind() == ErrorKind::NotFound => write_not_found(key, out),
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// Appends the row of a key without a document, without its closing brace.
fn write_not_found(key: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"key\":");
    out.extend_from_slice(key.as_bytes());
    out.extend_from_slice(b",\"error\":\"not_found\"");
}

/// Appends the members before the rows. As in CouchDB, a list by keys has neither an offset nor an update
/// number; nor do local documents.
fn write_head(
    database: &Database,
    snapshot: &Snapshot,
    args: &Args,
    total: Option<u64>,
    offset: Option<u64>,
    out: &mut Vec<u8>,
) {
    let number = |value: Option<u64>, out: &mut Vec<u8>| match value {
        Some(value) => json::number(value, out),
        None => out.extend_from_slice(b"null"),
    };
    out.extend_from_slice(b"{\"total_rows\":");
    number(total, out);
    out.extend_from_slice(b",\"offset\":");
    number(offset, out);
    if args.update_seq {
        out.extend_from_slice(b",\"update_seq\":");
        match offset {
            Some(_) => crate::database::quoted_seq(database, snapshot.update_seq(), out),
            None => out.extend_from_slice(b"null"),
        }
    }
    out.extend_from_slice(b",\"rows\":[\r\n");
}

/// Appends a row without its closing brace.
fn write_row(id: &str, revision: Revision, deleted: bool, out: &mut Vec<u8>) {
    write_row_of(id, |out| revision.write(out), deleted, out);
}

fn write_row_of(id: &str, write_revision: impl FnOnce(&mut Vec<u8>), deleted: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"id\":");
    let start = out.len();
    settee_doc::write_json_string(id, out);
    let end = out.len();
    out.extend_from_slice(b",\"key\":");
    out.extend_from_within(start..end);
    out.extend_from_slice(b",\"value\":{\"rev\":\"");
    write_revision(out);
    out.extend_from_slice(if deleted { b"\",\"deleted\":true}" } else { b"\"}" });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(pairs: &[(&str, &str)]) -> Args {
        let mut args = Args::default();
        for (name, value) in pairs {
            args.set(name, value).unwrap();
        }
        args
    }

    #[test]
    fn an_inverted_range_holds_nothing() {
        assert!(args(&[("startkey", "\"b\""), ("endkey", "\"a\"")]).range().is_none());
        assert!(
            args(&[("startkey", "\"a\""), ("endkey", "\"b\""), ("descending", "true")]).range().is_none()
        );
        assert!(
            args(&[("startkey", "\"b\""), ("endkey", "\"a\""), ("descending", "true")]).range().is_some()
        );
        assert!(args(&[("key", "\"a\"")]).range().is_some());
    }

    #[test]
    fn keys_that_are_no_strings_sort_before_every_id() {
        assert_eq!(args(&[("startkey", "1")]).range().unwrap().start, None);
        assert!(args(&[("endkey", "null")]).range().is_none());
        assert!(args(&[("startkey", "{}"), ("descending", "true")]).range().is_none());
    }
}
