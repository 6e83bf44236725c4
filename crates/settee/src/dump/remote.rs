//! Dumping a server's database. The list of documents is of one snapshot, that with all revisions is read page by
//! page until there are no more changes; each document is as it is when it is read.

use std::io::Write;

use serde::Deserialize;
use serde_json::value::RawValue;
use settee_bench::couch::{self, CouchError};
use settee_bench::http::{HttpError, encode_segment};

use super::listing::Listing;
use super::{Content, LeftOut, Sink};
use crate::load::target::{Error, Remote};
use crate::members::Members;

/// Changed documents that are listed at once.
const CHANGES_AT_ONCE: usize = 1000;

/// Leaves that are asked for at once.
const LEAVES_AT_ONCE: usize = 200;

/// Writes the winning revisions of the documents that aren't deleted, and counts the rest.
pub(super) async fn write_winners<W: Write>(
    remote: &Remote,
    content: Content,
    sink: &mut Sink<W>,
) -> Result<LeftOut, Error> {
    let mut left_out = LeftOut::default();
    let attachments = if content == Content::Inline { "&attachments=true" } else { "" };
    let target = format!("/{}/_all_docs?include_docs=true{attachments}", encode_segment(&remote.database));
    let total = list(remote, &target, Listing::of_rows(), |row| {
        let document = row_document(row)?.get().as_bytes();
        left_out.attachment_count += stub_count(document)?;
        sink.write(document)
    })
    .await?;
    if let Some(total) = total {
        super::check_count(sink.count, total)?;
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

/// Writes every leaf of every document with its ancestors, deleted ones too, and the local documents.
pub(super) async fn write_all<W: Write>(
    remote: &mut Remote,
    content: Content,
    sink: &mut Sink<W>,
) -> Result<LeftOut, Error> {
    let mut left_out = LeftOut::default();
    let mut leaves = Vec::new();
    let mut since = "0".to_owned();
    // A listing that is read while documents are fetched would be held open, unread. A document that changes
    // meanwhile is listed again, behind the others.
    let mut is_last = false;
    while !is_last {
        let page = changes_after(remote, &since).await?;
        // A shorter page reached the end, whatever is written meanwhile.
        is_last = page.results.len() < CHANGES_AT_ONCE;
        for Change { id, changes, .. } in page.results {
            leaves.extend(changes.into_iter().map(|change| Leaf { id: id.clone(), rev: change.rev }));
        }
        while leaves.len() >= LEAVES_AT_ONCE {
            let rest = leaves.split_off(LEAVES_AT_ONCE);
            write_leaves(remote, std::mem::replace(&mut leaves, rest), content, sink, &mut left_out).await?;
        }
        since = page.last_seq;
    }
    write_leaves(remote, leaves, content, sink, &mut left_out).await?;
    let written = list_local(remote, true, |row| sink.write(row_document(row)?.get().as_bytes())).await?;
    left_out.local_count = written.map(|_| 0);
    Ok(left_out)
}

/// A leaf of a document, as `_bulk_get` is asked for it.
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
    changes: Vec<Changed>,
}

/// An answer of `_changes`.
struct Page {
    results: Vec<Change>,
    /// As a query takes it.
    last_seq: String,
}

/// The next changes: at the end of the feed fewer than [`CHANGES_AT_ONCE`].
async fn changes_after(remote: &mut Remote, since: &str) -> Result<Page, Error> {
    #[derive(Deserialize)]
    struct Answer {
        results: Vec<Change>,
        last_seq: serde_json::Value,
    }
    let database = encode_segment(&remote.database);
    let target = format!("/{database}/_changes?style=all_docs&limit={CHANGES_AT_ONCE}&since={since}");
    let reply = remote.couch.call("GET", &target, None).await?;
    let Answer { results, last_seq } = couch::parse(&target, &reply.body)?;
    // A number in CouchDB before 2.0.
    let last_seq = last_seq.as_str().map_or_else(|| last_seq.to_string(), encode_segment);
    Ok(Page { results, last_seq })
}

#[derive(Deserialize)]
struct Changed {
    rev: String,
}

/// Writes leaves, or what has replaced them since they were listed. Where an answer is too large to be held,
/// fewer are asked for.
async fn write_leaves<W: Write>(
    remote: &mut Remote,
    leaves: Vec<Leaf>,
    content: Content,
    sink: &mut Sink<W>,
    left_out: &mut LeftOut,
) -> Result<(), Error> {
    let attachments = if content == Content::Inline { "&attachments=true" } else { "" };
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
            Err(CouchError::Http(HttpError::TooLarge)) => return Err(super::too_large(&span[0].id)),
            Err(error) => return Err(error.into()),
        };
        for found in parse_leaves(&target, &reply.body)? {
            left_out.attachment_count += stub_count(found)?;
            sink.write(found)?;
        }
    }
    Ok(())
}

