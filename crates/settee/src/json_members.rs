//! The members of a JSON object as they were written: numbers keep their digits, and repeated names are kept.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::load::identity::minify;

/// An object's members in the order of the text. Each value is the text as written.
pub(crate) struct JsonMembers<'a>(pub(crate) Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for JsonMembers<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<JsonMembers<'a>, D::Error> {
        struct MembersVisitor;
        impl<'de> Visitor<'de> for MembersVisitor {
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
        deserializer.deserialize_map(MembersVisitor).map(JsonMembers)
    }
}

/// Appends a document to `out` without the members called `name`. The other values keep their text, minified.
///
/// # Errors
/// `document` is not a JSON object.
pub(crate) fn write_without(name: &str, document: &[u8], out: &mut Vec<u8>) -> serde_json::Result<()> {
    let JsonMembers(members) = serde_json::from_slice(document)?;
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
