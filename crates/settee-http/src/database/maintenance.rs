//! Requests for work on a whole database: compact, clean up, make durable.

use std::sync::Arc;

use hyper::{Method, StatusCode};
use settee_doc::Database;

use super::info::start_time;
use crate::body;
use crate::context::RequestContext;
use crate::error::ApiError;
use crate::response::{self, HandlerResult};

/// Starts a compaction without waiting for its end.
pub(crate) async fn compact(context: &mut RequestContext<'_>, database: Arc<Database>) -> HandlerResult {
    if *context.method() != Method::POST {
        return Err(ApiError::method_not_allowed("POST"));
    }
    body::check_json_type(&context.head.headers)?;
    context.server.databases.start_compaction(database);
    Ok(response::ok(StatusCode::ACCEPTED))
}

/// Starts the compaction of a design document's indexes, without waiting for its end.
pub(crate) async fn compact_views(
    context: &mut RequestContext<'_>,
    database: Arc<Database>,
    name: &str,
) -> HandlerResult {
    if *context.method() != Method::POST {
        return Err(ApiError::method_not_allowed("POST"));
    }
    body::check_json_type(&context.head.headers)?;
    let id = format!("_design/{name}");
    let views = context.server.views.design(&database, &id).await?;
    tokio::spawn(async move {
        if let Err(error) = views.compact().await {
            tracing::warn!(database = database.name(), design = id, %error, "indexes aren't compacted");
        }
    });
    Ok(response::ok(StatusCode::ACCEPTED))
}

/// Removes the indexes that no design document has.
pub(crate) async fn clean_up_views(context: &RequestContext<'_>, database: Arc<Database>) -> HandlerResult {
    if *context.method() != Method::POST {
        return Err(ApiError::method_not_allowed("POST"));
    }
    body::check_json_type(&context.head.headers)?;
    context.server.views.clean_up(&database).await?;
    Ok(response::ok(StatusCode::ACCEPTED))
}

/// Waits until all writes accepted before are persisted.
pub(crate) async fn ensure_full_commit(
    context: &mut RequestContext<'_>,
    database: Arc<Database>,
) -> HandlerResult {
    if *context.method() != Method::POST {
        return Err(ApiError::method_not_allowed("POST"));
    }
    body::check_json_type(&context.head.headers)?;
    database.barrier().await?;
    let mut text = b"{\"ok\":true,\"instance_start_time\":".to_vec();
    start_time(&database, &mut text);
    text.extend_from_slice(b"}\n");
    Ok(response::json(StatusCode::CREATED, text))
}
