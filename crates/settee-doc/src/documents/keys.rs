//! The store's keys and metas for documents.
//!
//! | key | meta | value |
//! |---|---|---|
//! | `d` id | the winning leaf | its tail and its body |
//! | `c` id-size id revision | another leaf | its tail and its body |
//! | `p` id-size id revision | count | the ids of that revision's ancestors |
//! | `a` id-size id upload number | | a chunk of an attachment, or of an out-of-line body |
//! | `u` id-size id upload | | an upload intent: no leaf refers to these chunks yet |
//! | `l` id | the local document's revision number | its body |
//! | `s` name | a number | a setting or counter of the database |
//! | `m` id | | never stored, only removed: by each purge of the document's leaves |
//! | `g` number | | a purge info: the document and revisions of that purge |
//!
//! A revision in a key is its generation and the bytes of its id, at the key's end.
//!
//! A leaf's meta has its own revision. Its tail, the path back to the last generation that is a multiple of
//! `PATH_CHUNK_COUNT`, is in its value, which the index doesn't repeat; beside a large body it is in the meta
//! (`leaf_value`). The rest of the path is stored in chunks of that many ids, each under the revision whose
//! ancestors it lists. So the size of an update doesn't grow with the document's history, and leaves that share
//! ancestors share their chunks. `path` encodes the ids. The formats are specified in `docs/format.md`.

use settee_store::{Aggregates, KEY_SIZE_MAX};

use super::id::ID_SIZE_MAX;
use super::path::{LEAF_HEADER_SIZE_MAX, decode_ids, encode_ids, encoded_size, has_texts};
use super::revision::{HASH_SIZE, REVISION_ID_SIZE_MAX, Revision, RevisionId};
use crate::attachments::UploadId;
use crate::{Error, Result};

/// Index of the aggregate that counts documents which aren't deleted.
pub(crate) const AGGREGATE_DOCUMENTS: usize = 0;
/// Index of the aggregate that counts deleted documents.
pub(crate) const AGGREGATE_DELETED: usize = 1;
/// Index of the aggregate of the live records' bytes.
pub(crate) const AGGREGATE_BYTES: usize = 2;

/// First byte of documents' keys.
pub(crate) const DOCUMENT: u8 = b'd';
pub(crate) const CONFLICT: u8 = b'c';
pub(crate) const PATH: u8 = b'p';
const PURGE_MARK: u8 = b'm';
pub(crate) const CHUNK: u8 = b'a';
/// First byte of upload intents' keys.
pub(crate) const INTENT: u8 = b'u';
/// First byte of local documents' keys.
pub(crate) const LOCAL: u8 = b'l';
/// First byte of the keys of settings and counters.
pub(crate) const COUNTER: u8 = b's';
/// First byte of purge infos' keys.
pub(crate) const PURGE: u8 = b'g';

const FLAG_DELETED: u8 = 1;
const FLAG_CONFLICTS: u8 = 2;
const FLAG_ATTACHMENTS: u8 = 4;
const FLAG_OUT_OF_LINE: u8 = 8;
/// The ids are stored with their sizes.
const FLAG_TEXTS: u8 = 16;
/// The leaf's tail is in its value.
const FLAG_TAIL_IN_VALUE: u8 = 32;
/// Set in every leaf's meta: it, its value and its path chunks have the present form. Earlier versions, whose
/// tails went back to other generations, didn't set it.
const FLAG_FORM: u8 = 64;

/// Generations between two path chunks, and ids in one, in the version before.
pub(crate) const PREVIOUS_CHUNK_COUNT: u32 = 16;

/// Bytes of a leaf's meta before its ids, without the size of an out-of-line body.
const META_HEADER_SIZE: usize = 5;
/// Bytes of the size of an out-of-line body in a leaf's meta.
const OUT_OF_LINE_SIZE: usize = 4;
const _: () = assert!(META_HEADER_SIZE + OUT_OF_LINE_SIZE == LEAF_HEADER_SIZE_MAX);

/// Bytes of the size of an id in a key.
const ID_SIZE_BYTES: usize = 2;
/// Bytes of a generation in a key.
const GENERATION_BYTES: usize = 4;

const _: () =
    assert!(1 + ID_SIZE_BYTES + ID_SIZE_MAX + GENERATION_BYTES + REVISION_ID_SIZE_MAX <= KEY_SIZE_MAX);

pub(crate) fn document_key(id: &str) -> Vec<u8> {
    plain_key(DOCUMENT, id)
}

pub(crate) fn local_key(id: &str) -> Vec<u8> {
    plain_key(LOCAL, id)
}

/// The key whose tombstones tell when leaves of a document were purged: no record older than one of them was
/// replaced only later.
pub(crate) fn purge_mark_key(id: &str) -> Vec<u8> {
    plain_key(PURGE_MARK, id)
}

