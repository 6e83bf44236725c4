//! `_bulk_get`: revisions of many documents in an answer, as JSON or in parts.
//!
//! Each document is read when the client has taken those before it. A row's error is its own: the
//! others are answered.

use std::sync::Arc;

use hyper::{Method, header};
use settee_doc::{Database, Leaves, Matched, Revision, View};

use crate::body::{self, ALLOCATION_BYTES, Charge};
use crate::document::{self, Opened, Shape};
use crate::error::Failure;
use crate::named::Named;
use crate::open_revs::{self, MIXED};
use crate::related::{self, Related};
use crate::reply::{self, Answer};
use crate::server::Call;
use crate::stream::{self, Out};
use crate::{json, multipart};

/// A document that is asked for: what of it, or why it can't be looked for. `id` and `rev` are JSON text,
/// as they are told back.
struct Wanted {
    id: String,
    rev: String,
    what: Result<Choice, Failure>,
}

/// Bytes of its texts' allocations beside what they hold.
const WANTED_BYTES: usize = 4 * ALLOCATION_BYTES;

/// A revision of a document, or all its leaves.
struct Choice {
    id: String,
    revision: Option<Named>,
    attachments_since: Vec<Revision>,
}

pub(crate) async fn handle(call: &mut Call<'_>, database: Arc<Database>) -> Answer {
    if *call.method() != Method::POST {
        return Err(Failure::method_not_allowed("POST"));
    }
    let held = call.read_json_body().await?;
    for name in ["open_revs", "new_edits", "w", "rev", "atts_since"] {
        if call.query().get(name).is_some() {
            return Err(Failure::bad_request(format!("\"{name}\" query parameter is not acceptable")));
        }
    }
    let of = database.clone();
    let parse = move |text: &[u8], charge: &mut Charge| {
        let no_list = || Failure::bad_request("Missing JSON list of 'docs'.");
        let [docs] = json::pick(text, ["docs"])?;
        let mut wanted = Vec::new();
        json::each_element(docs.ok_or_else(no_list)?, no_list, |doc| {
            let item = parse_wanted(doc, &of, charge)?;
            charge.push(item, WANTED_BYTES + doc.len(), &mut wanted)
        })?;
        Ok(wanted)
    };
    let (wanted, share) = body::parse_held(held, &call.server.room, parse).await?;
    let form = Form::of(call);
    let kind = form.content_type();
    let mut writer = Writer {
        view: database.view(),
        shape: Shape::from_query(call.query())?,
        latest: call.query().is_true("latest"),
        form,
        last: None,
    };
    let mut response = stream::respond(call.output(), async move |mut out| {
        let _for_the_list = share;
        writer.begin(&mut out);
        for (index, item) in wanted.iter().enumerate() {
            // What is in memory never waits: others get their turn.
            tokio::task::consume_budget().await;
            if index > 0 && matches!(writer.form, Form::Json) {
                out.buffer.push(b',');
            }
            writer.write(item, &mut out).await?;
            out.flush_full().await?;
        }
        writer.end(wanted.is_empty(), &mut out);
        Ok(out)
    })
    .await?;
    if let Some(kind) = kind {
        reply::set_header(&mut response, header::CONTENT_TYPE, kind);
    }
    Ok(response)
}

/// Reads what is asked of a document. What is wrong with it is told in its row.
///
/// # Errors
/// Those of the charge.
fn parse_wanted(raw: &str, database: &Database, charge: &mut Charge) -> Result<Wanted, Failure> {
    let null = || "null".to_owned();
    let refused = |id: String, rev: String, failure: Failure| Ok(Wanted { id, rev, what: Err(failure) });
    let is_empty = raw.trim_matches(['{', '}', ' ', '\t', '\r', '\n']).is_empty();
    let [raw_id, raw_rev, since] = match json::pick_unchecked(raw.as_bytes(), ["id", "rev", "atts_since"]) {
        Ok(members) if !is_empty => members,
        _ => {
            return refused(null(), null(), Failure::bad_request("document must be a JSON object"));
        }
    };
    let Some(raw_id) = raw_id else {
        return refused(null(), null(), Failure::bad_request("document id missed"));
    };
    let id = json::string(raw_id).unwrap_or_default().into_owned();
    let raw_id = raw_id.to_owned();
    if let Err(error) = database.check_id(&id) {
        return refused(raw_id, null(), error.into());
    }
    let revision = match raw_rev.map(Named::parse_json).transpose() {
        Ok(revision) => revision,
        Err(failure) => return refused(raw_id, raw_rev.unwrap_or_default().to_owned(), failure),
    };
    match parse_since(since.unwrap_or("[]"), charge)? {
        Ok(attachments_since) => {
            let rev = raw_rev.unwrap_or("\"undefined\"").to_owned();
            Ok(Wanted { id: raw_id, rev, what: Ok(Choice { id, revision, attachments_since }) })
        }
        Err((rev, failure)) => refused(raw_id, rev, failure),
    }
}

