//! `_bulk_get`: revisions of many documents in one response, as JSON or multipart.
//!
//! Documents are read ahead of what the client has read. An error affects only its own row.

use std::borrow::Cow;
use std::sync::Arc;

use hyper::{Method, header};
use settee_doc::{
    Database, DocumentKey, DocumentRow, Leaves, Matched, ReplacedRevisions, Revision, Snapshot, Summary,
    Winner,
};

use super::inline::write_opened;
use super::open_revs::{self, MIXED};
use super::options::{DocumentOptions, OpenedLeaf};
use super::related::{self, Related};
use super::revision_arg;
use crate::body::{self, ALLOCATION_BYTES, BodyBudget, multipart};
use crate::context::RequestContext;
use crate::error::ApiError;
use crate::json;
use crate::response::writer::{self, ResponseWriter};
use crate::response::{self, HandlerResult};

/// A requested document, or the error to report for it. `id` and `rev` are the JSON text to echo in its row.
struct RequestedDoc {
    id: String,
    rev: String,
    choice: Result<RevisionChoice, ApiError>,
}

/// Bytes of the allocations of a `RequestedDoc` besides their content.
const REQUESTED_BYTES: usize = size_of::<RequestedDoc>() + 5 * ALLOCATION_BYTES;

/// A revision of a document, or all its leaves.
struct RevisionChoice {
    id: String,
    revision: Option<Revision>,
    /// Whether descendants of the revision are wanted too.
    latest: bool,
    attachments_since: Vec<Revision>,
}

impl DocumentKey for RequestedDoc {
    fn document_id(&self) -> Option<Cow<'_, str>> {
        self.choice.as_ref().ok().map(|choice| choice.id.as_str().into())
    }

    fn needs_body(&self, winner: &Summary) -> bool {
        let Ok(choice) = &self.choice else { return false };
        match &choice.revision {
            None => true,
            Some(revision) => choice.latest || *revision == winner.revision,
        }
    }
}

pub(crate) async fn handle(context: &mut RequestContext<'_>, database: Arc<Database>) -> HandlerResult {
    if *context.method() != Method::POST {
        return Err(ApiError::method_not_allowed("POST"));
    }
    let body = context.read_json_body().await?;
    for name in ["open_revs", "new_edits", "w", "rev", "atts_since"] {
        if context.query().get(name).is_some() {
            return Err(ApiError::bad_request(format!("\"{name}\" query parameter is not acceptable")));
        }
    }
    let (of, latest) = (database.clone(), context.query().is_true("latest"));
    let parse = move |text: &[u8], budget: &mut BodyBudget| {
        let no_list = || ApiError::bad_request("Missing JSON list of 'docs'.");
        let [docs] = json::pick(text, ["docs"])?;
        let mut requested = Vec::new();
        json::each_element(docs.ok_or_else(no_list)?, no_list, |doc| {
            // On the heap: it is moved several times before its document is written.
            let item = Box::new(parse_requested(doc, &of, latest, budget)?);
            budget.push(item, REQUESTED_BYTES + doc.len(), &mut requested)
        })?;
        Ok(requested)
    };
    let (requested, permit) = body::parse_buffered(body, &context.server.body_memory, parse).await?;
    let format = ResponseFormat::of(context);
    let kind = format.content_type();
    let snapshot = database.snapshot();
    let mut writer = BulkGetWriter {
        replaced: snapshot.replaced_revisions(),
        snapshot,
        options: DocumentOptions::from_query(context.query())?,
        latest,
        format,
        last: None,
    };
    let mut response = writer::respond(context.output(), async move |mut out| {
        let _permit = permit;
        writer.begin(&mut out);
        let mut documents = writer.snapshot.documents(requested, true);
        let mut is_first = true;
        while let Some(DocumentRow { key: item, winner }) = documents.next().await? {
            // Reads from memory never yield, so this task must.
            tokio::task::consume_budget().await;
            if !is_first && matches!(writer.format, ResponseFormat::Json) {
                out.buffer.push(b',');
            }
            is_first = false;
            writer.write(&item, winner, &mut out).await?;
            out.flush_full().await?;
        }
        writer.end(is_first, &mut out);
        Ok(out)
    })
    .await?;
    if let Some(kind) = kind {
        response::set_header(&mut response, header::CONTENT_TYPE, kind);
    }
    Ok(response)
}

