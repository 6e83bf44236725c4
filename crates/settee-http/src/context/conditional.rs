//! Conditional requests: ETags, and the 304 for a client that has the current one.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};
use settee_doc::Revision;

use super::request::RequestContext;
use crate::response::{self, Body};

/// The revision in quotes, `"N-hash"`.
pub(crate) fn etag(revision: Revision) -> Bytes {
    let mut tag = Vec::with_capacity(48);
    tag.push(b'"');
    revision.write(&mut tag);
    tag.push(b'"');
    tag.into()
}

/// Whether `If-None-Match` has this tag.
pub(crate) fn matches_tag(context: &RequestContext<'_>, tag: &[u8]) -> bool {
    let sent = context.head.headers.get_all(header::IF_NONE_MATCH).iter();
    sent.filter_map(|value| value.to_str().ok())
        .flat_map(|tags| tags.split(','))
        .any(|sent| sent.trim().trim_start_matches("W/").as_bytes() == tag)
}

/// Responds with JSON text and its digest as ETag, or with 304 if the client has it.
pub(crate) fn tagged_by_content(context: &RequestContext<'_>, text: Vec<u8>) -> Response<Body> {
    let digest = <sha2::Sha256 as sha2::Digest>::digest(&text);
    let tag = Bytes::from(format!("\"{}\"", BASE64.encode(&digest[..16])));
    if matches_tag(context, &tag) {
        return not_modified(tag);
    }
    let mut response = response::json(StatusCode::OK, text);
    response::set_header(&mut response, header::ETAG, tag);
    response
}

pub(crate) fn not_modified(tag: Bytes) -> Response<Body> {
    let mut response = response::with_body(StatusCode::NOT_MODIFIED, Body::Empty);
    response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from_static("0"));
    response::set_header(&mut response, header::ETAG, tag);
    response
}
