//! Accepting connections, and what all requests share.
//!
//! A connection is a task; its requests are answered in it, one after another. Stopping goes in
//! this order: no more connections are accepted, feeds end, requests in flight are answered,
//! and what isn't done by `stop_timeout_ms` is cut off.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::body::{Body as _, Incoming};
use hyper::header::{self, HeaderName};
use hyper::http::request::Parts;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use settee_doc::{Databases, Stage};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

use crate::auth::{Admin, Auth, Caller};
use crate::body::{Held, Room};
use crate::error::Failure;
use crate::metrics::Metrics;
use crate::query::{self, Query};
use crate::reply::{self, Body};
use crate::root::{self, Uuids};
use crate::socket::{Phase, Socket};
use crate::{Limits, body, router};

/// How long accepting pauses after it failed, most likely for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A header by which a client may choose how it is asked for a password.
const CHOSEN_CHALLENGE: HeaderName = HeaderName::from_static("x-couchdb-www-authenticate");

/// How a server is to run.
#[derive(Debug, Clone, Default)]
pub struct ServerOptions {
    /// Who may do everything. Without one everyone may, and only loopback is served.
    pub admin: Option<Admin>,
    /// The server's identity in `GET /`: 32 hex digits that outlive restarts. Empty: drawn anew.
    pub uuid: String,
    /// The limits.
    pub limits: Limits,
}

/// Why a server ended, or didn't begin.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Everyone would be administrator, on an address that others reach.
    #[error("refusing to listen on {0} without an administrator: only loopback is served without one")]
    NoAdministrator(SocketAddr),

    /// The listener doesn't work.
    #[error("cannot listen: {0}")]
    Listener(#[from] io::Error),
}

/// Serves `databases` on `listener` until `shutdown` completes and the requests in flight are
/// answered. The databases stay open: closing them is the caller's.
///
/// Must be called on a tokio runtime with its I/O and time drivers. Dropping the future stops
/// the server at once.
///
/// # Errors
/// [`ServeError::NoAdministrator`] where the listener isn't loopback and no administrator was
/// given.
pub async fn serve(
    listener: TcpListener,
    databases: Arc<Databases>,
    options: ServerOptions,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    check_listener(&listener, &options)?;
    let (stop, stopping) = watch::channel(false);
    let server = Arc::new(Server::new(databases, options, stopping));
    let mut connections = accept_until(listener, &server, shutdown).await;

    stop.send_replace(true);
    let patience = Duration::from_millis(server.limits.stop_timeout_ms);
    let all = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(patience, all).await.is_err() {
        tracing::warn!(connections = connections.len(), "requests were cut off at the stop");
    }
    connections.shutdown().await;
    Ok(())
}

/// Whether `listener` may be served with these options: see [`serve`], which checks it too.
///
/// # Errors
/// [`ServeError::NoAdministrator`].
pub fn check_listener(listener: &TcpListener, options: &ServerOptions) -> Result<(), ServeError> {
    let address = listener.local_addr()?;
    match options.admin.is_some() || address.ip().is_loopback() {
        true => Ok(()),
        false => Err(ServeError::NoAdministrator(address)),
    }
}

/// An identity for a server: 32 hex digits.
pub fn new_uuid() -> String {
    Uuids::new().next()
}

