//! Parses paths and query strings, with CouchDB's percent-decoding.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

use crate::error::ApiError;
use crate::json;

/// Refuses a percent sign that isn't followed by two hex digits.
pub(crate) fn check_encoding(uri: &str) -> Result<(), ApiError> {
    let bytes = uri.as_bytes();
    let broken = memchr::memchr_iter(b'%', bytes)
        .any(|at| !bytes.get(at + 1..at + 3).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)));
    if broken { Err(ApiError::bad_request("invalid_url_encoding")) } else { Ok(()) }
}

/// Decodes `%XX`, and `+` as a space. Returns None if the result isn't UTF-8.
pub(crate) fn decode(text: &str) -> Option<Cow<'_, str>> {
    if !text.bytes().any(|byte| byte == b'%' || byte == b'+') {
        return Some(Cow::Borrowed(text));
    }
    let spaced = text.replace('+', " ");
    let decoded = percent_decode_str(&spaced).decode_utf8().ok()?.into_owned();
    Some(Cow::Owned(decoded))
}

/// Decodes a part of a path, in which `+` may be literal.
pub(crate) fn decode_path(text: &str, plus_is_space: bool) -> Option<Cow<'_, str>> {
    match plus_is_space {
        true => decode(text),
        false => percent_decode_str(text).decode_utf8().ok(),
    }
}

/// The decoded segments of a path, without empty ones.
pub(crate) struct Segments<'a> {
    rest: &'a str,
    plus_is_space: bool,
}

impl<'a> Segments<'a> {
    pub(crate) fn new(path: &'a str, plus_is_space: bool) -> Segments<'a> {
        Segments { rest: path, plus_is_space }
    }

    /// The next segment; None at the end.
    pub(crate) fn next(&mut self) -> Result<Option<Cow<'a, str>>, ApiError> {
        let rest = self.rest.trim_start_matches('/');
        if rest.is_empty() {
            self.rest = rest;
            return Ok(None);
        }
        let (segment, rest) = rest.split_once('/').unwrap_or((rest, ""));
        self.rest = rest;
        match decode_path(segment, self.plus_is_space) {
            Some(segment) => Ok(Some(segment)),
            None => Err(settee_doc::Error::new(
                settee_doc::ErrorKind::IllegalDocId,
                "Document id must be valid UTF-8",
            )
            .into()),
        }
    }

    /// The rest as one name that may contain slashes; None at the end.
    pub(crate) fn rest(&mut self) -> Result<Option<Cow<'a, str>>, ApiError> {
        let rest = std::mem::take(&mut self.rest).trim_start_matches('/');
        if rest.is_empty() {
            return Ok(None);
        }
        let bad = || ApiError::bad_request("Attachment name is not UTF-8 encoded");
        decode_path(rest, self.plus_is_space).map(Some).ok_or_else(bad)
    }

    /// Whether there are no more segments.
    pub(crate) fn at_end(&self) -> bool {
        self.rest.bytes().all(|byte| byte == b'/')
    }
}

/// A query string, parsed on demand.
#[derive(Clone, Copy)]
pub(crate) struct Query<'a>(pub(crate) &'a str);

impl<'a> Query<'a> {
    /// The decoded names and values, in order.
    pub(crate) fn pairs(self) -> impl Iterator<Item = (Cow<'a, str>, Cow<'a, str>)> {
        self.0.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode_lossy(name), decode_lossy(value))
        })
    }

    /// The first value with this name.
    pub(crate) fn get(self, name: &str) -> Option<Cow<'a, str>> {
        if self.0.is_empty() {
            return None;
        }
        self.pairs().find(|(found, _)| found == name).map(|(_, value)| value)
    }

    /// Whether the value with this name is `true`.
    pub(crate) fn is_true(self, name: &str) -> bool {
        self.get(name).is_some_and(|value| value == "true")
    }
}

fn decode_lossy(text: &str) -> Cow<'_, str> {
    decode(text).unwrap_or_else(|| {
        let spaced = text.replace('+', " ");
        Cow::Owned(percent_decode_str(&spaced).decode_utf8_lossy().into_owned())
    })
}

/// Parses `true` or `false` in any case, as CouchDB's views do.
pub(crate) fn boolean(value: &str) -> Result<bool, ApiError> {
    if value.eq_ignore_ascii_case("true") {
        Ok(true)
    } else if value.eq_ignore_ascii_case("false") {
        Ok(false)
    } else {
        Err(ApiError::query_parse_error(format!("Invalid boolean parameter: {}", json::quoted(value))))
    }
}

