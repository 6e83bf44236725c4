//! The access log: one event per request, when its response was sent or broke off.
//!
//! [`LoggedBody`] wraps a response's body: it counts the bytes passed to the connection, and logs the request
//! when the connection drops it.

use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::Bytes;
use hyper::Method;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use hyper::header::HeaderValue;
use hyper::http::request::Parts;

use crate::logged;
use crate::response::{Aborted, Body};

/// The target of the access log's events.
pub const ACCESS_TARGET: &str = "settee_http::access";

/// A request that is logged when this is dropped.
pub(crate) struct AccessEntry {
    address: Option<SocketAddr>,
    user: Option<String>,
    method: Method,
    /// The request target as sent, with the query.
    target: String,
    id: HeaderValue,
    status: u16,
    started: Instant,
    bytes: u64,
}

impl AccessEntry {
    /// Begins the entry of a request that arrived at `started`; `method` is the method as sent.
    pub(crate) fn new(
        address: Option<SocketAddr>,
        head: &Parts,
        method: &Method,
        id: &HeaderValue,
        started: Instant,
    ) -> Box<AccessEntry> {
        let target = head.uri.path_and_query().map_or("", |target| target.as_str()).to_owned();
        let (method, id) = (method.clone(), id.clone());
        Box::new(AccessEntry { address, user: None, method, target, id, status: 0, started, bytes: 0 })
    }

    /// Adds the user and the status after the request was handled.
    pub(crate) fn answered(&mut self, user: Option<&str>, status: u16) {
        (self.user, self.status) = (user.map(str::to_owned), status);
    }
}

impl Drop for AccessEntry {
    fn drop(&mut self) {
        tracing::info!(
            target: ACCESS_TARGET,
            address = self.address.map(tracing::field::display),
            user = logged::name(self.user.as_deref().unwrap_or("-")),
            method = logged::name(self.method.as_str()),
            path = logged::text(&self.target),
            status = self.status,
            bytes = self.bytes,
            us = self.started.elapsed().as_micros() as u64,
            id = self.id.to_str().unwrap_or_default(),
            "request"
        );
    }
}

/// A response's body whose bytes are counted.
pub(crate) struct LoggedBody {
    body: Body,
    entry: Option<Box<AccessEntry>>,
}

impl LoggedBody {
    pub(crate) fn new(body: Body, entry: Option<Box<AccessEntry>>) -> LoggedBody {
        LoggedBody { body, entry }
    }

    /// Drops the body, for a HEAD.
    pub(crate) fn clear(&mut self) {
        self.body = Body::Full(Bytes::new());
    }
}

impl HttpBody for LoggedBody {
    type Data = Bytes;
    type Error = Aborted;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Aborted>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if let (Some(entry), Some(Ok(frame))) = (&mut self.entry, &frame) {
            entry.bytes += frame.data_ref().map_or(0, |data| data.len() as u64);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
