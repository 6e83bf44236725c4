//! Which handler a path belongs to.
//!
//! A database is looked up before what is asked of it: a request that names one that doesn't
//! exist is a 404 whatever it wants, as in CouchDB.

use std::borrow::Cow;
use std::sync::Arc;

use hyper::Method;
use settee_doc::Database;

use crate::all_docs::Scope;
use crate::auth::Caller;
use crate::error::Failure;
use crate::query::Segments;
use crate::reply::Answer;
use crate::server::Call;
use crate::{
    all_docs, attachment, backup, bulk, bulk_get, changes, cluster, database, db_updates, dbs_info, document,
    local, node, partition, purge, revisions, root, session, shards, tasks,
};

/// What CouchDB has beside databases and isn't here yet.
const SERVER_NOT_YET: &[&str] =
    &["_nouveau_analyze", "_replicate", "_reshard", "_scheduler", "_search_analyze"];

/// What CouchDB's databases have and isn't here yet.
const DATABASE_NOT_YET: &[&str] =
    &["_auto_purge", "_explain", "_find", "_index", "_nouveau_cleanup", "_search_cleanup", "_security"];

/// What CouchDB's design documents have below them and isn't here yet. Any other name is an attachment's.
const DESIGN_NOT_YET: &[&str] = &[
    "_info",
    "_list",
    "_nouveau",
    "_nouveau_info",
    "_rewrite",
    "_search",
    "_search_disk_size",
    "_search_info",
    "_show",
    "_update",
    "_view",
];

/// Answers a request.
pub(crate) async fn route(call: &mut Call<'_>) -> Answer {
    let mut path = Segments::new(call.head.uri.path(), call.server.plus_is_space);
    let Some(first) = path.next()? else {
        return root::welcome(call);
    };
    match first.as_ref() {
        "_up" if path.at_end() => return root::up(call),
        "_session" if path.at_end() => return session::handle(call).await,
        "_utils" => return root::utils(call, &path.rest()?.unwrap_or_default()),
        "favicon.ico" => return root::favicon(call),
        _ => {}
    }
    if call.caller == Caller::Anonymous {
        return Err(refusal(call, &first, &path));
    }
    match first.as_ref() {
        "_all_dbs" if path.at_end() => root::all_dbs(call),
        "_uuids" if path.at_end() => root::uuids(call),
        "_node" => node::handle(call, path).await,
        "_active_tasks" if path.at_end() => tasks::active(call),
        "_cluster_setup" if path.at_end() => cluster::setup(call).await,
        "_db_updates" if path.at_end() => db_updates::handle(call).await,
        "_dbs_info" if path.at_end() => dbs_info::handle(call).await,
        "_membership" if path.at_end() => cluster::membership(call),
        "_reload_query_servers" if path.at_end() => root::reload_query_servers(call),
        "_settee" if path.next()?.as_deref() == Some("backup") && path.at_end() => backup::handle(call).await,
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

async fn route_database(call: &mut Call<'_>, database: Arc<Database>, mut path: Segments<'_>) -> Answer {
    let second = path.next()?;
    if stores_for_nobody(call, database.name(), second.as_deref()) {
        return Err(not_yet(&format!("What documents of {} do", database.name())));
    }
    let Some(second) = second else {
        return database::handle(call, database).await;
    };
    if path.at_end() {
        match second.as_ref() {
            "_bulk_docs" => return bulk::docs(call, database).await,
            "_bulk_get" => return bulk_get::handle(call, database).await,
            "_all_docs" => return all_docs::handle(call, database, Scope::All).await,
            "_design_docs" => return all_docs::handle(call, database, Scope::Design).await,
            "_local_docs" => return all_docs::handle(call, database, Scope::Local).await,
            "_purge" => return purge::handle(call, database).await,
            "_purged_infos" => return purge::infos(call, database).await,
            "_purged_infos_limit" => return purge::infos_limit(call, database).await,
            "_revs_limit" => return purge::revs_limit(call, database).await,
            "_shards" => return shards::all(call, &database),
            "_sync_shards" => return shards::sync(call),
            "_view_cleanup" => return database::clean_up_views(call),
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
        "_compact" => {
            let name = path.next()?.unwrap_or_default();
            database::compact_views(call, database, &name).await
        }
        "_partition" => partition::handle(call, database, path).await,
        "_shards" => {
            let id = path.next()?.unwrap_or_default();
            shards::of_document(call, &database, &id)
        }
        "_all_docs" => route_queries(call, database, path, Scope::All).await,
        "_design_docs" => route_queries(call, database, path, Scope::Design).await,
        "_local_docs" => route_queries(call, database, path, Scope::Local).await,
        "_temp_view" => Err(Failure::gone_for_good("Temporary views are not supported in CouchDB")),
        name if DATABASE_NOT_YET.contains(&name) => Err(not_yet(name)),
        id if !path.at_end() && !id.starts_with("_local/") => {
            let name = path.rest()?.expect("it isn't at its end");
            attachment::handle(call, database, id, &name).await
        }
        _ if !path.at_end() => Err(no_local_attachments()),
        id => match id.strip_prefix("_local/") {
            Some("") => Err(Failure::bad_request("Invalid _local document id.")),
            Some(_) => local::handle(call, database, id).await,
            None => document::handle(call, database, id).await,
        },
    }
}

/// What `_all_docs` and its like have below them.
async fn route_queries(
    call: &mut Call<'_>,
    database: Arc<Database>,
    mut path: Segments<'_>,
    scope: Scope,
) -> Answer {
    match path.next()?.as_deref() {
        Some("queries") if path.at_end() => all_docs::queries(call, database, scope).await,
        _ => Err(Failure::missing()),
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
        Some(below) if DESIGN_NOT_YET.contains(&&*below) => Err(not_yet(&below)),
        Some(first) => {
            let name = match path.rest()? {
                Some(rest) => format!("{first}/{rest}"),
                None => first.into_owned(),
            };
            attachment::handle(call, database, &id, &name).await
        }
    }
}

async fn route_local(call: &mut Call<'_>, database: Arc<Database>, mut path: Segments<'_>) -> Answer {
    let name: Cow<'_, str> = match path.next()? {
        Some(name) => name,
        None => return Err(Failure::bad_request("Invalid _local document id.")),
    };
    match path.at_end() {
        true => local::handle(call, database, &format!("_local/{name}")).await,
        false => Err(no_local_attachments()),
    }
}

/// Whether a request would store documents that are for a part of CouchDB which isn't there yet: a password
/// would lie there as it came, and nothing would replicate.
fn stores_for_nobody(call: &Call<'_>, database: &str, second: Option<&str>) -> bool {
    let last = database.rsplit('/').next().unwrap_or(database);
    ["_users", "_replicator"].contains(&last)
        && match second {
            None | Some("_bulk_docs") => *call.method() == Method::POST,
            Some(id) => !id.starts_with('_') && !call.is_get() && *call.method() != Method::DELETE,
        }
}

fn no_local_attachments() -> Failure {
    Failure::bad_request("_local documents do not accept attachments.")
}

fn not_yet(what: &str) -> Failure {
    Failure::not_implemented(format!("{what} is not implemented yet."))
}
