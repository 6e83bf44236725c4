//! `_show`: a function makes a response of a document.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use hyper::StatusCode;
use hyper::header::{self, HeaderValue};
use settee_doc::{Database, Document};

use super::document::{find, text_or_null};
use super::request_object::{RequestText, read_body, request_object};
use super::response_object::ResponseObject;
use crate::context::{RequestContext, matches_tag, not_modified};
use crate::error::ApiError;
use crate::javascript::DesignSource;
use crate::query::Segments;
use crate::response::{self, HandlerResult};

/// Handles `_show/NAME` and `_show/NAME/ID`.
pub(crate) async fn show(
    context: &mut RequestContext<'_>,
    database: Arc<Database>,
    design: &str,
    mut path: Segments<'_>,
) -> HandlerResult {
    let Some(name) = path.next()? else {
        return Err(ApiError::new(StatusCode::NOT_FOUND, "show_error", "Invalid path."));
    };
    let (name, id) = (name.into_owned(), path.rest()?);
    let design = DesignSource::read(&database, design).await?;
    design.check_function("shows", &name)?;
    let snapshot = database.snapshot();
    let found = match &id {
        Some(id) => find(&snapshot, id).await?,
        None => None,
    };
    let tag = tag_of(context, &design, found.as_ref());
    if matches_tag(context, &tag) {
        return Ok(not_modified(tag));
    }
    let body = read_body(context).await?;
    let request = request_object(context, &database, id.as_deref(), RequestText::of(body.as_ref()))?;
    let (document, permit) = text_or_null(&snapshot, found, &context.server.body_memory).await?;
    drop(snapshot);
    let call = move |context: &mut settee_js::DesignContext| {
        let _memory = (body, permit);
        context.show(&["shows", &name], &document, &request)
    };
    let shown = context.server.contexts.run(&design, call).await?;
    let mut response = ResponseObject::parse(&shown)?.into_response(StatusCode::OK);
    response::set_header(&mut response, header::ETAG, tag);
    response.headers_mut().insert(header::VARY, HeaderValue::from_static("Accept"));
    Ok(response)
}

/// The ETag: what is shown depends on both documents and on `Accept`. The rest of the request doesn't count, as in
/// CouchDB.
fn tag_of(context: &RequestContext<'_>, design: &DesignSource, document: Option<&Document>) -> Bytes {
    let accept = context.header(header::ACCEPT).unwrap_or_default();
    let document = document.map(|document| document.revision.to_string()).unwrap_or_default();
    let text = format!("{} {document} {accept}", design.revision());
    let digest = <sha2::Sha256 as sha2::Digest>::digest(text.as_bytes());
    format!("\"{}\"", BASE64.encode(&digest[..16])).into()
}
