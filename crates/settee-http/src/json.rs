//! JSON in and out without trees: members are looked at as raw text, answers written by hand.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use settee_doc::Revision;

use crate::error::Failure;

/// Appends `{`, what `members` writes, and `}`.
pub(crate) fn object(out: &mut Vec<u8>, members: impl FnOnce(&mut Vec<u8>)) {
    out.push(b'{');
    members(out);
    out.push(b'}');
}

/// Appends a number.
pub(crate) fn number(value: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Appends `["1-…","2-…"]`.
pub(crate) fn revisions(list: &[Revision], out: &mut Vec<u8>) {
    out.push(b'[');
    for (index, item) in list.iter().enumerate() {
        out.extend_from_slice(if index == 0 { b"\"" } else { b",\"" });
        item.write(out);
        out.push(b'"');
    }
    out.push(b']');
}

/// An object's members in their order, values as raw text.
pub(crate) struct Members<'a>(pub(crate) Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'a> Members<'a> {
    /// The first member of that name, as CouchDB looks members up.
    pub(crate) fn get(&self, name: &str) -> Option<&'a str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.get())
    }
}

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Members<'de>, D::Error> {
        struct InOrder;

        impl<'de> Visitor<'de> for InOrder {
            type Value = Members<'de>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let mut members = Vec::new();
                while let Some((Text(key), value)) = map.next_entry::<Text<'de>, &'de RawValue>()? {
                    members.push((key, value));
                }
                Ok(Members(members))
            }
        }

        deserializer.deserialize_map(InOrder)
    }
}

/// A string, borrowed where it has no escapes.
#[derive(Deserialize)]
pub(crate) struct Text<'a>(#[serde(borrow)] pub(crate) Cow<'a, str>);

/// The members of a request's body.
///
/// # Errors
/// For what isn't JSON and for JSON that is no object, in CouchDB's words.
pub(crate) fn members(body: &[u8]) -> Result<Members<'_>, Failure> {
    parse_object(body, "Request body must be a JSON object")
}

/// An object read into `T`; `other` is the reason where the text is JSON of another form.
pub(crate) fn parse_object<'a, T: Deserialize<'a>>(
    body: &'a [u8],
    other: &'static str,
) -> Result<T, Failure> {
    // Derived structs take arrays as well: what is no object is refused here.
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(match serde_json::from_slice::<&RawValue>(body) {
            Ok(_) => Failure::bad_request("Request body must be a JSON object"),
            Err(_) => Failure::bad_json(),
        });
    }
    serde_json::from_slice(body).map_err(|error| match error.is_data() {
        true => Failure::bad_request(other),
        false => Failure::bad_json(),
    })
}

/// A JSON string's text; None for JSON of another kind.
pub(crate) fn string(raw: &str) -> Option<Cow<'_, str>> {
    serde_json::from_str::<Text<'_>>(raw).ok().map(|text| text.0)
}

/// An array's elements; None for JSON of another kind.
pub(crate) fn list(raw: &str) -> Option<Vec<&RawValue>> {
    serde_json::from_str(raw).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_keep_their_order_and_text() {
        let found = members(br#" {"b": [1, 2], "a\u0062":"x","b":null}"#).unwrap();
        let keys: Vec<_> = found.0.iter().map(|(key, _)| key.as_ref()).collect();
        assert_eq!(keys, ["b", "ab", "b"]);
        assert_eq!(found.get("b"), Some("[1, 2]"));
    }

    #[test]
    fn what_is_no_object_and_what_is_no_json_have_reasons_of_their_own() {
        let reason = |body: &[u8]| members(body).err().map(|failure| failure.reason.into_owned());
        assert_eq!(reason(b"[1]").as_deref(), Some("Request body must be a JSON object"));
        assert_eq!(reason(b"\"x\"").as_deref(), Some("Request body must be a JSON object"));
        for junk in [b"{\"a\":}".as_slice(), b"", b"{", b"{\"a\":1} x", b"{\"a\":\"\xff\"}", b"nul"] {
            assert_eq!(reason(junk).as_deref(), Some("invalid UTF-8 JSON"), "{junk:?}");
        }
    }
}
