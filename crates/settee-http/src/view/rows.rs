//! Writes a query's result: its head, and its rows as the client reads them.

use std::borrow::Cow;

use settee_doc::{Database, DocumentKey, DocumentRow, Revision, Snapshot};
use settee_view::{DesignViews, Groups, IndexSnapshot, MapRows, RowRange, ViewRow};

use super::args::{Args, Output};
use super::query::ViewQuery;
use crate::document::inline::write_document;
use crate::document::options::DocumentOptions;
use crate::error::ApiError;
use crate::json;
use crate::response::writer::ResponseWriter;

/// Rows whose documents are read together.
const ROWS_WITH_DOCUMENTS: usize = 256;

/// Bytes of such rows that are held at once; the last one may exceed them.
const WINDOW_BYTES_MAX: usize = 1 << 20;

/// Rows between two yields to other tasks.
const ROWS_PER_YIELD: u64 = 256;

/// Writes one result without the final newline.
pub(super) async fn write_result(
    database: &Database,
    views: &DesignViews,
    snapshot: IndexSnapshot,
    query: ViewQuery,
    out: &mut ResponseWriter,
) -> Result<(), ApiError> {
    let definition = views.view(&query.view)?;
    match query.output {
        Output::Groups(grouping) => {
            let ViewQuery { args, space, ranges, .. } = query;
            out.buffer.push(b'{');
            if args.update_seq {
                write_update_seq(database, &snapshot, &mut out.buffer);
                out.buffer.push(b',');
            }
            out.buffer.extend_from_slice(b"\"rows\":[\r\n");
            let reduce = definition.reduce.as_deref().unwrap_or_default();
            let (descending, skip, limit) = (args.descending, args.skip, args.limit);
            let groups = Groups::new(snapshot, space, reduce, grouping, ranges, descending, skip, limit);
            write_groups(groups, out).await?;
        }
        Output::Rows => {
            write_head(database, &snapshot, &query, &mut out.buffer).await?;
            let ViewQuery { args, ranges, .. } = query;
            let rows = MapRows::new(snapshot, ranges, args.descending, args.skip, args.limit);
            match args.include_docs {
                true => write_rows_with_documents(&database.snapshot(), rows, &args, out).await?,
                false => write_rows(rows, out).await?,
            }
        }
    }
    out.buffer.extend_from_slice(b"\r\n]}");
    Ok(())
}

fn write_update_seq(database: &Database, snapshot: &IndexSnapshot, out: &mut Vec<u8>) {
    out.extend_from_slice(b"\"update_seq\":");
    json::quoted_seq(database, snapshot.seq, out);
}

/// Appends the members before the rows.
async fn write_head(
    database: &Database,
    snapshot: &IndexSnapshot,
    query: &ViewQuery,
    out: &mut Vec<u8>,
) -> Result<(), ApiError> {
    out.push(b'{');
    if query.args.sorted {
        let all = query.space.all();
        out.extend_from_slice(b"\"total_rows\":");
        let total = snapshot.count(&all).await?;
        json::number(total, out);
        out.extend_from_slice(b",\"offset\":");
        json::number(offset(snapshot, query, total).await?, out);
        out.push(b',');
        if query.args.update_seq {
            write_update_seq(database, snapshot, out);
            out.push(b',');
        }
    }
    out.extend_from_slice(b"\"rows\":[\r\n");
    Ok(())
}

/// The number of rows before the first one of the result.
async fn offset(snapshot: &IndexSnapshot, query: &ViewQuery, total: u64) -> Result<u64, ApiError> {
    let mut first: Option<&RowRange> = query.ranges.first();
    if query.args.keys.is_some() {
        for range in &query.ranges {
            if snapshot.count(range).await? > 0 {
                first = Some(range);
                break;
            }
            // Reads from memory never yield.
            tokio::task::consume_budget().await;
        }
    }
    let before = match first {
        Some(range) => snapshot.count_before(range, &query.space, query.args.descending).await?,
        None => 0,
    };
    Ok(before.saturating_add(query.args.skip).min(total))
}

async fn write_rows(mut rows: MapRows, out: &mut ResponseWriter) -> Result<(), ApiError> {
    let mut count = 0_u64;
    while let Some(row) = rows.next().await? {
        out.buffer.extend_from_slice(if count == 0 { b"" } else { b",\r\n" });
        write_row(&row, &mut out.buffer);
        out.buffer.push(b'}');
        out.flush_full().await?;
        count += 1;
        if count.is_multiple_of(ROWS_PER_YIELD) {
            tokio::task::consume_budget().await;
        }
    }
    Ok(())
}

