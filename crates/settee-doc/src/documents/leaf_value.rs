//! A leaf's value: the encoding byte, the leaf's tail, the table of its uploads if it has any, and its body.
//!
//! A tail is in the value, so that the index doesn't repeat it. An update of the leaf then reads its record.
//! Beside a body of at least [`TAIL_IN_META_BYTES_MIN`] a tail that fits the meta is there: reading so large a
//! record would cost more than the index entries, and the body is stored as it was parsed, without a copy.
//!
//! The table lists the leaf's attachments; an out-of-line body is its last entry, named [`BODY_NAME`].
//!
//! Bytes: `docs/format.md`.

use bytes::Bytes;
use settee_store::{BATCH_SIZE_MAX, KEY_SIZE_MAX, META_SIZE_MAX, Value};

use super::keys::{LeafState, encode_leaf_meta, leaf_meta_size};
use super::path::{CHUNK_SIZE_MAX, decode_tail, encode_tail, encoded_tail_size, tail, tail_size};
use super::revision::RevisionId;
use crate::attachments::Attachment;
use crate::{Error, Result};

/// Upper limit of [`crate::Options::document_bytes_max`]: 64 MiB.
pub const DOCUMENT_BYTES_LIMIT: usize = 64 << 20;

/// Bytes of half a batch that are kept for the keys and metas of a document's records, for the tails of two
/// leaves and for a path chunk. A document of the largest size is refused if its path needs more.
const OTHER_RECORDS_BYTES: usize = 32 << 10;
const _: () =
    assert!(4 * (KEY_SIZE_MAX + META_SIZE_MAX) + 3 * (1 + CHUNK_SIZE_MAX) <= 2 * OTHER_RECORDS_BYTES);

/// Smallest content of a leaf in bytes, body or table, beside which the tail is in the meta.
pub(crate) const TAIL_IN_META_BYTES_MIN: usize = 32 << 10;

/// Largest content of a leaf in bytes, without its encoding byte and its tail, in a log whose largest batch has
/// `batch_bytes_max` bytes: a batch must hold two such values, when a leaf loses to another. A larger body is
/// stored out of line.
pub(crate) fn leaf_bytes_max(batch_bytes_max: usize) -> usize {
    (batch_bytes_max.min(BATCH_SIZE_MAX) / 2).saturating_sub(OTHER_RECORDS_BYTES)
}

/// Encoding byte of a stored body: the body follows.
pub(crate) const ENCODING_PLAIN: u8 = 0;

/// Encoding byte of a stored body: a table of attachments precedes the body.
pub(crate) const ENCODING_ATTACHMENTS: u8 = 1;

/// Encoding byte of a table of attachments whose last entry is the out-of-line body.
pub(crate) const ENCODING_OUT_OF_LINE: u8 = 2;

/// Added to the encoding byte: a tail follows it.
const ENCODING_TAIL: u8 = 4;

/// Name of an out-of-line body in a leaf's table: no attachment has this name.
pub(crate) const BODY_NAME: &str = "";

/// A leaf's value, divided.
#[derive(Debug, Clone)]
pub(crate) struct LeafValue {
    /// One of the encodings.
    pub encoding: u8,
    /// The encoded tail; empty if the value has none.
    tail: Bytes,
    /// The table and the body.
    pub rest: Bytes,
}

impl LeafValue {
    /// Divides a stored value.
    ///
    /// # Errors
    /// `Internal`: it is damaged.
    pub(crate) fn decode(value: &Bytes) -> Result<LeafValue> {
        let encoding = *value.first().ok_or_else(|| Error::damaged("a body has no encoding"))?;
        let tail_size = match encoding & ENCODING_TAIL != 0 {
            true => encoded_tail_size(&value[1..]).ok_or_else(|| Error::damaged("a tail is malformed"))?,
            false => 0,
        };
        let (encoding, tail) = (encoding & !ENCODING_TAIL, value.slice(1..1 + tail_size));
        if !matches!(encoding, ENCODING_PLAIN | ENCODING_ATTACHMENTS | ENCODING_OUT_OF_LINE) {
            return Err(Error::damaged("a body has an unknown encoding"));
        }
        Ok(LeafValue { encoding, tail, rest: value.slice(1 + tail_size..) })
    }

