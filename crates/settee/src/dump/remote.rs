//! Dumps a database of a server.
//!
//! Without all revisions the dump streams one `_all_docs` response. With all revisions it reads `_changes`
//! page by page to the end of the feed and fetches the leaves; each document is in its state at the time of
//! its request.

use std::io::Write;

use serde::Deserialize;
use serde_json::value::RawValue;
use settee_client::{CouchError, HttpError, encode_segment, parse};

use super::document_writer::{AttachmentContent, DocumentWriter, LeftOut, check_count, too_large};
use super::row_parser::RowParser;
use crate::json_members::JsonMembers;
use crate::load::target::{Error, Remote};

/// Largest number of rows in a `_changes` response.
const CHANGES_PER_PAGE: usize = 1000;

/// Largest number of leaves in a `_bulk_get` request.
const LEAVES_PER_REQUEST: usize = 200;

/// Writes the winning revisions of the documents that aren't deleted, and counts what it leaves out.
pub(super) async fn write_winners<W: Write>(
    remote: &Remote,
    content: AttachmentContent,
    writer: &mut DocumentWriter<W>,
) -> Result<LeftOut, Error> {
    let mut left_out = LeftOut::default();
    let attachments = if content == AttachmentContent::Inline { "&attachments=true" } else { "" };
    let target = format!("/{}/_all_docs?include_docs=true{attachments}", encode_segment(&remote.database));
    let total = stream_rows(remote, &target, RowParser::all_docs(), |row| {
        let document = row_document(row)?.get().as_bytes();
        left_out.attachment_count += stub_count(document)?;
        writer.write(document)
    })
    .await?;
    if let Some(total) = total {
        check_count(writer.count, total)?;
    }
    list_changes(remote, |change| {
        left_out.deleted_count += u64::from(change.deleted);
        left_out.branch_count += change.changes.len().saturating_sub(1) as u64;
        Ok(())
    })
    .await?;
    left_out.local_count = list_local(remote, false, |_| Ok(())).await?;
    Ok(left_out)
}

/// Writes every leaf of every document with its ancestors, including deleted leaves, and the local documents.
pub(super) async fn write_all<W: Write>(
    remote: &mut Remote,
    content: AttachmentContent,
    writer: &mut DocumentWriter<W>,
) -> Result<LeftOut, Error> {
    let mut left_out = LeftOut::default();
    let mut leaves = Vec::new();
    let mut since = "0".to_owned();
    // Pages rather than one stream: the server would wait for a stream that is unread while documents are
    // fetched. A document that changes during the dump appears again, later in the feed.
    let mut is_last = false;
    while !is_last {
        let page = changes_after(remote, &since).await?;
        // A shorter page has reached the end of the feed, even if documents are written concurrently.
        is_last = page.results.len() < CHANGES_PER_PAGE;
        for Change { id, changes, .. } in page.results {
            leaves.extend(changes.into_iter().map(|change| Leaf { id: id.clone(), rev: change.rev }));
        }
        while leaves.len() >= LEAVES_PER_REQUEST {
            let rest = leaves.split_off(LEAVES_PER_REQUEST);
            write_leaves(remote, std::mem::replace(&mut leaves, rest), content, writer, &mut left_out)
                .await?;
        }
        since = page.last_seq;
    }
    write_leaves(remote, leaves, content, writer, &mut left_out).await?;
    let written = list_local(remote, true, |row| writer.write(row_document(row)?.get().as_bytes())).await?;
    left_out.local_count = written.map(|_| 0);
    Ok(left_out)
}

/// A leaf of a document, in the form of a `_bulk_get` request.
#[derive(serde::Serialize)]
struct Leaf {
    id: String,
    rev: String,
}

/// A row of `_changes`.
#[derive(Deserialize)]
struct Change {
    id: String,
    #[serde(default)]
    deleted: bool,
    changes: Vec<ChangedLeaf>,
}

/// A response of `_changes`.
struct ChangesPage {
    results: Vec<Change>,
    /// Percent-encoded for a query.
    last_seq: String,
}

/// Returns the changes after `since`: fewer than [`CHANGES_PER_PAGE`] at the end of the feed.
async fn changes_after(remote: &mut Remote, since: &str) -> Result<ChangesPage, Error> {
    #[derive(Deserialize)]
    struct Response {
        results: Vec<Change>,
        last_seq: serde_json::Value,
    }
    let database = encode_segment(&remote.database);
    let target = format!("/{database}/_changes?style=all_docs&limit={CHANGES_PER_PAGE}&since={since}");
    let reply = remote.couch.call("GET", &target, None).await?;
    let Response { results, last_seq } = parse(&target, &reply.body)?;
    // CouchDB before 2.0 sends a number.
    let last_seq = last_seq.as_str().map_or_else(|| last_seq.to_string(), encode_segment);
    Ok(ChangesPage { results, last_seq })
}

#[derive(Deserialize)]
struct ChangedLeaf {
    rev: String,
}

