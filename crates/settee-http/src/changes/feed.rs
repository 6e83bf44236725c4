//! Runs a changes feed: it sends the changes after its position from a snapshot, then waits until the
//! database notifies it of a later change. Nothing is polled; timers only send heartbeats and end idle feeds.
//!
//! Bodies are read in batches (windows) that grow from one row on. If a filter has far fewer ids than there
//! are changes, the ids are looked up instead of scanning the changes.
//!
//! Invariants:
//! 1. A waiting feed holds no snapshot, window or buffer. They are allocated for sending and freed
//!    afterwards.
//! 2. `since` is the feed's position: all changes up to it were sent or didn't pass the filter.
//! 3. A window has at most [`WINDOW_ROWS_MAX`] rows and ends with the row that reaches [`WINDOW_BYTES_MAX`]
//!    bytes.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use settee_doc::{BodyRef, Database, Document, Extras, Revision, Row, Seq, Snapshot, Summary};
use tokio::sync::watch;
use tokio::time::Instant;

use super::args::{Args, Kind};
use super::filter::{Filter, Selected};
use crate::body::MemoryPermit;
use crate::context::stopped;
use crate::document::inline::write_document;
use crate::document::options::DocumentOptions;
use crate::error::ApiError;
use crate::json;
use crate::response::writer::ResponseWriter;

/// Maximum rows of a window.
const WINDOW_ROWS_MAX: usize = 256;

/// A window ends with the row that brings its records to this many bytes.
const WINDOW_BYTES_MAX: u64 = 2 << 20;

/// Maximum ids that are looked up instead of scanned for.
const LOOKED_UP_MAX: usize = 1_000;

/// The estimated cost of a lookup, in rows of a scan.
const ROWS_PER_LOOKUP: u64 = 4;

/// Largest document in bytes that is matched in the feed's own task. A larger one is matched on a blocking
/// thread.
const MATCHED_INLINE_BYTES: usize = 64 << 10;

/// Number of rows skipped between two checks of the heartbeat.
const ROWS_PER_BEAT: u32 = 256;

/// A running feed.
pub(super) struct Feed {
    database: Arc<Database>,
    filter: Filter,
    stopping: watch::Receiver<bool>,
    kind: Kind,
    descending: bool,
    all_leaves: bool,
    /// The options for rows' documents; None if documents aren't included.
    document_options: Option<DocumentOptions>,
    heartbeat: Option<Duration>,
    timeout: Duration,
    seq_interval: u64,
    /// Changes up to here were sent or didn't pass the filter.
    since: Seq,
    /// Number of changes after `since` when it was set.
    pending: u64,
    /// Rows that may still be sent.
    rows_left: u64,
    sent_any_row: bool,
    sent_anything: bool,
    /// When something was last sent, as far as `beat` observed it.
    beat: Instant,
}

/// Why a feed's wait ended.
enum Woken {
    Changed,
    Over,
}

/// A row that passed the filter by its id and whose body wasn't read yet.
type Candidate = (String, Summary, BodyRef);

impl Feed {
    pub(super) fn new(
        database: Arc<Database>,
        args: &Args,
        filter: Filter,
        since: Seq,
        stopping: watch::Receiver<bool>,
    ) -> Feed {
        Feed {
            database,
            filter,
            stopping,
            kind: args.kind,
            descending: args.descending,
            all_leaves: args.all_leaves,
            document_options: args.document_options(),
            heartbeat: args.heartbeat,
            timeout: args.timeout,
            seq_interval: args.seq_interval,
            since,
            pending: 0,
            rows_left: args.limit,
            sent_any_row: false,
            sent_anything: false,
            beat: Instant::now(),
        }
    }

    /// Runs the feed to its end. Holds `permit` meanwhile.
    pub(super) async fn run(
        mut self,
        mut out: ResponseWriter,
        permit: Option<MemoryPermit>,
    ) -> Result<ResponseWriter, ApiError> {
        let _permit = permit;
        if matches!(self.kind, Kind::Normal | Kind::Longpoll) {
            out.buffer.extend_from_slice(b"{\"results\":[\n");
        }
        loop {
            // Boxed, so that a waiting feed doesn't keep the memory of this future.
            out = Box::pin(self.send(out)).await?;
            let is_done = match self.kind {
                Kind::Normal => true,
                Kind::Longpoll => self.sent_any_row || self.rows_left == 0,
                Kind::Continuous | Kind::EventSource => self.rows_left == 0,
            };
            if is_done {
                break;
            }
            // A first newline tells the client that the feed has begun.
            if !self.sent_anything && !self.sent_any_row {
                out.buffer.push(b'\n');
            }
            self.sent_anything = true;
            out.flush().await?;
            out.buffer = Vec::new();
            match self.wait(&mut out).await? {
                Woken::Changed => {}
                Woken::Over => break,
            }
        }
        self.finish(&mut out.buffer);
        Ok(out)
    }

