//! Session cookies: a name and a time with a signature, so that the server keeps no sessions.
//!
//! A cookie is `NAME:TIME:` and the HMAC of `NAME:TIME`, in Base64 for URLs without padding. The time is that of issue,
//! in uppercase hexadecimal seconds since 1970. The key is the server's secret followed by the salt of the user's
//! password hash: a new password ends the sessions.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use subtle::ConstantTimeEq as _;

use crate::digest::Digest;

/// What signs and checks cookies.
#[derive(Clone)]
pub struct CookieKeys {
    secret: Vec<u8>,
    /// The first one signs, each of them is accepted.
    digests: Vec<Digest>,
}

/// A cookie that was read. Nothing in it is to be trusted before [`CookieKeys::verify`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// The user's name.
    pub name: String,
    /// When it was issued, in seconds since 1970.
    pub issued_s: u64,
    /// `NAME:TIME` as it was sent.
    signed: Vec<u8>,
    signature: Vec<u8>,
}

impl CookieKeys {
    /// `digests` is the setting `hash_algorithms`; without any, SHA-256 and SHA-1 as in CouchDB.
    pub fn new(secret: &[u8], digests: &[Digest]) -> CookieKeys {
        let digests = if digests.is_empty() { &[Digest::Sha256, Digest::Sha1] } else { digests };
        CookieKeys { secret: secret.to_vec(), digests: digests.to_vec() }
    }

    /// The cookie of a user whose password hash has this salt.
    pub fn cookie(&self, name: &str, salt: &str, issued_s: u64) -> String {
        let signed = format!("{name}:{issued_s:X}");
        let mut bytes = signed.clone().into_bytes();
        bytes.push(b':');
        bytes.extend_from_slice(&self.signature(self.digests[0], salt, signed.as_bytes()));
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Whether a cookie was signed with this secret and this salt. Its time is not looked at.
    pub fn verify(&self, session: &Session, salt: &str) -> bool {
        let is_signed_with = |digest: &Digest| {
            bool::from(self.signature(*digest, salt, &session.signed).ct_eq(&session.signature))
        };
        self.digests.iter().any(is_signed_with)
    }

    fn signature(&self, digest: Digest, salt: &str, signed: &[u8]) -> Vec<u8> {
        digest.hmac(&[&self.secret, salt.as_bytes()].concat(), &[signed])
    }
}

impl std::fmt::Debug for CookieKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CookieKeys").field("digests", &self.digests).finish_non_exhaustive()
    }
}

impl Session {
    /// Reads a cookie; None if it isn't one.
    pub fn parse(cookie: &str) -> Option<Session> {
        let bytes = URL_SAFE_NO_PAD.decode(cookie.trim_end_matches('=')).ok()?;
        // Names have no colons; the signature, which is binary, may.
        let mut parts = bytes.splitn(3, |byte| *byte == b':');
        let (name, time, signature) = (parts.next()?, parts.next()?, parts.next()?);
        let issued_s = u64::from_str_radix(std::str::from_utf8(time).ok()?, 16).ok()?;
        let name_text = std::str::from_utf8(name).ok()?.to_owned();
        let signed = bytes[..name.len() + 1 + time.len()].to_vec();
        Some(Session { name: name_text, issued_s, signed, signature: signature.to_vec() })
    }

    /// Whether the session lasts at this time, if sessions last `timeout_s` seconds.
    pub fn lasts(&self, now_s: u64, timeout_s: u64) -> bool {
        now_s < self.issued_s.saturating_add(timeout_s)
    }

    /// Whether a new cookie is due: less than nine tenths of the time are left.
    pub fn is_renewed(&self, now_s: u64, timeout_s: u64) -> bool {
        let left_s = self.issued_s.saturating_add(timeout_s).saturating_sub(now_s);
        u128::from(left_s) * 10 < u128::from(timeout_s) * 9
    }
}

#[cfg(test)]
mod tests {
    //! Goal: only what was signed is accepted. Method: cookies changed in each byte, other keys, a vector computed with
    //! Python's `hmac`.

    use super::*;

    #[test]
    fn a_cookie_has_couchdbs_form() {
        let keys = CookieKeys::new(b"secret", &[]);
        let bytes = URL_SAFE_NO_PAD.decode(keys.cookie("ann", "salt", 0x5f5e_1000)).unwrap();
        assert!(bytes.starts_with(b"ann:5F5E1000:"));
        let expected = "c8f668b62dadb221b702a596d0896a181d0b1b40eb374b7231d3855beb7f6658";
        assert_eq!(crate::digest::to_hex(&bytes[13..]), expected);
    }

    #[test]
    fn a_cookie_is_good_with_its_keys_only() {
        let keys = CookieKeys::new(b"secret", &[Digest::Sha512, Digest::Sha1]);
        let session = Session::parse(&keys.cookie("zoë", "salt", 1_000)).unwrap();
        assert_eq!((session.name.as_str(), session.issued_s), ("zoë", 1_000));
        assert!(keys.verify(&session, "salt"));
        assert!(!keys.verify(&session, "salt2"));
        assert!(!CookieKeys::new(b"secret2", &[Digest::Sha512]).verify(&session, "salt"));
        assert!(!CookieKeys::new(b"secret", &[]).verify(&session, "salt"));
        let sha1 = CookieKeys::new(b"secret", &[Digest::Sha1]);
        assert!(keys.verify(&Session::parse(&sha1.cookie("zoë", "salt", 1_000)).unwrap(), "salt"));
    }

    #[test]
    fn a_cookie_changed_in_any_byte_is_refused() {
        let keys = CookieKeys::new(b"secret", &[]);
        let bytes = URL_SAFE_NO_PAD.decode(keys.cookie("ann", "salt", 1_000)).unwrap();
        for at in 0..bytes.len() {
            let mut forged = bytes.clone();
            forged[at] ^= 1;
            let session = Session::parse(&URL_SAFE_NO_PAD.encode(&forged));
            assert!(session.is_none_or(|session| !keys.verify(&session, "salt")), "byte {at}");
        }
        let cut = Session::parse(&URL_SAFE_NO_PAD.encode(&bytes[..bytes.len() - 1])).unwrap();
        assert!(!keys.verify(&cut, "salt"));
        for junk in ["", "junk", "%%%", "YTpi", "OjE6"] {
            assert!(Session::parse(junk).is_none_or(|session| !keys.verify(&session, "")), "{junk}");
        }
    }

    #[test]
    fn a_session_lasts_and_is_renewed_after_a_tenth_of_its_time() {
        let session = Session::parse(&CookieKeys::new(b"s", &[]).cookie("a", "b", 1_000)).unwrap();
        assert!(session.lasts(1_599, 600) && !session.lasts(1_600, 600));
        assert!(!session.is_renewed(1_060, 600) && session.is_renewed(1_061, 600));
        let late = Session { issued_s: u64::MAX, ..session };
        assert!(late.lasts(1, 600) && !late.is_renewed(1, 600));
    }
}
