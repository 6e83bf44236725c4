//! Accepts connections and holds the state that all requests share.
//!
//! Each connection is a task (`connection.rs`). Shutdown runs in this order: the server stops accepting
//! connections, feeds end, requests in flight are answered, and after `stop_timeout_ms` the remaining ones
//! are aborted.
//!
//! A configuration change over HTTP replaces the [`Server`] that requests see as a whole. A request uses one
//! `Server` from its beginning to its end.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode};
use settee_doc::{Databases, Stage};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::access::{AccessEntry, LoggedBody};
use crate::admission::EvictingSet;
use crate::auth::{Admin, Auth, Caller};
use crate::body::{BodyMemory, BufferedBody, ReceivedBody, RequestBody, UNAUTHENTICATED_BODIES_MAX};
use crate::config_store::{ConfigStore, Derived, Facts, Maintenance};
use crate::connections::{Connection, Connections, TrustedProxies};
use crate::cors::Cors;
use crate::endpoint::EndpointClass;
use crate::error::ApiError;
use crate::metrics::Metrics;
use crate::query::{self, Query};
use crate::response::{self, Body};
use crate::response_memory::{ConnectionMemory, ResponseMemory};
use crate::response_writer::Output;
use crate::sign_in::SignIn;
use crate::uuids::{Algorithm, Uuids};
use crate::{Limits, body, compress, connection, logged, root, router};

/// Pause after a failed accept, which is most likely caused by a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A header with which a client chooses the `WWW-Authenticate` challenge of a 401.
const CHOSEN_CHALLENGE: HeaderName = HeaderName::from_static("x-couchdb-www-authenticate");

/// Identifies a request in its response and in the log.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-couch-request-id");

/// The intended method of a request from a client that can only send POST.
const METHOD_OVERRIDE: HeaderName = HeaderName::from_static("x-http-method-override");

/// The methods that `METHOD_OVERRIDE` may name.
const OVERRIDES: [&str; 8] = ["GET", "HEAD", "POST", "PUT", "DELETE", "TRACE", "CONNECT", "COPY"];

/// Options of a server.
#[derive(Debug, Clone, Default)]
pub struct ServerOptions {
    /// The administrator. Default: none; then every caller has administrator rights, and only loopback is
    /// served.
    pub admin: Option<Admin>,
    /// The server's identity in `GET /`: 32 hex digits, kept across restarts. Default: empty, which generates
    /// one.
    pub uuid: String,
    /// Limits of requests, connections and memory.
    pub limits: Limits,
    /// Proxies to whose connections `max_connections_per_address` doesn't apply.
    pub trusted_proxies: TrustedProxies,
    /// The file that stores the configuration set over HTTP: [`CONFIG_FILE`](crate::CONFIG_FILE) in the data
    /// directory. None: that configuration is kept in memory only.
    pub config_file: Option<PathBuf>,
    /// Whether each answered request is logged as an event with the target
    /// [`ACCESS_TARGET`](crate::ACCESS_TARGET).
    pub access_log: bool,
    /// Number of lines dropped from the process's own log, reported in the metrics.
    pub dropped_log_lines: Arc<AtomicU64>,
}

/// Why a server ended or didn't start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Without an administrator, every caller of a non-loopback address would have administrator rights.
    #[error("refusing to listen on {0} without an administrator: only loopback is served without one")]
    NoAdministrator(SocketAddr),

    /// The listener failed.
    #[error("cannot listen: {0}")]
    Listener(#[from] io::Error),
}

/// Serves `databases` on `listener` until `shutdown` completes, and returns when the requests in flight are
/// answered or `stop_timeout_ms` has passed. It doesn't close the databases; the caller does.
///
/// Must be called on a tokio runtime with its I/O and time drivers. Dropping the future stops the server at
/// once.
///
/// # Errors
/// [`ServeError::NoAdministrator`] if the listener isn't on loopback and there is no administrator.
pub async fn serve(
    listener: TcpListener,
    databases: Arc<Databases>,
    options: ServerOptions,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    check_listener(&listener, &options)?;
    let (stop, stopping) = watch::channel(false);
    let address = listener.local_addr().ok();
    let slots = Connections::new(&options.limits, options.trusted_proxies.clone());
    let shared = Arc::new(Shared::new(databases, options, address, stopping));
    let server = shared.current();
    let acceptor = Acceptor { listener, slots: Arc::new(slots), accepted: None };
    let mut connections = accept_until(acceptor, &shared, shutdown).await;

    stop.send_replace(true);
    let stop_timeout = Duration::from_millis(server.limits.stop_timeout_ms);
    let all = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(stop_timeout, all).await.is_err() {
        tracing::warn!(connections = connections.len(), "requests were aborted at shutdown");
    }
    connections.shutdown().await;
    Ok(())
}