    /// Sends the changes after `since`, or all changes in descending order, up to the limit.
    async fn send(&mut self, mut out: ResponseWriter) -> Result<ResponseWriter, ApiError> {
        let snapshot = self.database.snapshot();
        if self.descending && !self.sent_any_row {
            // A descending feed starts from the end, regardless of `since`.
            self.since = snapshot.update_seq();
        }
        if self.rows_left > 0 {
            match self.looked_up(&snapshot).await? {
                Some(rows) => self.send_looked_up(&snapshot, rows, &mut out).await?,
                None => self.send_scanned(&snapshot, &mut out).await?,
            }
        }
        self.update_position(&snapshot).await?;
        Ok(out)
    }

    /// Sets `since` and `pending` after the available changes were sent.
    async fn update_position(&mut self, snapshot: &Snapshot) -> Result<(), ApiError> {
        if !self.descending {
            if self.rows_left > 0 {
                self.since = snapshot.update_seq();
                self.pending = 0;
            } else {
                self.pending = snapshot.pending(self.since).await?;
            }
            return Ok(());
        }
        self.pending = match self.rows_left {
            0 if self.sent_any_row => {
                let before = Seq(self.since.0.saturating_sub(1));
                snapshot.pending(Seq(0)).await?.saturating_sub(snapshot.pending(before).await?)
            }
            0 => snapshot.pending(Seq(0)).await?,
            _ => 0,
        };
        // Later changes follow in ascending order.
        if self.kind != Kind::Normal && self.rows_left > 0 {
            self.descending = false;
            self.since = snapshot.update_seq();
        }
        Ok(())
    }

    /// The position after which a scan begins.
    fn after(&self) -> Seq {
        if self.descending { Seq(0) } else { self.since }
    }

    /// Looks up the rows of the filter's ids, if that is cheaper than a scan.
    async fn looked_up(&self, snapshot: &Snapshot) -> Result<Option<Vec<Candidate>>, ApiError> {
        let Filter::DocIds(ids) = &self.filter else { return Ok(None) };
        if ids.len() > LOOKED_UP_MAX {
            return Ok(None);
        }
        let pending = snapshot.pending(self.after()).await?;
        if ids.len() as u64 * ROWS_PER_LOOKUP > pending {
            return Ok(None);
        }
        look_up(snapshot, ids, self.after(), self.descending).await.map(Some)
    }

    async fn send_looked_up(
        &mut self,
        snapshot: &Snapshot,
        rows: Vec<Candidate>,
        out: &mut ResponseWriter,
    ) -> Result<(), ApiError> {
        let mut rows = rows.into_iter();
        if self.document_options.is_some() {
            let mut window_rows = 1;
            while self.rows_left > 0 {
                let mut window = Window::new(window_rows, self.rows_left);
                while window.has_room()
                    && let Some(row) = rows.next()
                {
                    window.push(row);
                }
                if window.rows.is_empty() {
                    break;
                }
                self.send_window(snapshot, window, out).await?;
                window_rows = (window_rows * 2).min(WINDOW_ROWS_MAX);
            }
            return Ok(());
        }
        for (id, summary, _) in rows {
            if self.rows_left == 0 {
                break;
            }
            self.send_plain(snapshot, &id, summary, out).await?;
        }
        Ok(())
    }

    async fn send_scanned(&mut self, snapshot: &Snapshot, out: &mut ResponseWriter) -> Result<(), ApiError> {
        if self.document_options.is_some() || self.filter.selected().is_some() {
            return self.send_windows(snapshot, out).await;
        }
        let mut rows = snapshot.changes(self.after(), self.descending);
        let mut id = String::new();
        let mut skipped = 0;
        while self.rows_left > 0
            && let Some(Row { id: row_id, summary, .. }) = rows.next().await?
        {
            if self.filter.passes(row_id) {
                id.clear();
                id.push_str(row_id);
                self.send_plain(snapshot, &id, summary, out).await?;
            } else {
                self.skip_row(&mut skipped, out).await?;
            }
        }
        Ok(())
    }

