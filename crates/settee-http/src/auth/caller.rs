//! Authenticates callers: the administrator by name and password or by a signed cookie; others are anonymous.
//!
//! The cookie holds the name, the issue time as hexadecimal seconds, and an HMAC-SHA256 of both under a
//! secret generated at start, so that a restart ends all sessions. As in CouchDB, a client ends its session
//! by dropping the cookie, and a cookie in use is renewed after a tenth of its lifetime.
//!
//! Without an administrator every caller has administrator rights, with any name. Protection then is that
//! only loopback is served, that a browser's request must name this machine as its host and come from a page
//! of this machine, so that no web site can reach the server through a browser, and that a request must have
//! no header that proxies add.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit, Mac};
use hyper::Uri;
use hyper::header::{self, HeaderMap, HeaderName};
use sha2::Sha256;
use subtle::ConstantTimeEq;

use crate::error::ApiError;

/// CouchDB's name of the session cookie.
const COOKIE: &str = "AuthSession";

const WRONG_PASSWORD: &str = "Name or password is incorrect.";

/// The server's administrator.
#[derive(Clone)]
pub struct Admin {
    name: String,
    password: String,
}

impl Admin {
    /// Parses `NAME:PASSWORD`.
    ///
    /// # Errors
    /// A description of the error, without the password.
    pub fn parse(text: &str) -> Result<Admin, &'static str> {
        match text.split_once(':') {
            Some((name, password)) if !name.is_empty() && !password.is_empty() => {
                Ok(Admin { name: name.to_owned(), password: password.to_owned() })
            }
            _ => Err("an administrator is given as NAME:PASSWORD, neither of them empty"),
        }
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl std::fmt::Debug for Admin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Admin").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The identity of a request's sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caller {
    /// Anyone, on a server without an administrator.
    AdminParty,
    /// Not authenticated.
    Anonymous,
    /// The administrator, by name and password.
    Basic,
    /// The administrator, by a cookie, which is to be renewed if `renew` is set.
    Cookie { renew: bool },
}

/// Authenticates callers.
pub(crate) struct Auth {
    admin: Option<AdminCredentials>,
    secret: [u8; 32],
    /// Lifetime of a session cookie in seconds.
    timeout_s: AtomicU64,
}

/// The administrator with a MAC of the password.
struct AdminCredentials {
    name: String,
    password: [u8; 32],
}

impl Auth {
    /// Generates a new secret.
    pub(crate) fn new(admin: Option<&Admin>, timeout_s: u64) -> Auth {
        let mut secret = [0; 32];
        getrandom::fill(&mut secret).expect("the system provides randomness");
        let admin = admin.map(|admin| AdminCredentials {
            name: admin.name.clone(),
            password: sign(&secret, &[b"password:", admin.password.as_bytes()]),
        });
        Auth { admin, secret, timeout_s: AtomicU64::new(timeout_s) }
    }

    /// Sets the lifetime of cookies, including those already issued.
    pub(crate) fn set_timeout(&self, timeout_s: u64) {
        self.timeout_s.store(timeout_s, Ordering::Relaxed);
    }

    fn timeout_s(&self) -> u64 {
        self.timeout_s.load(Ordering::Relaxed)
    }

    /// The administrator's name, if there is one.
    pub(crate) fn admin_name(&self) -> Option<&str> {
        self.admin.as_ref().map(|admin| admin.name.as_str())
    }

    /// Authenticates the sender of these headers.
    ///
    /// # Errors
    /// 401 for a wrong name or password, 400 for a malformed header. Without an administrator: 403 for a
    /// request that doesn't come from this machine's own pages and programs.
    pub(crate) fn caller(&self, uri: &Uri, headers: &HeaderMap) -> Result<Caller, ApiError> {
        if self.admin.is_none() {
            return check_local(uri, headers).map(|()| Caller::AdminParty);
        }
        if let Some(cookie) = cookie(headers) {
            let caller = self.cookie_caller(cookie, now_s())?;
            if caller != Caller::Anonymous {
                return Ok(caller);
            }
        }
        match basic_credentials(headers)? {
            None => Ok(Caller::Anonymous),
            Some((name, password)) => match self.is_admin(&name, &password) {
                true => Ok(Caller::Basic),
                false => Err(ApiError::unauthorized(WRONG_PASSWORD)),
            },
        }
    }

