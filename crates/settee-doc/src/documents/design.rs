//! Design documents: checks of their members' types before they are stored.
//!
//! A body is inspected member by member, each as raw text: only names are parsed, whatever the size of the
//! design document. The functions in it are compiled elsewhere: see `design_functions`.
//!
//! Source: `validate_ddoc_fields` and `validate` of CouchDB 3.5.0's `couch_mrview`.

use std::borrow::Cow;

use serde_json::value::RawValue;

use crate::design_functions::ViewFunction;
use crate::json;
use crate::{Error, ErrorKind, Result};

/// Common prefix of the ids of design documents.
pub(crate) const DESIGN_PREFIX: &str = "_design/";

/// The member whose function checks each write of a document.
const VALIDATION: &str = "validate_doc_update";

/// A JSON value's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JsonType {
    Object,
    Array,
    String,
    Boolean,
    /// A number or null.
    Other,
}

impl JsonType {
    fn of(value: &RawValue) -> JsonType {
        match value.get().as_bytes().first() {
            Some(b'{') => JsonType::Object,
            Some(b'[') => JsonType::Array,
            Some(b'"') => JsonType::String,
            Some(b't' | b'f') => JsonType::Boolean,
            _ => JsonType::Other,
        }
    }

    fn name(self) -> &'static str {
        match self {
            JsonType::Object => "object",
            JsonType::Array => "array",
            JsonType::String => "string",
            JsonType::Boolean => "boolean",
            JsonType::Other => "other",
        }
    }
}

/// Members of a design document that map names to functions.
const FUNCTIONS: [&str; 4] = ["filters", "lists", "shows", "updates"];

/// Members of `options`.
const OPTIONS: [&str; 3] = ["include_design", "local_seq", "partitioned"];

/// CouchDB's built-in reduce functions. A name may have a suffix.
const REDUCES: [&str; 6] = ["_sum", "_count", "_stats", "_approx_count_distinct", "_first", "_last"];

/// Built-in reduce functions whose name ends with a number, and that number's maximum.
const COUNTED_REDUCES: [&str; 2] = ["_top_", "_bottom_"];
/// Largest number of values of `_top_N` and `_bottom_N`.
const REDUCE_COUNT_MAX: u32 = 100;

/// Checks the members of a design document, given as a document's body without braces.
///
/// # Errors
/// `InvalidDesignDoc`, with CouchDB's reason.
pub(crate) fn check(body: &[u8]) -> Result<()> {
    let text = in_braces(body);
    let document = members(&text)?;
    let language = member(&document, "language");
    for name in FUNCTIONS {
        if let Some(functions) = object(&document, name, "")? {
            for (function, value) in &functions.0 {
                expect(value, &[JsonType::String, JsonType::Object], &format!("{name}.{function}"))?;
            }
        }
    }
    check_member(&document, "language", &[JsonType::String], "")?;
    if let Some(options) = object(&document, "options", "")? {
        OPTIONS.iter().try_for_each(|name| check_member(&options, name, &[JsonType::Boolean], "options."))?;
    }
    check_member(&document, "rewrites", &[JsonType::Array, JsonType::String], "")?;
    check_member(&document, VALIDATION, &[JsonType::String], "")?;
    match object(&document, "views", "")? {
        Some(views) => check_views(&views, language.and_then(json::string).as_deref()),
        None => Ok(()),
    }
}

/// Whether a design document, given as a body without braces, has a function that checks writes.
pub(crate) fn has_validation(body: &[u8]) -> Result<bool> {
    // Most have none, and nothing is parsed then: names in a stored body have no unnecessary escapes.
    if memchr::memmem::find(body, VALIDATION.as_bytes()).is_none() {
        return Ok(false);
    }
    let text = in_braces(body);
    let is_function = |value: &&RawValue| JsonType::of(value) == JsonType::String;
    Ok(member(&members(&text)?, VALIDATION).filter(is_function).is_some())
}

