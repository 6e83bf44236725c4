//! Maps request paths to handlers.
//!
//! The database is looked up before the rest of the path: a request that names a database that doesn't exist
//! gets a 404 regardless of the rest, as in CouchDB.

use std::borrow::Cow;
use std::sync::Arc;

use hyper::{Method, StatusCode, header};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use settee_doc::Database;

use crate::admin::{backup, cluster, node, root, session, tasks};
use crate::auth::Caller;
use crate::body::BufferedBody;
use crate::changes::{self, db_updates};
use crate::context::{RequestContext, RewrittenRequest};
use crate::database::all_docs::{self, Scope};
use crate::database::{self, dbs_info, maintenance, names, partition, purge, shards};
use crate::document::{self, attachment, bulk, bulk_get, local, revisions};
use crate::error::ApiError;
use crate::functions;
use crate::javascript::DesignSource;
use crate::mango;
use crate::query::Segments;
use crate::response::HandlerResult;
use crate::view;

/// Top-level names of CouchDB that aren't implemented yet.
const SERVER_UNIMPLEMENTED: &[&str] =
    &["_nouveau_analyze", "_replicate", "_reshard", "_scheduler", "_search_analyze"];

/// Names in a database that CouchDB has and that aren't implemented yet.
const DATABASE_UNIMPLEMENTED: &[&str] = &["_auto_purge", "_nouveau_cleanup", "_search_cleanup", "_security"];

/// Names below a design document that CouchDB has and that aren't implemented yet. Any other name is an
/// attachment's.
const DESIGN_UNIMPLEMENTED: &[&str] =
    &["_nouveau", "_nouveau_info", "_search", "_search_disk_size", "_search_info"];

/// Routes a request to its handler, and then the requests that `_rewrite` makes of it, whose number is bounded there.
pub(crate) async fn route(context: &mut RequestContext<'_>) -> HandlerResult {
    let mut response = route_once(context).await?;
    let mut next = context.rewritten.take();
    let mut held = None;
    while let Some(rewritten) = next {
        let RewrittenRequest { head, body } = *rewritten;
        if let Some(BufferedBody { text, permit }) = body {
            context.body.replace(text);
            held = Some(permit);
        }
        let mut inner = context.with_head(&head);
        response = route_once(&mut inner).await?;
        next = inner.rewritten.take();
    }
    drop(held);
    Ok(response)
}

async fn route_once(context: &mut RequestContext<'_>) -> HandlerResult {
    let mut path = Segments::new(context.head.uri.path(), context.server.plus_is_space);
    let Some(first) = path.next()? else {
        return root::welcome(context);
    };
    match first.as_ref() {
        "_up" if path.at_end() => return root::up(context),
        "_session" if path.at_end() => return session::handle(context).await,
        "_utils" => return root::utils(context, &path.rest()?.unwrap_or_default()),
        "favicon.ico" => return root::favicon(context),
        _ => {}
    }
    if context.caller == Caller::Anonymous {
        return Err(refusal(context, &first, &path));
    }
    match first.as_ref() {
        "_all_dbs" if path.at_end() => names::all_dbs(context),
        "_uuids" if path.at_end() => root::uuids(context),
        "_node" => node::handle(context, path).await,
        "_active_tasks" if path.at_end() => tasks::active(context),
        "_cluster_setup" if path.at_end() => cluster::setup(context).await,
        "_db_updates" if path.at_end() => db_updates::handle(context).await,
        "_dbs_info" if path.at_end() => dbs_info::handle(context).await,
        "_membership" if path.at_end() => cluster::membership(context),
        "_reload_query_servers" if path.at_end() => root::reload_query_servers(context),
        "_settee" if path.next()?.as_deref() == Some("backup") && path.at_end() => {
            backup::handle(context).await
        }
        name if SERVER_UNIMPLEMENTED.contains(&name) => Err(unimplemented(name)),
        name if path.at_end() && *context.method() == Method::PUT => database::create(context, name).await,
        name if path.at_end() && *context.method() == Method::DELETE => database::delete(context, name).await,
        name => {
            let database = context.server.databases.get(name).await?;
            route_database(context, database, path).await
        }
    }
}

