//! Many documents in a request: `_bulk_docs`.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::future::join_all;
use hyper::{Method, StatusCode};
use settee_doc::{Database, Edit, Revision};

use crate::body::{self, ALLOCATION_BYTES, Charge};
use crate::document;
use crate::error::Failure;
use crate::json;
use crate::named::{self, Named};
use crate::reply::{self, Answer};
use crate::server::Call;

/// Bytes that a document takes beside its text, however small it is: its edit, what came of it, its row.
const EDIT_BYTES: usize = size_of::<Edit>()
    + size_of::<(String, Option<Named>)>()
    + size_of::<settee_doc::Result<Revision>>()
    + ROW_BYTES
    + 4 * ALLOCATION_BYTES;

/// Bytes of a row, by which the answer's room is made.
const ROW_BYTES: usize = 96;

/// What a bulk asks for.
pub(crate) struct Bulk {
    pub(crate) edits: Vec<Edit>,
    /// Whether they are edits of this database's own.
    pub(crate) new_edits: bool,
    /// Whether all are to be stored or none, which CouchDB refuses.
    all_or_nothing: bool,
    /// `w`, where it is a number: it goes before the query's.
    copies: Option<u64>,
}

/// `_bulk_docs`: a bad document fails the request before anything is stored; after that each
/// is decided by itself, and its row says how.
pub(crate) async fn docs(call: &mut Call<'_>, database: Arc<Database>) -> Answer {
    if *call.method() != Method::POST {
        return Err(Failure::method_not_allowed("POST"));
    }
    let held = call.read_json_body().await?;
    let mut concern = call.write_concern()?;
    let is_optimistic = document::is_optimistic(call)?;
    let options = call.server.document_options;
    let parse = move |text: &[u8], charge: &mut Charge| parse_bulk(text, &options, charge);
    let (bulk, _for_the_edits) = body::parse_held(held, &call.server.room, parse).await?;
    let Bulk { mut edits, new_edits, all_or_nothing, copies } = bulk;
    concern.copies = copies.unwrap_or(concern.copies);
    let stage = concern.stage;
    for edit in edits.iter_mut().filter(|edit| edit.id.is_empty()) {
        edit.id = call.server.uuids.next();
    }
    if all_or_nothing && new_edits && !edits.is_empty() {
        return Ok(reply::json(StatusCode::EXPECTATION_FAILED, refused(&edits)));
    }

    let named: Vec<(String, Option<Named>)> =
        edits.iter().map(|edit| (edit.id.clone(), Named::of(edit))).collect();
    call.check_answer(named.iter().map(|(id, _)| id.len() + ROW_BYTES).sum())?;
    // An edit that can't be taken doesn't keep the others out.
    let mut refusals: HashMap<usize, Failure> = HashMap::new();
    if !new_edits {
        let of = |(index, edit): (usize, &Edit)| Some((index, named::refusal(edit)?));
        refusals = edits.iter().enumerate().filter(|(_, edit)| !is_local(edit)).filter_map(of).collect();
        let mut index = 0..;
        edits.retain(|_| !refusals.contains_key(&index.next().unwrap_or_default()));
    }
    let (locals, mut edits): (Vec<Edit>, Vec<Edit>) = edits.into_iter().partition(is_local);
    if is_optimistic {
        database.write_ahead(&mut edits, !new_edits).await?;
    }
    let results = match new_edits {
        true => database.update_all(edits, stage).await?,
        false => database.replicate_all(edits, stage).await?,
    };
    // At the same time, so that they share a sync.
    let local_results = join_all(locals.into_iter().map(|edit| database.put_local(edit, stage))).await;
    let (mut results, mut local_results) = (results.into_iter(), local_results.into_iter());
    let mut rows = Vec::with_capacity(named.len() * ROW_BYTES + 4);
    let mut text = Vec::new();
    for (index, (id, revision)) in named.iter().enumerate() {
        text.clear();
        let outcome = if let Some(failure) = refusals.remove(&index) {
            Err(failure)
        } else if id.starts_with(LOCAL) {
            let outcome = local_results.next().expect("an outcome for each local document");
            outcome.map(|saved| text.extend_from_slice(saved.as_bytes())).map_err(Failure::from)
        } else {
            let outcome = results.next().expect("an outcome for each edit");
            outcome.map(|saved| saved.write(&mut text)).map_err(Failure::from)
        };
        // Of replicated documents only those that failed have a row.
        if outcome.is_err() || new_edits {
            rows.push(if rows.is_empty() { b'[' } else { b',' });
        }
        match outcome {
            Ok(()) if new_edits => write_saved(id, &text, concern.copies > 1, &mut rows),
            Ok(()) => {}
            Err(failure) => {
                let revision = revision.as_ref().filter(|_| !new_edits).map(Named::to_string);
                write_failed(id, revision.as_deref(), &failure, &mut rows);
            }
        }
    }
    rows.extend_from_slice(if rows.is_empty() { b"[]\n" } else { b"]\n" });
    Ok(reply::json(concern.status(StatusCode::CREATED), rows))
}

