//! Revisions as clients name them: in a document, a query, a header or a list.

use hyper::StatusCode;
use hyper::header;
use settee_doc::{Edit, ErrorKind, Revision};

use crate::body::{ALLOCATION_BYTES, BodyBudget};
use crate::context::RequestContext;
use crate::error::ApiError;
use crate::json;
use crate::query;

/// Parses a revision's text.
pub(crate) fn parse(text: &str) -> Result<Revision, ApiError> {
    Ok(text.parse()?)
}

/// Parses a revision from JSON text.
pub(crate) fn parse_json(raw: &str) -> Result<Revision, ApiError> {
    parse(&json::string(raw).ok_or_else(|| ApiError::bad_request("Invalid rev format"))?)
}

/// Bytes that a revision takes besides its own size.
pub(crate) fn more_bytes(revision: &Revision) -> usize {
    match revision.id.heap_bytes() {
        0 => 0,
        bytes => ALLOCATION_BYTES + bytes,
    }
}

/// Parses a JSON list.
pub(crate) fn parse_list(raw: &str, budget: &mut BodyBudget) -> Result<Vec<Revision>, ApiError> {
    let mut list = Vec::new();
    let no_list = || ApiError::bad_request("Invalid list of revisions");
    json::each_element(raw, no_list, |item| {
        let revision = parse_json(item)?;
        let more_bytes = more_bytes(&revision);
        budget.push(revision, more_bytes, &mut list)
    })?;
    Ok(list)
}

/// Parses a list in a query value.
pub(crate) fn parse_list_value(value: &str) -> Result<Vec<Revision>, ApiError> {
    parse_list(query::json_value(value)?, &mut BodyBudget::unlimited())
}

/// Sets the revision of an edit whose document has none.
pub(crate) fn set_if_absent(revision: Option<Revision>, edit: &mut Edit) {
    edit.revision = edit.revision.take().or(revision);
}

/// The revision named in the document, the query or `If-Match`, which must agree.
pub(crate) fn one_of<T: PartialEq>(
    context: &RequestContext<'_>,
    in_body: Option<T>,
    parse: impl Fn(&str) -> Result<T, ApiError>,
) -> Result<Option<T>, ApiError> {
    let in_query = context.query().get("rev").map(|text| parse(&text)).transpose()?;
    let in_header = context.head.headers.get(header::IF_MATCH).map(|tag| {
        // A revision may have characters beyond ASCII.
        let tag = std::str::from_utf8(tag.as_bytes());
        parse(tag.map_err(|_| ApiError::bad_request("Invalid rev format"))?.trim_matches('"'))
    });
    let in_header = in_header.transpose()?;
    if in_body.is_some() && in_query.is_some() && in_body != in_query {
        let reason = "Document rev from request body and query string have different values";
        return Err(ApiError::bad_request(reason));
    }
    let explicit = in_body.or(in_query);
    if explicit.is_some() && in_header.is_some() && explicit != in_header {
        return Err(ApiError::bad_request("Document rev and etag have different values"));
    }
    Ok(explicit.or(in_header))
}

/// Checks that an edit has the revision that `new_edits=false` requires.
pub(crate) fn check_replicated(edit: &Edit) -> Result<(), ApiError> {
    match (&edit.revision, edit.local_revision) {
        // The update refuses the number of a local document for this edit alone.
        (Some(_), _) | (_, Some(_)) => Ok(()),
        (None, None) => Err(ApiError::bad_request(
            "When `new_edits: false`, the document needs `_rev` or `_revisions` specified",
        )),
    }
}

/// Turns a 404 for the edited revision into a conflict with CouchDB's name and reason.
pub(crate) fn or_conflict(failure: ApiError) -> ApiError {
    match failure.status {
        StatusCode::NOT_FOUND => ApiError::new(StatusCode::CONFLICT, "not_found", "missing_rev"),
        _ => failure,
    }
}

/// The error for an edit of a revision that isn't current.
pub(crate) fn conflict() -> ApiError {
    settee_doc::Error::new(ErrorKind::Conflict, "Document update conflict.").into()
}
