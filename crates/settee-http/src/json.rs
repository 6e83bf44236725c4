//! JSON in and out without trees: members and elements are handed on one by one as raw text, answers
//! written by hand.
//!
//! Invariant: nothing here allocates more than the one string that it is asked for. What a caller keeps of
//! many members or elements it charges to its body's share ([`Charge`](crate::body::Charge)), or counts.
//! `clippy.toml` keeps the crate from parsing in any other way.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;
use settee_doc::{JsonError, Revision};

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

/// A string, borrowed where it has no escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// Calls `take` with each member of a request's body, in order.
///
/// # Errors
/// For what isn't JSON and for JSON that is no object, in CouchDB's words; for numbers beyond the range of
/// a double; the first error of `take`.
pub(crate) fn each_member<'a>(
    body: &'a [u8],
    take: impl FnMut(Cow<'a, str>, &'a str) -> Result<(), Failure>,
) -> Result<(), Failure> {
    each_member_unchecked(body, take)?;
    Ok(settee_doc::check_tokens(body)?)
}

/// As [`each_member`], of a text whose numbers and strings are checked elsewhere.
fn each_member_unchecked<'a>(
    body: &'a [u8],
    mut take: impl FnMut(Cow<'a, str>, &'a str) -> Result<(), Failure>,
) -> Result<(), Failure> {
    settee_doc::each_json_member(body, |name, value| take(name, value.get())).map_err(|error| match error {
        JsonError::Refused(failure) => failure,
        JsonError::Syntax => Failure::bad_json(),
        JsonError::OtherKind => match raw(body) {
            Ok(_) => Failure::bad_request("Request body must be a JSON object"),
            Err(failure) => failure,
        },
    })
}

/// The members of those names in a request's body: of each the first, as CouchDB looks members up.
///
/// # Errors
/// As [`each_member`].
pub(crate) fn pick<'a, const N: usize>(
    body: &'a [u8],
    names: [&str; N],
) -> Result<[Option<&'a str>; N], Failure> {
    let found = pick_unchecked(body, names)?;
    settee_doc::check_tokens(body)?;
    Ok(found)
}

/// As [`pick`], of a text whose numbers and strings are checked elsewhere.
///
/// # Errors
/// As [`pick`], but for those of numbers and strings.
pub(crate) fn pick_unchecked<'a, const N: usize>(
    body: &'a [u8],
    names: [&str; N],
) -> Result<[Option<&'a str>; N], Failure> {
    let mut found = [None; N];
    each_member_unchecked(body, |name, value| {
        if let Some(place) = names.iter().position(|wanted| name == *wanted) {
            found[place].get_or_insert(value);
        }
        Ok(())
    })?;
    Ok(found)
}

/// Calls `take` with each element of an array.
///
/// # Errors
/// `no_list` for what is none; the first error of `take`.
pub(crate) fn each_element<'a>(
    raw: &'a str,
    no_list: impl FnOnce() -> Failure,
    mut take: impl FnMut(&'a str) -> Result<(), Failure>,
) -> Result<(), Failure> {
    settee_doc::each_json_element(raw.as_bytes(), |element| take(element.get())).map_err(
        |error| match error {
            JsonError::Refused(failure) => failure,
            JsonError::OtherKind | JsonError::Syntax => no_list(),
        },
    )
}

/// An array's elements, which are strings, and `count_max` at most.
///
/// # Errors
/// `no_list` for what is none, or not of strings; `too_many`.
pub(crate) fn strings<C: Default + Extend<String>>(
    raw: &str,
    count_max: usize,
    no_list: impl Fn() -> Failure,
    too_many: impl Fn() -> Failure,
) -> Result<C, Failure> {
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

/// A JSON string's text; None for JSON of another kind.
#[expect(clippy::disallowed_methods, reason = "takes a string's own size")]
pub(crate) fn string(raw: &str) -> Option<Cow<'_, str>> {
    serde_json::from_str::<Text<'_>>(raw).ok().map(|text| text.0)
}

/// A text that is JSON, without white space around it.
///
/// # Errors
/// 400 for any other.
#[expect(clippy::disallowed_methods, reason = "finds where the text ends")]
pub(crate) fn raw(text: &[u8]) -> Result<&str, Failure> {
    serde_json::from_slice::<&RawValue>(text).map(RawValue::get).map_err(|_| Failure::bad_json())
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
    fn behind_what_was_refused_nothing_is_taken_and_the_rest_must_be_json() {
        let mut count = 0;
        let mut read = |text: &str| {
            let take = |_: &str| {
                count += 1;
                if count == 3 { Err(Failure::body_too_large()) } else { Ok(()) }
            };
            each_element(text, || Failure::bad_request("no list"), take).err().map(|failure| failure.status)
        };
        assert_eq!(read("[1,2,3,4,5]").unwrap(), 413);
        for other in ["{}", "1", "[1", "[1] 2"] {
            assert_eq!(read(other).unwrap(), 400, "{other}");
        }
        assert_eq!(count, 5, "each of the last two has one element");
        let taken =
            |most| strings::<Vec<_>>("[\"a\",\"b\"]", most, Failure::bad_json, Failure::body_too_large);
        assert_eq!(taken(2).unwrap(), ["a", "b"]);
        assert_eq!(taken(1).unwrap_err().status, 413);
    }

    #[test]
    fn what_is_no_object_and_what_is_no_json_have_reasons_of_their_own() {
        let reason = |body: &[u8]| pick(body, ["a"]).err().map(|failure| failure.reason.into_owned());
        assert_eq!(reason(b"[1]").as_deref(), Some("Request body must be a JSON object"));
        assert_eq!(reason(b"\"x\"").as_deref(), Some("Request body must be a JSON object"));
        for junk in [b"{\"a\":}".as_slice(), b"", b"{", b"{\"a\":1} x", b"{\"a\":\"\xff\"}", b"nul"] {
            assert_eq!(reason(junk).as_deref(), Some("invalid UTF-8 JSON"), "{junk:?}");
        }
    }
}
