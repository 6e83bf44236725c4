//! `_partition/…`: what a partitioned database has in one of its partitions.

use std::sync::Arc;

use hyper::{Method, StatusCode};
use settee_doc::Database;

use crate::all_docs::{self, Scope};
use crate::error::Failure;
use crate::query::Segments;
use crate::reply::{self, Answer};
use crate::server::Call;

/// The path goes on behind `_partition`.
pub(crate) async fn handle(call: &mut Call<'_>, database: Arc<Database>, mut path: Segments<'_>) -> Answer {
    let Some(partition) = path.next()? else {
        return Err(Failure::bad_request("invalid_partition_req"));
    };
    let Some(what) = path.next()? else {
        return info(call, &database, &partition).await;
    };
    check_partitioned(&database)?;
    settee_doc::check_partition(&partition)?;
    if call.query().get("partition").is_some_and(|named| named != partition) {
        return Err(Failure::bad_request("Conflicting value for `partition` in query string"));
    }
    let scope = Scope::Partition(partition.into_owned());
    match what.as_ref() {
        "_all_docs" if path.at_end() => all_docs::handle(call, database, scope).await,
        "_all_docs" if path.next()?.as_deref() == Some("queries") && path.at_end() => {
            all_docs::queries(call, database, scope).await
        }
        "_index" | "_find" | "_explain" | "_design" => {
            Err(Failure::not_implemented(format!("{what} of a partition is not implemented yet.")))
        }
        _ => Err(Failure::missing()),
    }
}

fn check_partitioned(database: &Database) -> Result<(), Failure> {
    match database.is_partitioned() {
        true => Ok(()),
        false => Err(Failure::bad_request("database is not partitioned")),
    }
}

/// How much there is in a partition, also where it holds nothing.
async fn info(call: &Call<'_>, database: &Database, partition: &str) -> Answer {
    if *call.method() == Method::POST || call.is_get() {
        settee_doc::check_partition(partition)?;
    }
    if !call.is_get() {
        return Err(Failure::method_not_allowed("GET"));
    }
    check_partitioned(database)?;
    let counts = database.view().counts(&settee_doc::partition_prefix(partition)).await?;
    let mut text = b"{\"db_name\":".to_vec();
    settee_doc::write_json_string(database.name(), &mut text);
    let sizes = format!(",\"sizes\":{{\"active\":{0},\"external\":{0}}},\"partition\":", counts.bytes);
    text.extend_from_slice(sizes.as_bytes());
    settee_doc::write_json_string(partition, &mut text);
    let rest = format!(",\"doc_count\":{},\"doc_del_count\":{}}}\n", counts.doc_count, counts.doc_del_count);
    text.extend_from_slice(rest.as_bytes());
    Ok(reply::json(StatusCode::OK, text))
}
