//! Serves an HTTP/1 connection: one request after the other.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::header::{self, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;

use super::access::LoggedBody;
use super::answer::answer;
use super::connections::{Activity, ActivityGuard};
use super::head::check_head;
use super::socket::{ConnectionStatus, Socket};
use crate::context::{Server, Shared, stopped};
use crate::error::ApiError;
use crate::response::Aborted;
use crate::response::memory::ConnectionMemory;

/// Serves the connection until it ends. `prefix` was read from the stream before.
pub(super) async fn serve_http1(
    shared: &Arc<Shared>,
    connection_memory: &Arc<ConnectionMemory>,
    server: &Server,
    activity: &Arc<Activity>,
    stream: TcpStream,
    address: Option<SocketAddr>,
    prefix: Vec<u8>,
) {
    let limits = &server.limits;
    let status = ConnectionStatus { activity: activity.clone(), ..ConnectionStatus::default() };
    let send_timeout = Duration::from_millis(limits.send_timeout_ms);
    let socket = Socket::new(stream, send_timeout, &status).with_prefix(&prefix);
    let service = service_fn(|request: Request<Incoming>| {
        // Set before the service returns, because hyper reads the bytes after this head next.
        status.parsed_head.set_body_length(request.body().size_hint().exact());
        let checked = check_head(&server.limits, status.parsed_head.take_head(), &request);
        respond(shared, connection_memory, &status, address, request, checked)
    });
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_millis(limits.head_timeout_ms))
        .max_buf_size(limits.head_bytes_max.max(8192))
        .max_headers(limits.headers_max);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(socket), service));
    let mut stopping = server.stopping.clone();
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = stopped(&mut stopping) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = served {
        if error.is_parse() {
            server.metrics.count_malformed();
        }
        tracing::debug!(%error, "a connection broke off");
    }
}

async fn respond(
    shared: &Arc<Shared>,
    connection_memory: &Arc<ConnectionMemory>,
    status: &ConnectionStatus,
    address: Option<SocketAddr>,
    request: Request<Incoming>,
    checked: Result<(), ApiError>,
) -> Result<Response<ActiveBody>, Infallible> {
    // A closing connection sends no response. The request isn't run, and `serve` ends the connection.
    let Some(activity) = status.activity.begin() else { return std::future::pending().await };
    let is_refused = checked.is_err();
    // Boxed, so that an idle or streaming connection doesn't keep the memory of this future.
    let mut response = Box::pin(answer(shared, connection_memory, address, request, checked)).await;
    if is_refused {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response.map(|body| ActiveBody { body, _activity: activity }))
}

/// A response body that keeps its connection active until it is dropped.
struct ActiveBody {
    body: LoggedBody,
    _activity: ActivityGuard,
}

impl HttpBody for ActiveBody {
    type Data = Bytes;
    type Error = Aborted;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Aborted>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