async fn accept_until(
    listener: TcpListener,
    server: &Arc<Server>,
    shutdown: impl Future<Output = ()>,
) -> JoinSet<()> {
    let mut shutdown = pin!(shutdown);
    let slots = Arc::new(Semaphore::new(server.limits.max_connections.clamp(1, Semaphore::MAX_PERMITS)));
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            () = &mut shutdown => return connections,
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            accepted = accept(&listener, &slots) => match accepted {
                Ok((stream, slot)) => {
                    connections.spawn(serve_connection(server.clone(), stream, slot));
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection was not accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// Waits for room among the connections before it takes the next one from the system's queue.
async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
) -> io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let slot = slots.clone().acquire_owned().await.map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    Ok((stream, slot))
}

async fn serve_connection(server: Arc<Server>, stream: TcpStream, slot: OwnedSemaphorePermit) {
    let _slot = slot;
    let _open = server.metrics.count_connection();
    // Answers are whole buffers: waiting for more to send would only delay them.
    stream.set_nodelay(true).ok();
    let limits = &server.limits;
    let phase = Phase::default();
    let socket = Socket::new(stream, Duration::from_millis(limits.send_timeout_ms), &phase);
    let service = service_fn(async |request: Request<Incoming>| {
        let has_body = !request.body().is_end_stream();
        let response = answer(&server, request).await;
        phase.patient.store(response.extensions().get::<reply::Endless>().is_some(), Ordering::Relaxed);
        // Of a body some may still come: what follows it is left as it is.
        phase.expects_request.store(!has_body, Ordering::Relaxed);
        Ok::<_, Infallible>(response)
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
        tracing::debug!(%error, "a connection broke off");
    }
}

/// Completes when the server begins to stop.
pub(crate) async fn stopped(stopping: &mut watch::Receiver<bool>) {
    stopping.wait_for(|stopping| *stopping).await.ok();
}

/// What all requests share.
pub(crate) struct Server {
    pub(crate) databases: Arc<Databases>,
    pub(crate) limits: Limits,
    pub(crate) room: Room,
    pub(crate) document_options: settee_doc::Options,
    pub(crate) auth: Auth,
    pub(crate) uuids: Uuids,
    pub(crate) welcome: Bytes,
    pub(crate) metrics: Metrics,
    pub(crate) stopping: watch::Receiver<bool>,
}

impl Server {
    fn new(databases: Arc<Databases>, options: ServerOptions, stopping: watch::Receiver<bool>) -> Server {
        let limits = options.limits;
        let uuids = Uuids::new();
        let uuid = if options.uuid.is_empty() { uuids.next() } else { options.uuid };
        Server {
            metrics: Metrics::new(databases.clone(), &limits),
            databases,
            document_options: settee_doc::Options { document_bytes_max: limits.max_document_size },
            auth: Auth::new(options.admin.as_ref(), limits.session_timeout_s),
            room: Room::new(&limits),
            limits,
            uuids,
            welcome: root::welcome_text(&uuid),
            stopping,
        }
    }
}

/// A request on its way through its handler.
pub(crate) struct Call<'a> {
    pub(crate) server: &'a Server,
    pub(crate) head: &'a Parts,
    pub(crate) body: &'a mut Incoming,
    pub(crate) caller: Caller,
}

impl<'a> Call<'a> {
    pub(crate) fn method(&self) -> &'a Method {
        &self.head.method
    }

    /// Whether that is a GET or a HEAD, which is a GET whose body isn't sent.
    pub(crate) fn is_get(&self) -> bool {
        matches!(self.head.method, Method::GET | Method::HEAD)
    }

    pub(crate) fn is_head(&self) -> bool {
        self.head.method == Method::HEAD
    }

    pub(crate) fn query(&self) -> Query<'a> {
        Query(self.head.uri.query().unwrap_or(""))
    }

    /// A header's value, where it is text.
    pub(crate) fn header(&self, name: HeaderName) -> Option<&'a str> {
        self.head.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// The whole body.
    pub(crate) async fn read_body(&mut self) -> Result<Held, Failure> {
        body::read(self.body, &self.head.headers, &self.server.limits, &self.server.room).await
    }

    /// The whole body, which must be declared as JSON.
    pub(crate) async fn read_json_body(&mut self) -> Result<Held, Failure> {
        body::check_json_type(&self.head.headers)?;
        self.read_body().await
    }

    /// How far a write must have got before it is answered.
    pub(crate) fn stage(&self) -> Result<Stage, Failure> {
        let query = self.query();
        match query.get("durability").as_deref() {
            None if query.get("batch").is_some_and(|batch| batch == "ok") => Ok(Stage::Accepted),
            None | Some("persisted") => Ok(Stage::Persisted),
            Some("written") => Ok(Stage::Written),
            Some("accepted") => Ok(Stage::Accepted),
            Some(_) => {
                Err(Failure::bad_request("`durability` must be one of accepted, written and persisted."))
            }
        }
    }
}

async fn answer(server: &Server, request: Request<Incoming>) -> Response<Body> {
    let (head, mut body) = request.into_parts();
    let started = tracing::enabled!(tracing::Level::DEBUG).then(Instant::now);
    let response = match handle(server, &head, &mut body).await {
        Ok(response) => response,
        Err(failure) => failed(&failure, &head),
    };
    server.metrics.count_request(&head.method, response.status());
    if !body.is_end_stream() {
        body::discard(&mut body, &head.headers, &server.limits).await;
    }
    if let Some(started) = started {
        tracing::debug!(
            method = %head.method,
            path = head.uri.path(),
            status = response.status().as_u16(),
            us = started.elapsed().as_micros() as u64,
            "request"
        );
    }
    response
}

async fn handle(server: &Server, head: &Parts, body: &mut Incoming) -> reply::Answer {
    if let Some(path) = head.uri.path_and_query() {
        query::check_encoding(path.as_str())?;
    }
    let caller = server.auth.caller(&head.uri, &head.headers)?;
    let mut response = router::route(&mut Call { server, head, body, caller }).await?;
    if caller == (Caller::Cookie { renew: true }) && !response.headers().contains_key(header::SET_COOKIE) {
        reply::set_header(&mut response, header::SET_COOKIE, server.auth.session_cookie());
    }
    Ok(response)
}

fn failed(failure: &Failure, head: &Parts) -> Response<Body> {
    if failure.status.is_server_error() && failure.status != hyper::StatusCode::NOT_IMPLEMENTED {
        tracing::error!(path = head.uri.path(), error = failure.error, reason = %failure.reason, "failed");
    }
    let mut response = reply::failure(failure);
    if failure.status == hyper::StatusCode::UNAUTHORIZED
        && let Some(challenge) = head.headers.get(CHOSEN_CHALLENGE)
    {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge.clone());
    }
    response
}
