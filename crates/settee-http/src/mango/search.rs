//! Runs a planned search: reads rows, matches documents, and writes results as the client reads them.
//!
//! At most a window of rows is in memory, and the bodies that are read ahead for it.

use std::sync::Arc;

use hyper::StatusCode;
use settee_doc::{
    Database, Document, DocumentRow, Extras, Fields, IdFilter, Range, Selector, Snapshot, Winner,
    partition_prefix,
};
use settee_view::mango::{
    self, Bookmark, CoveredFields, DESIGN, FindRequest, IdRange, Index, Normal, Plan, PlanScope, Scan,
};

use settee_view::Views;

use super::definitions;
use super::results::Progress;
use super::rows::{IndexRow, IndexRows, IndexScan};
use crate::blocking;
use crate::body::BodyMemory;
use crate::document::inline::write_document;
use crate::document::matching::{self, MATCHED_INLINE_BYTES, Selecting};
use crate::document::options::DocumentOptions;
use crate::document::whole::read_whole;
use crate::error::ApiError;
use crate::response::writer::ResponseWriter;

/// Largest number of rows of an index whose documents are looked up together.
const WINDOW_ROWS_MAX: usize = 256;

/// Largest number of times that a search is planned: again if its index is redefined before it is read.
const PLANS_MAX: u32 = 4;

/// Number of rows between two checks whether the client is still there.
const ROWS_PER_CHECK: u32 = 256;

impl Selecting for FindRequest {
    fn selector(&self) -> &Selector {
        &self.selector
    }
}

/// A planned search.
pub(super) struct Search {
    views: Arc<Views>,
    database: Arc<Database>,
    snapshot: Snapshot,
    body_memory: Arc<BodyMemory>,
    request: Arc<FindRequest>,
    plan: Plan,
    progress: Progress,
    rows_unchecked: u32,
}

impl Search {
    pub(super) fn new(
        views: Arc<Views>,
        database: Arc<Database>,
        snapshot: Snapshot,
        body_memory: Arc<BodyMemory>,
        request: FindRequest,
        plan: Plan,
    ) -> Search {
        let progress = Progress::of(&request);
        let request = Arc::new(request);
        Search { views, database, snapshot, body_memory, request, plan, progress, rows_unchecked: 0 }
    }

    /// Writes the response, with the results after the row `after`. Rows of a JSON index are read as `R`.
    ///
    /// # Errors
    /// Those of reading; the client has closed the connection.
    pub(super) async fn run<R: IndexRows>(
        mut self,
        mut after: Option<Bookmark>,
        out: &mut ResponseWriter,
    ) -> Result<(), ApiError> {
        out.buffer.extend_from_slice(b"{\"docs\":[");
        if self.plan.is_empty {
            out.buffer.extend_from_slice(b"\r\n]}\r\n");
            return Ok(());
        }
        if self.progress.wants_more() {
            let mut plan_count = 1;
            while !self.read_plan::<R>(after.as_ref(), out).await? {
                if plan_count == PLANS_MAX {
                    let reason = "The index that the search needs is changed again and again: try again.";
                    return Err(ApiError::new(
                        StatusCode::SERVICE_UNAVAILABLE,
                        "service unavailable",
                        reason,
                    ));
                }
                plan_count += 1;
                after = self.plan_again().await?;
            }
        }
        self.progress.write_end(&self.request, &self.plan, &mut out.buffer);
        Ok(())
    }

    /// Writes the results after the row `after`. False, and nothing was read, if the plan's index has changed.
    async fn read_plan<R: IndexRows>(
        &mut self,
        after: Option<&Bookmark>,
        out: &mut ResponseWriter,
    ) -> Result<bool, ApiError> {
        match (self.plan.index.clone(), self.plan.scan.clone()) {
            (Index::AllDocs, Scan::Ids(ranges)) => self.by_id(ranges, after, out).await.map(|()| true),
            (Index::Json(definition), Scan::Keys(ranges)) => {
                let covered = self.plan.covering.then(|| CoveredFields::new(&definition));
                let scan = IndexScan {
                    views: self.views.clone(),
                    database: self.database.clone(),
                    snapshot: self.snapshot.clone(),
                    definition,
                    ranges,
                    descending: self.plan.descending,
                    after: after.cloned(),
                    partition: self.request.partition.clone(),
                    update: self.request.update && !self.request.stale,
                };
                let Some(rows) = R::open(scan).await? else { return Ok(false) };
                self.by_key(rows, covered, out).await.map(|()| true)
            }
            (Index::AllDocs, Scan::Keys(_)) | (Index::Json(_), Scan::Ids(_)) => {
                unreachable!("a plan's scan is of its index")
            }
        }
    }

