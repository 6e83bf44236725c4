//! Definitions of indexes, and documents' keys in them.

use settee_doc::{FieldPaths, Selector};

use super::error::{MangoError, MangoErrorKind, shown};
use super::limits::COLUMNS_MAX;
use super::normal::Normal;
use super::request::{boolean, each_member, missing_key, positive, sort_fields, unknown_key};
use super::text::{self, Kind};

/// Prefix of the ids of design documents.
pub const DESIGN: &str = "_design/";

/// Hexadecimal digits of a generated name.
const NAME_DIGITS: usize = 40;

/// The direction of a column, which is shown and has no other effect: an index is read in either direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// `asc`
    Ascending,
    /// `desc`
    Descending,
}

/// A JSON index of some fields of a database's documents.
#[derive(Debug, Clone)]
pub struct IndexDefinition {
    /// Id of its design document.
    pub ddoc: String,
    /// Its name.
    pub name: String,
    /// Whether its rows are those of one partition each.
    pub partitioned: bool,
    columns: Vec<(String, Direction)>,
    paths: FieldPaths,
    /// The partial filter; `None` if all documents are indexed.
    filter: Option<Filter>,
    /// `index` as it was requested, JSON text.
    pub(super) requested: String,
}

#[derive(Debug, Clone)]
struct Filter {
    selector: Selector,
    /// Its normal form, JSON text.
    shown: String,
}

/// The body of a POST to `_index`.
#[derive(Debug, Clone)]
pub struct NewIndex {
    /// The index; `partitioned` is that of the database unless requested.
    pub definition: IndexDefinition,
    /// `partitioned`, if it was requested.
    pub partitioned: Option<bool>,
}

impl NewIndex {
    /// Parses the body of a POST to `_index` of a database that `is_partitioned` or not.
    ///
    /// # Errors
    /// CouchDB's, in its order.
    pub fn parse(body: &[u8], is_partitioned: bool) -> Result<NewIndex, MangoError> {
        let [mut index, mut kind, mut name, mut ddoc, mut copies, mut partitioned] = [None; 6];
        let mut unknown = None;
        each_member(body, |member, value| {
            match member {
                "index" => index = Some(value),
                "type" => kind = Some(value),
                "name" => name = Some(value),
                "ddoc" => ddoc = Some(value),
                "w" => copies = Some(value),
                "partitioned" => partitioned = Some(value),
                _ if unknown.is_none() => unknown = Some(member.to_owned()),
                _ => {}
            }
            Ok(())
        })?;
        let index = index.ok_or_else(|| missing_key("index"))?;
        let kind = kind.map(string).transpose()?;
        let name = name.map(string).transpose()?;
        let ddoc = ddoc.map(string).transpose()?;
        copies.map(positive).transpose()?;
        let partitioned = partitioned.map(partitioned_value).transpose()?;
        if let Some(unknown) = unknown {
            return Err(unknown_key(&unknown));
        }
        check_type(kind.as_deref())?;
        let (columns, filter) = parse_definition(index)?;
        let requested = text::compact(index);
        let generated = || generated_name(&requested);
        let ddoc = ddoc.unwrap_or_else(generated);
        let ddoc = if ddoc.starts_with(DESIGN) { ddoc } else { format!("{DESIGN}{ddoc}") };
        let name = name.unwrap_or_else(generated);
        let definition = IndexDefinition {
            ddoc,
            name,
            partitioned: partitioned.unwrap_or(is_partitioned),
            paths: paths_of(&columns)?,
            columns,
            filter,
            requested,
        };
        Ok(NewIndex { definition, partitioned })
    }
}

impl IndexDefinition {
    /// Reads the view `view`, JSON text, of the design document `ddoc`; `None` if it defines no index.
    pub fn of_view(ddoc: &str, name: &str, view: &str, partitioned: bool) -> Option<IndexDefinition> {
        let map = text::member(view, "map").filter(|map| text::kind(map) == Kind::Object)?;
        let options = text::member(view, "options").filter(|options| text::kind(options) == Kind::Object)?;
        let requested = text::compact(text::member(options, "def").unwrap_or("{}"));
        let mut columns = Vec::new();
        for (name, direction) in text::members(text::member(map, "fields")?)? {
            let descending = direction == "\"desc\"";
            columns.push((name, if descending { Direction::Descending } else { Direction::Ascending }));
        }
        if columns.len() > COLUMNS_MAX {
            return None;
        }
        let filter = match text::member(map, "partial_filter_selector") {
            Some(filter) => parse_filter(filter).ok()?,
            None => None,
        };
        let paths = paths_of(&columns).ok()?;
        let (ddoc, name) = (ddoc.to_owned(), name.to_owned());
        Some(IndexDefinition { ddoc, name, partitioned, columns, paths, filter, requested })
    }

