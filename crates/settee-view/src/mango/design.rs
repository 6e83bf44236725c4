//! Indexes in design documents: the list of a document's indexes, and edits of a document's members.
//!
//! A design document is given, and returned, as the JSON text of an object.

use super::error::{MangoError, MangoErrorKind, shown};
use super::index::{IndexDefinition, NewIndex};
use super::limits::{BULK_DELETE_MAX, INDEXES_MAX};
use super::request::{each_member, missing_key, positive, unknown_key};
use super::text::{self, Kind};

/// The `language` of design documents with indexes.
const LANGUAGE: &str = "\"query\"";

/// What becomes of a design document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DesignEdit {
    /// It stays as it is.
    Unchanged,
    /// It gets these members: the JSON text of an object.
    Changed(String),
    /// It is deleted.
    Deleted,
}

/// The indexes in a design document of a database that `is_partitioned` or not, in the order of its views.
///
/// # Errors
/// `Internal` if the list would exceed [`INDEXES_MAX`].
pub fn indexes_of(
    id: &str,
    design: &str,
    is_partitioned: bool,
    list: &mut Vec<IndexDefinition>,
) -> Result<(), MangoError> {
    let Some(members) = text::members(design) else { return Ok(()) };
    if value(&members, "language") != Some(LANGUAGE) {
        return Ok(());
    }
    let partitioned = partitioned_option(&members).unwrap_or(is_partitioned);
    for (name, view) in value(&members, "views").and_then(text::members).unwrap_or_default() {
        let Some(definition) = IndexDefinition::of_view(id, &name, view, partitioned) else { continue };
        if list.len() == INDEXES_MAX {
            return Err(MangoError {
                kind: MangoErrorKind::Internal,
                error: "too_many_indexes",
                reason: format!("The database has more than {INDEXES_MAX} indexes."),
            });
        }
        list.push(definition);
    }
    Ok(())
}

/// Appends the JSON text of the list of `indexes`, sorted, and the built-in index of ids, from the index number
/// `skip` on and at most `limit` of them.
pub fn write_index_list(indexes: &[IndexDefinition], skip: usize, limit: usize) -> String {
    let rows = std::iter::once(ALL_DOCS.to_owned()).chain(indexes.iter().map(IndexDefinition::to_json));
    let rows = text::array(rows.skip(skip).take(limit));
    format!("{{\"total_rows\":{},\"indexes\":{rows}}}", indexes.len() + 1)
}

/// The row of the built-in index of ids.
pub(super) const ALL_DOCS: &str =
    "{\"ddoc\":null,\"name\":\"_all_docs\",\"type\":\"special\",\"def\":{\"fields\":[{\"_id\":\"asc\"}]}}";

/// Adds an index to a design document, which may be missing. It replaces one of the same name.
///
/// # Errors
/// `invalid_ddoc_lang` if the design document has another language; `invalid_partitioned_option` if it has
/// another `options.partitioned`.
pub fn add_index(design: Option<&str>, new: &NewIndex) -> Result<DesignEdit, MangoError> {
    let (name, view) = (text::quoted(&new.definition.name), new.definition.view());
    let Some(design) = design else {
        let options = match new.partitioned {
            Some(partitioned) => format!(",\"options\":{{\"partitioned\":{partitioned}}}"),
            None => String::new(),
        };
        let changed = format!("{{\"language\":{LANGUAGE},\"views\":{{{name}:{view}}}{options}}}");
        return Ok(DesignEdit::Changed(changed));
    };
    let mut members = text::members(design).unwrap_or_default();
    check_language(value(&members, "language"))?;
    if partitioned_option(&members) != new.partitioned {
        let reason = format!(
            "Requested partitioned option does not match existing value on design document {}",
            new.definition.ddoc
        );
        return Err(MangoError::new("invalid_partitioned_option", reason));
    }
    let mut views = value(&members, "views").and_then(text::members).unwrap_or_default();
    match views.iter_mut().find(|(known, _)| *known == new.definition.name) {
        Some((_, known)) if *known == view => return Ok(DesignEdit::Unchanged),
        Some((_, known)) => *known = &view,
        None => views.push((new.definition.name.clone(), &view)),
    }
    let views = object(&views);
    match members.iter_mut().find(|(name, _)| name == "views") {
        Some((_, known)) => *known = &views,
        None => members.push(("views".to_owned(), &views)),
    }
    Ok(DesignEdit::Changed(object(&members)))
}

