//! `_all_docs` and its like: documents by id, a range of them or those named.

use std::borrow::Cow;
use std::sync::Arc;

use hyper::{Method, Response, StatusCode};
use settee_doc::{Database, Document, ErrorKind, LocalRow, Range, Revision, Row, View};

use crate::body::{self, ALLOCATION_BYTES, Charge, Share};
use crate::document::{Shape, write_document};
use crate::error::Failure;
use crate::query::{self, Key};
use crate::reply::{self, Answer, Body};
use crate::server::Call;
use crate::stream::{self, Out};
use crate::{json, local};

/// What is asked for.
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
    /// What of an option for views alone makes no sense here.
    group: Option<bool>,
    group_level: Option<u64>,
    reduce: bool,
    /// Of local documents those too that CouchDB writes for itself.
    include_system: bool,
    partition: Option<String>,
}

/// Bytes that a list among several takes beside its place.
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
    /// Takes an option; `value` is JSON text for keys, plain text for the others.
    fn set(&mut self, name: &str, value: &str) -> Result<(), Failure> {
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

    /// Takes `keys` from JSON text.
    fn set_keys(
        &mut self,
        raw: &str,
        no_list: impl FnOnce() -> Failure,
        charge: &mut Charge,
    ) -> Result<(), Failure> {
        let raw = query::json_value(raw)?;
        if raw == "null" {
            return Ok(());
        }
        let mut keys = Vec::new();
        json::each_element(raw, no_list, |key| charge.push(key.to_owned(), ALLOCATION_BYTES, &mut keys))?;
        self.keys = Some(keys);
        Ok(())
    }

    /// Takes the options in a request's body.
    fn take_members(&mut self, text: &[u8], charge: &mut Charge) -> Result<(), Failure> {
        json::each_member(text, |name, value| match name.as_ref() {
            "keys" => {
                let no_list = || Failure::bad_request("`keys` body member must be an array.");
                self.set_keys(value, no_list, charge)
            }
            name if name.ends_with("key") => self.set(name, value),
            // A number or boolean may come as a string as well.
            name => self.set(name, &json::string(value).unwrap_or(Cow::Borrowed(value))),
        })
    }

    /// Checks what doesn't go together, and says what the list is of: an option may name a partition.
    fn check(&self, database: &Database, scope: Scope) -> Result<Scope, Failure> {
        if self.keys.is_some() && (self.start.is_some() || self.end.is_some()) {
            let reason = "`keys` is incompatible with `key`, `start_key` and `end_key`";
            return Err(Failure::query_parse_error(reason));
        }
        if self.reduce {
            return Err(Failure::query_parse_error("Reduce is invalid for map-only views."));
        }
        match (self.group, self.group_level) {
            (_, Some(0)) | (None | Some(false), None) => {}
            (Some(false), Some(_)) => {
                let reason = "Can't specify group=false and group_level>0 at the same time";
                return Err(Failure::query_parse_error(reason));
            }
            _ => return Err(Failure::query_parse_error("Invalid use of grouping on a map view.")),
        }
        let Some(partition) = self.partition.as_ref().filter(|_| scope == Scope::All) else {
            return Ok(scope);
        };
        if !database.is_partitioned() {
            let reason = "`partition` parameter is not supported on this db";
            return Err(Failure::query_parse_error(reason));
        }
        settee_doc::check_partition(partition)?;
        Ok(Scope::Partition(partition.clone()))
    }

    /// The range, but None where no id can be in it.
    fn range(&self) -> Option<Range> {
        let bound = |key: &Option<Key>| match key {
            Some(Key::Text(text)) => Some(text.clone()),
            Some(Key::BeforeAll) | None => None,
        };
        // JSON that is no string sorts before every id.
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

/// Checks what says how fresh or how sorted a view is to be: this list is always both.
fn check_ignored(name: &str, value: &str) -> Result<(), Failure> {
    let allowed: &[&str] = match name {
        "stale" => &["ok", "update_after"],
        "stable" => &["true", "false"],
        "update" => &["true", "false", "lazy"],
        "sorted" => return query::boolean(value).map(drop),
        _ => return Ok(()),
    };
    match allowed.contains(&value) {
        true => Ok(()),
        false => Err(Failure::query_parse_error(format!("Invalid value for `{name}`."))),
    }
}

/// Which documents a list is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Scope {
    All,
    Design,
    /// Those of a partition.
    Partition(String),
    Local,
}

/// How design documents' ids begin.
const DESIGN: &str = "_design/";
/// How local documents' ids begin.
const LOCAL: &str = "_local/";
/// How those local documents' ids begin that CouchDB writes for itself.
const SYSTEM_LOCALS: [&str; 2] = ["shard-sync-", "purge-"];

impl Scope {
    /// What the ids of those documents begin with.
    fn prefix(&self) -> String {
        match self {
            Scope::All => String::new(),
            Scope::Design => DESIGN.to_owned(),
            Scope::Partition(partition) => settee_doc::partition_prefix(partition),
            Scope::Local => LOCAL.to_owned(),
        }
    }

    /// Whether a key belongs to it. A partition's list gives whatever it is asked for by key.
    fn takes_key(&self, key: &str) -> bool {
        let begins = |with: &str| json::string(key).is_some_and(|id| id.starts_with(with));
        match self {
            Scope::All | Scope::Partition(_) => true,
            Scope::Design => begins(DESIGN),
            Scope::Local => begins(LOCAL),
        }
    }
}

/// `_all_docs`, `_design_docs`, `_local_docs` or `_partition/…/_all_docs`.
pub(crate) async fn handle(call: &mut Call<'_>, database: Arc<Database>, scope: Scope) -> Answer {
    let mut args = Args::default();
    let mut share = Share::default();
    match *call.method() {
        Method::GET | Method::HEAD => {}
        Method::POST => {
            let held = call.read_json_body().await?;
            let parse = move |text: &[u8], charge: &mut Charge| {
                args.take_members(text, charge)?;
                Ok(args)
            };
            (args, share) = body::parse_held(held, &call.server.room, parse).await?;
        }
        _ => return Err(Failure::method_not_allowed("GET,HEAD,POST")),
    }
    for (name, value) in call.query().pairs() {
        match name.as_ref() {
            // It goes before those in the body.
            "keys" if *call.method() == Method::POST => {
                let no_list = || Failure::query_parse_error("`keys` must be an array of strings.");
                args.set_keys(&value, no_list, &mut Charge::free())?;
            }
            "keys" => {
                let no_list = || Failure::bad_request("`keys` parameter must be an array.");
                args.set_keys(&value, no_list, &mut Charge::free())?;
            }
            name => args.set(name, &value)?,
        }
    }
    let scope = args.check(&database, scope)?;
    if call.is_head() {
        return Ok(head());
    }
    let view = database.view();
    stream::respond(call.output(), async move |mut out| {
        let _for_the_keys = share;
        write_list(&database, &view, &scope, args, &mut out).await?;
        out.buffer.extend_from_slice(b"\n");
        Ok(out)
    })
    .await
}

/// `_all_docs/queries` and its like: several lists, each as if it were asked for alone.
pub(crate) async fn queries(call: &mut Call<'_>, database: Arc<Database>, scope: Scope) -> Answer {
    if *call.method() != Method::POST {
        return Err(Failure::method_not_allowed("POST"));
    }
    let held = call.read_body().await?;
    let options: Vec<(String, String)> =
        call.query().pairs().map(|(name, value)| (name.into_owned(), value.into_owned())).collect();
    let of = database.clone();
    let parse = move |text: &[u8], charge: &mut Charge| parse_queries(text, &options, &of, &scope, charge);
    let (asked, share) = body::parse_held(held, &call.server.room, parse).await?;
    let view = database.view();
    stream::respond(call.output(), async move |mut out| {
        let _for_the_keys = share;
        out.buffer.extend_from_slice(b"{\"results\":[");
        for (index, (scope, args)) in asked.into_iter().enumerate() {
            out.buffer.extend_from_slice(if index == 0 { b"\r\n" } else { b",\r\n" });
            write_list(&database, &view, &scope, args, &mut out).await?;
        }
        out.buffer.extend_from_slice(b"\r\n]}\n");
        Ok(out)
    })
    .await
}

/// Reads several lists' options; `options` are those of all.
fn parse_queries(
    text: &[u8],
    options: &[(String, String)],
    database: &Database,
    scope: &Scope,
    charge: &mut Charge,
) -> Result<Vec<(Scope, Args)>, Failure> {
    let [list] = json::pick(text, ["queries"])?;
    let list = list.ok_or_else(|| Failure::bad_request("POST body must include `queries` parameter."))?;
    let each = QUERY_BYTES + options.iter().map(|(_, value)| value.len()).sum::<usize>();
    let no_list = || Failure::bad_request("`queries` member must be an array.");
    let mut asked = Vec::new();
    json::each_element(list, no_list, |query| {
        let mut args = Args::default();
        for (name, value) in options {
            args.set(name, value)?;
        }
        args.take_members(query.as_bytes(), charge)?;
        let scope = args.check(database, scope.clone())?;
        charge.push((scope, args), each, &mut asked)
    })?;
    Ok(asked)
}

/// The headers of an answer whose length isn't known.
fn head() -> Response<Body> {
    reply::empty(StatusCode::OK)
}

/// One list, without a line end behind it.
async fn write_list(
    database: &Database,
    view: &View,
    scope: &Scope,
    mut args: Args,
    out: &mut Out,
) -> Result<(), Failure> {
    match (args.keys.take(), scope) {
        (Some(keys), _) => named(database, view, scope, &args, keys, out).await?,
        (None, Scope::Local) => locals(database, view, &args, out).await?,
        (None, _) => ranged(database, view, scope, &args, out).await?,
    }
    out.buffer.extend_from_slice(b"\r\n]}");
    Ok(())
}

async fn ranged(
    database: &Database,
    view: &View,
    scope: &Scope,
    args: &Args,
    out: &mut Out,
) -> Result<(), Failure> {
    let range = args.range().map(|range| Range { prefix: scope.prefix(), ..range });
    let offset = match &range {
        Some(range) => view.offset(range).await?,
        None => 0,
    };
    let total = total(view, scope).await?;
    write_head(database, view, args, total, Some(offset), &mut out.buffer);
    let Some(range) = range else { return Ok(()) };
    let mut rows = view.all_docs(&range).await?;
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
            let document = view.read(&id, summary, body).await?;
            write_doc(view, &document, args, out).await?;
        }
        out.buffer.push(b'}');
        out.flush_full().await?;
    }
    Ok(())
}

