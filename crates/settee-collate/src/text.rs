//! Contents of JSON strings.

use std::borrow::Cow;

/// The contents of a JSON string, given without its quotes. An escaped surrogate without its partner, which no
/// UTF-8 text can have, becomes U+FFFD; so does an invalid escape.
pub(crate) fn unescape(inner: &str) -> Cow<'_, str> {
    let Some(first) = memchr::memchr(b'\\', inner.as_bytes()) else { return Cow::Borrowed(inner) };
    let mut text = String::with_capacity(inner.len());
    text.push_str(&inner[..first]);
    let mut rest = &inner[first..];
    while let Some(after) = rest.strip_prefix('\\') {
        let mut characters = after.chars();
        let escaped = match characters.next() {
            Some('n') => '\n',
            Some('t') => '\t',
            Some('r') => '\r',
            Some('b') => '\u{8}',
            Some('f') => '\u{c}',
            Some('u') => {
                let (character, length) = unicode_escape(after);
                characters = after[length..].chars();
                character
            }
            Some(other) => other,
            None => char::REPLACEMENT_CHARACTER,
        };
        text.push(escaped);
        rest = characters.as_str();
        let next = memchr::memchr(b'\\', rest.as_bytes()).unwrap_or(rest.len());
        text.push_str(&rest[..next]);
        rest = &rest[next..];
    }
    Cow::Owned(text)
}

/// Decodes `uXXXX`, or a pair of surrogates; returns the character and the length of its text.
fn unicode_escape(text: &str) -> (char, usize) {
    let unit = |text: &str| text.get(1..5).and_then(|digits| u32::from_str_radix(digits, 16).ok());
    let Some(first) = unit(text) else { return (char::REPLACEMENT_CHARACTER, 1) };
    if let Some(character) = char::from_u32(first) {
        return (character, 5);
    }
    let second = text[5..].strip_prefix('\\').filter(|rest| rest.starts_with('u')).and_then(unit);
    match second {
        Some(second) if first < 0xdc00 && (0xdc00..0xe000).contains(&second) => {
            let code = 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
            (char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER), 11)
        }
        _ => (char::REPLACEMENT_CHARACTER, 5),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_decoded_and_lone_surrogates_replaced() {
        let cases = [
            ("", ""),
            ("abc", "abc"),
            (r#"a\"b\\c\/d"#, "a\"b\\c/d"),
            (r"\n\t\r\b\f", "\n\t\r\u{8}\u{c}"),
            (r"\u0041\u00e9x", "Aéx"),
            (r"\ud83d\ude00!", "😀!"),
            (r"\ud83dx", "\u{fffd}x"),
            (r"\ude00\ud83d", "\u{fffd}\u{fffd}"),
            (r"\ud83d\u0041", "\u{fffd}A"),
            (r"\u12", "\u{fffd}12"),
        ];
        for (inner, expected) in cases {
            assert_eq!(unescape(inner), expected, "{inner}");
        }
    }
}
