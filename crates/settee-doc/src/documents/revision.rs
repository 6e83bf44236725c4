//! Revisions: their text, and how the revision of an edit is computed.

use std::fmt;
use std::str::FromStr;

use crate::{Error, Result};

/// The hash of a revision.
pub type Hash = [u8; 16];

/// A revision: `N-` and 32 lowercase hex digits. Ordered as CouchDB orders the revisions of
/// equally deleted leaves: the longer history first, then the greater hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision {
    /// The number of edits up to this revision: 1, 2, …
    pub generation: u32,
    /// Its hash.
    pub hash: Hash,
}

/// Bytes of the longest revision's text.
const TEXT_SIZE_MAX: usize = 10 + 1 + 32;

impl Revision {
    /// The revision of an edit of `parent`. It is a hash of the edit's contents, so that replicas that make
    /// the same edit agree. `body` is the digest of the body's text.
    pub(crate) fn next(parent: Option<Revision>, deleted: bool, body: &[u8; 32]) -> Option<Revision> {
        let generation = parent.map_or(Some(1), |parent| parent.generation.checked_add(1))?;
        let mut hasher = blake3::Hasher::new();
        hasher.update(&[u8::from(deleted), u8::from(parent.is_some())]);
        if let Some(parent) = parent {
            hasher.update(&parent.generation.to_le_bytes()).update(&parent.hash);
        }
        hasher.update(body);
        let hash = hasher.finalize().as_bytes()[..16].try_into().expect("16 bytes");
        Some(Revision { generation, hash })
    }

    /// Parses any text that CouchDB accepts as a revision; hex digits may be upper case. `None`: a valid
    /// revision whose hash has another form than Settee's, which no document here can have.
    ///
    /// # Errors
    /// `BadRequest` for a text that CouchDB refuses too.
    pub fn parse_any(text: &str) -> Result<Option<Revision>> {
        let (generation, hash) = text.split_once('-').ok_or_else(invalid)?;
        let digits = generation.strip_prefix('+').unwrap_or(generation);
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(invalid());
        }
        if hash.len() != 32 {
            return Ok(None);
        }
        let hash = parse_hash(hash).or_else(|_| parse_hash(&hash.to_ascii_lowercase()))?;
        let generation = digits.parse().ok().filter(|generation| *generation > 0);
        Ok(generation.map(|generation| Revision { generation, hash }))
    }

    /// Appends the revision's text.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.reserve(TEXT_SIZE_MAX);
        out.extend_from_slice(itoa::Buffer::new().format(self.generation).as_bytes());
        out.push(b'-');
        write_hash(&self.hash, out);
    }
}

/// Appends a hash's 32 hex digits.
pub fn write_hash(hash: &Hash, out: &mut Vec<u8>) {
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
pub fn parse_hash(text: &str) -> Result<Hash> {
    let digits = text.as_bytes();
    let mut hash = [0; 16];
    if digits.len() != 32 {
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

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = Vec::new();
        self.write(&mut text);
        f.write_str(std::str::from_utf8(&text).expect("digits are ASCII"))
    }
}

impl FromStr for Revision {
    type Err = Error;

    fn from_str(text: &str) -> Result<Revision> {
        let (generation, hash) = text.split_once('-').ok_or_else(invalid)?;
        if !generation.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(invalid());
        }
        let generation = generation.parse().map_err(|_| invalid())?;
        if generation == 0 {
            return Err(invalid());
        }
        Ok(Revision { generation, hash: parse_hash(hash)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revision_round_trips_and_junk_is_refused() {
        let text = "12-00ff102030405060708090a0b0c0d0e0";
        assert_eq!(text.parse::<Revision>().unwrap().to_string(), text);
        let long = "1-00ff102030405060708090a0b0c0d0e0a";
        let upper = "1-00FF102030405060708090a0b0c0d0e0";
        let zero = "0-00ff102030405060708090a0b0c0d0e0";
        let huge = "4294967296-00ff102030405060708090a0b0c0d0e0";
        let signed = "+1-00ff102030405060708090a0b0c0d0e0";
        for junk in ["", "1", "-", "1-", "1-abc", "x-00ff", long, upper, zero, huge, signed] {
            assert!(junk.parse::<Revision>().is_err(), "{junk}");
        }
    }

    #[test]
    fn a_foreign_revision_is_accepted_as_unknown() {
        let ours = "12-00ff102030405060708090a0b0c0d0e0";
        for text in [ours, "12-00FF102030405060708090A0B0C0D0E0"] {
            assert_eq!(Revision::parse_any(text).unwrap().unwrap().to_string(), ours);
        }
        let zero = "0-00ff102030405060708090a0b0c0d0e0";
        let huge = "4294967296-00ff102030405060708090a0b0c0d0e0";
        for foreign in ["1-abc", "1-", "+3-ü", "2-a-b", "99999999999999999999-x", zero, huge] {
            assert_eq!(Revision::parse_any(foreign).unwrap(), None, "{foreign}");
        }
        for junk in ["", "1", "-", "-1-a", "x-00ff", "1 -a", "1-zzff102030405060708090a0b0c0d0e0"] {
            assert!(Revision::parse_any(junk).is_err(), "{junk}");
        }
    }

    #[test]
    fn the_same_edit_makes_the_same_revision_and_another_edit_another() {
        let body = [7; 32];
        let first = Revision::next(None, false, &body).unwrap();
        assert_eq!(first, Revision::next(None, false, &body).unwrap());
        let others = [
            Revision::next(None, true, &body),
            Revision::next(None, false, &[8; 32]),
            Revision::next(Some(first), false, &body),
        ];
        assert!(others.iter().all(|other| other.unwrap().hash != first.hash));
        assert_eq!(others[2].unwrap().generation, 2);
        let last = Revision { generation: u32::MAX, hash: [0; 16] };
        assert_eq!(Revision::next(Some(last), false, &body), None);
    }
}