/// Parses one requested document. Errors in it are reported in its row.
///
/// # Errors
/// Those of the budget.
fn parse_requested(
    raw: &str,
    database: &Database,
    latest: bool,
    budget: &mut BodyBudget,
) -> Result<RequestedDoc, ApiError> {
    let null = || "null".to_owned();
    let refused =
        |id: String, rev: String, failure: ApiError| Ok(RequestedDoc { id, rev, choice: Err(failure) });
    let is_empty = raw.trim_matches(['{', '}', ' ', '\t', '\r', '\n']).is_empty();
    let [raw_id, raw_rev, since] = match json::pick_unchecked(raw.as_bytes(), ["id", "rev", "atts_since"]) {
        Ok(members) if !is_empty => members,
        _ => {
            return refused(null(), null(), ApiError::bad_request("document must be a JSON object"));
        }
    };
    let Some(raw_id) = raw_id else {
        return refused(null(), null(), ApiError::bad_request("document id missed"));
    };
    let id = json::string(raw_id).unwrap_or_default().into_owned();
    let raw_id = raw_id.to_owned();
    if let Err(error) = database.check_id(&id) {
        return refused(raw_id, null(), error.into());
    }
    let revision = match raw_rev.map(revision_arg::parse_json).transpose() {
        Ok(revision) => revision,
        Err(failure) => return refused(raw_id, raw_rev.unwrap_or_default().to_owned(), failure),
    };
    match parse_since(since.unwrap_or("[]"), budget)? {
        Ok(attachments_since) => {
            let rev = raw_rev.unwrap_or("\"undefined\"").to_owned();
            Ok(RequestedDoc {
                id: raw_id,
                rev,
                choice: Ok(RevisionChoice { id, revision, latest, attachments_since }),
            })
        }
        Err((rev, failure)) => refused(raw_id, rev, failure),
    }
}

/// Parses a list of revisions, or returns the first invalid one with its error.
///
/// # Errors
/// Those of the budget.
fn parse_since(
    raw: &str,
    budget: &mut BodyBudget,
) -> Result<Result<Vec<Revision>, (String, ApiError)>, ApiError> {
    let no_list = || ApiError::bad_request("att_since value must be array of revs.");
    if !raw.starts_with('[') {
        return Ok(Err((raw.to_owned(), no_list())));
    }
    let (mut since, mut refused) = (Vec::new(), None);
    json::each_element(raw, no_list, |item| {
        match revision_arg::parse_json(item) {
            Err(failure) => refused = refused.take().or_else(|| Some((item.to_owned(), failure))),
            Ok(revision) => {
                let more_bytes = revision_arg::more_bytes(&revision);
                budget.push(revision, more_bytes, &mut since)?;
            }
        }
        Ok(())
    })?;
    Ok(refused.map_or(Ok(since), Err))
}

/// The format of the response.
enum ResponseFormat {
    Json,
    Parts { kind: &'static str, boundary: String },
}

impl ResponseFormat {
    /// JSON if the client accepts it.
    fn of(context: &RequestContext<'_>) -> ResponseFormat {
        let accept = context.header(header::ACCEPT);
        let kind = [MIXED, related::TYPE].into_iter().find(|kind| multipart::accepts(accept, kind));
        match kind.filter(|_| !multipart::accepts(accept, "application/json")) {
            Some(kind) => ResponseFormat::Parts { kind, boundary: new_boundary() },
            None => ResponseFormat::Json,
        }
    }

    fn content_type(&self) -> Option<String> {
        match self {
            ResponseFormat::Json => None,
            ResponseFormat::Parts { kind, boundary } => Some(format!("{kind}; boundary=\"{boundary}\"")),
        }
    }
}

/// A boundary that begins like CouchDB's.
fn new_boundary() -> String {
    format!("--{}", multipart::new_boundary())
}

/// A response being written.
struct BulkGetWriter {
    snapshot: Snapshot,
    /// All documents share its limits.
    replaced: ReplacedRevisions,
    options: DocumentOptions,
    latest: bool,
    format: ResponseFormat,
    /// The leaves of the last document. Clients that ask for several revisions of a document list them in
    /// succession.
    last: Option<Leaves>,
}

impl BulkGetWriter {
    fn begin(&self, out: &mut ResponseWriter) {
        if matches!(self.format, ResponseFormat::Json) {
            out.buffer.extend_from_slice(b"{\"results\":[");
        }
    }

    /// Writes `{"id":…,"docs":[…]}`, or the parts of a document.
    async fn write(
        &mut self,
        requested: &RequestedDoc,
        winner: Option<Winner>,
        out: &mut ResponseWriter,
    ) -> Result<(), ApiError> {
        let is_json = matches!(self.format, ResponseFormat::Json);
        if is_json {
            out.buffer.extend_from_slice(b"{\"id\":");
            out.buffer.extend_from_slice(requested.id.as_bytes());
            out.buffer.extend_from_slice(b",\"docs\":[");
        }
        match &requested.choice {
            Err(failure) => self.write_error(&requested.id, requested.rev.as_bytes(), failure, out),
            Ok(choice) => self.write_choice(requested, choice, winner, out).await?,
        }
        if is_json {
            out.buffer.extend_from_slice(b"]}");
        }
        Ok(())
    }

