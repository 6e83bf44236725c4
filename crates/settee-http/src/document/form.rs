//! Attachments from an HTML form: `POST /{db}/{doc}` as `multipart/form-data`.
//!
//! The fields `_attachments` are the files, each stored as it arrives. `_rev` names the revision to which
//! they are added, or `_doc` is the whole document.

use std::sync::Arc;

use hyper::StatusCode;
use hyper::header;
use settee_doc::{Content, Database, Edit, NewAttachment, Revision};

use super::edited_revision::edited_revision;
use super::parts::Parts;
use super::related::{self, Uploads};
use super::revision_arg::{self, one_of};
use super::saved::saved_as;
use super::whole::edit_again;
use crate::body::multipart::{self, Head};
use crate::body::{BodyBuffer, BufferedBody, MemoryPermit};
use crate::context::RequestContext;
use crate::error::ApiError;
use crate::response::HandlerResult;

const TYPE: &str = "multipart/form-data";

/// Maximum number of parts of a form.
const PARTS_MAX: usize = 1_000;

/// Largest field in bytes, except `_doc`.
const FIELD_BYTES_MAX: usize = 4 << 10;

/// The media type of a file sent without one.
const UNKNOWN_TYPE: &str = "application/octet-stream";

/// The content of a form.
#[derive(Default)]
struct Form {
    document: Option<BufferedBody>,
    revision: Option<Revision>,
    files: Vec<NewAttachment>,
}

pub(crate) async fn post(
    context: &mut RequestContext<'_>,
    database: &Arc<Database>,
    id: &str,
) -> HandlerResult {
    check_referer(context)?;
    settee_doc::check_document_id(id)?;
    let kind = context.header(header::CONTENT_TYPE);
    multipart::check_type(kind, TYPE)?;
    let mut parts = Parts::new(kind.unwrap_or(""))?;
    let concern = context.write_concern()?;
    let form = read(&mut parts, context, database, id).await?;
    let (mut edit, _permit) = edit_of(context, database, id, form.document, form.revision).await?;
    for file in form.files {
        match edit.attachments.iter_mut().find(|other| other.name == file.name) {
            Some(other) => *other = file,
            None => edit.attachments.push(file),
        }
    }
    let revision = database.update(edit, concern.stage).await?;
    Ok(saved_as(concern.status(StatusCode::CREATED), id, &revision))
}

/// Checks that the form came from a page of this server, because any page can make a browser send a form.
fn check_referer(context: &RequestContext<'_>) -> Result<(), ApiError> {
    let referer = context.header(header::REFERER);
    let referer = referer.ok_or_else(|| ApiError::bad_request("Referer header required."))?;
    let host = referer.split_once("://").map(|(_, rest)| rest.split(['/', '?', '#']).next().unwrap_or(""));
    match host.is_some() && host == context.header(header::HOST) {
        true => Ok(()),
        false => Err(ApiError::bad_request("Referer header must match host.")),
    }
}

async fn read(
    parts: &mut Parts,
    context: &mut RequestContext<'_>,
    database: &Database,
    id: &str,
) -> Result<Form, ApiError> {
    let mut form = Form::default();
    let server = context.server;
    let mut uploads = Uploads::new(&server.body_memory);
    let mut count = 0;
    while let Some(head) = parts.next_part(context).await? {
        count += 1;
        if count > PARTS_MAX {
            return Err(ApiError::bad_request("the form has too many parts"));
        }
        let (_, parameters) = multipart::parameters(head.get("content-disposition").unwrap_or(""));
        let get = |wanted: &str| parameters.iter().find(|(name, _)| name == wanted).map(|(_, value)| value);
        match (get("name").map(String::as_str), get("filename")) {
            (Some("_doc"), None) => {
                let buffer = BodyBuffer::new(server.limits.request_bytes_max).without_waiting();
                form.document = Some(parts.collect(context, buffer).await?);
            }
            (Some("_rev"), None) => {
                form.revision = Some(revision_arg::parse(&field(parts, context).await?)?);
            }
            (Some("_attachments"), Some(name)) => {
                let file = upload(parts, context, database, id, name, &head, &mut uploads).await?;
                form.files.push(file);
            }
            _ => while parts.next_piece(context).await?.is_some() {},
        }
    }
    Ok(form)
}

async fn field(parts: &mut Parts, context: &mut RequestContext<'_>) -> Result<String, ApiError> {
    let bad = || ApiError::bad_request("a field of the form is no text, or too long");
    let mut value = Vec::new();
    while let Some(piece) = parts.next_piece(context).await? {
        value.extend_from_slice(&piece);
        if value.len() > FIELD_BYTES_MAX {
            return Err(bad());
        }
    }
    String::from_utf8(value).map_err(|_| bad())
}

async fn upload(
    parts: &mut Parts,
    context: &mut RequestContext<'_>,
    database: &Database,
    id: &str,
    name: &str,
    head: &Head,
    uploads: &mut Uploads<'_>,
) -> Result<NewAttachment, ApiError> {
    settee_doc::check_attachment_name(name)?;
    let content_type = head.get("content-type").unwrap_or(UNKNOWN_TYPE).to_owned();
    let bytes_max = context.server.limits.attachment_bytes_max;
    let mut uploading = database.upload(id, &content_type, false, bytes_max);
    while let Some(piece) = parts.next_piece(context).await? {
        uploads.reserve(piece.len() as u64)?;
        uploading.write(&piece).await.map_err(|error| match error.kind() {
            settee_doc::ErrorKind::AttachmentTooLarge => related::too_large(name),
            _ => error.into(),
        })?;
    }
    let upload = uploads.add(uploading.finish(None).await?, database).await?;
    let content = Content::Stored(upload);
    Ok(NewAttachment { name: name.to_owned(), content_type, revpos: None, content })
}

/// The edit to which the files are added.
async fn edit_of(
    context: &RequestContext<'_>,
    database: &Database,
    id: &str,
    document: Option<BufferedBody>,
    revision: Option<Revision>,
) -> Result<(Edit, MemoryPermit), ApiError> {
    if let Some(body) = document {
        let (mut edit, permit) = context.parse_edit(body).await?;
        id.clone_into(&mut edit.id);
        revision_arg::set_if_absent(one_of(context, edit.revision.clone(), revision_arg::parse)?, &mut edit);
        return Ok((edit, permit));
    }
    let revision = revision.ok_or_else(|| ApiError::bad_request("Invalid rev format"))?;
    let body_memory = &context.server.body_memory;
    let (document, permit) = edited_revision(database, id, &revision, body_memory).await?;
    let (mut edit, permit) = edit_again(document, permit).await?;
    edit.deleted = false;
    Ok((edit, permit))
}