async fn write_groups(mut groups: Groups, out: &mut ResponseWriter) -> Result<(), ApiError> {
    let mut is_first = true;
    while let Some(group) = groups.next().await? {
        // Reads from memory never yield.
        tokio::task::consume_budget().await;
        out.buffer.extend_from_slice(if std::mem::take(&mut is_first) { b"" } else { b",\r\n" });
        out.buffer.extend_from_slice(b"{\"key\":");
        out.buffer.extend_from_slice(group.key.as_bytes());
        match group.value {
            Ok(value) => {
                out.buffer.extend_from_slice(b",\"value\":");
                out.buffer.extend_from_slice(&value);
            }
            Err((error, reason)) => {
                out.buffer.extend_from_slice(b",\"error\":");
                settee_doc::write_json_string(&error, &mut out.buffer);
                out.buffer.extend_from_slice(b",\"reason\":");
                settee_doc::write_json_string(&reason, &mut out.buffer);
            }
        }
        out.buffer.push(b'}');
        out.flush_full().await?;
    }
    Ok(())
}

/// Appends a row without its closing brace.
fn write_row(row: &ViewRow, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"id\":");
    settee_doc::write_json_string(&row.id, out);
    out.extend_from_slice(b",\"key\":");
    out.extend_from_slice(row.key.as_bytes());
    out.extend_from_slice(b",\"value\":");
    out.extend_from_slice(row.value.as_bytes());
}

/// A row with the document that it shows: its own, or the one that its value links to.
struct RowWithDocument {
    row: ViewRow,
    link: Link,
}

/// What a row's value says of the document to be shown.
enum Link {
    /// Nothing: the document that emitted the row.
    Own,
    Other(String),
    /// A revision of a document.
    Revision(String, Revision),
    /// What no document can have.
    Invalid,
}

impl RowWithDocument {
    fn new(row: ViewRow) -> RowWithDocument {
        let link = match row.value.starts_with('{') {
            true => Link::parse(&row),
            false => Link::Own,
        };
        RowWithDocument { row, link }
    }
}

impl Link {
    fn parse(row: &ViewRow) -> Link {
        let Ok([id, rev]) = json::pick(row.value.as_bytes(), ["_id", "_rev"]) else { return Link::Own };
        let id = match id {
            None => None,
            Some(id) => match json::string(id) {
                Some(id) => Some(id.into_owned()),
                None => return Link::Invalid,
            },
        };
        match (id, rev) {
            (None, None) => Link::Own,
            (Some(id), None) => Link::Other(id),
            (id, Some(rev)) => {
                let revision = json::string(rev).and_then(|rev| rev.parse::<Revision>().ok());
                let id = id.unwrap_or_else(|| row.id.clone());
                revision.map_or(Link::Invalid, |revision| Link::Revision(id, revision))
            }
        }
    }
}

impl DocumentKey for RowWithDocument {
    fn document_id(&self) -> Option<Cow<'_, str>> {
        match &self.link {
            Link::Own => Some(Cow::Borrowed(&self.row.id)),
            Link::Other(id) => Some(Cow::Borrowed(id)),
            Link::Revision(..) | Link::Invalid => None,
        }
    }

    fn needs_body(&self, winner: &settee_doc::Summary) -> bool {
        !winner.deleted
    }
}

async fn write_rows_with_documents(
    documents: &Snapshot,
    mut rows: MapRows,
    args: &Args,
    out: &mut ResponseWriter,
) -> Result<(), ApiError> {
    let options = DocumentOptions::of_row(args.conflicts, args.attachments, args.encoding);
    let mut is_first = true;
    loop {
        let (mut window, mut bytes) = (Vec::new(), 0);
        while window.len() < ROWS_WITH_DOCUMENTS
            && bytes < WINDOW_BYTES_MAX
            && let Some(row) = rows.next().await?
        {
            bytes += row.key.len() + row.value.len();
            window.push(RowWithDocument::new(row));
        }
        if window.is_empty() {
            return Ok(());
        }
        let mut found = documents.documents(window, true);
        while let Some(DocumentRow { key, winner }) = found.next().await? {
            tokio::task::consume_budget().await;
            out.buffer.extend_from_slice(if std::mem::take(&mut is_first) { b"" } else { b",\r\n" });
            write_row(&key.row, &mut out.buffer);
            out.buffer.extend_from_slice(b",\"doc\":");
            let document = match (&key.link, winner) {
                (Link::Revision(id, revision), _) => documents.available_revision(id, revision).await.ok(),
                (_, Some(winner)) if !winner.summary.deleted => {
                    let id = key.document_id().unwrap_or_default().into_owned();
                    Some(documents.read_winner(&id, winner).await?)
                }
                _ => None,
            };
            match document.filter(|document| !document.deleted) {
                Some(document) => {
                    let extras = options.extras(documents, &document).await?;
                    write_document(documents, &document, &options, &extras, out).await?;
                }
                None => out.buffer.extend_from_slice(b"null"),
            }
            out.buffer.push(b'}');
            out.flush_full().await?;
        }
    }
}
