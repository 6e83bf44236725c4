//! Compressing answers for clients that take gzip, where the server is told to.
//!
//! CouchDB sends JSON as it is, and so does this server unless `compress_answers` is set: gzip
//! costs more processor time than all else that a read takes, and who needs it has a proxy.
//! Attachments are left alone: they have an encoding of their own, and ranges are of their bytes.
//!
//! Invariant: what is flushed by a producer reaches the client: each chunk ends in a sync flush.

use std::io::Write;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Response, StatusCode};

use crate::reply::Body;

/// Bytes of an answer that isn't worth it.
const BYTES_MIN: usize = 1024;

/// Bytes that are compressed before the answer begins; more, as it is sent.
const INLINE_BYTES_MAX: usize = 64 << 10;

/// The level: of all the one that costs least.
const LEVEL: u32 = 1;

/// What of an answer can't be compressed again, or is counted in bytes.
const AS_THEY_ARE: [header::HeaderName; 3] =
    [header::CONTENT_ENCODING, header::ACCEPT_RANGES, header::CONTENT_RANGE];

/// Compresses what goes through it.
pub(crate) struct Gzip(GzEncoder<Vec<u8>>);

impl Gzip {
    fn new() -> Gzip {
        Gzip(GzEncoder::new(Vec::new(), Compression::new(LEVEL)))
    }

    /// What becomes of a chunk.
    pub(crate) fn chunk(&mut self, bytes: &[u8]) -> Bytes {
        const NEVER_FAILS: &str = "a Vec takes all";
        self.0.write_all(bytes).expect(NEVER_FAILS);
        self.0.flush().expect(NEVER_FAILS);
        std::mem::take(self.0.get_mut()).into()
    }

    /// What ends the stream.
    pub(crate) fn end(mut self) -> Bytes {
        self.0.try_finish().expect("a Vec takes all");
        std::mem::take(self.0.get_mut()).into()
    }
}

/// Whether a client takes gzip.
pub(crate) fn takes_gzip(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    accepted.flat_map(|value| value.split(',')).any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let refused = |part: &str| part.strip_prefix("q=").is_some_and(|q| q.parse::<f32>() == Ok(0.0));
        (name.eq_ignore_ascii_case("gzip") || name == "*") && !parts.any(refused)
    })
}

/// Compresses an answer's body where that makes sense.
pub(crate) fn compress(response: &mut Response<Body>) {
    let headers = response.headers();
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    let is_text = content_type.starts_with("application/json") || content_type.starts_with("text/");
    let as_it_is = AS_THEY_ARE.iter().any(|name| headers.contains_key(name));
    if !is_text || as_it_is || response.status() == StatusCode::NOT_MODIFIED {
        return;
    }
    match response.body_mut() {
        Body::Full(bytes) if bytes.len() < BYTES_MIN => return,
        Body::Full(bytes) if bytes.len() <= INLINE_BYTES_MAX => {
            let mut gzip = Gzip::new();
            // One stream of one part: nothing is gained by a flush within it.
            gzip.0.write_all(bytes).expect("a Vec takes all");
            *bytes = gzip.end();
        }
        Body::Full(bytes) => {
            let rest = std::mem::take(bytes);
            *response.body_mut() = Body::Compressed { rest, gzip: Some(Box::new(Gzip::new())) };
        }
        Body::Chunks { gzip, .. } => *gzip = Some(Box::new(Gzip::new())),
        Body::Nothing | Body::Compressed { .. } => return,
    }
    let headers = response.headers_mut();
    // It was told of what is sent no more.
    headers.remove(header::CONTENT_LENGTH);
    headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    headers.insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn only_who_takes_gzip_gets_it() {
        let takes = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_str(value).unwrap());
            takes_gzip(&headers)
        };
        for yes in ["gzip", "deflate, gzip;q=0.5", "GZIP", "*", "br,gzip"] {
            assert!(takes(yes), "{yes}");
        }
        for no in ["identity", "gzip;q=0", "gzip;q=0.0", "deflate", "", "xgzip"] {
            assert!(!takes(no), "{no}");
        }
        assert!(!takes_gzip(&HeaderMap::new()));
    }

    #[test]
    fn what_is_compressed_is_not_as_long_as_was_told() {
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

    #[test]
    fn each_chunk_can_be_read_when_it_has_come() {
        let mut gzip = Gzip::new();
        let first = gzip.chunk(b"{\"results\":[");
        let mut read = Vec::new();
        // The stream isn't at its end: reading says so, after what is there.
        assert!(flate2::read::GzDecoder::new(&first[..]).read_to_end(&mut read).is_err());
        assert_eq!(read, b"{\"results\":[");
        let whole = [&first[..], &gzip.chunk(b"]}"), &gzip.end()].concat();
        let mut text = String::new();
        flate2::read::GzDecoder::new(&whole[..]).read_to_string(&mut text).unwrap();
        assert_eq!(text, "{\"results\":[]}");
    }
}
