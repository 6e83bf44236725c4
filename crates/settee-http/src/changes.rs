//! `_changes`: what has happened since, once or for as long as the client listens.
//!
//! A feed is a loop of two steps: send what changed after its place, from a snapshot; then wait
//! for the database to tell of a later change. Nothing is polled; timers only break silences.

use std::collections::HashSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Method, StatusCode};
use settee_doc::{Database, Leaf, Row, Seq, Summary, View};
use tokio::sync::watch;

use crate::Limits;
use crate::database::quoted_seq;
use crate::document::{write_doc_member, write_seq_member};
use crate::error::Failure;
use crate::json;
use crate::query;
use crate::reply::{self, Answer};
use crate::server::{Call, stopped};
use crate::stream::{self, Out};

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

/// Which changes are sent.
enum Filter {
    All,
    DocIds(HashSet<String>),
    Design,
}

impl Filter {
    fn passes(&self, id: &str) -> bool {
        match self {
            Filter::All => true,
            Filter::DocIds(ids) => ids.contains(id),
            Filter::Design => id.starts_with("_design/"),
        }
    }
}

/// What is asked for.
struct Args {
    kind: Kind,
    since: Option<String>,
    limit: u64,
    descending: bool,
    include_docs: bool,
    conflicts: bool,
    all_leaves: bool,
    filter: Option<String>,
    /// Silence after which a sign of life is sent.
    heartbeat: Option<Duration>,
    /// Silence after which a feed without a heartbeat ends.
    timeout: Duration,
}

impl Args {
    fn parse(call: &Call<'_>) -> Result<Args, Failure> {
        const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
        let longest = Duration::from_millis(call.server.limits.changes_timeout_ms);
        let mut args = Args {
            kind: Kind::Normal,
            since: None,
            limit: u64::MAX,
            descending: false,
            include_docs: false,
            conflicts: false,
            all_leaves: false,
            filter: None,
            heartbeat: None,
            timeout: longest,
        };
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
            "limit" => self.limit = query::positive(value)?,
            "descending" => self.descending = value == "true",
            "include_docs" => self.include_docs = value == "true",
            "conflicts" => self.conflicts = value == "true",
            "style" => {
                self.all_leaves = match value {
                    "main_only" => false,
                    "all_docs" => true,
                    _ => return Err(Failure::bad_request("`style` must be main_only or all_docs.")),
                }
            }
            "filter" if !value.is_empty() => self.filter = Some(value.to_owned()),
            "heartbeat" => self.heartbeat = Some(parse_heartbeat(value, longest)?),
            "timeout" => self.timeout = longest.min(Duration::from_millis(query::positive(value)?)),
            _ => {}
        }
        Ok(())
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
    let body = match *call.method() {
        Method::GET | Method::HEAD => None,
        Method::POST => {
            crate::body::check_json_type(&call.head.headers)?;
            let has_body = hyper::body::Body::size_hint(&*call.body).exact() != Some(0);
            if has_body { Some(call.read_body().await?) } else { None }
        }
        _ => return Err(Failure::method_not_allowed("GET,POST,HEAD")),
    };
    let members = body.as_ref().map(|body| json::members(&body.text)).transpose()?;
    let args = Args::parse(call)?;
    let filter = parse_filter(call, &args, members.as_ref(), &call.server.limits)?;
    let since = match args.since.as_deref() {
        Some(text) => database.parse_since(text)?,
        None => Seq(0),
    };
    let kind = args.kind;
    let mut response = if call.is_head() {
        reply::empty(StatusCode::OK)
    } else {
        let feed = Feed::new(database, args, filter, since, call.server.stopping.clone());
        let share = body.map(|body| body.share);
        stream::respond(&call.server.limits, async move |out| {
            let _for_the_filter = share;
            feed.run(out).await
        })
        .await?
    };
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

fn parse_filter(
    call: &Call<'_>,
    args: &Args,
    body: Option<&json::Members<'_>>,
    limits: &Limits,
) -> Result<Filter, Failure> {
    let not_yet = |name: &str| Failure::not_implemented(format!("The filter {name} is not implemented yet."));
    match args.filter.as_deref() {
        None => Ok(Filter::All),
        Some("_design") => Ok(Filter::Design),
        Some("_doc_ids") => {
            let in_query;
            let raw = match body {
                Some(members) => members.get("doc_ids"),
                None => {
                    in_query = call.query().get("doc_ids");
                    in_query.as_deref().map(query::json_value).transpose()?
                }
            };
            parse_doc_ids(raw.unwrap_or("null"), limits.max_feed_doc_ids).map(Filter::DocIds)
        }
        Some(name @ ("_selector" | "_view")) => Err(not_yet(name)),
        Some(name) if name.starts_with('_') => Err(Failure::bad_request("unknown builtin filter name")),
        Some(name) => Err(not_yet(name)),
    }
}

fn parse_doc_ids(raw: &str, most: usize) -> Result<HashSet<String>, Failure> {
    let no_list = || Failure::bad_request("`doc_ids` filter parameter is not a list of doc ids.");
    let list = json::list(raw).ok_or_else(no_list)?;
    if list.len() > most {
        return Err(Failure::bad_request(format!("`doc_ids` has more than {most} ids.")));
    }
    list.into_iter().map(|id| json::string(id.get()).map(Into::into).ok_or_else(no_list)).collect()
}

/// A feed under way.
struct Feed {
    database: Arc<Database>,
    args: Args,
    filter: Filter,
    stopping: watch::Receiver<bool>,
    /// What has been looked at: changes up to here were sent, or didn't pass the filter.
    since: Seq,
    /// Changes that came after `since` when it was set.
    pending: u64,
    /// Rows that may still be sent.
    left: u64,
    sent_any_row: bool,
    sent_anything: bool,
}

/// Why a feed's wait ended.
enum Woken {
    Changed,
    Over,
}

impl Feed {
    fn new(
        database: Arc<Database>,
        args: Args,
        filter: Filter,
        since: Seq,
        stopping: watch::Receiver<bool>,
    ) -> Feed {
        let left = args.limit;
        Feed {
            database,
            args,
            filter,
            stopping,
            since,
            pending: 0,
            left,
            sent_any_row: false,
            sent_anything: false,
        }
    }

