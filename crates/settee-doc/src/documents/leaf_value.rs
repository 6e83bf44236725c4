//! A leaf's value: the encoding byte, the table of its uploads if it has any, and its body.
//!
//! The table lists the leaf's attachments; an out-of-line body is its last entry, named [`BODY_NAME`].
//!
//! Bytes: `docs/format.md`.

use bytes::Bytes;
use settee_store::{BATCH_SIZE_MAX, KEY_SIZE_MAX, META_SIZE_MAX};

use crate::attachments::Attachment;
use crate::{Error, Result};

/// Upper limit of [`crate::Options::document_bytes_max`]: 64 MiB.
pub const DOCUMENT_BYTES_LIMIT: usize = 64 << 20;

/// Bytes of half a batch that are kept for the keys and metas of a document's other records.
const OTHER_RECORDS_BYTES: usize = 32 << 10;
const _: () = assert!(4 * (KEY_SIZE_MAX + META_SIZE_MAX) + (16 << 10) <= 2 * OTHER_RECORDS_BYTES);

/// Largest leaf's value in bytes, without its encoding byte, in a log whose largest batch has
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

/// Name of an out-of-line body in a leaf's table: no attachment has this name.
pub(crate) const BODY_NAME: &str = "";

/// Encodes a leaf's value with attachments: the encoding byte, the table's size (4 bytes, little-endian), the
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
