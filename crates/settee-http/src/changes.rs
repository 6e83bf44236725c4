//! `_changes`: the changes since a sequence number, once or as a continuous feed.
//!
//! This module parses the options; `filter` selects the changes and `feed` sends them.

mod feed;
mod filter;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Method, StatusCode};
use settee_doc::{Database, Seq};

use self::feed::Feed;
use self::filter::{Filter, FilterBody, FilterParams};
use crate::body::{self, BodyBudget};
use crate::document::{DocumentOptions, matches_tag, not_modified};
use crate::error::ApiError;
use crate::query;
use crate::response::{self, HandlerResult};
use crate::response_writer;
use crate::server::RequestContext;

/// Default row limit of a feed. CouchDB's number, because `seq_interval` counts from it.
const LIMIT_DEFAULT: u64 = 1_000_000_000_000_000;

/// Largest filter in bytes that is parsed in the request's own task. Building a filter's sets takes much
/// longer than parsing its text.
const FILTER_INLINE_BYTES: usize = 16 << 10;

/// The delivery mode of a feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// One JSON object, at once.
    Normal,
    /// One JSON object, as soon as there is a change.
    Longpoll,
    /// One JSON object per line.
    Continuous,
    /// Server-sent events.
    EventSource,
}

/// The options of a request.
struct Args {
    kind: Kind,
    since: Option<String>,
    limit: u64,
    descending: bool,
    all_leaves: bool,
    /// Whether rows include their documents.
    include_docs: bool,
    conflicts: bool,
    attachments: bool,
    encoding: bool,
    filter: Option<String>,
    /// A row has its `seq` only if the number of remaining rows is a multiple of this.
    seq_interval: u64,
    /// Interval of heartbeats while nothing else is sent.
    heartbeat: Option<Duration>,
    /// How long a feed without a heartbeat waits for a change before it ends.
    timeout: Duration,
}

impl Args {
    fn new(longest: Duration) -> Args {
        Args {
            kind: Kind::Normal,
            since: None,
            limit: LIMIT_DEFAULT,
            descending: false,
            all_leaves: false,
            include_docs: false,
            conflicts: false,
            attachments: false,
            encoding: false,
            filter: None,
            seq_interval: 1,
            heartbeat: None,
            timeout: longest,
        }
    }

    fn parse(context: &RequestContext<'_>) -> Result<Args, ApiError> {
        const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
        let longest = Duration::from_millis(context.server.limits.changes_timeout_ms);
        let mut args = Args::new(longest);
        for (name, value) in context.query().pairs() {
            args.set(&name.to_ascii_lowercase(), &value, longest)?;
        }
        // A reconnecting browser sends the last event id that it got.
        if args.kind == Kind::EventSource
            && let Some(id) = context.header(LAST_EVENT_ID)
        {
            args.since = Some(id.to_owned());
        }
        Ok(args)
    }

    fn set(&mut self, name: &str, value: &str, longest: Duration) -> Result<(), ApiError> {
        match name {
            "feed" => self.kind = parse_kind(value)?,
            "since" | "last-event-id" => self.since = Some(value.to_owned()),
            // A negative limit means no limit, as in CouchDB.
            "limit" => self.limit = query::integer(value)?.unwrap_or(LIMIT_DEFAULT),
            "descending" => self.descending = value == "true",
            "include_docs" => self.include_docs = value == "true",
            "conflicts" => self.conflicts = value == "true",
            "attachments" => self.attachments = value == "true",
            "att_encoding_info" => self.encoding = value == "true",
            "style" => {
                self.all_leaves = match value {
                    "main_only" => false,
                    "all_docs" => true,
                    _ => return Err(ApiError::bad_request("`style` must be main_only or all_docs.")),
                }
            }
            "filter" if !value.is_empty() => self.filter = Some(value.to_owned()),
            "seq_interval" => {
                let interval = value.parse().ok().filter(|interval| *interval > 0);
                self.seq_interval = interval.ok_or_else(|| ApiError::bad_request("invalid_seq_interval"))?;
            }
            "heartbeat" => self.heartbeat = Some(parse_heartbeat(value, longest)?),
            "timeout" => self.timeout = longest.min(Duration::from_millis(query::positive(value)?)),
            _ => {}
        }
        Ok(())
    }

