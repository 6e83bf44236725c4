//! Purges and their records: `_purge`, `_purged_infos`, `_purged_infos_limit`; and `_revs_limit`.

use std::sync::Arc;

use hyper::{Method, StatusCode};
use settee_doc::{Database, Revision, Stage};

use crate::body::{self, ALLOCATION_BYTES, BodyBudget};
use crate::context::{RequestContext, WriteConcern};
use crate::document::revision_arg;
use crate::error::ApiError;
use crate::json;
use crate::response::writer;
use crate::response::{self, HandlerResult};

/// Maximum number of revisions in one request, because other writers wait for all of them.
const REVISIONS_MAX: usize = 10_000;

/// Bytes of a revision in a response, except a text.
const REVISION_BYTES: usize = 48;

/// Handles `_purge`: `{id: [rev, …], …}`. A revision that isn't a leaf isn't purged and not reported.
pub(crate) async fn handle(context: &mut RequestContext<'_>, database: Arc<Database>) -> HandlerResult {
    if *context.method() != Method::POST {
        return Err(ApiError::method_not_allowed("POST"));
    }
    let concern = WriteConcern { stage: Stage::Persisted, ..context.write_concern()? };
    let body = context.read_json_body().await?;
    let (requests, _permit) = body::parse_buffered(body, &context.server.body_memory, parse).await?;
    let bytes = requests.iter().map(|(id, revisions)| {
        id.len() + revisions.iter().map(|one| REVISION_BYTES + one.id.heap_bytes()).sum::<usize>()
    });
    context.check_response(bytes.sum())?;
    let (requests, gone) = finish(database, requests).await?;
    let mut text = b"{\"purge_seq\":null,\"purged\":".to_vec();
    json::object(&mut text, |text| {
        for (index, ((id, _), gone)) in requests.iter().zip(&gone).enumerate() {
            if index > 0 {
                text.push(b',');
            }
            settee_doc::write_json_string(id, text);
            text.push(b':');
            json::revisions(gone, text);
        }
    });
    text.extend_from_slice(b"}\n");
    Ok(response::json(concern.status(StatusCode::CREATED), text))
}

/// Parses ids with their revisions.
fn parse(text: &[u8], budget: &mut BodyBudget) -> Result<Vec<(String, Vec<Revision>)>, ApiError> {
    let too_many = || ApiError::bad_request("Exceeded maximum number of revisions.");
    let (mut requests, mut count) = (Vec::new(), 0);
    json::each_member(text, |id, list| {
        let mut revisions = Vec::new();
        let no_list = || ApiError::bad_request("Invalid list of revisions");
        json::each_element(list, no_list, |item| {
            let revision = revision_arg::parse_json(item)?;
            count += 1;
            if count > REVISIONS_MAX {
                return Err(too_many());
            }
            let more_bytes = revision_arg::more_bytes(&revision);
            budget.push(revision, more_bytes, &mut revisions)
        })?;
        if requests.len() == REVISIONS_MAX {
            return Err(too_many());
        }
        budget.push((id.into_owned(), revisions), ALLOCATION_BYTES, &mut requests)
    })?;
    Ok(requests)
}

/// Purges in a task of its own, so that a purge that has begun is completed and counted even if the client
/// disconnects.
async fn finish(
    database: Arc<Database>,
    requests: Vec<(String, Vec<Revision>)>,
) -> Result<(Vec<(String, Vec<Revision>)>, Vec<Vec<Revision>>), ApiError> {
    let purging = tokio::spawn(async move {
        let gone = database.purge(&requests).await?;
        Ok((requests, gone))
    });
    let failed = |error: tokio::task::JoinError| {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_server_error", error.to_string())
    };
    purging.await.map_err(failed)?
}

/// Handles `_purged_infos`: the recorded purge requests, oldest first.
pub(crate) async fn infos(context: &RequestContext<'_>, database: Arc<Database>) -> HandlerResult {
    if !context.is_get() {
        return Err(ApiError::method_not_allowed("GET"));
    }
    let mut purges = database.snapshot().purges(0);
    writer::respond(context.output(), async move |mut out| {
        out.buffer.extend_from_slice(b"{\"purged_infos\":[");
        let mut is_first = true;
        while let Some(purge) = purges.next().await? {
            if !std::mem::take(&mut is_first) {
                out.buffer.push(b',');
            }
            out.buffer.extend_from_slice(&purge.text);
            out.flush_full().await?;
        }
        out.buffer.extend_from_slice(b"]}\n");
        Ok(out)
    })
    .await
}

/// Handles `_purged_infos_limit`: the number of purge records kept.
pub(crate) async fn infos_limit(context: &mut RequestContext<'_>, database: Arc<Database>) -> HandlerResult {
    match *context.method() {
        Method::GET | Method::HEAD => Ok(number(database.purged_infos_limit())),
        Method::PUT => {
            let limit = read_limit(context, "`purged_infos_limit` must be positive integer").await?;
            database.set_purged_infos_limit(limit).await?;
            Ok(response::ok(StatusCode::OK))
        }
        _ => Err(ApiError::method_not_allowed("GET,PUT")),
    }
}

/// Handles `_revs_limit`: the number of revisions kept of each leaf's path.
pub(crate) async fn revs_limit(context: &mut RequestContext<'_>, database: Arc<Database>) -> HandlerResult {
    match *context.method() {
        Method::GET | Method::HEAD => Ok(number(database.revs_limit())),
        Method::PUT => {
            let limit = read_limit(context, "`revs_limit` must be positive integer").await?;
            database.set_revs_limit(limit).await?;
            Ok(response::ok(StatusCode::OK))
        }
        _ => Err(ApiError::method_not_allowed("PUT,GET")),
    }
}

fn number(value: u64) -> hyper::Response<response::Body> {
    response::json(StatusCode::OK, format!("{value}\n"))
}

/// Reads a request body that is a positive number.
async fn read_limit(context: &mut RequestContext<'_>, reason: &'static str) -> Result<u64, ApiError> {
    let body = context.read_value_body().await?;
    let limit = json::raw(&body.text)?.parse::<u64>().ok().filter(|limit| *limit > 0);
    limit.ok_or_else(|| ApiError::bad_request(reason))
}
