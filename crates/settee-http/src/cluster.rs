//! `_membership` and `_cluster_setup`: what there is to say of a cluster that has one machine.
//!
//! Setting up means here what it means to CouchDB where it runs alone: its own databases are made.
//! Machines can't be added.

use hyper::{Method, StatusCode};
use settee_doc::ErrorKind;

use crate::body;
use crate::error::Failure;
use crate::json;
use crate::node::NODE;
use crate::query;
use crate::reply::{self, Answer};
use crate::server::Call;

/// CouchDB's own databases.
const SYSTEM_DATABASES: [&str; 3] = ["_users", "_replicator", "_global_changes"];

/// Databases that a request may have made.
const DATABASES_MAX: usize = 100;

/// `GET /_membership`.
pub(crate) fn membership(call: &Call<'_>) -> Answer {
    if !call.is_get() {
        return Err(Failure::method_not_allowed("GET"));
    }
    let text = format!("{{\"all_nodes\":[\"{NODE}\"],\"cluster_nodes\":[\"{NODE}\"]}}\n");
    Ok(reply::json(StatusCode::OK, text))
}

/// `_cluster_setup`.
pub(crate) async fn setup(call: &mut Call<'_>) -> Answer {
    match *call.method() {
        Method::GET | Method::HEAD => state(call),
        Method::POST => act(call).await,
        _ => Err(Failure::method_not_allowed("GET,POST")),
    }
}

/// Whether the machine is set up: there is an administrator, and CouchDB's databases are there.
fn state(call: &Call<'_>) -> Answer {
    let in_query = call.query().get("ensure_dbs_exist");
    let wanted = match in_query.as_deref() {
        Some(raw) => databases(Some(query::json_value(raw)?))?,
        None => databases(None)?,
    };
    let has_admin = call.server.auth.admin_name().is_some();
    let state = match has_admin && missing(call, &wanted).is_empty() {
        true => "single_node_enabled",
        false => "single_node_disabled",
    };
    Ok(reply::json(StatusCode::OK, format!("{{\"state\":\"{state}\"}}\n")))
}

async fn act(call: &mut Call<'_>) -> Answer {
    body::check_json_type(&call.head.headers)?;
    let body = call.read_value_body().await?;
    let members = Members(json::pick(&body.text, NAMES)?);
    let action = members.get("action").and_then(json::string).unwrap_or_default();
    match action.as_ref() {
        "enable_single_node" => {
            check_administrator(call, &members)?;
            log_address(call, &members);
            let wanted = databases(members.get("ensure_dbs_exist"))?;
            create(call, &missing(call, &wanted)).await?;
        }
        "finish_cluster" => {
            let missing = missing(call, &databases(members.get("ensure_dbs_exist"))?);
            if missing.is_empty() {
                return Err(Failure::bad_request("Cluster is already finished"));
            }
            create(call, &missing).await?;
        }
        "enable_cluster" | "add_node" | "remove_node" | "receive_cookie" => {
            let reason = format!("{action} is not implemented yet: a server is a machine of its own.");
            return Err(Failure::not_implemented(reason));
        }
        // With the quote that CouchDB's reason ends in.
        _ => return Err(Failure::bad_request("Invalid Action'")),
    }
    Ok(reply::ok(StatusCode::CREATED))
}

/// An administrator who is named must be the one that there is: none is made here.
fn check_administrator(call: &Call<'_>, members: &Members<'_>) -> Result<(), Failure> {
    let text = |name: &str| members.get(name).and_then(json::string);
    let (name, password) = (text("username"), text("password"));
    let is_ours = match (&name, &password) {
        (Some(name), Some(password)) => call.server.auth.is_admin(name, password),
        (None, None) => members.get("password_hash").is_none(),
        _ => false,
    };
    if !is_ours {
        let reason = "The administrator is set where the server is started: \
                      over HTTP that is not implemented yet.";
        return Err(Failure::not_implemented(reason));
    }
    Ok(())
}

/// Logs that the server keeps the address that it was started with, where another one is asked for:
/// clients' set-up scripts name what they reach it by, or every address.
fn log_address(call: &Call<'_>, members: &Members<'_>) {
    for key in ["bind_address", "port"] {
        let wanted = members.get(key).map(|raw| json::string(raw).unwrap_or(raw.into()));
        let kept = call.shared.config.get("chttpd", key);
        if let Some(wanted) = wanted.filter(|wanted| kept.as_deref() != Some(&**wanted)) {
            let kept = kept.unwrap_or_default();
            tracing::info!(key, %wanted, %kept, "_cluster_setup: the listener stays as it was started");
        }
    }
}

/// The members of a request that are looked at.
const NAMES: [&str; 7] =
    ["action", "username", "password", "password_hash", "bind_address", "port", "ensure_dbs_exist"];

/// Their values.
struct Members<'a>([Option<&'a str>; NAMES.len()]);

impl<'a> Members<'a> {
    fn get(&self, name: &str) -> Option<&'a str> {
        NAMES.iter().position(|other| *other == name).and_then(|place| self.0[place])
    }
}

/// The databases that a list names; CouchDB's own without one.
fn databases(raw: Option<&str>) -> Result<Vec<String>, Failure> {
    let Some(raw) = raw else {
        return Ok(SYSTEM_DATABASES.map(str::to_owned).into());
    };
    let no_list = || Failure::bad_request("`ensure_dbs_exist` must be a list of databases' names.");
    json::strings(raw, DATABASES_MAX, no_list, no_list)
}

fn missing(call: &Call<'_>, wanted: &[String]) -> Vec<String> {
    let is_missing = |name: &&String| !call.server.databases.contains(name);
    wanted.iter().filter(is_missing).cloned().collect()
}

async fn create(call: &Call<'_>, names: &[String]) -> Result<(), Failure> {
    for name in names {
        match call.server.databases.create_closed(name).await {
            // Somebody else was faster.
            Err(error) if error.kind() == ErrorKind::DatabaseExists => {}
            created => created?,
        }
    }
    Ok(())
}
