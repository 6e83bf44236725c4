//! Responses to writes of documents.

use hyper::header;
use hyper::{Response, StatusCode};
use settee_doc::Revision;

use crate::context::{RequestContext, etag, location, set_etag};
use crate::response::{self, Body};

/// The response to a write: the revision, its ETag and the `Location`.
pub(crate) fn saved(
    context: &RequestContext<'_>,
    name: &str,
    status: StatusCode,
    id: &str,
    revision: &Revision,
) -> Response<Body> {
    let mut response = saved_as(status, id, revision);
    response::set_header(&mut response, header::LOCATION, location(context, name, Some(id)));
    response
}

/// As [`saved`], without `Location`.
pub(crate) fn saved_as(status: StatusCode, id: &str, revision: &Revision) -> Response<Body> {
    let mut response = response::saved(status, id, &revision.to_string());
    set_etag(&mut response, etag(revision));
    response
}