/// Checks that `listener` may be served with these options. [`serve`] makes the same check.
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

/// Generates an identity for a server: 32 hex digits.
pub fn new_uuid() -> String {
    Uuids::new(Algorithm::Sequential).next()
}

async fn accept_until(
    mut acceptor: Acceptor,
    shared: &Arc<Shared>,
    shutdown: impl Future<Output = ()>,
) -> JoinSet<()> {
    let mut shutdown = pin!(shutdown);
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            () = &mut shutdown => return connections,
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            accepted = acceptor.next() => match accepted {
                Ok(Some((stream, slot))) => {
                    connections.spawn(connection::serve(shared.clone(), stream, slot));
                }
                Ok(None) => shared.current().metrics.count_refused_connection(),
                Err(error) => {
                    tracing::warn!(%error, "a connection was not accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// Accepts connections from the kernel's queue.
struct Acceptor {
    listener: TcpListener,
    slots: Arc<Connections>,
    /// Accepted and waiting for a connection slot.
    accepted: Option<(TcpStream, IpAddr)>,
}

impl Acceptor {
    /// Returns the next connection once it has a slot, or None if the connection was closed because its
    /// address has `max_connections_per_address` connections.
    ///
    /// Cancel-safe: dropping the future loses no connection.
    async fn next(&mut self) -> io::Result<Option<(TcpStream, Connection)>> {
        let address = match &self.accepted {
            Some((_, address)) => *address,
            None => {
                let (stream, address) = self.listener.accept().await?;
                self.accepted = Some((stream, address.ip()));
                address.ip()
            }
        };
        let slot = self.slots.open(address).await;
        let accepted = self.accepted.take();
        Ok(accepted.zip(slot.ok()).map(|((stream, _), slot)| (stream, slot)))
    }
}

/// Completes when the server begins to shut down.
pub(crate) async fn stopped(stopping: &mut watch::Receiver<bool>) {
    stopping.wait_for(|stopping| *stopping).await.ok();
}

/// State that outlives configuration changes.
pub(crate) struct Shared {
    current: ArcSwap<Server>,
    pub(crate) config: ConfigStore,
    pub(crate) response_memory: Arc<ResponseMemory>,
    /// Requests in progress, from the end of their heads to the head of their responses.
    in_flight: AtomicUsize,
    access_log: bool,
    /// Whether the last write failed for lack of disk space.
    pub(crate) is_disk_full: AtomicBool,
    /// Counter of requests, which starts at a random number. Request ids derive from it.
    next_id: AtomicU64,
}

impl Shared {
    pub(crate) fn new(
        databases: Arc<Databases>,
        options: ServerOptions,
        address: Option<SocketAddr>,
        stopping: watch::Receiver<bool>,
    ) -> Shared {
        let uuid = if options.uuid.is_empty() { new_uuid() } else { options.uuid };
        let admin = options.admin.as_ref();
        let facts = Facts { admin: admin.map(Admin::name), uuid: &uuid, address };
        let body_memory = Arc::new(BodyMemory::new(&options.limits));
        let response_memory = ResponseMemory::new(&options.limits);
        let (config, derived) = ConfigStore::open(options.config_file, options.limits, &facts);
        let Derived { limits, maintenance, uuids, plus_is_space, partition_bytes_max, sign_in, cors } =
            derived;
        databases.set_partition_bytes_max(partition_bytes_max);
        let server = Server {
            metrics: Arc::new(Metrics::new(databases.clone(), &limits, options.dropped_log_lines)),
            databases,
            document_options: document_options(&limits),
            auth: Arc::new(Auth::new(admin, limits.session_timeout_s)),
            body_memory,
            unauthenticated: Arc::new(EvictingSet::new(UNAUTHENTICATED_BODIES_MAX)),
            limits,
            maintenance,
            plus_is_space,
            sign_in,
            cors,
            uuids: Arc::new(Uuids::new(uuids)),
            welcome: root::welcome_text(&uuid),
            stopping,
        };
        let mut seed = [0; 8];
        getrandom::fill(&mut seed).expect("the system provides randomness");
        Shared {
            current: ArcSwap::from_pointee(server),
            config,
            response_memory,
            in_flight: AtomicUsize::new(0),
            access_log: options.access_log,
            is_disk_full: AtomicBool::new(false),
            next_id: AtomicU64::new(u64::from_ne_bytes(seed)),
        }
    }

    /// The server with the current configuration.
    pub(crate) fn current(&self) -> Arc<Server> {
        self.current.load_full()
    }

    /// Applies a configuration change to all requests that begin from now on. Changes are serialized: the
    /// caller holds `ConfigStore::changing`.
    pub(crate) fn apply(&self, derived: Derived) {
        let Derived { limits, maintenance, uuids, plus_is_space, partition_bytes_max, sign_in, cors } =
            derived;
        let before = self.current();
        before.uuids.choose(uuids);
        before.databases.set_partition_bytes_max(partition_bytes_max);
        before.auth.set_timeout(limits.session_timeout_s);
        let document_options = document_options(&limits);
        let parts = before.renewed();
        let renewed = Server { limits, maintenance, plus_is_space, document_options, sign_in, cors, ..parts };
        self.current.store(Arc::new(renewed));
    }

    /// Updates `is_disk_full` from the status of a response.
    fn note_space(&self, status: StatusCode) {
        match status {
            StatusCode::INSUFFICIENT_STORAGE => self.is_disk_full.store(true, Ordering::Relaxed),
            StatusCode::CREATED if self.is_disk_full.load(Ordering::Relaxed) => {
                self.is_disk_full.store(false, Ordering::Relaxed);
            }
            _ => {}
        }
    }

    /// Counts a request as in progress until the returned guard is dropped.
    ///
    /// # Errors
    /// 503 if `max_requests_in_flight` requests are in progress.
    fn begin_request(&self, server: &Server) -> Result<InFlight<'_>, ApiError> {
        let begun = InFlight(&self.in_flight);
        let others = self.in_flight.fetch_add(1, Ordering::Relaxed);
        match others < server.limits.max_requests_in_flight {
            true => Ok(begun),
            false => {
                server.metrics.counters.count_refused();
                Err(ApiError::too_many_requests())
            }
        }
    }

    /// Returns 10 hex digits that no earlier request of this process had.
    fn request_id(&self) -> HeaderValue {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        // Multiplication by an odd factor permutes the numbers, so ids stay unique.
        let count = self.next_id.fetch_add(1, Ordering::Relaxed);
        let mut number = count.wrapping_mul(0x9e37_79b9_7f4a_7c15) & 0xff_ffff_ffff;
        let mut text = [0; 10];
        for digit in &mut text {
            *digit = DIGITS[(number & 15) as usize];
            number >>= 4;
        }
        HeaderValue::from_bytes(&text).expect("digits are a header's value")
    }
}

/// Counts a request in progress until it is dropped.
struct InFlight<'a>(&'a AtomicUsize);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn document_options(limits: &Limits) -> settee_doc::Options {
    settee_doc::Options {
        document_bytes_max: limits.max_document_size,
        attachment_bytes_max: limits.max_attachment_size,
    }
}

/// State that all requests share.
pub(crate) struct Server {
    pub(crate) databases: Arc<Databases>,
    pub(crate) limits: Limits,
    pub(crate) maintenance: Maintenance,
    /// Whether `+` in a path decodes to a space.
    pub(crate) plus_is_space: bool,
    sign_in: SignIn,
    cors: Option<Cors>,
    pub(crate) body_memory: Arc<BodyMemory>,
    /// Unauthenticated requests that wait for their bodies.
    pub(crate) unauthenticated: Arc<EvictingSet>,
    pub(crate) document_options: settee_doc::Options,
    pub(crate) auth: Arc<Auth>,
    pub(crate) uuids: Arc<Uuids>,
    pub(crate) welcome: Bytes,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) stopping: watch::Receiver<bool>,
}

impl Server {
    /// A copy that shares all parts.
    fn renewed(&self) -> Server {
        Server {
            databases: self.databases.clone(),
            limits: self.limits.clone(),
            maintenance: self.maintenance,
            plus_is_space: self.plus_is_space,
            sign_in: self.sign_in.clone(),
            cors: self.cors.clone(),
            body_memory: self.body_memory.clone(),
            unauthenticated: self.unauthenticated.clone(),
            document_options: self.document_options,
            auth: self.auth.clone(),
            uuids: self.uuids.clone(),
            welcome: self.welcome.clone(),
            metrics: self.metrics.clone(),
            stopping: self.stopping.clone(),
        }
    }
}

/// A request while its handler runs.
pub(crate) struct RequestContext<'a> {
    pub(crate) shared: &'a Arc<Shared>,
    pub(crate) server: &'a Server,
    pub(crate) head: &'a Parts,
    pub(crate) body: &'a mut RequestBody,
    pub(crate) caller: Caller,
    pub(crate) connection_memory: &'a Arc<ConnectionMemory>,
}

