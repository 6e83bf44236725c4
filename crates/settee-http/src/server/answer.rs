//! Answers one request: authenticates its caller, runs its handler, and turns errors into responses.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode};

use super::access::{AccessEntry, LoggedBody};
use super::router;
use crate::auth::Caller;
use crate::body::RequestBody;
use crate::context::{RequestContext, Server, Shared};
use crate::error::ApiError;
use crate::functions::request_object::Peer;
use crate::metrics::endpoint::EndpointClass;
use crate::response::memory::ConnectionMemory;
use crate::response::{self, Body, compress};
use crate::{logged, query};

/// A header with which a client chooses the `WWW-Authenticate` challenge of a 401.
const CHOSEN_CHALLENGE: HeaderName = HeaderName::from_static("x-couchdb-www-authenticate");

/// Identifies a request in its response and in the log.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-couch-request-id");

/// The intended method of a request from a client that can only send POST.
const METHOD_OVERRIDE: HeaderName = HeaderName::from_static("x-http-method-override");

/// The methods that `METHOD_OVERRIDE` may name.
const OVERRIDES: [&str; 8] = ["GET", "HEAD", "POST", "PUT", "DELETE", "TRACE", "CONNECT", "COPY"];

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
    if let Some(address) = address {
        head.extensions.insert(Peer(address));
    }
    let server = shared.load_current();
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
    shared.record_disk_full(response.status());
    server.metrics.count_request(sent_method, response.status());
    server.metrics.observe_latency(EndpointClass::of(&head.method, head.uri.path()), started.elapsed());
    if !body.is_end_stream() {
        body.discard(&head.headers, &server.limits).await;
    }
    if server.limits.compress_responses && compress::accepts_gzip(&head.headers) {
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

/// Counts a buffered response for its connection, and refuses it if the connection may not be sent it. A 201
/// or 202, which reports a change, is never refused: a handler whose 201 may be large (`_bulk_docs`,
/// `_purge`) calls [`RequestContext::check_response`] before the change. A large response with another status
/// may be refused after a change: the old value of a configuration key, or the failed databases of a backup.
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
    let _in_flight = if is_counted { Some(shared.begin_request(server)?) } else { None };
    if caller != Caller::Anonymous {
        body.authenticate();
    }
    let mut response = router::route(&mut RequestContext {
        shared,
        server,
        head,
        body,
        caller,
        connection_memory,
        rewritten: None,
    })
    .await?;
    if caller == (Caller::Cookie { renew: true }) && !response.headers().contains_key(header::SET_COOKIE) {
        response::set_header(&mut response, header::SET_COOKIE, server.auth.session_cookie());
    }
    Ok(response)
}

fn error_response(failure: &ApiError, server: &Server, head: &Parts, id: &HeaderValue) -> Response<Body> {
    if failure.status.is_server_error() && failure.status != StatusCode::NOT_IMPLEMENTED {
        let (id, path) = (id.to_str().unwrap_or_default(), logged::text(head.uri.path()));
        let reason = logged::text(&failure.reason);
        tracing::error!(id, path, error = failure.error.as_ref(), reason, "failed");
    }
    let mut response = response::error(failure);
    if failure.status == StatusCode::UNAUTHORIZED
        && let Some(challenge) = head.headers.get(CHOSEN_CHALLENGE).or(server.sign_in.challenge.as_ref())
    {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge.clone());
    }
    response
}
