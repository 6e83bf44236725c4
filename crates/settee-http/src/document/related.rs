//! Documents with their attachments as `multipart/related`, in requests and responses.
//!
//! The first part is the document's JSON. Each attachment with `follows` has a part, in the same order.
//! Content is stored as it arrives, and read as the client reads it.

use bytes::Bytes;
use hyper::header;
use hyper::{Response, StatusCode};
use settee_doc::{
    Attachment, CHUNK_BYTES, Content, Database, Document, Edit, Extras, Following, LargeBody, Snapshot,
    Upload,
};

use super::inline::send_large_body;
use super::parts::Parts;
use crate::body::multipart;
use crate::body::{BodyBuffer, BodyMemory, BufferedBody, MemoryPermit};
use crate::context::RequestContext;
use crate::error::ApiError;
use crate::response::writer::{self, ResponseWriter};
use crate::response::{self, Body};

/// The media type.
pub(crate) const TYPE: &str = "multipart/related";

/// Bytes of a request's small attachments that are kept in memory until the document is written.
const KEPT_BYTES_MAX: u64 = 1 << 20;

/// Attachments use at most the memory for bodies divided by this, besides their document's permit.
const MEMORY_DIVISOR: u64 = 4;

/// Largest piece of an attachment in bytes that is copied into the response buffer.
const SMALL_PIECE_BYTES: usize = 16 << 10;

/// Reads the first part, the document's JSON.
///
/// # Errors
/// 415 for another content type; those of [`Parts::collect`].
pub(crate) async fn read_document(
    parts: &mut Parts,
    context: &mut RequestContext<'_>,
) -> Result<BufferedBody, ApiError> {
    let head = parts.next_part(context).await?;
    let head = head.ok_or_else(|| ApiError::bad_request("Missing request body"))?;
    multipart::check_type(head.get("content-type"), "application/json")?;
    parts.collect(context, BodyBuffer::new(context.server.limits.request_bytes_max)).await
}

/// Uploads the attachments that follow the document into its edit.
///
/// # Errors
/// 400 if the length of a part or the number of parts differs from the document's; 413 past the limit; those
/// of the upload. Uploaded content is removed.
pub(crate) async fn receive(
    parts: &mut Parts,
    context: &mut RequestContext<'_>,
    database: &Database,
    edit: &mut Edit,
) -> Result<(), ApiError> {
    let mut uploads = Uploads::new(&context.server.body_memory);
    let bytes_max = context.server.limits.attachment_bytes_max;
    for attachment in &mut edit.attachments {
        let Content::Follows(following) = attachment.content else { continue };
        if following.length > bytes_max {
            return Err(too_large(&attachment.name));
        }
        if parts.next_part(context).await?.is_none() {
            return Err(too_short());
        }
        let Following { length, is_gzip, digest } = following;
        let mut left = length;
        let mut uploading = database.upload(&edit.id, &attachment.content_type, is_gzip, bytes_max);
        while let Some(piece) = parts.next_piece(context).await? {
            let longer = || ApiError::bad_request("attachment longer than expected");
            left = left.checked_sub(piece.len() as u64).ok_or_else(longer)?;
            uploads.reserve(piece.len() as u64)?;
            uploading.write(&piece).await?;
        }
        if left > 0 {
            return Err(too_short());
        }
        let upload = uploading.finish(digest).await?;
        attachment.content = Content::Stored(uploads.add(upload, database).await?);
    }
    match parts.next_part(context).await? {
        None => Ok(()),
        Some(_) => Err(ApiError::bad_request("more parts came than attachments follow")),
    }
}

fn too_short() -> ApiError {
    ApiError::bad_request("attachment shorter than expected")
}

/// 413 for an attachment, with its name as the reason.
pub(crate) fn too_large(name: &str) -> ApiError {
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "attachment_too_large", name.to_owned())
}

/// The uploads of one request. Small ones are kept in memory up to a limit, others are written.
pub(crate) struct Uploads<'a> {
    bytes: u64,
    body_memory: &'a BodyMemory,
    /// Memory for the kept uploads and for the arriving chunk.
    permit: MemoryPermit,
    /// Bytes by which the permit may still grow.
    permit_bytes_left: u64,
}

