//! MD5 digests of attachments, and their text.

use crate::{Error, Result};

/// An MD5 digest, which CouchDB uses for attachments.
pub type Md5Digest = [u8; 16];

/// `md5-` and the digest in base 64.
pub fn digest_text(digest: &Md5Digest) -> String {
    use base64::Engine as _;
    format!("md5-{}", base64::engine::general_purpose::STANDARD.encode(digest))
}

/// Parses a digest: `md5-…`, or base 64 alone as in `Content-MD5`.
///
/// # Errors
/// `BadRequest` for anything else.
pub fn parse_digest(text: &str) -> Result<Md5Digest> {
    use base64::Engine as _;
    let digits = text.strip_prefix("md5-").unwrap_or(text);
    let bytes = base64::engine::general_purpose::STANDARD.decode(digits).ok();
    let digest = bytes.and_then(|bytes| Md5Digest::try_from(bytes).ok());
    digest.ok_or_else(|| Error::bad_request(format!("not an MD5 digest: {text}")))
}
