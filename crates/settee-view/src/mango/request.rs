//! Requests of `_find` and `_explain`.

use settee_doc::{Fields, JsonError, Selector};

use super::error::{MangoError, shown};
use super::limits::{COLUMNS_MAX, LIMIT_DEFAULT};
use super::normal::Normal;
use super::text::{self, Kind};

/// The body of a `_find` or `_explain` request.
#[derive(Debug, Clone)]
pub struct FindRequest {
    /// What documents are matched with.
    pub selector: Selector,
    /// The selector in normal form.
    pub normal: Normal,
    /// The requested design document, without `_design/`, and the index in it; either may be missing.
    pub use_index: Vec<String>,
    /// The bookmark, which isn't decoded yet.
    pub bookmark: Option<String>,
    /// Largest number of results.
    pub limit: u64,
    /// Number of results left out first.
    pub skip: u64,
    /// The names of the fields to sort by.
    pub sort: Vec<String>,
    /// Whether the results descend.
    pub descending: bool,
    /// The fields to show; `None` for all.
    pub fields: Option<Fields>,
    /// Their names.
    pub field_names: Vec<String>,
    /// The partition to search.
    pub partition: Option<String>,
    /// The number of copies to read.
    pub copies: u64,
    /// Whether documents show their `_conflicts`.
    pub conflicts: bool,
    /// `stale=ok`: an index is not brought up to date.
    pub stale: bool,
    /// Whether an index is brought up to date.
    pub update: bool,
    /// `stable`, which has no effect with one copy.
    pub stable: bool,
    /// Whether the response has statistics.
    pub execution_stats: bool,
    /// Whether another index than the requested one may be used.
    pub allow_fallback: bool,
}

/// The members of a request, as JSON texts.
#[derive(Default)]
struct Members<'a> {
    selector: Option<&'a str>,
    use_index: Option<&'a str>,
    bookmark: Option<&'a str>,
    limit: Option<&'a str>,
    skip: Option<&'a str>,
    sort: Option<&'a str>,
    fields: Option<&'a str>,
    partition: Option<&'a str>,
    copies: Option<&'a str>,
    conflicts: Option<&'a str>,
    stale: Option<&'a str>,
    update: Option<&'a str>,
    stable: Option<&'a str>,
    execution_stats: Option<&'a str>,
    allow_fallback: Option<&'a str>,
    /// The first member that isn't one of these.
    unknown: Option<String>,
}

impl FindRequest {
    /// Parses the body of a `_find` or `_explain` request.
    ///
    /// # Errors
    /// The first error in the order in which CouchDB checks the members; an unknown member is the last.
    pub fn parse(body: &[u8]) -> Result<FindRequest, MangoError> {
        let members = Members::parse(body)?;
        let selector = members.selector.ok_or_else(|| missing_key("selector"))?;
        if text::kind(selector) != Kind::Object {
            let reason = format!("Selector must be a JSON object, not: {}", shown(selector));
            return Err(MangoError::new("invalid_selector_json", reason));
        }
        let parsed = Selector::parse_for_find(selector)?;
        let use_index = members.use_index.map_or(Ok(Vec::new()), use_index)?;
        let bookmark = members.bookmark.map_or(Ok(None), bookmark)?;
        let limit = members.limit.map_or(Ok(LIMIT_DEFAULT), non_negative)?;
        let skip = members.skip.map_or(Ok(0), non_negative)?;
        let (sort, descending) = match members.sort {
            Some(sort) => {
                let columns = sort_fields(sort)?;
                let descending = columns.first().is_some_and(|(_, descending)| *descending);
                (columns.into_iter().map(|(name, _)| name).collect(), descending)
            }
            None => (Vec::new(), false),
        };
        let (fields, field_names) = members.fields.map_or(Ok((None, Vec::new())), fields)?;
        let partition = members.partition.map_or(Ok(None), partition)?;
        let copies = members.copies.map_or(Ok(1), positive)?;
        let conflicts = members.conflicts.map_or(Ok(false), boolean)?;
        let stale = members.stale.map_or(Ok(false), stale)?;
        let update = members.update.map_or(Ok(true), boolean)?;
        let stable = members.stable.map_or(Ok(false), boolean)?;
        let execution_stats = members.execution_stats.map_or(Ok(false), boolean)?;
        let allow_fallback = members.allow_fallback.map_or(Ok(true), boolean)?;
        if let Some(name) = &members.unknown {
            return Err(unknown_key(name));
        }
        Ok(FindRequest {
            selector: parsed,
            normal: Normal::of(selector),
            use_index,
            bookmark,
            limit,
            skip,
            sort,
            descending,
            fields,
            field_names,
            partition,
            copies,
            conflicts,
            stale,
            update,
            stable,
            execution_stats,
            allow_fallback,
        })
    }

