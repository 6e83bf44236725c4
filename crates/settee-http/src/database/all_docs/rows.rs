//! Writes a list: its head, and its rows as the client reads them.

use std::borrow::Cow;

use settee_doc::{
    Database, Document, DocumentKey, DocumentRow, ErrorKind, LocalRow, Range, Revision, Row, Snapshot,
    Summary,
};

use super::args::Args;
use super::scope::{LOCAL, SYSTEM_LOCALS, Scope};
use crate::document::inline::write_document;
use crate::document::local;
use crate::document::options::DocumentOptions;
use crate::error::ApiError;
use crate::json;
use crate::response::writer::ResponseWriter;

/// Writes one list without the final newline.
pub(super) async fn write_list(
    database: &Database,
    snapshot: &Snapshot,
    scope: &Scope,
    mut args: Args,
    out: &mut ResponseWriter,
) -> Result<(), ApiError> {
    match (args.keys.take(), scope) {
        (Some(keys), _) => by_keys(database, snapshot, scope, &args, keys, out).await?,
        (None, Scope::Local) => locals(database, snapshot, &args, out).await?,
        (None, _) => ranged(database, snapshot, scope, &args, out).await?,
    }
    out.buffer.extend_from_slice(b"\r\n]}");
    Ok(())
}

async fn ranged(
    database: &Database,
    snapshot: &Snapshot,
    scope: &Scope,
    args: &Args,
    out: &mut ResponseWriter,
) -> Result<(), ApiError> {
    let range = args.range().map(|range| Range { prefix: scope.prefix(), ..range });
    let offset = match &range {
        Some(range) => snapshot.offset(range).await?,
        None => 0,
    };
    let total = total(snapshot, scope).await?;
    write_head(database, snapshot, args, total, Some(offset), &mut out.buffer);
    let Some(range) = range else { return Ok(()) };
    let mut rows = snapshot.all_docs(&range).await?;
    let mut is_first = true;
    let mut begin_row = |id: &str, summary: &Summary, out: &mut Vec<u8>| {
        out.extend_from_slice(if std::mem::take(&mut is_first) { b"" } else { b",\r\n" });
        write_row(id, &summary.revision, false, out);
    };
    if args.include_docs {
        let mut documents = snapshot.read_ahead(rows, args.limit, None);
        while let Some(DocumentRow { key: id, winner }) = documents.next().await? {
            let winner = winner.expect("a row has a document");
            begin_row(&id, &winner.summary, &mut out.buffer);
            let document = snapshot.read_winner(&id, winner).await?;
            write_doc(snapshot, &document, args, out).await?;
            out.buffer.push(b'}');
            out.flush_full().await?;
        }
        return Ok(());
    }
    let mut left = args.limit;
    while left > 0
        && let Some(Row { id, summary, .. }) = rows.next().await?
    {
        left -= 1;
        begin_row(id, &summary, &mut out.buffer);
        out.buffer.push(b'}');
        out.flush_full().await?;
    }
    Ok(())
}

/// Writes the local documents of a range. As in CouchDB, they are not counted.
async fn locals(
    database: &Database,
    snapshot: &Snapshot,
    args: &Args,
    out: &mut ResponseWriter,
) -> Result<(), ApiError> {
    write_head(database, snapshot, args, None, None, &mut out.buffer);
    let Some(range) = args.range() else { return Ok(()) };
    let mut skip = range.skip;
    let mut rows = snapshot.local_docs(&Range { skip: 0, ..range });
    let mut left = args.limit;
    while left > 0
        && let Some(LocalRow { name, number, body }) = rows.next().await?
    {
        let is_system = SYSTEM_LOCALS.iter().any(|system| name.starts_with(system));
        if is_system && !args.include_system {
            continue;
        }
        if skip > 0 {
            skip -= 1;
            continue;
        }
        left -= 1;
        out.buffer.extend_from_slice(if left + 1 == args.limit { b"" } else { b",\r\n" });
        let (id, revision) = (format!("{LOCAL}{name}"), format!("0-{number}"));
        write_row_of(&id, |out| settee_doc::write_json_string(&revision, out), false, &mut out.buffer);
        if args.include_docs {
            let body = snapshot.read_local(body).await?;
            out.buffer.extend_from_slice(b",\"doc\":");
            local::write_json(&id, &revision, &body, &mut out.buffer);
        }
        out.buffer.push(b'}');
        out.flush_full().await?;
    }
    Ok(())
}

/// Number of documents in the scope; None if unknown.
async fn total(snapshot: &Snapshot, scope: &Scope) -> Result<Option<u64>, ApiError> {
    Ok(match scope {
        Scope::All => Some(snapshot.doc_count()),
        Scope::Design | Scope::Partition(_) => Some(snapshot.counts(&scope.prefix()).await?.doc_count),
        Scope::Local => None,
    })
}

