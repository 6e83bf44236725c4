//! A server's address, and the requests to it.

use std::fmt;
use std::io::Write as _;
use std::str::FromStr;

use base64::Engine as _;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::error::{HttpError, Result};

/// The media type of JSON.
pub const JSON: &str = "application/json";

/// Characters that are percent-encoded in a segment of a path.
const PATH_SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Percent-encodes a database's name or a document's id as one segment of a path.
pub fn encode_segment(text: &str) -> String {
    utf8_percent_encode(text, PATH_SEGMENT).to_string()
}

/// A request with its whole body.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The method.
    pub method: &'a str,
    /// The path within the server's prefix, and the query. It begins with `/` and is percent-encoded
    /// ([`encode_segment`]).
    pub target: &'a str,
    /// The body's media type and the body, if there is one.
    pub content: Option<(&'a str, &'a [u8])>,
}

impl<'a> Request<'a> {
    /// A GET.
    pub fn get(target: &'a str) -> Request<'a> {
        Request { method: "GET", target, content: None }
    }

    /// A request with a body of JSON.
    pub fn json(method: &'a str, target: &'a str, body: &'a [u8]) -> Request<'a> {
        Request { method, target, content: Some((JSON, body)) }
    }
}

/// A server's address, parsed from a URL: `http://[user:password@]host[:port][/prefix]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    address: String,
    prefix: String,
    host: String,
    authorization: Option<String>,
}

impl FromStr for Server {
    type Err = HttpError;

    fn from_str(url: &str) -> Result<Server> {
        let bad = |reason| HttpError::Url { url: without_userinfo(url), reason };
        let rest = match url.split_once("://") {
            Some(("http", rest)) => rest,
            Some(("https", _)) => return Err(bad("https is not supported, only http")),
            _ => return Err(bad("a URL begins with http://")),
        };
        if rest.contains(['?', '#']) {
            return Err(bad("a server's URL has no query and no fragment"));
        }
        let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        let (userinfo, host) = match authority.rsplit_once('@') {
            Some((userinfo, host)) => (Some(userinfo), host),
            None => (None, authority),
        };
        if host.is_empty() || host.starts_with(':') || host.contains(|c: char| c.is_ascii_control()) {
            return Err(bad("the URL names no host"));
        }
        let has_port = match host.rsplit_once(':') {
            Some((name, port)) if !name.contains(':') || name.ends_with(']') => {
                port.parse::<u16>().map_err(|_| bad("the port isn't a number up to 65535"))?;
                true
            }
            _ => false,
        };
        let server = Server {
            address: if has_port { host.to_owned() } else { format!("{host}:80") },
            prefix: path.trim_end_matches('/').to_owned(),
            host: host.to_owned(),
            authorization: None,
        };
        let Some(userinfo) = userinfo else { return Ok(server) };
        let (user, password) = userinfo.split_once(':').unwrap_or((userinfo, ""));
        let decode = |text| percent_decode_str(text).collect::<Vec<u8>>();
        Ok(server.with_user(&decode(user), &decode(password)))
    }
}

impl Server {
    /// Whether requests to it are authenticated.
    pub fn has_user(&self) -> bool {
        self.authorization.is_some()
    }

    /// Returns the same server with a user, for whom requests use basic authentication.
    ///
    /// # Panics
    /// If the server has a user.
    pub fn with_user(mut self, name: &[u8], password: &[u8]) -> Server {
        assert!(!self.has_user(), "requests name one user");
        let encoded = base64::engine::general_purpose::STANDARD.encode([name, b":", password].concat());
        self.authorization = Some(format!("Basic {encoded}"));
        self
    }

    /// Host and port.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The value of the header `Authorization`, if the server has a user.
    pub fn authorization(&self) -> Option<&str> {
        self.authorization.as_deref()
    }

    /// Appends a request's head to `out`. `content` is the body's media type and length, if there is a body.
    pub fn render(&self, method: &str, target: &str, content: Option<(&str, usize)>, out: &mut Vec<u8>) {
        let Server { prefix, host, authorization, .. } = self;
        let mut push = |text: fmt::Arguments<'_>| out.write_fmt(text).expect("writing to memory");
        push(format_args!("{method} {prefix}{target} HTTP/1.1\r\nHost: {host}\r\n"));
        if let Some(authorization) = authorization {
            push(format_args!("Authorization: {authorization}\r\n"));
        }
        if let Some((kind, length)) = content {
            push(format_args!("Content-Type: {kind}\r\nContent-Length: {length}\r\n"));
        }
        push(format_args!("\r\n"));
    }
}

fn without_userinfo(url: &str) -> String {
    let scheme = url.find("://").map_or(0, |at| at + 3);
    let host = url.rfind('@').map_or(scheme, |at| at + 1);
    format!("{}{}", &url[..scheme], &url[host.max(scheme)..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_parsed_into_host_prefix_and_credentials() {
        let server: Server = "http://us%40er:p%3Ass@127.0.0.1:5984/prefix/".parse().unwrap();
        assert_eq!(server.address(), "127.0.0.1:5984");
        let mut head = Vec::new();
        server.render("PUT", "/db", Some((JSON, 2)), &mut head);
        let expected = "PUT /prefix/db HTTP/1.1\r\nHost: 127.0.0.1:5984\r\nAuthorization: Basic dXNAZXI6cDpzcw==\r\n\
            Content-Type: application/json\r\nContent-Length: 2\r\n\r\n";
        assert_eq!(String::from_utf8(head).unwrap(), expected);
        for (url, address) in [
            ("http://a.example", "a.example:80"),
            ("http://[::1]", "[::1]:80"),
            ("http://[::1]:9/", "[::1]:9"),
        ] {
            assert_eq!(url.parse::<Server>().unwrap().address(), address);
        }
    }

    #[test]
    fn the_error_of_an_invalid_url_does_not_show_its_password() {
        for url in [
            "https://u:secret@h",
            "u:secret@h",
            "http://",
            "http://:5984",
            "http://h:99999",
            "http://h/?q",
            "ftp://h",
        ] {
            let error = url.parse::<Server>().unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn path_segments_are_percent_encoded() {
        assert_eq!(encode_segment("a/b+c d_é"), "a%2Fb%2Bc%20d_%C3%A9");
    }
}
