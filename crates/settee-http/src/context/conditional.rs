//! Conditional requests: ETags, and the 304 for a client that has the current one.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};
use settee_doc::Revision;

use super::request::RequestContext;
use crate::response::{self, Body};

/// The revision in quotes, `"N-id"`. `None` if the id has characters that an entity tag can't have: spaces,
/// quotes and control characters.
///
/// Source: RFC 9110, section 8.8.3.
pub(crate) fn etag(revision: &Revision) -> Option<Bytes> {
    let mut tag = Vec::with_capacity(48);
    tag.push(b'"');
    revision.write(&mut tag);
    let can_be_sent = tag[1..].iter().all(|byte| matches!(byte, 0x21 | 0x23..=0x7E | 0x80..));
    tag.push(b'"');
    can_be_sent.then(|| tag.into())
}

/// Sets the ETag if there is one.
pub(crate) fn set_etag(response: &mut Response<Body>, tag: Option<Bytes>) {
    if let Some(tag) = tag {
        response::set_header(response, header::ETAG, tag);
    }
}

/// Whether `If-None-Match` has this tag.
pub(crate) fn matches_tag(context: &RequestContext<'_>, tag: &[u8]) -> bool {
    let sent = context.head.headers.get_all(header::IF_NONE_MATCH).iter();
    sent.into_iter().any(|value| lists(value.as_bytes(), tag))
}

/// Whether a list of entity tags has this one, weak or strong.
fn lists(list: &[u8], tag: &[u8]) -> bool {
    // A tag may contain commas, but no quote except those around it. So every second piece is a tag's text.
    let mut texts = list.split(|byte| *byte == b'"').skip(1).step_by(2);
    tag.split_last().is_some_and(|(_, opened)| texts.any(|text| opened.strip_prefix(b"\"") == Some(text)))
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
