//! Runs a changes feed: it sends the changes after its position from a snapshot, then waits until the
//! database notifies it of a later change. Nothing is polled; timers only send heartbeats and end idle feeds.
//!
//! Bodies are read ahead ([`Snapshot::read_ahead`]). If a filter has far fewer ids than there are changes, the
//! ids are looked up instead of scanning the changes.
//!
//! Invariants:
//! 1. A feed that waits for changes holds no snapshot, document or buffer. They are allocated for sending and
//!    freed afterwards.
//! 2. A feed that waits for its client for [`SNAPSHOT_HELD_MAX`] releases its snapshot, and continues after its
//!    position with a new one when the client has caught up. Exceptions: a feed in descending order, and a row
//!    with a large body or the content of attachments.
//! 3. `since` is the feed's position: all changes up to it were sent or didn't pass the filter.

mod filtered;

use std::sync::Arc;
use std::time::Duration;

use settee_doc::{
    Database, Document, DocumentRow, Documents, Extras, IdFilter, OrderedDocuments, Revision, Row, Seq,
    Snapshot, Summary,
};
use tokio::sync::watch;
use tokio::time::Instant;

use super::args::{Args, Kind};
use super::filter::{Filter, Selected};
use crate::blocking;
use crate::body::{BodyMemory, MemoryPermit};
use crate::context::{Server, stopped};
use crate::document::inline::write_document;
use crate::document::matching::{self, MATCHED_INLINE_BYTES};
use crate::document::options::DocumentOptions;
use crate::document::whole::read_whole;
use crate::error::ApiError;
use crate::json;
use crate::response::writer::ResponseWriter;

/// Maximum ids that are looked up instead of scanned for.
const LOOKED_UP_MAX: usize = 1_000;

/// The estimated cost of a lookup, in rows of a scan.
const ROWS_PER_LOOKUP: u64 = 4;

/// Number of rows skipped between two checks of the heartbeat.
const ROWS_PER_BEAT: u32 = 256;

/// Longest time for which a feed holds its snapshot while it waits for its client to take a chunk: replaced
/// files stay on the disk as long as a snapshot needs them.
const SNAPSHOT_HELD_MAX: Duration = Duration::from_secs(1);

/// A running feed.
pub(super) struct Feed {
    database: Arc<Database>,
    filter: Arc<Filter>,
    /// For large bodies that are matched or shown in part.
    body_memory: Arc<BodyMemory>,
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
    /// Whether sending was interrupted because the client took too little.
    is_stalled: bool,
    /// When something was last sent, as far as `beat` observed it.
    beat: Instant,
}

/// Why a feed's wait ended.
enum Woken {
    Changed,
    Over,
}

impl Feed {
    pub(super) fn new(
        database: Arc<Database>,
        args: &Args,
        filter: Filter,
        since: Seq,
        server: &Server,
    ) -> Feed {
        Feed {
            database,
            filter: Arc::new(filter),
            body_memory: server.body_memory.clone(),
            stopping: server.stopping.clone(),
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
            is_stalled: false,
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
            if std::mem::take(&mut self.is_stalled) {
                out.caught_up().await?;
                out.flush().await?;
                continue;
            }
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
                Some(documents) => self.send_documents(&snapshot, documents, &mut out).await?,
                None => self.send_scanned(&snapshot, &mut out).await?,
            }
        }
        if !self.is_stalled {
            self.update_position(&snapshot).await?;
        }
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

    /// Looks up the documents of the filter's ids, if that is cheaper than a scan.
    async fn looked_up(&self, snapshot: &Snapshot) -> Result<Option<Documents<OrderedDocuments>>, ApiError> {
        let Filter::DocIds(ids) = &*self.filter else { return Ok(None) };
        if ids.len() > LOOKED_UP_MAX {
            return Ok(None);
        }
        let pending = snapshot.pending(self.after()).await?;
        if ids.len() as u64 * ROWS_PER_LOOKUP > pending {
            return Ok(None);
        }
        let (ids, after) = (ids.iter().cloned().collect(), self.after());
        let reads_bodies = self.needs_bodies();
        Ok(Some(snapshot.changed_documents(ids, after, self.descending, reads_bodies).await?))
    }