    async fn run(mut self, mut out: Out) -> Result<Out, Failure> {
        if matches!(self.args.kind, Kind::Normal | Kind::Longpoll) {
            out.buffer.extend_from_slice(b"{\"results\":[\n");
        }
        loop {
            let view = self.database.view();
            self.send(&view, &mut out).await?;
            drop(view);
            let is_done = match self.args.kind {
                Kind::Normal => true,
                Kind::Longpoll => self.sent_any_row || self.left == 0,
                Kind::Continuous | Kind::EventSource => self.left == 0,
            };
            if is_done {
                break;
            }
            // The client learns that it is heard before the first change.
            if !self.sent_anything && !self.sent_any_row {
                out.buffer.push(b'\n');
            }
            self.sent_anything = true;
            out.flush().await?;
            match self.wait(&mut out).await? {
                Woken::Changed => {}
                Woken::Over => break,
            }
        }
        self.finish(&mut out.buffer);
        Ok(out)
    }

    /// Sends what changed after `since`, or everything backwards, up to the limit.
    async fn send(&mut self, view: &View, out: &mut Out) -> Result<(), Failure> {
        let descending = self.args.descending;
        // Backwards the feed starts from the end, whatever `since` says.
        let after = if descending { Seq(0) } else { self.since };
        let mut to_come = if descending { view.pending(Seq(0)).await? } else { 0 };
        let mut rows = view.changes(after, descending);
        let mut id = String::new();
        while self.left > 0
            && let Some(Row { id: row_id, summary, body }) = rows.next().await?
        {
            to_come = to_come.saturating_sub(1);
            self.since = summary.seq;
            if !self.filter.passes(row_id) {
                // Many may not pass in a row: others get their turn.
                tokio::task::consume_budget().await;
                continue;
            }
            id.clear();
            id.push_str(row_id);
            self.begin_row(&mut out.buffer);
            let with_leaves = self.args.all_leaves && summary.has_conflicts;
            let leaves = if with_leaves { view.leaves(&id).await? } else { Vec::new() };
            self.write_row(&id, summary, &leaves, &mut out.buffer);
            if self.args.include_docs {
                let document = view.read(&id, summary, body).await?;
                let conflicts = self.args.conflicts;
                write_doc_member(&self.database, view, &document, conflicts, &mut out.buffer).await?;
            }
            self.end_row(summary.seq, &mut out.buffer);
            self.left -= 1;
            self.sent_any_row = true;
            out.flush_full().await?;
        }
        if descending {
            self.pending = to_come;
            // What comes later comes forwards.
            if self.args.kind != Kind::Normal && self.left > 0 {
                self.args.descending = false;
                self.since = view.update_seq();
            }
        } else {
            if self.left > 0 {
                self.since = view.update_seq();
            }
            self.pending = view.pending(self.since).await?;
        }
        Ok(())
    }

