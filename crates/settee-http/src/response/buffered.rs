//! Responses from one buffer, and the headers common to all responses.

use bytes::Bytes;
use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};

use super::body::Body;
use crate::error::ApiError;
use crate::json;

/// This product, and CouchDB's version as a product of its own, because clients look for it.
const SERVER: HeaderValue =
    HeaderValue::from_static(concat!("Settee/", env!("CARGO_PKG_VERSION"), " CouchDB/3.5.0"));
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const MUST_REVALIDATE: HeaderValue = HeaderValue::from_static("must-revalidate");

/// A response with the headers that all of CouchDB's responses have.
pub(crate) fn with_body(status: StatusCode, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::SERVER, SERVER);
    headers.insert(header::CONTENT_TYPE, JSON);
    headers.insert(header::CACHE_CONTROL, MUST_REVALIDATE);
    response
}

/// A JSON response from one buffer, which includes the final newline.
pub(crate) fn json(status: StatusCode, text: impl Into<Bytes>) -> Response<Body> {
    with_body(status, Body::Full(text.into()))
}

/// `{"ok":true}`
pub(crate) fn ok(status: StatusCode) -> Response<Body> {
    json(status, Bytes::from_static(b"{\"ok\":true}\n"))
}

/// A response without a body.
pub(crate) fn empty(status: StatusCode) -> Response<Body> {
    with_body(status, Body::Full(Bytes::new()))
}

/// `{"ok":true,"id":…,"rev":…}`
pub(crate) fn saved(status: StatusCode, id: &str, revision: &str) -> Response<Body> {
    let mut text = Vec::with_capacity(id.len() + revision.len() + 40);
    text.extend_from_slice(b"{\"ok\":true,\"id\":");
    settee_doc::write_json_string(id, &mut text);
    text.extend_from_slice(b",\"rev\":");
    settee_doc::write_json_string(revision, &mut text);
    text.extend_from_slice(b"}\n");
    json(status, text)
}

/// The response for an error.
pub(crate) fn error(failure: &ApiError) -> Response<Body> {
    let mut text = Vec::with_capacity(failure.reason.len() + 64);
    json::object(&mut text, |text| failure.write_members(text));
    text.push(b'\n');
    let mut response = json(failure.status, text);
    if let Some((name, value)) = &failure.header {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Sets a header, unless HTTP can't carry the value.
pub(crate) fn set_header(response: &mut Response<Body>, name: header::HeaderName, value: impl Into<Bytes>) {
    if let Ok(value) = HeaderValue::from_maybe_shared(value.into()) {
        response.headers_mut().insert(name, value);
    }
}
