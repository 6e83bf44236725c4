//! JSON text, walked without building a tree.
//!
//! The text was checked when it was stored. Malformed text (damage that no checksum detected) ends a walk
//! early: a value is then absent, and nothing panics.

use std::borrow::Cow;
use std::cmp::Ordering;

/// The white space between JSON's tokens.
const SPACE: [char; 4] = [' ', '\t', '\r', '\n'];

/// Above this limit not every integer is a double.
const EXACT_MAX: i128 = 1 << 53;

/// A value's text, without white space around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Raw<'a>(pub(super) &'a str);

/// A value's type, in the collation order of types.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ValueKind {
    Null,
    False,
    True,
    Number,
    Text,
    Array,
    Object,
}

impl<'a> Raw<'a> {
    pub(super) fn new(text: &'a str) -> Raw<'a> {
        Raw(text.trim_matches(SPACE))
    }

    pub(super) fn kind(self) -> ValueKind {
        match self.0.as_bytes().first() {
            Some(b'{') => ValueKind::Object,
            Some(b'[') => ValueKind::Array,
            Some(b'"') => ValueKind::Text,
            Some(b't') => ValueKind::True,
            Some(b'f') => ValueKind::False,
            Some(b'0'..=b'9' | b'-') => ValueKind::Number,
            _ => ValueKind::Null,
        }
    }

    /// A string's contents; `None` for other values.
    pub(super) fn text(self) -> Option<Cow<'a, str>> {
        let inner = self.0.strip_prefix('"')?.strip_suffix('"')?;
        if memchr::memchr(b'\\', inner.as_bytes()).is_none() {
            return Some(Cow::Borrowed(inner));
        }
        serde_json::from_str(self.0).ok().map(Cow::Owned)
    }

    /// Whether it is the string `text`.
    pub(super) fn is_text(self, text: &str) -> bool {
        let quoted = self.0.as_bytes();
        if quoted.len() < text.len() + 2 {
            return false;
        }
        &quoted[1..quoted.len() - 1] == text.as_bytes() && !text.contains('\\')
            || self.text().is_some_and(|found| found == text)
    }

    pub(super) fn number(self) -> Option<Number> {
        let is_integer = self.0.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
        match is_integer.then(|| self.0.parse()) {
            Some(Ok(integer)) => Some(Number::Integer(integer)),
            _ => self.0.parse().ok().map(Number::Float),
        }
    }

    /// The elements of an array; empty for other values.
    pub(super) fn elements(self) -> Elements<'a> {
        let inner = self.0.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
        Elements { rest: inner.unwrap_or("") }
    }

    /// The members of an object in their order; empty for other values.
    pub(super) fn members(self) -> Members<'a> {
        let inner = self.0.strip_prefix('{').and_then(|text| text.strip_suffix('}'));
        Members { rest: inner.unwrap_or("") }
    }

    /// The last member of that name, which counts if a name is repeated.
    pub(super) fn member(self, name: &str) -> Option<Raw<'a>> {
        self.members().filter(|(key, _)| key.is_text(name)).last().map(|(_, value)| value)
    }
}

/// A number: two different integers never become equal by rounding.
#[derive(Debug, Clone, Copy)]
pub(super) enum Number {
    Integer(i128),
    Float(f64),
}

impl Number {
    /// Compares by value, integers and floats alike.
    pub(super) fn order(self, other: Number) -> Ordering {
        match (self, other) {
            (Number::Integer(one), Number::Integer(other)) => one.cmp(&other),
            (Number::Float(one), Number::Float(other)) => one.partial_cmp(&other).unwrap_or(Ordering::Equal),
            (Number::Integer(one), Number::Float(other)) => order_mixed(one, other),
            (Number::Float(one), Number::Integer(other)) => order_mixed(other, one).reverse(),
        }
    }

    /// Whether both are integers, or both floats, and equal.
    pub(super) fn is_exactly(self, other: Number) -> bool {
        let alike = matches!(self, Number::Integer(_)) == matches!(other, Number::Integer(_));
        alike && self.order(other) == Ordering::Equal
    }
}

fn order_mixed(integer: i128, float: f64) -> Ordering {
    if (-EXACT_MAX..=EXACT_MAX).contains(&integer) {
        return (integer as f64).partial_cmp(&float).unwrap_or(Ordering::Equal);
    }
    // Beyond the integers' range, where the cast would saturate.
    let least = i128::MIN as f64;
    if float >= -least {
        return Ordering::Less;
    }
    if float < least {
        return Ordering::Greater;
    }
    // A float this large has no fraction near the integer.
    integer.cmp(&(float as i128))
}

/// An array's elements.
#[derive(Debug, Clone)]
pub(super) struct Elements<'a> {
    rest: &'a str,
}

impl<'a> Iterator for Elements<'a> {
    type Item = Raw<'a>;

    fn next(&mut self) -> Option<Raw<'a>> {
        let (value, rest) = split_value(self.rest)?;
        self.rest = after(rest, b',').unwrap_or("");
        Some(value)
    }
}

/// An object's members: names, as JSON strings, and values.
#[derive(Debug, Clone)]
pub(super) struct Members<'a> {
    rest: &'a str,
}

