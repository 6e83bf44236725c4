//! Revisions as clients name them: in a document, a query, a header, a list.
//!
//! CouchDB takes hashes of any form. Here they have 32 hexadecimal digits: a revision of another form
//! is one that no document has. It is missing where it is read, a conflict where it is edited, and
//! refused by itself where it is to be replicated.

use std::fmt;

use hyper::header;
use settee_doc::{Edit, ErrorKind, Revision};

use crate::body::{ALLOCATION_BYTES, Charge};
use crate::error::Failure;
use crate::json;
use crate::query;
use crate::server::Call;

/// A revision as a client names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Named {
    Ours(Revision),
    /// One that no document here has.
    Foreign(String),
}

impl Named {
    /// Reads what CouchDB takes for a revision.
    pub(crate) fn parse(text: &str) -> Result<Named, Failure> {
        let ours = Revision::parse_any(text)?;
        Ok(ours.map_or_else(|| Named::Foreign(text.to_owned()), Named::Ours))
    }

    /// Reads it from JSON text.
    pub(crate) fn parse_json(raw: &str) -> Result<Named, Failure> {
        let text = json::string(raw).ok_or_else(|| Failure::bad_request("Invalid rev format"))?;
        Named::parse(&text)
    }

    pub(crate) fn ours(self) -> Option<Revision> {
        match self {
            Named::Ours(revision) => Some(revision),
            Named::Foreign(_) => None,
        }
    }

    /// The revision, where a document may have it.
    ///
    /// # Errors
    /// 404.
    pub(crate) fn known(self) -> Result<Revision, Failure> {
        self.ours().ok_or_else(Failure::missing)
    }

    /// How many edits led to a foreign revision, as its text says; what is more than any of ours is the
    /// most.
    pub(crate) fn generation_of(foreign: &str) -> u32 {
        let digits = foreign.split('-').next().unwrap_or_default().trim_start_matches('+');
        digits.parse().unwrap_or(u32::MAX)
    }

    /// What an edit replaces, or what it is.
    pub(crate) fn of(edit: &Edit) -> Option<Named> {
        let ours = edit.revision.map(Named::Ours);
        ours.or_else(|| edit.foreign_revision.clone().map(Named::Foreign))
    }

    /// Tells an edit what it replaces, where its document didn't.
    pub(crate) fn name(named: Option<Named>, edit: &mut Edit) {
        if Named::of(edit).is_none() {
            match named {
                None => {}
                Some(Named::Ours(revision)) => edit.revision = Some(revision),
                Some(Named::Foreign(text)) => edit.foreign_revision = Some(text),
            }
        }
    }
}

impl fmt::Display for Named {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Named::Ours(revision) => revision.fmt(formatter),
            Named::Foreign(text) => formatter.write_str(text),
        }
    }
}

/// Revisions that were asked for together.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct List {
    pub(crate) ours: Vec<Revision>,
    /// Those that no document here has.
    pub(crate) foreign: Vec<String>,
}

impl List {
    pub(crate) fn push(&mut self, named: Named, charge: &mut Charge) -> Result<(), Failure> {
        match named {
            Named::Ours(revision) => charge.push(revision, 0, &mut self.ours),
            Named::Foreign(text) => {
                let bytes = ALLOCATION_BYTES + text.len();
                charge.push(text, bytes, &mut self.foreign)
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ours.is_empty() && self.foreign.is_empty()
    }

    /// Reads a JSON list.
    pub(crate) fn parse(raw: &str, charge: &mut Charge) -> Result<List, Failure> {
        let mut list = List::default();
        let no_list = || Failure::bad_request("Invalid list of revisions");
        json::each_element(raw, no_list, |item| list.push(Named::parse_json(item)?, charge))?;
        Ok(list)
    }

    /// Reads a query's value.
    pub(crate) fn parse_value(value: &str) -> Result<List, Failure> {
        List::parse(query::json_value(value)?, &mut Charge::free())
    }
}

/// The revision that an edit names: in the document, the query or `If-Match`, which must agree.
pub(crate) fn one_of<T: PartialEq>(
    call: &Call<'_>,
    in_body: Option<T>,
    parse: impl Fn(&str) -> Result<T, Failure>,
) -> Result<Option<T>, Failure> {
    let in_query = call.query().get("rev").map(|text| parse(&text)).transpose()?;
    let in_header = call.header(header::IF_MATCH).map(|tag| parse(tag.trim_matches('"'))).transpose()?;
    if in_body.is_some() && in_query.is_some() && in_body != in_query {
        let reason = "Document rev from request body and query string have different values";
        return Err(Failure::bad_request(reason));
    }
    let explicit = in_body.or(in_query);
    if explicit.is_some() && in_header.is_some() && explicit != in_header {
        return Err(Failure::bad_request("Document rev and etag have different values"));
    }
    Ok(explicit.or(in_header))
}

/// What `new_edits=false` needs.
pub(crate) fn check_replicated(edit: &Edit) -> Result<(), Failure> {
    match Named::of(edit) {
        Some(_) => Ok(()),
        None => Err(Failure::bad_request(
            "When `new_edits: false`, the document needs `_rev` or `_revisions` specified",
        )),
    }
}

/// Why a replicated edit can't be taken. A replicator passes over what is forbidden, and goes on.
pub(crate) fn refusal(edit: &Edit) -> Option<Failure> {
    let reason = "Revisions have 32 hexadecimal digits here.";
    edit.foreign_revision.is_some().then(|| Failure::forbidden(reason))
}

/// The answer to who edits what isn't there.
pub(crate) fn conflict() -> Failure {
    settee_doc::Error::new(ErrorKind::Conflict, "Document update conflict.").into()
}
