//! One document: read, written, deleted.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use hyper::header::{self, HeaderValue};
use hyper::{Method, Response, StatusCode};
use settee_doc::{Database, Document, Edit, ErrorKind, Extras, Leaves, Revision, View};

use crate::database::location;
use crate::error::Failure;
use crate::multipart::{self, Parts};
use crate::named::{self, List, Named, one_of};
use crate::query::Query;
use crate::reply::{self, Answer, Body};
use crate::server::Call;
use crate::stream::Out;
use crate::{attachment, body, copy, form, open_revs, related, stream};

/// Bytes of a document's answer beside id and body: `_id`, `_rev`, quotes, the line end.
const ENVELOPE_BYTES: usize = 80;

const OPTIMISTIC_WRITE: &str = "x-optimistic-write";

pub(crate) async fn handle(call: &mut Call<'_>, database: Arc<Database>, id: &str) -> Answer {
    if database.is_partitioned() {
        database.check_id(id)?;
    }
    match *call.method() {
        Method::GET | Method::HEAD => get(call, &database, id).await,
        Method::PUT => put(call, &database, id).await,
        Method::DELETE => delete(call, &database, id).await,
        Method::POST => form::post(call, &database, id).await,
        _ if call.method().as_str() == "COPY" => copy::handle(call, &database, id).await,
        _ => Err(Failure::method_not_allowed("DELETE,GET,HEAD,POST,PUT,COPY")),
    }
}

/// What a reader wants beside the document.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) revs: bool,
    pub(crate) conflicts: bool,
    revs_info: bool,
    deleted_conflicts: bool,
    local_seq: bool,
    /// The content of attachments.
    pub(crate) attachments: bool,
    /// Only of those that came after the newest of these revisions that the document descends from.
    pub(crate) attachments_since: Option<Vec<Revision>>,
    encoding: bool,
}

impl Shape {
    /// How a row of a list shows its document.
    pub(crate) fn of_row(conflicts: bool, attachments: bool, encoding: bool) -> Shape {
        Shape { conflicts, attachments, encoding, ..Shape::default() }
    }

    pub(crate) fn from_query(query: Query<'_>) -> Result<Shape, Failure> {
        let mut shape = Shape::default();
        for (name, value) in query.pairs() {
            if name == "atts_since" {
                // What no document has, none descends from.
                shape.attachments_since = Some(List::parse_value(&value)?.ours);
                shape.attachments = true;
            }
            if value != "true" {
                continue;
            }
            match name.as_ref() {
                "revs" => shape.revs = true,
                "revs_info" => shape.revs_info = true,
                "conflicts" => shape.conflicts = true,
                "deleted_conflicts" => shape.deleted_conflicts = true,
                "local_seq" => shape.local_seq = true,
                "attachments" => shape.attachments = true,
                "att_encoding_info" => shape.encoding = true,
                "meta" => {
                    shape.revs_info = true;
                    shape.conflicts = true;
                    shape.deleted_conflicts = true;
                }
                _ => {}
            }
        }
        Ok(shape)
    }

    /// Collects what is to be spliced into `document`.
    pub(crate) async fn extras(&self, view: &View, document: &Document) -> Result<Extras, Failure> {
        let mut extras = Extras::default();
        if *self == Shape::default() {
            return Ok(extras);
        }
        extras.encoding = self.encoding;
        let (id, revision) = (document.id.as_str(), document.revision);
        if self.revs || self.revs_info || self.conflicts || self.deleted_conflicts {
            let leaves = view.open_leaves(id).await?;
            for (index, leaf) in leaves.iter().enumerate() {
                let is_own = leaf.revision == revision;
                if is_own && (self.revs || self.revs_info) {
                    let history = leaves.history(index).await?;
                    if self.revs_info {
                        extras.revs_info = revisions_info(document, &history);
                    }
                    extras.revisions = self.revs.then_some(history);
                }
                match leaf.deleted {
                    _ if is_own => {}
                    true if self.deleted_conflicts => extras.deleted_conflicts.push(leaf.revision),
                    false if self.conflicts => extras.conflicts.push(leaf.revision),
                    _ => {}
                }
            }
        }
        if self.local_seq
            && let Some(summary) = view.find(id).await?
        {
            extras.local_seq = Some(summary.seq.0);
        }
        Ok(extras)
    }

