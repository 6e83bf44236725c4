//! Response bodies: one buffer, or chunks from a channel.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::Response;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::mpsc;

use super::gzip::Gzip;
use crate::error::ApiError;

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
