//! Reads, writes and deletes one document.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use hyper::header::{self, HeaderValue};
use hyper::{Method, Response, StatusCode};
use settee_doc::{Database, Document, Edit, ErrorKind, Extras, Leaves, Revision, Snapshot};

use crate::database::location;
use crate::error::ApiError;
use crate::multipart::{self, Parts};
use crate::query::Query;
use crate::response::{self, Body, HandlerResult};
use crate::response_writer::ResponseWriter;
use crate::revision_arg::{self, RevisionArg, RevisionList, one_of};
use crate::server::RequestContext;
use crate::{attachment, body, copy, form, open_revs, related, response_writer};

/// Bytes of a document's JSON besides id and body: `_id`, `_rev`, quotes and the newline.
const ENVELOPE_BYTES: usize = 80;

const OPTIMISTIC_WRITE: &str = "x-optimistic-write";

pub(crate) async fn handle(
    context: &mut RequestContext<'_>,
    database: Arc<Database>,
    id: &str,
) -> HandlerResult {
    if database.is_partitioned() {
        database.check_id(id)?;
    }
    match *context.method() {
        Method::GET | Method::HEAD => get(context, &database, id).await,
        Method::PUT => put(context, &database, id).await,
        Method::DELETE => delete(context, &database, id).await,
        Method::POST => form::post(context, &database, id).await,
        _ if context.method().as_str() == "COPY" => copy::handle(context, &database, id).await,
        _ => Err(ApiError::method_not_allowed("DELETE,GET,HEAD,POST,PUT,COPY")),
    }
}

/// The options for reading a document.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct DocumentOptions {
    pub(crate) revs: bool,
    pub(crate) conflicts: bool,
    revs_info: bool,
    deleted_conflicts: bool,
    local_seq: bool,
    /// Whether the content of attachments is included.
    pub(crate) attachments: bool,
    /// Includes only attachments newer than the newest of these revisions that is an ancestor of the
    /// document.
    pub(crate) attachments_since: Option<Vec<Revision>>,
    encoding: bool,
}

impl DocumentOptions {
    /// The options for a document in a row of a list.
    pub(crate) fn of_row(conflicts: bool, attachments: bool, encoding: bool) -> DocumentOptions {
        DocumentOptions { conflicts, attachments, encoding, ..DocumentOptions::default() }
    }

    pub(crate) fn from_query(query: Query<'_>) -> Result<DocumentOptions, ApiError> {
        let mut options = DocumentOptions::default();
        for (name, value) in query.pairs() {
            if name == "atts_since" {
                // A foreign revision is an ancestor of no document.
                options.attachments_since = Some(RevisionList::parse_value(&value)?.ours);
                options.attachments = true;
            }
            if value != "true" {
                continue;
            }
            match name.as_ref() {
                "revs" => options.revs = true,
                "revs_info" => options.revs_info = true,
                "conflicts" => options.conflicts = true,
                "deleted_conflicts" => options.deleted_conflicts = true,
                "local_seq" => options.local_seq = true,
                "attachments" => options.attachments = true,
                "att_encoding_info" => options.encoding = true,
                "meta" => {
                    options.revs_info = true;
                    options.conflicts = true;
                    options.deleted_conflicts = true;
                }
                _ => {}
            }
        }
        Ok(options)
    }

