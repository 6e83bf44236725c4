//! `_bulk_docs`: many documents in one request.
//!
//! A body in memory is parsed as a whole, a spooled one group by group (`spooled.rs`). If the parsed documents of
//! a body in memory would exceed its budget, it is spooled then. [`BulkWriter`] stores both.

use std::sync::Arc;

use futures_util::future::join_all;
use hyper::{Method, StatusCode};
use settee_doc::{Database, Edit, Revision, Spool};

use super::revision_arg;
use super::spooled::{Group, Pass};
use crate::body::{self, ALLOCATION_BYTES, BodyBudget, BodyMemory, BufferedBody, MemoryPermit, ReceivedBody};
use crate::context::{RequestContext, WriteConcern};
use crate::error::ApiError;
use crate::json;
use crate::response::writer::{self, ResponseWriter};
use crate::response::{self, HandlerResult};
use crate::uuids::Uuids;

/// Bytes that a document takes besides its text: its edit, its result and its row.
const EDIT_BYTES: usize = size_of::<Edit>()
    + size_of::<(String, Option<Revision>)>()
    + size_of::<settee_doc::Result<Revision>>()
    + ROW_BYTES
    + 4 * ALLOCATION_BYTES;

/// Estimated bytes of a row of the response.
const ROW_BYTES: usize = 96;

/// Largest number of documents that are stored, and whose rows are made, before other tasks get a turn. They
/// share a sync, which takes a hundredth of their time or less if it takes a millisecond.
const EDITS_PER_TURN_MAX: usize = 8192;

/// A parsed `_bulk_docs` request.
pub(crate) struct Bulk {
    pub(crate) edits: Vec<Edit>,
    /// Whether the edits create new revisions; false for replicated ones.
    pub(crate) new_edits: bool,
    /// Whether all documents are to be stored or none, which CouchDB refuses.
    all_or_nothing: bool,
    /// `w`, if it is a number. It overrides the query's.
    copies: Option<u64>,
}

/// Handles `_bulk_docs`. An invalid document fails the request before anything is stored; after that each
/// document succeeds or fails by itself, and its row reports the result.
pub(crate) async fn docs(context: &mut RequestContext<'_>, database: Arc<Database>) -> HandlerResult {
    if *context.method() != Method::POST {
        return Err(ApiError::method_not_allowed("POST"));
    }
    let content = context.read_or_spool_json_body().await?;
    let concern = context.write_concern()?;
    let is_optimistic = context.is_optimistic()?;
    let uuids = context.server.uuids.clone();
    let writer = BulkWriter { database, uuids, concern, is_optimistic, new_edits: true };
    match content {
        ReceivedBody::Buffered(body) => buffered_docs(context, body, writer).await,
        ReceivedBody::Spooled(spool) => spooled_docs(context, spool, writer).await,
    }
}

async fn buffered_docs(
    context: &RequestContext<'_>,
    body: BufferedBody,
    writer: BulkWriter,
) -> HandlerResult {
    let options = context.server.document_options;
    let parse = move |text: &[u8], budget: &mut BodyBudget| match parse_bulk(text, &options, budget) {
        Err(failure) if failure.is_body_too_large() => Ok(None),
        parsed => parsed.map(Some),
    };
    let text = body.text.clone();
    let (bulk, permit) = body::parse_buffered(body, &context.server.body_memory, parse).await?;
    let Some(bulk) = bulk else {
        let spool = context.spool(&text).await?;
        drop((text, permit));
        return spooled_docs(context, spool, writer).await;
    };
    drop(text);
    let writer = writer.with_options_of(&bulk);
    let mut edits = bulk.edits;
    writer.assign_ids(&mut edits);
    if bulk.all_or_nothing && bulk.new_edits && !edits.is_empty() {
        return Ok(response::json(StatusCode::EXPECTATION_FAILED, refused(&edits)));
    }
    writer.check_partitions(&edits)?;
    context.check_response(edits.iter().map(|edit| edit.id.len() + ROW_BYTES).sum())?;
    let (mut rows, mut is_begun) = (Vec::with_capacity(edits.len() * ROW_BYTES + 4), false);
    writer.write(edits, &mut rows, &mut is_begun).await?;
    end_rows(is_begun, &mut rows);
    Ok(response::json(writer.concern.status(StatusCode::CREATED), rows))
}

