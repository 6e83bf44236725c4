//! `_changes`: what has happened since, once or for as long as the client listens.
//!
//! Here its options are read; `filter` says which changes are sent, `feed` sends them.

mod feed;
mod filter;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Method, StatusCode};
use settee_doc::{Database, Seq};

use self::feed::Feed;
use self::filter::{Asked, Filter, Sent};
use crate::body::{self, Charge};
use crate::document::{Shape, matches_tag, not_modified};
use crate::error::Failure;
use crate::query;
use crate::reply::{self, Answer};
use crate::server::Call;
use crate::stream;

/// Rows that a feed without a `limit` sends. CouchDB's number, by which `seq_interval` counts.
const LIMIT_DEFAULT: u64 = 1_000_000_000_000_000;

/// Bytes of a filter that is read in its request's own task: of lists it is made what takes far longer than
/// to read them.
const FILTER_INLINE_BYTES: usize = 16 << 10;

/// How a feed is delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// One JSON object, at once.
    Normal,
    /// One JSON object, as soon as there is a change.
    Longpoll,
    /// A JSON object a line.
    Continuous,
    /// Server-sent events.
    EventSource,
}

/// What is asked for.
struct Args {
    kind: Kind,
    since: Option<String>,
    limit: u64,
    descending: bool,
    all_leaves: bool,
    /// How documents are shown; None: they aren't.
    include_docs: bool,
    conflicts: bool,
    attachments: bool,
    encoding: bool,
    filter: Option<String>,
    /// A row has its place in the changes where what may still be sent is a multiple of it.
    seq_interval: u64,
    /// Silence after which a sign of life is sent.
    heartbeat: Option<Duration>,
    /// Silence after which a feed without a heartbeat ends.
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

    fn parse(call: &Call<'_>) -> Result<Args, Failure> {
        const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
        let longest = Duration::from_millis(call.server.limits.changes_timeout_ms);
        let mut args = Args::new(longest);
        for (name, value) in call.query().pairs() {
            args.set(&name.to_ascii_lowercase(), &value, longest)?;
        }
        // A browser that connects again says where it was.
        if args.kind == Kind::EventSource
            && let Some(id) = call.header(LAST_EVENT_ID)
        {
            args.since = Some(id.to_owned());
        }
        Ok(args)
    }

    fn set(&mut self, name: &str, value: &str, longest: Duration) -> Result<(), Failure> {
        match name {
            "feed" => self.kind = parse_kind(value)?,
            "since" | "last-event-id" => self.since = Some(value.to_owned()),
            // Less than none is no limit, as in CouchDB.
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
                    _ => return Err(Failure::bad_request("`style` must be main_only or all_docs.")),
                }
            }
            "filter" if !value.is_empty() => self.filter = Some(value.to_owned()),
            "seq_interval" => {
                let interval = value.parse().ok().filter(|interval| *interval > 0);
                self.seq_interval = interval.ok_or_else(|| Failure::bad_request("invalid_seq_interval"))?;
            }
            "heartbeat" => self.heartbeat = Some(parse_heartbeat(value, longest)?),
            "timeout" => self.timeout = longest.min(Duration::from_millis(query::positive(value)?)),
            _ => {}
        }
        Ok(())
    }

    /// How a row shows its document, if it does.
    fn shape(&self) -> Option<Shape> {
        self.include_docs.then(|| Shape::of_row(self.conflicts, self.attachments, self.encoding))
    }
}

fn parse_kind(value: &str) -> Result<Kind, Failure> {
    match value {
        "normal" => Ok(Kind::Normal),
        "longpoll" => Ok(Kind::Longpoll),
        "continuous" | "live" => Ok(Kind::Continuous),
        "eventsource" => Ok(Kind::EventSource),
        _ => Err(Failure::bad_request(
            "Supported `feed` types: normal, continuous, live, longpoll, eventsource",
        )),
    }
}

fn parse_heartbeat(value: &str, longest: Duration) -> Result<Duration, Failure> {
    if value == "true" {
        return Ok(longest);
    }
    match value.parse::<i128>() {
        Ok(ms) if ms > 0 => Ok(longest.min(Duration::from_millis(u64::try_from(ms).unwrap_or(u64::MAX)))),
        Ok(_) => {
            Err(Failure::bad_request("The heartbeat value should be a positive integer (in milliseconds)."))
        }
        Err(_) => Err(Failure::bad_request(
            "Invalid heartbeat value. Expecting a positive integer value (in milliseconds).",
        )),
    }
}

pub(crate) async fn handle(call: &mut Call<'_>, database: Arc<Database>) -> Answer {
    let held = match *call.method() {
        Method::GET | Method::HEAD => None,
        Method::POST => {
            body::check_json_type(&call.head.headers)?;
            let has_body = call.body.declared_bytes() != Some(0);
            if has_body { Some(call.read_body().await?) } else { None }
        }
        _ => return Err(Failure::method_not_allowed("GET,POST,HEAD")),
    };
    let args = Args::parse(call);
    let asked = Asked::of(call, args.as_ref().ok().and_then(|args| args.filter.clone()));
    // The ids or the selector of a filter are held as long as the feed.
    let (filter, share) = match held {
        None => (Filter::parse(&asked, None), None),
        Some(held) => {
            let parse =
                move |text: &[u8], _: &mut Charge| Ok(Filter::parse(&asked, Some(Sent::parse(text)?)));
            let parsed = body::parse_held_from(FILTER_INLINE_BYTES, held, &call.server.room, parse).await?;
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
    // A state of the database and a query have one answer; what the state is, is read first.
    let tag = (kind == Kind::Normal).then(|| etag(&database));
    if let Some(tag) = tag.as_ref().filter(|tag| matches_tag(call, tag)) {
        return Ok(not_modified(tag.clone()));
    }
    let mut response = if call.is_head() {
        reply::empty(StatusCode::OK)
    } else {
        let feed = Feed::new(database, &args, filter, since, call.server.stopping.clone());
        stream::respond(call.output(), move |out| feed.run(out, share)).await?
    };
    if let Some(tag) = tag {
        reply::set_header(&mut response, header::ETAG, tag);
    }
    if matches!(kind, Kind::Continuous | Kind::EventSource) {
        response.extensions_mut().insert(reply::Endless);
    }
    if kind == Kind::EventSource {
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    }
    Ok(response)
}

/// What tells a state of a database from all others.
fn etag(database: &Database) -> Bytes {
    format!("\"{}\"", database.seq_text(database.view().update_seq())).into()
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
    fn a_feed_of_another_kind_is_refused_with_those_there_are() {
        let failure = parse_kind("carrier-pigeon").unwrap_err();
        assert_eq!(failure.reason, "Supported `feed` types: normal, continuous, live, longpoll, eventsource");
        assert_eq!(parse_kind("live").unwrap(), Kind::Continuous);
    }

    #[test]
    fn an_interval_of_places_is_a_positive_number() {
        let mut args = Args::new(LONGEST);
        args.set("seq_interval", "3", LONGEST).unwrap();
        assert_eq!(args.seq_interval, 3);
        for bad in ["0", "-1", "x", ""] {
            let failure = args.set("seq_interval", bad, LONGEST).unwrap_err();
            assert_eq!(failure.reason, "invalid_seq_interval", "{bad}");
        }
    }
}
