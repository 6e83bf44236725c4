//! Checks of request heads that hyper doesn't make.

use hyper::body::Incoming;
use hyper::header;
use hyper::{Request, StatusCode, Version};

use super::framing::Head;
use crate::error::ApiError;
use crate::limits::Limits;

/// Checks what hyper accepts in an HTTP/1 head and must be refused: more bytes than the limit (if a buffer
/// holds them), line feeds without a carriage return, and no `Host` header or several. Parties that disagree
/// on where a request ends or on its host allow request smuggling (RFC 9112, 2.2 and 3.2).
pub(super) fn check_head(
    limits: &Limits,
    head: Option<Head>,
    request: &Request<Incoming>,
) -> Result<(), ApiError> {
    let Some(head) = head else {
        return Err(ApiError::bad_request("The request before this one was malformed."));
    };
    if head.bytes > limits.head_bytes_max as u64 {
        return Err(head_too_large("the request's head is too large"));
    }
    if head.has_bare_line_feed {
        return Err(ApiError::bad_request("A line of the request's head ends without a carriage return."));
    }
    let hosts = request.headers().get_all(header::HOST).iter().count();
    match hosts {
        1 => Ok(()),
        0 if request.version() < Version::HTTP_11 => Ok(()),
        0 => Err(ApiError::bad_request("The request has no Host header.")),
        _ => Err(ApiError::bad_request("The request has several Host headers.")),
    }
}

/// Limits the number of headers. HTTP/2 itself limits only the bytes of a head.
pub(super) fn check_headers(limits: &Limits, request: &Request<Incoming>) -> Result<(), ApiError> {
    match request.headers().len() > limits.headers_max {
        true => Err(head_too_large("the request has too many headers")),
        false => Ok(()),
    }
}

fn head_too_large(reason: &'static str) -> ApiError {
    ApiError::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "too_large", reason)
}