/// Reads the file twice, so that nothing is stored before the whole body was parsed. Each group is committed
/// by itself, and its rows are sent after its commit.
async fn spooled_docs(context: &RequestContext<'_>, spool: Spool, writer: BulkWriter) -> HandlerResult {
    let (body_memory, options) = (context.server.body_memory.clone(), context.server.document_options);
    let (bulk, has_documents, mut permit) = check_spooled(&spool, &body_memory, options, &writer).await?;
    if bulk.all_or_nothing && bulk.new_edits && has_documents {
        let failure = ApiError::not_implemented(ALL_OR_NOTHING);
        return Err(ApiError { status: StatusCode::EXPECTATION_FAILED, ..failure });
    }
    let writer = writer.with_options_of(&bulk);
    let status = writer.concern.status(StatusCode::CREATED);
    let produce = move |mut out: ResponseWriter| async move {
        let (mut pass, mut is_begun) = (Pass::new(&spool, &body_memory), false);
        while let Some(group) = pass.next_group(&mut permit).await? {
            let ((edits, _), group_permit) = parse_group(group, &body_memory, options).await?;
            writer.write(edits, &mut out.buffer, &mut is_begun).await?;
            // The client may read slowly while other requests wait for the reserve.
            permit = group_permit.release_if_reserve_owner();
            out.flush_full().await?;
        }
        end_rows(is_begun, &mut out.buffer);
        Ok(out)
    };
    let mut response = writer::respond(context.output(), produce).await?;
    *response.status_mut() = status;
    Ok(response)
}

/// Parses a spooled body without keeping its documents. Returns the request without its documents, whether it
/// has any, and a permit large enough for each of its groups.
async fn check_spooled(
    spool: &Spool,
    body_memory: &Arc<BodyMemory>,
    options: settee_doc::Options,
    writer: &BulkWriter,
) -> Result<(Bulk, bool, MemoryPermit), ApiError> {
    let mut pass = Pass::new(spool, body_memory);
    let (mut permit, mut refusal, mut has_documents) = (MemoryPermit::default(), None, false);
    while let Some(group) = pass.next_group(&mut permit).await? {
        let ((mut edits, group_refusal), group_permit) = parse_group(group, body_memory, options).await?;
        has_documents |= !edits.is_empty();
        writer.assign_ids(&mut edits);
        writer.check_partitions(&edits)?;
        refusal = refusal.or(group_refusal);
        permit = group_permit;
    }
    let bulk = parse_bulk(&pass.around, &options, &mut BodyBudget::unlimited())?;
    match refusal {
        Some(failure) if !bulk.new_edits => Err(failure),
        _ => Ok((bulk, has_documents, permit)),
    }
}

/// Parses a group's edits, and returns the error to report if they are to be replicated.
async fn parse_group(
    group: Group,
    body_memory: &Arc<BodyMemory>,
    options: settee_doc::Options,
) -> Result<((Vec<Edit>, Option<ApiError>), MemoryPermit), ApiError> {
    let Group { array, may_be_empty } = group;
    let parse = move |text: &[u8], budget: &mut BodyBudget| {
        let array = std::str::from_utf8(text).map_err(|_| ApiError::bad_json())?;
        let mut refusal = None;
        let edits = parse_edits(array, ApiError::bad_json, &options, budget, |edit| {
            if refusal.is_none() {
                refusal = check_replicated(edit).err();
            }
            Ok(())
        })?;
        if edits.is_empty() && !may_be_empty {
            return Err(ApiError::bad_json());
        }
        Ok((edits, refusal))
    };
    body::parse_buffered(array, body_memory, parse).await
}

/// Stores the documents of a request.
struct BulkWriter {
    database: Arc<Database>,
    uuids: Arc<Uuids>,
    concern: WriteConcern,
    is_optimistic: bool,
    new_edits: bool,
}

