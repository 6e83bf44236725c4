//! The handlers of `_index`: the list of indexes, and their creation and deletion.

use std::sync::Arc;

use hyper::{Method, StatusCode};
use settee_doc::{Database, Document, Edit, ErrorKind};
use settee_view::mango::limits::INDEXES_MAX;
use settee_view::mango::{self, DESIGN, DesignEdit, NewIndex};

use super::definitions::{self, DESIGN_BYTES_MAX};
use crate::blocking;
use crate::body::{self, BodyBudget};
use crate::context::RequestContext;
use crate::document::matching::may_have_regex;
use crate::error::ApiError;
use crate::query::Segments;
use crate::response::{self, HandlerResult};

/// Handles `_index` and the paths below it.
pub(crate) async fn handle(
    context: &mut RequestContext<'_>,
    database: Arc<Database>,
    mut path: Segments<'_>,
) -> HandlerResult {
    let Some(first) = path.next()? else {
        return match *context.method() {
            Method::GET | Method::HEAD => list(context, &database).await,
            Method::POST => create(context, &database).await,
            _ => Err(ApiError::method_not_allowed("GET,POST")),
        };
    };
    if first == "_bulk_delete" && path.at_end() {
        return bulk_delete(context, &database).await;
    }
    let ddoc = match first.as_ref() {
        "_design" => path.next()?.unwrap_or_default(),
        _ => first,
    };
    let (Some(kind), Some(name), true) = (path.next()?, path.next()?, path.at_end()) else {
        return Err(ApiError::missing());
    };
    if *context.method() != Method::DELETE {
        return Err(ApiError::method_not_allowed("DELETE"));
    }
    if kind != "json" || !delete(context, &database, &design_id(&ddoc), Some(&name)).await? {
        return Err(ApiError::missing());
    }
    Ok(response::json(StatusCode::OK, b"{\"ok\":true}\n".to_vec()))
}

async fn list(context: &RequestContext<'_>, database: &Database) -> HandlerResult {
    let number = |name: &str, least: usize| match context.query().get(name) {
        None => Ok(None),
        Some(value) => match value.parse::<usize>() {
            Ok(value) if value >= least => Ok(Some(value)),
            _ => {
                let reason = "Index parameter ranges: limit > 1, skip > 0";
                let status = StatusCode::INTERNAL_SERVER_ERROR;
                Err(ApiError::new(status, "invalid_list_index_params", reason))
            }
        },
    };
    let (limit, skip) = (number("limit", 1)?, number("skip", 0)?);
    let indexes = definitions::load(database, &database.snapshot()).await?;
    let mut text = mango::write_index_list(&indexes, skip.unwrap_or(0), limit.unwrap_or(usize::MAX));
    text.push('\n');
    Ok(response::json(StatusCode::OK, text.into_bytes()))
}

async fn create(context: &mut RequestContext<'_>, database: &Database) -> HandlerResult {
    body::check_json_type(&context.head.headers)?;
    let body = context.read_value_body().await?;
    let is_partitioned = database.is_partitioned();
    let new = match may_have_regex(&body.text) {
        true => blocking::run(move || NewIndex::parse(&body.text, is_partitioned)).await??,
        false => NewIndex::parse(&body.text, is_partitioned)?,
    };
    let (id, name) = (new.definition.ddoc.clone(), &new.definition.name);
    settee_doc::check_document_id(&id)?;
    let found = design_document(database, &id).await?;
    let text = found.as_ref().map(definitions::text_of);
    let result = match mango::add_index(text.as_deref(), &new)? {
        DesignEdit::Unchanged => "exists",
        DesignEdit::Changed(text) => {
            check_limits(database, &new, &text).await?;
            let mut budget = BodyBudget::unlimited();
            let options = &context.server.document_options;
            let mut edit = body::parse_edit(text.as_bytes(), options, &mut budget)?;
            edit.id.clone_from(&id);
            save(context, database, edit).await?;
            "created"
        }
        DesignEdit::Deleted => unreachable!("an added index is left"),
    };
    let mut text = format!("{{\"result\":\"{result}\",\"id\":").into_bytes();
    settee_doc::write_json_string(&id, &mut text);
    text.extend_from_slice(b",\"name\":");
    settee_doc::write_json_string(name, &mut text);
    text.extend_from_slice(b"}\n");
    Ok(response::json(StatusCode::OK, text))
}

