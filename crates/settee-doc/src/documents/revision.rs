//! Revisions: their text, their order, and how the revision of an edit is computed.
//!
//! Text and order are CouchDB's (`couch_doc:parse_rev`, `couch_doc:rev_to_str`), except that the size of an id
//! and the generation have limits.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use crate::json::write_json_string;
use crate::{Error, Result};

/// The id of a revision made here: a hash.
pub type Hash = [u8; 16];

/// Longest id of a revision in bytes.
pub const REVISION_ID_SIZE_MAX: usize = 255;

/// Bytes of an id that is written as hex digits.
pub(crate) const HASH_SIZE: usize = size_of::<Hash>();

/// Bytes of a hash's text.
const HASH_TEXT_SIZE: usize = 2 * HASH_SIZE;

/// Bytes of the longest text of a revision whose id is a hash.
const TEXT_SIZE_MAX: usize = 10 + 1 + HASH_TEXT_SIZE;

/// The part of a revision behind its generation: any text of up to [`REVISION_ID_SIZE_MAX`] bytes.
///
/// As in CouchDB 32 hex digits are the text of 16 bytes, and so a text of 16 bytes is written as 32 hex
/// digits. Ids are ordered by their bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RevisionId(Form);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Form {
    Hash(Hash),
    /// Neither 16 nor 32 bytes: 16 bytes are a hash, and 32 bytes are hex digits or no id.
    Text(Box<str>),
}

impl RevisionId {
    /// Parses the text of an id. Hex digits may be upper case.
    ///
    /// # Errors
    /// `BadRequest` for 32 bytes that aren't hex digits, and for more than [`REVISION_ID_SIZE_MAX`] bytes.
    pub fn parse(text: &str) -> Result<RevisionId> {
        match text.len() {
            HASH_TEXT_SIZE => {
                let hash = parse_hash(text).or_else(|_| parse_hash(&text.to_ascii_lowercase()))?;
                Ok(hash.into())
            }
            _ => RevisionId::from_bytes(text.as_bytes()).ok_or_else(too_long),
        }
    }

    /// The id with these bytes; `None` if no id has them.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<RevisionId> {
        if let Ok(hash) = Hash::try_from(bytes) {
            return Some(hash.into());
        }
        let text = std::str::from_utf8(bytes).ok()?;
        let is_id = text.len() <= REVISION_ID_SIZE_MAX && text.len() != HASH_TEXT_SIZE;
        is_id.then(|| RevisionId(Form::Text(text.into())))
    }

    /// Its bytes: a hash, or the text.
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Form::Hash(hash) => hash,
            Form::Text(text) => text.as_bytes(),
        }
    }

    /// Bytes that it takes in memory besides its own size: 0 for a hash.
    pub fn heap_bytes(&self) -> usize {
        match &self.0 {
            Form::Hash(_) => 0,
            Form::Text(text) => text.len(),
        }
    }

    pub(crate) fn is_hash(&self) -> bool {
        matches!(self.0, Form::Hash(_))
    }

    /// Appends its text.
    fn write(&self, out: &mut Vec<u8>) {
        match &self.0 {
            Form::Hash(hash) => write_hash(hash, out),
            Form::Text(text) => out.extend_from_slice(text.as_bytes()),
        }
    }

    /// Appends its text as a JSON string.
    pub fn write_json(&self, out: &mut Vec<u8>) {
        match &self.0 {
            Form::Hash(hash) => {
                out.push(b'"');
                write_hash(hash, out);
                out.push(b'"');
            }
            Form::Text(text) => write_json_string(text, out),
        }
    }
}

impl From<Hash> for RevisionId {
    fn from(hash: Hash) -> RevisionId {
        RevisionId(Form::Hash(hash))
    }
}

