//! Reads and writes JSON without building trees: members and elements are passed on one by one as raw text,
//! and responses are written directly.
//!
//! Invariant: nothing here allocates more than the one requested string. A caller that keeps many members or
//! elements charges them to its body's permit ([`BodyBudget`](crate::body::BodyBudget)) or limits their
//! number. `clippy.toml` disallows other ways of parsing in this crate.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;
use settee_doc::{Database, JsonError, Revision, Seq};

use crate::error::ApiError;

/// Appends `{`, the output of `members`, and `}`.
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
        out.extend_from_slice(if index == 0 { b"" } else { b"," });
        item.write_json(out);
    }
    out.push(b']');
}

/// Appends a string to an open array.
pub(crate) fn item(item: &str, out: &mut Vec<u8>) {
    if out.last() != Some(&b'[') {
        out.push(b',');
    }
    settee_doc::write_json_string(item, out);
}

/// Appends an update number in quotes.
pub(crate) fn quoted_seq(database: &Database, seq: Seq, out: &mut Vec<u8>) {
    out.push(b'"');
    database.write_seq(seq, out);
    out.push(b'"');
}

/// A text as a JSON string.
pub(crate) fn quoted(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len() + 2);
    settee_doc::write_json_string(text, &mut out);
    String::from_utf8_lossy(&out).into_owned()
}

/// A string, borrowed if it has no escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// Calls `take` with each member of a request's body, in order.
///
/// # Errors
/// CouchDB's errors for invalid JSON and for JSON that isn't an object; an error for numbers beyond the range
/// of a double; the first error of `take`.
pub(crate) fn each_member<'a>(
    body: &'a [u8],
    take: impl FnMut(Cow<'a, str>, &'a str) -> Result<(), ApiError>,
) -> Result<(), ApiError> {
    each_member_unchecked(body, take)?;
    Ok(settee_doc::check_tokens(body)?)
}

/// As [`each_member`], for a text whose numbers and strings are checked elsewhere.
fn each_member_unchecked<'a>(
    body: &'a [u8],
    mut take: impl FnMut(Cow<'a, str>, &'a str) -> Result<(), ApiError>,
) -> Result<(), ApiError> {
    settee_doc::each_json_member(body, |name, value| take(name, value.get())).map_err(|error| match error {
        JsonError::Refused(failure) => failure,
        JsonError::Syntax => ApiError::bad_json(),
        JsonError::OtherKind => match raw(body) {
            Ok(_) => ApiError::bad_request("Request body must be a JSON object"),
            Err(failure) => failure,
        },
    })
}

/// The members with these names in a request's body. For duplicates the first one, as in CouchDB.
///
/// # Errors
/// As for [`each_member`].
pub(crate) fn pick<'a, const N: usize>(
    body: &'a [u8],
    names: [&str; N],
) -> Result<[Option<&'a str>; N], ApiError> {
    let found = pick_unchecked(body, names)?;
    settee_doc::check_tokens(body)?;
    Ok(found)
}

/// As [`pick`], for a text whose numbers and strings are checked elsewhere.
///
/// # Errors
/// As for [`pick`], except those of numbers and strings.
pub(crate) fn pick_unchecked<'a, const N: usize>(
    body: &'a [u8],
    names: [&str; N],
) -> Result<[Option<&'a str>; N], ApiError> {
    let mut found = [None; N];
    each_member_unchecked(body, |name, value| {
        if let Some(index) = names.iter().position(|wanted| name == *wanted) {
            found[index].get_or_insert(value);
        }
        Ok(())
    })?;
    Ok(found)
}

/// Calls `take` with each element of an array.
///
/// # Errors
/// `no_list` if the text isn't an array; the first error of `take`.
pub(crate) fn each_element<'a>(
    raw: &'a str,
    no_list: impl FnOnce() -> ApiError,
    mut take: impl FnMut(&'a str) -> Result<(), ApiError>,
) -> Result<(), ApiError> {
    settee_doc::each_json_element(raw.as_bytes(), |element| take(element.get())).map_err(
        |error| match error {
            JsonError::Refused(failure) => failure,
            JsonError::OtherKind | JsonError::Syntax => no_list(),
        },
    )
}

