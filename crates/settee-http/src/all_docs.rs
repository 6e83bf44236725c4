//! `_all_docs`: documents by id, a range of them or those named.

use std::borrow::Cow;
use std::sync::Arc;

use hyper::{Method, Response, StatusCode};
use settee_doc::{Database, Range, Revision, Row, View};

use crate::body::Share;
use crate::document::write_doc_member;
use crate::error::Failure;
use crate::json;
use crate::query::{self, Key};
use crate::reply::{self, Answer, Body};
use crate::server::Call;
use crate::stream::{self, Out};

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
    update_seq: bool,
}

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
            update_seq: false,
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
            "update_seq" => self.update_seq = query::boolean(value)?,
            _ => {}
        }
        Ok(())
    }

    /// Takes `keys` from JSON text.
    fn set_keys(&mut self, raw: &str, whose: &'static str) -> Result<(), Failure> {
        let raw = query::json_value(raw)?;
        if raw == "null" {
            return Ok(());
        }
        let list = json::list(raw).ok_or_else(|| Failure::bad_request(whose))?;
        self.keys = Some(list.into_iter().map(|key| key.get().to_owned()).collect());
        Ok(())
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
        };
        let (low, high) =
            if self.descending { (&range.end, &range.start) } else { (&range.start, &range.end) };
        match (low, high) {
            (Some(low), Some(high)) if low > high => None,
            _ => Some(range),
        }
    }
}

pub(crate) async fn handle(call: &mut Call<'_>, database: Arc<Database>) -> Answer {
    let mut args = Args::default();
    let mut share = Share::default();
    match *call.method() {
        Method::GET | Method::HEAD => {}
        Method::POST => {
            let body = call.read_json_body().await?;
            for (name, value) in json::members(&body.text)?.0 {
                match name.as_ref() {
                    "keys" => args.set_keys(value.get(), "`keys` body member must be an array.")?,
                    name if name.ends_with("key") => args.set(name, value.get())?,
                    // A number or boolean may come as a string as well.
                    name => {
                        let text = json::string(value.get()).unwrap_or(Cow::Borrowed(value.get()));
                        args.set(name, &text)?;
                    }
                }
            }
            share = body.share;
        }
        _ => return Err(Failure::method_not_allowed("GET,HEAD,POST")),
    }
    for (name, value) in call.query().pairs() {
        match name.as_ref() {
            "keys" if *call.method() == Method::POST => {}
            "keys" => args.set_keys(&value, "`keys` parameter must be an array.")?,
            name => args.set(name, &value)?,
        }
    }
    if args.keys.is_some() && (args.start.is_some() || args.end.is_some()) {
        let reason = "`keys` is incompatible with `key`, `start_key` and `end_key`";
        return Err(Failure::query_parse_error(reason));
    }
    if call.is_head() {
        return Ok(head());
    }
    let view = database.view();
    match args.keys.take() {
        Some(keys) => {
            stream::respond(&call.server.limits, async move |out| {
                let _for_the_keys = share;
                named(database, view, args, keys, out).await
            })
            .await
        }
        None => stream::respond(&call.server.limits, move |out| ranged(database, view, args, out)).await,
    }
}

/// The headers of an answer whose length isn't known.
fn head() -> Response<Body> {
    reply::empty(StatusCode::OK)
}

async fn ranged(database: Arc<Database>, view: View, args: Args, mut out: Out) -> Result<Out, Failure> {
    let total = view.doc_count();
    let range = args.range();
    let offset = match &range {
        Some(range) => view.offset(range).await?,
        None => 0,
    };
    write_head(&database, &view, &args, total, Some(offset), &mut out.buffer);
    if let Some(range) = range {
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
                write_doc_member(&database, &view, &document, args.conflicts, &mut out.buffer).await?;
            }
            out.buffer.push(b'}');
            out.flush_full().await?;
        }
    }
    out.buffer.extend_from_slice(b"\r\n]}\n");
    Ok(out)
}

/// Rows in the keys' order, for absent and deleted documents too.
async fn named(
    database: Arc<Database>,
    view: View,
    args: Args,
    mut keys: Vec<String>,
    mut out: Out,
) -> Result<Out, Failure> {
    write_head(&database, &view, &args, view.doc_count(), None, &mut out.buffer);
    if args.descending {
        keys.reverse();
    }
    let skip = usize::try_from(args.skip).unwrap_or(usize::MAX);
    let limit = usize::try_from(args.limit).unwrap_or(usize::MAX);
    for (index, key) in keys.iter().skip(skip).take(limit).enumerate() {
        out.buffer.extend_from_slice(if index == 0 { b"" } else { b",\r\n" });
        let id = json::string(key);
        let summary = match &id {
            Some(id) => view.find(id).await?,
            None => None,
        };
        match id.as_ref().zip(summary) {
            None => {
                out.buffer.extend_from_slice(b"{\"key\":");
                out.buffer.extend_from_slice(key.as_bytes());
                out.buffer.extend_from_slice(b",\"error\":\"not_found\"");
            }
            Some((id, summary)) => {
                write_row(id, summary.revision, summary.deleted, &mut out.buffer);
                if args.include_docs && summary.deleted {
                    out.buffer.extend_from_slice(b",\"doc\":null");
                } else if args.include_docs {
                    let document = view.document(id).await?;
                    write_doc_member(&database, &view, &document, args.conflicts, &mut out.buffer).await?;
                }
            }
        }
        out.buffer.push(b'}');
        out.flush_full().await?;
    }
    out.buffer.extend_from_slice(b"\r\n]}\n");
    Ok(out)
}

/// What comes before the rows. An offset has a meaning in a range alone, and so has an update
/// number, as CouchDB has it.
fn write_head(
    database: &Database,
    view: &View,
    args: &Args,
    total: u64,
    offset: Option<u64>,
    out: &mut Vec<u8>,
) {
    out.extend_from_slice(b"{\"total_rows\":");
    json::number(total, out);
    out.extend_from_slice(b",\"offset\":");
    match offset {
        Some(offset) => json::number(offset, out),
        None => out.extend_from_slice(b"null"),
    }
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
    out.extend_from_slice(b"{\"id\":");
    let start = out.len();
    settee_doc::write_json_string(id, out);
    let end = out.len();
    out.extend_from_slice(b",\"key\":");
    out.extend_from_within(start..end);
    out.extend_from_slice(b",\"value\":{\"rev\":\"");
    revision.write(out);
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
