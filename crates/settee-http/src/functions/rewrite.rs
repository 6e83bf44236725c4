//! `_rewrite`: makes another request of a request, by rules or by a function, and leaves that to the router.

use std::sync::Arc;

use bytes::Bytes;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode, Uri};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use settee_doc::Database;

use super::request_object::{RequestText, RewrittenFrom, read_body, rewrite_object};
use super::response_object::ResponseObject;
use super::rewrite_rules::{normalized, rewrite_by_rules};
use crate::body::{BufferedBody, MemoryPermit};
use crate::context::{RequestContext, RewrittenRequest};
use crate::error::ApiError;
use crate::javascript::DesignSource;
use crate::json;
use crate::query::Segments;
use crate::response::{self, Body, HandlerResult};

/// Largest number of rewrites of one request.
const REWRITES_MAX: u32 = 100;

/// Rewrites a request to `_rewrite/PATH`: leaves the new request in the context, or answers as the function wants.
pub(crate) async fn rewrite(
    context: &mut RequestContext<'_>,
    database: Arc<Database>,
    design: &str,
    mut path: Segments<'_>,
) -> HandlerResult {
    let before = context.head.extensions.get::<RewrittenFrom>();
    if before.is_some_and(|before| before.count >= REWRITES_MAX) {
        return Err(ApiError::bad_request("Exceeded rewrite recursion limit"));
    }
    let source = DesignSource::read(&database, design).await?;
    let prefix = prefix_of(database.name(), design);
    match source.member("rewrites")? {
        Some(rules) if rules.starts_with('[') => {
            let mut segments = Vec::new();
            while let Some(segment) = path.next()? {
                segments.push(segment.into_owned());
            }
            let method = if context.is_head() { "GET" } else { context.method().as_str() };
            let target = rewrite_by_rules(rules, method, &segments, context.query())?;
            let (path, query) = target.split_once('?').unwrap_or((&target, ""));
            let head = rewritten(context.head, &normalized(&prefix, path), query)?;
            Ok(route_again(context, head, None))
        }
        Some(function) if function.starts_with('"') => {
            by_function(context, &database, &source, &prefix).await
        }
        _ => Err(no_rule()),
    }
}

/// Runs the function `rewrites`.
async fn by_function(
    context: &mut RequestContext<'_>,
    database: &Database,
    source: &Arc<DesignSource>,
    prefix: &str,
) -> HandlerResult {
    let body = read_body(context).await?;
    let request = rewrite_object(context, database, RequestText::of(body.as_ref()))?;
    let call = move |context: &mut settee_js::DesignContext| context.rewrite(&request);
    let Some(result) = context.server.contexts.run(source, call).await? else { return Err(no_rule()) };
    let names = ["path", "method", "query", "headers", "body", "code"];
    let [path, method, query, headers, new_body, code] = json::pick(result.as_bytes(), names)?;
    if let Some(code) = code {
        let mut response = format!("{{\"code\":{code}");
        for (name, value) in [("headers", headers), ("body", new_body)] {
            if let Some(value) = value {
                response.push_str(&format!(",\"{name}\":{value}"));
            }
        }
        response.push('}');
        return Ok(ResponseObject::parse(&response)?.into_response(StatusCode::OK));
    }
    let path = path.and_then(json::string).ok_or_else(|| {
        let reason = "Rewrite result must produce a new path.";
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "rewrite_error", reason)
    })?;
    let query = match query {
        None => context.head.uri.query().unwrap_or("").to_owned(),
        Some(query) => query_of(query)?,
    };
    let (path, of_path) = path.split_once('?').unwrap_or((&path, ""));
    let query = if of_path.is_empty() { query } else { format!("{of_path}&{query}") };
    let mut head = rewritten(context.head, &normalized(prefix, path), query.trim_end_matches('&'))?;
    if let Some(method) = method.and_then(json::string) {
        head.method = Method::from_bytes(method.as_bytes())
            .map_err(|_| ApiError::bad_request("The rewritten request has an invalid method."))?;
    }
    set_headers(&mut head.headers, headers)?;
    let body = match new_body.and_then(json::string) {
        Some(text) => {
            Some(BufferedBody { text: Bytes::from(text.into_owned()), permit: MemoryPermit::default() })
        }
        None => body,
    };
    if let Some(BufferedBody { text, .. }) = &body {
        // It was decoded, and may be another one.
        head.headers.remove(header::CONTENT_ENCODING);
        head.headers.remove(header::TRANSFER_ENCODING);
        head.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(text.len()));
    }
    Ok(route_again(context, head, body))
}

/// Leaves a request to the router. The response isn't sent.
fn route_again(context: &mut RequestContext<'_>, head: Parts, body: Option<BufferedBody>) -> Response<Body> {
    context.rewritten = Some(Box::new(RewrittenRequest { head, body }));
    response::empty(StatusCode::OK)
}

/// The path of a design document.
fn prefix_of(database: &str, design: &str) -> String {
    let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let name = design.strip_prefix("_design/").unwrap_or(design);
    format!("/{}/_design/{}", encode(database), encode(name))
}

/// The head of a request with another path and query.
fn rewritten(head: &Parts, path: &str, query: &str) -> Result<Parts, ApiError> {
    let mark = if query.is_empty() { "" } else { "?" };
    let bad = || ApiError::bad_request("The rewritten path is no valid path.");
    let target: Uri = format!("{path}{mark}{query}").parse().map_err(|_| bad())?;
    crate::query::check_encoding(&target.to_string())?;
    let mut parts = head.uri.clone().into_parts();
    parts.path_and_query = target.into_parts().path_and_query;
    let uri = Uri::from_parts(parts).map_err(|_| bad())?;
    let mut rewritten = head.clone();
    let from = head.extensions.get::<RewrittenFrom>();
    let first = from.map_or(&head.uri, |from| &from.uri).clone();
    let count = from.map_or(0, |from| from.count) + 1;
    rewritten.extensions.insert(RewrittenFrom { uri: first, count });
    rewritten.uri = uri;
    Ok(rewritten)
}

/// A query string of an object's members.
fn query_of(object: &str) -> Result<String, ApiError> {
    let mut query = String::new();
    json::each_member(object.as_bytes(), |name, value| {
        let text = json::string(value);
        let value = utf8_percent_encode(text.as_deref().unwrap_or(value), NON_ALPHANUMERIC);
        let mark = if query.is_empty() { "" } else { "&" };
        query.push_str(&format!("{mark}{}={value}", utf8_percent_encode(&name, NON_ALPHANUMERIC)));
        Ok(())
    })?;
    Ok(query)
}

fn set_headers(headers: &mut HeaderMap, object: Option<&str>) -> Result<(), ApiError> {
    let Some(object) = object else { return Ok(()) };
    json::each_member(object.as_bytes(), |name, value| {
        let text = json::string(value);
        let name = HeaderName::from_bytes(name.as_bytes());
        let value = HeaderValue::from_str(text.as_deref().unwrap_or(value));
        if let (Ok(name), Ok(value)) = (name, value) {
            headers.insert(name, value);
        }
        Ok(())
    })
}

fn no_rule() -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "rewrite_error", "Invalid path.")
}