/// The local documents in a range. How many there are isn't counted, as in CouchDB.
async fn locals(database: &Database, view: &View, args: &Args, out: &mut Out) -> Result<(), Failure> {
    write_head(database, view, args, None, None, &mut out.buffer);
    let Some(range) = args.range() else { return Ok(()) };
    let mut skip = range.skip;
    let mut rows = view.local_docs(&Range { skip: 0, ..range });
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
            let body = view.read_local(body).await?;
            out.buffer.extend_from_slice(b",\"doc\":");
            local::write_json(&id, &revision, &body, &mut out.buffer);
        }
        out.buffer.push(b'}');
        out.flush_full().await?;
    }
    Ok(())
}

/// How many documents there are of those that the list is of; None where that isn't known.
async fn total(view: &View, scope: &Scope) -> Result<Option<u64>, Failure> {
    Ok(match scope {
        Scope::All => Some(view.doc_count()),
        Scope::Design | Scope::Partition(_) => Some(view.counts(&scope.prefix()).await?.doc_count),
        Scope::Local => None,
    })
}

/// Rows in the keys' order, for absent and deleted documents too.
async fn named(
    database: &Database,
    view: &View,
    scope: &Scope,
    args: &Args,
    mut keys: Vec<String>,
    out: &mut Out,
) -> Result<(), Failure> {
    write_head(database, view, args, total(view, scope).await?, None, &mut out.buffer);
    if args.descending {
        keys.reverse();
    }
    let skip = usize::try_from(args.skip).unwrap_or(usize::MAX);
    let limit = usize::try_from(args.limit).unwrap_or(usize::MAX);
    // As in CouchDB those that don't belong here count where some are passed over.
    let keys = keys.iter().skip(skip).take(limit).filter(|key| scope.takes_key(key));
    for (index, key) in keys.enumerate() {
        out.buffer.extend_from_slice(if index == 0 { b"" } else { b",\r\n" });
        match scope {
            Scope::Local => write_named_local(view, args, key, &mut out.buffer).await?,
            _ => write_named(view, args, key, out).await?,
        }
        out.buffer.push(b'}');
        out.flush_full().await?;
    }
    Ok(())
}