    /// As [`Feed::send_scanned`], with bodies.
    async fn send_windows(&mut self, snapshot: &Snapshot, out: &mut ResponseWriter) -> Result<(), ApiError> {
        let mut scan = snapshot.changes(self.after(), self.descending);
        let (mut window_rows, mut skipped) = (1, 0);
        let mut is_at_end = false;
        while self.rows_left > 0 && !is_at_end {
            // The number of rows that match a selector isn't known in advance.
            let rows_left = if self.filter.selected().is_some() { u64::MAX } else { self.rows_left };
            let mut window = Window::new(window_rows, rows_left);
            while window.has_room() {
                match scan.next().await? {
                    Some(Row { id, summary, body }) if self.filter.passes(id) => {
                        window.push((id.to_owned(), summary, body));
                    }
                    Some(_) => self.skip_row(&mut skipped, out).await?,
                    None => {
                        is_at_end = true;
                        break;
                    }
                }
            }
            self.send_window(snapshot, window, out).await?;
            self.beat(out).await?;
            window_rows = (window_rows * 2).min(WINDOW_ROWS_MAX);
        }
        Ok(())
    }

    /// Counts a row that didn't pass. Yields to other tasks, and sends a heartbeat if one is due.
    async fn skip_row(&mut self, count: &mut u32, out: &mut ResponseWriter) -> Result<(), ApiError> {
        tokio::task::consume_budget().await;
        *count += 1;
        if count.is_multiple_of(ROWS_PER_BEAT) { self.beat(out).await } else { Ok(()) }
    }

    /// Reads a window's bodies and sends the rows that pass.
    async fn send_window(
        &mut self,
        snapshot: &Snapshot,
        window: Window,
        out: &mut ResponseWriter,
    ) -> Result<(), ApiError> {
        let summaries: Vec<Summary> = window.rows.iter().map(|(_, summary, _)| *summary).collect();
        let needs_bodies = self.document_options.is_some()
            || self.filter.selected().is_some_and(|selected| selected.selector.needs_body());
        let documents = match needs_bodies {
            true => snapshot.read_many(window.rows).await,
            false => window.rows.into_iter().map(|(id, summary, _)| Ok(bare(id, summary))).collect(),
        };
        for (summary, document) in summaries.into_iter().zip(documents) {
            if self.rows_left == 0 {
                break;
            }
            let document = document?;
            let revisions = match self.filter.selected() {
                Some(selected) => self.matching(snapshot, selected, summary, &document).await?,
                None => self.revisions(snapshot, &document.id, summary).await?,
            };
            if revisions.is_empty() {
                tokio::task::consume_budget().await;
                continue;
            }
            self.begin_row(&document.id, summary, &revisions, &mut out.buffer);
            if let Some(document_options) = &self.document_options {
                out.buffer.extend_from_slice(b",\"doc\":");
                let extras = document_options.extras(snapshot, &document).await?;
                match self.filter.selected().and_then(|selected| selected.fields.as_ref()) {
                    None => write_document(snapshot, &document, document_options, &extras, out).await?,
                    Some(fields) => {
                        let mut text = Vec::new();
                        document.write_json(&extras, &mut text);
                        fields.write(std::str::from_utf8(&text).unwrap_or("{}"), &mut out.buffer);
                    }
                }
            }
            self.end_row(summary.seq, out).await?;
        }
        Ok(())
    }

    /// Sends a row without its document.
    async fn send_plain(
        &mut self,
        snapshot: &Snapshot,
        id: &str,
        summary: Summary,
        out: &mut ResponseWriter,
    ) -> Result<(), ApiError> {
        if self.all_leaves && summary.has_conflicts {
            let revisions = self.revisions(snapshot, id, summary).await?;
            self.begin_row(id, summary, &revisions, &mut out.buffer);
        } else {
            self.begin_row(id, summary, &[summary.revision], &mut out.buffer);
        }
        self.end_row(summary.seq, out).await
    }

