//! A client for the part of CouchDB's API that loading, dumping and measuring need.
//!
//! A [`Couch`] uses one connection. It opens a new one if the server announced that it closes the old one, or
//! if the old one has been idle for longer than `IDLE_MAX`. It never repeats a request by itself.

use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::connection::Connection;
use crate::error::HttpError;
use crate::server::{JSON, Request, Server, encode_segment};

type Result<T, E = CouchError> = std::result::Result<T, E>;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum CouchError {
    /// The server wasn't reached or broke the connection; whether it executed the request is unknown.
    #[error(transparent)]
    Http(#[from] HttpError),

    /// The server responded with a status other than 2xx.
    #[error("{status} {error}: {reason}")]
    Refused {
        /// The status code.
        status: u16,
        /// CouchDB's name of the error.
        error: String,
        /// CouchDB's explanation.
        reason: String,
    },

    /// The response isn't one that CouchDB would send.
    #[error("unexpected response to {request}: {reason}")]
    Unexpected {
        /// Method and path.
        request: String,
        /// The parser's error.
        reason: String,
    },
}

/// The outcome of one document of a `_bulk_docs` request.
#[derive(Debug, Clone, Deserialize)]
pub struct BulkRow {
    /// The document's id.
    #[serde(default)]
    pub id: String,
    /// Its new revision, if it was stored.
    pub rev: Option<String>,
    /// CouchDB's name of the error, if it wasn't stored.
    pub error: Option<String>,
    /// CouchDB's explanation.
    pub reason: Option<String>,
}

/// A response with its body.
#[derive(Debug)]
pub struct Reply {
    /// The status code.
    pub status: u16,
    /// The body.
    pub body: Vec<u8>,
}

/// Longest idle time after which a connection is used again. Past it the server may be about to close it.
const IDLE_MAX: Duration = Duration::from_secs(5);

/// A client of a server with CouchDB's API.
#[derive(Debug)]
pub struct Couch {
    server: Server,
    /// The connection, if it can be used again, and the time of its last response.
    connection: Option<(Connection, Instant)>,
}

impl Couch {
    /// Returns a client of `server`, which connects at the first request.
    pub fn new(server: Server) -> Couch {
        Couch { server, connection: None }
    }

    /// Sends a request and returns the whole response, whatever its status.
    ///
    /// # Errors
    /// Any [`HttpError`]. Whether the server executed the request is unknown.
    pub async fn send(&mut self, request: Request<'_>) -> Result<Reply, HttpError> {
        // Removed from `self` while in use, so that a broken or cancelled exchange is never resumed.
        let mut connection = match self.connection.take() {
            Some((connection, used)) if used.elapsed() < IDLE_MAX => connection,
            _ => Connection::open(&self.server).await?,
        };
        let answer = connection.exchange(request).await?;
        let reply = Reply { status: answer.status, body: answer.body.to_vec() };
        if !connection.is_closing() {
            self.connection = Some((connection, Instant::now()));
        }
        Ok(reply)
    }

    /// Sends a request with a body of JSON, or without a body, and returns the whole response. `target` is that
    /// of a [`Request`].
    ///
    /// # Errors
    /// [`CouchError::Refused`] for any status but 2xx.
    pub async fn call(&mut self, method: &str, target: &str, body: Option<&[u8]>) -> Result<Reply> {
        let reply = self.send(Request { method, target, content: body.map(|body| (JSON, body)) }).await?;
        if (200..300).contains(&reply.status) { Ok(reply) } else { Err(refusal(reply.status, &reply.body)) }
    }

    /// Sends a GET and returns once the response's head has arrived. The body is streamed from the returned
    /// connection, which serves this request only.
    ///
    /// # Errors
    /// [`CouchError::Refused`] for any status but 2xx.
    pub async fn stream(&self, target: &str) -> Result<Connection> {
        let mut connection = Connection::open(&self.server).await?;
        let status = connection.begin(Request::get(target)).await?;
        if (200..300).contains(&status) {
            return Ok(connection);
        }
        let mut body = Vec::new();
        while let Some(chunk) = connection.chunk().await? {
            body.extend_from_slice(chunk);
        }
        Err(refusal(status, &body))
    }

    /// Creates a database. Returns false if it existed.
    ///
    /// # Errors
    /// Any [`CouchError`].
    pub async fn create_database(&mut self, name: &str) -> Result<bool> {
        match self.call("PUT", &format!("/{}", encode_segment(name)), None).await {
            Ok(_) => Ok(true),
            Err(CouchError::Refused { status: 412, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Deletes a database.
    ///
    /// # Errors
    /// Any [`CouchError`].
    pub async fn delete_database(&mut self, name: &str) -> Result<()> {
        self.call("DELETE", &format!("/{}", encode_segment(name)), None).await.map(drop)
    }

    /// Sends a rendered `_bulk_docs` body. With `new_edits` the server returns a row for each document;
    /// without it, only for the refused ones.
    ///
    /// # Errors
    /// Any [`CouchError`]; which documents were stored is then unknown.
    pub async fn bulk(&mut self, database: &str, body: &[u8]) -> Result<Vec<BulkRow>> {
        let target = format!("/{}/_bulk_docs", encode_segment(database));
        let reply = self.call("POST", &target, Some(body)).await?;
        parse(&target, &reply.body)
    }

    /// Returns once every update acknowledged before is persisted (`_ensure_full_commit`).
    ///
    /// # Errors
    /// Any [`CouchError`].
    pub async fn barrier(&mut self, database: &str) -> Result<()> {
        let target = format!("/{}/_ensure_full_commit", encode_segment(database));
        self.call("POST", &target, Some(b"{}")).await.map(drop)
    }
}

/// Parses the response to `request`.
///
/// # Errors
/// [`CouchError::Unexpected`].
pub fn parse<'a, T: Deserialize<'a>>(request: &str, body: &'a [u8]) -> Result<T> {
    serde_json::from_slice(body)
        .map_err(|error| CouchError::Unexpected { request: request.to_owned(), reason: error.to_string() })
}

fn refusal(status: u16, body: &[u8]) -> CouchError {
    #[derive(Deserialize)]
    struct Refusal {
        error: String,
        reason: Option<String>,
    }
    match serde_json::from_slice::<Refusal>(body) {
        Ok(Refusal { error, reason }) => {
            CouchError::Refused { status, error, reason: reason.unwrap_or_default() }
        }
        Err(_) => CouchError::Refused { status, error: "no JSON".to_owned(), reason: String::new() },
    }
}
