//! Reads, writes and deletes one attachment.
//!
//! Only one chunk is in memory at a time, under a permit of the memory for request bodies. An upload is
//! stored as it arrives; a download is read as the client reads it.

use std::ops::Range;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use hyper::header::{self, HeaderName};
use hyper::{Method, StatusCode};
use settee_doc::{
    Attachment, CHUNK_BYTES, Content, Database, Document, Edit, ErrorKind, NewAttachment, Snapshot, Stage,
};

use super::edited_revision::{check_leaf, edited_revision};
use super::related;
use super::revision_arg::{self, conflict, one_of};
use super::saved::saved_as;
use super::whole::edit_again;
use crate::body::{MemoryPermit, multipart};
use crate::context::{RequestContext, location_of_attachment, matches_tag, not_modified};
use crate::error::ApiError;
use crate::response::compress::accepts_gzip;
use crate::response::{self, HandlerResult, writer};

/// The media type of an attachment sent without one.
const UNKNOWN_TYPE: &str = "application/octet-stream";

const CONTENT_MD5: HeaderName = HeaderName::from_static("content-md5");

pub(crate) async fn handle(
    context: &mut RequestContext<'_>,
    database: Arc<Database>,
    id: &str,
    name: &str,
) -> HandlerResult {
    match *context.method() {
        Method::GET | Method::HEAD => get(context, &database, id, name).await,
        Method::PUT => put(context, &database, id, name).await,
        Method::DELETE => delete(context, &database, id, name).await,
        _ => Err(ApiError::method_not_allowed("DELETE,GET,HEAD,PUT")),
    }
}

fn no_attachment() -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "not_found", "Document is missing attachment")
}

