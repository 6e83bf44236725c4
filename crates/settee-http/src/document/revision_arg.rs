//! Revisions as clients name them: in a document, a query, a header or a list.
//!
//! CouchDB accepts hashes of any form. Here a hash has 32 hexadecimal digits, and no document has a revision
//! of another form: reading it yields a 404, editing it a conflict, and replicating it fails for that
//! revision alone.

use std::fmt;

use hyper::StatusCode;
use hyper::header;
use settee_doc::{Edit, ErrorKind, Revision};

use crate::body::{ALLOCATION_BYTES, BodyBudget};
use crate::context::RequestContext;
use crate::error::ApiError;
use crate::json;
use crate::query;

/// A revision named by a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RevisionArg {
    Ours(Revision),
    /// A revision that no document here can have.
    Foreign(String),
}

impl RevisionArg {
    /// Parses every revision that CouchDB accepts.
    pub(crate) fn parse(text: &str) -> Result<RevisionArg, ApiError> {
        let ours = Revision::parse_any(text)?;
        Ok(ours.map_or_else(|| RevisionArg::Foreign(text.to_owned()), RevisionArg::Ours))
    }

    /// Parses a revision from JSON text.
    pub(crate) fn parse_json(raw: &str) -> Result<RevisionArg, ApiError> {
        let text = json::string(raw).ok_or_else(|| ApiError::bad_request("Invalid rev format"))?;
        RevisionArg::parse(&text)
    }

    pub(crate) fn ours(self) -> Option<Revision> {
        match self {
            RevisionArg::Ours(revision) => Some(revision),
            RevisionArg::Foreign(_) => None,
        }
    }

    /// The revision, if a document can have it.
    ///
    /// # Errors
    /// 404.
    pub(crate) fn or_missing(self) -> Result<Revision, ApiError> {
        self.ours().ok_or_else(ApiError::missing)
    }

    /// The generation of a foreign revision. Saturates if it exceeds that of any revision here.
    pub(crate) fn generation_of(foreign: &str) -> u32 {
        let digits = foreign.split('-').next().unwrap_or_default().trim_start_matches('+');
        digits.parse().unwrap_or(u32::MAX)
    }

    /// The revision that an edit replaces; for a replicated edit, its own.
    pub(crate) fn of(edit: &Edit) -> Option<RevisionArg> {
        let ours = edit.revision.map(RevisionArg::Ours);
        ours.or_else(|| edit.foreign_revision.clone().map(RevisionArg::Foreign))
    }

    /// Sets the revision of an edit whose document has none.
    pub(crate) fn set_if_absent(revision: Option<RevisionArg>, edit: &mut Edit) {
        if RevisionArg::of(edit).is_none() {
            match revision {
                None => {}
                Some(RevisionArg::Ours(revision)) => edit.revision = Some(revision),
                Some(RevisionArg::Foreign(text)) => edit.foreign_revision = Some(text),
            }
        }
    }
}

impl fmt::Display for RevisionArg {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RevisionArg::Ours(revision) => revision.fmt(formatter),
            RevisionArg::Foreign(text) => formatter.write_str(text),
        }
    }
}

/// A list of revisions in a request.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct RevisionList {
    pub(crate) ours: Vec<Revision>,
    /// Revisions that no document here can have.
    pub(crate) foreign: Vec<String>,
}

impl RevisionList {
    pub(crate) fn push(&mut self, revision: RevisionArg, budget: &mut BodyBudget) -> Result<(), ApiError> {
        match revision {
            RevisionArg::Ours(revision) => budget.push(revision, 0, &mut self.ours),
            RevisionArg::Foreign(text) => {
                let bytes = ALLOCATION_BYTES + text.len();
                budget.push(text, bytes, &mut self.foreign)
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ours.is_empty() && self.foreign.is_empty()
    }

    /// Parses a JSON list.
    pub(crate) fn parse(raw: &str, budget: &mut BodyBudget) -> Result<RevisionList, ApiError> {
        let mut list = RevisionList::default();
        let no_list = || ApiError::bad_request("Invalid list of revisions");
        json::each_element(raw, no_list, |item| list.push(RevisionArg::parse_json(item)?, budget))?;
        Ok(list)
    }

    /// Parses a query value.
    pub(crate) fn parse_value(value: &str) -> Result<RevisionList, ApiError> {
        RevisionList::parse(query::json_value(value)?, &mut BodyBudget::unlimited())
    }
}

/// The revision named in the document, the query or `If-Match`, which must agree.
pub(crate) fn one_of<T: PartialEq>(
    context: &RequestContext<'_>,
    in_body: Option<T>,
    parse: impl Fn(&str) -> Result<T, ApiError>,
) -> Result<Option<T>, ApiError> {
    let in_query = context.query().get("rev").map(|text| parse(&text)).transpose()?;
    let in_header = context.header(header::IF_MATCH).map(|tag| parse(tag.trim_matches('"'))).transpose()?;
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
    match RevisionArg::of(edit) {
        Some(_) => Ok(()),
        None => Err(ApiError::bad_request(
            "When `new_edits: false`, the document needs `_rev` or `_revisions` specified",
        )),
    }
}

/// The error of a replicated edit with a foreign revision. A replicator skips a forbidden document and
/// continues.
pub(crate) fn refusal(edit: &Edit) -> Option<ApiError> {
    let reason = "Revisions have 32 hexadecimal digits here.";
    edit.foreign_revision.is_some().then(|| ApiError::forbidden(reason))
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