/// Removes an index from a design document, or all of them if `name` is `None`. A design document without
/// anything else is deleted.
pub fn remove_indexes(design: &str, name: Option<&str>) -> DesignEdit {
    let mut members = text::members(design).unwrap_or_default();
    let mut views = value(&members, "views").and_then(text::members).unwrap_or_default();
    let count = views.len();
    let is_removed = |view: &str, known: &str| match name {
        Some(name) => known == name,
        None => IndexDefinition::of_view("", known, view, false).is_some(),
    };
    views.retain(|(known, view)| !is_removed(view, known));
    if views.len() == count {
        return DesignEdit::Unchanged;
    }
    let text = object(&views);
    match views.is_empty() {
        true => members.retain(|(name, _)| name != "views"),
        false => members.iter_mut().filter(|(name, _)| name == "views").for_each(|(_, known)| *known = &text),
    }
    let is_bare =
        |(name, value): &(String, &str)| name.starts_with('_') || (name == "language" && *value == LANGUAGE);
    match members.iter().all(is_bare) {
        true => DesignEdit::Deleted,
        false => DesignEdit::Changed(object(&members)),
    }
}

/// Parses the body of a bulk deletion: ids of design documents, with or without `_design/`.
///
/// # Errors
/// `missing_required_key`, `invalid_bulk_docs`, `invalid_index_name`, `invalid_key`.
pub fn parse_bulk_delete(body: &[u8]) -> Result<Vec<String>, MangoError> {
    let (mut list, mut unknown) = (None, None);
    each_member(body, |member, value| {
        match member {
            "docids" => list = Some(value),
            "w" => drop(positive(value)?),
            _ if unknown.is_none() => unknown = Some(member.to_owned()),
            _ => {}
        }
        Ok(())
    })?;
    let list = list.ok_or_else(|| missing_key("docids"))?;
    let elements = text::elements(list, BULK_DELETE_MAX).ok_or_else(|| {
        let reason = format!("Bulk Delete requires an array of non-null docids. Docids: {}", shown(list));
        MangoError::new("invalid_bulk_docs", reason)
    })?;
    let id = |element: &str| {
        let invalid =
            || MangoError::new("invalid_index_name", format!("Invalid index name: {}", shown(element)));
        text::string(element).ok_or_else(invalid)
    };
    let ids = elements.into_iter().map(id).collect::<Result<_, _>>()?;
    match unknown {
        Some(unknown) => Err(unknown_key(&unknown)),
        None => Ok(ids),
    }
}

fn check_language(language: Option<&str>) -> Result<(), MangoError> {
    match language {
        Some(LANGUAGE) => Ok(()),
        other => {
            let other = shown(other.unwrap_or("null"));
            let reason = format!("Existing design doc has an invalid language: {other}");
            Err(MangoError::new("invalid_ddoc_lang", reason))
        }
    }
}

fn partitioned_option(members: &[(String, &str)]) -> Option<bool> {
    let options = value(members, "options").filter(|options| text::kind(options) == Kind::Object)?;
    match text::member(options, "partitioned")? {
        "true" => Some(true),
        "false" => Some(false),
        _ => None,
    }
}

fn value<'a>(members: &[(String, &'a str)], name: &str) -> Option<&'a str> {
    members.iter().find(|(known, _)| known == name).map(|(_, value)| *value)
}

