//! One attachment: read, put, removed.
//!
//! Nothing is held in memory but a chunk, for which room is taken among requests' bodies: what comes goes
//! to the store as it comes, what goes is read from there as the client takes it.

use std::ops::Range;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use hyper::header::{self, HeaderName};
use hyper::{Method, StatusCode};
use settee_doc::{
    Attachment, CHUNK_BYTES, Content, Database, Document, Edit, ErrorKind, NewAttachment, Stage, View,
};

use crate::body::Share;
use crate::compress::takes_gzip;
use crate::database::location_of_attachment;
use crate::document::{self, matches_tag, not_modified};
use crate::error::Failure;
use crate::named::{Named, conflict, one_of};
use crate::reply::{self, Answer};
use crate::server::Call;
use crate::{multipart, related, stream};

/// The media type of what came without one.
const UNKNOWN_TYPE: &str = "application/octet-stream";

const CONTENT_MD5: HeaderName = HeaderName::from_static("content-md5");

pub(crate) async fn handle(call: &mut Call<'_>, database: Arc<Database>, id: &str, name: &str) -> Answer {
    match *call.method() {
        Method::GET | Method::HEAD => get(call, &database, id, name).await,
        Method::PUT => put(call, &database, id, name).await,
        Method::DELETE => delete(call, &database, id, name).await,
        _ => Err(Failure::method_not_allowed("DELETE,GET,HEAD,PUT")),
    }
}

fn no_attachment() -> Failure {
    Failure::new(StatusCode::NOT_FOUND, "not_found", "Document is missing attachment")
}

async fn get(call: &Call<'_>, database: &Arc<Database>, id: &str, name: &str) -> Answer {
    let view = database.view();
    let document = holder(call, &view, id).await?;
    let attachment =
        document.attachments.into_iter().find(|other| other.name == name).ok_or_else(no_attachment)?;
    let digest = BASE64.encode(attachment.digest);
    let tag = Bytes::from(format!("\"{digest}\""));
    if matches_tag(call, &tag) {
        return Ok(not_modified(tag));
    }
    let is_encoded = attachment.gzip_length.is_some();
    let decode = is_encoded && !takes_gzip(&call.head.headers);
    let whole = if decode { attachment.length } else { attachment.stored_length() };
    let ranges = match call.header(header::RANGE) {
        Some(text) if !is_encoded => parse_ranges(text, whole)?,
        _ => Vec::new(),
    };
    if ranges.len() > 1 {
        return send_ranges(call, view, id, attachment, ranges).await;
    }
    let range = ranges.into_iter().next();
    let length = range.as_ref().map_or(whole, |range| range.end - range.start);
    let mut response = match call.is_head() {
        true => reply::empty(StatusCode::OK),
        false => send(call, &view, id, &attachment, range.clone(), decode).await?,
    };
    let mut set = |name, value: String| reply::set_header(&mut response, name, value);
    set(header::CONTENT_LENGTH, length.to_string());
    set(header::CONTENT_TYPE, attachment.content_type.clone());
    set(header::ACCEPT_RANGES, if is_encoded { "none" } else { "bytes" }.to_owned());
    // A page that somebody attached runs no scripts in the server's name.
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
    reply::set_header(&mut response, header::ETAG, tag);
    Ok(response)
}

/// The document whose attachment is asked for.
async fn holder(call: &Call<'_>, view: &View, id: &str) -> Result<Document, Failure> {
    let query = call.query();
    match query.get("rev") {
        Some(text) => {
            let latest = query.is_true("latest");
            let found = view.revision(id, Named::parse(&text)?.known()?, latest).await?;
            found.into_iter().next().ok_or_else(Failure::missing)
        }
        None if query.is_true("deleted") => view.document_or_deleted(id).await?.ok_or_else(Failure::missing),
        None => Ok(view.document(id).await?),
    }
}

async fn send(
    call: &Call<'_>,
    view: &View,
    id: &str,
    attachment: &Attachment,
    range: Option<Range<u64>>,
    decode: bool,
) -> Answer {
    let mut reader = view.attachment(id, attachment, range, decode);
    stream::respond(call.output(), async move |mut out| {
        while let Some(bytes) = reader.next().await? {
            out.send(bytes).await?;
        }
        Ok(out)
    })
    .await
}