/// A list of revisions, or what is wrong in it.
///
/// # Errors
/// Those of the charge.
fn parse_since(raw: &str, charge: &mut Charge) -> Result<Result<Vec<Revision>, (String, Failure)>, Failure> {
    let no_list = || Failure::bad_request("att_since value must be array of revs.");
    if !raw.starts_with('[') {
        return Ok(Err((raw.to_owned(), no_list())));
    }
    let (mut since, mut refused) = (Vec::new(), None);
    json::each_element(raw, no_list, |item| {
        match Named::parse_json(item) {
            Err(failure) => refused = refused.take().or_else(|| Some((item.to_owned(), failure))),
            Ok(Named::Ours(revision)) => charge.push(revision, 0, &mut since)?,
            // What no document has, none descends from.
            Ok(Named::Foreign(_)) => {}
        }
        Ok(())
    })?;
    Ok(refused.map_or(Ok(since), Err))
}

/// How the answer is written.
enum Form {
    Json,
    Parts { kind: &'static str, boundary: String },
}

impl Form {
    /// Who takes JSON gets that.
    fn of(call: &Call<'_>) -> Form {
        let accept = call.header(header::ACCEPT);
        let kind = [MIXED, related::TYPE].into_iter().find(|kind| multipart::accepts(accept, kind));
        match kind.filter(|_| !multipart::accepts(accept, "application/json")) {
            Some(kind) => Form::Parts { kind, boundary: new_boundary() },
            None => Form::Json,
        }
    }

    fn content_type(&self) -> Option<String> {
        match self {
            Form::Json => None,
            Form::Parts { kind, boundary } => Some(format!("{kind}; boundary=\"{boundary}\"")),
        }
    }
}

/// CouchDB's boundaries begin so here.
fn new_boundary() -> String {
    format!("--{}", multipart::new_boundary())
}

/// The answer on its way out.
struct Writer {
    view: View,
    shape: Shape,
    latest: bool,
    form: Form,
    /// The document that was asked for last: who asks for its revisions one by one has them in a row.
    last: Option<Leaves>,
}

impl Writer {
    fn begin(&self, out: &mut Out) {
        if matches!(self.form, Form::Json) {
            out.buffer.extend_from_slice(b"{\"results\":[");
        }
    }

    /// `{"id":…,"docs":[…]}`, or the parts of a document.
    async fn write(&mut self, wanted: &Wanted, out: &mut Out) -> Result<(), Failure> {
        let is_json = matches!(self.form, Form::Json);
        if is_json {
            out.buffer.extend_from_slice(b"{\"id\":");
            out.buffer.extend_from_slice(wanted.id.as_bytes());
            out.buffer.extend_from_slice(b",\"docs\":[");
        }
        match &wanted.what {
            Err(failure) => self.write_error(&wanted.id, wanted.rev.as_bytes(), failure, out),
            Ok(choice) => self.write_choice(wanted, choice, out).await?,
        }
        if is_json {
            out.buffer.extend_from_slice(b"]}");
        }
        Ok(())
    }

