//! Handles `_view` and its `queries`.

use std::sync::Arc;

use hyper::{Method, StatusCode};
use settee_doc::Database;
use settee_view::{DesignViews, IndexSnapshot};

use super::args::{Args, Output, Update};
use super::query::ViewQuery;
use super::rows::write_result;
use crate::body::{self, ALLOCATION_BYTES, BodyBudget, MemoryPermit};
use crate::context::RequestContext;
use crate::error::ApiError;
use crate::json;
use crate::query::Segments;
use crate::response::{self, HandlerResult, writer};

/// Bytes that one of several queries takes besides its slot.
const QUERY_BYTES: usize = 4 * ALLOCATION_BYTES;

/// Handles `_view/NAME`, and `queries` below it.
pub(crate) async fn route(
    context: &mut RequestContext<'_>,
    database: Arc<Database>,
    design: &str,
    mut path: Segments<'_>,
    partition: Option<&str>,
) -> HandlerResult {
    let Some(name) = path.next()? else { return Err(ApiError::missing()) };
    match path.next()?.as_deref() {
        None => view(context, database, design, &name, partition).await,
        Some("queries") if path.at_end() => queries(context, database, design, &name, partition).await,
        Some(_) => Err(ApiError::missing()),
    }
}

/// Handles `_design/…/_view/…`, of all documents or of a partition.
async fn view(
    context: &mut RequestContext<'_>,
    database: Arc<Database>,
    design: &str,
    view: &str,
    partition: Option<&str>,
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
        _ => return Err(ApiError::method_not_allowed("GET,POST,HEAD")),
    }
    args.take_query(context.query())?;
    args.partition = partition.map(str::to_owned).or(args.partition);
    let views = context.server.views.design(&database, design).await?;
    let query = ViewQuery::new(&database, &views, view, args)?;
    let index = bring_up(&database, &views, &query).await?;
    if context.is_head() {
        return Ok(response::empty(StatusCode::OK));
    }
    writer::respond(context.output(), async move |mut out| {
        let _permit = permit;
        write_result(&database, &views, index, query, &mut out).await?;
        out.buffer.extend_from_slice(b"\n");
        Ok(out)
    })
    .await
}

/// Handles `_view/…/queries`: several queries in one response.
async fn queries(
    context: &mut RequestContext<'_>,
    database: Arc<Database>,
    design: &str,
    view: &str,
    partition: Option<&str>,
) -> HandlerResult {
    if *context.method() != Method::POST {
        return Err(ApiError::method_not_allowed("POST"));
    }
    let body = context.read_json_body().await?;
    let mut defaults = Args::default();
    defaults.take_query(context.query())?;
    defaults.partition = partition.map(str::to_owned).or(defaults.partition);
    let views = context.server.views.design(&database, design).await?;
    views.view(view)?;
    let (of, of_views, view) = (database.clone(), views.clone(), view.to_owned());
    let parse = move |text: &[u8], budget: &mut BodyBudget| {
        let [list] = json::pick(text, ["queries"])?;
        let list =
            list.ok_or_else(|| ApiError::bad_request("POST body must include `queries` parameter."))?;
        let no_list = || ApiError::bad_request("`queries` member must be an array.");
        let mut queries = Vec::new();
        json::each_element(list, no_list, |query| {
            let mut args = defaults.clone();
            args.take_members(query.as_bytes(), budget)?;
            budget.push(ViewQuery::new(&of, &of_views, &view, args)?, QUERY_BYTES, &mut queries)
        })?;
        Ok(queries)
    };
    let (queries, permit) = body::parse_buffered(body, &context.server.body_memory, parse).await?;
    let mut indexes = Vec::with_capacity(queries.len());
    for query in &queries {
        indexes.push(bring_up(&database, &views, query).await?);
    }
    writer::respond(context.output(), async move |mut out| {
        let _permit = permit;
        out.buffer.extend_from_slice(b"{\"results\":[");
        for (place, (query, index)) in queries.into_iter().zip(indexes).enumerate() {
            out.buffer.extend_from_slice(if place == 0 { b"\r\n" } else { b",\r\n" });
            write_result(&database, &views, index, query, &mut out).await?;
        }
        out.buffer.extend_from_slice(b"\r\n]}\n");
        Ok(out)
    })
    .await
}

/// The state of the index that a query reads, built as far as it requires. One that doesn't wait for a build waits for
/// nothing, and reads what was there before the build that it causes.
async fn bring_up(
    database: &Arc<Database>,
    views: &Arc<DesignViews>,
    query: &ViewQuery,
) -> Result<IndexSnapshot, ApiError> {
    let view = views.view(&query.view)?;
    let target = database.snapshot().update_seq();
    match query.args.update {
        Update::Before => {
            if matches!(query.output, Output::Groups(_)) {
                views.add_reduces(view).await?;
            }
            views.build(database, target).await?;
            Ok(views.snapshot(view)?)
        }
        Update::After => {
            let index = views.snapshot(view)?;
            views.build_in_background(database, target);
            Ok(index)
        }
        Update::Never => Ok(views.snapshot(view)?),
    }
}
