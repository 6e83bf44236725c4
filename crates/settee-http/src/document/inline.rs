//! Writes documents as JSON, with the content of their attachments if it is asked for.
//!
//! Content is read and encoded as the client reads it, and so are large bodies.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use settee_doc::{Document, Extras, LargeBody, Snapshot};

use super::options::{DocumentOptions, OpenedLeaf, known_generation};
use crate::error::ApiError;
use crate::response::writer::ResponseWriter;

/// Writes a document, with the content of its attachments if `options` asks for it.
pub(crate) async fn write_document(
    snapshot: &Snapshot,
    document: &Document,
    options: &DocumentOptions,
    extras: &Extras,
    out: &mut ResponseWriter,
) -> Result<(), ApiError> {
    if !options.attachments || document.attachments.is_empty() {
        return write_stubs(snapshot, document, extras, out).await;
    }
    let known = known_generation(snapshot, document, options).await?;
    write_inline(snapshot, document, extras, known, out).await
}

/// Writes a leaf, with the content of its attachments if `options` asks for it.
pub(crate) async fn write_opened(
    snapshot: &Snapshot,
    opened: &OpenedLeaf,
    options: &DocumentOptions,
    out: &mut ResponseWriter,
) -> Result<(), ApiError> {
    if options.attachments {
        return write_inline(snapshot, &opened.document, &opened.extras, opened.known, out).await;
    }
    write_stubs(snapshot, &opened.document, &opened.extras, out).await
}

/// Writes a document with its attachments as stubs.
async fn write_stubs(
    snapshot: &Snapshot,
    document: &Document,
    extras: &Extras,
    out: &mut ResponseWriter,
) -> Result<(), ApiError> {
    write_front(snapshot, document, out).await?;
    document.write_stubs(extras, &mut out.buffer);
    document.end_json(extras, &mut out.buffer);
    Ok(())
}

/// Writes a document's text before its attachments.
async fn write_front(
    snapshot: &Snapshot,
    document: &Document,
    out: &mut ResponseWriter,
) -> Result<(), ApiError> {
    match &document.large_body {
        None => document.begin_json(&mut out.buffer),
        Some(large_body) => {
            document.begin_members(&mut out.buffer);
            send_large_body(snapshot, &document.id, large_body, out).await?;
        }
    }
    Ok(())
}

/// Sends a large body chunk by chunk.
///
/// # Errors
/// Those of reading it; the client has closed the connection.
pub(crate) async fn send_large_body(
    snapshot: &Snapshot,
    id: &str,
    large_body: &LargeBody,
    out: &mut ResponseWriter,
) -> Result<(), ApiError> {
    let mut reader = snapshot.large_body(id, large_body);
    while let Some(piece) = reader.next().await? {
        out.send(piece).await?;
    }
    Ok(())
}

/// Writes a document with the content of attachments newer than the generation `known`.
async fn write_inline(
    snapshot: &Snapshot,
    document: &Document,
    extras: &Extras,
    known: u32,
    out: &mut ResponseWriter,
) -> Result<(), ApiError> {
    if document.attachments.is_empty() {
        return write_stubs(snapshot, document, extras, out).await;
    }
    write_front(snapshot, document, out).await?;
    for (index, attachment) in document.attachments.iter().enumerate() {
        out.buffer.extend_from_slice(if index == 0 { b",\"_attachments\":{" } else { b"," });
        settee_doc::write_json_string(&attachment.name, &mut out.buffer);
        out.buffer.extend_from_slice(b":{");
        if attachment.revpos <= known {
            attachment.write_members(extras.encoding, &mut out.buffer);
            out.buffer.extend_from_slice(b",\"stub\":true}");
            continue;
        }
        attachment.write_members_with_data(extras.encoding, &mut out.buffer);
        out.buffer.extend_from_slice(b",\"data\":\"");
        // Inline content is always decoded, even with `att_encoding_info`.
        let mut reader = snapshot.attachment(&document.id, attachment, None, true);
        let mut rest: Vec<u8> = Vec::new();
        while let Some(bytes) = reader.next().await? {
            rest.extend_from_slice(&bytes);
            // Three bytes are four digits, so only multiples of three are encoded before the end.
            let whole = rest.len() / 3 * 3;
            write_base64(&rest[..whole], &mut out.buffer);
            rest.drain(..whole);
            out.flush_full().await?;
        }
        write_base64(&rest, &mut out.buffer);
        out.buffer.extend_from_slice(b"\"}");
    }
    out.buffer.push(b'}');
    document.end_json(extras, &mut out.buffer);
    Ok(())
}

fn write_base64(bytes: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + bytes.len().div_ceil(3) * 4, 0);
    BASE64.encode_slice(bytes, &mut out[start..]).expect("the buffer holds all digits");
}