    async fn send_scanned(&mut self, snapshot: &Snapshot, out: &mut ResponseWriter) -> Result<(), ApiError> {
        let mut rows = snapshot.changes(self.after(), self.descending);
        if self.needs_bodies() {
            // The number of rows that match a selector, or pass a function, isn't known in advance.
            let is_unknown = self.filter.selected().is_some() || self.filter.function().is_some();
            let limit = if is_unknown { u64::MAX } else { self.rows_left };
            let filter = self.filter.clone();
            let passes: IdFilter = Box::new(move |id| filter.passes(id));
            let is_by_id = matches!(*self.filter, Filter::DocIds(_) | Filter::Design);
            let passes = is_by_id.then_some(passes);
            let documents = snapshot.read_ahead(rows, limit, passes);
            return self.send_documents(snapshot, documents, out).await;
        }
        let mut id = String::new();
        let mut skipped = 0;
        while self.may_send()
            && let Some(Row { id: row_id, summary, .. }) = rows.next().await?
        {
            if !self.filter.passes(row_id) {
                self.pass_over(summary.seq);
                self.skip_row(&mut skipped, out).await?;
                continue;
            }
            id.clear();
            id.push_str(row_id);
            match self.filter.selected().is_some() {
                true => self.send_document(snapshot, &summary, bare(id.clone(), &summary), out).await?,
                false => self.send_plain(snapshot, &id, &summary, out).await?,
            }
        }
        Ok(())
    }

    /// Whether rows need their documents' bodies.
    fn needs_bodies(&self) -> bool {
        self.document_options.is_some()
            || self.filter.function().is_some()
            || self.filter.selected().is_some_and(|selected| selected.selector.needs_body())
    }

    /// Sends the rows of documents that pass. Sends heartbeats while it waits for reads, and while the rows
    /// don't pass.
    async fn send_documents(
        &mut self,
        snapshot: &Snapshot,
        mut documents: Documents<OrderedDocuments>,
        out: &mut ResponseWriter,
    ) -> Result<(), ApiError> {
        if let Some(function) = self.filter.function().cloned() {
            return self.send_filtered(snapshot, &function, documents, out).await;
        }
        let mut skipped = 0;
        while self.may_send() {
            let row = self.next_document(&mut documents, out).await?;
            let Some(DocumentRow { key: id, winner }) = row else { break };
            let winner = winner.expect("a change has a document");
            if self.needs_bodies() {
                let summary = winner.summary.clone();
                let document = snapshot.read_winner(&id, winner).await?;
                self.send_document(snapshot, &summary, document, out).await?;
            } else {
                self.send_plain(snapshot, &id, &winner.summary, out).await?;
            }
            self.skip_row(&mut skipped, out).await?;
        }
        Ok(())
    }

    /// The next document. Sends heartbeats while it waits for reads.
    async fn next_document(
        &mut self,
        documents: &mut Documents<OrderedDocuments>,
        out: &mut ResponseWriter,
    ) -> Result<Option<DocumentRow<String>>, ApiError> {
        let Some(heartbeat) = self.heartbeat else { return Ok(documents.next().await?) };
        loop {
            match tokio::time::timeout(heartbeat, documents.next()).await {
                Ok(row) => return Ok(row?),
                Err(_) => self.beat(out).await?,
            }
        }
    }

    /// Counts a row that didn't pass. Yields to other tasks, and sends a heartbeat if one is due.
    async fn skip_row(&mut self, count: &mut u32, out: &mut ResponseWriter) -> Result<(), ApiError> {
        tokio::task::consume_budget().await;
        *count += 1;
        if count.is_multiple_of(ROWS_PER_BEAT) { self.beat(out).await } else { Ok(()) }
    }

    /// Sends a document's row, if the document passes.
    async fn send_document(
        &mut self,
        snapshot: &Snapshot,
        summary: &Summary,
        document: Document,
        out: &mut ResponseWriter,
    ) -> Result<(), ApiError> {
        let revisions = match self.filter.selected() {
            Some(selected) => self.matching(snapshot, selected, summary, &document, out).await?,
            None => self.revisions(snapshot, &document.id, summary).await?,
        };
        if revisions.is_empty() {
            self.pass_over(summary.seq);
            return Ok(());
        }
        self.send_row(snapshot, summary, document, &revisions, out).await
    }

    /// Sends the row of a document that passes.
    async fn send_row(
        &mut self,
        snapshot: &Snapshot,
        summary: &Summary,
        document: Document,
        revisions: &[Revision],
        out: &mut ResponseWriter,
    ) -> Result<(), ApiError> {
        self.begin_row(&document.id, summary, revisions, &mut out.buffer);
        if let Some(document_options) = &self.document_options {
            out.buffer.extend_from_slice(b",\"doc\":");
            let extras = document_options.extras(snapshot, &document).await?;
            match self.filter.selected().filter(|selected| selected.fields.is_some()) {
                None => write_document(snapshot, &document, document_options, &extras, out).await?,
                Some(selected) => {
                    let shown = self.selected_fields(snapshot, selected, document, extras).await?;
                    out.buffer.extend_from_slice(&shown);
                }
            }
        }
        self.end_row(summary.seq, out).await
    }