/// The documents in an answer of `_bulk_get`. One that was purged since it was listed is passed over.
fn parse_leaves<'a>(target: &str, body: &'a [u8]) -> Result<Vec<&'a [u8]>, Error> {
    #[derive(Deserialize)]
    struct Answer<'a> {
        #[serde(borrow)]
        results: Vec<Asked<'a>>,
    }
    #[derive(Deserialize)]
    struct Asked<'a> {
        #[serde(borrow)]
        docs: Vec<Found<'a>>,
    }
    #[derive(Deserialize)]
    struct Found<'a> {
        #[serde(borrow)]
        ok: Option<&'a RawValue>,
        error: Option<Refusal>,
    }
    #[derive(Deserialize)]
    struct Refusal {
        id: String,
        error: String,
        reason: String,
    }
    let answer: Answer<'_> = couch::parse(target, body)?;
    let mut documents = Vec::new();
    for found in answer.results.into_iter().flat_map(|asked| asked.docs) {
        match (found.ok, found.error) {
            (Some(document), _) => documents.push(document.get().as_bytes()),
            (None, Some(refusal)) if refusal.error == "not_found" => {}
            (None, Some(Refusal { id, error, reason })) => {
                return Err(format!("{id}: {error}: {reason}").into());
            }
            (None, None) => return Err(format!("{target} gave neither a document nor an error").into()),
        }
    }
    Ok(documents)
}

/// Hands over each row of a listing, and returns how many documents it announced.
async fn list(
    remote: &Remote,
    target: &str,
    mut listing: Listing,
    mut on_row: impl FnMut(&[u8]) -> Result<(), Error>,
) -> Result<Option<u64>, Error> {
    let mut connection = remote.couch.stream("GET", target).await?;
    while let Some(chunk) = connection.chunk().await? {
        listing.take(chunk, &mut on_row)?;
    }
    listing.finish()
}

async fn list_changes(
    remote: &Remote,
    mut on_change: impl FnMut(Change) -> Result<(), Error>,
) -> Result<(), Error> {
    let target = format!("/{}/_changes?style=all_docs", encode_segment(&remote.database));
    list(remote, &target, Listing::of_changes(), |row| on_change(serde_json::from_slice(row)?)).await?;
    Ok(())
}

/// Hands over each local document's row, and returns how many there were; None where the server doesn't list
/// them.
async fn list_local(
    remote: &Remote,
    with_documents: bool,
    mut on_row: impl FnMut(&[u8]) -> Result<(), Error>,
) -> Result<Option<u64>, Error> {
    let target = format!("/{}/_local_docs?include_docs={with_documents}", encode_segment(&remote.database));
    let mut count = 0;
    let listed = list(remote, &target, Listing::of_rows(), |row| {
        count += 1;
        on_row(row)
    });
    match listed.await {
        Ok(_) => Ok(Some(count)),
        Err(error) => match error.downcast_ref::<CouchError>() {
            Some(CouchError::Refused { status: 400 | 404 | 405 | 501, .. }) => Ok(None),
            _ => Err(error),
        },
    }
}

/// The document of one row of a listing.
pub(super) fn row_document(row: &[u8]) -> Result<&RawValue, Error> {
    #[derive(Deserialize)]
    struct Row<'a> {
        #[serde(borrow)]
        doc: Option<&'a RawValue>,
    }
    let row: Row<'_> = serde_json::from_slice(row)?;
    row.doc.filter(|doc| doc.get().starts_with('{')).ok_or_else(|| "a row holds no document".into())
}

/// How many attachments of a document are stubs.
fn stub_count(document: &[u8]) -> Result<u64, Error> {
    #[derive(Deserialize)]
    struct Document<'a> {
        #[serde(borrow)]
        _attachments: Option<Members<'a>>,
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
    for (_, attachment) in attachments.map(|Members(members)| members).unwrap_or_default() {
        count += u64::from(serde_json::from_str::<Attachment>(attachment.get())?.stub);
    }
    Ok(count)
}