impl BulkWriter {
    /// This writer with the options of the request.
    fn with_options_of(mut self, bulk: &Bulk) -> BulkWriter {
        self.concern.copies = bulk.copies.unwrap_or(self.concern.copies);
        BulkWriter { new_edits: bulk.new_edits, ..self }
    }

    /// Generates ids for documents without one.
    fn assign_ids(&self, edits: &mut [Edit]) {
        for edit in edits.iter_mut().filter(|edit| edit.id.is_empty()) {
            edit.id = self.uuids.next();
        }
    }

    /// See [`Database::check_partitions`].
    fn check_partitions(&self, edits: &[Edit]) -> Result<(), ApiError> {
        let edits = edits.iter().filter(|edit| !is_local(edit));
        Ok(self.database.check_partitions(edits.map(|edit| &edit.id[..]))?)
    }

    /// Stores documents and appends their rows. `is_begun` is whether rows were appended before.
    async fn write(
        &self,
        mut edits: Vec<Edit>,
        rows: &mut Vec<u8>,
        is_begun: &mut bool,
    ) -> Result<(), ApiError> {
        self.assign_ids(&mut edits);
        let mut edits = edits.into_iter();
        while edits.len() > 0 {
            self.write_turn(edits.by_ref().take(EDITS_PER_TURN_MAX).collect(), rows, is_begun).await?;
            if edits.len() > 0 {
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    }

    /// Stores at most [`EDITS_PER_TURN_MAX`] documents and appends their rows.
    async fn write_turn(
        &self,
        edits: Vec<Edit>,
        rows: &mut Vec<u8>,
        is_begun: &mut bool,
    ) -> Result<(), ApiError> {
        let BulkWriter { database, concern, new_edits, .. } = self;
        let (stage, new_edits) = (concern.stage, *new_edits);
        let ids: Vec<(String, Option<Revision>)> =
            edits.iter().map(|edit| (edit.id.clone(), edit.revision.clone())).collect();
        let (locals, mut edits): (Vec<Edit>, Vec<Edit>) = edits.into_iter().partition(is_local);
        if self.is_optimistic {
            database.write_large_bodies(&mut edits, !new_edits).await?;
        }
        let results = match new_edits {
            true => database.update_all(edits, stage).await?,
            false => database.replicate_all(edits, stage).await?,
        };
        // Local documents are written concurrently, so that they share a sync.
        let local_results = join_all(locals.into_iter().map(|edit| database.put_local(edit, stage))).await;
        let (mut results, mut local_results) = (results.into_iter(), local_results.into_iter());
        let mut text = Vec::new();
        for (id, revision) in &ids {
            text.clear();
            let outcome = if id.starts_with(LOCAL) {
                let outcome = local_results.next().expect("an outcome for each local document");
                outcome.map(|saved| text.extend_from_slice(saved.as_bytes())).map_err(ApiError::from)
            } else {
                let outcome = results.next().expect("an outcome for each edit");
                outcome.map(|saved| saved.write(&mut text)).map_err(ApiError::from)
            };
            // A replicated document has a row only if it failed.
            if outcome.is_err() || new_edits {
                rows.push(if std::mem::replace(is_begun, true) { b',' } else { b'[' });
            }
            match outcome {
                Ok(()) if new_edits => write_saved(id, &text, concern.copies > 1, rows),
                Ok(()) => {}
                Err(failure) => {
                    let revision = revision.as_ref().filter(|_| !new_edits).map(Revision::to_string);
                    write_failed(id, revision.as_deref(), &failure, rows);
                }
            }
        }
        Ok(())
    }
}

/// Ends the response, which may have no rows.
fn end_rows(is_begun: bool, rows: &mut Vec<u8>) {
    rows.extend_from_slice(if is_begun { b"]\n" } else { b"[]\n" });
}

/// Prefix of the ids of local documents.
const LOCAL: &str = "_local/";

fn is_local(edit: &Edit) -> bool {
    edit.id.starts_with(LOCAL)
}

/// Appends `{"ok":true,"id":…,"rev":…}`, with `"accepted":true` if there are fewer copies than asked for.
/// `revision` is the text of a new one, which needs no escapes.
fn write_saved(id: &str, revision: &[u8], is_short: bool, rows: &mut Vec<u8>) {
    rows.extend_from_slice(b"{\"ok\":true,\"id\":");
    settee_doc::write_json_string(id, rows);
    rows.extend_from_slice(b",\"rev\":\"");
    rows.extend_from_slice(revision);
    rows.extend_from_slice(if is_short { b"\",\"accepted\":true}" } else { b"\"}" });
}

/// The reason for refusing `all_or_nothing`.
const ALL_OR_NOTHING: &str = "all_or_nothing is not supported";

/// The rows of a request of which nothing was stored.
fn refused(edits: &[Edit]) -> Vec<u8> {
    let failure = ApiError::not_implemented(ALL_OR_NOTHING);
    let mut rows = Vec::new();
    for edit in edits {
        rows.push(if rows.is_empty() { b'[' } else { b',' });
        let revision = edit.revision.as_ref().map_or_else(|| "0-".to_owned(), Revision::to_string);
        write_failed(&edit.id, Some(&revision), &failure, &mut rows);
    }
    rows.extend_from_slice(b"]\n");
    rows
}

/// Parses a request.
pub(crate) fn parse_bulk(
    text: &[u8],
    options: &settee_doc::Options,
    budget: &mut BodyBudget,
) -> Result<Bulk, ApiError> {
    let no_list = || ApiError::bad_request("`docs` parameter must be an array.");
    let names = ["docs", "new_edits", "all_or_nothing", "w"];
    let [docs, new_edits, all_or_nothing, copies] = json::pick_unchecked(text, names)?;
    let docs = docs.ok_or_else(|| ApiError::bad_request("POST body must include `docs` parameter."))?;
    if !docs.starts_with('[') {
        return Err(no_list());
    }
    check_around(text, docs)?;
    let new_edits = match new_edits {
        None | Some("true") => true,
        Some("false") => false,
        Some(_) => return Err(ApiError::bad_request("`new_edits` parameter must be a boolean.")),
    };
    let check = |edit: &Edit| if new_edits { Ok(()) } else { check_replicated(edit) };
    let edits = parse_edits(docs, no_list, options, budget, check)?;
    let all_or_nothing = all_or_nothing == Some("true");
    let copies = copies.and_then(|raw| raw.parse().ok());
    Ok(Bulk { edits, new_edits, all_or_nothing, copies })
}

/// Parses the documents of a list into edits.
fn parse_edits(
    docs: &str,
    no_list: impl FnOnce() -> ApiError,
    options: &settee_doc::Options,
    budget: &mut BodyBudget,
    mut check: impl FnMut(&Edit) -> Result<(), ApiError>,
) -> Result<Vec<Edit>, ApiError> {
    let mut edits = Vec::new();
    json::each_element(docs, no_list, |doc| {
        let edit = body::parse_edit(doc.as_bytes(), options, budget)?;
        check(&edit)?;
        let bytes = EDIT_BYTES + edit.body().len();
        budget.push(edit, bytes, &mut edits)
    })?;
    Ok(edits)
}

fn check_replicated(edit: &Edit) -> Result<(), ApiError> {
    if is_local(edit) { Ok(()) } else { revision_arg::check_replicated(edit) }
}

/// Validates the text around the documents; the documents are validated one by one.
fn check_around(text: &[u8], docs: &str) -> Result<(), ApiError> {
    let start = docs.as_ptr().addr() - text.as_ptr().addr();
    settee_doc::check_tokens(&text[..start])?;
    settee_doc::check_tokens(&text[start + docs.len()..])?;
    Ok(())
}

/// Appends `{"id":…,"rev":…,"error":…,"reason":…}`.
fn write_failed(id: &str, revision: Option<&str>, failure: &ApiError, rows: &mut Vec<u8>) {
    json::object(rows, |rows| {
        rows.extend_from_slice(b"\"id\":");
        settee_doc::write_json_string(id, rows);
        if let Some(revision) = revision {
            rows.extend_from_slice(b",\"rev\":");
            settee_doc::write_json_string(revision, rows);
        }
        rows.push(b',');
        failure.write_members(rows);
    });
}