    /// The names of its columns.
    pub fn columns(&self) -> impl ExactSizeIterator<Item = &str> {
        self.columns.iter().map(|(name, _)| name.as_str())
    }

    /// Whether only documents that match a selector are indexed.
    pub fn is_partial(&self) -> bool {
        self.filter.is_some()
    }

    /// Whether `fields` can be shown without reading documents. `None`, all fields, never can.
    pub fn covers<'a>(&self, fields: Option<impl IntoIterator<Item = &'a str>>) -> bool {
        let has = |field: &str| field == "_id" || self.columns().any(|column| column == field);
        fields.is_some_and(|fields| fields.into_iter().all(has))
    }

    /// The key of a document, given as JSON text with `_id`: an array of its values in the columns. `None` if the
    /// document lacks one of them, doesn't match the partial filter, or is a design document.
    pub fn row(&self, document: &str) -> Option<String> {
        let is_design = |id: String| id.starts_with(DESIGN);
        if text::member(document, "_id").and_then(text::string).is_some_and(is_design) {
            return None;
        }
        let values = self.paths.values(document)?;
        if self.filter.as_ref().is_some_and(|filter| !filter.selector.matches_json(document)) {
            return None;
        }
        Some(text::array(values.into_iter().map(text::compact)))
    }

    /// The view that defines it, JSON text.
    pub fn view(&self) -> String {
        let filter = self.filter.as_ref().map_or("{}", |filter| &filter.shown);
        format!(
            "{{\"map\":{{\"fields\":{{{}}},\"partial_filter_selector\":{filter}}},\"reduce\":\"_count\",\
             \"options\":{{\"def\":{}}}}}",
            self.shown_columns(|name, direction| format!("{name}:{direction}")),
            self.requested
        )
    }

    /// Its row in the list of indexes, JSON text.
    pub fn to_json(&self) -> String {
        let columns = self.shown_columns(|name, direction| format!("{{{name}:{direction}}}"));
        let filter = match &self.filter {
            Some(filter) => format!(",\"partial_filter_selector\":{}", filter.shown),
            None => String::new(),
        };
        let (ddoc, name) = (text::quoted(&self.ddoc), text::quoted(&self.name));
        format!(
            "{{\"ddoc\":{ddoc},\"name\":{name},\"type\":\"json\",\"partitioned\":{},\
             \"def\":{{\"fields\":[{columns}]{filter}}}}}",
            self.partitioned
        )
    }

    fn shown_columns(&self, show: impl Fn(&str, &str) -> String) -> String {
        let texts = self.columns.iter().map(|(name, direction)| {
            let direction = match direction {
                Direction::Ascending => "\"asc\"",
                Direction::Descending => "\"desc\"",
            };
            show(&text::quoted(name), direction)
        });
        texts.collect::<Vec<_>>().join(",")
    }
}

fn string(json: &str) -> Result<String, MangoError> {
    text::string(json)
        .ok_or_else(|| MangoError::new("invalid_string", format!("Invalid string: {}", shown(json))))
}

fn partitioned_value(json: &str) -> Result<bool, MangoError> {
    let reason = || format!("Invalid value for partitioned: {}", shown(json));
    boolean(json).map_err(|_| MangoError::new("invalid_partitioned_value", reason()))
}

fn check_type(kind: Option<&str>) -> Result<(), MangoError> {
    match kind {
        None | Some("json") => Ok(()),
        Some(kind @ ("text" | "nouveau")) => Err(MangoError {
            kind: MangoErrorKind::Unavailable,
            error: "required index service unavailable",
            reason: kind.to_owned(),
        }),
        Some(kind) => {
            Err(MangoError::new("invalid_index", format!("Invalid type for index: {}", shown(kind))))
        }
    }
}

