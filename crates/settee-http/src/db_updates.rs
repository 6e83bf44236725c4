//! `_db_updates`: databases made, changed and deleted, once or for as long as the client listens.
//!
//! Each of a database's three kinds of event is told once, at its last place, as CouchDB keeps
//! them. Nothing is polled: a feed waits for an event, and then a moment for more of them, so that
//! a busy database isn't told of at each of its writes. Where a position is older than what is
//! remembered (the server has been started again, or very much has happened) the feed begins with
//! a `created` row for each database that there is.

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use hyper::header::{self, HeaderName, HeaderValue};
use settee_doc::{DatabaseEvent, Databases, EventKind, Seq};
use tokio::sync::watch;

use crate::error::Failure;
use crate::reply::{self, Answer};
use crate::server::{Call, stopped};
use crate::stream::{self, Out};

/// Rows that are looked up at once.
const ROWS_AT_ONCE: usize = 256;

/// How long an event waits for others, so that they are told together.
const DELAY: Duration = Duration::from_millis(25);

/// How a feed is delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Normal,
    Longpoll,
    Continuous,
    EventSource,
}

impl Kind {
    /// Whether it is one JSON object.
    fn is_object(self) -> bool {
        matches!(self, Kind::Normal | Kind::Longpoll)
    }
}

/// What is asked for.
struct Args {
    kind: Kind,
    since: Option<String>,
    limit: u64,
    descending: bool,
    heartbeat: Option<Duration>,
    timeout: Duration,
}

impl Args {
    fn parse(call: &Call<'_>) -> Result<Args, Failure> {
        const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
        let longest = Duration::from_millis(call.server.limits.changes_timeout_ms);
        let (kind, since, heartbeat) = (Kind::Normal, None, None);
        let mut args = Args { kind, since, limit: u64::MAX, descending: false, heartbeat, timeout: longest };
        for (name, value) in call.query().pairs() {
            match name.as_ref() {
                "feed" => args.kind = parse_kind(&value)?,
                "since" => args.since = Some(value.into_owned()),
                "limit" => args.limit = not_negative(&value)?,
                "descending" => args.descending = value == "true",
                "heartbeat" if value == "true" => args.heartbeat = Some(longest),
                "heartbeat" if value == "false" => {}
                // 0 would be a heartbeat without a pause.
                "heartbeat" => args.heartbeat = Some(silence(&value, longest)?.max(Duration::from_millis(1))),
                "timeout" => args.timeout = silence(&value, longest)?,
                _ => {}
            }
        }
        if args.kind == Kind::EventSource
            && let Some(id) = call.header(LAST_EVENT_ID)
        {
            args.since = Some(id.to_owned());
        }
        // What comes later can't come first.
        args.descending &= args.kind == Kind::Normal;
        Ok(args)
    }
}

fn parse_kind(value: &str) -> Result<Kind, Failure> {
    match value {
        "normal" => Ok(Kind::Normal),
        "longpoll" => Ok(Kind::Longpoll),
        "continuous" => Ok(Kind::Continuous),
        "eventsource" => Ok(Kind::EventSource),
        _ => Err(Failure::bad_request("Supported `feed` types: normal, continuous, longpoll, eventsource")),
    }
}

fn not_negative(value: &str) -> Result<u64, Failure> {
    match value.parse::<i128>() {
        Ok(number) if number >= 0 => Ok(u64::try_from(number).unwrap_or(u64::MAX)),
        _ => Err(Failure::bad_request("invalid_integer")),
    }
}

fn silence(value: &str, longest: Duration) -> Result<Duration, Failure> {
    Ok(longest.min(Duration::from_millis(not_negative(value)?)))
}

/// `GET /_db_updates`.
pub(crate) async fn handle(call: &Call<'_>) -> Answer {
    if !call.is_get() {
        return Err(Failure::method_not_allowed("GET"));
    }
    let args = Args::parse(call)?;
    let databases = call.server.databases.clone();
    let since = match args.since.as_deref() {
        Some(text) => databases.parse_event_seq(text)?,
        None => Seq(0),
    };
    let kind = args.kind;
    let mut response = if call.is_head() {
        reply::empty(StatusCode::OK)
    } else {
        let left = args.limit;
        let stopping = call.server.stopping.clone();
        let feed = Feed { databases, args, stopping, since, left, sent_any_row: false };
        stream::respond(call.output(), move |out| feed.run(out)).await?
    };
    if !kind.is_object() {
        response.extensions_mut().insert(reply::Endless);
    }
    if kind == Kind::EventSource {
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    }
    Ok(response)
}

/// A feed under way.
struct Feed {
    databases: Arc<Databases>,
    args: Args,
    stopping: watch::Receiver<bool>,
    /// What has been told, up to here.
    since: Seq,
    /// Rows that may still be sent.
    left: u64,
    sent_any_row: bool,
}

impl Feed {
    async fn run(mut self, mut out: Out) -> Result<Out, Failure> {
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
                Kind::Longpoll => self.sent_any_row || self.left == 0,
                Kind::Continuous | Kind::EventSource => self.left == 0,
            };
            if is_done {
                break;
            }
            // The client learns that it is heard before the first event.
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

    /// Sends what happened after `since`, up to the limit.
    async fn send(&mut self, out: &mut Out) -> Result<(), Failure> {
        while self.left > 0 {
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
                if self.left == 0 {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Sends the databases of which no event that is remembered tells. Who breaks off within them
    /// gets them all again: they have the position of the start.
    async fn send_names(&mut self, out: &mut Out) -> Result<(), Failure> {
        let behind = self.databases.first_event();
        let mut last = None;
        while self.left > 0 {
            let names = self.databases.names_before_events(last.as_deref(), ROWS_AT_ONCE);
            let Some(name) = names.last() else {
                self.since = behind;
                break;
            };
            last = Some(name.clone());
            for name in names {
                if self.left > 0 {
                    self.send_row(Seq(0), EventKind::Created, &name, out).await?;
                }
            }
        }
        Ok(())
    }

    /// Sends the events that are remembered, the last one first, and then the other databases.
    async fn send_backwards(&mut self, out: &mut Out) -> Result<(), Failure> {
        let first = self.databases.first_event();
        let mut events: Vec<DatabaseEvent> =
            self.databases.events_after(first, usize::MAX).unwrap_or_default();
        events.reverse();
        for event in events {
            if self.left == 0 {
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
        out: &mut Out,
    ) -> Result<(), Failure> {
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
        self.left -= 1;
        self.sent_any_row = true;
        out.flush_full().await
    }

    /// Waits for an event, and for more that come with it. Sends heartbeats meanwhile; returns false
    /// when the silence is too long, or the server goes.
    async fn wait(&mut self, out: &mut Out) -> Result<bool, Failure> {
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
                () = out.closed() => return Err(Failure::gone()),
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