/// A key's row, its closing brace left to come.
async fn write_named(view: &View, args: &Args, key: &str, out: &mut Out) -> Result<(), Failure> {
    let id = json::string(key);
    let summary = match &id {
        Some(id) => view.find(id).await?,
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
        let document = view.document(id).await?;
        write_doc(view, &document, args, out).await?;
    }
    Ok(())
}

/// Appends `,"doc":` and the document.
async fn write_doc(view: &View, document: &Document, args: &Args, out: &mut Out) -> Result<(), Failure> {
    let shape = Shape::of_row(args.conflicts, args.attachments, args.encoding);
    let extras = shape.extras(view, document).await?;
    out.buffer.extend_from_slice(b",\"doc\":");
    write_document(view, document, &shape, &extras, out).await
}

/// As [`write_named`], of a local document.
async fn write_named_local(view: &View, args: &Args, key: &str, out: &mut Vec<u8>) -> Result<(), Failure> {
    let id = json::string(key).unwrap_or_default();
    match view.local(id.strip_prefix(LOCAL).unwrap_or_default()).await {
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

/// The row of a key that there is no document for, its closing brace left to come.
fn write_not_found(key: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"key\":");
    out.extend_from_slice(key.as_bytes());
    out.extend_from_slice(b",\"error\":\"not_found\"");
}

/// What comes before the rows. An offset has a meaning in a range alone, and so has an update
/// number, as CouchDB has it; local documents have neither.
fn write_head(
    database: &Database,
    view: &View,
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
            Some(_) => crate::database::quoted_seq(database, view.update_seq(), out),
            None => out.extend_from_slice(b"null"),
        }
    }
    out.extend_from_slice(b",\"rows\":[\r\n");
}

/// A row, its closing brace left to come.
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