/// The 401 for an anonymous caller, with CouchDB's reasons.
fn refusal(context: &RequestContext<'_>, first: &str, path: &Segments<'_>) -> ApiError {
    let of_server = first.starts_with('_') && !["_users", "_replicator", "_global_changes"].contains(&first);
    let makes_or_ends = path.at_end() && matches!(*context.method(), Method::PUT | Method::DELETE);
    ApiError::unauthorized(if of_server || makes_or_ends {
        "You are not a server admin."
    } else {
        "You are not authorized to access this db."
    })
}

async fn route_database(
    context: &mut RequestContext<'_>,
    database: Arc<Database>,
    mut path: Segments<'_>,
) -> HandlerResult {
    let second = path.next()?;
    if stores_without_effect(context, database.name(), second.as_deref()) {
        return Err(unimplemented(&format!("What documents of {} do", database.name())));
    }
    let Some(second) = second else {
        return database::handle(context, database).await;
    };
    if path.at_end() {
        match second.as_ref() {
            "_bulk_docs" => return bulk::docs(context, database).await,
            "_bulk_get" => return bulk_get::handle(context, database).await,
            "_all_docs" => return all_docs::handle(context, database, Scope::All).await,
            "_design_docs" => return all_docs::handle(context, database, Scope::Design).await,
            "_local_docs" => return all_docs::handle(context, database, Scope::Local).await,
            "_purge" => return purge::handle(context, database).await,
            "_purged_infos" => return purge::infos(context, database).await,
            "_purged_infos_limit" => return purge::infos_limit(context, database).await,
            "_revs_limit" => return purge::revs_limit(context, database).await,
            "_shards" => return shards::all(context, &database),
            "_sync_shards" => return shards::sync(context),
            "_view_cleanup" => return maintenance::clean_up_views(context, database).await,
            "_changes" => return changes::handle(context, database).await,
            "_explain" => return mango::explain(context, database, None).await,
            "_find" => return mango::find(context, database, None).await,
            "_revs_diff" => return revisions::diff(context, database).await,
            "_missing_revs" => return revisions::missing(context, database).await,
            "_compact" => return maintenance::compact(context, database).await,
            "_ensure_full_commit" => return maintenance::ensure_full_commit(context, database).await,
            _ => {}
        }
    }
    match second.as_ref() {
        "_design" => route_design(context, database, path).await,
        "_local" => route_local(context, database, path).await,
        "_compact" => {
            let name = path.next()?.unwrap_or_default();
            maintenance::compact_views(context, database, &name).await
        }
        "_index" => mango::indexes(context, database, path).await,
        "_partition" => partition::handle(context, database, path).await,
        "_shards" => {
            let id = path.next()?.unwrap_or_default();
            shards::of_document(context, &database, &id)
        }
        "_all_docs" => route_queries(context, database, path, Scope::All).await,
        "_design_docs" => route_queries(context, database, path, Scope::Design).await,
        "_local_docs" => route_queries(context, database, path, Scope::Local).await,
        "_temp_view" => Err(ApiError::gone_for_good("Temporary views are not supported in CouchDB")),
        name if DATABASE_UNIMPLEMENTED.contains(&name) => Err(unimplemented(name)),
        id if !path.at_end() && !id.starts_with("_local/") => {
            let name = path.rest()?.expect("it isn't at its end");
            attachment::handle(context, database, id, &name).await
        }
        _ if !path.at_end() => Err(no_local_attachments()),
        id => match id.strip_prefix("_local/") {
            Some("") => Err(ApiError::bad_request("Invalid _local document id.")),
            Some(_) => local::handle(context, database, id).await,
            None => document::handle(context, database, id).await,
        },
    }
}

/// Handles `queries` below `_all_docs`, `_design_docs` and `_local_docs`.
async fn route_queries(
    context: &mut RequestContext<'_>,
    database: Arc<Database>,
    mut path: Segments<'_>,
    scope: Scope,
) -> HandlerResult {
    match path.next()?.as_deref() {
        Some("queries") if path.at_end() => all_docs::queries(context, database, scope).await,
        _ => Err(ApiError::missing()),
    }
}

