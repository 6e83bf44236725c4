//! `_shards` and `_sync_shards`. A database here is one tree on one node; the endpoints report the shards
//! that it was created with (`q`), with CouchDB's hash ranges.
//!
//! Source for ranges and hash: CouchDB 3.5.0's `mem3`. The 32-bit range is divided into equal parts, the last
//! one with the remainder; the hash is the CRC-32 of a document's id, or of its partition.

use hyper::{Method, StatusCode};
use settee_doc::Database;

use crate::context::RequestContext;
use crate::error::ApiError;
use crate::identity::NODE;
use crate::response::{self, HandlerResult};

/// Handles `_shards`: all shards.
pub(crate) fn all(context: &RequestContext<'_>, database: &Database) -> HandlerResult {
    check_get(context)?;
    let count = database.shard_count();
    let shard = |index| format!("\"{}\":[\"{NODE}\"]", range(index, count));
    let shards: Vec<String> = (0..count).map(shard).collect();
    Ok(response::json(StatusCode::OK, format!("{{\"shards\":{{{}}}}}\n", shards.join(","))))
}

/// Handles `_shards/{id}`: the shard of a document, which needn't exist.
pub(crate) fn of_document(context: &RequestContext<'_>, database: &Database, id: &str) -> HandlerResult {
    check_get(context)?;
    database.check_id(id)?;
    let hashed = match id.split_once(':') {
        Some((partition, _)) if database.is_partitioned() && !id.starts_with("_design/") => partition,
        _ => id,
    };
    let mut hash = flate2::Crc::new();
    hash.update(hashed.as_bytes());
    let count = database.shard_count();
    let index = (u64::from(hash.sum()) / shard_size(count)).min(count - 1);
    let range = range(index, count);
    Ok(response::json(StatusCode::OK, format!("{{\"range\":\"{range}\",\"nodes\":[\"{NODE}\"]}}\n")))
}

/// Number of hashes in each shard but the last.
fn shard_size(count: u64) -> u64 {
    (1 << 32) / count
}

/// The first and the last hash of a shard.
fn range(index: u64, count: u64) -> String {
    let first = index * shard_size(count);
    let end = if index + 1 == count { 1 << 32 } else { first + shard_size(count) };
    format!("{first:08x}-{:08x}", end - 1)
}

/// Handles `_sync_shards`, which has nothing to do because there is one copy.
pub(crate) fn sync(context: &RequestContext<'_>) -> HandlerResult {
    match *context.method() {
        Method::POST => Ok(response::ok(StatusCode::ACCEPTED)),
        _ => Err(ApiError::method_not_allowed("POST")),
    }
}

fn check_get(context: &RequestContext<'_>) -> Result<(), ApiError> {
    if context.is_get() { Ok(()) } else { Err(ApiError::method_not_allowed("GET")) }
}