    /// Collects the members to add to the JSON of `document`.
    pub(crate) async fn extras(&self, snapshot: &Snapshot, document: &Document) -> Result<Extras, ApiError> {
        let mut extras = Extras::default();
        if *self == DocumentOptions::default() {
            return Ok(extras);
        }
        extras.encoding = self.encoding;
        let (id, revision) = (document.id.as_str(), document.revision);
        if self.revs || self.revs_info || self.conflicts || self.deleted_conflicts {
            let leaves = snapshot.open_leaves(id).await?;
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
            && let Some(summary) = snapshot.find(id).await?
        {
            extras.local_seq = Some(summary.seq.0);
        }
        Ok(extras)
    }

    /// Reads one of several leaves. As in CouchDB, members about the whole document are left out.
    pub(crate) async fn open_leaf(&self, leaves: &Leaves, index: usize) -> Result<OpenedLeaf, ApiError> {
        let document = leaves.document(index).await?;
        let since = self.attachments_since.as_deref().filter(|_| !document.attachments.is_empty());
        let history = match self.revs || since.is_some() {
            true => leaves.history(index).await?,
            false => Vec::new(),
        };
        let known = since.map_or(0, |since| newest_known(document.revision, &history, since));
        let revisions = self.revs.then_some(history);
        let extras = Extras { revisions, encoding: self.encoding, ..Extras::default() };
        Ok(OpenedLeaf { document, extras, known })
    }
}

/// A leaf that was read, to be sent.
pub(crate) struct OpenedLeaf {
    pub(crate) document: Document,
    pub(crate) extras: Extras,
    /// Attachments of this generation and older ones are known to the client.
    pub(crate) known: u32,
}

/// Writes a document, with the content of its attachments if `options` asks for it.
pub(crate) async fn write_document(
    snapshot: &Snapshot,
    document: &Document,
    options: &DocumentOptions,
    extras: &Extras,
    out: &mut ResponseWriter,
) -> Result<(), ApiError> {
    if !options.attachments || document.attachments.is_empty() {
        document.write_json(extras, &mut out.buffer);
        return Ok(());
    }
    let known = known_generation(snapshot, document, options).await?;
    write_inline(snapshot, document, extras, known, out).await
}

/// Writes a leaf, with the content of its attachments if `options` asks for it.
pub(crate) async fn write_opened(
    snapshot: &Snapshot,
    opened: &OpenedLeaf,
    options: &DocumentOptions,
    out: &mut ResponseWriter,
) -> Result<(), ApiError> {
    if options.attachments {
        return write_inline(snapshot, &opened.document, &opened.extras, opened.known, out).await;
    }
    opened.document.write_json(&opened.extras, &mut out.buffer);
    Ok(())
}

/// Writes a document with the content of attachments newer than the generation `known`.
async fn write_inline(
    snapshot: &Snapshot,
    document: &Document,
    extras: &Extras,
    known: u32,
    out: &mut ResponseWriter,
) -> Result<(), ApiError> {
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
        // Inline content is always decoded, even with `att_encoding_info`.
        let mut reader = snapshot.attachment(&document.id, attachment, None, true);
        let mut rest: Vec<u8> = Vec::new();
        while let Some(bytes) = reader.next().await? {
            rest.extend_from_slice(&bytes);
            // Three bytes are four digits, so only multiples of three are encoded before the end.
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
    BASE64.encode_slice(bytes, &mut out[start..]).expect("the buffer holds all digits");
}

/// The newest generation in the document's history that the client has, according to `atts_since`.
pub(crate) async fn known_generation(
    snapshot: &Snapshot,
    document: &Document,
    options: &DocumentOptions,
) -> Result<u32, ApiError> {
    let Some(since) = &options.attachments_since else { return Ok(0) };
    let history = snapshot.history(&document.id, document.revision).await?;
    Ok(newest_known(document.revision, &history, since))
}

/// The generation of the newest of `since` in the history that leads to `revision`.
fn newest_known(revision: Revision, history: &[[u8; 16]], since: &[Revision]) -> u32 {
    let has = |known: &&Revision| {
        let age = revision.generation.checked_sub(known.generation);
        age.and_then(|age| history.get(age as usize)) == Some(&known.hash)
    };
    since.iter().filter(has).map(|known| known.generation).max().unwrap_or(0)
}

/// `_revs_info`. Of a leaf's path only the leaf's body is stored.
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

async fn get(context: &mut RequestContext<'_>, database: &Arc<Database>, id: &str) -> HandlerResult {
    let query = context.query();
    let snapshot = database.snapshot();
    let mut options = DocumentOptions::default();
    let (mut revision, mut deleted) = (None, false);
    if !query.0.is_empty() {
        if let Some(list) = query.get("open_revs") {
            let wanted = open_revs::parse(&list)?;
            // An empty list counts as no `open_revs`.
            if wanted.as_ref().is_none_or(|wanted| !wanted.is_empty()) {
                return open_revs::get(context, snapshot, id, wanted).await;
            }
        }
        options = DocumentOptions::from_query(query)?;
        revision = query.get("rev").map(|text| RevisionArg::parse(&text)).transpose()?;
        // With `latest` CouchDB returns the winner regardless of `rev`.
        if query.is_true("latest") {
            revision = None;
        }
        deleted = query.is_true("deleted");
    }
    let plain = revision.is_none() && options == DocumentOptions::default() && !deleted;
    if plain && (context.is_head() || context.head.headers.contains_key(header::IF_NONE_MATCH)) {
        // These need only the index.
        if let Some(answer) = without_body(context, &snapshot, id).await? {
            return Ok(answer);
        }
    }
    let document = match revision {
        None if deleted => snapshot.document_or_deleted(id).await?.ok_or_else(ApiError::missing)?,
        None => snapshot.document(id).await?,
        Some(revision_arg) => one_revision(&snapshot, id, revision_arg.or_missing()?).await?,
    };
    let extras = options.extras(&snapshot, &document).await?;
    let has_meta = !extras.conflicts.is_empty()
        || !extras.deleted_conflicts.is_empty()
        || extras.local_seq.is_some()
        || !extras.revs_info.is_empty();
    let tag = etag(document.revision);
    if !has_meta && matches_tag(context, &tag) {
        return Ok(not_modified(tag));
    }
    let has_content = options.attachments && !document.attachments.is_empty();
    let mut response = if has_content && multipart::accepts(context.header(header::ACCEPT), related::TYPE) {
        let known = known_generation(&snapshot, &document, &options).await?;
        related::answer(context, snapshot, document, extras, known).await?
    } else if has_content {
        let snapshot = snapshot.clone();
        response_writer::respond(context.output(), async move |mut out| {
            write_document(&snapshot, &document, &options, &extras, &mut out).await?;
            out.buffer.push(b'\n');
            Ok(out)
        })
        .await?
    } else {
        let mut text = Vec::with_capacity(document.body.len() + id.len() + ENVELOPE_BYTES);
        document.write_json(&extras, &mut text);
        text.push(b'\n');
        response::json(StatusCode::OK, text)
    };
    if !has_meta {
        response::set_header(&mut response, header::ETAG, tag);
    }
    Ok(response)
}

/// The response to a HEAD, or a 304; None if the document must be read.
async fn without_body(
    context: &RequestContext<'_>,
    snapshot: &Snapshot,
    id: &str,
) -> Result<Option<Response<Body>>, ApiError> {
    let not_found =
        |reason: &str| ApiError::from(settee_doc::Error::new(ErrorKind::NotFound, reason.to_owned()));
    let summary = snapshot.find(id).await?.ok_or_else(|| not_found("missing"))?;
    if summary.deleted {
        return Err(not_found("deleted"));
    }
    let tag = etag(summary.revision);
    if matches_tag(context, &tag) {
        return Ok(Some(not_modified(tag)));
    }
    if !context.is_head() {
        return Ok(None);
    }
    let mut response = response::empty(StatusCode::OK);
    response::set_header(&mut response, header::ETAG, tag);
    Ok(Some(response))
}

pub(crate) async fn one_revision(
    snapshot: &Snapshot,
    id: &str,
    revision: Revision,
) -> Result<Document, ApiError> {
    snapshot.revision(id, revision, false).await?.into_iter().next().ok_or_else(ApiError::missing)
}

/// The revision in quotes, `"N-hash"`.
pub(crate) fn etag(revision: Revision) -> Bytes {
    let mut tag = Vec::with_capacity(48);
    tag.push(b'"');
    revision.write(&mut tag);
    tag.push(b'"');
    tag.into()
}

/// Whether `If-None-Match` has this tag.
pub(crate) fn matches_tag(context: &RequestContext<'_>, tag: &[u8]) -> bool {
    let sent = context.head.headers.get_all(header::IF_NONE_MATCH).iter();
    sent.filter_map(|value| value.to_str().ok())
        .flat_map(|tags| tags.split(','))
        .any(|sent| sent.trim().trim_start_matches("W/").as_bytes() == tag)
}

/// Responds with JSON text and its digest as ETag, or with 304 if the client has it.
pub(crate) fn tagged_by_content(context: &RequestContext<'_>, text: Vec<u8>) -> Response<Body> {
    let digest = <sha2::Sha256 as sha2::Digest>::digest(&text);
    let tag = Bytes::from(format!("\"{}\"", BASE64.encode(&digest[..16])));
    if matches_tag(context, &tag) {
        return not_modified(tag);
    }
    let mut response = response::json(StatusCode::OK, text);
    response::set_header(&mut response, header::ETAG, tag);
    response
}

pub(crate) fn not_modified(tag: Bytes) -> Response<Body> {
    let mut response = response::with_body(StatusCode::NOT_MODIFIED, Body::Empty);
    response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
    response::set_header(&mut response, header::ETAG, tag);
    response
}

async fn put(context: &mut RequestContext<'_>, database: &Arc<Database>, id: &str) -> HandlerResult {
    settee_doc::check_document_id(id)?;
    let kind = context.header(header::CONTENT_TYPE).unwrap_or("");
    let mut parts = match multipart::parameters(kind).0 == related::TYPE {
        true => Some(Parts::new(kind)?),
        false => None,
    };
    let replicated = context.query().get("new_edits").is_some_and(|value| value == "false");
    let concern = context.write_concern()?;
    let body = match &mut parts {
        Some(parts) => related::read_document(parts, context).await?,
        None => context.read_body().await?,
    };
    let parsed = body::parse_edit(body, context.server).await;
    let (mut edit, _permit) = parsed.map_err(|error| with_id(error, id))?;
    id.clone_into(&mut edit.id);
    RevisionArg::set_if_absent(one_of(context, RevisionArg::of(&edit), RevisionArg::parse)?, &mut edit);
    let deleted = edit.deleted;
    if replicated {
        revision_arg::check_replicated(&edit)?;
        if let Some(failure) = revision_arg::refusal(&edit) {
            return Err(failure);
        }
    }
    if let Some(parts) = &mut parts {
        if !replicated {
            check_leaf(database, &edit).await?;
        }
        related::receive(parts, context, database, &mut edit).await?;
    }
    if is_optimistic(context)? {
        database.write_large_bodies(std::slice::from_mut(&mut edit), replicated).await?;
    }
    let revision = if replicated {
        let revisions = database.replicate_all(vec![edit], concern.stage).await?;
        revisions.into_iter().next().ok_or_else(ApiError::missing)??
    } else {
        database.update(edit, concern.stage).await?
    };
    let status = concern.status(if deleted { StatusCode::OK } else { StatusCode::CREATED });
    Ok(saved(context, database.name(), status, id, revision))
}

/// The response to a write: the revision, its ETag and the `Location`.
pub(crate) fn saved(
    context: &RequestContext<'_>,
    name: &str,
    status: StatusCode,
    id: &str,
    revision: Revision,
) -> Response<Body> {
    let mut response = saved_as(status, id, revision);
    response::set_header(&mut response, header::LOCATION, location(context, name, Some(id)));
    response
}

/// As [`saved`], without `Location`.
pub(crate) fn saved_as(status: StatusCode, id: &str, revision: Revision) -> Response<Body> {
    let tag = etag(revision);
    let text = std::str::from_utf8(&tag[1..tag.len() - 1]).expect("a revision is ASCII");
    let mut response = response::saved(status, id, text);
    response::set_header(&mut response, header::ETAG, tag);
    response
}

/// Whether the client sent `X-Optimistic-Write: true`, so that large bodies are written before their updates.
pub(crate) fn is_optimistic(context: &RequestContext<'_>) -> Result<bool, ApiError> {
    match context.head.headers.get(OPTIMISTIC_WRITE).map(HeaderValue::as_bytes) {
        None | Some(b"false") => Ok(false),
        Some(b"true") => Ok(true),
        Some(_) => Err(ApiError::bad_request("X-Optimistic-Write must be true or false.")),
    }
}

/// Fails early with a conflict, before anything is uploaded for the edit. If the edit doesn't fit the visible
/// revisions, waits for accepted writes to become visible and checks again.
pub(crate) async fn check_leaf(database: &Database, edit: &Edit) -> Result<(), ApiError> {
    if edit.revision.is_none() && edit.foreign_revision.is_some() {
        return Err(revision_arg::conflict());
    }
    if fits(&database.snapshot(), edit).await? {
        return Ok(());
    }
    database.barrier().await?;
    match fits(&database.snapshot(), edit).await? {
        true => Ok(()),
        false => Err(revision_arg::conflict()),
    }
}

async fn fits(snapshot: &Snapshot, edit: &Edit) -> Result<bool, ApiError> {
    Ok(match edit.revision {
        Some(revision) => snapshot.leaves(&edit.id).await?.iter().any(|leaf| leaf.revision == revision),
        None => snapshot.find(&edit.id).await?.is_none_or(|summary| summary.deleted),
    })
}

/// Reads the revision that an edit replaces. If it isn't visible, waits for accepted writes first.
///
/// # Errors
/// A conflict if the revision was replaced; CouchDB's `missing_rev` if it never was a leaf.
pub(crate) async fn edited_revision(
    database: &Database,
    id: &str,
    revision: Revision,
) -> Result<Document, ApiError> {
    let found = one_revision(&database.snapshot(), id, revision).await;
    let found = match found {
        Err(failure) if failure.status == StatusCode::NOT_FOUND => {
            database.barrier().await?;
            one_revision(&database.snapshot(), id, revision).await
        }
        found => found,
    };
    match found {
        Err(failure) if failure.status == StatusCode::NOT_FOUND => {
            Err(match database.snapshot().history(id, revision).await {
                Ok(_) => revision_arg::conflict(),
                Err(_) => attachment::or_conflict(failure),
            })
        }
        found => found,
    }
}

/// Puts the id from the path in the reason of a 413, where CouchDB has it.
fn with_id(mut failure: ApiError, id: &str) -> ApiError {
    if failure.status == StatusCode::PAYLOAD_TOO_LARGE {
        failure.reason = id.to_owned().into();
    }
    failure
}

async fn delete(context: &mut RequestContext<'_>, database: &Arc<Database>, id: &str) -> HandlerResult {
    let concern = context.write_concern()?;
    let revision_arg = one_of(context, None, RevisionArg::parse)?;
    let mut found = database.snapshot().find(id).await?;
    if revision_arg.is_some() && found.is_none_or(|summary| summary.deleted) {
        // The document may have been accepted just now and not be visible yet.
        database.barrier().await?;
        found = database.snapshot().find(id).await?;
    }
    // A 404 for a missing document takes precedence over a conflict.
    match found {
        None => return Err(ApiError::missing()),
        Some(summary) if summary.deleted => {
            return Err(settee_doc::Error::new(ErrorKind::NotFound, "deleted").into());
        }
        Some(_) => {}
    }
    let mut edit = Edit::delete(id, None);
    RevisionArg::set_if_absent(revision_arg, &mut edit);
    let revision = database.update(edit, concern.stage).await?;
    Ok(saved_as(concern.status(StatusCode::OK), id, revision))
}
