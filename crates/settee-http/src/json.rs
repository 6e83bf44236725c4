//! JSON in and out without trees: members are looked at as raw text, answers written by hand.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use settee_doc::Revision;

use crate::error::Failure;

/// Members of an object that are looked for by their names: of options nobody has more.
const MEMBERS_MAX: usize = 100_000;

/// Up to so many elements, or members, room is made for twice as many; from then on for a quarter more.
const DOUBLED_MAX: usize = 1024;

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

/// A string, borrowed where it has no escapes.
#[derive(Deserialize)]
pub(crate) struct Text<'a>(#[serde(borrow)] pub(crate) Cow<'a, str>);

/// The members of a request's body.
///
/// # Errors
/// For what isn't JSON and for JSON that is no object, in CouchDB's words; for numbers beyond the range of
/// a double.
pub(crate) fn members(body: &[u8]) -> Result<Members<'_>, Failure> {
    let mut count = 0;
    let at_most = |more| {
        count += more;
        if count > MEMBERS_MAX { Err(Failure::body_too_large()) } else { Ok(()) }
    };
    members_within(body, at_most)
}

/// As [`members`], of any number: `admit` is asked before room is made for so many more.
///
/// # Errors
/// As [`members`]; those of `admit`.
pub(crate) fn members_within(
    body: &[u8],
    admit: impl FnMut(usize) -> Result<(), Failure>,
) -> Result<Members<'_>, Failure> {
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(no_object(body));
    }
    let read = read_within(serde_json::Deserializer::from_slice(body), admit, |deserializer, within| {
        deserializer.deserialize_map(MembersWithin(within))
    });
    let members = read?.ok_or_else(Failure::bad_json)?;
    settee_doc::check_tokens(body)?;
    Ok(members)
}

/// An object read into `T`; `other` is the reason where the text is JSON of another form.
pub(crate) fn parse_object<'a, T: Deserialize<'a>>(
    body: &'a [u8],
    other: &'static str,
) -> Result<T, Failure> {
    // Derived structs take arrays as well: what is no object is refused here.
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(no_object(body));
    }
    serde_json::from_slice(body).map_err(|error| match error.is_data() {
        true => Failure::bad_request(other),
        false => Failure::bad_json(),
    })
}

fn no_object(body: &[u8]) -> Failure {
    match serde_json::from_slice::<&RawValue>(body) {
        Ok(_) => Failure::bad_request("Request body must be a JSON object"),
        Err(_) => Failure::bad_json(),
    }
}

/// A JSON string's text; None for JSON of another kind.
pub(crate) fn string(raw: &str) -> Option<Cow<'_, str>> {
    serde_json::from_str::<Text<'_>>(raw).ok().map(|text| text.0)
}

/// An array's elements; None for JSON of another kind.
pub(crate) fn list(raw: &str) -> Option<Vec<&RawValue>> {
    serde_json::from_str(raw).ok()
}

/// As [`list`], of any length: `admit` is asked before room is made for so many more.
///
/// # Errors
/// Those of `admit`.
pub(crate) fn list_within(
    raw: &str,
    admit: impl FnMut(usize) -> Result<(), Failure>,
) -> Result<Option<Vec<&RawValue>>, Failure> {
    read_within(serde_json::Deserializer::from_str(raw), admit, |deserializer, within| {
        deserializer.deserialize_seq(ListWithin(within))
    })
}

/// All of a text as `read` takes it; None where it is something else.
fn read_within<'de, R: serde_json::de::Read<'de>, F, T>(
    mut deserializer: serde_json::Deserializer<R>,
    admit: F,
    read: impl FnOnce(&mut serde_json::Deserializer<R>, &mut Within<F>) -> serde_json::Result<T>,
) -> Result<Option<T>, Failure> {
    let mut within = Within { admit, refused: None };
    let whole = read(&mut deserializer, &mut within).and_then(|read| deserializer.end().map(|()| read));
    match within.refused {
        Some(refused) => Err(refused),
        None => Ok(whole.ok()),
    }
}

/// Reads what may be of any length into as much room as it is given.
struct Within<F> {
    admit: F,
    refused: Option<Failure>,
}

impl<F: FnMut(usize) -> Result<(), Failure>> Within<F> {
    /// Appends something.
    fn push<T, E: serde::de::Error>(&mut self, item: T, list: &mut Vec<T>) -> Result<(), E> {
        if list.len() == list.capacity() {
            let more = list.len().clamp(1, DOUBLED_MAX.max(list.len() / 4));
            if let Err(refused) = (self.admit)(more) {
                self.refused = Some(refused);
                return Err(E::custom("there is no room"));
            }
            list.reserve_exact(more);
        }
        list.push(item);
        Ok(())
    }
}

struct MembersWithin<'w, F>(&'w mut Within<F>);

impl<'de, F: FnMut(usize) -> Result<(), Failure>> Visitor<'de> for MembersWithin<'_, F> {
    type Value = Members<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
        let mut members = Vec::new();
        while let Some((Text(key), value)) = map.next_entry::<Text<'de>, &'de RawValue>()? {
            self.0.push::<_, A::Error>((key, value), &mut members)?;
        }
        Ok(Members(members))
    }
}

struct ListWithin<'w, F>(&'w mut Within<F>);

impl<'de, F: FnMut(usize) -> Result<(), Failure>> Visitor<'de> for ListWithin<'_, F> {
    type Value = Vec<&'de RawValue>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Vec<&'de RawValue>, A::Error> {
        let mut list = Vec::new();
        while let Some(element) = elements.next_element()? {
            self.0.push::<_, A::Error>(element, &mut list)?;
        }
        Ok(list)
    }
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
    fn room_is_asked_for_before_it_is_made() {
        let text = format!("[{}1]", "1,".repeat(999));
        let (mut asked, mut most) = (0, 2_000);
        let mut admit = |more| {
            asked += more;
            if asked > most { Err(Failure::body_too_large()) } else { Ok(()) }
        };
        assert_eq!(list_within(&text, &mut admit).unwrap().map(|list| list.len()), Some(1_000));
        assert!((1_000..=1_250).contains(&asked), "{asked}");
        (asked, most) = (0, 100);
        let mut admit = |more| {
            asked += more;
            if asked > most { Err(Failure::body_too_large()) } else { Ok(()) }
        };
        assert_eq!(list_within(&text, &mut admit).unwrap_err().status, 413);
        assert_eq!(asked, 128, "nothing more was read");
        for other in ["{}", "1", "[1", "[1] 2"] {
            assert!(list_within(other, |_| Ok(())).unwrap().is_none(), "{other}");
        }
        let members_text = |count| format!("{{{}\"a\":1}}", "\"a\":1,".repeat(count - 1));
        assert_eq!(members(members_text(50_000).as_bytes()).unwrap().0.len(), 50_000);
        let refused = members(members_text(2 * MEMBERS_MAX).as_bytes()).err().unwrap();
        assert_eq!(refused.status, 413);
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