/// Writes leaves, or the revisions that replaced them since `_changes` listed them. A request whose response
/// is too large is halved.
async fn write_leaves<W: Write>(
    remote: &mut Remote,
    leaves: Vec<Leaf>,
    content: AttachmentContent,
    writer: &mut DocumentWriter<W>,
    left_out: &mut LeftOut,
) -> Result<(), Error> {
    let attachments = if content == AttachmentContent::Inline { "&attachments=true" } else { "" };
    let database = encode_segment(&remote.database);
    let target = format!("/{database}/_bulk_get?revs=true&latest=true{attachments}");
    let mut spans = vec![&leaves[..]];
    while let Some(span) = spans.pop() {
        if span.is_empty() {
            continue;
        }
        let body = serde_json::to_vec(&serde_json::json!({ "docs": span }))?;
        let reply = match remote.couch.call("POST", &target, Some(&body)).await {
            Ok(reply) => reply,
            Err(CouchError::Http(HttpError::TooLarge)) if span.len() > 1 => {
                let (first, second) = span.split_at(span.len() / 2);
                spans.extend([second, first]);
                continue;
            }
            Err(CouchError::Http(HttpError::TooLarge)) => return Err(too_large(&span[0].id)),
            Err(error) => return Err(error.into()),
        };
        for document in parse_leaves(&target, &reply.body)? {
            left_out.attachment_count += stub_count(document)?;
            writer.write(document)?;
        }
    }
    Ok(())
}

/// Returns the documents in a `_bulk_get` response. A leaf that was purged after `_changes` listed it is
/// skipped.
fn parse_leaves<'a>(target: &str, body: &'a [u8]) -> Result<Vec<&'a [u8]>, Error> {
    #[derive(Deserialize)]
    struct Response<'a> {
        #[serde(borrow)]
        results: Vec<RequestedLeaf<'a>>,
    }
    #[derive(Deserialize)]
    struct RequestedLeaf<'a> {
        #[serde(borrow)]
        docs: Vec<LeafResult<'a>>,
    }
    #[derive(Deserialize)]
    struct LeafResult<'a> {
        #[serde(borrow)]
        ok: Option<&'a RawValue>,
        error: Option<LeafError>,
    }
    #[derive(Deserialize)]
    struct LeafError {
        id: String,
        error: String,
        reason: String,
    }
    let response: Response<'_> = parse(target, body)?;
    let mut documents = Vec::new();
    for result in response.results.into_iter().flat_map(|leaf| leaf.docs) {
        match (result.ok, result.error) {
            (Some(document), _) => documents.push(document.get().as_bytes()),
            (None, Some(error)) if error.error == "not_found" => {}
            (None, Some(LeafError { id, error, reason })) => {
                return Err(format!("{id}: {error}: {reason}").into());
            }
            (None, None) => return Err(format!("{target} returned neither a document nor an error").into()),
        }
    }
    Ok(documents)
}

/// Streams a response and calls `on_row` for each of its rows. Returns its `total_rows`, if it has that
/// member.
async fn stream_rows(
    remote: &Remote,
    target: &str,
    mut parser: RowParser,
    mut on_row: impl FnMut(&[u8]) -> Result<(), Error>,
) -> Result<Option<u64>, Error> {
    let mut connection = remote.couch.stream(target).await?;
    while let Some(chunk) = connection.chunk().await? {
        parser.feed(chunk, &mut on_row)?;
    }
    parser.finish()
}

async fn list_changes(
    remote: &Remote,
    mut on_change: impl FnMut(Change) -> Result<(), Error>,
) -> Result<(), Error> {
    let target = format!("/{}/_changes?style=all_docs", encode_segment(&remote.database));
    stream_rows(remote, &target, RowParser::changes(), |row| on_change(serde_json::from_slice(row)?)).await?;
    Ok(())
}

/// Calls `on_row` for the row of each local document. Returns their number, or None if the server doesn't
/// list local documents.
async fn list_local(
    remote: &Remote,
    with_documents: bool,
    mut on_row: impl FnMut(&[u8]) -> Result<(), Error>,
) -> Result<Option<u64>, Error> {
    let target = format!("/{}/_local_docs?include_docs={with_documents}", encode_segment(&remote.database));
    let mut count = 0;
    let streamed = stream_rows(remote, &target, RowParser::all_docs(), |row| {
        count += 1;
        on_row(row)
    });
    match streamed.await {
        Ok(_) => Ok(Some(count)),
        Err(error) => match error.downcast_ref::<CouchError>() {
            Some(CouchError::Refused { status: 400 | 404 | 405 | 501, .. }) => Ok(None),
            _ => Err(error),
        },
    }
}

/// Returns the document of a row.
pub(super) fn row_document(row: &[u8]) -> Result<&RawValue, Error> {
    #[derive(Deserialize)]
    struct Row<'a> {
        #[serde(borrow)]
        doc: Option<&'a RawValue>,
    }
    let row: Row<'_> = serde_json::from_slice(row)?;
    row.doc.filter(|doc| doc.get().starts_with('{')).ok_or_else(|| "a row contains no document".into())
}

/// Returns the number of a document's attachments that are stubs.
fn stub_count(document: &[u8]) -> Result<u64, Error> {
    #[derive(Deserialize)]
    struct Document<'a> {
        #[serde(borrow)]
        _attachments: Option<JsonMembers<'a>>,
    }
    #[derive(Deserialize)]
    struct Attachment {
        #[serde(default)]
        stub: bool,
    }
    if memchr::memmem::find(document, b"\"_attachments\"").is_none() {
        return Ok(0);
    }
    let Document { _attachments: attachments } = serde_json::from_slice(document)?;
    let mut count = 0;
    for (_, attachment) in attachments.map(|JsonMembers(members)| members).unwrap_or_default() {
        count += u64::from(serde_json::from_str::<Attachment>(attachment.get())?.stub);
    }
    Ok(count)
}