    /// The names of the fields that the results are made from: shown and in the selector. `None` for all.
    pub fn required_fields(&self) -> Option<Vec<&str>> {
        self.fields.as_ref()?;
        let mut names: Vec<&str> = self.field_names.iter().map(String::as_str).collect();
        names.extend(self.normal.fields());
        names.sort_unstable();
        names.dedup();
        Some(names)
    }
}

impl<'a> Members<'a> {
    fn parse(body: &'a [u8]) -> Result<Members<'a>, MangoError> {
        let (mut members, mut unknown) = (Members::default(), None);
        each_member(body, |name, value| {
            match members.place(name) {
                Some(place) => *place = Some(value),
                None if unknown.is_none() => unknown = Some(name.to_owned()),
                None => {}
            }
            Ok(())
        })?;
        Ok(Members { unknown, ..members })
    }

    fn place(&mut self, name: &str) -> Option<&mut Option<&'a str>> {
        Some(match name {
            "selector" => &mut self.selector,
            "use_index" => &mut self.use_index,
            "bookmark" => &mut self.bookmark,
            "limit" => &mut self.limit,
            "skip" => &mut self.skip,
            "sort" => &mut self.sort,
            "fields" => &mut self.fields,
            "partition" => &mut self.partition,
            "r" => &mut self.copies,
            "conflicts" => &mut self.conflicts,
            "stale" => &mut self.stale,
            "update" => &mut self.update,
            "stable" => &mut self.stable,
            "execution_stats" => &mut self.execution_stats,
            "allow_fallback" => &mut self.allow_fallback,
            _ => return None,
        })
    }
}

/// Calls `take` with each member of a request's body.
pub(super) fn each_member<'a>(
    body: &'a [u8],
    mut take: impl FnMut(&str, &'a str) -> Result<(), MangoError>,
) -> Result<(), MangoError> {
    let walked = settee_doc::each_json_member(body, |name, value| take(&name, value.get()));
    walked.map_err(|error| match error {
        JsonError::Refused(error) => error,
        JsonError::OtherKind => MangoError::no_object(),
        JsonError::Syntax => MangoError::bad_json(),
    })?;
    settee_doc::check_tokens(body).map_err(|error| MangoError::new("bad_request", error.to_string()))
}

pub(super) fn missing_key(name: &str) -> MangoError {
    MangoError::new("missing_required_key", format!("Missing required key: {name}"))
}

pub(super) fn unknown_key(name: &str) -> MangoError {
    MangoError::new("invalid_key", format!("Invalid key {} for this request.", shown(name)))
}

fn use_index(json: &str) -> Result<Vec<String>, MangoError> {
    let invalid = || MangoError::new("invalid_index_name", format!("Invalid index name: {}", shown(json)));
    match text::kind(json) {
        Kind::Null => Ok(Vec::new()),
        Kind::Text => {
            let name = text::string(json).ok_or_else(invalid)?;
            let name = name.strip_prefix("_design/").unwrap_or(&name);
            Ok(name.splitn(2, '/').map(String::from).collect())
        }
        Kind::Array => {
            let mut names = Vec::new();
            for element in text::elements(json, 2).ok_or_else(invalid)? {
                names.push(text::string(element).ok_or_else(invalid)?);
            }
            if let Some(bare) = names.first().and_then(|name| name.strip_prefix("_design/")) {
                names[0] = bare.to_owned();
            }
            Ok(names)
        }
        _ => Err(invalid()),
    }
}

fn bookmark(json: &str) -> Result<Option<String>, MangoError> {
    match text::kind(json) {
        Kind::Null => Ok(None),
        Kind::Text => Ok(text::string(json).filter(|value| !value.is_empty())),
        _ => Err(MangoError::invalid_bookmark(json)),
    }
}

/// An integer's value if it isn't negative; more than `u64` holds is as much as it holds.
fn integer(json: &str) -> Option<u64> {
    if json == "-0" {
        return Some(0);
    }
    let is_integer = json.bytes().all(|byte| byte.is_ascii_digit());
    is_integer.then(|| json.parse().unwrap_or(u64::MAX))
}

fn non_negative(json: &str) -> Result<u64, MangoError> {
    let reason = || format!("{} is not an integer greater than or equal to zero", shown(json));
    integer(json).ok_or_else(|| MangoError::new("invalid_non_neg_integer", reason()))
}

