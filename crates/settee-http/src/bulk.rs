//! Many documents in a request: `_bulk_docs` and `_bulk_get`.

use std::sync::Arc;

use futures_util::future::join_all;
use hyper::{Method, StatusCode};
use serde::Deserialize;
use serde_json::value::RawValue;
use settee_doc::{Database, Edit, Revision, Stage, View};

use crate::body::{self, Held};
use crate::document::{self, Found, Shape};
use crate::error::Failure;
use crate::json;
use crate::reply::{self, Answer};
use crate::server::Call;
use crate::stream::{self, Out};

/// The bodies of both requests. Members that aren't known are skipped.
#[derive(Deserialize)]
struct Request<'a> {
    #[serde(borrow, default)]
    docs: Option<Vec<&'a RawValue>>,
    #[serde(borrow, default)]
    new_edits: Option<&'a RawValue>,
}

/// `_bulk_docs`: a bad document fails the request before anything is stored; after that each
/// is decided by itself, and its row says how.
pub(crate) async fn docs(call: &mut Call<'_>, database: Arc<Database>) -> Answer {
    if *call.method() != Method::POST {
        return Err(Failure::method_not_allowed("POST"));
    }
    let Held { text, share: _for_the_edits } = call.read_json_body().await?;
    let stage = call.stage()?;
    let options = call.server.document_options;
    let (mut edits, new_edits) = body::parse(&text, move |text| parse_edits(text, &options)).await?;
    drop(text);
    for edit in edits.iter_mut().filter(|edit| edit.id.is_empty()) {
        edit.id = call.server.uuids.next();
    }

    let named: Vec<(String, Option<Revision>)> =
        edits.iter().map(|edit| (edit.id.clone(), edit.revision)).collect();
    let (locals, edits): (Vec<Edit>, Vec<Edit>) = edits.into_iter().partition(is_local);
    let results = match new_edits {
        true => database.update_all(edits, stage).await?,
        false => database.replicate_all(edits, stage).await?,
    };
    // At the same time, so that they share a sync.
    let local_results = join_all(locals.into_iter().map(|edit| database.put_local(edit, stage))).await;
    let (mut results, mut local_results) = (results.into_iter(), local_results.into_iter());
    let mut rows = Vec::with_capacity(named.len() * 96 + 4);
    let mut text = Vec::new();
    for (id, revision) in &named {
        text.clear();
        let outcome = if id.starts_with(LOCAL) {
            let outcome = local_results.next().expect("an outcome for each local document");
            outcome.map(|saved| text.extend_from_slice(saved.as_bytes()))
        } else {
            let outcome = results.next().expect("an outcome for each edit");
            outcome.map(|saved| saved.write(&mut text))
        };
        // Of replicated documents only those that failed have a row.
        if outcome.is_err() || new_edits {
            rows.push(if rows.is_empty() { b'[' } else { b',' });
        }
        match outcome {
            Ok(()) if new_edits => write_saved(id, &text, &mut rows),
            Ok(()) => {}
            Err(error) => write_failed(id, revision.filter(|_| !new_edits), &error.into(), &mut rows),
        }
    }
    rows.extend_from_slice(if rows.is_empty() { b"[]\n" } else { b"]\n" });
    let status = if stage == Stage::Persisted { StatusCode::CREATED } else { StatusCode::ACCEPTED };
    Ok(reply::json(status, rows))
}

/// How a local document's id begins.
const LOCAL: &str = "_local/";

fn is_local(edit: &Edit) -> bool {
    edit.id.starts_with(LOCAL)
}

/// `{"ok":true,"id":…,"rev":…}`
fn write_saved(id: &str, revision: &[u8], rows: &mut Vec<u8>) {
    rows.extend_from_slice(b"{\"ok\":true,\"id\":");
    settee_doc::write_json_string(id, rows);
    rows.extend_from_slice(b",\"rev\":\"");
    rows.extend_from_slice(revision);
    rows.extend_from_slice(b"\"}");
}

/// The documents of `_bulk_docs`, and whether they are edits of this database's own.
fn parse_edits(text: &[u8], options: &settee_doc::Options) -> Result<(Vec<Edit>, bool), Failure> {
    let request: Request<'_> = json::parse_object(text, "`docs` parameter must be an array.")?;
    let docs =
        request.docs.ok_or_else(|| Failure::bad_request("POST body must include `docs` parameter."))?;
    let new_edits = match request.new_edits.map(RawValue::get) {
        None | Some("true") => true,
        Some("false") => false,
        Some(_) => return Err(Failure::bad_request("`new_edits` parameter must be a boolean.")),
    };
    let mut edits = Vec::with_capacity(docs.len());
    for doc in docs {
        let edit = Edit::parse(doc.get().as_bytes(), options)?;
        if !new_edits && !is_local(&edit) {
            document::check_replicated(&edit)?;
        }
        edits.push(edit);
    }
    Ok((edits, new_edits))
}

/// `{"id":…,"rev":…,"error":…,"reason":…}`
fn write_failed(id: &str, revision: Option<Revision>, failure: &Failure, rows: &mut Vec<u8>) {
    json::object(rows, |rows| {
        rows.extend_from_slice(b"\"id\":");
        settee_doc::write_json_string(id, rows);
        if let Some(revision) = revision {
            rows.extend_from_slice(b",\"rev\":\"");
            revision.write(rows);
            rows.push(b'"');
        }
        rows.push(b',');
        failure.write_members(rows);
    });
}

