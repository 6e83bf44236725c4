//! Which revisions a replica lacks: `_revs_diff` and `_missing_revs`.

use std::sync::Arc;

use hyper::{Method, StatusCode};
use settee_doc::{Database, Revision};

use crate::body::{self, ALLOCATION_BYTES, Charge};
use crate::error::Failure;
use crate::json;
use crate::named::{List, Named};
use crate::reply::{self, Answer};
use crate::server::Call;

/// `{id: {"missing": […], "possible_ancestors": […]}}` of those that lack any.
pub(crate) async fn diff(call: &mut Call<'_>, database: Arc<Database>) -> Answer {
    let lacking = lacking(call, &database).await?;
    let mut text = Vec::with_capacity(lacking.len() * ROW_BYTES + 3);
    json::object(&mut text, |text| {
        for (index, item) in lacking.iter().enumerate() {
            if index > 0 {
                text.push(b',');
            }
            settee_doc::write_json_string(&item.id, text);
            text.extend_from_slice(b":{\"missing\":");
            item.write_missing(text);
            if !item.ancestors.is_empty() {
                text.extend_from_slice(b",\"possible_ancestors\":");
                json::revisions(&item.ancestors, text);
            }
            text.push(b'}');
        }
    });
    text.push(b'\n');
    Ok(reply::json(StatusCode::OK, text))
}

/// `{"missing_revs": {id: […]}}`
pub(crate) async fn missing(call: &mut Call<'_>, database: Arc<Database>) -> Answer {
    let lacking = lacking(call, &database).await?;
    let mut text = b"{\"missing_revs\":".to_vec();
    json::object(&mut text, |text| {
        for (index, item) in lacking.iter().enumerate() {
            if index > 0 {
                text.push(b',');
            }
            settee_doc::write_json_string(&item.id, text);
            text.push(b':');
            item.write_missing(text);
        }
    });
    text.extend_from_slice(b"}\n");
    Ok(reply::json(StatusCode::OK, text))
}

/// Bytes that an id takes beside its text and its place in what is asked: in what it lacks, in the answer.
const ID_BYTES: usize = size_of::<Lacking>() + ROW_BYTES + 4 * ALLOCATION_BYTES;

/// Bytes of a row, by which the answer's room is made.
const ROW_BYTES: usize = 96;

/// A document that lacks revisions.
struct Lacking {
    id: String,
    missing: Vec<Revision>,
    /// Revisions that no document has.
    foreign: Vec<String>,
    ancestors: Vec<Revision>,
}

impl Lacking {
    /// Appends all that it lacks.
    fn write_missing(&self, out: &mut Vec<u8>) {
        json::revisions(&self.missing, out);
        for text in &self.foreign {
            out.pop();
            out.extend_from_slice(if out.ends_with(b"[") { b"" } else { b"," });
            settee_doc::write_json_string(text, out);
            out.push(b']');
        }
    }
}

async fn lacking(call: &mut Call<'_>, database: &Database) -> Result<Vec<Lacking>, Failure> {
    if *call.method() != Method::POST {
        return Err(Failure::method_not_allowed("POST"));
    }
    let held = call.read_json_body().await?;
    let (asked, _for_the_revisions) = body::parse_held(held, &call.server.room, parse).await?;
    let view = database.view();
    let mut lacking = Vec::new();
    for (id, List { ours, foreign }) in asked {
        // What is in the index never waits: others get their turn.
        tokio::task::consume_budget().await;
        let newest_foreign = foreign.iter().map(|text| Named::generation_of(text)).max().unwrap_or(0);
        let (missing, ancestors) = view.missing(&id, &ours, newest_foreign).await?;
        if !missing.is_empty() || !foreign.is_empty() {
            lacking.push(Lacking { id, missing, foreign, ancestors });
        }
    }
    Ok(lacking)
}

/// Reads ids with their revisions.
fn parse(text: &[u8], charge: &mut Charge) -> Result<Vec<(String, List)>, Failure> {
    let mut asked = Vec::new();
    json::each_member(text, |id, list| {
        let list = List::parse(list, charge)?;
        charge.push((id.into_owned(), list), ID_BYTES, &mut asked)
    })?;
    Ok(asked)
}
