//! The revision that an edit replaces.
//!
//! A write that was accepted just now isn't visible yet. An edit that doesn't fit the visible revisions waits
//! for accepted writes before it fails.

use hyper::StatusCode;
use settee_doc::{Database, Document, Edit, Revision, Snapshot};

use super::revision_arg;
use super::whole::read_whole;
use crate::body::{BodyMemory, MemoryPermit};
use crate::error::ApiError;

/// The revision with its body, if it is a leaf.
async fn one_leaf(snapshot: &Snapshot, id: &str, revision: &Revision) -> Result<Document, ApiError> {
    snapshot.revision(id, revision, false).await?.into_iter().next().ok_or_else(ApiError::missing)
}

/// Fails early with a conflict, before anything is uploaded for the edit. If the edit doesn't fit the visible
/// revisions, waits for accepted writes to become visible and checks again.
pub(crate) async fn check_leaf(database: &Database, edit: &Edit) -> Result<(), ApiError> {
    if fits(&database.snapshot(), edit).await? {
        return Ok(());
    }
    database.barrier().await?;
    match fits(&database.snapshot(), edit).await? {
        true => Ok(()),
        false => Err(revision_arg::conflict()),
    }
}

async fn fits(snapshot: &Snapshot, edit: &Edit) -> Result<bool, ApiError> {
    Ok(match &edit.revision {
        Some(revision) => snapshot.leaves(&edit.id).await?.iter().any(|leaf| leaf.revision == *revision),
        None => snapshot.find(&edit.id).await?.is_none_or(|summary| summary.deleted),
    })
}

/// Reads the revision that an edit replaces, with its whole body. If it isn't visible, waits for accepted writes
/// first. Returns it with the permit for the memory of a large body.
///
/// # Errors
/// A conflict if the revision was replaced; CouchDB's `missing_rev` if it never was a leaf; those of
/// [`read_whole`].
pub(crate) async fn edited_revision(
    database: &Database,
    id: &str,
    revision: &Revision,
    body_memory: &BodyMemory,
) -> Result<(Document, MemoryPermit), ApiError> {
    let read = async || {
        let snapshot = database.snapshot();
        let document = one_leaf(&snapshot, id, revision).await?;
        read_whole(&snapshot, document, body_memory).await
    };
    let found = match read().await {
        Err(failure) if failure.status == StatusCode::NOT_FOUND => {
            database.barrier().await?;
            read().await
        }
        found => found,
    };
    match found {
        Err(failure) if failure.status == StatusCode::NOT_FOUND => {
            Err(match database.snapshot().history(id, revision).await {
                Ok(_) => revision_arg::conflict(),
                Err(_) => revision_arg::or_conflict(failure),
            })
        }
        found => found,
    }
}
