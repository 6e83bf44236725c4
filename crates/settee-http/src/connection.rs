//! Serves one connection: detects HTTP/1.1 or HTTP/2, and limits how long its client may stall.
//!
//! HTTP/1.1 answers one request after the other. HTTP/2 without encryption begins with a preface that no
//! HTTP/1 request begins with; each of its requests is a task of the connection, at most `max_streams` at
//! once.
//!
//! A connection without a request in flight may be closed in favor of a new one ([`Connections`]).
//!
//! Invariants, for both protocols:
//! 1. A stalled client holds resources for a limited time: before its request (`head_timeout_ms`), within the
//!    request (`body_timeout_ms`) and within the response (`send_timeout_ms`). Exception: a feed without an
//!    end.
//! 2. A connection's tasks end with it.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::header::{self, HeaderValue};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, Version};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::Limits;
use crate::access::LoggedBody;
use crate::connections::{Activity, ActivityGuard, Connection};
use crate::error::ApiError;
use crate::framing::Head;
use crate::response::{self, Aborted};
use crate::response_memory::ConnectionMemory;
use crate::server::{Server, Shared, answer, stopped};
use crate::socket::{ConnectionStatus, Socket};

/// The beginning of the client preface of HTTP/2.
///
/// Source: RFC 9113, section 3.4.
const PREFACE: &[u8; 14] = b"PRI * HTTP/2.0";

/// Flow-control window of HTTP/2 in bytes: of one request body, and of all bodies of a connection.
const WINDOW_BYTES: u32 = 256 << 10;

/// Largest frame of a response in bytes. The writer waits for the client between frames.
const FRAME_BYTES: usize = 64 << 10;

/// How often per time limit the limit is checked.
const CHECKS_PER_LIMIT: u32 = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Http1,
    Http2,
}

/// Serves a connection until it ends or its slot is needed for another.
pub(crate) async fn serve(shared: Arc<Shared>, stream: TcpStream, slot: Connection) {
    let metrics = shared.current().metrics.clone();
    let _open = metrics.count_connection();
    tokio::select! {
        () = serve_stream(shared, stream, slot.activity()) => {}
        () = slot.activity().closing() => {
            metrics.count_idle_closed();
            tracing::debug!("an idle connection was closed in favor of a waiting one");
        }
    }
}

async fn serve_stream(shared: Arc<Shared>, stream: TcpStream, activity: &Arc<Activity>) {
    let server = shared.current();
    // Responses are written in whole buffers, so Nagle's algorithm would only delay them.
    stream.set_nodelay(true).ok();
    let address = stream.peer_addr().ok();
    let head_timeout = Duration::from_millis(server.limits.head_timeout_ms);
    let mut prefix = Vec::new();
    let mut stopping = server.stopping.clone();
    let protocol = tokio::select! {
        protocol = tokio::time::timeout(head_timeout, recognize(&stream, &mut prefix)) => protocol,
        () = stopped(&mut stopping) => return,
    };
    match protocol {
        Ok(Ok(protocol)) => {
            let connection_memory = shared.response_memory.connection();
            let served = async {
                match protocol {
                    Protocol::Http1 => {
                        serve_http1(&shared, &connection_memory, &server, activity, stream, address, prefix)
                            .await
                    }
                    // Boxed, because its future is far larger than that of HTTP/1, and idle connections
                    // should be small.
                    Protocol::Http2 => {
                        Box::pin(serve_http2(
                            &shared,
                            &connection_memory,
                            &server,
                            activity,
                            stream,
                            address,
                            prefix,
                        ))
                        .await
                    }
                }
            };
            tokio::select! {
                () = served => {}
                () = connection_memory.closed() => {}
            }
        }
        Ok(Err(error)) => tracing::debug!(%error, "a connection broke off"),
        Err(_) => tracing::debug!("a connection without a request timed out"),
    }
}

