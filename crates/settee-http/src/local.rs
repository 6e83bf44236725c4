//! `_local/…` documents: replication's checkpoints, never replicated themselves.

use std::sync::Arc;

use hyper::header;
use hyper::{Method, Response, StatusCode};
use settee_doc::{Database, Edit};

use crate::database::location;
use crate::error::Failure;
use crate::named::{Named, one_of};
use crate::reply::{self, Answer, Body};
use crate::server::{Call, WriteConcern};
use crate::{body, copy, document, json, open_revs};

/// `id` begins with `_local/`.
pub(crate) async fn handle(call: &mut Call<'_>, database: Arc<Database>, id: &str) -> Answer {
    match *call.method() {
        Method::GET | Method::HEAD => get(call, &database, id).await,
        Method::PUT => {
            let concern = call.write_concern()?;
            let body = call.read_body().await?;
            let (mut edit, _for_the_edit) = body::parse_edit(body, call.server).await?;
            id.clone_into(&mut edit.id);
            put(call, &database, edit, concern).await
        }
        Method::DELETE => {
            let concern = call.write_concern()?;
            put(call, &database, Edit::delete(id, None), concern).await
        }
        _ if call.method().as_str() == "COPY" => copy::handle(call, &database, id).await,
        _ => Err(Failure::method_not_allowed("DELETE,GET,HEAD,POST,PUT,COPY")),
    }
}

async fn get(call: &Call<'_>, database: &Database, id: &str) -> Answer {
    let query = call.query();
    // As in CouchDB it has no revisions that could be asked for, not even the one that it shows.
    if let Some(list) = query.get("open_revs") {
        let wanted = open_revs::parse(&list)?;
        if wanted.as_ref().is_none_or(|wanted| !wanted.is_empty()) {
            return open_revs::get(call, database.view(), id, wanted).await;
        }
    }
    if let Some(revision) = query.get("rev") {
        Named::parse(&revision)?;
        if !query.is_true("latest") {
            return Err(Failure::missing());
        }
    }
    let (revision, body) = database.view().local(id.strip_prefix("_local/").unwrap_or(id)).await?;
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
    // Of the content: a local document's revision begins anew once it was deleted.
    Ok(document::tagged_by_content(call, text))
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

/// Writes or deletes a local document, and answers.
pub(crate) async fn put(
    call: &Call<'_>,
    database: &Database,
    mut edit: Edit,
    concern: WriteConcern,
) -> Result<Response<Body>, Failure> {
    edit.local_revision = one_of(call, edit.local_revision, |text| {
        settee_doc::parse_local_revision(text).ok_or_else(|| Failure::bad_request("Invalid rev format"))
    })?;
    let (id, deleted) = (edit.id.clone(), edit.deleted);
    let revision = database.put_local(edit, concern.stage).await?;
    let status = concern.status(if deleted { StatusCode::OK } else { StatusCode::CREATED });
    let mut response = reply::saved(status, &id, &revision);
    if *call.method() != Method::POST {
        reply::set_header(&mut response, header::ETAG, format!("\"{revision}\""));
    }
    if !deleted {
        reply::set_header(&mut response, header::LOCATION, location(call, database.name(), Some(&id)));
    }
    Ok(response)
}