    /// The options for a row's document; None if documents aren't included.
    fn document_options(&self) -> Option<DocumentOptions> {
        self.include_docs.then(|| DocumentOptions::of_row(self.conflicts, self.attachments, self.encoding))
    }
}

fn parse_kind(value: &str) -> Result<Kind, ApiError> {
    match value {
        "normal" => Ok(Kind::Normal),
        "longpoll" => Ok(Kind::Longpoll),
        "continuous" | "live" => Ok(Kind::Continuous),
        "eventsource" => Ok(Kind::EventSource),
        _ => Err(ApiError::bad_request(
            "Supported `feed` types: normal, continuous, live, longpoll, eventsource",
        )),
    }
}

fn parse_heartbeat(value: &str, longest: Duration) -> Result<Duration, ApiError> {
    if value == "true" {
        return Ok(longest);
    }
    match value.parse::<i128>() {
        Ok(ms) if ms > 0 => Ok(longest.min(Duration::from_millis(u64::try_from(ms).unwrap_or(u64::MAX)))),
        Ok(_) => {
            Err(ApiError::bad_request("The heartbeat value should be a positive integer (in milliseconds)."))
        }
        Err(_) => Err(ApiError::bad_request(
            "Invalid heartbeat value. Expecting a positive integer value (in milliseconds).",
        )),
    }
}

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
    let (filter, permit) = match body {
        None => (Filter::parse(&params, None), None),
        Some(body) => {
            let parse = move |text: &[u8], _: &mut BodyBudget| {
                Ok(Filter::parse(&params, Some(FilterBody::parse(text)?)))
            };
            let parsed =
                body::parse_buffered_from(FILTER_INLINE_BYTES, body, &context.server.body_memory, parse)
                    .await?;
            (parsed.0, Some(parsed.1))
        }
    };
    let args = args?;
    let filter = filter?;
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
        let feed = Feed::new(database, &args, filter, since, context.server.stopping.clone());
        response_writer::respond(context.output(), move |out| feed.run(out, permit)).await?
    };
    if let Some(tag) = tag {
        response::set_header(&mut response, header::ETAG, tag);
    }
    if matches!(kind, Kind::Continuous | Kind::EventSource) {
        response.extensions_mut().insert(response::Endless);
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

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST: Duration = Duration::from_secs(60);

    #[test]
    fn a_heartbeat_is_a_positive_number_of_at_most_the_longest_silence() {
        assert_eq!(parse_heartbeat("true", LONGEST).unwrap(), LONGEST);
        assert_eq!(parse_heartbeat("1500", LONGEST).unwrap(), Duration::from_millis(1500));
        assert_eq!(parse_heartbeat("600000", LONGEST).unwrap(), LONGEST);
        for bad in ["0", "-1", "x", "false", ""] {
            assert!(parse_heartbeat(bad, LONGEST).unwrap_err().reason.contains("heartbeat value"), "{bad}");
        }
    }

    #[test]
    fn an_unknown_feed_type_is_refused_with_the_valid_ones() {
        let failure = parse_kind("carrier-pigeon").unwrap_err();
        assert_eq!(failure.reason, "Supported `feed` types: normal, continuous, live, longpoll, eventsource");
        assert_eq!(parse_kind("live").unwrap(), Kind::Continuous);
    }

    #[test]
    fn seq_interval_is_a_positive_number() {
        let mut args = Args::new(LONGEST);
        args.set("seq_interval", "3", LONGEST).unwrap();
        assert_eq!(args.seq_interval, 3);
        for bad in ["0", "-1", "x", ""] {
            let failure = args.set("seq_interval", bad, LONGEST).unwrap_err();
            assert_eq!(failure.reason, "invalid_seq_interval", "{bad}");
        }
    }
}