    /// Reads one of several leaves to be sent. What is told of its document as a whole isn't told of it,
    /// as CouchDB has it.
    pub(crate) async fn open_leaf(&self, leaves: &Leaves, index: usize) -> Result<Opened, Failure> {
        let document = leaves.document(index).await?;
        let since = self.attachments_since.as_deref().filter(|_| !document.attachments.is_empty());
        let history = match self.revs || since.is_some() {
            true => leaves.history(index).await?,
            false => Vec::new(),
        };
        let known = since.map_or(0, |since| newest_known(document.revision, &history, since));
        let revisions = self.revs.then_some(history);
        let extras = Extras { revisions, encoding: self.encoding, ..Extras::default() };
        Ok(Opened { document, extras, known })
    }
}

/// A leaf on its way out.
pub(crate) struct Opened {
    pub(crate) document: Document,
    pub(crate) extras: Extras,
    /// Attachments that came up to this generation are known to the client.
    pub(crate) known: u32,
}

/// Writes a document, with what its attachments hold where that is wanted.
pub(crate) async fn write_document(
    view: &View,
    document: &Document,
    shape: &Shape,
    extras: &Extras,
    out: &mut Out,
) -> Result<(), Failure> {
    if !shape.attachments || document.attachments.is_empty() {
        document.write_json(extras, &mut out.buffer);
        return Ok(());
    }
    let known = known_generation(view, document, shape).await?;
    write_inline(view, document, extras, known, out).await
}

/// Writes a leaf, with what its attachments hold where that is wanted.
pub(crate) async fn write_opened(
    view: &View,
    opened: &Opened,
    shape: &Shape,
    out: &mut Out,
) -> Result<(), Failure> {
    if shape.attachments {
        return write_inline(view, &opened.document, &opened.extras, opened.known, out).await;
    }
    opened.document.write_json(&opened.extras, &mut out.buffer);
    Ok(())
}

/// Writes a document with the content of those attachments that came after `known`.
async fn write_inline(
    view: &View,
    document: &Document,
    extras: &Extras,
    known: u32,
    out: &mut Out,
) -> Result<(), Failure> {
    if document.attachments.is_empty() {
        document.write_json(extras, &mut out.buffer);
        return Ok(());
    }
    document.begin_json(&mut out.buffer);
    for (index, attachment) in document.attachments.iter().enumerate() {
        out.buffer.extend_from_slice(if index == 0 { b",\"_attachments\":{" } else { b"," });
        settee_doc::write_json_string(&attachment.name, &mut out.buffer);
        out.buffer.extend_from_slice(b":{");
        if attachment.revpos <= known {
            attachment.write_members(extras.encoding, &mut out.buffer);
            out.buffer.extend_from_slice(b",\"stub\":true}");
            continue;
        }
        attachment.write_members_with_data(extras.encoding, &mut out.buffer);
        out.buffer.extend_from_slice(b",\"data\":\"");
        // Whatever is told of its encoding: inline it comes as what it is.
        let mut reader = view.attachment(&document.id, attachment, None, true);
        let mut rest: Vec<u8> = Vec::new();
        while let Some(bytes) = reader.next().await? {
            rest.extend_from_slice(&bytes);
            // Three bytes are four digits.
            let whole = rest.len() / 3 * 3;
            write_base64(&rest[..whole], &mut out.buffer);
            rest.drain(..whole);
            out.flush_full().await?;
        }
        write_base64(&rest, &mut out.buffer);
        out.buffer.extend_from_slice(b"\"}");
    }
    out.buffer.push(b'}');
    document.end_json(extras, &mut out.buffer);
    Ok(())
}

fn write_base64(bytes: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + bytes.len().div_ceil(3) * 4, 0);
    BASE64.encode_slice(bytes, &mut out[start..]).expect("it has room for all digits");
}

/// The newest generation of the document's own that the client has, by `atts_since`.
pub(crate) async fn known_generation(
    view: &View,
    document: &Document,
    shape: &Shape,
) -> Result<u32, Failure> {
    let Some(since) = &shape.attachments_since else { return Ok(0) };
    let history = view.history(&document.id, document.revision).await?;
    Ok(newest_known(document.revision, &history, since))
}

