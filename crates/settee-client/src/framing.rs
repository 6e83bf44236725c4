//! The framing of responses: their heads, and where their bodies end (RFC 9112, sections 6 and 7).

use httparse::Status;

use crate::error::{HttpError, Result};

/// Largest head of a response in bytes, and largest line of a chunked body's framing.
pub const HEAD_BYTES_MAX: usize = 64 << 10;

/// Maximum number of headers of a response.
const HEADER_COUNT_MAX: usize = 100;

/// The framing of a body and its remaining length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Body {
    /// The body has ended, or there is none.
    End,
    /// This many bytes remain.
    Fixed(u64),
    /// The line with the first chunk's size follows.
    Chunked,
    /// This many bytes of a chunk remain, then the end of its line.
    Chunk(u64),
    /// The lines after the last chunk follow.
    Trailer,
    /// The body ends when the server closes the connection.
    UntilClose,
}

/// The part of a response's head that the client uses.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) status: u16,
    pub(crate) body: Body,
    pub(crate) is_closing: bool,
    /// The head's length, the empty line included.
    pub(crate) bytes: usize,
}

/// Parses a response's head. Returns `None` if it hasn't arrived whole.
pub(crate) fn parse_head(input: &[u8]) -> Result<Option<Head>> {
    let mut headers = [httparse::EMPTY_HEADER; HEADER_COUNT_MAX];
    let mut response = httparse::Response::new(&mut headers);
    let bytes = match response.parse(input) {
        Ok(Status::Complete(bytes)) => bytes,
        Ok(Status::Partial) if input.len() < HEAD_BYTES_MAX => return Ok(None),
        Ok(Status::Partial) => return Err(HttpError::Malformed("its head is too long")),
        Err(_) => return Err(HttpError::Malformed("its head isn't one of HTTP/1")),
    };
    let status = response.code.unwrap_or_default();
    let mut body = Body::UntilClose;
    let mut is_closing = false;
    for header in response.headers {
        let value = header.value.trim_ascii();
        if header.name.eq_ignore_ascii_case("transfer-encoding") {
            if !value.eq_ignore_ascii_case(b"chunked") {
                return Err(HttpError::Malformed("its transfer encoding isn't chunked"));
            }
            body = Body::Chunked;
        } else if header.name.eq_ignore_ascii_case("content-length") && body == Body::UntilClose {
            let digits = std::str::from_utf8(value).ok().filter(|_| value.iter().all(u8::is_ascii_digit));
            let length = digits.and_then(|digits| digits.parse().ok());
            body = Body::Fixed(length.ok_or(HttpError::Malformed("its length isn't a number"))?);
        } else if header.name.eq_ignore_ascii_case("connection") {
            is_closing = value.eq_ignore_ascii_case(b"close");
        }
    }
    if status < 200 || status == 204 || status == 304 {
        body = Body::End;
    }
    Ok(Some(Head { status, body, is_closing: is_closing || body == Body::UntilClose, bytes }))
}

/// Decodes one line of a chunked body's framing, where `body` says that one follows. Returns the number of its
/// bytes and the framing after it, or `None` if it hasn't arrived whole.
pub(crate) fn parse_chunk_line(body: Body, input: &[u8]) -> Result<Option<(usize, Body)>> {
    let line = match body {
        Body::Chunk(0) => match input {
            [b'\r', b'\n', ..] => return Ok(Some((2, Body::Chunked))),
            [] | [b'\r'] => None,
            _ => return Err(HttpError::Malformed("a chunk is longer than its size")),
        },
        Body::Chunked => {
            if input.first().is_some_and(|first| !first.is_ascii_hexdigit()) {
                return Err(HttpError::Malformed("a chunk has no size"));
            }
            match httparse::parse_chunk_size(input) {
                Ok(Status::Complete((bytes, 0))) => Some((bytes, Body::Trailer)),
                Ok(Status::Complete((bytes, size))) => Some((bytes, Body::Chunk(size))),
                Ok(Status::Partial) => None,
                Err(_) => return Err(HttpError::Malformed("a chunk's size isn't a hexadecimal number")),
            }
        }
        Body::Trailer => memchr::memchr(b'\n', input).map(|end| {
            (end + 1, if input[..end].trim_ascii().is_empty() { Body::End } else { Body::Trailer })
        }),
        Body::End | Body::Fixed(_) | Body::Chunk(_) | Body::UntilClose => unreachable!("no line follows"),
    };
    match line {
        None if input.len() >= HEAD_BYTES_MAX => Err(HttpError::Malformed("a chunk's line is too long")),
        line => Ok(line),
    }
}