impl<'a> RequestContext<'a> {
    /// Limits and memory accounting of a streamed response.
    pub(crate) fn output(&self) -> Output<'a> {
        Output { limits: &self.server.limits, connection_memory: self.connection_memory }
    }

    /// Checks, before a change is made, that the connection may be sent a response of about `bytes` bytes.
    ///
    /// # Errors
    /// 503 if too many responses of the connection are unread.
    pub(crate) fn check_response(&self, bytes: usize) -> Result<(), ApiError> {
        self.connection_memory.check(bytes)
    }

    pub(crate) fn method(&self) -> &'a Method {
        &self.head.method
    }

    /// Whether the method is GET, or HEAD, which is handled as a GET without sending the body.
    pub(crate) fn is_get(&self) -> bool {
        matches!(self.head.method, Method::GET | Method::HEAD)
    }

    pub(crate) fn is_head(&self) -> bool {
        self.head.method == Method::HEAD
    }

    pub(crate) fn query(&self) -> Query<'a> {
        Query(self.head.uri.query().unwrap_or(""))
    }

    /// The value of a header, if it is text.
    pub(crate) fn header(&self, name: HeaderName) -> Option<&'a str> {
        self.head.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Reads the whole body.
    pub(crate) async fn read_body(&mut self) -> Result<BufferedBody, ApiError> {
        body::read(self.body, &self.head.headers, &self.server.limits, &self.server.body_memory).await
    }

    /// Reads the whole body of a request that sets one value or asks for one action.
    ///
    /// # Errors
    /// 413 for a body of more than [`body::VALUE_BODY_BYTES_MAX`]; else as [`body::read`].
    pub(crate) async fn read_value_body(&mut self) -> Result<BufferedBody, ApiError> {
        let limits = &self.server.limits;
        let max_request_bytes = limits.max_request_bytes.min(body::VALUE_BODY_BYTES_MAX);
        let limits = Limits { max_request_bytes, ..limits.clone() };
        body::read(self.body, &self.head.headers, &limits, &self.server.body_memory).await
    }

    /// Reads the whole body, which must be declared as JSON.
    pub(crate) async fn read_json_body(&mut self) -> Result<BufferedBody, ApiError> {
        body::check_json_type(&self.head.headers)?;
        self.read_body().await
    }

    /// Reads the whole body, which must be declared as JSON; a body too large for memory goes to a spool
    /// file.
    pub(crate) async fn read_or_spool_json_body(&mut self) -> Result<ReceivedBody, ApiError> {
        body::check_json_type(&self.head.headers)?;
        let server = self.server;
        let (headers, spools) = (&self.head.headers, server.databases.spools());
        body::read_or_spool(spools, self.body, headers, &server.limits, &server.body_memory).await
    }

    /// The durability and the copies that the query asks for.
    ///
    /// # Errors
    /// 400 for invalid options.
    pub(crate) fn write_concern(&self) -> Result<WriteConcern, ApiError> {
        let copies = self.query().get("w").map(|text| text.parse::<u64>()).transpose();
        let copies = copies.map_err(|_| ApiError::bad_request("`w` must be a number."))?;
        Ok(WriteConcern { stage: self.stage()?, copies: copies.unwrap_or(1) })
    }

    /// The stage that a write must reach before it is answered.
    pub(crate) fn stage(&self) -> Result<Stage, ApiError> {
        let query = self.query();
        match query.get("durability").as_deref() {
            None if query.get("batch").is_some_and(|batch| batch == "ok") => Ok(Stage::Accepted),
            None | Some("persisted") => Ok(Stage::Persisted),
            Some("written") => Ok(Stage::Written),
            Some("accepted") => Ok(Stage::Accepted),
            Some(_) => {
                Err(ApiError::bad_request("`durability` must be one of accepted, written and persisted."))
            }
        }
    }
}