/// The generation of the newest of `since` that the history holds, which leads to `revision`.
fn newest_known(revision: Revision, history: &[[u8; 16]], since: &[Revision]) -> u32 {
    let has = |known: &&Revision| {
        let age = revision.generation.checked_sub(known.generation);
        age.and_then(|age| history.get(age as usize)) == Some(&known.hash)
    };
    since.iter().filter(has).map(|known| known.generation).max().unwrap_or(0)
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
            let wanted = open_revs::parse(&list)?;
            // To ask for none is not to ask for revisions.
            if wanted.as_ref().is_none_or(|wanted| !wanted.is_empty()) {
                return open_revs::get(call, view, id, wanted).await;
            }
        }
        shape = Shape::from_query(query)?;
        revision = query.get("rev").map(|text| Named::parse(&text)).transpose()?;
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
        Some(named) => one_revision(&view, id, named.known()?).await?,
    };
    let extras = shape.extras(&view, &document).await?;
    let has_meta = !extras.conflicts.is_empty()
        || !extras.deleted_conflicts.is_empty()
        || extras.local_seq.is_some()
        || !extras.revs_info.is_empty();
    let tag = etag(document.revision);
    if !has_meta && matches_tag(call, &tag) {
        return Ok(not_modified(tag));
    }
    let has_content = shape.attachments && !document.attachments.is_empty();
    let mut response = if has_content && multipart::accepts(call.header(header::ACCEPT), related::TYPE) {
        let known = known_generation(&view, &document, &shape).await?;
        related::answer(call, view, document, extras, known).await?
    } else if has_content {
        let view = view.clone();
        stream::respond(call.output(), async move |mut out| {
            write_document(&view, &document, &shape, &extras, &mut out).await?;
            out.buffer.push(b'\n');
            Ok(out)
        })
        .await?
    } else {
        let mut text = Vec::with_capacity(document.body.len() + id.len() + ENVELOPE_BYTES);
        document.write_json(&extras, &mut text);
        text.push(b'\n');
        reply::json(StatusCode::OK, text)
    };
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

