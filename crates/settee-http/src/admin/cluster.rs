//! `_membership` and `_cluster_setup` for a single node.
//!
//! Setup creates CouchDB's system databases, as in a single-node CouchDB. Nodes can't be added.

use hyper::{Method, StatusCode};
use settee_doc::ErrorKind;

use crate::body;
use crate::context::RequestContext;
use crate::error::ApiError;
use crate::identity::NODE;
use crate::json;
use crate::query;
use crate::response::{self, HandlerResult};

/// CouchDB's system databases.
const SYSTEM_DATABASES: [&str; 3] = ["_users", "_replicator", "_global_changes"];

/// Maximum number of databases that a setup request may create.
const DATABASES_MAX: usize = 100;

/// Handles `GET /_membership`.
pub(crate) fn membership(context: &RequestContext<'_>) -> HandlerResult {
    if !context.is_get() {
        return Err(ApiError::method_not_allowed("GET"));
    }
    let text = format!("{{\"all_nodes\":[\"{NODE}\"],\"cluster_nodes\":[\"{NODE}\"]}}\n");
    Ok(response::json(StatusCode::OK, text))
}

/// Handles `_cluster_setup`.
pub(crate) async fn setup(context: &mut RequestContext<'_>) -> HandlerResult {
    match *context.method() {
        Method::GET | Method::HEAD => state(context),
        Method::POST => act(context).await,
        _ => Err(ApiError::method_not_allowed("GET,POST")),
    }
}

/// Reports whether setup is finished: there is an administrator, and the system databases exist.
fn state(context: &RequestContext<'_>) -> HandlerResult {
    let in_query = context.query().get("ensure_dbs_exist");
    let wanted = match in_query.as_deref() {
        Some(raw) => databases(Some(query::json_value(raw)?))?,
        None => databases(None)?,
    };
    let has_admin = context.server.auth.admin_name().is_some();
    let state = match has_admin && missing(context, &wanted).is_empty() {
        true => "single_node_enabled",
        false => "single_node_disabled",
    };
    Ok(response::json(StatusCode::OK, format!("{{\"state\":\"{state}\"}}\n")))
}

async fn act(context: &mut RequestContext<'_>) -> HandlerResult {
    body::check_json_type(&context.head.headers)?;
    let body = context.read_value_body().await?;
    let members = Members(json::pick(&body.text, NAMES)?);
    let action = members.get("action").and_then(json::string).unwrap_or_default();
    match action.as_ref() {
        "enable_single_node" => {
            check_administrator(context, &members)?;
            log_address(context, &members);
            let wanted = databases(members.get("ensure_dbs_exist"))?;
            create(context, &missing(context, &wanted)).await?;
        }
        "finish_cluster" => {
            let missing = missing(context, &databases(members.get("ensure_dbs_exist"))?);
            if missing.is_empty() {
                return Err(ApiError::bad_request("Cluster is already finished"));
            }
            create(context, &missing).await?;
        }
        "enable_cluster" | "add_node" | "remove_node" | "receive_cookie" => {
            let reason = format!("{action} is not implemented yet: a server is a single node.");
            return Err(ApiError::not_implemented(reason));
        }
        // CouchDB's reason ends in a quote.
        _ => return Err(ApiError::bad_request("Invalid Action'")),
    }
    Ok(response::ok(StatusCode::CREATED))
}

/// Checks that a named administrator is the existing one, because none can be created here.
fn check_administrator(context: &RequestContext<'_>, members: &Members<'_>) -> Result<(), ApiError> {
    let text = |name: &str| members.get(name).and_then(json::string);
    let (name, password) = (text("username"), text("password"));
    let is_ours = match (&name, &password) {
        (Some(name), Some(password)) => context.server.auth.is_admin(name, password),
        (None, None) => members.get("password_hash").is_none(),
        _ => false,
    };
    if !is_ours {
        let reason = "The administrator is set where the server is started: \
                      over HTTP that is not implemented yet.";
        return Err(ApiError::not_implemented(reason));
    }
    Ok(())
}

/// Logs that the server keeps its listen address if the request names another one. Clients' setup scripts
/// send the address that they reach the server by, or the wildcard address.
fn log_address(context: &RequestContext<'_>, members: &Members<'_>) {
    for key in ["bind_address", "port"] {
        let wanted = members.get(key).map(|raw| json::string(raw).unwrap_or(raw.into()));
        let current = context.shared.config.get("chttpd", key);
        if let Some(wanted) = wanted.filter(|wanted| current.as_deref() != Some(&**wanted)) {
            let current = current.unwrap_or_default();
            tracing::info!(key, %wanted, %current, "_cluster_setup: the listen address is unchanged");
        }
    }
}

/// The members of a request that are read.
const NAMES: [&str; 7] =
    ["action", "username", "password", "password_hash", "bind_address", "port", "ensure_dbs_exist"];

/// The values of `NAMES`.
struct Members<'a>([Option<&'a str>; NAMES.len()]);

impl<'a> Members<'a> {
    fn get(&self, name: &str) -> Option<&'a str> {
        NAMES.iter().position(|other| *other == name).and_then(|index| self.0[index])
    }
}

/// Parses the list of databases to create; without one, the system databases.
fn databases(raw: Option<&str>) -> Result<Vec<String>, ApiError> {
    let Some(raw) = raw else {
        return Ok(SYSTEM_DATABASES.map(str::to_owned).into());
    };
    let no_list = || ApiError::bad_request("`ensure_dbs_exist` must be a list of databases' names.");
    json::strings(raw, DATABASES_MAX, no_list, no_list)
}

fn missing(context: &RequestContext<'_>, wanted: &[String]) -> Vec<String> {
    let is_missing = |name: &&String| !context.server.databases.contains(name);
    wanted.iter().filter(is_missing).cloned().collect()
}

async fn create(context: &RequestContext<'_>, names: &[String]) -> Result<(), ApiError> {
    for name in names {
        match context.server.databases.create_closed(name).await {
            // Another request has created it meanwhile.
            Err(error) if error.kind() == ErrorKind::DatabaseExists => {}
            created => created?,
        }
    }
    Ok(())
}
