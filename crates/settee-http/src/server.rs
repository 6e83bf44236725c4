//! Accepting connections, and what all requests share.
//!
//! A connection is a task (`connection.rs`). Stopping goes in this order: no more connections are
//! accepted, feeds end, requests in flight are answered, and what isn't done by `stop_timeout_ms`
//! is cut off.
//!
//! What requests see of the server ([`Server`]) is replaced as a whole where its configuration is
//! changed over HTTP; a request sees one of them from its beginning to its end.

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

use crate::access::{AccessEntry, Sent};
use crate::admission::EvictingSet;
use crate::auth::{Admin, Auth, Caller};
use crate::body::{Content, Held, RequestBody, Room, UNAUTHENTICATED_BODIES_MAX};
use crate::config_store::{ConfigStore, Derived, Facts, Maintenance};
use crate::connections::{Connection, Connections, TrustedProxies};
use crate::cors::Cors;
use crate::endpoint::EndpointClass;
use crate::error::Failure;
use crate::metrics::Metrics;
use crate::query::{self, Query};
use crate::reply::{self, Body};
use crate::sign_in::SignIn;
use crate::stream::Output;
use crate::unread::{Answers, Unread};
use crate::uuids::{Algorithm, Uuids};
use crate::{Limits, body, compress, connection, logged, root, router};

/// How long accepting pauses after it failed, most likely for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A header by which a client may choose how it is asked for a password.
const CHOSEN_CHALLENGE: HeaderName = HeaderName::from_static("x-couchdb-www-authenticate");

/// Names a request, in its answer and in the log.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-couch-request-id");

/// The method that a client which can only send POST means.
const METHOD_OVERRIDE: HeaderName = HeaderName::from_static("x-http-method-override");

/// The methods that it may name.
const OVERRIDES: [&str; 8] = ["GET", "HEAD", "POST", "PUT", "DELETE", "TRACE", "CONNECT", "COPY"];

