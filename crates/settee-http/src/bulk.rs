//! Many documents in a request: `_bulk_docs`.
//!
//! A body in memory is parsed as a whole, one in a file group by group (`spooled.rs`); both are stored by
//! [`Writing`].

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::future::join_all;
use hyper::{Method, StatusCode};
use settee_doc::{Database, Edit, Revision, Spool};

use crate::body::{self, ALLOCATION_BYTES, Charge, Content, Held, Room, Share};
use crate::document;
use crate::error::Failure;
use crate::json;
use crate::named::{self, Named};
use crate::reply::{self, Answer};
use crate::server::{Call, WriteConcern};
use crate::spooled::{Group, Pass};
use crate::stream::{self, Out};
use crate::uuids::Uuids;

/// Bytes that a document takes beside its text, however small it is: its edit, what came of it, its row.
const EDIT_BYTES: usize = size_of::<Edit>()
    + size_of::<(String, Option<Named>)>()
    + size_of::<settee_doc::Result<Revision>>()
    + ROW_BYTES
    + 4 * ALLOCATION_BYTES;

/// Bytes of a row, by which the answer's room is made.
const ROW_BYTES: usize = 96;

/// What a bulk asks for.
pub(crate) struct Bulk {
    pub(crate) edits: Vec<Edit>,
    /// Whether they are edits of this database's own.
    pub(crate) new_edits: bool,
    /// Whether all are to be stored or none, which CouchDB refuses.
    all_or_nothing: bool,
    /// `w`, where it is a number: it goes before the query's.
    copies: Option<u64>,
}

/// `_bulk_docs`: a bad document fails the request before anything is stored; after that each
/// is decided by itself, and its row says how.
pub(crate) async fn docs(call: &mut Call<'_>, database: Arc<Database>) -> Answer {
    if *call.method() != Method::POST {
        return Err(Failure::method_not_allowed("POST"));
    }
    let content = call.read_or_spool_json_body().await?;
    let concern = call.write_concern()?;
    let is_optimistic = document::is_optimistic(call)?;
    let uuids = call.server.uuids.clone();
    let writing = Writing { database, uuids, concern, is_optimistic, new_edits: true };
    match content {
        Content::Held(held) => held_docs(call, held, writing).await,
        Content::Spooled(spool) => spooled_docs(call, spool, writing).await,
    }
}

async fn held_docs(call: &Call<'_>, held: Held, writing: Writing) -> Answer {
    let options = call.server.document_options;
    let parse = move |text: &[u8], charge: &mut Charge| parse_bulk(text, &options, charge);
    let (bulk, _for_the_edits) = body::parse_held(held, &call.server.room, parse).await?;
    let writing = writing.of(&bulk);
    let mut edits = bulk.edits;
    writing.name(&mut edits);
    if bulk.all_or_nothing && bulk.new_edits && !edits.is_empty() {
        return Ok(reply::json(StatusCode::EXPECTATION_FAILED, refused(&edits)));
    }
    call.check_answer(edits.iter().map(|edit| edit.id.len() + ROW_BYTES).sum())?;
    let (mut rows, mut is_begun) = (Vec::with_capacity(edits.len() * ROW_BYTES + 4), false);
    writing.write(edits, &mut rows, &mut is_begun).await?;
    end_rows(is_begun, &mut rows);
    Ok(reply::json(writing.concern.status(StatusCode::CREATED), rows))
}

/// Reads the file twice: nothing is stored before all of it was parsed. Each group is a commit of its own, and
/// its rows are sent behind it.
async fn spooled_docs(call: &Call<'_>, spool: Spool, writing: Writing) -> Answer {
    let (room, options) = (call.server.room.clone(), call.server.document_options);
    let (bulk, has_documents, mut share) = check_spooled(&spool, &room, options, &writing).await?;
    if bulk.all_or_nothing && bulk.new_edits && has_documents {
        let failure = Failure::not_implemented(ALL_OR_NOTHING);
        return Err(Failure { status: StatusCode::EXPECTATION_FAILED, ..failure });
    }
    let writing = writing.of(&bulk);
    let status = writing.concern.status(StatusCode::CREATED);
    let produce = move |mut out: Out| async move {
        let (mut pass, mut is_begun) = (Pass::new(&spool, &room), false);
        while let Some(group) = pass.next_group(&mut share).await? {
            let ((edits, _), of_group) = parse_group(group, &room, options).await?;
            writing.write(edits, &mut out.buffer, &mut is_begun).await?;
            // The client may take its time, and others wait for that memory.
            share = of_group.without_reserve();
            out.flush_full().await?;
        }
        end_rows(is_begun, &mut out.buffer);
        Ok(out)
    };
    let mut response = stream::respond(call.output(), produce).await?;
    *response.status_mut() = status;
    Ok(response)
}

