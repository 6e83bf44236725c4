//! Documents with their attachments behind them: `multipart/related`, both ways.
//!
//! The first part is the document's JSON. Each attachment that is `follows` there has a part, in the
//! same order. What comes is stored as it comes, what goes is read as the client takes it.

use bytes::Bytes;
use hyper::header;
use hyper::{Response, StatusCode};
use settee_doc::{
    Attachment, CHUNK_BYTES, Content, Database, Document, Edit, Extras, Following, Upload, View,
};

use crate::body::{Growing, Held, Room, Share};
use crate::error::Failure;
use crate::multipart::{self, Parts};
use crate::reply::{self, Body};
use crate::server::Call;
use crate::stream::{self, Out};

/// The media type.
pub(crate) const TYPE: &str = "multipart/related";

/// Of a request's small attachments so many bytes are held in memory until the document is written.
const HELD_BYTES_MAX: u64 = 1 << 20;

/// Of a room that is small for them, attachments take one part in so many, beside their document's.
const ROOM_SHARE: u64 = 4;

/// Pieces of attachments up to this size are sent together.
const SMALL_PIECE_BYTES: usize = 16 << 10;

/// Reads the first part, the document's JSON.
///
/// # Errors
/// 415 where it is something else; those of [`Parts::collect`].
pub(crate) async fn read_document(parts: &mut Parts, call: &mut Call<'_>) -> Result<Held, Failure> {
    let head = parts.next_part(call).await?;
    let head = head.ok_or_else(|| Failure::bad_request("Missing request body"))?;
    multipart::check_type(head.get("content-type"), "application/json")?;
    parts.collect(call, Growing::new(call.server.limits.max_request_bytes)).await
}

/// Uploads what follows the document into its edit.
///
/// # Errors
/// 400 where a part has another length than the document says, or their count isn't that of the
/// attachments that follow; 413 past the limit; those of the upload. What was uploaded goes.
pub(crate) async fn receive(
    parts: &mut Parts,
    call: &mut Call<'_>,
    database: &Database,
    edit: &mut Edit,
) -> Result<(), Failure> {
    let mut held = Uploads::new(&call.server.room);
    let bytes_max = call.server.limits.max_attachment_size;
    for attachment in &mut edit.attachments {
        let Content::Follows(following) = attachment.content else { continue };
        if following.length > bytes_max {
            return Err(too_large(&attachment.name));
        }
        if parts.next_part(call).await?.is_none() {
            return Err(too_short());
        }
        let Following { length, is_gzip, digest } = following;
        let mut left = length;
        let mut uploading = database.upload(&edit.id, &attachment.content_type, is_gzip, bytes_max);
        while let Some(piece) = parts.next_piece(call).await? {
            let longer = || Failure::bad_request("attachment longer than expected");
            left = left.checked_sub(piece.len() as u64).ok_or_else(longer)?;
            held.arrive(piece.len() as u64)?;
            uploading.write(&piece).await?;
        }
        if left > 0 {
            return Err(too_short());
        }
        let upload = uploading.finish(digest).await?;
        attachment.content = Content::Stored(held.hold(upload, database).await?);
    }
    match parts.next_part(call).await? {
        None => Ok(()),
        Some(_) => Err(Failure::bad_request("more parts came than attachments follow")),
    }
}

fn too_short() -> Failure {
    Failure::bad_request("attachment shorter than expected")
}

/// 413 for an attachment, by its name.
pub(crate) fn too_large(name: &str) -> Failure {
    Failure::new(StatusCode::PAYLOAD_TOO_LARGE, "attachment_too_large", name.to_owned())
}

/// Uploads of one request: small ones are held in memory up to a limit, the others are written.
pub(crate) struct Uploads<'a> {
    bytes: u64,
    room: &'a Room,
    /// For those, and for a chunk of the one that comes.
    share: Share,
    /// Bytes that the share may have to hold still.
    share_left: u64,
}