impl Ord for RevisionId {
    fn cmp(&self, other: &RevisionId) -> Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl PartialOrd for RevisionId {
    fn partial_cmp(&self, other: &RevisionId) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A revision: `N-` and its id. Ordered as CouchDB orders the revisions of equally deleted leaves: the longer
/// history first, then the greater id.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision {
    /// The number of edits up to this revision: 1, 2, … A client may name a revision of generation 0, which
    /// no document has.
    pub generation: u32,
    /// Its id.
    pub id: RevisionId,
}

impl Revision {
    /// The revision of an edit of `parent`. Its id is a hash of the edit's contents, so that replicas that
    /// make the same edit agree. `body` is the digest of the body's text.
    pub(crate) fn next(parent: Option<&Revision>, deleted: bool, body: &[u8; 32]) -> Option<Revision> {
        let generation = parent.map_or(Some(1), |parent| parent.generation.checked_add(1))?;
        let mut hasher = blake3::Hasher::new();
        hasher.update(&[u8::from(deleted), u8::from(parent.is_some())]);
        if let Some(parent) = parent {
            hasher.update(&parent.generation.to_le_bytes()).update(parent.id.as_bytes());
        }
        hasher.update(body);
        let hash: Hash = hasher.finalize().as_bytes()[..HASH_SIZE].try_into().expect("16 bytes");
        Some(Revision { generation, id: hash.into() })
    }

    /// Appends the revision's text.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.reserve(TEXT_SIZE_MAX);
        out.extend_from_slice(itoa::Buffer::new().format(self.generation).as_bytes());
        out.push(b'-');
        self.id.write(out);
    }

    /// Appends the revision's text as a JSON string.
    pub fn write_json(&self, out: &mut Vec<u8>) {
        if self.id.is_hash() {
            out.push(b'"');
            self.write(out);
            out.push(b'"');
        } else {
            write_json_string(&self.to_string(), out);
        }
    }
}

/// Appends a hash's 32 hex digits.
pub(crate) fn write_hash(hash: &Hash, out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in hash {
        out.push(DIGITS[usize::from(byte >> 4)]);
        out.push(DIGITS[usize::from(byte & 15)]);
    }
}

/// Parses a hash of 32 lowercase hex digits.
///
/// # Errors
/// `BadRequest` for anything else.
pub(crate) fn parse_hash(text: &str) -> Result<Hash> {
    let digits = text.as_bytes();
    let mut hash = [0; HASH_SIZE];
    if digits.len() != HASH_TEXT_SIZE {
        return Err(invalid());
    }
    for (byte, pair) in hash.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = hex_digit(pair[0])? << 4 | hex_digit(pair[1])?;
    }
    Ok(hash)
}

fn hex_digit(digit: u8) -> Result<u8> {
    match digit {
        b'0'..=b'9' => Ok(digit - b'0'),
        b'a'..=b'f' => Ok(digit - b'a' + 10),
        _ => Err(invalid()),
    }
}

fn invalid() -> Error {
    Error::bad_request("Invalid rev format")
}

fn too_long() -> Error {
    let reason = format!("Invalid rev format: more than {REVISION_ID_SIZE_MAX} bytes behind the number");
    Error::bad_request(reason)
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = Vec::new();
        self.write(&mut text);
        f.write_str(std::str::from_utf8(&text).expect("digits and a text are UTF-8"))
    }
}

impl FromStr for Revision {
    type Err = Error;

    /// Parses any text that CouchDB accepts as a revision, within the limits.
    fn from_str(text: &str) -> Result<Revision> {
        let (generation, id) = text.split_once('-').ok_or_else(invalid)?;
        let digits = generation.strip_prefix('+').unwrap_or(generation);
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(invalid());
        }
        let too_great = |_| Error::bad_request(format!("Invalid rev format: a number above {}", u32::MAX));
        let generation = digits.parse().map_err(too_great)?;
        Ok(Revision { generation, id: RevisionId::parse(id)? })
    }
}

#[cfg(test)]
mod tests;
