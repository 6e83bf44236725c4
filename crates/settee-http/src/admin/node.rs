//! `_node/{name}/…`: the nodes of a cluster; here there is only this one.
//!
//! The node has the name that CouchDB gives a node without a cluster, and is also called `_local`.

use std::collections::BTreeMap;

use hyper::header;
use hyper::{Method, StatusCode};

use super::{prometheus, stats};
use crate::context::RequestContext;
use crate::error::ApiError;
use crate::identity::{COUCHDB_VERSION, NODE};
use crate::json;
use crate::query::Segments;
use crate::response::{self, HandlerResult};
use crate::settings::Sections;

/// Handles a request to a node; `path` is the path after `_node`.
pub(crate) async fn handle(context: &mut RequestContext<'_>, mut path: Segments<'_>) -> HandlerResult {
    let Some(node) = path.next()? else {
        return Err(ApiError::bad_request("Incomplete path to _node request"));
    };
    if node != "_local" && node != NODE {
        let reason = format!("no such node: {node}");
        return Err(ApiError::new(StatusCode::NOT_FOUND, "not_found", reason));
    }
    let Some(what) = path.next()? else {
        return only_get(context, |_| format!("{{\"name\":\"{NODE}\"}}\n").into());
    };
    match what.as_ref() {
        "_config" => config(context, path).await,
        "_stats" => {
            let mut names = Vec::new();
            while let Some(name) = path.next()? {
                names.push(name.into_owned());
            }
            only_get(context, |context| stats::text(context.server, &names))
        }
        "_system" if path.at_end() => only_get(context, system),
        "_versions" if path.at_end() => only_get(context, |_| versions()),
        "_prometheus" if path.at_end() => prometheus::scrape(context),
        "_smoosh" if path.next()?.as_deref() == Some("status") && path.at_end() => Err(
            ApiError::not_implemented("_smoosh/status is not implemented: compaction has no queues here."),
        ),
        "_restart" if path.at_end() => {
            Err(ApiError::not_implemented("_restart is not implemented yet: whoever started the server can."))
        }
        _ => Err(ApiError::missing()),
    }
}

fn only_get(
    context: &RequestContext<'_>,
    text: impl FnOnce(&RequestContext<'_>) -> Vec<u8>,
) -> HandlerResult {
    if !context.is_get() {
        return Err(ApiError::method_not_allowed("GET"));
    }
    Ok(response::json(StatusCode::OK, text(context)))
}

/// Handles `_config`, `_config/_reload`, `_config/SECTION` and `_config/SECTION/KEY`.
async fn config(context: &mut RequestContext<'_>, mut path: Segments<'_>) -> HandlerResult {
    let shared = context.shared;
    let store = &shared.config;
    let Some(section) = path.next()? else {
        return only_get(context, |_| sections_text(&store.all()));
    };
    let Some(key) = path.next()? else {
        return match section.as_ref() {
            "_reload" => reload(context).await,
            section => only_get(context, |_| keys_line(&store.section(section))),
        };
    };
    if !path.at_end() {
        return Err(ApiError::missing());
    }
    match *context.method() {
        Method::GET | Method::HEAD => match store.get(&section, &key) {
            Some(value) => Ok(text_answer(&value)),
            None => Err(unknown()),
        },
        Method::PUT => set(context, &section, &key).await,
        Method::DELETE => delete(context, &section, &key).await,
        _ => Err(ApiError::method_not_allowed("GET,PUT,DELETE")),
    }
}

async fn set(context: &mut RequestContext<'_>, section: &str, key: &str) -> HandlerResult {
    let body = context.read_value_body().await?;
    let text = std::str::from_utf8(&body.text).map_err(|_| ApiError::bad_json())?;
    let text = crate::query::json_value(text)?;
    let value = json::string(text).ok_or_else(|| ApiError::bad_request("a JSON string expected"))?;
    let value = value.trim().to_owned();
    let old = change(context, section, key, Some(value)).await?;
    Ok(text_answer(&old))
}

async fn delete(context: &RequestContext<'_>, section: &str, key: &str) -> HandlerResult {
    let old = change(context, section, key, None).await?;
    Ok(text_answer(&old))
}

/// Sets or deletes an existing key, and returns its old value. Runs in a task of its own, so that a change
/// that has begun is completed, in the file and in effect, before the next one begins, even if the client
/// disconnects.
async fn change(
    context: &RequestContext<'_>,
    section: &str,
    key: &str,
    value: Option<String>,
) -> Result<String, ApiError> {
    let shared = context.shared.clone();
    let (section, key, persist) = (section.to_owned(), key.to_owned(), persists(context));
    let changing = tokio::spawn(async move {
        let _changing = shared.config.changing.lock().await;
        let old = shared.config.get(&section, &key);
        if value.is_none() && old.is_none() {
            return Err(unknown());
        }
        let derived = shared.config.change(&section, &key, value, persist).await?;
        shared.apply(derived);
        Ok(old.unwrap_or_default())
    });
    let failed = |error: tokio::task::JoinError| {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_server_error", error.to_string())
    };
    changing.await.map_err(failed)?
}

async fn reload(context: &RequestContext<'_>) -> HandlerResult {
    if *context.method() != Method::POST {
        return Err(ApiError::method_not_allowed("POST"));
    }
    let shared = context.shared;
    let _changing = shared.config.changing.lock().await;
    let derived = shared.config.reload()?;
    shared.apply(derived);
    Ok(response::ok(StatusCode::OK))
}

/// Whether a change is to be written to the file.
fn persists(context: &RequestContext<'_>) -> bool {
    const PERSIST: header::HeaderName = header::HeaderName::from_static("x-couch-persist");
    context.header(PERSIST) != Some("false")
}

fn unknown() -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "not_found", "unknown_config_value")
}

