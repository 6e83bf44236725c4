//! `_all_docs`, `_design_docs`, `_local_docs` and their `queries`: documents in a range of ids, or by id.

mod args;
mod rows;
mod scope;

use std::sync::Arc;

use hyper::{Method, Response, StatusCode};
use settee_doc::Database;

use self::args::Args;
use self::rows::write_list;
pub(crate) use self::scope::Scope;
use crate::body::{self, ALLOCATION_BYTES, BodyBudget, MemoryPermit};
use crate::context::RequestContext;
use crate::error::ApiError;
use crate::json;
use crate::response::{self, Body, HandlerResult, writer};

/// Bytes that one of several queries takes besides its slot.
const QUERY_BYTES: usize = 4 * ALLOCATION_BYTES;

/// Handles `_all_docs`, `_design_docs`, `_local_docs` and `_partition/…/_all_docs`.
pub(crate) async fn handle(
    context: &mut RequestContext<'_>,
    database: Arc<Database>,
    scope: Scope,
) -> HandlerResult {
    let mut args = Args::default();
    let mut permit = MemoryPermit::default();
    match *context.method() {
        Method::GET | Method::HEAD => {}
        Method::POST => {
            let body = context.read_json_body().await?;
            let parse = move |text: &[u8], budget: &mut BodyBudget| {
                args.take_members(text, budget)?;
                Ok(args)
            };
            (args, permit) = body::parse_buffered(body, &context.server.body_memory, parse).await?;
        }
        _ => return Err(ApiError::method_not_allowed("GET,HEAD,POST")),
    }
    for (name, value) in context.query().pairs() {
        match name.as_ref() {
            // In a POST the query's `keys` override those of the body.
            "keys" if *context.method() == Method::POST => {
                let no_list = || ApiError::query_parse_error("`keys` must be an array of strings.");
                args.set_keys(&value, no_list, &mut BodyBudget::unlimited())?;
            }
            "keys" => {
                let no_list = || ApiError::bad_request("`keys` parameter must be an array.");
                args.set_keys(&value, no_list, &mut BodyBudget::unlimited())?;
            }
            name => args.set(name, &value)?,
        }
    }
    let scope = args.check(&database, scope)?;
    if context.is_head() {
        return Ok(head());
    }
    let snapshot = database.snapshot();
    writer::respond(context.output(), async move |mut out| {
        let _permit = permit;
        write_list(&database, &snapshot, &scope, args, &mut out).await?;
        out.buffer.extend_from_slice(b"\n");
        Ok(out)
    })
    .await
}

/// Handles `queries`: several lists in one response, each as if requested alone.
pub(crate) async fn queries(
    context: &mut RequestContext<'_>,
    database: Arc<Database>,
    scope: Scope,
) -> HandlerResult {
    if *context.method() != Method::POST {
        return Err(ApiError::method_not_allowed("POST"));
    }
    let body = context.read_body().await?;
    let options: Vec<(String, String)> =
        context.query().pairs().map(|(name, value)| (name.into_owned(), value.into_owned())).collect();
    let of = database.clone();
    let parse =
        move |text: &[u8], budget: &mut BodyBudget| parse_queries(text, &options, &of, &scope, budget);
    let (queries_args, permit) = body::parse_buffered(body, &context.server.body_memory, parse).await?;
    let snapshot = database.snapshot();
    writer::respond(context.output(), async move |mut out| {
        let _permit = permit;
        out.buffer.extend_from_slice(b"{\"results\":[");
        for (index, (scope, args)) in queries_args.into_iter().enumerate() {
            out.buffer.extend_from_slice(if index == 0 { b"\r\n" } else { b",\r\n" });
            write_list(&database, &snapshot, &scope, args, &mut out).await?;
        }
        out.buffer.extend_from_slice(b"\r\n]}\n");
        Ok(out)
    })
    .await
}

/// Parses the options of several lists; `options` apply to all of them.
fn parse_queries(
    text: &[u8],
    options: &[(String, String)],
    database: &Database,
    scope: &Scope,
    budget: &mut BodyBudget,
) -> Result<Vec<(Scope, Args)>, ApiError> {
    let [list] = json::pick(text, ["queries"])?;
    let list = list.ok_or_else(|| ApiError::bad_request("POST body must include `queries` parameter."))?;
    let each = QUERY_BYTES + options.iter().map(|(_, value)| value.len()).sum::<usize>();
    let no_list = || ApiError::bad_request("`queries` member must be an array.");
    let mut queries_args = Vec::new();
    json::each_element(list, no_list, |query| {
        let mut args = Args::default();
        for (name, value) in options {
            args.set(name, value)?;
        }
        args.take_members(query.as_bytes(), budget)?;
        let scope = args.check(database, scope.clone())?;
        budget.push((scope, args), each, &mut queries_args)
    })?;
    Ok(queries_args)
}

/// The response to a HEAD. It has no length.
fn head() -> Response<Body> {
    response::empty(StatusCode::OK)
}