/// One of `_bulk_get`'s documents: its revision, all its leaves, or why it can't be looked for.
/// `id` and `rev` are JSON text.
struct Wanted {
    id: String,
    rev: String,
    what: Result<(String, Option<Revision>), Failure>,
}

/// `_bulk_get`
pub(crate) async fn get(call: &mut Call<'_>, database: Arc<Database>) -> Answer {
    if *call.method() != Method::POST {
        return Err(Failure::method_not_allowed("POST"));
    }
    let Held { text, share } = call.read_json_body().await?;
    for name in ["open_revs", "new_edits", "w", "rev", "atts_since"] {
        if call.query().get(name).is_some() {
            return Err(Failure::bad_request(format!("\"{name}\" query parameter is not acceptable")));
        }
    }
    const NO_LIST: &str = "Missing JSON list of 'docs'.";
    let parse = |text: &[u8]| {
        let request: Request<'_> = json::parse_object(text, NO_LIST)?;
        let docs = request.docs.ok_or_else(|| Failure::bad_request(NO_LIST))?;
        Ok(docs.into_iter().map(|doc| parse_wanted(doc.get())).collect::<Vec<_>>())
    };
    let wanted = body::parse(&text, parse).await?;
    drop(text);
    let shape = Shape::from_query(call.query());
    let latest = call.query().is_true("latest");
    let view = database.view();
    stream::respond(&call.server.limits, async move |mut out| {
        let _for_the_list = share;
        out.buffer.extend_from_slice(b"{\"results\":[");
        for (index, item) in wanted.iter().enumerate() {
            if index > 0 {
                out.buffer.push(b',');
            }
            write_wanted(&database, &view, item, shape, latest, &mut out).await?;
            out.flush_full().await?;
        }
        out.buffer.extend_from_slice(b"]}\n");
        Ok(out)
    })
    .await
}

fn parse_wanted(raw: &str) -> Wanted {
    let null = || "null".to_owned();
    let refused = |id: String, rev: String, failure: Failure| Wanted { id, rev, what: Err(failure) };
    let members = match json::members(raw.as_bytes()) {
        Ok(members) if !members.0.is_empty() => members,
        _ => {
            return refused(null(), null(), Failure::bad_request("document must be a JSON object"));
        }
    };
    let Some(raw_id) = members.get("id") else {
        return refused(null(), null(), Failure::bad_request("document id missed"));
    };
    let id = json::string(raw_id).unwrap_or_default().into_owned();
    if let Err(error) = settee_doc::check_document_id(&id) {
        return refused(raw_id.to_owned(), null(), error.into());
    }
    match members.get("rev") {
        None => Wanted { id: raw_id.to_owned(), rev: "\"undefined\"".to_owned(), what: Ok((id, None)) },
        Some(rev) => match document::parse_revision(rev) {
            Ok(revision) => {
                Wanted { id: raw_id.to_owned(), rev: rev.to_owned(), what: Ok((id, Some(revision))) }
            }
            Err(failure) => refused(raw_id.to_owned(), rev.to_owned(), failure),
        },
    }
}

/// `{"id":…,"docs":[…]}`
async fn write_wanted(
    database: &Database,
    view: &View,
    wanted: &Wanted,
    shape: Shape,
    latest: bool,
    out: &mut Out,
) -> Result<(), Failure> {
    out.buffer.extend_from_slice(b"{\"id\":");
    out.buffer.extend_from_slice(wanted.id.as_bytes());
    out.buffer.extend_from_slice(b",\"docs\":[");
    match &wanted.what {
        Err(failure) => write_error(&wanted.id, wanted.rev.as_bytes(), failure, &mut out.buffer),
        Ok((id, revision)) => {
            let found =
                document::revisions_of(view, id, revision.as_ref().map(std::slice::from_ref), latest).await?;
            if found.is_empty() {
                write_error(&wanted.id, wanted.rev.as_bytes(), &Failure::missing(), &mut out.buffer);
            }
            for (index, item) in found.iter().enumerate() {
                if index > 0 {
                    out.buffer.push(b',');
                }
                match item {
                    Found::Document(document) => {
                        let extras = shape.extras(database, view, document).await?;
                        out.buffer.extend_from_slice(b"{\"ok\":");
                        document.write_json(&extras, &mut out.buffer);
                        out.buffer.push(b'}');
                    }
                    Found::Missing(revision) => {
                        let mut rev = vec![b'"'];
                        revision.write(&mut rev);
                        rev.push(b'"');
                        write_error(&wanted.id, &rev, &Failure::missing(), &mut out.buffer);
                    }
                }
            }
        }
    }
    out.buffer.extend_from_slice(b"]}");
    Ok(())
}

/// `{"error":{"id":…,"rev":…,"error":…,"reason":…}}`; `id` and `rev` are JSON text.
fn write_error(id: &str, rev: &[u8], failure: &Failure, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"error\":{\"id\":");
    out.extend_from_slice(id.as_bytes());
    out.extend_from_slice(b",\"rev\":");
    out.extend_from_slice(rev);
    out.push(b',');
    failure.write_members(out);
    out.extend_from_slice(b"}}");
}