impl<'a> Members<'a> {
    /// The members of an object's text without braces.
    pub(super) fn of(text: &'a str) -> Members<'a> {
        Members { rest: text }
    }
}

impl<'a> Iterator for Members<'a> {
    type Item = (Raw<'a>, Raw<'a>);

    fn next(&mut self) -> Option<(Raw<'a>, Raw<'a>)> {
        let (name, rest) = split_value(self.rest)?;
        let (value, rest) = split_value(after(rest, b':')?)?;
        self.rest = after(rest, b',').unwrap_or("");
        Some((name, value))
    }
}

/// The text behind a delimiter.
fn after(text: &str, mark: u8) -> Option<&str> {
    text.trim_start_matches(SPACE).strip_prefix(char::from(mark))
}

/// The value at the front, and the rest.
fn split_value(text: &str) -> Option<(Raw<'_>, &str)> {
    #[cfg(test)]
    super::work::count();
    let text = text.trim_start_matches(SPACE);
    let (value, rest) = text.split_at_checked(value_end(text.as_bytes())?)?;
    Some((Raw(value), rest))
}

fn value_end(bytes: &[u8]) -> Option<usize> {
    match bytes.first()? {
        b'"' => string_end(bytes, 0),
        b'{' | b'[' => nested_end(bytes),
        _ => {
            let ends = |byte: &u8| matches!(byte, b',' | b':' | b']' | b'}' | b' ' | b'\t' | b'\r' | b'\n');
            let end = bytes.iter().position(ends).unwrap_or(bytes.len());
            (end > 0).then_some(end)
        }
    }
}

/// The position behind the array or object at the front of `bytes`.
fn nested_end(bytes: &[u8]) -> Option<usize> {
    let (mut at, mut depth) = (0, 0_usize);
    loop {
        match bytes.get(at)? {
            b'"' => at = string_end(bytes, at)?,
            b'{' | b'[' => {
                depth += 1;
                at += 1;
            }
            b'}' | b']' => {
                depth -= 1;
                at += 1;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => at += 1,
        }
    }
}

/// The position behind the string that begins at `start`.
fn string_end(bytes: &[u8], start: usize) -> Option<usize> {
    let mut at = start + 1;
    loop {
        at += memchr::memchr2(b'"', b'\\', bytes.get(at..)?)?;
        if bytes[at] == b'"' {
            return Some(at + 1);
        }
        at += 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_and_elements_are_found_between_nested_values() {
        let text = r#" { "a" : [1, {"x": "]}\"\\"}, "}"] , "b":"é\u0062" ,"c":{},"d" : -1.5e3} "#;
        let object = Raw::new(text);
        let names: Vec<_> = object.members().map(|(name, _)| name.0).collect();
        assert_eq!(names, ["\"a\"", "\"b\"", "\"c\"", "\"d\""]);
        let elements: Vec<_> = object.member("a").unwrap().elements().map(|value| value.0).collect();
        assert_eq!(elements, ["1", r#"{"x": "]}\"\\"}"#, "\"}\""]);
        assert_eq!(object.member("b").unwrap().text().as_deref(), Some("éb"));
        assert_eq!(object.member("c").unwrap().members().count(), 0);
        assert!(object.member("e").is_none());
    }

    #[test]
    fn the_last_member_of_a_name_counts_and_names_are_unescaped() {
        let object = Raw::new(r#"{"a":1,"\u0061":2,"b\\":3}"#);
        assert_eq!(object.member("a"), Some(Raw("2")));
        assert_eq!(object.member("b\\"), Some(Raw("3")));
        assert_eq!(object.member("b"), None);
    }

    #[test]
    fn malformed_json_ends_a_walk() {
        for junk in ["{\"a\"", "{\"a\":", "{\"a\":\"x", "[1,[2", "{\"a\" 1}", "[,]", "{", "[\"\\", "\"", ""] {
            let raw = Raw::new(junk);
            assert!(raw.members().count() <= 1 && raw.elements().count() <= 1, "{junk}");
            assert!(raw.member("b").is_none(), "{junk}");
        }
        assert_eq!(Raw::new("\"").text(), None);
    }

    #[test]
    fn integers_and_floats_are_compared_by_value_and_large_ones_exactly() {
        let number = |text| Raw(text).number().unwrap();
        assert_eq!(number("1").order(number("1.0")), Ordering::Equal);
        assert!(!number("1").is_exactly(number("1.0")));
        assert_eq!(number("9007199254740993").order(number("9007199254740992.0")), Ordering::Greater);
        assert_eq!(number("9007199254740993").order(number("9007199254740992")), Ordering::Greater);
        assert_eq!(number("-1e300").order(number("-9007199254740993")), Ordering::Less);
        assert_eq!(number("1e300").order(number("9007199254740993")), Ordering::Greater);
        assert_eq!(number("-0").order(number("-0.0")), Ordering::Equal);
        let (most, least) = (i128::MAX.to_string(), i128::MIN.to_string());
        assert_eq!(number(&most).order(number("1e300")), Ordering::Less);
        assert_eq!(number(&least).order(number("-1e300")), Ordering::Greater);
        assert_eq!(
            number(&least).order(number("-170141183460469231731687303715884105728.0")),
            Ordering::Equal
        );
    }
}
