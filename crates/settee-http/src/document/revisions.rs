//! `_revs_diff` and `_missing_revs`: the revisions that this database doesn't have.

use std::sync::Arc;

use hyper::{Method, StatusCode};
use settee_doc::{Database, Revision};

use super::revision_arg;
use crate::body::{self, ALLOCATION_BYTES, BodyBudget};
use crate::context::RequestContext;
use crate::error::ApiError;
use crate::json;
use crate::response::{self, HandlerResult};

/// Answers with `{id: {"missing": […], "possible_ancestors": […]}}` for the documents with missing revisions.
pub(crate) async fn diff(context: &mut RequestContext<'_>, database: Arc<Database>) -> HandlerResult {
    let missing_revisions = missing_revisions(context, &database).await?;
    let mut text = Vec::with_capacity(missing_revisions.len() * ROW_BYTES + 3);
    json::object(&mut text, |text| {
        for (index, item) in missing_revisions.iter().enumerate() {
            if index > 0 {
                text.push(b',');
            }
            settee_doc::write_json_string(&item.id, text);
            text.extend_from_slice(b":{\"missing\":");
            json::revisions(&item.missing, text);
            if !item.ancestors.is_empty() {
                text.extend_from_slice(b",\"possible_ancestors\":");
                json::revisions(&item.ancestors, text);
            }
            text.push(b'}');
        }
    });
    text.push(b'\n');
    Ok(response::json(StatusCode::OK, text))
}

/// Answers with `{"missing_revs": {id: […]}}`.
pub(crate) async fn missing(context: &mut RequestContext<'_>, database: Arc<Database>) -> HandlerResult {
    let missing_revisions = missing_revisions(context, &database).await?;
    let mut text = b"{\"missing_revs\":".to_vec();
    json::object(&mut text, |text| {
        for (index, item) in missing_revisions.iter().enumerate() {
            if index > 0 {
                text.push(b',');
            }
            settee_doc::write_json_string(&item.id, text);
            text.push(b':');
            json::revisions(&item.missing, text);
        }
    });
    text.extend_from_slice(b"}\n");
    Ok(response::json(StatusCode::OK, text))
}

/// Bytes that an id takes besides its text and its list of revisions: its result and its row.
const ID_BYTES: usize = size_of::<MissingRevisions>() + ROW_BYTES + 4 * ALLOCATION_BYTES;

/// Estimated bytes of a row of the response.
const ROW_BYTES: usize = 96;

/// A document with missing revisions.
struct MissingRevisions {
    id: String,
    missing: Vec<Revision>,
    ancestors: Vec<Revision>,
}

async fn missing_revisions(
    context: &mut RequestContext<'_>,
    database: &Database,
) -> Result<Vec<MissingRevisions>, ApiError> {
    if *context.method() != Method::POST {
        return Err(ApiError::method_not_allowed("POST"));
    }
    let body = context.read_json_body().await?;
    let (requested, _permit) = body::parse_buffered(body, &context.server.body_memory, parse).await?;
    let snapshot = database.snapshot();
    let mut missing_revisions = Vec::new();
    for (id, revisions) in requested {
        // Lookups in the memory's index never yield, so this task must.
        tokio::task::consume_budget().await;
        let (missing, ancestors) = snapshot.missing(&id, &revisions).await?;
        if !missing.is_empty() {
            missing_revisions.push(MissingRevisions { id, missing, ancestors });
        }
    }
    Ok(missing_revisions)
}

/// Parses ids with their revisions.
fn parse(text: &[u8], budget: &mut BodyBudget) -> Result<Vec<(String, Vec<Revision>)>, ApiError> {
    let mut requested = Vec::new();
    json::each_member(text, |id, list| {
        let list = revision_arg::parse_list(list, budget)?;
        budget.push((id.into_owned(), list), ID_BYTES, &mut requested)
    })?;
    Ok(requested)
}
