//! Design documents: their views, and what makes two of them share an index.
//!
//! An index belongs to a map function, not to a design document: views with the same function, the same `views.lib`
//! and the same options are one index, whatever their names, and an edit that leaves a function alone rebuilds
//! nothing. A reduce function isn't part of an index's identity: it is added to the index.

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::convert::Infallible;

use serde_json::Value;
use serde_json::value::RawValue;
use settee_collate::Collation;

use crate::error::{Result, ViewError};
use crate::reduce::REDUCERS_MAX;

/// An index's identity: a hash of what determines its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Signature([u8; 16]);

impl Signature {
    /// 32 hexadecimal digits.
    pub fn text(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Parses [`Signature::text`].
    pub(crate) fn parse(text: &str) -> Option<Signature> {
        let mut bytes = [0; 16];
        if text.len() != 32 || !text.is_ascii() {
            return None;
        }
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).ok()?;
        }
        Some(Signature(bytes))
    }
}

/// The language of a design document's functions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Language {
    /// JavaScript, also where none is named.
    Javascript,
    /// A Mango index.
    Query,
    /// Another one.
    Other(String),
}

/// What an index is made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MapDefinition {
    pub(crate) signature: Signature,
    /// A JavaScript function's source, or the view of a Mango index as JSON.
    pub(crate) source: String,
    pub(crate) collation: Collation,
}

/// A view of a design document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ViewDefinition {
    /// Its name.
    pub name: String,
    /// Index of its map function in [`Design::maps`].
    pub(crate) map: usize,
    /// Its reduce function.
    pub reduce: Option<String>,
}

/// The views of a design document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Design {
    /// The document's id.
    pub id: String,
    /// The functions' language.
    pub language: Language,
    /// The views, in the document's order.
    pub views: Vec<ViewDefinition>,
    /// The distinct map functions.
    pub(crate) maps: Vec<MapDefinition>,
    /// `views.lib` as JSON, for `require`.
    pub(crate) lib: Option<String>,
    /// Whether documents have `_local_seq`.
    pub(crate) local_seq: bool,
    /// Whether design documents are mapped.
    pub(crate) include_design: bool,
    /// Whether the views are of each partition.
    pub is_partitioned: bool,
    /// Whether the views are kept up in the background: `autoupdate`, true unless it is false.
    pub autoupdate: bool,
    /// Hash of all indexes' signatures.
    pub signature: Signature,
}

impl Design {
    /// Parses a design document of a database, which may be partitioned. In a partitioned database each view is of one
    /// partition at a time, unless `options.partitioned` is false.
    ///
    /// # Errors
    /// If it isn't JSON. Members of wrong types, which can't be stored, and those that views don't use are ignored,
    /// however deep they nest.
    pub fn parse(id: &str, json: &[u8], is_partitioned: bool) -> Result<Design> {
        let malformed = || ViewError::damaged(&format!("{id} isn't a JSON object"));
        let [language, options, autoupdate, views] =
            members(json, ["language", "options", "autoupdate", "views"]).ok_or_else(malformed)?;
        let language = match value_of(language).as_str() {
            None | Some("javascript") => Language::Javascript,
            Some("query") => Language::Query,
            Some(other) => Language::Other(other.to_owned()),
        };
        let options = object_of(options, ["local_seq", "include_design", "partitioned"]).map(value_of);
        let [local_seq, include_design, partitioned] = options.map(|value| value.as_bool());
        let mut design = Design {
            id: id.to_owned(),
            views: Vec::new(),
            maps: Vec::new(),
            lib: None,
            local_seq: local_seq.unwrap_or(false),
            include_design: include_design.unwrap_or(false),
            is_partitioned: is_partitioned && partitioned.unwrap_or(true),
            autoupdate: value_of(autoupdate).as_bool().unwrap_or(true),
            signature: Signature([0; 16]),
            language,
        };
        let views_in_order = all_members(views.unwrap_or("{}"));
        let lib = views_in_order.iter().find(|(name, value)| name == "lib" && value.starts_with('{'));
        design.lib = lib.map(|(_, lib)| normal_text(lib));
        for (name, view) in views_in_order.iter().filter(|(name, _)| name != "lib") {
            design.add_view(name, view);
        }
        let signatures: Vec<u8> = design.maps.iter().flat_map(|map| map.signature.0).collect();
        design.signature = hash(&[&signatures]);
        Ok(design)
    }

