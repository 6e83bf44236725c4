//! `fields`: the projection of a document.

use serde_json::value::RawValue;

use super::error::SelectorError;
use super::limits::SELECTOR_BYTES_MAX;
use super::paths::{Found, Paths, parse_path};
use super::raw::{Raw, ValueKind};
use crate::json::write_json_string;

/// Largest number of fields of a list.
const FIELDS_MAX: usize = 1_000;

/// The fields shown of a document, each within its enclosing objects.
#[derive(Debug, Clone)]
pub struct Fields {
    paths: Paths,
    /// Their indexes in `paths`, in the order of the list.
    places: Vec<usize>,
}

/// Fields whose values are looked up together: the columns of an index.
#[derive(Debug, Clone)]
pub struct FieldPaths {
    paths: Paths,
    /// Their indexes in `paths`, in the order of the list.
    places: Vec<usize>,
}

impl FieldPaths {
    /// Parses names of fields, in the syntax of selectors.
    ///
    /// # Errors
    /// `invalid_field_name` for a name with an empty part.
    pub fn parse<'n>(names: impl IntoIterator<Item = &'n str>) -> Result<FieldPaths, SelectorError> {
        let list = names.into_iter().map(parse_path).collect::<Result<Vec<_>, _>>()?;
        let paths = Paths::new(list.clone());
        let places = list.iter().filter_map(|path| paths.place(path)).collect();
        Ok(FieldPaths { paths, places })
    }

    /// The texts of the fields' values in an object, given as JSON text, in the order of the names; `None` if one
    /// of the fields is absent.
    pub fn values<'a>(&self, object: &'a str) -> Option<Vec<&'a str>> {
        let found = self.paths.find(Raw::new(object));
        let value = |place: &usize| match found[*place] {
            Found::Value(Raw(text)) => Some(text),
            Found::Missing | Found::NoPath => None,
        };
        self.places.iter().map(value).collect()
    }

    /// Appends an object that has these values, JSON texts, in the fields, in the order of the names: an object
    /// for which [`FieldPaths::values`] returns them again. A field within another one gets no value of its own.
    pub fn write_object<'a>(&'a self, values: impl IntoIterator<Item = &'a str>, out: &mut Vec<u8>) {
        let mut shown = Vec::new();
        for (place, value) in self.places.iter().zip(values) {
            show(&mut shown, self.paths.path(*place), Raw(value));
        }
        write_object(&shown, out);
    }
}

/// A shown value's text, or an object with shown members.
enum Shown<'a> {
    Value(Raw<'a>),
    Object(Vec<(&'a str, Shown<'a>)>),
}

impl Fields {
    /// Parses a list of names. An empty one means all fields: `None`.
    ///
    /// # Errors
    /// `invalid_fields`, `invalid_field` and `invalid_field_name`.
    pub fn parse(text: &str) -> Result<Option<Fields>, SelectorError> {
        if text.len() > SELECTOR_BYTES_MAX {
            let reason = format!("A list of fields has at most {SELECTOR_BYTES_MAX} bytes.");
            return Err(SelectorError::new("invalid_fields", reason));
        }
        let raw = serde_json::from_str::<&RawValue>(text).map_err(|_| SelectorError::bad_json())?;
        let raw = Raw::new(raw.get());
        if raw.kind() != ValueKind::Array {
            let reason = "Selector error: fields must be JSON array";
            return Err(SelectorError::new("invalid_fields", reason));
        }
        let mut paths = Vec::new();
        for field in raw.elements() {
            let Some(name) = field.text() else {
                let reason = format!("Invalid JSON for field spec: {}", field.0);
                return Err(SelectorError::new("invalid_field", reason));
            };
            if paths.len() == FIELDS_MAX {
                let reason = format!("A list of fields has at most {FIELDS_MAX}.");
                return Err(SelectorError::new("invalid_fields", reason));
            }
            if name.is_empty() {
                return Err(SelectorError::new("invalid_field_name", "Invalid field name: "));
            }
            paths.push(parse_path(&name)?);
        }
        if paths.is_empty() {
            return Ok(None);
        }
        let listed = Paths::new(paths.clone());
        let places = paths.iter().filter_map(|path| listed.place(path)).collect();
        Ok(Some(Fields { paths: listed, places }))
    }

    /// Appends an object with those listed fields that `object`, a JSON text, has.
    pub fn write(&self, object: &str, out: &mut Vec<u8>) {
        let found = self.paths.find(Raw::new(object));
        let mut shown = Vec::new();
        for place in &self.places {
            if let Found::Value(value) = found[*place] {
                show(&mut shown, self.paths.path(*place), value);
            }
        }
        write_object(&shown, out);
    }
}

