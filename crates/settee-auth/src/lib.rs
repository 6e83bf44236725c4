//! Credentials as CouchDB stores and checks them: without files, clocks or a server.
//!
//! - [`PasswordHash`] is a password in a user document or in the configuration's `admins` section.
//! - [`CookieKeys`] sign and check the cookies of sessions.
//! - [`ProxyTokens`] check the names that a proxy vouches for.
//!
//! Whatever compares secrets takes constant time. Computing a hash of many iterations takes long: not on a thread that
//! serves others.
//!
//! Source: CouchDB's `couch_passwords`, `couch_httpd_auth` and `chttpd_auth_cache`, and what CouchDB 3.5.0 was observed
//! to do.

mod cookie;
mod digest;
mod password;
mod proxy;

pub use cookie::{CookieKeys, Session};
pub use digest::Digest;
pub use password::{PasswordHash, PasswordScheme, UnusableHash};
pub use proxy::ProxyTokens;
