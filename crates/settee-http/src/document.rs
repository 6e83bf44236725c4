//! One document: read, written, deleted.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use hyper::header;
use hyper::{Method, Response, StatusCode};
use settee_doc::{Database, Document, Edit, ErrorKind, Extras, Revision, Stage, View};

use crate::database::{location, quoted_seq};
use crate::error::Failure;
use crate::query::Query;
use crate::reply::{self, Answer, Body};
use crate::server::Call;
use crate::{body, json};

/// Bytes of a document's answer beside id and body: `_id`, `_rev`, quotes, the line end.
const ENVELOPE_BYTES: usize = 80;

pub(crate) async fn handle(call: &mut Call<'_>, database: Arc<Database>, id: &str) -> Answer {
    match *call.method() {
        Method::GET | Method::HEAD => get(call, &database, id).await,
        Method::PUT => put(call, &database, id).await,
        Method::DELETE => delete(call, &database, id).await,
        Method::POST => Err(Failure::not_implemented("Attachments are not implemented yet.")),
        _ if call.method().as_str() == "COPY" => {
            Err(Failure::not_implemented("COPY is not implemented yet."))
        }
        _ => Err(Failure::method_not_allowed("DELETE,GET,HEAD,POST,PUT,COPY")),
    }
}

/// What a reader wants beside the document.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) revs: bool,
    pub(crate) conflicts: bool,
    revs_info: bool,
    deleted_conflicts: bool,
    local_seq: bool,
}

impl Shape {
    pub(crate) fn from_query(query: Query<'_>) -> Shape {
        let mut shape = Shape::default();
        for (name, value) in query.pairs() {
            if value != "true" {
                continue;
            }
            match name.as_ref() {
                "revs" => shape.revs = true,
                "revs_info" => shape.revs_info = true,
                "conflicts" => shape.conflicts = true,
                "deleted_conflicts" => shape.deleted_conflicts = true,
                "local_seq" => shape.local_seq = true,
                "meta" => {
                    shape.revs_info = true;
                    shape.conflicts = true;
                    shape.deleted_conflicts = true;
                }
                _ => {}
            }
        }
        shape
    }

    /// Collects what is to be spliced into `document`.
    pub(crate) async fn extras(
        self,
        database: &Database,
        view: &View,
        document: &Document,
    ) -> Result<Extras, Failure> {
        let mut extras = Extras::default();
        if self == Shape::default() {
            return Ok(extras);
        }
        let (id, revision) = (document.id.as_str(), document.revision);
        if self.revs || self.revs_info {
            let history = view.history(id, revision).await?;
            if self.revs_info {
                extras.revs_info = revisions_info(document, &history);
            }
            extras.revisions = self.revs.then_some(history);
        }
        if self.conflicts || self.deleted_conflicts {
            for leaf in view.leaves(id).await?.into_iter().filter(|leaf| leaf.revision != revision) {
                match leaf.deleted {
                    true if self.deleted_conflicts => extras.deleted_conflicts.push(leaf.revision),
                    false if self.conflicts => extras.conflicts.push(leaf.revision),
                    _ => {}
                }
            }
        }
        if self.local_seq
            && let Some(summary) = view.find(id).await?
        {
            extras.local_seq = Some(database.seq_text(summary.seq));
        }
        Ok(extras)
    }
}

/// `_revs_info`: of a leaf's path the leaf's body alone is kept.
fn revisions_info(document: &Document, history: &[[u8; 16]]) -> Vec<(Revision, &'static str)> {
    let newest = document.revision.generation;
    let revisions = history.iter().zip(0u32..).map(|(hash, age)| {
        let status = match age {
            0 if document.deleted => "deleted",
            0 => "available",
            _ => "missing",
        };
        (Revision { generation: newest.saturating_sub(age), hash: *hash }, status)
    });
    revisions.collect()
}

