//! The encoding of revision paths in leaves' metas and in path chunks.
//!
//! Ids that are all hashes are stored one after another. If there is any other id among them, each is stored
//! with its size before it, and a flag of the record says so.
//!
//! A leaf's meta holds its *tail*: its path back to the last generation that is a multiple of
//! [`PATH_CHUNK_COUNT`]. A tail of long texts doesn't fit a meta. It is cut: the meta holds the leaf's own id,
//! and a path chunk under the leaf's own revision holds the others.
//!
//! Bytes: `docs/format.md`.

use settee_store::META_SIZE_MAX;

use super::revision::{HASH_SIZE, REVISION_ID_SIZE_MAX, RevisionId};
use crate::{Error, Result};

/// Ids in a chunk of a revision path.
pub(crate) const PATH_CHUNK_COUNT: u32 = 16;

/// Most bytes of a leaf's meta before its ids.
pub(crate) const LEAF_HEADER_SIZE_MAX: usize = 9;

/// In a path chunk's meta: its ids are stored with their sizes.
const CHUNK_HAS_TEXTS: u8 = 128;

const _: () = assert!(PATH_CHUNK_COUNT < CHUNK_HAS_TEXTS as u32);
const _: () = assert!(REVISION_ID_SIZE_MAX <= u8::MAX as usize);
/// A cut tail fits, and so does a tail of hashes.
const _: () = assert!(
    LEAF_HEADER_SIZE_MAX + 1 + REVISION_ID_SIZE_MAX <= META_SIZE_MAX
        && LEAF_HEADER_SIZE_MAX + (1 + PATH_CHUNK_COUNT as usize) * HASH_SIZE <= META_SIZE_MAX
);

/// Whether an id is none of a hash.
pub(crate) fn has_texts(ids: &[RevisionId]) -> bool {
    ids.iter().any(|id| !id.is_hash())
}

/// The last generation before `generation` that is a multiple of [`PATH_CHUNK_COUNT`]; 0 precedes the first.
pub(crate) fn chunk_boundary(generation: u32) -> u32 {
    (generation - 1) / PATH_CHUNK_COUNT * PATH_CHUNK_COUNT
}

/// The part of a leaf's path that its own entry holds, or would hold if it weren't cut.
pub(crate) fn tail(generation: u32, path: &[RevisionId]) -> &[RevisionId] {
    &path[..path.len().min((generation - chunk_boundary(generation) + 1) as usize)]
}

/// Whether a leaf's tail is cut, since it doesn't fit a meta.
pub(crate) fn is_cut(tail: &[RevisionId]) -> bool {
    has_texts(tail) && LEAF_HEADER_SIZE_MAX + encoded_size(tail, true) > META_SIZE_MAX
}

/// Bytes of the encoded ids.
pub(crate) fn encoded_size(ids: &[RevisionId], has_texts: bool) -> usize {
    ids.iter().map(|id| usize::from(has_texts) + id.as_bytes().len()).sum()
}

/// Appends the encoded ids.
pub(crate) fn encode_ids(ids: &[RevisionId], has_texts: bool, out: &mut Vec<u8>) {
    for id in ids {
        let bytes = id.as_bytes();
        if has_texts {
            out.push(bytes.len() as u8);
        }
        out.extend_from_slice(bytes);
    }
}

/// The encoded ids one by one; `None` for bytes that aren't an id, after which there is none.
pub(crate) fn decode_ids(mut bytes: &[u8], has_texts: bool) -> impl Iterator<Item = Option<RevisionId>> {
    std::iter::from_fn(move || {
        let (first, _) = bytes.split_first()?;
        let (size, rest) = if has_texts { (usize::from(*first), &bytes[1..]) } else { (HASH_SIZE, bytes) };
        let id = rest.split_at_checked(size);
        bytes = id.map_or(&[], |(_, rest)| rest);
        Some(id.and_then(|(id, _)| RevisionId::from_bytes(id)))
    })
}

/// The meta and the value of a path chunk.
pub(crate) fn encode_chunk(ancestors: &[RevisionId]) -> ([u8; 1], Vec<u8>) {
    let has_texts = has_texts(ancestors);
    let count = u8::try_from(ancestors.len()).expect("a chunk is small");
    let mut value = Vec::with_capacity(encoded_size(ancestors, has_texts));
    encode_ids(ancestors, has_texts, &mut value);
    ([if has_texts { count | CHUNK_HAS_TEXTS } else { count }], value)
}

/// The ancestors that a path chunk lists.
///
/// # Errors
/// `Internal`: it is damaged.
pub(crate) fn decode_chunk(meta: &[u8], value: &[u8]) -> Result<Vec<RevisionId>> {
    let damaged = || Error::damaged("a chunk of a revision path is malformed");
    let has_texts = meta.first().is_some_and(|count| count & CHUNK_HAS_TEXTS != 0);
    let ids: Vec<RevisionId> =
        decode_ids(value, has_texts).collect::<Option<Vec<RevisionId>>>().ok_or_else(damaged)?;
    match ids.len() {
        0 => Err(damaged()),
        count if count > PATH_CHUNK_COUNT as usize => Err(damaged()),
        _ => Ok(ids),
    }
}

/// The number of ancestors that a path chunk lists.
pub(crate) fn decode_chunk_count(meta: &[u8]) -> usize {
    meta.first().map_or(0, |count| usize::from(count & !CHUNK_HAS_TEXTS))
}