    /// The revisions of a row: the winner, then the other leaves.
    async fn revisions(
        &self,
        snapshot: &Snapshot,
        id: &str,
        summary: Summary,
    ) -> Result<Vec<Revision>, ApiError> {
        let mut revisions = vec![summary.revision];
        if self.all_leaves && summary.has_conflicts {
            let leaves = snapshot.leaves(id).await?.into_iter().map(|leaf| leaf.revision);
            revisions.extend(leaves.filter(|revision| *revision != summary.revision));
        }
        Ok(revisions)
    }

    /// The revisions of a row that match the selector.
    async fn matching(
        &self,
        snapshot: &Snapshot,
        selected: &Arc<Selected>,
        summary: Summary,
        winner: &Document,
    ) -> Result<Vec<Revision>, ApiError> {
        let selector = &selected.selector;
        let shows_all = self.all_leaves && summary.has_conflicts;
        if !(shows_all || selector.needs_conflicts() && summary.has_conflicts) {
            let matches = matches(selected, winner, Extras::default()).await?;
            return Ok(if matches { vec![summary.revision] } else { Vec::new() });
        }
        let leaves = snapshot.open_leaves(&winner.id).await?;
        let mut revisions = Vec::new();
        for (index, leaf) in leaves.iter().enumerate() {
            tokio::task::consume_budget().await;
            let is_winner = leaf.revision == winner.revision;
            if !is_winner && !shows_all {
                continue;
            }
            let mut extras = Extras::default();
            if selector.needs_conflicts() {
                let others = leaves.iter().filter(|other| other.revision != leaf.revision && !other.deleted);
                extras.conflicts = others.map(|other| other.revision).collect();
            }
            let matches = match is_winner {
                true => matches(selected, winner, extras).await?,
                false => matches(selected, &leaves.document(index).await?, extras).await?,
            };
            if matches {
                revisions.push(leaf.revision);
            }
        }
        Ok(revisions)
    }

    /// Appends a row without its closing brace.
    fn begin_row(&self, id: &str, summary: Summary, revisions: &[Revision], out: &mut Vec<u8>) {
        match self.kind {
            Kind::Normal | Kind::Longpoll if self.sent_any_row => out.extend_from_slice(b",\r\n"),
            Kind::EventSource => out.extend_from_slice(b"data: "),
            _ => {}
        }
        out.extend_from_slice(b"{\"seq\":");
        self.write_seq(summary.seq, out);
        out.extend_from_slice(b",\"id\":");
        settee_doc::write_json_string(id, out);
        out.extend_from_slice(b",\"changes\":[{\"rev\":\"");
        for (index, revision) in revisions.iter().enumerate() {
            if index > 0 {
                out.extend_from_slice(b"\"},{\"rev\":\"");
            }
            revision.write(out);
        }
        out.extend_from_slice(b"\"}]");
        if summary.deleted {
            out.extend_from_slice(b",\"deleted\":true");
        }
    }

    /// Appends the row's `seq`, or `null` if `seq_interval` leaves it out.
    fn write_seq(&self, seq: Seq, out: &mut Vec<u8>) {
        match self.rows_left.is_multiple_of(self.seq_interval) {
            true => json::quoted_seq(&self.database, seq, out),
            false => out.extend_from_slice(b"null"),
        }
    }

    async fn end_row(&mut self, seq: Seq, out: &mut ResponseWriter) -> Result<(), ApiError> {
        out.buffer.push(b'}');
        match self.kind {
            Kind::Normal | Kind::Longpoll => {}
            Kind::Continuous => out.buffer.push(b'\n'),
            Kind::EventSource => {
                out.buffer.extend_from_slice(b"\nid: ");
                self.write_seq(seq, &mut out.buffer);
                out.buffer.extend_from_slice(b"\n\n");
            }
        }
        self.since = seq;
        self.rows_left -= 1;
        self.sent_any_row = true;
        out.flush_full().await
    }

