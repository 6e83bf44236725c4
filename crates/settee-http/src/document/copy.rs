//! COPY: copies a document's winner, or another of its revisions, to another document.
//!
//! Attachments belong to one document, so their content is read and stored again chunk by chunk. Compressed
//! content stays compressed.

use hyper::StatusCode;
use hyper::header::HeaderName;
use settee_doc::{Content, Database, Document, Edit, ErrorKind, Hash, Revision, Snapshot, Stage};

use super::edited_revision::check_leaf;
use super::revision_arg::{self, one_of};
use super::saved::saved;
use super::whole::{edit_again, read_whole};
use crate::context::{RequestContext, location};
use crate::error::ApiError;
use crate::query;
use crate::response::{self, HandlerResult};

const DESTINATION: HeaderName = HeaderName::from_static("destination");

/// Prefix of the ids of local documents.
const LOCAL: &str = "_local/";

/// The destination, and the revision that the copy replaces.
struct Target {
    id: String,
    revision: Option<String>,
}

impl Target {
    /// Parses the `Destination` header.
    fn of(context: &RequestContext<'_>) -> Result<Target, ApiError> {
        let value = context.head.headers.get(DESTINATION);
        let value =
            value.ok_or_else(|| ApiError::bad_request("Destination header is mandatory for COPY."))?;
        let not_utf8 = || {
            ApiError::from(settee_doc::Error::new(ErrorKind::IllegalDocId, "Document id must be valid UTF-8"))
        };
        let text = std::str::from_utf8(value.as_bytes()).map_err(|_| not_utf8())?;
        if text.starts_with("http://") || text.starts_with("https://") {
            return Err(ApiError::bad_request("Destination URL must be relative."));
        }
        let (id, option) = text.split_once('?').map_or((text, None), |(id, option)| (id, Some(option)));
        query::check_encoding(id)?;
        let id = query::decode_path(id, context.server.plus_is_space).ok_or_else(not_utf8)?.into_owned();
        // CouchDB accepts any name for this option.
        let bad = || ApiError::bad_request("Invalid rev format");
        let revision = match option {
            Some(option) => Some(option.split_once('=').ok_or_else(bad)?.1.to_owned()),
            None => None,
        };
        Ok(Target { id, revision })
    }
}

/// Copies the document `id`, which may be a local one.
pub(crate) async fn handle(context: &mut RequestContext<'_>, database: &Database, id: &str) -> HandlerResult {
    let stage = context.stage()?;
    let snapshot = database.snapshot();
    let target = Target::of(context)?;
    let source = source(context, &snapshot, id).await?;
    let (source, permit) = read_whole(&snapshot, source, &context.server.body_memory).await?;
    database.check_id(&target.id)?;
    let attachments = source.attachments.clone();
    let (mut edit, _permit) = edit_again(source, permit).await?;
    (edit.id, edit.revision) = (target.id.clone(), None);
    if target.id.starts_with(LOCAL) {
        return put_local(context, database, edit, target.revision.as_deref(), stage).await;
    }
    edit.revision = target.revision.map(|text| revision_arg::parse(&text)).transpose()?;
    check_leaf(database, &edit).await?;
    for (new, attachment) in edit.attachments.iter_mut().zip(&attachments) {
        let is_gzip = attachment.gzip_length.is_some();
        let mut uploading = database.upload(&target.id, &attachment.content_type, is_gzip, u64::MAX);
        let mut reader = snapshot.attachment(id, attachment, None, false);
        while let Some(bytes) = reader.next().await? {
            uploading.write(&bytes).await?;
        }
        // A copied attachment counts as added with the copy's revision.
        (new.revpos, new.content) = (None, Content::Stored(uploading.finish(None).await?));
    }
    drop(snapshot);
    let revision = database.update(edit, stage).await?;
    Ok(saved(context, database.name(), status(stage), &target.id, &revision))
}

/// The document to copy: the winner, or the revision named in the query or `If-Match`.
async fn source(context: &RequestContext<'_>, snapshot: &Snapshot, id: &str) -> Result<Document, ApiError> {
    if let Some(name) = id.strip_prefix(LOCAL) {
        let body = snapshot.local(name).await?.1;
        let revision = Revision { generation: 1, id: Hash::default().into() };
        let (id, attachments) = (id.to_owned(), Vec::new());
        return Ok(Document { id, revision, deleted: false, body, attachments, large_body: None });
    }
    match one_of(context, None, revision_arg::parse)? {
        Some(revision) => Ok(snapshot.available_revision(id, &revision).await?),
        None => Ok(snapshot.document(id).await?),
    }
}

async fn put_local(
    context: &RequestContext<'_>,
    database: &Database,
    mut edit: Edit,
    revision: Option<&str>,
    stage: Stage,
) -> HandlerResult {
    let parse = |text: &str| {
        settee_doc::parse_local_revision(text).ok_or_else(|| ApiError::bad_request("Invalid rev format"))
    };
    edit.local_revision = revision.map(parse).transpose()?;
    let id = edit.id.clone();
    let revision = database.put_local(edit, stage).await?;
    let mut response = response::saved(status(stage), &id, &revision);
    let location = location(context, database.name(), Some(&id));
    response::set_header(&mut response, hyper::header::LOCATION, location);
    Ok(response)
}

fn status(stage: Stage) -> StatusCode {
    if stage == Stage::Persisted { StatusCode::CREATED } else { StatusCode::ACCEPTED }
}