/// The JavaScript functions of the views of a design document, given as a body without braces and of the right
/// types: map before reduce functions of each view. Built-in reduce functions are left out.
pub(crate) fn view_functions(body: &[u8]) -> Result<Vec<ViewFunction>> {
    let text = in_braces(body);
    let document = members(&text)?;
    let language = member(&document, "language").and_then(json::string);
    let mut functions = Vec::new();
    if !matches!(language.as_deref(), None | Some("javascript")) {
        return Ok(functions);
    }
    let Some(views) = object(&document, "views", "")? else { return Ok(functions) };
    for (name, value) in views.0.iter().filter(|(name, _)| *name != "lib") {
        let view = members(value.get().as_bytes())?;
        for (kind, is_reduce) in [("map", false), ("reduce", true)] {
            let source = member(&view, kind).and_then(json::string);
            if let Some(source) = source.filter(|source| !is_reduce || !source.starts_with('_')) {
                let (view, source) = (name.clone().into_owned(), source.into_owned());
                functions.push(ViewFunction { view, is_reduce, source });
            }
        }
    }
    Ok(functions)
}

/// Largest number of members of an object in a design document.
const MEMBERS_MAX: usize = 10_000;

/// An object's members in order.
struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

fn members(text: &[u8]) -> Result<Members<'_>> {
    let mut members = Vec::new();
    json::members(text, |name, value| {
        if members.len() == MEMBERS_MAX {
            return Err(invalid(format!("An object has at most {MEMBERS_MAX} members.")));
        }
        members.push((name, value));
        Ok(())
    })?;
    Ok(Members(members))
}

fn in_braces(body: &[u8]) -> Vec<u8> {
    [b"{", body, b"}"].concat()
}

fn check_views(views: &Members<'_>, language: Option<&str>) -> Result<()> {
    let map = if language == Some("query") { JsonType::Object } else { JsonType::String };
    let mut found = Vec::with_capacity(views.0.len());
    for (name, value) in &views.0 {
        let path = format!("views.{name}");
        expect(value, &[JsonType::Object], &path)?;
        found.push((name, members(value.get().as_bytes())?));
    }
    for (member, kind) in [("map", map), ("reduce", JsonType::String)] {
        for (name, view) in &found {
            check_member(view, member, &[kind], &format!("views.{name}."))?;
        }
    }
    for (name, view) in found.iter().filter(|(name, _)| **name != "lib") {
        if member(view, "map").is_none() {
            return Err(invalid(format!("View `{name}` must contain map function")));
        }
        // The reduce functions of other languages are not known here.
        if matches!(language, None | Some("javascript")) {
            check_reduce(view)?;
        }
    }
    Ok(())
}

/// Checks that a built-in reduce function exists.
fn check_reduce(view: &Members<'_>) -> Result<()> {
    let Some(name) = member(view, "reduce").and_then(json::string).filter(|text| text.starts_with('_'))
    else {
        return Ok(());
    };
    let counted = COUNTED_REDUCES.iter().find_map(|prefix| name.strip_prefix(prefix));
    let is_known = match counted {
        Some(count) => count.parse().is_ok_and(|count: u32| (1..=REDUCE_COUNT_MAX).contains(&count)),
        None => REDUCES.iter().any(|known| name.starts_with(known)),
    };
    match is_known {
        true => Ok(()),
        false => Err(invalid(format!("`{name}` is not a supported reduce function."))),
    }
}

/// The members of a member, which must be an object if it exists.
fn object<'a>(parent: &Members<'a>, name: &str, path: &str) -> Result<Option<Members<'a>>> {
    check_member(parent, name, &[JsonType::Object], path)?;
    member(parent, name).map(|value| members(value.get().as_bytes())).transpose()
}

/// The first member with this name, as CouchDB looks members up.
fn member<'a>(members: &Members<'a>, name: &str) -> Option<&'a RawValue> {
    members.0.iter().find(|(found, _)| found == name).map(|(_, value)| *value)
}

fn check_member(parent: &Members<'_>, name: &str, kinds: &[JsonType], path: &str) -> Result<()> {
    match member(parent, name) {
        Some(value) => expect(value, kinds, &format!("{path}{name}")),
        None => Ok(()),
    }
}

fn expect(value: &RawValue, kinds: &[JsonType], path: &str) -> Result<()> {
    if kinds.contains(&JsonType::of(value)) {
        return Ok(());
    }
    let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
    Err(invalid(format!("`{path}` field must have {} type", names.join(" or "))))
}

