//! Hashes of passwords: how they are made, stored and checked.

use serde_json::{Map, Value};
use sha1::Digest as _;
use subtle::ConstantTimeEq as _;

use crate::digest::{Digest, from_hex, to_hex};

/// Random bytes of a salt. It is stored, and used, as twice as many hexadecimal digits.
const SALT_BYTES: usize = 16;

/// What older documents leave out.
const PRF_BEFORE: Digest = Digest::Sha1;
const ITERATIONS_BEFORE: u32 = 10_000;

/// How passwords are hashed from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PasswordScheme {
    /// The function of PBKDF2.
    pub prf: Digest,
    /// Number of iterations, at least 1.
    pub iterations: u32,
}

impl Default for PasswordScheme {
    /// CouchDB 3.5's: SHA-256, 600,000 iterations.
    fn default() -> PasswordScheme {
        PasswordScheme { prf: Digest::Sha256, iterations: 600_000 }
    }
}

/// The hash of a password, with its salt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PasswordHash {
    salt: String,
    kind: Kind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    /// SHA-1 of the password and the salt: CouchDB before 1.3.
    Simple {
        hash: Vec<u8>,
    },
    Pbkdf2 {
        scheme: PasswordScheme,
        key: Vec<u8>,
    },
}

/// Why what is stored isn't a hash that a password can be checked with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnusableHash {
    /// `password_scheme` is neither `pbkdf2` nor `simple`.
    #[error("Password scheme `{0}` not supported.")]
    Scheme(String),
    /// `pbkdf2_prf` names no known function.
    #[error("PRF is invalid")]
    Prf,
    /// A member is missing, or has another type or form.
    #[error("{0} is missing or malformed")]
    Member(&'static str),
}

impl PasswordHash {
    /// Hashes a password with a new salt. Takes long.
    ///
    /// # Panics
    /// If the system provides no randomness.
    pub fn new(password: &str, scheme: PasswordScheme) -> PasswordHash {
        let mut bytes = [0; SALT_BYTES];
        getrandom::fill(&mut bytes).expect("the system provides randomness");
        PasswordHash::with_salt(password, scheme, to_hex(&bytes))
    }

    /// As [`PasswordHash::new`], with the salt of another hash: cookies that were signed with it stay valid.
    pub fn with_salt(password: &str, scheme: PasswordScheme, salt: String) -> PasswordHash {
        let key = scheme.prf.pbkdf2(password.as_bytes(), salt.as_bytes(), scheme.iterations);
        PasswordHash { salt, kind: Kind::Pbkdf2 { scheme, key } }
    }

    /// Whether this is the password. Takes as long as hashing it.
    pub fn verify(&self, password: &str) -> bool {
        let (given, own) = match &self.kind {
            Kind::Simple { hash } => {
                let mut sha = sha1::Sha1::new();
                sha.update(password.as_bytes());
                sha.update(self.salt.as_bytes());
                (sha.finalize().to_vec(), hash)
            }
            Kind::Pbkdf2 { scheme, key } => {
                let salt = self.salt.as_bytes();
                (scheme.prf.pbkdf2(password.as_bytes(), salt, scheme.iterations), key)
            }
        };
        given.ct_eq(own).into()
    }

    /// The salt, with which the user's cookies are signed too.
    pub fn salt(&self) -> &str {
        &self.salt
    }

    /// Number of iterations; 1 for a hash without any.
    pub fn iterations(&self) -> u32 {
        match &self.kind {
            Kind::Simple { .. } => 1,
            Kind::Pbkdf2 { scheme, .. } => scheme.iterations,
        }
    }

    /// Whether it was made as passwords are hashed from now on.
    pub fn is_of(&self, scheme: PasswordScheme) -> bool {
        matches!(&self.kind, Kind::Pbkdf2 { scheme: own, .. } if *own == scheme)
    }

    /// The hash in a user document. None if the document has none: its user can't log in.
    ///
    /// # Errors
    /// [`UnusableHash`].
    pub fn of_document(document: &Map<String, Value>) -> Result<Option<PasswordHash>, UnusableHash> {
        let text = |name: &str| document.get(name).and_then(Value::as_str);
        let member = |name: &'static str| text(name).ok_or(UnusableHash::Member(name));
        let scheme = match document.get("password_scheme") {
            None | Some(Value::Null) => "simple",
            Some(Value::String(scheme)) => scheme,
            Some(other) => return Err(UnusableHash::Scheme(other.to_string())),
        };
        match scheme {
            "simple" => {
                let Some(hash) = text("password_sha") else { return Ok(None) };
                let hash = from_hex(hash).ok_or(UnusableHash::Member("password_sha"))?;
                Ok(Some(PasswordHash { salt: member("salt")?.to_owned(), kind: Kind::Simple { hash } }))
            }
            "pbkdf2" => {
                let prf = match document.get("pbkdf2_prf") {
                    None => PRF_BEFORE,
                    Some(name) => name.as_str().and_then(Digest::parse).ok_or(UnusableHash::Prf)?,
                };
                let iterations = match document.get("iterations") {
                    None => ITERATIONS_BEFORE,
                    Some(number) => iterations_of(number).ok_or(UnusableHash::Member("iterations"))?,
                };
                let key = from_hex(member("derived_key")?).ok_or(UnusableHash::Member("derived_key"))?;
                let salt = member("salt")?.to_owned();
                let scheme = PasswordScheme { prf, iterations };
                Ok(Some(PasswordHash { salt, kind: Kind::Pbkdf2 { scheme, key } }))
            }
            other => Err(UnusableHash::Scheme(other.to_owned())),
        }
    }