/// How a server is to run.
#[derive(Debug, Clone, Default)]
pub struct ServerOptions {
    /// Who may do everything. Without one everyone may, and only loopback is served.
    pub admin: Option<Admin>,
    /// The server's identity in `GET /`: 32 hex digits that outlive restarts. Empty: drawn anew.
    pub uuid: String,
    /// The limits.
    pub limits: Limits,
    /// Whose connections `max_connections_per_address` doesn't limit.
    pub trusted_proxies: TrustedProxies,
    /// The file that keeps what is configured over HTTP: [`CONFIG_FILE`](crate::CONFIG_FILE) in the
    /// folder of the data. None: it is kept in memory alone.
    pub config_file: Option<PathBuf>,
    /// Whether each request is logged once it is answered: events of [`ACCESS_TARGET`](crate::ACCESS_TARGET).
    pub access_log: bool,
    /// Counts the lines of the process's own log that were dropped; shown in the metrics.
    pub dropped_log_lines: Arc<AtomicU64>,
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
    let address = listener.local_addr().ok();
    let places = Connections::new(&options.limits, options.trusted_proxies.clone());
    let shared = Arc::new(Shared::new(databases, options, address, stopping));
    let server = shared.current();
    let acceptor = Acceptor { listener, places: Arc::new(places), accepted: None };
    let mut connections = accept_until(acceptor, &shared, shutdown).await;

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
                Ok(Some((stream, place))) => {
                    connections.spawn(connection::serve(shared.clone(), stream, place));
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

/// Takes connections from the system's queue.
struct Acceptor {
    listener: TcpListener,
    places: Arc<Connections>,
    /// Accepted, and waits for a place.
    accepted: Option<(TcpStream, IpAddr)>,
}

impl Acceptor {
    /// The next connection, once it has a place; None for one that was closed, whose address has its share.
    ///
    /// Loses no connection where it is dropped while it waits.
    async fn next(&mut self) -> io::Result<Option<(TcpStream, Connection)>> {
        let address = match &self.accepted {
            Some((_, address)) => *address,
            None => {
                let (stream, address) = self.listener.accept().await?;
                self.accepted = Some((stream, address.ip()));
                address.ip()
            }
        };
        let place = self.places.open(address).await;
        let accepted = self.accepted.take();
        Ok(accepted.zip(place.ok()).map(|((stream, _), place)| (stream, place)))
    }
}

/// Completes when the server begins to stop.
pub(crate) async fn stopped(stopping: &mut watch::Receiver<bool>) {
    stopping.wait_for(|stopping| *stopping).await.ok();
}

/// What outlives every change of the configuration.
pub(crate) struct Shared {
    current: ArcSwap<Server>,
    pub(crate) config: ConfigStore,
    pub(crate) answers: Arc<Answers>,
    /// Requests at work: from the end of their heads to the head of their answers.
    in_flight: AtomicUsize,
    access_log: bool,
    /// Whether the last write was refused since the disk has no space.
    pub(crate) lacks_space: AtomicBool,
    /// Counts requests, from a number that was drawn: what is made of it names them.
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
        let room = Arc::new(Room::new(&options.limits));
        let answers = Answers::new(&options.limits);
        let (config, derived) = ConfigStore::open(options.config_file, options.limits, &facts);
        let Derived { limits, maintenance, uuids, plus_is_space, partition_bytes_max, sign_in, cors } =
            derived;
        databases.set_partition_bytes_max(partition_bytes_max);
        let server = Server {
            metrics: Arc::new(Metrics::new(databases.clone(), &limits, options.dropped_log_lines)),
            databases,
            document_options: document_options(&limits),
            auth: Arc::new(Auth::new(admin, limits.session_timeout_s)),
            room,
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
        getrandom::fill(&mut seed).expect("the system gives randomness");
        Shared {
            current: ArcSwap::from_pointee(server),
            config,
            answers,
            in_flight: AtomicUsize::new(0),
            access_log: options.access_log,
            lacks_space: AtomicBool::new(false),
            next_id: AtomicU64::new(u64::from_ne_bytes(seed)),
        }
    }

    /// The server as it is configured now.
    pub(crate) fn current(&self) -> Arc<Server> {
        self.current.load_full()
    }

    /// From now on requests see what a change of the configuration means. Changes come one by one:
    /// who makes one holds `ConfigStore::changing`.
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

    /// Notes by a request's answer whether the disk has space for writes.
    fn note_space(&self, status: StatusCode) {
        match status {
            StatusCode::INSUFFICIENT_STORAGE => self.lacks_space.store(true, Ordering::Relaxed),
            StatusCode::CREATED if self.lacks_space.load(Ordering::Relaxed) => {
                self.lacks_space.store(false, Ordering::Relaxed);
            }
            _ => {}
        }
    }

    /// Room for one request more, until what this returns is dropped.
    ///
    /// # Errors
    /// 503 where as many as may be are at work.
    fn begin_request(&self, server: &Server) -> Result<InFlight<'_>, Failure> {
        let begun = InFlight(&self.in_flight);
        let others = self.in_flight.fetch_add(1, Ordering::Relaxed);
        match others < server.limits.max_requests_in_flight {
            true => Ok(begun),
            false => {
                server.metrics.counters.count_refused();
                Err(Failure::too_many_requests())
            }
        }
    }

    /// 10 hex digits that no request of this process had before.
    fn request_id(&self) -> HeaderValue {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        // An odd factor moves each number elsewhere, and no two to one place.
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

/// A request at work.
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

/// What all requests share.
pub(crate) struct Server {
    pub(crate) databases: Arc<Databases>,
    pub(crate) limits: Limits,
    pub(crate) maintenance: Maintenance,
    /// Whether `+` is a space in paths.
    pub(crate) plus_is_space: bool,
    sign_in: SignIn,
    cors: Option<Cors>,
    pub(crate) room: Arc<Room>,
    /// The requests that aren't authenticated and wait for their bodies.
    pub(crate) unauthenticated: Arc<EvictingSet>,
    pub(crate) document_options: settee_doc::Options,
    pub(crate) auth: Arc<Auth>,
    pub(crate) uuids: Arc<Uuids>,
    pub(crate) welcome: Bytes,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) stopping: watch::Receiver<bool>,
}

impl Server {
    /// Another of the same parts.
    fn renewed(&self) -> Server {
        Server {
            databases: self.databases.clone(),
            limits: self.limits.clone(),
            maintenance: self.maintenance,
            plus_is_space: self.plus_is_space,
            sign_in: self.sign_in.clone(),
            cors: self.cors.clone(),
            room: self.room.clone(),
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

/// A request on its way through its handler.
pub(crate) struct Call<'a> {
    pub(crate) shared: &'a Arc<Shared>,
    pub(crate) server: &'a Server,
    pub(crate) head: &'a Parts,
    pub(crate) body: &'a mut RequestBody,
    pub(crate) caller: Caller,
    pub(crate) unread: &'a Arc<Unread>,
}

impl<'a> Call<'a> {
    /// What bounds a streamed answer.
    pub(crate) fn output(&self) -> Output<'a> {
        Output { limits: &self.server.limits, unread: self.unread }
    }

    /// Checks, before a change, whether the connection may be given an answer of about that size.
    ///
    /// # Errors
    /// 503: the client has too many answers to take.
    pub(crate) fn check_answer(&self, bytes: usize) -> Result<(), Failure> {
        self.unread.check(bytes)
    }

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

    /// Reads the whole body of a request that sets one value or asks for one action.
    ///
    /// # Errors
    /// 413 for a body of more than [`body::VALUE_BODY_BYTES_MAX`]; else as [`body::read`].
    pub(crate) async fn read_value_body(&mut self) -> Result<Held, Failure> {
        let limits = &self.server.limits;
        let max_request_bytes = limits.max_request_bytes.min(body::VALUE_BODY_BYTES_MAX);
        let limits = Limits { max_request_bytes, ..limits.clone() };
        body::read(self.body, &self.head.headers, &limits, &self.server.room).await
    }

    /// The whole body, which must be declared as JSON.
    pub(crate) async fn read_json_body(&mut self) -> Result<Held, Failure> {
        body::check_json_type(&self.head.headers)?;
        self.read_body().await
    }

    /// The whole body, which must be declared as JSON, in a file where it is too large for memory.
    pub(crate) async fn read_or_spool_json_body(&mut self) -> Result<Content, Failure> {
        body::check_json_type(&self.head.headers)?;
        let server = self.server;
        let (headers, spools) = (&self.head.headers, server.databases.spools());
        body::read_or_spool(spools, self.body, headers, &server.limits, &server.room).await
    }

    /// What a write must reach before it is answered, and what its answer is then.
    ///
    /// # Errors
    /// 400 for options that mean nothing.
    pub(crate) fn write_concern(&self) -> Result<WriteConcern, Failure> {
        let copies = self.query().get("w").map(|text| text.parse::<u64>()).transpose();
        let copies = copies.map_err(|_| Failure::bad_request("`w` must be a number."))?;
        Ok(WriteConcern { stage: self.stage()?, copies: copies.unwrap_or(1) })
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

/// What a write must reach before it is answered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WriteConcern {
    pub(crate) stage: Stage,
    /// `w`: copies that the client asks for. There is one: asked for more the answer is 202, as in a
    /// cluster with too few nodes, though the write has reached its stage.
    pub(crate) copies: u64,
}

impl WriteConcern {
    /// `done`, or 202 where less was reached than a client may expect.
    pub(crate) fn status(&self, done: StatusCode) -> StatusCode {
        match self.stage == Stage::Persisted && self.copies <= 1 {
            true => done,
            false => StatusCode::ACCEPTED,
        }
    }
}

/// Answers a request; what happens to it is in the answer. `checked` is what its connection found wrong with
/// its head.
pub(crate) async fn answer(
    shared: &Arc<Shared>,
    unread: &Arc<Unread>,
    address: Option<SocketAddr>,
    request: Request<Incoming>,
    checked: Result<(), Failure>,
) -> Response<Sent> {
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
        Ok(()) => respond(shared, server, unread, &head, &mut body, &mut caller, &id).await,
        Err(failure) => failed(&failure, server, &head, &id),
    };
    shared.note_space(response.status());
    server.metrics.count_request(sent_method, response.status());
    server.metrics.observe_latency(EndpointClass::of(&head.method, head.uri.path()), started.elapsed());
    if !body.is_end_stream() {
        body.discard(&head.headers, &server.limits).await;
    }
    if server.limits.compress_answers && compress::takes_gzip(&head.headers) {
        compress::compress(&mut response);
    }
    if let Some(entry) = &mut entry {
        let user = matches!(caller, Caller::Basic | Caller::Cookie { .. }).then(|| server.auth.admin_name());
        entry.answered(user.flatten(), response.status().as_u16());
    }
    response.headers_mut().insert(REQUEST_ID, id);
    response.map(|body| Sent::new(body, entry))
}

/// Longest id of a request that a client may choose, in bytes.
const REQUEST_ID_BYTES_MAX: usize = 36;

/// The request's id, where the client has chosen one that can stand in a log.
fn sent_request_id(headers: &HeaderMap) -> Option<&HeaderValue> {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    headers
        .get(REQUEST_ID)
        .filter(|id| (1..=REQUEST_ID_BYTES_MAX).contains(&id.len()) && id.as_bytes().iter().all(is_plain))
}

/// The answer of a handler, a refusal or a preflight, with the headers of CORS.
async fn respond(
    shared: &Arc<Shared>,
    server: &Server,
    unread: &Arc<Unread>,
    head: &Parts,
    body: &mut RequestBody,
    caller: &mut Caller,
    id: &HeaderValue,
) -> Response<Body> {
    let preflight = server.cors.as_ref().filter(|_| head.method == Method::OPTIONS);
    // None for a page whose requests would be refused.
    let preflight = preflight.filter(|_| server.auth.serves_page(&head.uri, &head.headers));
    if let Some(response) = preflight.and_then(|cors| cors.preflight(&head.headers)) {
        return response;
    }
    // What its connection doesn't send any more isn't begun.
    let answered = match unread.is_closing() {
        true => Err(Failure::unread()),
        false => handle(shared, server, unread, head, body, caller).await,
    };
    let mut response = answered
        .and_then(|response| held(unread, response))
        .unwrap_or_else(|failure| failed(&failure, server, head, id));
    if let Some(cors) = &server.cors {
        cors.open_to_page(&head.headers, &mut response);
    }
    response
}

/// Puts the method in force that a POST says it means, and returns that of the request then. A HEAD
/// becomes a GET: what was asked for by POST is sent with its body.
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

/// Counts a whole answer for its connection. One that reports a change is never refused: its handler has checked
/// ([`Call::check_answer`]) before the change.
fn held(unread: &Arc<Unread>, mut response: Response<Body>) -> reply::Answer {
    let reports_change = matches!(response.status(), StatusCode::CREATED | StatusCode::ACCEPTED);
    if let Body::Full(bytes) = response.body_mut() {
        if !reports_change {
            unread.check(bytes.len())?;
        }
        *bytes = unread.hold(std::mem::take(bytes));
    }
    Ok(response)
}

/// Finds out who asks, which is in `caller` then, and answers.
async fn handle(
    shared: &Arc<Shared>,
    server: &Server,
    unread: &Arc<Unread>,
    head: &Parts,
    body: &mut RequestBody,
    caller: &mut Caller,
) -> reply::Answer {
    if let Some(path) = head.uri.path_and_query() {
        query::check_encoding(path.as_str())?;
    }
    *caller = server.auth.caller(&head.uri, &head.headers)?;
    let caller = *caller;
    if caller == Caller::Anonymous {
        server.sign_in.check_anonymous(&head.method, head.uri.path())?;
    }
    // Nobody keeps others out before they are authenticated, and `/_up` is answered whoever is at work.
    let is_counted = caller != Caller::Anonymous && head.uri.path() != "/_up";
    let _at_work = if is_counted { Some(shared.begin_request(server)?) } else { None };
    if caller != Caller::Anonymous {
        body.authenticate();
    }
    let mut response = router::route(&mut Call { shared, server, head, body, caller, unread }).await?;
    if caller == (Caller::Cookie { renew: true }) && !response.headers().contains_key(header::SET_COOKIE) {
        reply::set_header(&mut response, header::SET_COOKIE, server.auth.session_cookie());
    }
    Ok(response)
}

fn failed(failure: &Failure, server: &Server, head: &Parts, id: &HeaderValue) -> Response<Body> {
    if failure.status.is_server_error() && failure.status != StatusCode::NOT_IMPLEMENTED {
        let (id, path) = (id.to_str().unwrap_or_default(), logged::text(head.uri.path()));
        let reason = logged::text(&failure.reason);
        tracing::error!(id, path, error = failure.error, reason, "failed");
    }
    let mut response = reply::failure(failure);
    if failure.status == StatusCode::UNAUTHORIZED
        && let Some(challenge) = head.headers.get(CHOSEN_CHALLENGE).or(server.sign_in.challenge.as_ref())
    {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge.clone());
    }
    response
}