    /// Plans the search as of now. Returns the row after which the results begin.
    async fn plan_again(&mut self) -> Result<Option<Bookmark>, ApiError> {
        self.snapshot = self.database.snapshot();
        let indexes = definitions::load(&self.database, &self.snapshot).await?;
        let indexes: Vec<_> = indexes.into_iter().map(Arc::new).collect();
        let in_partition = self.request.partition.is_some();
        let scope = PlanScope { is_partitioned: self.database.is_partitioned(), in_partition };
        let request = self.request.clone();
        let planned = blocking::run(move || -> Result<_, ApiError> {
            let plan = mango::plan(&request, &indexes, scope)?;
            let after = Bookmark::of(&request, &plan)?;
            Ok((plan, after))
        });
        let (plan, after) = planned.await??;
        self.plan = plan;
        Ok(after)
    }

    /// Reads documents in the order of their ids.
    async fn by_id(
        &mut self,
        mut ranges: Vec<IdRange>,
        after: Option<&Bookmark>,
        out: &mut ResponseWriter,
    ) -> Result<(), ApiError> {
        if self.plan.descending {
            ranges.reverse();
        }
        let prefix = self.request.partition.as_deref().map(partition_prefix).unwrap_or_default();
        for range in ranges {
            let Some(range) = rest_of(range, self.plan.descending, after, &prefix) else { continue };
            let rows = self.snapshot.all_docs(&range).await?;
            let resumed = after.map(|after| after.id.clone());
            let passes: IdFilter =
                Box::new(move |id| !id.starts_with(DESIGN) && resumed.as_deref() != Some(id));
            let limit = match self.request.normal {
                Normal::All => self.progress.rows_wanted(),
                // The number of rows that match isn't known.
                _ => u64::MAX,
            };
            let mut documents = self.snapshot.read_ahead(rows, limit, Some(passes));
            while self.progress.wants_more()
                && let Some(DocumentRow { key: id, winner }) = documents.next().await?
            {
                self.check_client(out).await?;
                self.progress.examined_key();
                let winner = winner.expect("a row has a document");
                self.take_document(Bookmark { id, key: None }, winner, out).await?;
            }
        }
        Ok(())
    }

    /// Reads rows of a JSON index, and their documents unless the index covers the search.
    async fn by_key<R: IndexRows>(
        &mut self,
        mut rows: R,
        covered: Option<CoveredFields>,
        out: &mut ResponseWriter,
    ) -> Result<(), ApiError> {
        if let Some(covered) = covered {
            while self.progress.wants_more()
                && let Some(row) = rows.next().await?
            {
                self.check_client(out).await?;
                self.progress.examined_key();
                self.take_covered(row, &covered, out).await?;
            }
            return Ok(());
        }
        let wanted = usize::try_from(self.progress.rows_wanted()).unwrap_or(usize::MAX);
        let mut count = wanted.min(WINDOW_ROWS_MAX);
        while self.progress.wants_more() {
            let window = window(&mut rows, count).await?;
            count = (2 * count).min(WINDOW_ROWS_MAX);
            if window.is_empty() {
                break;
            }
            let ids = window.iter().map(|row| row.id.clone()).collect();
            let mut documents = self.snapshot.documents::<String>(ids, true);
            for row in window {
                if !self.progress.wants_more() {
                    break;
                }
                let found = documents.next().await?.and_then(|found| found.winner);
                self.check_client(out).await?;
                self.progress.examined_key();
                // The document may have been deleted since the index was read.
                if let Some(winner) = found.filter(|winner| !winner.summary.deleted) {
                    self.take_document(Bookmark { id: row.id, key: Some(row.key) }, winner, out).await?;
                }
            }
        }
        Ok(())
    }