impl<'a> Uploads<'a> {
    /// No uploads yet.
    pub(crate) fn new(body_memory: &'a BodyMemory) -> Uploads<'a> {
        let permit_bytes_left =
            (KEPT_BYTES_MAX + CHUNK_BYTES as u64).min(body_memory.bytes() / MEMORY_DIVISOR);
        Uploads { bytes: 0, body_memory, permit: MemoryPermit::default(), permit_bytes_left }
    }

    /// Acquires memory for `bytes` arrived bytes.
    ///
    /// # Errors
    /// 503 if the memory is exhausted. Never waits, because the document has a permit already.
    pub(crate) fn reserve(&mut self, bytes: u64) -> Result<(), ApiError> {
        let bytes = bytes.min(self.permit_bytes_left);
        self.permit_bytes_left -= bytes;
        self.body_memory.add(&mut self.permit, bytes)
    }

    /// Adds an upload.
    ///
    /// # Errors
    /// Those of [`Upload::store`].
    pub(crate) async fn add(&mut self, mut upload: Upload, database: &Database) -> Result<Upload, ApiError> {
        match self.bytes + upload.waiting_bytes() {
            bytes if bytes > KEPT_BYTES_MAX => upload.store(database).await?,
            bytes => self.bytes = bytes,
        }
        Ok(upload)
    }
}

/// A document with its attachments as parts, or the document alone if no attachment is sent.
pub(crate) struct Related {
    boundary: String,
    /// The bytes before a large body, or before `behind` if the body isn't large.
    front: Vec<u8>,
    large_body: Option<LargeBody>,
    /// The bytes between the body and the first attachment.
    behind: Vec<u8>,
    /// The attachments, each with the head of its part.
    parts: Vec<(Vec<u8>, Attachment)>,
}

impl Related {
    /// Sends the attachments newer than the generation `known`.
    pub(crate) fn new(mut document: Document, extras: &Extras, known: u32, boundary: String) -> Related {
        let has_parts = document.attachments.iter().any(|attachment| attachment.revpos > known);
        let mut front = Vec::with_capacity(document.body.len() + 256);
        if has_parts {
            front.extend_from_slice(b"--");
            front.extend_from_slice(boundary.as_bytes());
            front.extend_from_slice(b"\r\nContent-Type: application/json\r\n\r\n");
        }
        match &document.large_body {
            None => document.begin_json(&mut front),
            Some(_) => document.begin_members(&mut front),
        }
        let mut behind = Vec::new();
        for (index, attachment) in document.attachments.iter().enumerate() {
            behind.extend_from_slice(if index == 0 { b",\"_attachments\":{" } else { b"," });
            settee_doc::write_json_string(&attachment.name, &mut behind);
            behind.extend_from_slice(b":{");
            attachment.write_members(true, &mut behind);
            let follows = attachment.revpos > known;
            behind.extend_from_slice(if follows { b",\"follows\":true}" } else { b",\"stub\":true}" });
        }
        if !document.attachments.is_empty() {
            behind.push(b'}');
        }
        document.end_json(extras, &mut behind);
        if has_parts {
            behind.extend_from_slice(b"\r\n--");
            behind.extend_from_slice(boundary.as_bytes());
        }
        let large_body = document.large_body.take();
        let attachments = document.attachments.into_iter().filter(|attachment| attachment.revpos > known);
        let parts = attachments.map(|attachment| (head(&attachment), attachment)).collect();
        Related { boundary, front, large_body, behind, parts }
    }

    /// Whether any attachment is sent.
    pub(crate) fn has_parts(&self) -> bool {
        !self.parts.is_empty()
    }

    /// The content type of the body.
    pub(crate) fn content_type(&self) -> String {
        match self.has_parts() {
            true => format!("{TYPE}; boundary=\"{}\"", self.boundary),
            false => "application/json".to_owned(),
        }
    }

    /// The size of the body in bytes.
    fn length(&self) -> u64 {
        let delimiter = 4 + self.boundary.len() as u64;
        let part = |(head, attachment): &(Vec<u8>, Attachment)| {
            head.len() as u64 + attachment.stored_length() + delimiter
        };
        let end = if self.has_parts() { 2 } else { 0 };
        let text = (self.front.len() + self.behind.len()) as u64;
        let large_body = self.large_body.as_ref().map_or(0, LargeBody::size);
        text + large_body + self.parts.iter().map(part).sum::<u64>() + end
    }

