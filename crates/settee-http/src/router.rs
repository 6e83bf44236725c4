//! Which handler a path belongs to.
//!
//! A database is looked up before what is asked of it: a request that names one that doesn't
//! exist is a 404 whatever it wants, as in CouchDB.

use std::borrow::Cow;
use std::sync::Arc;

use hyper::Method;
use settee_doc::Database;

use crate::auth::Caller;
use crate::error::Failure;
use crate::query::Segments;
use crate::reply::Answer;
use crate::server::Call;
use crate::{all_docs, backup, bulk, changes, database, document, local, metrics, revisions, root, session};

/// What CouchDB has beside databases and isn't here yet.
const SERVER_NOT_YET: &[&str] = &[
    "_active_tasks",
    "_cluster_setup",
    "_db_updates",
    "_dbs_info",
    "_membership",
    "_nouveau_analyze",
    "_reload_query_servers",
    "_replicate",
    "_reshard",
    "_scheduler",
    "_search_analyze",
    "_utils",
];

/// What CouchDB's databases have and isn't here yet.
const DATABASE_NOT_YET: &[&str] = &[
    "_auto_purge",
    "_design_docs",
    "_explain",
    "_find",
    "_index",
    "_local_docs",
    "_nouveau_cleanup",
    "_partition",
    "_purge",
    "_purged_infos",
    "_purged_infos_limit",
    "_revs_limit",
    "_search_cleanup",
    "_security",
    "_shards",
    "_sync_shards",
    "_temp_view",
    "_view_cleanup",
];

/// Answers a request.
pub(crate) async fn route(call: &mut Call<'_>) -> Answer {
    let mut path = Segments::new(call.head.uri.path());
    let Some(first) = path.next()? else {
        return root::welcome(call);
    };
    match first.as_ref() {
        "_up" if path.at_end() => return root::up(call),
        "_session" if path.at_end() => return session::handle(call).await,
        _ => {}
    }
    if call.caller == Caller::Anonymous {
        return Err(refusal(call, &first, &path));
    }
    match first.as_ref() {
        "_all_dbs" if path.at_end() => root::all_dbs(call),
        "_uuids" if path.at_end() => root::uuids(call),
        "_node" => route_node(call, path),
        "_settee" if path.next()?.as_deref() == Some("backup") && path.at_end() => backup::handle(call).await,
        "favicon.ico" => Err(Failure::missing()),
        name if SERVER_NOT_YET.contains(&name) => Err(not_yet(name)),
        name if path.at_end() && *call.method() == Method::PUT => database::create(call, name).await,
        name if path.at_end() && *call.method() == Method::DELETE => database::delete(call, name).await,
        name => {
            let database = call.server.databases.get(name).await?;
            route_database(call, database, path).await
        }
    }
}

/// What an anonymous caller is told, in CouchDB's words.
fn refusal(call: &Call<'_>, first: &str, path: &Segments<'_>) -> Failure {
    let of_server = first.starts_with('_') && !["_users", "_replicator", "_global_changes"].contains(&first);
    let makes_or_ends = path.at_end() && matches!(*call.method(), Method::PUT | Method::DELETE);
    Failure::unauthorized(if of_server || makes_or_ends {
        "You are not a server admin."
    } else {
        "You are not authorized to access this db."
    })
}

/// `_node/NAME/…`: of the machines of a cluster there is this one, `_local`.
fn route_node(call: &Call<'_>, mut path: Segments<'_>) -> Answer {
    let (Some(node), Some(what)) = (path.next()?, path.next()?) else {
        return Err(not_yet("_node"));
    };
    match what.as_ref() {
        _ if node != "_local" => {
            let reason = format!("no such node: {node}");
            Err(Failure::new(hyper::StatusCode::NOT_FOUND, "not_found", reason))
        }
        "_prometheus" if path.at_end() => metrics::scrape(call),
        what => Err(not_yet(&format!("_node/_local/{what}"))),
    }
}

async fn route_database(call: &mut Call<'_>, database: Arc<Database>, mut path: Segments<'_>) -> Answer {
    let Some(second) = path.next()? else {
        return database::handle(call, database).await;
    };
    if path.at_end() {
        match second.as_ref() {
            "_bulk_docs" => return bulk::docs(call, database).await,
            "_bulk_get" => return bulk::get(call, database).await,
            "_all_docs" => return all_docs::handle(call, database).await,
            "_changes" => return changes::handle(call, database).await,
            "_revs_diff" => return revisions::diff(call, database).await,
            "_missing_revs" => return revisions::missing(call, database).await,
            "_compact" => return database::compact(call, database).await,
            "_ensure_full_commit" => return database::ensure_full_commit(call, database).await,
            _ => {}
        }
    }
    match second.as_ref() {
        "_design" => route_design(call, database, path).await,
        "_local" => route_local(call, database, path).await,
        "_compact" => Err(not_yet("_compact of a design document's views")),
        name if DATABASE_NOT_YET.contains(&name) => Err(not_yet(name)),
        "_all_docs" => Err(not_yet("_all_docs/queries")),
        id if !path.at_end() => Err(attachments(id)),
        id => match id.strip_prefix("_local/") {
            Some("") => Err(Failure::bad_request("Invalid _local document id.")),
            Some(_) => local::handle(call, database, id).await,
            None => document::handle(call, database, id).await,
        },
    }
}

/// `_design/NAME`, whose slash needs no encoding, and what CouchDB has below it.
async fn route_design(call: &mut Call<'_>, database: Arc<Database>, mut path: Segments<'_>) -> Answer {
    let Some(name) = path.next()? else {
        return document::handle(call, database, "_design").await;
    };
    let id = format!("_design/{name}");
    match path.next()? {
        None => document::handle(call, database, &id).await,
        Some(below) if below.starts_with('_') => Err(not_yet(&below)),
        Some(_) => Err(attachments(&id)),
    }
}

async fn route_local(call: &mut Call<'_>, database: Arc<Database>, mut path: Segments<'_>) -> Answer {
    let name: Cow<'_, str> = match path.next()? {
        Some(name) => name,
        None => return Err(Failure::bad_request("Invalid _local document id.")),
    };
    match path.at_end() {
        true => local::handle(call, database, &format!("_local/{name}")).await,
        false => Err(Failure::bad_request("_local documents do not accept attachments.")),
    }
}

fn not_yet(what: &str) -> Failure {
    Failure::not_implemented(format!("{what} is not implemented yet."))
}

fn attachments(id: &str) -> Failure {
    Failure::not_implemented(format!("Attachments are not implemented yet (document `{id}`)."))
}
