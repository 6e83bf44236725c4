//! Purging, and the notes of it: `_purge`, `_purged_infos`, `_purged_infos_limit`.

use std::sync::Arc;

use hyper::{Method, StatusCode};
use settee_doc::{Database, Revision, Stage};

use crate::body::{self, ALLOCATION_BYTES, Charge};
use crate::error::Failure;
use crate::json;
use crate::named::Named;
use crate::reply::{self, Answer};
use crate::server::{Call, WriteConcern};
use crate::stream;

/// Revisions in one request: other writers wait for all of them.
const REVISIONS_MAX: usize = 10_000;

/// Bytes of a revision in an answer.
const REVISION_BYTES: usize = 48;

/// `_purge`: `{id: [rev, …], …}`. A revision that isn't a leaf isn't purged, and isn't in the answer.
pub(crate) async fn handle(call: &mut Call<'_>, database: Arc<Database>) -> Answer {
    if *call.method() != Method::POST {
        return Err(Failure::method_not_allowed("POST"));
    }
    let concern = WriteConcern { stage: Stage::Persisted, ..call.write_concern()? };
    let held = call.read_json_body().await?;
    let (requests, _for_the_revisions) = body::parse_held(held, &call.server.room, parse).await?;
    call.check_answer(requests.iter().map(|(id, ours)| id.len() + ours.len() * REVISION_BYTES).sum())?;
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
    Ok(reply::json(concern.status(StatusCode::CREATED), text))
}

/// Reads ids with their revisions. Those that no document here has count too.
fn parse(text: &[u8], charge: &mut Charge) -> Result<Vec<(String, Vec<Revision>)>, Failure> {
    let too_many = || Failure::bad_request("Exceeded maximum number of revisions.");
    let (mut requests, mut count) = (Vec::new(), 0);
    json::each_member(text, |id, list| {
        let mut ours = Vec::new();
        let no_list = || Failure::bad_request("Invalid list of revisions");
        json::each_element(list, no_list, |item| {
            let named = Named::parse_json(item)?;
            count += 1;
            match named.ours() {
                _ if count > REVISIONS_MAX => Err(too_many()),
                Some(revision) => charge.push(revision, 0, &mut ours),
                None => Ok(()),
            }
        })?;
        if requests.len() == REVISIONS_MAX {
            return Err(too_many());
        }
        charge.push((id.into_owned(), ours), ALLOCATION_BYTES, &mut requests)
    })?;
    Ok(requests)
}

/// Purges in a task of its own: a purge that has begun is finished, and counted, whether or not somebody
/// waits for it.
async fn finish(
    database: Arc<Database>,
    requests: Vec<(String, Vec<Revision>)>,
) -> Result<(Vec<(String, Vec<Revision>)>, Vec<Vec<Revision>>), Failure> {
    let purging = tokio::spawn(async move {
        let gone = database.purge(&requests).await?;
        Ok((requests, gone))
    });
    let failed = |error: tokio::task::JoinError| {
        Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_server_error", error.to_string())
    };
    purging.await.map_err(failed)?
}

/// `_purged_infos`: what was asked for by the purges of which there are notes, the oldest first.
pub(crate) async fn infos(call: &Call<'_>, database: Arc<Database>) -> Answer {
    if !call.is_get() {
        return Err(Failure::method_not_allowed("GET"));
    }
    let mut purges = database.view().purges(0);
    stream::respond(call.output(), async move |mut out| {
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

/// `_purged_infos_limit`: how many notes of purges are kept.
pub(crate) async fn infos_limit(call: &mut Call<'_>, database: Arc<Database>) -> Answer {
    match *call.method() {
        Method::GET | Method::HEAD => Ok(number(database.purged_infos_limit())),
        Method::PUT => {
            let limit = read_limit(call, "`purged_infos_limit` must be positive integer").await?;
            database.set_purged_infos_limit(limit).await?;
            Ok(reply::ok(StatusCode::OK))
        }
        _ => Err(Failure::method_not_allowed("GET,PUT")),
    }
}

/// `_revs_limit`: how many revisions of each leaf's path are kept.
pub(crate) async fn revs_limit(call: &mut Call<'_>, database: Arc<Database>) -> Answer {
    match *call.method() {
        Method::GET | Method::HEAD => Ok(number(database.revs_limit())),
        Method::PUT => {
            let limit = read_limit(call, "`revs_limit` must be positive integer").await?;
            database.set_revs_limit(limit).await?;
            Ok(reply::ok(StatusCode::OK))
        }
        _ => Err(Failure::method_not_allowed("PUT,GET")),
    }
}

fn number(value: u64) -> hyper::Response<reply::Body> {
    reply::json(StatusCode::OK, format!("{value}\n"))
}

/// A positive number, which is the request's whole body.
async fn read_limit(call: &mut Call<'_>, reason: &'static str) -> Result<u64, Failure> {
    let body = call.read_value_body().await?;
    let limit = json::raw(&body.text)?.parse::<u64>().ok().filter(|limit| *limit > 0);
    limit.ok_or_else(|| Failure::bad_request(reason))
}
