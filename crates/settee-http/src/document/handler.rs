//! Reads, writes and deletes one document.

use std::sync::Arc;

use hyper::header;
use hyper::{Method, Response, StatusCode};
use settee_doc::{Database, Edit, ErrorKind, Snapshot};

use super::edited_revision::check_leaf;
use super::inline::write_document;
use super::options::{DocumentOptions, known_generation};
use super::parts::Parts;
use super::revision_arg::{self, one_of};
use super::saved::{saved, saved_as};
use super::{copy, form, open_revs, related};
use crate::body::multipart;
use crate::context::{RequestContext, etag, matches_tag, not_modified, set_etag};
use crate::error::ApiError;
use crate::response::{self, Body, HandlerResult, writer};

/// Bytes of a document's JSON besides id and body: `_id`, `_rev`, quotes and the newline.
const ENVELOPE_BYTES: usize = 80;

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
        revision = query.get("rev").map(|text| revision_arg::parse(&text)).transpose()?;
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
        Some(revision) => snapshot.available_revision(id, &revision).await?,
    };
    let extras = options.extras(&snapshot, &document).await?;
    let has_meta = !extras.conflicts.is_empty()
        || !extras.deleted_conflicts.is_empty()
        || extras.local_seq.is_some()
        || !extras.revs_info.is_empty();
    let tag = etag(&document.revision).filter(|_| !has_meta);
    if let Some(tag) = tag.as_ref().filter(|tag| matches_tag(context, tag)) {
        return Ok(not_modified(tag.clone()));
    }
    let has_content = options.attachments && !document.attachments.is_empty();
    let mut response = if has_content && multipart::accepts(context.header(header::ACCEPT), related::TYPE) {
        let known = known_generation(&snapshot, &document, &options).await?;
        related::answer(context, snapshot, document, extras, known).await?
    } else if has_content || document.large_body.is_some() {
        let snapshot = snapshot.clone();
        writer::respond(context.output(), async move |mut out| {
            write_document(&snapshot, &document, &options, &extras, &mut out).await?;
            out.buffer.push(b'\n');
            Ok(out)
        })
        .await?
    } else {
        // Whole, so that the response has its length.
        let mut text = Vec::with_capacity(document.body.len() + id.len() + ENVELOPE_BYTES);
        document.write_json(&extras, &mut text);
        text.push(b'\n');
        response::json(StatusCode::OK, text)
    };
    set_etag(&mut response, tag);
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
    let tag = etag(&summary.revision);
    if let Some(tag) = tag.as_ref().filter(|tag| matches_tag(context, tag)) {
        return Ok(Some(not_modified(tag.clone())));
    }
    if !context.is_head() {
        return Ok(None);
    }
    let mut response = response::empty(StatusCode::OK);
    set_etag(&mut response, tag);
    Ok(Some(response))
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
    let parsed = context.parse_edit(body).await;
    let (mut edit, _permit) = parsed.map_err(|error| with_id(error, id))?;
    id.clone_into(&mut edit.id);
    revision_arg::set_if_absent(one_of(context, edit.revision.clone(), revision_arg::parse)?, &mut edit);
    let deleted = edit.deleted;
    if replicated {
        revision_arg::check_replicated(&edit)?;
    }
    if (parts.is_some() || database.is_written_ahead(&edit)) && !replicated {
        check_leaf(database, &edit).await?;
    }
    if let Some(parts) = &mut parts {
        related::receive(parts, context, database, &mut edit).await?;
    }
    if context.is_optimistic()? {
        database.write_large_bodies(std::slice::from_mut(&mut edit), replicated).await?;
    }
    let revision = if replicated {
        let revisions = database.replicate_all(vec![edit], concern.stage).await?;
        revisions.into_iter().next().ok_or_else(ApiError::missing)??
    } else {
        database.update(edit, concern.stage).await?
    };
    let status = concern.status(if deleted { StatusCode::OK } else { StatusCode::CREATED });
    Ok(saved(context, database.name(), status, id, &revision))
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
    let named = one_of(context, None, revision_arg::parse)?;
    let mut found = database.snapshot().find(id).await?;
    if named.is_some() && found.as_ref().is_none_or(|summary| summary.deleted) {
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
    let revision = database.update(Edit::delete(id, named), concern.stage).await?;
    Ok(saved_as(concern.status(StatusCode::OK), id, &revision))
}
