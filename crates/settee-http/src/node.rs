//! `_node/{name}/…`: the machines of a cluster, of which there is this one.
//!
//! It has the name that CouchDB gives a machine without a cluster, and is `_local` too.

use std::collections::BTreeMap;

use hyper::header;
use hyper::{Method, StatusCode};

use crate::COUCHDB_VERSION;
use crate::config_store::Sections;
use crate::error::Failure;
use crate::query::Segments;
use crate::reply::{self, Answer};
use crate::server::Call;
use crate::{json, metrics, stats};

/// This machine's name.
pub(crate) const NODE: &str = "nonode@nohost";

/// Answers what is asked of a machine; `path` is what follows `_node`.
pub(crate) async fn handle(call: &mut Call<'_>, mut path: Segments<'_>) -> Answer {
    let Some(node) = path.next()? else {
        return Err(Failure::bad_request("Incomplete path to _node request"));
    };
    if node != "_local" && node != NODE {
        let reason = format!("no such node: {node}");
        return Err(Failure::new(StatusCode::NOT_FOUND, "not_found", reason));
    }
    let Some(what) = path.next()? else {
        return only_get(call, |_| format!("{{\"name\":\"{NODE}\"}}\n").into());
    };
    match what.as_ref() {
        "_config" => config(call, path).await,
        "_stats" => {
            let mut names = Vec::new();
            while let Some(name) = path.next()? {
                names.push(name.into_owned());
            }
            only_get(call, |call| stats::text(call.server, &names))
        }
        "_system" if path.at_end() => only_get(call, system),
        "_versions" if path.at_end() => only_get(call, |_| versions()),
        "_prometheus" if path.at_end() => metrics::scrape(call),
        "_smoosh" if path.next()?.as_deref() == Some("status") && path.at_end() => {
            Err(Failure::not_implemented("_smoosh/status is not implemented: compaction has no queues here."))
        }
        "_restart" if path.at_end() => {
            Err(Failure::not_implemented("_restart is not implemented yet: whoever started the server can."))
        }
        _ => Err(Failure::missing()),
    }
}

fn only_get(call: &Call<'_>, text: impl FnOnce(&Call<'_>) -> Vec<u8>) -> Answer {
    if !call.is_get() {
        return Err(Failure::method_not_allowed("GET"));
    }
    Ok(reply::json(StatusCode::OK, text(call)))
}

/// `_config`, `_config/_reload`, `_config/SECTION` and `_config/SECTION/KEY`.
async fn config(call: &mut Call<'_>, mut path: Segments<'_>) -> Answer {
    let shared = call.shared;
    let store = &shared.config;
    let Some(section) = path.next()? else {
        return only_get(call, |_| sections_text(&store.all()));
    };
    let Some(key) = path.next()? else {
        return match section.as_ref() {
            "_reload" => reload(call).await,
            section => only_get(call, |_| keys_line(&store.section(section))),
        };
    };
    if !path.at_end() {
        return Err(Failure::missing());
    }
    match *call.method() {
        Method::GET | Method::HEAD => match store.get(&section, &key) {
            Some(value) => Ok(text_answer(&value)),
            None => Err(unknown()),
        },
        Method::PUT => set(call, &section, &key).await,
        Method::DELETE => delete(call, &section, &key).await,
        _ => Err(Failure::method_not_allowed("GET,PUT,DELETE")),
    }
}

async fn set(call: &mut Call<'_>, section: &str, key: &str) -> Answer {
    let body = call.read_value_body().await?;
    let text = std::str::from_utf8(&body.text).map_err(|_| Failure::bad_json())?;
    let text = crate::query::json_value(text)?;
    let value = json::string(text).ok_or_else(|| Failure::bad_request("a JSON string expected"))?;
    let value = value.trim().to_owned();
    let old = change(call, section, key, Some(value)).await?;
    Ok(text_answer(&old))
}

async fn delete(call: &Call<'_>, section: &str, key: &str) -> Answer {
    let old = change(call, section, key, None).await?;
    Ok(text_answer(&old))
}

/// Sets a key, or deletes one that is there, and returns its old value. In a task of its own: a change that
/// has begun is finished, in the file and in force, whether or not somebody waits for it, and before the
/// next one begins.
async fn change(call: &Call<'_>, section: &str, key: &str, value: Option<String>) -> Result<String, Failure> {
    let shared = call.shared.clone();
    let (section, key, persist) = (section.to_owned(), key.to_owned(), persists(call));
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
        Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_server_error", error.to_string())
    };
    changing.await.map_err(failed)?
}

async fn reload(call: &Call<'_>) -> Answer {
    if *call.method() != Method::POST {
        return Err(Failure::method_not_allowed("POST"));
    }
    let shared = call.shared;
    let _changing = shared.config.changing.lock().await;
    let derived = shared.config.reload()?;
    shared.apply(derived);
    Ok(reply::ok(StatusCode::OK))
}

/// Whether a change is to outlive the process.
fn persists(call: &Call<'_>) -> bool {
    const PERSIST: header::HeaderName = header::HeaderName::from_static("x-couch-persist");
    call.header(PERSIST) != Some("false")
}

fn unknown() -> Failure {
    Failure::new(StatusCode::NOT_FOUND, "not_found", "unknown_config_value")
}

fn text_answer(value: &str) -> hyper::Response<reply::Body> {
    let mut text = Vec::with_capacity(value.len() + 3);
    settee_doc::write_json_string(value, &mut text);
    text.push(b'\n');
    reply::json(StatusCode::OK, text)
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

/// What of CouchDB's `_system` there is without its runtime: `memory.other` is what the process
/// has resident, `process_count` and `run_queue` count tasks.
fn system(call: &Call<'_>) -> Vec<u8> {
    let uptime = call.server.metrics.uptime().as_secs();
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

/// Bytes of memory that the process has, where the system tells.
///
/// Source: proc_pid_statm(5).
fn resident_bytes() -> Option<u64> {
    const PAGE_BYTES: u64 = 4096;
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split(' ').nth(1)?.parse().ok()?;
    Some(pages * PAGE_BYTES)
}

/// What answers in the place of CouchDB's parts. There is no query server yet, and no collation
/// but that of bytes.
fn versions() -> Vec<u8> {
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "{{\"settee\":{{\"version\":\"{version}\"}},\"couchdb\":{{\"version\":\"{COUCHDB_VERSION}\"}},\
         \"collation_driver\":{{\"name\":\"none\"}},\"javascript_engine\":{{\"name\":\"none\"}}}}\n"
    )
    .into()
}