/// The elements of an array of at most `count_max` strings.
///
/// # Errors
/// `no_list` if the text isn't an array of strings; `too_many`.
pub(crate) fn strings<C: Default + Extend<String>>(
    raw: &str,
    count_max: usize,
    no_list: impl Fn() -> ApiError,
    too_many: impl Fn() -> ApiError,
) -> Result<C, ApiError> {
    let (mut list, mut count) = (C::default(), 0);
    each_element(raw, &no_list, |element| {
        count += 1;
        if count > count_max {
            return Err(too_many());
        }
        list.extend([string(element).ok_or_else(&no_list)?.into_owned()]);
        Ok(())
    })?;
    Ok(list)
}

/// The text of a JSON string; None for other JSON.
#[expect(clippy::disallowed_methods, reason = "takes a string's own size")]
pub(crate) fn string(raw: &str) -> Option<Cow<'_, str>> {
    serde_json::from_str::<Text<'_>>(raw).ok().map(|text| text.0)
}

/// A JSON text without surrounding white space.
///
/// # Errors
/// 400 if it isn't JSON.
#[expect(clippy::disallowed_methods, reason = "finds where the text ends")]
pub(crate) fn raw(text: &[u8]) -> Result<&str, ApiError> {
    serde_json::from_slice::<&RawValue>(text).map(RawValue::get).map_err(|_| ApiError::bad_json())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_keep_their_order_and_text() {
        let mut found = Vec::new();
        let text = br#" {"b": [1, 2], "a\u0062":"x","b":null}"#;
        each_member(text, |name, value| {
            found.push((name, value));
            Ok(())
        })
        .unwrap();
        let expected = [("b", "[1, 2]"), ("ab", "\"x\""), ("b", "null")];
        assert_eq!(found, expected.map(|(name, value)| (name.into(), value)));
        assert_eq!(pick(text, ["ab", "b", "c"]).unwrap(), [Some("\"x\""), Some("[1, 2]"), None]);
    }

    #[test]
    fn after_a_refusal_nothing_is_taken_and_the_rest_must_be_json() {
        let mut count = 0;
        let mut read = |text: &str| {
            let take = |_: &str| {
                count += 1;
                if count == 3 { Err(ApiError::body_too_large()) } else { Ok(()) }
            };
            each_element(text, || ApiError::bad_request("no list"), take).err().map(|failure| failure.status)
        };
        assert_eq!(read("[1,2,3,4,5]").unwrap(), 413);
        for other in ["{}", "1", "[1", "[1] 2"] {
            assert_eq!(read(other).unwrap(), 400, "{other}");
        }
        assert_eq!(count, 5, "each of the last two has one element");
        let taken =
            |most| strings::<Vec<_>>("[\"a\",\"b\"]", most, ApiError::bad_json, ApiError::body_too_large);
        assert_eq!(taken(2).unwrap(), ["a", "b"]);
        assert_eq!(taken(1).unwrap_err().status, 413);
    }

    #[test]
    fn non_objects_and_invalid_json_have_different_reasons() {
        let reason = |body: &[u8]| pick(body, ["a"]).err().map(|failure| failure.reason.into_owned());
        assert_eq!(reason(b"[1]").as_deref(), Some("Request body must be a JSON object"));
        assert_eq!(reason(b"\"x\"").as_deref(), Some("Request body must be a JSON object"));
        for junk in [b"{\"a\":}".as_slice(), b"", b"{", b"{\"a\":1} x", b"{\"a\":\"\xff\"}", b"nul"] {
            assert_eq!(reason(junk).as_deref(), Some("invalid UTF-8 JSON"), "{junk:?}");
        }
    }
}
