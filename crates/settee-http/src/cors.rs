//! CORS: which web pages of other origins a browser lets read the answers.
//!
//! A preflight is answered before the caller is known and before routing. Every other answer to a
//! listed origin gets headers, errors included; an origin that isn't listed gets none, and the browser
//! keeps the answer from the page. `*` lists every origin; the header then names the one that asks,
//! since browsers send no credentials where it is `*`.
//!
//! Source: <https://fetch.spec.whatwg.org/#http-cors-protocol>; lists and order are those of CouchDB 3.5.0.

use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};

use crate::reply::{self, Body};

/// Lists every origin.
const ANY: &str = "*";

/// Seconds for which a browser may keep the answer to a preflight.
const MAX_AGE_S: u32 = 600;

const METHODS: &str = "CONNECT, COPY, DELETE, GET, HEAD, OPTIONS, POST, PUT, TRACE";

/// Headers that a page may send.
const HEADERS: &str = "accept, accept-language, authorization, content-length, content-range, content-type, \
     destination, expires, if-match, last-modified, origin, pragma, x-couch-full-commit, x-couch-id, \
     x-couch-persist, x-couchdb-www-authenticate, x-http-method-override, x-requested-with, \
     x-couchdb-vhost-path";

/// Headers that a page may read, whether an answer has them or not.
const EXPOSED: &str = "accept-ranges, etag, server, x-couch-request-id, x-couch-update-newrev, \
                       x-couchdb-body-time";

/// Headers that are named to the page where an answer has them. The content type is always named.
const EXPOSED_IF_SENT: [HeaderName; 5] =
    [header::CACHE_CONTROL, header::CONTENT_LANGUAGE, header::EXPIRES, header::LAST_MODIFIED, header::PRAGMA];

/// The configuration section `cors`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cors {
    origins: Vec<String>,
    allows_credentials: bool,
    methods: Vec<String>,
    /// In lower case.
    headers: Vec<String>,
    /// In lower case.
    exposed_headers: Vec<String>,
    max_age_s: u32,
}

impl Cors {
    /// Reads the section; `value` gives the values of its keys.
    ///
    /// # Errors
    /// What a key may be.
    pub(crate) fn parse<'a>(value: impl Fn(&str) -> Option<&'a str>) -> Result<Cors, String> {
        let allows_credentials = match value("credentials") {
            None | Some("false") => false,
            Some("true") => true,
            Some(_) => return Err("cors/credentials must be true or false".to_owned()),
        };
        let max_age_s = match value("max_age") {
            None => MAX_AGE_S,
            Some(text) => text.parse().map_err(|_| "cors/max_age must be a number of seconds".to_owned())?,
        };
        let methods = list(value("methods").unwrap_or(METHODS));
        if HeaderValue::from_str(&methods.join(", ")).is_err() {
            return Err("cors/methods must be methods, separated by commas".to_owned());
        }
        let exposed_headers = lowercase_list(value("exposed_headers").unwrap_or(EXPOSED));
        if HeaderValue::from_str(&exposed_headers.join(", ")).is_err() {
            return Err("cors/exposed_headers must be names of headers, separated by commas".to_owned());
        }
        Ok(Cors {
            origins: list(value("origins").unwrap_or_default()),
            allows_credentials,
            methods,
            headers: lowercase_list(value("headers").unwrap_or(HEADERS)),
            exposed_headers,
            max_age_s,
        })
    }

    /// The answer to an OPTIONS request where that is a preflight of what a page may do.
    pub(crate) fn preflight(&self, request: &HeaderMap) -> Option<Response<Body>> {
        let origin = self.listed_origin(request)?;
        let method = request.get(header::ACCESS_CONTROL_REQUEST_METHOD)?.to_str().ok()?;
        let wanted = request.get(header::ACCESS_CONTROL_REQUEST_HEADERS);
        let names = lowercase_list(wanted.map_or(Some(""), |wanted| wanted.to_str().ok())?);
        let is_allowed = self.methods.iter().any(|allowed| allowed == method)
            && names.iter().all(|name| self.headers.contains(name));
        if !is_allowed {
            return None;
        }
        let mut response = reply::empty(StatusCode::NO_CONTENT);
        response.headers_mut().remove(header::CONTENT_TYPE);
        self.name_origin(origin, response.headers_mut());
        response.headers_mut().insert(header::ACCESS_CONTROL_MAX_AGE, self.max_age_s.into());
        let methods = self.methods.join(", ");
        reply::set_header(&mut response, header::ACCESS_CONTROL_ALLOW_METHODS, methods);
        let wanted = wanted.cloned().unwrap_or(HeaderValue::from_static(""));
        response.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted);
        Some(response)
    }

    /// Adds what lets the page that asks read an answer, where its origin is listed.
    pub(crate) fn open_to_page(&self, request: &HeaderMap, response: &mut Response<Body>) {
        let Some(origin) = self.listed_origin(request) else { return };
        let headers = response.headers_mut();
        let sent = EXPOSED_IF_SENT.iter().filter(|name| headers.contains_key(*name));
        let mut exposed = vec![header::CONTENT_TYPE.as_str()];
        exposed.extend(sent.map(HeaderName::as_str));
        exposed.extend(self.exposed_headers.iter().map(String::as_str));
        let exposed = exposed.join(", ");
        self.name_origin(origin, headers);
        reply::set_header(response, header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
    }

    fn listed_origin<'a>(&self, request: &'a HeaderMap) -> Option<&'a HeaderValue> {
        let origin = request.get(header::ORIGIN)?;
        let is_listed = |listed: &String| listed == ANY || listed.as_bytes() == origin.as_bytes();
        self.origins.iter().any(is_listed).then_some(origin)
    }

    fn name_origin(&self, origin: &HeaderValue, headers: &mut HeaderMap) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        if self.allows_credentials {
            headers.insert(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
        }
    }
}

/// What is separated by commas, without what is empty.
fn list(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned).collect()
}

fn lowercase_list(text: &str) -> Vec<String> {
    list(&text.to_ascii_lowercase())
}
