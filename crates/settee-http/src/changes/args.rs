//! The options of a changes feed.

use std::time::Duration;

use hyper::header::HeaderName;

use crate::context::RequestContext;
use crate::document::options::DocumentOptions;
use crate::error::ApiError;
use crate::query;

/// Default row limit of a feed. CouchDB's number, because `seq_interval` counts from it.
const LIMIT_DEFAULT: u64 = 1_000_000_000_000_000;

/// The delivery mode of a feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
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
pub(super) struct Args {
    pub(super) kind: Kind,
    pub(super) since: Option<String>,
    pub(super) limit: u64,
    pub(super) descending: bool,
    pub(super) all_leaves: bool,
    /// Whether rows include their documents.
    pub(super) include_docs: bool,
    pub(super) conflicts: bool,
    pub(super) attachments: bool,
    pub(super) encoding: bool,
    pub(super) filter: Option<String>,
    /// A row has its `seq` only if the number of remaining rows is a multiple of this.
    pub(super) seq_interval: u64,
    /// Interval of heartbeats while nothing else is sent.
    pub(super) heartbeat: Option<Duration>,
    /// How long a feed without a heartbeat waits for a change before it ends.
    pub(super) timeout: Duration,
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

    pub(super) fn parse(context: &RequestContext<'_>) -> Result<Args, ApiError> {
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
    pub(super) fn document_options(&self) -> Option<DocumentOptions> {
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