    fn begin_row(&self, out: &mut Vec<u8>) {
        match self.args.kind {
            Kind::Normal | Kind::Longpoll if self.sent_any_row => out.extend_from_slice(b",\r\n"),
            Kind::EventSource => out.extend_from_slice(b"data: "),
            _ => {}
        }
    }

    /// A row, its closing brace left to come: its winner, and then the others of its leaves.
    fn write_row(&self, id: &str, summary: Summary, leaves: &[Leaf], out: &mut Vec<u8>) {
        out.push(b'{');
        write_seq_member(&self.database, summary.seq, out);
        out.extend_from_slice(b"\"id\":");
        settee_doc::write_json_string(id, out);
        out.extend_from_slice(b",\"changes\":[{\"rev\":\"");
        summary.revision.write(out);
        for leaf in leaves.iter().filter(|leaf| leaf.revision != summary.revision) {
            out.extend_from_slice(b"\"},{\"rev\":\"");
            leaf.revision.write(out);
        }
        out.extend_from_slice(b"\"}]");
        if summary.deleted {
            out.extend_from_slice(b",\"deleted\":true");
        }
    }

    fn end_row(&self, seq: Seq, out: &mut Vec<u8>) {
        out.push(b'}');
        match self.args.kind {
            Kind::Normal | Kind::Longpoll => {}
            Kind::Continuous => out.push(b'\n'),
            Kind::EventSource => {
                out.extend_from_slice(b"\nid: ");
                quoted_seq(&self.database, seq, out);
                out.extend_from_slice(b"\n\n");
            }
        }
    }

    /// Waits for a change. Sends heartbeats meanwhile, or gives up when the silence is too long;
    /// ends when the database or the server goes.
    async fn wait(&mut self, out: &mut Out) -> Result<Woken, Failure> {
        let silence = self.args.heartbeat.unwrap_or(self.args.timeout);
        let mut changed = pin!(self.database.changed_after(self.since));
        loop {
            tokio::select! {
                biased;
                changed = &mut changed => {
                    return Ok(if changed.is_ok() { Woken::Changed } else { Woken::Over });
                }
                () = stopped(&mut self.stopping) => return Ok(Woken::Over),
                () = out.closed() => return Err(Failure::gone()),
                () = tokio::time::sleep(silence) => {}
            }
            if self.args.heartbeat.is_none() {
                return Ok(Woken::Over);
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
        out.extend_from_slice(b"\"last_seq\":");
        quoted_seq(&self.database, self.since, out);
        out.extend_from_slice(b",\"pending\":");
        json::number(self.pending, out);
        out.extend_from_slice(b"}\n");
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
    fn a_feed_of_another_kind_is_refused_with_those_there_are() {
        let failure = parse_kind("carrier-pigeon").unwrap_err();
        assert_eq!(failure.reason, "Supported `feed` types: normal, continuous, live, longpoll, eventsource");
        assert_eq!(parse_kind("live").unwrap(), Kind::Continuous);
    }

    #[test]
    fn doc_ids_are_a_list_of_strings_of_bounded_length() {
        assert_eq!(parse_doc_ids("[\"a\",\"b\"]", 2).unwrap().len(), 2);
        for bad in ["null", "{}", "[1]", "[\"a\",\"b\",\"c\"]"] {
            assert!(parse_doc_ids(bad, 2).is_err(), "{bad}");
        }
    }
}
