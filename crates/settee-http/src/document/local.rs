//! `_local/…` documents: replication checkpoints, which are never replicated themselves.

use std::sync::Arc;

use hyper::header;
use hyper::{Method, Response, StatusCode};
use settee_doc::{Database, Edit};

use super::revision_arg::{self, one_of};
use super::{copy, open_revs};
use crate::context::{RequestContext, WriteConcern, location, tagged_by_content};
use crate::error::ApiError;
use crate::json;
use crate::response::{self, Body, HandlerResult};

/// Handles a local document. `id` begins with `_local/`.
pub(crate) async fn handle(
    context: &mut RequestContext<'_>,
    database: Arc<Database>,
    id: &str,
) -> HandlerResult {
    match *context.method() {
        Method::GET | Method::HEAD => get(context, &database, id).await,
        Method::PUT => {
            let concern = context.write_concern()?;
            let body = context.read_body().await?;
            let (mut edit, _permit) = context.parse_edit(body).await?;
            id.clone_into(&mut edit.id);
            put(context, &database, edit, concern).await
        }
        Method::DELETE => {
            let concern = context.write_concern()?;
            put(context, &database, Edit::delete(id, None), concern).await
        }
        _ if context.method().as_str() == "COPY" => copy::handle(context, &database, id).await,
        _ => Err(ApiError::method_not_allowed("DELETE,GET,HEAD,POST,PUT,COPY")),
    }
}

async fn get(context: &RequestContext<'_>, database: &Database, id: &str) -> HandlerResult {
    let query = context.query();
    // As in CouchDB, a local document has no revisions to ask for, not even its current one.
    if let Some(list) = query.get("open_revs") {
        let wanted = open_revs::parse(&list)?;
        if wanted.as_ref().is_none_or(|wanted| !wanted.is_empty()) {
            return open_revs::get(context, database.snapshot(), id, wanted).await;
        }
    }
    if let Some(revision) = query.get("rev") {
        revision_arg::parse(&revision)?;
        if !query.is_true("latest") {
            return Err(ApiError::missing());
        }
    }
    let (revision, body) = database.snapshot().local(id.strip_prefix("_local/").unwrap_or(id)).await?;
    let mut text = Vec::with_capacity(body.len() + id.len() + 48);
    write_json(id, &revision, &body, &mut text);
    if query.is_true("revs") {
        let number = revision.strip_prefix("0-").unwrap_or(&revision);
        text.pop();
        text.extend_from_slice(
            format!(",\"_revisions\":{{\"start\":0,\"ids\":[\"{number}\"]}}}}").as_bytes(),
        );
    }
    text.push(b'\n');
    // From the content: revisions of a local document start again after its deletion.
    Ok(tagged_by_content(context, text))
}

/// Appends a local document's JSON text.
pub(crate) fn write_json(id: &str, revision: &str, body: &[u8], out: &mut Vec<u8>) {
    json::object(out, |out| {
        out.extend_from_slice(b"\"_id\":");
        settee_doc::write_json_string(id, out);
        out.extend_from_slice(b",\"_rev\":");
        settee_doc::write_json_string(revision, out);
        if !body.is_empty() {
            out.push(b',');
            out.extend_from_slice(body);
        }
    });
}

/// Writes or deletes a local document and returns the response.
pub(crate) async fn put(
    context: &RequestContext<'_>,
    database: &Database,
    mut edit: Edit,
    concern: WriteConcern,
) -> Result<Response<Body>, ApiError> {
    edit.local_revision = one_of(context, edit.local_revision, |text| {
        settee_doc::parse_local_revision(text).ok_or_else(|| ApiError::bad_request("Invalid rev format"))
    })?;
    let (id, deleted) = (edit.id.clone(), edit.deleted);
    let revision = database.put_local(edit, concern.stage).await?;
    let status = concern.status(if deleted { StatusCode::OK } else { StatusCode::CREATED });
    let mut response = response::saved(status, &id, &revision);
    if *context.method() != Method::POST {
        response::set_header(&mut response, header::ETAG, format!("\"{revision}\""));
    }
    if !deleted {
        response::set_header(&mut response, header::LOCATION, location(context, database.name(), Some(&id)));
    }
    Ok(response)
}