    /// Sends a row without its document.
    async fn send_plain(
        &mut self,
        snapshot: &Snapshot,
        id: &str,
        summary: &Summary,
        out: &mut ResponseWriter,
    ) -> Result<(), ApiError> {
        if self.all_leaves && summary.has_conflicts {
            let revisions = self.revisions(snapshot, id, summary).await?;
            self.begin_row(id, summary, &revisions, &mut out.buffer);
        } else {
            self.begin_row(id, summary, std::slice::from_ref(&summary.revision), &mut out.buffer);
        }
        self.end_row(summary.seq, out).await
    }

    /// The revisions of a row: the winner, then the other leaves.
    async fn revisions(
        &self,
        snapshot: &Snapshot,
        id: &str,
        summary: &Summary,
    ) -> Result<Vec<Revision>, ApiError> {
        let mut revisions = vec![summary.revision.clone()];
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
        summary: &Summary,
        winner: &Document,
        out: &ResponseWriter,
    ) -> Result<Vec<Revision>, ApiError> {
        let selector = &selected.selector;
        let matches = async |document: &Document, extras: &Extras| {
            matching::matches(selected, snapshot, document, extras, &self.body_memory, out).await
        };
        let shows_all = self.all_leaves && summary.has_conflicts;
        if !(shows_all || selector.needs_conflicts() && summary.has_conflicts) {
            let is_match = matches(winner, &Extras::default()).await?;
            return Ok(if is_match { vec![summary.revision.clone()] } else { Vec::new() });
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
            let is_match = match is_winner {
                true => matches(winner, &extras).await?,
                false => matches(&leaves.document(index).await?, &extras).await?,
            };
            if is_match {
                revisions.push(leaf.revision);
            }
        }
        Ok(revisions)
    }

    /// The text of a document with only the selected fields.
    async fn selected_fields(
        &self,
        snapshot: &Snapshot,
        selected: &Arc<Selected>,
        document: Document,
        extras: Extras,
    ) -> Result<Vec<u8>, ApiError> {
        let is_small = document.body_size() <= MATCHED_INLINE_BYTES;
        let (document, permit) = read_whole(snapshot, document, &self.body_memory).await?;
        let selected = selected.clone();
        let select = move || {
            let _permit = permit;
            let (mut text, mut shown) = (Vec::new(), Vec::new());
            document.write_json(&extras, &mut text);
            // Its body is in the text now, and a field of that size is copied once more.
            drop(document);
            if let Some(fields) = &selected.fields {
                fields.write(std::str::from_utf8(&text).unwrap_or("{}"), &mut shown);
            }
            shown
        };
        if is_small { Ok(select()) } else { blocking::run(select).await }
    }

    /// Appends a row without its closing brace.
    fn begin_row(&self, id: &str, summary: &Summary, revisions: &[Revision], out: &mut Vec<u8>) {
        match self.kind {
            Kind::Normal | Kind::Longpoll if self.sent_any_row => out.extend_from_slice(b",\r\n"),
            Kind::EventSource => out.extend_from_slice(b"data: "),
            _ => {}
        }
        out.extend_from_slice(b"{\"seq\":");
        self.write_seq(summary.seq, out);
        out.extend_from_slice(b",\"id\":");
        settee_doc::write_json_string(id, out);
        out.extend_from_slice(b",\"changes\":[{\"rev\":");
        for (index, revision) in revisions.iter().enumerate() {
            if index > 0 {
                out.extend_from_slice(b"},{\"rev\":");
            }
            revision.write_json(out);
        }
        out.extend_from_slice(b"}]");
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
        if self.descending {
            // A new snapshot would begin at another end.
            return out.flush_full().await;
        }
        self.is_stalled |= !out.flush_full_within(SNAPSHOT_HELD_MAX).await?;
        Ok(())
    }

    /// Moves the position past a change that doesn't pass the filter, so that it isn't read again after a wait
    /// for the client.
    fn pass_over(&mut self, seq: Seq) {
        if !self.descending {
            self.since = seq;
        }
    }

    fn may_send(&self) -> bool {
        self.rows_left > 0 && !self.is_stalled
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
        if self.descending {
            return out.flush().await;
        }
        self.is_stalled |= !out.flush_within(SNAPSHOT_HELD_MAX).await?;
        Ok(())
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

/// A document without body, from the index alone.
fn bare(id: String, summary: &Summary) -> Document {
    let Summary { revision, deleted, .. } = summary.clone();
    let (body, attachments) = (bytes::Bytes::new(), Vec::new());
    Document { id, revision, deleted, body, attachments, large_body: None }
}