/// The durability that a write must reach before it is answered, and the copies the client asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WriteConcern {
    pub(crate) stage: Stage,
    /// `w`, the number of copies the client asked for. There is one copy; for a higher number the status is
    /// 202, as in a cluster with too few nodes, although the write has reached its stage.
    pub(crate) copies: u64,
}

impl WriteConcern {
    /// `done`, or 202 if the write reached less than `Persisted` or fewer copies than asked for.
    pub(crate) fn status(&self, done: StatusCode) -> StatusCode {
        match self.stage == Stage::Persisted && self.copies <= 1 {
            true => done,
            false => StatusCode::ACCEPTED,
        }
    }
}

/// Answers a request. Errors become responses. `checked` is the result of the connection's check of the
/// request head.
pub(crate) async fn answer(
    shared: &Arc<Shared>,
    connection_memory: &Arc<ConnectionMemory>,
    address: Option<SocketAddr>,
    request: Request<Incoming>,
    checked: Result<(), ApiError>,
) -> Response<LoggedBody> {
    let (mut head, body) = request.into_parts();
    let server = shared.current.load();
    let server: &Server = &server;
    let mut body = RequestBody::new(body, server.unauthenticated.clone());
    let started = Instant::now();
    let id = sent_request_id(&head.headers).cloned().unwrap_or_else(|| shared.request_id());
    let sent_method = override_method(&mut head);
    let sent_method = sent_method.as_ref().unwrap_or(&head.method);
    let mut entry = shared.access_log.then(|| AccessEntry::new(address, &head, sent_method, &id, started));
    let mut caller = Caller::Anonymous;
    let mut response = match checked {
        Ok(()) => respond(shared, server, connection_memory, &head, &mut body, &mut caller, &id).await,
        Err(failure) => error_response(&failure, server, &head, &id),
    };
    shared.note_space(response.status());
    server.metrics.count_request(sent_method, response.status());
    server.metrics.observe_latency(EndpointClass::of(&head.method, head.uri.path()), started.elapsed());
    if !body.is_end_stream() {
        body.discard(&head.headers, &server.limits).await;
    }
    if server.limits.compress_answers && compress::accepts_gzip(&head.headers) {
        compress::compress(&mut response);
    }
    if let Some(entry) = &mut entry {
        let user = matches!(caller, Caller::Basic | Caller::Cookie { .. }).then(|| server.auth.admin_name());
        entry.answered(user.flatten(), response.status().as_u16());
    }
    response.headers_mut().insert(REQUEST_ID, id);
    response.map(|body| LoggedBody::new(body, entry))
}