    fn add_view(&mut self, name: &str, view: &str) {
        let [map, reduce, options] = object_of(Some(view), ["map", "reduce", "options"]);
        let [collation] = object_of(options, ["collation"]);
        let is_raw = value_of(collation).as_str() == Some("raw");
        let collation = if is_raw { Collation::Raw } else { Collation::Unicode };
        let (source, hashed) = match (&self.language, map) {
            // Its index is made from the whole view, and determined by the map.
            (Language::Query, Some(map)) => (normal_text(view), normal_text(map)),
            (_, map) => match value_of(map) {
                Value::String(source) => (source.clone(), source),
                _ => return,
            },
        };
        let signature = self.signature_of(&hashed, collation);
        let map = self.maps.iter().position(|map| map.signature == signature).unwrap_or_else(|| {
            self.maps.push(MapDefinition { signature, source, collation });
            self.maps.len() - 1
        });
        let reduce = value_of(reduce);
        let reduce = reduce.as_str().filter(|source| !source.is_empty());
        // A Mango index's reduce function only counts.
        self.views.push(ViewDefinition { name: name.to_owned(), map, reduce: reduce.map(str::to_owned) });
    }

    fn signature_of(&self, source: &str, collation: Collation) -> Signature {
        let language = match &self.language {
            Language::Javascript => "javascript",
            Language::Query => "query",
            Language::Other(name) => name,
        };
        let flags = [self.local_seq, self.include_design, self.is_partitioned, collation == Collation::Raw];
        let flags: Vec<u8> = flags.into_iter().map(u8::from).collect();
        // The library counts only where it can be required.
        let lib = self.lib.as_deref().filter(|_| source.contains("require")).unwrap_or_default();
        hash(&[language.as_bytes(), source.as_bytes(), lib.as_bytes(), &flags])
    }

    /// The view with this name.
    pub fn view(&self, name: &str) -> Option<&ViewDefinition> {
        self.views.iter().find(|view| view.name == name)
    }

    /// The text of the language, as `_info` shows it.
    pub fn language_text(&self) -> &str {
        match &self.language {
            Language::Javascript => "javascript",
            Language::Query => "query",
            Language::Other(name) => name,
        }
    }

    /// The reduce functions of a map function's views, without duplicates: the first ones, as far as an index can have
    /// them.
    pub(crate) fn reduces_of(&self, map: usize) -> Vec<&str> {
        let mut reduces = Vec::new();
        for view in self.views.iter().filter(|view| view.map == map) {
            if let Some(reduce) = view.reduce.as_deref()
                && !reduces.contains(&reduce)
                && reduces.len() < REDUCERS_MAX
            {
                reduces.push(reduce);
            }
        }
        reduces
    }
}

/// The texts of an object's members with these names; for duplicates the last one. `None` if it isn't an object.
fn members<'a, const N: usize>(json: &'a [u8], names: [&str; N]) -> Option<[Option<&'a str>; N]> {
    let mut found = [None; N];
    let take = |name: Cow<'_, str>, value: &'a RawValue| {
        if let Some(index) = names.iter().position(|wanted| name == *wanted) {
            found[index] = Some(value.get());
        }
        Ok::<(), Infallible>(())
    };
    settee_doc::each_json_member(json, take).ok()?;
    Some(found)
}

