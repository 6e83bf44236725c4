//! A request while its handler runs: its head, its body, its caller, and the server's state.

use std::sync::Arc;

use hyper::Method;
use hyper::header::{HeaderName, HeaderValue};
use hyper::http::request::Parts;
use settee_doc::{Edit, Spool, Stage};

use super::shared::{Server, Shared};
use super::write_concern::WriteConcern;
use crate::auth::Caller;
use crate::body::{self, BodyBudget, BufferedBody, MemoryPermit, ReceivedBody, RequestBody};
use crate::error::ApiError;
use crate::limits::Limits;
use crate::query::Query;
use crate::response::memory::ConnectionMemory;
use crate::response::writer::Output;

const OPTIMISTIC_WRITE: &str = "x-optimistic-write";

/// Size of a document's text in bytes above which it is charged twice: while it is parsed, its body is in memory
/// too.
const TWICE_CHARGED_BYTES_MIN: u64 = 8 << 20;

/// A request while its handler runs.
pub(crate) struct RequestContext<'a> {
    pub(crate) shared: &'a Arc<Shared>,
    pub(crate) server: &'a Server,
    pub(crate) head: &'a Parts,
    pub(crate) body: &'a mut RequestBody,
    pub(crate) caller: Caller,
    pub(crate) connection_memory: &'a Arc<ConnectionMemory>,
    /// The request to be answered instead of this one, whose response is dropped.
    pub(crate) rewritten: Option<Box<RewrittenRequest>>,
}

/// A request that a design document made of another one.
pub(crate) struct RewrittenRequest {
    pub(crate) head: Parts,
    /// Its body, if that was read or replaced.
    pub(crate) body: Option<BufferedBody>,
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

    /// The same request with another head.
    pub(crate) fn with_head<'b>(&'b mut self, head: &'b Parts) -> RequestContext<'b> {
        RequestContext {
            shared: self.shared,
            server: self.server,
            head,
            body: &mut *self.body,
            caller: self.caller,
            connection_memory: self.connection_memory,
            rewritten: None,
        }
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
        let request_bytes_max = limits.request_bytes_max.min(body::VALUE_BODY_BYTES_MAX);
        let limits = Limits { request_bytes_max, ..limits.clone() };
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

    /// Writes a body that was read into memory to a spool file.
    ///
    /// # Errors
    /// Those of [`body::spool`].
    pub(crate) async fn spool(&self, text: &[u8]) -> Result<Spool, ApiError> {
        body::spool(self.server.databases.spools(), self.body, text, &self.server.limits).await
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

    /// Parses a document's text into an edit, with the permit for its memory. May wait for memory, so the
    /// request has no other permit.
    pub(crate) async fn parse_edit(&self, mut body: BufferedBody) -> Result<(Edit, MemoryPermit), ApiError> {
        let options = self.server.document_options;
        let text_bytes = body.text.len() as u64;
        if text_bytes > TWICE_CHARGED_BYTES_MIN {
            self.server.body_memory.grow(&mut body.permit, 2 * text_bytes).await?;
        }
        let parse = move |text: &[u8], budget: &mut BodyBudget| body::parse_edit(text, &options, budget);
        body::parse_buffered(body, &self.server.body_memory, parse).await
    }

    /// Whether the client sent `X-Optimistic-Write: true`, so that large bodies are written before their
    /// updates.
    pub(crate) fn is_optimistic(&self) -> Result<bool, ApiError> {
        match self.head.headers.get(OPTIMISTIC_WRITE).map(HeaderValue::as_bytes) {
            None | Some(b"false") => Ok(false),
            Some(b"true") => Ok(true),
            Some(_) => Err(ApiError::bad_request("X-Optimistic-Write must be true or false.")),
        }
    }
}