async fn get(context: &RequestContext<'_>, database: &Arc<Database>, id: &str, name: &str) -> HandlerResult {
    let snapshot = database.snapshot();
    let document = holder(context, &snapshot, id).await?;
    let attachment =
        document.attachments.into_iter().find(|other| other.name == name).ok_or_else(no_attachment)?;
    let digest = BASE64.encode(attachment.digest);
    let tag = Bytes::from(format!("\"{digest}\""));
    if matches_tag(context, &tag) {
        return Ok(not_modified(tag));
    }
    let is_encoded = attachment.gzip_length.is_some();
    let decode = is_encoded && !accepts_gzip(&context.head.headers);
    let whole = if decode { attachment.length } else { attachment.stored_length() };
    let ranges = match context.header(header::RANGE) {
        Some(text) if !is_encoded => parse_ranges(text, whole)?,
        _ => Vec::new(),
    };
    if ranges.len() > 1 {
        return send_ranges(context, snapshot, id, attachment, ranges).await;
    }
    let range = ranges.into_iter().next();
    let length = range.as_ref().map_or(whole, |range| range.end - range.start);
    let mut response = match context.is_head() {
        true => response::empty(StatusCode::OK),
        false => send(context, &snapshot, id, &attachment, range.clone(), decode).await?,
    };
    let mut set = |name, value: String| response::set_header(&mut response, name, value);
    set(header::CONTENT_LENGTH, length.to_string());
    set(header::CONTENT_TYPE, attachment.content_type.clone());
    set(header::ACCEPT_RANGES, if is_encoded { "none" } else { "bytes" }.to_owned());
    // Attached pages must not run scripts with the server's origin.
    set(header::CONTENT_SECURITY_POLICY, "sandbox".to_owned());
    if is_encoded && !decode {
        set(header::CONTENT_ENCODING, "gzip".to_owned());
    }
    if !is_encoded && range.is_none() {
        set(CONTENT_MD5, digest);
    }
    if let Some(Range { start, end }) = range {
        set(header::CONTENT_RANGE, format!("bytes {start}-{}/{whole}", end - 1));
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    response::set_header(&mut response, header::ETAG, tag);
    Ok(response)
}

/// Reads the document revision whose attachment is requested.
async fn holder(context: &RequestContext<'_>, snapshot: &Snapshot, id: &str) -> Result<Document, ApiError> {
    let query = context.query();
    match query.get("rev") {
        Some(text) => {
            let revision = revision_arg::parse(&text)?;
            if !query.is_true("latest") {
                return Ok(snapshot.available_revision(id, &revision).await?);
            }
            let found = snapshot.revision(id, &revision, true).await?;
            found.into_iter().next().ok_or_else(ApiError::missing)
        }
        None if query.is_true("deleted") => {
            snapshot.document_or_deleted(id).await?.ok_or_else(ApiError::missing)
        }
        None => Ok(snapshot.document(id).await?),
    }
}

async fn send(
    context: &RequestContext<'_>,
    snapshot: &Snapshot,
    id: &str,
    attachment: &Attachment,
    range: Option<Range<u64>>,
    decode: bool,
) -> HandlerResult {
    let mut reader = snapshot.attachment(id, attachment, range, decode);
    writer::respond(context.output(), async move |mut out| {
        while let Some(bytes) = reader.next().await? {
            out.send(bytes).await?;
        }
        Ok(out)
    })
    .await
}

/// Sends several ranges, each as a part.
async fn send_ranges(
    context: &RequestContext<'_>,
    snapshot: Snapshot,
    id: &str,
    attachment: Attachment,
    ranges: Vec<Range<u64>>,
) -> HandlerResult {
    let boundary = multipart::new_boundary();
    let kind = format!("multipart/byteranges; boundary=\"{boundary}\"");
    let mut response = match context.is_head() {
        true => response::empty(StatusCode::OK),
        false => {
            let id = id.to_owned();
            writer::respond(context.output(), async move |mut out| {
                out.buffer.extend_from_slice(format!("--{boundary}").as_bytes());
                for range in ranges {
                    related::write_range(&snapshot, &id, &attachment, range, &mut out).await?;
                    out.buffer.extend_from_slice(format!("\r\n--{boundary}").as_bytes());
                }
                out.buffer.extend_from_slice(b"--");
                Ok(out)
            })
            .await?
        }
    };
    *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    response::set_header(&mut response, header::CONTENT_TYPE, kind);
    Ok(response)
}

/// A request for this many ranges or more gets the whole attachment.
const RANGES_MAX: usize = 10;

/// Parses a `Range` header. Returns no ranges if the whole attachment is to be sent: if all of it or too many
/// ranges are requested, or the header is malformed.
pub(crate) fn parse_ranges(text: &str, length: u64) -> Result<Vec<Range<u64>>, ApiError> {
    let Some(list) = text.strip_prefix("bytes=") else { return Ok(Vec::new()) };
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let mut ranges = Vec::new();
    for spec in list.split(',').map(str::trim).filter(|spec| !spec.is_empty()) {
        let (first, last) = spec.split_once('-').unwrap_or((spec, ""));
        ranges.push(match (number(first), number(last)) {
            (Some(first), Some(last)) => first..last.saturating_add(1).min(length),
            (Some(0), None) if last.trim().is_empty() => return Ok(Vec::new()),
            (Some(first), None) if last.trim().is_empty() => first..length,
            (None, Some(count)) if first.trim().is_empty() => length.saturating_sub(count)..length,
            _ => return Ok(Vec::new()),
        });
    }
    if ranges.iter().any(Range::is_empty) {
        return Err(ApiError::new(
            StatusCode::RANGE_NOT_SATISFIABLE,
            "requested_range_not_satisfiable",
            "Requested range not satisfiable",
        ));
    }
    Ok(if ranges.len() < RANGES_MAX { ranges } else { Vec::new() })
}

/// An edit that keeps the members of the revision named by the client, with that revision and the permit for
/// the memory of a large body. Without such a revision, an edit of a new document.
async fn edit_of(
    context: &RequestContext<'_>,
    database: &Database,
    id: &str,
) -> Result<(Edit, Option<MemoryPermit>), ApiError> {
    let Some(revision) = one_of(context, None, revision_arg::parse)? else {
        return Ok((Edit::empty(id), None));
    };
    let body_memory = &context.server.body_memory;
    let (document, permit) = edited_revision(database, id, &revision, body_memory).await?;
    let (edit, permit) = edit_again(document, permit).await?;
    Ok((edit, Some(permit)))
}

async fn put(
    context: &mut RequestContext<'_>,
    database: &Arc<Database>,
    id: &str,
    name: &str,
) -> HandlerResult {
    settee_doc::check_attachment_name(name)?;
    settee_doc::check_document_id(id)?;
    let concern = context.write_concern()?;
    let (mut edit, known_permit) = edit_of(context, database, id).await?;
    if known_permit.is_none() {
        check_leaf(database, &edit).await?;
    }
    edit.deleted = false;
    let content_type = context.header(header::CONTENT_TYPE).unwrap_or(UNKNOWN_TYPE).to_owned();
    let expected = context.header(CONTENT_MD5).map(settee_doc::parse_digest).transpose()?;
    let is_gzip = match context.header(header::CONTENT_ENCODING) {
        None => false,
        Some(encoding) if encoding.eq_ignore_ascii_case("identity") => false,
        Some(encoding) if encoding.eq_ignore_ascii_case("gzip") => true,
        Some(_) => {
            let reason = "Only gzip and identity content-encodings are supported";
            return Err(ApiError::bad_content_type(reason));
        }
    };
    let bytes_max = context.server.limits.attachment_bytes_max;
    // The arriving chunk is held under the same permit as the body, since a request waits with only one.
    let (mut permit, mut arrived) = (known_permit.unwrap_or_default(), 0);
    let body_bytes = permit.bytes();
    // Compressed content is stored compressed.
    let mut uploading = database.upload(id, &content_type, is_gzip, bytes_max);
    while let Some(frame) = context.body.next_data(&context.server.limits).await? {
        arrived += frame.len() as u64;
        let bytes = body_bytes + arrived.min(CHUNK_BYTES as u64);
        context.server.body_memory.grow(&mut permit, bytes).await?;
        uploading.write(&frame).await.map_err(|error| match error.kind() {
            ErrorKind::AttachmentTooLarge => related::too_large(name),
            _ => error.into(),
        })?;
    }
    let content = Content::Stored(uploading.finish(expected).await?);
    let new = NewAttachment { name: name.to_owned(), content_type, revpos: None, content };
    match edit.attachments.iter_mut().find(|other| other.name == name) {
        Some(other) => *other = new,
        None => edit.attachments.push(new),
    }
    let revision = database.update(edit, concern.stage).await?;
    let mut response = saved_as(concern.status(StatusCode::CREATED), id, &revision);
    let location = location_of_attachment(context, database.name(), id, name);
    response::set_header(&mut response, header::LOCATION, location);
    Ok(response)
}

async fn delete(
    context: &mut RequestContext<'_>,
    database: &Arc<Database>,
    id: &str,
    name: &str,
) -> HandlerResult {
    let stage = context.stage()?;
    let (mut edit, known_permit) = edit_of(context, database, id).await?;
    if known_permit.is_none() {
        let document = database.snapshot().document(id).await?;
        let is_there = document.attachments.iter().any(|other| other.name == name);
        return Err(if is_there { conflict() } else { no_attachment() });
    }
    if !edit.attachments.iter().any(|other| other.name == name) {
        return Err(no_attachment());
    }
    edit.attachments.retain(|other| other.name != name);
    let revision = database.update(edit, stage).await?;
    let status = if stage == Stage::Persisted { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok(saved_as(status, id, &revision))
}
