//! Reading request bodies within their limits.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::body::{Body as _, Incoming};
use hyper::header::{self, HeaderMap};

use crate::Limits;
use crate::error::Failure;

/// Requires a body to be declared as JSON, as CouchDB's POST handlers do.
pub(crate) fn check_json_type(headers: &HeaderMap) -> Result<(), Failure> {
    let declared = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    match declared.split(';').next().unwrap_or("").trim().eq_ignore_ascii_case("application/json") {
        true => Ok(()),
        false => Err(Failure::bad_content_type("Content-Type must be application/json")),
    }
}

/// Reads a whole body that holds JSON.
///
/// # Errors
/// 400 without a body, 408 when the client pauses too long, 413 past the limit, 415 for an
/// encoding. The rest of the body stays unread then: see [`discard`].
pub(crate) async fn read(
    body: &mut Incoming,
    headers: &HeaderMap,
    limits: &Limits,
) -> Result<Bytes, Failure> {
    if let Some(encoding) = headers.get(header::CONTENT_ENCODING) {
        let encoding = encoding.to_str().unwrap_or("");
        if !encoding.eq_ignore_ascii_case("identity") {
            let reason = format!("{encoding} is not a supported content encoding.");
            return Err(Failure::bad_content_type(reason));
        }
    }
    let declared = body.size_hint().exact();
    if declared == Some(0) && !headers.contains_key(header::CONTENT_LENGTH) {
        return Err(Failure::bad_request("Missing request body"));
    }
    if declared.is_some_and(|bytes| bytes > limits.max_request_bytes) {
        return Err(Failure::body_too_large());
    }
    let Some(first) = next_frame(body, limits).await? else {
        return Ok(Bytes::new());
    };
    if body.is_end_stream() && first.len() as u64 <= limits.max_request_bytes {
        return Ok(first);
    }
    // Space grows with what has come, not with what a header promises.
    let mut whole = BytesMut::with_capacity(first.len() * 2);
    whole.extend_from_slice(&first);
    while let Some(frame) = next_frame(body, limits).await? {
        if (whole.len() + frame.len()) as u64 > limits.max_request_bytes {
            return Err(Failure::body_too_large());
        }
        whole.extend_from_slice(&frame);
    }
    if whole.len() as u64 > limits.max_request_bytes {
        return Err(Failure::body_too_large());
    }
    Ok(whole.freeze())
}

/// Reads and drops what is left of a body, so that a client that is still sending reads its
/// answer and can go on using the connection. Gives up past `max_discard_bytes`: hyper then
/// closes the connection.
pub(crate) async fn discard(body: &mut Incoming, headers: &HeaderMap, limits: &Limits) {
    // A client that waits for leave to send is told by the answer itself.
    if headers.contains_key(header::EXPECT) {
        return;
    }
    let mut left = limits.max_discard_bytes;
    while !body.is_end_stream() {
        match next_frame(body, limits).await {
            Ok(Some(frame)) if (frame.len() as u64) < left => left -= frame.len() as u64,
            _ => return,
        }
    }
}

/// The next piece of a body; None at its end.
async fn next_frame(body: &mut Incoming, limits: &Limits) -> Result<Option<Bytes>, Failure> {
    let patience = Duration::from_millis(limits.body_timeout_ms);
    loop {
        match tokio::time::timeout(patience, body.frame()).await {
            Ok(Some(Ok(frame))) => {
                // Trailers carry nothing here.
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
            Ok(Some(Err(_))) => return Err(Failure::bad_request("the request body broke off")),
            Ok(None) => return Ok(None),
            Err(_) => {
                let reason = "the request body paused for too long";
                return Err(Failure::new(StatusCode::REQUEST_TIMEOUT, "timeout", reason));
            }
        }
    }
}