/// Parses all of a spooled body, and keeps nothing: what it asks for but for its documents, whether it has any,
/// and a share that holds each of its groups.
async fn check_spooled(
    spool: &Spool,
    room: &Arc<Room>,
    options: settee_doc::Options,
    writing: &Writing,
) -> Result<(Bulk, bool, Share), Failure> {
    let mut pass = Pass::new(spool, room);
    let (mut share, mut refusal, mut has_documents) = (Share::default(), None, false);
    while let Some(group) = pass.next_group(&mut share).await? {
        let ((mut edits, of_group), parsed) = parse_group(group, room, options).await?;
        has_documents |= !edits.is_empty();
        writing.name(&mut edits);
        // An id that a partitioned database doesn't take refuses the whole request.
        edits
            .iter()
            .filter(|edit| !is_local(edit))
            .try_for_each(|edit| writing.database.check_id(&edit.id))?;
        refusal = refusal.or(of_group);
        share = parsed;
    }
    let bulk = parse_bulk(&pass.around, &options, &mut Charge::free())?;
    match refusal {
        Some(failure) if !bulk.new_edits => Err(failure),
        _ => Ok((bulk, has_documents, share)),
    }
}

/// The edits of a group, and why they can't be replicated, should they be meant so.
async fn parse_group(
    group: Group,
    room: &Arc<Room>,
    options: settee_doc::Options,
) -> Result<((Vec<Edit>, Option<Failure>), Share), Failure> {
    let Group { array, may_be_empty } = group;
    let parse = move |text: &[u8], charge: &mut Charge| {
        let array = std::str::from_utf8(text).map_err(|_| Failure::bad_json())?;
        let mut refusal = None;
        let edits = parse_edits(array, Failure::bad_json, &options, charge, |edit| {
            if refusal.is_none() {
                refusal = check_replicated(edit).err();
            }
            Ok(())
        })?;
        if edits.is_empty() && !may_be_empty {
            return Err(Failure::bad_json());
        }
        Ok((edits, refusal))
    };
    body::parse_held(array, room, parse).await
}

/// How documents are stored.
struct Writing {
    database: Arc<Database>,
    uuids: Arc<Uuids>,
    concern: WriteConcern,
    is_optimistic: bool,
    new_edits: bool,
}

impl Writing {
    /// As the bulk asks for it.
    fn of(mut self, bulk: &Bulk) -> Writing {
        self.concern.copies = bulk.copies.unwrap_or(self.concern.copies);
        Writing { new_edits: bulk.new_edits, ..self }
    }

    /// Gives ids to documents without one.
    fn name(&self, edits: &mut [Edit]) {
        for edit in edits.iter_mut().filter(|edit| edit.id.is_empty()) {
            edit.id = self.uuids.next();
        }
    }

    /// Stores documents and appends their rows. `is_begun`: whether there are rows before them.
    async fn write(
        &self,
        mut edits: Vec<Edit>,
        rows: &mut Vec<u8>,
        is_begun: &mut bool,
    ) -> Result<(), Failure> {
        let Writing { database, concern, new_edits, .. } = self;
        let (stage, new_edits) = (concern.stage, *new_edits);
        self.name(&mut edits);
        let named: Vec<(String, Option<Named>)> =
            edits.iter().map(|edit| (edit.id.clone(), Named::of(edit))).collect();
        // An edit that can't be taken doesn't keep the others out.
        let mut refusals: HashMap<usize, Failure> = HashMap::new();
        if !new_edits {
            let of = |(index, edit): (usize, &Edit)| Some((index, named::refusal(edit)?));
            refusals = edits.iter().enumerate().filter(|(_, edit)| !is_local(edit)).filter_map(of).collect();
            let mut index = 0..;
            edits.retain(|_| !refusals.contains_key(&index.next().unwrap_or_default()));
        }
        let (locals, mut edits): (Vec<Edit>, Vec<Edit>) = edits.into_iter().partition(is_local);
        if self.is_optimistic {
            database.write_ahead(&mut edits, !new_edits).await?;
        }
        let results = match new_edits {
            true => database.update_all(edits, stage).await?,
            false => database.replicate_all(edits, stage).await?,
        };
        // At the same time, so that they share a sync.
        let local_results = join_all(locals.into_iter().map(|edit| database.put_local(edit, stage))).await;
        let (mut results, mut local_results) = (results.into_iter(), local_results.into_iter());
        let mut text = Vec::new();
        for (index, (id, revision)) in named.iter().enumerate() {
            text.clear();
            let outcome = if let Some(failure) = refusals.remove(&index) {
                Err(failure)
            } else if id.starts_with(LOCAL) {
                let outcome = local_results.next().expect("an outcome for each local document");
                outcome.map(|saved| text.extend_from_slice(saved.as_bytes())).map_err(Failure::from)
            } else {
                let outcome = results.next().expect("an outcome for each edit");
                outcome.map(|saved| saved.write(&mut text)).map_err(Failure::from)
            };
            // Of replicated documents only those that failed have a row.
            if outcome.is_err() || new_edits {
                rows.push(if std::mem::replace(is_begun, true) { b',' } else { b'[' });
            }
            match outcome {
                Ok(()) if new_edits => write_saved(id, &text, concern.copies > 1, rows),
                Ok(()) => {}
                Err(failure) => {
                    let revision = revision.as_ref().filter(|_| !new_edits).map(Named::to_string);
                    write_failed(id, revision.as_deref(), &failure, rows);
                }
            }
        }
        Ok(())
    }
}

