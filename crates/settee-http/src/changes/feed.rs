//! A feed under way: a loop of two steps. It sends what changed after its place, from a snapshot;
//! then it waits for the database to tell of a later change. Nothing is polled; timers only break
//! silences.
//!
//! Where bodies are needed they are read many at a time, in windows that grow from one row on. Where
//! the ids of a filter are fewer than the changes they are looked up, and the rest isn't scanned.
//!
//! Invariants:
//! 1. A feed that waits holds no snapshot, no window and no buffer: what sending needs is allocated
//!    when it sends, and given back.
//! 2. `since` is where the feed is: all changes up to it were sent, or didn't pass the filter.
//! 3. A window is at most [`WINDOW_ROWS_MAX`] rows, and as many as make [`WINDOW_BYTES_MAX`] bytes.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use settee_doc::{BodyRef, Database, Document, Extras, Revision, Row, Seq, Summary, View};
use tokio::sync::watch;
use tokio::time::Instant;

use super::filter::{Filter, Selected};
use super::{Args, Kind};
use crate::body::Share;
use crate::database::quoted_seq;
use crate::document::{Shape, write_document};
use crate::error::Failure;
use crate::json;
use crate::server::stopped;
use crate::stream::Out;

/// Most rows of a window.
const WINDOW_ROWS_MAX: usize = 256;

/// A window ends with the row whose record makes it at least so many bytes.
const WINDOW_BYTES_MAX: u64 = 2 << 20;

/// Most ids that are looked up rather than scanned for.
const LOOKED_UP_MAX: usize = 1_000;

/// A lookup costs about as much as so many rows of a scan.
const ROWS_PER_LOOKUP: u64 = 4;

/// Bytes of a document that is matched in the feed's own task; a larger one gets a thread that may block.
const MATCHED_INLINE_BYTES: usize = 64 << 10;

/// Rows that don't pass between two looks at the clock.
const ROWS_PER_BEAT: u32 = 256;

/// A feed under way.
pub(super) struct Feed {
    database: Arc<Database>,
    filter: Filter,
    stopping: watch::Receiver<bool>,
    kind: Kind,
    descending: bool,
    all_leaves: bool,
    /// How documents are shown; None: they aren't.
    shape: Option<Shape>,
    heartbeat: Option<Duration>,
    timeout: Duration,
    seq_interval: u64,
    /// What has been looked at: changes up to here were sent, or didn't pass the filter.
    since: Seq,
    /// Changes that came after `since` when it was set.
    pending: u64,
    /// Rows that may still be sent.
    left: u64,
    sent_any_row: bool,
    sent_anything: bool,
    /// When the client was sent something the last time, so far as that was looked at.
    beat: Instant,
}

/// Why a feed's wait ended.
enum Woken {
    Changed,
    Over,
}

