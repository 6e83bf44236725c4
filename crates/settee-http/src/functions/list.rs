//! `_list`: a function makes a response of a view's rows.
//!
//! The function runs on a blocking thread for as long as its client reads. Rows come to it, and its output goes to
//! the response, through bounded channels, so that neither the view's rows nor the response are in memory.

use std::sync::Arc;

use hyper::StatusCode;
use settee_doc::Database;
use settee_js::{ListChunk, ListOutput, RowSource};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::list_rows::{ListRows, ROWS_AHEAD};
use super::request_object::{RequestText, request_object};
use super::response_object::ResponseObject;
use crate::body::{self, BufferedBody};
use crate::context::RequestContext;
use crate::error::ApiError;
use crate::javascript::DesignSource;
use crate::response::{self, Body, HandlerResult, writer};

/// Parts of the output that a function is ahead of its response.
const PARTS_AHEAD: usize = 16;

/// The function's output.
type Parts = mpsc::Receiver<ListChunk>;

/// Makes a response of the rows in `view`, a view's response to the request's query. `body` is the request's.
///
/// # Errors
/// Those of the function, until its output begins.
pub(crate) async fn list(
    context: &RequestContext<'_>,
    database: &Database,
    design: &Arc<DesignSource>,
    name: &str,
    body: Option<BufferedBody>,
    view: hyper::Response<Body>,
) -> HandlerResult {
    let request = request_object(context, database, None, RequestText::of(body.as_ref()))?;
    let mut rows = ListRows::new(view.into_body());
    let head = rows.head().await?;
    let (sender, receiver) = mpsc::channel(ROWS_AHEAD);
    let reading = tokio::spawn(rows.send_to(sender));
    let (mut parts, running) = start(context, design, name, head, request, receiver).await;
    let (object, first) = match parts.recv().await {
        Some(ListChunk::Start { response, chunks }) => (ResponseObject::parse(&response)?, chunks),
        Some(ListChunk::Chunks(_)) | None => {
            end(running, reading).await?;
            return Err(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "list_error", "no response"));
        }
    };
    let mut response = if context.is_head() {
        response::empty(StatusCode::OK)
    } else {
        writer::respond(context.output(), async move |mut out| {
            let _body = body;
            first.iter().for_each(|chunk| out.buffer.extend_from_slice(chunk.as_bytes()));
            while let Some(part) = parts.recv().await {
                let (ListChunk::Start { chunks, .. } | ListChunk::Chunks(chunks)) = part;
                chunks.iter().for_each(|chunk| out.buffer.extend_from_slice(chunk.as_bytes()));
                out.flush_full().await?;
            }
            end(running, reading).await?;
            Ok(out)
        })
        .await?
    };
    object.apply(&mut response);
    Ok(response)
}

/// Reads the body of a POST, which must be JSON.
///
/// # Errors
/// 415 for another type; those of reading it.
pub(crate) async fn read_list_body(
    context: &mut RequestContext<'_>,
) -> Result<Option<BufferedBody>, ApiError> {
    if *context.method() != hyper::Method::POST {
        return Ok(None);
    }
    body::check_json_type(&context.head.headers)?;
    context.read_body().await.map(Some)
}

/// Starts the function. It ends when it returns, or when its output isn't taken any more.
async fn start(
    context: &RequestContext<'_>,
    design: &Arc<DesignSource>,
    name: &str,
    head: String,
    request: String,
    mut rows: mpsc::Receiver<String>,
) -> (Parts, JoinHandle<Result<(), settee_js::Error>>) {
    let (sender, parts) = mpsc::channel(PARTS_AHEAD);
    let permit = context.server.contexts.list_permit().await;
    let (contexts, design, name) = (context.server.contexts.clone(), design.clone(), name.to_owned());
    let running = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        let next_row: RowSource = Box::new(move || rows.blocking_recv());
        let output: ListOutput = Box::new(move |part| sender.blocking_send(part).is_ok());
        contexts.with(&design, |context| context.list(&["lists", &name], &head, &request, next_row, output))
    });
    (parts, running)
}

/// Waits for the end of the function, and of the rows that it read.
async fn end(
    running: JoinHandle<Result<(), settee_js::Error>>,
    reading: JoinHandle<Result<(), ApiError>>,
) -> Result<(), ApiError> {
    let failed = |error: tokio::task::JoinError| {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_server_error", error.to_string())
    };
    running.await.map_err(failed)??;
    reading.await.map_err(failed)?
}