fn plain_key(kind: u8, id: &str) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + id.len());
    key.push(kind);
    key.extend_from_slice(id.as_bytes());
    key
}

/// The id in a document's key. Ids are valid UTF-8 when they are stored.
pub(crate) fn document_id(key: &[u8]) -> Result<&str> {
    std::str::from_utf8(&key[1..]).map_err(|_| Error::damaged("an id is not UTF-8"))
}

/// Describes a key in words, for reports of lost data.
pub(crate) fn describe(key: &[u8]) -> String {
    let (kind, rest) = key.split_first().map_or((0, key), |(kind, rest)| (*kind, rest));
    let text = |id: &[u8]| String::from_utf8_lossy(id).into_owned();
    let sized = || {
        let (size, rest) = rest.split_first_chunk::<2>()?;
        let (id, rest) = rest.split_at_checked(u16::from_be_bytes(*size).into())?;
        Some((text(id), decode_revision(rest)?))
    };
    match kind {
        DOCUMENT => format!("document {:?}", text(rest)),
        LOCAL => format!("local document {:?}", format!("_local/{}", text(rest))),
        CONFLICT | PATH => match sized() {
            Some((id, revision)) if kind == CONFLICT => {
                format!("revision {revision} (a conflict) of document {id:?}")
            }
            Some((id, revision)) => format!("the ancestors of revision {revision} of document {id:?}"),
            None => format!("the record under the key \"{}\"", key.escape_ascii()),
        },
        CHUNK | INTENT => match decode_upload(rest) {
            Some((id, _)) => format!("an attachment, or the body, of document {id:?}"),
            None => format!("the record under the key \"{}\"", key.escape_ascii()),
        },
        COUNTER => format!("the database's {}", text(rest)),
        PURGE => "a purge info".to_owned(),
        _ => format!("the record under the key \"{}\"", key.escape_ascii()),
    }
}

/// The key of a setting or counter.
pub(crate) fn counter_key(name: &str) -> Vec<u8> {
    plain_key(COUNTER, name)
}

/// The key of a purge info.
pub(crate) fn purge_key(number: u64) -> [u8; 9] {
    let mut key = [PURGE; 9];
    key[1..].copy_from_slice(&number.to_be_bytes());
    key
}

/// The purge number in a purge info's key.
pub(crate) fn decode_purge_key(key: &[u8]) -> Result<u64> {
    let number =
        key[1..].try_into().map_err(|_| Error::damaged("the key of a purge info has a wrong size"))?;
    Ok(u64::from_be_bytes(number))
}

/// The document and the upload in a key without its first byte.
fn decode_upload(rest: &[u8]) -> Option<(String, UploadId)> {
    let (size, rest) = rest.split_first_chunk::<2>()?;
    let (id, rest) = rest.split_at_checked(u16::from_be_bytes(*size).into())?;
    let (upload, _) = rest.split_first_chunk::<16>()?;
    Some((String::from_utf8_lossy(id).into_owned(), *upload))
}

/// The document and the upload in the key of an upload intent.
pub(crate) fn decode_intent_key(key: &[u8]) -> Result<(String, UploadId)> {
    decode_upload(&key[1..]).ok_or_else(|| Error::damaged("the key of an upload intent is malformed"))
}

/// The key of a chunk of an attachment.
pub(crate) fn chunk_key(id: &str, upload: &UploadId, index: u32) -> Vec<u8> {
    let mut key = sized_key(CHUNK, id);
    key.extend_from_slice(upload);
    key.extend_from_slice(&index.to_be_bytes());
    key
}

/// The key of an upload intent.
pub(crate) fn intent_key(id: &str, upload: &UploadId) -> Vec<u8> {
    let mut key = sized_key(INTENT, id);
    key.extend_from_slice(upload);
    key
}

/// As [`describe`], for a key of the catalogue.
pub(crate) fn describe_name(key: &[u8]) -> String {
    match std::str::from_utf8(key) {
        Ok(name) if !name.starts_with('\0') => format!("database {name:?}"),
        _ => "a deleted database's tombstone".to_owned(),
    }
}

/// Common prefix of the keys of a document's other leaves.
pub(crate) fn conflict_prefix(id: &str) -> Vec<u8> {
    sized_key(CONFLICT, id)
}

pub(crate) fn conflict_key(id: &str, revision: &Revision) -> Vec<u8> {
    revision_key(CONFLICT, id, revision)
}

/// The key of the chunk that holds the ancestors of `revision`.
pub(crate) fn path_key(id: &str, revision: &Revision) -> Vec<u8> {
    revision_key(PATH, id, revision)
}

