//! Compresses responses for clients that accept gzip, if `compress_responses` is set.
//!
//! By default JSON is sent uncompressed, as by CouchDB: gzip costs more processor time than the rest of a
//! read, and a reverse proxy can do it. Attachments are never compressed here: they have an encoding of their
//! own, and ranges refer to their stored bytes.

use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Response, StatusCode};

use super::body::Body;
use super::gzip::Gzip;

/// Smallest response in bytes that is compressed.
const BYTES_MIN: usize = 1024;

/// Largest response in bytes that is compressed before its head is sent; a larger one is compressed while it
/// is sent.
const INLINE_BYTES_MAX: usize = 64 << 10;

/// Headers of responses that are already encoded or whose bytes are addressed by ranges.
const NOT_COMPRESSED: [header::HeaderName; 3] =
    [header::CONTENT_ENCODING, header::ACCEPT_RANGES, header::CONTENT_RANGE];

/// Whether the client accepts gzip.
pub(crate) fn accepts_gzip(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    accepted.flat_map(|value| value.split(',')).any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let refused = |part: &str| part.strip_prefix("q=").is_some_and(|q| q.parse::<f32>() == Ok(0.0));
        (name.eq_ignore_ascii_case("gzip") || name == "*") && !parts.any(refused)
    })
}

/// Compresses a response's body if it is large enough, text, and not encoded.
pub(crate) fn compress(response: &mut Response<Body>) {
    let headers = response.headers();
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    let is_text = content_type.starts_with("application/json") || content_type.starts_with("text/");
    let is_excluded = NOT_COMPRESSED.iter().any(|name| headers.contains_key(name));
    if !is_text || is_excluded || response.status() == StatusCode::NOT_MODIFIED {
        return;
    }
    match response.body_mut() {
        Body::Full(bytes) if bytes.len() < BYTES_MIN => return,
        Body::Full(bytes) if bytes.len() <= INLINE_BYTES_MAX => *bytes = Gzip::whole(bytes),
        Body::Full(bytes) => {
            let rest = std::mem::take(bytes);
            *response.body_mut() = Body::Compressed { rest, gzip: Some(Box::new(Gzip::new())) };
        }
        Body::Chunks { gzip, .. } => *gzip = Some(Box::new(Gzip::new())),
        Body::Empty | Body::Compressed { .. } => return,
    }
    let headers = response.headers_mut();
    // It is the length of the uncompressed body.
    headers.remove(header::CONTENT_LENGTH);
    headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    headers.insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_sent_only_to_clients_that_accept_it() {
        let takes = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_str(value).unwrap());
            accepts_gzip(&headers)
        };
        for yes in ["gzip", "deflate, gzip;q=0.5", "GZIP", "*", "br,gzip"] {
            assert!(takes(yes), "{yes}");
        }
        for no in ["identity", "gzip;q=0", "gzip;q=0.0", "deflate", "", "xgzip"] {
            assert!(!takes(no), "{no}");
        }
        assert!(!accepts_gzip(&HeaderMap::new()));
    }

    #[test]
    fn a_compressed_response_has_no_content_length() {
        for bytes in [0, BYTES_MIN, INLINE_BYTES_MAX + 1] {
            let mut response = Response::new(Body::Full(vec![b'x'; bytes].into()));
            let headers = response.headers_mut();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            headers.insert(header::CONTENT_LENGTH, HeaderValue::from(bytes));
            compress(&mut response);
            let headers = response.headers();
            let is_compressed = headers.contains_key(header::CONTENT_ENCODING);
            assert_eq!(is_compressed, bytes >= BYTES_MIN, "{bytes}");
            assert_eq!(headers.contains_key(header::CONTENT_LENGTH), !is_compressed, "{bytes}");
        }
    }
}