impl<'a> Uploads<'a> {
    /// None yet.
    pub(crate) fn new(room: &'a Room) -> Uploads<'a> {
        let share_left = (HELD_BYTES_MAX + CHUNK_BYTES as u64).min(room.bytes() / ROOM_SHARE);
        Uploads { bytes: 0, room, share: Share::default(), share_left }
    }

    /// Takes memory for so many bytes that have arrived.
    ///
    /// # Errors
    /// 503 without room. Nothing is waited for: the document beside them has a share of its own.
    pub(crate) fn arrive(&mut self, bytes: u64) -> Result<(), Failure> {
        let bytes = bytes.min(self.share_left);
        self.share_left -= bytes;
        self.room.add(&mut self.share, bytes)
    }

    /// Takes one in.
    ///
    /// # Errors
    /// Those of [`Upload::store`].
    pub(crate) async fn hold(&mut self, mut upload: Upload, database: &Database) -> Result<Upload, Failure> {
        match self.bytes + upload.waiting_bytes() {
            bytes if bytes > HELD_BYTES_MAX => upload.store(database).await?,
            bytes => self.bytes = bytes,
        }
        Ok(upload)
    }
}

/// A document with its attachments behind it; or the document alone, where none is to be sent.
pub(crate) struct Related {
    boundary: String,
    /// What stands before the first attachment.
    front: Vec<u8>,
    /// The attachments, each with its part's head.
    parts: Vec<(Vec<u8>, Attachment)>,
}

impl Related {
    /// Sends those attachments that came after the generation `known`.
    pub(crate) fn new(document: Document, extras: &Extras, known: u32, boundary: String) -> Related {
        let has_parts = document.attachments.iter().any(|attachment| attachment.revpos > known);
        let mut front = Vec::with_capacity(document.body.len() + 256);
        if has_parts {
            front.extend_from_slice(b"--");
            front.extend_from_slice(boundary.as_bytes());
            front.extend_from_slice(b"\r\nContent-Type: application/json\r\n\r\n");
        }
        document.begin_json(&mut front);
        for (index, attachment) in document.attachments.iter().enumerate() {
            front.extend_from_slice(if index == 0 { b",\"_attachments\":{" } else { b"," });
            settee_doc::write_json_string(&attachment.name, &mut front);
            front.extend_from_slice(b":{");
            attachment.write_members(true, &mut front);
            let follows = attachment.revpos > known;
            front.extend_from_slice(if follows { b",\"follows\":true}" } else { b",\"stub\":true}" });
        }
        if !document.attachments.is_empty() {
            front.push(b'}');
        }
        document.end_json(extras, &mut front);
        if has_parts {
            front.extend_from_slice(b"\r\n--");
            front.extend_from_slice(boundary.as_bytes());
        }
        let attachments = document.attachments.into_iter().filter(|attachment| attachment.revpos > known);
        let parts = attachments.map(|attachment| (head(&attachment), attachment)).collect();
        Related { boundary, front, parts }
    }

    /// Whether it has parts.
    pub(crate) fn has_parts(&self) -> bool {
        !self.parts.is_empty()
    }

    /// Its content type.
    pub(crate) fn content_type(&self) -> String {
        match self.has_parts() {
            true => format!("{TYPE}; boundary=\"{}\"", self.boundary),
            false => "application/json".to_owned(),
        }
    }

    /// Its bytes.
    fn length(&self) -> u64 {
        let delimiter = 4 + self.boundary.len() as u64;
        let part = |(head, attachment): &(Vec<u8>, Attachment)| {
            head.len() as u64 + attachment.stored_length() + delimiter
        };
        let end = if self.has_parts() { 2 } else { 0 };
        self.front.len() as u64 + self.parts.iter().map(part).sum::<u64>() + end
    }

    /// Writes it; `id` is the document's.
    ///
    /// # Errors
    /// Those of reading attachments; the client has gone.
    pub(crate) async fn write(self, view: &View, id: &str, out: &mut Out) -> Result<(), Failure> {
        out.buffer.extend_from_slice(&self.front);
        for (head, attachment) in &self.parts {
            out.buffer.extend_from_slice(head);
            let mut reader = view.attachment(id, attachment, None, false);
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

/// Writes a range of what an attachment stores as a part, behind a delimiter.
///
/// # Errors
/// Those of reading attachments; the client has gone.
pub(crate) async fn write_range(
    view: &View,
    id: &str,
    attachment: &Attachment,
    range: std::ops::Range<u64>,
    out: &mut Out,
) -> Result<(), Failure> {
    let (kind, whole) = (content_type(attachment), attachment.stored_length());
    let (start, last) = (range.start, range.end - 1);
    let head = format!("\r\nContent-Type: {kind}\r\nContent-Range: bytes {start}-{last}/{whole}\r\n\r\n");
    out.buffer.extend_from_slice(head.as_bytes());
    let mut reader = view.attachment(id, attachment, Some(range), false);
    while let Some(bytes) = reader.next().await? {
        send_piece(bytes, out).await?;
    }
    Ok(())
}

/// An attachment's media type, as a header can hold it: it came in JSON, which takes what no header does.
fn content_type(attachment: &Attachment) -> &str {
    match attachment.content_type.chars().any(char::is_control) {
        true => "application/octet-stream",
        false => &attachment.content_type,
    }
}

async fn send_piece(bytes: Bytes, out: &mut Out) -> Result<(), Failure> {
    if bytes.len() > SMALL_PIECE_BYTES {
        return out.send(bytes).await;
    }
    out.buffer.extend_from_slice(&bytes);
    out.flush_full().await
}

/// The head of an attachment's part, behind a delimiter.
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

/// The answer to who takes a document as `multipart/related`.
pub(crate) async fn answer(
    call: &Call<'_>,
    view: View,
    document: Document,
    extras: Extras,
    known: u32,
) -> Result<Response<Body>, Failure> {
    let id = document.id.clone();
    let related = Related::new(document, &extras, known, multipart::new_boundary());
    let (kind, length) = (related.content_type(), related.length());
    let mut response = match call.is_head() {
        true => reply::empty(StatusCode::OK),
        false => {
            stream::respond(call.output(), async move |mut out| {
                related.write(&view, &id, &mut out).await?;
                Ok(out)
            })
            .await?
        }
    };
    reply::set_header(&mut response, header::CONTENT_TYPE, kind);
    reply::set_header(&mut response, header::CONTENT_LENGTH, length.to_string());
    Ok(response)
}