/// How a local document's id begins.
const LOCAL: &str = "_local/";

fn is_local(edit: &Edit) -> bool {
    edit.id.starts_with(LOCAL)
}

/// `{"ok":true,"id":…,"rev":…}`, and that fewer copies have it than were asked for.
fn write_saved(id: &str, revision: &[u8], is_short: bool, rows: &mut Vec<u8>) {
    rows.extend_from_slice(b"{\"ok\":true,\"id\":");
    settee_doc::write_json_string(id, rows);
    rows.extend_from_slice(b",\"rev\":\"");
    rows.extend_from_slice(revision);
    rows.extend_from_slice(if is_short { b"\",\"accepted\":true}" } else { b"\"}" });
}

/// The rows of a bulk of which none was stored.
fn refused(edits: &[Edit]) -> Vec<u8> {
    let reason = "all_or_nothing is not supported";
    let failure = Failure::not_implemented(reason);
    let mut rows = Vec::new();
    for edit in edits {
        rows.push(if rows.is_empty() { b'[' } else { b',' });
        let revision = Named::of(edit).map_or_else(|| "0-".to_owned(), |named| named.to_string());
        write_failed(&edit.id, Some(&revision), &failure, &mut rows);
    }
    rows.extend_from_slice(b"]\n");
    rows
}

/// Reads a bulk.
pub(crate) fn parse_bulk(
    text: &[u8],
    options: &settee_doc::Options,
    charge: &mut Charge,
) -> Result<Bulk, Failure> {
    let no_list = || Failure::bad_request("`docs` parameter must be an array.");
    let names = ["docs", "new_edits", "all_or_nothing", "w"];
    let [docs, new_edits, all_or_nothing, copies] = json::pick_unchecked(text, names)?;
    let docs = docs.ok_or_else(|| Failure::bad_request("POST body must include `docs` parameter."))?;
    if !docs.starts_with('[') {
        return Err(no_list());
    }
    check_around(text, docs)?;
    let new_edits = match new_edits {
        None | Some("true") => true,
        Some("false") => false,
        Some(_) => return Err(Failure::bad_request("`new_edits` parameter must be a boolean.")),
    };
    let mut edits = Vec::new();
    json::each_element(docs, no_list, |doc| {
        let edit = body::edit(doc.as_bytes(), options, charge)?;
        if !new_edits && !is_local(&edit) {
            named::check_replicated(&edit)?;
        }
        let bytes = EDIT_BYTES + edit.body().len();
        charge.push(edit, bytes, &mut edits)
    })?;
    let all_or_nothing = all_or_nothing == Some("true");
    let copies = copies.and_then(|raw| raw.parse().ok());
    Ok(Bulk { edits, new_edits, all_or_nothing, copies })
}

/// Checks what stands around the documents, which are checked one by one.
fn check_around(text: &[u8], docs: &str) -> Result<(), Failure> {
    let start = docs.as_ptr().addr() - text.as_ptr().addr();
    settee_doc::check_tokens(&text[..start])?;
    settee_doc::check_tokens(&text[start + docs.len()..])?;
    Ok(())
}

/// `{"id":…,"rev":…,"error":…,"reason":…}`
fn write_failed(id: &str, revision: Option<&str>, failure: &Failure, rows: &mut Vec<u8>) {
    json::object(rows, |rows| {
        rows.extend_from_slice(b"\"id\":");
        settee_doc::write_json_string(id, rows);
        if let Some(revision) = revision {
            rows.extend_from_slice(b",\"rev\":");
            settee_doc::write_json_string(revision, rows);
        }
        rows.push(b',');
        failure.write_members(rows);
    });
}
