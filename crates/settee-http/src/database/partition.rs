//! `_partition/…`: requests for one partition of a partitioned database.

use std::sync::Arc;

use hyper::{Method, StatusCode};
use settee_doc::Database;

use super::all_docs::{self, Scope};
use crate::context::RequestContext;
use crate::error::ApiError;
use crate::mango;
use crate::query::Segments;
use crate::response::{self, HandlerResult};
use crate::view;

/// Handles a path below `_partition`.
pub(crate) async fn handle(
    context: &mut RequestContext<'_>,
    database: Arc<Database>,
    mut path: Segments<'_>,
) -> HandlerResult {
    let Some(partition) = path.next()? else {
        return Err(ApiError::bad_request("invalid_partition_req"));
    };
    let Some(what) = path.next()? else {
        return info(context, &database, &partition).await;
    };
    check_partitioned(&database)?;
    settee_doc::check_partition(&partition)?;
    if context.query().get("partition").is_some_and(|named| named != partition) {
        return Err(ApiError::bad_request("Conflicting value for `partition` in query string"));
    }
    if what == "_design" {
        let (Some(name), Some(below)) = (path.next()?, path.next()?) else { return Err(ApiError::missing()) };
        let id = format!("_design/{name}");
        return match below.as_ref() {
            "_view" => view::route(context, database, &id, path, Some(&partition)).await,
            "_search" | "_nouveau" => {
                Err(ApiError::not_implemented(format!("{below} of a partition is not implemented yet.")))
            }
            _ => Err(ApiError::missing()),
        };
    }
    let partition = partition.into_owned();
    match what.as_ref() {
        "_find" if path.at_end() => return mango::find(context, database, Some(partition)).await,
        "_explain" if path.at_end() => return mango::explain(context, database, Some(partition)).await,
        "_index" => return mango::indexes(context, database, path).await,
        _ => {}
    }
    let scope = Scope::Partition(partition);
    match what.as_ref() {
        "_all_docs" if path.at_end() => all_docs::handle(context, database, scope).await,
        "_all_docs" if path.next()?.as_deref() == Some("queries") && path.at_end() => {
            all_docs::queries(context, database, scope).await
        }
        _ => Err(ApiError::missing()),
    }
}

fn check_partitioned(database: &Database) -> Result<(), ApiError> {
    match database.is_partitioned() {
        true => Ok(()),
        false => Err(ApiError::bad_request("database is not partitioned")),
    }
}

/// Reports the size of a partition, which may be empty.
async fn info(context: &RequestContext<'_>, database: &Database, partition: &str) -> HandlerResult {
    if *context.method() == Method::POST || context.is_get() {
        settee_doc::check_partition(partition)?;
    }
    if !context.is_get() {
        return Err(ApiError::method_not_allowed("GET"));
    }
    check_partitioned(database)?;
    let counts = database.snapshot().counts(&settee_doc::partition_prefix(partition)).await?;
    let mut text = b"{\"db_name\":".to_vec();
    settee_doc::write_json_string(database.name(), &mut text);
    let sizes = format!(",\"sizes\":{{\"active\":{0},\"external\":{0}}},\"partition\":", counts.bytes);
    text.extend_from_slice(sizes.as_bytes());
    settee_doc::write_json_string(partition, &mut text);
    let rest = format!(",\"doc_count\":{},\"doc_del_count\":{}}}\n", counts.doc_count, counts.doc_del_count);
    text.extend_from_slice(rest.as_bytes());
    Ok(response::json(StatusCode::OK, text))
}