/// An object's JSON text.
fn object(members: &[(String, &str)]) -> String {
    let texts: Vec<String> =
        members.iter().map(|(name, value)| format!("{}:{value}", text::quoted(name))).collect();
    format!("{{{}}}", texts.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(body: &str) -> NewIndex {
        NewIndex::parse(body.as_bytes(), false).unwrap()
    }

    fn changed(edit: Result<DesignEdit, MangoError>) -> String {
        match edit.unwrap() {
            DesignEdit::Changed(text) => text,
            other => panic!("{other:?}"),
        }
    }

    const ONE: &str = r#"{"index":{"fields":["n"]},"ddoc":"d","name":"i"}"#;
    const VIEW: &str = r#"{"map":{"fields":{"n":"asc"},"partial_filter_selector":{}},"reduce":"_count","options":{"def":{"fields":["n"]}}}"#;

    #[test]
    fn an_index_is_created_once_and_replaced_by_other_fields() {
        let created = changed(add_index(None, &new(ONE)));
        assert_eq!(created, format!(r#"{{"language":"query","views":{{"i":{VIEW}}}}}"#));
        assert_eq!(add_index(Some(&created), &new(ONE)).unwrap(), DesignEdit::Unchanged);
        let other = new(r#"{"index":{"fields":["m"]},"ddoc":"d","name":"i"}"#);
        let replaced = changed(add_index(Some(&created), &other));
        assert!(replaced.contains(r#"{"m":"asc"}"#) && !replaced.contains(r#"{"n":"asc"}"#), "{replaced}");
        let second = new(r#"{"index":{"fields":["m"]},"ddoc":"d","name":"j"}"#);
        let both = changed(add_index(Some(&created), &second));
        let mut list = Vec::new();
        indexes_of("_design/d", &both, false, &mut list).unwrap();
        assert_eq!(list.iter().map(|index| index.name.as_str()).collect::<Vec<_>>(), ["i", "j"]);
    }

    #[test]
    fn another_language_or_partitioning_is_refused() {
        let error = |design: &str| add_index(Some(design), &new(ONE)).unwrap_err();
        assert_eq!(error(r#"{"language":"javascript"}"#).error, "invalid_ddoc_lang");
        assert_eq!(error("{}").error, "invalid_ddoc_lang");
        let partitioned = r#"{"language":"query","options":{"partitioned":true}}"#;
        assert_eq!(error(partitioned).error, "invalid_partitioned_option");
        let body = r#"{"index":{"fields":["n"]},"ddoc":"d","name":"i","partitioned":true}"#;
        let design = changed(add_index(None, &new(body)));
        assert!(design.ends_with(r#","options":{"partitioned":true}}"#), "{design}");
        let mut list = Vec::new();
        indexes_of("_design/d", &design, false, &mut list).unwrap();
        assert!(list[0].partitioned);
    }

    #[test]
    fn an_emptied_design_document_is_deleted_and_others_are_kept() {
        let created = changed(add_index(None, &new(ONE)));
        assert_eq!(remove_indexes(&created, Some("i")), DesignEdit::Deleted);
        assert_eq!(remove_indexes(&created, None), DesignEdit::Deleted);
        assert_eq!(remove_indexes(&created, Some("j")), DesignEdit::Unchanged);
        let with_more = created.replace("{\"language\"", "{\"_id\":\"_design/d\",\"more\":[1],\"language\"");
        let left = changed(Ok(remove_indexes(&with_more, Some("i"))));
        assert_eq!(left, r#"{"_id":"_design/d","more":[1],"language":"query"}"#);
        let second = new(r#"{"index":{"fields":["m"]},"ddoc":"d","name":"j"}"#);
        let both = changed(add_index(Some(&created), &second));
        assert_eq!(changed(Ok(remove_indexes(&both, Some("j")))), created);
    }

    #[test]
    fn only_design_documents_of_the_query_language_have_indexes() {
        let mut list = Vec::new();
        let javascript = format!(r#"{{"language":"javascript","views":{{"i":{VIEW}}}}}"#);
        for design in [javascript.as_str(), "{}", "[]", r#"{"language":"query","views":{"i":{"map":"x"}}}"#] {
            indexes_of("_design/d", design, false, &mut list).unwrap();
        }
        assert!(list.is_empty());
        assert_eq!(write_index_list(&list, 0, 9), format!(r#"{{"total_rows":1,"indexes":[{ALL_DOCS}]}}"#));
    }

    #[test]
    fn bulk_deletions_name_design_documents() {
        let parse = |body: &str| parse_bulk_delete(body.as_bytes());
        assert_eq!(parse(r#"{"docids":["a","_design/b"],"w":2}"#).unwrap(), ["a", "_design/b"]);
        let error = |body: &str| parse(body).unwrap_err().error;
        assert_eq!(error("{}"), "missing_required_key");
        assert_eq!(error(r#"{"docids":"a"}"#), "invalid_bulk_docs");
        assert_eq!(error(r#"{"docids":[1]}"#), "invalid_index_name");
        assert_eq!(error(r#"{"docids":[],"x":1}"#), "invalid_key");
    }

    #[test]
    fn the_number_of_indexes_is_limited() {
        let views: Vec<String> = (0..=INDEXES_MAX).map(|n| format!("\"v{n}\":{VIEW}")).collect();
        let design = format!(r#"{{"language":"query","views":{{{}}}}}"#, views.join(","));
        let mut list = Vec::new();
        let error = indexes_of("_design/d", &design, false, &mut list).unwrap_err();
        assert_eq!((error.kind, list.len()), (MangoErrorKind::Internal, INDEXES_MAX));
    }
}