/// Several ranges: a part for each.
async fn send_ranges(
    call: &Call<'_>,
    view: View,
    id: &str,
    attachment: Attachment,
    ranges: Vec<Range<u64>>,
) -> Answer {
    let boundary = multipart::new_boundary();
    let kind = format!("multipart/byteranges; boundary=\"{boundary}\"");
    let mut response = match call.is_head() {
        true => reply::empty(StatusCode::OK),
        false => {
            let id = id.to_owned();
            stream::respond(call.output(), async move |mut out| {
                out.buffer.extend_from_slice(format!("--{boundary}").as_bytes());
                for range in ranges {
                    related::write_range(&view, &id, &attachment, range, &mut out).await?;
                    out.buffer.extend_from_slice(format!("\r\n--{boundary}").as_bytes());
                }
                out.buffer.extend_from_slice(b"--");
                Ok(out)
            })
            .await?
        }
    };
    *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    reply::set_header(&mut response, header::CONTENT_TYPE, kind);
    Ok(response)
}

/// From so many ranges on all is sent.
const RANGES_MAX: usize = 10;

/// The ranges that are asked for; none where all is to be sent: where all is asked for, or too many, or
/// what makes no sense.
pub(crate) fn parse_ranges(text: &str, length: u64) -> Result<Vec<Range<u64>>, Failure> {
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
        return Err(Failure::new(
            StatusCode::RANGE_NOT_SATISFIABLE,
            "requested_range_not_satisfiable",
            "Requested range not satisfiable",
        ));
    }
    Ok(if ranges.len() < RANGES_MAX { ranges } else { Vec::new() })
}

/// An edit that keeps what the named revision has.
async fn edit_of(
    call: &Call<'_>,
    database: &Database,
    id: &str,
) -> Result<(Edit, Option<Document>), Failure> {
    let Some(named) = one_of(call, None, Named::parse)? else {
        return Ok((Edit::empty(id), None));
    };
    let revision = named.known().map_err(or_conflict)?;
    let document = document::edited_revision(database, id, revision).await?;
    Ok((Edit::again(&document), Some(document)))
}

/// To edit a revision that isn't there is a conflict, in CouchDB's words.
pub(crate) fn or_conflict(failure: Failure) -> Failure {
    match failure.status {
        StatusCode::NOT_FOUND => Failure::new(StatusCode::CONFLICT, "not_found", "missing_rev"),
        _ => failure,
    }
}

async fn put(call: &mut Call<'_>, database: &Arc<Database>, id: &str, name: &str) -> Answer {
    settee_doc::check_attachment_name(name)?;
    settee_doc::check_document_id(id)?;
    let concern = call.write_concern()?;
    let (mut edit, known) = edit_of(call, database, id).await?;
    if known.is_none() {
        document::check_leaf(database, &edit).await?;
    }
    edit.deleted = false;
    let content_type = call.header(header::CONTENT_TYPE).unwrap_or(UNKNOWN_TYPE).to_owned();
    let expected = call.header(CONTENT_MD5).map(settee_doc::parse_digest).transpose()?;
    let is_gzip = match call.header(header::CONTENT_ENCODING) {
        None => false,
        Some(encoding) if encoding.eq_ignore_ascii_case("identity") => false,
        Some(encoding) if encoding.eq_ignore_ascii_case("gzip") => true,
        Some(_) => {
            let reason = "Only gzip and identity content-encodings are supported";
            return Err(Failure::bad_content_type(reason));
        }
    };
    let bytes_max = call.server.limits.max_attachment_size;
    let (mut for_the_chunk, mut arrived) = (Share::default(), 0);
    // What comes compressed is kept so.
    let mut uploading = database.upload(id, &content_type, is_gzip, bytes_max);
    while let Some(frame) = call.body.next_frame(&call.server.limits).await? {
        arrived += frame.len() as u64;
        call.server.room.grow(&mut for_the_chunk, arrived.min(CHUNK_BYTES as u64)).await?;
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
    let mut response = document::saved_as(concern.status(StatusCode::CREATED), id, revision);
    let place = location_of_attachment(call, database.name(), id, name);
    reply::set_header(&mut response, header::LOCATION, place);
    Ok(response)
}

async fn delete(call: &mut Call<'_>, database: &Arc<Database>, id: &str, name: &str) -> Answer {
    let stage = call.stage()?;
    let (mut edit, known) = edit_of(call, database, id).await?;
    if known.is_none() {
        let document = database.view().document(id).await?;
        let is_there = document.attachments.iter().any(|other| other.name == name);
        return Err(if is_there { conflict() } else { no_attachment() });
    }
    if !edit.attachments.iter().any(|other| other.name == name) {
        return Err(no_attachment());
    }
    edit.attachments.retain(|other| other.name != name);
    let revision = database.update(edit, stage).await?;
    let status = if stage == Stage::Persisted { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok(document::saved_as(status, id, revision))
}