    /// Whether requests of pages of this origin are served. Without an administrator, those of foreign
    /// origins are not.
    pub(crate) fn serves_page(&self, uri: &Uri, headers: &HeaderMap) -> bool {
        self.admin.is_some() || check_local(uri, headers).is_ok()
    }

    /// Whether these are the administrator's name and password. Takes constant time.
    pub(crate) fn is_admin(&self, name: &str, password: &str) -> bool {
        let Some(admin) = &self.admin else { return false };
        let given = sign(&self.secret, &[b"password:", password.as_bytes()]);
        let same_name = admin.name.as_bytes().ct_eq(name.as_bytes());
        (same_name & given.ct_eq(&admin.password)).into()
    }

    /// The `Set-Cookie` value that begins or renews a session of the administrator.
    pub(crate) fn session_cookie(&self) -> String {
        let (now_s, timeout_s) = (now_s(), self.timeout_s());
        set_cookie(&self.cookie_value(now_s), now_s + timeout_s, timeout_s)
    }

    /// The `Set-Cookie` value that ends a session: an empty cookie with the usual lifetime, as in CouchDB.
    /// Clients look for it after a failed login, and wouldn't find an expired one.
    pub(crate) fn ended_cookie(&self) -> String {
        let timeout_s = self.timeout_s();
        set_cookie("", now_s() + timeout_s, timeout_s)
    }

    fn cookie_value(&self, given_s: u64) -> String {
        let session = format!("{}:{given_s:X}", self.admin_name().unwrap_or_default());
        let mut bytes = session.clone().into_bytes();
        bytes.push(b':');
        bytes.extend_from_slice(&sign(&self.secret, &[b"session:", session.as_bytes()]));
        URL_SAFE_NO_PAD.encode(bytes)
    }

    fn cookie_caller(&self, cookie: &str, now_s: u64) -> Result<Caller, ApiError> {
        let malformed = || ApiError::bad_request("Malformed AuthSession cookie. Please clear your cookies.");
        let bytes = URL_SAFE_NO_PAD.decode(cookie.trim_end_matches('=')).map_err(|_| malformed())?;
        // The signature follows the second colon; it is binary and may contain colons itself.
        let mut parts = bytes.splitn(3, |byte| *byte == b':');
        let (Some(name), Some(time), Some(signature)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(malformed());
        };
        let session = &bytes[..name.len() + 1 + time.len()];
        let expected = sign(&self.secret, &[b"session:", session]);
        let given_s = std::str::from_utf8(time).ok().and_then(|time| u64::from_str_radix(time, 16).ok());
        let is_good =
            bool::from(expected.ct_eq(signature)) && self.admin_name().map(str::as_bytes) == Some(name);
        let timeout_s = self.timeout_s();
        match given_s {
            Some(given_s) if is_good && now_s < given_s + timeout_s => {
                let left_s = given_s + timeout_s - now_s;
                Ok(Caller::Cookie { renew: left_s * 10 < timeout_s * 9 })
            }
            _ => Ok(Caller::Anonymous),
        }
    }
}

/// A `Set-Cookie` value with CouchDB's attributes in its order, plus `SameSite=Lax`, which most browsers
/// assume: requests from pages of other sites don't carry the cookie.
fn set_cookie(value: &str, expires_s: u64, age_s: u64) -> String {
    let mut expires = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(expires_s));
    // Cookie dates have dashes: CouchDB writes `Tue, 13-Dec-2022 …`.
    expires.replace_range(7..8, "-");
    expires.replace_range(11..12, "-");
    format!("{COOKIE}={value}; Version=1; Expires={expires}; Max-Age={age_s}; Path=/; HttpOnly; SameSite=Lax")
}

