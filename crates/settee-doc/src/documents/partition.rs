//! Partitions: in a partitioned database a document's id is `partition:id`.
//!
//! Design documents and local documents belong to no partition. Ids sort by their bytes, so that a
//! partition's documents are adjacent.

use super::id::check_document_id;
use crate::{Error, ErrorKind, Result};

/// Checks a partition's name against CouchDB's rules.
///
/// # Errors
/// `IllegalPartition`.
pub fn check_partition(partition: &str) -> Result<()> {
    let illegal = |reason: &str| Err(Error::new(ErrorKind::IllegalPartition, reason));
    if partition.is_empty() {
        return illegal("Partition must not be empty");
    }
    if partition.starts_with('_') {
        return illegal("Partition must not start with an underscore");
    }
    if partition.contains(':') {
        return illegal("Partition must not contain a colon");
    }
    Ok(())
}

/// The common prefix of the ids of a partition's documents.
pub fn partition_prefix(partition: &str) -> String {
    format!("{partition}:")
}

/// The partition of a document; `None` for design documents and local documents.
pub(crate) fn partition_of(id: &str) -> Option<&str> {
    match id.starts_with('_') {
        true => None,
        false => id.split_once(':').map(|(partition, _)| partition),
    }
}

/// Checks a valid document id against the rules of a partitioned database.
pub(crate) fn check_partitioned_id(id: &str) -> Result<()> {
    if id.starts_with("_design/") || id.starts_with("_local/") {
        return Ok(());
    }
    let parts = id.split_once(':');
    let (partition, rest) =
        parts.ok_or_else(|| Error::new(ErrorKind::IllegalDocId, "Doc id must be of form partition:id"))?;
    check_partition(partition)?;
    check_document_id(rest)
}
