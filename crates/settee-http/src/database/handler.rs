//! Requests for a whole database: create, describe, delete, add a document.

use std::sync::Arc;

use hyper::header;
use hyper::{Method, StatusCode};
use settee_doc::Database;

use super::info::info;
use crate::context::{RequestContext, location};
use crate::document::{self, local};
use crate::error::ApiError;
use crate::response::{self, HandlerResult};

/// CouchDB's only built-in storage engine.
const ENGINE: &str = "couch";

/// Maximum number of shards that a database may report, because `_shards` lists them all.
const SHARDS_MAX: u64 = 1024;

/// Whether a text is a placement, the number of copies per zone: `zone:n,…`.
fn is_placement(text: &str) -> bool {
    let is_rule = |rule: &str| {
        let count = rule.split_once(':').filter(|(zone, _)| !zone.is_empty()).map(|(_, count)| count);
        count.and_then(|count| count.parse::<u32>().ok()).is_some_and(|count| count > 0)
    };
    !text.is_empty() && text.split(',').filter(|rule| !rule.is_empty()).all(is_rule)
}

pub(crate) async fn create(context: &RequestContext<'_>, name: &str) -> HandlerResult {
    let query = context.query();
    for option in ["n", "q"] {
        if let Some(value) = query.get(option)
            && !value.parse::<u64>().is_ok_and(|value| value > 0)
        {
            let reason = format!("The `{option}` value should be a positive integer.");
            return Err(ApiError::bad_request(reason));
        }
    }
    let shard_count = query.get("q").and_then(|q| q.parse().ok()).unwrap_or(1);
    if shard_count > SHARDS_MAX {
        return Err(ApiError::bad_request(format!("The `q` value should be at most {SHARDS_MAX}.")));
    }
    if query.get("engine").is_some_and(|engine| engine != ENGINE) {
        return Err(ApiError::bad_request("invalid_engine_extension"));
    }
    if query.get("placement").is_some_and(|value| !is_placement(&value)) {
        return Err(ApiError::bad_request("The `placement` value should be in a format `zone:n`."));
    }
    match query.get("partitioned").as_deref() {
        None | Some("false") => context.server.databases.create_closed(name).await?,
        Some("true") => context.server.databases.create_partitioned(name).await?,
        Some(_) => return Err(ApiError::bad_request("Invalid `partitioned` parameter")),
    }
    if shard_count > 1 {
        context.server.databases.get(name).await?.set_shard_count(shard_count).await?;
    }
    let mut response = response::ok(StatusCode::CREATED);
    response::set_header(&mut response, header::LOCATION, location(context, name, None));
    Ok(response)
}

pub(crate) async fn delete(context: &RequestContext<'_>, name: &str) -> HandlerResult {
    // The client most likely meant a document, and its id came out empty.
    if context.query().get("rev").is_some() {
        return Err(ApiError::bad_request(
            "You tried to DELETE a database with a ?=rev parameter. \
             Did you mean to DELETE a document instead?",
        ));
    }
    let incarnation = match context.server.databases.get(name).await {
        Ok(database) => Some(database.incarnation()),
        // It can't be opened; its indexes are removed when the server starts.
        Err(_) => None,
    };
    context.server.databases.delete(name).await?;
    if let Some(incarnation) = incarnation
        && let Err(error) = context.server.views.remove(incarnation).await
    {
        tracing::warn!(database = name, %error, "the indexes of a deleted database remain until the next start");
    }
    Ok(response::ok(StatusCode::OK))
}

pub(crate) async fn handle(context: &mut RequestContext<'_>, database: Arc<Database>) -> HandlerResult {
    match *context.method() {
        Method::GET | Method::HEAD => Ok(response::json(StatusCode::OK, info(&database))),
        Method::POST => create_document(context, &database).await,
        _ => Err(ApiError::method_not_allowed("DELETE,GET,HEAD,POST")),
    }
}

/// Handles `POST /{db}`: stores a document, with a generated id if it has none.
async fn create_document(context: &mut RequestContext<'_>, database: &Arc<Database>) -> HandlerResult {
    let body = context.read_json_body().await?;
    let concern = context.write_concern()?;
    let (mut edit, _permit) = context.parse_edit(body).await?;
    if edit.id.is_empty() {
        edit.id = context.server.uuids.next();
    }
    if edit.id.starts_with("_local/") {
        return local::put(context, database, edit, concern).await;
    }
    if context.is_optimistic()? {
        database.write_large_bodies(std::slice::from_mut(&mut edit), false).await?;
    }
    if database.is_written_ahead(&edit) {
        document::check_leaf(database, &edit).await?;
    }
    let id = edit.id.clone();
    let revision = database.update(edit, concern.stage).await?;
    let status = concern.status(StatusCode::CREATED);
    Ok(document::saved(context, database.name(), status, &id, &revision))
}
