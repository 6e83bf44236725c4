//! Users that a proxy has authenticated: it sends their names with a token, if a secret is required.

use subtle::ConstantTimeEq as _;

use crate::digest::{Digest, to_hex};

/// What checks a proxy's tokens.
#[derive(Clone)]
pub struct ProxyTokens {
    secret: Vec<u8>,
    /// Each of them is accepted.
    digests: Vec<Digest>,
}

impl ProxyTokens {
    /// `digests` is the setting `hash_algorithms`.
    pub fn new(secret: &[u8], digests: &[Digest]) -> ProxyTokens {
        ProxyTokens { secret: secret.to_vec(), digests: digests.to_vec() }
    }

    /// Whether a token, lowercase hexadecimal digits, is for this name.
    pub fn verify(&self, name: &str, token: &str) -> bool {
        let is_of = |digest: &Digest| {
            let expected = to_hex(&digest.hmac(&self.secret, &[name.as_bytes()]));
            bool::from(expected.as_bytes().ct_eq(token.as_bytes()))
        };
        self.digests.iter().any(is_of)
    }
}

impl std::fmt::Debug for ProxyTokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProxyTokens").field("digests", &self.digests).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    //! Goal: only the secret's owner makes tokens. Method: a vector computed with Python's `hmac`, and others.

    use super::*;

    #[test]
    fn a_token_is_good_for_its_name_and_secret_only() {
        let tokens = ProxyTokens::new(b"secret", &[Digest::Sha256, Digest::Sha1]);
        let token = "27c1d6e342d38f0817259782aea48e70dc1a478f";
        assert!(tokens.verify("ann", token));
        assert!(!tokens.verify("bob", token));
        assert!(!tokens.verify("ann", &token.to_uppercase()));
        assert!(!tokens.verify("ann", "") && !tokens.verify("ann", &token[..38]));
        assert!(!ProxyTokens::new(b"other", &[Digest::Sha1]).verify("ann", token));
        assert!(!ProxyTokens::new(b"secret", &[Digest::Sha256]).verify("ann", token));
    }
}
