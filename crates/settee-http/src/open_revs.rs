//! Several revisions of a document at once: `open_revs`.
//!
//! The leaves are read once, their bodies one after another as the client takes them.

use hyper::header;
use settee_doc::{Leaves, Matched, Revision, View};

use crate::document::{self, Shape};
use crate::error::Failure;
use crate::multipart;
use crate::named::List;
use crate::related::Related;
use crate::reply::{self, Answer};
use crate::server::Call;
use crate::stream::{self, Out};

/// The media type of several revisions.
pub(crate) const MIXED: &str = "multipart/mixed";

/// The head of a part that says that there is none.
const ERROR_HEAD: &[u8] = b"\r\nContent-Type: application/json; error=\"true\"\r\n\r\n";

/// What `open_revs` asks for: a list, or all leaves.
pub(crate) fn parse(list: &str) -> Result<Option<List>, Failure> {
    match list {
        "all" => Ok(None),
        list => List::parse_value(list).map(Some),
    }
}

/// What the wanted revisions, or all leaves, stand for.
pub(crate) async fn find(
    leaves: &Leaves,
    wanted: Option<&[Revision]>,
    latest: bool,
) -> Result<Vec<Matched>, Failure> {
    match wanted {
        Some(wanted) => Ok(leaves.find(wanted, latest).await?),
        None => Ok((0..leaves.count()).map(Matched::Leaf).collect()),
    }
}

/// Answers with them: in a list, or in parts.
pub(crate) async fn get(call: &Call<'_>, view: View, id: &str, wanted: Option<List>) -> Answer {
    let shape = Shape::from_query(call.query())?;
    let leaves = view.open_leaves(id).await?;
    let ours = wanted.as_ref().map(|wanted| &*wanted.ours);
    let found = find(&leaves, ours, call.query().is_true("latest")).await?;
    let foreign = wanted.map(|wanted| wanted.foreign).unwrap_or_default();
    if found.is_empty() && foreign.is_empty() {
        return Err(Failure::missing());
    }
    let boundary = multipart::accepts(call.header(header::ACCEPT), MIXED).then(multipart::new_boundary);
    let kind = boundary.as_ref().map(|boundary| format!("{MIXED}; boundary=\"{boundary}\""));
    let mut response = stream::respond(call.output(), async move |mut out| {
        let mut answer = Revisions { view, leaves, shape, boundary, is_first: true };
        answer.begin(&mut out);
        for matched in found {
            // What is in memory never waits: others get their turn.
            tokio::task::consume_budget().await;
            answer.write(matched, &mut out).await?;
            out.flush_full().await?;
        }
        for text in foreign {
            answer.write_foreign(&text, &mut out.buffer);
            out.flush_full().await?;
        }
        answer.end(&mut out);
        Ok(out)
    })
    .await?;
    if let Some(kind) = kind {
        reply::set_header(&mut response, header::CONTENT_TYPE, kind);
    }
    Ok(response)
}

/// An answer on its way out.
struct Revisions {
    view: View,
    leaves: Leaves,
    shape: Shape,
    /// Of an answer in parts.
    boundary: Option<String>,
    is_first: bool,
}

impl Revisions {
    fn begin(&self, out: &mut Out) {
        match &self.boundary {
            Some(boundary) => out.buffer.extend_from_slice(format!("--{boundary}").as_bytes()),
            None => out.buffer.push(b'['),
        }
    }

    async fn write(&mut self, matched: Matched, out: &mut Out) -> Result<(), Failure> {
        if let Some(boundary) = &self.boundary {
            self.write_part(matched, out).await?;
            out.buffer.extend_from_slice(format!("\r\n--{boundary}").as_bytes());
            return Ok(());
        }
        if !std::mem::take(&mut self.is_first) {
            out.buffer.push(b',');
        }
        let index = match matched {
            Matched::Leaf(index) => index,
            Matched::Missing(revision) => {
                write_missing(&revision.to_string(), &mut out.buffer);
                return Ok(());
            }
        };
        let opened = self.shape.open_leaf(&self.leaves, index).await?;
        out.buffer.extend_from_slice(b"{\"ok\":");
        document::write_opened(&self.view, &opened, &self.shape, out).await?;
        out.buffer.push(b'}');
        Ok(())
    }

    /// A part: the document, with its attachments behind it where it has any.
    async fn write_part(&self, matched: Matched, out: &mut Out) -> Result<(), Failure> {
        match matched {
            Matched::Leaf(index) => {
                let opened = self.shape.open_leaf(&self.leaves, index).await?;
                let boundary = multipart::new_boundary();
                let related = Related::new(opened.document, &opened.extras, opened.known, boundary);
                let head = format!("\r\nContent-Type: {}\r\n\r\n", related.content_type());
                out.buffer.extend_from_slice(head.as_bytes());
                related.write(&self.view, self.leaves.id(), out).await
            }
            Matched::Missing(revision) => {
                out.buffer.extend_from_slice(ERROR_HEAD);
                write_missing(&revision.to_string(), &mut out.buffer);
                Ok(())
            }
        }
    }

    /// A revision that no document has.
    fn write_foreign(&mut self, text: &str, out: &mut Vec<u8>) {
        if let Some(boundary) = &self.boundary {
            out.extend_from_slice(ERROR_HEAD);
            write_missing(text, out);
            out.extend_from_slice(format!("\r\n--{boundary}").as_bytes());
            return;
        }
        if !std::mem::take(&mut self.is_first) {
            out.push(b',');
        }
        write_missing(text, out);
    }

    fn end(&self, out: &mut Out) {
        out.buffer.extend_from_slice(if self.boundary.is_some() { b"--" } else { b"]\n" });
    }
}

/// `{"missing":"…"}`
fn write_missing(revision: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"missing\":");
    settee_doc::write_json_string(revision, out);
    out.push(b'}');
}
