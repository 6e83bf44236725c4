//! An attachment of an edit: its description, and the location of its content.

use bytes::Bytes;

use super::digest::Md5Digest;
use super::upload::Upload;

/// An attachment of an edit.
#[derive(Debug, Clone)]
pub struct NewAttachment {
    /// Its name.
    pub name: String,
    /// Its media type; ignored for a stub, which keeps the stored type.
    pub content_type: String,
    /// The generation of the revision that added it, for replicated edits and stubs. Ignored for the new
    /// attachments of an interactive edit, which get the new revision's generation.
    pub revpos: Option<u32>,
    /// The location of its content.
    pub content: Content,
}

/// Location of the content of an edit's attachment.
#[derive(Debug, Clone)]
pub enum Content {
    /// In the revision that the edit replaces; with the digest that the client expects.
    Stub(Option<Md5Digest>),
    /// In the edit, decoded.
    Inline(Bytes),
    /// Behind the document in the request; the caller must upload it before the edit is made.
    Follows(Following),
    /// In the store.
    Stored(Upload),
}

/// Description of content that follows a document in the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Following {
    /// Number of bytes that follow.
    pub length: u64,
    /// Whether they are compressed by gzip.
    pub is_gzip: bool,
    /// Their digest.
    pub digest: Option<Md5Digest>,
}
