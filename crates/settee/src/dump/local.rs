//! Dumps a database of a data directory from one snapshot.

use std::io::Write;

use base64::engine::general_purpose::STANDARD;
use base64::write::EncoderWriter;
use settee_doc::{
    Attachment, Document, DocumentRow, Extras, Range, Seq, Snapshot, digest_text, write_json_string,
};

use super::document_writer::{AttachmentContent, DocumentWriter, LeftOut, check_count, too_large};
use crate::load::LINE_BYTES_MAX;
use crate::load::target::{Error, Local, local_text};

/// Writes the winning revisions of the documents that aren't deleted, and counts what it leaves out.
pub(super) async fn write_winners<W: Write>(
    local: &Local,
    content: AttachmentContent,
    writer: &mut DocumentWriter<W>,
) -> Result<LeftOut, Error> {
    let snapshot = local.database.snapshot();
    let mut left_out = LeftOut::default();
    let rows = snapshot.all_docs(&Range::default()).await?;
    let mut documents = snapshot.read_ahead(rows, u64::MAX, None);
    while let Some(DocumentRow { key: id, winner }) = documents.next().await? {
        let document = snapshot.read_winner(&id, winner.expect("a row has a document")).await?;
        left_out.attachment_count += write(&snapshot, document, &Extras::default(), content, writer).await?;
    }
    check_count(writer.count, snapshot.doc_count())?;
    let mut rows = snapshot.changes(Seq(0), false);
    while let Some(row) = rows.next().await? {
        left_out.deleted_count += u64::from(row.summary.deleted);
        if row.summary.has_conflicts {
            let id = row.id.to_owned();
            left_out.branch_count += snapshot.leaves(&id).await?.len() as u64 - 1;
        }
    }
    let mut rows = snapshot.local_docs(&Range::default());
    let mut local_count = 0;
    while rows.next().await?.is_some() {
        local_count += 1;
    }
    left_out.local_count = Some(local_count);
    Ok(left_out)
}

/// Writes every leaf of every document with its ancestors, including deleted leaves, and the local documents.
pub(super) async fn write_all<W: Write>(
    local: &Local,
    content: AttachmentContent,
    writer: &mut DocumentWriter<W>,
) -> Result<LeftOut, Error> {
    let snapshot = local.database.snapshot();
    let mut left_out = LeftOut { local_count: Some(0), ..LeftOut::default() };
    let mut documents = snapshot.read_ahead(snapshot.changes(Seq(0), false), u64::MAX, None);
    while let Some(DocumentRow { key: id, winner }) = documents.next().await? {
        let leaves = snapshot.leaves_of(&id, winner).await?;
        for index in 0..leaves.count() {
            let document = leaves.document(index).await?;
            let extras = Extras { revisions: Some(leaves.history(index).await?), ..Extras::default() };
            left_out.attachment_count += write(&snapshot, document, &extras, content, writer).await?;
        }
    }
    let mut rows = snapshot.local_docs(&Range::default());
    while let Some(row) = rows.next().await? {
        let (id, revision, body) = (format!("_local/{}", row.name), format!("0-{}", row.number), row.body);
        let body = snapshot.read_local(body).await?;
        writer.write(&local_text(&id, &revision, &body))?;
    }
    Ok(left_out)
}

/// Writes a document. Returns the number of attachments written without their content.
async fn write<W: Write>(
    snapshot: &Snapshot,
    document: Document,
    extras: &Extras,
    content: AttachmentContent,
    writer: &mut DocumentWriter<W>,
) -> Result<u64, Error> {
    let document = snapshot.read_whole(document).await?;
    let mut text = Vec::new();
    let left_out = match content {
        AttachmentContent::Inline if !document.attachments.is_empty() => {
            let base64_bytes = |attachment: &Attachment| attachment.length.div_ceil(3).saturating_mul(4);
            let bytes = document.attachments.iter().map(base64_bytes).fold(0, u64::saturating_add);
            if bytes.saturating_add(document.body.len() as u64) > LINE_BYTES_MAX as u64 {
                return Err(too_large(&document.id));
            }
            write_inline(snapshot, &document, extras, &mut text).await?;
            0
        }
        _ => {
            document.write_json(extras, &mut text);
            document.attachments.len() as u64
        }
    };
    writer.write(&text)?;
    Ok(left_out)
}

/// Appends a document with the content of its attachments to `out`.
async fn write_inline(
    snapshot: &Snapshot,
    document: &Document,
    extras: &Extras,
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    document.begin_json(out);
    for (index, attachment) in document.attachments.iter().enumerate() {
        out.extend_from_slice(if index == 0 { b",\"_attachments\":{" } else { b"," });
        write_json_string(&attachment.name, out);
        out.extend_from_slice(b":{\"content_type\":");
        write_json_string(&attachment.content_type, out);
        let digest = digest_text(&attachment.digest);
        write!(out, ",\"revpos\":{},\"digest\":\"{digest}\",\"data\":\"", attachment.revpos)?;
        let mut encoder = EncoderWriter::new(&mut *out, &STANDARD);
        let mut reader = snapshot.attachment(&document.id, attachment, None, true);
        while let Some(piece) = reader.next().await? {
            encoder.write_all(&piece)?;
        }
        encoder.finish()?;
        drop(encoder);
        out.extend_from_slice(b"\"}");
    }
    out.push(b'}');
    document.end_json(extras, out);
    Ok(())
}
