//! `_shards` and `_sync_shards`. A database is one tree of one node, whatever they report: the shards that
//! it was created with (`q`), split as CouchDB splits them.
//!
//! Source: of the ranges and the hash, CouchDB 3.5.0's `mem3`: equal parts of the numbers of 32 bits, the
//! last one with what is left, and the CRC-32 of a document's id, or of its partition.

use hyper::{Method, StatusCode};
use settee_doc::Database;

use crate::error::Failure;
use crate::node::NODE;
use crate::reply::{self, Answer};
use crate::server::Call;

/// All shards.
pub(crate) fn all(call: &Call<'_>, database: &Database) -> Answer {
    check_get(call)?;
    let count = database.shard_count();
    let shard = |index| format!("\"{}\":[\"{NODE}\"]", range(index, count));
    let shards: Vec<String> = (0..count).map(shard).collect();
    Ok(reply::json(StatusCode::OK, format!("{{\"shards\":{{{}}}}}\n", shards.join(","))))
}

/// The shard that a document is in, whether it is there or not.
pub(crate) fn of_document(call: &Call<'_>, database: &Database, id: &str) -> Answer {
    check_get(call)?;
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
    Ok(reply::json(StatusCode::OK, format!("{{\"range\":\"{range}\",\"nodes\":[\"{NODE}\"]}}\n")))
}

/// The hashes of all shards but the last one.
fn shard_size(count: u64) -> u64 {
    (1 << 32) / count
}

/// The first and the last hash of a shard.
fn range(index: u64, count: u64) -> String {
    let first = index * shard_size(count);
    let end = if index + 1 == count { 1 << 32 } else { first + shard_size(count) };
    format!("{first:08x}-{:08x}", end - 1)
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