fn text_answer(value: &str) -> hyper::Response<response::Body> {
    let mut text = Vec::with_capacity(value.len() + 3);
    settee_doc::write_json_string(value, &mut text);
    text.push(b'\n');
    response::json(StatusCode::OK, text)
}

fn keys_line(keys: &BTreeMap<String, String>) -> Vec<u8> {
    let mut text = Vec::new();
    write_keys(keys, &mut text);
    text.push(b'\n');
    text
}

fn sections_text(sections: &Sections) -> Vec<u8> {
    let mut text = Vec::new();
    json::object(&mut text, |text| {
        for (index, (section, keys)) in sections.iter().enumerate() {
            if index > 0 {
                text.push(b',');
            }
            settee_doc::write_json_string(section, text);
            text.push(b':');
            write_keys(keys, text);
        }
    });
    text.push(b'\n');
    text
}

fn write_keys(keys: &BTreeMap<String, String>, text: &mut Vec<u8>) {
    json::object(text, |text| {
        for (index, (key, value)) in keys.iter().enumerate() {
            if index > 0 {
                text.push(b',');
            }
            settee_doc::write_json_string(key, text);
            text.push(b':');
            settee_doc::write_json_string(value, text);
        }
    });
}

/// The figures of CouchDB's `_system` that exist without its runtime: `memory.other` is the process's
/// resident memory, `process_count` and `run_queue` count tasks.
fn system(context: &RequestContext<'_>) -> Vec<u8> {
    let uptime = context.server.metrics.uptime().as_secs();
    let tasks = tokio::runtime::Handle::current().metrics();
    let (alive, queued) = (tasks.num_alive_tasks(), tasks.global_queue_depth());
    let resident = resident_bytes().unwrap_or(0);
    format!(
        "{{\"uptime\":{uptime},\"memory\":{{\"other\":{resident}}},\"run_queue\":{queued},\
         \"os_proc_count\":0,\"stale_proc_count\":0,\"process_count\":{alive},\"message_queues\":{{}},\
         \"internal_replication_jobs\":0,\"distribution\":{{}}}}\n"
    )
    .into()
}

/// Resident memory of the process in bytes, if the system provides it.
///
/// Source: proc_pid_statm(5).
fn resident_bytes() -> Option<u64> {
    const PAGE_BYTES: u64 = 4096;
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split(' ').nth(1)?.parse().ok()?;
    Some(pages * PAGE_BYTES)
}

/// Version of QuickJS-ng in the crate `rquickjs`: the functions of design documents run in it.
const QUICKJS_VERSION: &str = "0.16.2";

/// The components of this server in place of CouchDB's. The version of the collation is that of the keys' order,
/// whose last part is the version of ICU4X.
fn versions() -> Vec<u8> {
    let version = env!("CARGO_PKG_VERSION");
    let collator = settee_view::COLLATION_VERSION;
    let library = collator.rsplit('-').next().unwrap_or(collator);
    format!(
        "{{\"settee\":{{\"version\":\"{version}\"}},\"couchdb\":{{\"version\":\"{COUCHDB_VERSION}\"}},\
         \"collation_driver\":{{\"name\":\"icu4x\",\"library_version\":\"{library}\",\
         \"collator_version\":\"{collator}\"}},\
         \"javascript_engine\":{{\"name\":\"quickjs-ng\",\"version\":\"{QUICKJS_VERSION}\"}}}}\n"
    )
    .into()
}