/// Longest request id that a client may choose, in bytes.
const REQUEST_ID_BYTES_MAX: usize = 36;

/// The request id chosen by the client, if it is safe to log.
fn sent_request_id(headers: &HeaderMap) -> Option<&HeaderValue> {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    headers
        .get(REQUEST_ID)
        .filter(|id| (1..=REQUEST_ID_BYTES_MAX).contains(&id.len()) && id.as_bytes().iter().all(is_plain))
}

/// Returns the response of the handler, an error response or a CORS preflight response, with CORS headers.
async fn respond(
    shared: &Arc<Shared>,
    server: &Server,
    connection_memory: &Arc<ConnectionMemory>,
    head: &Parts,
    body: &mut RequestBody,
    caller: &mut Caller,
    id: &HeaderValue,
) -> Response<Body> {
    let preflight = server.cors.as_ref().filter(|_| head.method == Method::OPTIONS);
    // Preflights are not answered for pages whose requests would be refused.
    let preflight = preflight.filter(|_| server.auth.serves_page(&head.uri, &head.headers));
    if let Some(response) = preflight.and_then(|cors| cors.preflight(&head.headers)) {
        return response;
    }
    // A request whose response the closing connection would no longer send isn't started.
    let answered = match connection_memory.is_closing() {
        true => Err(ApiError::unread_responses()),
        false => handle(shared, server, connection_memory, head, body, caller).await,
    };
    let mut response = answered
        .and_then(|response| track_response(connection_memory, response))
        .unwrap_or_else(|failure| error_response(&failure, server, head, id));
    if let Some(cors) = &server.cors {
        cors.add_headers(&head.headers, &mut response);
    }
    response
}