/// Detects the protocol by peeking at the first bytes. `prefix` receives bytes that were consumed.
async fn recognize(stream: &TcpStream, prefix: &mut Vec<u8>) -> io::Result<Protocol> {
    loop {
        let rest = &PREFACE[prefix.len()..];
        let mut seen = [0; PREFACE.len()];
        let count = stream.peek(&mut seen[..rest.len()]).await?;
        if count == 0 || !rest.starts_with(&seen[..count]) {
            return Ok(Protocol::Http1);
        }
        if count == rest.len() {
            return Ok(Protocol::Http2);
        }
        // Consumed, so that the next peek waits for more.
        match stream.try_read(&mut seen[..count]) {
            Ok(taken) => prefix.extend_from_slice(&seen[..taken]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

async fn serve_http1(
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
        .max_buf_size(limits.max_head_bytes.max(8192))
        .max_headers(limits.max_headers);
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
    status
        .never_times_out
        .store(response.extensions().get::<response::Endless>().is_some(), Ordering::Relaxed);
    Ok(response.map(|body| ActiveBody { body, _activity: activity }))
}

/// Checks what hyper accepts in an HTTP/1 head and must be refused: more bytes than the limit (if a buffer
/// holds them), line feeds without a carriage return, and no `Host` header or several. Parties that disagree
/// on where a request ends or on its host allow request smuggling (RFC 9112, 2.2 and 3.2).
fn check_head(limits: &Limits, head: Option<Head>, request: &Request<Incoming>) -> Result<(), ApiError> {
    let Some(head) = head else {
        return Err(ApiError::bad_request("The request before this one was malformed."));
    };
    if head.bytes > limits.max_head_bytes as u64 {
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

fn head_too_large(reason: &'static str) -> ApiError {
    ApiError::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "too_large", reason)
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

async fn serve_http2(
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
    let idle_timeout = Duration::from_millis(limits.head_timeout_ms);
    let socket = Socket::new(stream, send_timeout, &status).with_prefix(&prefix).without_lines();
    let streams = Arc::new(Streams::new(activity.clone()));
    let service = {
        let (shared, connection_memory, streams) =
            (shared.clone(), connection_memory.clone(), streams.clone());
        service_fn(move |request| {
            answer_stream(shared.clone(), connection_memory.clone(), streams.begin(), address, request)
        })
    };
    // Dropping this set aborts the tasks.
    let tasks = Arc::new(Mutex::new(JoinSet::new()));
    let mut builder = http2::Builder::new(ConnectionTasks(Arc::downgrade(&tasks)));
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.max_streams)
        .max_header_list_size(u32::try_from(limits.max_head_bytes).unwrap_or(u32::MAX))
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_send_buf_size(FRAME_BYTES);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(socket), service));
    let mut stopping = server.stopping.clone();
    let mut closing_since: Option<Instant> = None;
    let check_interval = (send_timeout.min(idle_timeout) / CHECKS_PER_LIMIT).max(Duration::from_millis(1));
    let served = loop {
        tokio::select! {
            served = connection.as_mut() => break served,
            () = stopped(&mut stopping), if closing_since.is_none() => {
                connection.as_mut().graceful_shutdown();
                closing_since = Some(Instant::now());
            }
            () = tokio::time::sleep(check_interval) => {
                if streams.is_stalled(send_timeout) {
                    tracing::debug!("a client read nothing of its response for too long");
                    return;
                }
                let is_idle = activity.idle_time().is_some_and(|time| time >= idle_timeout);
                match closing_since {
                    None if is_idle => {
                        connection.as_mut().graceful_shutdown();
                        closing_since = Some(Instant::now());
                    }
                    // The client doesn't read the last responses either.
                    Some(since) if is_idle && since.elapsed() >= send_timeout => return,
                    _ => {}
                }
            }
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "a connection broke off");
    }
}

/// Answers a request of an HTTP/2 connection.
async fn answer_stream(
    shared: Arc<Shared>,
    connection_memory: Arc<ConnectionMemory>,
    stream: Option<Stream>,
    address: Option<SocketAddr>,
    mut request: Request<Incoming>,
) -> Result<Response<StallTimedBody>, Infallible> {
    // A closing connection runs no request, as in HTTP/1.
    let Some(stream) = stream else { return std::future::pending().await };
    let host = request.uri().authority().and_then(|host| HeaderValue::from_str(host.as_str()).ok());
    if let Some(host) = host {
        request.headers_mut().entry(header::HOST).or_insert(host);
    }
    let is_head = *request.method() == Method::HEAD;
    let checked = check_headers(&shared.current().limits, &request);
    let mut response = answer(&shared, &connection_memory, address, request, checked).await;
    let is_endless = response.extensions().get::<response::Endless>().is_some();
    if is_head {
        // hyper does this itself for HTTP/1 only.
        let length = response.body().size_hint().exact();
        if let Some(length) = length.filter(|_| !response.headers().contains_key(header::CONTENT_LENGTH)) {
            response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        }
        response.body_mut().clear();
    }
    Ok(response.map(|body| StallTimedBody { body, rest: Bytes::new(), stream, is_endless }))
}

/// Limits the number of headers. HTTP/2 itself limits only the bytes of a head.
fn check_headers(limits: &Limits, request: &Request<Incoming>) -> Result<(), ApiError> {
    match request.headers().len() > limits.max_headers {
        true => Err(head_too_large("the request has too many headers")),
        false => Ok(()),
    }
}

/// Spawns the tasks of a connection as long as the connection exists.
#[derive(Clone)]
struct ConnectionTasks(Weak<Mutex<JoinSet<()>>>);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for ConnectionTasks {
    fn execute(&self, task: F) {
        let Some(tasks) = self.0.upgrade() else { return };
        let mut tasks = tasks.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }
}

/// The requests in flight on an HTTP/2 connection.
struct Streams {
    created: Instant,
    activity: Arc<Activity>,
    state: Mutex<StreamsState>,
}

#[derive(Default)]
struct StreamsState {
    next: u64,
    in_flight: HashMap<u64, Arc<Progress>>,
}

/// The progress of a response.
#[derive(Default)]
struct Progress {
    /// Since when the client hasn't read, in milliseconds since the connection was made, at least 1. 0 while
    /// the response waits for its producer.
    stalled_ms: AtomicU64,
}

impl Streams {
    fn new(activity: Arc<Activity>) -> Streams {
        Streams { created: Instant::now(), activity, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, StreamsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a request. Returns None if the connection is closing.
    fn begin(self: &Arc<Streams>) -> Option<Stream> {
        let activity = self.activity.begin()?;
        let progress = Arc::new(Progress::default());
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.in_flight.insert(number, progress.clone());
        Some(Stream { streams: self.clone(), number, progress, _activity: activity })
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.created.elapsed().as_millis()).unwrap_or(u64::MAX).max(1)
    }

    /// Whether a client hasn't read a response for `timeout`.
    fn is_stalled(&self, timeout: Duration) -> bool {
        let (now_ms, timeout_ms) = (self.now_ms(), timeout.as_millis());
        self.lock().in_flight.values().any(|progress| {
            let since_ms = progress.stalled_ms.load(Ordering::Relaxed);
            since_ms > 0 && u128::from(now_ms.saturating_sub(since_ms)) >= timeout_ms
        })
    }
}

/// A request in flight until this is dropped.
struct Stream {
    streams: Arc<Streams>,
    number: u64,
    progress: Arc<Progress>,
    _activity: ActivityGuard,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.streams.lock().in_flight.remove(&self.number);
    }
}

/// A response body that records since when its client hasn't read: it is polled for a frame when the client
/// has room for one. Large buffers are split into frames, so that progress shows.
struct StallTimedBody {
    body: LoggedBody,
    /// The unsent rest of the current frame of `body`.
    rest: Bytes,
    stream: Stream,
    is_endless: bool,
}

impl HttpBody for StallTimedBody {
    type Data = Bytes;
    type Error = Aborted;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Aborted>>> {
        let this = &mut *self;
        let stalled_ms = &this.stream.progress.stalled_ms;
        stalled_ms.store(0, Ordering::Relaxed);
        if this.rest.is_empty() {
            match std::task::ready!(Pin::new(&mut this.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(bytes) => this.rest = bytes,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                ended => return Poll::Ready(ended),
            }
        }
        let count = this.rest.len().min(FRAME_BYTES);
        let frame = this.rest.split_to(count);
        if !this.is_endless {
            stalled_ms.store(this.stream.streams.now_ms(), Ordering::Relaxed);
        }
        Poll::Ready(Some(Ok(Frame::data(frame))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        match self.body.size_hint().exact() {
            Some(bytes) => SizeHint::with_exact(bytes + self.rest.len() as u64),
            None => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use settee_doc::{Databases, DatabasesOptions};
    use settee_io::{Env, ThreadEngine, ThreadOptions};
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    use super::*;

    async fn recognized(pieces: &[&[u8]]) -> (Protocol, Vec<u8>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        client.set_nodelay(true).unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let mut prefix = Vec::new();
        let send = async {
            for piece in pieces {
                client.write_all(piece).await.unwrap();
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let (protocol, ()) = tokio::join!(recognize(&stream, &mut prefix), send);
        (protocol.unwrap(), prefix)
    }

    #[tokio::test]
    async fn http2_is_detected_by_its_preface_for_any_split() {
        assert_eq!(recognized(&[b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]).await, (Protocol::Http2, Vec::new()));
        let (protocol, prefix) = recognized(&[b"P", b"RI * HT", b"TP/2.0\r\n"]).await;
        assert_eq!((protocol, &prefix[..]), (Protocol::Http2, &b"PRI * HT"[..]));
        assert_eq!(recognized(&[b"GET / HTTP/1.1\r\n\r\n"]).await.0, Protocol::Http1);
        let (protocol, prefix) = recognized(&[b"P", b"UT /db HTTP/1.1\r\n"]).await;
        assert_eq!((protocol, &prefix[..]), (Protocol::Http1, &b"P"[..]));
    }

    /// A request that creates a database `name`, in HTTP/1.1 or HTTP/2.
    ///
    /// Source: RFC 9113, sections 3.4 and 6.2; RFC 7541, section 6.
    fn creation(name: u8, protocol: Protocol) -> Vec<u8> {
        match protocol {
            Protocol::Http1 => {
                format!("PUT /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", name as char).into_bytes()
            }
            Protocol::Http2 => {
                let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
                let headers = b"\0\0\x15\x01\x05\0\0\0\x01\x02\x03PUT\x86\x04\x02/";
                [&preface[..], &headers[..], &[name], b"\x01\x09localhost"].concat()
            }
        }
    }

    #[tokio::test]
    async fn a_request_on_a_connection_that_closes_does_not_run() {
        let directory = tempfile::tempdir().unwrap();
        let engine = Arc::new(ThreadEngine::new(ThreadOptions::default()));
        let env = Env::with_engine(tokio::runtime::Handle::current(), engine);
        let databases =
            Databases::open_with(env, directory.path(), DatabasesOptions::default()).await.unwrap();
        let (_stop, stopping) = tokio::sync::watch::channel(false);
        let options = crate::ServerOptions::default();
        let shared = Arc::new(Shared::new(databases.clone(), options, None, stopping));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        for (name, protocol, is_closing) in [
            (b'a', Protocol::Http1, false),
            (b'b', Protocol::Http2, false),
            (b'c', Protocol::Http1, true),
            (b'd', Protocol::Http2, true),
        ] {
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            client.write_all(&creation(name, protocol)).await.unwrap();
            let (stream, _) = listener.accept().await.unwrap();
            let activity = Arc::new(Activity::default());
            if is_closing {
                assert!(activity.close());
            }
            let serving = tokio::spawn({
                let (shared, activity) = (shared.clone(), activity.clone());
                async move { serve_stream(shared, stream, &activity).await }
            });
            tokio::time::sleep(Duration::from_millis(300)).await;
            serving.abort();
        }
        assert_eq!(databases.names(), ["a", "b"]);
        databases.close().await.unwrap();
    }

    #[tokio::test]
    async fn a_stream_is_stalled_by_its_client_and_not_by_its_producer() {
        let activity = Arc::new(Activity::default());
        let streams = Arc::new(Streams::new(activity.clone()));
        assert!(activity.idle_time().is_some());
        let (sender, rest) = tokio::sync::mpsc::channel(1);
        let body = LoggedBody::new(response::Body::Chunks { first: None, rest, gzip: None }, None);
        let stream = streams.begin().unwrap();
        let mut timed = StallTimedBody { body, rest: Bytes::new(), stream, is_endless: false };
        assert_eq!(activity.idle_time(), None);
        let mut context = Context::from_waker(std::task::Waker::noop());
        // The producer has sent nothing yet.
        assert!(Pin::new(&mut timed).poll_frame(&mut context).is_pending());
        assert!(!streams.is_stalled(Duration::ZERO));
        sender.try_send(response::StreamItem::Chunk(Bytes::from(vec![1; FRAME_BYTES + 1]))).ok().unwrap();
        let frame = Pin::new(&mut timed).poll_frame(&mut context);
        let Poll::Ready(Some(Ok(frame))) = frame else { panic!("there is a frame") };
        assert_eq!(frame.into_data().unwrap().len(), FRAME_BYTES);
        // The next frame isn't polled.
        assert!(streams.is_stalled(Duration::ZERO) && !streams.is_stalled(Duration::from_secs(60)));
        drop(timed);
        assert!(!streams.is_stalled(Duration::ZERO) && activity.idle_time().is_some());
    }
}