pub(crate) async fn one_revision(view: &View, id: &str, revision: Revision) -> Result<Document, Failure> {
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
pub(crate) fn matches_tag(call: &Call<'_>, tag: &[u8]) -> bool {
    let sent = call.head.headers.get_all(header::IF_NONE_MATCH).iter();
    sent.filter_map(|value| value.to_str().ok())
        .flat_map(|tags| tags.split(','))
        .any(|sent| sent.trim().trim_start_matches("W/").as_bytes() == tag)
}

/// JSON text with its digest for a tag, or that the client's cache has it.
pub(crate) fn tagged_by_content(call: &Call<'_>, text: Vec<u8>) -> Response<Body> {
    let digest = <sha2::Sha256 as sha2::Digest>::digest(&text);
    let tag = Bytes::from(format!("\"{}\"", BASE64.encode(&digest[..16])));
    if matches_tag(call, &tag) {
        return not_modified(tag);
    }
    let mut response = reply::json(StatusCode::OK, text);
    reply::set_header(&mut response, header::ETAG, tag);
    response
}

pub(crate) fn not_modified(tag: Bytes) -> Response<Body> {
    let mut response = reply::with_body(StatusCode::NOT_MODIFIED, Body::Nothing);
    response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
    reply::set_header(&mut response, header::ETAG, tag);
    response
}

async fn put(call: &mut Call<'_>, database: &Arc<Database>, id: &str) -> Answer {
    settee_doc::check_document_id(id)?;
    let kind = call.header(header::CONTENT_TYPE).unwrap_or("");
    let mut parts = match multipart::parameters(kind).0 == related::TYPE {
        true => Some(Parts::new(kind)?),
        false => None,
    };
    let replicated = call.query().get("new_edits").is_some_and(|value| value == "false");
    let concern = call.write_concern()?;
    let held = match &mut parts {
        Some(parts) => related::read_document(parts, call).await?,
        None => call.read_body().await?,
    };
    let parsed = body::parse_edit(held, call.server).await;
    let (mut edit, _for_the_edit) = parsed.map_err(|error| with_id(error, id))?;
    id.clone_into(&mut edit.id);
    Named::name(one_of(call, Named::of(&edit), Named::parse)?, &mut edit);
    let deleted = edit.deleted;
    if replicated {
        named::check_replicated(&edit)?;
        if let Some(failure) = named::refusal(&edit) {
            return Err(failure);
        }
    }
    if let Some(parts) = &mut parts {
        if !replicated {
            check_leaf(database, &edit).await?;
        }
        related::receive(parts, call, database, &mut edit).await?;
    }
    if is_optimistic(call)? {
        database.write_ahead(std::slice::from_mut(&mut edit), replicated).await?;
    }
    let revision = if replicated {
        let revisions = database.replicate_all(vec![edit], concern.stage).await?;
        revisions.into_iter().next().ok_or_else(Failure::missing)??
    } else {
        database.update(edit, concern.stage).await?
    };
    let status = concern.status(if deleted { StatusCode::OK } else { StatusCode::CREATED });
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
    let mut response = saved_as(status, id, revision);
    reply::set_header(&mut response, header::LOCATION, location(call, name, Some(id)));
    response
}

/// As [`saved`], without a place.
pub(crate) fn saved_as(status: StatusCode, id: &str, revision: Revision) -> Response<Body> {
    let tag = etag(revision);
    let text = std::str::from_utf8(&tag[1..tag.len() - 1]).expect("a revision is ASCII");
    let mut response = reply::saved(status, id, text);
    reply::set_header(&mut response, header::ETAG, tag);
    response
}

/// Whether large bodies are to be written ahead of their updates: `X-Optimistic-Write`.
pub(crate) fn is_optimistic(call: &Call<'_>) -> Result<bool, Failure> {
    match call.head.headers.get(OPTIMISTIC_WRITE).map(HeaderValue::as_bytes) {
        None | Some(b"false") => Ok(false),
        Some(b"true") => Ok(true),
        Some(_) => Err(Failure::bad_request("X-Optimistic-Write must be true or false.")),
    }
}

/// Nothing is uploaded for an edit that is bound to be a conflict. What was accepted and can't be seen yet
/// counts: where the edit doesn't fit what can be, it is waited for.
pub(crate) async fn check_leaf(database: &Database, edit: &Edit) -> Result<(), Failure> {
    if edit.revision.is_none() && edit.foreign_revision.is_some() {
        return Err(named::conflict());
    }
    if fits(&database.view(), edit).await? {
        return Ok(());
    }
    database.barrier().await?;
    match fits(&database.view(), edit).await? {
        true => Ok(()),
        false => Err(named::conflict()),
    }
}

async fn fits(view: &View, edit: &Edit) -> Result<bool, Failure> {
    Ok(match edit.revision {
        Some(revision) => view.leaves(&edit.id).await?.iter().any(|leaf| leaf.revision == revision),
        None => view.find(&edit.id).await?.is_none_or(|summary| summary.deleted),
    })
}

/// A revision that an edit goes on from, which may have been accepted just now.
///
/// # Errors
/// A conflict where it was replaced; where it never was one, what CouchDB calls a missing revision.
pub(crate) async fn edited_revision(
    database: &Database,
    id: &str,
    revision: Revision,
) -> Result<Document, Failure> {
    let found = one_revision(&database.view(), id, revision).await;
    let found = match found {
        Err(failure) if failure.status == StatusCode::NOT_FOUND => {
            database.barrier().await?;
            one_revision(&database.view(), id, revision).await
        }
        found => found,
    };
    match found {
        Err(failure) if failure.status == StatusCode::NOT_FOUND => {
            Err(match database.view().history(id, revision).await {
                Ok(_) => named::conflict(),
                Err(_) => attachment::or_conflict(failure),
            })
        }
        found => found,
    }
}

/// CouchDB names the document that is too large; its id may be known from the path alone.
fn with_id(mut failure: Failure, id: &str) -> Failure {
    if failure.status == StatusCode::PAYLOAD_TOO_LARGE {
        failure.reason = id.to_owned().into();
    }
    failure
}

async fn delete(call: &mut Call<'_>, database: &Arc<Database>, id: &str) -> Answer {
    let concern = call.write_concern()?;
    let named = one_of(call, None, Named::parse)?;
    let mut found = database.view().find(id).await?;
    if named.is_some() && found.is_none_or(|summary| summary.deleted) {
        // It may have been accepted just now.
        database.barrier().await?;
        found = database.view().find(id).await?;
    }
    // Without a revision there is nothing to lose: what isn't there is told from a conflict.
    match found {
        None => return Err(Failure::missing()),
        Some(summary) if summary.deleted => {
            return Err(settee_doc::Error::new(ErrorKind::NotFound, "deleted").into());
        }
        Some(_) => {}
    }
    let mut edit = Edit::delete(id, None);
    Named::name(named, &mut edit);
    let revision = database.update(edit, concern.stage).await?;
    Ok(saved_as(concern.status(StatusCode::OK), id, revision))
}