type Columns = Vec<(String, Direction)>;

fn parse_definition(index: &str) -> Result<(Columns, Option<Filter>), MangoError> {
    if text::kind(index) != Kind::Object {
        let reason = format!("JSON indexes must be an object, not: {}", shown(index));
        return Err(MangoError::new("invalid_index", reason));
    }
    let (mut fields, mut filter, mut unknown) = (None, None, None);
    each_member(index.as_bytes(), |member, value| {
        match member {
            "fields" => fields = Some(value),
            "partial_filter_selector" => filter = Some(value),
            _ if unknown.is_none() => unknown = Some(member.to_owned()),
            _ => {}
        }
        Ok(())
    })?;
    let sorted = sort_fields(fields.ok_or_else(|| missing_key("fields"))?)?;
    let filter = filter.map_or(Ok(None), parse_filter)?;
    if let Some(unknown) = unknown {
        return Err(unknown_key(&unknown));
    }
    let direction = |descending| if descending { Direction::Descending } else { Direction::Ascending };
    Ok((sorted.into_iter().map(|(name, descending)| (name, direction(descending))).collect(), filter))
}

fn parse_filter(json: &str) -> Result<Option<Filter>, MangoError> {
    if text::kind(json) != Kind::Object {
        let reason = format!("Selector must be a JSON object, not: {}", shown(json));
        return Err(MangoError::new("invalid_selector_json", reason));
    }
    let selector = Selector::parse(json)?;
    let normal = Normal::of(json);
    Ok((normal != Normal::All).then(|| Filter { selector, shown: normal.to_json() }))
}

fn paths_of(columns: &[(String, Direction)]) -> Result<FieldPaths, MangoError> {
    Ok(FieldPaths::parse(columns.iter().map(|(name, _)| name.as_str()))?)
}