/// Adds a value at its path, unless an enclosing value is already shown.
fn show<'a>(mut members: &mut Vec<(&'a str, Shown<'a>)>, path: &'a [String], value: Raw<'a>) {
    let Some((last, outer)) = path.split_last() else { return };
    for name in outer {
        let place = place_of(members, name, || Shown::Object(Vec::new()));
        match &mut members[place].1 {
            Shown::Value(_) => return,
            Shown::Object(inner) => members = inner,
        }
    }
    let place = place_of(members, last, || Shown::Value(value));
    members[place].1 = Shown::Value(value);
}

fn place_of<'a>(
    members: &mut Vec<(&'a str, Shown<'a>)>,
    name: &'a str,
    new: impl FnOnce() -> Shown<'a>,
) -> usize {
    members.iter().position(|(known, _)| *known == name).unwrap_or_else(|| {
        members.push((name, new()));
        members.len() - 1
    })
}

fn write_object(members: &[(&str, Shown<'_>)], out: &mut Vec<u8>) {
    out.push(b'{');
    for (index, (name, shown)) in members.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write_json_string(name, out);
        out.push(b':');
        match shown {
            Shown::Value(value) => out.extend_from_slice(value.0.as_bytes()),
            Shown::Object(members) => write_object(members, out),
        }
    }
    out.push(b'}');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(fields: &str, object: &str) -> String {
        let mut out = Vec::new();
        Fields::parse(fields).unwrap().unwrap().write(object, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn fields_are_shown_within_their_objects() {
        let object = r#"{"_id":"x","a":{"b":1,"c":[5,{"d":2}]},"e.f":3}"#;
        assert_eq!(shown(r#"["_id","a.b","none","a.x.y"]"#, object), r#"{"_id":"x","a":{"b":1}}"#);
        assert_eq!(shown(r#"["e\\.f"]"#, object), r#"{"e.f":3}"#);
        assert_eq!(shown(r#"["a.c.1.d"]"#, object), r#"{"a":{"c":{"1":{"d":2}}}}"#);
        let whole = r#"{"a":{"b":1,"c":[5,{"d":2}]}}"#;
        assert_eq!(shown(r#"["a","a.b"]"#, object), whole);
        assert_eq!(shown(r#"["a.b","a"]"#, object), whole);
    }

    #[test]
    fn values_are_looked_up_together_or_not_at_all() {
        let paths = FieldPaths::parse(["b", "a.c.1", "b", "a\\.d"]).unwrap();
        let object = r#"{"a":{"c":[5,{"d":2}]},"b":null,"a.d":"x"}"#;
        assert_eq!(paths.values(object).unwrap(), ["null", r#"{"d":2}"#, "null", "\"x\""]);
        assert_eq!(paths.values(r#"{"a":{"c":[5]},"b":1,"a.d":"x"}"#), None);
        assert_eq!(FieldPaths::parse([]).unwrap().values("{}").unwrap(), Vec::<&str>::new());
        let nested = FieldPaths::parse(["a.b", "c", "a.0", "c.d"]).unwrap();
        let mut out = Vec::new();
        nested.write_object(["1", r#"{"d":2}"#, "[3]", "2"], &mut out);
        let object = std::str::from_utf8(&out).unwrap();
        assert_eq!(object, r#"{"a":{"b":1,"0":[3]},"c":{"d":2}}"#);
        assert_eq!(nested.values(object).unwrap(), ["1", r#"{"d":2}"#, "[3]", "2"]);
        assert_eq!(FieldPaths::parse(["a..b"]).unwrap_err().error, "invalid_field_name");
    }

    #[test]
    fn many_fields_of_a_large_object_cost_one_walk() {
        let names: Vec<String> = (0..FIELDS_MAX).map(|n| format!("\"a.b{n}.c\"")).collect();
        let fields = Fields::parse(&format!("[{}]", names.join(","))).unwrap().unwrap();
        let members: Vec<String> = (0..50_000).map(|n| format!("\"b{n}\":{{\"c\":{n}}}")).collect();
        let object = format!("{{\"a\":{{{}}}}}", members.join(","));
        let mut out = Vec::new();
        let steps = super::super::work::of(|| fields.write(&object, &mut out));
        assert!(out.ends_with(b"\"b999\":{\"c\":999}}}"));
        assert!(steps < 200_000, "{steps} values were passed");
    }

    #[test]
    fn a_list_of_fields_is_a_list_of_names() {
        assert!(Fields::parse("[]").unwrap().is_none());
        let error = |text| Fields::parse(text).unwrap_err().error;
        assert_eq!(error("{}"), "invalid_fields");
        assert_eq!(error("[1]"), "invalid_field");
        assert_eq!(error("[\"a..b\"]"), "invalid_field_name");
        assert_eq!(error("[\"\"]"), "invalid_field_name");
        assert_eq!(error("x"), "bad_request");
    }
}