    /// Writes a row of an index that has all that is needed, if it matches.
    async fn take_covered(
        &mut self,
        IndexRow { id, key }: IndexRow,
        covered: &CoveredFields,
        out: &mut ResponseWriter,
    ) -> Result<(), ApiError> {
        let Some(object) = covered.object(&id, &key) else { return Ok(()) };
        let (matches, object) = matching::matches_json(&self.request, object, out).await?;
        if !matches {
            return Ok(());
        }
        let Some(fields) = &self.request.fields else { return Ok(()) };
        if self.progress.takes(Bookmark { id, key: Some(key) }) {
            self.progress.begin_result(&mut out.buffer);
            fields.write(&object, &mut out.buffer);
        }
        out.flush_full().await
    }

    /// Writes a document if it matches.
    async fn take_document(
        &mut self,
        row: Bookmark,
        winner: Winner,
        out: &mut ResponseWriter,
    ) -> Result<(), ApiError> {
        let has_conflicts = winner.summary.has_conflicts;
        let document = self.snapshot.read_winner(&row.id, winner).await?;
        self.progress.examined_document();
        let options = DocumentOptions::of_row(self.request.conflicts && has_conflicts, false, false);
        let extras = options.extras(&self.snapshot, &document).await?;
        let (request, memory) = (&self.request, &self.body_memory);
        let matches = matching::matches(request, &self.snapshot, &document, &extras, memory, out).await?;
        if !matches || !self.progress.takes(row) {
            return Ok(());
        }
        self.progress.begin_result(&mut out.buffer);
        match self.request.fields.is_some() {
            true => out.buffer.extend_from_slice(&self.selected_fields(document, extras).await?),
            false => write_document(&self.snapshot, &document, &options, &extras, out).await?,
        }
        out.flush_full().await
    }

    /// The text of a document with only the requested fields.
    async fn selected_fields(&self, document: Document, extras: Extras) -> Result<Vec<u8>, ApiError> {
        let is_small = document.body_size() <= MATCHED_INLINE_BYTES;
        let (document, permit) = read_whole(&self.snapshot, document, &self.body_memory).await?;
        let request = self.request.clone();
        let select = move || {
            let _permit = permit;
            write_fields(&document, &extras, request.fields.as_ref())
        };
        if is_small { Ok(select()) } else { blocking::run(select).await }
    }

    /// Yields to other tasks, and ends the search if the client is gone: one that finds nothing writes nothing.
    async fn check_client(&mut self, out: &ResponseWriter) -> Result<(), ApiError> {
        tokio::task::consume_budget().await;
        self.rows_unchecked += 1;
        if self.rows_unchecked < ROWS_PER_CHECK {
            return Ok(());
        }
        self.rows_unchecked = 0;
        out.check_open()
    }
}

/// The next rows, at most `count`; empty at the end.
async fn window<R: IndexRows>(rows: &mut R, count: usize) -> Result<Vec<IndexRow>, ApiError> {
    let mut window = Vec::with_capacity(count);
    while window.len() < count
        && let Some(row) = rows.next().await?
    {
        window.push(row);
    }
    Ok(window)
}

/// The text of a document with only `fields`.
fn write_fields(document: &Document, extras: &Extras, fields: Option<&Fields>) -> Vec<u8> {
    let (mut text, mut shown) = (Vec::new(), Vec::new());
    document.write_json(extras, &mut text);
    match fields {
        Some(fields) => fields.write(std::str::from_utf8(&text).unwrap_or("{}"), &mut shown),
        None => shown = text,
    }
    shown
}

/// The part of a range of ids that comes after the row `after`; None if there is none. The row itself, which may
/// be gone, is still in it.
fn rest_of(range: IdRange, descending: bool, after: Option<&Bookmark>, prefix: &str) -> Option<Range> {
    let IdRange { first, last } = range;
    let after = after.map(|after| after.id.clone());
    let (first, last) = match descending {
        false => (first.max(after), last),
        true => (first, [last, after].into_iter().flatten().min()),
    };
    if first.is_some() && last.is_some() && first > last {
        return None;
    }
    let (start, end) = if descending { (last, first) } else { (first, last) };
    Some(Range { start, end, descending, prefix: prefix.to_owned(), ..Range::default() })
}

#[cfg(test)]
mod tests;
