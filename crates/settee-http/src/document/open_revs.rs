//! `open_revs`: several revisions of a document in one response.
//!
//! The leaves are read once; the bodies are read one by one as the client reads the response.

use hyper::header;
use settee_doc::{Leaves, Matched, ReplacedRevisions, Revision, Snapshot};

use super::inline::write_opened;
use super::options::{DocumentOptions, OpenedLeaf};
use super::related::Related;
use super::revision_arg;
use crate::body::multipart;
use crate::context::RequestContext;
use crate::error::ApiError;
use crate::response::writer::{self, ResponseWriter};
use crate::response::{self, HandlerResult};

/// The media type of a response with several revisions.
pub(crate) const MIXED: &str = "multipart/mixed";

/// The head of a part that reports a missing revision.
const ERROR_HEAD: &[u8] = b"\r\nContent-Type: application/json; error=\"true\"\r\n\r\n";

/// Parses `open_revs`: a list of revisions, or None for all leaves.
pub(crate) fn parse(list: &str) -> Result<Option<Vec<Revision>>, ApiError> {
    match list {
        "all" => Ok(None),
        list => revision_arg::parse_list_value(list).map(Some),
    }
}

/// Finds the leaves and replaced revisions for the wanted revisions, or all leaves.
pub(crate) async fn find(
    leaves: &Leaves,
    wanted: Option<&[Revision]>,
    latest: bool,
    replaced: &mut ReplacedRevisions,
) -> Result<Vec<Matched>, ApiError> {
    match wanted {
        Some(wanted) => Ok(leaves.find(wanted, latest, replaced).await?),
        None => Ok((0..leaves.count()).map(Matched::Leaf).collect()),
    }
}

/// Responds with the wanted revisions, as a JSON array or as multipart.
pub(crate) async fn get(
    context: &RequestContext<'_>,
    snapshot: Snapshot,
    id: &str,
    wanted: Option<Vec<Revision>>,
) -> HandlerResult {
    let options = DocumentOptions::from_query(context.query())?;
    let leaves = snapshot.open_leaves(id).await?;
    let latest = context.query().is_true("latest");
    let found = find(&leaves, wanted.as_deref(), latest, &mut snapshot.replaced_revisions()).await?;
    if found.is_empty() {
        return Err(ApiError::missing());
    }
    let boundary = multipart::accepts(context.header(header::ACCEPT), MIXED).then(multipart::new_boundary);
    let kind = boundary.as_ref().map(|boundary| format!("{MIXED}; boundary=\"{boundary}\""));
    let mut response = writer::respond(context.output(), async move |mut out| {
        let mut answer = Revisions { snapshot, leaves, options, boundary, is_first: true };
        answer.begin(&mut out);
        for matched in found {
            // Reads from memory never yield, so this task must.
            tokio::task::consume_budget().await;
            answer.write(matched, &mut out).await?;
            out.flush_full().await?;
        }
        answer.end(&mut out);
        Ok(out)
    })
    .await?;
    if let Some(kind) = kind {
        response::set_header(&mut response, header::CONTENT_TYPE, kind);
    }
    Ok(response)
}

/// A response being written.
struct Revisions {
    snapshot: Snapshot,
    leaves: Leaves,
    options: DocumentOptions,
    /// The boundary of a multipart response; None for JSON.
    boundary: Option<String>,
    is_first: bool,
}

impl Revisions {
    fn begin(&self, out: &mut ResponseWriter) {
        match &self.boundary {
            Some(boundary) => out.buffer.extend_from_slice(format!("--{boundary}").as_bytes()),
            None => out.buffer.push(b'['),
        }
    }

    async fn write(&mut self, matched: Matched, out: &mut ResponseWriter) -> Result<(), ApiError> {
        if let Some(boundary) = &self.boundary {
            self.write_part(matched, out).await?;
            out.buffer.extend_from_slice(format!("\r\n--{boundary}").as_bytes());
            return Ok(());
        }
        if !std::mem::take(&mut self.is_first) {
            out.buffer.push(b',');
        }
        let opened = match self.open(matched).await? {
            Ok(opened) => opened,
            Err(missing) => {
                write_missing(&missing, &mut out.buffer);
                return Ok(());
            }
        };
        out.buffer.extend_from_slice(b"{\"ok\":");
        write_opened(&self.snapshot, &opened, &self.options, out).await?;
        out.buffer.push(b'}');
        Ok(())
    }

    /// Reads a revision, or returns it if it is missing.
    async fn open(&self, matched: Matched) -> Result<Result<OpenedLeaf, Revision>, ApiError> {
        Ok(Ok(match matched {
            Matched::Leaf(index) => self.options.open_leaf(&self.leaves, index).await?,
            Matched::Replaced(replaced) => self.options.open_replaced(&self.leaves, &replaced).await?,
            Matched::Missing(revision) => return Ok(Err(revision)),
        }))
    }

    /// Writes one part: the document, followed by its attachments if it has any.
    async fn write_part(&self, matched: Matched, out: &mut ResponseWriter) -> Result<(), ApiError> {
        match self.open(matched).await? {
            Ok(opened) => {
                let boundary = multipart::new_boundary();
                let related = Related::new(opened.document, &opened.extras, opened.known, boundary);
                let head = format!("\r\nContent-Type: {}\r\n\r\n", related.content_type());
                out.buffer.extend_from_slice(head.as_bytes());
                related.write(&self.snapshot, self.leaves.id(), out).await
            }
            Err(missing) => {
                out.buffer.extend_from_slice(ERROR_HEAD);
                write_missing(&missing, &mut out.buffer);
                Ok(())
            }
        }
    }

    fn end(&self, out: &mut ResponseWriter) {
        out.buffer.extend_from_slice(if self.boundary.is_some() { b"--" } else { b"]\n" });
    }
}

/// Appends `{"missing":"…"}`.
fn write_missing(revision: &Revision, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"missing\":");
    revision.write_json(out);
    out.push(b'}');
}