/// Refuses an index that would make a search fail, or that a search wouldn't see. `design` is its design document.
async fn check_limits(database: &Database, new: &NewIndex, design: &str) -> Result<(), ApiError> {
    if design.len() as u64 > DESIGN_BYTES_MAX {
        return Err(design_too_large());
    }
    let indexes = definitions::load(database, &database.snapshot()).await?;
    let (ddoc, name) = (&new.definition.ddoc, &new.definition.name);
    let replaces = indexes.iter().any(|index| index.ddoc == *ddoc && index.name == *name);
    if indexes.len() >= INDEXES_MAX && !replaces {
        let reason = format!("A database has at most {INDEXES_MAX} indexes.");
        return Err(ApiError::new(StatusCode::BAD_REQUEST, "too_many_indexes", reason));
    }
    Ok(())
}

async fn bulk_delete(context: &mut RequestContext<'_>, database: &Database) -> HandlerResult {
    if *context.method() != Method::POST {
        return Err(ApiError::method_not_allowed("POST"));
    }
    body::check_json_type(&context.head.headers)?;
    let body = context.read_value_body().await?;
    let (mut succeeded, mut failed) = (Vec::new(), Vec::new());
    for ddoc in mango::parse_bulk_delete(&body.text)? {
        let id = design_id(&ddoc);
        let error = match delete(context, database, &id, None).await {
            Ok(true) => None,
            Ok(false) => Some("not_found".to_owned()),
            Err(failure) => Some(failure.reason.into_owned()),
        };
        let list = if error.is_none() { &mut succeeded } else { &mut failed };
        list.extend_from_slice(if list.is_empty() { b"{\"id\":" } else { b",{\"id\":" });
        settee_doc::write_json_string(&id, list);
        match error {
            None => list.extend_from_slice(b",\"ok\":true}"),
            Some(error) => {
                list.extend_from_slice(b",\"error\":");
                settee_doc::write_json_string(&error, list);
                list.push(b'}');
            }
        }
    }
    let mut text = b"{\"success\":[".to_vec();
    text.extend_from_slice(&succeeded);
    text.extend_from_slice(b"],\"fail\":[");
    text.extend_from_slice(&failed);
    text.extend_from_slice(b"]}\n");
    Ok(response::json(StatusCode::OK, text))
}

/// Deletes an index, or all of a design document. Returns whether there was one.
async fn delete(
    context: &RequestContext<'_>,
    database: &Database,
    id: &str,
    name: Option<&str>,
) -> Result<bool, ApiError> {
    let Some(document) = design_document(database, id).await? else { return Ok(false) };
    let text = definitions::text_of(&document);
    let indexes = definitions::add_design(Vec::new(), database, id.to_owned(), text.clone()).await?;
    if !indexes.iter().any(|index| name.is_none_or(|name| index.name == name)) {
        return Ok(false);
    }
    let edit = match mango::remove_indexes(&text, name) {
        DesignEdit::Unchanged => return Ok(false),
        DesignEdit::Deleted => Edit::delete(id, Some(document.revision)),
        DesignEdit::Changed(text) => {
            let options = &context.server.document_options;
            body::parse_edit(text.as_bytes(), options, &mut BodyBudget::unlimited())?
        }
    };
    save(context, database, edit).await?;
    Ok(true)
}

/// A design document; None if there is none, or it is deleted.
async fn design_document(database: &Database, id: &str) -> Result<Option<Document>, ApiError> {
    let found = database.snapshot().document_or_deleted(id).await?;
    let found = found.filter(|document| !document.deleted);
    match found {
        Some(document) if document.body_size() > DESIGN_BYTES_MAX => Err(design_too_large()),
        found => Ok(found),
    }
}

fn design_too_large() -> ApiError {
    let reason = format!("A design document with indexes has at most {DESIGN_BYTES_MAX} bytes.");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "document_too_large", reason)
}

async fn save(context: &RequestContext<'_>, database: &Database, edit: Edit) -> Result<(), ApiError> {
    let stage = context.stage()?;
    database.update(edit, stage).await.map_err(|error| match error.kind() {
        ErrorKind::Conflict => ApiError::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "error_saving_ddoc",
            "Encountered a conflict while saving the design document.",
        ),
        _ => error.into(),
    })?;
    Ok(())
}

fn design_id(name: &str) -> String {
    if name.starts_with(DESIGN) { name.to_owned() } else { format!("{DESIGN}{name}") }
}
