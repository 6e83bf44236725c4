//! A JSON object's members as they were written: numbers keep their digits, and repeated names stay.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::load::identity::minify;

/// An object's members in their order, values as they stand.
pub(crate) struct Members<'a>(pub(crate) Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Members<'a>, D::Error> {
        struct Visit;
        impl<'de> Visitor<'de> for Visit {
            type Value = Vec<(Cow<'de, str>, &'de RawValue)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a document")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(members)
            }
        }
        deserializer.deserialize_map(Visit).map(Members)
    }
}

/// Appends a document's members but those of one name, each with the text that it has.
pub(crate) fn write_without(name: &str, document: &[u8], out: &mut Vec<u8>) -> serde_json::Result<()> {
    let Members(members) = serde_json::from_slice(document)?;
    out.push(b'{');
    let start = out.len();
    for (key, value) in members.into_iter().filter(|(key, _)| key != name) {
        if out.len() > start {
            out.push(b',');
        }
        serde_json::to_writer(&mut *out, &key)?;
        out.push(b':');
        minify(value.get().as_bytes(), out);
    }
    out.push(b'}');
    Ok(())
}
