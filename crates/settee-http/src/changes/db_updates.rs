//! `_db_updates`: databases created, updated and deleted, once or as a continuous feed.
//!
//! As in CouchDB, each database has at most one event of each of the three kinds, at its latest position.
//! Nothing is polled: a feed waits for an event, and then a short time for more of them, so that a busy
//! database doesn't cause a row per write. If a position is older than the remembered events (after a
//! restart, or after very many events), the feed begins with a `created` row for each existing database.

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use hyper::header::{self, HeaderName, HeaderValue};
use settee_doc::{DatabaseEvent, Databases, EventKind, Seq};
use tokio::sync::watch;

use crate::context::{RequestContext, stopped};
use crate::error::ApiError;
use crate::response::writer::{self, ResponseWriter};
use crate::response::{self, HandlerResult};

/// Rows that are fetched at once.
const ROWS_AT_ONCE: usize = 256;

/// How long the feed waits after an event, to send events together.
const DELAY: Duration = Duration::from_millis(25);

/// The delivery mode of a feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Normal,
    Longpoll,
    Continuous,
    EventSource,
}

impl Kind {
    /// Whether the response is one JSON object.
    fn is_object(self) -> bool {
        matches!(self, Kind::Normal | Kind::Longpoll)
    }
}

/// The options of a request.
struct Args {
    kind: Kind,
    since: Option<String>,
    limit: u64,
    descending: bool,
    heartbeat: Option<Duration>,
    timeout: Duration,
}

impl Args {
    fn parse(context: &RequestContext<'_>) -> Result<Args, ApiError> {
        const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
        let longest = Duration::from_millis(context.server.limits.changes_timeout_ms);
        let (kind, since, heartbeat) = (Kind::Normal, None, None);
        let mut args = Args { kind, since, limit: u64::MAX, descending: false, heartbeat, timeout: longest };
        for (name, value) in context.query().pairs() {
            match name.as_ref() {
                "feed" => args.kind = parse_kind(&value)?,
                "since" => args.since = Some(value.into_owned()),
                "limit" => args.limit = not_negative(&value)?,
                "descending" => args.descending = value == "true",
                "heartbeat" if value == "true" => args.heartbeat = Some(longest),
                "heartbeat" if value == "false" => {}
                // 0 would send heartbeats without a pause.
                "heartbeat" => args.heartbeat = Some(silence(&value, longest)?.max(Duration::from_millis(1))),
                "timeout" => args.timeout = silence(&value, longest)?,
                _ => {}
            }
        }
        if args.kind == Kind::EventSource
            && let Some(id) = context.header(LAST_EVENT_ID)
        {
            args.since = Some(id.to_owned());
        }
        // Only a one-time response can be descending, because later events come last.
        args.descending &= args.kind == Kind::Normal;
        Ok(args)
    }
}

fn parse_kind(value: &str) -> Result<Kind, ApiError> {
    match value {
        "normal" => Ok(Kind::Normal),
        "longpoll" => Ok(Kind::Longpoll),
        "continuous" => Ok(Kind::Continuous),
        "eventsource" => Ok(Kind::EventSource),
        _ => Err(ApiError::bad_request("Supported `feed` types: normal, continuous, longpoll, eventsource")),
    }
}

fn not_negative(value: &str) -> Result<u64, ApiError> {
    match value.parse::<i128>() {
        Ok(number) if number >= 0 => Ok(u64::try_from(number).unwrap_or(u64::MAX)),
        _ => Err(ApiError::bad_request("invalid_integer")),
    }
}

fn silence(value: &str, longest: Duration) -> Result<Duration, ApiError> {
    Ok(longest.min(Duration::from_millis(not_negative(value)?)))
}

/// Handles `GET /_db_updates`.
pub(crate) async fn handle(context: &RequestContext<'_>) -> HandlerResult {
    if !context.is_get() {
        return Err(ApiError::method_not_allowed("GET"));
    }
    let args = Args::parse(context)?;
    let databases = context.server.databases.clone();
    let since = match args.since.as_deref() {
        Some(text) => databases.parse_event_seq(text)?,
        None => Seq(0),
    };
    let kind = args.kind;
    let mut response = if context.is_head() {
        response::empty(StatusCode::OK)
    } else {
        let rows_left = args.limit;
        let stopping = context.server.stopping.clone();
        let feed = Feed { databases, args, stopping, since, rows_left, sent_any_row: false };
        writer::respond(context.output(), move |out| feed.run(out)).await?
    };
    if kind == Kind::EventSource {
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    }
    Ok(response)
}

/// A running feed.
struct Feed {
    databases: Arc<Databases>,
    args: Args,
    stopping: watch::Receiver<bool>,
    /// Position up to which events were sent.
    since: Seq,
    /// Rows that may still be sent.
    rows_left: u64,
    sent_any_row: bool,
}

impl Feed {
    async fn run(mut self, mut out: ResponseWriter) -> Result<ResponseWriter, ApiError> {
        if self.args.kind.is_object() {
            out.buffer.extend_from_slice(b"{\"results\":[\n");
        }
        loop {
            if self.args.descending {
                self.send_backwards(&mut out).await?;
            } else {
                self.send(&mut out).await?;
            }
            let is_done = match self.args.kind {
                Kind::Normal => true,
                Kind::Longpoll => self.sent_any_row || self.rows_left == 0,
                Kind::Continuous | Kind::EventSource => self.rows_left == 0,
            };
            if is_done {
                break;
            }
            // A first newline tells the client that the feed has begun.
            if !self.sent_any_row {
                out.buffer.push(b'\n');
            }
            out.flush().await?;
            if !self.wait(&mut out).await? {
                break;
            }
        }
        self.finish(&mut out.buffer);
        Ok(out)
    }

