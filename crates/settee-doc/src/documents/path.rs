//! The encoding of revision paths: in leaves, and in path chunks.
//!
//! Ids that are all hashes are stored one after another. If there is any other id among them, each is stored
//! with its size before it, and a flag of the record says so.
//!
//! A leaf's record holds its *tail*: its ancestors back to the last generation that is a multiple of
//! [`PATH_CHUNK_COUNT`]. The rest of the path is in path chunks. A leaf of such a generation has no tail: its
//! ancestors are in the path chunk of its own revision. `leaf_value` decides where in the record a tail is.
//!
//! A chunk lists as many ancestors, and every third of them, a *long* one, three times as many: it replaces the
//! two before it. So the tail that each update writes is short, and a long path has few records.
//!
//! Bytes: `docs/format.md`.

use settee_store::META_SIZE_MAX;

use super::revision::{HASH_SIZE, REVISION_ID_SIZE_MAX, RevisionId};
use crate::{Error, Result};

/// Generations between two path chunks, and ids in one that isn't long.
pub(crate) const PATH_CHUNK_COUNT: u32 = 32;

/// Ids in a long path chunk.
pub(crate) const LONG_CHUNK_COUNT: u32 = 3 * PATH_CHUNK_COUNT;

/// Most bytes of a leaf's meta before its ids.
pub(crate) const LEAF_HEADER_SIZE_MAX: usize = 9;

/// Most bytes of the ids of a tail, or of a path chunk that isn't long.
pub(crate) const CHUNK_SIZE_MAX: usize = PATH_CHUNK_COUNT as usize * (1 + REVISION_ID_SIZE_MAX);

/// Beside the number of ids: they are stored with their sizes.
const CHUNK_HAS_TEXTS: u8 = 128;

const _: () = assert!(LONG_CHUNK_COUNT < CHUNK_HAS_TEXTS as u32);
const _: () = assert!(REVISION_ID_SIZE_MAX <= u8::MAX as usize);
/// A leaf's own id fits its meta.
const _: () = assert!(LEAF_HEADER_SIZE_MAX + 1 + REVISION_ID_SIZE_MAX <= META_SIZE_MAX);

/// Whether an id is none of a hash.
pub(crate) fn has_texts(ids: &[RevisionId]) -> bool {
    ids.iter().any(|id| !id.is_hash())
}

/// The last generation up to this one that is a multiple of [`PATH_CHUNK_COUNT`]; 0 precedes the first.
pub(crate) fn chunk_boundary(generation: u32) -> u32 {
    generation / PATH_CHUNK_COUNT * PATH_CHUNK_COUNT
}

/// Number of ancestors in the path chunk of a revision of this generation, if that many are known.
pub(crate) fn chunk_length(boundary: u32) -> u32 {
    if boundary.is_multiple_of(LONG_CHUNK_COUNT) { LONG_CHUNK_COUNT } else { PATH_CHUNK_COUNT }
}

/// Whether a leaf of this generation may have a tail.
pub(crate) fn has_tail(generation: u32) -> bool {
    generation > 1 && !generation.is_multiple_of(PATH_CHUNK_COUNT)
}

/// The tail in a leaf's path, which begins with the leaf itself and goes back at least as far as the tail, or
/// as far as it is known.
pub(crate) fn tail(generation: u32, path: &[RevisionId]) -> &[RevisionId] {
    &path[1..path.len().min((generation - chunk_boundary(generation) + 1) as usize)]
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
    let mut value = Vec::with_capacity(encoded_size(ancestors, has_texts));
    encode_ids(ancestors, has_texts, &mut value);
    ([encode_count(ancestors, has_texts)], value)
}

/// The number of ids of a path chunk or a tail, and whether they are stored with their sizes.
fn encode_count(ids: &[RevisionId], has_texts: bool) -> u8 {
    let count = u8::try_from(ids.len()).expect("a chunk is small");
    if has_texts { count | CHUNK_HAS_TEXTS } else { count }
}

/// Bytes of an encoded tail.
pub(crate) fn tail_size(tail: &[RevisionId]) -> usize {
    1 + encoded_size(tail, has_texts(tail))
}

/// Appends a tail: the number of its ids, and the ids.
pub(crate) fn encode_tail(tail: &[RevisionId], out: &mut Vec<u8>) {
    let has_texts = has_texts(tail);
    out.push(encode_count(tail, has_texts));
    encode_ids(tail, has_texts, out);
}

/// Size of the encoded tail at the beginning of `bytes`; `None` if they are too short.
pub(crate) fn encoded_tail_size(bytes: &[u8]) -> Option<usize> {
    let (count, ids) = bytes.split_first()?;
    let id_count = decode_chunk_count(&[*count]);
    let size = match count & CHUNK_HAS_TEXTS != 0 {
        false => id_count * HASH_SIZE,
        true => (0..id_count).try_fold(0, |at, _| Some(at + 1 + usize::from(*ids.get(at)?)))?,
    };
    (size <= ids.len()).then_some(1 + size)
}

/// The ids of an encoded tail.
///
/// # Errors
/// `Internal`: it is damaged.
pub(crate) fn decode_tail(bytes: &[u8]) -> Result<Vec<RevisionId>> {
    let (count, ids) = bytes.split_at_checked(1).ok_or_else(|| Error::damaged("a tail is empty"))?;
    decode_chunk(count, ids)
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
        count if count > LONG_CHUNK_COUNT as usize => Err(damaged()),
        _ => Ok(ids),
    }
}

/// The number of ancestors that a path chunk lists.
pub(crate) fn decode_chunk_count(meta: &[u8]) -> usize {
    meta.first().map_or(0, |count| usize::from(count & !CHUNK_HAS_TEXTS))
}
