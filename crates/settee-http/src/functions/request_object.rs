//! The object `req` that design functions get.
//!
//! Source: `chttpd_external:json_req_obj` of CouchDB 3.5.0. Names of headers are capitalised, as there for the
//! names that HTTP defines.

use std::net::SocketAddr;

use hyper::header::{self, HeaderMap};
use hyper::{Method, Uri};
use settee_doc::{Database, write_json_string};

use crate::auth::Caller;
use crate::body::BufferedBody;
use crate::context::RequestContext;
use crate::database::info;
use crate::error::ApiError;
use crate::javascript::{DEFAULT_SECURITY, UserContext};
use crate::query::{self, Query, Segments};
use crate::uuids::new_uuid;

/// The address of a request's sender, among the extensions of its head.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) SocketAddr);

/// The URI that a rewritten request had first, among the extensions of its head, and the number of rewrites.
#[derive(Debug, Clone)]
pub(crate) struct RewrittenFrom {
    pub(crate) uri: Uri,
    pub(crate) count: u32,
}

/// The member `body`.
#[derive(Clone, Copy)]
pub(crate) enum RequestText<'a> {
    /// The request has none: CouchDB passes the string `undefined`.
    None,
    /// As a string.
    Text(&'a [u8]),
    /// Parsed, as JSON text.
    Json(&'a str),
}

impl<'a> RequestText<'a> {
    pub(crate) fn of(body: Option<&'a BufferedBody>) -> RequestText<'a> {
        body.map_or(RequestText::None, |body| RequestText::Text(&body.text))
    }
}

/// Reads the whole body, if the request has one.
///
/// # Errors
/// Those of [`RequestContext::read_body`].
pub(crate) async fn read_body(context: &mut RequestContext<'_>) -> Result<Option<BufferedBody>, ApiError> {
    let has_body =
        context.body.declared_bytes() != Some(0) || context.head.headers.contains_key(header::CONTENT_LENGTH);
    if has_body { context.read_body().await.map(Some) } else { Ok(None) }
}

/// The JSON text of `req`. `id` is the id of the document that the path names.
///
/// # Errors
/// 400 for a query value that has to be JSON and isn't, or a path that isn't UTF-8.
pub(crate) fn request_object(
    context: &RequestContext<'_>,
    database: &Database,
    id: Option<&str>,
    body: RequestText<'_>,
) -> Result<String, ApiError> {
    let info = info::info(database);
    let mut out = b"{\"info\":".to_vec();
    out.extend_from_slice(info.trim_ascii_end());
    member("uuid", &mut out);
    write_json_string(&new_uuid(), &mut out);
    member("id", &mut out);
    match id {
        Some(id) => write_json_string(id, &mut out),
        None => out.extend_from_slice(b"null"),
    }
    write_request(context, database, body, &mut out)?;
    member("form", &mut out);
    write_form(context, body, &mut out);
    out.push(b'}');
    into_text(out)
}

/// As [`request_object`], without the members that a function that rewrites requests doesn't get.
///
/// # Errors
/// As for [`request_object`].
pub(crate) fn rewrite_object(
    context: &RequestContext<'_>,
    database: &Database,
    body: RequestText<'_>,
) -> Result<String, ApiError> {
    let mut out = Vec::new();
    write_request(context, database, body, &mut out)?;
    out[0] = b'{';
    out.push(b'}');
    into_text(out)
}

/// Appends the members that all functions get, each with a comma before it.
fn write_request(
    context: &RequestContext<'_>,
    database: &Database,
    body: RequestText<'_>,
    out: &mut Vec<u8>,
) -> Result<(), ApiError> {
    let head = context.head;
    member("method", out);
    write_json_string(method_name(&head.method), out);
    let requested = head.extensions.get::<RewrittenFrom>().map_or(&head.uri, |from| &from.uri);
    for (name, uri) in [("requested_path", requested), ("path", &head.uri)] {
        member(name, out);
        write_path(uri.path(), context.server.plus_is_space, out)?;
    }
    member("raw_path", out);
    write_json_string(head.uri.path_and_query().map_or("/", |path| path.as_str()), out);
    member("query", out);
    write_query(context.query(), out)?;
    member("headers", out);
    write_headers(&head.headers, out);
    member("body", out);
    match body {
        RequestText::None => out.extend_from_slice(b"\"undefined\""),
        RequestText::Text(text) => write_json_string(&String::from_utf8_lossy(text), out),
        RequestText::Json(json) => out.extend_from_slice(json.as_bytes()),
    }
    member("peer", out);
    let peer = head.extensions.get::<Peer>().map(|peer| peer.0.ip().to_canonical().to_string());
    write_json_string(&peer.unwrap_or_default(), out);
    member("cookie", out);
    let cookies = head.headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let pairs = cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.split_once('='));
    write_strings(pairs.map(|(name, value)| (name.trim(), value.trim().trim_matches('"'))), out);
    member("userCtx", out);
    let name = context.server.auth.admin_name().filter(|_| context.caller != Caller::AdminParty);
    out.extend_from_slice(UserContext::new(name).json(database.name()).as_bytes());
    member("secObj", out);
    out.extend_from_slice(DEFAULT_SECURITY.as_bytes());
    Ok(())
}

/// CouchDB handles HEAD as GET.
fn method_name(method: &Method) -> &str {
    if *method == Method::HEAD { "GET" } else { method.as_str() }
}

/// Appends the decoded segments. `_design/NAME` counts as two of them, also if its slash is encoded.
fn write_path(path: &str, plus_is_space: bool, out: &mut Vec<u8>) -> Result<(), ApiError> {
    let mut segments = Segments::new(path, plus_is_space);
    let mut index = 0;
    out.push(b'[');
    while let Some(segment) = segments.next()? {
        match segment.strip_prefix("_design/").filter(|_| index == 1) {
            Some(name) => {
                crate::json::item("_design", out);
                crate::json::item(name, out);
            }
            None => crate::json::item(&segment, out),
        }
        index += 1;
    }
    out.push(b']');
    Ok(())
}

/// Appends the query's parameters: the keys of views as JSON, others as strings.
fn write_query(query: Query<'_>, out: &mut Vec<u8>) -> Result<(), ApiError> {
    out.push(b'{');
    for (index, (name, value)) in query.pairs().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write_json_string(&name, out);
        out.push(b':');
        match name.as_ref() {
            "startkey" | "endkey" | "key" | "descending" => {
                out.extend_from_slice(query::json_value(&value)?.as_bytes());
            }
            _ => write_json_string(&value, out),
        }
    }
    out.push(b'}');
    Ok(())
}

