//! `_revs_diff` and `_missing_revs`: the revisions that this database doesn't have.

use std::sync::Arc;

use hyper::{Method, StatusCode};
use settee_doc::{Database, Revision};

use super::revision_arg::{RevisionArg, RevisionList};
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
            item.write_missing(text);
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
            item.write_missing(text);
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
    /// Missing revisions that no document here can have.
    foreign: Vec<String>,
    ancestors: Vec<Revision>,
}

impl MissingRevisions {
    /// Appends the list of all missing revisions.
    fn write_missing(&self, out: &mut Vec<u8>) {
        json::revisions(&self.missing, out);
        for text in &self.foreign {
            out.pop();
            out.extend_from_slice(if out.ends_with(b"[") { b"" } else { b"," });
            settee_doc::write_json_string(text, out);
            out.push(b']');
        }
    }
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
    for (id, RevisionList { ours, foreign }) in requested {
        // Lookups in the memory's index never yield, so this task must.
        tokio::task::consume_budget().await;
        let newest_foreign = foreign.iter().map(|text| RevisionArg::generation_of(text)).max().unwrap_or(0);
        let (missing, ancestors) = snapshot.missing(&id, &ours, newest_foreign).await?;
        if !missing.is_empty() || !foreign.is_empty() {
            missing_revisions.push(MissingRevisions { id, missing, foreign, ancestors });
        }
    }
    Ok(missing_revisions)
}

/// Parses ids with their revisions.
fn parse(text: &[u8], budget: &mut BodyBudget) -> Result<Vec<(String, RevisionList)>, ApiError> {
    let mut requested = Vec::new();
    json::each_member(text, |id, list| {
        let list = RevisionList::parse(list, budget)?;
        budget.push((id.into_owned(), list), ID_BYTES, &mut requested)
    })?;
    Ok(requested)
}