async fn get(call: &mut Call<'_>, database: &Arc<Database>, id: &str) -> Answer {
    let query = call.query();
    let view = database.view();
    let mut shape = Shape::default();
    let (mut revision, mut deleted) = (None, false);
    if !query.0.is_empty() {
        if let Some(list) = query.get("open_revs") {
            return open_revs(call, database, &view, id, &list).await;
        }
        shape = Shape::from_query(query);
        revision = query.get("rev").map(|text| text.parse::<Revision>()).transpose()?;
        // Asked for the latest CouchDB answers with the winner, whatever `rev` says.
        if query.is_true("latest") {
            revision = None;
        }
        deleted = query.is_true("deleted");
    }
    let plain = revision.is_none() && shape == Shape::default() && !deleted;
    if plain && (call.is_head() || call.head.headers.contains_key(header::IF_NONE_MATCH)) {
        // The index alone answers these.
        if let Some(answer) = without_body(call, &view, id).await? {
            return Ok(answer);
        }
    }
    let document = match revision {
        None if deleted => view.document_or_deleted(id).await?.ok_or_else(Failure::missing)?,
        None => view.document(id).await?,
        Some(revision) => one_revision(&view, id, revision).await?,
    };
    let extras = shape.extras(database, &view, &document).await?;
    let has_meta = !extras.conflicts.is_empty()
        || !extras.deleted_conflicts.is_empty()
        || extras.local_seq.is_some()
        || !extras.revs_info.is_empty();
    let tag = etag(document.revision);
    if !has_meta && matches_tag(call, &tag) {
        return Ok(not_modified(tag));
    }
    let mut text = Vec::with_capacity(document.body.len() + id.len() + ENVELOPE_BYTES);
    document.write_json(&extras, &mut text);
    text.push(b'\n');
    let mut response = reply::json(StatusCode::OK, text);
    if !has_meta {
        reply::set_header(&mut response, header::ETAG, tag);
    }
    Ok(response)
}

/// The answer to a HEAD, or a 304; None where the document must be read after all.
async fn without_body(call: &Call<'_>, view: &View, id: &str) -> Result<Option<Response<Body>>, Failure> {
    let not_found =
        |reason: &str| Failure::from(settee_doc::Error::new(ErrorKind::NotFound, reason.to_owned()));
    let summary = view.find(id).await?.ok_or_else(|| not_found("missing"))?;
    if summary.deleted {
        return Err(not_found("deleted"));
    }
    let tag = etag(summary.revision);
    if matches_tag(call, &tag) {
        return Ok(Some(not_modified(tag)));
    }
    if !call.is_head() {
        return Ok(None);
    }
    let mut response = reply::empty(StatusCode::OK);
    reply::set_header(&mut response, header::ETAG, tag);
    Ok(Some(response))
}

async fn one_revision(view: &View, id: &str, revision: Revision) -> Result<Document, Failure> {
    view.revision(id, revision, false).await?.into_iter().next().ok_or_else(Failure::missing)
}

/// `"N-hash"`, with its quotes.
pub(crate) fn etag(revision: Revision) -> Bytes {
    let mut tag = Vec::with_capacity(48);
    tag.push(b'"');
    revision.write(&mut tag);
    tag.push(b'"');
    tag.into()
}

/// Whether the client's cache has that revision.
fn matches_tag(call: &Call<'_>, tag: &[u8]) -> bool {
    let sent = call.head.headers.get_all(header::IF_NONE_MATCH).iter();
    sent.filter_map(|value| value.to_str().ok())
        .flat_map(|tags| tags.split(','))
        .any(|sent| sent.trim().trim_start_matches("W/").as_bytes() == tag)
}

fn not_modified(tag: Bytes) -> Response<Body> {
    let mut response = reply::empty(StatusCode::NOT_MODIFIED);
    reply::set_header(&mut response, header::ETAG, tag);
    response
}

/// Several revisions at once: all leaves, or a JSON list of them.
async fn open_revs(call: &Call<'_>, database: &Database, view: &View, id: &str, list: &str) -> Answer {
    let shape = Shape::from_query(call.query());
    let wanted = match list {
        "all" => None,
        list => Some(revision_list(list)?),
    };
    let found = revisions_of(view, id, wanted.as_deref(), call.query().is_true("latest")).await?;
    if found.is_empty() && wanted.is_none() {
        return Err(Failure::missing());
    }
    let mut parts = Vec::with_capacity(found.len());
    for item in found {
        let mut part = Vec::new();
        match item {
            Found::Document(document) => {
                let extras = shape.extras(database, view, &document).await?;
                document.write_json(&extras, &mut part);
                parts.push((true, part));
            }
            Found::Missing(revision) => {
                revision.write(&mut part);
                parts.push((false, part));
            }
        }
    }
    Ok(if only_multipart(call) {
        multipart(&parts)
    } else {
        reply::json(StatusCode::OK, open_revs_json(&parts))
    })
}

/// A JSON list of revisions.
fn revision_list(text: &str) -> Result<Vec<Revision>, Failure> {
    let raw = crate::query::json_value(text)?;
    let list = json::list(raw).ok_or_else(|| Failure::bad_request("Invalid list of revisions"))?;
    list.into_iter().map(|item| parse_revision(item.get())).collect()
}