fn sign(secret: &[u8; 32], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("any length will do");
    parts.iter().for_each(|part| mac.update(part));
    mac.finalize().into_bytes().into()
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The session cookie in these headers.
fn cookie(headers: &HeaderMap) -> Option<&str> {
    let sent = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    sent.flat_map(|cookies| cookies.split(';'))
        .filter_map(|cookie| cookie.trim().split_once('='))
        .find(|(name, value)| *name == COOKIE && !value.is_empty())
        .map(|(_, value)| value.trim_matches('"'))
}

/// The name and password of basic authentication; None for another scheme.
fn basic_credentials(headers: &HeaderMap) -> Result<Option<(String, String)>, ApiError> {
    let Some(value) = headers.get(header::AUTHORIZATION) else {
        return Ok(None);
    };
    let Some((scheme, encoded)) = value.to_str().ok().and_then(|value| value.split_once(' ')) else {
        return Ok(None);
    };
    if !scheme.eq_ignore_ascii_case("basic") {
        return Ok(None);
    }
    let decoded = STANDARD.decode(encoded.trim()).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let Some(decoded) = decoded else {
        return Err(ApiError::bad_request("Authorization header has invalid base64 value"));
    };
    match decoded.split_once(':') {
        // Clients send `_:_` to make a browser forget a password.
        Some(("_", "_")) | None => Ok(None),
        Some((name, password)) => Ok(Some((name.to_owned(), password.to_owned()))),
    }
}

/// Refuses requests that a foreign web page may have made a browser send, and requests forwarded by a proxy,
/// whose sender is unknown.
fn check_local(uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
    if let Some(name) = headers.keys().find(|name| is_of_a_proxy(name)) {
        let reason = format!(
            "Without an administrator only this machine is served: the {name} header indicates a proxy."
        );
        return Err(ApiError::forbidden(reason));
    }
    if let Some(host) = headers.get(header::HOST)
        && !host.to_str().is_ok_and(is_local_host)
    {
        let reason = "Without an administrator only localhost is served: the Host header names another host.";
        return Err(ApiError::forbidden(reason));
    }
    if uri.authority().is_some_and(|authority| !is_local_host(authority.as_str())) {
        return Err(ApiError::forbidden("Without an administrator only localhost is served."));
    }
    if let Some(origin) = headers.get(header::ORIGIN)
        && !origin.to_str().is_ok_and(is_local_origin)
    {
        let reason = "Without an administrator only pages of localhost are served: the Origin is foreign.";
        return Err(ApiError::forbidden(reason));
    }
    Ok(())
}

/// Whether proxies add this header.
///
/// Source: RFC 7239; RFC 9110, 7.6.3.
fn is_of_a_proxy(name: &HeaderName) -> bool {
    *name == header::FORWARDED || *name == header::VIA || name.as_str().starts_with("x-forwarded-")
}

fn is_local_origin(origin: &str) -> bool {
    ["http://", "https://"].iter().find_map(|scheme| origin.strip_prefix(scheme)).is_some_and(is_local_host)
}

/// Whether a `Host` names this machine, with any port.
fn is_local_host(host: &str) -> bool {
    ["localhost", "127.0.0.1", "[::1]"].iter().any(|local| {
        let Some((name, port)) = host.split_at_checked(local.len()) else {
            return false;
        };
        let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
        name.eq_ignore_ascii_case(local) && (port.is_empty() || port.strip_prefix(':').is_some_and(is_port))
    })
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(name, HeaderValue::from_str(value).unwrap());
        }
        map
    }

    fn auth() -> Auth {
        Auth::new(Some(&Admin::parse("ann:se:cret").unwrap()), 600)
    }

    fn caller(auth: &Auth, pairs: &[(HeaderName, &str)]) -> Result<Caller, String> {
        let uri = Uri::from_static("/db");
        auth.caller(&uri, &headers(pairs)).map_err(|failure| failure.reason.into_owned())
    }

    fn basic(credentials: &str) -> String {
        format!("Basic {}", STANDARD.encode(credentials))
    }

    #[test]
    fn only_the_right_name_and_password_are_the_administrator() {
        let auth = auth();
        assert_eq!(caller(&auth, &[(header::AUTHORIZATION, &basic("ann:se:cret"))]), Ok(Caller::Basic));
        assert_eq!(caller(&auth, &[]), Ok(Caller::Anonymous));
        for wrong in ["ann:secret", "bob:se:cret", "ann:", ":se:cret", "ann:se:cret2"] {
            let found = caller(&auth, &[(header::AUTHORIZATION, &basic(wrong))]);
            assert_eq!(found, Err(WRONG_PASSWORD.to_owned()), "{wrong}");
        }
    }

    #[test]
    fn a_malformed_authorization_is_a_bad_request_and_another_scheme_is_anonymous() {
        let auth = auth();
        let found = caller(&auth, &[(header::AUTHORIZATION, "Basic %%%")]);
        assert_eq!(found, Err("Authorization header has invalid base64 value".to_owned()));
        for other in ["Basic", "Bearer abc", "Negotiate x", ""] {
            assert_eq!(caller(&auth, &[(header::AUTHORIZATION, other)]), Ok(Caller::Anonymous), "{other}");
        }
    }

    #[test]
    fn a_cookie_is_good_until_its_time_is_over_and_renewed_before() {
        let auth = auth();
        let cookie = auth.cookie_value(1000);
        assert_eq!(auth.cookie_caller(&cookie, 1001).unwrap(), Caller::Cookie { renew: false });
        assert_eq!(auth.cookie_caller(&cookie, 1100).unwrap(), Caller::Cookie { renew: true });
        assert_eq!(auth.cookie_caller(&cookie, 1599).unwrap(), Caller::Cookie { renew: true });
        assert_eq!(auth.cookie_caller(&cookie, 1600).unwrap(), Caller::Anonymous);
    }

    #[test]
    fn a_cookie_changed_in_any_byte_is_anonymous() {
        let auth = auth();
        let bytes = URL_SAFE_NO_PAD.decode(auth.cookie_value(1000)).unwrap();
        for at in 0..bytes.len() {
            let mut forged = bytes.clone();
            forged[at] ^= 1;
            let found = auth.cookie_caller(&URL_SAFE_NO_PAD.encode(&forged), 1001);
            assert!(matches!(found, Ok(Caller::Anonymous) | Err(_)), "byte {at}: {found:?}");
        }
    }

    #[test]
    fn a_cookie_of_another_server_is_anonymous_and_junk_is_a_bad_request() {
        let (one, other) = (auth(), auth());
        assert_eq!(one.cookie_caller(&other.cookie_value(1000), 1001).unwrap(), Caller::Anonymous);
        let junk = one.cookie_caller("junk", 1001).unwrap_err();
        assert_eq!(junk.reason, "Malformed AuthSession cookie. Please clear your cookies.");
    }

    #[test]
    fn a_cookie_is_set_with_couchdbs_attributes_in_its_order() {
        let set = set_cookie("xyz", 1_670_939_659, 600);
        let attributes = "Version=1; Expires=Tue, 13-Dec-2022 13:54:19 GMT; Max-Age=600; Path=/; HttpOnly";
        assert_eq!(set, format!("AuthSession=xyz; {attributes}; SameSite=Lax"));
        let ended = auth().ended_cookie();
        assert!(ended.starts_with("AuthSession=; ") && ended.contains("Max-Age=600; "), "{ended}");
    }

    #[test]
    fn the_sessions_cookie_is_found_among_others() {
        let sent = headers(&[(header::COOKIE, "a=b; AuthSession=xyz; c=d")]);
        assert_eq!(cookie(&sent), Some("xyz"));
        assert_eq!(cookie(&headers(&[(header::COOKIE, "AuthSession=; XAuthSession=1")])), None);
    }

    #[test]
    fn without_an_administrator_foreign_hosts_and_origins_are_refused() {
        let auth = Auth::new(None, 600);
        for host in ["localhost", "LOCALHOST:5984", "127.0.0.1:1", "[::1]:5984", "[::1]"] {
            assert_eq!(caller(&auth, &[(header::HOST, host)]), Ok(Caller::AdminParty), "{host}");
        }
        for host in ["example.org", "localhost.example.org", "127.0.0.1.nip.io:5984", "localhost:x", ""] {
            assert!(caller(&auth, &[(header::HOST, host)]).is_err(), "{host}");
        }
        for origin in ["http://localhost:3000", "https://127.0.0.1"] {
            assert_eq!(caller(&auth, &[(header::ORIGIN, origin)]), Ok(Caller::AdminParty), "{origin}");
        }
        for origin in ["null", "http://example.org", "file://localhost", "http://localhost@evil.org"] {
            assert!(caller(&auth, &[(header::ORIGIN, origin)]).is_err(), "{origin}");
        }
    }

    #[test]
    fn without_an_administrator_what_a_proxy_forwards_is_refused() {
        let auth = Auth::new(None, 600);
        for name in ["forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"] {
            let sent = [(header::HOST, "localhost"), (HeaderName::from_static(name), "1.1 proxy")];
            let refused = caller(&auth, &sent).unwrap_err();
            assert!(refused.contains(name), "{refused}");
        }
        let other = [(HeaderName::from_static("x-forwarder"), "x")];
        assert_eq!(caller(&auth, &other), Ok(Caller::AdminParty));
    }

    #[test]
    fn the_password_is_not_shown() {
        assert!(!format!("{:?}", Admin::parse("ann:hidden").unwrap()).contains("hidden"));
    }
}