/// Common prefix of the keys of a document's path chunks.
pub(crate) fn path_prefix(id: &str) -> Vec<u8> {
    sized_key(PATH, id)
}

/// The revision in a key that begins with [`path_prefix`].
pub(crate) fn decode_path_key(key: &[u8], prefix: &[u8]) -> Result<Revision> {
    decode_revision(&key[prefix.len()..])
        .ok_or_else(|| Error::damaged("the key of a chunk of a revision path is malformed"))
}

/// The revision at the end of a key.
fn decode_revision(bytes: &[u8]) -> Option<Revision> {
    let (generation, id) = bytes.split_first_chunk::<GENERATION_BYTES>()?;
    Some(Revision { generation: u32::from_be_bytes(*generation), id: RevisionId::from_bytes(id)? })
}

fn revision_key(kind: u8, id: &str, revision: &Revision) -> Vec<u8> {
    let mut key = sized_key(kind, id);
    key.extend_from_slice(&revision.generation.to_be_bytes());
    key.extend_from_slice(revision.id.as_bytes());
    key
}

fn sized_key(kind: u8, id: &str) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + ID_SIZE_BYTES + id.len() + GENERATION_BYTES + HASH_SIZE);
    key.push(kind);
    key.extend_from_slice(&(id.len() as u16).to_be_bytes());
    key.extend_from_slice(id.as_bytes());
    key
}

/// What a leaf's meta says besides its path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LeafState {
    pub deleted: bool,
    /// Whether the document has other leaves. Only the winner's meta says so.
    pub has_conflicts: bool,
    /// Whether its value has a table of uploads: attachments, or an out-of-line body.
    pub has_attachments: bool,
    /// Whether its tail is in its value.
    pub has_tail_in_value: bool,
    /// Bytes of its out-of-line body; 0 if the body is inline.
    pub out_of_line_bytes: u32,
}

/// A leaf's meta in the index.
#[derive(Debug, Clone)]
pub(crate) struct LeafMeta<'a> {
    pub state: LeafState,
    pub revision: Revision,
    has_texts: bool,
    ids: &'a [u8],
}