/// Parses a number that isn't negative.
pub(crate) fn positive(value: &str) -> Result<u64, ApiError> {
    let negative = || {
        ApiError::query_parse_error(format!("Invalid value for positive integer: {}", json::quoted(value)))
    };
    integer(value)?.ok_or_else(negative)
}

/// Parses a number; None for a negative one.
pub(crate) fn integer(value: &str) -> Result<Option<u64>, ApiError> {
    match value.parse::<i128>() {
        Ok(number) if number < 0 => Ok(None),
        Ok(number) => Ok(Some(u64::try_from(number).unwrap_or(u64::MAX))),
        Err(_) => Err(no_integer(value)),
    }
}

/// The error for a value that isn't a whole number.
pub(crate) fn no_integer(value: &str) -> ApiError {
    ApiError::query_parse_error(format!("Invalid value for integer: {}", json::quoted(value)))
}

/// The value, if it is valid JSON.
pub(crate) fn json_value(value: &str) -> Result<&str, ApiError> {
    let raw = json::raw(value.as_bytes())?;
    settee_doc::check_tokens(raw.as_bytes()).map_err(|_| ApiError::bad_json())?;
    Ok(raw)
}

/// A key of `_all_docs` or `_all_dbs`: a JSON string, or JSON that sorts before every string.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Key {
    Text(String),
    BeforeAll,
}

impl Key {
    /// Parses a key from JSON text.
    pub(crate) fn parse(raw: &str) -> Result<Key, ApiError> {
        let raw = json_value(raw)?;
        Ok(json::string(raw).map_or(Key::BeforeAll, |text| Key::Text(text.into_owned())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segments(path: &str) -> Vec<String> {
        let mut segments = Segments::new(path, true);
        std::iter::from_fn(|| segments.next().unwrap().map(Cow::into_owned)).collect()
    }

    #[test]
    fn empty_segments_do_not_count() {
        assert_eq!(segments("//db///doc/"), ["db", "doc"]);
        assert_eq!(segments("/"), [""; 0]);
    }

    #[test]
    fn slashes_in_ids_are_encoded_and_plus_is_a_space() {
        assert_eq!(segments("/db/_design%2Fx"), ["db", "_design/x"]);
        assert_eq!(segments("/db/a+b%2Bc"), ["db", "a b+c"]);
        assert_eq!(Segments::new("/a+b%2Bc", false).next().unwrap().as_deref(), Some("a+b+c"));
    }

    #[test]
    fn a_segment_that_is_not_utf8_is_an_illegal_id() {
        let failure = Segments::new("/%ff", true).next().unwrap_err();
        assert_eq!((failure.error.as_ref(), failure.status.as_u16()), ("illegal_docid", 400));
    }

    #[test]
    fn a_percent_sign_needs_two_hex_digits() {
        for good in ["/db", "/db%25", "/db/doc%2eid", "/db?x=%3a"] {
            assert!(check_encoding(good).is_ok(), "{good}");
        }
        for bad in ["/%", "/db%2", "/db%2g", "/db%%3A", "/db?x=%"] {
            let failure = check_encoding(bad).unwrap_err();
            assert_eq!(failure.reason, "invalid_url_encoding", "{bad}");
        }
    }

    #[test]
    fn the_first_value_of_a_name_counts() {
        let query = Query("a=1&b=%22x%2By%22&a=2&flag&c=x+y");
        assert_eq!(query.get("a").as_deref(), Some("1"));
        assert_eq!(query.get("b").as_deref(), Some("\"x+y\""));
        assert_eq!(query.get("c").as_deref(), Some("x y"));
        assert_eq!(query.get("flag").as_deref(), Some(""));
        assert_eq!(query.get("none"), None);
    }

    #[test]
    fn bad_numbers_and_booleans_are_named() {
        assert_eq!(positive("-1").unwrap_err().reason, "Invalid value for positive integer: \"-1\"");
        assert_eq!(positive("x").unwrap_err().reason, "Invalid value for integer: \"x\"");
        assert_eq!(boolean("maybe").unwrap_err().reason, "Invalid boolean parameter: \"maybe\"");
        assert_eq!((positive("7").unwrap(), boolean("TRUE").unwrap()), (7, true));
    }

    #[test]
    fn keys_that_are_no_strings_sort_before_all() {
        assert_eq!(Key::parse("\"a\"").unwrap(), Key::Text("a".to_owned()));
        assert_eq!(Key::parse("12").unwrap(), Key::BeforeAll);
        assert_eq!(Key::parse("a").unwrap_err().reason, "invalid UTF-8 JSON");
    }
}