    /// Writes the body. `id` is the document's.
    ///
    /// # Errors
    /// Those of reading attachments; the client has closed the connection.
    pub(crate) async fn write(
        self,
        snapshot: &Snapshot,
        id: &str,
        out: &mut ResponseWriter,
    ) -> Result<(), ApiError> {
        out.buffer.extend_from_slice(&self.front);
        if let Some(large_body) = &self.large_body {
            send_large_body(snapshot, id, large_body, out).await?;
        }
        out.buffer.extend_from_slice(&self.behind);
        for (head, attachment) in &self.parts {
            out.buffer.extend_from_slice(head);
            let mut reader = snapshot.attachment(id, attachment, None, false);
            while let Some(bytes) = reader.next().await? {
                send_piece(bytes, out).await?;
            }
            out.buffer.extend_from_slice(b"\r\n--");
            out.buffer.extend_from_slice(self.boundary.as_bytes());
        }
        if self.has_parts() {
            out.buffer.extend_from_slice(b"--");
        }
        Ok(())
    }
}

/// Writes a range of an attachment's stored bytes as a part, after a delimiter.
///
/// # Errors
/// Those of reading attachments; the client has closed the connection.
pub(crate) async fn write_range(
    snapshot: &Snapshot,
    id: &str,
    attachment: &Attachment,
    range: std::ops::Range<u64>,
    out: &mut ResponseWriter,
) -> Result<(), ApiError> {
    let (kind, whole) = (content_type(attachment), attachment.stored_length());
    let (start, last) = (range.start, range.end - 1);
    let head = format!("\r\nContent-Type: {kind}\r\nContent-Range: bytes {start}-{last}/{whole}\r\n\r\n");
    out.buffer.extend_from_slice(head.as_bytes());
    let mut reader = snapshot.attachment(id, attachment, Some(range), false);
    while let Some(bytes) = reader.next().await? {
        send_piece(bytes, out).await?;
    }
    Ok(())
}

/// An attachment's media type, if a header can carry it. It came as JSON, which may contain control
/// characters.
fn content_type(attachment: &Attachment) -> &str {
    match attachment.content_type.chars().any(char::is_control) {
        true => "application/octet-stream",
        false => &attachment.content_type,
    }
}

async fn send_piece(bytes: Bytes, out: &mut ResponseWriter) -> Result<(), ApiError> {
    if bytes.len() > SMALL_PIECE_BYTES {
        return out.send(bytes).await;
    }
    out.buffer.extend_from_slice(&bytes);
    out.flush_full().await
}

/// The head of an attachment's part, after a delimiter.
fn head(attachment: &Attachment) -> Vec<u8> {
    let name = multipart::quoted(&attachment.name);
    let kind = content_type(attachment);
    let encoding = if attachment.gzip_length.is_some() { "\r\nContent-Encoding: gzip" } else { "" };
    let length = attachment.stored_length();
    format!(
        "\r\nContent-Disposition: attachment; filename={name}\r\nContent-Type: {kind}\
         \r\nContent-Length: {length}{encoding}\r\n\r\n"
    )
    .into_bytes()
}

/// Responds with a document as `multipart/related`.
pub(crate) async fn answer(
    context: &RequestContext<'_>,
    snapshot: Snapshot,
    document: Document,
    extras: Extras,
    known: u32,
) -> Result<Response<Body>, ApiError> {
    let id = document.id.clone();
    let related = Related::new(document, &extras, known, multipart::new_boundary());
    let (kind, length) = (related.content_type(), related.length());
    let mut response = match context.is_head() {
        true => response::empty(StatusCode::OK),
        false => {
            writer::respond(context.output(), async move |mut out| {
                related.write(&snapshot, &id, &mut out).await?;
                Ok(out)
            })
            .await?
        }
    };
    response::set_header(&mut response, header::CONTENT_TYPE, kind);
    response::set_header(&mut response, header::CONTENT_LENGTH, length.to_string());
    Ok(response)
}