pub(super) fn positive(json: &str) -> Result<u64, MangoError> {
    let reason = || format!("{} is not an integer greater than zero", shown(json));
    integer(json).filter(|value| *value > 0).ok_or_else(|| MangoError::new("invalid_pos_integer", reason()))
}

pub(super) fn boolean(json: &str) -> Result<bool, MangoError> {
    match json {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(MangoError::new("invalid_boolean", format!("Invalid boolean value: {}", shown(json)))),
    }
}

fn stale(json: &str) -> Result<bool, MangoError> {
    match json {
        "\"ok\"" => Ok(true),
        "\"false\"" | "false" => Ok(false),
        _ => Err(MangoError::new(
            "invalid_ok_or_false_value",
            format!("Invalid value for stale: {}", shown(json)),
        )),
    }
}

fn partition(json: &str) -> Result<Option<String>, MangoError> {
    let no_text = || MangoError::new("illegal_partition", "Partition must be a string");
    let partition = text::string(json).ok_or_else(no_text)?;
    Ok(Some(partition).filter(|partition| !partition.is_empty()))
}

fn fields(json: &str) -> Result<(Option<Fields>, Vec<String>), MangoError> {
    if text::kind(json) != Kind::Array {
        let reason = format!("Fields must be an array of strings, not: {}", shown(json));
        return Err(MangoError::new("invalid_fields", reason));
    }
    let fields = Fields::parse(json)?;
    let names = text::elements(json, usize::MAX).unwrap_or_default();
    Ok((fields, names.into_iter().filter_map(text::string).collect()))
}

/// Parses a sort: names of fields, and whether each descends.
///
/// # Errors
/// `invalid_sort_json`, `invalid_sort_field`, `unsupported_mixed_sort`.
pub(super) fn sort_fields(json: &str) -> Result<Vec<(String, bool)>, MangoError> {
    let no_list = || {
        let reason = format!("Sort must be an array of sort specs, not: {}", shown(json));
        MangoError::new("invalid_sort_json", reason)
    };
    if text::kind(json) != Kind::Array {
        return Err(no_list());
    }
    let too_many =
        || MangoError::new("invalid_sort_json", format!("At most {COLUMNS_MAX} fields are sorted by."));
    let elements = text::elements(json, COLUMNS_MAX).ok_or_else(too_many)?;
    let fields = elements.into_iter().map(sort_field).collect::<Result<Vec<_>, _>>()?;
    if fields.windows(2).any(|pair| pair[0].1 != pair[1].1) {
        let reason = "Sorts currently only support a single direction for all fields.";
        return Err(MangoError::new("unsupported_mixed_sort", reason));
    }
    Ok(fields)
}