/// The name of an index that has none, from its definition: the same request again finds it.
fn generated_name(requested: &str) -> String {
    blake3::hash(requested.as_bytes()).to_hex()[..NAME_DIGITS].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(body: &str) -> Result<IndexDefinition, MangoError> {
        NewIndex::parse(body.as_bytes(), false).map(|new| new.definition)
    }

    fn of_fields(fields: &str) -> IndexDefinition {
        new(&format!("{{\"index\":{{\"fields\":{fields}}},\"ddoc\":\"d\",\"name\":\"n\"}}")).unwrap()
    }

    #[track_caller]
    fn refuses(body: &str, error: &str, reason: &str) {
        let found = new(body).unwrap_err();
        assert_eq!((found.error, found.reason.as_str()), (error, reason), "{body}");
    }

    #[test]
    fn a_definition_is_stored_as_a_view_and_read_back() {
        let body = r#"{"index":{"fields":["n", {"m":"asc"}],
            "partial_filter_selector":{"s":"x"}},"ddoc":"d","name":"i","type":"json","w":1}"#;
        let definition = new(body).unwrap();
        let view = definition.view();
        assert_eq!(
            view,
            r#"{"map":{"fields":{"n":"asc","m":"asc"},"partial_filter_selector":{"s":{"$eq":"x"}}},"reduce":"_count","options":{"def":{"fields":["n",{"m":"asc"}],"partial_filter_selector":{"s":"x"}}}}"#
        );
        assert_eq!(
            definition.to_json(),
            r#"{"ddoc":"_design/d","name":"i","type":"json","partitioned":false,"def":{"fields":[{"n":"asc"},{"m":"asc"}],"partial_filter_selector":{"s":{"$eq":"x"}}}}"#
        );
        let read = IndexDefinition::of_view("_design/d", "i", &view, false).unwrap();
        assert_eq!((read.view(), read.to_json()), (view, definition.to_json()));
        assert!(read.is_partial());
    }

    #[test]
    fn a_view_that_defines_no_index_is_none() {
        let views = [
            "{}",
            r#"{"map":"function(doc) {}"}"#,
            r#"{"map":{"fields":{"a":"asc"}}}"#,
            r#"{"map":{"fields":["a"]},"options":{"def":{}}}"#,
            r#"{"map":{"fields":{"a..b":"asc"}},"options":{"def":{}}}"#,
        ];
        for view in views {
            assert!(IndexDefinition::of_view("_design/d", "i", view, false).is_none(), "{view}");
        }
    }

    #[test]
    fn a_missing_name_is_one_hash_of_the_definition() {
        let definition = new(r#"{"index":{"fields":["n"]}}"#).unwrap();
        assert_eq!(definition.name.len(), 40);
        assert!(definition.name.bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert_eq!(definition.ddoc, format!("_design/{}", definition.name));
        assert_eq!(new(r#"{"index": {"fields": ["n"]}}"#).unwrap().name, definition.name);
        assert_ne!(new(r#"{"index":{"fields":["m"]}}"#).unwrap().name, definition.name);
        assert_eq!(new(r#"{"index":{"fields":[]},"ddoc":"_design/x"}"#).unwrap().ddoc, "_design/x");
    }

    #[test]
    fn definitions_are_refused_with_couchdbs_errors() {
        refuses("{}", "missing_required_key", "Missing required key: index");
        refuses(r#"{"index":{}}"#, "missing_required_key", "Missing required key: fields");
        refuses(r#"{"index":[]}"#, "invalid_index", "JSON indexes must be an object, not: []");
        refuses(r#"{"index":{"fields":[]},"foo":1}"#, "invalid_key", "Invalid key foo for this request.");
        refuses(r#"{"index":{"fields":[],"foo":1}}"#, "invalid_key", "Invalid key foo for this request.");
        refuses(r#"{"index":{"fields":[]},"type":"geo"}"#, "invalid_index", "Invalid type for index: geo");
        refuses(r#"{"index":{"fields":[]},"name":1}"#, "invalid_string", "Invalid string: 1");
        refuses(
            r#"{"index":{"fields":"n"}}"#,
            "invalid_sort_json",
            "Sort must be an array of sort specs, not: \"n\"",
        );
        refuses(r#"{"index":{"fields":["a..b"]}}"#, "invalid_field_name", "Invalid field name: a..b");
        refuses(
            r#"{"index":{"fields":[]},"w":0}"#,
            "invalid_pos_integer",
            "0 is not an integer greater than zero",
        );
        let mixed = "Sorts currently only support a single direction for all fields.";
        refuses(r#"{"index":{"fields":["a",{"b":"desc"}]}}"#, "unsupported_mixed_sort", mixed);
        let text = new(r#"{"index":{"fields":[]},"type":"text"}"#).unwrap_err();
        assert_eq!(
            (text.kind, text.error),
            (MangoErrorKind::Unavailable, "required index service unavailable")
        );
        assert_eq!(text.reason, "text");
    }

    #[test]
    fn a_row_has_the_values_of_all_columns() {
        let definition = of_fields(r#"["a","b.c","_id"]"#);
        assert_eq!(
            definition.row(r#"{"_id":"x","a":null,"b":{"c":[1,{"d":2}]}}"#).unwrap(),
            r#"[null,[1,{"d":2}],"x"]"#
        );
        for lacking in [r#"{"_id":"x","a":1}"#, r#"{"_id":"x","a":1,"b":5}"#, r#"{"_id":"x","a":1,"b":null}"#]
        {
            assert_eq!(definition.row(lacking), None, "{lacking}");
        }
        assert_eq!(definition.row(r#"{"_id":"_design/x","a":1,"b":{"c":2}}"#), None);
        assert_eq!(of_fields("[]").row(r#"{"_id":"x"}"#).as_deref(), Some("[]"));
    }

    #[test]
    fn a_partial_filter_leaves_documents_out() {
        let body = r#"{"index":{"fields":["a"],"partial_filter_selector":{"s":{"$ne":"x"}}}}"#;
        let definition = new(body).unwrap();
        assert_eq!(definition.row(r#"{"_id":"1","a":1,"s":"y"}"#).as_deref(), Some("[1]"));
        assert_eq!(definition.row(r#"{"_id":"1","a":1,"s":"x"}"#), None);
        assert_eq!(definition.row(r#"{"_id":"1","a":1}"#), None);
    }

    #[test]
    fn fields_among_columns_and_id_are_covered() {
        let definition = of_fields(r#"["a","b"]"#);
        assert!(definition.covers(Some(["_id", "b"])));
        assert!(!definition.covers(Some(["_id", "c"])));
        assert!(!definition.covers(None::<[&str; 0]>));
    }
}
