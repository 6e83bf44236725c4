//! Serves an HTTP/2 connection: each of its requests is a task of the connection.
//!
//! Timers of hyper cover a connection as a whole, so the progress of each response is recorded and checked
//! here.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::header::{self, HeaderValue};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::access::LoggedBody;
use super::answer::answer;
use super::connections::{Activity, ActivityGuard};
use super::head::check_headers;
use super::socket::{ConnectionStatus, Socket};
use crate::context::{Server, Shared, stopped};
use crate::response::Aborted;
use crate::response::memory::ConnectionMemory;

/// Flow-control window of HTTP/2 in bytes: of one request body, and of all bodies of a connection.
const WINDOW_BYTES: u32 = 256 << 10;

/// Maximum number of concurrent requests of a connection, including those whose response is still being sent.
/// Past it the client has to wait. RFC 9113 recommends no less; browsers and proxies use fewer.
const STREAMS_MAX: u32 = 100;

/// Largest frame of a response in bytes. The writer waits for the client between frames.
const FRAME_BYTES: usize = 64 << 10;

/// How often per time limit the limit is checked.
const CHECKS_PER_LIMIT: u32 = 4;

/// Serves the connection until it ends. `prefix` was read from the stream before.
pub(super) async fn serve_http2(
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
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(u32::try_from(limits.head_bytes_max).unwrap_or(u32::MAX))
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
    if is_head {
        // hyper does this itself for HTTP/1 only.
        let length = response.body().size_hint().exact();
        if let Some(length) = length.filter(|_| !response.headers().contains_key(header::CONTENT_LENGTH)) {
            response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(length));
        }
        response.body_mut().clear();
    }
    Ok(response.map(|body| StallTimedBody { body, rest: Bytes::new(), stream }))
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
/// has space for one. Large buffers are split into frames, so that progress shows.
struct StallTimedBody {
    body: LoggedBody,
    /// The unsent rest of the current frame of `body`.
    rest: Bytes,
    stream: Stream,
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
        stalled_ms.store(this.stream.streams.now_ms(), Ordering::Relaxed);
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
    use super::*;
    use crate::response::Body;
    use crate::response::body::StreamItem;

    #[tokio::test]
    async fn a_stream_is_stalled_by_its_client_and_not_by_its_producer() {
        let activity = Arc::new(Activity::default());
        let streams = Arc::new(Streams::new(activity.clone()));
        assert!(activity.idle_time().is_some());
        let (sender, rest) = tokio::sync::mpsc::channel(1);
        let body = LoggedBody::new(Body::Chunks { first: None, rest, gzip: None }, None);
        let stream = streams.begin().unwrap();
        let mut timed = StallTimedBody { body, rest: Bytes::new(), stream };
        assert_eq!(activity.idle_time(), None);
        let mut context = Context::from_waker(std::task::Waker::noop());
        // The producer has sent nothing yet.
        assert!(Pin::new(&mut timed).poll_frame(&mut context).is_pending());
        assert!(!streams.is_stalled(Duration::ZERO));
        sender.try_send(StreamItem::Chunk(Bytes::from(vec![1; FRAME_BYTES + 1]))).ok().unwrap();
        let frame = Pin::new(&mut timed).poll_frame(&mut context);
        let Poll::Ready(Some(Ok(frame))) = frame else { panic!("there is a frame") };
        assert_eq!(frame.into_data().unwrap().len(), FRAME_BYTES);
        // The next frame isn't polled.
        assert!(streams.is_stalled(Duration::ZERO) && !streams.is_stalled(Duration::from_secs(60)));
        drop(timed);
        assert!(!streams.is_stalled(Duration::ZERO) && activity.idle_time().is_some());
    }
}
