//! `_changes`: the changes since a sequence number, once or as a continuous feed.

use std::sync::Arc;

use bytes::Bytes;
use hyper::header::{self, HeaderValue};
use hyper::{Method, StatusCode};
use settee_doc::{Database, Seq};

use super::args::{Args, Kind};
use super::feed::Feed;
use super::filter::{Filter, FilterBody, FilterParams};
use super::function_filter::FunctionFilter;
use crate::body::{self, BodyBudget};
use crate::context::{RequestContext, matches_tag, not_modified};
use crate::document::matching::may_have_regex;
use crate::error::ApiError;
use crate::response::{self, HandlerResult, writer};

/// Largest filter in bytes that is parsed in the request's own task. Building a filter's sets takes much
/// longer than parsing its text.
const FILTER_INLINE_BYTES: usize = 16 << 10;

pub(crate) async fn handle(context: &mut RequestContext<'_>, database: Arc<Database>) -> HandlerResult {
    let body = match *context.method() {
        Method::GET | Method::HEAD => None,
        Method::POST => {
            body::check_json_type(&context.head.headers)?;
            let has_body = context.body.declared_bytes() != Some(0);
            if has_body { Some(context.read_body().await?) } else { None }
        }
        _ => return Err(ApiError::method_not_allowed("GET,POST,HEAD")),
    };
    let args = Args::parse(context);
    let params = FilterParams::of(context, args.as_ref().ok().and_then(|args| args.filter.clone()));
    // The feed holds the memory of its ids or selector.
    let text = body.as_ref().map(|body| body.text.clone());
    let (filter, permit) = match body {
        None => (Filter::parse(&params, None), None),
        Some(body) => {
            let parse = move |text: &[u8], _: &mut BodyBudget| {
                Ok(Filter::parse(&params, Some(FilterBody::parse(text)?)))
            };
            let inline_bytes = if may_have_regex(&body.text) { 0 } else { FILTER_INLINE_BYTES };
            let body_memory = &context.server.body_memory;
            let parsed = body::parse_buffered_from(inline_bytes, body, body_memory, parse).await?;
            (parsed.0, Some(parsed.1))
        }
    };
    let args = args?;
    let mut filter = filter?;
    if let Filter::Named(name) = filter {
        let text = text.as_ref().and_then(|text| std::str::from_utf8(text).ok());
        filter = Filter::Function(Arc::new(FunctionFilter::open(context, &database, name, text).await?));
    }
    let since = match args.since.as_deref() {
        Some(text) => database.parse_since(text)?,
        None => Seq(0),
    };
    let kind = args.kind;
    // The ETag is read first: a response may then be newer than its ETag, never older.
    let tag = (kind == Kind::Normal).then(|| etag(&database));
    if let Some(tag) = tag.as_ref().filter(|tag| matches_tag(context, tag)) {
        return Ok(not_modified(tag.clone()));
    }
    let mut response = if context.is_head() {
        response::empty(StatusCode::OK)
    } else {
        let feed = Feed::new(database, &args, filter, since, context.server);
        writer::respond(context.output(), move |out| feed.run(out, permit)).await?
    };
    if let Some(tag) = tag {
        response::set_header(&mut response, header::ETAG, tag);
    }
    if kind == Kind::EventSource {
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    }
    Ok(response)
}

/// The ETag of the database's current state.
fn etag(database: &Database) -> Bytes {
    format!("\"{}\"", database.seq_text(database.snapshot().update_seq())).into()
}
