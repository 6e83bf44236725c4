//! JSON text: members, elements and strings of a value, without building trees.

use settee_doc::JsonError;

/// A value's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Null,
    Boolean,
    Number,
    Text,
    Array,
    Object,
}

/// The type of a JSON text that was checked.
pub(super) fn kind(json: &str) -> Kind {
    match json.trim_start().as_bytes().first() {
        Some(b'{') => Kind::Object,
        Some(b'[') => Kind::Array,
        Some(b'"') => Kind::Text,
        Some(b't' | b'f') => Kind::Boolean,
        Some(b'0'..=b'9' | b'-') => Kind::Number,
        _ => Kind::Null,
    }
}

/// An object's members; of repeated names the last. `None` for other texts.
pub(super) fn members(json: &str) -> Option<Vec<(String, &str)>> {
    let mut members: Vec<(String, &str)> = Vec::new();
    let mut places = std::collections::HashMap::new();
    let walked: Result<(), JsonError<()>> = settee_doc::each_json_member(json.as_bytes(), |name, value| {
        let place = *places.entry(name.to_string()).or_insert(members.len());
        match members.get_mut(place) {
            Some(member) => member.1 = value.get(),
            None => members.push((name.into_owned(), value.get())),
        }
        Ok(())
    });
    walked.ok().map(|()| members)
}

/// The value of a member; of repeated names the last.
pub(super) fn member<'a>(json: &'a str, wanted: &str) -> Option<&'a str> {
    let mut found = None;
    let walked: Result<(), JsonError<()>> = settee_doc::each_json_member(json.as_bytes(), |name, value| {
        if name == wanted {
            found = Some(value.get());
        }
        Ok(())
    });
    walked.ok().and(found)
}

/// An array's elements; `None` for other texts, and for more than `count_max`.
pub(super) fn elements(json: &str, count_max: usize) -> Option<Vec<&str>> {
    let mut elements = Vec::new();
    let walked: Result<(), JsonError<()>> = settee_doc::each_json_element(json.as_bytes(), |element| {
        elements.push(element.get());
        if elements.len() > count_max { Err(()) } else { Ok(()) }
    });
    walked.ok().map(|()| elements)
}

/// A string's contents; `None` for other texts.
pub(super) fn string(json: &str) -> Option<String> {
    if kind(json) != Kind::Text {
        return None;
    }
    // A string is a member's name, whose escapes the walk resolves.
    let mut found = None;
    let object = format!("{{{json}:0}}");
    let walked: Result<(), JsonError<()>> = settee_doc::each_json_member(object.as_bytes(), |name, _| {
        found = Some(name.into_owned());
        Ok(())
    });
    walked.ok().and(found)
}

/// A JSON string with these contents.
pub(super) fn quoted(contents: &str) -> String {
    let mut out = Vec::with_capacity(contents.len() + 2);
    settee_doc::write_json_string(contents, &mut out);
    String::from_utf8(out).expect("a JSON string is text")
}

/// The text without white space between tokens.
pub(super) fn compact(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    let (mut in_string, mut escaped) = (false, false);
    for char in json.chars() {
        match char {
            _ if escaped => escaped = false,
            '\\' if in_string => escaped = true,
            '"' => in_string = !in_string,
            ' ' | '\t' | '\r' | '\n' if !in_string => continue,
            _ => {}
        }
        out.push(char);
    }
    out
}

/// `[…]` of texts.
pub(super) fn array<T: AsRef<str>>(texts: impl IntoIterator<Item = T>) -> String {
    let mut out = String::from("[");
    for text in texts {
        if out.len() > 1 {
            out.push(',');
        }
        out.push_str(text.as_ref());
    }
    out.push(']');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_taken_apart_without_trees() {
        let json = " {\"a\" : [1, \"x y\\\" \"] , \"b\":{} , \"a\":2} ";
        assert_eq!(members(json).unwrap(), [("a".to_owned(), "2"), ("b".to_owned(), "{}")]);
        assert_eq!(member(json, "b"), Some("{}"));
        assert_eq!(member("[1]", "b"), None);
        assert_eq!(compact(json), "{\"a\":[1,\"x y\\\" \"],\"b\":{},\"a\":2}");
        assert_eq!(elements("[1, [2]]", 2).unwrap(), ["1", "[2]"]);
        assert_eq!(elements("[1,2,3]", 2), None);
        assert_eq!(string("\"a\\u0062\\n\"").as_deref(), Some("ab\n"));
        assert_eq!(string("1"), None);
        assert_eq!(array(["1", "{}"]), "[1,{}]");
    }
}
