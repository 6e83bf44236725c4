//! Which changes are sent: all, those of some documents, those whose documents match.

use std::collections::HashSet;
use std::sync::Arc;

use settee_doc::{Fields, Selector, SelectorError};

use crate::error::Failure;
use crate::json;
use crate::query;
use crate::server::Call;

/// Which changes are sent.
pub(super) enum Filter {
    All,
    DocIds(HashSet<String>),
    Design,
    Selector(Arc<Selected>),
}

/// The documents that match a selector.
pub(super) struct Selected {
    pub(super) selector: Selector,
    /// What is shown of them; None: all.
    pub(super) fields: Option<Fields>,
}

/// What a filter is read from beside a body.
pub(super) struct Asked {
    name: Option<String>,
    is_get: bool,
    /// From the query.
    doc_ids: Option<String>,
    view: String,
    doc_ids_max: usize,
}

impl Asked {
    pub(super) fn of(call: &Call<'_>, name: Option<String>) -> Asked {
        let get = |name| call.query().get(name).map(|value| value.into_owned());
        Asked {
            name,
            is_get: call.is_get(),
            doc_ids: get("doc_ids"),
            view: get("view").unwrap_or_default(),
            doc_ids_max: call.server.limits.max_feed_doc_ids,
        }
    }
}

/// What a body says of a filter, as JSON text.
#[derive(Default)]
pub(super) struct Sent<'a> {
    doc_ids: Option<&'a str>,
    selector: Option<&'a str>,
    fields: Option<&'a str>,
}

impl Sent<'_> {
    pub(super) fn parse(text: &[u8]) -> Result<Sent<'_>, Failure> {
        let [doc_ids, selector, fields] = json::pick(text, ["doc_ids", "selector", "fields"])?;
        Ok(Sent { doc_ids, selector, fields })
    }
}

impl Filter {
    /// The filter that is asked for; what it needs is in the body of a POST, or in the query.
    pub(super) fn parse(asked: &Asked, body: Option<Sent<'_>>) -> Result<Filter, Failure> {
        match asked.name.as_deref() {
            None => Ok(Filter::All),
            Some("_design") => Ok(Filter::Design),
            Some("_doc_ids") => {
                let raw = match body {
                    Some(sent) => sent.doc_ids,
                    None => asked.doc_ids.as_deref().map(query::json_value).transpose()?,
                };
                parse_doc_ids(raw.unwrap_or("null"), asked.doc_ids_max).map(Filter::DocIds)
            }
            Some("_selector") if asked.is_get => {
                Err(Failure::bad_request("Selector must be specified in POST payload"))
            }
            Some("_selector") => {
                let sent = body.unwrap_or_default();
                parse_selected(sent.selector, sent.fields)
            }
            Some("_view") => Err(view_filter(&asked.view)),
            Some(name) if name.starts_with('_') => Err(Failure::bad_request("unknown builtin filter name")),
            Some(name) => function_filter(name),
        }
    }

    /// Whether a document's id lets it pass.
    pub(super) fn passes(&self, id: &str) -> bool {
        match self {
            Filter::All | Filter::Selector(_) => true,
            Filter::DocIds(ids) => ids.contains(id),
            Filter::Design => id.starts_with("_design/"),
        }
    }

    pub(super) fn selected(&self) -> Option<&Arc<Selected>> {
        match self {
            Filter::Selector(selected) => Some(selected),
            Filter::All | Filter::DocIds(_) | Filter::Design => None,
        }
    }
}

fn parse_doc_ids(raw: &str, most: usize) -> Result<HashSet<String>, Failure> {
    let no_list = || Failure::bad_request("`doc_ids` filter parameter is not a list of doc ids.");
    let too_many = || Failure::bad_request(format!("`doc_ids` has more than {most} ids."));
    json::strings(raw, most, no_list, too_many)
}

fn parse_selected(selector: Option<&str>, fields: Option<&str>) -> Result<Filter, Failure> {
    let Some(selector) = selector.filter(|text| text.starts_with('{')) else {
        return Err(Failure::bad_request("Selector error: expected a JSON object"));
    };
    // Here CouchDB gives a selector's errors their reasons, but not their names.
    let refused = |error: SelectorError| Failure::bad_request(error.reason);
    let selector = Selector::parse(selector).map_err(refused)?;
    let fields = fields.map(|fields| Fields::parse(fields).map_err(refused)).transpose()?.flatten();
    Ok(Filter::Selector(Arc::new(Selected { selector, fields })))
}

/// Names that slashes part, as CouchDB takes them: empty ones don't count.
fn parts_of(name: &str) -> usize {
    name.split('/').filter(|part| !part.is_empty()).count()
}

fn view_filter(view: &str) -> Failure {
    match (view, parts_of(view)) {
        ("", _) => Failure::bad_request("`view` filter parameter is not provided."),
        (_, 2) => Failure::not_implemented("The filter _view is not implemented yet."),
        _ => Failure::bad_request("`view` must be of the form `designname/viewname`"),
    }
}

fn function_filter(name: &str) -> Result<Filter, Failure> {
    match parts_of(name) {
        0 => Ok(Filter::All),
        2 => Err(Failure::not_implemented(format!("The filter {name} is not implemented yet."))),
        _ => Err(Failure::bad_request("`filter` must be of the form `designname/filtername`")),
    }
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
        assert_eq!((status("a/b"), status("a"), status("a/b/c")), (Some(501), Some(400), Some(400)));
        let status = |view| view_filter(view).status.as_u16();
        assert_eq!((status(""), status("a/b"), status("a")), (400, 501, 400));
    }
}
