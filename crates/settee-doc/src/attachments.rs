//! Attachments: files that belong to a document.
//!
//! An attachment's content is stored in chunks of [`CHUNK_BYTES`], each a record under its own key, which
//! names the document and the upload. A leaf's value begins with a table of its uploads. So revisions share
//! common attachments, and compaction and backups need no knowledge of attachments. The update that removes
//! the last reference to an upload also removes its chunks.
//!
//! An upload is written as it arrives, without a sync of its own: the update that refers to it follows in the
//! log, and the update's sync covers both. Until then an upload intent marks it; intents that a crash left
//! are removed with their chunks after the database is opened. A small upload is written with the update
//! itself.
//!
//! Invariants:
//! 1. Each chunk that a leaf's table refers to exists: it precedes the leaf in the log.
//! 2. A chunk that no leaf refers to has an upload intent.

mod attachment;
mod chunk;
mod digest;
mod new_attachment;
mod reader;
mod unreferenced;
mod upload;
mod uploading;

pub use attachment::Attachment;
pub use chunk::CHUNK_BYTES;
pub(crate) use chunk::UploadId;
pub use digest::{Md5Digest, digest_text, parse_digest};
pub use new_attachment::{Content, Following, NewAttachment};
pub use reader::AttachmentReader;
pub(crate) use unreferenced::{UnreferencedUpload, UnreferencedUploads, remove_unused};
pub use upload::Upload;
pub(crate) use upload::UploadGuard;
pub use uploading::{Uploading, is_compressible};
