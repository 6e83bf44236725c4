//! `_shards` and `_sync_shards`: of a database there is one shard, on one node.

use hyper::{Method, StatusCode};
use settee_doc::Database;

use crate::error::Failure;
use crate::node::NODE;
use crate::reply::{self, Answer};
use crate::server::Call;

/// All hashes of ids.
const RANGE: &str = "00000000-ffffffff";

/// All shards.
pub(crate) fn all(call: &Call<'_>) -> Answer {
    check_get(call)?;
    Ok(reply::json(StatusCode::OK, format!("{{\"shards\":{{\"{RANGE}\":[\"{NODE}\"]}}}}\n")))
}

/// The shard that a document is in, whether it is there or not.
pub(crate) fn of_document(call: &Call<'_>, database: &Database, id: &str) -> Answer {
    check_get(call)?;
    database.check_id(id)?;
    Ok(reply::json(StatusCode::OK, format!("{{\"range\":\"{RANGE}\",\"nodes\":[\"{NODE}\"]}}\n")))
}

/// Nothing is behind anything: there is one copy.
pub(crate) fn sync(call: &Call<'_>) -> Answer {
    match *call.method() {
        Method::POST => Ok(reply::ok(StatusCode::ACCEPTED)),
        _ => Err(Failure::method_not_allowed("POST")),
    }
}

fn check_get(call: &Call<'_>) -> Result<(), Failure> {
    if call.is_get() { Ok(()) } else { Err(Failure::method_not_allowed("GET")) }
}
