//! A connection: which HTTP it speaks, and what its client may take its time for.
//!
//! HTTP/1.1 answers one request after the other. HTTP/2 without encryption begins with a preface
//! that no request of HTTP/1 begins with; each of its requests is a task that belongs to the
//! connection, and `max_streams` is how many it may have.
//!
//! A connection without a request under way may be closed for another ([`Connections`]).
//!
//! Invariants:
//! 1. No client holds anything for longer than a limit says by doing nothing: not before its
//!    request (`head_timeout_ms`), not within it (`body_timeout_ms`), not within its answer
//!    (`send_timeout_ms`), an endless feed excepted. That holds for both.
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
use crate::access::Sent;
use crate::connections::{Activity, Connection, UnderWay};
use crate::error::Failure;
use crate::framing::Head;
use crate::reply::{self, Aborted};
use crate::server::{Server, Shared, answer, stopped};
use crate::socket::{Phase, Socket};
use crate::unread::Unread;

/// What a connection that speaks HTTP/2 begins with.
///
/// Source: RFC 9113, section 3.4.
const PREFACE: &[u8; 14] = b"PRI * HTTP/2.0";

/// Bytes of requests' bodies that a client may send ahead in HTTP/2: in one, and in all of a
/// connection's.
const WINDOW_BYTES: u32 = 256 << 10;

/// Bytes of a frame of an answer. Its client is waited for between two of them.
const FRAME_BYTES: usize = 64 << 10;

/// How often in a limit's time it is looked whether it is over.
const LOOKS_PER_LIMIT: u32 = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Http1,
    Http2,
}

/// Serves a connection to its end, or until its place is needed.
pub(crate) async fn serve(shared: Arc<Shared>, stream: TcpStream, place: Connection) {
    let metrics = shared.current().metrics.clone();
    let _open = metrics.count_connection();
    tokio::select! {
        () = serve_stream(shared, stream, place.activity()) => {}
        () = place.activity().closing() => {
            metrics.count_idle_closed();
            tracing::debug!("an idle connection was closed: others wait");
        }
    }
}

async fn serve_stream(shared: Arc<Shared>, stream: TcpStream, activity: &Arc<Activity>) {
    let server = shared.current();
    // Answers are whole buffers: waiting for more to send would only delay them.
    stream.set_nodelay(true).ok();
    let address = stream.peer_addr().ok();
    let patience = Duration::from_millis(server.limits.head_timeout_ms);
    let mut begun = Vec::new();
    let mut stopping = server.stopping.clone();
    let protocol = tokio::select! {
        protocol = tokio::time::timeout(patience, recognize(&stream, &mut begun)) => protocol,
        () = stopped(&mut stopping) => return,
    };
    match protocol {
        Ok(Ok(protocol)) => {
            let unread = shared.answers.connection();
            let served = async {
                match protocol {
                    Protocol::Http1 => {
                        serve_http1(&shared, &unread, &server, activity, stream, address, begun).await
                    }
                    // Far larger than what HTTP/1 needs: idle connections are to be small.
                    Protocol::Http2 => {
                        Box::pin(serve_http2(&shared, &unread, &server, activity, stream, address, begun))
                            .await
                    }
                }
            };
            tokio::select! {
                () = served => {}
                () = unread.closed() => {}
            }
        }
        Ok(Err(error)) => tracing::debug!(%error, "a connection broke off"),
        Err(_) => tracing::debug!("a connection on which nothing came was closed"),
    }
}