    /// Sends the events after `since`, up to the limit.
    async fn send(&mut self, out: &mut ResponseWriter) -> Result<(), ApiError> {
        while self.rows_left > 0 {
            let Some(events) = self.databases.events_after(self.since, ROWS_AT_ONCE) else {
                self.send_names(out).await?;
                continue;
            };
            if events.is_empty() {
                break;
            }
            for event in events {
                self.since = event.seq;
                self.send_row(event.seq, event.kind, &event.name, out).await?;
                if self.rows_left == 0 {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Sends a row for each database without a remembered event. These rows have the start position, so a
    /// client that reconnects during them gets all of them again.
    async fn send_names(&mut self, out: &mut ResponseWriter) -> Result<(), ApiError> {
        let behind = self.databases.first_event();
        let mut last = None;
        while self.rows_left > 0 {
            let names = self.databases.names_before_events(last.as_deref(), ROWS_AT_ONCE);
            let Some(name) = names.last() else {
                self.since = behind;
                break;
            };
            last = Some(name.clone());
            for name in names {
                if self.rows_left > 0 {
                    self.send_row(Seq(0), EventKind::Created, &name, out).await?;
                }
            }
        }
        Ok(())
    }

    /// Sends the remembered events in descending order, and then the other databases.
    async fn send_backwards(&mut self, out: &mut ResponseWriter) -> Result<(), ApiError> {
        let first = self.databases.first_event();
        let mut events: Vec<DatabaseEvent> =
            self.databases.events_after(first, usize::MAX).unwrap_or_default();
        events.reverse();
        for event in events {
            if self.rows_left == 0 {
                return Ok(());
            }
            self.send_row(event.seq, event.kind, &event.name, out).await?;
            self.since = event.seq;
        }
        let since = self.since;
        self.send_names(out).await?;
        self.since = since;
        Ok(())
    }

    async fn send_row(
        &mut self,
        seq: Seq,
        kind: EventKind,
        name: &str,
        out: &mut ResponseWriter,
    ) -> Result<(), ApiError> {
        let buffer = &mut out.buffer;
        match self.args.kind {
            Kind::Normal | Kind::Longpoll if self.sent_any_row => buffer.extend_from_slice(b",\r\n"),
            Kind::EventSource => buffer.extend_from_slice(b"data: "),
            _ => {}
        }
        buffer.extend_from_slice(b"{\"db_name\":");
        settee_doc::write_json_string(name, buffer);
        let kind = match kind {
            EventKind::Created => "created",
            EventKind::Updated => "updated",
            EventKind::Deleted => "deleted",
        };
        buffer.extend_from_slice(format!(",\"type\":\"{kind}\",\"seq\":\"").as_bytes());
        self.databases.write_event_seq(seq, buffer);
        buffer.extend_from_slice(b"\"}");
        match self.args.kind {
            Kind::Normal | Kind::Longpoll => {}
            Kind::Continuous => buffer.push(b'\n'),
            Kind::EventSource => {
                buffer.extend_from_slice(b"\nid: \"");
                self.databases.write_event_seq(seq, buffer);
                buffer.extend_from_slice(b"\"\n\n");
            }
        }
        self.rows_left -= 1;
        self.sent_any_row = true;
        out.flush_full().await
    }

    /// Waits for an event, and then briefly for more. Sends heartbeats meanwhile. Returns false at the
    /// timeout or when the server shuts down.
    async fn wait(&mut self, out: &mut ResponseWriter) -> Result<bool, ApiError> {
        let silence = self.args.heartbeat.unwrap_or(self.args.timeout);
        let databases = self.databases.clone();
        let since = self.since;
        let mut happened = std::pin::pin!(async move {
            databases.event_after(since).await;
            tokio::time::sleep(DELAY).await;
        });
        loop {
            tokio::select! {
                biased;
                () = &mut happened => return Ok(true),
                () = stopped(&mut self.stopping) => return Ok(false),
                () = out.closed() => return Err(ApiError::gone()),
                () = tokio::time::sleep(silence) => {}
            }
            if self.args.heartbeat.is_none() {
                return Ok(false);
            }
            match self.args.kind {
                Kind::EventSource => out.buffer.extend_from_slice(b"event: heartbeat\ndata: \n\n"),
                Kind::Normal | Kind::Longpoll | Kind::Continuous => out.buffer.push(b'\n'),
            }
            out.flush().await?;
        }
    }

    fn finish(&self, out: &mut Vec<u8>) {
        match self.args.kind {
            Kind::EventSource => return,
            Kind::Normal | Kind::Longpoll => out.extend_from_slice(b"\n],\n"),
            Kind::Continuous => out.push(b'{'),
        }
        out.extend_from_slice(b"\"last_seq\":\"");
        self.databases.write_event_seq(self.since, out);
        out.extend_from_slice(b"\"}\n");
    }
}