/// Writes rows in the order of the keys, also for missing and deleted documents.
async fn by_keys(
    database: &Database,
    snapshot: &Snapshot,
    scope: &Scope,
    args: &Args,
    mut keys: Vec<String>,
    out: &mut ResponseWriter,
) -> Result<(), ApiError> {
    write_head(database, snapshot, args, total(snapshot, scope).await?, None, &mut out.buffer);
    if args.descending {
        keys.reverse();
    }
    let skip = usize::try_from(args.skip).unwrap_or(usize::MAX);
    let limit = usize::try_from(args.limit).unwrap_or(usize::MAX);
    // As in CouchDB, `skip` and `limit` also count keys outside the scope.
    keys.drain(..skip.min(keys.len()));
    keys.truncate(limit);
    keys.retain(|key| scope.takes_key(key));
    if *scope == Scope::Local {
        for (index, key) in keys.iter().enumerate() {
            out.buffer.extend_from_slice(if index == 0 { b"" } else { b",\r\n" });
            write_local_key_row(snapshot, args, key, &mut out.buffer).await?;
            out.buffer.push(b'}');
            out.flush_full().await?;
        }
        return Ok(());
    }
    let mut documents = snapshot.documents(keys.into_iter().map(JsonKey).collect(), args.include_docs);
    let mut is_first = true;
    while let Some(DocumentRow { key, winner }) = documents.next().await? {
        // Reads from memory never yield, so this task must.
        tokio::task::consume_budget().await;
        out.buffer.extend_from_slice(if std::mem::take(&mut is_first) { b"" } else { b",\r\n" });
        match key.document_id().zip(winner) {
            None => write_not_found(&key.0, &mut out.buffer),
            Some((id, winner)) => {
                let deleted = winner.summary.deleted;
                write_row(&id, &winner.summary.revision, deleted, &mut out.buffer);
                if args.include_docs && deleted {
                    out.buffer.extend_from_slice(b",\"doc\":null");
                } else if args.include_docs {
                    let document = snapshot.read_winner(&id, winner).await?;
                    write_doc(snapshot, &document, args, out).await?;
                }
            }
        }
        out.buffer.push(b'}');
        out.flush_full().await?;
    }
    Ok(())
}

/// A key of a list: JSON text.
struct JsonKey(String);

impl DocumentKey for JsonKey {
    fn document_id(&self) -> Option<Cow<'_, str>> {
        json::string(&self.0)
    }

    fn needs_body(&self, winner: &Summary) -> bool {
        !winner.deleted
    }
}

/// Appends `,"doc":` and the document.
async fn write_doc(
    snapshot: &Snapshot,
    document: &Document,
    args: &Args,
    out: &mut ResponseWriter,
) -> Result<(), ApiError> {
    let options = DocumentOptions::of_row(args.conflicts, args.attachments, args.encoding);
    let extras = options.extras(snapshot, document).await?;
    out.buffer.extend_from_slice(b",\"doc\":");
    write_document(snapshot, document, &options, &extras, out).await
}

/// Appends the row of a local document's key without its closing brace.
async fn write_local_key_row(
    snapshot: &Snapshot,
    args: &Args,
    key: &str,
    out: &mut Vec<u8>,
) -> Result<(), ApiError> {
    let id = json::string(key).unwrap_or_default();
    match snapshot.local(id.strip_prefix(LOCAL).unwrap_or_default()).await {
        Ok((revision, body)) => {
            write_row_of(&id, |out| settee_doc::write_json_string(&revision, out), false, out);
            if args.include_docs {
                out.extend_from_slice(b",\"doc\":");
                local::write_json(&id, &revision, &body, out);
            }
        }
        Err(error) if error.kind() == ErrorKind::NotFound => write_not_found(key, out),
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// Appends the row of a key without a document, without its closing brace.
fn write_not_found(key: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"key\":");
    out.extend_from_slice(key.as_bytes());
    out.extend_from_slice(b",\"error\":\"not_found\"");
}

/// Appends the members before the rows. As in CouchDB, a list by keys has neither an offset nor an update
/// number; nor do local documents.
fn write_head(
    database: &Database,
    snapshot: &Snapshot,
    args: &Args,
    total: Option<u64>,
    offset: Option<u64>,
    out: &mut Vec<u8>,
) {
    let number = |value: Option<u64>, out: &mut Vec<u8>| match value {
        Some(value) => json::number(value, out),
        None => out.extend_from_slice(b"null"),
    };
    out.extend_from_slice(b"{\"total_rows\":");
    number(total, out);
    out.extend_from_slice(b",\"offset\":");
    number(offset, out);
    if args.update_seq {
        out.extend_from_slice(b",\"update_seq\":");
        match offset {
            Some(_) => json::quoted_seq(database, snapshot.update_seq(), out),
            None => out.extend_from_slice(b"null"),
        }
    }
    out.extend_from_slice(b",\"rows\":[\r\n");
}

/// Appends a row without its closing brace.
fn write_row(id: &str, revision: &Revision, deleted: bool, out: &mut Vec<u8>) {
    write_row_of(id, |out| revision.write_json(out), deleted, out);
}

fn write_row_of(id: &str, write_revision: impl FnOnce(&mut Vec<u8>), deleted: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"id\":");
    let start = out.len();
    settee_doc::write_json_string(id, out);
    let end = out.len();
    out.extend_from_slice(b",\"key\":");
    out.extend_from_within(start..end);
    out.extend_from_slice(b",\"value\":{\"rev\":");
    write_revision(out);
    out.extend_from_slice(if deleted { b",\"deleted\":true}" } else { b"}" });
}