/// Handles `_design/NAME`, whose slash needs no encoding, and the paths below it.
async fn route_design(
    context: &mut RequestContext<'_>,
    database: Arc<Database>,
    mut path: Segments<'_>,
) -> HandlerResult {
    let Some(name) = path.next()? else {
        return document::handle(context, database, "_design").await;
    };
    let id = format!("_design/{name}");
    match path.next()? {
        None => document::handle(context, database, &id).await,
        Some(below) if below == "_view" => view::route(context, database, &id, path, None).await,
        Some(below) if below == "_info" && path.at_end() => view::info(context, database, &id).await,
        Some(below) if below == "_update" => functions::update(context, database, &id, path).await,
        Some(below) if below == "_show" => functions::show(context, database, &id, path).await,
        Some(below) if below == "_list" => list(context, database, &id, path).await,
        Some(below) if below == "_rewrite" => functions::rewrite(context, database, &id, path).await,
        Some(below) if DESIGN_UNIMPLEMENTED.contains(&&*below) => Err(unimplemented(&below)),
        Some(first) => {
            let name = match path.rest()? {
                Some(rest) => format!("{first}/{rest}"),
                None => first.into_owned(),
            };
            attachment::handle(context, database, &id, &name).await
        }
    }
}

/// Handles `_list/NAME/VIEW` and `_list/NAME/DESIGN/VIEW`: the view's handler answers the request's query, and the
/// list function makes a response of that.
async fn list(
    context: &mut RequestContext<'_>,
    database: Arc<Database>,
    design: &str,
    mut path: Segments<'_>,
) -> HandlerResult {
    if !context.is_get() && *context.method() != Method::POST {
        return Err(ApiError::method_not_allowed("GET,POST,HEAD"));
    }
    let (Some(name), Some(first)) = (path.next()?, path.next()?) else { return Err(no_list()) };
    let (of_view, view) = match path.next()? {
        None => (design.to_owned(), first),
        Some(view) if path.at_end() => (format!("_design/{first}"), view),
        Some(_) => return Err(no_list()),
    };
    let source = DesignSource::read(&database, design).await?;
    source.check_function("lists", &name)?;
    let body = functions::read_list_body(context).await?;
    if let Some(body) = &body {
        context.body.replace(body.text.clone());
    }
    let mut head = context.head.clone();
    if context.is_head() {
        head.method = Method::GET;
    }
    // The body was decoded.
    head.headers.remove(header::CONTENT_ENCODING);
    let mut inner = context.with_head(&head);
    let view_path = utf8_percent_encode(&view, NON_ALPHANUMERIC).to_string();
    let response = match view.as_ref() {
        "_all_docs" => all_docs::handle(&mut inner, database.clone(), Scope::All).await?,
        _ => {
            let path = Segments::new(&view_path, false);
            view::route(&mut inner, database.clone(), &of_view, path, None).await?
        }
    };
    functions::list(context, &database, &source, &name, body, response).await
}

fn no_list() -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "list_error", "Invalid path.")
}

async fn route_local(
    context: &mut RequestContext<'_>,
    database: Arc<Database>,
    mut path: Segments<'_>,
) -> HandlerResult {
    let name: Cow<'_, str> = match path.next()? {
        Some(name) => name,
        None => return Err(ApiError::bad_request("Invalid _local document id.")),
    };
    match path.at_end() {
        true => local::handle(context, database, &format!("_local/{name}")).await,
        false => Err(no_local_attachments()),
    }
}

/// Whether a request would store a document of `_users` or `_replicator`, whose features aren't implemented
/// yet: a password would be stored in plain text, and nothing would replicate.
fn stores_without_effect(context: &RequestContext<'_>, database: &str, second: Option<&str>) -> bool {
    let last = database.rsplit('/').next().unwrap_or(database);
    ["_users", "_replicator"].contains(&last)
        && match second {
            None | Some("_bulk_docs") => *context.method() == Method::POST,
            Some(id) => !id.starts_with('_') && !context.is_get() && *context.method() != Method::DELETE,
        }
}

fn no_local_attachments() -> ApiError {
    ApiError::bad_request("_local documents do not accept attachments.")
}

fn unimplemented(what: &str) -> ApiError {
    ApiError::not_implemented(format!("{what} is not implemented yet."))
}