/// Looks at what comes first, and leaves it where it is. What came in pieces is in `begun`.
async fn recognize(stream: &TcpStream, begun: &mut Vec<u8>) -> io::Result<Protocol> {
    loop {
        let rest = &PREFACE[begun.len()..];
        let mut seen = [0; PREFACE.len()];
        let count = stream.peek(&mut seen[..rest.len()]).await?;
        if count == 0 || !rest.starts_with(&seen[..count]) {
            return Ok(Protocol::Http1);
        }
        if count == rest.len() {
            return Ok(Protocol::Http2);
        }
        // Taken, so that the next look waits for more.
        match stream.try_read(&mut seen[..count]) {
            Ok(taken) => begun.extend_from_slice(&seen[..taken]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

async fn serve_http1(
    shared: &Arc<Shared>,
    unread: &Arc<Unread>,
    server: &Server,
    activity: &Arc<Activity>,
    stream: TcpStream,
    address: Option<SocketAddr>,
    begun: Vec<u8>,
) {
    let limits = &server.limits;
    let phase = Phase { activity: activity.clone(), ..Phase::default() };
    let send_timeout = Duration::from_millis(limits.send_timeout_ms);
    let socket = Socket::new(stream, send_timeout, &phase).begun_with(&begun);
    let service = service_fn(|request: Request<Incoming>| {
        // At once: what hyper reads next lies behind this head.
        phase.told.tell(request.body().size_hint().exact());
        let checked = check_head(&server.limits, phase.told.take_head(), &request);
        respond(shared, unread, &phase, address, request, checked)
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
    unread: &Arc<Unread>,
    phase: &Phase,
    address: Option<SocketAddr>,
    request: Request<Incoming>,
    checked: Result<(), Failure>,
) -> Result<Response<Answering>, Infallible> {
    // A closing connection sends no answer: the request isn't run, and `serve` ends the connection.
    let Some(under_way) = phase.activity.begin() else { return std::future::pending().await };
    let is_refused = checked.is_err();
    // In a box: a connection that waits, or sends a feed, keeps no room for what answering needs.
    let mut response = Box::pin(answer(shared, unread, address, request, checked)).await;
    if is_refused {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    phase.patient.store(response.extensions().get::<reply::Endless>().is_some(), Ordering::Relaxed);
    Ok(response.map(|body| Answering { body, _under_way: under_way }))
}

/// What hyper lets pass of a head of HTTP/1: more bytes than the limit, where a buffer holds them, line feeds
/// without a carriage return, and no host or two. Two parties that disagree where a request ends, or whom it is
/// for, can be played off against each other (RFC 9112, 2.2 and 3.2).
fn check_head(limits: &Limits, head: Option<Head>, request: &Request<Incoming>) -> Result<(), Failure> {
    let Some(head) = head else {
        return Err(Failure::bad_request("The request before this one was malformed."));
    };
    if head.bytes > limits.max_head_bytes as u64 {
        return Err(head_too_large("the request's head is too large"));
    }
    if head.has_bare_line_feed {
        return Err(Failure::bad_request("A line of the request's head ends without a carriage return."));
    }
    let hosts = request.headers().get_all(header::HOST).iter().count();
    match hosts {
        1 => Ok(()),
        0 if request.version() < Version::HTTP_11 => Ok(()),
        0 => Err(Failure::bad_request("The request has no Host header.")),
        _ => Err(Failure::bad_request("The request has several Host headers.")),
    }
}

fn head_too_large(reason: &'static str) -> Failure {
    Failure::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "too_large", reason)
}

/// An answer's body, which is under way until it is dropped.
struct Answering {
    body: Sent,
    _under_way: UnderWay,
}

impl HttpBody for Answering {
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
    unread: &Arc<Unread>,
    server: &Server,
    activity: &Arc<Activity>,
    stream: TcpStream,
    address: Option<SocketAddr>,
    begun: Vec<u8>,
) {
    let limits = &server.limits;
    let phase = Phase { activity: activity.clone(), ..Phase::default() };
    let send_timeout = Duration::from_millis(limits.send_timeout_ms);
    let idle_timeout = Duration::from_millis(limits.head_timeout_ms);
    let socket = Socket::new(stream, send_timeout, &phase).begun_with(&begun).without_lines();
    let streams = Arc::new(Streams::new(activity.clone()));
    let service = {
        let (shared, unread, streams) = (shared.clone(), unread.clone(), streams.clone());
        service_fn(move |request| {
            answer_stream(shared.clone(), unread.clone(), streams.begin(), address, request)
        })
    };
    // Whoever drops this ends them all.
    let tasks = Arc::new(Mutex::new(JoinSet::new()));
    let mut builder = http2::Builder::new(Tasks(Arc::downgrade(&tasks)));
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
    let look = (send_timeout.min(idle_timeout) / LOOKS_PER_LIMIT).max(Duration::from_millis(1));
    let served = loop {
        tokio::select! {
            served = connection.as_mut() => break served,
            () = stopped(&mut stopping), if closing_since.is_none() => {
                connection.as_mut().graceful_shutdown();
                closing_since = Some(Instant::now());
            }
            () = tokio::time::sleep(look) => {
                if streams.is_stalled(send_timeout) {
                    tracing::debug!("a client took nothing of its answer for too long");
                    return;
                }
                let is_idle = activity.idle_time().is_some_and(|time| time >= idle_timeout);
                match closing_since {
                    None if is_idle => {
                        connection.as_mut().graceful_shutdown();
                        closing_since = Some(Instant::now());
                    }
                    // What was answered is not taken either.
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
    unread: Arc<Unread>,
    stream: Option<Stream>,
    address: Option<SocketAddr>,
    mut request: Request<Incoming>,
) -> Result<Response<Timed>, Infallible> {
    // As in HTTP/1.
    let Some(stream) = stream else { return std::future::pending().await };
    let host = request.uri().authority().and_then(|host| HeaderValue::from_str(host.as_str()).ok());
    if let Some(host) = host {
        request.headers_mut().entry(header::HOST).or_insert(host);
    }
    let is_head = *request.method() == Method::HEAD;
    let checked = check_headers(&shared.current().limits, &request);
    let mut response = answer(&shared, &unread, address, request, checked).await;
    let is_endless = response.extensions().get::<reply::Endless>().is_some();
    if is_head {
        // HTTP/1's connections do that themselves.
        let length = response.body().size_hint().exact();
        if let Some(length) = length.filter(|_| !response.headers().contains_key(header::CONTENT_LENGTH)) {
            response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        }
        response.body_mut().clear();
    }
    Ok(response.map(|body| Timed { body, rest: Bytes::new(), stream, is_endless }))
}

/// HTTP/2 limits the bytes of a head by itself, and not how many headers it has.
fn check_headers(limits: &Limits, request: &Request<Incoming>) -> Result<(), Failure> {
    match request.headers().len() > limits.max_headers {
        true => Err(head_too_large("the request has too many headers")),
        false => Ok(()),
    }
}

/// Runs a connection's tasks, as long as the connection has them.
#[derive(Clone)]
struct Tasks(Weak<Mutex<JoinSet<()>>>);

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Tasks {
    fn execute(&self, task: F) {
        let Some(tasks) = self.0.upgrade() else { return };
        let mut tasks = tasks.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }
}

/// The requests that an HTTP/2 connection has under way.
struct Streams {
    created: Instant,
    activity: Arc<Activity>,
    state: Mutex<StreamsState>,
}

#[derive(Default)]
struct StreamsState {
    next: u64,
    under_way: HashMap<u64, Arc<Progress>>,
}

/// How far an answer has come.
#[derive(Default)]
struct Progress {
    /// Since when its client takes nothing, in milliseconds since the connection was made, 1 at
    /// least; 0 where it isn't its client that is waited for.
    stalled_ms: AtomicU64,
}

impl Streams {
    fn new(activity: Arc<Activity>) -> Streams {
        Streams { created: Instant::now(), activity, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, StreamsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request begins; `None` where the connection is closing.
    fn begin(self: &Arc<Streams>) -> Option<Stream> {
        let under_way = self.activity.begin()?;
        let progress = Arc::new(Progress::default());
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.under_way.insert(number, progress.clone());
        Some(Stream { streams: self.clone(), number, progress, _under_way: under_way })
    }

    fn now_ms(&self) -> u64 {
        u64::try_from(self.created.elapsed().as_millis()).unwrap_or(u64::MAX).max(1)
    }

    /// Whether a client has taken nothing of an answer for so long.
    fn is_stalled(&self, timeout: Duration) -> bool {
        let (now_ms, timeout_ms) = (self.now_ms(), timeout.as_millis());
        self.lock().under_way.values().any(|progress| {
            let since_ms = progress.stalled_ms.load(Ordering::Relaxed);
            since_ms > 0 && u128::from(now_ms.saturating_sub(since_ms)) >= timeout_ms
        })
    }
}

/// A request under way, until this is dropped.
struct Stream {
    streams: Arc<Streams>,
    number: u64,
    progress: Arc<Progress>,
    _under_way: UnderWay,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.streams.lock().under_way.remove(&self.number);
    }
}

/// An answer's body that notes since when its client takes nothing: it is asked for a frame when
/// there is room for one. Large buffers go in frames, so that it shows.
struct Timed {
    body: Sent,
    /// Of the body's frame, what hasn't been sent.
    rest: Bytes,
    stream: Stream,
    is_endless: bool,
}

impl HttpBody for Timed {
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
        let mut begun = Vec::new();
        let send = async {
            for piece in pieces {
                client.write_all(piece).await.unwrap();
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let (protocol, ()) = tokio::join!(recognize(&stream, &mut begun), send);
        (protocol.unwrap(), begun)
    }

    #[tokio::test]
    async fn http2_is_known_by_its_preface_in_whatever_pieces_it_comes() {
        assert_eq!(recognized(&[b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]).await, (Protocol::Http2, Vec::new()));
        let (protocol, begun) = recognized(&[b"P", b"RI * HT", b"TP/2.0\r\n"]).await;
        assert_eq!((protocol, &begun[..]), (Protocol::Http2, &b"PRI * HT"[..]));
        assert_eq!(recognized(&[b"GET / HTTP/1.1\r\n\r\n"]).await.0, Protocol::Http1);
        let (protocol, begun) = recognized(&[b"P", b"UT /db HTTP/1.1\r\n"]).await;
        assert_eq!((protocol, &begun[..]), (Protocol::Http1, &b"P"[..]));
    }

    /// A request for a database `name`, of HTTP/1.1 or of HTTP/2.
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
        let folder = tempfile::tempdir().unwrap();
        let engine = Arc::new(ThreadEngine::new(ThreadOptions::default()));
        let env = Env::with_engine(tokio::runtime::Handle::current(), engine);
        let databases = Databases::open_with(env, folder.path(), DatabasesOptions::default()).await.unwrap();
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
    async fn a_stream_stalls_by_its_client_and_not_by_its_producer() {
        let activity = Arc::new(Activity::default());
        let streams = Arc::new(Streams::new(activity.clone()));
        assert!(activity.idle_time().is_some());
        let (sender, rest) = tokio::sync::mpsc::channel(1);
        let body = Sent::new(reply::Body::Chunks { first: None, rest, gzip: None }, None);
        let stream = streams.begin().unwrap();
        let mut timed = Timed { body, rest: Bytes::new(), stream, is_endless: false };
        assert_eq!(activity.idle_time(), None);
        let mut context = Context::from_waker(std::task::Waker::noop());
        // The producer has nothing yet.
        assert!(Pin::new(&mut timed).poll_frame(&mut context).is_pending());
        assert!(!streams.is_stalled(Duration::ZERO));
        sender.try_send(reply::Part::Chunk(Bytes::from(vec![1; FRAME_BYTES + 1]))).ok().unwrap();
        let frame = Pin::new(&mut timed).poll_frame(&mut context);
        let Poll::Ready(Some(Ok(frame))) = frame else { panic!("there is a frame") };
        assert_eq!(frame.into_data().unwrap().len(), FRAME_BYTES);
        // Nobody asks for the next one.
        assert!(streams.is_stalled(Duration::ZERO) && !streams.is_stalled(Duration::from_secs(60)));
        drop(timed);
        assert!(!streams.is_stalled(Duration::ZERO) && activity.idle_time().is_some());
    }
}
