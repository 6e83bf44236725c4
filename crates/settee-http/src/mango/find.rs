//! The handlers of `_find` and `_explain`.

use std::sync::Arc;

use hyper::{Method, StatusCode};
use settee_doc::{Database, Snapshot};
use settee_view::mango::{self, Bookmark, Explanation, FindRequest, IndexDefinition, PlanScope};

use super::definitions;
use super::rows::ViewRows;
use super::search::Search;
use crate::blocking;
use crate::body::{self, BodyBudget, MemoryPermit};
use crate::context::RequestContext;
use crate::document::matching::may_have_regex;
use crate::error::ApiError;
use crate::response::{self, HandlerResult, writer};

/// Largest request in bytes that is parsed and planned in its own task. Compiling a selector takes much longer
/// than parsing its text.
const REQUEST_INLINE_BYTES: usize = 16 << 10;

/// Bytes that a parsed request takes per byte of its text: the conditions, and their normal form.
const PARSED_PER_BYTE: usize = 3;

/// Handles `_find`, also of a partition.
pub(crate) async fn find(
    context: &mut RequestContext<'_>,
    database: Arc<Database>,
    partition: Option<String>,
) -> HandlerResult {
    let Prepared { request, permit, snapshot, indexes, scope, is_large } =
        prepare(context, &database, partition).await?;
    let planned = move || -> Result<_, ApiError> {
        let plan = mango::plan(&request, &indexes, scope)?;
        let after = Bookmark::of(&request, &plan)?;
        Ok((request, plan, after))
    };
    let (request, plan, after) = if is_large { blocking::run(planned).await?? } else { planned()? };
    let body_memory = context.server.body_memory.clone();
    let search = Search::new(context.server.views.clone(), database, snapshot, body_memory, request, plan);
    writer::respond(context.output(), async move |mut out| {
        let _permit = permit;
        search.run::<ViewRows>(after, &mut out).await?;
        Ok(out)
    })
    .await
}

/// Handles `_explain`, also of a partition.
pub(crate) async fn explain(
    context: &mut RequestContext<'_>,
    database: Arc<Database>,
    partition: Option<String>,
) -> HandlerResult {
    let Prepared { request, permit, indexes, scope, is_large, .. } =
        prepare(context, &database, partition).await?;
    let explained = move || -> Result<_, ApiError> {
        let _permit = permit;
        let (plan, candidates) = mango::explain(&request, &indexes, scope)?;
        let (plan, candidates) = (plan.as_ref(), &candidates[..]);
        let explanation =
            Explanation { database: database.name(), scope, request: &request, plan, candidates };
        Ok(explanation.to_json().into_bytes())
    };
    let mut text = if is_large { blocking::run(explained).await?? } else { explained()? };
    text.push(b'\n');
    Ok(response::json(StatusCode::OK, text))
}

/// A parsed request, and what it is planned with.
struct Prepared {
    request: FindRequest,
    permit: MemoryPermit,
    snapshot: Snapshot,
    indexes: Vec<Arc<IndexDefinition>>,
    scope: PlanScope,
    /// Whether it is planned on a blocking thread.
    is_large: bool,
}

async fn prepare(
    context: &mut RequestContext<'_>,
    database: &Database,
    partition: Option<String>,
) -> Result<Prepared, ApiError> {
    if *context.method() != Method::POST {
        return Err(ApiError::method_not_allowed("POST"));
    }
    let body = context.read_json_body().await?;
    let is_large = body.text.len() > REQUEST_INLINE_BYTES;
    let parse = move |text: &[u8], budget: &mut BodyBudget| {
        budget.charge(text.len(), PARSED_PER_BYTE)?;
        Ok(FindRequest::parse(text)?)
    };
    let memory = &context.server.body_memory;
    let inline_bytes = if may_have_regex(&body.text) { 0 } else { REQUEST_INLINE_BYTES };
    let (mut request, permit) = body::parse_buffered_from(inline_bytes, body, memory, parse).await?;
    request.partition = one_partition(partition, request.partition)?;
    if let Some(partition) = &request.partition {
        if !database.is_partitioned() {
            let reason = "`partition` parameter is not supported on this db";
            return Err(ApiError::query_parse_error(reason));
        }
        settee_doc::check_partition(partition)?;
    }
    let snapshot = database.snapshot();
    let indexes = definitions::load(database, &snapshot).await?;
    let indexes = indexes.into_iter().map(Arc::new).collect();
    let in_partition = request.partition.is_some();
    let scope = PlanScope { is_partitioned: database.is_partitioned(), in_partition };
    Ok(Prepared { request, permit, snapshot, indexes, scope, is_large })
}

/// The partition of the path or the body, which must not contradict each other.
fn one_partition(of_path: Option<String>, of_body: Option<String>) -> Result<Option<String>, ApiError> {
    match (of_path, of_body) {
        (Some(of_path), Some(of_body)) if of_path != of_body => {
            Err(ApiError::bad_request("Conflicting value for `partition` in the body"))
        }
        (of_path, of_body) => Ok(of_path.or(of_body)),
    }
}