    async fn write_choice(&mut self, wanted: &Wanted, choice: &Choice, out: &mut Out) -> Result<(), Failure> {
        let leaves = match self.last.take().filter(|last| last.id() == choice.id) {
            Some(last) => last,
            None => self.view.open_leaves(&choice.id).await?,
        };
        let mut shape = self.shape.clone();
        if !choice.attachments_since.is_empty() {
            shape.attachments = true;
            shape.attachments_since = Some(choice.attachments_since.clone());
        }
        let found = match choice.revision.clone() {
            None => open_revs::find(&leaves, None, self.latest).await?,
            Some(Named::Ours(revision)) => open_revs::find(&leaves, Some(&[revision]), self.latest).await?,
            Some(Named::Foreign(text)) => {
                self.write_missing(&wanted.id, &text, out);
                self.last = Some(leaves);
                return Ok(());
            }
        };
        if found.is_empty() {
            self.write_error(&wanted.id, wanted.rev.as_bytes(), &Failure::missing(), out);
        }
        for (index, matched) in found.into_iter().enumerate() {
            if index > 0 && matches!(self.form, Form::Json) {
                out.buffer.push(b',');
            }
            match matched {
                Matched::Leaf(leaf) => {
                    let opened = shape.open_leaf(&leaves, leaf).await?;
                    self.write_leaf(opened, &shape, out).await?;
                }
                Matched::Missing(revision) => self.write_missing(&wanted.id, &revision.to_string(), out),
            }
            out.flush_full().await?;
        }
        self.last = Some(leaves);
        Ok(())
    }

    async fn write_leaf(&self, opened: Opened, shape: &Shape, out: &mut Out) -> Result<(), Failure> {
        let Form::Parts { boundary, .. } = &self.form else {
            out.buffer.extend_from_slice(b"{\"ok\":");
            document::write_opened(&self.view, &opened, shape, out).await?;
            out.buffer.push(b'}');
            return Ok(());
        };
        let Opened { document, extras, known } = opened;
        let (id, revision, inner) = (document.id.clone(), document.revision, new_boundary());
        let related = Related::new(document, &extras, known, inner.clone());
        let mut head = format!("\r\n--{boundary}\r\n");
        if related.has_parts() {
            // Some ids are no header's value; the document has them all.
            if !id.chars().any(char::is_control) {
                head.push_str(&format!("X-Doc-Id: {id}\r\n"));
            }
            head.push_str(&format!(
                "X-Rev-Id: {revision}\r\nContent-Type: {}; boundary={inner}",
                related::TYPE
            ));
        } else {
            head.push_str("Content-Type: application/json");
        }
        head.push_str("\r\n\r\n");
        out.buffer.extend_from_slice(head.as_bytes());
        related.write(&self.view, &id, out).await
    }

    /// A revision that the document doesn't have.
    fn write_missing(&self, id: &str, revision: &str, out: &mut Out) {
        let mut rev = Vec::with_capacity(revision.len() + 2);
        settee_doc::write_json_string(revision, &mut rev);
        match &self.form {
            Form::Json => self.write_error(id, &rev, &Failure::missing(), out),
            Form::Parts { .. } => {
                self.begin_error(out);
                out.buffer.extend_from_slice(b"{\"rev\":");
                out.buffer.extend_from_slice(&rev);
                out.buffer.push(b',');
                Failure::missing().write_members(&mut out.buffer);
                out.buffer.push(b'}');
            }
        }
    }

    /// `{"error":{"id":…,"rev":…,"error":…,"reason":…}}`, of which a part has the inside; `id` and `rev`
    /// are JSON text.
    fn write_error(&self, id: &str, rev: &[u8], failure: &Failure, out: &mut Out) {
        self.begin_error(out);
        out.buffer.extend_from_slice(b"{\"id\":");
        out.buffer.extend_from_slice(id.as_bytes());
        out.buffer.extend_from_slice(b",\"rev\":");
        out.buffer.extend_from_slice(rev);
        out.buffer.push(b',');
        failure.write_members(&mut out.buffer);
        out.buffer.extend_from_slice(if matches!(self.form, Form::Json) { b"}}" } else { b"}" });
    }

    fn begin_error(&self, out: &mut Out) {
        match &self.form {
            Form::Json => out.buffer.extend_from_slice(b"{\"error\":"),
            Form::Parts { boundary, .. } => {
                let head =
                    format!("\r\n--{boundary}\r\nContent-Type: application/json; error=\"true\"\r\n\r\n");
                out.buffer.extend_from_slice(head.as_bytes());
            }
        }
    }

    /// An empty list has no part, and no delimiter either.
    fn end(&self, is_empty: bool, out: &mut Out) {
        match &self.form {
            Form::Json => out.buffer.extend_from_slice(b"]}\n"),
            Form::Parts { .. } if is_empty => {}
            Form::Parts { boundary, .. } => {
                out.buffer.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
            }
        }
    }
}
