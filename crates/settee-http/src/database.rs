//! A database as a whole: made, told of, deleted, given a document, made durable.

use std::sync::Arc;

use hyper::header::{self, HeaderName};
use hyper::{Method, StatusCode};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use settee_doc::Database;

use crate::error::Failure;
use crate::reply::{self, Answer};
use crate::server::Call;
use crate::{body, document, json, local};

/// What a part of a `Location` may hold as it is.
const KEPT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// The address of a database, or of a document in it, as the client reaches us.
pub(crate) fn location(call: &Call<'_>, name: &str, id: Option<&str>) -> String {
    let mut address = format!("{}/{}", origin(call), utf8_percent_encode(name, KEPT));
    if let Some(id) = id {
        address.push('/');
        address.extend(utf8_percent_encode(id, KEPT));
    }
    address
}

/// This server's address as the client knows it, without a path.
pub(crate) fn origin(call: &Call<'_>) -> String {
    const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
    const FORWARDED_SSL: HeaderName = HeaderName::from_static("x-forwarded-ssl");
    const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
    let host = call.header(FORWARDED_HOST).or_else(|| call.header(header::HOST)).unwrap_or("localhost");
    let is_tls = call.header(FORWARDED_SSL) == Some("on") || call.header(FORWARDED_PROTO) == Some("https");
    let scheme = if is_tls { "https" } else { "http" };
    format!("{scheme}://{host}")
}

/// The address of a document's attachment.
pub(crate) fn location_of_attachment(call: &Call<'_>, database: &str, id: &str, name: &str) -> String {
    format!("{}/{}", location(call, database, Some(id)), utf8_percent_encode(name, KEPT))
}

/// The only storage engine that CouchDB comes with.
const ENGINE: &str = "couch";

/// Most shards that a database may report: `_shards` lists them all.
const SHARDS_MAX: u64 = 1024;

/// Whether a text says how many copies lie in which zone: `zone:n,…`.
fn is_placement(text: &str) -> bool {
    let is_rule = |rule: &str| {
        let count = rule.split_once(':').filter(|(zone, _)| !zone.is_empty()).map(|(_, count)| count);
        count.and_then(|count| count.parse::<u32>().ok()).is_some_and(|count| count > 0)
    };
    !text.is_empty() && text.split(',').filter(|rule| !rule.is_empty()).all(is_rule)
}

pub(crate) async fn create(call: &Call<'_>, name: &str) -> Answer {
    let query = call.query();
    for option in ["n", "q"] {
        if let Some(value) = query.get(option)
            && !value.parse::<u64>().is_ok_and(|value| value > 0)
        {
            let reason = format!("The `{option}` value should be a positive integer.");
            return Err(Failure::bad_request(reason));
        }
    }
    let shard_count = query.get("q").and_then(|q| q.parse().ok()).unwrap_or(1);
    if shard_count > SHARDS_MAX {
        return Err(Failure::bad_request(format!("The `q` value should be at most {SHARDS_MAX}.")));
    }
    if query.get("engine").is_some_and(|engine| engine != ENGINE) {
        return Err(Failure::bad_request("invalid_engine_extension"));
    }
    if query.get("placement").is_some_and(|value| !is_placement(&value)) {
        return Err(Failure::bad_request("The `placement` value should be in a format `zone:n`."));
    }
    match query.get("partitioned").as_deref() {
        None | Some("false") => call.server.databases.create_closed(name).await?,
        Some("true") => call.server.databases.create_partitioned(name).await?,
        Some(_) => return Err(Failure::bad_request("Invalid `partitioned` parameter")),
    }
    if shard_count > 1 {
        call.server.databases.get(name).await?.set_shard_count(shard_count).await?;
    }
    let mut response = reply::ok(StatusCode::CREATED);
    reply::set_header(&mut response, header::LOCATION, location(call, name, None));
    Ok(response)
}