/// A revision from JSON text.
pub(crate) fn parse_revision(raw: &str) -> Result<Revision, Failure> {
    let text = json::string(raw).ok_or_else(|| Failure::bad_request("Invalid rev format"))?;
    Ok(text.parse::<Revision>()?)
}

/// One of the revisions asked for.
pub(crate) enum Found {
    Document(Document),
    Missing(Revision),
}

/// The wanted revisions, or all leaves. With `latest` a revision stands for the leaves that
/// descend from it, each of which is given once.
pub(crate) async fn revisions_of(
    view: &View,
    id: &str,
    wanted: Option<&[Revision]>,
    latest: bool,
) -> Result<Vec<Found>, Failure> {
    let leaves: Vec<Revision>;
    let wanted = match wanted {
        Some(wanted) => wanted,
        None => {
            leaves = view.leaves(id).await?.into_iter().map(|leaf| leaf.revision).collect();
            &leaves
        }
    };
    let mut found: Vec<Found> = Vec::with_capacity(wanted.len());
    let mut given = HashSet::new();
    for revision in wanted {
        // A tree may have many leaves, and they are looked for in the index: others get their turn.
        tokio::task::consume_budget().await;
        match view.revision(id, *revision, latest).await {
            Ok(documents) if documents.is_empty() => found.push(Found::Missing(*revision)),
            Ok(documents) => {
                let fresh = documents.into_iter().filter(|document| given.insert(document.revision));
                found.extend(fresh.map(Found::Document));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => found.push(Found::Missing(*revision)),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(found)
}

/// Whether the client takes several parts and no JSON.
fn only_multipart(call: &Call<'_>) -> bool {
    call.header(header::ACCEPT).is_some_and(|accept| {
        accept.contains("multipart/mixed") && !accept.contains("application/json") && !accept.contains("*/*")
    })
}

fn open_revs_json(parts: &[(bool, Vec<u8>)]) -> Vec<u8> {
    let mut text = vec![b'['];
    for (index, (found, part)) in parts.iter().enumerate() {
        if index > 0 {
            text.push(b',');
        }
        write_open_rev(*found, part, &mut text);
    }
    text.extend_from_slice(b"]\n");
    text
}

/// `{"ok":…}` or `{"missing":"…"}`.
fn write_open_rev(found: bool, part: &[u8], text: &mut Vec<u8>) {
    text.extend_from_slice(if found { b"{\"ok\":" } else { b"{\"missing\":\"" });
    text.extend_from_slice(part);
    text.extend_from_slice(if found { b"}" } else { b"\"}" });
}

/// What CouchDB's own replicator asks for. No document has attachments yet, so each part is
/// JSON; what a document could hold of the boundary is ruled out by its length and randomness.
fn multipart(parts: &[(bool, Vec<u8>)]) -> Response<Body> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).expect("the system gives randomness");
    let mut boundary = Vec::with_capacity(32);
    settee_doc::write_hash(&random, &mut boundary);
    let mut text = b"--".to_vec();
    text.extend_from_slice(&boundary);
    for (found, part) in parts {
        if *found {
            text.extend_from_slice(b"\r\nContent-Type: application/json\r\n\r\n");
            text.extend_from_slice(part);
        } else {
            text.extend_from_slice(b"\r\nContent-Type: application/json; error=\"true\"\r\n\r\n");
            write_open_rev(false, part, &mut text);
        }
        text.extend_from_slice(b"\r\n--");
        text.extend_from_slice(&boundary);
    }
    text.extend_from_slice(b"--");
    let mut response = reply::json(StatusCode::OK, text);
    let kind = [b"multipart/mixed; boundary=\"".as_slice(), &boundary, b"\""].concat();
    reply::set_header(&mut response, header::CONTENT_TYPE, kind);
    response
}

async fn put(call: &mut Call<'_>, database: &Arc<Database>, id: &str) -> Answer {
    settee_doc::check_document_id(id)?;
    let kind = call.header(header::CONTENT_TYPE).unwrap_or("");
    if kind.starts_with("multipart/related") {
        return Err(Failure::not_implemented("Attachments are not implemented yet."));
    }
    let replicated = call.query().get("new_edits").is_some_and(|value| value == "false");
    let stage = call.stage()?;
    let body = call.read_body().await?;
    let parsed = body::parse_edit(&body.text, call.server.document_options).await;
    let mut edit = parsed.map_err(|error| named(error, id))?;
    id.clone_into(&mut edit.id);
    edit.revision = one_of(call, edit.revision, revision_text)?;
    let deleted = edit.deleted;
    let revision = if replicated {
        check_replicated(&edit)?;
        let revisions = database.replicate_all(vec![edit], stage).await?;
        revisions.into_iter().next().ok_or_else(Failure::missing)??
    } else {
        database.update(edit, stage).await?
    };
    let status = match (stage, deleted) {
        (Stage::Accepted | Stage::Written, _) => StatusCode::ACCEPTED,
        (Stage::Persisted, true) => StatusCode::OK,
        (Stage::Persisted, false) => StatusCode::CREATED,
    };
    Ok(saved(call, database.name(), status, id, revision))
}

/// The answer to a write: its revision, its tag and where it is.
pub(crate) fn saved(
    call: &Call<'_>,
    name: &str,
    status: StatusCode,
    id: &str,
    revision: Revision,
) -> Response<Body> {
    let tag = etag(revision);
    let text = std::str::from_utf8(&tag[1..tag.len() - 1]).expect("a revision is ASCII");
    let mut response = reply::saved(status, id, text);
    reply::set_header(&mut response, header::LOCATION, location(call, name, Some(id)));
    reply::set_header(&mut response, header::ETAG, tag);
    response
}

/// CouchDB names the document that is too large; its id may be known from the path alone.
fn named(mut failure: Failure, id: &str) -> Failure {
    if failure.status == StatusCode::PAYLOAD_TOO_LARGE {
        failure.reason = id.to_owned().into();
    }
    failure
}

/// What `new_edits=false` needs.
pub(crate) fn check_replicated(edit: &Edit) -> Result<(), Failure> {
    match edit.revision {
        Some(_) => Ok(()),
        None => Err(Failure::bad_request(
            "When `new_edits: false`, the document needs `_rev` or `_revisions` specified",
        )),
    }
}

/// The revision that an edit names: in the document, the query or `If-Match`, which must agree.
pub(crate) fn one_of<T: PartialEq>(
    call: &Call<'_>,
    in_body: Option<T>,
    parse: impl Fn(&str) -> Result<T, Failure>,
) -> Result<Option<T>, Failure> {
    let in_query = call.query().get("rev").map(|text| parse(&text)).transpose()?;
    let in_header = call.header(header::IF_MATCH).map(|tag| parse(tag.trim_matches('"'))).transpose()?;
    if in_body.is_some() && in_query.is_some() && in_body != in_query {
        let reason = "Document rev from request body and query string have different values";
        return Err(Failure::bad_request(reason));
    }
    let explicit = in_body.or(in_query);
    if explicit.is_some() && in_header.is_some() && explicit != in_header {
        return Err(Failure::bad_request("Document rev and etag have different values"));
    }
    Ok(explicit.or(in_header))
}

fn revision_text(text: &str) -> Result<Revision, Failure> {
    Ok(text.parse::<Revision>()?)
}

async fn delete(call: &mut Call<'_>, database: &Arc<Database>, id: &str) -> Answer {
    let stage = call.stage()?;
    let revision = one_of(call, None, revision_text)?;
    // Without a revision there is nothing to lose: what isn't there is told from a conflict.
    match database.view().find(id).await? {
        None => return Err(Failure::missing()),
        Some(summary) if summary.deleted => {
            return Err(settee_doc::Error::new(ErrorKind::NotFound, "deleted").into());
        }
        Some(_) => {}
    }
    let revision = database.update(Edit::delete(id, revision), stage).await?;
    let status = if stage == Stage::Persisted { StatusCode::OK } else { StatusCode::ACCEPTED };
    let tag = etag(revision);
    let text = std::str::from_utf8(&tag[1..tag.len() - 1]).expect("a revision is ASCII");
    let mut response = reply::saved(status, id, text);
    reply::set_header(&mut response, header::ETAG, tag);
    Ok(response)
}

/// Appends `,"doc":` and the document.
pub(crate) async fn write_doc_member(
    database: &Database,
    view: &View,
    document: &Document,
    conflicts: bool,
    out: &mut Vec<u8>,
) -> Result<(), Failure> {
    let shape = Shape { conflicts, ..Shape::default() };
    let extras = shape.extras(database, view, document).await?;
    out.extend_from_slice(b",\"doc\":");
    document.write_json(&extras, out);
    Ok(())
}

/// Appends `"seq":"…",` of a changes row.
pub(crate) fn write_seq_member(database: &Database, seq: settee_doc::Seq, out: &mut Vec<u8>) {
    out.extend_from_slice(b"\"seq\":");
    quoted_seq(database, seq, out);
    out.push(b',');
}
