//! Attachments from a browser's form: `POST /{db}/{doc}` as `multipart/form-data`.
//!
//! `_attachments` are the files, of which each is stored as it comes. `_rev` names the revision that
//! they are added to, or `_doc` is the whole document.

use std::sync::Arc;

use hyper::StatusCode;
use hyper::header;
use settee_doc::{Content, Database, Edit, NewAttachment};

use crate::attachment;
use crate::body::{self, Growing, Held, Share};
use crate::document;
use crate::error::Failure;
use crate::multipart::{self, Head, Parts};
use crate::named::{Named, one_of};
use crate::related::{self, Uploads};
use crate::reply::Answer;
use crate::server::Call;

const TYPE: &str = "multipart/form-data";

/// Parts of a form.
const PARTS_MAX: usize = 1_000;

/// Bytes of a field, `_doc` aside.
const FIELD_BYTES_MAX: usize = 4 << 10;

/// The media type of a file that came without one.
const UNKNOWN_TYPE: &str = "application/octet-stream";

/// What a form says.
#[derive(Default)]
struct Form {
    document: Option<Held>,
    revision: Option<Named>,
    files: Vec<NewAttachment>,
}

pub(crate) async fn post(call: &mut Call<'_>, database: &Arc<Database>, id: &str) -> Answer {
    check_referer(call)?;
    settee_doc::check_document_id(id)?;
    let kind = call.header(header::CONTENT_TYPE);
    multipart::check_type(kind, TYPE)?;
    let mut parts = Parts::new(kind.unwrap_or(""))?;
    let concern = call.write_concern()?;
    let form = read(&mut parts, call, database, id).await?;
    let (mut edit, _for_the_edit) = edit_of(call, database, id, form.document, form.revision).await?;
    for file in form.files {
        match edit.attachments.iter_mut().find(|other| other.name == file.name) {
            Some(other) => *other = file,
            None => edit.attachments.push(file),
        }
    }
    let revision = database.update(edit, concern.stage).await?;
    Ok(document::saved_as(concern.status(StatusCode::CREATED), id, revision))
}

/// A form may be sent by any page that a user looks at: one that the server sent itself says so.
fn check_referer(call: &Call<'_>) -> Result<(), Failure> {
    let referer = call.header(header::REFERER);
    let referer = referer.ok_or_else(|| Failure::bad_request("Referer header required."))?;
    let host = referer.split_once("://").map(|(_, rest)| rest.split(['/', '?', '#']).next().unwrap_or(""));
    match host.is_some() && host == call.header(header::HOST) {
        true => Ok(()),
        false => Err(Failure::bad_request("Referer header must match host.")),
    }
}

async fn read(
    parts: &mut Parts,
    call: &mut Call<'_>,
    database: &Database,
    id: &str,
) -> Result<Form, Failure> {
    let mut form = Form::default();
    let server = call.server;
    let mut held = Uploads::new(&server.room);
    let mut count = 0;
    while let Some(head) = parts.next_part(call).await? {
        count += 1;
        if count > PARTS_MAX {
            return Err(Failure::bad_request("the form has too many parts"));
        }
        let (_, parameters) = multipart::parameters(head.get("content-disposition").unwrap_or(""));
        let get = |wanted: &str| parameters.iter().find(|(name, _)| name == wanted).map(|(_, value)| value);
        match (get("name").map(String::as_str), get("filename")) {
            (Some("_doc"), None) => {
                let growing = Growing::new(server.limits.max_request_bytes).without_waiting();
                form.document = Some(parts.collect(call, growing).await?);
            }
            (Some("_rev"), None) => form.revision = Some(Named::parse(&field(parts, call).await?)?),
            (Some("_attachments"), Some(name)) => {
                let file = upload(parts, call, database, id, name, &head, &mut held).await?;
                form.files.push(file);
            }
            _ => while parts.next_piece(call).await?.is_some() {},
        }
    }
    Ok(form)
}

async fn field(parts: &mut Parts, call: &mut Call<'_>) -> Result<String, Failure> {
    let bad = || Failure::bad_request("a field of the form is no text, or too long");
    let mut value = Vec::new();
    while let Some(piece) = parts.next_piece(call).await? {
        value.extend_from_slice(&piece);
        if value.len() > FIELD_BYTES_MAX {
            return Err(bad());
        }
    }
    String::from_utf8(value).map_err(|_| bad())
}

async fn upload(
    parts: &mut Parts,
    call: &mut Call<'_>,
    database: &Database,
    id: &str,
    name: &str,
    head: &Head,
    held: &mut Uploads<'_>,
) -> Result<NewAttachment, Failure> {
    settee_doc::check_attachment_name(name)?;
    let content_type = head.get("content-type").unwrap_or(UNKNOWN_TYPE).to_owned();
    let bytes_max = call.server.limits.max_attachment_size;
    let mut uploading = database.upload(id, &content_type, false, bytes_max);
    while let Some(piece) = parts.next_piece(call).await? {
        held.arrive(piece.len() as u64)?;
        uploading.write(&piece).await.map_err(|error| match error.kind() {
            settee_doc::ErrorKind::AttachmentTooLarge => related::too_large(name),
            _ => error.into(),
        })?;
    }
    let upload = held.hold(uploading.finish(None).await?, database).await?;
    let content = Content::Stored(upload);
    Ok(NewAttachment { name: name.to_owned(), content_type, revpos: None, content })
}

/// The edit that the files are added to.
async fn edit_of(
    call: &Call<'_>,
    database: &Database,
    id: &str,
    document: Option<Held>,
    revision: Option<Named>,
) -> Result<(Edit, Share), Failure> {
    if let Some(held) = document {
        let (mut edit, share) = body::parse_edit(held, call.server).await?;
        id.clone_into(&mut edit.id);
        Named::name(one_of(call, Named::of(&edit), Named::parse)?, &mut edit);
        return Ok((edit, share));
    }
    let revision = revision.ok_or_else(|| Failure::bad_request("Invalid rev format"))?;
    let revision = revision.known().map_err(attachment::or_conflict)?;
    let mut edit = Edit::again(&document::edited_revision(database, id, revision).await?);
    edit.deleted = false;
    Ok((edit, Share::default()))
}
