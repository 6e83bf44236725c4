//! CORS: allows web pages of listed origins to read responses.
//!
//! A preflight is answered before authentication and routing. Every other response to a listed origin, errors
//! included, gets CORS headers; for an origin that isn't listed there are none, and the browser withholds the
//! response from the page. `*` lists every origin; the response then names the requesting origin, because
//! browsers send no credentials to `*`.
//!
//! Source: <https://fetch.spec.whatwg.org/#http-cors-protocol>; lists and order are those of CouchDB 3.5.0.

use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};

use crate::response::{self, Body};

/// Lists every origin.
const ANY: &str = "*";

/// Seconds for which a browser may cache a preflight response.
const MAX_AGE_S: u32 = 600;

const METHODS: &str = "CONNECT, COPY, DELETE, GET, HEAD, OPTIONS, POST, PUT, TRACE";

/// Request headers that a page may send by default.
const HEADERS: &str = "accept, accept-language, authorization, content-length, content-range, content-type, \
     destination, expires, if-match, last-modified, origin, pragma, x-couch-full-commit, x-couch-id, \
     x-couch-persist, x-couchdb-www-authenticate, x-http-method-override, x-requested-with, \
     x-couchdb-vhost-path";

/// Response headers that a page may read, whether present or not.
const EXPOSED: &str = "accept-ranges, etag, server, x-couch-request-id, x-couch-update-newrev, \
                       x-couchdb-body-time";

/// Response headers that are exposed to the page if present. The content type always is.
const EXPOSED_IF_SENT: [HeaderName; 5] =
    [header::CACHE_CONTROL, header::CONTENT_LANGUAGE, header::EXPIRES, header::LAST_MODIFIED, header::PRAGMA];

/// The configuration section `cors`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cors {
    origins: Vec<String>,
    allows_credentials: bool,
    methods: Vec<String>,
    /// Header names in lower case.
    headers: Vec<String>,
    /// Header names in lower case.
    exposed_headers: Vec<String>,
    max_age_s: u32,
}

impl Cors {
    /// Parses the section; `value` returns the value of a key.
    ///
    /// # Errors
    /// The allowed values of an invalid key.
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

    /// The response to an OPTIONS request that is a valid preflight; None for others.
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
        let mut response = response::empty(StatusCode::NO_CONTENT);
        response.headers_mut().remove(header::CONTENT_TYPE);
        self.name_origin(origin, response.headers_mut());
        response.headers_mut().insert(header::ACCESS_CONTROL_MAX_AGE, self.max_age_s.into());
        let methods = self.methods.join(", ");
        response::set_header(&mut response, header::ACCESS_CONTROL_ALLOW_METHODS, methods);
        let wanted = wanted.cloned().unwrap_or(HeaderValue::from_static(""));
        response.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted);
        Some(response)
    }

    /// Adds the CORS headers to a response if the request's origin is listed.
    pub(crate) fn add_headers(&self, request: &HeaderMap, response: &mut Response<Body>) {
        let Some(origin) = self.listed_origin(request) else { return };
        let headers = response.headers_mut();
        let sent = EXPOSED_IF_SENT.iter().filter(|name| headers.contains_key(*name));
        let mut exposed = vec![header::CONTENT_TYPE.as_str()];
        exposed.extend(sent.map(HeaderName::as_str));
        exposed.extend(self.exposed_headers.iter().map(String::as_str));
        let exposed = exposed.join(", ");
        self.name_origin(origin, headers);
        response::set_header(response, header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
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

/// The items of a comma-separated list, without empty ones.
fn list(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned).collect()
}

fn lowercase_list(text: &str) -> Vec<String> {
    list(&text.to_ascii_lowercase())
}
