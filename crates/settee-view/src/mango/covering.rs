//! Documents' fields from an index's keys, so that documents need not be read.

use settee_doc::FieldPaths;

use super::index::IndexDefinition;
use super::text;

/// Makes objects of the fields that an index has.
#[derive(Debug, Clone)]
pub struct CoveredFields {
    /// The columns and `_id`.
    paths: FieldPaths,
    column_count: usize,
}

impl CoveredFields {
    /// The fields of an index.
    ///
    /// # Panics
    /// If a column's name is invalid: a definition has none such.
    pub fn new(definition: &IndexDefinition) -> CoveredFields {
        let column_count = definition.columns().len();
        let names = definition.columns().chain(["_id"]);
        let paths = FieldPaths::parse(names).expect("a definition's columns are checked");
        CoveredFields { paths, column_count }
    }

    /// The JSON text of an object with the fields of a row: what a selector and a list of fields need if the index
    /// [covers](IndexDefinition::covers) them. `None` if `key` isn't a key of the index.
    pub fn object(&self, id: &str, key: &str) -> Option<String> {
        let mut values = text::elements(key, self.column_count)?;
        if values.len() != self.column_count {
            return None;
        }
        let id = text::quoted(id);
        values.push(&id);
        let mut out = Vec::new();
        self.paths.write_object(values, &mut out);
        String::from_utf8(out).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mango::NewIndex;

    #[test]
    fn a_row_becomes_an_object_with_its_fields() {
        let body = br#"{"index":{"fields":["a.b","c"]}}"#;
        let definition = NewIndex::parse(body, false).unwrap().definition;
        let covered = CoveredFields::new(&definition);
        let document = r#"{"_id":"x\"","a":{"b":[1, 2],"z":0},"c":null}"#;
        let key = definition.row(document).unwrap();
        assert_eq!(covered.object("x\"", &key).unwrap(), r#"{"a":{"b":[1,2]},"c":null,"_id":"x\""}"#);
        for other in ["[1]", "[1,2,3]", "1", "{}", "["] {
            assert_eq!(covered.object("x", other), None, "{other}");
        }
    }
}