    async fn write_choice(
        &mut self,
        requested: &RequestedDoc,
        choice: &RevisionChoice,
        winner: Option<Winner>,
        out: &mut ResponseWriter,
    ) -> Result<(), ApiError> {
        let leaves = match self.last.take().filter(|last| last.id() == choice.id) {
            Some(last) => last,
            None => self.snapshot.leaves_of(&choice.id, winner).await?,
        };
        let mut options = self.options.clone();
        if !choice.attachments_since.is_empty() {
            options.attachments = true;
            options.attachments_since = Some(choice.attachments_since.clone());
        }
        let wanted = choice.revision.as_ref().map(std::slice::from_ref);
        let found = open_revs::find(&leaves, wanted, self.latest, &mut self.replaced).await?;
        if found.is_empty() {
            self.write_error(&requested.id, requested.rev.as_bytes(), &ApiError::missing(), out);
        }
        for (index, matched) in found.into_iter().enumerate() {
            if index > 0 && matches!(self.format, ResponseFormat::Json) {
                out.buffer.push(b',');
            }
            match matched {
                Matched::Leaf(leaf) => {
                    let opened = options.open_leaf(&leaves, leaf).await?;
                    self.write_leaf(opened, &options, out).await?;
                }
                Matched::Replaced(replaced) => {
                    let opened = options.open_replaced(&leaves, &replaced).await?;
                    self.write_leaf(opened, &options, out).await?;
                }
                Matched::Missing(revision) => self.write_missing(&requested.id, &revision, out),
            }
            out.flush_full().await?;
        }
        self.last = Some(leaves);
        Ok(())
    }

    async fn write_leaf(
        &self,
        opened: OpenedLeaf,
        options: &DocumentOptions,
        out: &mut ResponseWriter,
    ) -> Result<(), ApiError> {
        let ResponseFormat::Parts { boundary, .. } = &self.format else {
            out.buffer.extend_from_slice(b"{\"ok\":");
            write_opened(&self.snapshot, &opened, options, out).await?;
            out.buffer.push(b'}');
            return Ok(());
        };
        let OpenedLeaf { document, extras, known } = opened;
        let (id, revision, inner) = (document.id.clone(), document.revision.to_string(), new_boundary());
        let related = Related::new(document, &extras, known, inner.clone());
        let mut head = format!("\r\n--{boundary}\r\n");
        if related.has_parts() {
            // Texts with control characters can't be sent in a header; the document has them anyway.
            for (name, text) in [("X-Doc-Id", &id), ("X-Rev-Id", &revision)] {
                if !text.chars().any(char::is_control) {
                    head.push_str(&format!("{name}: {text}\r\n"));
                }
            }
            head.push_str(&format!("Content-Type: {}; boundary={inner}", related::TYPE));
        } else {
            head.push_str("Content-Type: application/json");
        }
        head.push_str("\r\n\r\n");
        out.buffer.extend_from_slice(head.as_bytes());
        related.write(&self.snapshot, &id, out).await
    }

    /// Reports a revision that the document doesn't have, or whose body is gone.
    fn write_missing(&self, id: &str, revision: &Revision, out: &mut ResponseWriter) {
        let mut rev = Vec::new();
        revision.write_json(&mut rev);
        match &self.format {
            ResponseFormat::Json => self.write_error(id, &rev, &ApiError::missing(), out),
            ResponseFormat::Parts { .. } => {
                self.begin_error(out);
                out.buffer.extend_from_slice(b"{\"rev\":");
                out.buffer.extend_from_slice(&rev);
                out.buffer.push(b',');
                ApiError::missing().write_members(&mut out.buffer);
                out.buffer.push(b'}');
            }
        }
    }

    /// Writes `{"error":{"id":…,"rev":…,"error":…,"reason":…}}`, or only the inner object as a part. `id` and
    /// `rev` are JSON text.
    fn write_error(&self, id: &str, rev: &[u8], failure: &ApiError, out: &mut ResponseWriter) {
        self.begin_error(out);
        out.buffer.extend_from_slice(b"{\"id\":");
        out.buffer.extend_from_slice(id.as_bytes());
        out.buffer.extend_from_slice(b",\"rev\":");
        out.buffer.extend_from_slice(rev);
        out.buffer.push(b',');
        failure.write_members(&mut out.buffer);
        out.buffer.extend_from_slice(if matches!(self.format, ResponseFormat::Json) { b"}}" } else { b"}" });
    }

    fn begin_error(&self, out: &mut ResponseWriter) {
        match &self.format {
            ResponseFormat::Json => out.buffer.extend_from_slice(b"{\"error\":"),
            ResponseFormat::Parts { boundary, .. } => {
                let head =
                    format!("\r\n--{boundary}\r\nContent-Type: application/json; error=\"true\"\r\n\r\n");
                out.buffer.extend_from_slice(head.as_bytes());
            }
        }
    }

    /// Ends the response. A multipart response to an empty list has no delimiter.
    fn end(&self, is_empty: bool, out: &mut ResponseWriter) {
        match &self.format {
            ResponseFormat::Json => out.buffer.extend_from_slice(b"]}\n"),
            ResponseFormat::Parts { .. } if is_empty => {}
            ResponseFormat::Parts { boundary, .. } => {
                out.buffer.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
            }
        }
    }
}
