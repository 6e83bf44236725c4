//! Selects the changes to send: all, those of listed documents, those whose documents match, or
//! those that pass a function.

use std::collections::HashSet;
use std::sync::Arc;

use settee_doc::{Fields, Selector, SelectorError};

use super::function_filter::{FunctionFilter, FunctionName};
use crate::context::RequestContext;
use crate::document::matching::Selecting;
use crate::error::ApiError;
use crate::json;
use crate::query;

/// Maximum number of ids of a feed with `filter=_doc_ids`. Each is looked up or compared for as long as the
/// feed lasts; CouchDB's clients send at most some thousands.
const DOC_IDS_MAX: usize = 100_000;

/// Selects the changes to send.
pub(super) enum Filter {
    All,
    DocIds(HashSet<String>),
    Design,
    Selector(Arc<Selected>),
    /// A function that wasn't looked up yet.
    Named(FunctionName),
    Function(Arc<FunctionFilter>),
}

/// The documents that match a selector.
pub(super) struct Selected {
    pub(super) selector: Selector,
    /// The fields to show; None for all.
    pub(super) fields: Option<Fields>,
}

impl Selecting for Selected {
    fn selector(&self) -> &Selector {
        &self.selector
    }
}

/// The parameters of a filter that are not in a body.
pub(super) struct FilterParams {
    name: Option<String>,
    is_get: bool,
    /// The `doc_ids` of the query.
    doc_ids: Option<String>,
    view: String,
}

impl FilterParams {
    pub(super) fn of(context: &RequestContext<'_>, name: Option<String>) -> FilterParams {
        let get = |name| context.query().get(name).map(|value| value.into_owned());
        FilterParams {
            name,
            is_get: context.is_get(),
            doc_ids: get("doc_ids"),
            view: get("view").unwrap_or_default(),
        }
    }
}

/// The members of the body that belong to a filter, as JSON text.
#[derive(Default)]
pub(super) struct FilterBody<'a> {
    doc_ids: Option<&'a str>,
    selector: Option<&'a str>,
    fields: Option<&'a str>,
}

impl FilterBody<'_> {
    pub(super) fn parse(text: &[u8]) -> Result<FilterBody<'_>, ApiError> {
        let [doc_ids, selector, fields] = json::pick(text, ["doc_ids", "selector", "fields"])?;
        Ok(FilterBody { doc_ids, selector, fields })
    }
}

impl Filter {
    /// The requested filter. Its parameters are in the body of a POST, or in the query.
    pub(super) fn parse(params: &FilterParams, body: Option<FilterBody<'_>>) -> Result<Filter, ApiError> {
        match params.name.as_deref() {
            None => Ok(Filter::All),
            Some("_design") => Ok(Filter::Design),
            Some("_doc_ids") => {
                let raw = match body {
                    Some(sent) => sent.doc_ids,
                    None => params.doc_ids.as_deref().map(query::json_value).transpose()?,
                };
                parse_doc_ids(raw.unwrap_or("null"), DOC_IDS_MAX).map(Filter::DocIds)
            }
            Some("_selector") if params.is_get => {
                Err(ApiError::bad_request("Selector must be specified in POST payload"))
            }
            Some("_selector") => {
                let sent = body.unwrap_or_default();
                parse_selected(sent.selector, sent.fields)
            }
            Some("_view") => view_filter(&params.view),
            Some(name) if name.starts_with('_') => Err(ApiError::bad_request("unknown builtin filter name")),
            Some(name) => function_filter(name),
        }
    }

    /// Whether a change passes by the document's id.
    pub(super) fn passes(&self, id: &str) -> bool {
        match self {
            Filter::All | Filter::Selector(_) | Filter::Named(_) | Filter::Function(_) => true,
            Filter::DocIds(ids) => ids.contains(id),
            Filter::Design => id.starts_with("_design/"),
        }
    }

    pub(super) fn selected(&self) -> Option<&Arc<Selected>> {
        match self {
            Filter::Selector(selected) => Some(selected),
            _ => None,
        }
    }

    pub(super) fn function(&self) -> Option<&Arc<FunctionFilter>> {
        match self {
            Filter::Function(function) => Some(function),
            _ => None,
        }
    }
}

fn parse_doc_ids(raw: &str, most: usize) -> Result<HashSet<String>, ApiError> {
    let no_list = || ApiError::bad_request("`doc_ids` filter parameter is not a list of doc ids.");
    let too_many = || ApiError::bad_request(format!("`doc_ids` has more than {most} ids."));
    json::strings(raw, most, no_list, too_many)
}

fn parse_selected(selector: Option<&str>, fields: Option<&str>) -> Result<Filter, ApiError> {
    let Some(selector) = selector.filter(|text| text.starts_with('{')) else {
        return Err(ApiError::bad_request("Selector error: expected a JSON object"));
    };
    // CouchDB returns a selector error's reason here, but not its name.
    let refused = |error: SelectorError| ApiError::bad_request(error.reason);
    let selector = Selector::parse(selector).map_err(refused)?;
    let fields = fields.map(|fields| Fields::parse(fields).map_err(refused)).transpose()?.flatten();
    Ok(Filter::Selector(Arc::new(Selected { selector, fields })))
}

fn view_filter(view: &str) -> Result<Filter, ApiError> {
    if view.is_empty() {
        return Err(ApiError::bad_request("`view` filter parameter is not provided."));
    }
    let bad = || ApiError::bad_request("`view` must be of the form `designname/viewname`");
    FunctionName::parse(view, true).map(Filter::Named).ok_or_else(bad)
}

fn function_filter(name: &str) -> Result<Filter, ApiError> {
    if name.split('/').all(str::is_empty) {
        return Ok(Filter::All);
    }
    let bad = || ApiError::bad_request("`filter` must be of the form `designname/filtername`");
    FunctionName::parse(name, false).map(Filter::Named).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doc_ids_are_a_list_of_strings_of_bounded_length() {
        assert_eq!(parse_doc_ids("[\"a\",\"b\"]", 2).unwrap().len(), 2);
        for bad in ["null", "{}", "[1]", "[\"a\",\"b\",\"c\"]"] {
            assert!(parse_doc_ids(bad, 2).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_filter_that_is_a_function_has_two_names() {
        assert!(matches!(function_filter("/"), Ok(Filter::All)));
        let status = |name| function_filter(name).err().map(|failure| failure.status.as_u16());
        assert_eq!((status("a/b"), status("a"), status("a/b/c")), (None, Some(400), Some(400)));
        let status = |view| view_filter(view).err().map(|failure| failure.status.as_u16());
        assert_eq!((status(""), status("a/b"), status("a")), (Some(400), None, Some(400)));
    }
}