/// Replaces the method of a POST by the one in `METHOD_OVERRIDE` and returns the method that was sent. A HEAD
/// becomes a GET, because the response to a POST has a body.
fn override_method(head: &mut Parts) -> Option<Method> {
    let meant = head.headers.get(METHOD_OVERRIDE).filter(|_| head.method == Method::POST)?.to_str().ok()?;
    let meant = meant.split(';').next().unwrap_or_default().trim();
    if !OVERRIDES.contains(&meant) {
        return None;
    }
    let meant = if meant == "HEAD" { "GET" } else { meant };
    let meant = Method::from_bytes(meant.as_bytes()).ok()?;
    Some(std::mem::replace(&mut head.method, meant))
}

/// Counts a buffered response for its connection. A response that reports a change is never refused: its
/// handler called [`RequestContext::check_response`] before the change.
fn track_response(
    connection_memory: &Arc<ConnectionMemory>,
    mut response: Response<Body>,
) -> response::HandlerResult {
    let reports_change = matches!(response.status(), StatusCode::CREATED | StatusCode::ACCEPTED);
    if let Body::Full(bytes) = response.body_mut() {
        if !reports_change {
            connection_memory.check(bytes.len())?;
        }
        *bytes = connection_memory.track(std::mem::take(bytes));
    }
    Ok(response)
}

/// Authenticates the request, stores the result in `caller`, and runs the handler.
async fn handle(
    shared: &Arc<Shared>,
    server: &Server,
    connection_memory: &Arc<ConnectionMemory>,
    head: &Parts,
    body: &mut RequestBody,
    caller: &mut Caller,
) -> response::HandlerResult {
    if let Some(path) = head.uri.path_and_query() {
        query::check_encoding(path.as_str())?;
    }
    *caller = server.auth.caller(&head.uri, &head.headers)?;
    let caller = *caller;
    if caller == Caller::Anonymous {
        server.sign_in.check_anonymous(&head.method, head.uri.path())?;
    }
    // Unauthenticated requests aren't counted, so they can't keep others out; `/_up` answers under any load.
    let is_counted = caller != Caller::Anonymous && head.uri.path() != "/_up";
    let _at_work = if is_counted { Some(shared.begin_request(server)?) } else { None };
    if caller != Caller::Anonymous {
        body.authenticate();
    }
    let mut response =
        router::route(&mut RequestContext { shared, server, head, body, caller, connection_memory }).await?;
    if caller == (Caller::Cookie { renew: true }) && !response.headers().contains_key(header::SET_COOKIE) {
        response::set_header(&mut response, header::SET_COOKIE, server.auth.session_cookie());
    }
    Ok(response)
}

fn error_response(failure: &ApiError, server: &Server, head: &Parts, id: &HeaderValue) -> Response<Body> {
    if failure.status.is_server_error() && failure.status != StatusCode::NOT_IMPLEMENTED {
        let (id, path) = (id.to_str().unwrap_or_default(), logged::text(head.uri.path()));
        let reason = logged::text(&failure.reason);
        tracing::error!(id, path, error = failure.error, reason, "failed");
    }
    let mut response = response::error(failure);
    if failure.status == StatusCode::UNAUTHORIZED
        && let Some(challenge) = head.headers.get(CHOSEN_CHALLENGE).or(server.sign_in.challenge.as_ref())
    {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge.clone());
    }
    response
}