/// Ends an answer, which may have no rows.
fn end_rows(is_begun: bool, rows: &mut Vec<u8>) {
    rows.extend_from_slice(if is_begun { b"]\n" } else { b"[]\n" });
}

/// How a local document's id begins.
const LOCAL: &str = "_local/";

fn is_local(edit: &Edit) -> bool {
    edit.id.starts_with(LOCAL)
}

/// `{"ok":true,"id":…,"rev":…}`, and that fewer copies have it than were asked for.
fn write_saved(id: &str, revision: &[u8], is_short: bool, rows: &mut Vec<u8>) {
    rows.extend_from_slice(b"{\"ok\":true,\"id\":");
    settee_doc::write_json_string(id, rows);
    rows.extend_from_slice(b",\"rev\":\"");
    rows.extend_from_slice(revision);
    rows.extend_from_slice(if is_short { b"\",\"accepted\":true}" } else { b"\"}" });
}

/// Why a bulk with `all_or_nothing` is refused.
const ALL_OR_NOTHING: &str = "all_or_nothing is not supported";

/// The rows of a bulk of which none was stored.
fn refused(edits: &[Edit]) -> Vec<u8> {
    let failure = Failure::not_implemented(ALL_OR_NOTHING);
    let mut rows = Vec::new();
    for edit in edits {
        rows.push(if rows.is_empty() { b'[' } else { b',' });
        let revision = Named::of(edit).map_or_else(|| "0-".to_owned(), |named| named.to_string());
        write_failed(&edit.id, Some(&revision), &failure, &mut rows);
    }
    rows.extend_from_slice(b"]\n");
    rows
}

/// Reads a bulk.
pub(crate) fn parse_bulk(
    text: &[u8],
    options: &settee_doc::Options,
    charge: &mut Charge,
) -> Result<Bulk, Failure> {
    let no_list = || Failure::bad_request("`docs` parameter must be an array.");
    let names = ["docs", "new_edits", "all_or_nothing", "w"];
    let [docs, new_edits, all_or_nothing, copies] = json::pick_unchecked(text, names)?;
    let docs = docs.ok_or_else(|| Failure::bad_request("POST body must include `docs` parameter."))?;
    if !docs.starts_with('[') {
        return Err(no_list());
    }
    check_around(text, docs)?;
    let new_edits = match new_edits {
        None | Some("true") => true,
        Some("false") => false,
        Some(_) => return Err(Failure::bad_request("`new_edits` parameter must be a boolean.")),
    };
    let check = |edit: &Edit| if new_edits { Ok(()) } else { check_replicated(edit) };
    let edits = parse_edits(docs, no_list, options, charge, check)?;
    let all_or_nothing = all_or_nothing == Some("true");
    let copies = copies.and_then(|raw| raw.parse().ok());
    Ok(Bulk { edits, new_edits, all_or_nothing, copies })
}

/// The edits that a list's documents ask for.
fn parse_edits(
    docs: &str,
    no_list: impl FnOnce() -> Failure,
    options: &settee_doc::Options,
    charge: &mut Charge,
    mut check: impl FnMut(&Edit) -> Result<(), Failure>,
) -> Result<Vec<Edit>, Failure> {
    let mut edits = Vec::new();
    json::each_element(docs, no_list, |doc| {
        let edit = body::edit(doc.as_bytes(), options, charge)?;
        check(&edit)?;
        let bytes = EDIT_BYTES + edit.body().len();
        charge.push(edit, bytes, &mut edits)
    })?;
    Ok(edits)
}

fn check_replicated(edit: &Edit) -> Result<(), Failure> {
    if is_local(edit) { Ok(()) } else { named::check_replicated(edit) }
}

/// Checks what stands around the documents, which are checked one by one.
fn check_around(text: &[u8], docs: &str) -> Result<(), Failure> {
    let start = docs.as_ptr().addr() - text.as_ptr().addr();
    settee_doc::check_tokens(&text[..start])?;
    settee_doc::check_tokens(&text[start + docs.len()..])?;
    Ok(())
}

/// `{"id":…,"rev":…,"error":…,"reason":…}`
fn write_failed(id: &str, revision: Option<&str>, failure: &Failure, rows: &mut Vec<u8>) {
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
