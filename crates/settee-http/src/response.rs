//! Response bodies, one buffer or chunks from a channel, and the headers common to all responses.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};
use tokio::sync::mpsc;

use crate::compress::Gzip;
use crate::error::ApiError;
use crate::json;

/// A handler's result.
pub(crate) type HandlerResult = Result<Response<Body>, ApiError>;

/// Bytes of a buffer that are compressed at once.
const COMPRESS_BYTES: usize = 64 << 10;

/// A response that broke off. Its connection is closed, so that the client notices.
#[derive(Debug, thiserror::Error)]
#[error("the response broke off")]
pub(crate) struct Aborted;

/// A response's body.
pub(crate) enum Body {
    Full(Bytes),
    /// An empty body that reports its end only when it is polled: hyper sends no `Content-Length` with a 304
    /// whose body has ended before.
    Empty,
    Chunks {
        first: Option<StreamItem>,
        rest: mpsc::Receiver<StreamItem>,
        gzip: Option<Box<Gzip>>,
    },
    /// A buffer that is compressed chunk by chunk while it is sent; None after the end.
    Compressed {
        rest: Bytes,
        gzip: Option<Box<Gzip>>,
    },
}

/// An item of a streamed body. A stream whose sender is dropped without sending `End` has broken off.
pub(crate) enum StreamItem {
    Chunk(Bytes),
    End,
}

/// Marks a response without an end of its own. Its client may stop reading for any time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Endless;

impl HttpBody for Body {
    type Data = Bytes;
    type Error = Aborted;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Aborted>>> {
        match &mut *self {
            Body::Empty => Poll::Ready(None),
            Body::Full(bytes) if bytes.is_empty() => Poll::Ready(None),
            Body::Full(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Body::Compressed { rest, gzip } => {
                let chunk = rest.split_to(rest.len().min(COMPRESS_BYTES));
                let bytes = match gzip {
                    None => return Poll::Ready(None),
                    Some(encoder) if !chunk.is_empty() => encoder.chunk(&chunk),
                    some => some.take().map(|gzip| gzip.end()).unwrap_or_default(),
                };
                Poll::Ready(Some(Ok(Frame::data(bytes))))
            }
            Body::Chunks { first, rest, gzip } => {
                let part = match first.take() {
                    Some(part) => Some(part),
                    None => ready!(rest.poll_recv(context)),
                };
                Poll::Ready(match part {
                    Some(StreamItem::Chunk(chunk)) => Some(Ok(Frame::data(match gzip {
                        Some(gzip) => gzip.chunk(&chunk),
                        None => chunk,
                    }))),
                    Some(StreamItem::End) => {
                        let last = gzip.take().map(|gzip| Ok(Frame::data(gzip.end())));
                        *self = Body::Full(Bytes::new());
                        last
                    }
                    None => Some(Err(Aborted)),
                })
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Body::Full(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Body::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Body::Empty => SizeHint::with_exact(0),
            Body::Chunks { .. } | Body::Compressed { .. } => SizeHint::default(),
        }
    }
}

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
    text.extend_from_slice(b",\"rev\":\"");
    text.extend_from_slice(revision.as_bytes());
    text.extend_from_slice(b"\"}\n");
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
