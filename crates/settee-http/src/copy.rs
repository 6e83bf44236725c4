//! COPY: a document's winner, or one of its leaves, as another document.
//!
//! Attachments belong to one document, so that what they hold is read and stored anew, chunk by chunk;
//! what is compressed stays so.

use hyper::StatusCode;
use hyper::header::HeaderName;
use settee_doc::{Content, Database, Document, Edit, ErrorKind, Revision, Stage, View};

use crate::database::location;
use crate::document;
use crate::error::Failure;
use crate::named::{Named, one_of};
use crate::query;
use crate::reply::{self, Answer};
use crate::server::Call;

const DESTINATION: HeaderName = HeaderName::from_static("destination");

/// What local documents' ids begin with.
const LOCAL: &str = "_local/";

/// Where a copy goes, and what it replaces there.
struct Target {
    id: String,
    revision: Option<String>,
}

impl Target {
    /// The document that `Destination` names.
    fn of(call: &Call<'_>) -> Result<Target, Failure> {
        let value = call.head.headers.get(DESTINATION);
        let value = value.ok_or_else(|| Failure::bad_request("Destination header is mandatory for COPY."))?;
        let not_utf8 = || {
            Failure::from(settee_doc::Error::new(ErrorKind::IllegalDocId, "Document id must be valid UTF-8"))
        };
        let text = std::str::from_utf8(value.as_bytes()).map_err(|_| not_utf8())?;
        if text.starts_with("http://") || text.starts_with("https://") {
            return Err(Failure::bad_request("Destination URL must be relative."));
        }
        let (id, option) = text.split_once('?').map_or((text, None), |(id, option)| (id, Some(option)));
        query::check_encoding(id)?;
        let id = query::decode_path(id, call.server.plus_is_space).ok_or_else(not_utf8)?.into_owned();
        // As CouchDB has it, the option's name doesn't matter.
        let bad = || Failure::bad_request("Invalid rev format");
        let revision = match option {
            Some(option) => Some(option.split_once('=').ok_or_else(bad)?.1.to_owned()),
            None => None,
        };
        Ok(Target { id, revision })
    }
}

/// Copies the document `id`, which may be a local one.
pub(crate) async fn handle(call: &mut Call<'_>, database: &Database, id: &str) -> Answer {
    let stage = call.stage()?;
    let view = database.view();
    let target = Target::of(call)?;
    let source = source(call, &view, id).await?;
    database.check_id(&target.id)?;
    let mut edit = Edit::again(&source);
    (edit.id, edit.revision) = (target.id.clone(), None);
    if target.id.starts_with(LOCAL) {
        return put_local(call, database, edit, target.revision.as_deref(), stage).await;
    }
    Named::name(target.revision.map(|text| Named::parse(&text)).transpose()?, &mut edit);
    document::check_leaf(database, &edit).await?;
    for (new, attachment) in edit.attachments.iter_mut().zip(&source.attachments) {
        let is_gzip = attachment.gzip_length.is_some();
        let mut uploading = database.upload(&target.id, &attachment.content_type, is_gzip, u64::MAX);
        let mut reader = view.attachment(id, attachment, None, false);
        while let Some(bytes) = reader.next().await? {
            uploading.write(&bytes).await?;
        }
        // It came with the copy's first revision.
        (new.revpos, new.content) = (None, Content::Stored(uploading.finish(None).await?));
    }
    drop(view);
    let revision = database.update(edit, stage).await?;
    Ok(document::saved(call, database.name(), status(stage), &target.id, revision))
}

/// The document to copy: the winner, or the revision that the query or `If-Match` names.
async fn source(call: &Call<'_>, view: &View, id: &str) -> Result<Document, Failure> {
    if let Some(name) = id.strip_prefix(LOCAL) {
        let body = view.local(name).await?.1;
        let revision = Revision { generation: 1, hash: Default::default() };
        return Ok(Document { id: id.to_owned(), revision, deleted: false, body, attachments: Vec::new() });
    }
    match one_of(call, None, Named::parse)? {
        Some(named) => document::one_revision(view, id, named.known()?).await,
        None => Ok(view.document(id).await?),
    }
}

async fn put_local(
    call: &Call<'_>,
    database: &Database,
    mut edit: Edit,
    revision: Option<&str>,
    stage: Stage,
) -> Answer {
    let parse = |text: &str| {
        settee_doc::parse_local_revision(text).ok_or_else(|| Failure::bad_request("Invalid rev format"))
    };
    edit.local_revision = revision.map(parse).transpose()?;
    let id = edit.id.clone();
    let revision = database.put_local(edit, stage).await?;
    let mut response = reply::saved(status(stage), &id, &revision);
    let place = location(call, database.name(), Some(&id));
    reply::set_header(&mut response, hyper::header::LOCATION, place);
    Ok(response)
}

fn status(stage: Stage) -> StatusCode {
    if stage == Stage::Persisted { StatusCode::CREATED } else { StatusCode::ACCEPTED }
}