fn invalid(reason: String) -> Error {
    Error::new(ErrorKind::InvalidDesignDoc, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(text: &str) -> Option<String> {
        let body = text.trim_start_matches('{').strip_suffix('}').unwrap();
        check(body.as_bytes()).err().map(|error| {
            assert_eq!(error.kind(), ErrorKind::InvalidDesignDoc, "{error}");
            error.to_string()
        })
    }

    #[test]
    fn each_member_has_the_types_of_couchdb() {
        let cases = [
            (r#"{"views":"x"}"#, "`views` field must have object type"),
            (r#"{"views":null}"#, "`views` field must have object type"),
            (r#"{"views":{"a":1}}"#, "`views.a` field must have object type"),
            (r#"{"views":{"lib":"x"}}"#, "`views.lib` field must have object type"),
            (r#"{"views":{"a":{"map":null}}}"#, "`views.a.map` field must have string type"),
            (r#"{"views":{"a":{"map":{}}}}"#, "`views.a.map` field must have string type"),
            (r#"{"views":{"a":{"map":"f","reduce":[]}}}"#, "`views.a.reduce` field must have string type"),
            (r#"{"views":{"a":{}}}"#, "View `a` must contain map function"),
            (r#"{"views":{"a":{"map":"f"},"b":{"reduce":"_sum"}}}"#, "View `b` must contain map function"),
            (r#"{"views":{"a":{"map":"f","reduce":"_foo"}}}"#, "`_foo` is not a supported reduce function."),
            (
                r#"{"views":{"a":{"map":"f","reduce":"_top_0"}}}"#,
                "`_top_0` is not a supported reduce function.",
            ),
            (
                r#"{"language":"query","views":{"a":{"map":"f"}}}"#,
                "`views.a.map` field must have object type",
            ),
            (r#"{"language":1}"#, "`language` field must have string type"),
            (r#"{"filters":[]}"#, "`filters` field must have object type"),
            (r#"{"filters":{"a":"f","b":true}}"#, "`filters.b` field must have string or object type"),
            (r#"{"lists":{"a":null}}"#, "`lists.a` field must have string or object type"),
            (r#"{"shows":1}"#, "`shows` field must have object type"),
            (r#"{"updates":{"a":[]}}"#, "`updates.a` field must have string or object type"),
            (r#"{"options":"x"}"#, "`options` field must have object type"),
            (r#"{"options":{"local_seq":1}}"#, "`options.local_seq` field must have boolean type"),
            (
                r#"{"options":{"include_design":"true"}}"#,
                "`options.include_design` field must have boolean type",
            ),
            (r#"{"options":{"partitioned":null}}"#, "`options.partitioned` field must have boolean type"),
            (r#"{"rewrites":{}}"#, "`rewrites` field must have array or string type"),
            (r#"{"validate_doc_update":{}}"#, "`validate_doc_update` field must have string type"),
        ];
        for (text, expected) in cases {
            assert_eq!(reason(text).as_deref(), Some(expected), "{text}");
        }
    }

    #[test]
    fn documents_that_couchdb_accepts_are_accepted() {
        for text in [
            "{}",
            r#"{"anything":1,"views":{}}"#,
            r#"{"views":{"lib":{"m":"exports.x=1"},"a":{"map":"f","reduce":"_sumx","options":{}}}}"#,
            r#"{"views":{"a":{"map":"f","reduce":"_top_100"},"b":{"map":"f","reduce":"function(){}"}}}"#,
            r#"{"language":"query","views":{"a":{"map":{"fields":{}},"reduce":"_count"}}}"#,
            r#"{"language":"erlang","views":{"a":{"map":"f","reduce":"_own"}}}"#,
            r#"{"filters":{"a":"f","b":{}},"lists":{},"shows":{"s":"f"},"updates":{"u":"f"}}"#,
            r#"{"rewrites":[],"options":{"include_design":true,"local_seq":false,"x":1},"autoupdate":false}"#,
            r#"{"rewrites":"function(){}","validate_doc_update":"function(){}"}"#,
        ] {
            assert_eq!(reason(text), None, "{text}");
        }
    }

    #[test]
    fn a_validation_function_is_found() {
        for (body, expected) in [
            ("", false),
            (r#""a":1"#, false),
            (r#""validate_doc_update":"function(){}""#, true),
            (r#""a":{"validate_doc_update":"f"}"#, false),
            (r#""a":"\u0061","v":1"#, false),
            (r#""validate_doc_update":1"#, false),
        ] {
            assert_eq!(has_validation(body.as_bytes()).unwrap(), expected, "{body}");
        }
    }
}