    /// The members of a user document, in CouchDB's order.
    pub fn members(&self) -> Vec<(&'static str, Value)> {
        let salt = Value::from(self.salt.as_str());
        match &self.kind {
            Kind::Simple { hash } => vec![
                ("password_scheme", "simple".into()),
                ("salt", salt),
                ("password_sha", to_hex(hash).into()),
            ],
            Kind::Pbkdf2 { scheme, key } => vec![
                ("password_scheme", "pbkdf2".into()),
                ("pbkdf2_prf", scheme.prf.name().into()),
                ("salt", salt),
                ("iterations", scheme.iterations.into()),
                ("derived_key", to_hex(key).into()),
            ],
        }
    }

    /// The hash of an administrator in the configuration: `-pbkdf2:sha256-KEY,SALT,ITERATIONS`, the older
    /// `-pbkdf2-KEY,SALT,ITERATIONS`, or `-hashed-SHA,SALT`. None for a password that isn't hashed yet.
    ///
    /// # Errors
    /// [`UnusableHash`]: it begins like a hash, and isn't one.
    pub fn of_setting(value: &str) -> Result<Option<PasswordHash>, UnusableHash> {
        if let Some(rest) = value.strip_prefix("-hashed-") {
            let (hash, salt) = rest.split_once(',').ok_or(UnusableHash::Member("salt"))?;
            let hash = from_hex(hash).ok_or(UnusableHash::Member("password_sha"))?;
            return Ok(Some(PasswordHash { salt: salt.to_owned(), kind: Kind::Simple { hash } }));
        }
        let Some(rest) = value.strip_prefix("-pbkdf2") else { return Ok(None) };
        let (prf, rest) = match rest.strip_prefix(':') {
            None => (PRF_BEFORE, rest.strip_prefix('-').ok_or(UnusableHash::Prf)?),
            Some(named) => {
                let (name, rest) = named.split_once('-').ok_or(UnusableHash::Prf)?;
                (Digest::parse(name).ok_or(UnusableHash::Prf)?, rest)
            }
        };
        let mut parts = rest.split(',');
        let key = parts.next().and_then(from_hex).ok_or(UnusableHash::Member("derived_key"))?;
        let salt = parts.next().ok_or(UnusableHash::Member("salt"))?.to_owned();
        let iterations = parts.next().and_then(|number| number.parse().ok()).filter(|number| *number > 0);
        let (Some(iterations), None) = (iterations, parts.next()) else {
            return Err(UnusableHash::Member("iterations"));
        };
        Ok(Some(PasswordHash {
            salt,
            kind: Kind::Pbkdf2 { scheme: PasswordScheme { prf, iterations }, key },
        }))
    }

    /// The administrator's setting that [`PasswordHash::of_setting`] reads.
    pub fn setting(&self) -> String {
        match &self.kind {
            Kind::Simple { hash } => format!("-hashed-{},{}", to_hex(hash), self.salt),
            Kind::Pbkdf2 { scheme: PasswordScheme { prf: Digest::Sha1, iterations }, key } => {
                format!("-pbkdf2-{},{},{iterations}", to_hex(key), self.salt)
            }
            Kind::Pbkdf2 { scheme: PasswordScheme { prf, iterations }, key } => {
                format!("-pbkdf2:{}-{},{},{iterations}", prf.name(), to_hex(key), self.salt)
            }
        }
    }
}

fn iterations_of(number: &Value) -> Option<u32> {
    let count = number.as_u64().or_else(|| number.as_str()?.parse().ok())?;
    u32::try_from(count).ok().filter(|count| *count > 0)
}

#[cfg(test)]
mod tests {
    //! Goal: CouchDB's hashes check passwords here, and ours there. Method: vectors computed with Python's `hashlib`, and
    //! every form read back.

    use serde_json::json;

    use super::*;