pub(crate) async fn delete(call: &Call<'_>, name: &str) -> Answer {
    // Most likely a script whose document id has come out empty.
    if call.query().get("rev").is_some() {
        return Err(Failure::bad_request(
            "You tried to DELETE a database with a ?=rev parameter. \
             Did you mean to DELETE a document instead?",
        ));
    }
    call.server.databases.delete(name).await?;
    Ok(reply::ok(StatusCode::OK))
}

pub(crate) async fn handle(call: &mut Call<'_>, database: Arc<Database>) -> Answer {
    match *call.method() {
        Method::GET | Method::HEAD => Ok(reply::json(StatusCode::OK, info(&database))),
        Method::POST => create_document(call, &database).await,
        _ => Err(Failure::method_not_allowed("DELETE,GET,HEAD,POST")),
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
    // The format's number in CouchDB 3.5: clients show it, nobody reads our files by it.
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

/// `instance_start_time` as CouchDB gives it, a string.
fn start_time(database: &Database, text: &mut Vec<u8>) {
    text.push(b'"');
    json::number(database.created_us(), text);
    text.push(b'"');
}

/// An update number in quotes.
pub(crate) fn quoted_seq(database: &Database, seq: settee_doc::Seq, text: &mut Vec<u8>) {
    text.push(b'"');
    database.write_seq(seq, text);
    text.push(b'"');
}

/// `POST /{db}`: a document that may have no id yet.
async fn create_document(call: &mut Call<'_>, database: &Arc<Database>) -> Answer {
    let body = call.read_json_body().await?;
    let concern = call.write_concern()?;
    let (mut edit, _for_the_edit) = body::parse_edit(body, call.server).await?;
    if edit.id.is_empty() {
        edit.id = call.server.uuids.next();
    }
    if edit.id.starts_with("_local/") {
        return local::put(call, database, edit, concern).await;
    }
    if document::is_optimistic(call)? {
        database.write_ahead(std::slice::from_mut(&mut edit), false).await?;
    }
    let id = edit.id.clone();
    let revision = database.update(edit, concern.stage).await?;
    let status = concern.status(StatusCode::CREATED);
    Ok(document::saved(call, database.name(), status, &id, revision))
}

/// Begins to give back the space of what was replaced, and doesn't wait for it.
pub(crate) async fn compact(call: &mut Call<'_>, database: Arc<Database>) -> Answer {
    if *call.method() != Method::POST {
        return Err(Failure::method_not_allowed("POST"));
    }
    body::check_json_type(&call.head.headers)?;
    call.server.databases.start_compaction(database);
    Ok(reply::ok(StatusCode::ACCEPTED))
}

/// Compacts what a design document's views have built, of which there is nothing yet.
pub(crate) async fn compact_views(call: &mut Call<'_>, database: Arc<Database>, name: &str) -> Answer {
    if *call.method() != Method::POST {
        return Err(Failure::method_not_allowed("POST"));
    }
    body::check_json_type(&call.head.headers)?;
    database.view().document(&format!("_design/{name}")).await?;
    Ok(reply::ok(StatusCode::ACCEPTED))
}

/// Removes what views have built that are no more, of which there is nothing yet.
pub(crate) fn clean_up_views(call: &Call<'_>) -> Answer {
    match *call.method() {
        Method::POST => Ok(reply::ok(StatusCode::ACCEPTED)),
        _ => Err(Failure::method_not_allowed("POST")),
    }
}

/// Waits until all that was accepted before is persisted.
pub(crate) async fn ensure_full_commit(call: &mut Call<'_>, database: Arc<Database>) -> Answer {
    if *call.method() != Method::POST {
        return Err(Failure::method_not_allowed("POST"));
    }
    body::check_json_type(&call.head.headers)?;
    database.barrier().await?;
    let mut text = b"{\"ok\":true,\"instance_start_time\":".to_vec();
    start_time(&database, &mut text);
    text.extend_from_slice(b"}\n");
    Ok(reply::json(StatusCode::CREATED, text))
}