    /// Waits for a change and sends heartbeats meanwhile. Without a heartbeat it ends at the timeout; it also
    /// ends when the database is deleted or the server shuts down.
    async fn wait(&mut self, out: &mut ResponseWriter) -> Result<Woken, ApiError> {
        let silence = self.heartbeat.unwrap_or(self.timeout);
        loop {
            // Registered again each time, because no registration is held while a heartbeat waits for a slow
            // client.
            let mut changed = Box::pin(self.database.changed_after(self.since));
            tokio::select! {
                biased;
                changed = &mut changed => {
                    return Ok(if changed.is_ok() { Woken::Changed } else { Woken::Over });
                }
                () = stopped(&mut self.stopping) => return Ok(Woken::Over),
                () = out.closed() => return Err(ApiError::gone()),
                () = tokio::time::sleep(silence) => {}
            }
            drop(changed);
            if self.heartbeat.is_none() {
                return Ok(Woken::Over);
            }
            write_beat(self.kind, &mut out.buffer);
            out.flush().await?;
            out.buffer = Vec::new();
        }
    }

    /// Sends the buffered rows, or a heartbeat if there are none, if a scan has sent nothing for the
    /// heartbeat interval.
    async fn beat(&mut self, out: &mut ResponseWriter) -> Result<(), ApiError> {
        let Some(heartbeat) = self.heartbeat else { return Ok(()) };
        if self.beat.elapsed() < heartbeat {
            return Ok(());
        }
        self.beat = Instant::now();
        if out.buffer.is_empty() {
            write_beat(self.kind, &mut out.buffer);
        }
        out.flush().await
    }

    fn finish(&self, out: &mut Vec<u8>) {
        match self.kind {
            Kind::EventSource => return,
            Kind::Normal | Kind::Longpoll => out.extend_from_slice(b"\n],\n"),
            Kind::Continuous => out.push(b'{'),
        }
        out.extend_from_slice(b"\"last_seq\":");
        json::quoted_seq(&self.database, self.since, out);
        out.extend_from_slice(b",\"pending\":");
        json::number(self.pending, out);
        out.extend_from_slice(b"}\n");
    }
}

fn write_beat(kind: Kind, out: &mut Vec<u8>) {
    match kind {
        Kind::EventSource => out.extend_from_slice(b"event: heartbeat\ndata: \n\n"),
        Kind::Normal | Kind::Longpoll | Kind::Continuous => out.push(b'\n'),
    }
}

/// Whether a document matches. A large one is matched on a blocking thread.
async fn matches(selected: &Arc<Selected>, document: &Document, extras: Extras) -> Result<bool, ApiError> {
    if document.body.len() <= MATCHED_INLINE_BYTES {
        return Ok(selected.selector.matches(document, &extras));
    }
    let (selected, document) = (selected.clone(), document.clone());
    let matching = tokio::task::spawn_blocking(move || selected.selector.matches(&document, &extras));
    let failed = |error: tokio::task::JoinError| {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_server_error", error.to_string())
    };
    matching.await.map_err(failed)
}

/// A document without body, from the index alone.
fn bare(id: String, summary: Summary) -> Document {
    let Summary { revision, deleted, .. } = summary;
    Document { id, revision, deleted, body: bytes::Bytes::new(), attachments: Vec::new() }
}

/// The rows of those documents that changed after `since`, in the order of the changes.
async fn look_up(
    snapshot: &Snapshot,
    ids: &HashSet<String>,
    since: Seq,
    descending: bool,
) -> Result<Vec<Candidate>, ApiError> {
    let mut rows = Vec::new();
    for id in ids {
        // Lookups in memory never yield, so this task must.
        tokio::task::consume_budget().await;
        if let Some((summary, body)) = snapshot.find_row(id).await?
            && summary.seq > since
        {
            rows.push((id.clone(), summary, body));
        }
    }
    rows.sort_unstable_by_key(|(_, summary, _)| summary.seq);
    if descending {
        rows.reverse();
    }
    Ok(rows)
}

/// Rows whose bodies are read together.
struct Window {
    rows: Vec<Candidate>,
    bytes: u64,
    rows_max: usize,
}

impl Window {
    fn new(rows_max: usize, rows_left: u64) -> Window {
        let rows_max = rows_max.min(usize::try_from(rows_left).unwrap_or(usize::MAX));
        Window { rows: Vec::with_capacity(rows_max), bytes: 0, rows_max }
    }

    fn has_room(&self) -> bool {
        self.rows.len() < self.rows_max && self.bytes < WINDOW_BYTES_MAX
    }

    fn push(&mut self, row: Candidate) {
        self.bytes += row.2.size();
        self.rows.push(row);
    }
}