    const KEYS: [(&str, &str); 3] = [
        ("sha", "8de7aa3bffef54a4f4ecd6a32a2eec456e10fe3a"),
        ("sha256", "ec5525ef9935305b0b20ddaba04ffc65df045f2153c8f708c73dde599525bad9"),
        (
            "sha512",
            "44369bb4b153df40dc04aa57e48655b2ee24a827ae08b71e2292156410016c97\
             ab452c87fdcf4d6262c81d215b211b42207bc30cb69bfabf5073f052988b3e8c",
        ),
    ];

    fn of(document: &Value) -> Result<Option<PasswordHash>, UnusableHash> {
        PasswordHash::of_document(document.as_object().unwrap())
    }

    #[test]
    fn hashes_of_couchdb_check_passwords() {
        for (prf, key) in KEYS {
            let document = json!({"password_scheme": "pbkdf2", "pbkdf2_prf": prf, "salt": "0a1b2c", "iterations": 7, "derived_key": key});
            let hash = of(&document).unwrap().unwrap();
            assert!(hash.verify("pässword") && !hash.verify("password") && !hash.verify(""), "{prf}");
            assert_eq!((hash.salt(), hash.iterations()), ("0a1b2c", 7));
            let members: Map<String, Value> =
                hash.members().into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
            assert_eq!(Value::from(members), document);
            let setting = hash.setting();
            assert_eq!(PasswordHash::of_setting(&setting).unwrap().as_ref(), Some(&hash), "{setting}");
        }
        let old = format!("-pbkdf2-{},0a1b2c,7", KEYS[0].1);
        assert!(PasswordHash::of_setting(&old).unwrap().unwrap().verify("pässword"));
        let without = json!({"password_scheme": "pbkdf2", "salt": "00", "derived_key": "00"});
        assert_eq!(of(&without).unwrap().unwrap().iterations(), 10_000);
    }

    #[test]
    fn the_oldest_hashes_check_passwords_too() {
        let sha = "65092a580621a01ec5c2c8668f2532005e85fbf4";
        for document in [
            json!({"salt": "0a1b2c", "password_sha": sha}),
            json!({"password_scheme": "simple", "salt": "0a1b2c", "password_sha": sha}),
        ] {
            let hash = of(&document).unwrap().unwrap();
            assert!(hash.verify("pässword") && !hash.verify("x"));
            assert!(!hash.is_of(PasswordScheme::default()));
        }
        let setting = format!("-hashed-{sha},0a1b2c");
        let hash = PasswordHash::of_setting(&setting).unwrap().unwrap();
        assert!(hash.verify("pässword"));
        assert_eq!(hash.setting(), setting);
    }

    #[test]
    fn a_new_hash_has_a_salt_of_its_own() {
        let scheme = PasswordScheme { prf: Digest::Sha384, iterations: 2 };
        let (one, other) = (PasswordHash::new("a", scheme), PasswordHash::new("a", scheme));
        assert_ne!(one.salt(), other.salt());
        assert_eq!(one.salt().len(), 32);
        assert!(one.verify("a") && other.verify("a") && !one.verify("b") && one.is_of(scheme));
        let upgraded =
            PasswordHash::with_salt("a", PasswordScheme { iterations: 3, ..scheme }, one.salt().to_owned());
        assert!(upgraded.verify("a") && upgraded.salt() == one.salt() && !upgraded.is_of(scheme));
    }

    #[test]
    fn what_is_no_hash_is_refused() {
        assert_eq!(of(&json!({"name": "ann"})), Ok(None));
        assert_eq!(of(&json!({"password_scheme": "bcrypt"})), Err(UnusableHash::Scheme("bcrypt".to_owned())));
        assert_eq!(of(&json!({"password_scheme": 5})), Err(UnusableHash::Scheme("5".to_owned())));
        let with = |name: &str, value: Value| {
            let mut document = json!({"password_scheme": "pbkdf2", "pbkdf2_prf": "sha", "salt": "00", "iterations": 1, "derived_key": "00"});
            document[name] = value;
            of(&document).map(|_| ())
        };
        assert_eq!(with("salt", "00".into()), Ok(()));
        assert_eq!(with("pbkdf2_prf", "md5".into()), Err(UnusableHash::Prf));
        for (name, value) in [("salt", json!(1)), ("iterations", json!(0)), ("iterations", json!("x"))] {
            assert_eq!(with(name, value), Err(UnusableHash::Member(name)));
        }
        for key in ["0", "0g", "é"] {
            assert_eq!(with("derived_key", key.into()), Err(UnusableHash::Member("derived_key")));
        }
        assert_eq!(PasswordHash::of_setting("secret"), Ok(None));
        for setting in [
            "-pbkdf2",
            "-pbkdf2:",
            "-pbkdf2:md5-00,00,1",
            "-pbkdf2-00,00",
            "-pbkdf2-00,00,0",
            "-pbkdf2-00,00,1,",
            "-hashed-00",
        ] {
            assert!(PasswordHash::of_setting(setting).is_err(), "{setting}");
        }
    }
}