    /// The ids of its tail, newest first; empty if it has none.
    ///
    /// # Errors
    /// `Internal`: it is damaged.
    pub(crate) fn tail(&self) -> Result<Vec<RevisionId>> {
        if self.tail.is_empty() { Ok(Vec::new()) } else { decode_tail(&self.tail) }
    }

    /// The same tail before other content, which begins with its encoding byte.
    pub(crate) fn with_content(&self, content: &[u8]) -> Bytes {
        let has_tail = if self.tail.is_empty() { 0 } else { ENCODING_TAIL };
        [&[content[0] | has_tail], &self.tail[..], &content[1..]].concat().into()
    }
}

/// Whether a leaf's tail is in its value: if it has one that isn't in its meta. `content_bytes` is the size of
/// its content.
pub(crate) fn is_tail_in_value(generation: u32, path: &[RevisionId], content_bytes: usize) -> bool {
    let tail = tail(generation, path);
    let fits_meta = || leaf_meta_size(&path[..1 + tail.len()]) <= META_SIZE_MAX;
    !tail.is_empty() && (content_bytes < TAIL_IN_META_BYTES_MIN || !fits_meta())
}

/// Adds a tail to content, which begins with its encoding byte.
pub(crate) fn add_tail(tail: &[RevisionId], content: &[u8]) -> Value {
    let mut value = Vec::with_capacity(content.len() + tail_size(tail));
    value.push(content[0] | ENCODING_TAIL);
    encode_tail(tail, &mut value);
    value.extend_from_slice(&content[1..]);
    Value::new(value.into())
}

/// The meta and the value of a leaf with this content, which begins with its encoding byte and has no tail.
/// `path` begins with the leaf itself and goes back at least as far as its tail, or as far as it is known.
pub(crate) fn encode_leaf(
    generation: u32,
    path: &[RevisionId],
    state: LeafState,
    content: &Value,
) -> (Vec<u8>, Value) {
    let tail = tail(generation, path);
    let has_tail_in_value = is_tail_in_value(generation, path, content.bytes().len());
    let state = LeafState { has_tail_in_value, ..state };
    match has_tail_in_value {
        true => (encode_leaf_meta(generation, &path[..1], state), add_tail(tail, content.bytes())),
        false => (encode_leaf_meta(generation, &path[..1 + tail.len()], state), content.clone()),
    }
}

/// Encodes a leaf's content with attachments: the encoding byte, the table's size (4 bytes, little-endian), the
/// table, and the body.
pub(crate) fn encode_table(attachments: &[Attachment], body: &[u8], encoding: u8) -> Bytes {
    let table = serde_json::to_vec(attachments).expect("a table is plain data");
    let mut value = Vec::with_capacity(5 + table.len() + body.len());
    value.push(encoding);
    value.extend_from_slice(&(table.len() as u32).to_le_bytes());
    value.extend_from_slice(&table);
    value.extend_from_slice(body);
    value.into()
}

/// Decodes the table and the body behind the encoding byte.
pub(crate) fn decode_table(rest: &Bytes) -> Result<(Vec<Attachment>, Bytes)> {
    let damaged = || Error::damaged("a table of attachments is malformed");
    let (size, _) = rest.split_first_chunk::<4>().ok_or_else(damaged)?;
    let end = 4 + u32::from_le_bytes(*size) as usize;
    let table = rest.get(4..end).ok_or_else(damaged)?;
    let table = serde_json::from_slice(table).map_err(|_| damaged())?;
    Ok((table, rest.slice(end..)))
}