fn sort_field(json: &str) -> Result<(String, bool), MangoError> {
    let invalid = || MangoError::new("invalid_sort_field", format!("Invalid sort field: {}", shown(json)));
    match text::kind(json) {
        Kind::Text => {
            let name = text::string(json).filter(|name| !name.is_empty()).ok_or_else(invalid)?;
            Ok((name, false))
        }
        Kind::Object => match &text::members(json).ok_or_else(invalid)?[..] {
            [(name, "\"asc\"")] => Ok((name.clone(), false)),
            [(name, "\"desc\"")] => Ok((name.clone(), true)),
            _ => Err(invalid()),
        },
        _ => Err(invalid()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(body: &str) -> Result<FindRequest, MangoError> {
        FindRequest::parse(body.as_bytes())
    }

    #[track_caller]
    fn refuses(member: &str, error: &str, reason: &str) {
        let body = format!("{{\"selector\":{{}},{member}}}");
        let found = parse(&body).unwrap_err();
        assert_eq!((found.error, found.reason.as_str()), (error, reason), "{body}");
    }

    #[test]
    fn defaults_are_couchdbs() {
        let request = parse("{\"selector\":{}}").unwrap();
        assert_eq!((request.limit, request.skip, request.copies), (25, 0, 1));
        assert!(request.update && request.allow_fallback);
        assert!(!request.conflicts && !request.stable && !request.stale && !request.execution_stats);
        assert!(request.fields.is_none() && request.sort.is_empty() && !request.descending);
        assert!(request.use_index.is_empty() && request.bookmark.is_none() && request.partition.is_none());
    }

    #[test]
    fn bodies_are_objects_with_a_selector() {
        let error = |body: &str| parse(body).unwrap_err();
        assert_eq!(error("[]").reason, "Request body must be a JSON object");
        assert_eq!(error("{").reason, "invalid UTF-8 JSON");
        let found = error("{\"limit\":\"x\",\"foo\":1}");
        assert_eq!(
            (found.error, found.reason.as_str()),
            ("missing_required_key", "Missing required key: selector")
        );
        for selector in ["[]", "1", "null", "\"x\""] {
            let found = error(&format!("{{\"selector\":{selector}}}"));
            assert_eq!(found.error, "invalid_selector_json");
            assert_eq!(found.reason, format!("Selector must be a JSON object, not: {selector}"));
        }
        assert_eq!(error("{\"selector\":{\"a\":{\"$foo\":1}}}").reason, "Invalid operator: $foo");
        assert_eq!(error("{\"selector\":{\"a\":{\"$in\":1}}}").reason, "Bad argument for operator $in: 1");
    }

    #[test]
    fn each_member_has_its_own_error() {
        refuses("\"foo\":1", "invalid_key", "Invalid key foo for this request.");
        for value in ["-1", "1.5", "\"1\"", "null", "1.0", "1e2"] {
            for name in ["limit", "skip"] {
                let reason = format!("{value} is not an integer greater than or equal to zero");
                refuses(&format!("\"{name}\":{value}"), "invalid_non_neg_integer", &reason);
            }
        }
        for name in ["conflicts", "update", "stable", "execution_stats", "allow_fallback"] {
            refuses(&format!("\"{name}\":\"true\""), "invalid_boolean", "Invalid boolean value: \"true\"");
        }
        refuses("\"r\":0", "invalid_pos_integer", "0 is not an integer greater than zero");
        refuses("\"fields\":{}", "invalid_fields", "Fields must be an array of strings, not: {}");
        refuses("\"fields\":[1]", "invalid_field", "Invalid JSON for field spec: 1");
        refuses("\"sort\":\"a\"", "invalid_sort_json", "Sort must be an array of sort specs, not: \"a\"");
        refuses("\"sort\":[1]", "invalid_sort_field", "Invalid sort field: 1");
        refuses("\"sort\":[\"\"]", "invalid_sort_field", "Invalid sort field: \"\"");
        refuses("\"sort\":[{\"a\":\"up\"}]", "invalid_sort_field", "Invalid sort field: {\"a\":\"up\"}");
        let mixed = "Sorts currently only support a single direction for all fields.";
        refuses("\"sort\":[\"a\",{\"b\":\"desc\"}]", "unsupported_mixed_sort", mixed);
        refuses("\"bookmark\":1", "invalid_bookmark", "Invalid bookmark value: 1");
        refuses("\"use_index\":1", "invalid_index_name", "Invalid index name: 1");
        refuses(
            "\"use_index\":[\"a\",\"b\",\"c\"]",
            "invalid_index_name",
            "Invalid index name: [\"a\",\"b\",\"c\"]",
        );
        refuses("\"stale\":\"yes\"", "invalid_ok_or_false_value", "Invalid value for stale: \"yes\"");
        refuses("\"partition\":1", "illegal_partition", "Partition must be a string");
    }

    #[test]
    fn errors_come_in_the_order_of_the_members_not_of_the_body() {
        refuses(
            "\"foo\":1,\"conflicts\":1,\"limit\":-1",
            "invalid_non_neg_integer",
            "-1 is not an integer greater than or equal to zero",
        );
        refuses("\"foo\":1,\"conflicts\":1", "invalid_boolean", "Invalid boolean value: 1");
    }

    #[test]
    fn indexes_are_named_in_four_ways() {
        let named =
            |value: &str| parse(&format!("{{\"selector\":{{}},\"use_index\":{value}}}")).unwrap().use_index;
        assert_eq!(named("\"D\""), ["D"]);
        assert_eq!(named("\"_design/D\""), ["D"]);
        assert_eq!(named("\"D/N\""), ["D", "N"]);
        assert_eq!(named("\"_design/D/N\""), ["D", "N"]);
        assert_eq!(named("[\"_design/D\",\"N\"]"), ["D", "N"]);
        assert_eq!(named("null"), Vec::<String>::new());
        assert_eq!(named("[]"), Vec::<String>::new());
    }

    #[test]
    fn sorts_have_one_direction() {
        let request = parse("{\"selector\":{},\"sort\":[{\"a\":\"desc\"},{\"b\":\"desc\"}]}").unwrap();
        assert_eq!((request.sort, request.descending), (vec!["a".to_owned(), "b".to_owned()], true));
        let request = parse("{\"selector\":{},\"sort\":[\"a\",{\"b\":\"asc\"}],\"bookmark\":\"\"}").unwrap();
        assert!(!request.descending && request.bookmark.is_none());
    }
}
