//! An attachment of a stored revision: its entry in a leaf's table, and its JSON members.

use serde::{Deserialize, Serialize};

use super::chunk::{UploadId, chunk_count};
use super::digest::{Md5Digest, digest_text};
use crate::documents::keys::chunk_key;
use crate::json::write_json_string;

/// An attachment of a revision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// Its name.
    pub name: String,
    /// Its media type.
    pub content_type: String,
    /// The generation of the revision that added it.
    pub revpos: u32,
    /// The digest of the stored bytes.
    #[serde(with = "hex")]
    pub digest: Md5Digest,
    /// Size of the content in bytes.
    pub length: u64,
    /// Size of the stored bytes, if the content is stored compressed by gzip.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gzip_length: Option<u64>,
    #[serde(with = "hex")]
    pub(super) upload: UploadId,
}

impl Attachment {
    /// Number of stored bytes.
    pub fn stored_length(&self) -> u64 {
        self.gzip_length.unwrap_or(self.length)
    }

    /// The keys of its chunks.
    pub(crate) fn chunk_keys(&self, id: &str) -> impl Iterator<Item = Vec<u8>> {
        (0..chunk_count(self.stored_length())).map(move |index| chunk_key(id, &self.upload, index))
    }

    /// The key of its last chunk, which is the first to be removed; `None` if it has none.
    pub(crate) fn last_chunk_key(&self, id: &str) -> Option<Vec<u8>> {
        let last = chunk_count(self.stored_length()).checked_sub(1)?;
        Some(chunk_key(id, &self.upload, last))
    }

    /// Appends the members of a stub, except `stub` itself. With `encoding` they include the compression of
    /// the stored bytes.
    pub fn write_members(&self, encoding: bool, out: &mut Vec<u8>) {
        self.write_described(true, encoding, out);
    }

    /// Appends the members beside `data`: as [`Attachment::write_members`], without the length.
    pub fn write_members_with_data(&self, encoding: bool, out: &mut Vec<u8>) {
        self.write_described(false, encoding, out);
    }

    fn write_described(&self, has_length: bool, encoding: bool, out: &mut Vec<u8>) {
        out.extend_from_slice(b"\"content_type\":");
        write_json_string(&self.content_type, out);
        let mut number = |name: &str, value: u64| {
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
        };
        number(",\"revpos\":", self.revpos.into());
        if has_length {
            number(",\"length\":", self.length);
        }
        if let Some(length) = self.gzip_length.filter(|_| encoding) {
            number(",\"encoded_length\":", length);
            out.extend_from_slice(b",\"encoding\":\"gzip\"");
        }
        out.extend_from_slice(b",\"digest\":\"");
        out.extend_from_slice(digest_text(&self.digest).as_bytes());
        out.push(b'"');
    }
}

/// Serializes 16 bytes as 32 hex digits.
mod hex {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8; 16], serializer: S) -> Result<S::Ok, S::Error> {
        let mut text = Vec::with_capacity(32);
        crate::documents::write_hash(bytes, &mut text);
        serializer.serialize_str(std::str::from_utf8(&text).expect("digits are ASCII"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[u8; 16], D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        crate::documents::parse_hash(&text).map_err(serde::de::Error::custom)
    }
}
