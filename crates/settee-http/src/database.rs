//! Requests for a whole database: create, describe, delete, add a document, make durable.

use std::sync::Arc;

use hyper::header::{self, HeaderName};
use hyper::{Method, StatusCode};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use settee_doc::Database;

use crate::error::ApiError;
use crate::response::{self, HandlerResult};
use crate::server::RequestContext;
use crate::{body, document, json, local};

/// Characters that aren't percent-encoded in a `Location`.
const KEPT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The URL of a database, or of a document in it, as seen by the client.
pub(crate) fn location(context: &RequestContext<'_>, name: &str, id: Option<&str>) -> String {
    let mut address = format!("{}/{}", origin(context), utf8_percent_encode(name, KEPT));
    if let Some(id) = id {
        address.push('/');
        address.extend(utf8_percent_encode(id, KEPT));
    }
    address
}

/// The server's URL as seen by the client, without a path.
pub(crate) fn origin(context: &RequestContext<'_>) -> String {
    const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
    const FORWARDED_SSL: HeaderName = HeaderName::from_static("x-forwarded-ssl");
    const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
    let host = context.header(FORWARDED_HOST).or_else(|| context.header(header::HOST)).unwrap_or("localhost");
    let is_tls =
        context.header(FORWARDED_SSL) == Some("on") || context.header(FORWARDED_PROTO) == Some("https");
    let scheme = if is_tls { "https" } else { "http" };
    format!("{scheme}://{host}")
}

/// The URL of a document's attachment.
pub(crate) fn location_of_attachment(
    context: &RequestContext<'_>,
    database: &str,
    id: &str,
    name: &str,
) -> String {
    format!("{}/{}", location(context, database, Some(id)), utf8_percent_encode(name, KEPT))
}

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
    context.server.databases.delete(name).await?;
    Ok(response::ok(StatusCode::OK))
}

pub(crate) async fn handle(context: &mut RequestContext<'_>, database: Arc<Database>) -> HandlerResult {
    match *context.method() {
        Method::GET | Method::HEAD => Ok(response::json(StatusCode::OK, info(&database))),
        Method::POST => create_document(context, &database).await,
        _ => Err(ApiError::method_not_allowed("DELETE,GET,HEAD,POST")),
    }
}

pub(crate) fn info(database: &Database) -> Vec<u8> {
    let info = database.info();
    let mut text = Vec::with_capacity(512);
    let mut member = |name: &str, value: &dyn Fn(&mut Vec<u8>)| {
        text.push(if text.is_empty() { b'{' } else { b',' });
        text.push(b'"');
        text.extend_from_slice(name.as_bytes());
        text.extend_from_slice(b"\":");
        value(&mut text);
    };
    member("instance_start_time", &|text| start_time(database, text));
    member("db_name", &|text| settee_doc::write_json_string(database.name(), text));
    member("purge_seq", &|text| quoted_seq(database, settee_doc::Seq(info.purge_seq), text));
    member("update_seq", &|text| quoted_seq(database, info.update_seq, text));
    member("sizes", &|text| {
        let sizes = format!(
            "{{\"file\":{},\"external\":{},\"active\":{}}}",
            info.file_bytes, info.external_bytes, info.active_bytes
        );
        text.extend_from_slice(sizes.as_bytes());
    });
    let props = if database.is_partitioned() { "{\"partitioned\":true}" } else { "{}" };
    member("props", &|text| text.extend_from_slice(props.as_bytes()));
    member("doc_del_count", &|text| json::number(info.doc_del_count, text));
    member("doc_count", &|text| json::number(info.doc_count, text));
    // The format number of CouchDB 3.5. Clients display it; it says nothing about the files here.
    member("disk_format_version", &|text| text.push(b'8'));
    member("compact_running", &|text| {
        text.extend_from_slice(database.is_compacting().to_string().as_bytes())
    });
    member("cluster", &|text| {
        let cluster = format!("{{\"q\":{},\"n\":1,\"w\":1,\"r\":1}}", database.shard_count());
        text.extend_from_slice(cluster.as_bytes());
    });
    text.extend_from_slice(b"}\n");
    text
}

/// `instance_start_time` as a string, as in CouchDB.
fn start_time(database: &Database, text: &mut Vec<u8>) {
    text.push(b'"');
    json::number(database.created_us(), text);
    text.push(b'"');
}

/// Appends an update number in quotes.
pub(crate) fn quoted_seq(database: &Database, seq: settee_doc::Seq, text: &mut Vec<u8>) {
    text.push(b'"');
    database.write_seq(seq, text);
    text.push(b'"');
}

/// Handles `POST /{db}`: stores a document, with a generated id if it has none.
async fn create_document(context: &mut RequestContext<'_>, database: &Arc<Database>) -> HandlerResult {
    let body = context.read_json_body().await?;
    let concern = context.write_concern()?;
    let (mut edit, _permit) = body::parse_edit(body, context.server).await?;
    if edit.id.is_empty() {
        edit.id = context.server.uuids.next();
    }
    if edit.id.starts_with("_local/") {
        return local::put(context, database, edit, concern).await;
    }
    if document::is_optimistic(context)? {
        database.write_large_bodies(std::slice::from_mut(&mut edit), false).await?;
    }
    let id = edit.id.clone();
    let revision = database.update(edit, concern.stage).await?;
    let status = concern.status(StatusCode::CREATED);
    Ok(document::saved(context, database.name(), status, &id, revision))
}

/// Starts a compaction without waiting for its end.
pub(crate) async fn compact(context: &mut RequestContext<'_>, database: Arc<Database>) -> HandlerResult {
    if *context.method() != Method::POST {
        return Err(ApiError::method_not_allowed("POST"));
    }
    body::check_json_type(&context.head.headers)?;
    context.server.databases.start_compaction(database);
    Ok(response::ok(StatusCode::ACCEPTED))
}

/// Handles the compaction of a design document's views. There are no view indexes yet.
pub(crate) async fn compact_views(
    context: &mut RequestContext<'_>,
    database: Arc<Database>,
    name: &str,
) -> HandlerResult {
    if *context.method() != Method::POST {
        return Err(ApiError::method_not_allowed("POST"));
    }
    body::check_json_type(&context.head.headers)?;
    database.snapshot().document(&format!("_design/{name}")).await?;
    Ok(response::ok(StatusCode::ACCEPTED))
}

/// Handles the removal of unused view indexes. There are none yet.
pub(crate) fn clean_up_views(context: &RequestContext<'_>) -> HandlerResult {
    match *context.method() {
        Method::POST => Ok(response::ok(StatusCode::ACCEPTED)),
        _ => Err(ApiError::method_not_allowed("POST")),
    }
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