impl<'a> LeafMeta<'a> {
    /// Decodes the meta of a leaf in the present form.
    ///
    /// # Errors
    /// `Internal`: it is damaged, or was written by an earlier version.
    pub(crate) fn decode(meta: &'a [u8]) -> Result<LeafMeta<'a>> {
        let flags = meta.first().copied().unwrap_or_default();
        if !meta.is_empty() && flags & FLAG_FORM == 0 {
            return Err(Error::damaged("a leaf was written in the form of an earlier version"));
        }
        LeafMeta::decode_fields(meta)
    }

    /// Decodes the meta of a leaf in the form of the version before, for an upgrade. Its path goes back to the
    /// last generation before its own that is a multiple of [`PREVIOUS_CHUNK_COUNT`].
    ///
    /// # Errors
    /// `Internal`: it is damaged, or in another form.
    pub(crate) fn decode_previous(meta: &'a [u8]) -> Result<LeafMeta<'a>> {
        let flags = meta.first().copied().unwrap_or_default();
        if flags & !(FLAG_DELETED | FLAG_CONFLICTS | FLAG_ATTACHMENTS | FLAG_OUT_OF_LINE) != 0 {
            return Err(Error::damaged("a leaf isn't in the form of the version before"));
        }
        LeafMeta::decode_fields(meta)
    }

    /// Whether a leaf's meta has the form of the version before.
    pub(crate) fn is_previous(meta: &[u8]) -> bool {
        meta.first().is_some_and(|flags| flags & FLAG_FORM == 0)
    }

    fn decode_fields(meta: &'a [u8]) -> Result<LeafMeta<'a>> {
        let flags = meta.first().copied().unwrap_or_default();
        let is_out_of_line = flags & FLAG_OUT_OF_LINE != 0;
        let header_size = META_HEADER_SIZE + if is_out_of_line { OUT_OF_LINE_SIZE } else { 0 };
        let ids = meta.get(header_size..).filter(|ids| !ids.is_empty());
        let ids = ids.ok_or_else(|| Error::damaged("a leaf's meta has a wrong size"))?;
        let generation = u32::from_le_bytes(meta[1..META_HEADER_SIZE].try_into().expect("4 bytes"));
        let has_texts = flags & FLAG_TEXTS != 0;
        let (id, count) = own_id(ids, has_texts)?;
        if generation == 0 || count > generation as usize {
            return Err(Error::damaged("a leaf's meta has more ancestors than generations"));
        }
        let has_tail_in_value = flags & FLAG_TAIL_IN_VALUE != 0;
        if has_tail_in_value && count > 1 {
            return Err(Error::damaged("a leaf's meta has ancestors that are in its value"));
        }
        let out_of_line_bytes = match is_out_of_line {
            true => u32::from_le_bytes(meta[META_HEADER_SIZE..header_size].try_into().expect("4 bytes")),
            false => 0,
        };
        let state = LeafState {
            deleted: flags & FLAG_DELETED != 0,
            has_conflicts: flags & FLAG_CONFLICTS != 0,
            has_attachments: flags & FLAG_ATTACHMENTS != 0,
            has_tail_in_value,
            out_of_line_bytes,
        };
        Ok(LeafMeta { state, revision: Revision { generation, id }, has_texts, ids })
    }

    /// The leaf itself and its tail; without the tail if that is in its value.
    pub(crate) fn path(&self) -> Vec<RevisionId> {
        // `decode` has checked them.
        decode_ids(self.ids, self.has_texts).flatten().collect()
    }
}

/// The first of the encoded ids, and their number.
fn own_id(ids: &[u8], has_texts: bool) -> Result<(RevisionId, usize)> {
    let damaged = || Error::damaged("a leaf's meta has a malformed path");
    if !has_texts {
        let (own, _) = ids.split_first_chunk::<HASH_SIZE>().ok_or_else(damaged)?;
        return match ids.len().is_multiple_of(HASH_SIZE) {
            true => Ok(((*own).into(), ids.len() / HASH_SIZE)),
            false => Err(damaged()),
        };
    }
    let (mut own, mut count) = (None, 0);
    for id in decode_ids(ids, true) {
        let id = id.ok_or_else(damaged)?;
        own.get_or_insert(id);
        count += 1;
    }
    Ok((own.ok_or_else(damaged)?, count))
}

/// Bytes of a leaf's meta with these ids, at most.
pub(crate) fn leaf_meta_size(ids: &[RevisionId]) -> usize {
    LEAF_HEADER_SIZE_MAX + encoded_size(ids, has_texts(ids))
}

/// Encodes a leaf's meta. `ids` are its own and its tail's; only its own if the tail is in the value.
pub(crate) fn encode_leaf_meta(generation: u32, ids: &[RevisionId], state: LeafState) -> Vec<u8> {
    let has_texts = has_texts(ids);
    let LeafState { deleted, has_conflicts, has_attachments, has_tail_in_value, out_of_line_bytes } = state;
    let flags = [
        (deleted, FLAG_DELETED),
        (has_conflicts, FLAG_CONFLICTS),
        (has_attachments, FLAG_ATTACHMENTS),
        (out_of_line_bytes > 0, FLAG_OUT_OF_LINE),
        (has_texts, FLAG_TEXTS),
        (has_tail_in_value, FLAG_TAIL_IN_VALUE),
        (true, FLAG_FORM),
    ];
    let mut meta = Vec::with_capacity(LEAF_HEADER_SIZE_MAX + encoded_size(ids, has_texts));
    meta.push(flags.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum());
    meta.extend_from_slice(&generation.to_le_bytes());
    if out_of_line_bytes > 0 {
        meta.extend_from_slice(&out_of_line_bytes.to_le_bytes());
    }
    encode_ids(ids, has_texts, &mut meta);
    meta
}

/// A leaf's meta without the flag for a table of uploads.
pub(crate) fn without_attachments(meta: &[u8]) -> Vec<u8> {
    let mut meta = meta.to_vec();
    meta[0] &= !FLAG_ATTACHMENTS;
    meta
}

/// The document of a chunk's key: a chunk of an attachment, or of an out-of-line body.
pub(crate) fn document_of_chunk(key: &[u8]) -> Option<String> {
    let (kind, rest) = key.split_first()?;
    decode_upload(rest).filter(|_| *kind == CHUNK).map(|(id, _)| id)
}

/// The meta of a local document, or of a setting or counter.
pub(crate) fn encode_number(number: u64) -> [u8; 8] {
    number.to_le_bytes()
}

pub(crate) fn decode_number(meta: &[u8]) -> Result<u64> {
    let number = meta.try_into().map_err(|_| Error::damaged("a meta that is a number has a wrong size"))?;
    Ok(u64::from_le_bytes(number))
}

/// The contribution of an entry to the store's aggregates.
pub(crate) fn aggregate(key: &[u8], meta: &[u8], length: u32) -> Aggregates {
    let mut aggregates = Aggregates::default();
    aggregates[AGGREGATE_BYTES] = u64::from(length);
    if key.first() == Some(&DOCUMENT) {
        let deleted = meta.first().is_some_and(|flags| flags & FLAG_DELETED != 0);
        aggregates[if deleted { AGGREGATE_DELETED } else { AGGREGATE_DOCUMENTS }] = 1;
    }
    aggregates
}

#[cfg(test)]
mod tests;