/// All members of an object, in order; for duplicates the last one, at the first one's place. None of something that
/// isn't an object.
fn all_members(json: &str) -> Vec<(String, &str)> {
    let mut found: Vec<(String, &str)> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    // An error is that it isn't an object.
    let _ = settee_doc::each_json_member(json.as_bytes(), |name, value| {
        let name = name.into_owned();
        match places.entry(name.clone()) {
            Entry::Occupied(place) => found[*place.get()].1 = value.get(),
            Entry::Vacant(place) => {
                place.insert(found.len());
                found.push((name, value.get()));
            }
        }
        Ok::<(), Infallible>(())
    });
    found
}

/// As [`members`]; none of something that isn't an object.
fn object_of<'a, const N: usize>(json: Option<&'a str>, names: [&str; N]) -> [Option<&'a str>; N] {
    json.and_then(|json| members(json.as_bytes(), names)).unwrap_or([None; N])
}

/// The value; null for one that is missing or nests too deep.
fn value_of(json: Option<&str>) -> Value {
    json.and_then(|json| serde_json::from_str(json).ok()).unwrap_or_default()
}

/// The text without white space, unless it nests too deep.
fn normal_text(json: &str) -> String {
    serde_json::from_str(json).map_or_else(|_| json.to_owned(), |value: Value| value.to_string())
}

fn hash(parts: &[&[u8]]) -> Signature {
    let mut hasher = blake3::Hasher::new();
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    let mut signature = [0; 16];
    signature.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    Signature(signature)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signatures(json: Value) -> Vec<Signature> {
        let design = Design::parse("_design/d", json.to_string().as_bytes(), false).unwrap();
        design.views.iter().map(|view| design.maps[view.map].signature).collect()
    }

    #[test]
    fn views_with_the_same_function_share_an_index() {
        let map = "function(doc){emit(1)}";
        let one = signatures(
            serde_json::json!({"views": {"a": {"map": map}, "b": {"map": map, "reduce": "_sum"}}}),
        );
        assert_eq!(one[0], one[1]);
        // Neither names, nor reduce functions, nor an unused library count.
        let other =
            signatures(serde_json::json!({"views": {"lib": {"x": "1"}, "c": {"map": map}}, "filters": {}}));
        assert_eq!(one[0], other[0]);
        for different in [
            serde_json::json!({"views": {"a": {"map": "function(doc){emit(2)}"}}}),
            serde_json::json!({"views": {"a": {"map": map, "options": {"collation": "raw"}}}}),
            serde_json::json!({"options": {"local_seq": true}, "views": {"a": {"map": map}}}),
            serde_json::json!({"options": {"include_design": true}, "views": {"a": {"map": map}}}),
        ] {
            assert_ne!(signatures(different.clone())[0], one[0], "{different}");
        }
        let requiring = |lib: &str| {
            let map = "function(doc){emit(require('views/lib/x').y)}";
            signatures(serde_json::json!({"views": {"lib": {"x": lib}, "a": {"map": map}}}))
        };
        assert_ne!(requiring("exports.y=1"), requiring("exports.y=2"));
    }

    #[test]
    fn members_that_views_do_not_use_may_nest_deep() {
        let deep = format!("{}1{}", "[".repeat(900), "]".repeat(900));
        let view = format!(r#"{{"map": "function(doc){{emit(1)}}", "reduce": "_count", "note": {deep}}}"#);
        let text = format!(
            r#"{{"other": {deep}, "autoupdate": false, "views": {{"lib": {{"x": {deep}}}, "a": {view}}}}}"#
        );
        let design = Design::parse("_design/d", text.as_bytes(), false).unwrap();
        assert_eq!(design.views.len(), 1);
        assert_eq!(design.views[0].reduce.as_deref(), Some("_count"));
        assert!(design.lib.is_some() && !design.autoupdate);
        assert!(Design::parse("_design/d", b"[]", false).is_err());
    }

    #[test]
    fn a_signature_survives_its_text() {
        let signature = hash(&[b"x"]);
        assert_eq!(Signature::parse(&signature.text()), Some(signature));
        assert_eq!(Signature::parse("x"), None);
        assert_eq!(Signature::parse(&"é".repeat(16)), None);
    }
}
