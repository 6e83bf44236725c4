//! Many documents in a request: `_bulk_docs`.

use std::sync::Arc;

use futures_util::future::join_all;
use hyper::{Method, StatusCode};
use serde::Deserialize;
use serde_json::value::RawValue;
use settee_doc::{Database, Edit, Revision, Stage};

use crate::body::{self, Held};
use crate::document;
use crate::error::Failure;
use crate::json;
use crate::reply::{self, Answer};
use crate::server::Call;

/// The request's body. Members that aren't known are skipped.
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