/// A row that passed by its id, its body still to be read.
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
            shape: args.shape(),
            heartbeat: args.heartbeat,
            timeout: args.timeout,
            seq_interval: args.seq_interval,
            since,
            pending: 0,
            left: args.limit,
            sent_any_row: false,
            sent_anything: false,
            beat: Instant::now(),
        }
    }

    /// Runs it to its end. `share` is held meanwhile.
    pub(super) async fn run(mut self, mut out: Out, share: Option<Share>) -> Result<Out, Failure> {
        let _share = share;
        if matches!(self.kind, Kind::Normal | Kind::Longpoll) {
            out.buffer.extend_from_slice(b"{\"results\":[\n");
        }
        loop {
            // In a box, so that a feed that waits doesn't hold the room for all this needs.
            out = Box::pin(self.send(out)).await?;
            let is_done = match self.kind {
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
            out.buffer = Vec::new();
            match self.wait(&mut out).await? {
                Woken::Changed => {}
                Woken::Over => break,
            }
        }
        self.finish(&mut out.buffer);
        Ok(out)
    }

    /// Sends what changed after `since`, or everything backwards, up to the limit.
    async fn send(&mut self, mut out: Out) -> Result<Out, Failure> {
        let view = self.database.view();
        if self.descending && !self.sent_any_row {
            // Backwards the feed starts from the end, whatever `since` says.
            self.since = view.update_seq();
        }
        if self.left > 0 {
            match self.listed(&view).await? {
                Some(rows) => self.send_listed(&view, rows, &mut out).await?,
                None => self.send_scanned(&view, &mut out).await?,
            }
        }
        self.settle(&view).await?;
        Ok(out)
    }

    /// Where the feed is after it has sent what there was.
    async fn settle(&mut self, view: &View) -> Result<(), Failure> {
        if !self.descending {
            if self.left > 0 {
                self.since = view.update_seq();
                self.pending = 0;
            } else {
                self.pending = view.pending(self.since).await?;
            }
            return Ok(());
        }
        self.pending = match self.left {
            0 if self.sent_any_row => {
                let before = Seq(self.since.0.saturating_sub(1));
                view.pending(Seq(0)).await?.saturating_sub(view.pending(before).await?)
            }
            0 => view.pending(Seq(0)).await?,
            _ => 0,
        };
        // What comes later comes forwards.
        if self.kind != Kind::Normal && self.left > 0 {
            self.descending = false;
            self.since = view.update_seq();
        }
        Ok(())
    }

    /// Where the scan begins.
    fn after(&self) -> Seq {
        if self.descending { Seq(0) } else { self.since }
    }

    /// The rows of the ids that are asked for, where those are so few that looking them up is
    /// cheaper than a scan.
    async fn listed(&self, view: &View) -> Result<Option<Vec<Candidate>>, Failure> {
        let Filter::DocIds(ids) = &self.filter else { return Ok(None) };
        if ids.len() > LOOKED_UP_MAX {
            return Ok(None);
        }
        let pending = view.pending(self.after()).await?;
        if ids.len() as u64 * ROWS_PER_LOOKUP > pending {
            return Ok(None);
        }
        look_up(view, ids, self.after(), self.descending).await.map(Some)
    }

    async fn send_listed(&mut self, view: &View, rows: Vec<Candidate>, out: &mut Out) -> Result<(), Failure> {
        let mut rows = rows.into_iter();
        if self.shape.is_some() {
            let mut window_rows = 1;
            while self.left > 0 {
                let mut window = Window::new(window_rows, self.left);
                while window.has_room()
                    && let Some(row) = rows.next()
                {
                    window.push(row);
                }
                if window.rows.is_empty() {
                    break;
                }
                self.send_window(view, window, out).await?;
                window_rows = (window_rows * 2).min(WINDOW_ROWS_MAX);
            }
            return Ok(());
        }
        for (id, summary, _) in rows {
            if self.left == 0 {
                break;
            }
            self.send_plain(view, &id, summary, out).await?;
        }
        Ok(())
    }

    async fn send_scanned(&mut self, view: &View, out: &mut Out) -> Result<(), Failure> {
        if self.shape.is_some() || self.filter.selected().is_some() {
            return self.send_windows(view, out).await;
        }
        let mut rows = view.changes(self.after(), self.descending);
        let mut id = String::new();
        let mut passed_over = 0;
        while self.left > 0
            && let Some(Row { id: row_id, summary, .. }) = rows.next().await?
        {
            if self.filter.passes(row_id) {
                id.clear();
                id.push_str(row_id);
                self.send_plain(view, &id, summary, out).await?;
            } else {
                self.pass_over(&mut passed_over, out).await?;
            }
        }
        Ok(())
    }

    /// As [`Feed::send_scanned`], with bodies.
    async fn send_windows(&mut self, view: &View, out: &mut Out) -> Result<(), Failure> {
        let mut scan = view.changes(self.after(), self.descending);
        let (mut window_rows, mut passed_over) = (1, 0);
        let mut is_at_end = false;
        while self.left > 0 && !is_at_end {
            // Of what matches a selector nobody knows how much there is.
            let left = if self.filter.selected().is_some() { u64::MAX } else { self.left };
            let mut window = Window::new(window_rows, left);
            while window.has_room() {
                match scan.next().await? {
                    Some(Row { id, summary, body }) if self.filter.passes(id) => {
                        window.push((id.to_owned(), summary, body));
                    }
                    Some(_) => self.pass_over(&mut passed_over, out).await?,
                    None => {
                        is_at_end = true;
                        break;
                    }
                }
            }
            self.send_window(view, window, out).await?;
            self.beat(out).await?;
            window_rows = (window_rows * 2).min(WINDOW_ROWS_MAX);
        }
        Ok(())
    }

    /// After a row that didn't pass. Many may not in a row: others get their turn, and the client a
    /// sign of life.
    async fn pass_over(&mut self, count: &mut u32, out: &mut Out) -> Result<(), Failure> {
        tokio::task::consume_budget().await;
        *count += 1;
        if count.is_multiple_of(ROWS_PER_BEAT) { self.beat(out).await } else { Ok(()) }
    }

    /// Reads a window's bodies and sends the rows that pass.
    async fn send_window(&mut self, view: &View, window: Window, out: &mut Out) -> Result<(), Failure> {
        let summaries: Vec<Summary> = window.rows.iter().map(|(_, summary, _)| *summary).collect();
        let needs_bodies = self.shape.is_some()
            || self.filter.selected().is_some_and(|selected| selected.selector.needs_body());
        let documents = match needs_bodies {
            true => view.read_many(window.rows).await,
            false => window.rows.into_iter().map(|(id, summary, _)| Ok(bare(id, summary))).collect(),
        };
        for (summary, document) in summaries.into_iter().zip(documents) {
            if self.left == 0 {
                break;
            }
            let document = document?;
            let revisions = match self.filter.selected() {
                Some(selected) => self.matching(view, selected, summary, &document).await?,
                None => self.revisions(view, &document.id, summary).await?,
            };
            if revisions.is_empty() {
                tokio::task::consume_budget().await;
                continue;
            }
            self.begin_row(&document.id, summary, &revisions, &mut out.buffer);
            if let Some(shape) = &self.shape {
                out.buffer.extend_from_slice(b",\"doc\":");
                let extras = shape.extras(view, &document).await?;
                match self.filter.selected().and_then(|selected| selected.fields.as_ref()) {
                    None => write_document(view, &document, shape, &extras, out).await?,
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
        view: &View,
        id: &str,
        summary: Summary,
        out: &mut Out,
    ) -> Result<(), Failure> {
        if self.all_leaves && summary.has_conflicts {
            let revisions = self.revisions(view, id, summary).await?;
            self.begin_row(id, summary, &revisions, &mut out.buffer);
        } else {
            self.begin_row(id, summary, &[summary.revision], &mut out.buffer);
        }
        self.end_row(summary.seq, out).await
    }

    /// The revisions that a row shows: its winner, and then the others of its leaves.
    async fn revisions(&self, view: &View, id: &str, summary: Summary) -> Result<Vec<Revision>, Failure> {
        let mut revisions = vec![summary.revision];
        if self.all_leaves && summary.has_conflicts {
            let leaves = view.leaves(id).await?.into_iter().map(|leaf| leaf.revision);
            revisions.extend(leaves.filter(|revision| *revision != summary.revision));
        }
        Ok(revisions)
    }

    /// Of the revisions that a row would show those that match.
    async fn matching(
        &self,
        view: &View,
        selected: &Arc<Selected>,
        summary: Summary,
        winner: &Document,
    ) -> Result<Vec<Revision>, Failure> {
        let selector = &selected.selector;
        let shows_all = self.all_leaves && summary.has_conflicts;
        if !(shows_all || selector.needs_conflicts() && summary.has_conflicts) {
            let matches = matches(selected, winner, Extras::default()).await?;
            return Ok(if matches { vec![summary.revision] } else { Vec::new() });
        }
        let leaves = view.open_leaves(&winner.id).await?;
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

    /// Appends a row, its closing brace left to come.
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

    /// A row's place in the changes, where it is one of those that have theirs.
    fn write_seq(&self, seq: Seq, out: &mut Vec<u8>) {
        match self.left.is_multiple_of(self.seq_interval) {
            true => quoted_seq(&self.database, seq, out),
            false => out.extend_from_slice(b"null"),
        }
    }

    async fn end_row(&mut self, seq: Seq, out: &mut Out) -> Result<(), Failure> {
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
        self.left -= 1;
        self.sent_any_row = true;
        out.flush_full().await
    }

    /// Waits for a change. Sends heartbeats meanwhile, or gives up when the silence is too long;
    /// ends when the database or the server goes.
    async fn wait(&mut self, out: &mut Out) -> Result<Woken, Failure> {
        let silence = self.heartbeat.unwrap_or(self.timeout);
        loop {
            // Anew each time: while a heartbeat waits for a slow client nobody else waits for us.
            let mut changed = Box::pin(self.database.changed_after(self.since));
            tokio::select! {
                biased;
                changed = &mut changed => {
                    return Ok(if changed.is_ok() { Woken::Changed } else { Woken::Over });
                }
                () = stopped(&mut self.stopping) => return Ok(Woken::Over),
                () = out.closed() => return Err(Failure::gone()),
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

    /// Sends a heartbeat, or the rows that wait, where a scan has been silent for that long.
    async fn beat(&mut self, out: &mut Out) -> Result<(), Failure> {
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
        quoted_seq(&self.database, self.since, out);
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

/// Whether a document matches. A large one is matched where it holds up no other task.
async fn matches(selected: &Arc<Selected>, document: &Document, extras: Extras) -> Result<bool, Failure> {
    if document.body.len() <= MATCHED_INLINE_BYTES {
        return Ok(selected.selector.matches(document, &extras));
    }
    let (selected, document) = (selected.clone(), document.clone());
    let matching = tokio::task::spawn_blocking(move || selected.selector.matches(&document, &extras));
    let failed = |error: tokio::task::JoinError| {
        Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_server_error", error.to_string())
    };
    matching.await.map_err(failed)
}

/// What the index alone has of a document.
fn bare(id: String, summary: Summary) -> Document {
    let Summary { revision, deleted, .. } = summary;
    Document { id, revision, deleted, body: bytes::Bytes::new(), attachments: Vec::new() }
}

/// The rows of documents that changed after `since`, in the order of their changes.
async fn look_up(
    view: &View,
    ids: &HashSet<String>,
    since: Seq,
    descending: bool,
) -> Result<Vec<Candidate>, Failure> {
    let mut rows = Vec::new();
    for id in ids {
        // The index may have all of them in memory: others get their turn.
        tokio::task::consume_budget().await;
        if let Some((summary, body)) = view.find_row(id).await?
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
    fn new(rows_max: usize, left: u64) -> Window {
        let rows_max = rows_max.min(usize::try_from(left).unwrap_or(usize::MAX));
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
