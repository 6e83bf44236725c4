//! `_update`: a function makes a document of a request, and a response.

use std::sync::Arc;

use hyper::StatusCode;
use hyper::header::HeaderName;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use settee_doc::Database;
use settee_js::Updated;

use super::document::{find, text_or_null};
use super::request_object::{RequestText, read_body, request_object};
use super::response_object::ResponseObject;
use crate::body::{self, BodyBudget};
use crate::context::RequestContext;
use crate::error::ApiError;
use crate::javascript::DesignSource;
use crate::query::Segments;
use crate::response::{self, HandlerResult};

const NEW_REVISION: HeaderName = HeaderName::from_static("x-couch-update-newrev");
const ID: HeaderName = HeaderName::from_static("x-couch-id");

/// Characters of an id that aren't encoded in a header, as in CouchDB.
const KEPT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'_').remove(b'.').remove(b'-').remove(b':');

/// Handles `_update/NAME` and `_update/NAME/ID`.
pub(crate) async fn update(
    context: &mut RequestContext<'_>,
    database: Arc<Database>,
    design: &str,
    mut path: Segments<'_>,
) -> HandlerResult {
    let Some(name) = path.next()? else {
        return Err(ApiError::new(StatusCode::NOT_FOUND, "update_error", "Invalid path."));
    };
    let (name, id) = (name.into_owned(), path.rest()?);
    let design = DesignSource::read(&database, design).await?;
    design.check_function("updates", &name)?;
    if context.is_get() {
        let reason = "Update functions do not allow GET";
        return Err(ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", reason));
    }
    let concern = context.write_concern()?;
    let body = read_body(context).await?;
    let request = request_object(context, &database, id.as_deref(), RequestText::of(body.as_ref()))?;
    let snapshot = database.snapshot();
    let found = match &id {
        Some(id) => find(&snapshot, id).await?,
        None => None,
    };
    let (document, permit) = text_or_null(&snapshot, found, &context.server.body_memory).await?;
    drop(snapshot);
    let call = move |context: &mut settee_js::DesignContext| {
        let _memory = (body, permit);
        context.update(&["updates", &name], &document, &request)
    };
    let Updated { document, response } = context.server.contexts.run(&design, call).await?;
    let Some(document) = document.filter(|document| document.starts_with('{')) else {
        return Ok(ResponseObject::parse(&response)?.into_response(StatusCode::OK));
    };
    let edit = body::parse_edit(
        document.as_bytes(),
        &context.server.document_options,
        &mut BodyBudget::unlimited(),
    )?;
    let id = edit.id.clone();
    let revision = match id.starts_with("_local/") {
        true => database.put_local(edit, concern.stage).await?,
        false => database.update(edit, concern.stage).await?.to_string(),
    };
    // The document is stored whatever the response is.
    let mut response = ResponseObject::parse(&response)?.into_response(concern.status(StatusCode::CREATED));
    response::set_header(&mut response, NEW_REVISION, revision);
    response::set_header(&mut response, ID, utf8_percent_encode(&id, KEPT).to_string());
    Ok(response)
}
