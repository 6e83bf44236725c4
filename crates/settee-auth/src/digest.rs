//! The hash functions that CouchDB's settings name.

use hmac::{Hmac, KeyInit, Mac};

/// A hash function, by CouchDB's name for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Digest {
    /// `sha`: SHA-1.
    Sha1,
    /// `sha224`.
    Sha224,
    /// `sha256`.
    Sha256,
    /// `sha384`.
    Sha384,
    /// `sha512`.
    Sha512,
}

impl Digest {
    const ALL: [Digest; 5] = [Digest::Sha1, Digest::Sha224, Digest::Sha256, Digest::Sha384, Digest::Sha512];

    /// The function of this name; None if there is none.
    pub fn parse(name: &str) -> Option<Digest> {
        Digest::ALL.into_iter().find(|digest| digest.name() == name)
    }

    /// CouchDB's name.
    pub fn name(self) -> &'static str {
        match self {
            Digest::Sha1 => "sha",
            Digest::Sha224 => "sha224",
            Digest::Sha256 => "sha256",
            Digest::Sha384 => "sha384",
            Digest::Sha512 => "sha512",
        }
    }

    /// Size of the hash in bytes.
    pub(crate) fn size(self) -> usize {
        match self {
            Digest::Sha1 => 20,
            Digest::Sha224 => 28,
            Digest::Sha256 => 32,
            Digest::Sha384 => 48,
            Digest::Sha512 => 64,
        }
    }

    /// The HMAC of the concatenated parts under `key`. Source: RFC 2104.
    pub(crate) fn hmac(self, key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
        match self {
            Digest::Sha1 => sign::<Hmac<sha1::Sha1>>(key, parts),
            Digest::Sha224 => sign::<Hmac<sha2::Sha224>>(key, parts),
            Digest::Sha256 => sign::<Hmac<sha2::Sha256>>(key, parts),
            Digest::Sha384 => sign::<Hmac<sha2::Sha384>>(key, parts),
            Digest::Sha512 => sign::<Hmac<sha2::Sha512>>(key, parts),
        }
    }

    /// PBKDF2 with HMAC of this function; the key is as long as a hash. Source: RFC 8018.
    pub(crate) fn pbkdf2(self, password: &[u8], salt: &[u8], iterations: u32) -> Vec<u8> {
        let mut key = vec![0; self.size()];
        match self {
            Digest::Sha1 => pbkdf2::pbkdf2_hmac::<sha1::Sha1>(password, salt, iterations, &mut key),
            Digest::Sha224 => pbkdf2::pbkdf2_hmac::<sha2::Sha224>(password, salt, iterations, &mut key),
            Digest::Sha256 => pbkdf2::pbkdf2_hmac::<sha2::Sha256>(password, salt, iterations, &mut key),
            Digest::Sha384 => pbkdf2::pbkdf2_hmac::<sha2::Sha384>(password, salt, iterations, &mut key),
            Digest::Sha512 => pbkdf2::pbkdf2_hmac::<sha2::Sha512>(password, salt, iterations, &mut key),
        }
        key
    }
}

fn sign<M: KeyInit + Mac>(key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    let mut mac = <M as KeyInit>::new_from_slice(key).expect("any length will do");
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().to_vec()
}

/// Lowercase hexadecimal digits.
pub(crate) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes that hexadecimal digits stand for; None for other text.
pub(crate) fn from_hex(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}
