//! Answers: a body that is one buffer, or chunks from a channel, and the headers they share.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use hyper::header::{self, HeaderValue};
use hyper::{Response, StatusCode};
use tokio::sync::mpsc;

use crate::compress::Gzip;
use crate::error::Failure;
use crate::json;

/// What a handler returns.
pub(crate) type Answer = Result<Response<Body>, Failure>;

/// Bytes of a buffer that are compressed at once.
const PIECE_BYTES: usize = 64 << 10;

/// An answer that broke off: its connection is closed, so that the client knows.
#[derive(Debug, thiserror::Error)]
#[error("the answer broke off")]
pub(crate) struct Aborted;

/// A response's body.
pub(crate) enum Body {
    Full(Bytes),
    /// No bytes. It says so only when it is read, since of a body that has ended before hyper sends no
    /// `Content-Length` with a 304.
    Nothing,
    Chunks {
        first: Option<Part>,
        rest: mpsc::Receiver<Part>,
        gzip: Option<Box<Gzip>>,
    },
    /// A buffer that is compressed piece by piece, as it is sent; None at its end.
    Compressed {
        rest: Bytes,
        gzip: Option<Box<Gzip>>,
    },
}

/// What a streamed answer is sent as. One whose sender goes without `End` has broken off.
pub(crate) enum Part {
    Chunk(Bytes),
    End,
}

/// Marks an answer that has no end of its own, whose client may take its time with what it got.
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
            Body::Nothing => Poll::Ready(None),
            Body::Full(bytes) if bytes.is_empty() => Poll::Ready(None),
            Body::Full(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Body::Compressed { rest, gzip } => {
                let piece = rest.split_to(rest.len().min(PIECE_BYTES));
                let bytes = match gzip {
                    None => return Poll::Ready(None),
                    Some(encoder) if !piece.is_empty() => encoder.chunk(&piece),
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
                    Some(Part::Chunk(chunk)) => Some(Ok(Frame::data(match gzip {
                        Some(gzip) => gzip.chunk(&chunk),
                        None => chunk,
                    }))),
                    Some(Part::End) => {
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
            Body::Nothing => SizeHint::with_exact(0),
            Body::Chunks { .. } | Body::Compressed { .. } => SizeHint::default(),
        }
    }
}

/// This product, and the API that it speaks as one of its own: clients look for that.
const SERVER: HeaderValue =
    HeaderValue::from_static(concat!("Settee/", env!("CARGO_PKG_VERSION"), " CouchDB/3.5.0"));
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const MUST_REVALIDATE: HeaderValue = HeaderValue::from_static("must-revalidate");

/// A response with the headers that all of CouchDB's have.
pub(crate) fn with_body(status: StatusCode, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::SERVER, SERVER);
    headers.insert(header::CONTENT_TYPE, JSON);
    headers.insert(header::CACHE_CONTROL, MUST_REVALIDATE);
    response
}

/// A JSON response from one buffer, its line end included.
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

/// An error's response.
pub(crate) fn failure(failure: &Failure) -> Response<Body> {
    let mut text = Vec::with_capacity(failure.reason.len() + 64);
    json::object(&mut text, |text| failure.write_members(text));
    text.push(b'\n');
    let mut response = json(failure.status, text);
    if let Some((name, value)) = &failure.header {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Sets a header whose value was made here; one that HTTP can't carry is left out.
pub(crate) fn set_header(response: &mut Response<Body>, name: header::HeaderName, value: impl Into<Bytes>) {
    if let Ok(value) = HeaderValue::from_maybe_shared(value.into()) {
        response.headers_mut().insert(name, value);
    }
}
