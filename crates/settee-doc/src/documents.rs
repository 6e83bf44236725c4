//! Documents: revisions and their trees, edits, and how both are stored as records.
//!
//! [`Edit`] is a document that is to be written, [`Document`] a revision that was read. A document's tree
//! (`rev_tree`) consists of its leaves, each a record whose key and meta are in `keys` and whose value is in
//! `leaf_value`. Nothing here knows of an open database; `rev_tree` reads a store's snapshot.

pub(crate) mod design;
mod document;
mod edit;
mod id;
pub(crate) mod keys;
pub(crate) mod leaf_value;
mod partition;
pub(crate) mod path;
pub(crate) mod rev_tree;
mod revision;

pub use document::{Document, Extras, LargeBody};
#[cfg(test)]
pub(crate) use edit::ATTACHMENTS_MAX;
pub use edit::{Edit, Options, check_attachment_name, parse_local_revision};
pub use id::{ID_SIZE_MAX, check_document_id};
pub use leaf_value::DOCUMENT_BYTES_LIMIT;
pub use partition::{check_partition, partition_prefix};
pub(crate) use partition::{check_partitioned_id, partition_of};
pub use revision::{Hash, REVISION_ID_SIZE_MAX, Revision, RevisionId};
pub(crate) use revision::{parse_hash, write_hash};