fn write_headers(headers: &HeaderMap, out: &mut Vec<u8>) {
    out.push(b'{');
    for (index, name) in headers.keys().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write_json_string(&capitalised(name.as_str()), out);
        let values: Vec<_> =
            headers.get_all(name).iter().map(|value| String::from_utf8_lossy(value.as_bytes())).collect();
        out.push(b':');
        write_json_string(&values.join(", "), out);
    }
    out.push(b'}');
}

/// The name with its words in capitals: HTTP/2 has lower case only.
fn capitalised(name: &str) -> String {
    let mut begins = true;
    let letter = |letter: char| {
        let shown = if begins { letter.to_ascii_uppercase() } else { letter };
        begins = letter == '-';
        shown
    };
    name.chars().map(letter).collect()
}

/// Appends the fields of a form in the body.
fn write_form(context: &RequestContext<'_>, body: RequestText<'_>, out: &mut Vec<u8>) {
    let has_body = matches!(*context.method(), Method::POST | Method::PUT);
    let kind = context.header(header::CONTENT_TYPE).unwrap_or("");
    match body {
        RequestText::Text(text) if has_body && kind.starts_with("application/x-www-form-urlencoded") => {
            let text = String::from_utf8_lossy(text);
            write_strings(Query(&text).pairs(), out);
        }
        _ => out.extend_from_slice(b"{}"),
    }
}

fn write_strings<A: AsRef<str>, B: AsRef<str>>(pairs: impl Iterator<Item = (A, B)>, out: &mut Vec<u8>) {
    out.push(b'{');
    for (index, (name, value)) in pairs.enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write_json_string(name.as_ref(), out);
        out.push(b':');
        write_json_string(value.as_ref(), out);
    }
    out.push(b'}');
}

fn member(name: &str, out: &mut Vec<u8>) {
    out.push(b',');
    write_json_string(name, out);
    out.push(b':');
}

fn into_text(json: Vec<u8>) -> Result<String, ApiError> {
    String::from_utf8(json).map_err(|_| ApiError::bad_json())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_headers_are_capitalised() {
        for (name, expected) in [("accept", "Accept"), ("x-couch-id", "X-Couch-Id"), ("a--b", "A--B")] {
            assert_eq!(capitalised(name), expected);
        }
    }

    #[test]
    fn a_design_document_is_two_segments_of_a_path() {
        for path in ["/db/_design/d/_show/s/a%2Fb", "/db/_design%2Fd//_show/s/a%2Fb"] {
            let mut out = Vec::new();
            write_path(path, false, &mut out).unwrap();
            assert_eq!(out, br#"["db","_design","d","_show","s","a/b"]"#);
        }
    }

    #[test]
    fn keys_are_parsed_and_other_parameters_are_strings() {
        let mut out = Vec::new();
        write_query(Query("key=%5B1%5D&descending=true&n=1&format=a+b"), &mut out).unwrap();
        assert_eq!(out, br#"{"key":[1],"descending":true,"n":"1","format":"a b"}"#);
        assert!(write_query(Query("startkey=x"), &mut out).is_err());
    }
}
